//! One open file or directory of one client.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use aqueduct_fs::{ClientId, Errno, Handle, OpenFlags, OpenId};

use crate::ahead::Streams;
use crate::listing::Listing;
use crate::locks::Inode;

/// One open of one client.
pub(crate) struct OpenFile {
    pub(crate) id: OpenId,
    pub(crate) client: ClientId,
    pub(crate) fd: OwnedFd,
    pub(crate) handle: Handle,
    pub(crate) inode: Inode,
    pub(crate) flags: OpenFlags,
    /// The listing, when this is a directory.
    pub(crate) listing: Option<Mutex<Listing>>,
    /// What writes through it say: see `Written::verifier`.
    pub(crate) verifier: u64,
    /// Held while the descriptor's own position is used.
    pub(crate) position: Mutex<()>,
    /// Set once when the open ends, under the lock of the lock table: then no lock is taken
    /// through it any more.
    pub(crate) ended: AtomicBool,
    /// The first error of making data stable; 0: none yet.
    late_error: AtomicI32,
    /// Its file lies in memory.
    pub(crate) is_memory: bool,
    /// What its reads look like, once it was read in part.
    pub(crate) ahead: Mutex<Option<Box<Streams>>>,
    /// Where its latest write ended.
    pub(crate) written_to: AtomicU64,
    /// Its file's size when a small read last had to know.
    size: AtomicU64,
}

/// What an open is made of.
pub(crate) struct Opening {
    /// The id that it had before a restart; `None`: a new one.
    pub(crate) id: Option<OpenId>,
    pub(crate) client: ClientId,
    pub(crate) fd: OwnedFd,
    pub(crate) handle: Handle,
    pub(crate) inode: Inode,
    pub(crate) flags: OpenFlags,
    pub(crate) verifier: u64,
    pub(crate) listing: Option<Mutex<Listing>>,
    pub(crate) is_memory: bool,
}

impl OpenFile {
    /// One that begins.
    pub(crate) fn new(id: OpenId, opening: Opening) -> OpenFile {
        let Opening { id: _, client, fd, handle, inode, flags, verifier, listing, is_memory } = opening;
        OpenFile {
            id,
            client,
            fd,
            handle,
            inode,
            flags,
            listing,
            verifier,
            position: Mutex::default(),
            ended: AtomicBool::new(false),
            late_error: AtomicI32::new(0),
            is_memory,
            ahead: Mutex::default(),
            written_to: AtomicU64::new(u64::MAX),
            size: AtomicU64::new(0),
        }
    }

    /// The size of its file, which has `least` bytes, or `is_all` of them: as it was last seen, if
    /// that is as large. It bounds what is read ahead, and need be no better.
    pub(crate) fn size_seen(&self, least: u64, is_all: bool) -> u64 {
        let known = self.size.load(Ordering::Relaxed);
        if !is_all && least <= known {
            return known;
        }
        let look = || rustix::fs::fstat(&self.fd).map_or(least, |stat| stat.st_size as u64);
        let size = if is_all { least } else { look() };
        self.size.store(size, Ordering::Relaxed);
        size
    }

    /// Passes the result of making data stable on. The first failure sticks: what it lost stays
    /// lost, so that every later caller must hear of it.
    pub(crate) fn settle(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        self.note(&result);
        result.and_then(|()| self.late_error())
    }

    /// Remembers what somebody else was told, as [`settle`](OpenFile::settle) does.
    pub(crate) fn note(&self, result: &Result<(), Errno>) {
        if let Err(error @ (Errno::EIO | Errno::ENOSPC | Errno::EDQUOT)) = result {
            let _ = self.late_error.compare_exchange(0, error.raw(), Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The error that sticks.
    pub(crate) fn late_error(&self) -> Result<(), Errno> {
        match self.late_error.load(Ordering::SeqCst) {
            0 => Ok(()),
            number => Err(Errno::from_raw(number)),
        }
    }
}
