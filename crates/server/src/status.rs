//! What `aqueduct status` asks for.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use aqueduct_fs::DataCounters;
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::access::{Access, Attached, Squash};
use crate::server::{Export, Server};
use crate::session::{Session, lock};

/// Networks of one list that are shown; a list of thousands would not fit.
const NETWORKS_SHOWN_MAX: usize = 16;

/// Bytes of a status: what one frame's body carries, with room for what an escape of JSON adds.
const STATUS_LENGTH_MAX: usize = aqueduct_wire::BODY_LENGTH_MAX - 1024;

impl Server {
    /// Exports, sessions and counters, for people and programs: what the asker may attach, and all of it for this machine. Counters only grow; rates are the asker's to compute. Of many sessions
    /// the busiest that fit one frame are listed.
    pub(crate) fn status_json(&self, asker: IpAddr) -> String {
        let mut listed = usize::MAX;
        loop {
            let (status, sessions) = self.status(asker, listed);
            let text = status.to_string();
            if text.len() <= STATUS_LENGTH_MAX || sessions == 0 {
                return text;
            }
            listed = sessions / 2;
        }
    }

    /// The status with at most so many sessions, and how many those are.
    fn status(&self, asker: IpAddr, listed: usize) -> (Value, usize) {
        let asks_all = asker.to_canonical().is_loopback();
        let may_know = |export: &Export| asks_all || export.access.rights(asker).is_some();
        let mut sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        sessions.retain(|session| session.attached.get().is_none_or(|attached| may_know(&attached.export)));
        sessions.sort_by_key(|session| std::cmp::Reverse(session.counters.operations.load(Ordering::Relaxed)));
        let attached = |export: &Export| {
            sessions
                .iter()
                .filter(|session| session.attached.get().is_some_and(|attached| attached.export.id == export.id))
                .count()
        };
        let (leases, recalls, waits) = self.leases.counts();
        let status = json!({
            "server": self.config.name,
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "executing": self.executing.load(Ordering::Relaxed),
            "connections": self.connections.load(Ordering::Relaxed),
            // Recalls since the start, and changes that wait for any.
            "leases": { "held": leases, "recalls": recalls, "waits": waits },
            "exports": self.exports.iter().filter(|export| may_know(export)).map(|export| json!({
                "name": export.name,
                "path": export.path,
                "read_only": export.read_only,
                "external": export.external.name(),
                "clients": attached(export),
                "access": access_json(&export.access),
                "data": export.filesystem.data_counters().map(data_json),
            })).collect::<Vec<_>>(),
            "outside": {
                "changes": self.told.changes.load(Ordering::Relaxed),
                "overflows": self.told.overflows.load(Ordering::Relaxed),
            },
            "sessions_total": sessions.len(),
            "sessions": sessions.iter().take(listed).map(|session| session_json(session)).collect::<Vec<_>>(),
        });
        (status, sessions.len().min(listed))
    }
}

/// What was read ahead and written, in bytes but for the counts; latency: null before anything had to be waited for.
fn data_json(counters: DataCounters) -> Value {
    json!({
        "read_ahead": {
            "on": counters.reads_ahead,
            "streams": counters.streams,
            "latency_us": (!counters.latency.is_zero()).then_some(counters.latency.as_micros() as u64),
            "waits": counters.waits,
            "issued": counters.asked,
            "used": counters.used,
            "wasted": counters.wasted,
        },
        "writes": {
            "requests": counters.writes,
            "bytes": counters.written,
            // Requests that a client might have gathered: each began where the one before had ended.
            "continued": counters.continued,
        },
        // Bytes per second; null: as fast as it goes. Reads and writes that had to wait for it.
        "rate": counters.rate,
        "throttled": counters.throttled,
    })
}

/// Hosts: null for all. Squash: null for root of other machines.
fn access_json(access: &Access) -> Value {
    json!({
        "hosts": access.hosts.as_deref().map(networks),
        "read_only_hosts": networks(&access.read_only_hosts),
        "squash": access.squash.map(Squash::name),
        "anonymous_uid": access.anonymous_uid,
        "anonymous_gid": access.anonymous_gid,
        "maps_ids": access.maps.is_some(),
    })
}

fn networks(networks: &[IpNet]) -> Vec<String> {
    let mut shown: Vec<String> = networks.iter().take(NETWORKS_SHOWN_MAX).map(ToString::to_string).collect();
    if let Some(more) = networks.len().checked_sub(NETWORKS_SHOWN_MAX).filter(|more| *more > 0) {
        shown.push(format!("{more} more"));
    }
    shown
}

fn session_json(session: &Session) -> Value {
    json!({
        "client": session.name,
        "peer": session.peer.to_string(),
        "export": session.attached.get().map(|attached| attached.export.name.clone()),
        "read_only": session.attached.get().map(Attached::is_read_only),
        "squash": session.attached.get().map(|attached| attached.squash().name()),
        "connections": session.connections().len(),
        "recovering": session.is_recovering(),
        "operations": session.counters.operations.load(Ordering::Relaxed),
        "bytes_read": session.counters.bytes_read.load(Ordering::Relaxed),
        "bytes_written": session.counters.bytes_written.load(Ordering::Relaxed),
    })
}
