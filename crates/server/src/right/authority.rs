//! What lets a server of data write: see [`right`](super).

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use aqueduct_wire::{Beat, BeatReply, Right, RightKey};
use aqueduct_worker::lock;

use super::unsettled::{Piece, Unsettled};

/// By the clock of the machine that goes on while it sleeps (CLOCK_BOOTTIME).
pub type Now = Duration;

/// Tells whoever watches over the process by when it has to have ended, unless it says otherwise
/// before; `None`: nothing is executed. False: nobody was told.
pub type Watch = Box<dyn Fn(Option<Now>) -> bool + Send + Sync>;

/// Of one start of a server of data.
pub struct Authority {
    key: RightKey,
    place: u16,
    /// Which start of it.
    data: u64,
    state: Mutex<State>,
    /// Something that was executed has ended.
    ended: Condvar,
    watch: Watch,
}

#[derive(Default)]
struct State {
    /// The start of the server of the names that is obeyed; 0: none.
    names: u64,
    /// That is to be obeyed, when nothing is executed any more that another one gave a right to.
    heir: u64,
    floor: u64,
    /// Nothing new is executed from then on.
    until: Now,
    /// What is executed: how often, by the numbers of rights.
    executing: BTreeMap<u64, usize>,
    /// Who watches knows of this end of the authority, or of a later one.
    watched: Option<Now>,
    /// Something has been executed since the latest beat.
    was_used: bool,
    /// Of the server of the names that is obeyed.
    unsettled: Unsettled,
}

impl State {
    /// The lowest right under which something is executed.
    fn lowest(&self) -> Option<u64> {
        self.executing.keys().next().copied()
    }

    fn settle(&mut self) {
        if self.executing.is_empty() && self.names != self.heir {
            // Whoever may repeat something has done so before others are let in.
            (self.names, self.unsettled) = (self.heir, Unsettled::default());
        }
    }

    /// Up to which right nothing is executed any more.
    fn drained(&self) -> u64 {
        match self.lowest() {
            Some(lowest) if lowest <= self.floor => lowest.saturating_sub(1),
            _ => self.floor,
        }
    }
}

/// What an answer has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing that the server of the names waits for.
    Nothing,
    /// It waits for the next beat.
    News,
}

/// A write is executed under a right, until this is dropped.
pub struct Executing<'a> {
    authority: &'a Authority,
    grant: u64,
}

impl Authority {
    /// Of this start of the server at a place of the map. It has none before it was answered.
    pub fn new(key: RightKey, place: u16, data: u64, watch: Watch) -> Authority {
        Authority { key, place, data, state: Mutex::default(), ended: Condvar::new(), watch }
    }

    /// The key of the volume's rights.
    pub fn key(&self) -> &RightKey {
        &self.key
    }

