//! Mounting and unmounting: by mount(2) as root, through fusermount3 as anybody else.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::control::Control;
use crate::device::{self, DEVICE_PATH, Device};
use crate::table::{self, mounted_at};

const HELPER: &str = "fusermount3";

/// The variable that tells fusermount3 which descriptor to send /dev/fuse over.
const HELPER_FD_VARIABLE: &str = "_FUSE_COMMFD";

/// How a mount is made.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What is shown as mounted, for example `host:/export`.
    pub source: String,
    /// Shown as the type, behind `fuse.`.
    pub subtype: String,
    /// Refuse what writes.
    pub read_only: bool,
    /// Users other than the one who mounts may enter. A plain user needs user_allow_other in /etc/fuse.conf for it.
    pub allow_other: bool,
    /// The kernel checks permission by mode, beside the file system.
    pub default_permissions: bool,
    /// Ignore set-id bits. fusermount3 always sets this and `nodev` for a plain user.
    pub nosuid: bool,
    /// No device files.
    pub nodev: bool,
    /// No programs.
    pub noexec: bool,
    /// No access times.
    pub noatime: bool,
    /// Writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// Further options of the kernel's FUSE client, such as `max_read=65536`.
    pub extra: Vec<String>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "aqueduct".into(),
            subtype: "aqueduct".into(),
            read_only: false,
            allow_other: false,
            default_permissions: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            sync: false,
            dirsync: false,
            extra: Vec::new(),
        }
    }
}

/// Why a mount could not be made or removed. Each says what was tried, why it failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages tell")]
pub enum MountError {
    #[error("cannot mount on {0}: there is no such directory; create it first (mkdir -p {0})", target.display())]
    TargetMissing { target: PathBuf },
    #[error("cannot mount on {}: it is not a directory; name a directory", target.display())]
    NotADirectory { target: PathBuf },
    #[error("cannot mount on {0}: a mount whose server process has died is there; remove it first (aqueduct umount {0})", target.display())]
    Stale { target: PathBuf },
    #[error("cannot mount on {0}: {holder} is mounted there; unmount it first (aqueduct umount {0}) or choose another directory", target.display())]
    Mounted { target: PathBuf, holder: String },
    #[error("cannot unmount {0}: it is in use; end the programs that use it (fuser -vm {0}), or unmount lazily", target.display())]
    Busy { target: PathBuf },
    #[error("cannot make the mount on {0} read-only: files there are open for writing; close them (fuser -vm {0} shows who has them)", target.display())]
    OpenForWriting { target: PathBuf },
    #[error("cannot unmount {}: nothing is mounted there; name the directory itself, not a link to it or a path below it (see findmnt)", target.display())]
    NotMounted { target: PathBuf },
    #[error(
        "cannot open {DEVICE_PATH}: {error}; load the kernel's FUSE module (modprobe fuse), or give the container the device"
    )]
    NoDevice { error: io::Error },
    #[error(
        "cannot run {HELPER}, which mounts for users other than root: {error}; install the package fuse3, or mount as root"
    )]
    NoHelper { error: io::Error },
    #[error("not permitted to {action} {}: {error}; as root this needs the capability CAP_SYS_ADMIN, which containers often lack", target.display())]
    NotPermitted { action: &'static str, target: PathBuf, error: io::Error },
    #[error("the kernel refused to mount on {} with the options {options}: {error}; remove the option that this kernel does not know", target.display())]
    Options { target: PathBuf, options: String, error: io::Error },
    #[error("{HELPER} could not {action} {}: {message}", target.display())]
    Helper { action: &'static str, target: PathBuf, message: String },
    #[error("cannot {action} {}: {error}", target.display())]
    Io { action: &'static str, target: PathBuf, error: io::Error },
}

/// Connects a directory to a new device. Requests wait from then on until [`start`](crate::start) serves them.
pub fn mount(target: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let target = check_target(target)?;
    if rustix::process::geteuid().is_root() { mount_as_root(target, options) } else { mount_by_helper(target, options) }
}

/// What of a mount is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remount {
    /// All of it, wherever it is seen.
    Whole,
    /// What is seen at the target: a bind mount, or the mount point itself.
    MountPoint,
}

/// Has the kernel treat a mount of ours otherwise, as root: read-only or not, with set-id
/// programs, device files, programs and access times or not. All of these are as `options` say
/// afterwards; the other options stay as they are.
pub fn remount(target: &Path, options: &MountOptions, what: Remount) -> Result<(), MountError> {
    let target = target.to_owned();
    let flags = match what {
        Remount::Whole => flags(options),
        Remount::MountPoint => flags(options) | MountFlags::BIND,
    };
    let result = rustix::mount::mount_remount(&target, flags, c"");
    result.map_err(io::Error::from).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => MountError::OpenForWriting { target },
        Some(libc::EPERM | libc::EACCES) => MountError::NotPermitted { action: "change the mount on", target, error },
        _ => MountError::Io { action: "change the mount on", target, error },
    })
}

