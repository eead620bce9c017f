//! Records a step at one target, while several threads work on it.
//!
//! How many operations are under way, and since when so many, is one number that each of them
//! changes at its beginning and its end. What follows from that is added to a part of the
//! recorder that is the thread's own, as counters are ([`crate::shard`]): no lock, and no clock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::activity::{LEVELS, Station, level};
use crate::shard::{self, Padded};

/// The bits of how many are under way. More are not told apart, nor are more than 32 in a
/// [`Station`].
const UNDER_WAY_BITS: u32 = 16;
const UNDER_WAY_MAX: u64 = (1 << UNDER_WAY_BITS) - 1;

/// Times are kept in units of so many nanoseconds, so that they begin anew after 208 days, and a
/// pause of up to half of that is no confusion.
const TICK_NANOS: u64 = 64;
const TICKS_MAX: u64 = u64::MAX >> UNDER_WAY_BITS;

/// Records a step at one target, while it is worked on by several threads.
#[derive(Debug)]
pub struct Recorder {
    shared: Padded<Shared>,
    parts: Box<[Padded<Part>]>,
}

/// What each operation reads and changes.
#[derive(Debug, Default)]
struct Shared {
    /// Since when so many are under way: a time in ticks, and behind it their number. 0: there
    /// were none yet.
    state: AtomicU64,
    /// The logarithm of the time of the last one, as bits.
    log_before: AtomicU64,
}

/// What a thread has added, or several.
#[derive(Debug, Default)]
struct Part {
    /// In ticks, as [`Station`] has them.
    time: [AtomicU64; LEVELS],
    under_way: AtomicU64,
    done: [AtomicU64; LEVELS],
    /// In nanoseconds.
    spent: AtomicU64,
    /// Bits of numbers with a fraction: the sums of the logarithms, of their squares, of the
    /// products of each with the one before.
    logs: [AtomicU64; 3],
}

impl Default for Recorder {
    fn default() -> Recorder {
        let parts = (0..shard::count()).map(|_| Padded::default()).collect();
        Recorder { shared: Padded::default(), parts }
    }
}

/// A time in ticks, of those that [`Shared::state`] has room for; not 0, which is none.
fn ticks(now: Instant) -> u64 {
    /// Before the first, so that one that was read before it and comes later is told from it.
    const BEFORE: Duration = Duration::from_secs(3600);
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(|| now.checked_sub(BEFORE).unwrap_or(now));
    let nanos = now.saturating_duration_since(*start).as_nanos() as u64;
    ((nanos / TICK_NANOS + 1) & TICKS_MAX).max(1)
}

/// The natural logarithm of a time in seconds, to 2e-5. The C library's is exact, takes several
/// times as long, and reads tables that each request would have to bring into the caches.
fn log_of(took: Duration) -> f64 {
    const LOG_OF_NANOSECOND: f64 = -20.723_265_836_946_41;
    const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    let bits = ((took.as_nanos() as u64).max(1) as f64).to_bits();
    let one = 1f64.to_bits();
    let exponent = (bits >> FRACTION_BITS) as i64 - (one >> FRACTION_BITS) as i64;
    let mantissa = f64::from_bits(bits & ((1 << FRACTION_BITS) - 1) | one);
    // Of 1 to 2, by the series of the area hyperbolic tangent.
    let part = (mantissa - 1.0) / (mantissa + 1.0);
    let square = part * part;
    let series = part * (2.0 + square * (2.0 / 3.0 + square * (2.0 / 5.0 + square * (2.0 / 7.0))));
    exponent as f64 * std::f64::consts::LN_2 + series + LOG_OF_NANOSECOND
}

/// Adds to a number with a fraction that is nobody else's to write, if `is_own`.
fn add_fraction(cell: &AtomicU64, more: f64, is_own: bool) {
    let sum = |bits: u64| (f64::from_bits(bits) + more).to_bits();
    match is_own {
        true => cell.store(sum(cell.load(Ordering::Relaxed)), Ordering::Relaxed),
        false => _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| Some(sum(bits))),
    }
}

