"""GlusterFS."""

import os
import subprocess

import usage
from commands import need, run, wait_for
from targets.base import Target, need_namespace, private_folder


class Gluster(Target):
    name = "glusterfs"
    note = "one brick, Debian's defaults, whose timeouts are 1 s"
    networked = True
    version_of = ("glusterfs", "--version")
    address = "10.99.0.1"  # it refuses loopback addresses; this one is on lo, in a network namespace of our own

    def __init__(self, work):
        super().__init__(work)
        self.stored = self.backing / "brick"

    def start(self, trees=None):
        self.serve()
        self.mount()
        wait_for(self.writable, "the volume", self.client)
        if trees:
            self.fill(trees, self.filled())

    def filled(self):
        return self.path  # what others put into a brick it does not know

    def serve(self):
        glusterd, gluster = need("glusterd"), need("gluster")
        need_namespace()
        run("ip", "address", "replace", f"{self.address}/32", "dev", "lo")
        for folder in ("/var/lib/glusterd", "/var/log/glusterfs", "/run"):
            private_folder(folder)
        os.makedirs("/run/gluster", exist_ok=True)
        self.spawn(glusterd, "--no-daemon")
        wait_for(lambda: subprocess.run([gluster, "--mode=script", "pool", "list"], capture_output=True).returncode == 0,
                 "glusterd", self.processes[-1])
        run(gluster, "--mode=script", "volume", "create", "bench", f"{self.address}:{self.stored}", "force")
        run(gluster, "--mode=script", "volume", "start", "bench")

    def servers(self):
        return usage.named("glusterd", "glusterfsd")  # the brick's process is not our child; nobody else's are in our namespace

    def attach(self, point):
        return self.spawn_mount(point, need("glusterfs"), "--no-daemon", f"--volfile-server={self.address}", "--volfile-id=bench")

    def writable(self):
        try:
            (self.path / "probe").write_text("x")
            (self.path / "probe").unlink()
            return True
        except OSError:
            return False

    def stop(self):
        for words in (("stop", "bench", "force"), ("delete", "bench")):
            subprocess.run(["gluster", "--mode=script", "volume", *words], capture_output=True)
        super().stop()
