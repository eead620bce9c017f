//! Whether the kernel is told to keep names now, where it can be made to forget all of them at
//! once (INC_EPOCH).
//!
//! That is dear: a name that is forgotten takes its inode with it, and the inode its pages, so
//! that files are read from the server again. So names are kept while nothing has to be forgotten.
//! When something has, all are, and then none is kept for a while: the kernel asks the process of
//! the mount for each ([`crate::hot_names`] tells it those of busy directories even so), and what
//! changes meanwhile costs no pages. If it happens again soon, that while is twice as long.
//!
//! And it takes away what is mounted on a directory whose name is forgotten ([`crate::below`]).
//! Where anything is, nothing is forgotten at once: whoever waits for that waits until the kernel
//! has no name any more that it may use, and none is kept for as long as something is there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct_worker::lock;

/// For how long no names are kept after some had to be forgotten; twice as long each time that
/// some have to be before names were kept for as long, up to the most. As in
/// [`crate::hot_names`].
const REST: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(640);

/// The kernel counts from when the thread that asked has run again: see [`crate::hot_names`].
const SLACK: Duration = Duration::from_millis(350);

/// What may be kept for longer than this is promised never to change (`cache=immutable`), and
/// nobody waits for its end. No lease lasts as long.
const LEASE_MAX: Duration = Duration::from_secs(60);

/// For how long a name is kept under a lease, after which the kernel asks the process of the mount
/// once more: whoever cannot have names forgotten waits for so long.
const KEPT_MAX: Duration = Duration::from_secs(3);

/// Whether names are kept.
pub(crate) struct Keeping {
    /// Answers may say that a name is to be kept.
    keeps: AtomicBool,
    /// For how long at most the kernel was told to keep a name, in nanoseconds.
    longest: AtomicU64,
    began: Instant,
    /// Before then nobody has to look, in nanoseconds since it began: what each request asks while
    /// no names are kept takes no lock.
    rests_until: AtomicU64,
    /// That they are not, because something is mounted below, is in the log.
    is_told: AtomicBool,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// How long the last rest was.
    lasted: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Names are kept since then.
    Kept(Instant),
    /// None is told to be kept any more, but the kernel may have some: until then, unless it is
    /// made to forget them. The rest begins with this.
    Ending { since: Instant, left_until: Instant },
    /// The kernel has none. Names may be kept again from then on.
    Resting(Instant),
    /// The same; somebody looks whether something is mounted below.
    Looking,
}

impl Keeping {
    /// Of a new mount, on which nothing can be mounted yet.
    pub(crate) fn new(now: Instant) -> Keeping {
        let state = State { phase: Phase::Kept(now), lasted: Duration::ZERO };
        let [longest, rests_until] = [const { AtomicU64::new(0) }; 2];
        let [keeps, is_told] = [true, false].map(AtomicBool::new);
        Keeping { keeps, longest, began: now, rests_until, is_told, state: Mutex::new(state) }
    }

    /// Whether an answer may say that a name is to be kept.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::SeqCst)
    }

    /// For how long the kernel is told to keep a name that a lease lets it keep for so long.
    pub(crate) fn tell(&self, leased: Duration) -> Duration {
        if leased > LEASE_MAX {
            return leased;
        }
        let names = leased.min(KEPT_MAX);
        let nanos = names.as_nanos() as u64;
        if self.longest.load(Ordering::Relaxed) < nanos {
            self.longest.fetch_max(nanos, Ordering::SeqCst);
        }
        names
    }

    /// Whether names could be kept again by now, if nothing is mounted below: the caller looks, and
    /// says so with [`looked`](Keeping::looked).
    pub(crate) fn is_to_look(&self, now: Instant) -> bool {
        if self.nanos(now) < self.rests_until.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = lock(&self.state);
        let is_over = match state.phase {
            Phase::Ending { since, left_until } => now >= left_until.max(since + state.lasted),
            Phase::Resting(until) => now >= until,
            Phase::Kept(_) | Phase::Looking => false,
        };
        if is_over {
            state.phase = Phase::Looking;
        }
        is_over
    }

    /// Whether something is mounted below.
    pub(crate) fn looked(&self, found: bool, now: Instant) {
        let mut state = lock(&self.state);
        if state.phase != Phase::Looking {
            return;
        }
        if found {
            state.phase = Phase::Resting(now + state.lasted);
            self.rests_until.store(self.nanos(now + state.lasted), Ordering::Relaxed);
        } else {
            state.phase = Phase::Kept(now);
            self.keeps.store(true, Ordering::SeqCst);
            self.is_told.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the log is to say that something is mounted below: once in a while.
    pub(crate) fn is_to_tell(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Names have to be forgotten: whether the kernel may have any. None is told to be kept from
    /// here on.
    pub(crate) fn end(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Kept(since) => {
                self.keeps.store(false, Ordering::SeqCst);
                let longest = Duration::from_nanos(self.longest.load(Ordering::SeqCst));
                let is_soon = now.saturating_duration_since(since) < state.lasted;
                state.lasted = if is_soon { (2 * state.lasted).min(REST_MAX) } else { REST };
                state.phase = Phase::Ending { since: now, left_until: now + longest + SLACK };
                self.rests_until.store(self.nanos(now + state.lasted), Ordering::Relaxed);
                true
            }
            Phase::Ending { left_until, .. } if now < left_until => true,
            Phase::Ending { since, .. } => {
                state.phase = Phase::Resting(since + state.lasted);
                false
            }
            Phase::Resting(_) | Phase::Looking => false,
        }
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }

    /// For how long the kernel may use names that it has, if it is not made to forget them.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        match lock(&self.state).phase {
            Phase::Ending { left_until, .. } => left_until.saturating_duration_since(now),
            _ => Duration::ZERO,
        }
    }

    /// The kernel has been made to forget all names, and was about to enter none.
    pub(crate) fn ended(&self) {
        let mut state = lock(&self.state);
        if let Phase::Ending { since, .. } = state.phase {
            state.phase = Phase::Resting(since + state.lasted);
        }
    }
}

