"""What every target is: a backing store, served and mounted on this machine, or used by a program in place of a mount."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import loads
from commands import READY_SECONDS, Unavailable, first_line, run, wait_for

DATA = "data"        # the folder of the data rows
WORDS_SHOWN = 60     # of what a mount that failed has said last
FILL_SECONDS = 600   # how long unpacking 25,000 files may take
PRIVATE = set()      # folders that are our own, see private_folder


def need_namespace():
    if os.environ.get("BENCH_NAMESPACE") != "1":
        raise Unavailable("needs root (it gets a network and /run of its own, so that it disturbs nothing)")


def private_folder(folder):
    """An empty folder in the place of the machine's, in our own mount namespace."""
    if folder not in PRIVATE:
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
        PRIVATE.add(folder)


class Target:
    """A directory to measure in. `networked`: it is a peer of Aqueduct. `rows`: which rows it is measured in. `mounted`: programs can work in it."""

    name = "local"
    note = "the same work in the backing store itself"
    networked = False
    mounted = True
    keeps_times = True  # also where a program sets the time of modification alone, as tar does
    rows = ("data", "names", "neighbour", "small-files", "small-writes")
    version_of = ()     # a command that says which version this is

    def __init__(self, work):
        self.folder = pathlib.Path(work) / self.name
        self.backing = self.folder / "backing"
        self.stored = self.backing  # where the server has what lies in the measured directory
        self.path = self.backing
        self.processes = []
        self.client = None
        self.deep_engines = loads.DEEP_ENGINES
        self.backing.mkdir(parents=True)

    def start(self, trees=None):
        """Serves and mounts the backing store, with the content of an archive in it."""
        if trees:
            self.fill(trees, self.filled())
        self.serve()
        self.mount()

    def fill(self, trees, folder):
        run("tar", "-xpf", trees, "-C", folder, seconds=FILL_SECONDS)

    def serve(self):
        pass

    def mount(self):
        point = self.folder / "mount"
        self.client = self.attach(point)
        if self.client:
            self.path = point

    def attach(self, point):
        """Starts a client that mounts the backing store on `point`, and returns its process; None where there is none."""
        return None

    @contextlib.contextmanager
    def second_mount(self):
        """Another mount of the same backing store; its path."""
        point = self.folder / "second"
        client = self.attach(point)
        if client is None:
            yield self.path
            return
        try:
            yield point
        finally:
            run("umount", point)
            client.wait(READY_SECONDS)

    def filled(self):
        """Where files are put without being measured: straight into the backing store, unless that is the server's own."""
        return self.backing

    def remount(self):
        """A mount that has just been made, of which the kernel keeps nothing. The server goes on as it is."""
        if self.path != self.backing:
            run("umount", self.path)
            self.client.wait(READY_SECONDS)
            self.mount()

    def clients(self):
        """The processes that mount, by their ids; their children belong to them."""
        return [self.client.pid] if self.client else []

    def servers(self):
        """The processes that serve."""
        return []

    def facts(self):
        """What one has to know to measure this again."""
        facts = {"note": self.note}
        if self.version_of:
            facts["version"] = first_line(*self.version_of)
        if self.path != self.backing:
            device = os.stat(self.path).st_dev
            with contextlib.suppress(OSError):
                facts["read_ahead_kib"] = int(pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text())
        return facts

    def check(self):
        """Unavailable unless the mount is still there: what is done without one is done in the empty folder under it, and its figures are of that."""
        if self.path != self.backing and (not os.path.ismount(self.path) or self.client.poll() is not None):
            raise Unavailable(f"the mount on {self.path} has ended")

    def supports(self, load):
        return True

    def perform(self, load, size, seconds):
        """Does a workload of the data rows in the folder `data`, which `prepare_data` has made."""
        if load.depth == 1:
            return loads.fio(self.path / DATA, load, size, seconds)
        while True:
            try:
                return loads.fio(self.path / DATA, load, size, seconds, self.deep_engines[0])
            except Unavailable:
                if len(self.deep_engines) == 1:
                    raise
                self.deep_engines = self.deep_engines[1:]

    def prepare_data(self):
        (self.path / DATA).mkdir()

    def remove_data(self):
        shutil.rmtree(self.path / DATA)

    def names(self, folder, what, count):
        """The command that does one row of names in a new folder of this name."""
        return (self.folder.parent / "files", self.path / folder, what, str(count))

    def requests(self):
        """How many requests the server has executed for this mount, where it tells."""
        return None

    def spawn(self, *command, **options):
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **options})
        self.processes.append(process)
        return process

    def spawn_mount(self, point, *command):
        """The process that mounts on `point`, its last argument."""
        point.mkdir(exist_ok=True)
        client = self.spawn(*command, point)
        try:
            wait_for(lambda: os.path.ismount(point), f"the mount on {point}", client)
            return client
        except Unavailable as problem:
            words = (self.folder / "log").read_text(errors="replace").split()[-WORDS_SHOWN:]
            raise Unavailable(f"{problem}: {' '.join(words) or 'no reason given'}") from None

    def wait_listening(self, port, process):
        """Until the server listens at the port of 127.0.0.1."""
        def there():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=READY_SECONDS):
                return True
            return False

        wait_for(there, f"{self.name} on port {port}", process)

    def stop(self):
        for name in ("second", "mount"):
            subprocess.run(["umount", self.folder / name], capture_output=True)
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
