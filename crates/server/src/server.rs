//! The server: listeners, exports, the table of sessions, start and end.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use aqueduct_fs::{Aspects, FileSystem, TRANSFER_SIZE_MAX};
use aqueduct_metrics::status::VolumeStatus;
use aqueduct_net::{Address, Budget, BufferPool};
use aqueduct_wire::{Checksums, Flags, HEADER_SIZE, Header, Key, Kind, Map, ServerId, ServerIdentity};
use aqueduct_worker::{Group, Pulse, lock};

use crate::access::Access;
use crate::agent::Mover;
use crate::complaints::{Complaint, Complaints};
use crate::exclusion::Exclusion;
use crate::failpoint::Failpoint;
use crate::journal::{Folder, Journal};
use crate::lease::keeper::{Keeper, now};
use crate::lease::{self, SHARDS};
use crate::listen::{Listeners, Unjoined};
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::outbox::Outboxes;
use crate::outside::{External, Told};
use crate::pressure::{self, Hoarders, Waiting};
use crate::reach::KnownInterfaces;
use crate::recovery::Recovery;
use crate::right::{Authority, Granter};
use crate::session::{Forsaken, Session};
use crate::slots::ReplyMemory;
use crate::trace::{TraceConfig, Tracer};

/// A file system under a name.
pub struct Export {
    /// What clients ask for; the directory's path unless the configuration names it.
    pub name: String,
    /// See [`export_id`].
    pub id: u32,
    /// Answers its requests.
    pub filesystem: Arc<dyn FileSystem>,
    /// Nothing may be changed. The file system enforces it; this tells the clients.
    pub read_only: bool,
    /// Where it lies on the server, for `aqueduct status`.
    pub path: String,
    /// What it allows to whom. The server translates ids if it has maps.
    pub access: Access,
    /// What changes names or attributes is on its disk before it is answered: then sessions are written down so that they outlive the machine.
    pub durable: bool,
    /// How changes by others than the clients come to light.
    pub external: External,
}

/// The number of an export, derived from its name so that it survives restarts.
pub fn export_id(name: &str) -> u32 {
    // FNV-1a, 32 bits (Fowler, Noll, Vo): two exports of one server are refused when they collide.
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// What a server takes on, each with its cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions. An idle one costs its connections and, once it has changed things, its reply memory: at most 2 x `slots` replies of
    /// about 300 bytes. One that is written down costs, on disk, at most 8 KiB for each slot and 16 KiB; of all those 1024 files are open at most.
    pub sessions_max: usize,
    /// Connections, with a session or without: about 2 KiB and a descriptor each. See `frame_memory` and `unsent_memory` for what they hold.
    pub connections_max: usize,
    /// Connections that have no session yet, of one address and in all: about 2 KiB and a descriptor each.
    pub unjoined_per_address_max: usize,
    /// See `unjoined_per_address_max`.
    pub unjoined_max: usize,
    /// Bytes for frames of all connections that are not whole, or not executed yet; who finds none waits. Frames up to 512 bytes are not counted.
    pub frame_memory: usize,
    /// Bytes of replies of all connections that their peers do not read; up to half as much more for a moment. Beyond, who does not read is closed.
    pub unsent_memory: usize,
    /// Slots per session and class: how many changing requests one client has under way. When very many have been given out, new sessions get fewer,
    /// at least 8, so that all take at most 130 MiB.
    pub slots: u32,
    /// Lock requests of one client that wait.
    pub pending_max: usize,
    /// Requests of one client that are under way or wait for anything. A file system that answers
    /// at once has as many under way as there are threads; one that asks others, as many as
    /// clients send.
    pub requests_of_client_max: usize,
    /// Requests under way of all clients: about 5 KiB each, beside their frames.
    pub requests_max: usize,
    /// Requests that wait for what others hold back, of one client and in all: about 2 KiB each.
    pub looks_of_client_max: usize,
    /// See `looks_of_client_max`.
    pub looks_max: usize,
    /// A connection over which the other machine acknowledges nothing for so long, though it was
    /// asked, is dead; whole seconds, at least 2. A client whose machine acknowledges, but that
    /// says nothing itself, is asked after twice as long, and has vanished after four to five
    /// times as long.
    pub suspect: Duration,
    /// How long a session outlives its last connection when the client did not say goodbye. Then its locks and opens are freed.
    pub session_grace: Duration,
    /// As `session_grace`, when the client has vanished: the path to it may be mended, or its machine is gone.
    pub vanished_grace: Duration,
    /// How long after a start clients of before it may take to come back, while nobody else can take locks.
    pub recovery_grace: Duration,
    /// A connection that has not joined a session by then is closed.
    pub hello_timeout: Duration,
    /// How long a client may use what leases cover after its latest request; whole seconds, 0 for no leases. Who changes something waits for a client that does
    /// not answer, and for what clients of before a start may still believe, at most this long and the next two.
    pub lease: Duration,
    /// How much longer the server waits: for kernels that handle late what they are told, and for clocks.
    pub lease_patience: Duration,
    /// How soon a client has to give back what it is asked for, or it is not renewed.
    pub lease_answer: Duration,
    /// What was recalled is granted to nobody for so long, and twice as long if it is recalled again at once, up to 10 s.
    pub lease_holdoff: Duration,
    /// Leases in all, at 110 bytes at most.
    pub leases_max: usize,
    /// Leases of one client; then it has to give one back for each further one.
    pub leases_of_client_max: usize,
    /// An operation that takes longer is logged.
    pub slow_operation: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions_max: 16_384,
            connections_max: 65_536,
            unjoined_per_address_max: 1024,
            unjoined_max: 8192,
            frame_memory: 64 << 20,
            unsent_memory: 48 << 20,
            slots: 256,
            pending_max: 4096,
            requests_of_client_max: 16_384,
            requests_max: 32_768,
            looks_of_client_max: 4096,
            looks_max: 16_384,
            suspect: Duration::from_secs(5),
            session_grace: Duration::from_secs(5),
            vanished_grace: Duration::from_secs(15),
            recovery_grace: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            lease: Duration::from_secs(7),
            lease_patience: Duration::from_secs(2),
            lease_answer: Duration::from_secs(1),
            lease_holdoff: Duration::from_millis(100),
            leases_max: 4 << 20,
            leases_of_client_max: 1 << 18,
            slow_operation: Duration::from_secs(1),
        }
    }
}

