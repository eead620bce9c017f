//! Descriptors come and go.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::{self, Errno};

use super::{Hand, Step, done};
use crate::op::{Open, Path};
use crate::outcome::Outcome;

/// Added to every open: a fifo must not hold the test up.
const ALWAYS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK);

/// A fifo, socket or device: what stands behind it belongs to the kernel it was opened on, so it is not kept open. Who may open it is that kernel's
/// decision too: a mount without `default_permissions` is not asked, and SEMANTICS.md says so.
const SPECIAL: Outcome = Outcome::Skipped("special file");

pub fn open_plain(path: &Path, flags: OFlags) -> Result<OwnedFd, Outcome> {
    let fd = fs::openat(CWD, path.0.as_slice(), flags | ALWAYS, Mode::empty()).map_err(|errno| refused(path, errno))?;
    keep(fd)
}

fn keep(fd: OwnedFd) -> Result<OwnedFd, Outcome> {
    keeps(FileType::from_raw_mode(fs::fstat(&fd)?.st_mode))?;
    Ok(fd)
}

fn keeps(kind: FileType) -> Result<(), Outcome> {
    match kind {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => Ok(()),
        _ => Err(SPECIAL),
    }
}

fn refused(path: &Path, errno: Errno) -> Outcome {
    let special = |stat: Stat| keeps(FileType::from_raw_mode(stat.st_mode)).is_err();
    if matches!(errno, Errno::ACCESS | Errno::PERM | Errno::NXIO)
        && fs::statat(CWD, path.0.as_slice(), AtFlags::empty()).is_ok_and(special)
    {
        return SPECIAL;
    }
    Outcome::Failed(errno)
}

impl Hand {
    pub(super) fn open(&mut self, open: &Open) -> Step {
        match open {
            Open::File { slot, path, flags, mode } => {
                let flags = OFlags::from_bits_retain(*flags as u32) | ALWAYS;
                let fd = fs::openat(CWD, path.0.as_slice(), flags, Mode::from_raw_mode(*mode));
                self.slots[*slot] = Some(keep(fd.map_err(|errno| refused(path, errno))?)?);
                Ok(Outcome::Done)
            }
            Open::Temporary { slot, path, flags, mode } => {
                let flags = OFlags::from_bits_retain(*flags as u32) | ALWAYS | OFlags::TMPFILE;
                let fd = fs::openat(CWD, path.0.as_slice(), flags, Mode::from_raw_mode(*mode))?;
                self.slots[*slot] = Some(fd);
                Ok(Outcome::Done)
            }
            Open::LinkTo { slot, path } => {
                let fd = std::os::fd::AsRawFd::as_raw_fd(&self.slot(*slot)?);
                let from = format!("thread-self/fd/{fd}");
                done(fs::linkat(&self.proc, from, CWD, path.0.as_slice(), AtFlags::SYMLINK_FOLLOW))
            }
            Open::Close { slot } => {
                self.slot(*slot)?;
                self.slots[*slot] = None;
                Ok(Outcome::Done)
            }
            Open::Duplicate { slot, to } => {
                let copy = io::fcntl_dupfd_cloexec(self.slot(*slot)?.as_fd(), 3)?;
                self.slots[*to] = Some(copy);
                Ok(Outcome::Done)
            }
            Open::SetAppend { slot, on } => {
                let fd = self.slot(*slot)?;
                let mut flags = fs::fcntl_getfl(fd)?;
                flags.set(OFlags::APPEND, *on);
                done(fs::fcntl_setfl(fd, flags))
            }
        }
    }
}
