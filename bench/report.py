"""What all rows share: memory, messages, tables and records."""

import datetime
import hashlib
import json
import mmap
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys

from commands import HERE, first_line

MIB = 1 << 20


def in_order(targets, number):
    """The targets in the order of a run. It is shuffled for each pair of runs, with the number of
    the pair as the seed, and reversed in the second. Where one target always follows another, its
    figures are up to a tenth off: of the same program twice, the first was 0.92 times as fast."""
    order = list(targets)
    random.Random((number - 1) // 2).shuffle(order)
    return order[::-1] if number % 2 == 0 else order


def say(text):
    print(text, file=sys.stderr, flush=True)


def warm(size):
    """Touches memory, so that the next measure does not wait for the host to give it back."""
    with mmap.mmap(-1, size) as memory:
        block = b"\1" * MIB
        for _ in range(size // MIB):
            memory.write(block)


def cell(values, figure):
    """The median, with the least and the greatest behind it."""
    if not values:
        return "-"
    return f"{figure(statistics.median(values))} ({figure(min(values))}-{figure(max(values))})"


def table(lines):
    """Prints rows of text, the first of which are the headings."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(text.ljust(width) if column == 0 else text.rjust(width)
                        for column, (text, width) in enumerate(zip(line, widths))).rstrip())


def ratio(ours, others, named=False):
    """The median of `ours` over the best median of the others (name -> values), as text; with the name of the best."""
    if not ours or not others:
        return "-"
    best = max(others, key=lambda name: statistics.median(others[name]))
    text = f"{statistics.median(ours) / statistics.median(others[best]):.2f}"
    return f"{text} ({best})" if named else text


def setting(path):
    """What the kernel has set there; None where it has no such setting."""
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def processor():
    for line in (setting("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def environment():
    """What of this machine one has to know to measure the same again."""
    sysctls = ("net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/ipv4/tcp_available_congestion_control", "net/core/rmem_max", "net/core/wmem_max",
               "vm/dirty_ratio", "vm/dirty_background_ratio", "kernel/sched_autogroup_enabled", "fs/fuse/max_pages_limit")
    facts = {name.replace("/", "."): setting(f"/proc/sys/{name}") for name in sysctls}
    facts["fuse.enable_uring"] = setting("/sys/module/fuse/parameters/enable_uring")
    facts["transparent_hugepage"] = setting("/sys/kernel/mm/transparent_hugepage/enabled")
    facts["cpu_governor"] = setting("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    facts["clocksource"] = setting("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    facts["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1)
    facts["fio"], facts["iperf3"] = first_line("fio", "--version"), first_line("iperf3", "--version")
    facts["python"], facts["git"] = platform.python_version(), first_line("git", "--version")
    return facts


def build(program):
    """What tells a build of a program from all others; None where there is none."""
    try:
        with open(program, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except OSError:
        return None


class Record:
    """Lines of JSON, gathered, and appended to the day's file whenever it is told to."""

    def __init__(self, runs=None):
        commit = run_git("rev-parse", "--short", "HEAD")
        if run_git("status", "--porcelain", "--untracked-files=no"):
            commit += "+"  # and what was not committed
        self.now = datetime.datetime.now(datetime.timezone.utc)
        # Others may have used the machine meanwhile: the load before, as one, five and fifteen minutes' mean. Nothing is bound to a core.
        self.base = {"date": self.now.isoformat(timespec="seconds"), "commit": commit, "kernel": platform.release(), "processor": processor(), "cores": os.cpu_count(),
                     "congestion": setting("/proc/sys/net/ipv4/tcp_congestion_control"), "placement": "unpinned", "runs": runs,
                     "load": [round(load, 2) for load in os.getloadavg()]}
        self.lines = []
        self.written = 0  # of the lines

    def add(self, **line):
        self.lines.append({**self.base, **line})

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.now:%Y-%m-%d}.jsonl"
        with open(path, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.lines[self.written:])
        self.written = len(self.lines)
        return path


def run_git(*words):
    return subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True).stdout.strip()
