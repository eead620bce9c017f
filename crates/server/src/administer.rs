//! What an administrator asks for: who has locks, and that one client's are released.
//!
//! Only connections that have proved to have the administrator's key come here.

use serde_json::{Value, json};

use aqueduct_fs::{Errno, LockKind, LockSeen, LockSpace};
use aqueduct_worker::lock;

use crate::state::Server;

/// The most locks of one list, which is made under the lock tables' own locks. What is not listed is counted.
const LOCKS_LISTED_MAX: usize = 1024;

/// Bytes of a list: what one frame's body carries.
const LIST_LENGTH_MAX: usize = aqueduct_wire::BODY_LENGTH_MAX;

impl Server {
    /// The locks that clients have and wait for, as JSON: those first for whose files somebody waits, as many as fit one frame.
    pub(crate) async fn locks_json(&self) -> Result<String, Errno> {
        let mut limit = LOCKS_LISTED_MAX;
        loop {
            let (mut listed, mut total) = (Vec::new(), 0);
            for export in &self.exports {
                let (locks, of_export) = export.filesystem.locks(limit - listed.len()).await?;
                listed.extend(locks.iter().map(|lock| self.lock_json(&export.name, lock)));
                total += of_export;
            }
            let text = json!({ "server": self.config.name, "locks_total": total, "locks": listed }).to_string();
            if text.len() <= LIST_LENGTH_MAX || listed.is_empty() {
                return Ok(text);
            }
            limit = listed.len() / 2;
        }
    }

    fn lock_json(&self, export: &str, seen: &LockSeen) -> Value {
        let session = lock(&self.sessions).get(&seen.client.0).cloned();
        let path = seen.path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
        // As text: many readers of JSON take numbers for floating ones, which lose digits.
        json!({
            "client_id": format!("{:016x}", seen.client.0),
            "client": session.as_ref().map(|session| session.name.clone()),
            "peer": session.as_ref().map(|session| session.origin.peer.to_string()),
            "node": session.as_ref().and_then(|session| session.origin.node.as_deref().map(str::to_owned)),
            "export": export,
            "path": path,
            "family": match seen.space { LockSpace::Posix => "fcntl", LockSpace::Flock => "flock", LockSpace::Turn => "turn" },
            "kind": if seen.lock.kind == LockKind::Write { "write" } else { "read" },
            "start": seen.lock.start,
            "end": (seen.lock.end < u64::MAX).then_some(seen.lock.end),
            "pid": seen.lock.pid,
            "state": if seen.waits { "waits" } else { "held" },
            "seconds": seen.age.as_secs(),
        })
    }

    /// Releases the locks of a client by ending its session, since only then can nothing of it be executed after others have got them; ENOENT when there is none of this
    /// number. It begins a new one by itself, in which what held locks gives errors.
    pub(crate) fn release_locks(&self, client: u64) -> Result<(), Errno> {
        let session = lock(&self.sessions).get(&client).cloned();
        let session = session.filter(|session| session.attached.get().is_some()).ok_or(Errno::ENOENT)?;
        tracing::warn!(client = %session.name, peer = %session.origin, "an administrator has released the locks of a client, whose session ends");
        self.end_session(&session);
        Ok(())
    }
}
