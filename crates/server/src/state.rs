//! What a running server has: its configuration, exports and sessions, and all that they share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use aqueduct_metrics::status::VolumeStatus;
use aqueduct_net::{Budget, BufferPool};
use aqueduct_wire::{Checksums, Key, Map, ServerIdentity};
use aqueduct_worker::{Group, Pulse, lock};

use crate::agent::Mover;
use crate::complaints::Complaints;
use crate::config::{Limits, Role};
use crate::exclusion::Exclusion;
use crate::export::Export;
use crate::failpoint::Failpoint;
use crate::journal::Folder;
use crate::lease::keeper::Keeper;
use crate::listeners::Listeners;
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::reach::Reach;
use crate::recovery::Recovery;
use crate::room::{Hoarders, Waiting};
use crate::session::Session;
use crate::slots::ReplyMemory;
use crate::staging::Staging;
use crate::trace::Tracer;
use crate::unjoined::Unjoined;

/// A running server.
pub struct Server {
    pub(crate) config: ServerConfigParts,
    pub(crate) exports: Vec<Arc<Export>>,
    pub(crate) group: Arc<Group>,
    pub(crate) pool: BufferPool,
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    /// Of the volume that it has a part of.
    pub(crate) map: Mutex<Option<Arc<Map>>>,
    /// The epoch of the latest that all clients were told of; 0: they were told of none.
    pub(crate) map_told: AtomicU64,
    pub(crate) recovery: Arc<Recovery>,
    pub(crate) exclusion: Exclusion,
    pub(crate) leases: Keeper,
    pub(crate) failpoint: Failpoint,
    pub(crate) complaints: Complaints,
    pub(crate) metrics: Metrics,
    pub(crate) tracer: Tracer,
    pub(crate) replies: Arc<ReplyMemory>,
    pub(crate) unjoined: Unjoined,
    pub(crate) budget: Arc<Budget>,
    pub(crate) hoarders: Hoarders,
    pub(crate) waiting: Arc<Waiting>,
    /// Somebody looks for who holds memory in vain.
    pub(crate) relieving: AtomicBool,
    /// Sessions whose messages somebody looks after.
    pub(crate) outboxes: Mutex<Vec<Weak<Session>>>,
    /// Somebody looks for clients that are silent.
    pub(crate) listening: AtomicBool,
    /// Where sessions are written down.
    pub(crate) folder: OnceLock<Folder>,
    pub(crate) started: Instant,
    /// Requests that are being executed.
    pub(crate) executing: AtomicUsize,
    /// Sessions that have ended, of which the file system still has something.
    pub(crate) freeing: AtomicUsize,
    /// Requests that wait for what others hold back.
    pub(crate) looking: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    pub(crate) draining: AtomicBool,
    /// Beats while requests are executed.
    pub(crate) pulse: Pulse,
    pub(crate) listeners: Listeners,
    pub(crate) reach: Reach,
    /// What clients have brought to be written by the volume's other servers.
    pub(crate) staging: Staging,
    pub(crate) this: Weak<Server>,
}

/// The configuration without what the server took out of it.
pub(crate) struct ServerConfigParts {
    pub(crate) name: String,
    pub(crate) identity: ServerIdentity,
    pub(crate) verifier: u64,
    pub(crate) limits: Limits,
    pub(crate) keys: Vec<Key>,
    pub(crate) members: Option<Key>,
    pub(crate) administrator: Option<Key>,
    pub(crate) checksums: Checksums,
    pub(crate) processors: Option<String>,
    pub(crate) volume: Option<VolumeStatus>,
    pub(crate) role: Role,
    pub(crate) mover: Option<Arc<dyn Mover>>,
}

impl Server {
    /// The name of an export, if this process itself attaches it, to make copies for others: whom
    /// it lets in there it has looked at before.
    pub(crate) fn own_export<'a>(&self, origin: &Origin, name: &'a str) -> Option<&'a str> {
        let mover = self.config.mover.as_ref().filter(|_| origin.is_this_process())?;
        name.strip_prefix(mover.token())
    }

    pub(crate) fn export(&self, name: &str) -> Option<&Arc<Export>> {
        self.exports.iter().find(|export| export.name == name)
    }

    pub(crate) fn session(&self, id: u64) -> Option<Arc<Session>> {
        lock(&self.sessions).get(&id).cloned()
    }

    /// Whether sessions are written down.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.folder.get().is_some()
    }

    pub(crate) fn weak(&self) -> Weak<Server> {
        self.this.clone()
    }
}
