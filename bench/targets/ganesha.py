"""nfs-ganesha, with libnfs as the client: NFS in user space on both sides, with no mount."""

import loads
from commands import HERE, need, run
from targets.aqueduct import Unmounted
from targets.base import need_namespace, private_folder

NFS_PORT, MOUNT_PORT = 2049, 20048
CONFIGURATION = """
NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {nfs}; MNT_Port = {mount}; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /bench; Protocols = 3; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}
"""


class Ganesha(Unmounted):
    name = "ganesha-libnfs"
    note = (f"nfs-ganesha (VFS) and libnfs (nfs_load.c), NFS 3 over TCP, without a mount; {loads.LIBRARY_DEPTH} requests under way in the sequential rows; "
            "with NFS 4 the libnfs of Debian 12 writes no large blocks")
    networked = True
    rows = ("data", "names")
    version_of = ("ganesha.nfsd", "-v")

    def serve(self):
        ganesha, rpcbind = need("ganesha.nfsd"), need("rpcbind")
        need_namespace()
        for folder in ("/run", "/var/lib/nfs"):
            private_folder(folder)
        self.program = self.folder / "nfs_load"
        run("cc", "-O2", "-o", self.program, HERE / "nfs_load.c", "-lnfs", "-lpthread")
        # Ganesha ends unless it can register NFS 3.
        self.wait_listening(111, self.spawn(rpcbind, "-f"))
        configuration = self.folder / "ganesha.conf"
        configuration.write_text(CONFIGURATION.format(nfs=NFS_PORT, mount=MOUNT_PORT, path=self.backing))
        self.server = self.spawn(ganesha, "-F", "-f", configuration, "-L", self.folder / "ganesha.log", "-p", self.folder / "ganesha.pid", "-N", "NIV_WARN")
        self.wait_listening(NFS_PORT, self.server)

    def servers(self):
        return [self.server.pid]

    def url(self, folder):
        return f"nfs://127.0.0.1{folder}?version=3&nfsport={NFS_PORT}&mountport={MOUNT_PORT}"

    def perform(self, load, size, seconds):
        return loads.program((self.program, "io", self.url(self.backing)), load, self.data(), size, seconds)

    def names(self, folder, what, count):
        return (self.program, "names", self.url(self.backing), "--name", folder, "--op", what, "--count", str(count))
