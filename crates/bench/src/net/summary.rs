//! What all pairs measured of one size, as one row. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::measure::Clocked;
use super::plan::{Counts, Pairs, Test};
use crate::stats::quantile;

/// What a sender tells rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// When it began and ended, on the ranks' common clock.
    pub(super) span: (f64, f64),
    pub(super) clocked: Clocked,
}

/// A row: one size of one test.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) test: Test,
    pub(super) size: u64,
    pub(super) counts: Counts,
    /// OSU's figure: microseconds or 10^6 bytes a second; the median pair's, or the sum for mbw_mr.
    pub(super) value: f64,
    /// Of mbw_mr.
    pub(super) messages_per_second: Option<f64>,
    /// The figure of each pair.
    pub(super) pairs: Vec<f64>,
    /// Of each pair's rounds, in microseconds (of latencies half): shortest, median, 99th percentile, longest.
    pub(super) rounds: Vec<[f64; 4]>,
    /// From the first sender's beginning to the last one's end.
    pub(super) seconds: f64,
}

impl Row {
    pub(super) fn new(test: Test, size: u64, (counts, window): (Counts, usize), told: &[Told]) -> Row {
        let messages = counts.rounds as f64 * window as f64 * if test == Test::Bibw { 2.0 } else { 1.0 };
        let bytes = messages * size as f64;
        let figure = |seconds: f64| match test {
            Test::Latency => seconds * 1e6 / (2.0 * counts.rounds as f64),
            _ => bytes / 1e6 / seconds,
        };
        let pairs: Vec<f64> = told.iter().map(|told| figure(told.clocked.seconds)).collect();
        let first = told.iter().map(|told| told.span.0).fold(f64::INFINITY, f64::min);
        let last = told.iter().map(|told| told.span.1).fold(f64::NEG_INFINITY, f64::max);
        // Of one pair its own clock: the common one is as exact only within a host.
        let seconds = if let [only] = told { only.clocked.seconds } else { last - first };
        let (value, messages_per_second) = if test == Test::MbwMr {
            // Pairs end at different times: the sum of their rates would be more than there ever was.
            let all = told.len() as f64;
            (all * bytes / 1e6 / seconds, Some(all * messages / seconds))
        } else {
            let mut sorted = pairs.clone();
            sorted.sort_by(f64::total_cmp);
            (quantile(&sorted, 0.5), None)
        };
        let share = if test == Test::Latency { 2.0 } else { 1.0 };
        let rounds = told.iter().map(|told| told.clocked.rounds.map(|seconds| seconds * 1e6 / share)).collect();
        Row { test, size, counts, value, messages_per_second, pairs, rounds, seconds }
    }

    /// Smallest, median and largest of the pairs.
    pub(super) fn spread(&self) -> [f64; 3] {
        let mut sorted = self.pairs.clone();
        sorted.sort_by(f64::total_cmp);
        [0.0, 0.5, 1.0].map(|share| quantile(&sorted, share))
    }

    /// Which pair is the slowest.
    pub(super) fn slowest(&self) -> usize {
        let order = |a: &usize, b: &usize| {
            let (a, b) = (self.pairs[*a], self.pairs[*b]);
            if self.test == Test::Latency { a.total_cmp(&b) } else { b.total_cmp(&a) }
        };
        (0..self.pairs.len()).max_by(order).unwrap_or(0)
    }

    /// Over all pairs: the shortest, the median pair's median, the worst pair's 99th percentile, the longest.
    pub(super) fn all_rounds(&self) -> [f64; 4] {
        let of = |at: usize| -> Vec<f64> {
            let mut all: Vec<f64> = self.rounds.iter().map(|rounds| rounds[at]).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        [quantile(&of(0), 0.0), quantile(&of(1), 0.5), quantile(&of(2), 1.0), quantile(&of(3), 1.0)]
    }

    /// Everything, by name.
    pub(super) fn json(&self, pairs: Pairs, hosts: &[String]) -> Value {
        let [min, median, max] = self.spread();
        let [shortest, usual, p99, longest] = self.all_rounds();
        let each = self.pairs.iter().zip(&self.rounds).enumerate().map(|(pair, (value, rounds))| {
            let (sender, receiver) = pairs.ranks(pair);
            let [min, p50, p99, max] = rounds;
            json!({
                "sender": sender, "sender_host": hosts[sender], "receiver": receiver, "receiver_host": hosts[receiver],
                "value": value, "round_us": { "min": min, "p50": p50, "p99": p99, "max": max },
            })
        });
        let (sender, receiver) = pairs.ranks(self.slowest());
        json!({
            "size": self.size, "iterations": self.counts.rounds, "warmup": self.counts.warm_up,
            "value": self.value, "unit": self.test.unit(), "messages_per_second": self.messages_per_second, "seconds": self.seconds,
            "pair_min": min, "pair_median": median, "pair_max": max, "slowest": { "sender": sender, "receiver": receiver },
            "round_us": { "min": shortest, "p50": usual, "p99": p99, "max": longest },
            "pairs": each.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(from: f64, seconds: f64) -> Told {
        Told { span: (from, from + seconds), clocked: Clocked { seconds, rounds: [1e-6, 2e-6, 4e-6, 8e-6] } }
    }

    const COUNTS: Counts = Counts { warm_up: 1, rounds: 100 };

    #[test]
    fn figures_are_defined_as_osu_defines_them() {
        let latency = Row::new(Test::Latency, 8, (COUNTS, 64), &[told(5.0, 0.001)]);
        assert!((latency.value - 5.0).abs() < 1e-9, "{latency:?}");
        assert_eq!(latency.rounds, [[0.5, 1.0, 2.0, 4.0]]);
        let bw = Row::new(Test::Bw, 1000, (COUNTS, 64), &[told(5.0, 0.1)]);
        assert!((bw.value - 64.0).abs() < 1e-9 && bw.messages_per_second.is_none(), "{bw:?}");
        let both = Row::new(Test::Bibw, 1000, (COUNTS, 64), &[told(5.0, 0.1)]);
        assert!((both.value - 128.0).abs() < 1e-9, "{both:?}");
    }

    #[test]
    fn pairs_are_added_over_the_time_of_all() {
        // The second begins later and is slower.
        let row = Row::new(Test::MbwMr, 1000, (COUNTS, 64), &[told(5.0, 0.1), told(5.05, 0.15)]);
        assert!((row.value - 12.8 / 0.2).abs() < 1e-6, "{row:?}");
        assert!((row.messages_per_second.unwrap() - 64_000.0).abs() < 1e-3, "{row:?}");
        assert_eq!((row.slowest(), row.pairs.len()), (1, 2));
        let [min, median, max] = row.spread();
        assert!(min < median && median < max && (max - 64.0).abs() < 1e-6);
    }

    #[test]
    fn the_slowest_pair_is_the_one_with_the_longest_latency_or_the_least_bandwidth() {
        let told = [told(0.0, 0.1), told(0.0, 0.3), told(0.0, 0.2)];
        for test in Test::ALL {
            assert_eq!(Row::new(test, 8, (COUNTS, 64), &told).slowest(), 1, "{test:?}");
        }
        let value = Row::new(Test::Bw, 8, (COUNTS, 64), &told).json(Pairs { count: 3 }, &vec!["h".to_owned(); 6]);
        assert_eq!(
            (value["slowest"]["receiver"].as_u64(), value["pairs"].as_array().map(Vec::len)),
            (Some(4), Some(3))
        );
    }
}
