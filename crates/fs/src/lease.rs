//! What may be kept of an answer without asking again: the vocabulary of leases, from the server's grants to the kernel's timeouts.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::{Errno, Reply};

bitflags::bitflags! {
    /// What a lease covers, and what a change touches.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Aspects: u8 {
        /// The attributes but for the time of access, extended attributes and access control lists included.
        const ATTRIBUTES = 1;
        /// The content of a file, the text of a symbolic link, the listing of a directory that was opened with it.
        const DATA = 1 << 1;
        /// The names in a directory, and those that are not there.
        const NAMES = 1 << 2;
        /// Nobody else uses the file: what is written may be held back, and is seen by whoever looks. Always together with its attributes and content.
        const WRITES = 1 << 3;
        /// Several clients write the file at the same time, each what it is asked for at once:
        /// nobody keeps its attributes or content, or holds anything back.
        const CONCURRENT = 1 << 4;
    }
}

/// What whoever asked may keep of an answer. By default nothing.
#[derive(Debug, Default)]
pub struct Keep {
    /// For how long the attributes in the answer may be used; those of a page of a directory too.
    pub attributes: Duration,
    /// It is being written by whoever has asked, or one of a page is. Who reads it from pages has to look at the attributes before each use.
    pub is_written: bool,
    /// For how long the name that was looked up, there or not, may be used; the names of a page too. Of the open of a directory: for how long those of its
    /// pages could be.
    pub names: Duration,
    /// The content of the file, or the listing of the directory, may be kept until [`Observer::forget`] says otherwise. The attributes have to be looked at
    /// before each use.
    pub data: bool,
    /// Nobody is told that this is kept no more before it is dropped: to be held until the answer has been passed on.
    pub hold: Option<Hold>,
}

/// Keeps a lease from being given back while an answer that relies on it is on its way.
pub struct Hold {
    _guard: Box<dyn Any + Send + Sync>,
}

impl Hold {
    /// Whatever gives the lease free when it is dropped.
    pub fn new(guard: impl Any + Send + Sync) -> Hold {
        Hold { _guard: Box::new(guard) }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

/// A result, and what may be kept of it; of an error too: that a name is not there.
#[derive(Debug)]
pub struct Answer {
    /// As [`FileSystem::call`](crate::FileSystem::call) gives it.
    pub result: Result<Reply, Errno>,
    /// What may be kept.
    pub keep: Keep,
}

impl From<Result<Reply, Errno>> for Answer {
    /// Nothing is kept.
    fn from(result: Result<Reply, Errno>) -> Answer {
        Answer { result, keep: Keep::default() }
    }
}

/// Whoever keeps answers is told when to forget them. What does not say otherwise is called on threads that answer no requests.
pub trait Observer: Send + Sync {
    /// These aspects of an inode are to be forgotten. When it returns, none of them is used any more.
    fn forget(&self, handle: &[u8], aspects: Aspects);

    /// As [`forget`](Observer::forget), on any thread: waits for nothing. False: this would have to wait, and some may still be used.
    fn forget_at_once(&self, _handle: &[u8], _aspects: Aspects) -> bool {
        false
    }

    /// For how long names in a directory, or the one that leads to it, may still be used where
    /// they cannot be made to be forgotten: its lease is not given back before. To be asked on any
    /// thread, when no answer about them is on its way.
    fn names_left(&self, _handle: &[u8]) -> Duration {
        Duration::ZERO
    }

    /// Nobody says any more when an inode is given to another user or group: when it returns, no name that leads to it is used without asking what it is.
    fn forget_names_of(&self, handle: &[u8]);

    /// All is to be forgotten.
    fn forget_everything(&self);
}
