//! /dev/fuse: opening, cloning, reading requests, writing replies.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};

use crate::abi::{Field, OutHeader};
use crate::channel::Channel;
use crate::control::{self, Control};
use crate::sys;

pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

/// A connection to the kernel that [`start`](crate::start) answers: /dev/fuse with a mount behind it.
#[derive(Debug)]
pub struct Device {
    pub(crate) fd: OwnedFd,
    /// Whether /dev/fuse may be opened again and made a clone of `fd`.
    pub(crate) cloneable: bool,
    /// Where it is mounted, if this crate mounted it.
    pub(crate) target: Option<PathBuf>,
    /// Of the connection, among all of this machine; `None`: it is not known.
    pub(crate) number: Option<u32>,
}

impl Device {
    /// A connection that somebody else made: a descriptor inherited from a supervisor, or in tests one end of a SOCK_SEQPACKET pair whose other end
    /// plays the kernel. It is used as it is, never cloned, and the mount behind it is never unmounted from here.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Device> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Device { fd, cloneable: false, target: None, number: None })
    }

    /// What was mounted at `target` just now.
    pub(crate) fn mounted(fd: OwnedFd, target: PathBuf) -> io::Result<Device> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let number = control::number_of(fd.as_fd(), &target);
        let number = number.inspect_err(|error| tracing::debug!(%error, "the kernel does not tell the connection"));
        Ok(Device { fd, cloneable: true, target: Some(target), number: number.ok() })
    }

    /// What ends the connection from outside.
    pub fn control(&self) -> io::Result<Control> {
        Control::numbered(self.number.ok_or(io::ErrorKind::NotFound)?)
    }

    /// A further descriptor of the same connection. Each has its own list of requests that were read and not answered, so that workers do not meet at
    /// one lock. A plain user whom only fusermount3 lets at /dev/fuse gets a duplicate: slower, not different.
    pub(crate) fn another(&self) -> io::Result<OwnedFd> {
        if self.cloneable {
            match open().and_then(|fresh| sys::clone_device(fresh.as_fd(), self.fd.as_fd()).map(|()| fresh)) {
                Ok(clone) => return Ok(clone),
                Err(error) => tracing::debug!(%error, "cannot clone /dev/fuse: workers share one descriptor"),
            }
        }
        self.fd.try_clone()
    }
}

/// Opens /dev/fuse, not yet connected to anything.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// What a read of the device brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// A request of this many bytes.
    Request(usize),
    /// Nothing now.
    Empty,
    /// The kernel has ended the connection.
    Ended,
}

/// One descriptor of the connection.
pub(crate) struct DeviceChannel {
    fd: OwnedFd,
}

impl DeviceChannel {
    pub(crate) fn new(fd: OwnedFd) -> DeviceChannel {
        DeviceChannel { fd }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes the next request.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Read {
        read(self.fd(), buffer)
    }
}

/// Takes the next request of a device.
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Read {
    use rustix::io::Errno;
    loop {
        match rustix::io::read(fd, &mut *buffer) {
            Ok(0) => return Read::Ended, // the end of a socket; /dev/fuse never gives it
            Ok(length) => return Read::Request(length),
            // ENOENT: the request was taken back while it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::AGAIN) => return Read::Empty,
            Err(Errno::NODEV) => return Read::Ended,
            Err(error) => {
                tracing::debug!(%error, "the connection to the kernel was aborted");
                return Read::Ended;
            }
        }
    }
}

/// Writes one message: a reply, or a notification.
pub(crate) fn write(fd: BorrowedFd<'_>, unique: u64, error: i32, body: &[&[u8]]) -> io::Result<()> {
    let len = <OutHeader as Field>::SIZE + body.iter().map(|part| part.len()).sum::<usize>();
    let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = OutHeader { len, error, unique }.to_vec();
    let mut parts = [IoSlice::new(&[]); 4];
    parts[0] = IoSlice::new(&header);
    for (part, bytes) in parts[1..].iter_mut().zip(body) {
        *part = IoSlice::new(bytes);
    }
    debug_assert!(body.len() < parts.len());
    loop {
        match rustix::io::writev(fd, &parts[..=body.len()]) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(|_| ()).map_err(io::Error::from),
        }
    }
}

impl Channel for DeviceChannel {
    fn answer(&self, unique: u64, error: i32, body: &[&[u8]]) -> io::Result<()> {
        write(self.fd(), unique, error, body)
    }
}
