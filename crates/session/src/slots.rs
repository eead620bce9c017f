//! The slots of a session: how many changing requests may be under way, and the sequence number of each.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Errno};
use aqueduct_worker::lock;

/// The free slots of one class, and who waits for one.
pub(crate) struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    /// Slot numbers with the sequence of their last request.
    free: Vec<(u32, u32)>,
    /// By slot number, of all sessions so far: whether it is lent out.
    lent: Vec<bool>,
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
    /// Set once the server has answered: until then it lets no later request of the slot begin.
    pub(crate) settled: bool,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        let slots = Slots(Mutex::default());
        slots.reset(count);
        slots
    }

    /// Waits for a free slot; EINTR when cancelled before there is one.
    pub(crate) async fn take(&self, cancel: &Cancel) -> Result<SlotGuard<'_>, Errno> {
        poll_fn(|task| {
            let mut state = lock(&self.0);
            if let Some((slot, sequence)) = state.free.pop() {
                return Poll::Ready(Ok(self.lend(&mut state, slot, sequence)));
            }
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            state.waiters.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A slot, if one is free.
    pub(crate) fn take_free(&self) -> Option<SlotGuard<'_>> {
        let mut state = lock(&self.0);
        let (slot, sequence) = state.free.pop()?;
        Some(self.lend(&mut state, slot, sequence))
    }

    /// How many are on loan.
    pub(crate) fn lent(&self) -> usize {
        lock(&self.0).lent.iter().filter(|is_lent| **is_lent).count()
    }

    fn lend(&self, state: &mut State, slot: u32, sequence: u32) -> SlotGuard<'_> {
        state.lent[slot as usize] = true;
        // 0 stands for a request that has no slot.
        SlotGuard { slots: self, slot, sequence: sequence.wrapping_add(1).max(1), sent: false, settled: false }
    }

    /// A new session begins, with this many slots. Slots that are on loan keep their sequence: their request may be sent in either session, and a
    /// server takes any number above the slot's last.
    pub(crate) fn reset(&self, count: u32) {
        let mut state = lock(&self.0);
        let length = state.lent.len().max(count as usize);
        state.lent.resize(length, false);
        // Slots on loan return under their old numbers.
        state.free = (0..count).rev().filter(|slot| !state.lent[*slot as usize]).map(|slot| (slot, 0)).collect();
        state.count = count;
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let sequence = if self.sent { self.sequence } else { self.sequence.wrapping_sub(1) };
        let mut state = lock(&self.slots.0);
        state.lent[self.slot as usize] = false;
        if self.slot < state.count {
            match self.sent && !self.settled {
                // What was given up may still be executed: the slot is taken again when there is
                // no other.
                true => state.free.insert(0, (self.slot, sequence)),
                false => state.free.push((self.slot, sequence)),
            }
        }
        // All are woken, since the first may have been cancelled: waiting for a slot is rare, and few win nothing by it.
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn take(slots: &Slots) -> Option<SlotGuard<'_>> {
        match pin!(slots.take(&Cancel::default())).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => guard.ok(),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_slot_that_is_lent_over_two_sessions_is_not_lent_twice() {
        let slots = Slots::new(4);
        let early: Vec<_> = (0..4).map(|_| take(&slots).unwrap()).collect();
        assert!(take(&slots).is_none());
        slots.reset(1);
        slots.reset(4);
        assert!(take(&slots).is_none(), "all are lent still");
        drop(early);
        let mut numbers: Vec<u32> =
            (0..4).map(|_| take(&slots).map(std::mem::ManuallyDrop::new).unwrap().slot).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    /// What was given up may still be executed, and a later request of its slot would wait for its
    /// end.
    #[test]
    fn a_slot_whose_request_was_given_up_is_taken_last() {
        let slots = Slots::new(3);
        let mut given_up = take(&slots).unwrap();
        given_up.sent = true;
        let number = given_up.slot;
        drop(given_up);
        let mut answered = take(&slots).unwrap();
        (answered.sent, answered.settled) = (true, true);
        drop(answered);
        let rest: Vec<_> = (0..3).map(|_| take(&slots).unwrap()).collect();
        assert!(rest[..2].iter().all(|guard| guard.slot != number) && rest[2].slot == number);
        assert_eq!(rest[2].sequence, 2);
    }

    #[test]
    fn the_most_slots_that_a_server_may_offer_are_renewed_at_once() {
        let slots = Slots::new(aqueduct_wire::SLOTS_MAX);
        let lent: Vec<_> = (0..aqueduct_wire::SLOTS_MAX / 2).map(|_| take(&slots).unwrap()).collect();
        let start = std::time::Instant::now();
        slots.reset(aqueduct_wire::SLOTS_MAX);
        // Looking for each slot among all others took minutes in a debug build.
        assert!(start.elapsed() < std::time::Duration::from_secs(2), "{:?}", start.elapsed());
        drop(lent);
        assert!(take(&slots).is_some());
    }
}
