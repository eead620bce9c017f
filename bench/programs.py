"""Rows that are programs: runs them on each target, counts what they ask, prints tables and records figures."""

import contextlib
import dataclasses
import os
import statistics
import subprocess
import time

import report
import sources
import targets
import usage
from commands import Unavailable, run
from report import say
from upcalls import Upcalls

SLOW_SECONDS = 90    # a program that a target has spent as much on is not run there again, so that the slowest does not decide how long all takes
HANG_SECONDS = 300
ENVIRONMENT = {**os.environ, **sources.GIT, "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"}
LATER = {"RELEASE", "RELEASEDIR", "FORGET", "BATCH_FORGET", "INTERRUPT"}  # requests that no program waits for


@dataclasses.dataclass
class Program:
    """`command` runs in bash, with what `Rows.environment` says. `prepare` runs before, and is not measured."""

    name: str
    row: str
    command: str
    prepare: str = "true"


class Rows:
    """What the groups of such rows share. Each has a `name`, the `states` that a program is measured in, what its `title` says of them, and which `upcall` its
    table counts, as (heading, name)."""

    def __init__(self, options, work, started, programs):
        self.options = options
        self.work = work
        self.started = [target for target in started if self.name in target.rows]
        self.programs = programs
        self.results = {}  # (target, row, state) -> seconds of each run
        self.used = {}     # (target, row, state) -> CPU seconds and most MiB of client and server, of each run
        self.asked = {}    # (target, row, state) -> what the first run asked of the mount and of the server
        self.loads = []
        self.missing = {}  # (target, row) -> why there are no figures from there on
        self.upcalls = None

    def measure(self):
        try:
            self.upcalls = Upcalls()
        except (Unavailable, OSError) as problem:
            self.missing["upcalls", ""] = str(problem)
        try:
            for number in range(1, self.options.runs + 1):
                self.loads.append(round(os.getloadavg()[0], 2))
                for program in self.programs:
                    say(f"run {number} of {self.options.runs}: {program.row}")
                    self.measure_program(number, program)
        finally:
            if self.upcalls:
                self.upcalls.close()

    def due(self, number, program):
        """The targets on which it has not failed or taken too long, in the order of this run."""
        spent = lambda target: sum(sum(self.results.get((target.name, program.row, state), [])) for state in self.states)
        due = [target for target in self.started if (target.name, program.row) not in self.missing and spent(target) < SLOW_SECONDS]
        return report.in_order(due, number)

    @contextlib.contextmanager
    def failing(self, target, number, program):
        """A program that fails on a target is not run on it from there on, and has no figures."""
        try:
            yield
        except (Unavailable, OSError, subprocess.SubprocessError) as problem:
            self.missing[target.name, program.row] = f"failed in run {number}: {problem}"
            for state in self.states:
                self.results.pop((target.name, program.row, state), None)
            say(f"{target.name}, {program.row}: {problem}")

    def keep(self, target, program, state, seconds):
        self.results.setdefault((target.name, program.row, state), []).append(seconds)

    def metered(self, target, program, state):
        """The seconds that the program takes; what client and server use meanwhile is kept."""
        meters = {"client": usage.Meter(target.clients()), "server": usage.Meter(target.servers())}
        seconds = self.run(target, program.command)
        target.check()
        for side, meter in meters.items():
            use = meter.read()
            if use.cpu is not None and state in self.states:
                found = self.used.setdefault((target.name, program.row, state), {}).setdefault(side, {"cpu": [], "peak": []})
                found["cpu"].append(use.cpu)
                found["peak"].append(use.peak)
        return seconds

    def timed(self, number, target, program, state):
        """The seconds that the program takes. In the first run also what it asks is counted, which costs it a little."""
        if number > 1 or target.path == target.backing or state not in self.states:
            return self.metered(target, program, state)
        before = target.requests()
        with self.upcalls.counted(target.path) if self.upcalls else contextlib.nullcontext({}) as asked:
            seconds = self.metered(target, program, state)
        if before is not None:
            asked["requests"] = target.requests() - before
        self.asked[target.name, program.row, state] = asked
        return seconds

    def run(self, target, command):
        environment = {**ENVIRONMENT, **self.environment(target)}
        start = time.perf_counter()
        run("bash", "-o", "pipefail", "-c", command, seconds=HANG_SECONDS, env=environment, cwd="/", stdin=subprocess.DEVNULL)
        return time.perf_counter() - start

    def cells(self):
        """(row, state, what both are called together)"""
        return [(program.row, state, f"{program.row}, {state}" if state else program.row) for program in self.programs for state in self.states]

    def print(self):
        print(f"\n{self.title} Seconds, medians of {self.options.runs} runs (least-greatest). Load before each run: {', '.join(map(str, self.loads))}")
        for name, facts in self.options.trees.items():
            print(f"{name}: {facts['what']}: {facts['files']:,} files, {facts['mib']} MiB, median {facts['median_bytes']:,} bytes, "
                  f"{facts['folders']:,} folders, {facts['depth']} deep")
        print()
        lines = [["", *(target.name for target in self.started)]]
        lines += [[label, *(report.cell(self.results.get((target.name, row, state)), seconds) for target in self.started)]
                  for row, state, label in self.cells()]
        report.table(lines)
        print("\nCPU seconds, and most memory in MiB: client + server\n")
        shown = [target for target in self.started if target.mounted and target.clients()]
        report.table([["", *(target.name for target in shown)],
                      *([label, *(self.used_cell((target.name, row, state)) for target in shown)] for row, state, label in self.cells())])
        for target in self.started:
            if isinstance(target, targets.Aqueduct):
                self.print_aqueduct(target)
        for target in self.started:
            print(f"{target.name}: {target.note}")

    def print_missing(self):
        for (name, row), reason in self.missing.items():
            print(f"{name} NOT MEASURED: {row}: {reason}")

    def used_cell(self, key):
        sides = self.used.get(key, {}).values()
        cpu = " + ".join(f"{statistics.median(used['cpu']):.2f}" for used in sides)
        peak = " + ".join(f"{max(used['peak']):.0f}" for used in sides)
        return f"{cpu}, {peak}" if sides else "-"

    def print_aqueduct(self, target):
        """Our time as a multiple of others', and what a run asks."""
        heading, counted = self.upcall
        print(f"\n{target.name}: time as a multiple of others', less than 1 is faster; and what the first run asked: of the server (requests), of the mount "
              f"(upcalls that the program waits for), and how many of these were {heading}\n")
        peers = [other.name for other in self.started if other.networked]
        lines = [["", "of local", "of bindfs", "of best peer", "requests", "upcalls", heading]]
        for row, state, label in self.cells():
            asked = self.asked.get((target.name, row, state), {})
            upcalls = asked.get("upcalls")
            lines.append([label,
                          *(self.ratio((target.name, row, state), [(other, row, state) for other in others]) for others in (["local"], ["bindfs"], peers)),
                          f"{asked['requests']:,}" if "requests" in asked else "-",
                          *((f"{awaited(upcalls):,}", f"{upcalls.get(counted, 0):,}") if upcalls is not None else ("-", "-"))])
        report.table(lines)

    def ratio(self, ours, others):
        """The median of `ours` over the best median of the others, as text."""
        best = [statistics.median(self.results[other]) for other in others if other in self.results]
        return f"{statistics.median(self.results[ours]) / min(best):.2f}" if ours in self.results and best else "-"

    def record(self, record):
        record.add(section=self.name, target="trees", loads=self.loads, **self.options.trees)
        for (name, row, state), values in self.results.items():
            sides = self.used.get((name, row, state), {})
            record.add(section=self.name, target=name, row=row, **({"state": state} if state else {}), unit="s", median=round(statistics.median(values), 4),
                       values=[round(value, 4) for value in values], cpu={side: [round(value, 3) for value in used["cpu"]] for side, used in sides.items()},
                       cpu_unit="s", memory_peak_mib={side: round(max(used["peak"]), 1) for side, used in sides.items()},
                       **self.asked.get((name, row, state), {}))
        for (name, row), reason in self.missing.items():
            record.add(section=self.name, target=name, row=row, missing=reason)


def seconds(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def awaited(upcalls):
    return sum(count for name, count in upcalls.items() if name not in LATER)
