//! What `aqueduct status` asks for.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::server::{Export, Server};
use crate::session::{Session, lock};

/// Sessions listed, the busiest first: with names of up to 255 bytes they fit a frame's body.
const SESSIONS_LISTED_MAX: usize = 200;

impl Server {
    /// Exports, sessions and counters, for people and programs. Counters only grow; rates are the asker's to compute.
    pub(crate) fn status_json(&self) -> Value {
        let mut sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        sessions.sort_by_key(|session| std::cmp::Reverse(session.counters.operations.load(Ordering::Relaxed)));
        let attached = |export: &Export| {
            sessions.iter().filter(|session| session.export.get().is_some_and(|other| other.id == export.id)).count()
        };
        json!({
            "server": self.config.name,
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "executing": self.executing.load(Ordering::Relaxed),
            "connections": self.connections.load(Ordering::Relaxed),
            "exports": self.exports.iter().map(|export| json!({
                "name": export.name,
                "path": export.path,
                "read_only": export.read_only,
                "clients": attached(export),
            })).collect::<Vec<_>>(),
            "sessions_total": sessions.len(),
            "sessions": sessions.iter().take(SESSIONS_LISTED_MAX).map(|session| session_json(session)).collect::<Vec<_>>(),
        })
    }
}

fn session_json(session: &Session) -> Value {
    json!({
        "client": session.name,
        "peer": session.peer.to_string(),
        "export": session.export.get().map(|export| export.name.clone()),
        "connections": lock(&session.connections).len(),
        "operations": session.counters.operations.load(Ordering::Relaxed),
        "bytes_read": session.counters.bytes_read.load(Ordering::Relaxed),
        "bytes_written": session.counters.bytes_written.load(Ordering::Relaxed),
    })
}
