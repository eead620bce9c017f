//! Slow operations: where the time of each went, hop by hop, and the last of them in a ring.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Slow operations that are remembered: the last ones.
pub const REMEMBERED_MAX: usize = 512;

/// Where time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hop {
    /// In this client, what nothing else explains: the remainder.
    Client,
    /// In this client, waiting for something of its own that is used up or must come first.
    ClientQueue,
    /// A server was away: no connection, or one that broke with the request on it.
    Reconnect,
    /// Between client and server, both ways: what the client measured less what the server says,
    /// and what a router says of itself.
    Wire,
    /// In a router: unread there, or before the next wire.
    Router,
    /// At the server, from when the request was there until it was begun.
    ServerQueue,
    /// At the server, until other clients gave back leases.
    LeaseWait,
    /// At the server, the rest: the backing file system.
    FileSystem,
}

impl Hop {
    /// All, in the order in which a request meets them.
    pub const ALL: [Hop; 8] = [
        Hop::Client,
        Hop::ClientQueue,
        Hop::Reconnect,
        Hop::Wire,
        Hop::Router,
        Hop::ServerQueue,
        Hop::LeaseWait,
        Hop::FileSystem,
    ];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Hop::Client => "client",
            Hop::ClientQueue => "client queue",
            Hop::Reconnect => "reconnect",
            Hop::Wire => "wire",
            Hop::Router => "router",
            Hop::ServerQueue => "server queue",
            Hop::LeaseWait => "lease wait",
            Hop::FileSystem => "file system",
        }
    }
}

/// What one hop took of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopTime {
    /// Which.
    pub hop: Hop,
    /// Microseconds.
    pub us: u64,
    /// Which server, where one has to do with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// What is known beside that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One slow operation. Of what a mount tells the hops add up to what it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/trace.md and the fields' names say it")]
pub struct SlowOperation {
    /// Counts the slow operations of who tells.
    pub number: u64,
    /// When it began, in microseconds since 1970.
    pub at_us: u64,
    pub took_us: u64,
    /// As FUSE calls it, of a mount; as the protocol does, of a server.
    pub operation: String,
    /// From the root of the mount, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Who asked: a process of the client's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Whose it was, of a server: the client's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// The errno with which it failed, as Linux numbers them on x86-64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<u32>,
    /// Requests to servers that it made or waited for.
    #[serde(default)]
    pub requests: u64,
    /// Those of them that were sent again, since a connection broke.
    #[serde(default)]
    pub repeats: u64,
    /// Its trace, 32 hexadecimal digits, where traces are exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    pub hops: Vec<HopTime>,
}

impl SlowOperation {
    /// The hop that took most.
    pub fn slowest(&self) -> Option<&HopTime> {
        self.hops.iter().max_by_key(|hop| hop.us)
    }
}

/// What a mount or server tells of its slow operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceReport {
    /// Operations that take so many milliseconds or more are slow; `None`: none is looked at.
    pub threshold_ms: Option<f64>,
    /// How many there were since the start.
    pub slow: u64,
    /// From which number on the next report goes on.
    pub next: u64,
    /// As many as fit, in their order.
    pub operations: Vec<SlowOperation>,
}

/// Who writes operations down, or sends them on.
pub trait Record: Send + Sync {
    /// Whether it wants an operation that took so many microseconds. Asked once of each.
    fn wants(&self, took_us: u64) -> bool;

    /// Takes one that it wants. Waits for nothing.
    fn record(&self, operation: &Arc<SlowOperation>);
}

/// The last slow operations.
#[derive(Debug, Default)]
pub struct Ring {
    count: u64,
    last: VecDeque<Arc<SlowOperation>>,
}

impl Ring {
    /// Remembers one, under the next number.
    pub fn push(&mut self, operation: SlowOperation) -> Arc<SlowOperation> {
        let operation = Arc::new(SlowOperation { number: self.count, ..operation });
        self.count += 1;
        if self.last.len() == REMEMBERED_MAX {
            self.last.pop_front();
        }
        self.last.push_back(operation.clone());
        operation
    }

