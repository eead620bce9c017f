//! What a step of a pipeline counts at one target, so that it can be told later whether that
//! limits, and how: by the number of its operations in flight, for how long there were so many and
//! how many ended then; and how long they took.
//!
//! All of it only grows, so that what lies between two looks is their difference.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Classes of numbers in flight: 0, 1, 2, 3-4, 5-8, 9-16, 17-32, more.
pub const LEVELS: usize = 8;

/// The class of a number in flight.
pub fn level(in_flight: usize) -> usize {
    match in_flight {
        0 => 0,
        some => (1 + some.next_power_of_two().trailing_zeros() as usize).min(LEVELS - 1),
    }
}

/// A number in the middle of a class.
pub fn middle(level: usize) -> f64 {
    const MIDDLES: [f64; LEVELS] = [0.0, 1.0, 2.0, 3.5, 6.5, 12.5, 24.5, 48.5];
    MIDDLES[level.min(LEVELS - 1)]
}

/// A step at one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Station {
    /// Which server, disk or rail; empty: there is but one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Which kind of operation: only those of a kind are compared. Empty: there is but one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Seconds with so many in flight, by [`level`].
    pub time: [f64; LEVELS],
    /// Operations that ended while so many were in flight, the one that ended among them.
    pub done: [f64; LEVELS],
    /// Seconds that all operations took together that have ended.
    pub spent: f64,
    /// Seconds of all operations together, also of those that are under way.
    #[serde(default)]
    pub under_way: f64,
    /// Operations whose time is in the sums below.
    pub count: f64,
    /// The sum of the logarithms of their times in seconds.
    pub log_sum: f64,
    /// The sum of the squares of those.
    pub log_squares: f64,
    /// The sum of the products of each with the one before.
    pub log_lag: f64,
}

impl Station {
    /// Whether this and another are the same target and kind.
    pub fn is_same(&self, other: &Station) -> bool {
        self.target == other.target && self.kind == other.kind
    }

    /// What came since an earlier look.
    #[must_use]
    pub fn since(&self, before: &Station) -> Station {
        let less = |now: f64, before: f64| (now - before).max(0.0);
        Station {
            target: self.target.clone(),
            kind: self.kind.clone(),
            time: std::array::from_fn(|level| less(self.time[level], before.time[level])),
            done: std::array::from_fn(|level| less(self.done[level], before.done[level])),
            spent: less(self.spent, before.spent),
            under_way: less(self.under_way, before.under_way),
            count: less(self.count, before.count),
            // Logarithms of less than a second are negative.
            log_sum: self.log_sum - before.log_sum,
            log_squares: less(self.log_squares, before.log_squares),
            log_lag: self.log_lag - before.log_lag,
        }
    }

    /// Adds what was recorded in another time, or elsewhere in the same.
    pub fn add(&mut self, more: &Station) {
        for level in 0..LEVELS {
            self.time[level] += more.time[level];
            self.done[level] += more.done[level];
        }
        self.spent += more.spent;
        self.under_way += more.under_way;
        self.count += more.count;
        self.log_sum += more.log_sum;
        self.log_squares += more.log_squares;
        self.log_lag += more.log_lag;
    }

    /// Operations that ended.
    pub fn completions(&self) -> f64 {
        self.done.iter().sum()
    }

    /// Seconds in which something was in flight.
    pub fn busy(&self) -> f64 {
        self.time[1..].iter().sum()
    }

    /// How the times of operations follow one another, -1 to 1: the correlation of the logarithm
    /// of each with that of the one before. Those that share a queue follow each other. `None`:
    /// too few, or all alike.
    pub fn autocorrelation(&self) -> Option<f64> {
        /// With fewer the error is above a fifth.
        const COUNT_MIN: f64 = 25.0;
        if self.count < COUNT_MIN {
            return None;
        }
        let mean = self.log_sum / self.count;
        let variance = self.log_squares / self.count - mean * mean;
        let shared = self.log_lag / self.count - mean * mean;
        (variance > 1e-6).then(|| (shared / variance).clamp(-1.0, 1.0))
    }
}

/// Records a step at one target, while it is worked on by several threads. It costs one lock that
/// is held for some instructions at the beginning and at the end of an operation, and no clock.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Counting>);

