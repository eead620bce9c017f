//! An inode as it is seen.

use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::{Attr, Errno, device_number};

use crate::locks::Inode;
use crate::seal::TableKey;
use crate::sys;

/// An inode seen: what identifies it on this machine, and its attributes.
pub(crate) struct Seen {
    pub(crate) device: u64,
    pub(crate) attr: Attr,
}

impl Seen {
    /// The inode, as opens and locks know it.
    pub(crate) fn inode(&self) -> Inode {
        Inode { device: self.device, number: self.attr.ino }
    }

    /// The inode, as the table of inodes knows it.
    pub(crate) fn key(&self) -> TableKey {
        TableKey { device: self.device, ino: self.attr.ino, birth: self.attr.btime }
    }
}

/// Looks at the inode of a descriptor.
pub(crate) fn see(fd: impl AsFd) -> Result<Seen, Errno> {
    sys::statx(fd).map(seen)
}

/// Looks at the inode of a name, which has been checked; never at what a link points to.
pub(crate) fn see_name(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Seen, Errno> {
    sys::statx_name(directory, name).map(seen)
}

fn seen(stat: rustix::fs::Statx) -> Seen {
    Seen { device: device_number(stat.stx_dev_major, stat.stx_dev_minor), attr: Attr::of_statx(&stat) }
}
