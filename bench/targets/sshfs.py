"""sshfs, with and without ssh."""

import os
import socket
import threading

from commands import READY_SECONDS, need, run
from targets.base import Target, need_namespace, private_folder

TCP_CONGESTION = 13  # netinet/tcp.h
TIMEOUTS = "dcache_timeout=1,dcache_stat_timeout=1,dcache_link_timeout=1,dcache_dir_timeout=1,attr_timeout=1,entry_timeout=1"


class Sshfs(Target):
    name = "sshfs"
    note = "straight to sftp-server over TCP, without ssh and its encryption; timeouts 1 s"
    networked = True
    version_of = ("sshfs", "--version")

    def __init__(self, work):
        super().__init__(work)
        self.sftp = []

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
        return self.spawn_mount(point, sshfs, "-f", "-o", f"directport={port},{TIMEOUTS}", f"127.0.0.1:{self.backing}")

    def servers(self):
        return [process.pid for process in self.sftp if process.poll() is None]

    def answer(self, listener, server):
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # nobody came: the mount says so
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            self.sftp.append(self.spawn(server, stdin=connection.fileno(), stdout=connection.fileno()))


class SshfsOverSsh(Target):
    """As people use it: an sshd of our own, with keys that are made for this run and thrown away with it."""

    name = "sshfs-ssh"
    cipher = "aes128-gcm@openssh.com"  # the fastest of OpenSSH where the processor has AES
    note = f"by ssh, {cipher}, no compression, an sshd of our own; timeouts 1 s"
    networked = True
    rows = ("data", "names")
    version_of = ("ssh", "-V")
    port = 2222

    def serve(self):
        sshd = need("/usr/sbin/sshd", "sshd")
        server = need("/usr/lib/openssh/sftp-server", "sftp-server")
        need_namespace()
        private_folder("/run")
        os.makedirs("/run/sshd", exist_ok=True)  # sshd's empty folder
        for name in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name)
        lines = [f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder}/host", f"AuthorizedKeysFile {self.folder}/user.pub", "StrictModes no",
                 "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", "UsePAM no", "PidFile none",
                 f"Subsystem sftp {server}", ""]
        (self.folder / "sshd_config").write_text("\n".join(lines))
        self.server = self.spawn(sshd, "-D", "-e", "-f", self.folder / "sshd_config")
        self.wait_listening(self.port, self.server)

    def attach(self, point):
        options = [f"port={self.port}", f"IdentityFile={self.folder}/user", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null",
                   f"Ciphers={self.cipher}", "Compression=no", "ssh_command=ssh -F none -o LogLevel=ERROR", TIMEOUTS]
        return self.spawn_mount(point, need("sshfs"), "-f", "-o", ",".join(options), f"root@127.0.0.1:{self.backing}")

    def servers(self):
        return [self.server.pid]
