//! Counters, which only grow, and gauges.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::shard::{self, Padded};

/// A count that only grows: of events, or of bytes. It starts at 0 and wraps after 2^64. The
/// default is for what few threads count, or seldom: 24 bytes.
#[derive(Debug, Default)]
pub struct Counter {
    one: AtomicU64,
    /// Empty, or one for each thread that adds at the same time.
    shards: Box<[Padded<AtomicU64>]>,
}

impl Counter {
    /// For what many workers count with each request, so that they do not share a cache line:
    /// 128 bytes for each of at most twice [`SHARDS_MAX`](crate::SHARDS_MAX) parts.
    pub fn sharded() -> Counter {
        let shards = (0..shard::count()).map(|_| Padded::default()).collect();
        Counter { one: AtomicU64::new(0), shards }
    }

    /// One more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// So many more.
    #[inline]
    pub fn add(&self, count: u64) {
        let (cell, is_own) = match self.shards.len() {
            0 => (&self.one, false),
            parts => {
                let (part, is_own) = shard::of_thread(parts);
                (&self.shards[part].0, is_own)
            }
        };
        shard::add(cell, count, is_own);
    }

    /// How many there are by now. What other threads add meanwhile may be missing.
    pub fn get(&self) -> u64 {
        let parts = self.shards.iter().map(|part| part.0.load(Ordering::Relaxed));
        parts.fold(self.one.load(Ordering::Relaxed), u64::wrapping_add)
    }
}

/// Counts that grow together, with each request: what a thread adds to them lies side by side, so
/// that it is looked for once. 128 bytes, for up to 16 counts, for each of at most twice
/// [`SHARDS_MAX`](crate::SHARDS_MAX) parts.
#[derive(Debug)]
pub struct CounterSet<const N: usize>(Box<[Padded<[AtomicU64; N]>]>);

impl<const N: usize> Default for CounterSet<N> {
    fn default() -> CounterSet<N> {
        CounterSet((0..shard::count()).map(|_| Padded([const { AtomicU64::new(0) }; N])).collect())
    }
}

impl<const N: usize> CounterSet<N> {
    /// So many more of each.
    #[inline]
    pub fn add(&self, counts: [u64; N]) {
        let (part, is_own) = shard::of_thread(self.0.len());
        for (cell, count) in self.0[part].0.iter().zip(counts).filter(|(_, count)| *count > 0) {
            shard::add(cell, count, is_own);
        }
    }

    /// How many there are of each by now, as [`Counter::get`] says.
    pub fn get(&self) -> [u64; N] {
        std::array::from_fn(|at| {
            self.0.iter().fold(0, |sum: u64, part| sum.wrapping_add(part.0[at].load(Ordering::Relaxed)))
        })
    }
}

/// What rises and falls: requests under way, bytes that are held.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count as i64, Ordering::Relaxed);
    }

    /// So many fewer.
    pub fn subtract(&self, count: u64) {
        self.0.fetch_sub(count as i64, Ordering::Relaxed);
    }

    /// So many, from now on.
    pub fn set(&self, count: u64) {
        self.0.store(count as i64, Ordering::Relaxed);
    }

    /// How many there are. Never less than 0, although who adds and who subtracts may be seen in
    /// the wrong order.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_together() {
        for counter in [Counter::default(), Counter::sharded()] {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..1000).for_each(|_| counter.add(3)));
                }
            });
            counter.increment();
            assert_eq!(counter.get(), 12_001);
        }
    }

    /// More threads than there are parts record so much that each asks for one of its own, and
    /// others come when those have ended.
    #[test]
    fn nothing_is_lost_where_parts_change_hands() {
        const EACH: u64 = 30_000;
        let (counter, histogram) = (Counter::sharded(), crate::Histogram::sharded());
        let set = CounterSet::default();
        let records = || {
            (0..EACH).for_each(|number| {
                counter.add(3);
                set.add([2, number % 2, 0]);
                histogram.record(number % 16);
            });
        };
        for _ in 0..10 {
            std::thread::scope(|scope| (0..12).for_each(|_| drop(scope.spawn(records))));
        }
        assert_eq!(counter.get(), 120 * 3 * EACH);
        assert_eq!(set.get(), [120 * 2 * EACH, 120 * EACH / 2, 0]);
        let seen = histogram.snapshot();
        assert_eq!((seen.count(), seen.buckets.len()), (120 * EACH, 16));
    }

    #[test]
    fn a_gauge_is_never_negative() {
        let gauge = Gauge::default();
        gauge.subtract(2);
        assert_eq!(gauge.get(), 0);
        gauge.add(5);
        assert_eq!(gauge.get(), 3);
        gauge.set(9);
        assert_eq!(gauge.get(), 9);
    }
}
