//! After a start: clients may hold leases that an earlier process granted, of which this one knows nothing. So nobody changes anything until all of them have
//! forgotten what they held, or cannot use it any more.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use aqueduct_worker::lock;

use super::Now;

#[derive(Default)]
pub(crate) struct Hold {
    /// Looked at by each change.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sessions that had leases and have not recovered.
    missing: HashSet<u64>,
    /// They cannot use them any more.
    missing_until: Now,
    /// Nor can those whose sessions ended before.
    lapsed_at: Now,
    /// How many requests write what was held back.
    flushing: usize,
    /// Servers of data may still write what was given before.
    is_barred: bool,
    /// How long those that are missing have from when it is not.
    patience: Now,
}

impl State {
    fn is_over(&self, now: Now) -> bool {
        (self.missing.is_empty() || now >= self.missing_until)
            && now >= self.lapsed_at
            && self.flushing == 0
            && !self.is_barred
    }
}

impl Hold {
    /// Holds changes up, until these sessions have recovered or `missing_until`, and in any case until `lapsed_at`. Returns when to look whether it is over.
    pub(crate) fn begin(&self, missing: HashSet<u64>, missing_until: Now, lapsed_at: Now, now: Now) -> Vec<Now> {
        let patience = missing_until.saturating_sub(now);
        let state = State { missing, missing_until, lapsed_at, patience, ..State::default() };
        let is_on = !state.is_over(now);
        let looks = [state.missing_until, state.lapsed_at];
        *lock(&self.state) = state;
        self.is_on.store(is_on, Ordering::SeqCst);
        looks.into_iter().filter(|at| is_on && *at > now).collect()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Holds everything up beside that, and even what was held back, until [`admit`](Hold::admit).
    pub(crate) fn bar(&self) {
        lock(&self.state).is_barred = true;
        self.is_on.store(true, Ordering::SeqCst);
    }

    /// Whether it does.
    pub(crate) fn is_barred(&self) -> bool {
        self.is_on() && lock(&self.state).is_barred
    }

    /// Nobody writes any more what was given before. Those who come back have their time from now
    /// on; returns when to look whether it is over.
    pub(crate) fn admit(&self, now: Now) -> Now {
        let mut state = lock(&self.state);
        state.is_barred = false;
        if !state.missing.is_empty() {
            state.missing_until = state.missing_until.max(now + state.patience);
        }
        state.missing_until
    }

    /// Until when a session may believe what an earlier process granted it.
    pub(crate) fn awaits(&self, session: u64) -> Option<Now> {
        let state = lock(&self.state);
        (self.is_on() && state.missing.contains(&session)).then_some(state.missing_until)
    }

    /// A session of before is about to write what it held back. Whether it may; [`flushed`](Hold::flushed) must follow then.
    pub(crate) fn flush(&self, session: u64, now: Now) -> bool {
        let mut state = lock(&self.state);
        let may = self.is_on() && state.missing.contains(&session) && now < state.missing_until;
        state.flushing += usize::from(may);
        may
    }

    /// It has written that.
    pub(crate) fn flushed(&self) {
        lock(&self.state).flushing -= 1;
    }

    /// A session has nothing any more of what an earlier process granted. Whether the hold is over with that.
    pub(crate) fn settle(&self, session: u64, now: Now, lost: impl FnOnce(&HashSet<u64>)) -> bool {
        if !self.is_on() {
            return false;
        }
        lock(&self.state).missing.remove(&session);
        self.look(now, lost)
    }

    /// Whether it is over now, and was not before. Before it is, `lost` is told of the sessions that are still missing.
    pub(crate) fn look(&self, now: Now, lost: impl FnOnce(&HashSet<u64>)) -> bool {
        let state = lock(&self.state);
        let is_over = state.is_over(now) && self.is_on();
        if is_over {
            lost(&state.missing);
            self.is_on.store(false, Ordering::SeqCst);
        }
        is_over
    }
}
