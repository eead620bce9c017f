//! One at a time: while what tells whether an operation was executed is looked at and written down, and the operation executed, no other client of this
//! server does the like with the same name, or appends to the same file. Else two who race for a name, one of whom wins, could both be told that they
//! won after the server died in between.

use std::sync::{Mutex, MutexGuard};

use aqueduct_fs::{FileSystem, Handle, Request};

use crate::lease::InodeKey;
use crate::server::Server;
use crate::session::lock;

/// Names and files share these locks: so many (8 KiB) that a slow operation holds up one in a thousand of the others.
const LOCKS: usize = 1024;

pub(crate) struct Exclusion([Mutex<()>; LOCKS]);

impl Default for Exclusion {
    fn default() -> Exclusion {
        Exclusion([const { Mutex::new(()) }; LOCKS])
    }
}

impl Server {
    /// For an append to a file. As leases do, these locks go by the inode: more than one export may lead to it.
    pub(crate) fn exclude_appends(&self, filesystem: &dyn FileSystem, handle: &Handle) -> MutexGuard<'_, ()> {
        let InodeKey(file) = self.leases.key(filesystem, handle.bytes());
        lock(&self.exclusion.0[crc32c::crc32c(&file.to_le_bytes()) as usize % LOCKS])
    }

    /// For what makes or removes names. Two are locked in one order, so that nobody waits for another who waits for him.
    pub(crate) fn exclude_names(
        &self,
        filesystem: &dyn FileSystem,
        request: &Request<'_>,
    ) -> [Option<MutexGuard<'_, ()>>; 2] {
        let locks = &self.exclusion.0;
        let place = |parent, name| {
            let InodeKey(parent) = self.leases.key(filesystem, parent);
            crc32c::crc32c_append(crc32c::crc32c(&parent.to_le_bytes()), name) as usize % LOCKS
        };
        match *request {
            Request::Create { parent, name, .. }
            | Request::MakeDirectory { parent, name, .. }
            | Request::MakeNode { parent, name, .. }
            | Request::Symlink { parent, name, .. }
            | Request::Link { parent, name, .. }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name } => [Some(lock(&locks[place(parent, name)])), None],
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                let (one, other) = (place(parent, name), place(new_parent, new_name));
                let first = lock(&locks[one.min(other)]);
                [Some(first), (one != other).then(|| lock(&locks[one.max(other)]))]
            }
            _ => [None, None],
        }
    }
}
