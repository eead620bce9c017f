//! Locks; none of them waits.

use std::os::fd::BorrowedFd;

use rustix::fs::{self, FileType, FlockOperation};

use super::hand::{Hand, Step, done};
use crate::op::{Hold, Lock};
use crate::outcome::Outcome;
use crate::sys;

impl Hand {
    pub(super) fn lock(&mut self, lock: &Lock) -> Step {
        match lock {
            Lock::Range { slot, open_file, hold, start, length } => {
                done(sys::lock(self.lockable(*slot)?, *open_file, *hold, *start, *length))
            }
            Lock::Test { slot, open_file, hold, start, length } => {
                Ok(Outcome::Flag(sys::test_lock(self.lockable(*slot)?, *open_file, *hold, *start, *length)?))
            }
            Lock::Whole { slot, hold } => {
                let operation = match hold {
                    Hold::Read => FlockOperation::NonBlockingLockShared,
                    Hold::Write => FlockOperation::NonBlockingLockExclusive,
                    Hold::Unlock => FlockOperation::NonBlockingUnlock,
                };
                done(fs::flock(self.lockable(*slot)?, operation))
            }
        }
    }

    /// The kernel asks no FUSE file system about locks of directories, so another mount cannot know of them.
    fn lockable(&self, slot: usize) -> Result<BorrowedFd<'_>, Outcome> {
        let fd = self.slot(slot)?;
        match FileType::from_raw_mode(fs::fstat(fd)?.st_mode) {
            FileType::Directory => Err(Outcome::Skipped("locks of directories are the kernel's own")),
            _ => Ok(fd),
        }
    }
}
