//! Where the time of the threads goes: each is at each moment in exactly one stage.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reads names and attributes of the source.
    Walk,
    /// Reads data.
    Read,
    /// Hashes.
    Hash,
    /// Writes data.
    Write,
    /// Makes and names files, sets attributes.
    Attributes,
    /// Makes stable.
    Flush,
    /// Reads back what was written.
    Verify,
    /// Is held to a rate.
    Throttle,
    /// Has nothing to do.
    Idle,
}

/// Their names, in the order of the stages.
pub const STAGES: [(Stage, &str); 9] = [
    (Stage::Walk, "walk"),
    (Stage::Read, "read"),
    (Stage::Hash, "hash"),
    (Stage::Write, "write"),
    (Stage::Attributes, "attributes"),
    (Stage::Flush, "flush"),
    (Stage::Verify, "verify"),
    (Stage::Throttle, "rate"),
    (Stage::Idle, "idle"),
];

/// Which sides are at servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// The source is.
    pub source: bool,
    /// The destination is.
    pub target: bool,
}

/// Where time goes, for people.
const SPENT: [&str; 7] = [
    "source disk",
    "network and source server",
    "CPU",
    "network and destination server",
    "destination disk",
    "rate limit",
    "waiting",
];

impl Stage {
    /// Where the time of this stage goes: a place in [`SPENT`].
    fn goes(self, sides: Sides) -> usize {
        match self {
            Stage::Walk | Stage::Read => usize::from(sides.source),
            Stage::Hash => 2,
            Stage::Write | Stage::Attributes | Stage::Flush | Stage::Verify => 4 - usize::from(sides.target),
            Stage::Throttle => 5,
            Stage::Idle => 6,
        }
    }
}

/// Where the time of all threads went, in percent that add up to 100.
pub fn spent(stages: [Duration; STAGES.len()], sides: Sides) -> Vec<(&'static str, u32)> {
    let mut nanos = [0; SPENT.len()];
    for ((stage, _), time) in STAGES.iter().zip(stages) {
        nanos[stage.goes(sides)] += time.as_nanos();
    }
    let whole: u128 = nanos.iter().sum();
    if whole == 0 {
        return Vec::new();
    }
    let mut percent = nanos.map(|nanos| (nanos * 100 / whole) as u32);
    // What rounding down leaves goes where most was cut off.
    let mut order: Vec<usize> = (0..SPENT.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(nanos[*at] * 100 % whole));
    let left = 100 - percent.iter().sum::<u32>();
    order.into_iter().take(left as usize).for_each(|at| percent[at] += 1);
    SPENT.into_iter().zip(percent).filter(|(_, percent)| *percent > 0).collect()
}

/// What limits a copy, by the time of all threads in each stage: what waits does not.
pub fn limit(stages: [Duration; STAGES.len()]) -> Option<&'static str> {
    let works = STAGES.iter().zip(stages).filter(|((stage, _), time)| *stage != Stage::Idle && !time.is_zero());
    works.max_by_key(|(_, time)| *time).map(|((_, name), _)| *name)
}

/// The sums over all threads, and what moved: to be read while it grows.
#[derive(Debug, Default)]
pub struct Watch {
    nanos: [AtomicU64; STAGES.len()],
    /// Bytes of files that were read or known to be there.
    pub bytes: AtomicU64,
    /// Names that are done.
    pub names: AtomicU64,
    /// Bytes and names that are known of.
    pub bytes_found: AtomicU64,
    /// Names that are known of.
    pub names_found: AtomicU64,
    /// Names whose size is known.
    pub names_sized: AtomicU64,
    /// Directories that are not gone through yet.
    pub directories: AtomicU64,
}

