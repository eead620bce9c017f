"""What processes have used: CPU time, and the most memory that they had, from /proc."""

import contextlib
import dataclasses
import os
import pathlib
import re

TICKS = os.sysconf("SC_CLK_TCK")
RESET_PEAK = "5"  # into clear_refs: VmHWM begins anew (Linux 4.0)
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


@dataclasses.dataclass
class Used:
    """By one side of a target: CPU seconds, and MiB in memory at the most; None where that is not known."""

    cpu: float | None = None
    peak: float | None = None


def parents():
    """pid -> the pid of its parent, of all processes that are seen."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry)] = int(fields(int(entry))[1])
    return found


def fields(pid):
    """What /proc/PID/stat has behind the name, which may contain anything: state, parent, ..."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def with_children(roots, parent_of):
    """The processes and all that descend from them."""
    found = set(roots)
    while more := {pid for pid, parent in parent_of.items() if parent in found} - found:
        found |= more
    return found


def named(*names):
    """The pids of all processes with one of the names."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{entry}/comm").read_text().strip() in names:
                    found.append(int(entry))
    return found


def cpu_seconds(stat):
    """Of the process and of its children that have ended and were waited for: utime, stime, cutime, cstime."""
    return sum(map(int, stat[11:15])) / TICKS


class Meter:
    """Measures the processes (pids) and their children from when it is made until `read`. With no processes it measures nothing."""

    def __init__(self, roots):
        self.roots = list(roots)
        self.before = self.all_cpu()
        for pid in self.before:
            with contextlib.suppress(OSError):
                pathlib.Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)

    def all_cpu(self):
        """pid -> CPU seconds so far."""
        found = {}
        for pid in with_children(self.roots, parents()) if self.roots else ():
            with contextlib.suppress(OSError):
                found[pid] = cpu_seconds(fields(pid))
        return found

    def read(self):
        if not self.roots:
            return Used()
        after = self.all_cpu()
        peak = 0
        for pid in after:
            with contextlib.suppress(OSError):
                match = PEAK.search(pathlib.Path(f"/proc/{pid}/status").read_text())
                peak += int(match.group(1)) / 1024 if match else 0
        return Used(sum(cpu - self.before.get(pid, 0) for pid, cpu in after.items()), peak)
