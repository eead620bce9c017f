"""The rows of small files: programs that look at or read a source tree, on a mount that has just been made (cold), at once again (warm), and after a pause
(idle)."""

import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import time

import report
import sources
import targets
from report import MIB, say, warm
from upcalls import Upcalls

STATES = ("cold", "warm", "idle")
WARM_REPEATS = 3     # of a program that takes less than WARM_QUICK_SECONDS: the median of these is one figure; others run once
WARM_QUICK_SECONDS = 1.0
IDLE_SECONDS = 10    # longer than every timeout in use (1 s) and than a lease (7 s)
SLOW_SECONDS = 90    # a program that a target has spent as much on is not run there again, so that the slowest does not decide how long all takes
HANG_SECONDS = 300
TOUCHED = 512 * MIB  # memory touched before each cold run: more than what the kernel caches of all trees
ABSENT = "no such words are in any file"
ENVIRONMENT = {**os.environ, **sources.GIT, "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"}
LATER = {"RELEASE", "RELEASEDIR", "FORGET", "BATCH_FORGET", "INTERRUPT"}  # requests that no program waits for


@dataclasses.dataclass
class Program:
    """`command` runs in bash, with $ROOT the directory measured and $OUT one elsewhere. Not measured: `prepare`, before the mount is made anew, and `before`,
    before each run, which leaves $ROOT alone."""

    name: str
    row: str
    command: str
    prepare: str = "true"
    before: str = "true"


BUILD = f'make -s -j{os.cpu_count()} -C "$ROOT/project" OUT="$OUT"'
PROGRAMS = [
    Program("find", "find -ls", 'exec find "$ROOT/source" -ls >/dev/null'),
    Program("status", "git status", 'git -C "$ROOT/source" status | grep -q "working tree clean"'),
    Program("status-no-locks", "git --no-optional-locks status", 'git --no-optional-locks -C "$ROOT/source" status | grep -q "working tree clean"'),
    Program("grep", "grep -r", f'grep -r --exclude-dir=.git "{ABSENT}" "$ROOT/source"; [[ $? -eq 1 ]]'),
    # To a pipe: into /dev/null GNU tar reads nothing.
    Program("tar", "tar", 'tar -cf - --exclude=.git -C "$ROOT" source | cat >/dev/null'),
    Program("build", "make", BUILD, before='rm -rf "$OUT"'),
    Program("up-to-date", "make, nothing to do", f"{BUILD} -q", prepare=BUILD),
    Program("import", "python -c 'import numpy, pandas'", f'PYTHONPATH="$ROOT/python" exec "{sys.executable}" -c "import numpy, pandas"'),
]
NAMES = [program.name for program in PROGRAMS]


