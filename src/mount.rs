//! `aqueduct mount`: a file system, worker groups and the kernel's front end put together, until the mount ends.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use aqueduct_client::{Cached, Client, ClientConfig};
use aqueduct_fs::caching::Ruled;
use aqueduct_fs::{ClientId, FileSystem};
use aqueduct_fuse::{
    CacheMode, Config, Device, MountError, MountOptions, Negotiated, Observed, Session, Unmount, start,
};
use aqueduct_posix::{Options as PosixOptions, Posix};
use aqueduct_worker::{Group, Settings};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{MountConfig, Source};
use crate::failure::{Failure, MOUNT_FAILED};
use crate::options::{self, Options};
use crate::serve::SPIN_MAX;
use crate::{args, daemon, host};

/// Threads of a worker of a local mount when others are held up by the disk; a worker of a remote one never is.
const LOCAL_THREADS_MAX: usize = 16;

/// How long a mount that was taken away lazily may take to end before we leave it.
const LAZY_GRACE: Duration = Duration::from_secs(1);

/// Shown as the type, behind `fuse.`.
pub const SUBTYPE: &str = "aqueduct";

/// Mounts, here or in the background.
pub fn run(arguments: &args::Mount, verbose: u8) -> Result<ExitCode, Failure> {
    if arguments.daemon {
        // What cannot be meant is told here, before there is another process.
        MountConfig::resolve(arguments)?;
        return daemon::run(arguments, verbose);
    }
    if arguments.background {
        daemon::detach()?;
    }
    let mounted = Mounted::new(MountConfig::resolve(arguments)?)?;
    if arguments.background {
        daemon::ready()?;
    } else {
        tracing::info!("mounted {} on {}", mounted.config.shown, mounted.config.target.display());
    }
    mounted.wait();
    Ok(ExitCode::SUCCESS)
}

/// As mount(8) calls it.
pub fn run_helper(helper: args::MountHelper) -> Result<ExitCode, Failure> {
    let options = helper.options.into_iter().filter(|option| !helper.sloppy || options::is_known(option)).collect();
    let arguments =
        args::Mount { source: helper.source, target: helper.target, options, daemon: true, ..args::Mount::default() };
    let result = if helper.fake {
        MountConfig::resolve(&arguments).map(|_| ExitCode::SUCCESS)
    } else {
        run(&arguments, helper.verbose.into())
    };
    match result {
        Ok(code) if code == ExitCode::SUCCESS => Ok(code),
        // The process in the background has told why.
        Ok(_) => Ok(ExitCode::from(MOUNT_FAILED)),
        Err(failure) => Err(failure.with_code(MOUNT_FAILED)),
    }
}

/// What is mounted: a file system that can tell how it fares, and whom to say goodbye.
enum Backing {
    Remote(Arc<Cached>),
    Local(Arc<Posix>),
}

struct Mounted {
    config: MountConfig,
    signals: Signals,
    groups: Vec<Arc<Group>>,
    backing: Backing,
    session: Session,
}

impl Mounted {
    fn new(config: MountConfig) -> Result<Mounted, Failure> {
        let groups = groups(&config)?;
        let backing = Backing::open(&config, &groups)?;
        // Until here a signal just ends the process; from the mount on it has to be cleaned up.
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
            .map_err(|error| Failure::new("cannot watch for signals", error, "check the limits on open files"))?;
        match serve(&config, &backing, &groups) {
            Ok(session) => Ok(Mounted { config, signals, groups, backing, session }),
            Err(failure) => {
                backing.leave();
                Err(failure)
            }
        }
    }

    /// Until the mount has ended, by anybody's umount or by a signal.
    fn wait(self) {
        let (sender, events) = mpsc::channel();
        let ended = sender.clone();
        self.session.on_end(move || {
            let _ = ended.send(Event::Ended); // nobody listens when we have ended already
        });
        watch_signals(self.signals, sender);
        if let Ok(Event::Signal) = events.recv() {
            unmount(&self.session, &self.config.target, &events);
        }
        // Without the session nobody asks the file system any more.
        drop(self.session);
        self.backing.leave();
        for group in &self.groups {
            group.stop();
        }
        tracing::info!("the mount on {} has ended", self.config.target.display());
    }
}

enum Event {
    Ended,
    Signal,
}

