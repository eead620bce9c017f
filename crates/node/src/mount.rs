//! A mount: a file system, worker groups and the kernel's front end put together.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct_client::Cached;
use aqueduct_fs::caching::Ruled;
use aqueduct_fs::{ClientId, FileSystem};
use aqueduct_fuse::{
    CacheMode, Config, Device, MountError, MountOptions, Negotiated, Observed, Session, Status, StatusPart,
    TraceConfig, Unmount, start,
};
use aqueduct_metrics::Snapshot;
use aqueduct_metrics::activity::Station;
use aqueduct_metrics::status::{BackingStatus, LeaseStatus, LocalStatus, MountStatus};
use aqueduct_metrics::trace::{Hop, Record};
use aqueduct_observe::Exporter;
use aqueduct_posix::{Options as PosixOptions, Posix};
use aqueduct_worker::Group;

use crate::failure::{Failure, Kind};
use crate::options::Options;
use crate::orphan::Orphan;
use crate::router::route_states;
use crate::source::{MountConfig, Source};
use crate::{exporting, host, pages, spans, workers};

/// How long a mount that was taken away lazily may take to end before we leave it.
const LAZY_GRACE: Duration = Duration::from_secs(1);

/// Shown as the type, behind `fuse.`.
pub const SUBTYPE: &str = "aqueduct";

/// What is mounted: a file system that can tell how it fares, and whom to say goodbye.
enum Backing {
    Remote(Arc<Cached>),
    Local(Arc<Posix>),
}

/// What is to be mounted, connected and in order, but not mounted yet.
pub struct Prepared {
    config: MountConfig,
    groups: Vec<Arc<Group>>,
    backing: Backing,
    orphan: Option<std::io::Result<Orphan>>,
}

impl Prepared {
    /// Mounts it.
    pub fn mount(mut self) -> Result<Mount, Failure> {
        let orphan = self.orphan.take().map(|orphan| orphan.and_then(Orphan::has_started));
        let records = records(&self.config, &self.backing)?;
        let device = mount(&self.config, &self.backing)?;
        let orphan = orphan.map(|orphan| orphan.and_then(|orphan| orphan.watches(device.control()?)));
        if let Some(Err(error)) = &orphan {
            tracing::info!(%error, "should this mount's process be killed and be unable to end, 'aqueduct umount --force' has to end the mount");
        }
        let session = serve(device, (&self.config, &self.backing, &self.groups), records)?;
        let (of_kernel, of_client) = (session.metrics(), self.backing.status());
        let metrics = move || {
            let mut metrics = of_kernel();
            metrics.merge(of_client().1);
            metrics
        };
        let exporter = exporting::start(self.config.metrics.as_ref(), metrics)?;
        Ok(Mount { _exporter: exporter, session: Some(session), prepared: self, _orphan: orphan.and_then(Result::ok) })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.backing.leave();
        workers::end(&self.groups);
    }
}

/// A mount that is served. Dropping it ends it: what is still mounted is taken away, and programs
/// that use it get errors.
pub struct Mount {
    _exporter: Option<Exporter>,
    /// Goes first: without it nobody asks the file system any more.
    session: Option<Session>,
    prepared: Prepared,
    /// Goes last: the end of all the others may have to wait for the kernel.
    _orphan: Option<Orphan>,
}

impl Mount {
    /// Mounts. Programs may use it when this returns.
    pub fn new(config: MountConfig) -> Result<Mount, Failure> {
        Mount::prepare(config)?.mount()
    }

    /// Does all that may take long or fail before there is a mount: looks for the directory, or
    /// connects to the server. To be called on the main thread of a process that may be killed:
    /// when that has ended, another process ends a mount that the kernel keeps.
    pub fn prepare(config: MountConfig) -> Result<Prepared, Failure> {
        let is_local = matches!(config.source, Source::Local(_));
        let groups =
            workers::of_mount(config.options.workers, is_local, config.processors.as_ref()).map_err(|error| {
                Failure::new("cannot start the mount's threads", error, "check the limits on processes and open files")
            })?;
        let orphan = Orphan::start();
        match Backing::open(&config, &groups) {
            Ok(backing) => Ok(Prepared { config, groups, backing, orphan }),
            Err(failure) => {
                workers::end(&groups);
                Err(failure)
            }
        }
    }

