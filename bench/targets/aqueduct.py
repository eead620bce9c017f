"""Aqueduct: mounted, without a mount, and its wire alone."""

import json
import os
import pathlib
import subprocess
import time

import loads
from loads import LIBRARY_DEPTH
from commands import Unavailable, run
from targets.base import DATA, Target

BEFORE = "-before"  # behind the name of a target that another program serves and mounts
FILE_BYTES = 64 << 30  # of each file of the synthetic server: more than anybody reads


class Aqueduct(Target):
    """Mounted. Also with a mode of caching: then under a name of its own, and for the small-file rows alone."""

    name = "aqueduct"
    note = "defaults: cache=lease"
    rows = ("data", "names", "neighbour")
    suffix = ""

    def __init__(self, work, program, cache=None, io_uring=True):
        self.options = []
        words = [word for word in (cache and f"cache={cache}", not io_uring and "io_uring=off") if word]
        if words:
            options = ",".join(words)
            self.name = "-".join(part for part in ("aqueduct", cache, not io_uring and "dev") if part)
            self.options, self.note = ["-o", options], f"mounted with -o {options}"
        if cache:
            self.rows = ("small-files", "small-writes")
        self.name += self.suffix
        super().__init__(work)
        self.program = program
        self.version_of = (program, "--version")

    def serve(self):
        # By TCP, as the peers it stands beside; a mount of a loopback address would take the Unix
        # socket. Who measures is root.
        by_tcp = self.folder / "by-tcp.toml"
        by_tcp.write_text('local_sockets = ""\n')
        self.start_server(
            self.program, "--config", by_tcp, "--squash", "none", "--state", self.folder / "state", self.backing
        )
        self.server.stdout.readline()  # the export

    def start_server(self, program, *arguments):
        self.server = self.spawn(program, "serve", "--listen", "127.0.0.1:0", *arguments, stdout=subprocess.PIPE, text=True)
        line = self.server.stdout.readline()
        if not line.startswith("listening on "):
            raise Unavailable(f"{program} serve: {(self.folder / 'log').read_text().strip()}")
        self.port = line.rsplit(":", 1)[1].strip()

    def attach(self, point):
        mount = self.spawn_mount(point, self.program, "mount", *self.options, f"127.0.0.1:{self.port}:{self.backing}")
        by = json.loads(os.getxattr(point, "aqueduct.status"))["requests_by"]
        self.note = f"{self.note.split('; requests by ')[0]}; requests by {by}"
        return mount

    def servers(self):
        return [self.server.pid]

    def requests(self):
        status = json.loads(run(self.program, "status", f"127.0.0.1:{self.port}", "--json"))
        return sum(session["operations"] for session in status["server"]["sessions"])

    def idle(self, seconds=3):
        """Memory and processor time of the idle mount and server: name -> (MiB, milliseconds of CPU in a second)."""
        ticks = os.sysconf("SC_CLK_TCK")

        def spent(process):
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / ticks

        def memory(process):
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

        both = {"mount": self.client, "server": self.server}
        before = {name: spent(process) for name, process in both.items()}
        time.sleep(seconds)
        return {name: (memory(process), (spent(process) - before[name]) / seconds * 1000) for name, process in both.items()}


class Before(Aqueduct):
    """Another program, an older one as a rule, beside ours in the same run: what a change costs is not what another day is."""

    suffix = BEFORE

    def serve(self):
        try:
            super().serve()
        except Unavailable:
            # Older programs have no Unix sockets, and so nothing to be configured.
            self.start_server(self.program, "--squash", "none", "--state", self.folder / "state", self.backing)
            self.server.stdout.readline()  # the export


class Unmounted(Target):
    """Programs that do the data rows themselves, as clients, with no mount and no page cache."""

    mounted = False
    rows = ("data",)

    def mount(self):
        pass

    def remount(self):
        pass

    def supports(self, load):
        return not load.direct and not load.mmap

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.generation = 0

    def prepare_data(self):
        """Files are removed behind the server's back, so each time they have other names."""
        self.generation += 1

    def data(self):
        return f"{DATA}-{self.generation}"

    def remove_data(self):
        for path in self.stored.glob(f"{DATA}-*"):
            path.unlink()


class Library(Unmounted, Aqueduct):
    """The client library in the program aqueduct-load."""

    name = "aqueduct-library"
    note = f"the client library without FUSE (aqueduct-load); {LIBRARY_DEPTH} requests under way in the sequential rows"

    def serve(self):
        self.load = need_load(self.program)
        self.export = self.backing
        super().serve()

    def perform(self, load, size, seconds):
        return loads.program((self.load, "io", f"127.0.0.1:{self.port}:{self.export}"), load, self.data(), size, seconds)


class Wire(Library):
    """The same client, and a server whose files are not there: reads give zeros, writes are thrown away."""

    name = "wire"
    note = f"Aqueduct's client library and server with nothing behind it; {LIBRARY_DEPTH} requests under way in the sequential rows"

    def serve(self):
        self.load = need_load(self.program)
        self.export = "/"
        self.start_server(self.load, "--size", str(FILE_BYTES))

    def remove_data(self):
        pass  # nothing was kept


def need_load(program):
    """aqueduct-load, which lies beside aqueduct."""
    load = pathlib.Path(program).with_name("aqueduct-load")
    if not os.access(load, os.X_OK):
        raise Unavailable(f"{load} is not there ('cargo build --release -p aqueduct-load' makes it)")
    return load
