//! Descriptors come and go.

use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io;

use super::hand::{Hand, Step, done};
use super::plain::{ALWAYS, keep, refused};
use crate::op::Open;
use crate::outcome::Outcome;

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
