//! What servers and mounts tell of themselves: plain data, which become JSON once where they leave
//! the process, and are read once by `aqueduct status`. Counts only grow; rates are for the reader
//! to compute.

use serde::{Deserialize, Serialize};

use crate::Snapshot;
use crate::activity::Station;

/// What a server tells. `S`: a session of it, with what the reader adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/metrics.md and the fields' names say it; counts without a unit")]
pub struct ServerStatus<S = SessionStatus> {
    pub server: String,
    pub version: String,
    pub uptime_seconds: u64,
    /// Requests under way.
    pub executing: u64,
    pub connections: u64,
    /// Those that its threads are held to; `None`: it may use all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<String>,
    /// The addresses that it tells the asker.
    #[serde(default)]
    pub listens: Vec<ListenStatus>,
    #[serde(default)]
    pub leases: LeasesStatus,
    /// How many there are of the asker's.
    #[serde(default)]
    pub exports_total: u64,
    pub exports: Vec<ExportStatus>,
    #[serde(default)]
    pub outside: OutsideStatus,
    /// Its clock when it told, in microseconds since 1970; 0 from a server of an earlier release.
    #[serde(default)]
    pub clock_us: u64,
    /// Its part in a volume; `None`: it stands alone, or is of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeStatus>,
    pub sessions_total: u64,
    /// The busiest, as many as fit.
    pub sessions: Vec<S>,
    /// What its process has had of processors, and for how long its threads waited for one, in
    /// seconds; those that ended are left out.
    #[serde(default)]
    pub processor_seconds: [f64; 2],
    /// The beginning of the id of its machine's boot, by which who is on the same machine knows
    /// that; empty: not known.
    #[serde(default)]
    pub boot: String,
    /// Empty from a server of an earlier release, and where there is no room.
    #[serde(default)]
    pub metrics: Snapshot,
}

/// An address of a server, and where the card is that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenStatus {
    /// `ADDRESS:PORT`.
    pub address: String,
    /// The network interface that has it, if one does now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The NUMA node of its device, where the machine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The processors near its device, where the machine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_processors: Option<String>,
}

/// The leases of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasesStatus {
    /// Held now.
    pub held: u64,
    /// Recalled since the start.
    pub recalls: u64,
    /// Changes that wait for any.
    pub waits: u64,
}

/// The part of a server in a volume, as it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// What mounts call the volume.
    pub name: String,
    /// The id of this server in it.
    pub server: String,
    /// It has the names.
    pub has_names: bool,
    /// By which its key is told from others; nothing of the key follows from it.
    pub key: String,
    /// Of its directory, as statfs(2) tells: `Lustre`, `ext4`; the number where it has no name
    /// here.
    pub filesystem: String,
    /// The volume's file says that it is coherent.
    pub coherent: bool,
    /// Files are written through servers of data as well.
    pub writes: bool,
}

/// What others than clients have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideStatus {
    /// Inodes.
    pub changes: u64,
    /// How often there were more than could be told.
    pub overflows: u64,
}

/// What a router tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterStatus {
    /// What it calls itself.
    pub router: String,
    /// Its release.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it was started.
    pub uptime_seconds: u64,
    /// In so many seconds its flows end, and it takes no more; `None`: it takes them.
    pub stops_in_seconds: Option<u32>,
    /// Where it listens, as `ADDRESS:PORT@NETWORK`.
    pub listens: Vec<String>,
    /// Its own networks.
    pub networks: Vec<NetworkStatus>,
    /// Its ways to others.
    pub routes: Vec<RouteState>,
    /// How many there are.
    pub flows_total: u64,
    /// Those that have carried most, as many as fit.
    pub flows: Vec<FlowStatus>,
    /// What it has counted.
    #[serde(default)]
    pub metrics: Snapshot,
}

/// A network of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The ports there that are let through; none: all.
    pub ports: Vec<u16>,
}

/// The way to a network, as its user has found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteState {
    /// The network.
    pub network: String,
    /// The router that leads there.
    pub gateway: String,
    /// Routers on the way.
    pub hops: u8,
    /// Ways with smaller numbers are used first.
    pub priority: u32,
    /// The gateway answers, as far as is known.
    pub up: bool,
    /// How often it has not, in a row.
    pub failures: u32,
}

/// What a router passes on for one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// Who has made it.
    pub client: String,
    /// Where it goes.
    pub target: String,
    /// The gateway, or the target.
    pub next: String,
    /// It is for bulk data.
    pub bulk: bool,
    /// Bytes from its client.
    pub bytes_out: u64,
    /// Bytes to it.
    pub bytes_back: u64,
    /// For how long its client has had no room, in milliseconds; 0: it has.
    pub client_blocked_ms: u64,
    /// The same of the next hop.
    pub next_blocked_ms: u64,
}

/// An export of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// What clients ask for.
    pub name: String,
    /// Where it lies.
    pub path: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// How changes by others come to light.
    #[serde(default)]
    pub external: String,
    /// Sessions that have it.
    pub clients: u64,
    /// What it allows to whom.
    #[serde(default)]
    pub access: AccessStatus,
    /// `None` where the file system counts nothing.
    pub data: Option<DataStatus>,
}

