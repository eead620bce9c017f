"""What is measured: the local directory, Aqueduct, and its peers, each served from the same tmpfs and mounted on this machine."""

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


class Unavailable(Exception):
    """A target cannot be measured here; the message says why."""


def need(*programs):
    """The first of the programs, by full path, or Unavailable."""
    for program in programs:
        found = shutil.which(program) or (program if os.access(program, os.X_OK) else None)
        if found:
            return found
    raise Unavailable(f"{programs[0]} is not installed ('make setup-bench' installs it)")


def run(*command, **options):
    """Runs a command to its end; Unavailable with its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
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
    """A directory to measure in. `networked`: it is a peer of Aqueduct."""

    name = "local"
    note = "the same work in the tmpfs itself"
    networked = False

    def __init__(self, work):
        self.folder = pathlib.Path(work) / self.name
        self.backing = self.folder / "backing"
        self.path = self.backing
        self.processes = []
        self.backing.mkdir(parents=True)

    def start(self):
        pass

    def mount_point(self):
        self.path = self.folder / "mount"
        self.path.mkdir()
        return self.path

    def spawn(self, *command, **options):
        log = open(self.folder / "log", "ab")
        process = subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **options})
        self.processes.append(process)
        return process

    def wait_mounted(self, process=None):
        wait_for(lambda: os.path.ismount(self.path), f"the mount on {self.path}", process)

    def stop(self):
        if self.path != self.backing:
            subprocess.run(["umount", self.path], capture_output=True)
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class Aqueduct(Target):
    name = "aqueduct"
    note = "defaults: nothing is cached"

    def __init__(self, work, program):
        super().__init__(work)
        self.program = program

    def start(self):
        server = self.spawn(self.program, "serve", "--listen", "127.0.0.1:0", "--state", self.folder / "state",
                            self.backing, stdout=subprocess.PIPE, text=True)
        line = server.stdout.readline()
        if not line.startswith("listening on "):
            raise Unavailable(f"aqueduct serve: {(self.folder / 'log').read_text().strip()}")
        port = line.rsplit(":", 1)[1].strip()
        server.stdout.readline()
        self.server = server
        self.client = self.spawn(self.program, "mount", f"127.0.0.1:{port}:{self.backing}", self.mount_point())
        self.wait_mounted(self.client)

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

    def start(self):
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
        mount = self.spawn(sshfs, "-f", "-o", f"directport={port},{timeouts}", f"127.0.0.1:{self.backing}", self.mount_point())
        self.wait_mounted(mount)

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

    def start(self):
        glusterd, gluster, client = need("glusterd"), need("gluster"), need("glusterfs")
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
        run(gluster, "--mode=script", "volume", "create", "bench", f"{self.address}:{self.backing}/brick", "force")
        run(gluster, "--mode=script", "volume", "start", "bench")
        mount = self.spawn(client, "--no-daemon", f"--volfile-server={self.address}", "--volfile-id=bench", self.mount_point())
        self.wait_mounted(mount)
        wait_for(self.writable, "the volume", mount)

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
    note = "FUSE without a network, for orientation"

    def start(self):
        mount = self.spawn(need("bindfs"), "-f", self.backing, self.mount_point())
        self.wait_mounted(mount)
