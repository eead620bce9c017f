//! The queues that fall to one ring, and the answers that go to them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use aqueduct_worker::{Group, lock};

use super::sys::Commands;

/// The queues of a ring, with what it takes to answer their entries.
pub(super) struct Queues {
    pub(super) group: Weak<Group>,
    pub(super) device: OwnedFd,
    pub(super) commands: Mutex<Commands>,
    pub(super) all: Vec<Queue>,
}

/// One of the kernel's queues.
pub(super) struct Queue {
    pub(super) number: u16,
    pub(super) entries: AtomicUsize,
    /// Entries that wait for requests.
    pub(super) free: AtomicUsize,
    /// Counts the answers: while no entry is free and it stands still, the queue does.
    pub(super) answered: AtomicUsize,
    /// Whether somebody looks whether it stands still.
    pub(super) is_watched: AtomicBool,
}

impl Queue {
    pub(super) fn new(number: u16) -> Queue {
        let [entries, free, answered] = [const { AtomicUsize::new(0) }; 3];
        Queue { number, entries, free, answered, is_watched: AtomicBool::new(false) }
    }

    /// Requests that have not been answered.
    pub(super) fn under_way(&self) -> usize {
        self.entries.load(Ordering::SeqCst).saturating_sub(self.free.load(Ordering::SeqCst))
    }
}

impl Queues {
    /// Has the kernel take the answer to `unique` that the memory of an entry holds, and wait with
    /// the entry for the next request. On the ring's own thread the kernel has it when this
    /// returns; from others it is done in their order.
    pub(super) fn commit(self: &Arc<Queues>, entry: usize, queue: usize, unique: u64) -> io::Result<()> {
        let group = self.group.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        if group.is_current() {
            return self.commit_here(entry, queue, unique);
        }
        let queues = self.clone();
        group.spawn(async move {
            let _ = queues.commit_here(entry, queue, unique); // says what went wrong
        });
        Ok(())
    }

    fn commit_here(&self, entry: usize, queue: usize, unique: u64) -> io::Result<()> {
        let queue = &self.all[queue];
        queue.free.fetch_add(1, Ordering::SeqCst);
        queue.answered.fetch_add(1, Ordering::SeqCst);
        let committed = lock(&self.commands).commit(self.device.as_fd(), queue.number, unique, entry);
        committed.inspect_err(
            |error| tracing::warn!(%error, unique, "the kernel took no reply by io_uring: it goes with the next one; until then its program waits"),
        )
    }
}
