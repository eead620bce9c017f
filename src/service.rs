//! What programs that run as services have in common: signals, and who manages them.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::output;

/// Watches for the signals that end a service, from now on.
pub fn signals() -> Result<Signals, Failure> {
    watch(&[SIGTERM, SIGINT])
}

/// The same, and for the one upon which a service reads its files again.
pub fn signals_and_reload() -> Result<Signals, Failure> {
    watch(&[SIGTERM, SIGINT, SIGHUP])
}

/// Says so where SIGHUP came, which would end the process at once otherwise.
pub fn has_nothing_to_reload() {
    tracing::warn!(
        "SIGHUP changes nothing here: the configuration is read at the start; restart the service for what is in the file"
    );
}

fn watch(signals: &[i32]) -> Result<Signals, Failure> {
    Signals::new(signals)
        .map_err(|error| Failure::new("cannot watch for signals", error, "check the limits on open files"))
}

/// Has the signals that end services end this process no more: it is to outlive one, and whoever
/// ends that one (systemd, or a person by the names of programs) tells all its processes so.
pub fn outlive() {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let came = Arc::new(AtomicBool::new(false)); // nobody looks
        if let Err(error) = signal_hook::flag::register(signal, came) {
            output::error(format_args!("aqueduct: cannot ignore the signal {signal}: {error}"));
        }
    }
}

/// Tells who manages services that this one is ready.
pub fn ready() {
    notify("READY=1");
}

/// Waits for a signal, upon which the service is to end in order; a second signal ends the process
/// at once.
pub fn wait(signals: Signals) {
    wait_reloading(signals, || ());
}

/// The same. Upon SIGHUP, if it is watched for, the service reads its files again.
pub fn wait_reloading(mut signals: Signals, reload: impl Fn()) {
    let signal = loop {
        match signals.forever().next() {
            Some(SIGHUP) => reload(),
            Some(signal) => break signal,
            None => return,
        }
    };
    tracing::info!(signal, "finishing what is under way; once more to end at once");
    notify("STOPPING=1");
    let impatient = std::thread::Builder::new().name("second-signal".into()).spawn(move || {
        // To read files again is no wish to end sooner.
        if let Some(signal) = signals.forever().find(|signal| *signal != SIGHUP) {
            std::process::exit(128 + signal);
        }
    });
    if let Err(error) = impatient {
        tracing::warn!(%error, "a second signal will not be seen");
    }
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