impl Limits {
    fn leases(&self) -> lease::Limits {
        lease::Limits {
            lease: self.lease,
            patience: self.lease_patience,
            answer: self.lease_answer,
            holdoff_first: self.lease_holdoff,
            leases_max: self.leases_max.div_ceil(SHARDS),
            leases_of_client_max: self.leases_of_client_max.div_ceil(SHARDS),
            ..lease::Limits::default()
        }
    }
}

/// What a server is.
pub struct ServerConfig {
    /// Addresses to listen on; port 0 lets the kernel choose.
    pub listen: Vec<SocketAddr>,
    /// Unix sockets to listen on besides.
    pub sockets: Vec<PathBuf>,
    /// The folder for Unix sockets by which mounts of this machine's loopback addresses find the
    /// server: see [`aqueduct_net::local`]. `None`: none.
    pub local: Option<PathBuf>,
    /// Shown to clients.
    pub name: String,
    /// Who it is, by which its state is kept and its clients know it again; `None`: nobody but
    /// this process.
    pub identity: Option<ServerIdentity>,
    /// Distinguishes this run of the server from others; see `Written::verifier`.
    pub verifier: u64,
    /// What it takes on.
    pub limits: Limits,
    /// What it serves.
    pub exports: Vec<Export>,
    /// The cluster's keys, at most [`KEYS_MAX`](aqueduct_wire::KEYS_MAX): only clients that have one of them are served. None: everybody is.
    pub keys: Vec<Key>,
    /// The administrator's key: who has it may see and release locks. None: nobody may.
    pub administrator: Option<Key>,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// The processors that the group's threads are held to, for its status.
    pub processors: Option<String>,
    /// The folder where sessions are written down, so that they outlive the process; `None`: they end with it. Servers may share one.
    pub sessions: Option<PathBuf>,
    /// The volume that it has a part of; `None`: it stands alone.
    pub map: Option<Map>,
    /// The same for people.
    pub volume: Option<VolumeStatus>,
    /// What it is to those who write.
    pub role: Role,
    /// What makes copies for clients; `None`: it is no agent.
    pub mover: Option<Arc<dyn Mover>>,
    /// Which requests are slow, and who wants to know of requests.
    pub trace: TraceConfig,
}

