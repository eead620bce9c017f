//! What connections carry. Each half of a connection tallies in plain numbers, under the lock that
//! it has anyway; what it has tallied is added to shared counters once for each batch.

use aqueduct_metrics::{Counter, CounterSet, Metric, Snapshot, table};

/// Of all connections of one kind.
#[derive(Debug, Default)]
pub struct Counters {
    received: Way,
    sent: Way,
}

/// Frames, bytes, and system calls.
type Way = CounterSet<3>;

/// What one half of a connection has carried since it was last asked.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// System calls that moved any.
    pub(crate) calls: u64,
}

impl Tally {
    fn add_to(self, way: &Way) {
        let Tally { frames, bytes, calls } = self;
        way.add([frames, bytes, calls]);
    }
}

impl Counters {
    pub(crate) fn received(&self, tally: Tally) {
        tally.add_to(&self.received);
    }

    pub(crate) fn sent(&self, tally: Tally) {
        tally.add_to(&self.sent);
    }

    /// Puts them into a snapshot: of a `side`, `server` or `client`, and connections of this kind.
    pub fn collect(&self, side: &str, kind: &str, into: &mut Snapshot) {
        type Metrics = [&'static Metric<Counter>; 3];
        const RECEIVED: Metrics = [&table::NET_FRAMES_RECEIVED, &table::NET_BYTES_RECEIVED, &table::NET_RECEIVES];
        const SENT: Metrics = [&table::NET_FRAMES_SENT, &table::NET_BYTES_SENT, &table::NET_SENDS];
        for (metrics, way) in [(RECEIVED, &self.received), (SENT, &self.sent)] {
            metrics
                .into_iter()
                .zip(way.get())
                .for_each(|(metric, count)| into.put_number(metric, &[side, kind], count));
        }
    }
}
