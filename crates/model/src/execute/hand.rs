//! What an actor holds while it performs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::plain::open_plain;
use crate::op::{SLOTS, Target};
use crate::outcome::Outcome;

/// What one actor holds.
pub struct Hand {
    pub(super) slots: [Option<OwnedFd>; SLOTS],
    /// The directory /proc/thread-self/fd is found below this: the actor's root is the view.
    pub(super) proc: OwnedFd,
}

/// The slot holds nothing, in all views alike.
const EMPTY: Outcome = Outcome::Skipped("no descriptor");

pub type Step = Result<Outcome, Outcome>;

impl Hand {
    /// Holds nothing yet; to be made before the thread changes its root.
    pub fn new() -> Result<Self, Errno> {
        let proc = fs::openat(CWD, "/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { slots: Default::default(), proc })
    }

    pub(super) fn slot(&self, slot: usize) -> Result<BorrowedFd<'_>, Outcome> {
        self.slots[slot].as_ref().map(|fd| fd.as_fd()).ok_or(EMPTY)
    }

    /// The target as a descriptor, opened with `flags` unless it is one already.
    pub(super) fn descriptor(&self, target: &Target, flags: OFlags) -> Result<Handle<'_>, Outcome> {
        match target {
            Target::Open(slot) => self.slot(*slot).map(Handle::Borrowed),
            Target::Path(path) => Ok(Handle::Owned(open_plain(path, flags)?)),
            Target::Link(path) => Ok(Handle::Owned(open_plain(path, flags | OFlags::NOFOLLOW)?)),
        }
    }
}

pub enum Handle<'a> {
    Owned(OwnedFd),
    Borrowed(BorrowedFd<'a>),
}

impl AsFd for Handle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Handle::Owned(fd) => fd.as_fd(),
            Handle::Borrowed(fd) => *fd,
        }
    }
}

pub fn done(result: Result<(), Errno>) -> Step {
    Ok(result.map(|()| Outcome::Done)?)
}
