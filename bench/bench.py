"""Measures Aqueduct beside the local directory, its peers and iperf3, in one run, and prints medians. See --help."""

import argparse
import datetime
import json
import mmap
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import targets

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
EXPIRY_MS = 2000  # pause between create, stat and unlink: longer than every timeout in use (1 s)

ROWS = [
    # name, unit
    ("read 1 MiB, 1 job", "MiB/s"),
    ("read 1 MiB, 4 jobs", "MiB/s"),
    ("write 1 MiB, 1 job", "MiB/s"),
    ("write 1 MiB, 4 jobs", "MiB/s"),
    ("random read 4 KiB, depth 1", "1/s"),
    ("create files", "1/s"),
    ("stat files", "1/s"),
    ("unlink files", "1/s"),
]


def arguments():
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__, epilog="""
        Every figure is the median of the runs, with the least and the greatest behind it. Writes end with fsync; before
        reads the client's page cache of the file is dropped (what the server holds in memory stays there). Memory is touched before
        each measure, because a virtual machine gives idle memory back to its host and gets it again slowly.""")
    parser.add_argument("--runs", type=int, default=5, help="how often everything is measured (5)")
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="bytes read and written in a measure (1024)")
    parser.add_argument("--files", type=int, default=10_000, help="files created, looked at and unlinked (10000)")
    parser.add_argument("--targets", default="local,aqueduct,sshfs,glusterfs,bindfs", help="which to measure, with commas between")
    parser.add_argument("--program", default=HERE.parent / "target/release/aqueduct", type=pathlib.Path, help="the program aqueduct")
    parser.add_argument("--work", default="/dev/shm", help="where backing stores lie (/dev/shm)")
    parser.add_argument("--records", default=HERE / "records", type=pathlib.Path, help="where the figures are appended as JSON lines")
    return parser.parse_args()


