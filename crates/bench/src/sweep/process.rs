//! The processes that a sweep starts: benchmarks, several at once, and commands of the shell.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::file::Bench;
use super::steps::Call;
use super::sys;
use crate::record::Measured;

/// More than one call can have measured.
const MEASURED_MAX: u64 = 256 << 20;

/// So much of what a failed process said is shown.
const SAID_MAX: u64 = 2000;

/// What does not end within this, though asked, is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The exit code of what Ctrl-C ended.
pub const INTERRUPTED: i32 = 130;

/// How often is looked whether the user wants to stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Why processes have not done what they should.
#[derive(Debug)]
pub enum Trouble {
    /// The user wants to stop.
    Stopped,
    /// One has failed: which, and what it said.
    Failed(String),
}

/// Whether the user wants to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by Ctrl-C, a lost terminal, and a polite kill. A second one ends the program at once: what cleans up may hang.
    pub fn on_signals() -> std::io::Result<Stop> {
        let stop = Stop::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            // Looked at before the flag is set, so that it counts from the second on.
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop.0))?;
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Whether it was set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits, but not for somebody who wants to stop.
    pub fn pause(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while !self.is_set() && Instant::now() < end {
            thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
        }
    }
}

/// How this program is called: what precedes `sweep` in its arguments, `bench` or nothing.
pub fn own_prefix() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let at = words.iter().position(|word| word == "sweep").unwrap_or(0);
    words[..at].to_vec()
}

/// A process with its files.
struct Running {
    child: Child,
    shown: String,
    output: PathBuf,
    errors: PathBuf,
    measured: Option<PathBuf>,
}

/// Runs all calls at once; what each has measured.
pub fn run_together(
    calls: &[Call],
    folder: &Path,
    timeout: Duration,
    stop: &Stop,
) -> Result<Vec<Vec<Measured>>, Trouble> {
    let mut running: Vec<Running> = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        match start(call, number, folder) {
            Ok(process) => running.push(process),
            Err(error) => {
                end_all(&mut running);
                return Err(Trouble::Failed(format!("{} cannot be started: {error}", call.shown())));
            }
        }
    }
    let result = wait_all(&mut running, timeout, stop);
    if result.is_err() {
        end_all(&mut running);
    }
    let result = result.and_then(|()| running.iter().map(measured).collect());
    if result.is_ok() {
        let files = running
            .iter()
            .flat_map(|process| [Some(&process.output), Some(&process.errors), process.measured.as_ref()]);
        for file in files.flatten() {
            // What stays is written over by the next call.
            let _ = std::fs::remove_file(file);
        }
    }
    result
}

/// Runs a command of the shell.
pub fn run_command(text: &str, folder: &Path, timeout: Duration, stop: &Stop) -> Result<(), Trouble> {
    let failed = |error: std::io::Error| Trouble::Failed(format!("{text}: cannot be started: {error}"));
    let (output, errors) = (folder.join("command.out"), folder.join("command.err"));
    let mut command = shell(text);
    command.stdout(File::create(&output).map_err(failed)?).stderr(File::create(&errors).map_err(failed)?);
    let child = command.spawn().map_err(failed)?;
    let mut running = [Running { child, shown: text.to_owned(), output, errors, measured: None }];
    let result = wait_all(&mut running, timeout, stop);
    if result.is_err() {
        end_all(&mut running);
    }
    result
}

/// A process group of its own, so that Ctrl-C comes to us and not to it, and that all of it can be ended.
fn shell(text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text).stdin(Stdio::null()).process_group(0);
    command
}

fn start(call: &Call, number: usize, folder: &Path) -> std::io::Result<Running> {
    let path = |ending: &str| folder.join(format!("call-{number}.{ending}"));
    let (output, errors) = (path("out"), path("err"));
    let mut measured = None;
    let mut command = if call.bench == Bench::Command {
        shell(call.arguments.first().map(String::as_str).unwrap_or_default())
    } else {
        let file = std::path::absolute(path("measured"))?;
        File::create(&file)?;
        let (program, prefix) = match &call.program {
            Some(program) => (program.clone(), vec![OsString::from("bench")]),
            None => (std::env::current_exe()?, own_prefix()),
        };
        let mut command = Command::new(program);
        command.args(prefix).arg(call.bench.name()).args(&call.arguments).arg("--measured").arg(&file);
        command.stdin(Stdio::null()).process_group(0);
        measured = Some(file);
        command
    };
    command.stdout(File::create(&output)?).stderr(File::create(&errors)?);
    sys::end_with_us(&mut command);
    Ok(Running { child: command.spawn()?, shown: call.shown(), output, errors, measured })
}

