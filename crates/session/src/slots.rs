//! The slots of a session: how many changing requests may be under way, and the sequence number of each.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Errno, WriteAt};
use aqueduct_worker::lock;

/// The free slots of one class, and who waits for one.
pub struct Slots(Mutex<State>);

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
    /// Whose slot it is beyond this try.
    kept: Option<&'a KeptSlot>,
}

/// A slot that is kept until all of what is sent in it has been answered, also over a restart of
/// the server: whichever process is asked executes that once.
pub struct KeptSlot {
    slots: Arc<Slots>,
    slot: u32,
    state: Mutex<KeptState>,
}

#[derive(Debug)]
struct KeptState {
    /// Of the present request.
    sequence: u32,
    /// The server may have been asked.
    was_sent: bool,
    is_settled: bool,
    /// Bytes that requests before it have written.
    done: usize,
}

impl Slots {
    /// So many.
    pub fn new(count: u32) -> Slots {
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

    /// A slot to be kept. `None`: as many as may be are on loan, since others need the rest.
    pub fn keep(self: &Arc<Slots>) -> Option<Arc<KeptSlot>> {
        let mut state = lock(&self.0);
        if state.lent.iter().filter(|is_lent| **is_lent).count() >= state.count as usize / 2 {
            return None;
        }
        let (slot, sequence) = state.free.pop()?;
        let SlotGuard { slot, sequence, .. } = *std::mem::ManuallyDrop::new(self.lend(&mut state, slot, sequence));
        let state = KeptState { sequence, was_sent: false, is_settled: false, done: 0 };
        Some(Arc::new(KeptSlot { slots: self.clone(), slot, state: Mutex::new(state) }))
    }

    /// How many are on loan.
    pub(crate) fn lent(&self) -> usize {
        lock(&self.0).lent.iter().filter(|is_lent| **is_lent).count()
    }

    fn lend(&self, state: &mut State, slot: u32, sequence: u32) -> SlotGuard<'_> {
        state.lent[slot as usize] = true;
        SlotGuard { slots: self, slot, sequence: next(sequence), sent: false, settled: false, kept: None }
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

/// The number behind this one; 0 stands for a request that has no slot.
fn next(sequence: u32) -> u32 {
    sequence.wrapping_add(1).max(1)
}

impl Slots {
    /// A slot comes back, whose request may have been `sent`, and answered.
    fn take_back(&self, (slot, sequence): (u32, u32), sent: bool, settled: bool) {
        let sequence = if sent { sequence } else { sequence.wrapping_sub(1) };
        let mut state = lock(&self.0);
        state.lent[slot as usize] = false;
        if slot < state.count {
            match sent && !settled {
                // What was given up may still be executed: the slot is taken again when there is
                // no other.
                true => state.free.insert(0, (slot, sequence)),
                false => state.free.push((slot, sequence)),
            }
        }
        // All are woken, since the first may have been cancelled: waiting for a slot is rare, and few win nothing by it.
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl SlotGuard<'_> {
    /// The request is about to be sent, and may reach the server. A recovery may look before the
    /// try has ended: a kept slot has to know at once.
    pub(crate) fn sending(&mut self) {
        self.sent = true;
        if let Some(kept) = self.kept {
            kept.sending(self.sequence);
        }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        match self.kept {
            Some(kept) => kept.tried(self.sequence, self.settled),
            None => self.slots.take_back((self.slot, self.sequence), self.sent, self.settled),
        }
    }
}

impl KeptSlot {
    /// The number of the present request, and how much was written before it.
    pub(crate) fn present(&self) -> (u32, usize) {
        let state = lock(&self.state);
        (state.sequence, state.done)
    }

    /// The slot, for a try of this number.
    pub(crate) fn guard(&self, sequence: u32) -> SlotGuard<'_> {
        SlotGuard { slots: &self.slots, slot: self.slot, sequence, sent: false, settled: false, kept: Some(self) }
    }

    /// Whether the server may have been asked for the present request.
    pub(crate) fn was_sent(&self) -> bool {
        lock(&self.state).was_sent
    }

    /// What is left of a write of which so much was written before.
    pub(crate) fn rest(&self, write: WriteAt, at: usize) -> WriteAt {
        WriteAt { offset: write.offset.saturating_add(at as u64), ..write }
    }

    /// The request of this number was answered, and so much was written: another is made for the
    /// rest. It was not if another has been made meanwhile, by whoever asked again.
    pub(crate) fn advance(&self, sequence: u32, count: u32) {
        let mut state = lock(&self.state);
        if state.sequence == sequence {
            let (sequence, done) = (next(sequence), state.done + count as usize);
            *state = KeptState { sequence, was_sent: false, is_settled: true, done };
        }
    }

    /// The request of this number may reach the server from now on.
    fn sending(&self, sequence: u32) {
        let mut state = lock(&self.state);
        state.was_sent |= state.sequence == sequence;
    }

    /// A try has ended.
    fn tried(&self, sequence: u32, is_settled: bool) {
        let mut state = lock(&self.state);
        state.is_settled |= is_settled && state.sequence == sequence;
    }
}

impl Drop for KeptSlot {
    fn drop(&mut self) {
        let KeptState { sequence, was_sent, is_settled, .. } = *lock(&self.state);
        self.slots.take_back((self.slot, sequence), was_sent, is_settled);
    }
}

impl std::fmt::Debug for KeptSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "slot {}: {:?}", self.slot, lock(&self.state))
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

    fn send(kept: &KeptSlot, sequence: u32) {
        kept.guard(sequence).sending();
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

    /// Tries end, and the slot stays whose it is: a later request in it would have the server
    /// forget what came of them.
    #[test]
    fn a_slot_that_is_kept_is_nobody_elses_between_tries() {
        let slots = Arc::new(Slots::new(4));
        let kept = slots.keep().unwrap();
        assert!(!kept.was_sent());
        let (sequence, _) = kept.present();
        send(&kept, sequence);
        assert!(kept.was_sent());
        let others: Vec<_> = (0..3).map(|_| take(&slots).unwrap()).collect();
        assert!(others.iter().all(|other| other.slot != kept.slot) && take(&slots).is_none());
        drop(others);
        assert_eq!(kept.present(), (1, 0), "it is the same request");
        kept.advance(1, 30);
        kept.advance(1, 30);
        assert!(!kept.was_sent(), "another one is made once for the rest");
        assert_eq!(kept.present(), (2, 30));
        send(&kept, 2);
        slots.reset(4);
        let (number, again) = (kept.slot, slots.keep().unwrap());
        assert!(slots.keep().is_none(), "others need the rest");
        drop((kept, again));
        let all: Vec<_> = (0..4).map(|_| take(&slots).unwrap()).collect();
        let last = all.iter().find(|guard| guard.slot == number);
        assert_eq!(last.map(|guard| guard.sequence), Some(3), "what was sent has used its number up");
    }

    /// A server is asked with RETRY only for what it may have been asked before: else others' bytes
    /// would be taken for these, which have never reached it.
    #[test]
    fn what_found_no_connection_was_not_sent() {
        let slots = Arc::new(Slots::new(4));
        let kept = slots.keep().unwrap();
        let (sequence, _) = kept.present();
        drop(kept.guard(sequence));
        assert!(!kept.was_sent(), "it waited for a connection in vain");
        let mut guard = kept.guard(sequence);
        guard.sending();
        assert!(kept.was_sent(), "a recovery looks before the try has ended");
        kept.advance(sequence, 5);
        guard.sending();
        drop(guard);
        assert!(!kept.was_sent(), "the rest is another request");
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