/// What an export allows to whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessStatus {
    /// `None`: all.
    pub hosts: Option<Vec<String>>,
    /// May only read.
    pub read_only_hosts: Vec<String>,
    /// `None`: root of other machines.
    pub squash: Option<String>,
    /// As whom squashed callers act.
    pub anonymous_uid: u32,
    /// See `anonymous_uid`.
    pub anonymous_gid: u32,
    /// It has maps of users or groups.
    pub maps_ids: bool,
}

/// How the data of an export go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataStatus {
    /// What was read ahead.
    pub read_ahead: ReadAheadStatus,
    /// How it was written.
    pub writes: WritesStatus,
    /// The rate to which it is held, in bytes per second.
    pub rate: Option<u64>,
    /// Reads and writes that had to wait for that.
    pub throttled: u64,
}

/// What was read ahead; in bytes, where nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadAheadStatus {
    /// It reads ahead.
    pub on: bool,
    /// Sequences of reads at present.
    pub streams: u64,
    /// Of the backing file system, in microseconds; `None` before anything had to be waited for.
    pub latency_us: Option<u64>,
    /// Reads that had to wait for the backing file system.
    pub waits: u64,
    /// Asked for ahead.
    pub issued: u64,
    /// Read later.
    pub used: u64,
    /// Not read before their stream ended.
    pub wasted: u64,
}

/// How an export was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WritesStatus {
    /// Requests.
    pub requests: u64,
    /// Of those.
    pub bytes: u64,
    /// Requests that a client might have gathered: each began where the one before had ended.
    pub continued: u64,
}

/// A session of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The name that its client gave.
    pub client: String,
    /// Where it comes from.
    pub peer: String,
    /// Which node it has proved to be.
    #[serde(default)]
    pub node: Option<String>,
    /// `None`: who asks for the status.
    pub export: Option<String>,
    /// It may change nothing; `None` without an export, as the next.
    pub read_only: Option<bool>,
    /// Who acts as somebody else.
    pub squash: Option<String>,
    /// Of it.
    pub connections: u64,
    /// The job for which it asked something last.
    #[serde(default)]
    pub job: Option<String>,
    /// Its client still has to have again what it had before a restart.
    #[serde(default)]
    pub recovering: bool,
    /// Requests.
    pub operations: u64,
    /// By them.
    pub bytes_read: u64,
    /// By them.
    pub bytes_written: u64,
    /// How long they took at the server, all together, in microseconds, without waits for leases.
    #[serde(default)]
    pub served_us: u64,
    /// How long they waited for leases of others, all together, in microseconds.
    #[serde(default)]
    pub lease_wait_us: u64,
    /// The way of what is sent to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<WayStatus>,
}

/// What a mount tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    /// What it shows.
    #[serde(flatten)]
    pub backing: BackingStatus,
    /// How the kernel's requests come.
    pub requests_by: String,
    /// What was mounted; the reader knows it from the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Where; as `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The options that were named; `None` from an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    /// The server lets nothing be changed.
    #[serde(default)]
    pub server_read_only: bool,
    /// The processors that its threads are held to; `None`: it may use all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<String>,
    /// Of its process.
    pub pid: u32,
    /// Of the program.
    pub version: String,
    /// Since it was mounted.
    pub uptime_seconds: u64,
    /// As [`ServerStatus::processor_seconds`].
    #[serde(default)]
    pub processor_seconds: [f64; 2],
    /// What the kernel asks for, by how many requests were under way.
    #[serde(default)]
    pub kernel: Station,
    /// As [`ServerStatus::metrics`].
    #[serde(default)]
    pub metrics: Snapshot,
    /// The ways to networks that have a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteState>,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackingStatus {
    /// A server's export.
    Client(ClientStatus),
    /// A directory of this machine.
    Local(LocalStatus),
    /// It ends.
    Gone {},
}

impl BackingStatus {
    /// `ok`, or why programs may wait although the process of the mount answers.
    pub fn state(&self) -> &'static str {
        match self {
            BackingStatus::Client(client) if client.connections == 0 => "no connection to its server",
            _ => "ok",
        }
    }
}

impl Default for BackingStatus {
    fn default() -> BackingStatus {
        BackingStatus::Gone {}
    }
}

/// A directory of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalStatus {
    /// `local`.
    pub server: String,
    /// Open files and directories.
    pub opens: u64,
    /// Locks held.
    pub locks: u64,
    /// Why there are none, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<LeaseStatus>,
}