    /// The directory that is mounted on.
    pub fn path(&self) -> &Path {
        &self.prepared.config.target
    }

    /// The source as mount(8) and df(1) show it.
    pub fn shown(&self) -> &str {
        &self.prepared.config.shown
    }

    /// Calls back once when the mount has ended, by anybody's umount, and its last request is
    /// done; at once when that is so already.
    pub fn on_end(&self, callback: impl FnOnce() + Send + 'static) {
        if let Some(session) = &self.session {
            session.on_end(callback);
        }
    }

    /// Blocks until the mount has ended and its last request is done.
    pub fn wait(&self) {
        if let Some(session) = &self.session {
            session.wait();
        }
    }

    /// How it fares, as JSON: what `aqueduct status` gets from the mount.
    pub fn status(&self) -> String {
        self.session.as_ref().map_or_else(|| "{}".to_owned(), |session| session.status().unwrap_or_default())
    }

    /// Takes the mount away, if it is there. It has ended when [`on_end`](Mount::on_end) calls
    /// back.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.session.as_ref().map_or(Ok(()), |session| session.unmount(how))
    }

    /// Takes the mount away; if programs use it, lazily, and leaves them with errors.
    pub fn stop(&self) {
        let (sender, ended) = mpsc::channel();
        self.on_end(move || {
            let _ = sender.send(()); // nobody listens any more
        });
        let target = self.path().display();
        match self.unmount(Unmount::Unused) {
            Ok(()) => {
                let _ = ended.recv(); // the end; or nobody is left to tell of it
                return;
            }
            Err(MountError::NotMounted { .. }) => {
                if ended.recv_timeout(LAZY_GRACE).is_err() {
                    tracing::warn!(
                        "nothing of this mount is on {target} any more: programs that still use it get errors from now on"
                    );
                }
                return;
            }
            Err(MountError::Busy { .. }) => tracing::warn!(
                "{target} is in use: it is unmounted lazily, and programs that still use it get errors from now on (see who with 'fuser -vm {target}')"
            ),
            Err(error) => tracing::warn!(%error, "unmounting lazily"),
        }
        if let Err(error) = self.unmount(Unmount::Lazily) {
            tracing::error!(%error, "the mount stays behind: clear it with 'aqueduct umount {target}'");
            return;
        }
        // The end, or those who still use it have had their time.
        let _ = ended.recv_timeout(LAZY_GRACE);
    }
}

impl Backing {
    fn open(config: &MountConfig, groups: &[Arc<Group>]) -> Result<Backing, Failure> {
        match &config.source {
            Source::Local(path) => {
                let options = PosixOptions { opens_max: host::opens_max(None, 1, 0), ..PosixOptions::default() };
                let posix = Posix::open(path, options).map_err(|error| {
                    Failure::from_line(error, "see whether the directory is in order").of(Kind::Export)
                })?;
                Ok(Backing::Local(Arc::new(posix)))
            }
            Source::Remote { server, export, volume } => {
                let what = || format!("cannot mount {} on {}", config.shown, config.target.display());
                let client = config.attach((server, volume.as_deref()), export).connect(groups);
                let client = client.map_err(|error| Failure::new(what(), &error, error.hint()).of(Kind::Connect))?;
                Ok(Backing::Remote(Cached::new(client)))
            }
        }
    }

    /// Says goodbye, so that the server frees at once what we held.
    fn leave(&self) {
        if let Backing::Remote(cached) = self {
            cached.client().disconnect();
        }
    }

    fn is_read_only(&self) -> bool {
        matches!(self, Backing::Remote(cached) if cached.client().is_read_only())
    }

    /// Whether programs take turns, so that what they read and write at once is whole.
    fn is_atomic(&self) -> bool {
        matches!(self, Backing::Remote(cached) if cached.client().is_atomic())
    }

