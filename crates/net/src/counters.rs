//! What connections carry. Each half of a connection tallies in plain numbers, under the lock that
//! it has anyway; what it has tallied is added to shared counters once for each batch.

use aqueduct_metrics::{Counter, Metric, Snapshot, table};

/// Of all connections of one kind.
#[derive(Debug)]
pub struct Counters {
    received: Way,
    sent: Way,
}

#[derive(Debug)]
struct Way {
    frames: Counter,
    bytes: Counter,
    calls: Counter,
}

/// What one half of a connection has carried since it was last asked.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// System calls that moved any.
    pub(crate) calls: u64,
}

impl Way {
    fn sharded() -> Way {
        let [frames, bytes, calls] = [(); 3].map(|()| Counter::sharded());
        Way { frames, bytes, calls }
    }

    fn add(&self, tally: Tally) {
        let Tally { frames, bytes, calls } = tally;
        for (counter, count) in [(&self.frames, frames), (&self.bytes, bytes), (&self.calls, calls)] {
            if count > 0 {
                counter.add(count);
            }
        }
    }
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { received: Way::sharded(), sent: Way::sharded() }
    }
}

impl Counters {
    pub(crate) fn received(&self, tally: Tally) {
        self.received.add(tally);
    }

    pub(crate) fn sent(&self, tally: Tally) {
        self.sent.add(tally);
    }

    /// Puts them into a snapshot: of a `side`, `server` or `client`, and connections of this kind.
    pub fn collect(&self, side: &str, kind: &str, into: &mut Snapshot) {
        let rows: [(&'static Metric<Counter>, &Counter); 6] = [
            (&table::NET_FRAMES_RECEIVED, &self.received.frames),
            (&table::NET_BYTES_RECEIVED, &self.received.bytes),
            (&table::NET_RECEIVES, &self.received.calls),
            (&table::NET_FRAMES_SENT, &self.sent.frames),
            (&table::NET_BYTES_SENT, &self.sent.bytes),
            (&table::NET_SENDS, &self.sent.calls),
        ];
        rows.into_iter().for_each(|(metric, counter)| into.put(metric, &[side, kind], counter));
    }
}
