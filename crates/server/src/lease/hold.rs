//! After a start: clients may hold leases that an earlier process granted, of which this one knows nothing. So nobody changes anything until all of them have
//! forgotten what they held, or cannot use it any more.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Now;
use crate::session::lock;

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
}

impl State {
    fn is_over(&self, now: Now) -> bool {
        (self.missing.is_empty() || now >= self.missing_until) && now >= self.lapsed_at && self.flushing == 0
    }
}

impl Hold {
    /// Holds changes up, until these sessions have recovered or `missing_until`, and in any case until `lapsed_at`. Returns when to look whether it is over.
    pub(crate) fn begin(&self, missing: HashSet<u64>, missing_until: Now, lapsed_at: Now, now: Now) -> Vec<Now> {
        let state = State { missing, missing_until, lapsed_at, flushing: 0 };
        let is_on = !state.is_over(now);
        let looks = [state.missing_until, state.lapsed_at];
        *lock(&self.state) = state;
        self.is_on.store(is_on, Ordering::SeqCst);
        looks.into_iter().filter(|at| is_on && *at > now).collect()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
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