    /// Whether the kernel keeps what there are leases on, and then checks permission, as it has to
    /// over names that it keeps. Not where it cannot: where a caller's ids do not say what the
    /// server lets it do. A local directory grants no leases.
    fn has_leases(&self, config: &MountConfig) -> bool {
        let may = matches!(self, Backing::Remote(cached) if !cached.client().one_user());
        may && config.options.cache == CacheMode::Lease
    }

    /// Why nothing is kept though leases were asked for. That a local directory has none is said
    /// to those who asked.
    fn refuses_leases(&self, config: &MountConfig) -> Option<&'static str> {
        let is_expected = matches!(self, Backing::Remote(_)) || config.options.cache_is_said;
        let wanted = config.options.cache == CacheMode::Lease && is_expected;
        (wanted && !self.has_leases(config)).then_some(match self {
            Backing::Remote(_) => "the server has all users act as one, or under other ids (squash, map_uids, map_gids), so that only it can say what each may do",
            Backing::Local(_) => "a local directory grants no leases",
        })
    }

    fn checks_permission(&self, config: &MountConfig) -> bool {
        config.options.default_permissions || self.has_leases(config)
    }

    fn filesystem(&self, config: &MountConfig) -> Arc<dyn FileSystem> {
        match self {
            Backing::Remote(cached) if self.has_leases(config) => match config.options.rules() {
                Ok(rules) if !rules.is_trivial() => Arc::new(Ruled::new(cached.clone(), rules)),
                _ => cached.clone(), // what are no rules was refused with the options
            },
            Backing::Remote(cached) => cached.client().clone(),
            Backing::Local(posix) => posix.clone(),
        }
    }

    /// Which operations are slow. Where there is no server, they are in the file system.
    fn trace(&self, config: &MountConfig) -> TraceConfig {
        let rest = match self {
            Backing::Remote(cached) => {
                cached.client().keep_steps();
                Hop::Client
            }
            Backing::Local(_) => Hop::FileSystem,
        };
        TraceConfig { threshold: config.options.trace, rest, ..TraceConfig::default() }
    }

    fn client_id(&self) -> ClientId {
        match self {
            Backing::Remote(cached) => cached.client().client_id(),
            Backing::Local(_) => ClientId::default(),
        }
    }

    /// What this mount tells `aqueduct status`, the parts that change, and what it has counted.
    fn status(&self) -> Box<dyn Fn() -> (BackingStatus, Snapshot) + Send + Sync> {
        let gone = || (BackingStatus::Gone {}, Snapshot::default());
        match self {
            Backing::Remote(cached) => {
                // Not kept alive by the session that it serves.
                let client = Arc::downgrade(cached.client());
                Box::new(move || match client.upgrade() {
                    Some(client) => (BackingStatus::Client(client.status()), Snapshot::of(&*client)),
                    None => gone(),
                })
            }
            Backing::Local(posix) => {
                let posix = Arc::downgrade(posix);
                Box::new(move || match posix.upgrade().map(|posix| posix.statistics()) {
                    Some(now) => {
                        let (opens, locks) = (now.opens as u64, now.locks as u64);
                        let local = LocalStatus { server: "local".to_owned(), opens, locks, leases: None };
                        (BackingStatus::Local(local), Snapshot::default())
                    }
                    None => gone(),
                })
            }
        }
    }
}

/// Whom slow operations are told. Says what is not as it was asked for, before there is a mount.
fn records(config: &MountConfig, backing: &Backing) -> Result<Vec<Arc<dyn Record>>, Failure> {
    if backing.is_read_only() && !config.options.read_only {
        tracing::info!("the server serves {} read-only, so it is mounted read-only", config.shown);
    }
    if let Some(why) = backing.refuses_leases(config) {
        tracing::warn!("{} is mounted with cache=none instead of cache=lease: {why}", config.shown);
    }
    Ok(config.options.otlp.clone().map(spans::sends).transpose()?.into_iter().collect())
}

fn serve(
    device: Device,
    (config, backing, groups): (&MountConfig, &Backing, &[Arc<Group>]),
    records: Vec<Arc<dyn Record>>,
) -> Result<Session, Failure> {
    start(device, backing.filesystem(config), groups, fuse_config(config, backing, records))
        .map_err(|error| Failure::from_line(error, "see the kernel's log (dmesg), and mount again").of(Kind::Mount))
}