/// Finds out what is wrong with a target before anything is tried, and makes its path absolute.
fn check_target(target: &Path) -> Result<PathBuf, MountError> {
    let problem = |error: io::Error| {
        let target = target.to_owned();
        match error.raw_os_error() {
            Some(libc::ENOENT) => MountError::TargetMissing { target },
            Some(libc::ENOTDIR) => MountError::NotADirectory { target },
            Some(libc::ENOTCONN | libc::ECONNABORTED) => MountError::Stale { target },
            Some(libc::EACCES | libc::EPERM) => MountError::NotPermitted { action: "look at", target, error },
            _ => MountError::Io { action: "look at", target, error },
        }
    };
    let absolute = fs::canonicalize(target).map_err(problem)?;
    let metadata = fs::metadata(&absolute).map_err(problem)?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory { target: absolute });
    }
    if let Some(holder) = mounted_at(&absolute) {
        return Err(MountError::Mounted { target: absolute, holder });
    }
    Ok(absolute)
}

fn mount_as_root(target: PathBuf, options: &MountOptions) -> Result<Device, MountError> {
    let fd = device::open().map_err(|error| MountError::NoDevice { error })?;
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    // What the kernel goes by until it knows the root's attributes. It throws away an answer during which it was told to forget them, as when a server was
    // started again, and would then let nobody in; the server decides in any case.
    let mut data = vec![format!("fd={},rootmode=40755,user_id={uid},group_id={gid}", fd.as_raw_fd())];
    data.extend(fuse_options(options));
    let data = data.join(",");
    let invalid = |error| MountError::Options { target: target.clone(), options: data.clone(), error };
    let arguments = CString::new(data.as_bytes()).map_err(|error| invalid(error.into()))?;
    let kind = format!("fuse.{}", options.subtype);
    let result = rustix::mount::mount(&options.source, &target, &kind, flags(options), arguments.as_c_str());
    match result.map_err(io::Error::from) {
        Ok(()) => device_of(fd, target),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => MountError::NotPermitted { action: "mount on", target, error },
            Some(libc::EINVAL) => invalid(error),
            Some(libc::ENODEV) => MountError::NoDevice { error },
            _ => MountError::Io { action: "mount on", target, error },
        }),
    }
}

fn device_of(fd: OwnedFd, target: PathBuf) -> Result<Device, MountError> {
    Device::mounted(fd, target.clone()).map_err(|error| {
        let _ = abandon(&target, None); // the error tells more
        MountError::Io { action: "serve", target, error }
    })
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    flags
}

/// The options that the FUSE client of the kernel takes as text.
fn fuse_options(options: &MountOptions) -> Vec<String> {
    let mut list = Vec::new();
    list.extend(options.allow_other.then(|| "allow_other".to_owned()));
    list.extend(options.default_permissions.then(|| "default_permissions".to_owned()));
    list.extend(options.extra.iter().cloned());
    list
}

fn mount_by_helper(target: PathBuf, options: &MountOptions) -> Result<Device, MountError> {
    let io_error = |error| MountError::Io { action: "mount on", target: target.clone(), error };
    let (ours, theirs) = UnixStream::pair().map_err(io_error)?;
    // The helper's end is its standard input: nothing else of this process leaks into it, and no descriptor is inheritable for a moment.
    let output = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(&target)
        .env(HELPER_FD_VARIABLE, "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| MountError::NoHelper { error })?;
    if !output.status.success() {
        return Err(helper_error("mount on", target, &output.stderr));
    }
    let fd = receive_fd(&ours).map_err(io_error)?;
    device_of(fd, target)
}

fn helper_options(options: &MountOptions) -> String {
    let mut list = vec![
        format!("fsname={}", escape(&options.source)),
        format!("subtype={}", escape(&options.subtype)),
        if options.read_only { "ro" } else { "rw" }.to_owned(),
    ];
    for (on, name) in [
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
    ] {
        list.extend(on.then(|| name.to_owned()));
    }
    list.extend(fuse_options(options));
    list.join(",")
}

/// fusermount3 splits its options at commas that no backslash precedes.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn helper_error(action: &'static str, target: PathBuf, stderr: &[u8]) -> MountError {
    let message = String::from_utf8_lossy(stderr).trim().replace('\n', "; ");
    let message = match () {
        () if message.is_empty() => "it gave no reason".to_owned(),
        () if message.contains(DEVICE_PATH) => format!("{message}; let users open it (chmod 666), or mount as root"),
        () => message,
    };
    MountError::Helper { action, target, message }
}

fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.ok_or_else(|| io::Error::other("fusermount3 ended without sending the device"))
}

/// How a mount is removed that may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Not while it is used.
    Unused,
    /// At once for new users, later for those who still use it.
    Lazily,
    /// At once for everybody: what waits in it ends with an error. For users other than root:
    /// lazily, where the kernel's control file system is not mounted.
    Forced,
}

/// Removes a mount, also one whose server process is dead. The path is not followed if its last component is a link, and nothing behind it is looked
/// at, since that might never answer.
pub fn unmount(target: &Path, how: Unmount) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return unmount_by_helper(without_trailing_slashes(target), how);
    }
    let flags = match how {
        Unmount::Unused => UnmountFlags::empty(),
        Unmount::Lazily => UnmountFlags::DETACH,
        Unmount::Forced => UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    let target = without_trailing_slashes(target);
    rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW).map_err(|error| {
        let error = io::Error::from(error);
        let target = target.to_owned();
        match error.raw_os_error() {
            Some(libc::EBUSY) => MountError::Busy { target },
            Some(libc::EINVAL | libc::ENOENT) => MountError::NotMounted { target },
            Some(libc::EPERM) => MountError::NotPermitted { action: "unmount", target, error },
            _ => MountError::Io { action: "unmount", target, error },
        }
    })
}

/// Removes a mount that nobody serves any more, and ends all that waits in it: merely detached, it would keep whoever has a file open waiting for as
/// long as any process holds a copy of the device, which a child of ours may do that has not yet come to its exec.
pub(crate) fn abandon(target: &Path, number: Option<u32>) -> Result<(), MountError> {
    unmount_own(target, number, Unmount::Forced)
}

/// Removes a mount whose connection has this number, if it is known: not another one that has been
/// mounted there since.
pub(crate) fn unmount_own(target: &Path, number: Option<u32>, how: Unmount) -> Result<(), MountError> {
    if number.is_some_and(|number| table::number_at(target).is_ok_and(|present| present != number)) {
        return Err(MountError::NotMounted { target: target.to_owned() });
    }
    unmount(target, how)
}

/// A trailing slash would have the kernel look whether a dead mount is a directory.
fn without_trailing_slashes(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    Path::new(OsStr::from_bytes(&bytes[..end.min(bytes.len())]))
}

fn unmount_by_helper(target: &Path, how: Unmount) -> Result<(), MountError> {
    if how == Unmount::Forced
        && let Err(error) = Control::at(target).and_then(|control| control.abort())
    {
        tracing::warn!(%error, "{} is only taken from where it is seen: what waits in it may go on waiting until root mounts the control file system of FUSE (mount -t fusectl fusectl /sys/fs/fuse/connections)", target.display());
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args((how != Unmount::Unused).then_some("-z")).arg("--").arg(target).stdin(Stdio::null());
    let output = command.output().map_err(|error| MountError::NoHelper { error })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let target = target.to_owned();
    Err(match () {
        () if text.contains("not found in") => MountError::NotMounted { target },
        () if text.contains("busy") => MountError::Busy { target },
        () => helper_error("unmount", target, &output.stderr),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_cannot_be_mounted_on_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(check_target(&missing), Err(MountError::TargetMissing { .. })));
        assert!(matches!(check_target(&file), Err(MountError::NotADirectory { .. })));
        assert_eq!(check_target(folder.path()).unwrap(), fs::canonicalize(folder.path()).unwrap());
        let message = check_target(&missing).unwrap_err().to_string();
        assert!(message.contains("mkdir -p /"), "{message}");
    }

    #[test]
    fn nothing_mounted_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = unmount(folder.path(), Unmount::Unused).unwrap_err();
        assert!(matches!(error, MountError::NotMounted { .. } | MountError::Helper { .. }), "{error}");
    }

    #[test]
    fn options_are_escaped_for_the_helper() {
        let options =
            MountOptions { source: "host:/a,b".into(), read_only: true, nodev: true, ..MountOptions::default() };
        assert_eq!(helper_options(&options), r"fsname=host:/a\,b,subtype=aqueduct,ro,nodev");
    }

    #[test]
    fn trailing_slashes_are_dropped() {
        for (path, expected) in [("/mnt/", "/mnt"), ("/mnt//", "/mnt"), ("/", "/"), ("a", "a")] {
            assert_eq!(without_trailing_slashes(Path::new(path)), Path::new(expected));
        }
    }
}
