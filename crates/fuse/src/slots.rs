//! A word for each thread, on a cache line of its own, for others to look at.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use aqueduct_worker::lock;

/// More threads than ever serve a mount; beyond, two share a word, and what it tells becomes vague.
const SLOTS: usize = 64;

#[repr(align(64))]
#[derive(Default)]
struct Slot(AtomicU64);

/// The words.
pub(crate) struct Slots(Box<[Slot]>);

/// The number of a thread: the lowest that no other living thread has.
struct Claim(usize);

static CLAIMED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

impl Claim {
    fn new() -> Claim {
        let mut claimed = lock(&CLAIMED);
        let free = (0..).find(|number| !claimed.contains(number)).unwrap_or_default();
        claimed.insert(free);
        Claim(free)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&CLAIMED).remove(&self.0);
    }
}

impl Default for Slots {
    fn default() -> Slots {
        Slots((0..SLOTS).map(|_| Slot::default()).collect())
    }
}

impl Slots {
    /// The calling thread's.
    pub(crate) fn mine(&self) -> &AtomicU64 {
        thread_local! {
            static CLAIM: Claim = Claim::new();
        }
        &self.0[CLAIM.with(|claim| claim.0) % SLOTS].0
    }

    /// All.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().map(|slot| &slot.0)
    }
}