/// Sends an event for the first signal, and ends the process at the second.
fn watch_signals(mut signals: Signals, events: Sender<Event>) {
    let watch = move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 || events.send(Event::Signal).is_err() {
                std::process::exit(128 + signal);
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(watch) {
        tracing::warn!(%error, "signals will not be seen: end this mount with umount");
    }
}

/// Takes the mount away; if programs use it, lazily, and leaves them with errors.
fn unmount(session: &Session, target: &Path, events: &Receiver<Event>) {
    let target = target.display();
    match session.unmount(Unmount::Unused) {
        Ok(()) => {
            let _ = events.recv(); // the end; or nobody is left to tell of it
            return;
        }
        Err(MountError::Busy { .. }) => tracing::warn!(
            "{target} is in use: it is unmounted lazily, and programs that still use it get errors from now on (see who with 'fuser -vm {target}')"
        ),
        Err(error) => tracing::warn!(%error, "unmounting lazily"),
    }
    if let Err(error) = session.unmount(Unmount::Lazily) {
        tracing::error!(%error, "the mount stays behind: clear it with 'aqueduct umount {target}'");
        return;
    }
    let _ = events.recv_timeout(LAZY_GRACE); // the end, or those who still use it have had their time
}

fn groups(config: &MountConfig) -> Result<Vec<Arc<Group>>, Failure> {
    let threads_max = match config.source {
        Source::Remote { .. } => 1,
        Source::Local(_) => LOCAL_THREADS_MAX,
    };
    let group = |index| {
        Group::new(Settings { name: format!("aqueduct-mount{index}"), threads_min: 1, threads_max, spin_max: SPIN_MAX })
    };
    (0..config.options.workers).map(group).collect::<Result<_, _>>().map_err(|error| {
        Failure::new("cannot start the mount's threads", error, "check the limits on processes and open files")
    })
}

impl Backing {
    fn open(config: &MountConfig, groups: &[Arc<Group>]) -> Result<Backing, Failure> {
        match &config.source {
            Source::Local(path) => {
                let options = PosixOptions { opens_max: host::opens_max(None, 1, 0), ..PosixOptions::default() };
                let posix = Posix::open(path, options)
                    .map_err(|error| Failure::from_line(error, "see whether the directory is in order"))?;
                Ok(Backing::Local(Arc::new(posix)))
            }
            Source::Remote { server, export } => {
                let client = ClientConfig {
                    server: server.clone(),
                    export: export.clone(),
                    name: host::name(),
                    read_only: config.options.read_only,
                    soft: config.options.soft,
                    timeout: config.options.timeout,
                    key: config.key.clone(),
                    replay_window: config.options.replay_window,
                    suspect: config.options.suspect,
                    checksums: config.options.checksum.checksums(),
                    leases: config.options.cache == CacheMode::Lease,
                    // What a soft mount gives up could be executed late, over what was written since.
                    gathers: !config.options.write_through && !config.options.soft,
                    bulk_lanes: true,
                };
                let what = format!("cannot mount {} on {}", config.shown, config.target.display());
                let client = Client::connect(client, groups).map_err(|error| {
                    let hint = error.hint();
                    Failure::new(what, error, hint)
                })?;
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

    /// Whether the kernel keeps what there are leases on, and then checks permission, as it has to over names that it keeps. Not where it cannot: where a
    /// caller's ids do not say what the server lets it do. A local directory grants no leases.
    fn has_leases(&self, config: &MountConfig) -> bool {
        let may = matches!(self, Backing::Remote(cached) if !cached.client().one_user());
        may && config.options.cache == CacheMode::Lease
    }

    /// Why nothing is kept though leases were asked for. That a local directory has none is said to those who asked.
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

    fn client_id(&self) -> ClientId {
        match self {
            Backing::Remote(cached) => cached.client().client_id(),
            Backing::Local(_) => ClientId::default(),
        }
    }

    /// What this mount tells `aqueduct status`, the parts that change.
    fn status(&self) -> Box<dyn Fn() -> Value + Send + Sync> {
        match self {
            Backing::Remote(cached) => {
                // Not kept alive by the session that it serves.
                let client = Arc::downgrade(cached.client());
                Box::new(move || {
                    let text = client.upgrade().map(|client| client.status_json()).unwrap_or_default();
                    serde_json::from_str(&text).unwrap_or_else(|_| json!({}))
                })
            }
            Backing::Local(posix) => {
                let posix = Arc::downgrade(posix);
                Box::new(move || match posix.upgrade().map(|posix| posix.statistics()) {
                    Some(now) => json!({ "server": "local", "opens": now.opens, "locks": now.locks }),
                    None => json!({}),
                })
            }
        }
    }
}

fn serve(config: &MountConfig, backing: &Backing, groups: &[Arc<Group>]) -> Result<Session, Failure> {
    if backing.is_read_only() && !config.options.read_only {
        tracing::info!("the server serves {} read-only, so it is mounted read-only", config.shown);
    }
    if let Some(why) = backing.refuses_leases(config) {
        tracing::warn!("{} is mounted with cache=none instead of cache=lease: {why}", config.shown);
    }
    let device = mount(config, backing)?;
    start(device, backing.filesystem(config), groups, fuse_config(config, backing))
        .map_err(|error| Failure::from_line(error, "see the kernel's log (dmesg), and mount again"))
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
        .map_err(|error| Failure::from_line(error, "see the kernel's log (dmesg)"))
}

fn fuse_config(config: &MountConfig, backing: &Backing) -> Config {
    let (started, changing) = (Instant::now(), backing.status());
    let (source, target) = (config.shown.clone(), config.target.clone());
    let refused = backing.refuses_leases(config);
    let status = move |negotiated: &Negotiated| {
        let mut status = changing();
        status["requests_by"] = json!(if negotiated.over_io_uring() { "io_uring" } else { "/dev/fuse" });
        status["source"] = json!(source);
        status["target"] = json!(target.to_string_lossy());
        if let Some(why) = refused {
            status["leases"] = json!({ "refused": why });
        }
        status["pid"] = json!(std::process::id());
        status["version"] = json!(env!("CARGO_PKG_VERSION"));
        status["uptime_seconds"] = json!(started.elapsed().as_secs());
        status.to_string()
    };
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
        io_uring: config.options.io_uring,
        read_ahead: (config.options.read_ahead > 0).then_some(config.options.read_ahead),
        observed,
        status: Some(Box::new(status)),
        ..Config::default()
    }
}
