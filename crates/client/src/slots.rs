//! The slots of a session: how many changing requests may be under way, and the sequence number of each.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Errno};

use crate::lane::lock;

/// The free slots of one class, and who waits for one.
pub(crate) struct Slots(Mutex<State>);

struct State {
    /// Slot numbers with the sequence of their last request.
    free: Vec<(u32, u32)>,
    count: u32,
    waiters: Vec<Waker>,
}

/// A slot on loan, with the sequence number for this request.
pub(crate) struct SlotGuard<'a> {
    slots: &'a Slots,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// Set once the request may have reached the server: only then is the sequence used up.
    pub(crate) sent: bool,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        Slots(Mutex::new(State { free: (0..count).rev().map(|slot| (slot, 0)).collect(), count, waiters: Vec::new() }))
    }

    /// Waits for a free slot; EINTR when cancelled before there is one.
    pub(crate) async fn take(&self, cancel: &Cancel) -> Result<SlotGuard<'_>, Errno> {
        poll_fn(|task| {
            let mut state = lock(&self.0);
            if let Some((slot, sequence)) = state.free.pop() {
                return Poll::Ready(Ok(SlotGuard {
                    slots: self,
                    slot,
                    // 0 stands for a request that has no slot.
                    sequence: sequence.wrapping_add(1).max(1),
                    sent: false,
                }));
            }
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            state.waiters.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A new session begins, with this many slots. Slots that are on loan keep their sequence: their request may be sent in either session, and a
    /// server takes any number above the slot's last.
    pub(crate) fn reset(&self, count: u32) {
        let mut state = lock(&self.0);
        // Slots on loan return under their old numbers; the first numbers stay theirs.
        let taken: Vec<u32> =
            (0..state.count).filter(|slot| !state.free.iter().any(|(free, _)| free == slot)).collect();
        state.free = (0..count).rev().filter(|slot| !taken.contains(slot)).map(|slot| (slot, 0)).collect();
        state.count = count;
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let sequence = if self.sent { self.sequence } else { self.sequence.wrapping_sub(1) };
        let mut state = lock(&self.slots.0);
        if self.slot < state.count {
            state.free.push((self.slot, sequence));
        }
        // All are woken, since the first may have been cancelled: waiting for a slot is rare, and few win nothing by it.
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}
