//! The kernel's control file of a connection, by which another process ends it ("Control
//! filesystem" in the kernel's fuse.rst). A connection ends by itself with the last descriptor of
//! /dev/fuse; the process that has it may be unable to end, though it was killed.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::table;

/// Where it is mounted, by systemd for one.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// A connection of this machine, from outside. It stays this one: where it has ended,
/// [`abort`](Control::abort) does nothing, whoever has its number by then.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// The connection behind what is mounted at `target`, as the kernel lists it: of several the
    /// last. For root and for who mounted it. Nothing is asked of the mount, which may not answer.
    pub fn at(target: &Path) -> io::Result<Control> {
        Control::numbered(table::number_at(target)?)
    }

    /// Root needs no mounted control file system, from Linux 5.2 on, and keeps none busy.
    pub(crate) fn numbered(number: u32) -> io::Result<Control> {
        let name = format!("{number}/abort");
        let detached = detached(&name);
        detached.or_else(|_| OpenOptions::new().write(true).open(Path::new(CONTROL).join(name)).map(Control))
    }

    /// Ends the connection: whoever waits in the mount gets an error at once, as from then on
    /// whoever asks it for anything.
    pub fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

impl From<OwnedFd> for Control {
    /// What was opened here, handed on to another process.
    fn from(fd: OwnedFd) -> Control {
        Control(File::from(fd))
    }
}

impl From<Control> for OwnedFd {
    fn from(control: Control) -> OwnedFd {
        control.0.into()
    }
}

fn detached(name: &str) -> io::Result<Control> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let name = CString::new(name)?;
    let file = rustix::fs::openat(&mount, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Control(file.into()))
}

/// The number of the connection that a descriptor of /dev/fuse belongs to, mounted at `target` just
/// now. Kernels that do not tell it are asked for the only thing that is mounted there: where
/// others mount on the same directory at once, it is nobody's.
pub(crate) fn number_of(device: BorrowedFd<'_>, target: &Path) -> io::Result<u32> {
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()))?;
    match told.lines().find_map(|line| line.strip_prefix("fuse_connection:")) {
        Some(number) => number.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into()),
        None => table::number_of_only(target),
    }
}
