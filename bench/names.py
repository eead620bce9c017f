"""The rows of names: files created, looked at, listed and unlinked in one directory, one after another."""

import resource
import time

import figures
import usage
from commands import HERE, run
from report import say

# The pause between: longer than every timeout in use (1 s), so that what a client keeps for a time has expired.
EXPIRY_SECONDS = 2
NAMES_SECONDS_MAX = 600  # how long one measure may take: 100,000 files at a few hundred a second
OPERATIONS = ("create", "stat", "readdir", "unlink")


class Rows(figures.Rows):
    """Measures them, prints the table, and records them."""

    name = "names"
    cost_unit = "us/file"

    def __init__(self, options, work, started):
        super().__init__(options, started)
        self.program = f"{work}/files"
        run("cc", "-O2", "-o", self.program, HERE / "files.c")
        self.counts = [int(count) for count in options.files.split(",")]

    def units(self):
        return {row_of(what, count): "1/s" for count in self.counts for what in OPERATIONS}

    def measure(self):
        for count in self.counts:
            for number in range(1, self.options.runs + 1):
                for target in self.working(number):
                    say(f"run {number} of {self.options.runs}: {count} files, {target.name}")
                    with self.failing(target.name, number):
                        self.measure_target(target, count)

    def measure_target(self, target, count):
        folder = f"names-{count}"
        (target.filled() / folder).mkdir()
        for what in OPERATIONS:
            meters = {"client": usage.Meter(target.clients()), "server": usage.Meter(target.servers())}
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            figure = float(run(*target.names(folder, what, count), seconds=NAMES_SECONDS_MAX))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = {side: meter.read() for side, meter in meters.items()}
            target.check()
            used["program" if target.mounted else "client"] = usage.Used(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            self.keep(target.name, row_of(what, count), figure, used, count / 1e6)
            self.how[target.name, row_of(what, count)] = f"{what} {count}"
            time.sleep(EXPIRY_SECONDS)
        (target.filled() / folder).rmdir()

    def print(self):
        for count in self.counts:
            self.print_group(f"names: {count:,} files in one directory", [row_of(what, count) for what in OPERATIONS])
        for target in self.started:
            print(f"{target.name}: {target.note}")


def row_of(what, count):
    return f"{what} {count} files"
