//! What a step of a pipeline counts at one target, so that it can be told later whether that
//! limits, and how: by the number of its operations in flight, for how long there were so many and
//! how many ended then; and how long they took.
//!
//! All of it only grows, so that what lies between two looks is their difference.

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

#[cfg(test)]
mod tests {
    use super::*;

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
