//! Ending requests whose callers no longer wait.
//!
//! Any signal to a waiting caller makes the kernel send one INTERRUPT, and no second one. To answer EINTR to a handled SIGALRM would break programs that
//! wait correctly, so a request ends only for a signal that ends its program (a lock wait: for any), and callers of requests that stay under way
//! are looked at again now and then: the kernel would not tell of the SIGKILL that follows the SIGALRM, nor of any signal to a caller that waits
//! for asynchronous I/O, or whose request waited for an entry of a ring when it came.
//!
//! A request that completes at once, when it is first polled, is never entered here: it costs two stores.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_fs::Cancel;
use aqueduct_worker::lock;

use crate::caller::{self, Caller};
use crate::slots::Slots;

/// How long a request is under way before its caller is looked at, and how often from then on. Half a second is what a user who pressed Ctrl-C
/// twice still takes for at once.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// An INTERRUPT whose signal cannot be seen (the caller is in another pid namespace) ends its request after this time: late enough for the
/// handled timers of a healthy program, soon enough for who kills it.
const UNSEEN_SIGNAL_PATIENCE: Duration = Duration::from_secs(2);

/// Interrupted requests that have not come yet, of which a note is kept. Newer ones have higher numbers; what is beyond has long been answered.
const EXPECTED_MAX: usize = 64;

/// Callers looked at in one round (about 15 us each); the others come in the next.
const LOOKS_PER_ROUND: usize = 64;

/// How a request may end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For any signal: it waits for a lock.
    LockWait,
    /// For a signal that ends its caller.
    Ordinary,
    /// Not before the mount: nobody waits for it, and it frees what others wait for (RELEASE).
    Unending,
}

/// What to do with an INTERRUPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was noted.
    Noted,
    /// Its request is not known, or not yet: the kernel is to send it again.
    Again,
}

struct Entry {
    cancel: Cancel,
    kind: Kind,
    tid: u32,
    since: Instant,
    interrupted: Option<Instant>,
}

/// A request whose caller is looked at.
struct Stale {
    unique: u64,
    tid: u32,
    kind: Kind,
    interrupted: Option<Instant>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Entry>,
    /// Interrupted while they were first polled.
    early: BTreeSet<u64>,
    watched: bool,
    /// Where the next round of looks begins.
    round: usize,
}

/// The requests under way.
pub(crate) struct Interrupts {
    /// The request that each thread polls for the first time.
    polled: Slots,
    early: AtomicUsize,
    state: Mutex<State>,
    look: Box<dyn Fn(u32) -> Caller + Send + Sync>,
}

impl Default for Interrupts {
    fn default() -> Interrupts {
        Interrupts::new(caller::look)
    }
}

impl Interrupts {
    fn new(look: impl Fn(u32) -> Caller + Send + Sync + 'static) -> Interrupts {
        Interrupts {
            polled: Slots::default(),
            early: AtomicUsize::new(0),
            state: Mutex::default(),
            look: Box::new(look),
        }
    }

    /// Runs `poll`, which polls the request `unique` for the first time (and enters it if it has to wait).
    pub(crate) fn first_poll(&self, unique: u64, poll: impl FnOnce()) {
        let slot = self.polled.mine();
        slot.store(unique, Ordering::SeqCst);
        poll();
        slot.store(0, Ordering::SeqCst);
        if self.early.load(Ordering::SeqCst) > 0 && self.take_early(&mut lock(&self.state), unique) {
            self.interrupt_waiting(unique);
        }
    }

    fn take_early(&self, state: &mut State, unique: u64) -> bool {
        let found = state.early.remove(&unique);
        if found {
            self.early.fetch_sub(1, Ordering::SeqCst);
        }
        found
    }

    /// A request has to wait; it came at `since`. Returns whether somebody must now start to
    /// [`watch`](Interrupts::watch).
    pub(crate) fn enter(&self, unique: u64, cancel: Cancel, (kind, tid): (Kind, u32), since: Instant) -> bool {
        let mut state = lock(&self.state);
        state.waiting.insert(unique, Entry { cancel, kind, tid, since, interrupted: None });
        !std::mem::replace(&mut state.watched, true)
    }

    /// A request that had to wait has ended.
    pub(crate) fn leave(&self, unique: u64) {
        lock(&self.state).waiting.remove(&unique);
    }

    /// The kernel says that a signal came to the caller of `unique`.
    pub(crate) fn interrupt(&self, unique: u64) -> Verdict {
        // A request can move from "polled" to "waiting" between two looks, once.
        for _ in 0..2 {
            if self.interrupt_waiting(unique) {
                return Verdict::Noted;
            }
            let polled = || self.polled.iter().any(|slot| slot.load(Ordering::SeqCst) == unique);
            if !polled() {
                continue;
            }
            if lock(&self.state).early.insert(unique) {
                self.early.fetch_add(1, Ordering::SeqCst);
            }
            // Who polls it looks for the note after it has left its slot: either it sees the note, or this sees it gone.
            if polled() || !self.take_early(&mut lock(&self.state), unique) {
                return Verdict::Noted;
            }
        }
        Verdict::Again
    }

