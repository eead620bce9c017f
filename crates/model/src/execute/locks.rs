//! Locks; none of them waits.

use rustix::fs::{self, FileType, FlockOperation};

use super::{Hand, Step, done};
use crate::op::{Hold, Lock};
use crate::outcome::Outcome;
use crate::sys;

impl Hand {
    pub(super) fn lock(&mut self, lock: &Lock) -> Step {
        match lock {
            Lock::Range { slot, open_file, hold, start, length } => {
                done(sys::lock(self.slot(*slot)?, *open_file, *hold, *start, *length))
            }
            Lock::Test { slot, open_file, hold, start, length } => {
                Ok(Outcome::Flag(sys::test_lock(self.slot(*slot)?, *open_file, *hold, *start, *length)?))
            }
            Lock::Whole { slot, hold } => {
                let operation = match hold {
                    Hold::Read => FlockOperation::NonBlockingLockShared,
                    Hold::Write => FlockOperation::NonBlockingLockExclusive,
                    Hold::Unlock => FlockOperation::NonBlockingUnlock,
                };
                let fd = self.slot(*slot)?;
                if FileType::from_raw_mode(fs::fstat(fd)?.st_mode) == FileType::Directory {
                    // The kernel asks no FUSE file system about them, so another mount cannot know.
                    return Ok(Outcome::Skipped("flock of directories is the kernel's own"));
                }
                done(fs::flock(fd, operation))
            }
        }
    }
}
