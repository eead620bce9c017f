//! A running server: exports, keys and listeners put together.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use aqueduct_client::boottime;
use aqueduct_fs::FileSystem;
use aqueduct_fs::dataonly::DataOnly;
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_fs::wide::Wide;
use aqueduct_layout::Plain;
use aqueduct_metrics::Snapshot;
use aqueduct_net::Initiator;
use aqueduct_observe::Exporter;
use aqueduct_posix::{Options, Posix, Watcher};
use aqueduct_server::right::{Granter, GranterConfig, Places};
use aqueduct_server::{Export, External, Limits, Mover, Role, ServerConfig, StartError, export_id};
use aqueduct_wire::{DATA_EXPORT, Map, RightKey, ServerId, ServerIdentity, VolumeMode};
use aqueduct_worker::Group;

use crate::beat::{Beats, Data};
use crate::config::ServeConfig;
use crate::exports::ExportConfig;
use crate::external::Choices;
use crate::failure::{Failure, Kind};
use crate::state::StateFolder;
use crate::throttle::throttled;
use crate::volume::VolumePart;
use crate::volume_work::Works;
use crate::{beat, config, exporting, host, key, plain, remap, workers};

/// A running server. Dropping it stops it.
pub struct Server {
    server: Arc<aqueduct_server::Server>,
    group: Arc<Group>,
    drain: Duration,
    phase: Mutex<Phase>,
    stopped: Condvar,
    /// What it was in its volume when it was started, and what its map is now.
    part: Option<(VolumePart, Mutex<Map>)>,
    /// Where its state is kept.
    state: Option<PathBuf>,
}

/// What goes with a running server.
struct Beside {
    /// Tells of changes by others.
    _watcher: Watcher,
    /// Keeps the authority to write.
    _beats: Option<Beats>,
    /// Does what is asked for the volume.
    _works: Option<Works>,
    /// Reaches the stores of other servers.
    _links: Vec<plain::Links>,
}

/// What a running server has beside its threads and listeners.
struct Held {
    /// Goes first: nobody asks for metrics any more.
    exporter: Option<Exporter>,
    beside: Beside,
    state: Option<StateFolder>,
}

enum Phase {
    /// With what goes when it stops.
    Running(Box<Held>),
    Stopping,
    Stopped,
}

