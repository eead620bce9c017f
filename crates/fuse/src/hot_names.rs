//! Names of directories that the kernel keeps for a moment, on kernels that cannot be made to
//! forget names at once (before Linux 6.16).
//!
//! Programs that use long paths (git, compilers, interpreters) have the kernel look at the same
//! few directories again for each file. Those that are asked for often it is told to keep for
//! [`VALID`]. No notification takes that back: it would wait for the lock of the parent directory,
//! which may be held by somebody who waits for us. Instead whoever changes such a name waits until
//! the kernel has forgotten it: others in their recall, this mount before it asks for the change.
//! So that this happens seldom, a directory at which somebody had to wait rests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_worker::{Group, lock};

use crate::places::Place;

/// For how long the kernel is told to keep a name: each takes four requests a second.
const VALID: Duration = Duration::from_millis(250);

/// The kernel counts from when the thread that asked has run again. It gets its processor within
/// this time, as for the names of a listing ([`crate::listings`]), with 100 ms more.
const SLACK: Duration = Duration::from_millis(350);

/// A name is told when it was asked for so often within this time.
const ASKS: u32 = 4;
const WINDOW: Duration = Duration::from_millis(250);

/// How long a directory rests at which somebody had to wait; twice as long each time that it is
/// told again and somebody waits before it has been at peace for as long, up to the most.
const REST: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(640);

/// When more directories than this begin to rest within [`REST`], all do: a change of a whole tree
/// does not wait at each of its directories.
const RESTS_MAX: u32 = 8;

/// Directories that rest, or did; beyond, those that are at peace again are forgotten.
const RESTS_KEPT: usize = 1024;

/// Names that are counted, at about 150 bytes each. Beyond, no others are until some are old.
const NAMES_MAX: usize = 16_384;

/// How often is looked whether the kernel has been answered.
const STEP: Duration = Duration::from_millis(1);

/// The names that are asked for often.
#[derive(Default)]
pub(crate) struct HotNames(Mutex<State>);

#[derive(Default)]
struct State {
    /// By their directories.
    names: HashMap<u64, HashMap<Box<[u8]>, Name>>,
    count: usize,
    /// By the directory that a name leads to.
    leads_to: HashMap<u64, Until>,
    rests: HashMap<u64, Rest>,
    /// All directories rest until then.
    all_rest: Option<Instant>,
    /// Since when directories have begun to rest, and how many.
    begun: Option<(Instant, u32)>,
}

/// What the kernel may keep.
#[derive(Clone, Copy, Debug, Default)]
struct Until {
    /// It has forgotten by then.
    time: Option<Instant>,
    /// Answers on their way, from which on it counts.
    answers: u32,
}

#[derive(Debug, Default)]
struct Name {
    /// Since when it was asked for, and how often.
    asked: Option<(Instant, u32)>,
    until: Until,
    /// Changes of it that wait or are under way.
    changes: u32,
}

#[derive(Debug)]
struct Rest {
    until: Instant,
    lasts: Duration,
}

impl Until {
    /// For how long the kernel may still use it.
    fn left(self, now: Instant) -> Duration {
        let left = self.time.map_or(Duration::ZERO, |time| time.saturating_duration_since(now));
        if self.answers > 0 { left.max(STEP) } else { left }
    }

    fn answered(&mut self, until: Instant) {
        self.answers = self.answers.saturating_sub(1);
        self.time = self.time.max(Some(until));
    }
}

impl Name {
    /// Somebody asks for it. Whether it is asked for often: the kernel asks no more while it keeps
    /// it, so that whoever asks soon after has asked meanwhile too.
    fn ask(&mut self, now: Instant) -> bool {
        let was_told = self.until.time.is_some_and(|until| now < until + WINDOW);
        let (since, count) = match self.asked {
            Some((since, count)) if now < since + WINDOW => (since, count + 1),
            _ => (now, 1),
        };
        self.asked = Some((since, count));
        was_told || count >= ASKS
    }

    fn is_old(&self, now: Instant) -> bool {
        let is_asked = self.asked.is_some_and(|(since, _)| now < since + WINDOW);
        !is_asked && self.changes == 0 && self.until.left(now).is_zero()
    }
}

