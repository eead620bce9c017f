//! What of a file system outlives the machine: the verifier that says whether unstable writes may have been lost, and changes of names and attributes that
//! are made stable before they are answered.

use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::Errno;
use rustix::fs::OFlags;

use crate::opens::OpenFile;
use crate::tree::{Node, see};
use crate::{Posix, identity, sys};

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

impl Posix {
    /// Whether changes of names and attributes are stable when they are answered.
    pub fn is_sync(&self) -> bool {
        self.sync
    }

    /// What every write into a file on the root's file system says: see [`Written::verifier`](aqueduct_fs::Written).
    pub fn verifier(&self) -> u64 {
        self.verifier
    }

    /// Makes stable what was done to the inode, and to the names in it.
    pub(crate) fn settle(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if !self.sync {
            return Ok(());
        }
        match rustix::fs::fsync(fd) {
            Err(rustix::io::Errno::BADF) => {} // it stands for the inode only
            result => return Ok(result?),
        }
        let kind = see(fd)?.attr.kind();
        let how = match kind {
            libc::S_IFDIR => OFlags::RDONLY | OFlags::DIRECTORY,
            _ => OFlags::RDONLY | OFlags::NONBLOCK,
        };
        if matches!(kind, libc::S_IFDIR | libc::S_IFREG)
            && let Ok(opened) = identity::with_search_right(|| sys::reopen(fd, how))
        {
            return Ok(rustix::fs::fsync(opened)?);
        }
        // What cannot be opened (a device, a link, another's directory) is made stable with everything else.
        Ok(rustix::fs::syncfs(self.tree.root_fd())?)
    }

    /// The same, of an inode that may have been found by somebody's open. The kernel tells of data
    /// that it could not write once through each descriptor: whoever has that open is still told.
    pub(crate) fn settle_node(&self, node: &Node<'_>) -> Result<(), Errno> {
        let result = self.settle(node.as_fd());
        if let Node::Open(open) = node {
            open.note(&result);
        }
        result
    }

    /// Makes the data of an open file stable that something else than a write has changed.
    pub(crate) fn settle_data(&self, open: &OpenFile) -> Result<(), Errno> {
        if !self.sync {
            return Ok(());
        }
        let result = rustix::fs::fdatasync(open.fd.as_fd()).map_err(Errno::from);
        open.note(&result);
        result
    }
}
