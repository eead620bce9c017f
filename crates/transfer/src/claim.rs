//! The right of an agent to go on with what it claimed of a job that many agents share.
//!
//! Agents say by the database's clock how long they are to be believed alive. Each knows the same
//! by its own clock, earlier: one that was stopped meanwhile notices before it names a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::outcome::Fault;

/// Until when an agent's claims hold. One that was seen to have run out never holds again: what
/// was left undone for that would be nobody's, as long as the agent is believed alive.
#[derive(Debug)]
pub struct Lease(AtomicU64);

/// Of a lease that has run out.
const RAN_OUT: u64 = 0;

/// Milliseconds that go on while a machine is suspended.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Lease {
    /// Runs `begin`, which has a lease hold for so long from some moment within it on.
    pub fn begin<T, E>(length: Duration, begin: impl FnOnce() -> Result<T, E>) -> Result<(T, Lease), E> {
        let until = now() + length.as_millis() as u64;
        begin().map(|begun| (begun, Lease(AtomicU64::new(until))))
    }

    /// Runs `renew`, which has the lease hold for so long from some moment within it on, and says
    /// whether it did. One that has run out, also meanwhile, is not renewed.
    pub fn renew<E>(&self, length: Duration, renew: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        if !self.holds() {
            return Ok(false);
        }
        let until = now() + length.as_millis() as u64;
        if !renew()? {
            self.0.store(RAN_OUT, Ordering::Release);
            return Ok(false);
        }
        let renewed = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| (now() < held).then_some(until));
        Ok(renewed.is_ok() || self.holds())
    }

    /// Whether it holds now.
    pub fn holds(&self) -> bool {
        let until = self.0.load(Ordering::Acquire);
        if now() < until {
            return true;
        }
        let ended = self.0.compare_exchange(until, RAN_OUT, Ordering::AcqRel, Ordering::Acquire);
        ended.is_err_and(|other| now() < other) // it was renewed between
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

    const LONG: Duration = Duration::from_secs(1000);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_lease_holds_from_before_it_was_renewed() {
        let begin = |length| Lease::begin(length, || Ok::<_, ()>(())).unwrap().1;
        let lease = begin(LONG);
        assert!(lease.holds());
        assert_eq!(lease.renew(LONG, || Ok::<_, ()>(true)), Ok(true));
        assert!(lease.holds());
        assert_eq!(lease.renew(LONG, || Ok::<_, ()>(false)), Ok(false));
        assert!(!lease.holds());
        let slow = || {
            std::thread::sleep(2 * SHORT);
            Ok::<_, ()>(())
        };
        assert!(!Lease::begin(SHORT, slow).unwrap().1.holds());
    }

    #[test]
    fn a_lease_that_has_run_out_is_not_renewed() {
        let begin = |length| Lease::begin(length, || Ok::<_, ()>(())).unwrap().1;
        // Before the store was asked, which is not asked then.
        let lease = begin(Duration::ZERO);
        assert_eq!(lease.renew(LONG, || Err(())), Ok(false));
        // While the store was asked: who looked meanwhile gave his work up.
        let lease = begin(SHORT);
        let slow = || {
            while lease.holds() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok::<_, ()>(true)
        };
        assert_eq!(lease.renew(LONG, slow), Ok(false));
        assert!(!lease.holds());
    }
}