impl State {
    /// Whether a name is counted, or may be.
    fn has_room(&mut self, (directory, name): (u64, &[u8]), now: Instant) -> bool {
        if self.count >= NAMES_MAX || self.leads_to.len() >= NAMES_MAX {
            self.prune(now);
        }
        let is_counted = || self.names.get(&directory).is_some_and(|names| names.contains_key(name));
        self.count < NAMES_MAX || is_counted()
    }

    fn name(&mut self, (directory, name): (u64, &[u8])) -> &mut Name {
        let names = self.names.entry(directory).or_default();
        if !names.contains_key(name) {
            self.count += 1;
        }
        names.entry(name.into()).or_default()
    }

    fn prune(&mut self, now: Instant) {
        self.names.retain(|_, names| {
            names.retain(|_, name| !name.is_old(now));
            !names.is_empty()
        });
        self.count = self.names.values().map(HashMap::len).sum();
        self.leads_to.retain(|_, until| !until.left(now).is_zero());
        self.rests.retain(|_, rest| now < rest.until + rest.lasts);
    }

    fn is_resting(&self, directory: u64, now: Instant) -> bool {
        let rests = self.rests.get(&directory).is_some_and(|rest| now < rest.until);
        rests || self.all_rest.is_some_and(|until| now < until)
    }

    /// A lookup found `node` under a name, which may be kept for so long. For how long the kernel
    /// is told to; an answer is on its way then.
    fn ask(&mut self, place: (u64, &[u8]), node: u64, most: Duration, now: Instant) -> Option<Duration> {
        let rests = self.is_resting(place.0, now) || self.is_resting(node, now);
        if rests || most.is_zero() || !self.has_room(place, now) {
            return None;
        }
        let known = self.name(place);
        if !known.ask(now) || known.changes > 0 {
            return None;
        }
        known.until.answers += 1;
        self.leads_to.entry(node).or_default().answers += 1;
        Some(most.min(VALID))
    }

    /// The kernel was answered, and was told to keep a name for so long.
    fn answered(&mut self, (directory, name): (u64, &[u8]), node: u64, valid: Duration, now: Instant) {
        let until = now + valid + SLACK;
        if let Some(known) = self.names.get_mut(&directory).and_then(|names| names.get_mut(name)) {
            known.until.answered(until);
        }
        self.leads_to.entry(node).or_default().answered(until);
    }

    /// For how long the kernel may use names in a directory, or the one that leads to it.
    fn left(&self, directory: u64, now: Instant) -> Duration {
        let names = self.names.get(&directory).into_iter().flat_map(HashMap::values);
        let untils = names.map(|name| name.until).chain(self.leads_to.get(&directory).copied());
        untils.map(|until| until.left(now)).max().unwrap_or_default()
    }

    fn left_of_all(&self, now: Instant) -> Duration {
        let untils = self.names.values().flat_map(HashMap::values).map(|name| name.until);
        untils.map(|until| until.left(now)).max().unwrap_or_default()
    }

    fn left_of(&self, (directory, name): (u64, &[u8]), now: Instant) -> Duration {
        let known = self.names.get(&directory).and_then(|names| names.get(name));
        known.map_or(Duration::ZERO, |known| known.until.left(now))
    }

    /// Somebody has to wait for a directory.
    fn rest(&mut self, directory: u64, now: Instant) {
        let lasts = match self.rests.get(&directory) {
            Some(rest) if now < rest.until => return,
            Some(rest) if now < rest.until + rest.lasts => (rest.lasts * 2).min(REST_MAX),
            _ => REST,
        };
        if self.rests.len() >= RESTS_KEPT {
            self.prune(now);
        }
        self.rests.insert(directory, Rest { until: now + lasts, lasts });
        let (since, count) = match self.begun {
            Some((since, count)) if now < since + REST => (since, count + 1),
            _ => (now, 1),
        };
        self.begun = Some((since, count));
        if count > RESTS_MAX {
            self.all_rest = Some(now + REST);
            self.prune(now);
        }
    }
}

