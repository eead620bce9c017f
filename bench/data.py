"""The rows of data: large reads and writes, random reads and writes, and reads of mapped memory; and the wire under them by iperf3."""

import dataclasses
import json
import resource
import subprocess
import time

import figures
import loads
import report
import usage
from commands import Unavailable, need
from loads import Load
from report import MIB, say, warm

IPERF_SECONDS = 2
LOOK_SECONDS = 0.25
STREAMS = (1, 4)
KIB = 1 << 10


@dataclasses.dataclass(frozen=True)
class Row:
    """`fresh`: it writes files that are not there; any other needs those of `fresh` rows with as many jobs."""

    name: str
    group: str
    load: Load

    @property
    def unit(self):
        return "1/s" if self.load.random else "MiB/s"

    @property
    def fresh(self):
        return self.load.op == "write"


def sequential(op, jobs, shared, direct):
    name = f"{op} 1 MiB, {jobs} job{'s' if jobs > 1 else ''}{' in one file' if shared else ''}{', direct' if direct else ''}"
    return Row(name, "direct" if direct else "sequential", Load(op, MIB, jobs, shared=shared, direct=direct))


def at_random(op, depth, direct):
    return Row(f"random {op} 4 KiB, depth {depth}{', direct' if direct else ''}", f"random-{op}", Load(f"rand{op}", 4 * KIB, depth=depth, direct=direct))


# Those that need files come behind those that write them.
ROWS = [sequential(op, jobs, shared, direct)
        for direct in (False, True) for jobs, shared in ((1, False), (4, False), (4, True)) for op in ("write", "read")]
ROWS += [at_random(op, depth, direct) for op in ("read", "write") for direct in (False, True) for depth in (1, 16)]
ROWS += [Row("mmap read 1 MiB, 1 job", "mmap", Load("read", MIB, mmap=True)),
         Row("mmap random read 4 KiB", "mmap", Load("randread", 4 * KIB, mmap=True))]
GROUPS = list(dict.fromkeys(row.group for row in ROWS))
FILE = Load("write", MIB)  # how the file of the random and mmap rows is made


def watched(*command):
    """What a program prints, and what it has used; its memory is looked at until it ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    meter, peak = usage.Meter([process.pid]), 0
    try:
        while True:
            try:
                text, _ = process.communicate(timeout=LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, meter.read().peak)
    finally:
        process.kill()  # nothing where it has ended
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return text, usage.Used(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak)


def measure_iperf(streams):
    """(bytes, seconds, what the client used, what the server used) of iperf3 over loopback."""
    program = need("iperf3")
    server = subprocess.Popen([program, "-s", "-B", "127.0.0.1", "-p", "7171"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        meter = usage.Meter([server.pid])
        text, client = watched(program, "-c", "127.0.0.1", "-p", "7171", "-P", str(streams), "-C", "cubic", "-t", str(IPERF_SECONDS), "-J")
        received = json.loads(text)["end"]["sum_received"]
        return received["bytes"], received["seconds"], client, meter.read()
    finally:
        server.terminate()
        server.wait()


class Rows(figures.Rows):
    """Measures them, prints the tables, and records them."""

    name = "data"
    cost_unit = "s/GB"

    def __init__(self, options, work, started):
        super().__init__(options, started)
        need("fio")
        chosen = options.rows.split(",")
        self.rows = [row for row in ROWS if row.group in chosen]
        self.sizes = {"size_mib": options.size}

    def units(self):
        return {**{row.name: row.unit for row in self.rows}, **{iperf_row(streams): "MiB/s" for streams in STREAMS}}

    def measure(self):
        for number in range(1, self.options.runs + 1):
            for streams in STREAMS:
                self.measure_streams(streams)
            for target in self.working(number):
                say(f"run {number} of {self.options.runs}: {target.name}")
                with self.failing(target.name, number):
                    self.measure_target(target)

    def measure_streams(self, streams):
        try:
            amount, seconds, client, server = measure_iperf(streams)
            self.keep("iperf3", iperf_row(streams), amount / MIB / seconds, {"client": client, "server": server}, amount / 1e9)
            self.how["iperf3", iperf_row(streams)] = f"iperf3 -P {streams} -C cubic -t {IPERF_SECONDS}"
        except (Unavailable, OSError, KeyError, ValueError) as problem:
            self.missing["iperf3"] = str(problem)

    def measure_target(self, target):
        size = self.options.size * MIB
        # Rows that share their files, in order: by what the files are like.
        for key in dict.fromkeys(self.files_of(row) for row in self.rows):
            rows = [row for row in self.rows if self.files_of(row) == key and target.supports(row.load)]
            if not rows:
                continue
            warm(2 * size)
            target.prepare_data()
            if not rows[0].fresh:
                target.perform(FILE, size, self.options.seconds)
            for row in rows:
                self.measure_row(target, row, size)
            target.remove_data()

    @staticmethod
    def files_of(row):
        """Rows of which this is the same have the same files."""
        return row.group if row.group not in ("sequential", "direct") else (row.group, row.load.jobs, row.load.shared)

    def measure_row(self, target, row, size):
        meters = {"client": usage.Meter(target.clients()), "server": usage.Meter(target.servers())}
        done = target.perform(row.load, size, self.options.seconds)
        used = {side: meter.read() for side, meter in meters.items()}
        target.check()
        used["program" if target.mounted else "client"] = usage.Used(done.cpu, done.peak)
        self.keep(target.name, row.name, loads.rate(row.load, done), used, done.bytes / 1e9)
        self.how[target.name, row.name] = done.how

    def print(self):
        for group in GROUPS:
            names = [row.name for row in self.rows if row.group == group]
            if names:
                self.print_group(f"{group}: {self.options.size} MiB", names)
        for streams in STREAMS:
            found = self.results.get(("iperf3", iperf_row(streams)))
            print(f"iperf3, cubic, {iperf_row(streams)}: {report.cell(found, figures.rate)} MiB/s; "
                  f"CPU {self.cost_cell('iperf3', iperf_row(streams))} s/GB; memory {self.peak_cell('iperf3', iperf_row(streams))} MiB")
        for target in self.started:
            print(f"{target.name}: {target.note}")
            if target.name == "aqueduct":
                for part, (memory, cpu) in target.idle().items():
                    print(f"{target.name}: the idle {part} has {memory:.1f} MiB in memory and used {cpu:.1f} ms of CPU in a second")


def iperf_row(streams):
    return {1: "one stream"}.get(streams, f"{streams} streams")
