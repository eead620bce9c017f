"""The rows of small files: programs that look at or read a source tree, on a mount that has just been made (cold), at once again (warm), and after a pause
(idle)."""

import dataclasses
import os
import statistics
import sys
import time

import programs
from report import MIB, warm

WARM_REPEATS = 3     # of a program that takes less than WARM_QUICK_SECONDS: the median of these is one figure; others run once
WARM_QUICK_SECONDS = 1.0
IDLE_SECONDS = 10    # longer than every timeout in use (1 s) and than a lease (7 s)
TOUCHED = 512 * MIB  # memory touched before each cold run: more than what the kernel caches of all trees
ABSENT = "no such words are in any file"


@dataclasses.dataclass
class Program(programs.Program):
    """Has $ROOT, the directory measured, and $OUT, one elsewhere. Not measured: `prepare`, before the mount is made anew, and `before`, before each run, which
    leaves $ROOT alone."""

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


class Rows(programs.Rows):
    """Measures them, prints the tables, and records them."""

    name = "small-files"
    states = ("cold", "warm", "idle")
    title = f"Small files: cold: freshly mounted; warm: at once again; idle: after {IDLE_SECONDS} s or more."
    upcall = ("opens", "OPEN")

    def __init__(self, options, work, started):
        super().__init__(options, work, started, [program for program in PROGRAMS if program.name in options.programs.split(",")])

    def environment(self, target):
        return {"ROOT": str(target.path), "OUT": f"{self.work}/out-{target.name}"}

    def measure_program(self, number, program):
        """Cold and warm on each target, then, after a pause that all share, idle on each."""
        if number == 1 and self.started:
            with self.failing(self.started[0], number, program):
                for command in (program.prepare, program.before, program.command):  # reads the program itself from the disk
                    self.run(self.started[0], command)
        due = self.due(number, program)
        for target in due:
            with self.failing(target, number, program):
                self.cold_and_warm(number, target, program)
        time.sleep(IDLE_SECONDS)
        for target in due:
            if (target.name, program.row) not in self.missing:
                with self.failing(target, number, program):
                    self.once(number, target, program, "idle")

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

    def timed(self, number, target, program, state):
        self.run(target, program.before)
        return super().timed(number, target, program, state)