    /// The kernel says that a signal came to the caller of `unique`, a request that is not known and may not have come yet, and will not say so again.
    pub(crate) fn expect(&self, unique: u64) {
        {
            let mut state = lock(&self.state);
            if state.early.insert(unique) {
                self.early.fetch_add(1, Ordering::SeqCst);
            }
            if state.early.len() > EXPECTED_MAX && state.early.pop_first().is_some() {
                self.early.fetch_sub(1, Ordering::SeqCst);
            }
        }
        // It may have come before the note was there.
        if self.interrupt_waiting(unique) {
            self.take_early(&mut lock(&self.state), unique);
        }
    }

    /// Whether a request that waits was interrupted, and ends it if it should end.
    fn interrupt_waiting(&self, unique: u64) -> bool {
        let (tid, kind) = match lock(&self.state).waiting.get_mut(&unique) {
            None => return false,
            Some(entry) => {
                entry.interrupted.get_or_insert_with(Instant::now);
                (entry.tid, entry.kind)
            }
        };
        let ends = match kind {
            Kind::LockWait => true,
            Kind::Ordinary => matches!((self.look)(tid), Caller::Alive(status) if status.is_dying()),
            Kind::Unending => false,
        };
        if ends {
            self.cancel(&[unique]);
        }
        true
    }

    fn cancel(&self, uniques: &[u64]) {
        let cancels: Vec<_> = {
            let state = lock(&self.state);
            uniques.iter().filter_map(|unique| state.waiting.get(unique)).map(|entry| entry.cancel.clone()).collect()
        };
        cancels.iter().for_each(Cancel::raise); // outside the lock: it wakes tasks
    }

    /// The kernel has gone, and nobody waits for anything any more: ends all, since what the client holds is given up as a whole.
    pub(crate) fn cancel_all(&self) {
        let uniques: Vec<_> = lock(&self.state).waiting.keys().copied().collect();
        self.cancel(&uniques);
    }

    /// One round of looking at the callers of requests that have been under way for a while. Whoever watches calls it every
    /// [`WATCH_INTERVAL`] until it returns false: nothing is under way.
    pub(crate) fn watch(&self) -> bool {
        let stale = {
            let mut state = lock(&self.state);
            if state.waiting.is_empty() {
                state.watched = false;
                return false;
            }
            self.choose(&mut state)
        };
        let mut seen: HashMap<u32, Caller> = HashMap::default();
        let mut ended = Vec::new();
        for Stale { unique, tid, kind, interrupted } in stale {
            let ends = match seen.entry(tid).or_insert_with(|| (self.look)(tid)) {
                // Of a signal that came before the request was taken from a ring the kernel does not tell.
                Caller::Alive(status) if kind == Kind::LockWait => status.pending != 0,
                Caller::Alive(status) => status.is_dying(),
                Caller::Unknown => interrupted.is_some_and(|at| at.elapsed() >= UNSEEN_SIGNAL_PATIENCE),
                Caller::Gone => false,
            };
            if ends {
                ended.push(unique);
            }
        }
        self.cancel(&ended);
        true
    }

