//! Going to the background: the program runs itself once more, and the first waits until the second is ready or has failed.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use crate::args::Mount;
use crate::failure::{FAILED, Failure};
use crate::log;

/// What the process in the background says on its stdout once it is ready.
const READY: &str = "ready";

/// Runs `aqueduct mount` in the background. Returns when the mount is ready, or what the other process ended with; it has told why on stderr.
pub fn run(mount: &Mount, verbose: u8) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            "cannot go to the background",
            error,
            "check the limits on processes and memory, or leave --daemon out",
        )
    };
    let mut command = Command::new("/proc/self/exe");
    command.arg0("aqueduct").args(["mount", "--background"]).args((0..verbose).map(|_| "--verbose"));
    command.args(mount.local.then_some("--local"));
    for option in mount.all_options() {
        command.arg("-o").arg(option);
    }
    command.arg("--").arg(&mount.source).arg(&mount.target);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().map_err(failed)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(FAILED);
    if status.code().is_none() {
        return Err(failed(io::Error::other(format!("the process ended early: {status}"))));
    }
    Ok(ExitCode::from(code))
}

/// Leaves the terminal and its signals. For the process in the background, before it has other threads.
pub fn detach() -> Result<(), Failure> {
    let detached = rustix::process::setsid().map(drop);
    detached.map_err(|error| Failure::new("cannot leave the terminal", error, "leave --daemon out"))
}

/// Tells the waiting process that all is well, and lets go of what it was started with.
pub fn ready() -> Result<(), Failure> {
    log::to_syslog();
    release().map_err(|error| Failure::new("cannot go to the background", error, "leave --daemon out"))
}

fn release() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(&null)?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}")?;
    stdout.flush()?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}
