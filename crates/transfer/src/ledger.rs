//! Where the time of the threads goes: each is at each moment in exactly one stage. And what
//! passes each stage, so that it can be told which one limits: see `aqueduct_metrics::activity`.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_metrics::Recorder;
use aqueduct_metrics::activity::Station;
use aqueduct_worker::lock;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// What is between the others: deciding, remembering.
    Own,
}

/// Their names, in the order of the stages.
pub const STAGES: [(Stage, &str); 10] = [
    (Stage::Walk, "walk"),
    (Stage::Read, "read"),
    (Stage::Hash, "hash"),
    (Stage::Write, "write"),
    (Stage::Attributes, "attributes"),
    (Stage::Flush, "flush"),
    (Stage::Verify, "verify"),
    (Stage::Throttle, "rate"),
    (Stage::Idle, "idle"),
    (Stage::Own, "own"),
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
    /// Whether its operations are counted by how many are under way.
    fn is_operation(self) -> bool {
        !matches!(self, Stage::Throttle | Stage::Idle | Stage::Own)
    }

    /// Where the time of this stage goes: a place in [`SPENT`].
    fn goes(self, sides: Sides) -> usize {
        match self {
            Stage::Walk | Stage::Read => usize::from(sides.source),
            Stage::Hash | Stage::Own => 2,
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

/// How much of sampled operations the thread computed, and could have and waited for a processor.
#[derive(Debug, Default)]
struct Sampled {
    nanos: AtomicU64,
    cpu: AtomicU64,
    runnable: AtomicU64,
}

/// The sums over all threads, and what moved: to be read while it grows.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    nanos: [AtomicU64; STAGES.len()],
    /// What each thread is in, and since when: [`present`].
    lanes: Mutex<Vec<Arc<AtomicU64>>>,
    recorders: [Recorder; STAGES.len()],
    samples: [Sampled; STAGES.len()],
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

impl Default for Watch {
    fn default() -> Watch {
        let zero = AtomicU64::default;
        Watch {
            began: Instant::now(),
            nanos: Default::default(),
            lanes: Mutex::default(),
            recorders: Default::default(),
            samples: Default::default(),
            bytes: zero(),
            names: zero(),
            bytes_found: zero(),
            names_found: zero(),
            names_sized: zero(),
            directories: zero(),
        }
    }
}

/// A stage and its beginning in one number, so that both are read at once.
fn present(stage: Stage, nanos: u64) -> u64 {
    nanos << STAGE_BITS | stage as u64
}

/// Bits of a stage's number.
const STAGE_BITS: u32 = 4;

/// A thread that is not counted.
const UNCOUNTED: u64 = u64::MAX;

/// What was counted of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// Which.
    pub stage: Stage,
    /// Seconds of all threads in it so far.
    pub seconds: f64,
    /// Of some of its operations: seconds that they took, and of these how many the thread
    /// computed, and could have but waited for a processor.
    pub sampled: [f64; 3],
    /// Its operations.
    pub station: Station,
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

    /// The time of all threads in each stage so far, also of what is under way.
    pub fn stages(&self) -> [Duration; STAGES.len()] {
        let mut nanos = self.nanos.each_ref().map(|nanos| nanos.load(Ordering::Relaxed));
        let now = self.nanos_at(Instant::now());
        for lane in lock(&self.lanes).iter() {
            let lane = lane.load(Ordering::Relaxed);
            if lane != UNCOUNTED {
                let stage = (lane & ((1 << STAGE_BITS) - 1)) as usize;
                nanos[stage.min(STAGES.len() - 1)] += now.saturating_sub(lane >> STAGE_BITS);
            }
        }
        nanos.map(Duration::from_nanos)
    }

    /// What was counted of each stage in which a thread was.
    pub fn records(&self) -> Vec<StageRecord> {
        let (stages, now) = (self.stages(), Instant::now());
        let seconds = |nanos: &AtomicU64| nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let record = |(at, (stage, kind)): (usize, &(Stage, &str))| {
            let Sampled { nanos, cpu, runnable } = &self.samples[at];
            (!stages[at].is_zero()).then(|| StageRecord {
                stage: *stage,
                seconds: stages[at].as_secs_f64(),
                sampled: [nanos, cpu, runnable].map(seconds),
                station: Station { kind: (*kind).to_owned(), ..self.recorders[at].look("", now) },
            })
        };
        STAGES.iter().enumerate().filter_map(record).collect()
    }

    fn nanos_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

/// Between two operations of a thread of which is looked how much it computes: a look takes some
/// 3 us.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

/// How long a thread has computed, and waited for a processor, in nanoseconds.
type Used = [u64; 2];

/// What a thread does, and since when.
struct Own {
    lane: Arc<AtomicU64>,
    stage: Stage,
    since: Instant,
    /// Of the operation under way, before others came between.
    spent: Duration,
    /// At the beginning of the operation, if it is one of those that are looked at.
    used: Option<Used>,
    looked: Instant,
    /// This thread's, from the kernel: time it has run, time it has waited for a processor.
    schedule: Option<File>,
}

/// What is set aside while another stage is entered.
struct Outer {
    stage: Stage,
    spent: Duration,
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

impl Own {
    fn new(watch: &Watch) -> Own {
        let (lane, now) = (Arc::new(AtomicU64::new(UNCOUNTED)), Instant::now());
        lock(&watch.lanes).push(lane.clone());
        let schedule = File::open("/proc/thread-self/schedstat").ok();
        let mut own =
            Own { lane, stage: Stage::Own, since: now, spent: Duration::ZERO, used: None, looked: now, schedule };
        own.switch(watch, Stage::Own, now);
        own
    }

    fn switch(&mut self, watch: &Watch, stage: Stage, now: Instant) {
        // What is read between the two is a little too little, and never too much.
        self.lane.store(present(stage, watch.nanos_at(now)), Ordering::Relaxed);
        let took = now.saturating_duration_since(self.since).as_nanos() as u64;
        watch.nanos[self.stage as usize].fetch_add(took, Ordering::Relaxed);
        (self.stage, self.since) = (stage, now);
    }

    fn used(&self) -> Used {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let mut text = [0; 96];
        let length = self.schedule.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
        [cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64, waited]
    }

    fn begin(&mut self, watch: &Watch, stage: Stage) -> Outer {
        let mut now = Instant::now();
        self.used = None; // another operation came between
        if stage.is_operation() && now.saturating_duration_since(self.looked) >= SAMPLE_INTERVAL {
            (self.used, self.looked) = (Some(self.used()), now);
            now = Instant::now();
        }
        let outer = Outer { stage: self.stage, spent: self.spent + now.saturating_duration_since(self.since) };
        if outer.stage.is_operation() {
            watch.recorders[outer.stage as usize].leave(now);
        }
        if stage.is_operation() {
            watch.recorders[stage as usize].begin(now);
        }
        self.switch(watch, stage, now);
        self.spent = Duration::ZERO;
        outer
    }

    fn end(&mut self, watch: &Watch, outer: &Outer) {
        let (now, stage) = (Instant::now(), self.stage);
        let took = self.spent + now.saturating_duration_since(self.since);
        if stage.is_operation() {
            watch.recorders[stage as usize].end(now, took);
        }
        if outer.stage.is_operation() {
            watch.recorders[outer.stage as usize].begin(now);
        }
        self.switch(watch, outer.stage, now);
        self.spent = outer.spent;
        if let Some(before) = self.used.take() {
            let (used, took) = (self.used(), took.as_nanos() as u64);
            let runnable = used[1].saturating_sub(before[1]).min(took);
            let cpu = used[0].saturating_sub(before[0]).min(took - runnable);
            let into = &watch.samples[stage as usize];
            into.nanos.fetch_add(took, Ordering::Relaxed);
            into.cpu.fetch_add(cpu, Ordering::Relaxed);
            into.runnable.fetch_add(runnable, Ordering::Relaxed);
        }
    }
}

/// The time of this thread, until it is dropped; `None`: another has it already.
pub struct Clock(Option<Arc<Watch>>);

impl Clock {
    /// Begins, in no stage but its own.
    pub fn start(watch: Arc<Watch>) -> Clock {
        OWN.with_borrow_mut(|own| {
            if own.is_some() {
                return Clock(None);
            }
            *own = Some(Own::new(&watch));
            Clock(Some(watch))
        })
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if let (Some(watch), Some(mut own)) = (&self.0, OWN.take()) {
            own.switch(watch, Stage::Own, Instant::now());
            lock(&watch.lanes).retain(|lane| !Arc::ptr_eq(lane, &own.lane));
        }
    }
}

/// Does what counts as no time of this thread: it is not wanted now.
pub fn uncounted<T>(watch: &Watch, work: impl FnOnce() -> T) -> T {
    let own = OWN.take().map(|mut own| {
        own.switch(watch, Stage::Own, Instant::now());
        own.lane.store(UNCOUNTED, Ordering::Relaxed);
        own
    });
    let result = work();
    if let Some(mut own) = own {
        own.since = Instant::now();
        own.switch(watch, Stage::Own, own.since);
        OWN.set(Some(own));
    }
    result
}

/// Does something in a stage.
pub fn within<T>(watch: &Watch, stage: Stage, work: impl FnOnce() -> T) -> T {
    let outer = OWN.with_borrow_mut(|own| own.as_mut().map(|own| own.begin(watch, stage)));
    let result = work();
    if let Some(outer) = outer {
        OWN.with_borrow_mut(|own| own.iter_mut().for_each(|own| own.end(watch, &outer)));
    }
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
        assert_eq!(parts[0], ("source disk", 20));
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
        // What is under way counts as well.
        let under_way = within(&watch, Stage::Write, || {
            std::thread::sleep(Duration::from_millis(5));
            watch.records()
        });
        assert!(under_way.iter().any(|of| of.stage == Stage::Write && of.seconds >= 0.005), "{under_way:?}");
        drop(clock);
        let whole = started.elapsed();
        let stages = watch.stages();
        assert!(stages[Stage::Read as usize] >= Duration::from_millis(5), "{stages:?}");
        assert!(stages[Stage::Hash as usize] >= Duration::from_millis(5), "{stages:?}");
        assert!(stages.iter().sum::<Duration>() <= whole, "{stages:?}");
        // Reading was set aside while it hashed: both took half of the time.
        let records = watch.records();
        let of = |stage| records.iter().find(|record| record.stage == stage).unwrap();
        for stage in [Stage::Read, Stage::Hash, Stage::Write] {
            let record = of(stage);
            assert_eq!(record.station.completions(), 1.0, "{record:?}");
            assert!((record.station.spent - record.seconds).abs() < 1e-4, "{record:?}");
            assert!((record.station.under_way - record.seconds).abs() < 1e-4, "{record:?}");
        }
        assert!(lock(&watch.lanes).is_empty());
        assert!(STAGES.iter().enumerate().all(|(index, (stage, _))| *stage as usize == index));
    }
}
