//! What of a file system outlives the machine: the verifier that says whether unstable writes may
//! have been lost.

use std::os::fd::BorrowedFd;

use crate::sys;

/// tmpfs and ramfs, as statfs(2) calls them: what is on them ends with the machine.
const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The verifier of the file system on which `fd` lies: 0 when it ends with the machine, or nobody asks (`boot` 0).
///
/// A file system that was unmounted and mounted again has another one, since it may have been torn away with what was not written yet. That can be told
/// where mounts have numbers that are never used again (Linux 6.8), and in the machine's own mount namespace: in one that was made for this process the
/// numbers would say that it was started again, which loses nothing.
pub(crate) fn verifier(boot: u64, fd: BorrowedFd<'_>) -> u64 {
    if boot == 0 || is_memory(fd) {
        return 0;
    }
    let mount = if sys::is_in_first_mount_namespace() { sys::unique_mount_id(fd) } else { None };
    let mut hash = blake3::Hasher::new();
    hash.update(&boot.to_le_bytes()).update(&mount.unwrap_or(0).to_le_bytes());
    let mut bytes = [0; 8];
    hash.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes).max(1)
}

/// Whether what is on the file system ends with the machine.
pub(crate) fn is_memory(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| MEMORY.contains(&(stat.f_type as u32)))
}
