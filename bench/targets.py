"""What is measured: the local directory, Aqueduct, and its peers, each served from the same tmpfs and mounted on this machine."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

TCP_CONGESTION = 13  # netinet/tcp.h
READY_SECONDS = 20   # how long a server or mount may take to be there
WORDS_SHOWN = 60     # of what a mount that failed has said last
FILL_SECONDS = 600   # how long unpacking 25,000 files may take


class Unavailable(Exception):
    """A target cannot be measured here; the message says why."""


def need(*programs):
    """The first of the programs, by full path, or Unavailable."""
    for program in programs:
        found = shutil.which(program) or (program if os.access(program, os.X_OK) else None)
        if found:
            return found
    raise Unavailable(f"{programs[0]} is not installed ('make setup-bench' installs it)")


def run(*command, seconds=120, **options):
    """Runs a command to its end; Unavailable with its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **options)
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise Unavailable(f"'{' '.join(map(str, command[:3]))} ...' failed: {words}")
    return done.stdout


def wait_for(condition, what, process=None):
    end = time.monotonic() + READY_SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            raise Unavailable(f"{what}: the process ended with {process.returncode}")
        if time.monotonic() > end:
            raise Unavailable(f"{what}: not there after {READY_SECONDS} s")
        time.sleep(0.05)


class Target:
    """A directory to measure in. `networked`: it is a peer of Aqueduct. `rows`: which rows it is measured in."""

    name = "local"
    note = "the same work in the tmpfs itself"
    networked = False
    keeps_times = True  # also where a program sets the time of modification alone, as tar does
    rows = ("data", "small-files", "small-writes")

    def __init__(self, work):
        self.folder = pathlib.Path(work) / self.name
        self.backing = self.folder / "backing"
        self.stored = self.backing  # where the server has what lies in the measured directory
        self.path = self.backing
        self.processes = []
        self.client = None
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


class Aqueduct(Target):
    """Also with a mode of caching: then under a name of its own, and for the small-file rows alone."""

    name = "aqueduct"
    note = "defaults: cache=lease"
    rows = ("data",)

    def __init__(self, work, program, cache=None, io_uring=True):
        self.options = []
        if cache:
            options = f"cache={cache}" if io_uring else f"cache={cache},io_uring=off"
            self.name, self.rows = f"aqueduct-{cache}" + ("" if io_uring else "-dev"), ("small-files", "small-writes")
            self.options, self.note = ["-o", options], f"mounted with -o {options}"
        super().__init__(work)
        self.program = program

    def serve(self):
        server = self.spawn(self.program, "serve", "--listen", "127.0.0.1:0", "--state", self.folder / "state",
                            self.backing, stdout=subprocess.PIPE, text=True)
        line = server.stdout.readline()
        if not line.startswith("listening on "):
            raise Unavailable(f"aqueduct serve: {(self.folder / 'log').read_text().strip()}")
        self.port = line.rsplit(":", 1)[1].strip()
        server.stdout.readline()
        self.server = server

    def attach(self, point):
        mount = self.spawn_mount(point, self.program, "mount", *self.options, f"127.0.0.1:{self.port}:{self.backing}")
        by = json.loads(os.getxattr(point, "aqueduct.status"))["requests_by"]
        self.note = f"{self.note.split('; requests by ')[0]}; requests by {by}"
        return mount

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


class Sshfs(Target):
    name = "sshfs"
    note = "straight to sftp-server over TCP, without ssh and its encryption; timeouts 1 s"
    networked = True

    def attach(self, point):
        sshfs = need("sshfs")
        server = need("/usr/lib/openssh/sftp-server", "sftp-server")
        listener = socket.create_server(("127.0.0.1", 0))
        try:
            listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, b"cubic")
        except OSError:
            pass  # not built into this kernel: what there is, then
        listener.settimeout(READY_SECONDS)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=self.answer, args=(listener, server), daemon=True)
        thread.start()
        timeouts = "dcache_timeout=1,dcache_stat_timeout=1,dcache_link_timeout=1,dcache_dir_timeout=1,attr_timeout=1,entry_timeout=1"
        return self.spawn_mount(point, sshfs, "-f", "-o", f"directport={port},{timeouts}", f"127.0.0.1:{self.backing}")

    def answer(self, listener, server):
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # nobody came: the mount says so
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            self.spawn(server, stdin=connection.fileno(), stdout=connection.fileno())


class Gluster(Target):
    name = "glusterfs"
    note = "one brick, Debian's defaults, whose timeouts are 1 s"
    networked = True
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
        if os.environ.get("BENCH_NAMESPACE") != "1":
            raise Unavailable("needs root (it gets a network and /run of its own, so that it disturbs nothing)")
        run("ip", "address", "add", f"{self.address}/32", "dev", "lo")
        for folder in ("/var/lib/glusterd", "/var/log/glusterfs", "/run"):
            os.makedirs(folder, exist_ok=True)
            run("mount", "-t", "tmpfs", "tmpfs", folder)  # in a mount namespace of our own
        os.makedirs("/run/gluster")
        self.spawn(glusterd, "--no-daemon")
        wait_for(lambda: subprocess.run([gluster, "--mode=script", "pool", "list"], capture_output=True).returncode == 0,
                 "glusterd", self.processes[-1])
        run(gluster, "--mode=script", "volume", "create", "bench", f"{self.address}:{self.stored}", "force")
        run(gluster, "--mode=script", "volume", "start", "bench")

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
        subprocess.run(["gluster", "--mode=script", "volume", "stop", "bench", "force"], capture_output=True)
        super().stop()


class Bindfs(Target):
    name = "bindfs"
    note = "FUSE without a network, for orientation; the times that tar sets are lost"
    keeps_times = False  # linked with libfuse 2, which passes on only both times at once

    def attach(self, point):
        return self.spawn_mount(point, need("bindfs"), "-f", self.backing)
