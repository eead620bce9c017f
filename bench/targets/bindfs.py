"""bindfs: FUSE with no network."""

from commands import need
from targets.base import Target


class Bindfs(Target):
    name = "bindfs"
    note = "FUSE without a network, for orientation; the times that tar sets are lost"
    version_of = ("bindfs", "--version")
    keeps_times = False  # linked with libfuse 2, which passes on only both times at once

    def attach(self, point):
        return self.spawn_mount(point, need("bindfs"), "-f", self.backing)
