//! What is counted while transfers run: bytes in each tenth of a second, and how long each took. All memory is there before.

use serde::{Deserialize, Serialize};

use super::clock::Nanos;

/// The length of one entry of a series.
pub const BIN: Nanos = 100_000_000;

/// The longest series, an hour: what moves later is not in it.
const BINS_MAX: usize = 36_000;

/// Bytes moved in each tenth of a second from a start.
#[derive(Clone, Debug)]
pub struct Series {
    bins: Vec<u64>,
    start: Nanos,
}

impl Series {
    /// All zero.
    pub fn new() -> Series {
        Series { bins: vec![0; BINS_MAX], start: 0 }
    }

    /// Begins anew.
    pub fn start(&mut self, now: Nanos) {
        self.bins.fill(0);
        self.start = now;
    }

    /// So many bytes were moved by now.
    #[inline]
    pub fn add(&mut self, now: Nanos, bytes: u64) {
        // A tick may lie before the start.
        let bin = (now - self.start).max(0) / BIN;
        if let Some(bin) = self.bins.get_mut(bin as usize) {
            *bin += bytes;
        }
    }

    /// Up to the last that is not zero.
    pub fn bins(&self) -> &[u64] {
        let length = self.bins.iter().rposition(|bytes| *bytes > 0).map_or(0, |last| last + 1);
        &self.bins[..length]
    }
}

/// Adds series that began at different times: each entry to the one that has most of its time.
pub fn add_series<'a>(all: impl Iterator<Item = (Nanos, &'a [u64])> + Clone) -> Vec<u64> {
    let first = all.clone().map(|(start, _)| start).min().unwrap_or_default();
    let mut sum = Vec::new();
    for (start, bins) in all {
        let from = ((start - first + BIN / 2) / BIN).clamp(0, BINS_MAX as Nanos) as usize;
        let length = (from + bins.len()).min(2 * BINS_MAX);
        sum.resize(length.max(sum.len()), 0);
        sum[from..].iter_mut().zip(bins).for_each(|(sum, bytes)| *sum += bytes);
    }
    sum
}

/// Each power of two of nanoseconds is divided into so many, so that percentiles are right to 1 %.
const PARTS_BITS: u32 = 6;
const PARTS: usize = 1 << PARTS_BITS;

/// How often transfers took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    max: Nanos,
}

/// A histogram on its way: only what was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sparse {
    counts: Vec<(u32, u64)>,
    max: Nanos,
}

impl Histogram {
    /// Nothing counted.
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; 64 * PARTS], max: 0 }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.max = 0;
    }

    /// Values below the number of parts have an entry each; above, the leading bits choose it.
    fn index(nanos: u64) -> usize {
        let Some(above) = nanos.checked_ilog2().and_then(|log| log.checked_sub(PARTS_BITS)) else {
            return nanos as usize;
        };
        (above as usize + 1) * PARTS + (nanos >> above) as usize - PARTS
    }

    /// The middle of what an entry counts.
    fn value(index: usize) -> f64 {
        if index < PARTS {
            return index as f64;
        }
        let (above, part) = (index / PARTS - 1, index % PARTS + PARTS);
        (part as f64 + 0.5) * (above as f64).exp2()
    }

    /// One transfer took so long.
    #[inline]
    pub fn add(&mut self, nanos: Nanos) {
        let index = Histogram::index(nanos.max(0) as u64);
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
        }
        self.max = self.max.max(nanos);
    }

    /// What is sent.
    pub fn sparse(&self) -> Sparse {
        let counted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Sparse { counts: counted.map(|(index, count)| (index as u32, *count)).collect(), max: self.max }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Sparse) {
        for (index, count) in &other.counts {
            if let Some(own) = self.counts.get_mut(*index as usize) {
                *own += count;
            }
        }
        self.max = self.max.max(other.max);
    }

    /// The time that this part of all transfers took at most, in seconds. `None` when none was counted.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let all: u64 = self.counts.iter().sum();
        let rank = (percent / 100.0 * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Histogram::value(index).min(self.max as f64) / 1e9)
    }

    /// The longest, in seconds.
    pub fn max(&self) -> f64 {
        self.max as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_series_has_what_was_moved_when() {
        let mut series = Series::new();
        series.start(1000);
        assert_eq!(series.bins(), [0u64; 0]);
        for (at, bytes) in
            [(0, 1), (1000, 2), (BIN + 999, 3), (BIN + 1000, 4), (3 * BIN + 1000, 5), (Nanos::MAX / 2, 9)]
        {
            series.add(at, bytes);
        }
        assert_eq!(series.bins(), [6, 4, 0, 5]);
        series.start(0);
        assert_eq!(series.bins(), [0u64; 0]);
    }

    #[test]
    fn series_are_added_where_they_lie() {
        let all: [(Nanos, &[u64]); 3] =
            [(5 * BIN, &[1, 2]), (7 * BIN + BIN / 3, &[10, 20]), (5 * BIN + BIN * 2 / 3, &[100])];
        assert_eq!(add_series(all.into_iter()), [1, 102, 10, 20]);
        assert_eq!(add_series([].into_iter()), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn percentiles_are_right_to_one_percent(mut times in prop::collection::vec(0i64..10_000_000_000, 1..200), percent in 0.0..100.0f64) {
            let (mut histogram, mut other) = (Histogram::new(), Histogram::new());
            let half = times.len() / 2;
            times[..half].iter().for_each(|time| histogram.add(*time));
            times[half..].iter().for_each(|time| other.add(*time));
            histogram.merge(&other.sparse());
            times.sort_unstable();
            let rank = (percent / 100.0 * times.len() as f64).ceil().max(1.0) as usize;
            let exact = times[rank - 1] as f64 / 1e9;
            let found = histogram.percentile(percent).unwrap();
            prop_assert!((found - exact).abs() <= exact * 0.01 + 1e-9, "{found} {exact}");
            prop_assert_eq!(histogram.max(), *times.last().unwrap() as f64 / 1e9);
        }
    }

    #[test]
    fn nothing_counted_has_no_percentiles() {
        assert_eq!(Histogram::new().percentile(50.0), None);
    }
}
