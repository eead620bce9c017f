"""Where backing stores lie: in a tmpfs, or in xfs on a loop device over that."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from commands import Unavailable, need, run

XFS_GIB = 14  # of the image, which takes no memory where it has not been written
KINDS = ("tmpfs", "xfs")


@contextlib.contextmanager
def opened(kind, folder):
    """A new folder for all backing stores, which is gone afterwards."""
    work = tempfile.mkdtemp(prefix="aqueduct-bench-", dir=folder)
    try:
        if kind == "xfs":
            with on_loop_device(pathlib.Path(work)) as point:
                yield str(point)
        else:
            os.chmod(work, 0o755)
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def on_loop_device(work):
    """The loop device ends with its mount, and that at the latest with our mount namespace: so it goes however we end."""
    if os.environ.get("BENCH_NAMESPACE") != "1":
        raise Unavailable("xfs on a loop device needs root")
    os.chmod(work, 0o755)
    image, point = work / "image", work / "xfs"
    with open(image, "wb") as file:
        file.truncate(XFS_GIB << 30)
    run(need("mkfs.xfs", "/sbin/mkfs.xfs"), "-q", image)
    point.mkdir()
    # With discard the image gives back the memory of files that are removed.
    run("mount", "-t", "xfs", "-o", "loop,discard", image, point)
    try:
        yield point
    finally:
        if subprocess.run(["umount", point], capture_output=True).returncode != 0:
            subprocess.run(["umount", "--lazy", point], capture_output=True)
