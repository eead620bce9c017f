//! What `aqueduct status` asks for.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::server::{Export, Server};
use crate::session::{Session, lock};

/// Bytes of a status: what one frame's body carries, with room for what an escape of JSON adds.
const STATUS_LENGTH_MAX: usize = aqueduct_wire::BODY_LENGTH_MAX - 1024;

impl Server {
    /// Exports, sessions and counters, for people and programs. Counters only grow; rates are the asker's to compute. Of many sessions
    /// the busiest that fit one frame are listed.
    pub(crate) fn status_json(&self) -> String {
        let mut listed = usize::MAX;
        loop {
            let (status, sessions) = self.status(listed);
            let text = status.to_string();
            if text.len() <= STATUS_LENGTH_MAX || sessions == 0 {
                return text;
            }
            listed = sessions / 2;
        }
    }

    /// The status with at most so many sessions, and how many those are.
    fn status(&self, listed: usize) -> (Value, usize) {
        let mut sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        sessions.sort_by_key(|session| std::cmp::Reverse(session.counters.operations.load(Ordering::Relaxed)));
        let attached = |export: &Export| {
            sessions.iter().filter(|session| session.export.get().is_some_and(|other| other.id == export.id)).count()
        };
        let status = json!({
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
            "sessions": sessions.iter().take(listed).map(|session| session_json(session)).collect::<Vec<_>>(),
        });
        (status, sessions.len().min(listed))
    }
}

fn session_json(session: &Session) -> Value {
    json!({
        "client": session.name,
        "peer": session.peer.to_string(),
        "export": session.export.get().map(|export| export.name.clone()),
        "connections": session.connections().len(),
        "recovering": session.is_recovering(),
        "operations": session.counters.operations.load(Ordering::Relaxed),
        "bytes_read": session.counters.bytes_read.load(Ordering::Relaxed),
        "bytes_written": session.counters.bytes_written.load(Ordering::Relaxed),
    })
}
