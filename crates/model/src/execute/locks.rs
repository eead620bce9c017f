//! Locks; none of them waits.

use rustix::fs::{FlockOperation, flock};

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
                done(flock(self.slot(*slot)?, operation))
            }
        }
    }
}