impl Shared {
    /// So many more are under way, or fewer. Returns for how many ticks how many were before.
    fn change(&self, now: Instant, by: i64) -> (u64, u64) {
        let now = ticks(now);
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (since, before) = (state >> UNDER_WAY_BITS, state & UNDER_WAY_MAX);
            let passed = now.wrapping_sub(since) & TICKS_MAX;
            // Threads come here in another order than they have read the clock.
            let is_late = state != 0 && passed > TICKS_MAX / 2;
            let passed = if state == 0 || is_late { 0 } else { passed };
            let since = if is_late { since } else { now };
            let after = before.saturating_add_signed(by).min(UNDER_WAY_MAX);
            let next = since << UNDER_WAY_BITS | after;
            match self.state.compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (passed, before),
                Err(found) => state = found,
            }
        }
    }
}

impl Recorder {
    /// So many more are under way. Returns how many were before, and where the caller adds what
    /// follows, as [`shard::of_thread`] says.
    fn change(&self, now: Instant, by: i64) -> (usize, &Part, bool) {
        let (passed, before) = self.shared.0.change(now, by);
        let (at, is_own) = shard::of_thread(self.parts.len());
        let part = &self.parts[at].0;
        shard::add(&part.time[level(before as usize)], passed, is_own);
        if before > 0 {
            shard::add(&part.under_way, passed * before, is_own);
        }
        (before as usize, part, is_own)
    }

    /// An operation begins, or goes on after it was set aside.
    pub fn begin(&self, now: Instant) {
        self.change(now, 1);
    }

    /// An operation is set aside, or given up: nothing has ended.
    pub fn leave(&self, now: Instant) {
        self.change(now, -1);
    }

    /// An operation ends that took so long.
    pub fn end(&self, now: Instant, took: Duration) {
        let log = log_of(took);
        let (before, part, is_own) = self.change(now, -1);
        shard::add(&part.done[level(before.max(1))], 1, is_own);
        shard::add(&part.spent, took.as_nanos() as u64, is_own);
        // Two that end at once may both follow the same: nobody is to wait for that.
        let last = match self.shared.0.log_before.load(Ordering::Relaxed) {
            0 => log,
            bits => f64::from_bits(bits),
        };
        self.shared.0.log_before.store(log.to_bits(), Ordering::Relaxed);
        for (sum, more) in part.logs.iter().zip([log, log * log, log * last]) {
            add_fraction(sum, more, is_own);
        }
    }

