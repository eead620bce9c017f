//! Holds: answers on their way to the kernel, and reads whose pages it may keep. A lease is given back when none is left that relies on it.
//!
//! They are counted by the hashes of their inodes, so that the memory for them is fixed; who shares a count with another now and then waits for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aqueduct_fs::{Aspects, Hold};

use super::leases::Leases;
use super::recall::Forget;
use super::shard::Hash;

/// Counts of each kind: 64 KiB.
const COUNTS: usize = 16_384;

/// How long answers that are being passed on are waited for, and how often is looked, where no recall waits.
const ANSWERS_MAX: Duration = Duration::from_secs(1);
const ANSWERS_STEP: Duration = Duration::from_micros(50);

pub(super) struct Holds {
    /// Answers that are being passed on: they wait for nobody.
    answers: Box<[AtomicU32]>,
    /// Reads under way, which may wait for the server.
    reads: Box<[AtomicU32]>,
}

impl Default for Holds {
    fn default() -> Holds {
        let counts = || (0..COUNTS).map(|_| AtomicU32::new(0)).collect();
        Holds { answers: counts(), reads: counts() }
    }
}

fn index(hash: Hash) -> usize {
    (hash.0 >> 4) as usize % COUNTS
}

impl Holds {
    /// To be called under the lock of the inode's shard, so that who is to give it back sees it.
    pub(super) fn add_answer(&self, hash: Hash) {
        self.answers[index(hash)].fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn add_read(&self, hash: Hash) {
        self.reads[index(hash)].fetch_add(1, Ordering::SeqCst);
    }

    /// Whether an answer about an inode may be on its way.
    pub(super) fn has_answers(&self, of: Hash) -> bool {
        self.answers[index(of)].load(Ordering::SeqCst) > 0
    }

    pub(super) fn is_held(&self, hash: Hash) -> bool {
        let at = index(hash);
        self.answers[at].load(Ordering::SeqCst) > 0 || self.reads[at].load(Ordering::SeqCst) > 0
    }

    /// Waits until the answers about an inode, or all of them, that were on their way have arrived. That takes microseconds; should somebody hold one for
    /// longer, then nobody waits for him for ever.
    pub(super) fn wait_for_answers(&self, of: Option<Hash>) {
        let start = Instant::now();
        let is_on_its_way = |count: &AtomicU32| count.load(Ordering::SeqCst) > 0;
        let are_on_their_way = || match of {
            Some(hash) => is_on_its_way(&self.answers[index(hash)]),
            None => self.answers.iter().any(is_on_its_way),
        };
        while are_on_their_way() && start.elapsed() < ANSWERS_MAX {
            std::thread::sleep(ANSWERS_STEP);
        }
    }
}

/// An answer on its way, with what it relies on. Most have one or two inodes, a page of a directory has many.
pub(super) struct OfAnswer {
    leases: Arc<Leases>,
    few: [Option<Hash>; 2],
    more: Vec<Hash>,
}

impl OfAnswer {
    /// Of nothing yet.
    pub(super) fn new(leases: &Arc<Leases>) -> OfAnswer {
        OfAnswer { leases: leases.clone(), few: [None; 2], more: Vec::new() }
    }

    /// Has been counted with [`Holds::add_answer`].
    pub(super) fn add(&mut self, hash: Hash) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(hash),
            None => self.more.push(hash),
        }
    }

    /// `None`: it relies on nothing.
    pub(super) fn into_hold(self) -> Option<Hold> {
        self.few[0].is_some().then(|| Hold::new(self))
    }
}

impl Drop for OfAnswer {
    fn drop(&mut self) {
        for hash in self.few.iter().flatten().chain(&self.more) {
            self.leases.holds.answers[index(*hash)].fetch_sub(1, Ordering::SeqCst);
        }
        self.leases.recalls.hold_dropped();
    }
}

/// A read under way.
pub(super) struct OfRead {
    pub(super) leases: Arc<Leases>,
    pub(super) handle: Arc<[u8]>,
    pub(super) hash: Hash,
    pub(super) epoch: u64,
}

impl Drop for OfRead {
    fn drop(&mut self) {
        self.leases.holds.reads[index(self.hash)].fetch_sub(1, Ordering::SeqCst);
        // A recovery does not wait for reads, which wait for it: what came under no lease is forgotten afterwards.
        if self.leases.epoch() != self.epoch {
            let (handle, aspects) = (self.handle.clone(), Aspects::DATA);
            self.leases.recalls.forget(Forget { handle, aspects, done: None });
        }
        self.leases.recalls.hold_dropped();
    }
}
