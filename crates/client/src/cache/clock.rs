//! The clock of leases, and until when all that is kept may be used.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aqueduct_session::Nanos;
use aqueduct_worker::lock;

/// A server that offers longer leases is taken to offer these: nobody who is cut off should believe what he knows for longer.
const LEASE_MAX: Duration = Duration::from_secs(60);

/// Until when what is kept may be used: for as long as a lease lasts after the latest request was sent whose answer says that it renews.
#[derive(Default)]
pub(super) struct Renewal {
    until: AtomicU64,
    /// In nanoseconds; 0: the server grants no leases.
    lease: AtomicU64,
    /// Whose answers count. Held while they do.
    epoch: Mutex<u64>,
}

impl Renewal {
    pub(super) fn until(&self) -> Nanos {
        self.until.load(Ordering::SeqCst)
    }

    /// Whether the server grants leases.
    pub(super) fn is_on(&self) -> bool {
        self.lease.load(Ordering::Relaxed) > 0
    }

    /// As the server says when it is greeted.
    pub(super) fn set_lease(&self, seconds: u32) {
        let lease = Duration::from_secs(seconds.into()).min(LEASE_MAX);
        self.lease.store(lease.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A request that was sent then was answered, in this epoch.
    pub(super) fn renew(&self, epoch: u64, sent: Nanos) {
        let until = sent.saturating_add(self.lease.load(Ordering::Relaxed));
        if until <= self.until() {
            return;
        }
        let present = lock(&self.epoch);
        if *present == epoch {
            self.until.fetch_max(until, Ordering::SeqCst);
        }
    }

    /// What earlier answers said counts no more.
    pub(super) fn begin_epoch(&self, epoch: u64) {
        let mut present = lock(&self.epoch);
        *present = epoch;
        self.until.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_when_the_request_was_sent_in_the_present_session() {
        let renewal = Renewal::default();
        assert!(!renewal.is_on());
        renewal.set_lease(7);
        assert!(renewal.is_on());
        renewal.renew(0, 1_000);
        assert_eq!(renewal.until(), 7_000_001_000);
        renewal.renew(0, 500);
        assert_eq!(renewal.until(), 7_000_001_000, "an earlier request renews nothing");
        renewal.begin_epoch(1);
        renewal.renew(0, 9_000);
        assert_eq!(renewal.until(), 0, "nor does one of an earlier session");
        renewal.renew(1, 9_000);
        assert_eq!(renewal.until(), 7_000_009_000);
    }

    #[test]
    fn no_server_grants_leases_for_ever() {
        let renewal = Renewal::default();
        renewal.set_lease(u32::MAX);
        renewal.renew(0, 0);
        assert_eq!(renewal.until(), LEASE_MAX.as_nanos() as u64);
    }
}