    /// What was recorded so far, up to `now`; of a target with this name. What other threads
    /// record meanwhile may be missing.
    pub fn look(&self, target: &str, now: Instant) -> Station {
        self.change(now, 0);
        let sum = |of: &dyn Fn(&Part) -> &AtomicU64| -> u64 {
            self.parts.iter().fold(0, |sum, part| sum.wrapping_add(of(&part.0).load(Ordering::Relaxed)))
        };
        let log = |at: usize| -> f64 {
            self.parts.iter().map(|part| f64::from_bits(part.0.logs[at].load(Ordering::Relaxed))).sum()
        };
        let seconds = |ticks: u64| ticks as f64 * TICK_NANOS as f64 / 1e9;
        let done: [f64; LEVELS] = std::array::from_fn(|level| sum(&|part| &part.done[level]) as f64);
        Station {
            target: target.to_owned(),
            kind: String::new(),
            time: std::array::from_fn(|level| seconds(sum(&|part| &part.time[level]))),
            spent: sum(&|part| &part.spent) as f64 / 1e9,
            under_way: seconds(sum(&|part| &part.under_way)),
            count: done.iter().sum(),
            done,
            log_sum: log(0),
            log_squares: log(1),
            log_lag: log(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_near_those_of_the_library() {
        let times = (0..60).flat_map(|power| [0, 1, (1u64 << power) / 3].map(|more| (1u64 << power) + more));
        for nanos in times.chain([0, 999_999_999, 1_000_000_000]) {
            let (took, exact) = (Duration::from_nanos(nanos), (nanos.max(1) as f64 / 1e9).ln());
            assert!((log_of(took) - exact).abs() < 2e-5, "of {nanos} ns: {} is not {exact}", log_of(took));
        }
    }

    #[test]
    fn what_is_under_way_is_counted_by_how_many_there_are() {
        let (recorder, start) = (Recorder::default(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        recorder.begin(at(0));
        recorder.begin(at(100));
        recorder.end(at(400), Duration::from_millis(400));
        recorder.leave(at(600));
        recorder.begin(at(900));
        let told = recorder.look("a", at(1000));
        let close = |one: f64, other: f64| (one - other).abs() < 1e-6;
        assert!(close(told.time[0], 0.3) && close(told.time[1], 0.4) && close(told.time[2], 0.3), "{told:?}");
        assert!(close(told.under_way, 1.0) && close(told.spent, 0.4), "{told:?}");
        assert_eq!((told.done, told.target.as_str()), ([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "a"));
        // One thread has read the clock before another, and comes after it.
        recorder.end(at(950), Duration::from_millis(50));
        assert!(close(recorder.look("a", at(1000)).since(&told).under_way, 0.0));
    }

    /// Also of threads that have no part of their own, and whose clocks were read in another order.
    #[test]
    fn nothing_is_lost_of_what_threads_do_at_once() {
        const EACH: u64 = 20_000;
        let (recorder, start) = (Recorder::default(), Instant::now());
        let took = Duration::from_micros(10);
        let works = |thread: u64| {
            for number in 0..EACH {
                let began = start + took * (number + thread) as u32;
                recorder.begin(began);
                recorder.end(began + took, took);
            }
        };
        std::thread::scope(|scope| {
            (0..6).for_each(|thread| drop(scope.spawn(move || works(thread))));
        });
        let (end, close) = (start + took * (EACH + 6) as u32, |one: f64, other: f64| (one / other - 1.0).abs() < 1e-6);
        let told = recorder.look("a", end);
        assert_eq!((told.count, told.done.iter().sum::<f64>()), (6.0 * EACH as f64, 6.0 * EACH as f64));
        assert!(close(told.spent, 6.0 * EACH as f64 * took.as_secs_f64()), "{told:?}");
        let log = log_of(took);
        assert!(close(told.log_sum, told.count * log) && close(told.log_lag, told.count * log * log), "{told:?}");
        assert!(close(told.log_squares, told.log_lag), "all took as long");
        let whole = (end - start).as_secs_f64();
        assert!(told.time.iter().sum::<f64>() <= whole + 1e-6, "{told:?}");
        assert_eq!(recorder.shared.0.state.load(Ordering::Relaxed) & UNDER_WAY_MAX, 0);
    }

    /// A pause may be long, and the time begins anew.
    #[test]
    fn times_begin_anew_without_a_gap() {
        let (shared, now) = (Shared::default(), Instant::now());
        shared.change(now, 1);
        let near_end = (TICKS_MAX - 5) << UNDER_WAY_BITS | 1;
        shared.state.store(near_end, Ordering::Relaxed);
        let (passed, before) = shared.change(now, -1);
        assert_eq!((passed, before), (ticks(now) + 6, 1));
        shared.state.store((ticks(now) + 9) << UNDER_WAY_BITS | 3, Ordering::Relaxed);
        assert_eq!(shared.change(now, 1), (0, 3), "it was read before the last");
        assert_eq!(shared.state.load(Ordering::Relaxed), (ticks(now) + 9) << UNDER_WAY_BITS | 4);
        assert_eq!(shared.change(now, -9).1, 4);
        assert_eq!(shared.state.load(Ordering::Relaxed) & UNDER_WAY_MAX, 0);
    }
}
