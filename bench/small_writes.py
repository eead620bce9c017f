"""The rows of writing small files: programs that make or remove a source tree, write in small pieces, or append in turn; each in a new directory, on a
mount that has just been made. What the server has afterwards is compared with what it should have."""

import contextlib
import dataclasses
import os
import pathlib
import sys

import programs
import report
from commands import run
from report import MIB, warm

HERE = pathlib.Path(__file__).resolve().parent
SEQUENTIAL_MIB = 256            # written in pieces of 4 KiB, and of 1 MiB
LINES = 10_000                  # appended in turn
TOUCHED = 4 * SEQUENTIAL_MIB * MIB  # memory touched before each run: the kernel, the mount, the server and its tmpfs may each keep what is written
ORIGIN_SECONDS = 600            # how long it may take to unpack and to build what the programs start from
CLEAN = 'rm -rf "$FILLED/written" && mkdir "$FILLED/written"'


@dataclasses.dataclass
class Program(programs.Program):
    """Has $ORIGIN, what it starts from, in the tmpfs itself, and $OUT, an empty directory on the target; `prepare` fills it as $FILLED/written.
    Afterwards `check` looks at it where the server has it, as $STORED/written. With `second` it has $SECOND, which is $OUT on another mount."""

    check: str = "true"
    second: bool = False


def same(name, options=""):
    return f'diff -r --no-dereference {options} "$ORIGIN/{name}" "$STORED/written/{name}"'


def listed(name, form):
    """Whether both have the same files, as find prints them."""
    listing = f'find . -printf "{form}\\n" | sort'
    return f'diff <(cd "$ORIGIN/{name}" && {listing}) <(cd "$STORED/written/{name}" && {listing})'


def same_times(name):
    """Modes and times (seconds: sshfs carries no more) of all files are as they should be, unless $FORGETS_TIMES."""
    return f'{{ [[ $FORGETS_TIMES ]] || {listed(name, "%y %m %Ts %P")}; }}'


def sequential(name, size):
    return Program(name, f"write {SEQUENTIAL_MIB} MiB, {size}iB each", f'exec dd if="$ORIGIN/random" of="$OUT/random" bs={size} conv=fsync status=none',
                   check='cmp "$ORIGIN/random" "$STORED/written/random"')


CLONED = f'git -C "$STORED/written/source" --no-optional-locks status --porcelain | cmp - /dev/null && {same("source", "--exclude=.git")}'
# Of the two kinds of files that are made, one names the folder that it lies in.
BUILT = f'{same("objects", "--exclude=*.d")} && {listed("objects", "%P")}'
SMALL, LARGE = sequential("write-4k", "4K"), sequential("write-1m", "1M")
APPENDERS = Program("append", "two appenders", f'exec "{sys.executable}" -I -S "{HERE}/appenders.py" {LINES} "$OUT/log" "$SECOND/log"',
                    prepare=': > "$FILLED/written/log"', check=f'seq -f %099.0f 0 {LINES - 1} | cmp - "$STORED/written/log"', second=True)
PROGRAMS = [
    Program("cp", "cp -r", 'exec cp -r "$ORIGIN/source" "$OUT"', check=same("source")),
    Program("untar", "tar -x", 'exec tar -xf "$ORIGIN/source.tar" -C "$OUT"', check=f'{same("source")} && {same_times("source")}'),
    # By the protocol, so that nothing is linked instead of written.
    Program("clone", "git clone", 'exec git clone --quiet "file://$ORIGIN/source.git" "$OUT/source"', check=CLONED),
    Program("rsync", "rsync -a", 'exec rsync -a "$ORIGIN/source" "$OUT"', check=f'{same("source")} && {same_times("source")}'),
    Program("rm", "rm -rf", 'exec rm -rf "$OUT/source"', prepare='cp -r "$ORIGIN/source" "$FILLED/written"', check='ls -A "$STORED/written" | cmp - /dev/null'),
    Program("build", "make, objects on the target", f'exec make -s -j{os.cpu_count()} -C "$ORIGIN/project" OUT="$OUT/objects"', check=BUILT),
    SMALL,
    LARGE,
    APPENDERS,
]
NAMES = [program.name for program in PROGRAMS]
RATES = [(SMALL, SEQUENTIAL_MIB, "MiB/s"), (LARGE, SEQUENTIAL_MIB, "MiB/s"), (APPENDERS, LINES, "lines/s")]


def make_origin(origin, archive):
    """What the programs start from, and the objects that a build should have made."""
    origin.mkdir()
    for command in (f'tar -xpf "{archive}" ./source ./project', "tar -cf source.tar source", "git clone --quiet --bare --no-hardlinks source source.git",
                    f'make -s -j{os.cpu_count()} -C project OUT="$PWD/objects"', f"head -c {SEQUENTIAL_MIB}M /dev/urandom > random"):
        run("bash", "-c", command, seconds=ORIGIN_SECONDS, env=programs.ENVIRONMENT, cwd=origin)


class Rows(programs.Rows):
    """Measures them, prints the tables, and records them."""

    name = "small-writes"
    states = ("",)
    title = "Writing small files, each time into a new directory, freshly mounted:"
    upcall = ("creates", "CREATE")

    def __init__(self, options, work, started):
        super().__init__(options, work, started, [program for program in PROGRAMS if program.name in options.writes.split(",")])
        self.origin = pathlib.Path(work) / "origin"
        self.second = None
        make_origin(self.origin, options.archive)

    def environment(self, target):
        return {"ORIGIN": str(self.origin), "FILLED": str(target.filled()), "STORED": str(target.stored), "OUT": f"{target.path}/written",
                "SECOND": f"{self.second}/written", "FORGETS_TIMES": "" if target.keeps_times else "yes"}

    def measure_program(self, number, program):
        if number == 1 and self.started:
            with self.failing(self.started[0], number, program):
                self.once(number, self.started[0], program)  # reads the program itself from the disk
        for target in self.due(number, program):
            with self.failing(target, number, program):
                self.keep(target, program, "", self.once(number, target, program))

    def once(self, number, target, program):
        """The seconds of one run. What it has made is looked at once the mount has ended, because some servers get the last of it later."""
        for command in (CLEAN, program.prepare):
            self.run(target, command)
        warm(TOUCHED)
        target.remount()
        with target.second_mount() if program.second else contextlib.nullcontext() as self.second:
            taken = self.timed(number, target, program, "")
        target.remount()
        self.run(target, program.check)
        return taken

    def print(self):
        super().print()
        lines = [["", *(target.name for target in self.started)]]
        for program, amount, unit in RATES:
            lines.append([f"{program.row} ({unit})", *(self.rates(target, program, amount) for target in self.started)])
        # Seconds of the one over seconds of the other, so the other's speed as a part of the one's.
        lines.append(["4 KiB writes, of 1 MiB writes", *(self.ratio((target.name, LARGE.row, ""), [(target.name, SMALL.row, "")]) for target in self.started)])
        print()
        report.table(lines)

    def rates(self, target, program, amount):
        return report.cell([amount / taken for taken in self.results.get((target.name, program.row, ""), [])], lambda rate: f"{rate:,.0f}")
