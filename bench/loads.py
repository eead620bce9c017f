"""One workload of reading or writing data, and how it is run: by fio in a directory, or by a program that has the same options as aqueduct-load."""

import dataclasses
import json
import subprocess

from commands import Unavailable, run
from report import MIB

SECONDS_MAX = 180             # how long one measure may take
DEEP_ENGINES = ("io_uring", "libaio", "threads")  # of fio, for more than one request at a time: the first that works on a target
MMAP_SECONDS = 5              # how long mapped memory is read in sequence at the most
LIBRARY_DEPTH = 4             # requests under way in the sequential rows where no kernel reads ahead or writes behind


@dataclasses.dataclass(frozen=True)
class Load:
    """`op`: read, write, randread or randwrite. `shared`: all jobs in one file (N-1), else each in a file of its own (N-N). Each write ends with fsync."""

    op: str
    block: int
    jobs: int = 1
    depth: int = 1
    shared: bool = False
    direct: bool = False
    mmap: bool = False

    @property
    def random(self):
        return self.op.startswith("rand")


@dataclasses.dataclass
class Done:
    """What a run has done, what the program that did it has used, and how it was called."""

    bytes: int
    operations: int
    seconds: float
    cpu: float
    peak: float | None  # MiB
    how: str


def fio_words(load, size, seconds, engine):
    """The options of fio that say what is done; `size` in bytes, of all jobs together."""
    words = [f"--rw={load.op}", f"--bs={load.block}", f"--direct={int(load.direct)}", f"--ioengine={'mmap' if load.mmap else engine}", "--fallocate=none"]
    if engine == "threads":
        # All in the same file, each with an order of its own.
        words[3] = "--ioengine=psync"
        words += [f"--numjobs={load.depth}", "--filename=file.0", f"--size={size}", "--randrepeat=0"]
    elif load.shared:
        words += [f"--numjobs={load.jobs}", "--filename=shared", f"--size={size // load.jobs}", f"--offset_increment={size // load.jobs}"]
    else:
        # A job that is called as something in the working directory, other than a file, would have all jobs use that one name.
        words += [f"--numjobs={load.jobs}", "--filename_format=file.$jobnum", f"--size={size // load.jobs}"]
    if load.depth > 1 and engine != "threads":
        words.append(f"--iodepth={load.depth}")
    if load.mmap and not load.random:
        # Programs that map files rarely advise. fio would: MADV_SEQUENTIAL, with which Linux 6.18 reads single pages from FUSE, several times slower.
        words += ["--fadvise_hint=0", f"--runtime={MMAP_SECONDS}"]
    if load.random:
        words.append(f"--runtime={seconds}")  # each block at most once: nothing is read twice from a client's cache
    words.append("--end_fsync=1" if "write" in load.op else "--invalidate=1")
    return words


def fio(folder, load, size, seconds, engine="psync"):
    words = fio_words(load, size, seconds, engine)
    command = ["fio", "--name=job", f"--directory={folder}", "--group_reporting", "--thread", "--output-format=json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode != 0:
        raise Unavailable(f"fio failed: {((done.stderr or done.stdout).strip() or 'no reason given').splitlines()[-1]}")
    return parse_fio(done.stdout, f"fio {' '.join(words)}")


def parse_fio(text, how=""):
    job = json.loads(text[text.index("{"):])["jobs"][0]
    kind = job["read"] if job["read"]["total_ios"] else job["write"]
    # job_runtime is that of all threads together, of which these are parts in a hundred.
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return Done(kind["io_bytes"], kind["total_ios"], kind["io_bytes"] / kind["bw_bytes"] if kind["bw_bytes"] else 0, cpu, None, how)


def program_words(load, name, size, seconds):
    """The options that aqueduct-load and nfs_load share."""
    depth = load.depth if load.random else LIBRARY_DEPTH
    words = ["--name", name, "--op", load.op, "--block", str(load.block), "--size", str(size), "--jobs", str(load.jobs), "--depth", str(depth)]
    if load.random:
        words += ["--seconds", str(seconds)]
    return words + (["--shared"] if load.shared else [])


def program(command, load, name, size, seconds):
    """Runs `PROGRAM io PLACE` with the workload."""
    words = program_words(load, name, size, seconds)
    return parse_program(run(*command, *words, seconds=SECONDS_MAX), f"io {' '.join(words)}")


def parse_program(text, how=""):
    line = json.loads(text.strip().splitlines()[-1])
    return Done(line["bytes"], line["operations"], line["seconds"], line["cpu_seconds"], line["memory_peak_kib"] / 1024, how)


def rate(load, done):
    """MiB/s of sequential workloads, operations in a second of random ones."""
    if done.seconds <= 0:
        raise Unavailable(f"no time was measured: {done.how}")
    return done.operations / done.seconds if load.random else done.bytes / MIB / done.seconds