#[cfg(test)]
impl Keeping {
    /// The rest is over, and nothing is mounted below.
    pub(crate) fn keep_again(&self) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Resting(_)) {
            state.phase = Phase::Kept(Instant::now());
            self.keeps.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LEASE: Duration = Duration::from_secs(7);

    #[test]
    fn names_are_kept_until_some_have_to_be_forgotten_and_again_after_a_rest() {
        let start = Instant::now();
        let keeping = Keeping::new(start);
        assert!(keeping.keeps() && !keeping.is_to_look(start + REST_MAX));
        assert_eq!(keeping.tell(LEASE), KEPT_MAX);
        assert!(keeping.end(start) && !keeping.keeps());
        assert!(keeping.end(start + MS), "the kernel may be about to enter some");
        keeping.ended();
        assert!(!keeping.end(start + MS) && keeping.left(start).is_zero());
        assert!(!keeping.is_to_look(start + REST - MS));
        assert!(keeping.is_to_look(start + REST) && !keeping.is_to_look(start + REST), "one looks");
        assert!(!keeping.keeps() && !keeping.end(start + REST));
        keeping.looked(false, start + REST);
        assert!(keeping.keeps());
    }

    #[test]
    fn what_is_forgotten_again_soon_rests_longer() {
        let mut now = Instant::now();
        let keeping = Keeping::new(now);
        for lasts in [10, 20, 40, 80, 160, 320, 640, 640].map(Duration::from_secs) {
            assert!(keeping.end(now));
            keeping.ended();
            assert!(!keeping.is_to_look(now + lasts - MS), "{lasts:?}");
            now += lasts;
            assert!(keeping.is_to_look(now), "{lasts:?}");
            keeping.looked(false, now);
        }
        assert!(keeping.end(now + REST_MAX));
        keeping.ended();
        assert!(keeping.is_to_look(now + REST_MAX + REST), "names were kept in peace for as long");
    }

    #[test]
    fn names_that_cannot_be_forgotten_end_by_themselves() {
        let start = Instant::now();
        let keeping = Keeping::new(start);
        let hour = Duration::from_secs(3600);
        assert_eq!([LEASE, 3 * MS, hour].map(|names| keeping.tell(names)), [KEPT_MAX, 3 * MS, hour]);
        assert!(keeping.end(start));
        assert_eq!(keeping.left(start + MS), KEPT_MAX + SLACK - MS, "what never changes is waited for by nobody");
        assert!(keeping.end(start + KEPT_MAX) && !keeping.end(start + KEPT_MAX + SLACK));
        // While something is mounted below none is kept.
        for rest in 1..4 {
            assert!(keeping.is_to_look(start + rest * REST));
            keeping.looked(true, start + rest * REST);
            assert!(!keeping.keeps());
        }
        assert!(keeping.is_to_look(start + 4 * REST));
        keeping.looked(false, start + 4 * REST);
        assert!(keeping.keeps());
    }

    /// Nobody has to look for names that ended by themselves.
    #[test]
    fn a_rest_ends_though_nobody_asked_meanwhile() {
        let start = Instant::now();
        let keeping = Keeping::new(start);
        keeping.tell(LEASE);
        assert!(keeping.end(start));
        assert!(!keeping.is_to_look(start + KEPT_MAX + SLACK) && keeping.is_to_look(start + REST));
    }
}
