//! What relies on leases: answers on their way to the kernel, and reads whose pages it may keep. A
//! lease is given back when none is left.
//!
//! It is counted by the hashes of their inodes, so that the memory for them is fixed; who shares a
//! count with another now and then waits for both.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::view::Hash;

/// Counts of each kind: 64 KiB.
const COUNTS: usize = 16_384;

/// How long answers that are being passed on are waited for, and how often is looked, where no
/// recall waits.
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

    /// Waits until the answers about an inode, or all of them, that were on their way have
    /// arrived. That takes microseconds; should somebody hold one for longer, then nobody waits
    /// for him for ever.
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

    /// A read is over.
    pub(super) fn drop_read(&self, hash: Hash) {
        self.reads[index(hash)].fetch_sub(1, Ordering::SeqCst);
    }

    /// An answer has arrived.
    pub(super) fn drop_answer(&self, relied: &Relied) {
        for hash in relied.few.iter().flatten().chain(&relied.more) {
            self.answers[index(*hash)].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The inodes that an answer relies on. Most have one or two, a page of a directory has many.
#[derive(Default)]
pub(super) struct Relied {
    few: [Option<Hash>; 2],
    more: Vec<Hash>,
}

impl Relied {
    /// Has been counted with [`Holds::add_answer`].
    pub(super) fn add(&mut self, hash: Hash) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(hash),
            None => self.more.push(hash),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.few[0].is_none()
    }
}
