//! What ranks say of a phase, and what that is for all of them: pure.

use serde::{Deserialize, Serialize};

use super::clock::{Nanos, seconds};
use super::data::Difference;
use super::tally::{Histogram, Sparse, add_series};
use crate::Failure;

/// When a rank opened, moved data and closed: from and to, each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Opening, or creating.
    pub open: (Nanos, Nanos),
    /// All transfers, and the fsync at their end.
    pub access: (Nanos, Nanos),
    /// Closing.
    pub close: (Nanos, Nanos),
}

/// Wrong data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The place in the file of the first wrong word of a transfer.
    pub offset: u64,
    /// What was written.
    pub expected: u64,
    /// What was read.
    pub found: u64,
    /// Wrong words in the transfer.
    pub words: u64,
}

impl Damage {
    /// In a transfer from this place.
    pub fn new(file: &str, offset: u64, difference: &Difference) -> Damage {
        let Difference { at, expected, found, words } = *difference;
        Damage { file: file.to_owned(), offset: offset + at as u64, expected, found, words }
    }
}

/// What a rank says when a phase has ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// By its own clock.
    pub times: Times,
    /// Complete transfers.
    pub done: u64,
    /// The size of its file; of a shared one only rank 0 says it.
    pub size: u64,
    /// Why it could not go on.
    pub failure: Option<Failure>,
    /// The user wants it to end.
    pub interrupted: bool,
    /// Wrong words.
    pub wrong: u64,
    /// The first of them.
    pub damage: Vec<Damage>,
    /// How long transfers took, where that was measured.
    pub latencies: Option<Sparse>,
    /// Bytes over time, from the start of `access`.
    pub series: Vec<u64>,
    /// Where the deadline stopped the rank: when, from the start of `access`, and its transfers until then.
    pub stonewall: Option<(Nanos, u64)>,
}

/// What rank 0 makes of all outcomes, for all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Why the test cannot go on.
    pub failure: Option<Failure>,
    /// Enough: the user has interrupted it.
    pub interrupted: bool,
    /// Enough: its time is over.
    pub over: bool,
    /// Complete transfers by rank.
    pub done: Vec<u64>,
    /// There is wrong data.
    pub damaged: bool,
}

/// What was measured in one phase of one repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// `write` or `read`.
    pub op: &'static str,
    /// From 0.
    pub repetition: u32,
    /// Bytes that all ranks have moved.
    pub bytes: u64,
    /// Seconds from the first rank's start of opening to the last one's end.
    pub open: f64,
    /// As above, of transfers.
    pub access: f64,
    /// As above, of closing.
    pub close: f64,
    /// Seconds from the first rank's start of opening to the last one's end of closing.
    pub total: f64,
    /// Transfers of all ranks by `access`.
    pub iops: f64,
    /// Seconds that a transfer took on average for the rank with the best average.
    pub latency: f64,
    /// Each rank's own bytes by its own time, in MiB/s.
    pub rates: Vec<f64>,
    /// 50, 99 and 100 %, in seconds.
    pub percentiles: Option<[f64; 3]>,
    /// Bytes in each tenth of a second.
    pub series: Vec<u64>,
    /// Seconds until the deadline had stopped all, and bytes until then, where ranks went on to the same amount.
    pub stonewall: Option<(f64, u64)>,
}

/// A byte count as MiB.
pub fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// Nothing is faster than one tick of the clock: no rate is infinite.
const SHORTEST: f64 = 1e-9;

impl Measurement {
    /// From what all ranks say; `offsets` is by how much each rank's clock is ahead of rank 0's.
    pub fn new(
        (op, repetition, transfer): (&'static str, u32, u64),
        outcomes: &[Outcome],
        offsets: &[Nanos],
    ) -> Measurement {
        let offset = |rank: usize| offsets.get(rank).copied().unwrap_or_default();
        let span = |part: fn(&Times) -> (Nanos, Nanos)| -> (Nanos, Nanos) {
            let all = outcomes.iter().enumerate().map(|(rank, outcome)| (part(&outcome.times), offset(rank)));
            let from = all.clone().map(|((from, _), offset)| from - offset).min().unwrap_or_default();
            (from, all.map(|((_, to), offset)| to - offset).max().unwrap_or_default())
        };
        let (open, access, close) = (span(|times| times.open), span(|times| times.access), span(|times| times.close));
        let length = |(from, to): (Nanos, Nanos)| seconds(to - from).max(SHORTEST);
        let own = |outcome: &Outcome| seconds(outcome.times.access.1 - outcome.times.access.0).max(SHORTEST);
        let done: u64 = outcomes.iter().map(|outcome| outcome.done).sum();
        let bytes = done * transfer;
        let averages = outcomes.iter().filter(|outcome| outcome.done > 0);
        let latency = averages.map(|outcome| own(outcome) / outcome.done as f64).fold(f64::INFINITY, f64::min);
        let all_rates = |outcome: &Outcome| {
            let total = seconds(outcome.times.close.1 - outcome.times.open.0).max(SHORTEST);
            mib((outcome.done * transfer) as f64) / total
        };
        let series = outcomes.iter().enumerate();
        let series = series.map(|(rank, outcome)| (outcome.times.access.0 - offset(rank), outcome.series.as_slice()));
        Measurement {
            op,
            repetition,
            bytes,
            open: length(open),
            access: length(access),
            close: length(close),
            total: length((open.0, close.1)),
            iops: done as f64 / length(access),
            latency: if latency.is_finite() { latency } else { 0.0 },
            rates: outcomes.iter().map(all_rates).collect(),
            percentiles: percentiles(outcomes),
            series: add_series(series),
            stonewall: stonewall(outcomes, transfer),
        }
    }

    /// The rate by which IOR judges: all bytes by the time from the first open to the last close.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.total
    }
}

