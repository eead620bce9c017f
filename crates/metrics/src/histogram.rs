//! Log-linear histograms: each power of two is cut into 8 parts of the same width, so that the
//! relative error is the same for all values (as HdrHistogram does it).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shard::{self, Padded};

/// Each power of two has 2^3 parts.
const PARTS_LOG2: u32 = 3;

/// Values from this on are counted in the last bucket: 2^40, which is 18 minutes in nanoseconds
/// and 1 TiB in bytes.
pub const VALUE_MAX: u64 = 1 << VALUE_BITS;
pub(crate) const VALUE_BITS: u32 = 40;

/// Buckets of a histogram. Values below 16 have one each.
pub const BUCKETS: usize = ((VALUE_BITS - PARTS_LOG2 + 1) << PARTS_LOG2) as usize;

/// A quantile is the middle of its bucket, which is an eighth of its lower bound wide at most.
pub const QUANTILE_ERROR_MAX: f64 = 1.0 / 16.0;

/// The distribution of durations in nanoseconds, or of sizes in bytes. Fixed memory:
/// [`BUCKETS`] + 1 counts of 8 bytes (2.5 KiB) for each of at most twice
/// [`SHARDS_MAX`](crate::SHARDS_MAX) parts.
#[derive(Debug)]
pub struct Histogram(Box<[Padded<Part>]>);

#[derive(Debug)]
struct Part {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Part {
    fn default() -> Part {
        Part { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    let value = value.min(VALUE_MAX - 1);
    let exponent = (63 - (value | 1).leading_zeros()).max(PARTS_LOG2);
    let shift = exponent - PARTS_LOG2;
    // Below 8 this is the value itself; then each power of two begins a row of 8.
    ((shift << PARTS_LOG2) as usize) + (value >> shift) as usize
}

/// The values of a bucket: the first, and how many.
fn range(bucket: usize) -> (u64, u64) {
    let shift = (bucket >> PARTS_LOG2).saturating_sub(1);
    let first = (bucket - (shift << PARTS_LOG2)) as u64;
    (first << shift, 1 << shift)
}

impl Histogram {
    /// For what many workers record with each request.
    pub fn sharded() -> Histogram {
        Histogram((0..shard::count()).map(|_| Padded::default()).collect())
    }

    /// For what few threads record, or seldom.
    pub fn single() -> Histogram {
        Histogram(Box::new([Padded::default()]))
    }

    /// One more of this value.
    #[inline]
    pub fn record(&self, value: u64) {
        let (part, is_own) = match self.0.len() {
            1 => (0, false),
            parts => shard::of_thread(parts),
        };
        let part = &self.0[part].0;
        shard::add(&part.buckets[bucket(value)], 1, is_own);
        shard::add(&part.sum, value, is_own);
    }

    /// One more of this duration.
    #[inline]
    pub fn record_duration(&self, duration: Duration) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds what another one held.
    pub(crate) fn add(&self, other: &HistogramSnapshot) {
        let part = &self.0[shard::first_shared(self.0.len())].0;
        for (bucket, count) in &other.buckets {
            part.buckets[usize::from(*bucket).min(BUCKETS - 1)].fetch_add(*count, Ordering::Relaxed);
        }
        part.sum.fetch_add(other.sum, Ordering::Relaxed);
    }

    /// What has been recorded. A value that another thread records meanwhile may be in the
    /// buckets and not in the sum.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let load =
            |bucket: usize| -> u64 { self.0.iter().map(|part| part.0.buckets[bucket].load(Ordering::Relaxed)).sum() };
        let counts = (0..BUCKETS).map(|bucket| (bucket as u16, load(bucket)));
        let sums = self.0.iter().map(|part| part.0.sum.load(Ordering::Relaxed));
        HistogramSnapshot {
            sum: sums.fold(0, u64::wrapping_add),
            buckets: counts.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// What a histogram held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// The sum of all values; it wraps after 2^64 (585 years of nanoseconds).
    pub sum: u64,
    /// The buckets with values: their numbers, which grow, and how many values each has.
    pub buckets: Vec<(u16, u64)>,
}

impl HistogramSnapshot {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The mean of all values; 0 when there are none.
    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.sum as f64 / count as f64,
        }
    }

    /// The value that the fraction `quantile` (0 to 1) of all values does not exceed, with a
    /// relative error of at most [`QUANTILE_ERROR_MAX`] for values below [`VALUE_MAX`]; `None`
    /// when there are none.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let count = self.count();
        let rank = ((count as f64 * quantile).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0u64;
        for (bucket, count) in &self.buckets {
            below = below.saturating_add(*count);
            if below >= rank {
                let (first, width) = range(usize::from(*bucket).min(BUCKETS - 1));
                return Some(first as f64 + (width - 1) as f64 / 2.0);
            }
        }
        None
    }

    /// The values of the buckets, each by the least and the greatest that it counts, with how
    /// many there are. The last bucket counts all that are greater as well.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.buckets.iter().map(|(bucket, count)| {
            let (first, width) = range(usize::from(*bucket).min(BUCKETS - 1));
            (first, first + (width - 1), *count)
        })
    }

    /// Adds what another histogram held.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        self.combine(other, u64::saturating_add);
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Leaves what was recorded since `earlier`, a snapshot of the same histogram.
    pub fn subtract(&mut self, earlier: &HistogramSnapshot) {
        self.combine(earlier, u64::saturating_sub);
        self.sum = self.sum.wrapping_sub(earlier.sum);
    }

    fn combine(&mut self, other: &HistogramSnapshot, with: impl Fn(u64, u64) -> u64) {
        let mut counts = std::collections::BTreeMap::from_iter(self.buckets.drain(..));
        for (bucket, count) in &other.buckets {
            let own = counts.entry(*bucket).or_default();
            *own = with(*own, *count);
        }
        self.buckets = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    }

    /// Leaves one bucket of each power of two, its middle one, for where there is little room:
    /// at most [`BUCKETS`] / 8 of them. Quantiles are then off by 60 % at most.
    pub fn coarsen(&mut self) {
        let parts = 1 << PARTS_LOG2;
        let middle = |bucket: u16| (bucket & !(parts - 1)) + parts / 2;
        let mut coarse: Vec<(u16, u64)> = Vec::with_capacity(self.buckets.len());
        for (bucket, count) in &self.buckets {
            match coarse.last_mut() {
                Some((last, sum)) if *last == middle(*bucket) => *sum = sum.saturating_add(*count),
                _ => coarse.push((middle(*bucket), *count)),
            }
        }
        self.buckets = coarse;
    }
}

#[cfg(test)]
#[path = "histogram_tests.rs"]
mod tests;
