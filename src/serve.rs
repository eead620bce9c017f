//! `aqueduct serve`: exports, keys and listeners put together, until a signal.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::FileSystem;
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_fs::throttled::{Clock, Throttled};
use aqueduct_posix::{Options, Posix, Watcher};
use aqueduct_server::{Export, Server, ServerConfig, StartError, export_id};
use aqueduct_worker::{Group, Settings};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::ServeConfig;
use crate::exports::ExportConfig;
use crate::external::Choices;
use crate::failure::Failure;
use crate::{args, host, key, output};

/// The longest that a thread looks again after small requests before it sleeps: a round trip on a fast network, several times. The kernel's
/// `haltpoll` has the same bound.
pub const SPIN_MAX: Duration = Duration::from_micros(200);

/// Serves until SIGTERM or SIGINT.
pub fn run(arguments: args::Serve) -> Result<ExitCode, Failure> {
    let config = ServeConfig::resolve(arguments)?;
    let signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|error| Failure::new("cannot watch for signals", error, "check the limits on open files"))?;
    let group = group(&config)?;
    let (server, _watcher) = start(&config, group.clone())?;
    for address in server.addresses() {
        output::line(format_args!("listening on {address}"));
    }
    for export in &config.exports {
        let read_only = if export.read_only { " (read-only)" } else { "" };
        let rate = export.rate.map_or_else(String::new, |rate| format!(" (at most {} MB/s)", rate as f64 / 1e6));
        output::line(format_args!("export {}{read_only}{rate}: {}", export.name, export.path.display()));
    }
    notify("READY=1");
    wait(signals, &config, &server);
    group.stop();
    group.join();
    Ok(ExitCode::SUCCESS)
}

fn group(config: &ServeConfig) -> Result<Arc<Group>, Failure> {
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let settings = Settings {
        name: "aqueduct-serve".into(),
        threads_min: cores,
        threads_max: config.threads_max.max(cores),
        spin_max: SPIN_MAX,
    };
    Group::new(settings).map_err(|error| {
        Failure::new("cannot start the server's threads", error, "check the limits on processes and open files")
    })
}

fn start(config: &ServeConfig, group: Arc<Group>) -> Result<(Arc<Server>, Watcher), Failure> {
    let key = key::load_or_create(&config.state)?;
    let options = Options {
        key,
        boot: boot()?,
        opens_max: host::opens_max(config.opens_max, config.exports.len(), config.limits.connections_max),
        keep_unlinked: true,
        read_ahead: config.read_ahead,
        ..Options::default()
    };
    let (mut exports, mut writable_exports) = (Vec::new(), Vec::new());
    let mut verifier = 0;
    let mut choices = Choices::new(&config.exports);
    for export in &config.exports {
        let (export, writable, of_export) = open(export, &options, &mut choices, &group)?;
        exports.push(export);
        verifier = together(verifier, of_export);
        writable_exports.extend(writable);
    }
    let server = ServerConfig {
        listen: config.listen.clone(),
        name: host::name(),
        verifier,
        limits: config.limits.clone(),
        exports,
        keys: config.keys.clone(),
        administrator: Some(aqueduct_wire::Key::of_administrator(&key)),
        checksums: config.checksums,
        sessions: Some(config.state.join("sessions")),
    };
    let server = Server::start(server, group.clone()).map_err(|error| {
        let hint = match error {
            StartError::Sessions { .. } => "name a folder that this user may write with --state",
            StartError::Listen { .. } | StartError::SameExport(..) => {
                "take another address with --listen, or end what uses this one (see 'ss -ltnp')"
            }
        };
        Failure::from_line(error, hint)
    })?;
    // What clients of the process before have in hand is all reopened by then.
    let grace = if server.is_recovering() { config.limits.recovery_grace } else { Duration::ZERO };
    writable_exports.into_iter().for_each(|posix| sweep_later(&group, grace, posix));
    let watcher = choices.start(&server)?;
    Ok((server, watcher))
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

/// When the clients of the process before have reopened what they had, the other files that were removed while open are given up.
fn sweep_later(group: &Arc<Group>, grace: Duration, posix: Arc<Posix>) {
    let grace = group.sleep(grace);
    group.spawn(async move {
        grace.await;
        posix.sweep_unlinked();
    });
}

/// An export, its file system again if it may be written, and its verifier.
fn open(
    export: &ExportConfig,
    options: &Options,
    choices: &mut Choices<'_>,
    group: &Arc<Group>,
) -> Result<(Export, Option<Arc<Posix>>, u64), Failure> {
    let id = export_id(&export.name);
    let keep_unlinked = options.keep_unlinked && !export.read_only;
    let options =
        Options { export: id, cross_mounts: export.cross_mounts, sync: export.sync, keep_unlinked, ..options.clone() };
    let posix = Posix::open(&export.path, options)
        .map_err(|error| Failure::from_line(error, "see whether the directory is in order"))?;
    let (verifier, durable) = (posix.verifier(), posix.is_sync());
    let external = choices.choose(export, &posix)?;
    let (filesystem, writable): (Arc<dyn FileSystem>, _) = if export.read_only {
        (Arc::new(ReadOnly(posix)), None)
    } else {
        let posix = Arc::new(posix);
        (posix.clone(), Some(posix))
    };
    let filesystem = match export.rate {
        Some(rate) => {
            Arc::new(Throttled::new(filesystem, rate, Timers { group: group.clone(), start: Instant::now() }))
        }
        None => filesystem,
    };
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
    Ok((export, writable, verifier))
}

/// The group's timers, for what waits for its turn.
struct Timers {
    group: Arc<Group>,
    start: Instant,
}

impl Clock for Timers {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.group.sleep(duration))
    }
}

/// Waits for a signal, then drains; a second signal ends the process at once.
fn wait(mut signals: Signals, config: &ServeConfig, server: &Server) {
    let Some(signal) = signals.forever().next() else { return };
    tracing::info!(signal, "finishing what is under way; once more to end at once");
    notify("STOPPING=1");
    let impatient = std::thread::Builder::new().name("second-signal".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    });
    if let Err(error) = impatient {
        tracing::warn!(%error, "a second signal will not be seen");
    }
    server.shutdown(config.drain);
}

/// Tells a service manager, if one waits for it (sd_notify(3)).
fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => UnixAddress::from_abstract_name(name),
        _ => UnixAddress::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)).map(drop);
    if let Err(error) = sent {
        tracing::warn!(%error, "could not tell the service manager");
    }
}
