//! The process beside a mount. The kernel may keep a mount's process that was killed: a thread
//! that has it drop a page waits, and cannot be ended, while the page is being read, through this
//! very mount, which nobody serves any more. The thread has /dev/fuse, so that the mount does not
//! end either, and every program that uses it hangs with it. Another process ends the mount then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use aqueduct_fuse::Control;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::asking;

/// What the program is called when it is to wait for the end of a mount's process.
pub const ORPHAN_NAME: &str = "aqueduct-orphan";

/// What it is told that with, by the kernel.
const TOLD_BY: Signal = Signal::TERM;

/// The kernel tells it a moment before the process has ended: looks at that, and between two.
const LOOKS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The process beside a mount, as the mount has it. It is ended when this is dropped.
pub(crate) struct Orphan(Child);

impl Orphan {
    /// Starts it for what is mounted at `target`. It is told of the end of the thread that calls
    /// this, which is to be the last of the process: the main one.
    pub(crate) fn start(target: &Path) -> io::Result<Orphan> {
        let program = asking::program().ok_or(io::ErrorKind::Unsupported)?;
        let control = OwnedFd::from(Control::of(target)?);
        let mut command = Command::new(program);
        // A group of its own, so that what kills a whole group leaves it; no directory is kept
        // busy, and nobody waits for the end of what this process says.
        command.arg0(ORPHAN_NAME).arg(std::process::id().to_string()).process_group(0).current_dir("/");
        command.stdin(control).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(Orphan)
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The part of a program that is called [`ORPHAN_NAME`]: ends the mount whose control file is its
/// stdin when the process that has started it has ended. `signals` yields one item for each signal
/// that would end a service, and for each SIGTERM.
pub fn end_orphan(signals: impl Iterator<Item = ()>) -> ExitCode {
    let ended = std::env::args().nth(1).and_then(|text| text.parse().ok()).and_then(Pid::from_raw).map(|mount| {
        set_parent_process_death_signal(Some(TOLD_BY))?;
        // It may have ended before the kernel was asked to tell.
        let told = std::iter::once(()).chain(signals);
        let mut looks = told.enumerate().map(|(count, ())| if count == 0 { 1 } else { LOOKS });
        if looks.any(|looks| has_ended_within(mount, looks)) {
            Control::from(io::stdin().as_fd().try_clone_to_owned()?).abort()?;
        }
        Ok::<_, io::Error>(())
    });
    match ended {
        Some(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn has_ended_within(mount: Pid, looks: u32) -> bool {
    (0..looks).any(|count| {
        if count > 0 {
            std::thread::sleep(LOOK_PAUSE);
        }
        has_ended(mount)
    })
}

/// Whether a process has ended whose child this one is, or was. Only its main thread: the others
/// are those that the kernel may keep.
fn has_ended(parent: Pid) -> bool {
    // As long as it is the parent its number is no other's.
    getppid() != Some(parent)
        || std::fs::read(format!("/proc/{}/stat", parent.as_raw_nonzero())).is_ok_and(|line| is_dead(&line))
}

/// By a line of proc_pid_stat(5). The name of the program may have any bytes in it.
fn is_dead(line: &[u8]) -> bool {
    let state = line.iter().rposition(|byte| *byte == b')').and_then(|end| line.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_known_by_their_state() {
        assert!(is_dead(b"7 (a) b) Z 1 7"));
        assert!(!is_dead(b"7 (x) Z) D 1 7"));
        assert!(!is_dead(b"") && !is_dead(b"7 (x)"));
    }
}
