"""How other programs are found, run and waited for."""

import os
import pathlib
import shutil
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
READY_SECONDS = 20  # how long a server or mount may take to be there


class Unavailable(Exception):
    """A target cannot be measured here; the message says why."""


def need(*programs):
    """The first of the programs, by full path, or Unavailable."""
    for program in programs:
        found = shutil.which(program) or (program if os.access(program, os.X_OK) else None)
        if found:
            return found
    raise Unavailable(f"{programs[0]} is not installed ('make setup-bench' installs it)")


def run(*command, seconds=120, **options):
    """Runs a command to its end; Unavailable with its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **options)
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise Unavailable(f"'{' '.join(map(str, command[:3]))} ...' failed: {words}")
    return done.stdout


def wait_for(condition, what, process=None):
    end = time.monotonic() + READY_SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            raise Unavailable(f"{what}: the process ended with {process.returncode}")
        if time.monotonic() > end:
            raise Unavailable(f"{what}: not there after {READY_SECONDS} s")
        time.sleep(0.05)


def first_line(*command):
    """What a program says first of itself, such as its version; empty if it says nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ((done.stdout.strip() or done.stderr.strip()).splitlines() or [""])[0]
