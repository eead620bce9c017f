"""What of the measuring is pure: parsing, ratios and comparisons. python3 -m unittest discover -s bench/tests"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))
sys.dont_write_bytecode = True

import compare
import data
import loads
import neighbour
import report
import targets
import usage
from commands import Unavailable


def line(values, date="2026-11-22T10:00:00+00:00", **more):
    return {"date": date, "commit": "abc", "kernel": "6.18.44-x", "cores": 2, "section": "data", "store": "tmpfs", "target": "aqueduct", "size_mib": 1024,
            "row": "read 1 MiB, 1 job", "unit": "MiB/s", "values": values, **more}


class Parsing(unittest.TestCase):
    def fio(self, **job):
        nothing = {"total_ios": 0, "io_bytes": 0, "bw_bytes": 0}
        return "note: some warning\n" + json.dumps({"jobs": [{"read": nothing, "write": nothing, "usr_cpu": 0, "sys_cpu": 0, "job_runtime": 0, **job}]})

    def test_fio_after_its_warnings(self):
        done = loads.parse_fio(self.fio(write={"total_ios": 100, "io_bytes": 100 << 20, "bw_bytes": 50 << 20}, usr_cpu=10, sys_cpu=40, job_runtime=4000))
        self.assertEqual((done.bytes, done.operations, done.seconds), (100 << 20, 100, 2))
        self.assertAlmostEqual(done.cpu, 2.0)  # of all threads together

    def test_aqueduct_load(self):
        done = loads.parse_program('{"op":"read","jobs":1,"depth":1,"bytes":4096,"operations":1,"seconds":0.5,"cpu_seconds":0.25,"memory_peak_kib":2048}\n')
        self.assertEqual((done.bytes, done.operations, done.seconds, done.cpu, done.peak), (4096, 1, 0.5, 0.25, 2))

    def test_rates(self):
        done = loads.Done(200 << 20, 51200, 2, 0, None, "")
        self.assertEqual(loads.rate(loads.Load("read", 1 << 20), done), 100)
        self.assertEqual(loads.rate(loads.Load("randread", 4096), done), 25600)

    def test_no_time_is_no_rate(self):
        with self.assertRaises(Unavailable):
            loads.rate(loads.Load("read", 1 << 20), loads.Done(1, 1, 0, 0, None, ""))


class Targets(unittest.TestCase):
    def test_mounts_differ_by_name_options_and_rows(self):
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            made = {name: targets.ALL[name](work, "aqueduct") for name in targets.ALL if name.startswith("aqueduct") and name != "aqueduct-library"}
            made |= {name: make(work, "older") for name, make in targets.OLDER.items()}
            for name, target in made.items():
                self.assertEqual(target.name, name)
            self.assertEqual({name: target.options for name, target in made.items()}, {
                "aqueduct": [], "aqueduct-dev": ["-o", "io_uring=off"], "aqueduct-none": ["-o", "cache=none"],
                "aqueduct-lease": ["-o", "cache=lease"], "aqueduct-lease-dev": ["-o", "cache=lease,io_uring=off"],
                "aqueduct-before": [], "aqueduct-lease-before": ["-o", "cache=lease"]})
            self.assertEqual(made["aqueduct-dev"].rows, made["aqueduct"].rows)
            self.assertNotIn("data", made["aqueduct-lease-dev"].rows)


class Words(unittest.TestCase):
    def test_jobs_in_one_file_have_parts_of_it(self):
        words = loads.fio_words(loads.Load("write", 1 << 20, jobs=4, shared=True), 64 << 20, 1, "psync")
        self.assertIn(f"--offset_increment={16 << 20}", words)
        self.assertIn(f"--size={16 << 20}", words)

    def test_threads_stand_in_for_depth(self):
        words = loads.fio_words(loads.Load("randread", 4096, depth=16), 64 << 20, 1, "threads")
        self.assertIn("--numjobs=16", words)
        self.assertIn("--ioengine=psync", words)
        self.assertFalse([word for word in words if word.startswith("--iodepth")])

    def test_rows_have_names_of_their_own(self):
        self.assertEqual(len({row.name for row in data.ROWS}), len(data.ROWS))


class Ratios(unittest.TestCase):
    def test_of_the_best_with_its_name(self):
        self.assertEqual(report.ratio([30, 10, 20], {"a": [5, 5, 5], "b": [9, 10, 11]}, named=True), "2.00 (b)")

    def test_of_nothing(self):
        self.assertEqual(report.ratio([1], {}), "-")
        self.assertEqual(report.ratio(None, {"a": [1]}), "-")


class Builds(unittest.TestCase):
    def test_programs_are_told_apart_by_what_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            one, two, three = (pathlib.Path(folder) / name for name in ("one", "two", "three"))
            one.write_text("a"), two.write_text("b"), three.write_text("a")
            self.assertNotEqual(report.build(one), report.build(two))
            self.assertEqual(report.build(one), report.build(three))
            self.assertIsNone(report.build(pathlib.Path(folder) / "none"))


class Comparing(unittest.TestCase):
    def test_slower_only_where_ranges_are_apart(self):
        old = line([100, 110, 120])
        self.assertEqual(compare.verdict(line([80, 90, 99]), old), "slower")
        self.assertEqual(compare.verdict(line([80, 90, 100]), old), "")
        self.assertEqual(compare.verdict(line([121, 130, 140]), old), "faster")

    def test_times_are_better_small(self):
        for unit in ("s", "ms"):
            old, new = line([1, 1.1, 1.2], unit=unit), line([2, 2.2, 2.4], unit=unit)
            self.assertEqual(compare.verdict(new, old), "slower")
            self.assertAlmostEqual(compare.speed(new, old), 0.5)

    def test_two_runs_say_nothing(self):
        self.assertEqual(compare.verdict(line([1, 2]), line([100, 110, 120])), "")

    def test_newest_beside_the_one_before(self):
        lines = [line([1] * 3, "2026-11-20"), line([2] * 3, "2026-11-21"), line([3] * 3, "2026-11-22")]
        (new, old), = compare.pairs(lines)
        self.assertEqual((new["values"][0], old["values"][0]), (3, 2))

    def test_the_older_program_of_the_same_run(self):
        lines = [line([9] * 3, "2026-11-20"), line([3] * 3, "2026-11-20", target="aqueduct-before"), line([1] * 3, "2026-11-21", target="aqueduct-before"),
                 line([2] * 3, "2026-11-21"), line([5] * 3, "2026-11-22")]
        (new, old), = compare.beside(lines)
        self.assertEqual((new["values"][0], old["values"][0]), (2, 1))

    def test_other_machines_stores_and_sizes_are_others(self):
        new = line([3] * 3)
        for other in ({"cores": 64}, {"kernel": "6.1.0-9-amd64"}, {"store": "xfs"}, {"size_mib": 512}, {"target": "sshfs"}):
            self.assertEqual(list(compare.pairs([line([1] * 3, "2026-11-20", **other), new])), [])
        self.assertEqual(list(compare.pairs([line([1] * 3, "2026-11-20", processor="A"), {**new, "processor": "B"}])), [])

    def test_failures_only_below_the_limit(self):
        pair = (line([70, 71, 72]), line([100, 101, 102]))
        self.assertEqual(compare.failures([pair], 0.8), [pair])
        self.assertEqual(compare.failures([pair], 0.5), [])

    def test_first_records_are_understood(self):
        old = line([1], files=10000, row="create files")
        del old["section"], old["store"]
        new = compare.upgraded(old)
        self.assertEqual((new["section"], new["row"], new["store"]), ("names", "create 10000 files", "tmpfs"))

    def command(self, folder, *words):
        return subprocess.run([sys.executable, BENCH / "compare.py", "--records", folder, *words], capture_output=True, text=True)

    def test_exit_status(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = [line([100, 101, 102], "2026-11-21T00:00:00"), line([50, 51, 52], "2026-11-22T00:00:00")]
            (pathlib.Path(folder) / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
            self.assertEqual(self.command(folder).returncode, 0)
            failed = self.command(folder, "--fail-slower", "0.9")
            self.assertEqual(failed.returncode, 1)
            self.assertIn("aqueduct read 1 MiB, 1 job", failed.stderr)

    def test_records_of_the_repository_are_read(self):
        self.assertGreater(len(compare.read(sorted((BENCH / "records").glob("*.jsonl")))), 100)


class Ended(unittest.TestCase):
    def test_a_mount_that_has_ended_has_no_figures(self):
        with tempfile.TemporaryDirectory() as work:
            target = targets.Target(work)
            target.check()  # the local directory has none
            target.path = pathlib.Path(work) / "mount"
            target.path.mkdir()
            with self.assertRaises(Unavailable):
                target.check()


class Neighbours(unittest.TestCase):
    def test_who_is_measured_has_the_other_beside_it_all_the_time(self):
        asked, reading, computed = [], threading.Event(), threading.Event()

        class Mount:
            name, check, prepare_data, remove_data = "mount", *[lambda self: None] * 3

            def perform(self, load, size, seconds):
                asked.append((load.op, seconds))
                if seconds > neighbour.SECONDS:
                    reading.set()
                    computed.wait(60)
                return loads.Done(1, 1, 1, 0, None, "")

        class Rows(neighbour.Rows):
            def __init__(self):
                self.results, self.longest = {}, {}

            def keep(self, name, row, figure, used, amount):
                self.results[row] = figure

            def compute(self, seconds):
                asked.append(("compute", seconds))
                if len(asked) > 5:
                    self.was_reading = reading.wait(60)
                    computed.set()
                return subprocess.Popen([sys.executable, "-c", 'print(\'{"rounds_per_second": 5, "longest_seconds": 0.1}\')'], stdout=subprocess.PIPE, text=True)

        rows, short, long = Rows(), neighbour.SECONDS, neighbour.SECONDS + neighbour.LEAD
        rows.measure_target(Mount())
        self.assertEqual(asked, [("write", short), ("randread", short), ("compute", short), ("compute", long), ("randread", short),
                                 ("randread", long), ("compute", short)])
        self.assertTrue(rows.was_reading)
        self.assertEqual(set(rows.results), set(rows.units()))


class Order(unittest.TestCase):
    def test_in_two_runs_each_comes_before_each_other_once(self):
        targets = ["local", "aqueduct", "aqueduct-before"]
        for number in (1, 3, 5):
            orders = [report.in_order(targets, number), report.in_order(targets, number + 1)]
            self.assertEqual([sorted(order) for order in orders], [sorted(targets)] * 2)
            self.assertEqual(orders[0], orders[1][::-1])
        self.assertGreater(len({tuple(report.in_order(targets, number)) for number in range(1, 11)}), 3)
        self.assertEqual(targets, ["local", "aqueduct", "aqueduct-before"])


class Usage(unittest.TestCase):
    def test_children_belong_to_their_parents(self):
        self.assertEqual(usage.with_children([10], {10: 1, 11: 10, 12: 11, 13: 1}), {10, 11, 12})

    def test_a_busy_child_is_counted(self):
        child = subprocess.Popen([sys.executable, "-c", "import sys\nprint('up', flush=True)\nsys.stdin.read(1)\nwhile True: x = bytearray(40 << 20)"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            meter = usage.Meter([os.getpid()])
            child.stdin.write(b"x")
            child.stdin.flush()
            time.sleep(1)
            used = meter.read()
        finally:
            child.kill()
            child.communicate()
        self.assertGreater(used.cpu, 0.1)
        self.assertGreater(used.peak, 40)

    def test_nobody_uses_nothing(self):
        self.assertEqual(usage.Meter([]).read(), usage.Used())


if __name__ == "__main__":
    unittest.main()
