//! What a server is started with: what it serves, to whom, and what it takes on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_metrics::status::VolumeStatus;
use aqueduct_net::Address;
use aqueduct_wire::{Checksums, Key, Map, ServerIdentity};

use crate::agent::Mover;
use crate::export::Export;
use crate::lease::{self, SHARDS};
use crate::right::{Authority, Granter};
use crate::trace::TraceConfig;

/// What a server takes on, each with its cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions. An idle one costs its connections and, once it has changed something, its reply
    /// memory: at most 2 x `slots` replies of about 300 bytes. Its file costs at most 8 KiB a slot
    /// and 16 KiB. At most 1024 of these files are open.
    pub sessions_max: usize,
    /// Connections, with a session or without: about 2 KiB and a descriptor each. See
    /// `frame_memory` and `unsent_memory` for what they hold.
    pub connections_max: usize,
    /// Connections that have no session yet, of one address and in all: about 2 KiB and a
    /// descriptor each.
    pub unjoined_per_address_max: usize,
    /// See `unjoined_per_address_max`.
    pub unjoined_max: usize,
    /// Bytes of frames that are not whole, or not executed yet, of all connections. Whoever finds
    /// no room waits. Frames up to 512 bytes are not counted.
    pub frame_memory: usize,
    /// Bytes of replies that peers do not read, of all connections; up to half as much more for a
    /// moment. Beyond that, the connection of a peer that does not read is closed.
    pub unsent_memory: usize,
    /// Slots per session and class: how many changes one client has under way. Once very many have
    /// been given out, new sessions get fewer, at least 8, so that all take at most 130 MiB.
    pub slots: u32,
    /// Lock requests of one client that wait, or whose end it was told of over another connection
    /// than the one on which it asked, and has not acknowledged: about 500 bytes each, and 200 for
    /// each of at most 32 repeats.
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
    /// How long a session outlives its last connection when the client did not say goodbye. Then
    /// its locks and opens are freed.
    pub session_grace: Duration,
    /// As `session_grace`, when the client has vanished, or a connection by a router has ended: the
    /// path to it may be mended, or its machine is gone.
    pub vanished_grace: Duration,
    /// How long after a start earlier clients may take to come back. Nobody else can take locks
    /// meanwhile.
    pub recovery_grace: Duration,
    /// How long after a start those that are back may take, the grace included, until they have
    /// again what they had. Nobody else can take locks meanwhile, and no file that was removed
    /// while open is given up. At least `recovery_grace`.
    pub recovery_max: Duration,
    /// A connection that has not joined a session by then is closed.
    pub hello_timeout: Duration,
    /// How long after its latest request a client may use its leases; whole seconds, 0 for no
    /// leases. A change waits at most this long and the next two for a client that does not
    /// answer, and for leases of before a start.
    pub lease: Duration,
    /// How much longer the server waits, for kernels that act late on what they are told, and for
    /// clocks.
    pub lease_patience: Duration,
    /// How soon a client has to give back what it is asked for, or it is not renewed.
    pub lease_answer: Duration,
    /// For how long a recalled lease is granted to nobody. Each further recall doubles it, up to
    /// 10 s.
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
            recovery_max: Duration::from_secs(60),
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
    /// The same for the leases of a shard.
    pub(crate) fn leases(&self) -> lease::Limits {
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
    /// The cluster's keys, at most [`KEYS_MAX`](aqueduct_wire::KEYS_MAX): only clients that have
    /// one of them are served. None: everybody is.
    pub keys: Vec<Key>,
    /// The key of the volume's other servers, for exports that are theirs alone
    /// ([`Access::members_only`](crate::Access::members_only)). It lets them in beside whoever
    /// `keys` lets in. None: there are none.
    pub members: Option<Key>,
    /// The administrator's key: who has it may see and release locks. None: nobody may.
    pub administrator: Option<Key>,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// The processors that the group's threads are held to, for its status.
    pub processors: Option<String>,
    /// The folder where sessions are written down, so that they outlive the process. `None`: they
    /// end with it. Servers may share one.
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
            members: None,
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