/// A client of one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// `host:port`, as it was given.
    pub server: String,
    /// Of it.
    pub export: String,
    /// To it.
    pub connections: u64,
    /// Requests.
    pub operations: u64,
    /// By them.
    pub bytes_read: u64,
    /// By them.
    pub bytes_written: u64,
    /// How often a lost connection was made again.
    pub reconnects: u64,
    /// The ways to the server that are used at once; none where there is but that of the routing
    /// table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<RailStatus>,
    /// The most bytes that are kept until they are stable.
    pub replay_window: u64,
    /// How many are.
    pub replay_bytes: u64,
    /// What is kept under leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<LeaseStatus>,
    /// What is held back under leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gathered: Option<GatheredStatus>,
    /// The ways of all its connections, as the kernel counts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<WayStatus>,
    /// Requests to servers by how many were under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activity: Vec<ActivityStatus>,
    /// How many of `rails`, `ways` and `activity`, counted through, are here, where there are more.
    /// Whoever reads a mount's status asks for the rest from this one on. `None`: all are here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_from: Option<u64>,
}

/// Connections over one way, as the kernel counts them (`TCP_INFO`): of what this side sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WayStatus {
    /// The server's addresses, and `from/to` of a rail.
    pub path: String,
    /// How many there are; what follows is their sum, but for round trips.
    pub connections: u64,
    /// The round trip, of them in the mean, in microseconds.
    pub round_trip_us: u64,
    /// The least of the last minutes, in microseconds.
    pub round_trip_min_us: u64,
    /// Segments with data that were sent.
    pub segments: u64,
    /// Segments that were sent again.
    pub resent: u64,
    /// Microseconds in which something was to be sent.
    pub busy_us: u64,
    /// Of these, those in which the receiver had no room.
    pub window_limited_us: u64,
    /// And those in which this side's buffer was too small.
    pub buffer_limited_us: u64,
}

impl WayStatus {
    /// Adds another connection over the same way.
    pub fn add(&mut self, more: &WayStatus) {
        let times = self.connections * self.round_trip_us + more.connections * more.round_trip_us;
        self.round_trip_us = times / (self.connections + more.connections).max(1);
        self.round_trip_min_us = match (self.connections, more.connections) {
            (0, _) => more.round_trip_min_us,
            (_, 0) => self.round_trip_min_us,
            _ => self.round_trip_min_us.min(more.round_trip_min_us),
        };
        self.connections += more.connections;
        self.segments += more.segments;
        self.resent += more.resent;
        self.busy_us += more.busy_us;
        self.window_limited_us += more.window_limited_us;
        self.buffer_limited_us += more.buffer_limited_us;
    }
}

/// Requests of a class, by how many were under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActivityStatus {
    /// `read`, `write`, `sync`, `locks` (which may be waited for as long as others like) or
    /// `names`: all else.
    pub class: String,
    /// They; its target is a server.
    #[serde(flatten)]
    pub station: Station,
}

/// A rail of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RailStatus {
    /// `from/to`.
    pub path: String,
    /// `up`, `suspected`, `partial` (it lacks connections), or `down`.
    pub state: String,
    /// Whose fault it is that it is down: `local` (this machine's interface), `path` (other rails
    /// work) or `peer` (none does).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Its connections.
    pub connections: u64,
    /// How many it is to have.
    pub wanted: u64,
    /// Bulk data that came over it.
    pub bytes_read: u64,
    /// Bulk data that went over it.
    pub bytes_written: u64,
    /// Of bulk data that come, in bytes per second while there are any; `None`: not measured since
    /// it is up.
    #[serde(default)]
    pub read_rate: Option<f64>,
    /// The same of what goes.
    #[serde(default)]
    pub write_rate: Option<f64>,
    /// Bytes asked for or sent, and not answered.
    pub outstanding: u64,
    /// As the kernel measures it, in microseconds.
    pub round_trip_us: u64,
    /// How often it was down.
    pub outages: u64,
    /// Since it came up or went down.
    pub seconds: f64,
}

/// What is kept under leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LeaseStatus {
    /// Nothing, though it was asked for.
    Refused {
        /// Why.
        refused: String,
    },
    /// This.
    Kept {
        /// Requests that it answered.
        hits: u64,
        /// Requests that it did not.
        misses: u64,
        /// Leases that the server wanted back.
        recalls: u64,
        /// In milliseconds: how old it may be, where others than clients change things; 0: as old
        /// as its lease.
        age_max: u64,
        /// How many inodes.
        inodes: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// What is held back under leases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatheredStatus {
    /// Of how many files.
    pub files: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Writes so far.
    pub writes: u64,
    /// Changes of attributes so far.
    pub attributes: u64,
    /// Requests by which they came to the server.
    pub requests: u64,
}

impl<S> ServerStatus<S> {
    /// Takes out what is largest and least asked for, once more with each call. False: there is
    /// nothing more to take out.
    pub fn shorten(&mut self, is_first: bool) -> bool {
        match () {
            () if is_first => self.metrics.coarsen(),
            () if !self.sessions.is_empty() => self.sessions.truncate(self.sessions.len() / 2),
            () if !self.metrics.0.is_empty() => self.metrics = Snapshot::default(),
            () if !self.exports.is_empty() => self.exports.truncate(self.exports.len() / 2),
            () => return false,
        }
        true
    }
}
