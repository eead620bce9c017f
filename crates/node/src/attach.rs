//! An export of a server as a tool has it: a file system without a mount.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_client::{
    Client, ClientConfig, ConnectError, MoverConfig, RailsConfig, Remake, SessionConfig, Spread, volume_map,
};
use aqueduct_fs::{ClientId, Context, Credential, Errno, FileSystem, Groups, Reply, Request};
use aqueduct_metrics::Snapshot;
use aqueduct_metrics::status::ClientStatus;
use aqueduct_net::Initiator;
use aqueduct_wire::{Checksums, ClientKey, DATA_EXPORT, DataServer, Map, VolumeMode};
use aqueduct_worker::{Group, wait};
use rustix::process::{getegid, geteuid, getgroups};

use crate::{host, workers};

/// What is kept, in bytes, until the server has it on its disk: a second of a fast network's
/// traffic, and little beside what the kernel would let a program write to a local disk before it
/// has to wait.
pub const REPLAY_WINDOW: usize = 256 << 20;

/// A server that answers nothing for so long, not even the questions of the kernel, is taken for
/// gone: longer than what a network loses is sent again.
pub const SUSPECT: Duration = Duration::from_secs(5);

/// Who gives up waits this long unless told otherwise: longer than a server takes to restart.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a server of a volume may take to tell of the others.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// From so many bytes on of a file what is held back goes straight to a server of data: a right
/// costs a question, and its end a wait for the disk. What is gathered grows to much more where a
/// file is written in order.
pub const STRAIGHT_FROM: usize = 128 << 10;

/// How an export of a server is had, by mounts and by tools.
#[derive(Clone, Debug)]
pub struct AttachConfig {
    /// `HOST:PORT`, and more addresses of the server with commas: one that answers will do.
    pub server: String,
    /// The name of the export.
    pub export: String,
    /// The volume that is meant, of which the server has a part; `None`: the server alone.
    pub volume: Option<String>,
    /// What the server's status and log call this client.
    pub name: String,
    /// The cluster's key; the server has to have it too.
    pub key: Option<ClientKey>,
    /// Nothing will be changed.
    pub read_only: bool,
    /// A request gives EIO when the server has not answered for so long; `None`: it waits, however
    /// long the server is away.
    pub patience: Option<Duration>,
    /// A server that answers nothing for so long is connected to anew; whole seconds, at least 2.
    pub suspect: Duration,
    /// Bytes that are kept until they are stable at the server; 0: none, and they are lost if its
    /// machine loses them.
    pub replay_window: usize,
    /// What is held back goes straight to servers of data from so many bytes on.
    pub straight_from: usize,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// What the server grants leases on is kept. Else each operation is a request.
    pub leases: bool,
    /// Under leases writes are held back for a moment.
    pub gathers: bool,
    /// Bulk data have connections of their own, so that nothing small waits behind them.
    pub bulk_lanes: bool,
    /// The server is to say how long each request waited before it was begun.
    pub asks_queue_time: bool,
    /// By which routers networks are reached that have a name: `HOST:PORT@NET` in `server` is a
    /// host there.
    pub routes: Option<Arc<Initiator>>,
    /// The ways to the server that are used at once.
    pub rails: RailsConfig,
}

impl AttachConfig {
    /// As a tool wants it: each operation is a request, and a server that is away is waited for.
    pub fn new(server: impl Into<String>, export: impl Into<String>) -> AttachConfig {
        AttachConfig {
            server: server.into(),
            export: export.into(),
            volume: None,
            name: host::name(),
            key: None,
            read_only: false,
            patience: None,
            suspect: SUSPECT,
            replay_window: REPLAY_WINDOW,
            straight_from: STRAIGHT_FROM,
            checksums: Checksums::Auto,
            leases: false,
            gathers: false,
            bulk_lanes: true,
            asks_queue_time: false,
            routes: None,
            rails: RailsConfig::default(),
        }
    }

    /// Connects, with two connections for each group, or one.
    pub(crate) fn connect(&self, groups: &[Arc<Group>]) -> Result<Arc<Client>, ConnectError> {
        let Some(volume) = &self.volume else { return Client::connect(self.client(&self.server, self.leases), groups) };
        let map = volume_map(&self.server, volume, (self.key.clone(), self.routes.clone()), MAP_TIMEOUT)?;
        let names = ClientConfig { is_atomic: map.is_atomic, ..self.client(&map.names.join(","), self.leases) };
        if map.mode == VolumeMode::Serial {
            return Client::connect(names, groups);
        }
        let (salt, of_other, named) = (salt(), self.clone(), names.session.server.clone());
        let remake: Remake = Arc::new(move |map: &Map| {
            if map.names.join(",") != named {
                tracing::error!("the volume's server of the names has moved to another address");
                return None;
            }
            (map.mode != VolumeMode::Serial).then(|| of_other.movers(map, salt))
        });
        Client::connect_moved(names, (self.movers(&map, salt), Some(remake)), groups)
    }

