"""What the sections whose figures are rates share: results and what they cost, tables with ratios, records."""

import contextlib
import os
import statistics
import subprocess

import report
from commands import Unavailable
from report import say

OURS = ("aqueduct", "aqueduct-dev", "aqueduct-library")  # whose ratios to others are shown
SIDES = ("client", "server", "program")


class Rows:
    """Each has a `name`, `units` (row -> unit) and a `cost_unit`, which says what CPU time is divided by."""

    def __init__(self, options, started):
        self.options = options
        self.started = [target for target in started if self.name in target.rows]
        self.results = {}  # (target, row) -> the figure of each run
        self.costs = {}    # (target, row) -> side -> CPU per amount of each run
        self.peaks = {}    # (target, row) -> side -> MiB in memory at the most, of each run
        self.how = {}      # (target, row) -> how the program was called
        self.missing = {}  # target -> why there are no more figures
        self.sizes = {}

    def working(self, number):
        """The targets on which nothing has failed, in the order of this run."""
        return report.in_order([target for target in self.started if target.name not in self.missing], number)

    @contextlib.contextmanager
    def failing(self, name, number):
        """A target on which something fails is not measured from there on, and named; the others go on."""
        try:
            yield
        except (Unavailable, OSError, subprocess.SubprocessError, ValueError) as problem:
            self.missing[name] = f"failed in run {number}: {problem}"
            say(f"{name} {self.missing[name]}")

    def keep(self, name, row, figure, used, amount):
        """One figure, and what was used for it: side -> Used. `amount`: what CPU time is divided by."""
        self.results.setdefault((name, row), []).append(figure)
        for side, use in used.items():
            if use.cpu is not None:
                self.costs.setdefault((name, row), {}).setdefault(side, []).append(use.cpu / amount)
            if use.peak is not None:
                self.peaks.setdefault((name, row), {}).setdefault(side, []).append(use.peak)

    def print_group(self, title, rows):
        options = self.options
        print(f"\n{title}; medians of {options.runs} runs (least-greatest), backing store {options.place}, loopback, {os.cpu_count()} cores, "
              f"Linux {os.uname().release}\n")
        shown = [target for target in self.started if any((target.name, row) in self.results for row in rows)]
        units = self.units()
        report.table([["", *(target.name for target in shown)],
                      *([f"{row} ({units[row]})", *(report.cell(self.results.get((target.name, row)), rate) for target in shown)] for row in rows)])
        self.print_ratios(rows, [target.name for target in shown])
        print(f"\nCPU, {self.cost_unit}: client + server (program that does the work, where there is a mount)\n")
        report.table([["", *(target.name for target in shown)], *([row, *(self.cost_cell(target.name, row) for target in shown)] for row in rows)])
        print("\nMost memory, MiB: client + server\n")
        report.table([["", *(target.name for target in shown)], *([row, *(self.peak_cell(target.name, row) for target in shown)] for row in rows)])

    def print_ratios(self, rows, shown):
        ours = [target for target in self.started if target.name in OURS and target.name in shown]
        print("\nRatios of medians: more than 1 is faster. The peers of a mount are mounts\n" if ours else "")
        for target in ours:
            # What a kernel's FUSE client costs must not count for a peer that has none.
            peers = [other.name for other in self.started if other.networked and (other.mounted or not target.mounted)]
            others = {"of local": ["local"], "of best peer": peers, "of the wire": ["wire"], "of iperf3": ["iperf3"]}
            if target.name == "aqueduct-dev":
                others |= {"of io_uring": ["aqueduct"], "of bindfs": ["bindfs"]}
            report.table([[target.name, *others], *([row, *(self.ratio(target.name, row, names) for names in others.values())] for row in rows)])

    def ratio(self, ours, row, names):
        """As text, with the name of the best where there are several. With iperf3 what moves most, in one stream."""
        value = self.results.get((ours, row))
        if names == ["iperf3"]:
            others = {"iperf3": self.results.get(("iperf3", "one stream")) if self.units()[row] == "MiB/s" else None}
        else:
            others = {name: self.results.get((name, row)) for name in names}
        return report.ratio(value, {name: values for name, values in others.items() if values}, named=len(others) > 1)

    def cost_cell(self, name, row):
        return sides(self.costs.get((name, row)), lambda cost: f"{cost:.2f}" if cost < 10 else f"{cost:.0f}")

    def peak_cell(self, name, row):
        return sides({side: values for side, values in self.peaks.get((name, row), {}).items() if side != "program"}, lambda peak: f"{peak:.0f}")

    def record(self, record):
        units = self.units()
        for (name, row), values in self.results.items():
            cost = {side: [round(value, 4) for value in found] for side, found in self.costs.get((name, row), {}).items()}
            peak = {side: round(max(found), 1) for side, found in self.peaks.get((name, row), {}).items()}
            record.add(section=self.name, **self.sizes, target=name, row=row, unit=units[row], median=round(statistics.median(values), 1),
                       values=[round(value, 1) for value in values], cpu=cost, cpu_unit=self.cost_unit, memory_peak_mib=peak, how=self.how.get((name, row), ""))
        for name, reason in self.missing.items():
            record.add(section=self.name, **self.sizes, target=name, missing=reason)

    def print_missing(self):
        for name, reason in self.missing.items():
            print(f"{name} NOT MEASURED: {self.name}: {reason}")


def sides(found, form):
    """Medians of what each side has: 'client + server (program)'."""
    if not found:
        return "-"
    text = " + ".join(form(statistics.median(found[side])) if side in found else "-" for side in ("client", "server")) if set(found) - {"program"} else ""
    program = f"({form(statistics.median(found['program']))})" if "program" in found else ""
    return " ".join(filter(None, (text, program)))


def rate(value):
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1000:,.1f} k"