/// What a server is where several write.
#[derive(Default)]
pub enum Role {
    /// It writes itself what it grants leases on.
    #[default]
    Alone,
    /// It gives rights to write at servers of data, too.
    Names(Arc<Granter>),
    /// It writes under rights only.
    Data(Arc<Authority>),
}

/// One that serves nothing to nobody.
impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            listen: Vec::new(),
            sockets: Vec::new(),
            local: None,
            name: String::new(),
            identity: None,
            verifier: 0,
            limits: Limits::default(),
            exports: Vec::new(),
            keys: Vec::new(),
            administrator: None,
            checksums: Checksums::Auto,
            processors: None,
            sessions: None,
            map: None,
            volume: None,
            role: Role::Alone,
            mover: None,
            trace: TraceConfig::default(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// Two exports have one name, or names with one id.
    #[error("the exports '{0}' and '{1}' have the same name or id: give one of them another name")]
    SameExport(String, String),
    /// There are no random numbers.
    #[error("cannot make an identity: {0}")]
    Identity(io::Error),
    /// The folder for sessions cannot be used.
    #[error("cannot keep sessions in {path}: {source}", path = .path.display())]
    Sessions {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A running server.
pub struct Server {
    pub(crate) config: ServerConfigParts,
    pub(crate) exports: Vec<Arc<Export>>,
    pub(crate) group: Arc<Group>,
    pub(crate) pool: BufferPool,
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) recovery: Recovery,
    pub(crate) exclusion: Exclusion,
    pub(crate) leases: Keeper,
    pub(crate) failpoint: Failpoint,
    pub(crate) complaints: Complaints,
    pub(crate) told: Told,
    pub(crate) metrics: Metrics,
    pub(crate) tracer: Tracer,
    pub(crate) replies: Arc<ReplyMemory>,
    pub(crate) unjoined: Unjoined,
    pub(crate) budget: Arc<Budget>,
    pub(crate) hoarders: Hoarders,
    pub(crate) waiting: Arc<Waiting>,
    /// Somebody looks for who holds memory in vain.
    pub(crate) relieving: AtomicBool,
    pub(crate) outboxes: Outboxes,
    /// Somebody looks for clients that are silent.
    pub(crate) listening: AtomicBool,
    /// Where sessions are written down.
    folder: OnceLock<Folder>,
    pub(crate) started: Instant,
    /// Requests that are being executed.
    pub(crate) executing: AtomicUsize,
    /// Sessions that have ended, of which the file system still has something.
    freeing: AtomicUsize,
    /// Requests that wait for what others hold back.
    pub(crate) looking: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    pub(crate) draining: AtomicBool,
    /// Beats while requests are executed.
    pub(crate) pulse: Pulse,
    pub(crate) listeners: Listeners,
    pub(crate) interfaces: KnownInterfaces,
    pub(crate) this: Weak<Server>,
}

/// The configuration without what the server took out of it.
pub(crate) struct ServerConfigParts {
    pub(crate) name: String,
    pub(crate) identity: ServerIdentity,
    pub(crate) verifier: u64,
    pub(crate) limits: Limits,
    pub(crate) keys: Vec<Key>,
    pub(crate) administrator: Option<Key>,
    pub(crate) checksums: Checksums,
    pub(crate) processors: Option<String>,
    pub(crate) map: Option<Map>,
    pub(crate) volume: Option<VolumeStatus>,
    pub(crate) role: Role,
    pub(crate) mover: Option<Arc<dyn Mover>>,
}

/// Idle bulk buffers kept: enough for all threads of a busy server, 16 MiB at most.
const IDLE_BUFFERS_MAX: usize = 16;

impl Server {
    /// Starts listening; requests are executed on the threads of `group`.
    pub fn start(config: ServerConfig, group: Arc<Group>) -> Result<Arc<Server>, StartError> {
        for (at, export) in config.exports.iter().enumerate() {
            if let Some(other) =
                config.exports[..at].iter().find(|other| other.name == export.name || other.id == export.id)
            {
                return Err(StartError::SameExport(other.name.clone(), export.name.clone()));
            }
        }
        let identity = config.identity.map_or_else(random_identity, Ok)?;
        let leases = config.limits.leases();
        let server = Arc::new_cyclic(|this| {
            let budget = pressure::budget(this, config.limits.frame_memory, config.limits.unsent_memory);
            Server {
                config: ServerConfigParts {
                    name: config.name,
                    identity,
                    verifier: config.verifier,
                    limits: Limits { slots: config.limits.slots.clamp(1, aqueduct_wire::SLOTS_MAX), ..config.limits },
                    keys: config.keys,
                    administrator: config.administrator,
                    checksums: config.checksums,
                    processors: config.processors,
                    map: config.map,
                    volume: config.volume,
                    role: config.role,
                    mover: config.mover,
                },
                exports: config.exports.into_iter().map(Arc::new).collect(),
                group,
                pool: BufferPool::new(TRANSFER_SIZE_MAX, IDLE_BUFFERS_MAX).with_budget(budget.clone()),
                sessions: Mutex::default(),
                recovery: Recovery::default(),
                exclusion: Exclusion::default(),
                leases: Keeper::new(leases, this.clone()),
                failpoint: Failpoint::default(),
                complaints: Complaints::default(),
                told: Told::default(),
                metrics: Metrics::default(),
                tracer: Tracer::new(config.trace),
                replies: Arc::default(),
                unjoined: Unjoined::default(),
                budget: budget.clone(),
                relieving: AtomicBool::new(false),
                outboxes: Outboxes::default(),
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
                interfaces: KnownInterfaces::default(),
                this: this.clone(),
            }
        });
        // Its addresses are its own before it looks for sessions, and nobody is let in before they are there.
        let bound = server.listeners.bind(config.listen, config.sockets, config.local.as_deref())?;
        if let Some(path) = config.sessions {
            server.keep_sessions(&path).map_err(|source| StartError::Sessions { path, source })?;
        }
        server.accept(bound)?;
        Ok(server)
    }

    fn keep_sessions(&self, path: &Path) -> io::Result<()> {
        let folder =
            Folder::open(path, self.config.identity.id, self.config.verifier)?.counted(self.metrics.journal.clone());
        self.restore(&folder)?;
        self.folder.get_or_init(|| folder);
        Ok(())
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
            match session.journal.get().filter(|_| session.survives()) {
                Some(journal) => journal.close(),
                None => self.free(session),
            }
        }
        while self.freeing.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.folder.get().into_iter().for_each(Folder::leave);
        self.listeners.close();
    }

    /// The name of an export, if this process itself attaches it, to make copies for others: whom
    /// it lets in there it has looked at before.
    pub(crate) fn own_export<'a>(&self, origin: &Origin, name: &'a str) -> Option<&'a str> {
        let mover = self.config.mover.as_ref().filter(|_| origin.is_this_process())?;
        name.strip_prefix(mover.token())
    }

    pub(crate) fn export(&self, name: &str) -> Option<&Arc<Export>> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// A new session, unless there are too many. Without a secret it gets one of its own.
    pub(crate) fn new_session(&self, name: String, origin: Origin, secret: Option<[u8; 16]>) -> Option<Arc<Session>> {
        let mut random = [0; 24];
        getrandom::fill(&mut random).ok()?;
        let mut sessions = lock(&self.sessions);
        let id = u64::from_le_bytes(random[..8].try_into().ok()?);
        if sessions.len() >= self.config.limits.sessions_max || id == 0 || sessions.contains_key(&id) {
            return None;
        }
        let own = random[8..].try_into().ok()?;
        let slots = self.replies.grant(self.config.limits.slots);
        let session = Arc::new(Session::new(id, secret.unwrap_or(own), name, origin, slots));
        sessions.insert(id, session.clone());
        self.metrics.sessions.increment();
        drop(sessions);
        self.listen_for_silence();
        Some(session)
    }

    pub(crate) fn session(&self, id: u64) -> Option<Arc<Session>> {
        lock(&self.sessions).get(&id).cloned()
    }

    /// The last connection of a session has gone: it ends after the grace unless one comes back.
    pub(crate) fn expire_later(&self, session: &Arc<Session>, Forsaken { joins, is_cut }: Forsaken) {
        let Some(server) = self.this.upgrade() else { return };
        let session = session.clone();
        let limits = &self.config.limits;
        let grace = self.group.sleep(if is_cut { limits.vanished_grace } else { limits.session_grace });
        self.group.spawn(async move {
            grace.await;
            if session.end_if_forsaken(joins) {
                server.metrics.forsaken.increment();
                let what = format_args!("{} did not come back: its locks and opens are freed", session.name);
                server.complain(&session.origin, Complaint::Forsaken, what);
                server.end_session(&session);
            }
        });
    }

    /// Ends a session: fences it, then frees what it holds. While requests of it are being executed nobody else gets its locks: the last one frees them.
    pub(crate) fn end_session(&self, session: &Arc<Session>) {
        session.end("the session has ended");
        session.waits.end();
        self.leases.wake_all_of(session.client());
        if lock(&self.sessions).remove(&session.id).is_some() && session.is_drained() {
            self.free(session);
        }
    }

    /// Frees what an ended session holds, of which nothing is executed any more. A file system
    /// that has to ask others for that is waited for by a task.
    pub(crate) fn free(&self, session: &Arc<Session>) {
        let Some(server) = self.this.upgrade().filter(|_| session.is_freed_now()) else { return };
        let session = session.clone();
        self.freeing.fetch_add(1, Ordering::SeqCst);
        self.group.run_now(async move {
            if let Some(attached) = session.attached.get()
                && let Err(error) = attached.filesystem.depart(session.client()).await
            {
                tracing::error!(client = %session.name, %error, "what a client that has gone had open and locked could not be given back");
            }
            server.freed(&session);
            server.freeing.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// The file system has nothing of a session any more.
    fn freed(&self, session: &Session) {
        let is_done = session.said_goodbye.load(Ordering::SeqCst);
        if let (Some(until), Some(folder)) = (self.leases.ended(session, is_done), self.folder.get()) {
            folder.note_lapse(until, now()); // before its own file goes
        }
        if let Some(journal) = session.journal.get() {
            journal.remove();
        }
        self.recovery.settle(session.id);
        if is_done {
            self.leases.settle(session.id);
        }
    }

    /// A request has come. Whether its reply renews the session's leases.
    pub(crate) fn renews(&self, session: &Arc<Session>, request: &Header) -> bool {
        if !self.leases.is_on() {
            return false;
        }
        if request.flags.contains(Flags::LEASES) && session.holder.get().is_none() && !session.is_recovering() {
            let Some(journal) = session.journal.get() else { return false };
            journal.note_leases(self.leases.silence_max());
            self.leases.admit(session);
        }
        self.leases.renew(session)
    }

    /// What ended sessions were granted is no longer noted when it has lapsed.
    pub(crate) fn forget_lapse(&self) {
        self.folder.get().into_iter().for_each(|folder| folder.forget_lapse(now()));
    }

    /// Something below an export was changed past this server: leases on it are recalled, and none are granted on what was looked at before.
    pub fn changed_outside(&self, handle: &[u8], aspects: Aspects) {
        // Whichever export it was sealed for.
        let of_export = |export: &&Arc<Export>| export.filesystem.inode_name(handle).is_some();
        if let Some(export) = self.exports.iter().find(of_export).or(self.exports.first()) {
            self.leases.changed(&*export.filesystem, handle, aspects);
        }
    }

    /// Anything may have been changed past this server.
    pub fn changed_everything(&self) {
        self.leases.changed_everything();
    }

    /// Writes a session down from now on, which has its export.
    pub(crate) fn keep(&self, session: &Session, export: &Export, asks_leases: bool) {
        let Some(folder) = self.folder.get() else { return };
        session.journal.get_or_init(|| {
            let believes = if asks_leases { self.leases.silence_max() } else { Duration::ZERO };
            folder.create(&folder.head(session, (&export.name, export.durable), believes)).unwrap_or_else(|error| {
                tracing::error!(client = %session.name, %error, "a session cannot be written down: it will not survive a restart");
                Journal::none()
            })
        });
    }

    /// Whether sessions are written down.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.folder.get().is_some()
    }

    pub(crate) fn weak(&self) -> Weak<Server> {
        self.this.clone()
    }
}

/// Of a server whose state ends with the process.
fn random_identity() -> Result<ServerIdentity, StartError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| StartError::Identity(io::Error::other(error)))?;
    Ok(ServerIdentity { id: ServerId(id), incarnation: 1 })
}

/// A GOODBYE frame with its reason.
pub(crate) fn goodbye(reason: &str) -> Vec<u8> {
    let mut header = Header::new(Kind::Goodbye);
    header.body_length = reason.len() as u32;
    let mut frame = Vec::with_capacity(HEADER_SIZE + reason.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(reason.as_bytes());
    frame
}
