//! The right of an agent to go on with what it claimed of a job that many agents share.
//!
//! Agents say by the database's clock how long they are to be believed alive. Each knows the same
//! by its own clock, earlier: one that was stopped meanwhile notices before it names a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::outcome::Fault;

/// Until when an agent's claims hold.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

/// Milliseconds that go on while a machine is suspended.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Lease {
    /// Runs `renew`, which has the lease hold for so long from some moment within it on. What it
    /// returns is whether it did.
    pub fn renew<E>(&self, length: Duration, renew: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        let before = now();
        let renewed = renew()?;
        let until = if renewed { before + length.as_millis() as u64 } else { 0 };
        self.0.store(until, Ordering::Release);
        Ok(renewed)
    }

    /// Whether it holds now.
    pub fn holds(&self) -> bool {
        now() < self.0.load(Ordering::Acquire)
    }
}

/// The claim under which something is done.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The agent's lease.
    pub lease: Arc<Lease>,
    /// The job was cancelled.
    pub is_ended: Arc<AtomicBool>,
}

impl Claim {
    /// Whether it still is one.
    pub fn check(&self) -> Result<(), Fault> {
        match () {
            () if self.is_ended.load(Ordering::Acquire) => Err(Fault::new("copying it", "the job was cancelled")),
            () if !self.lease.holds() => Err(Fault::new("copying it", "the claim of this agent ran out")),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_from_before_it_was_renewed() {
        let lease = Lease::default();
        assert!(!lease.holds());
        let renew = |length, answer: bool| lease.renew(length, || Ok::<_, ()>(answer));
        assert_eq!(renew(Duration::from_secs(1000), true), Ok(true));
        assert!(lease.holds());
        assert_eq!(renew(Duration::from_secs(1000), false), Ok(false));
        assert!(!lease.holds());
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            Ok::<_, ()>(true)
        };
        assert_eq!(lease.renew(Duration::from_millis(20), slow), Ok(true));
        assert!(!lease.holds());
    }
}