impl Phase {
    /// Takes what is held, for whoever stops the server first.
    fn begin_to_stop(&mut self) -> Option<Box<Held>> {
        match std::mem::replace(self, Phase::Stopping) {
            Phase::Running(held) => Some(held),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Server {
    /// Starts to serve. Clients are let in when this returns.
    pub fn start(config: &ServeConfig) -> Result<Server, Failure> {
        Server::start_with(config, Vec::new())
    }

    /// The same, as an agent: what clients ask of it goes to `mover`, which reaches it by a socket
    /// of its own, [`ServeConfig::own_socket`].
    pub fn start_as_agent(config: &ServeConfig, mover: Arc<dyn Mover>) -> Result<Server, Failure> {
        Server::start_whole(config, Vec::new(), Some(mover))
    }

    /// The same, with file systems that are no directories as further exports.
    pub fn start_with(config: &ServeConfig, exports: Vec<Export>) -> Result<Server, Failure> {
        Server::start_whole(config, exports, None)
    }

    fn start_whole(
        config: &ServeConfig,
        exports: Vec<Export>,
        mover: Option<Arc<dyn Mover>>,
    ) -> Result<Server, Failure> {
        if config.exports.is_empty() && exports.is_empty() {
            return Err(config::nothing_to_serve());
        }
        let state = config.state.as_deref().map(StateFolder::take).transpose()?;
        let group = workers::of_server(config.threads_max, config.processors.as_ref()).map_err(|error| {
            Failure::new("cannot start the server's threads", error, "check the limits on processes and open files")
        })?;
        // One without a folder is nobody's after its end.
        let incarnation = match (&state, &config.state) {
            (Some(state), Some(folder)) => state.begin(folder),
            _ => Ok(1),
        };
        match incarnation.and_then(|incarnation| start(config, (exports, incarnation, mover), &group)) {
            Ok((server, beside)) => {
                let told = Arc::downgrade(&server);
                let metrics = move || told.upgrade().map_or_else(Snapshot::default, |server| Snapshot::of(&*server));
                let exporter = exporting::start(config.metrics.as_ref(), metrics).inspect_err(|_| {
                    server.shutdown(Duration::ZERO);
                    workers::end(std::slice::from_ref(&group));
                })?;
                let held = Box::new(Held { exporter, beside, state });
                let (phase, stopped) = (Mutex::new(Phase::Running(held)), Condvar::new());
                let part = config.volume.clone().map(|part| (part.clone(), Mutex::new(part.map)));
                let state = config.state.clone();
                Ok(Server { server, group, drain: config.drain, phase, stopped, part, state })
            }
            Err(failure) => {
                workers::end(&[group]);
                Err(failure)
            }
        }
    }

    /// The addresses that it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.server.addresses()
    }

    /// The Unix sockets that it listens on.
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.server.sockets()
    }

    /// How it fares, as JSON: what `aqueduct status` gets on the server's machine.
    pub fn status(&self) -> String {
        self.server.status_of_all()
    }

    /// Takes what the file of its volume says now: servers of data have come, gone or moved. Mounts
    /// of the volume are told, and go on.
    pub fn set_volume(&self, new: VolumePart) -> Result<(), Failure> {
        let what = "cannot take the volume's file while the server runs";
        let Some((started, now)) = &self.part else {
            return Err(Failure::usage(what, "it serves no volume", "start it with --volume and --server"));
        };
        let mut now = now.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(why) = remap::obstacle(started, &new) {
            return Err(Failure::usage(what, why, "start the server anew: clients wait for it, and go on"));
        }
        if *now == new.map {
            tracing::info!("the volume's file says what it said before");
            return Ok(());
        }
        if let Some(folder) = self.state.as_ref().filter(|_| new.has_names) {
            remap::note(folder, &new.map)?;
        }
        self.server.set_map(new.map.clone(), new.has_names);
        tracing::info!(epoch = new.map.epoch, servers = new.map.data.len(), "the volume has another map");
        *now = new.map;
        Ok(())
    }

    /// Takes no new request, lets those that are executed finish for as long as the configuration
    /// allows, tells the clients, and ends the threads. The addresses and the state folder are
    /// free when this returns. More than once does no harm. Never call it on one of the server's
    /// threads.
    pub fn stop(&self) {
        let held = lock(&self.phase).begin_to_stop();
        let Some(held) = held else { return self.wait() };
        let Held { exporter, beside, state } = *held;
        drop(exporter);
        self.server.shutdown(self.drain);
        drop(beside);
        workers::end(std::slice::from_ref(&self.group));
        drop(state);
        *lock(&self.phase) = Phase::Stopped;
        self.stopped.notify_all();
    }

    /// Blocks until somebody has stopped it.
    pub fn wait(&self) {
        let mut phase = lock(&self.phase);
        while !matches!(*phase, Phase::Stopped) {
            phase = self.stopped.wait(phase).unwrap_or_else(|poison| poison.into_inner());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn start(
    config: &ServeConfig,
    (given, incarnation, mover): (Vec<Export>, u64, Option<Arc<dyn Mover>>),
    group: &Arc<Group>,
) -> Result<(Arc<aqueduct_server::Server>, Beside), Failure> {
    let key = match &config.state {
        Some(folder) => key::load_or_create(folder)?,
        None => key::random()?,
    };
    let options = Options {
        key: config.volume.as_ref().map_or(key, |part| part.key),
        boot: boot()?,
        opens_max: host::opens_max(config.opens_max, config.exports.len(), config.limits.connections_max),
        keep_unlinked: config.state.is_some(),
        read_ahead: config.read_ahead,
        ..Options::default()
    };
    let (role, beats) = role(config, incarnation)?;
    let store = config.volume.as_ref().filter(|part| part.is_store());
    let (mut exports, mut writable_exports) = (given, Vec::new());
    let mut trees = Vec::new();
    let mut verifier = 0;
    let mut choices = Choices::default();
    for export in &config.exports {
        let how = (&options, beats.is_some());
        let ((opened, writable, of_export), tree) = open_any(config, export, how, &mut choices, group)?;
        trees.extend(tree);
        exports.extend(opened);
        verifier = together(verifier, of_export);
        writable_exports.extend(writable);
    }
    let server = ServerConfig {
        listen: config.listen.clone(),
        sockets: config.sockets.iter().cloned().chain(mover.as_ref().and_then(|_| config.own_socket())).collect(),
        local: config.local_sockets.clone(),
        name: config.name.clone(),
        identity: Some(ServerIdentity { id: ServerId::of_secret(&key), incarnation }),
        verifier,
        limits: match &config.volume {
            // Leases are the business of the server of the names.
            Some(part) if !part.has_names => Limits { lease: Duration::ZERO, ..config.limits.clone() },
            _ => config.limits.clone(),
        },
        exports,
        keys: config.keys.clone(),
        // A store is the volume's servers' alone, but for what they let clients have of it.
        members: store.map(|part| plain::members(&part.key)),
        administrator: Some(aqueduct_wire::Key::of_administrator(&key)),
        checksums: config.checksums,
        processors: config.processors.as_ref().map(ToString::to_string),
        sessions: config.state.as_ref().map(|folder| folder.join("sessions")),
        map: config.volume.as_ref().map(|part| part.map.clone()),
        volume: config.volume.as_ref().zip(config.exports.first()).map(|(part, export)| part.status(&export.path)),
        role,
        mover,
        trace: config.slow.start()?,
    };
    if let (Some(part), Some(folder)) = (config.volume.as_ref().filter(|part| part.has_names), &config.state) {
        // Last: a start that is refused has told clients nothing.
        remap::note(folder, &part.map)?;
    }
    let server = aqueduct_server::Server::start(server, group.clone()).map_err(refused)?;
    writable_exports.into_iter().for_each(|posix| sweep_later(group, &server, posix));
    let (trees, links): (Vec<_>, Vec<_>) = trees.into_iter().unzip();
    let works = trees.first().and_then(|plain| works(config, plain, group));
    trees.into_iter().for_each(|plain| sweep_tree_later(group, &server, plain));
    let watcher = choices.start(&server).inspect_err(|_| server.shutdown(Duration::ZERO))?;
    Ok((server, Beside { _watcher: watcher, _beats: beats, _works: works, _links: links }))
}

/// What the server is where several write. Its state folder has to be its own.
fn role(config: &ServeConfig, start: u64) -> Result<(Role, Option<Beats>), Failure> {
    let part = config.volume.as_ref().filter(|part| part.writes);
    let (Some(part), Some(folder)) = (part, &config.state) else { return Ok((Role::Alone, None)) };
    let key = RightKey::of_volume(&part.key);
    if part.has_names {
        let places = Places::of(&part.map);
        let (folder, fence, concurrent) = (folder.clone(), part.fence, part.concurrent);
        let granter = GranterConfig { key, places, folder, fence, names: start, concurrent };
        return Ok((Role::Names(Arc::new(Granter::new(granter, boottime()))), None));
    }
    let Some(program) = &config.watch else { return Ok((Role::Alone, None)) };
    let (place, names) = (part.place, part.map.names.join(","));
    let data = Data { key, place, start, names, keys: &config.keys, routes: config.routes.as_ref() };
    let (authority, beats) = beat::start(data, program)?;
    Ok((Role::Data(authority), Some(beats)))
}

fn refused(error: StartError) -> Failure {
    let (kind, hint) = match error {
        StartError::Sessions { .. } => (Kind::State, "name a folder that this user may write with --state"),
        StartError::Identity(_) => (Kind::State, "see why the kernel gives no random bytes"),
        StartError::SameExport(..) => (Kind::Settings, "give one of them another name in the file of --config"),
        StartError::Listen { .. } => {
            (Kind::Listen, "take another address with --listen, or end what uses this one (see 'ss -ltnp')")
        }
    };
    Failure::from_line(error, hint).of(kind)
}

/// The machine's present boot: what was written and not made stable may be lost when it changes.
fn boot() -> Result<u64, Failure> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).map_err(|error| {
        Failure::new("cannot tell this boot of the machine", format!("{path}: {error}"), "mount proc on /proc")
    })?;
    Ok(hash(id.trim().as_bytes()))
}

/// The verifier of several exports: it changes when one of theirs does, and is 0 when all are.
fn together(verifier: u64, other: u64) -> u64 {
    match (verifier, other) {
        (0, other) | (other, 0) => other,
        _ => hash(&[verifier.to_le_bytes(), other.to_le_bytes()].concat()),
    }
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo), and never 0: what is hashed is random.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
}

/// When the clients of the process before have reopened what they had, the other files that were
/// removed while open are given up.
fn sweep_later(group: &Arc<Group>, server: &aqueduct_server::Server, posix: Arc<Posix>) {
    let recovered = server.recovered();
    group.spawn(async move {
        recovered.await;
        posix.sweep_unlinked();
    });
}

/// The same of files with objects.
fn sweep_tree_later(group: &Arc<Group>, server: &aqueduct_server::Server, plain: Arc<Plain>) {
    let recovered = server.recovered();
    group.spawn(async move {
        recovered.await;
        if let Err(error) = plain.sweep().await {
            tracing::warn!(%error, "files that were removed before the start are not looked for: their objects stay");
        }
    });
}

/// Lets an administrator have the volume's files moved. The volume is served without that as well.
fn works(config: &ServeConfig, plain: &Arc<Plain>, group: &Arc<Group>) -> Option<Works> {
    let tree = &config.exports.first()?.path;
    let started = Works::start(tree, plain.clone(), group.clone());
    started.inspect_err(|error| tracing::warn!(%error, "rebalance, drain and spread cannot be asked for")).ok()
}

/// Exports, the file system again if it may be written, and its verifier.
type Opened = (Vec<Export>, Option<Arc<Posix>>, u64);

/// A volume of plain directories, and what reaches its stores.
type Tree = (Arc<Plain>, plain::Links);

/// Opens an export as what the server is in its volume.
fn open_any(
    config: &ServeConfig,
    export: &ExportConfig,
    (options, writes): (&Options, bool),
    choices: &mut Choices,
    group: &Arc<Group>,
) -> Result<(Opened, Option<Tree>), Failure> {
    match &config.volume {
        Some(VolumePart { plain: Some(plain), has_names: false, key, .. }) => {
            let (exports, verifier) = plain::open_store(export, (plain, key), (options, group))?;
            Ok(((exports.into(), None, verifier), None))
        }
        Some(part) if !part.has_names => Ok((open_data(export, options, (part, writes, group))?, None)),
        part => open(export, options, (choices, part.as_ref(), config.routes.as_ref()), group),
    }
}

/// Opens an export, and the volume of plain directories that it is the tree of, if it is.
fn open(
    export: &ExportConfig,
    options: &Options,
    (choices, part, routes): (&mut Choices, Option<&VolumePart>, Option<&Arc<Initiator>>),
    group: &Arc<Group>,
) -> Result<(Opened, Option<Tree>), Failure> {
    let id = export_id(&export.name);
    let keep_unlinked = options.keep_unlinked && !export.read_only;
    let options =
        Options { export: id, cross_mounts: export.cross_mounts, sync: export.sync, keep_unlinked, ..options.clone() };
    let posix = Posix::open(&export.path, options.clone())
        .map_err(|error| Failure::from_line(error, "see whether the directory is in order").of(Kind::Export))?;
    part.map_or(Ok(()), |part| part.check_backing(&export.path, posix.origin()))?;
    if let Some(folder) = posix.other_folder() {
        tracing::warn!(
            "export {}: .aqueduct-unlinked in {} belongs to others: files that are removed while open are kept in {folder}; \
             remove or rename it, and see who may write to that directory",
            export.name,
            export.path.display()
        );
    }
    let (verifier, durable) = (posix.verifier(), posix.is_sync());
    let external = choices.choose(export, &posix, part.is_some_and(|part| part.writes))?;
    let posix = Arc::new(posix);
    let of_volume = part.and_then(|part| Some((part.plain.as_ref()?, &part.key)));
    let tree = match of_volume {
        Some(plain) => Some(plain::open_tree((&export.path, &posix), plain, &options, (group, routes))?),
        None => None,
    };
    let filesystem: Arc<dyn FileSystem> = match &tree {
        Some((plain, _)) => plain.clone(),
        None => posix.clone(),
    };
    let filesystem: Arc<dyn FileSystem> = match part.map(|part| part.map.mode) {
        Some(VolumeMode::Stripe | VolumeMode::Striped) => Arc::new(Wide { below: filesystem }),
        _ => filesystem,
    };
    let (filesystem, writable): (Arc<dyn FileSystem>, _) = match export.read_only {
        true => (Arc::new(ReadOnly(filesystem)), None),
        false => (filesystem, Some(posix)),
    };
    let filesystem = throttled(filesystem, export, group);
    let export = Export {
        name: export.name.clone(),
        id,
        filesystem,
        read_only: export.read_only,
        path: export.path.to_string_lossy().into_owned(),
        access: export.access.clone(),
        durable,
        external,
    };
    Ok(((vec![export], writable, verifier), tree))
}

/// What a server of a volume has that moves bytes and serves no names.
fn open_data(
    export: &ExportConfig,
    options: &Options,
    (part, writes, group): (&VolumePart, bool, &Arc<Group>),
) -> Result<Opened, Failure> {
    let id = export_id(&export.name);
    // Removed files are kept by the server of the names, whose handles are understood here.
    let options = Options { export: id, keep_unlinked: false, cross_mounts: export.cross_mounts, ..options.clone() };
    let posix = Posix::open(&export.path, options)
        .map_err(|error| Failure::from_line(error, "see whether the directory is in order").of(Kind::Export))?;
    part.check_backing(&export.path, posix.origin())?;
    let verifier = posix.verifier();
    let export = Export {
        name: DATA_EXPORT.to_owned(),
        id,
        filesystem: throttled(Arc::new(DataOnly { below: posix, writes }), export, group),
        read_only: !writes,
        path: export.path.to_string_lossy().into_owned(),
        access: export.access.clone(),
        durable: false,
        external: External::None,
    };
    Ok((vec![export], None, verifier))
}