    /// Those from this number on. Cheap, so that whoever has the ring locked holds up nobody.
    pub fn since(&self, from: u64) -> Since {
        let operations = self.last.iter().filter(|operation| operation.number >= from);
        Since { count: self.count, operations: operations.cloned().collect() }
    }
}

/// What a ring had from a number on.
#[derive(Debug)]
pub struct Since {
    count: u64,
    operations: Vec<Arc<SlowOperation>>,
}

impl Since {
    /// The first of them that come to at most `bytes_max`, as `size` says of each, or one.
    pub fn report(&self, bytes_max: usize, size: impl Fn(&SlowOperation) -> usize) -> TraceReport {
        let mut report = TraceReport { slow: self.count, next: self.count, ..TraceReport::default() };
        let mut bytes = 0;
        for operation in &self.operations {
            bytes += size(operation);
            if bytes > bytes_max && !report.operations.is_empty() {
                report.next = operation.number;
                break;
            }
            report.operations.push((**operation).clone());
        }
        report
    }
}

/// A part of an operation's time that something explains. Parts may overlap.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Nanoseconds since the operation began.
    pub from: u64,
    /// The same; not before `from`.
    pub to: u64,
    /// Of several at one moment that with the greatest counts: first how much it explains, then
    /// until when what it belongs to went on.
    pub weight: (u8, u64),
    /// What it is put down to: its place in a list of the caller's.
    pub cause: usize,
}

/// How much of `total` nanoseconds each cause explains, in nanoseconds, by its place; what is left
/// is the second: it all adds up to `total`.
pub fn explain(total: u64, parts: &[Part]) -> (BTreeMap<usize, u64>, u64) {
    let mut ends: BTreeSet<u64> = parts.iter().flat_map(|part| [part.from.min(total), part.to.min(total)]).collect();
    ends.extend([0, total]);
    let ends: Vec<u64> = ends.into_iter().collect();
    let (mut explained, mut rest) = (BTreeMap::new(), 0);
    for ends in ends.windows(2) {
        let (from, to) = (ends[0], ends[1]);
        let over = parts.iter().filter(|part| part.from <= from && to <= part.to);
        match over.max_by_key(|part| part.weight) {
            Some(part) => *explained.entry(part.cause).or_default() += to - from,
            None => rest += to - from,
        }
    }
    (explained, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(from: u64, to: u64, weight: u8, cause: usize) -> Part {
        Part { from, to, weight: (weight, to), cause }
    }

    #[test]
    fn what_overlaps_is_counted_once_and_all_of_it_adds_up() {
        let parts = [part(10, 50, 1, 0), part(20, 40, 2, 1), part(30, 45, 2, 2), part(90, 200, 2, 1)];
        let (explained, rest) = explain(100, &parts);
        // Of two of one weight the one that ended later kept the operation.
        assert_eq!(explained, BTreeMap::from([(0, 10 + 5), (1, 10 + 10), (2, 15)]));
        assert_eq!((rest, explained.values().sum::<u64>() + rest), (50, 100));
        assert_eq!(explain(7, &[]), (BTreeMap::new(), 7));
        assert_eq!(explain(0, &parts), (BTreeMap::new(), 0));
    }

    #[test]
    fn a_ring_has_the_last_and_tells_them_in_pages() {
        let mut ring = Ring::default();
        for took_us in 0..REMEMBERED_MAX as u64 + 10 {
            ring.push(SlowOperation { took_us, ..SlowOperation::default() });
        }
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let report = ring.since(from).report(100, |_| 1);
            assert_eq!(report.slow, REMEMBERED_MAX as u64 + 10);
            assert!(report.operations.len() <= 100);
            seen.extend(report.operations.iter().map(|operation| operation.number));
            if report.operations.is_empty() || report.next == report.slow {
                break;
            }
            from = report.next;
        }
        assert_eq!(seen, (10..REMEMBERED_MAX as u64 + 10).collect::<Vec<_>>());
        let of_one = ring.since(0).report(0, |_| 1);
        assert_eq!(of_one.operations.len(), 1, "one always fits");
    }
}