def warm(size):
    """Touches memory, so that the next measure does not wait for the host to give it back."""
    with mmap.mmap(-1, size) as memory:
        block = b"\1" * MIB
        for _ in range(size // MIB):
            memory.write(block)


def fio(folder, options):
    """One run of fio; its figures of the one kind of work that it did."""
    # A job that is called as something in the working directory, other than a file, would have all jobs use that one name.
    command = ["fio", "--name=job", "--filename_format=file.$jobnum", f"--directory={folder}", "--ioengine=psync", "--direct=0", "--fallocate=none",
               "--group_reporting", "--thread", "--output-format=json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise targets.Unavailable(f"fio failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return job["read"] if job["read"]["total_ios"] else job["write"]


def measure_data(target, size, jobs, figures):
    """Writes fresh files, reads them back, and removes them."""
    folder = target.path / "data"
    folder.mkdir()
    each = [f"--numjobs={jobs}", f"--size={size // jobs}M"]
    plural = f"{jobs} job{'s' if jobs > 1 else ''}"
    warm(2 * size * MIB)
    wrote = fio(folder, ["--rw=write", "--bs=1M", "--end_fsync=1", *each])
    figures[f"write 1 MiB, {plural}"] = wrote["bw_bytes"] / MIB
    warm(size * MIB)
    read = fio(folder, ["--rw=read", "--bs=1M", "--invalidate=1", *each])
    figures[f"read 1 MiB, {plural}"] = read["bw_bytes"] / MIB
    if jobs == 1:
        # Each block at most once: nothing is read twice from a client's cache.
        figures["random read 4 KiB, depth 1"] = fio(folder, [
            "--rw=randread", "--bs=4k", "--invalidate=1", "--runtime=3", f"--size={size}M"])["iops"]
    shutil.rmtree(folder)


def measure_files(target, count, figures):
    folder = target.path / "files"
    folder.mkdir()
    output = targets.run(target.folder.parent / "files", folder, str(count), str(EXPIRY_MS))
    for line in output.splitlines():
        what, rate = line.split()
        figures[f"{what} files"] = float(rate)
    folder.rmdir()


def measure_iperf():
    """One stream of iperf3 over loopback, cubic, in MiB/s."""
    program = targets.need("iperf3")
    server = subprocess.Popen([program, "-s", "-1", "-B", "127.0.0.1", "-p", "7171"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        text = targets.run(program, "-c", "127.0.0.1", "-p", "7171", "-C", "cubic", "-t", "3", "-J")
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8 / MIB
    finally:
        server.terminate()
        server.wait()


def start_all(options, work):
    """The targets that could be started, and why the others could not."""
    kinds = {kind.name: kind for kind in (targets.Target, targets.Aqueduct, targets.Sshfs, targets.Gluster, targets.Bindfs)}
    started, missing = [], {}
    for name in options.targets.split(","):
        if name not in kinds:
            sys.exit(f"bench: there is no target '{name}': use {', '.join(kinds)}")
        target = kinds[name](work, options.program) if name == "aqueduct" else kinds[name](work)
        try:
            target.start()
            started.append(target)
        except (targets.Unavailable, OSError, subprocess.SubprocessError) as problem:
            target.stop()
            missing[name] = str(problem)
            say(f"{name} is not measured: {problem}")
    return started, missing


def say(text):
    print(text, file=sys.stderr, flush=True)


def measure_all(options, started, results, missing):
    for number in range(1, options.runs + 1):
        try:
            results.setdefault(("iperf3", "one stream"), []).append(measure_iperf())
        except (targets.Unavailable, OSError, KeyError, ValueError) as problem:
            missing["iperf3"] = str(problem)
        for target in started:
            say(f"run {number} of {options.runs}: {target.name}")
            figures = {}
            try:
                for jobs in (1, 4):
                    measure_data(target, options.size, jobs, figures)
                measure_files(target, options.files, figures)
            except (targets.Unavailable, OSError, subprocess.SubprocessError) as problem:
                missing[target.name] = f"failed in run {number}: {problem}"
                say(f"{target.name} {missing[target.name]}")
            for row, figure in figures.items():
                results.setdefault((target.name, row), []).append(figure)


def cell(values):
    if not values:
        return "-"
    figure = lambda value: f"{value:,.0f}" if value < 10_000 else f"{value / 1000:,.1f} k"
    return f"{figure(statistics.median(values))} ({figure(min(values))}-{figure(max(values))})"


def ratio(results, row, name, others):
    """Our median over the best median of the others, as text."""
    ours = results.get((name, row))
    best = [statistics.median(results[other, row]) for other in others if results.get((other, row))]
    return f"{statistics.median(ours) / max(best):.2f}" if ours and best else "-"


def table(started, results):
    names = [target.name for target in started]
    peers = [target.name for target in started if target.networked]
    lines = [["", *names, "of local", "of best peer", "of iperf3"]]
    for row, unit in ROWS:
        stream = results.get(("iperf3", "one stream"))
        results["wire", row] = stream if unit == "MiB/s" else None
        lines.append([f"{row} ({unit})", *(cell(results.get((name, row))) for name in names),
                      *(ratio(results, row, "aqueduct", others) for others in (["local"], peers, ["wire"]))])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(text.ljust(width) if column == 0 else text.rjust(width)
                        for column, (text, width) in enumerate(zip(line, widths))).rstrip())


def record(options, results, missing):
    """Appends the figures to the day's file."""
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    now = datetime.datetime.now(datetime.timezone.utc)
    base = {"date": now.isoformat(timespec="seconds"), "commit": commit, "kernel": platform.release(),
            "cores": os.cpu_count(), "size_mib": options.size, "files": options.files}
    options.records.mkdir(parents=True, exist_ok=True)
    path = options.records / f"{now:%Y-%m-%d}.jsonl"
    units = {**dict(ROWS), "one stream": "MiB/s"}
    with open(path, "a") as file:
        for (name, row), values in results.items():
            if name != "wire" and values:
                line = {**base, "target": name, "row": row, "unit": units.get(row, ""), "median": round(statistics.median(values), 1),
                        "values": [round(value, 1) for value in values]}
                file.write(json.dumps(line) + "\n")
        for name, reason in missing.items():
            file.write(json.dumps({**base, "target": name, "missing": reason}) + "\n")
    return path


def main():
    options = arguments()
    targets.need("fio")
    work = tempfile.mkdtemp(prefix="aqueduct-bench-", dir=options.work)
    results, started = {}, []
    try:
        os.chmod(work, 0o755)
        targets.run("cc", "-O2", "-o", f"{work}/files", HERE / "files.c")
        say("touching memory")
        warm(min(4 << 30, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 3))
        started, missing = start_all(options, work)
        measure_all(options, started, results, missing)
        print(f"\nMedians of {options.runs} runs (least-greatest), {options.size} MiB, {options.files} files, backing store {options.work}, "
              f"loopback, {os.cpu_count()} cores, Linux {platform.release()}\n")
        table(started, results)
        print(f"\niperf3, cubic, one stream: {cell(results.get(('iperf3', 'one stream')))} MiB/s")
        for target in started:
            print(f"{target.name}: {target.note}")
            if isinstance(target, targets.Aqueduct):
                for part, (memory, cpu) in target.idle().items():
                    print(f"{target.name}: the idle {part} has {memory:.1f} MiB in memory and used {cpu:.1f} ms of CPU in a second")
        for name, reason in missing.items():
            print(f"{name} NOT MEASURED: {reason}")
        print(f"figures appended to {record(options, results, missing)}")
    finally:
        for target in started:
            target.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except targets.Unavailable as problem:
        sys.exit(f"bench: {problem}")
