//! The kernel's control file of a connection, by which another process ends it ("Control
//! filesystem" in the kernel's fuse.rst). A connection ends by itself with the last descriptor of
//! /dev/fuse; the process that has it may be unable to end, though it was killed.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::table::device_number;

/// Where it is mounted, by systemd for one.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// A connection of this machine, from outside. It stays this one: where it has ended, [`abort`](Control::abort)
/// does nothing, whoever has its number by then.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// The connection behind what is mounted at `target`, as the kernel lists it. For root and for
    /// who mounted it. Nothing is asked of the mount, which may not answer.
    pub fn of(target: &Path) -> io::Result<Control> {
        let number = device_number(target)?;
        let number = number.strip_prefix("0:").ok_or(io::ErrorKind::Unsupported)?;
        let name = format!("{number}/abort");
        match OpenOptions::new().write(true).open(Path::new(CONTROL).join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => unmounted(&name),
            opened => opened.map(Control),
        }
    }

    /// Ends the connection: whoever waits in the mount gets an error at once, as from then on
    /// whoever asks it for anything.
    pub fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

impl From<OwnedFd> for Control {
    /// What [`Control::of`] opened, handed on to another process.
    fn from(fd: OwnedFd) -> Control {
        Control(File::from(fd))
    }
}

impl From<Control> for OwnedFd {
    fn from(control: Control) -> OwnedFd {
        control.0.into()
    }
}

/// The same file where the control file system is not mounted, as in many containers: for root,
/// from Linux 5.2 on.
fn unmounted(name: &str) -> io::Result<Control> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let name = CString::new(name)?;
    let file = rustix::fs::openat(&mount, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Control(file.into()))
}
