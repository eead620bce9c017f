//! The server: its start and its end.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use aqueduct_fs::TRANSFER_SIZE_MAX;
use aqueduct_net::BufferPool;
use aqueduct_wire::{ServerId, ServerIdentity};
use aqueduct_worker::{Group, Pulse, lock};

use crate::complaints::Complaints;
use crate::config::{Limits, ServerConfig, StartError};
use crate::exclusion::Exclusion;
use crate::export::Export;
use crate::failpoint::{Failpoint, Moment};
use crate::frames::goodbye;
use crate::journal::Folder;
use crate::lease::keeper::Keeper;
use crate::listeners::{Door, Listeners};
use crate::metrics::Metrics;
use crate::pressure;
use crate::reach::Reach;
use crate::room::Hoarders;
use crate::staging::Staging;
use crate::state::{Server, ServerConfigParts};
use crate::trace::Tracer;
use crate::unjoined::Unjoined;

/// Idle bulk buffers kept: enough for all threads of a busy server, 16 MiB at most.
const IDLE_BUFFERS_MAX: usize = 16;

/// Clients name exports by either.
fn told_apart(exports: &[Export]) -> Result<(), StartError> {
    for (at, export) in exports.iter().enumerate() {
        if let Some(other) = exports[..at].iter().find(|other| other.name == export.name || other.id == export.id) {
            return Err(StartError::SameExport(other.name.clone(), export.name.clone()));
        }
    }
    Ok(())
}

impl Server {
    /// Starts listening; requests are executed on the threads of `group`.
    pub fn start(config: ServerConfig, group: Arc<Group>) -> Result<Arc<Server>, StartError> {
        told_apart(&config.exports)?;
        let identity = config.identity.map_or_else(random_identity, Ok)?;
        let leases = config.limits.leases();
        let complaints = Complaints::new(&group);
        let server = Arc::new_cyclic(|this| {
            let budget = pressure::budget(this, config.limits.frame_memory, config.limits.unsent_memory);
            Server {
                config: ServerConfigParts {
                    name: config.name,
                    identity,
                    verifier: config.verifier,
                    limits: Limits { slots: config.limits.slots.clamp(1, aqueduct_wire::SLOTS_MAX), ..config.limits },
                    keys: config.keys,
                    members: config.members,
                    administrator: config.administrator,
                    checksums: config.checksums,
                    processors: config.processors,
                    volume: config.volume,
                    role: config.role,
                    mover: config.mover,
                },
                exports: config.exports.into_iter().map(Arc::new).collect(),
                group,
                pool: BufferPool::new(TRANSFER_SIZE_MAX, IDLE_BUFFERS_MAX).with_budget(budget.clone()),
                sessions: Mutex::default(),
                map: Mutex::new(config.map.map(Arc::new)),
                map_told: AtomicU64::new(0),
                recovery: Arc::default(),
                exclusion: Exclusion::default(),
                leases: Keeper::new(leases, this.clone()),
                failpoint: Failpoint::default(),
                reach: Reach::new(complaints.clone()),
                staging: Staging::default(),
                complaints,
                metrics: Metrics::default(),
                tracer: Tracer::new(config.trace),
                replies: Arc::default(),
                unjoined: Unjoined::default(),
                budget: budget.clone(),
                relieving: AtomicBool::new(false),
                outboxes: Mutex::default(),
                listening: AtomicBool::new(false),
                hoarders: Hoarders::default(),
                waiting: Arc::default(),
                folder: OnceLock::new(),
                started: Instant::now(),
                executing: AtomicUsize::new(0),
                freeing: AtomicUsize::new(0),
                looking: AtomicUsize::new(0),
                connections: AtomicUsize::new(0),
                draining: AtomicBool::new(false),
                pulse: Pulse::default(),
                listeners: Listeners::default(),
                this: this.clone(),
            }
        });
        // Its addresses are its own before it looks for sessions, and nobody is let in before they are there.
        let bound = server.listeners.bind(config.listen, config.sockets, config.local.as_deref())?;
        if let Some(path) = config.sessions {
            server.keep_sessions(&path).map_err(|source| StartError::Sessions { path, source })?;
        }
        let door: Weak<dyn Door> = server.weak();
        server.listeners.open(bound, &server.group, &door)?;
        Ok(server)
    }

    fn keep_sessions(&self, path: &Path) -> io::Result<()> {
        let folder =
            Folder::open(path, self.config.identity.id, self.config.verifier)?.counted(self.metrics.journal.clone());
        self.restore(&folder)?;
        self.folder.get_or_init(|| folder);
        Ok(())
    }

    /// For tests: ends requests without an answer, at the moments for which `hook` says so. It can
    /// be set once.
    pub fn set_failpoint(&self, hook: impl Fn(Moment) -> bool + Send + Sync + 'static) {
        self.failpoint.set(hook);
    }

    /// The addresses listened on, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.addresses()
    }

    /// The Unix sockets listened on.
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.listeners.sockets()
    }

    /// Takes no new connection or request, waits up to `grace` for those being executed, tells the clients, and closes. Sessions that are written
    /// down are left to the next server at these addresses, which are free when this returns. Never call it on a thread of the server's group.
    pub fn shutdown(&self, grace: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        let end = Instant::now() + grace;
        while self.executing.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let sessions: Vec<_> = std::mem::take(&mut *lock(&self.sessions)).into_values().collect();
        for session in &sessions {
            let goodbye = goodbye("the server shuts down");
            session.connections().iter().for_each(|connection| connection.send_unless_busy(&goodbye));
            session.end("the server shuts down");
            self.leases.wake_all_of(session.client());
        }
        // Only now that nobody can be told any more: what one session frees, another might be given that has it no more after the restart.
        for session in &sessions {
            match session.survives() {
                true => session.hand_over(),
                false => self.free(session),
            }
        }
        while self.freeing.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.folder.get().into_iter().for_each(Folder::leave);
        self.listeners.close();
    }
}

/// Of a server whose state ends with the process.
fn random_identity() -> Result<ServerIdentity, StartError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| StartError::Identity(io::Error::other(error)))?;
    Ok(ServerIdentity { id: ServerId(id), incarnation: 1 })
}
