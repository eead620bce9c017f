//! Changes of names and attributes that are made stable before they are answered.

use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::Errno;
use rustix::fs::OFlags;

use crate::open_file::OpenFile;
use crate::seen::see;
use crate::tree::Node;
use crate::{Posix, identity, sys};

impl Posix {
    /// Whether changes of names and attributes are stable when they are answered.
    pub fn is_sync(&self) -> bool {
        self.sync
    }

    /// What every write into a file on the root's file system says: see
    /// [`Written::verifier`](aqueduct_fs::Written).
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
        // What cannot be opened (a device, a link, another's directory) is made stable with
        // everything else.
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
