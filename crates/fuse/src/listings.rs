//! The listings that the kernel may be about to enter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_worker::lock;

/// The kernel enters the names of a page of a listing right after it has been answered, but may
/// lose its processor before it has.
pub(crate) const LISTING_ENTERED: Duration = Duration::from_millis(250);

/// The listings of which the kernel was told names that it may not have entered yet. It enters
/// them as of then: what was told it meanwhile does not reach them.
#[derive(Default)]
pub(crate) struct Listings {
    count: AtomicUsize,
    /// By open directory, which one program at a time reads: the directory, and when it was
    /// answered.
    answered: Mutex<HashMap<u64, (u64, Instant)>>,
    settled: Condvar,
}

impl Listings {
    /// A page with names is about to be answered.
    pub(crate) fn answers(&self, open: u64, directory: u64) {
        let mut answered = lock(&self.answered);
        answered.insert(open, (directory, Instant::now()));
        self.count.store(answered.len(), Ordering::SeqCst);
    }

    /// A request has come from whoever reads this listing.
    pub(crate) fn settle(&self, open: u64) {
        self.retain(|of, _| of != open);
    }

    /// A request has come from whoever holds the lock of this directory alone.
    pub(crate) fn settle_all(&self, directory: u64) {
        self.retain(|_, of| of != directory);
    }

    fn retain(&self, keep: impl Fn(u64, u64) -> bool) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut answered = lock(&self.answered);
        answered.retain(|open, (directory, _)| keep(*open, *directory));
        self.count.store(answered.len(), Ordering::SeqCst);
        self.settled.notify_all();
    }

    /// Whether the kernel may be about to enter names that it was told of such directories.
    pub(crate) fn any(&self, which: impl Fn(u64) -> bool) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && Listings::left(&lock(&self.answered), which).is_some()
    }

    /// Waits until the kernel has entered the names that it was told of such directories.
    pub(crate) fn wait(&self, which: impl Fn(u64) -> bool) {
        let mut answered = lock(&self.answered);
        while let Some(left) = Listings::left(&answered, &which) {
            answered = self.settled.wait_timeout(answered, left).unwrap_or_else(|poison| poison.into_inner()).0;
        }
    }

    /// For how long the kernel may still be about to.
    fn left(answered: &HashMap<u64, (u64, Instant)>, which: impl Fn(u64) -> bool) -> Option<Duration> {
        let of_these = answered.values().filter(|(directory, _)| which(*directory));
        of_these.filter_map(|(_, at)| LISTING_ENTERED.checked_sub(at.elapsed())).max()
    }
}