/// An answer with a name that the kernel is to keep. Dropping it says that the kernel has it.
pub(crate) struct Told {
    names: Arc<HotNames>,
    directory: u64,
    name: Box<[u8]>,
    node: u64,
    pub(crate) valid: Duration,
}

impl Told {
    pub(crate) fn place(&self) -> Place {
        (self.directory, self.name.clone())
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let place = (self.directory, &*self.name);
        lock(&self.names.0).answered(place, self.node, self.valid, Instant::now());
    }
}

/// A name that is being changed here: the kernel is not told to keep it meanwhile.
pub(crate) struct Changing {
    names: Arc<HotNames>,
    directory: u64,
    name: Box<[u8]>,
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut state = lock(&self.names.0);
        if let Some(names) = state.names.get_mut(&self.directory)
            && let Some(known) = names.get_mut(&self.name)
        {
            known.changes -= 1;
            known.asked = None;
            if known.is_old(Instant::now()) {
                names.remove(&self.name);
                if names.is_empty() {
                    state.names.remove(&self.directory);
                }
                state.count -= 1;
            }
        }
    }
}

impl HotNames {
    /// A lookup found `node`, a directory, under a name that may be kept for so long. What the
    /// kernel is to be told, if it is to keep the name.
    pub(crate) fn ask(self: &Arc<HotNames>, directory: u64, name: &[u8], node: u64, most: Duration) -> Option<Told> {
        let valid = lock(&self.0).ask((directory, name), node, most, Instant::now())?;
        Some(Told { names: self.clone(), directory, name: name.into(), node, valid })
    }

    /// A name is about to be changed by this mount: waits until the kernel has forgotten it.
    pub(crate) async fn change(self: &Arc<HotNames>, directory: u64, name: &[u8]) -> Changing {
        lock(&self.0).name((directory, name)).changes += 1;
        let changing = Changing { names: self.clone(), directory, name: name.into() };
        while let (Some(left), Some(group)) = (self.left_to_change(directory, name), Group::current()) {
            group.sleep(left).await;
        }
        changing
    }

    fn left_to_change(&self, directory: u64, name: &[u8]) -> Option<Duration> {
        let (mut state, now) = (lock(&self.0), Instant::now());
        let left = state.left_of((directory, name), now);
        (!left.is_zero()).then(|| {
            state.rest(directory, now);
            left
        })
    }

    /// For how long the kernel may still use names in a directory, or the one that leads to it.
    /// Somebody waits for that, and the directory rests.
    pub(crate) fn left(&self, directory: u64) -> Duration {
        let (mut state, now) = (lock(&self.0), Instant::now());
        let left = state.left(directory, now);
        if !left.is_zero() {
            state.rest(directory, now);
        }
        left
    }

    /// Waits until the kernel has forgotten the names in a directory, and the one that leads to
    /// it.
    pub(crate) fn wait(&self, directory: u64) {
        loop {
            match self.left(directory) {
                Duration::ZERO => return,
                left => std::thread::sleep(left),
            }
        }
    }

