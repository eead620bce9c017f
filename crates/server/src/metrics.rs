//! What a server counts: rows of the table of `aqueduct-metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use aqueduct_metrics::table::{self, CLIENTS_MAX, EXPORTS_MAX, JOBS_MAX};
use aqueduct_metrics::{Absorb, Counter, Family, Histogram, Indexed, Series, Snapshot};
use aqueduct_wire::{Lane, Op};
use aqueduct_worker::lock;

/// Of one session, client or export.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) operations: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    /// In nanoseconds: how long requests took, and waited for leases of others.
    pub(crate) served: Counter,
    pub(crate) lease_wait: Counter,
}

impl Traffic {
    fn get(&self) -> [u64; 5] {
        [&self.operations, &self.bytes_read, &self.bytes_written, &self.served, &self.lease_wait].map(Counter::get)
    }

    pub(crate) fn count(&self, read: u64, written: u64) {
        self.operations.increment();
        if read > 0 {
            self.bytes_read.add(read);
        }
        if written > 0 {
            self.bytes_written.add(written);
        }
    }
}

impl Absorb for Traffic {
    fn absorb(&self, other: &Traffic) {
        self.operations.absorb(&other.operations);
        self.bytes_read.absorb(&other.bytes_read);
        self.bytes_written.absorb(&other.bytes_written);
        self.served.absorb(&other.served);
        self.lease_wait.absorb(&other.lease_wait);
    }
}

/// What a session has asked for. It is counted once, here; what its client and its export come to
/// is summed when somebody asks.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) own: Traffic,
    /// Where it goes when the session is over: of its client, and of its export.
    of: OnceLock<(Series<Traffic>, Series<Traffic>)>,
}

impl Counters {
    /// One more request, with the bytes that were read and written.
    pub(crate) fn count(&self, read: usize, written: usize) {
        self.own.count(read as u64, written as u64);
    }
}

/// The counters of sessions with an export, also of those that are over until somebody looks.
#[derive(Debug, Default)]
struct Counted {
    all: Vec<Arc<Counters>>,
    swept_at: usize,
}

/// So many are looked through at least before those that are over are given up.
const SWEPT_MIN: usize = 64;

impl Counted {
    fn add(&mut self, counters: Arc<Counters>) {
        if self.all.len() >= self.swept_at.max(SWEPT_MIN) {
            self.sweep();
            self.swept_at = self.all.len() * 2;
        }
        self.all.push(counters);
    }

    /// Moves what was counted for sessions that are over to their clients and exports.
    fn sweep(&mut self) {
        self.all.retain(|counters| {
            let is_over = Arc::strong_count(counters) == 1;
            if let Some((client, export)) = counters.of.get().filter(|_| is_over) {
                client.absorb(&counters.own);
                export.absorb(&counters.own);
            }
            !is_over
        });
    }

    /// What there is under each value of a label, which is that of one of a session's two series.
    fn sums<'a>(
        &'a self,
        of: &Family<Traffic>,
        which: impl Fn(&'a (Series<Traffic>, Series<Traffic>)) -> &'a Series<Traffic>,
    ) -> BTreeMap<String, [u64; 5]> {
        let mut sums = BTreeMap::new();
        of.for_each(|name, traffic| _ = sums.insert(name.to_owned(), traffic.get()));
        for counters in &self.all {
            let Some(name) = counters.of.get().map(|of| which(of).name()) else { continue };
            let Some(sum) = sums.get_mut(name) else { continue };
            sum.iter_mut().zip(counters.own.get()).for_each(|(sum, count)| *sum += count);
        }
        sums
    }
}

/// Of the files of sessions.
#[derive(Debug)]
pub(crate) struct JournalCounters {
    pub(crate) writes: Counter,
    /// Of those that wait for the disk.
    pub(crate) sync: Histogram,
    /// Files that could not be written, and were given up.
    pub(crate) given_up: Counter,
}

impl Default for JournalCounters {
    fn default() -> JournalCounters {
        JournalCounters { writes: Counter::sharded(), sync: Histogram::single(), given_up: Counter::default() }
    }
}

/// Changes past the server, of all exports.
#[derive(Default)]
pub(crate) struct OutsideCounters {
    /// Inodes that have changed.
    pub(crate) changes: Counter,
    /// That there were more than could be told.
    pub(crate) overflows: Counter,
}

/// All that is not counted elsewhere.
pub(crate) struct Metrics {
    operations: Indexed<Histogram>,
    errors: Indexed<Counter>,
    exports: Family<Traffic>,
    clients: Family<Traffic>,
    pub(crate) jobs: Family<Traffic>,
    counted: Mutex<Counted>,
    /// Of requests, for leases of others.
    pub(crate) lease_wait: Histogram,
    pub(crate) repeated: Counter,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
    pub(crate) vanished: Counter,
    control: aqueduct_net::Counters,
    bulk: aqueduct_net::Counters,
    unjoined: aqueduct_net::Counters,
    pub(crate) sessions: Counter,
    pub(crate) forsaken: Counter,
    pub(crate) journal: Arc<JournalCounters>,
    pub(crate) outside: OutsideCounters,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            operations: Indexed::new(&Op::NAMES, Histogram::sharded),
            errors: Indexed::new(&Op::NAMES, Counter::default),
            exports: Family::new(EXPORTS_MAX, Traffic::default),
            clients: Family::new(CLIENTS_MAX, Traffic::default),
            jobs: Family::new(JOBS_MAX, Traffic::default),
            counted: Mutex::default(),
            lease_wait: Histogram::single(),
            repeated: Counter::default(),
            accepted: Counter::default(),
            refused: Counter::default(),
            vanished: Counter::default(),
            control: Default::default(),
            bulk: Default::default(),
            unjoined: Default::default(),
            sessions: Counter::default(),
            forsaken: Counter::default(),
            journal: Arc::default(),
            outside: OutsideCounters::default(),
        }
    }
}

