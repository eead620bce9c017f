//! `aqueduct mount`: a mount, here or in the background, until it ends or a signal comes.

use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};

use aqueduct_node::{Mount, MountConfig, MountSettings, is_known_option, is_remount, remount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, MOUNT_FAILED};
use crate::{args, daemon};

/// Mounts, here or in the background.
pub fn run(arguments: &args::Mount, verbose: u8) -> Result<ExitCode, Failure> {
    let change = settings(arguments);
    if is_remount(&change) {
        remount(&change)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.daemon {
        // What cannot be meant is told here, before there is another process.
        MountConfig::resolve(&settings(arguments))?;
        return daemon::run(arguments, verbose);
    }
    if arguments.background {
        daemon::detach()?;
    }
    let prepared = Mount::prepare(MountConfig::resolve(&settings(arguments))?)?;
    // Until here a signal just ends the process; from the mount on it has to be cleaned up.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::new("cannot watch for signals", error, "check the limits on open files"))?;
    let mount = prepared.mount()?;
    if arguments.background {
        daemon::ready()?;
    } else {
        tracing::info!("mounted {} on {}", mount.shown(), mount.path().display());
    }
    wait(mount, signals);
    Ok(ExitCode::SUCCESS)
}

fn settings(arguments: &args::Mount) -> MountSettings {
    let args::Mount { source, target, local, .. } = arguments;
    MountSettings { source: source.clone(), target: target.clone(), options: arguments.all_options(), local: *local }
}

/// As mount(8) calls it.
pub fn run_helper(helper: args::MountHelper) -> Result<ExitCode, Failure> {
    let options = helper.options.into_iter().filter(|option| !helper.sloppy || is_known_option(option)).collect();
    let arguments =
        args::Mount { source: helper.source, target: helper.target, options, daemon: true, ..args::Mount::default() };
    let result = if helper.fake && is_remount(&settings(&arguments)) {
        Ok(ExitCode::SUCCESS)
    } else if helper.fake {
        MountConfig::resolve(&settings(&arguments)).map(|_| ExitCode::SUCCESS).map_err(Failure::from)
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

enum Event {
    Ended,
    Signal,
}

/// Until the mount has ended, by anybody's umount or by a signal.
fn wait(mount: Mount, signals: Signals) {
    let (sender, events) = mpsc::channel();
    let ended = sender.clone();
    mount.on_end(move || {
        let _ = ended.send(Event::Ended); // nobody listens when we have ended already
    });
    watch_signals(signals, sender);
    if let Ok(Event::Signal) = events.recv() {
        mount.stop();
    }
    let target = mount.path().to_owned();
    drop(mount);
    tracing::info!("the mount on {} has ended", target.display());
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
