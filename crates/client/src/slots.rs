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
    /// Counts sessions, so that a slot that comes back after its session ended starts at the beginning.
    generation: u32,
    waiters: Vec<Waker>,
}

/// A slot on loan, with the sequence number for this request.
pub(crate) struct SlotGuard<'a> {
    slots: &'a Slots,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    generation: u32,
    /// Set once the request may have reached the server: only then is the sequence used up.
    pub(crate) sent: bool,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        Slots(Mutex::new(State {
            free: (0..count).rev().map(|slot| (slot, 0)).collect(),
            generation: 0,
            waiters: Vec::new(),
        }))
    }

    /// Waits for a free slot; EINTR when cancelled before there is one.
    pub(crate) async fn take(&self, cancel: &Cancel) -> Result<SlotGuard<'_>, Errno> {
        poll_fn(|task| {
            let mut state = lock(&self.0);
            if let Some((slot, sequence)) = state.free.pop() {
                let (sequence, generation) = (sequence.wrapping_add(1), state.generation);
                return Poll::Ready(Ok(SlotGuard { slots: self, slot, sequence, generation, sent: false }));
            }
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            state.waiters.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A new session begins: all sequences start again. Slots on loan come back with theirs reset as well.
    pub(crate) fn reset(&self) {
        let mut state = lock(&self.0);
        state.generation = state.generation.wrapping_add(1);
        state.free.iter_mut().for_each(|(_, sequence)| *sequence = 0);
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let sequence = if self.sent { self.sequence } else { self.sequence.wrapping_sub(1) };
        let mut state = lock(&self.slots.0);
        let sequence = if state.generation == self.generation { sequence } else { 0 };
        state.free.push((self.slot, sequence));
        // All are woken, since the first may have been cancelled: waiting for a slot is rare, and few win nothing by it.
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}
