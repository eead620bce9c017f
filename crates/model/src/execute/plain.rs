//! Opening a name, and what is not kept open.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::op::Path;
use crate::outcome::Outcome;

/// Added to every open: a fifo must not hold the test up.
pub const ALWAYS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK);

/// A fifo, socket or device: what stands behind it belongs to the kernel it was opened on, so it
/// is not kept open. Who may open it is that kernel's decision too: a mount without
/// `default_permissions` is not asked, and SEMANTICS.md says so.
const SPECIAL: Outcome = Outcome::Skipped("special file");

pub fn open_plain(path: &Path, flags: OFlags) -> Result<OwnedFd, Outcome> {
    let fd = fs::openat(CWD, path.0.as_slice(), flags | ALWAYS, Mode::empty()).map_err(|errno| refused(path, errno))?;
    keep(fd)
}

pub fn keep(fd: OwnedFd) -> Result<OwnedFd, Outcome> {
    keeps(FileType::from_raw_mode(fs::fstat(&fd)?.st_mode))?;
    Ok(fd)
}

fn keeps(kind: FileType) -> Result<(), Outcome> {
    match kind {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => Ok(()),
        _ => Err(SPECIAL),
    }
}

pub fn refused(path: &Path, errno: Errno) -> Outcome {
    let special = |stat: Stat| keeps(FileType::from_raw_mode(stat.st_mode)).is_err();
    if matches!(errno, Errno::ACCESS | Errno::PERM | Errno::NXIO)
        && fs::statat(CWD, path.0.as_slice(), AtFlags::empty()).is_ok_and(special)
    {
        return SPECIAL;
    }
    Outcome::Failed(errno)
}