impl Metrics {
    /// A request was answered that took so long.
    pub(crate) fn answered(&self, op: Op, took: Duration) {
        self.operations.at(op.index()).record_duration(took);
    }

    /// A reply goes out, with this status.
    pub(crate) fn sent(&self, op: Op, status: u32) {
        if status != 0 {
            self.errors.at(op.index()).increment();
        }
    }

    /// What a session asks for belongs to its client and its export, from now on.
    pub(crate) fn attached(&self, counters: &Arc<Counters>, client: &str, export: &str) {
        let mut is_new = false;
        counters.of.get_or_init(|| {
            is_new = true;
            (self.clients.series(client), self.exports.series(export))
        });
        if is_new {
            lock(&self.counted).add(counters.clone());
        }
    }

    /// Where is counted what connections of a kind carry; `None`: of those without a session.
    pub(crate) fn of(&self, lane: Option<Lane>) -> &aqueduct_net::Counters {
        match lane {
            Some(Lane::Control) => &self.control,
            Some(Lane::Bulk) => &self.bulk,
            None => &self.unjoined,
        }
    }

    pub(crate) fn collect(&self, into: &mut Snapshot) {
        for (kind, counters) in [("control", &self.control), ("bulk", &self.bulk), ("unjoined", &self.unjoined)] {
            counters.collect("server", kind, into);
        }
        into.put_indexed(&table::SERVER_OPERATION_SECONDS, &self.operations);
        into.put_indexed(&table::SERVER_ERRORS, &self.errors);
        let mut counted = lock(&self.counted);
        counted.sweep();
        let (clients, exports) = (counted.sums(&self.clients, |of| &of.0), counted.sums(&self.exports, |of| &of.1));
        drop(counted);
        for (export, [operations, read, written, served, lease_wait]) in &exports {
            into.put_number(&table::EXPORT_OPERATIONS, &[export], *operations);
            into.put_number(&table::EXPORT_BYTES_READ, &[export], *read);
            into.put_number(&table::EXPORT_BYTES_WRITTEN, &[export], *written);
            into.put_number(&table::EXPORT_SERVED_SECONDS, &[export], *served);
            into.put_number(&table::EXPORT_LEASE_WAIT_SECONDS, &[export], *lease_wait);
        }
        for (client, [operations, read, written, served, lease_wait]) in &clients {
            into.put_number(&table::CLIENT_OPERATIONS, &[client], *operations);
            into.put_number(&table::CLIENT_BYTES_READ, &[client], *read);
            into.put_number(&table::CLIENT_BYTES_WRITTEN, &[client], *written);
            into.put_number(&table::CLIENT_SERVED_SECONDS, &[client], *served);
            into.put_number(&table::CLIENT_LEASE_WAIT_SECONDS, &[client], *lease_wait);
        }
        self.jobs.for_each(|job, traffic| {
            let [operations, read, written, served, _] = traffic.get();
            if operations > 0 || job != aqueduct_metrics::OTHER {
                into.put_number(&table::JOB_OPERATIONS, &[job], operations);
                into.put_number(&table::JOB_BYTES_READ, &[job], read);
                into.put_number(&table::JOB_BYTES_WRITTEN, &[job], written);
                into.put_number(&table::JOB_SERVED_SECONDS, &[job], served);
            }
        });
        into.put(&table::SERVER_LEASE_WAIT_SECONDS, &[], &self.lease_wait);
        into.put(&table::SERVER_REPEATED, &[], &self.repeated);
        into.put(&table::SERVER_CONNECTIONS_ACCEPTED, &[], &self.accepted);
        into.put(&table::SERVER_CONNECTIONS_REFUSED, &[], &self.refused);
        into.put(&table::SERVER_CONNECTIONS_VANISHED, &[], &self.vanished);
        into.put(&table::SERVER_SESSIONS_BEGUN, &[], &self.sessions);
        into.put(&table::SERVER_SESSIONS_FORSAKEN, &[], &self.forsaken);
        into.put(&table::SERVER_SESSIONS_UNKEPT, &[], &self.journal.given_up);
        into.put(&table::SERVER_JOURNAL_WRITES, &[], &self.journal.writes);
        into.put(&table::SERVER_JOURNAL_SYNC_SECONDS, &[], &self.journal.sync);
        into.put(&table::SERVER_OUTSIDE_CHANGES, &[], &self.outside.changes);
        into.put(&table::SERVER_OUTSIDE_OVERFLOWS, &[], &self.outside.overflows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_series_of_its_own() {
        let metrics = Metrics::default();
        for op in Op::ALL {
            metrics.answered(*op, Duration::from_micros(1));
            metrics.sent(*op, 5);
            metrics.sent(*op, 0);
        }
        let mut snapshot = Snapshot::default();
        metrics.collect(&mut snapshot);
        for name in [table::SERVER_OPERATION_SECONDS.definition.name, table::SERVER_ERRORS.definition.name] {
            let samples = snapshot.samples(name);
            let found: Vec<_> = samples.iter().map(|sample| (sample.label("operation"), sample.number())).collect();
            assert_eq!(found, Vec::from_iter(Op::ALL.iter().map(|op| (op.name(), 1))));
        }
    }
}