    /// Begins to execute a write under the right of a token; `None`: it is none, or none any more,
    /// or not now; or another client may write again what this one lies over. Nothing of it may be
    /// done before, and all of it before what is returned is dropped.
    pub(crate) fn enter(
        &self,
        (handle, token): (&[u8], &[u8]),
        piece: Option<&Piece<'_>>,
        now: Now,
    ) -> Option<Executing<'_>> {
        let right = Right::of_token(&self.key, handle, token).ok()?;
        let mut state = lock(&self.state);
        let is_of_now = state.names != 0 && right.names == state.names && state.heir == state.names;
        let is_mine = (right.place, right.data) == (self.place, self.data);
        if !is_of_now || !is_mine || right.grant <= state.floor || now >= state.until {
            return None;
        }
        if right.tenure != 0 && !piece.is_some_and(|piece| state.unsettled.admit(right.tenure, piece)) {
            return None;
        }
        if state.watched != Some(state.until) {
            if !(self.watch)(Some(state.until)) {
                return None; // nobody would end it
            }
            state.watched = Some(state.until);
        }
        state.was_used = true;
        *state.executing.entry(right.grant).or_default() += 1;
        Some(Executing { authority: self, grant: right.grant })
    }

    /// The question for more time, with this nonce.
    pub fn beat(&self, nonce: [u8; 16]) -> Beat {
        let mut state = lock(&self.state);
        state.settle();
        let (place, data) = (self.place, self.data);
        Beat { place, data, names: state.names, floor: state.drained(), has_ended: false, nonce }
    }

    /// The answer to a question that was asked at this time.
    pub fn answered(&self, reply: &BeatReply, asked: Now) -> Heard {
        let mut state = lock(&self.state);
        let before = (state.names, state.drained());
        if reply.names != state.heir {
            (state.heir, state.floor) = (reply.names, 0);
        }
        state.settle();
        state.floor = state.floor.max(reply.floor);
        // Whoever is obeyed: no right of another is good, and what still runs is watched.
        state.until = state.until.max(asked + Duration::from_millis(reply.authority.into()));
        let is_same = (state.names, state.drained()) == before;
        if is_same && state.names == state.heir { Heard::Nothing } else { Heard::News }
    }

    /// Waits until something has ended that the server of the names waits for, or there is nothing
    /// such, at most this long.
    pub fn wait(&self, pause: Duration) {
        let state = lock(&self.state);
        let is_awaited = |state: &mut State| {
            let has_lower = state.lowest().is_some_and(|lowest| lowest <= state.floor);
            has_lower || (state.names != state.heir && !state.executing.is_empty())
        };
        // A poisoned lock is as good as another: nothing of the state is half done.
        let _waited = self.ended.wait_timeout_while(state, pause, is_awaited);
    }

    /// To be called at each beat: has whoever watches know until when something is executed.
    pub fn tell_watch(&self) {
        let mut state = lock(&self.state);
        let is_used = std::mem::take(&mut state.was_used) || !state.executing.is_empty();
        let until = is_used.then_some(state.until);
        let is_told = (self.watch)(until);
        state.watched = until.filter(|_| is_told);
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.authority.state);
        if let Some(count) = state.executing.get_mut(&self.grant) {
            *count -= 1;
            if *count == 0 {
                state.executing.remove(&self.grant);
            }
        }
        state.settle();
        drop(state);
        self.authority.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use aqueduct_wire::Ordinal;

    use super::*;

    const FILE: &[u8] = b"file";

    fn key() -> RightKey {
        RightKey::of_volume(&[1; 32])
    }

    fn token(names: u64, data: u64, grant: u64) -> Vec<u8> {
        Right { names, place: 2, data, grant, tenure: 0 }.token(&key(), FILE)
    }

    fn seconds(seconds: u64) -> Now {
        Duration::from_secs(seconds)
    }

    /// With what its watch was told last.
    fn authority() -> (Authority, Arc<Mutex<Option<Now>>>) {
        let told = Arc::<Mutex<Option<Now>>>::default();
        let watch = told.clone();
        (
            Authority::new(
                key(),
                2,
                5,
                Box::new(move |until| {
                    *lock(&watch) = until;
                    true
                }),
            ),
            told,
        )
    }

    fn reply(names: u64, floor: u64) -> BeatReply {
        BeatReply { names, floor, authority: 2000 }
    }

    #[test]
    fn nothing_is_executed_without_an_authority() {
        let (authority, told) = authority();
        let may = |names, data, grant, now| authority.enter((FILE, &token(names, data, grant)), None, now).is_some();
        assert!(!may(0, 5, 1, seconds(0)) && !may(9, 5, 1, seconds(0)), "before it was answered");
        assert_eq!(authority.answered(&reply(9, 0), seconds(10)), Heard::News);
        assert_eq!(authority.beat([0; 16]).names, 9);
        assert!(may(9, 5, 1, seconds(11)));
        assert!(!may(9, 5, 1, seconds(12)), "counted from the question");
        assert!(!may(8, 5, 1, seconds(11)) && !may(9, 4, 1, seconds(11)), "of other starts");
        assert!(authority.enter((b"other", &token(9, 5, 1)), None, seconds(11)).is_none());
        assert_eq!(authority.answered(&reply(9, 0), seconds(11)), Heard::Nothing);
        assert_eq!(*lock(&told), Some(seconds(12)), "when it last began something");
        authority.tell_watch();
        assert_eq!(*lock(&told), Some(seconds(13)));
        authority.tell_watch();
        assert_eq!(*lock(&told), None, "nothing was executed since");
        assert_eq!(authority.answered(&reply(9, 0), seconds(1)), Heard::Nothing);
        assert!(may(9, 5, 1, seconds(12)), "a late answer shortens nothing");
    }

    #[test]
    fn a_floor_is_acknowledged_when_nothing_below_it_runs() {
        let (authority, told) = authority();
        authority.answered(&reply(9, 0), seconds(10));
        let enter = |grant| authority.enter((FILE, &token(9, 5, grant)), None, seconds(11));
        let (low, high) = (enter(3).unwrap(), enter(8).unwrap());
        assert_eq!(authority.answered(&reply(9, 5), seconds(10)), Heard::News);
        assert!(enter(5).is_none() && enter(6).is_some());
        assert_eq!(authority.beat([0; 16]).floor, 2);
        authority.wait(Duration::from_millis(1));
        drop(low);
        authority.wait(Duration::from_secs(600));
        assert_eq!(authority.beat([0; 16]).floor, 5, "what is above it may run");
        authority.tell_watch();
        authority.tell_watch();
        assert_eq!(*lock(&told), Some(seconds(12)), "and is not to run for ever");
        drop(high);
        authority.tell_watch();
        assert_eq!(*lock(&told), None);
    }

    #[test]
    fn another_start_of_the_names_is_obeyed_when_nothing_of_the_one_before_runs() {
        let (authority, told) = authority();
        authority.answered(&reply(9, 7), seconds(10));
        assert_eq!(*lock(&told), None);
        let old = authority.enter((FILE, &token(9, 5, 8)), None, seconds(11)).unwrap();
        assert_eq!(authority.answered(&reply(10, 0), seconds(11)), Heard::News);
        assert_eq!(authority.beat([0; 16]).names, 9);
        for names in [9, 10] {
            assert!(authority.enter((FILE, &token(names, 5, 9)), None, seconds(12)).is_none());
        }
        drop(old);
        authority.wait(Duration::from_secs(600));
        assert_eq!(authority.beat([0; 16]), Beat { place: 2, data: 5, names: 10, ..Beat::default() });
        assert!(authority.enter((FILE, &token(9, 5, 9)), None, seconds(12)).is_none());
        assert!(authority.enter((FILE, &token(10, 5, 1)), None, seconds(12)).is_some());
    }

    #[test]
    fn several_writers_say_what_they_may_repeat() {
        let (authority, _) = authority();
        authority.answered(&reply(9, 0), seconds(10));
        let token = |names| Right { names, place: 2, data: 5, grant: 4, tenure: 3 }.token(&key(), FILE);
        let piece = |session, number| {
            let number = Ordinal { number, settled: number };
            Piece { session, handle: FILE, range: 0..10, number }
        };
        let may = |names, piece: Option<Piece<'_>>| {
            authority.enter((FILE, &token(names)), piece.as_ref(), seconds(11)).is_some()
        };
        assert!(!may(9, None), "one that says nothing might repeat it");
        assert!(may(9, Some(piece(1, 7))) && !may(9, Some(piece(2, 1))));
        // Who serves the names next lets nobody write before all that is repeated is.
        authority.answered(&reply(10, 0), seconds(11));
        assert!(may(10, Some(piece(2, 2))));
    }
}
