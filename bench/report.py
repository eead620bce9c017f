"""What all rows share: memory, messages, tables and records."""

import datetime
import json
import mmap
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20


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


class Record:
    """Lines of JSON, gathered, and then appended to the day's file."""

    def __init__(self):
        commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        self.now = datetime.datetime.now(datetime.timezone.utc)
        # Others may have used the machine meanwhile: the load before, as one, five and fifteen minutes' mean.
        self.base = {"date": self.now.isoformat(timespec="seconds"), "commit": commit, "kernel": platform.release(), "cores": os.cpu_count(),
                     "load": [round(load, 2) for load in os.getloadavg()]}
        self.lines = []

    def add(self, **line):
        self.lines.append({**self.base, **line})

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.now:%Y-%m-%d}.jsonl"
        with open(path, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.lines)
        return path
