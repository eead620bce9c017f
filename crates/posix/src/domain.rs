//! What the exports of one server have in common: locks, the count of opens and what is kept or
//! held after its removal belong to the inode, through whichever export a client has come to it.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::departed::Departed;
use crate::locks::Inode;
use crate::unlinked::Kept;
use crate::waits::LockService;

/// The parts of the table of open files, each with its own lock: 16 keep apart as many threads as
/// a server has.
const SHARDS: usize = 16;

/// What the exports of one server share. Exports that show the same files (one inside the other,
/// or one directory under two names) exclude each other's locks only with the same domain. The ids
/// of clients are unique within it.
#[derive(Clone, Default)]
pub struct Domain(Arc<Parts>);

#[derive(Default)]
struct Parts {
    locks: LockService,
    files: OpenFiles,
    kept: Kept,
    departed: Departed,
}

impl fmt::Debug for Domain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Domain").finish_non_exhaustive()
    }
}

impl Domain {
    /// The locks of all clients.
    pub(crate) fn locks(&self) -> &LockService {
        &self.0.locks
    }

    /// How often each file is open.
    pub(crate) fn files(&self) -> &OpenFiles {
        &self.0.files
    }

    /// The removed files that are kept, and the roots of all exports.
    pub(crate) fn kept(&self) -> &Kept {
        &self.0.kept
    }

    /// What has just lost its last name.
    pub(crate) fn departed(&self) -> &Departed {
        &self.0.departed
    }
}

/// How often each file is open, in all exports; directories do not count.
#[derive(Default)]
pub(crate) struct OpenFiles {
    shards: [RwLock<HashMap<Inode, usize>>; SHARDS],
    count: AtomicUsize,
}

impl OpenFiles {
    fn shard(&self, inode: Inode) -> &RwLock<HashMap<Inode, usize>> {
        &self.shards[inode.number as usize % SHARDS]
    }

    fn read(&self, inode: Inode) -> RwLockReadGuard<'_, HashMap<Inode, usize>> {
        self.shard(inode).read().unwrap_or_else(|poison| poison.into_inner())
    }

    fn write(&self, inode: Inode) -> RwLockWriteGuard<'_, HashMap<Inode, usize>> {
        self.shard(inode).write().unwrap_or_else(|poison| poison.into_inner())
    }

    /// One more open of this file.
    pub(crate) fn opened(&self, inode: Inode) {
        self.count.fetch_add(1, Ordering::SeqCst);
        *self.write(inode).entry(inode).or_default() += 1;
    }

    /// One open of this file has ended.
    pub(crate) fn closed(&self, inode: Inode) {
        if let MapEntry::Occupied(mut entry) = self.write(inode).entry(inode) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether no client has any file open.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Whether any client has this file open.
    pub(crate) fn contains(&self, inode: Inode) -> bool {
        self.read(inode).contains_key(&inode)
    }
}