fn mount(config: &MountConfig, backing: &Backing) -> Result<Device, Failure> {
    let Options { read_only, allow_other, .. } = config.options;
    let Options { nosuid, nodev, noexec, noatime, sync, dirsync, .. } = config.options;
    let options = MountOptions {
        source: config.shown.clone(),
        subtype: SUBTYPE.into(),
        read_only: read_only || backing.is_read_only(),
        allow_other,
        default_permissions: backing.checks_permission(config),
        nosuid,
        nodev,
        noexec,
        noatime,
        sync,
        dirsync,
        extra: Vec::new(),
    };
    aqueduct_fuse::mount(&config.target, &options)
        .map_err(|error| Failure::from_line(error, "see the kernel's log (dmesg)").of(Kind::Mount))
}

/// What tells how the mount fares, as JSON.
fn status(config: &MountConfig, backing: &Backing) -> Status {
    let (started, changing) = (Instant::now(), backing.status());
    let (source, target) = (config.shown.clone(), config.target.clone());
    let processors = config.processors.as_ref().map(ToString::to_string);
    let refused = backing.refuses_leases(config);
    let (named, server_read_only) = (config.named.clone(), backing.is_read_only());
    let initiator = config.routes.clone();
    Box::new(move |negotiated: &Negotiated, mut metrics: Snapshot, kernel: Station, part: StatusPart| {
        let (mut backing, counted) = changing();
        metrics.merge(counted);
        let refused = || refused.map(|why| LeaseStatus::Refused { refused: why.to_owned() });
        match &mut backing {
            BackingStatus::Client(client) => client.leases = refused().or(client.leases.take()),
            BackingStatus::Local(local) => local.leases = refused(),
            BackingStatus::Gone {} => {}
        }
        let status = MountStatus {
            backing,
            requests_by: if negotiated.over_io_uring() { "io_uring" } else { "/dev/fuse" }.to_owned(),
            source: Some(source.clone()),
            target: Some(target.to_string_lossy().into_owned()),
            options: Some(named.clone()),
            server_read_only,
            processors: processors.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: started.elapsed().as_secs(),
            processor_seconds: aqueduct_worker::own_processors(),
            kernel,
            metrics,
            routes: initiator
                .iter()
                .flat_map(|it| route_states(&it.routes().table().ways, &it.routes().gateways()))
                .collect(),
        };
        match part {
            StatusPart::Whole => pages::json(&status),
            StatusPart::First => pages::first(status),
            StatusPart::From(from) => pages::from(&status, from),
        }
    })
}

fn fuse_config(config: &MountConfig, backing: &Backing, records: Vec<Arc<dyn Record>>) -> Config {
    let observed = match backing {
        Backing::Remote(cached) if backing.has_leases(config) => {
            let cached = Arc::downgrade(cached);
            let observed =
                move |observer| cached.upgrade().into_iter().for_each(|it| it.set_observer(Arc::clone(&observer)));
            Some(Box::new(observed) as Observed)
        }
        _ => None,
    };
    let cache = match config.options.cache {
        CacheMode::Lease if observed.is_none() => CacheMode::None,
        cache => cache,
    };
    Config {
        cache,
        attr_timeout: config.options.attr_timeout,
        entry_timeout: config.options.entry_timeout,
        client: backing.client_id(),
        posix_acl: backing.checks_permission(config),
        spares_flush: !config.options.strict_unlock,
        // Its threads would go where the programs are that ask.
        io_uring: config.options.io_uring && config.processors.is_none(),
        names: config.options.names,
        withheld: config.options.init_without,
        minor_max: config.options.init_minor.unwrap_or(Config::default().minor_max),
        read_ahead: (config.options.read_ahead > 0).then_some(config.options.read_ahead),
        observed,
        takes_turns: backing.is_atomic(),
        status: Some(status(config, backing)),
        trace: TraceConfig { records, ..backing.trace(config) },
        ..Config::default()
    }
}
