"""The rows of a neighbour that computes on every core: what random reads through a mount leave it, and what it leaves them. Who spins takes more than its share."""

import concurrent.futures
import json
import statistics
import subprocess
import time

import figures
import report
from commands import HERE, Unavailable, run
from loads import Load
from report import MIB, say

SECONDS = 3
LEAD = 2  # seconds that the other is longer at work, so that who is measured is never without it: fio takes one to begin on busy cores
READS = Load("randread", 4096, direct=True)
FILE = Load("write", MIB)
SIZE = 1024 * MIB  # each block is read once: more than any mount reads in that time
ALONE, BESIDE, READ_ALONE, READ_BESIDE = "computing alone", "computing with random reads beside", "random reads alone", "random reads with computing beside"


class Rows(figures.Rows):
    """Measures them, prints the table, and records them."""

    name = "neighbour"
    cost_unit = "s"

    def __init__(self, options, work, started):
        super().__init__(options, [target for target in started if target.clients()])
        self.program = f"{work}/compute"
        self.longest = {}  # target -> the longest that the neighbour stood still in each run, in milliseconds
        run("cc", "-O2", "-pthread", "-o", self.program, HERE / "compute.c")

    def units(self):
        return {ALONE: "rounds/s", BESIDE: "rounds/s", READ_ALONE: "1/s", READ_BESIDE: "1/s"}

    def measure(self):
        for number in range(1, self.options.runs + 1):
            for target in self.working(number):
                say(f"run {number} of {self.options.runs}: a neighbour of {target.name}")
                with self.failing(target.name, number):
                    self.measure_target(target)

    def measure_target(self, target):
        target.prepare_data()
        target.perform(FILE, SIZE, SECONDS)
        self.keep(target.name, READ_ALONE, read_rate(target, SECONDS), {}, 1)
        self.keep(target.name, ALONE, finish(self.compute(SECONDS))["rounds_per_second"], {}, 1)
        neighbour = self.compute(SECONDS + LEAD)
        self.keep(target.name, READ_BESIDE, read_rate(target, SECONDS), {}, 1)
        finish(neighbour)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            reads = threads.submit(read_rate, target, SECONDS + LEAD)
            time.sleep(LEAD / 2)
            computed = finish(self.compute(SECONDS))
            reads.result()  # that it failed, if it did
        target.check()
        self.keep(target.name, BESIDE, computed["rounds_per_second"], {}, 1)
        self.longest.setdefault(target.name, []).append(computed["longest_seconds"] * 1000)
        target.remove_data()

    def compute(self, seconds):
        return subprocess.Popen([self.program, str(seconds)], stdout=subprocess.PIPE, text=True)

    def print(self):
        print("\nneighbour: one program computes on each core while another reads 4 KiB at random, one request at a time, for as long\n")
        share = lambda target, part, whole: f"{statistics.median(self.results[target, part]) / statistics.median(self.results[target, whole]):.2f}"
        lines = [["", "computing beside, of alone", "reads alone", "reads beside", "of alone", "longest pause of computing, ms"]]
        for target in [target.name for target in self.started if (target.name, BESIDE) in self.results]:
            rates = [report.cell(self.results[target, row], figures.rate) for row in (READ_ALONE, READ_BESIDE)]
            lines.append([target, share(target, BESIDE, ALONE), *rates, share(target, READ_BESIDE, READ_ALONE), report.cell(self.longest[target], lambda pause: f"{pause:.1f}")])
        report.table(lines)

    def record(self, record):
        super().record(record)
        for target, pauses in self.longest.items():
            record.add(section=self.name, target=target, row="longest pause of computing", unit="ms", median=round(statistics.median(pauses), 2), values=[round(pause, 2) for pause in pauses])


def read_rate(target, seconds):
    done = target.perform(READS, SIZE, seconds)
    return done.operations / done.seconds


def finish(process):
    text, _ = process.communicate(timeout=10 * SECONDS)
    if process.returncode != 0:
        raise Unavailable("the program that computes failed")
    return json.loads(text)
