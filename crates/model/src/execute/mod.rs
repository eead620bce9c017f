//! One operation by system calls, in a thread whose root is the view.

mod attributes;
mod data;
mod locks;
mod names;
mod open;
mod sweep;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::op::{Action, SLOTS, Target};
use crate::outcome::Outcome;

pub use sweep::{Found, Swept, sweep};

/// What one actor holds.
pub struct Hand {
    slots: [Option<OwnedFd>; SLOTS],
    /// The directory /proc/thread-self/fd is found below this: the actor's root is the view.
    proc: OwnedFd,
}

/// The slot holds nothing, in all views alike.
const EMPTY: Outcome = Outcome::Skipped("no descriptor");

type Step = Result<Outcome, Outcome>;

impl Hand {
    /// Holds nothing yet; to be made before the thread changes its root.
    pub fn new() -> Result<Self, Errno> {
        let proc = fs::openat(CWD, "/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { slots: Default::default(), proc })
    }

    /// Does it.
    pub fn perform(&mut self, action: &Action) -> Outcome {
        let step = match action {
            Action::Open(open) => self.open(open),
            Action::Data(data) => self.data(data),
            Action::Name(name) => self.name(name),
            Action::Attribute(attribute) => self.attribute(attribute),
            Action::Lock(lock) => self.lock(lock),
        };
        step.unwrap_or_else(|early| early)
    }

    fn slot(&self, slot: usize) -> Result<BorrowedFd<'_>, Outcome> {
        self.slots[slot].as_ref().map(|fd| fd.as_fd()).ok_or(EMPTY)
    }

    /// The target as a descriptor, opened with `flags` unless it is one already.
    fn descriptor(&self, target: &Target, flags: OFlags) -> Result<Handle<'_>, Outcome> {
        match target {
            Target::Open(slot) => self.slot(*slot).map(Handle::Borrowed),
            Target::Path(path) => Ok(Handle::Owned(open::open_plain(path, flags)?)),
            Target::Link(path) => Ok(Handle::Owned(open::open_plain(path, flags | OFlags::NOFOLLOW)?)),
        }
    }
}

enum Handle<'a> {
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

fn done(result: Result<(), Errno>) -> Step {
    Ok(result.map(|()| Outcome::Done)?)
}
