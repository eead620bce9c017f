//! What `aqueduct status` asks for.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use aqueduct_fs::DataCounters;
use aqueduct_metrics::status::{
    AccessStatus, DataStatus, ExportStatus, LeasesStatus, OutsideStatus, ReadAheadStatus, ServerStatus, SessionStatus,
    WayStatus, WritesStatus,
};
use aqueduct_metrics::table::{self, CLIENT, EXPORT, EXPORTS_MAX, JOB};
use aqueduct_metrics::{Collect, Snapshot};
use aqueduct_net::Peer;
use aqueduct_worker::lock;

use crate::access::{Access, Host};
use crate::attached::Attached;
use crate::export::Export;
use crate::origin::Origin;
use crate::session::Session;
use crate::state::Server;

/// Networks of one list that are shown; a list of thousands would not fit.
const NETWORKS_SHOWN_MAX: usize = 16;

/// Bytes of a status: what one frame's body carries, with room for what an escape of JSON adds.
const STATUS_LENGTH_MAX: usize = aqueduct_wire::BODY_LENGTH_MAX - 1024;

impl Server {
    /// What the process itself may know: exports, sessions and counters as JSON, as `aqueduct
    /// status` gets them.
    pub fn status_of_all(&self) -> String {
        let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
        self.status_json(&Origin::anonymous(Peer::Process { uid, pid }))
    }

    /// Exports, sessions and metrics as JSON, for people and programs: what the asker may attach,
    /// and all of it for root of this machine. It fits one frame: what is largest is left out, of
    /// many sessions all but the busiest.
    pub(crate) fn status_json(&self, asker: &Origin) -> String {
        within(self.status(asker), STATUS_LENGTH_MAX)
    }

    /// The same as data.
    fn status(&self, asker: &Origin) -> ServerStatus {
        let asks_all = asker.is_local();
        let may_know = |export: &Export| asks_all || export.access.rights(asker).is_some();
        let mut sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        sessions.retain(|session| session.attached.get().is_none_or(|attached| may_know(&attached.export)));
        sessions.sort_by_key(|session| std::cmp::Reverse(session.counters.own.operations.get()));
        let clients = |export: &Export| {
            let is_its = |attached: &Attached| attached.export.id == export.id;
            sessions.iter().filter(|session| session.attached.get().is_some_and(is_its)).count() as u64
        };
        let (held, recalls, waits) = self.leases.counts();
        let exports: Vec<_> = self.exports.iter().filter(|export| may_know(export)).collect();
        let mut metrics = Snapshot::of(self);
        if !asks_all {
            // Who else is here, and what else there is, is not told.
            metrics.retain(|sample| {
                let is_its = |name: &str| exports.iter().any(|export| export.name == name);
                sample.label(CLIENT).is_empty()
                    && sample.label(JOB).is_empty()
                    && (sample.label(EXPORT).is_empty() || is_its(sample.label(EXPORT)))
            });
        }
        ServerStatus {
            server: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            executing: self.executing.load(Ordering::Relaxed) as u64,
            connections: self.connections.load(Ordering::Relaxed) as u64,
            processors: self.config.processors.clone(),
            listens: self.reach.listens_for(&self.listeners.addresses(), asker.peer),
            leases: LeasesStatus { held: held as u64, recalls, waits: waits as u64 },
            exports_total: exports.len() as u64,
            exports: exports.iter().map(|export| export_status(export, clients(export))).collect(),
            outside: OutsideStatus {
                changes: self.metrics.outside.changes.get(),
                overflows: self.metrics.outside.overflows.get(),
            },
            clock_us: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64),
            volume: self.config.volume.clone().filter(|_| !exports.is_empty()),
            sessions_total: sessions.len() as u64,
            sessions: sessions.iter().map(|session| session_status(session)).collect(),
            processor_seconds: aqueduct_worker::own_processors(),
            boot: aqueduct_worker::boot_of_machine(),
            metrics,
        }
    }
}

/// As JSON of at most so many bytes, if there is anything to leave out.
fn within(mut status: ServerStatus, length_max: usize) -> String {
    let mut is_first = true;
    loop {
        let text = serde_json::to_string(&status).unwrap_or_default(); // its keys are strings
        if text.len() <= length_max || !status.shorten(std::mem::take(&mut is_first)) {
            return text;
        }
    }
}

fn export_status(export: &Export, clients: u64) -> ExportStatus {
    ExportStatus {
        name: export.name.clone(),
        path: export.path.clone(),
        read_only: export.read_only,
        external: export.external.name().to_owned(),
        clients,
        access: access_status(&export.access),
        data: export.filesystem.data_counters().map(data_status),
    }
}

fn data_status(counters: DataCounters) -> DataStatus {
    DataStatus {
        read_ahead: ReadAheadStatus {
            on: counters.reads_ahead,
            streams: counters.streams,
            latency_us: (!counters.latency.is_zero()).then_some(counters.latency.as_micros() as u64),
            waits: counters.waits,
            issued: counters.asked,
            used: counters.used,
            wasted: counters.wasted,
        },
        writes: WritesStatus { requests: counters.writes, bytes: counters.written, continued: counters.continued },
        rate: counters.rate,
        throttled: counters.throttled,
    }
}

fn access_status(access: &Access) -> AccessStatus {
    AccessStatus {
        hosts: access.hosts.as_deref().map(networks),
        read_only_hosts: networks(&access.read_only_hosts),
        squash: access.squash.map(|squash| squash.name().to_owned()),
        anonymous_uid: access.anonymous_uid,
        anonymous_gid: access.anonymous_gid,
        maps_ids: access.maps.is_some() || access.host_maps.iter().any(|of| of.maps.is_some()),
    }
}