impl Watch {
    /// The time of all threads in each stage so far, as somebody else tells it.
    pub fn set(&self, stages: [Duration; STAGES.len()]) {
        for (nanos, stage) in self.nanos.iter().zip(stages) {
            nanos.store(stage.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// How long it takes on, if it goes on as so far; `None`: that cannot be told yet.
    pub fn left(&self, elapsed: Duration) -> Option<Duration> {
        /// Files of this size cost as much for their name as for their data.
        const EVEN: f64 = 65536.0;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let (found, sized) = (read(&self.names_found), read(&self.names_sized));
        if read(&self.directories) > 0.0 || found == 0.0 || sized == 0.0 {
            return None;
        }
        let bytes = read(&self.bytes_found) * (found / sized).max(1.0);
        let done = match bytes > EVEN * found {
            true => read(&self.bytes) / bytes,
            false => read(&self.names) / found,
        };
        (done > 0.01).then(|| elapsed.mul_f64((1.0 / done.min(1.0)) - 1.0))
    }

    /// The time of all threads in each stage so far.
    pub fn stages(&self) -> [Duration; STAGES.len()] {
        std::array::from_fn(|index| Duration::from_nanos(self.nanos[index].load(Ordering::Relaxed)))
    }
}

thread_local! {
    static SINCE: Cell<Option<(Stage, Instant)>> = const { Cell::new(None) };
}

/// The time of this thread, until it is dropped; `None`: another has it already.
pub struct Clock(Option<Arc<Watch>>);

impl Clock {
    /// Begins, with nothing to do.
    pub fn start(watch: Arc<Watch>) -> Clock {
        if SINCE.get().is_some() {
            return Clock(None);
        }
        SINCE.set(Some((Stage::Idle, Instant::now())));
        Clock(Some(watch))
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if let Some(watch) = &self.0 {
            enter(watch, Stage::Idle);
            SINCE.set(None);
        }
    }
}

/// Enters a stage, and returns the one before.
fn enter(watch: &Watch, stage: Stage) -> Stage {
    let Some((before, since)) = SINCE.get() else { return Stage::Idle };
    let now = Instant::now();
    watch.nanos[before as usize].fetch_add((now - since).as_nanos() as u64, Ordering::Relaxed);
    SINCE.set(Some((stage, now)));
    before
}

/// Does what counts as no time of this thread: it is not wanted now.
pub fn uncounted<T>(watch: &Watch, work: impl FnOnce() -> T) -> T {
    enter(watch, Stage::Idle);
    let counts = SINCE.take().is_some();
    let result = work();
    if counts {
        SINCE.set(Some((Stage::Idle, Instant::now())));
    }
    result
}

/// Does something in a stage.
pub fn within<T>(watch: &Watch, stage: Stage, work: impl FnOnce() -> T) -> T {
    let before = enter(watch, stage);
    let result = work();
    enter(watch, before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_add_up() {
        let mut stages = [Duration::from_nanos(1); STAGES.len()];
        let sides = Sides { source: false, target: true };
        let parts = spent(stages, sides);
        assert_eq!(parts.iter().map(|(_, percent)| percent).sum::<u32>(), 100, "{parts:?}");
        assert_eq!(parts[0], ("source disk", 22));
        assert!(parts.iter().all(|(what, _)| *what != "destination disk"), "{parts:?}");
        stages[Stage::Idle as usize] = Duration::from_secs(9);
        stages[Stage::Flush as usize] = Duration::from_secs(2);
        assert_eq!(limit(stages), Some("flush"));
        let nothing = [Duration::ZERO; STAGES.len()];
        assert_eq!((spent(nothing, sides), limit(nothing)), (vec![], None));
    }

    #[test]
    fn the_time_left_is_told_once_all_is_found() {
        let watch = Watch::default();
        let set = |counter: &AtomicU64, to| counter.store(to, Ordering::Relaxed);
        let second = Duration::from_secs(1);
        set(&watch.names_found, 100);
        set(&watch.names_sized, 50);
        set(&watch.bytes_found, 50 << 20);
        set(&watch.bytes, 25 << 20);
        set(&watch.directories, 1);
        assert_eq!(watch.left(second), None);
        set(&watch.directories, 0);
        assert_eq!(watch.left(second), Some(3 * second));
        set(&watch.bytes_found, 1);
        set(&watch.names, 50);
        assert_eq!(watch.left(second), Some(second));
    }

    #[test]
    fn the_stages_add_up_to_the_whole() {
        let watch = Arc::new(Watch::default());
        let started = Instant::now();
        let clock = Clock::start(watch.clone());
        within(&watch, Stage::Read, || {
            std::thread::sleep(Duration::from_millis(5));
            within(&watch, Stage::Hash, || std::thread::sleep(Duration::from_millis(5)));
        });
        drop(clock);
        let whole = started.elapsed();
        let stages = watch.stages();
        assert!(stages[Stage::Read as usize] >= Duration::from_millis(5), "{stages:?}");
        assert!(stages[Stage::Hash as usize] >= Duration::from_millis(5), "{stages:?}");
        assert!(stages.iter().sum::<Duration>() <= whole, "{stages:?}");
        assert!(STAGES.iter().enumerate().all(|(index, (stage, _))| *stage as usize == index));
    }
}