    /// Requests to look at: all that were interrupted, then others in turn.
    fn choose(&self, state: &mut State) -> Vec<Stale> {
        let mut stale: Vec<_> = state
            .waiting
            .iter()
            .filter(|(_, entry)| entry.kind != Kind::Unending && !entry.cancel.is_raised())
            .filter(|(_, entry)| entry.since.elapsed() >= WATCH_INTERVAL || entry.interrupted.is_some())
            .filter(|(_, entry)| entry.tid != 0 || entry.interrupted.is_some())
            .map(|(unique, &Entry { tid, kind, interrupted, .. })| Stale { unique: *unique, tid, kind, interrupted })
            .collect();
        stale.sort_unstable_by_key(|stale| (stale.interrupted.is_none(), stale.unique));
        if stale.len() > LOOKS_PER_ROUND {
            let first = state.round % stale.len();
            state.round = first + LOOKS_PER_ROUND;
            stale.rotate_left(first);
            stale.truncate(LOOKS_PER_ROUND);
        }
        stale
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::caller::Status;

    /// A table whose callers all have these signals pending.
    fn table() -> (Interrupts, Arc<AtomicU64>) {
        let pending = Arc::new(AtomicU64::new(0));
        let seen = pending.clone();
        let look = move |_| Caller::Alive(Status { pending: seen.load(Ordering::SeqCst), ..Status::default() });
        (Interrupts::new(look), pending)
    }

    fn raise(pending: &AtomicU64, signal: i32) {
        pending.fetch_or(1 << (signal - 1), Ordering::SeqCst);
    }

    fn age(table: &Interrupts, unique: u64) {
        lock(&table.state).waiting.get_mut(&unique).unwrap().since -= WATCH_INTERVAL;
    }

    #[test]
    fn a_lock_wait_ends_for_any_signal_and_others_for_fatal_ones() {
        let (table, pending) = table();
        let (wait, read, release) = (Cancel::default(), Cancel::default(), Cancel::default());
        raise(&pending, libc::SIGALRM);
        assert!(table.enter(2, wait.clone(), (Kind::LockWait, 7), Instant::now()));
        assert!(!table.enter(4, read.clone(), (Kind::Ordinary, 7), Instant::now()));
        assert!(!table.enter(6, release.clone(), (Kind::Unending, 7), Instant::now()));
        for unique in [2, 4, 6] {
            assert_eq!(table.interrupt(unique), Verdict::Noted);
        }
        assert_eq!((wait.is_raised(), read.is_raised(), release.is_raised()), (true, false, false));
        raise(&pending, libc::SIGTERM);
        assert!(table.watch());
        assert_eq!((read.is_raised(), release.is_raised()), (true, false));
        for unique in [2, 4, 6] {
            table.leave(unique);
        }
        assert!(!table.watch());
        assert!(
            table.enter(8, Cancel::default(), (Kind::Ordinary, 7), Instant::now()),
            "the next one is watched again"
        );
    }

    #[test]
    fn a_caller_that_is_killed_without_an_interrupt_is_found() {
        let (table, pending) = table();
        let cancel = Cancel::default();
        table.enter(2, cancel.clone(), (Kind::Ordinary, 7), Instant::now());
        raise(&pending, libc::SIGKILL);
        table.watch();
        assert!(!cancel.is_raised(), "not yet under way for long");
        age(&table, 2);
        table.watch();
        assert!(cancel.is_raised());
    }

    #[test]
    fn a_signal_to_who_waits_for_a_lock_is_found_without_an_interrupt() {
        let (table, pending) = table();
        let (wait, read) = (Cancel::default(), Cancel::default());
        table.enter(2, wait.clone(), (Kind::LockWait, 7), Instant::now());
        table.enter(4, read.clone(), (Kind::Ordinary, 7), Instant::now());
        age(&table, 2);
        age(&table, 4);
        table.watch();
        assert!(!wait.is_raised());
        raise(&pending, libc::SIGALRM);
        table.watch();
        assert!(wait.is_raised() && !read.is_raised());
    }

    #[test]
    fn an_interrupt_without_its_request_comes_again() {
        let (table, _) = table();
        assert_eq!(table.interrupt(2), Verdict::Again);
    }

    #[test]
    fn an_interrupt_during_the_first_poll_is_not_lost() {
        let (table, pending) = table();
        raise(&pending, libc::SIGKILL);
        let cancel = Cancel::default();
        table.first_poll(2, || {
            assert_eq!(table.interrupt(2), Verdict::Noted);
            table.enter(2, cancel.clone(), (Kind::Ordinary, 7), Instant::now());
        });
        assert!(cancel.is_raised());
        // One that completed at once leaves nothing behind.
        table.first_poll(4, || assert_eq!(table.interrupt(4), Verdict::Noted));
        assert!(lock(&table.state).early.is_empty());
        assert_eq!(table.early.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_noted() {
        let (table, pending) = table();
        raise(&pending, libc::SIGKILL);
        let (early, late) = (Cancel::default(), Cancel::default());
        table.expect(2);
        table.first_poll(2, || {
            table.enter(2, early.clone(), (Kind::Ordinary, 7), Instant::now());
        });
        table.enter(4, late.clone(), (Kind::Ordinary, 7), Instant::now());
        table.expect(4);
        assert!(early.is_raised() && late.is_raised());
        (0..1000).for_each(|number| table.expect(6 + 2 * number));
        assert_eq!(table.early.load(Ordering::SeqCst), EXPECTED_MAX);
        assert_eq!(lock(&table.state).early.len(), EXPECTED_MAX);
    }

    #[test]
    fn a_caller_that_cannot_be_seen_ends_after_a_while() {
        let table = Interrupts::new(|_| Caller::Unknown);
        let cancel = Cancel::default();
        table.enter(2, cancel.clone(), (Kind::Ordinary, 0), Instant::now());
        table.interrupt(2);
        table.watch();
        assert!(!cancel.is_raised());
        lock(&table.state).waiting.get_mut(&2).unwrap().interrupted = Some(Instant::now() - UNSEEN_SIGNAL_PATIENCE);
        table.watch();
        assert!(cancel.is_raised());
    }

    #[test]
    fn every_one_of_many_callers_is_looked_at_in_turn() {
        let (table, pending) = table();
        let cancels: Vec<_> = (0..200).map(|_| Cancel::default()).collect();
        for (at, cancel) in cancels.iter().enumerate() {
            table.enter(at as u64 + 1, cancel.clone(), (Kind::Ordinary, at as u32 + 1), Instant::now());
            age(&table, at as u64 + 1);
        }
        raise(&pending, libc::SIGKILL);
        for _ in 0..8 {
            table.watch();
        }
        assert!(cancels.iter().all(Cancel::is_raised));
    }
}