#[derive(Debug, Default)]
struct Counting {
    in_flight: usize,
    changed: Option<Instant>,
    /// In nanoseconds, as [`Station`] has them.
    time: [u64; LEVELS],
    under_way: u64,
    spent: u64,
    done: [u64; LEVELS],
    count: u64,
    log_sum: f64,
    log_squares: f64,
    log_lag: f64,
    log_before: f64,
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

impl Counting {
    fn advance(&mut self, now: Instant) {
        // Threads come here in another order than they have read the clock.
        let before = self.changed.unwrap_or(now);
        let nanos = now.saturating_duration_since(before).as_nanos() as u64;
        self.time[level(self.in_flight)] += nanos;
        self.under_way += nanos * self.in_flight as u64;
        self.changed = Some(before.max(now));
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// An operation begins, or goes on after it was set aside.
    pub fn begin(&self, now: Instant) {
        let mut counting = self.lock();
        counting.advance(now);
        counting.in_flight += 1;
    }

    /// An operation is set aside, or given up: nothing has ended.
    pub fn leave(&self, now: Instant) {
        let mut counting = self.lock();
        counting.advance(now);
        counting.in_flight = counting.in_flight.saturating_sub(1);
    }

    /// An operation ends that took so long.
    pub fn end(&self, now: Instant, took: Duration) {
        let log = log_of(took);
        let mut counting = self.lock();
        counting.advance(now);
        let level = level(counting.in_flight.max(1));
        counting.done[level] += 1;
        counting.in_flight = counting.in_flight.saturating_sub(1);
        counting.spent += took.as_nanos() as u64;
        let before = if counting.count == 0 { log } else { counting.log_before };
        counting.count += 1;
        counting.log_sum += log;
        counting.log_squares += log * log;
        counting.log_lag += log * before;
        counting.log_before = log;
    }

    /// What was recorded so far, up to `now`; of a target with this name.
    pub fn look(&self, target: &str, now: Instant) -> Station {
        let mut counting = self.lock();
        counting.advance(now);
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        Station {
            target: target.to_owned(),
            kind: String::new(),
            time: counting.time.map(seconds),
            done: counting.done.map(|done| done as f64),
            spent: seconds(counting.spent),
            under_way: seconds(counting.under_way),
            count: counting.count as f64,
            log_sum: counting.log_sum,
            log_squares: counting.log_squares,
            log_lag: counting.log_lag,
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

    #[test]
    fn classes_have_their_middles() {
        for in_flight in 1..=32 {
            let found = level(in_flight);
            assert!((1..LEVELS - 1).contains(&found));
            assert!(middle(found) <= 1.0 + 1.5 * in_flight as f64 && 2.0 * middle(found) > in_flight as f64);
        }
        assert_eq!([0, 1, 2, 3, 4, 5, 33, 1000].map(level), [0, 1, 2, 3, 3, 4, 7, 7]);
    }

    #[test]
    fn times_that_follow_each_other_correlate() {
        let of = |times: &[f64]| {
            let mut station = Station::default();
            let mut before = times[0].ln();
            for time in times {
                let log = time.ln();
                station.count += 1.0;
                station.log_sum += log;
                station.log_squares += log * log;
                station.log_lag += log * before;
                before = log;
            }
            station
        };
        let steps: Vec<f64> = (0..100).map(|at| if at / 25 % 2 == 0 { 0.01 } else { 0.03 }).collect();
        assert!(of(&steps).autocorrelation().unwrap() > 0.8);
        let turns: Vec<f64> = (0..100).map(|at| if at % 2 == 0 { 0.01 } else { 0.03 }).collect();
        assert!(of(&turns).autocorrelation().unwrap() < -0.8);
        assert_eq!(of(&[0.01; 100]).autocorrelation(), None);
        let (first, mut sum) = (of(&steps[..10]), of(&steps[..10]));
        assert_eq!(of(&steps).since(&first).count, 90.0);
        sum.add(&of(&steps).since(&first));
        assert!((sum.log_lag - of(&steps).log_lag).abs() < 1e-9 && sum.count == 100.0);
    }
}