fn percentiles(outcomes: &[Outcome]) -> Option<[f64; 3]> {
    let mut all = Histogram::new();
    outcomes.iter().filter_map(|outcome| outcome.latencies.as_ref()).for_each(|sparse| all.merge(sparse));
    Some([all.percentile(50.0)?, all.percentile(99.0)?, all.max()])
}

fn stonewall(outcomes: &[Outcome], transfer: u64) -> Option<(f64, u64)> {
    let last = outcomes.iter().filter_map(|outcome| outcome.stonewall.map(|(time, _)| time)).max()?;
    let done: u64 = outcomes.iter().filter_map(|outcome| outcome.stonewall.map(|(_, done)| done)).sum();
    Some((seconds(last), done * transfer))
}

/// What the summary says of one operation: greatest, least, mean and standard deviation (of all values, as IOR's).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The greatest.
    pub max: f64,
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Spread {
    /// Of these; zeros of none.
    pub fn of(values: &[f64]) -> Spread {
        if values.is_empty() {
            return Spread::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let (max, min) =
            values.iter().fold((f64::MIN, f64::MAX), |(max, min), value| (max.max(*value), min.min(*value)));
        Spread { max, min, mean, deviation: variance.sqrt() }
    }
}

/// Ranks of which a time is further from the mean than `threshold` seconds, as IOR warns of them: a line each.
pub fn outliers(op: &str, outcomes: &[Outcome], offsets: &[Nanos], threshold: f64) -> Vec<String> {
    let ahead = |rank: usize| offsets.get(rank).copied().unwrap_or_default();
    let first = outcomes.iter().enumerate().map(|(rank, outcome)| outcome.times.open.0 - ahead(rank)).min();
    let first = first.unwrap_or_default();
    type Part = fn(&Times) -> Nanos;
    let kinds: [(&str, Part, bool); 5] = [
        ("start time", |times| times.open.0, true),
        ("elapsed create time", |times| times.open.1 - times.open.0, false),
        ("elapsed transfer time", |times| times.access.1 - times.access.0, false),
        ("elapsed close time", |times| times.close.1 - times.close.0, false),
        ("end time", |times| times.close.1, true),
    ];
    let mut warnings = Vec::new();
    for (name, part, is_point) in kinds {
        let value = |(rank, outcome): (usize, &Outcome)| {
            let point = if is_point { first + ahead(rank) } else { 0 };
            seconds(part(&outcome.times) - point)
        };
        let values: Vec<f64> = outcomes.iter().enumerate().map(value).collect();
        let Spread { mean, deviation, .. } = Spread::of(&values);
        for (rank, value) in values.iter().enumerate().filter(|(_, value)| (*value - mean).abs() > threshold) {
            warnings.push(format!(
                "WARNING: for task {rank}, {op} {name} is {value:.6} (mean={mean:.6}, stddev={deviation:.6})"
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn outcome(start: Nanos, access: Nanos, done: u64) -> Outcome {
        let at = |from, to| (start + from, start + to);
        let (opened, accessed) = (SECOND / 10, SECOND / 10 + access);
        let times =
            Times { open: at(0, opened), access: at(opened, accessed), close: at(accessed, accessed + SECOND / 5) };
        Outcome { times, done, ..Outcome::default() }
    }

    #[test]
    fn times_go_from_the_first_start_to_the_last_end() {
        // The second rank begins half a second later; its clock is 100 seconds ahead.
        let outcomes = [outcome(0, 2 * SECOND, 8), outcome(100 * SECOND + SECOND / 2, SECOND, 8)];
        let measured = Measurement::new(("write", 0, 1 << 20), &outcomes, &[0, 100 * SECOND]);
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value} {expected}");
        near(measured.open, 0.6);
        near(measured.access, 2.0);
        near(measured.close, 0.7);
        near(measured.total, 2.3);
        near(measured.iops, 8.0);
        near(measured.latency, 0.125);
        near(measured.rate(), 16.0 * 1_048_576.0 / 2.3);
        near(measured.rates[0], 8.0 / 2.3);
        near(measured.rates[1], 8.0 / 1.3);
        assert_eq!((measured.bytes, measured.percentiles, measured.stonewall), (16 << 20, None, None));
    }

    #[test]
    fn nothing_moved_is_no_infinity() {
        let measured = Measurement::new(("read", 0, 8), &[Outcome::default()], &[]);
        assert_eq!((measured.bytes, measured.latency, measured.rate()), (0, 0.0, 0.0));
        assert!(measured.iops == 0.0 && measured.rates == [0.0]);
    }

    #[test]
    fn stonewalled_data_are_those_of_all_ranks_until_the_last_has_stopped() {
        let with = |time, done| Outcome { stonewall: Some((time, done)), ..outcome(0, SECOND, 9) };
        let measured = Measurement::new(("write", 0, 10), &[with(SECOND, 5), with(2 * SECOND, 7)], &[]);
        assert_eq!((measured.stonewall, measured.bytes), (Some((2.0, 120)), 180));
    }

    #[test]
    fn the_deviation_is_that_of_all_values() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((spread.max, spread.min, spread.mean, spread.deviation), (9.0, 2.0, 5.0, 2.0));
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn outliers_are_named() {
        let outcomes = [outcome(0, SECOND, 1), outcome(0, SECOND, 1), outcome(0, 7 * SECOND, 1)];
        let warnings = outliers("write", &outcomes, &[], 3.0);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("WARNING: for task 2, write elapsed transfer time is 7.000000 (mean=3.000000"));
        assert!(warnings[1].contains("end time"));
        assert!(outliers("write", &outcomes, &[], 5.0).is_empty());
    }
}