/// Waits for all; the first that fails ends the wait.
fn wait_all(running: &mut [Running], timeout: Duration, stop: &Stop) -> Result<(), Trouble> {
    let end = Instant::now() + timeout;
    for process in running.iter_mut() {
        let watched = pidfd_open(pid(&process.child), PidfdFlags::empty());
        loop {
            let status = process.child.try_wait();
            match status.map_err(|error| Trouble::Failed(format!("{}: {error}", process.shown)))? {
                Some(status) if status.success() => break,
                Some(status) => return Err(Trouble::Failed(failure(process, status))),
                None if stop.is_set() => return Err(Trouble::Stopped),
                None if Instant::now() >= end => {
                    let said = said(process);
                    return Err(Trouble::Failed(format!("{} has not ended after {timeout:?}{said}", process.shown)));
                }
                None => match &watched {
                    Ok(watched) => {
                        let mut events = [PollFd::new(watched, PollFlags::IN)];
                        // That a signal came is seen in the next turn.
                        let _ = poll(&mut events, Some(&LOOK));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                },
            }
        }
    }
    Ok(())
}

fn pid(child: &Child) -> Pid {
    // A process that was started has a number, and its number fits.
    Pid::from_raw(child.id() as i32).unwrap_or(Pid::INIT)
}

/// Ends what still runs, and all that it has started: politely first.
fn end_all(running: &mut [Running]) {
    let is_over = |process: &mut Running| !matches!(process.child.try_wait(), Ok(None));
    for process in running.iter_mut() {
        if !is_over(process) {
            let _ = kill_process_group(pid(&process.child), Signal::TERM);
        }
    }
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && !running.iter_mut().all(is_over) {
        thread::sleep(Duration::from_millis(20));
    }
    for process in running.iter_mut() {
        if !is_over(process) {
            let _ = kill_process_group(pid(&process.child), Signal::KILL);
            let _ = process.child.wait();
        }
    }
}

fn failure(process: &Running, status: ExitStatus) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "failed".to_owned(),
    };
    format!("{} {how}{}", process.shown, said(process))
}

/// The end of what a process has said.
fn said(process: &Running) -> String {
    let tail = |path: &Path| -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SAID_MAX)))?;
        let mut text = Vec::new();
        file.take(SAID_MAX).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    };
    let texts = [&process.errors, &process.output].map(|path| tail(path).unwrap_or_default());
    let text = texts.iter().find(|text| !text.is_empty());
    text.map_or_else(String::new, |text| format!(":\n{text}"))
}

/// What a process has measured.
fn measured(process: &Running) -> Result<Vec<Measured>, Trouble> {
    let failed = |why: String| Trouble::Failed(format!("{}: {why}", process.shown));
    let path = process.measured.as_ref().unwrap_or(&process.output);
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if length > MEASURED_MAX {
        return Err(failed(format!("it says {length} bytes; {MEASURED_MAX} is the limit")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    // A command may say other things as well.
    let lines = text.lines().filter(|line| line.trim_start().starts_with('{'));
    let found: Result<Vec<Measured>, Trouble> = lines
        .map(|line| {
            serde_json::from_str(line).map_err(|error| failed(format!("this says no measurement, {error}: {line}")))
        })
        .collect();
    let found = found?;
    if found.is_empty() {
        return Err(failed(format!("it has measured nothing{}", said(process))));
    }
    match found.iter().find(|measured| !measured.value.is_finite()) {
        Some(measured) => Err(failed(format!("its {} is {}", measured.op, measured.value))),
        None => Ok(found),
    }
}
