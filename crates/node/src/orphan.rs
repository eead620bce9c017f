//! The process beside a mount. The kernel may keep a mount's process that was killed: a thread
//! that has it drop a page waits, and cannot be ended, while the page is being read, through this
//! very mount, which nobody serves any more. The thread has /dev/fuse, so that the mount does not
//! end either, and every program that uses it hangs with it. Another process ends the mount then.
//!
//! It is told by the kernel when the mount's main thread has ended, and looks now and then: a
//! process that dumps its memory waits for all of its threads first, and tells nobody.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use aqueduct_fuse::Control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::asking;

/// What the program is called when it is to wait for the end of a mount's process.
pub const ORPHAN_NAME: &str = "aqueduct-orphan";

/// What it is told that with, by the kernel, a moment before it can be seen.
const TOLD_BY: Signal = Signal::TERM;

/// Between two looks, and for so long after a signal between two others.
const LOOK_PAUSE: Duration = Duration::from_secs(5);
const TOLD_PAUSE: Duration = Duration::from_millis(20);
const TOLD_TIME: Duration = Duration::from_secs(2);

/// For longer than this nobody waits for its start, nor for its end.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The process beside a mount, as the mount has it. It ends when this is dropped.
pub(crate) struct Orphan {
    process: Child,
    socket: Option<UnixStream>,
}

impl Orphan {
    /// Starts it, before there is a mount: what the program needs may be covered by that. It is
    /// told of the end of the thread that calls this: of the end of a process at once where that
    /// is its main one. `None`: there is no program to be started.
    pub(crate) fn start() -> Option<io::Result<Orphan>> {
        asking::program().map(Orphan::run)
    }

    fn run(program: &Path) -> io::Result<Orphan> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program);
        // A group of its own, so that what kills a whole group leaves it; no directory is kept
        // busy, and nobody waits for the end of what this process says.
        command.arg0(ORPHAN_NAME).arg(std::process::id().to_string()).process_group(0).current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Orphan { process: command.spawn()?, socket: Some(ours) })
    }

    fn socket(&self) -> io::Result<&UnixStream> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits until it needs nothing more of the file system.
    pub(crate) fn has_started(self) -> io::Result<Orphan> {
        let mut socket = self.socket()?;
        socket.set_read_timeout(Some(WAIT_MAX))?;
        socket.read_exact(&mut [0])?;
        Ok(self)
    }

    /// What it is to end.
    pub(crate) fn watches(self, control: Control) -> io::Result<Orphan> {
        let control = OwnedFd::from(control);
        let descriptors = [control.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(self.socket()?, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(self)
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        drop(self.socket.take());
        let end = Instant::now() + WAIT_MAX;
        // An error: the kernel has forgotten it, as this process wanted.
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The part of a program that is called [`ORPHAN_NAME`]. Ends a connection when the process that
/// has started it has died. Ends by itself when its stdin, a socket, is closed: by then the
/// connection has ended, or the last thread of that process has. Signals that would end it have to
/// be handled.
pub fn end_orphan() -> ExitCode {
    let _ = rustix::thread::set_name(c"aqueduct-orphan"); // not to be killed by the program's name
    match try_end_orphan() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // there is nobody to be told
    }
}

/// What is to be ended; `None`: the mount did not come to be.
fn control(mut socket: &UnixStream) -> io::Result<Option<Control>> {
    socket.write_all(&[0])?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Err(Errno::INTR) => continue,
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let control = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    control.map(|control| Some(Control::from(control))).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn try_end_orphan() -> io::Result<()> {
    let mount = std::env::args().nth(1).and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    let mount = mount.ok_or(io::ErrorKind::InvalidInput)?;
    set_parent_process_death_signal(Some(TOLD_BY))?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(control) = control(&socket)? else { return Ok(()) };
    // It may have ended before the kernel was asked to tell.
    let mut told = Some(Instant::now());
    loop {
        if has_died(mount) {
            return control.abort();
        }
        told = told.filter(|told| told.elapsed() < TOLD_TIME);
        let pause = if told.is_some() { TOLD_PAUSE } else { LOOK_PAUSE };
        let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) };
        // Only its end is waited for: nobody writes to it.
        let mut waits = [PollFd::new(&socket, PollFlags::empty())];
        match poll(&mut waits, Some(&pause)) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => told = Some(Instant::now()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a process has died whose child this one is, or was: all of it, or its main thread, or it
/// waits for its threads to dump its memory. The kernel may keep the others.
fn has_died(parent: Pid) -> bool {
    // As long as it is the parent its number is no other's.
    getppid() != Some(parent)
        || is_own_proc()
            && std::fs::read_to_string(format!("/proc/{}/status", parent.as_raw_nonzero()))
                .is_ok_and(|status| is_dead(&status))
}

/// Whether numbers of processes mean the same in /proc: it may be that of another namespace.
fn is_own_proc() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()))
}

/// By proc_pid_status(5).
fn is_dead(status: &str) -> bool {
    status.lines().any(|line| match line.split_once(':') {
        Some(("State", state)) => matches!(state.trim_start().as_bytes().first(), Some(b'Z' | b'X')),
        Some(("CoreDumping", dumps)) => dumps.trim() == "1",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_known_by_their_state() {
        let status = |state: &str, dumps: u32| format!("Name:\tState: Z\nState:\t{state}\nCoreDumping:\t{dumps}\n");
        assert!(is_dead(&status("Z (zombie)", 0)) && is_dead(&status("D (disk sleep)", 1)));
        assert!(!is_dead(&status("D (disk sleep)", 0)) && !is_dead(&status("S (sleeping)", 0)) && !is_dead(""));
        assert!(is_own_proc() && !has_died(getppid().unwrap()));
    }
}
