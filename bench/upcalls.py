"""Counts what the kernel asks of a FUSE file system: the tracepoint fuse:fuse_request_send (Linux 6.11), in a trace instance of our own."""

import collections
import contextlib
import os
import pathlib
import re

from commands import Unavailable

INSTANCES = pathlib.Path("/sys/kernel/tracing/instances")
NAME = "aqueduct-bench"
BUFFER_KIB = 64 << 10  # for each core: 1,200,000 events of 48 bytes, twice as many as rsync makes of a tree
OVERRUN = re.compile(r"overrun: (\d+)")
OPCODE = re.compile(rb"\(FUSE_(\w+)\)")


class Upcalls:
    """Use `counted`, then `close`. Unavailable where the kernel or our rights do not allow it."""

    def __init__(self):
        if not (INSTANCES.parent / "events/fuse/fuse_request_send").is_dir():
            raise Unavailable("this kernel has no tracepoint for FUSE requests, or hides it")
        # A run that was killed leaves its instance behind. One in use is busy, and stays.
        for old in INSTANCES.glob(f"{NAME}-*"):
            with contextlib.suppress(OSError):
                old.rmdir()
        self.folder = INSTANCES / f"{NAME}-{os.urandom(4).hex()}"
        try:
            self.folder.mkdir()
        except OSError as problem:
            raise Unavailable(f"no trace instance: {problem}") from None
        self.event = self.folder / "events/fuse/fuse_request_send"
        (self.folder / "buffer_size_kb").write_text(str(BUFFER_KIB))
        self.pipe = os.open(self.folder / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)

    def close(self):
        os.close(self.pipe)
        self.folder.rmdir()

    @contextlib.contextmanager
    def counted(self, mount):
        """A dict; when the block ends it has `upcalls`, how many of each kind there were, unless some were lost."""
        counted = {}
        (self.event / "filter").write_text(f"connection == {os.minor(os.stat(mount).st_dev)}")
        self.drain()
        lost = self.lost()
        (self.event / "enable").write_text("1")
        try:
            yield counted
        finally:
            (self.event / "enable").write_text("0")
        counts = self.drain()
        if self.lost() == lost:
            counted["upcalls"] = dict(sorted(counts.items()))

    def drain(self):
        counts, rest = collections.Counter(), b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.pipe, 1 << 20):
                lines, end, rest = (rest + piece).rpartition(b"\n")
                counts.update(name.decode() for name in OPCODE.findall(lines + end))
        return counts

    def lost(self):
        return [OVERRUN.search(path.read_text()).group(1) for path in sorted(self.folder.glob("per_cpu/cpu*/stats"))]
