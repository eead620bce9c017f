"""Measures Aqueduct beside the local directory, its peers and iperf3, in one run, and prints medians. See --help."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import data
import report
import small_files
import small_writes
import sources
import targets

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = {"data": data.Rows, "small-files": small_files.Rows, "small-writes": small_writes.Rows}
TREES = {"small-files", "small-writes"}  # what needs the trees


def arguments():
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__, epilog="""
        Every figure is the median of the runs, with the least and the greatest behind it. Writes end with fsync; before
        reads the client's page cache of the file is dropped (what the server holds in memory stays there). Memory is touched before
        each measure, because a virtual machine gives idle memory back to its host and gets it again slowly. How small files are measured
        is said in bench/README.md.""")
    parser.add_argument("--only", choices=SECTIONS, help="one part of the rows (all)")
    parser.add_argument("--runs", type=int, default=5, help="how often everything is measured (5)")
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="bytes read and written in a measure (1024)")
    parser.add_argument("--files", type=int, default=10_000, help="files created, looked at and unlinked (10000)")
    parser.add_argument("--programs", default=",".join(small_files.NAMES), help="of the small-file rows, with commas between (all: %(default)s)")
    parser.add_argument("--writes", default=",".join(small_writes.NAMES), help="of the rows of writing small files, with commas between (all: %(default)s)")
    parser.add_argument("--targets", default=",".join(TARGETS), help="which to measure, with commas between (all: %(default)s)")
    parser.add_argument("--program", default=HERE.parent / "target/release/aqueduct", type=pathlib.Path, help="the program aqueduct")
    parser.add_argument("--work", default="/dev/shm", help="where backing stores lie (/dev/shm)")
    parser.add_argument("--cache", default=sources.CACHE, type=pathlib.Path, help="where the trees of small files are kept (%(default)s)")
    parser.add_argument("--records", default=HERE / "records", type=pathlib.Path, help="where the figures are appended as JSON lines")
    parser.add_argument("--fetch", action="store_true", help="get the trees of small files, and measure nothing")
    options = parser.parse_args()
    options.sections = [options.only] if options.only else list(SECTIONS)
    for asked, known, what in ((options.targets, TARGETS, "target"), (options.programs, small_files.NAMES, "program"),
                               (options.writes, small_writes.NAMES, "program")):
        for name in asked.split(","):
            if name not in known:
                parser.error(f"there is no {what} '{name}': use {', '.join(known)}")
    return options


# In the order of the tables' columns.
TARGETS = {
    "local": lambda work, _: targets.Target(work),
    "aqueduct": targets.Aqueduct,
    "aqueduct-none": lambda work, program: targets.Aqueduct(work, program, "none"),
    "aqueduct-lease": lambda work, program: targets.Aqueduct(work, program, "lease"),
    "aqueduct-lease-dev": lambda work, program: targets.Aqueduct(work, program, "lease", io_uring=False),
    "sshfs": lambda work, _: targets.Sshfs(work),
    "glusterfs": lambda work, _: targets.Gluster(work),
    "bindfs": lambda work, _: targets.Bindfs(work),
}


def start_all(options, work):
    """The targets that could be started, and why the others could not."""
    started, missing = [], {}
    for name in options.targets.split(","):
        target = TARGETS[name](work, options.program)
        if not set(target.rows) & set(options.sections):
            continue
        try:
            target.start(options.archive if "small-files" in set(target.rows) & set(options.sections) else None)
            started.append(target)
        except (targets.Unavailable, OSError, subprocess.SubprocessError) as problem:
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
        except (targets.Unavailable, OSError, subprocess.SubprocessError) as problem:
            report.say(f"the trees of small files cannot be had: {problem}")


def main():
    options = arguments()
    if options.fetch:
        return fetch(options)
    record = report.Record()
    work = tempfile.mkdtemp(prefix="aqueduct-bench-", dir=options.work)
    started = []
    try:
        os.chmod(work, 0o755)
        report.say("touching memory")
        report.warm(min(4 << 30, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 3))
        if TREES & set(options.sections):
            options.archive, options.trees = sources.archive(options.cache)
        started, missing = start_all(options, work)
        sections = [SECTIONS[name](options, work, started) for name in options.sections]
        for section in sections:
            section.measure()
        for section in sections:
            section.print()
            section.record(record)
        for name, reason in missing.items():
            record.add(target=name, missing=reason)
            print(f"{name} NOT MEASURED: {reason}")
        print(f"figures appended to {record.write(options.records)}")
    finally:
        for target in started:
            target.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except targets.Unavailable as problem:
        sys.exit(f"bench: {problem}")
