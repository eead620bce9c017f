"""What is measured: the local directory, Aqueduct, and its peers, each with the same backing store, on this machine."""

from targets.aqueduct import BEFORE, Aqueduct, Before, Library, Wire
from targets.base import Target
from targets.bindfs import Bindfs
from targets.ganesha import Ganesha
from targets.gluster import Gluster
from targets.sshfs import Sshfs, SshfsOverSsh

# In the order of the tables' columns. Each takes the folder to work in and the program aqueduct.
ALL = {
    "local": lambda work, _: Target(work),
    "aqueduct": Aqueduct,
    "aqueduct-dev": lambda work, program: Aqueduct(work, program, io_uring=False),
    "aqueduct-none": lambda work, program: Aqueduct(work, program, "none"),
    "aqueduct-lease": lambda work, program: Aqueduct(work, program, "lease"),
    "aqueduct-lease-dev": lambda work, program: Aqueduct(work, program, "lease", io_uring=False),
    "aqueduct-library": Library,
    "wire": Wire,
    "bindfs": lambda work, _: Bindfs(work),
    "sshfs": lambda work, _: Sshfs(work),
    "sshfs-ssh": lambda work, _: SshfsOverSsh(work),
    "glusterfs": lambda work, _: Gluster(work),
    "ganesha-libnfs": lambda work, _: Ganesha(work),
}

# What `--before PROGRAM` adds: what another program does in the same run.
OLDER = {
    f"aqueduct{BEFORE}": Before,
    f"aqueduct-lease{BEFORE}": lambda work, program: Before(work, program, "lease"),
}

# Peers that are wanted and cannot be had with what setup-bench installs.
LEFT_OUT = {
    "juicefs": "Debian has no package of it, and the Go module proxy that we reach refuses it: 403, 'This module version is not available'",
}

__all__ = ["ALL", "BEFORE", "LEFT_OUT", "OLDER", "Aqueduct", "Target"]