    /// Waits until the kernel has forgotten all names that it was told so far.
    pub(crate) fn wait_for_all(&self) {
        // Answers that come meanwhile are none of those.
        let left = lock(&self.0).left_of_all(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(100);
    const PLACE: (u64, &[u8]) = (16, b"a");

    /// Asks until it is told.
    fn make_hot(state: &mut State, now: Instant) {
        for _ in 1..ASKS {
            assert_eq!(state.ask(PLACE, 32, LONG, now), None);
        }
        assert_eq!(state.ask(PLACE, 32, LONG, now), Some(VALID));
    }

    #[test]
    fn who_changes_what_was_told_waits_from_when_the_kernel_has_it() {
        let (mut state, start) = (State::default(), Instant::now());
        make_hot(&mut state, start);
        let late = start + 3 * LONG;
        assert!(state.left(16, late) == STEP && state.left(32, late) == STEP, "it is on its way");
        state.answered(PLACE, 32, VALID, late);
        for directory in [16, 32] {
            assert_eq!(state.left(directory, late), VALID + SLACK);
            assert_eq!(state.left(directory, late + VALID + SLACK), Duration::ZERO);
        }
        assert_eq!((state.left_of(PLACE, late), state.left_of_all(late)), (VALID + SLACK, VALID + SLACK));
        assert_eq!((state.left_of((16, b"b"), late), state.left(48, late)), (Duration::ZERO, Duration::ZERO));
        // Of two answers the later counts.
        assert_eq!(state.ask(PLACE, 32, MS, late + MS), Some(MS), "no longer than the lease");
        state.answered(PLACE, 32, MS, late + 2 * MS);
        assert_eq!(state.left(16, late), VALID + SLACK);
    }

    #[test]
    fn only_what_is_asked_for_often_is_told_and_then_at_once_again() {
        let (mut state, start) = (State::default(), Instant::now());
        for number in 0..20 {
            assert_eq!(state.ask(PLACE, 32, LONG, start + number * WINDOW / 3), None, "{number}");
        }
        let now = start + 20 * WINDOW;
        make_hot(&mut state, now);
        state.answered(PLACE, 32, VALID, now);
        assert_eq!(state.ask(PLACE, 32, Duration::ZERO, now + VALID + MS), None, "there is no lease");
        assert_eq!(state.ask(PLACE, 32, LONG, now + VALID + MS), Some(VALID), "it has been asked for since");
        state.answered(PLACE, 32, VALID, now + VALID + MS);
        assert_eq!(state.ask(PLACE, 32, LONG, now + 10 * VALID), None);
    }

    #[test]
    fn where_somebody_waited_nothing_is_told_for_longer_each_time() {
        let (mut state, start) = (State::default(), Instant::now());
        state.rest(16, start);
        state.rest(16, start + MS);
        let asks = |state: &mut State, now| (0..2 * ASKS).filter(|_| state.ask(PLACE, 32, LONG, now).is_some()).count();
        assert_eq!(asks(&mut state, start + REST - MS), 0);
        assert!(asks(&mut state, start + REST) > 0);
        state.rest(16, start + REST);
        assert_eq!(asks(&mut state, start + 3 * REST - MS), 0);
        // What leads to it is not told either, and at peace all is as it was.
        state.rest(32, start + 20 * REST);
        assert_eq!(asks(&mut state, start + 21 * REST - MS), 0);
        state.rest(16, start + 30 * REST);
        assert!(asks(&mut state, start + 31 * REST) > 0);
        for directory in 100..=100 + u64::from(RESTS_MAX) {
            state.rest(directory, start + 40 * REST);
        }
        assert_eq!(asks(&mut state, start + 41 * REST - MS), 0, "all rest");
    }

    #[test]
    fn what_is_being_changed_is_not_told() {
        let names = Arc::new(HotNames::default());
        lock(&names.0).name(PLACE).changes += 1;
        let changing = Changing { names: names.clone(), directory: 16, name: b"a"[..].into() };
        assert!((0..9).all(|_| names.ask(16, b"a", 32, LONG).is_none()));
        drop(changing);
        let told: Vec<_> = (0..ASKS).filter_map(|_| names.ask(16, b"a", 32, LONG)).collect();
        assert_eq!((told.len(), names.left(16)), (1, STEP));
        drop(told);
        assert!(names.left(16) > VALID);
        names.wait(16);
        names.wait_for_all();
        assert!(names.left(16).is_zero() && names.left(32).is_zero());
    }

    #[test]
    fn names_are_counted_up_to_a_limit() {
        let (mut state, start) = (State::default(), Instant::now());
        for number in 0..NAMES_MAX as u64 {
            state.ask((number, b"a"), 1, LONG, start);
        }
        let other = (1 << 40, &b"b"[..]);
        assert!((0..2 * ASKS).all(|_| state.ask(other, 32, LONG, start).is_none()));
        assert_eq!(state.count, NAMES_MAX);
        state.name(other).changes += 1;
        assert_eq!(state.ask((3, b"a"), 1, LONG, start), None, "counted already");
        // Those that nobody asks for any more go.
        assert_eq!(state.ask(PLACE, 32, LONG, start + WINDOW), None);
        assert_eq!(state.count, 2);
    }
}