fn networks(networks: &[Host]) -> Vec<String> {
    let mut shown: Vec<String> = networks.iter().take(NETWORKS_SHOWN_MAX).map(ToString::to_string).collect();
    if let Some(more) = networks.len().checked_sub(NETWORKS_SHOWN_MAX).filter(|more| *more > 0) {
        shown.push(format!("{more} more"));
    }
    shown
}

fn session_status(session: &Session) -> SessionStatus {
    let (attached, counted) = (session.attached.get(), &session.counters.own);
    SessionStatus {
        client: session.name.clone(),
        peer: session.origin.peer.to_string(),
        node: session.origin.node.as_deref().map(str::to_owned),
        export: attached.map(|attached| attached.export.name.clone()),
        read_only: attached.map(Attached::is_read_only),
        squash: attached.map(|attached| attached.squash().name().to_owned()),
        connections: session.connections().len() as u64,
        job: session.jobs.last().map(|job| job.to_string()),
        recovering: session.is_recovering(),
        operations: counted.operations.get(),
        bytes_read: counted.bytes_read.get(),
        bytes_written: counted.bytes_written.get(),
        served_us: counted.served.get() / 1000,
        lease_wait_us: counted.lease_wait.get() / 1000,
        way: way(session),
    }
}

/// The way of all connections of a session.
fn way(session: &Session) -> Option<WayStatus> {
    let mut sum = WayStatus::default();
    session.connections().iter().filter_map(|connection| connection.way()).for_each(|way| sum.add(&way));
    (sum.connections > 0).then_some(sum)
}

impl Collect for Server {
    fn collect(&self, into: &mut Snapshot) {
        self.metrics.collect(into);
        let sessions = lock(&self.sessions).len();
        into.put_number(&table::SERVER_SESSIONS, &[], sessions as u64);
        into.put_number(&table::SERVER_SLOTS, &[], self.replies.slots() as u64);
        into.put_number(&table::SERVER_EXECUTING, &[], self.executing.load(Ordering::Relaxed) as u64);
        into.put_number(&table::SERVER_LOOKING, &[], self.looking.load(Ordering::Relaxed) as u64);
        into.put_number(&table::SERVER_CONNECTIONS, &[], self.connections.load(Ordering::Relaxed) as u64);
        self.leases.collect(into);
        let (frames, unsent) = self.budget.held();
        into.put_number(&table::SERVER_FRAME_MEMORY, &[], frames as u64);
        into.put_number(&table::SERVER_UNSENT_MEMORY, &[], unsent as u64);
        into.put_number(&table::SERVER_FRAME_WAITERS, &[], self.budget.waiters() as u64);
        // As few as have series of their own elsewhere.
        for (at, export) in self.exports.iter().enumerate() {
            let name = if at < EXPORTS_MAX { &export.name } else { aqueduct_metrics::OTHER };
            if let Some(data) = export.filesystem.data_counters() {
                collect_data(name, &data, into);
            }
        }
    }
}

fn collect_data(export: &str, data: &DataCounters, into: &mut Snapshot) {
    let labels = [export];
    into.put_number(&table::EXPORT_READ_AHEAD_STREAMS, &labels, data.streams);
    into.put_number(&table::EXPORT_READ_AHEAD_LATENCY_SECONDS, &labels, data.latency.as_nanos() as u64);
    into.put_number(&table::EXPORT_READ_AHEAD_WAITS, &labels, data.waits);
    into.put_number(&table::EXPORT_READ_AHEAD_BYTES, &labels, data.asked);
    into.put_number(&table::EXPORT_READ_AHEAD_BYTES_USED, &labels, data.used);
    into.put_number(&table::EXPORT_READ_AHEAD_BYTES_WASTED, &labels, data.wasted);
    into.put_number(&table::EXPORT_WRITES, &labels, data.writes);
    into.put_number(&table::EXPORT_WRITES_CONTINUED, &labels, data.continued);
    into.put_number(&table::EXPORT_THROTTLED, &labels, data.throttled);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that JSON makes six times as long.
    fn long(number: usize) -> String {
        "\u{1}".repeat(200) + &number.to_string()
    }

    #[test]
    fn a_status_fits_its_frame_whatever_is_in_it() {
        let session =
            |number| SessionStatus { client: long(number), operations: 1_000_000, ..SessionStatus::default() };
        let export = |number| ExportStatus { name: long(number), path: long(number), ..ExportStatus::default() };
        let mut metrics = Snapshot::default();
        let histogram = aqueduct_metrics::Histogram::single();
        (0..40).for_each(|power| (0..8).for_each(|part| histogram.record((8 + part) << power)));
        for op in aqueduct_wire::Op::ALL {
            metrics.put(&aqueduct_metrics::table::SERVER_OPERATION_SECONDS, &[op.name()], &histogram);
        }
        for (sessions, exports) in [(0, 0), (3, 1), (1000, 2), (10_000, 3000), (0, 3000)] {
            let status = ServerStatus {
                sessions_total: sessions as u64,
                sessions: (0..sessions).map(session).collect(),
                exports: (0..exports).map(export).collect(),
                metrics: metrics.clone(),
                ..ServerStatus::default()
            };
            let text = within(status, STATUS_LENGTH_MAX);
            assert!(text.len() <= STATUS_LENGTH_MAX, "{sessions} sessions, {exports} exports: {}", text.len());
            let read: ServerStatus = serde_json::from_str(&text).unwrap();
            assert_eq!(read.sessions_total as usize, sessions);
            assert!(exports > 100 || read.exports.len() == exports && !read.metrics.0.is_empty(), "{sessions}");
            assert!(sessions == 0 || exports > 100 || !read.sessions.is_empty(), "{sessions} sessions");
        }
    }
}