    /// The servers that move bytes by a map. With `loadbalance` each salt has others.
    fn movers(&self, map: &Map, salt: u64) -> MoverConfig {
        let has_objects = matches!(map.mode, VolumeMode::WholeFile | VolumeMode::Striped);
        let session = |server: &DataServer| {
            let of_server = self.client(&server.addresses.join(","), false).session;
            let session = SessionConfig { export: DATA_EXPORT.to_owned(), ..of_server };
            (server.place, (server.addresses != map.names).then_some(session))
        };
        // Who moves to another address keeps its files.
        let names: Vec<_> = map.data.iter().map(|server| server.place.to_string()).collect();
        let spread = Spread::new(names.iter().map(String::as_str));
        MoverConfig {
            map: map.epoch,
            sessions: map.data.iter().map(session).collect(),
            spread: match map.mode {
                VolumeMode::Stripe => spread.striped(map.width.into(), map.stripe_size.into()),
                VolumeMode::LoadBalance => spread.salted(salt),
                _ => spread,
            },
            is_constant: map.mode == VolumeMode::LoadBalance,
            has_objects,
            straight_from: self.straight_from,
        }
    }

    /// A session with the server alone.
    pub(crate) fn session(&self) -> SessionConfig {
        self.client(&self.server, false).session
    }

    /// A client of the server at these addresses.
    fn client(&self, server: &str, leases: bool) -> ClientConfig {
        let session = SessionConfig {
            server: server.to_owned(),
            export: self.export.clone(),
            name: self.name.clone(),
            read_only: self.read_only,
            soft: self.patience.is_some(),
            timeout: self.patience.unwrap_or(PATIENCE),
            key: self.key.clone(),
            replay_window: self.replay_window,
            suspect: self.suspect,
            checksums: self.checksums,
            bulk_lanes: self.bulk_lanes,
            asks_queue_time: self.asks_queue_time,
            routes: self.routes.clone(),
            rails: self.rails.clone(),
        };
        ClientConfig { session, leases, gathers: self.gathers, is_atomic: false }
    }
}

/// Another number for each client.
fn salt() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Whose threads carry the requests of an attachment.
pub enum Carriers<'a> {
    /// The caller's, while it waits: no thread runs when nobody waits.
    Caller,
    /// So many threads of its own.
    Threads(usize),
    /// Those of groups that others use too. They must outlive the attachment.
    Shared(&'a [Arc<Group>]),
}

/// An export of a server, attached without a mount. Dropping it makes stable what was written, and
/// says goodbye.
pub struct Attachment {
    client: Arc<Client>,
    groups: Vec<Arc<Group>>,
    has_own_groups: bool,
}

impl Attachment {
    /// Connects to the server and its export.
    pub fn connect(config: &AttachConfig, carriers: Carriers<'_>) -> Result<Attachment, ConnectError> {
        let local = |source| ConnectError::Local { server: config.server.clone(), source };
        let (groups, has_own_groups) = match carriers {
            Carriers::Caller => (vec![workers::of_caller().map_err(local)?], true),
            Carriers::Threads(count) => (workers::of_tool(count.max(1)).map_err(local)?, true),
            Carriers::Shared(groups) => (groups.to_vec(), false),
        };
        match config.connect(&groups) {
            Ok(client) => Ok(Attachment { client, groups, has_own_groups }),
            Err(error) => {
                if has_own_groups {
                    workers::end(&groups);
                }
                Err(error)
            }
        }
    }

    /// What is attached.
    pub fn filesystem(&self) -> Arc<dyn FileSystem> {
        self.client.clone()
    }

    /// Says another number each time that the server was started, from before anything that it has
    /// said since is heard.
    pub(crate) fn epochs(&self) -> Arc<dyn Fn() -> u64 + Send + Sync> {
        let client = self.client.clone();
        Arc::new(move || client.epoch())
    }

    /// What `aqueduct status` tells of such a client.
    pub fn status(&self) -> ClientStatus {
        self.client.status()
    }

    /// What its sessions have counted.
    pub fn metrics(&self) -> Snapshot {
        Snapshot::of(&*self.client)
    }

    /// The groups that carry its requests.
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    /// Waits for an operation. Never call it on a thread of the groups.
    pub fn wait<T>(&self, operation: impl Future<Output = T>) -> T {
        wait(&self.groups[0], operation)
    }

    /// Asks and waits for the answer.
    pub fn call(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        self.wait(self.client.call(context, request))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.client.disconnect();
        if self.has_own_groups {
            workers::end(&self.groups);
        }
    }
}

/// Whoever runs this process, as a caller of operations.
pub fn caller() -> Context {
    let groups = getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
    let credential = Credential { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups: Groups::Known(groups) };
    Context::new(ClientId(0), credential)
}