class Rows:
    """Measures them, prints the tables, and records them."""

    name = "small-files"

    def __init__(self, options, work, started):
        self.options = options
        self.work = work
        self.started = [target for target in started if self.name in target.rows]
        self.programs = [program for program in PROGRAMS if program.name in options.programs.split(",")]
        self.results = {}  # (target, row, state) -> seconds of each run
        self.asked = {}    # (target, row, state) -> what the first run asked of the mount and of the server
        self.loads = []
        self.missing = {}
        self.upcalls = None

    def measure(self):
        try:
            self.upcalls = Upcalls()
        except (targets.Unavailable, OSError) as problem:
            self.missing["upcalls"] = str(problem)
        try:
            for number in range(1, self.options.runs + 1):
                self.loads.append(round(os.getloadavg()[0], 2))
                for program in self.programs:
                    say(f"run {number} of {self.options.runs}: {program.row}")
                    self.measure_program(number, program)
        finally:
            if self.upcalls:
                self.upcalls.close()

    def measure_program(self, number, program):
        """Cold and warm on each target, then, after a pause that all share, idle on each."""
        if number == 1 and self.started:
            with self.failing(self.started[0], number, program):
                for command in (program.prepare, program.before, program.command):  # reads the program itself from the disk
                    self.run(self.started[0], command)
        spent = lambda target: sum(sum(self.results.get((target.name, program.row, state), [])) for state in STATES)
        due = [target for target in self.started if target.name not in self.missing and spent(target) < SLOW_SECONDS]
        for target in due:
            with self.failing(target, number, program):
                self.cold_and_warm(number, target, program)
        time.sleep(IDLE_SECONDS)
        for target in due:
            if target.name not in self.missing:
                with self.failing(target, number, program):
                    self.once(number, target, program, "idle")

    @contextlib.contextmanager
    def failing(self, target, number, program):
        """Whoever fails is left out from there on."""
        try:
            yield
        except (targets.Unavailable, OSError, subprocess.SubprocessError) as problem:
            self.missing[target.name] = f"failed in run {number} of '{program.row}': {problem}"
            say(f"{target.name} {self.missing[target.name]}")

    def cold_and_warm(self, number, target, program):
        self.run(target, program.prepare)
        warm(TOUCHED)
        target.remount()
        self.once(number, target, program, "cold")
        seconds = [self.timed(number, target, program, "warm")]
        while seconds[0] < WARM_QUICK_SECONDS and len(seconds) < WARM_REPEATS:
            seconds.append(self.timed(number, target, program, "again"))
        self.keep(target, program, "warm", statistics.median(seconds))

    def once(self, number, target, program, state):
        self.keep(target, program, state, self.timed(number, target, program, state))

    def keep(self, target, program, state, seconds):
        self.results.setdefault((target.name, program.row, state), []).append(seconds)

    def timed(self, number, target, program, state):
        """The seconds that the program takes. In the first run also what it asks is counted, which costs it a little."""
        self.run(target, program.before)
        if number > 1 or target.path == target.backing or state not in STATES:
            return self.run(target, program.command)
        before = target.requests()
        with self.upcalls.counted(target.path) if self.upcalls else contextlib.nullcontext({}) as asked:
            seconds = self.run(target, program.command)
        if before is not None:
            asked["requests"] = target.requests() - before
        self.asked[target.name, program.row, state] = asked
        return seconds

    def run(self, target, command):
        environment = {**ENVIRONMENT, "ROOT": str(target.path), "OUT": f"{self.work}/out-{target.name}"}
        start = time.perf_counter()
        targets.run("bash", "-o", "pipefail", "-c", command, seconds=HANG_SECONDS, env=environment, cwd="/", stdin=subprocess.DEVNULL)
        return time.perf_counter() - start

    def cells(self):
        return [(program.row, state) for program in self.programs for state in STATES]

    def print(self):
        trees = self.options.trees
        print(f"\nSmall files: seconds, medians of {self.options.runs} runs (least-greatest). cold: freshly mounted; warm: at once again; "
              f"idle: after {IDLE_SECONDS} s or more. Load before each run: {', '.join(map(str, self.loads))}")
        for name, facts in trees.items():
            print(f"{name}: {facts['what']}: {facts['files']:,} files, {facts['mib']} MiB, median {facts['median_bytes']:,} bytes, "
                  f"{facts['folders']:,} folders, {facts['depth']} deep")
        print()
        lines = [["", *(target.name for target in self.started)]]
        lines += [[f"{row}, {state}", *(report.cell(self.results.get((target.name, row, state)), seconds) for target in self.started)]
                  for row, state in self.cells()]
        report.table(lines)
        for target in self.started:
            if isinstance(target, targets.Aqueduct):
                self.print_aqueduct(target)
        for target in self.started:
            print(f"{target.name}: {target.note}")
        for name, reason in self.missing.items():
            print(f"{name} NOT MEASURED: {reason}")

    def print_aqueduct(self, target):
        """Our time as a multiple of others', and what a run asks."""
        print(f"\n{target.name}: time as a multiple of others', less than 1 is faster; and what the first run asked: of the server (requests), of the mount "
              "(upcalls that the program waits for), and how many of these were opens\n")
        peers = [other.name for other in self.started if other.networked]
        lines = [["", "of local", "of bindfs", "of best peer", "requests", "upcalls", "opens"]]
        for row, state in self.cells():
            asked = self.asked.get((target.name, row, state), {})
            upcalls = asked.get("upcalls")
            lines.append([f"{row}, {state}",
                          *(self.ratio(target.name, row, state, others) for others in (["local"], ["bindfs"], peers)),
                          f"{asked['requests']:,}" if "requests" in asked else "-",
                          *((f"{awaited(upcalls):,}", f"{opens(upcalls):,}") if upcalls is not None else ("-", "-"))])
        report.table(lines)

    def ratio(self, name, row, state, others):
        """Our median over the best median of the others, as text."""
        ours = self.results.get((name, row, state))
        best = [statistics.median(self.results[other, row, state]) for other in others if self.results.get((other, row, state))]
        return f"{statistics.median(ours) / min(best):.2f}" if ours and best else "-"

    def record(self, record):
        record.add(target="trees", loads=self.loads, **self.options.trees)
        for (name, row, state), values in self.results.items():
            record.add(target=name, row=row, state=state, unit="s", median=round(statistics.median(values), 4),
                       values=[round(value, 4) for value in values], **self.asked.get((name, row, state), {}))
        for name, reason in self.missing.items():
            record.add(target=name, missing=reason)


def seconds(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def awaited(upcalls):
    return sum(count for name, count in upcalls.items() if name not in LATER)


def opens(upcalls):
    return upcalls.get("OPEN", 0)
