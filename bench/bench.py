"""Measures Aqueduct beside the local directory, its peers and iperf3, in one run, and prints medians. See --help."""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import data
import names
import neighbour
import report
import small_files
import small_writes
import sources
import store
import targets
from commands import HERE, Unavailable

SECTIONS = {"data": data.Rows, "names": names.Rows, "neighbour": neighbour.Rows, "small-files": small_files.Rows, "small-writes": small_writes.Rows}
TREES = {"small-files", "small-writes"}  # what needs the trees


def arguments():
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__, epilog="""
        Every figure is the median of the runs, with the least and the greatest behind it. Writes end with fsync; before
        reads the client's page cache of the file is dropped (what the server holds in memory stays there). Memory is touched before
        each measure, because a virtual machine gives idle memory back to its host and gets it again slowly. How small files are measured
        is said in bench/README.md.""")
    parser.add_argument("--only", choices=SECTIONS, help="one part of the rows (all)")
    parser.add_argument("--runs", type=int, default=5, help="how often everything is measured (5)")
    parser.add_argument("--size", type=int, default=512, metavar="MIB", help="MiB read and written in a measure (512)")
    parser.add_argument("--rows", default=",".join(data.GROUPS), help="groups of the data rows, with commas between (all: %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="how long a measure of random reads or writes takes at the most (1)")
    parser.add_argument("--files", default="10000,100000", help="files in the rows of names, with commas between (%(default)s)")
    parser.add_argument("--store", default="tmpfs", help="kinds of backing store, one after the other: tmpfs, xfs (on a loop device) or both, with a comma between (tmpfs)")
    parser.add_argument("--programs", default=",".join(small_files.NAMES), help="of the small-file rows, with commas between (all: %(default)s)")
    parser.add_argument("--writes", default=",".join(small_writes.NAMES), help="of the rows of writing small files, with commas between (all: %(default)s)")
    parser.add_argument("--targets", default=",".join([*targets.ALL, *targets.LEFT_OUT]), help="which to measure, with commas between (all: %(default)s)")
    parser.add_argument("--program", default=HERE.parent / "target/release/aqueduct", type=pathlib.Path, help="the program aqueduct")
    parser.add_argument("--before", type=pathlib.Path, metavar="PROGRAM", help="another program aqueduct, measured in the same run: `compare.py --beside` says what got slower")
    parser.add_argument("--work", default="/dev/shm", help="where backing stores lie (/dev/shm)")
    parser.add_argument("--cache", default=sources.CACHE, type=pathlib.Path, help="where the trees of small files are kept (%(default)s)")
    parser.add_argument("--records", default=HERE / "records", type=pathlib.Path, help="where the figures are appended as JSON lines")
    parser.add_argument("--plots", type=pathlib.Path, help="where the plots go, as SVG and PNG (bench-plots, beside the folder of the program)")
    parser.add_argument("--fetch", action="store_true", help="get the trees of small files, and measure nothing")
    options = parser.parse_args()
    options.plots = options.plots or options.program.resolve().parent.parent / "bench-plots"
    options.sections = [options.only] if options.only else list(SECTIONS)
    for asked, known, what in ((options.targets, [*targets.ALL, *targets.LEFT_OUT], "target"), (options.rows, data.GROUPS, "group of rows"),
                               (options.store, store.KINDS, "backing store"), (options.programs, small_files.NAMES, "program"),
                               (options.writes, small_writes.NAMES, "program")):
        for name in asked.split(","):
            if name not in known:
                parser.error(f"there is no {what} '{name}': use {', '.join(known)}")
    return options


def start_all(options, work):
    """The targets that could be started, and why the others could not."""
    started, missing = [], {}
    for name in [*options.targets.split(","), *(targets.OLDER if options.before else ())]:
        if name in targets.LEFT_OUT:
            missing[name] = targets.LEFT_OUT[name]
            continue
        older = name in targets.OLDER
        target = targets.OLDER[name](work, options.before) if older else targets.ALL[name](work, options.program)
        if not set(target.rows) & set(options.sections):
            continue
        try:
            target.start(options.archive if "small-files" in set(target.rows) & set(options.sections) else None)
            started.append(target)
        except (Unavailable, OSError, subprocess.SubprocessError) as problem:
            target.stop()
            missing[name] = str(problem)
            report.say(f"{name} is not measured: {problem}")
    return started, missing


def fetch(options):
    """The trees of small files come from a registry, which the namespaces of the measuring do not reach."""
    if TREES & set(options.sections):
        report.say("getting the trees of small files (once; they are kept)")
        try:
            sources.fetch(options.cache)
        except (Unavailable, OSError, subprocess.SubprocessError) as problem:
            report.say(f"the trees of small files cannot be had: {problem}")


def measure(options, kind, record):
    """Everything that was asked for, over one kind of backing store."""
    first = len(record.lines)
    with store.opened(kind, options.work) as work, contextlib.ExitStack() as ending:
        options.place = f"{kind}: {work}"
        started, missing = start_all(options, work)
        for target in started:
            ending.callback(target.stop)
        sections = [SECTIONS[name](options, work, started) for name in options.sections]
        try:
            for section in sections:
                section.measure()
        finally:
            # What took long to measure is kept before anything else can fail, also where a signal has cut it short.
            for section in sections:
                section.record(record)
            for target in started:
                with contextlib.suppress(OSError):
                    record.add(target=target.name, facts=target.facts())
            for name, reason in missing.items():
                record.add(target=name, missing=reason)
            for line in record.lines[first:]:
                line["store"] = kind
                line |= options.builds.get(line["target"].endswith(targets.BEFORE), {})
            path = record.write(options.records)
        for section in sections:
            section.print()
            section.print_missing()
        for name, reason in missing.items():
            print(f"{name} NOT MEASURED: {reason}")
    return path


def draw(path, date, folder):
    """By a program of its own, since matplotlib may belong to another Python than ours: Debian's package does to Debian's."""
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        done = subprocess.run([python, HERE / "plots.py", path, "--date", date, "--plots", folder], capture_output=True, text=True)
        if done.returncode == 0:
            return print(f"plots: {done.stdout.strip()}")
    print(f"NOT PLOTTED: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]} ('make setup-bench' installs python3-matplotlib)")


def main():
    # As the first process of its namespace it would not be ended by a signal for which it has no handler, while everything that it measures is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    options = arguments()
    if options.fetch:
        return fetch(options)
    record = report.Record(options.runs)
    # The commit is that of this tree: of another program nothing but its build is known.
    build, older = report.build(options.program), options.before and report.build(options.before)
    options.builds = {False: {"build": build}, True: {"build": older, "commit": f"build {older}"}}
    record.add(target="environment", facts=report.environment(), options=sys.argv[1:])
    report.say("touching memory")
    report.warm(min(4 << 30, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 3))
    if TREES & set(options.sections):
        options.archive, options.trees = sources.archive(options.cache)
    for kind in options.store.split(","):
        path = measure(options, kind, record)
    print(f"figures appended to {path}")
    draw(path, record.base["date"], options.plots)


if __name__ == "__main__":
    try:
        main()
    except Unavailable as problem:
        sys.exit(f"bench: {problem}")
