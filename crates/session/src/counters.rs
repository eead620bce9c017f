//! What a session counts: rows of the table of `aqueduct-metrics`.

use std::time::{Duration, Instant};

use aqueduct_metrics::status::ActivityStatus;
use aqueduct_metrics::{Counter, Histogram, Indexed, Recorder, Snapshot, table};
use aqueduct_wire::Op;

/// Of a session, since it connected.
#[derive(Debug)]
pub struct Counters {
    /// Requests that were begun.
    pub operations: Counter,
    /// Payload that came, in bytes.
    pub bytes_read: Counter,
    /// Payload that the server took, in bytes.
    pub bytes_written: Counter,
    /// How often a lost connection was made again.
    pub reconnects: Counter,
    /// Requests that were sent again, since their connection broke.
    pub(crate) repeated: Counter,
    /// Of requests that found no slot free.
    pub(crate) slot_wait: Histogram,
    /// Before the server began with requests, as it says.
    pub(crate) queue_time: Histogram,
    requests: Indexed<Histogram>,
    errors: Indexed<Counter>,
    activity: [Recorder; CLASSES.len()],
    pub(crate) control: aqueduct_net::Counters,
    pub(crate) bulk: aqueduct_net::Counters,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            operations: Counter::sharded(),
            bytes_read: Counter::sharded(),
            bytes_written: Counter::sharded(),
            reconnects: Counter::default(),
            repeated: Counter::default(),
            slot_wait: Histogram::single(),
            queue_time: Histogram::single(),
            requests: Indexed::new(&Op::NAMES, Histogram::sharded),
            errors: Indexed::new(&Op::NAMES, Counter::default),
            activity: Default::default(),
            control: Default::default(),
            bulk: Default::default(),
        }
    }
}

/// Classes of requests, as [`ActivityStatus`] has them.
const CLASSES: [&str; 5] = ["read", "write", "sync", "names", "locks"];

/// The class of an operation; `None`: it is none of a program's.
fn class_of(op: Op) -> Option<usize> {
    match op {
        Op::Read => Some(0),
        Op::Write => Some(1),
        Op::Sync | Op::SyncDirectory | Op::Commit => Some(2),
        Op::SetLock => Some(4),
        Op::Attach | Op::Status | Op::Beat | Op::Transfer | Op::Right => None,
        _ => Some(3),
    }
}

/// A request that is under way, until it is dropped.
pub(crate) struct UnderWay<'a>(Option<&'a Recorder>);

impl UnderWay<'_> {
    /// It was answered.
    pub(crate) fn ends(mut self, took: Duration, now: Instant) {
        if let Some(recorder) = self.0.take() {
            recorder.end(now, took);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(recorder) = self.0 {
            recorder.leave(Instant::now());
        }
    }
}

impl Counters {
    /// A request was sent.
    pub(crate) fn sent(&self, op: Op, now: Instant) -> UnderWay<'_> {
        let recorder = class_of(op).map(|class| &self.activity[class]);
        recorder.iter().for_each(|recorder| recorder.begin(now));
        UnderWay(recorder)
    }

    /// Requests to `server` by how many were under way.
    pub fn activity(&self, server: &str) -> Vec<ActivityStatus> {
        let now = Instant::now();
        let status = |(class, recorder): (&&str, &Recorder)| ActivityStatus {
            class: (*class).to_owned(),
            station: recorder.look(server, now),
        };
        CLASSES
            .iter()
            .zip(&self.activity)
            .map(status)
            .filter(|status| status.station.count > 0.0 || status.station.under_way > 0.0)
            .collect()
    }

    /// The server has answered a request with this status; `took`: since it was sent, unless it
    /// was one that the server had wait.
    pub(crate) fn answered(&self, op: Op, status: u32, took: Option<Duration>) {
        if let Some(took) = took {
            self.requests.at(op.index()).record_duration(took);
        }
        if status != 0 {
            self.errors.at(op.index()).increment();
        }
    }

    /// What is counted here.
    pub(crate) fn collect(&self, into: &mut Snapshot) {
        into.put(&table::SESSION_OPERATIONS, &[], &self.operations);
        into.put_indexed(&table::SESSION_REQUEST_SECONDS, &self.requests);
        into.put_indexed(&table::SESSION_ERRORS, &self.errors);
        into.put(&table::SESSION_REPEATED, &[], &self.repeated);
        into.put(&table::SESSION_BYTES_READ, &[], &self.bytes_read);
        into.put(&table::SESSION_BYTES_WRITTEN, &[], &self.bytes_written);
        into.put(&table::SESSION_RECONNECTS, &[], &self.reconnects);
        into.put(&table::SESSION_SLOT_WAIT_SECONDS, &[], &self.slot_wait);
        into.put(&table::SESSION_QUEUE_SECONDS, &[], &self.queue_time);
        self.control.collect("client", "control", into);
        self.bulk.collect("client", "bulk", into);
    }
}
