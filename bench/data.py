"""The rows of data and names: large reads and writes, random reads, and files created, looked at and unlinked."""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

import report
import targets
from report import MIB, say, warm

HERE = pathlib.Path(__file__).resolve().parent
EXPIRY_MS = 2000  # pause between create, stat and unlink: longer than every timeout in use (1 s)

ROWS = [
    # name, unit
    ("read 1 MiB, 1 job", "MiB/s"),
    ("read 1 MiB, 4 jobs", "MiB/s"),
    ("write 1 MiB, 1 job", "MiB/s"),
    ("write 1 MiB, 4 jobs", "MiB/s"),
    ("random read 4 KiB, depth 1", "1/s"),
    ("create files", "1/s"),
    ("stat files", "1/s"),
    ("unlink files", "1/s"),
]


def fio(folder, options):
    """One run of fio; its figures of the one kind of work that it did."""
    # A job that is called as something in the working directory, other than a file, would have all jobs use that one name.
    command = ["fio", "--name=job", "--filename_format=file.$jobnum", f"--directory={folder}", "--ioengine=psync", "--direct=0", "--fallocate=none",
               "--group_reporting", "--thread", "--output-format=json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise targets.Unavailable(f"fio failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return job["read"] if job["read"]["total_ios"] else job["write"]


def measure_data(target, size, jobs, figures):
    """Writes fresh files, reads them back, and removes them."""
    folder = target.path / "data"
    folder.mkdir()
    each = [f"--numjobs={jobs}", f"--size={size // jobs}M"]
    plural = f"{jobs} job{'s' if jobs > 1 else ''}"
    warm(2 * size * MIB)
    wrote = fio(folder, ["--rw=write", "--bs=1M", "--end_fsync=1", *each])
    figures[f"write 1 MiB, {plural}"] = wrote["bw_bytes"] / MIB
    warm(size * MIB)
    read = fio(folder, ["--rw=read", "--bs=1M", "--invalidate=1", *each])
    figures[f"read 1 MiB, {plural}"] = read["bw_bytes"] / MIB
    if jobs == 1:
        # Each block at most once: nothing is read twice from a client's cache.
        figures["random read 4 KiB, depth 1"] = fio(folder, [
            "--rw=randread", "--bs=4k", "--invalidate=1", "--runtime=3", f"--size={size}M"])["iops"]
    shutil.rmtree(folder)


def measure_files(target, count, figures):
    folder = target.path / "files"
    folder.mkdir()
    output = targets.run(target.folder.parent / "files", folder, str(count), str(EXPIRY_MS))
    for line in output.splitlines():
        what, rate = line.split()
        figures[f"{what} files"] = float(rate)
    folder.rmdir()


def measure_iperf():
    """One stream of iperf3 over loopback, cubic, in MiB/s."""
    program = targets.need("iperf3")
    server = subprocess.Popen([program, "-s", "-1", "-B", "127.0.0.1", "-p", "7171"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        text = targets.run(program, "-c", "127.0.0.1", "-p", "7171", "-C", "cubic", "-t", "3", "-J")
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8 / MIB
    finally:
        server.terminate()
        server.wait()


class Rows:
    """Measures them, prints the table, and records it."""

    name = "data"

    def __init__(self, options, work, started):
        targets.need("fio")
        targets.run("cc", "-O2", "-o", f"{work}/files", HERE / "files.c")
        self.options = options
        self.started = [target for target in started if self.name in target.rows]
        self.results, self.missing = {}, {}

    def measure(self):
        for number in range(1, self.options.runs + 1):
            try:
                self.results.setdefault(("iperf3", "one stream"), []).append(measure_iperf())
            except (targets.Unavailable, OSError, KeyError, ValueError) as problem:
                self.missing["iperf3"] = str(problem)
            for target in self.started:
                say(f"run {number} of {self.options.runs}: {target.name}")
                figures = {}
                try:
                    for jobs in (1, 4):
                        measure_data(target, self.options.size, jobs, figures)
                    measure_files(target, self.options.files, figures)
                except (targets.Unavailable, OSError, subprocess.SubprocessError) as problem:
                    self.missing[target.name] = f"failed in run {number}: {problem}"
                    say(f"{target.name} {self.missing[target.name]}")
                for row, figure in figures.items():
                    self.results.setdefault((target.name, row), []).append(figure)

    def print(self):
        options = self.options
        print(f"\nMedians of {options.runs} runs (least-greatest), {options.size} MiB, {options.files} files, backing store {options.work}, "
              f"loopback, {os.cpu_count()} cores, Linux {os.uname().release}\n")
        peers = [target.name for target in self.started if target.networked]
        lines = [["", *(target.name for target in self.started), "of local", "of best peer", "of iperf3"]]
        for row, unit in ROWS:
            wire = [("iperf3", "one stream")] if unit == "MiB/s" else []
            lines.append([f"{row} ({unit})", *(report.cell(self.results.get((target.name, row)), rate) for target in self.started),
                          self.ratio(row, [("local", row)]), self.ratio(row, [(peer, row) for peer in peers]), self.ratio(row, wire)])
        report.table(lines)
        print(f"\niperf3, cubic, one stream: {report.cell(self.results.get(('iperf3', 'one stream')), rate)} MiB/s")
        for target in self.started:
            print(f"{target.name}: {target.note}")
            if isinstance(target, targets.Aqueduct):
                for part, (memory, cpu) in target.idle().items():
                    print(f"{target.name}: the idle {part} has {memory:.1f} MiB in memory and used {cpu:.1f} ms of CPU in a second")

    def ratio(self, row, others):
        """Our median over the best median of the others, as text."""
        ours = self.results.get(("aqueduct", row))
        best = [statistics.median(self.results[other]) for other in others if self.results.get(other)]
        return f"{statistics.median(ours) / max(best):.2f}" if ours and best else "-"

    def record(self, record):
        units = {**dict(ROWS), "one stream": "MiB/s"}
        sizes = {"size_mib": self.options.size, "files": self.options.files}
        for (name, row), values in self.results.items():
            if values:
                record.add(**sizes, target=name, row=row, unit=units[row], median=round(statistics.median(values), 1),
                           values=[round(value, 1) for value in values])
        for name, reason in self.missing.items():
            record.add(**sizes, target=name, missing=reason)


def rate(value):
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1000:,.1f} k"
