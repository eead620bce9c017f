//! Directories and files of this machine, by descriptors.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aqueduct_fs::{Attr, Errno, SetAttr, SetTime, data::read_full, device_number};
use aqueduct_posix::project::{Project, project_of, set_project};
use bytes::Bytes;
use rustix::fs::{
    AtFlags, FlockOperation, Gid, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, SeekFrom, Statx, StatxFlags,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};

use super::lustre::{LAYOUT, Layout, MAGIC};
use super::{Directory, File, Listed, Node, PART, Peculiarity, Seen, Xattrs};

/// tmpfs and ramfs, as statfs(2) calls them.
const MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Where syncfs(2) is known to reach whoever keeps the data: ext2 to ext4, XFS, Btrfs, F2FS,
/// bcachefs, ZFS, overlays, NFS, Ceph, FAT, exFAT. With FUSE, SMB and 9p it ends in memory, of this
/// kernel or of others, while fsync(2) is passed on.
const REACHED: [i64; 11] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x794c_7630,
    0x6969,
    0x00c3_6400,
    0x4d44,
    0x2011_bab0,
];

/// Where files have no size that stat(2) tells: proc, sysfs, cgroup and cgroup2, debugfs, tracefs,
/// securityfs, configfs, selinuxfs.
const UNSIZED: [i64; 9] =
    [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x6265_6570, 0xf97c_ff8c];

/// Bytes of names asked for at a time.
const LISTING_SIZE: usize = 64 << 10;

/// What one component of a path may be: never a link, never out of the directory.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Times that O_NOATIME leaves alone are the owner's to leave alone: others read without it.
const READING: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// What is asked of an inode.
const LOOKING: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// A directory of this machine.
pub struct LocalDirectory(OwnedFd);

/// A regular file of this machine.
pub struct LocalFile(OwnedFd);

/// What is neither, held by its inode: whoever has its name lead to another in the meantime has
/// nothing of that changed.
struct LocalOther(OwnedFd);

impl LocalDirectory {
    /// Opens the directory at a path, through links.
    pub fn open(path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Arc::new(LocalDirectory(rustix::fs::open(path, flags, Mode::empty())?)))
    }

    /// Opens one name. Where there is no openat2 (before Linux 5.6, or refused by a filter), one
    /// component that is no link cannot lead out either.
    fn open_name(&self, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        aqueduct_fs::check_name(name)?;
        let name = OsStr::from_bytes(name);
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat2(&self.0, name, flags, mode, BENEATH) {
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                Ok(rustix::fs::openat(&self.0, name, flags, mode)?)
            }
            opened => Ok(opened?),
        }
    }

    /// Opens a directory that is of the same mount, where there is no openat2.
    fn same_mount(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        let fd = self.open_name(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        match mount_of(self.0.as_fd())? == mount_of(fd.as_fd())? {
            true => Ok(Arc::new(LocalDirectory(fd))),
            false => Err(Errno::EXDEV),
        }
    }
}

/// The number of the mount through which something was opened, which kernels tell that have no
/// openat2.
fn mount_of(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let path = Path::new("/proc/self/fdinfo").join(fd.as_raw_fd().to_string());
    let text = std::fs::read_to_string(path).map_err(|_| Errno::EIO)?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or(Errno::EIO)
}

fn seen(stat: &Statx) -> Seen {
    let device = device_number(stat.stx_dev_major, stat.stx_dev_minor);
    Seen { attr: Attr::of_statx(stat), device, handle: None }
}

fn look_at(fd: BorrowedFd<'_>) -> Result<Seen, Errno> {
    Ok(seen(&rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, LOOKING)?))
}

fn timespec(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(at)) => Timespec { tv_sec: at.seconds, tv_nsec: at.nanos.into() },
    }
}

fn timestamps(set: &SetAttr) -> Option<Timestamps> {
    let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
    (set.atime.is_some() || set.mtime.is_some()).then_some(times)
}

fn owner(set: &SetAttr) -> (Option<Uid>, Option<Gid>) {
    (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw))
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o7777)
}

fn set_open(fd: BorrowedFd<'_>, set: &SetAttr) -> Result<(), Errno> {
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = owner(set);
        rustix::fs::fchown(fd, uid, gid)?;
    }
    if let Some(bits) = set.mode {
        rustix::fs::fchmod(fd, mode(bits))?;
    }
    if let Some(times) = timestamps(set) {
        rustix::fs::futimens(fd, &times)?;
    }
    Ok(())
}

/// Asks for something of a length that is not known: as long as it grows meanwhile, again.
fn whole(mut ask: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match ask(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(rustix::io::Errno::RANGE) if buffer.len() < aqueduct_fs::XATTR_SIZE_MAX => {
                buffer.resize(aqueduct_fs::XATTR_SIZE_MAX, 0);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads attributes by their list; one that goes away meanwhile is not there.
fn xattrs_by(
    list: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
    mut get: impl FnMut(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> Result<Xattrs, Errno> {
    let names = match whole(list) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match whole(|buffer| get(OsStr::from_bytes(name), buffer)) {
            Ok(value) => found.push((name.to_vec(), value)),
            Err(Errno::ENODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn xattrs_open(fd: BorrowedFd<'_>) -> Result<Xattrs, Errno> {
    let list = |buffer: &mut [u8]| rustix::fs::flistxattr(fd, buffer);
    xattrs_by(list, |name, buffer| rustix::fs::fgetxattr(fd, name, buffer))
}

fn set_xattr_open(fd: BorrowedFd<'_>, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
    let name = OsStr::from_bytes(name);
    match value {
        Some(value) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty())?,
        None => rustix::fs::fremovexattr(fd, name)?,
    }
    Ok(())
}

macro_rules! open_node {
    ($type:ty) => {
        impl Node for $type {
            fn seen(&self) -> Result<Seen, Errno> {
                look_at(self.0.as_fd())
            }

            fn set(&self, set: &SetAttr) -> Result<(), Errno> {
                set_open(self.0.as_fd(), set)
            }

            fn xattrs(&self) -> Result<Xattrs, Errno> {
                xattrs_open(self.0.as_fd())
            }

            fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
                set_xattr_open(self.0.as_fd(), name, value)
            }

            fn project(&self) -> Result<Option<Project>, Errno> {
                project_of(self.0.as_fd())
            }

            fn layout(&self) -> Result<Option<Layout>, Errno> {
                let get = |buffer: &mut [u8]| rustix::fs::fgetxattr(&self.0, OsStr::from_bytes(LAYOUT), buffer);
                match whole(get) {
                    Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
                    value => Ok(Layout::parse(&value?)),
                }
            }

            fn set_project(&self, project: Project) -> Result<(), Errno> {
                set_project(self.0.as_fd(), project)
            }

            fn sync(&self) -> Result<(), Errno> {
                Ok(rustix::fs::fsync(&self.0)?)
            }

            fn descriptor(&self) -> Option<BorrowedFd<'_>> {
                Some(self.0.as_fd())
            }
        }
    };
}

open_node!(LocalDirectory);
open_node!(LocalFile);

impl LocalOther {
    /// A path that leads to the inode itself, also to a link, for calls that take no descriptor of
    /// such.
    fn path(&self) -> std::path::PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string())
    }
}

impl Node for LocalOther {
    fn seen(&self) -> Result<Seen, Errno> {
        look_at(self.0.as_fd())
    }

    fn set(&self, set: &SetAttr) -> Result<(), Errno> {
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = owner(set);
            rustix::fs::chownat(&self.0, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(bits) = set.mode {
            if self.seen()?.attr.kind() == libc::S_IFLNK {
                return Err(Errno::EOPNOTSUPP);
            }
            rustix::fs::chmod(self.path(), mode(bits))?;
        }
        if let Some(times) = timestamps(set) {
            rustix::fs::utimensat(rustix::fs::CWD, self.path(), &times, AtFlags::empty())?;
        }
        Ok(())
    }

    fn xattrs(&self) -> Result<Xattrs, Errno> {
        let path = self.path();
        let list = |buffer: &mut [u8]| rustix::fs::listxattr(&path, buffer);
        xattrs_by(list, |name, buffer| rustix::fs::getxattr(&path, name, buffer))
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let (path, name) = (self.path(), OsStr::from_bytes(name));
        match value {
            Some(value) => rustix::fs::setxattr(&path, name, value, XattrFlags::empty())?,
            None => rustix::fs::removexattr(&path, name)?,
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP) // its directory can
    }
}

impl File for LocalFile {
    fn read(&self, offset: u64, length: usize, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        buffer.resize(length, 0);
        let count = read_full(self.0.as_fd(), buffer, offset)?;
        buffer.truncate(count);
        Ok(())
    }

    fn write(&self, offset: u64, data: Bytes) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.0, &data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::ENOSPC),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&self, source: &dyn File, offset: u64, length: usize) -> Result<usize, Errno> {
        let source = source.descriptor().ok_or(Errno::EOPNOTSUPP)?;
        let (mut from, mut to) = (offset, offset);
        loop {
            match rustix::fs::copy_file_range(source, Some(&mut from), &self.0, Some(&mut to), length) {
                Err(rustix::io::Errno::INTR) => {}
                // Of two file systems, or not of this one, or refused by a filter.
                Err(
                    rustix::io::Errno::XDEV
                    | rustix::io::Errno::NOSYS
                    | rustix::io::Errno::INVAL
                    | rustix::io::Errno::OPNOTSUPP
                    | rustix::io::Errno::PERM,
                ) => return Err(Errno::EOPNOTSUPP),
                taken => return Ok(taken?),
            }
        }
    }

    fn share(&self, source: &dyn File) -> Result<(), Errno> {
        let source = source.descriptor().ok_or(Errno::EXDEV)?;
        Ok(rustix::fs::ioctl_ficlone(&self.0, source)?)
    }

    fn lock(&self, alone: bool) -> Result<bool, Errno> {
        let how = if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        match rustix::fs::flock(&self.0, how) {
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            locked => Ok(locked.map(|()| true)?),
        }
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        Ok(rustix::fs::ftruncate(&self.0, size)?)
    }

    fn data_after(&self, offset: u64) -> Result<Option<(u64, u64)>, Errno> {
        let start = match rustix::fs::seek(&self.0, SeekFrom::Data(offset)) {
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            start => start?,
        };
        Ok(Some((start, rustix::fs::seek(&self.0, SeekFrom::Hole(start))?)))
    }

    fn late_errors(&self) -> Result<(), Errno> {
        aqueduct_posix::late_errors(self.0.as_fd())
    }

    fn forget(&self, size: u64) -> bool {
        aqueduct_posix::forget(self.0.as_fd(), 0, size)
    }

    fn is_volatile(&self) -> bool {
        is_memory(self.0.as_fd())
    }
}

/// A path of a name in a directory, for calls that know no directories.
fn path_of(directory: BorrowedFd<'_>, name: &[u8]) -> std::path::PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(OsStr::from_bytes(name))
}

fn is_memory(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| MEMORY.contains(&stat.f_type))
}

/// The type bits for what a listing says.
fn kind(file_type: rustix::fs::FileType) -> u32 {
    match file_type {
        rustix::fs::FileType::Unknown => 0,
        known => known.as_raw_mode(),
    }
}

impl Directory for LocalDirectory {
    fn list(&self, found: &mut dyn FnMut(Listed)) -> Result<(), Errno> {
        // A listing of its own: the position of a descriptor is shared.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.0, c".", flags, Mode::empty())?;
        let mut buffer = Vec::with_capacity(LISTING_SIZE);
        let mut entries = RawDir::new(&fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = match kind(entry.file_type()) {
                    0 if name.starts_with(PART) => self.look(name).map_or(0, |seen| seen.attr.kind()),
                    kind => kind,
                };
                found(Listed { name: name.into(), kind, seen: None });
            }
        }
        Ok(())
    }

    fn look(&self, name: &[u8]) -> Result<Seen, Errno> {
        aqueduct_fs::check_name(name)?;
        let (flags, name) = (AtFlags::SYMLINK_NOFOLLOW, OsStr::from_bytes(name));
        Ok(seen(&rustix::fs::statx(&self.0, name, flags, LOOKING)?))
    }

    fn xattrs_of(&self, name: &[u8], _: &Seen) -> Result<Xattrs, Errno> {
        aqueduct_fs::check_name(name)?;
        let path = path_of(self.0.as_fd(), name);
        let list = |buffer: &mut [u8]| rustix::fs::llistxattr(&path, buffer);
        xattrs_by(list, |name, buffer| rustix::fs::lgetxattr(&path, name, buffer))
    }

    fn directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        let fd = self.open_name(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Arc::new(LocalDirectory(fd)))
    }

    fn unmounted(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        aqueduct_fs::check_name(name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let how = BENEATH.union(ResolveFlags::NO_XDEV);
        match rustix::fs::openat2(&self.0, OsStr::from_bytes(name), flags, Mode::empty(), how) {
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => self.same_mount(name),
            opened => Ok(Arc::new(LocalDirectory(opened?))),
        }
    }

    fn above(&self) -> Result<Option<Arc<dyn Directory>>, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = LocalDirectory(rustix::fs::openat(&self.0, c"..", flags, Mode::empty())?);
        let is_root = above.seen()?.identity() == self.seen()?.identity();
        Ok((!is_root).then(|| Arc::new(above) as Arc<dyn Directory>))
    }

    fn file(&self, name: &[u8], _: Option<&Seen>) -> Result<Arc<dyn File>, Errno> {
        let fd = match self.open_name(name, READING | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::EPERM) => self.open_name(name, READING, Mode::empty())?,
            fd => fd?,
        };
        Ok(Arc::new(LocalFile(fd)))
    }

    fn part(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno> {
        Ok(Arc::new(LocalFile(self.open_name(name, OFlags::RDWR, Mode::empty())?)))
    }

    fn other(&self, name: &[u8]) -> Result<Box<dyn Node>, Errno> {
        aqueduct_fs::check_name(name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.0, OsStr::from_bytes(name), flags, Mode::empty())?;
        Ok(Box::new(LocalOther(fd)))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        aqueduct_fs::check_name(name)?;
        Ok(rustix::fs::readlinkat(&self.0, OsStr::from_bytes(name), Vec::new())?.into_bytes())
    }

    fn make_directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        aqueduct_fs::check_name(name)?;
        rustix::fs::mkdirat(&self.0, OsStr::from_bytes(name), mode(0o700))?;
        self.directory(name)
    }

    fn make_symlink(&self, name: &[u8], text: &[u8]) -> Result<(), Errno> {
        aqueduct_fs::check_name(name)?;
        Ok(rustix::fs::symlinkat(OsStr::from_bytes(text), &self.0, OsStr::from_bytes(name))?)
    }

    fn make_other(&self, name: &[u8], kind: u32, rdev: u64) -> Result<(), Errno> {
        aqueduct_fs::check_name(name)?;
        let device = rustix::fs::makedev((rdev >> 32) as u32, rdev as u32);
        let file_type = rustix::fs::FileType::from_raw_mode(kind);
        Ok(rustix::fs::mknodat(&self.0, OsStr::from_bytes(name), file_type, mode(0o600), device)?)
    }

    fn create(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(Arc::new(LocalFile(self.open_name(name, flags, mode(0o600))?)))
    }

    fn create_unnamed(&self, permissions: u32) -> Result<Arc<dyn File>, Errno> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, c".", flags, mode(permissions)) {
            Ok(fd) => Ok(Arc::new(LocalFile(fd))),
            Err(rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => Err(Errno::EOPNOTSUPP),
            Err(error) => Err(error.into()),
        }
    }

    fn name_file(&self, file: &dyn File, name: &[u8]) -> Result<(), Errno> {
        aqueduct_fs::check_name(name)?;
        /// The kernel lets us name a file by its descriptor alone: with CAP_DAC_READ_SEARCH.
        static BY_DESCRIPTOR: AtomicBool = AtomicBool::new(true);
        let fd = file.descriptor().ok_or(Errno::EXDEV)?;
        if BY_DESCRIPTOR.load(Ordering::Relaxed) {
            match rustix::fs::linkat(fd, c"", &self.0, OsStr::from_bytes(name), AtFlags::EMPTY_PATH) {
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => {
                    BY_DESCRIPTOR.store(false, Ordering::Relaxed);
                }
                named => return Ok(named?),
            }
        }
        let path = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string());
        let name = OsStr::from_bytes(name);
        Ok(rustix::fs::linkat(rustix::fs::CWD, path, &self.0, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn link(&self, from: &dyn Directory, from_name: &[u8], name: &[u8]) -> Result<(), Errno> {
        aqueduct_fs::check_name(from_name).and(aqueduct_fs::check_name(name))?;
        let directory = from.descriptor().ok_or(Errno::EXDEV)?;
        let [from_name, name] = [from_name, name].map(OsStr::from_bytes);
        Ok(rustix::fs::linkat(directory, from_name, &self.0, name, AtFlags::empty())?)
    }

    fn rename(&self, name: &[u8], new_name: &[u8], replaces: bool) -> Result<(), Errno> {
        aqueduct_fs::check_name(name).and(aqueduct_fs::check_name(new_name))?;
        let [name, new_name] = [name, new_name].map(OsStr::from_bytes);
        if replaces {
            return Ok(rustix::fs::renameat(&self.0, name, &self.0, new_name)?);
        }
        match rustix::fs::renameat_with(&self.0, name, &self.0, new_name, RenameFlags::NOREPLACE) {
            // NFS and some others do not know it. A link never replaces.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                rustix::fs::linkat(&self.0, name, &self.0, new_name, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
            }
            renamed => Ok(renamed?),
        }
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        aqueduct_fs::check_name(name)?;
        Ok(rustix::fs::unlinkat(&self.0, OsStr::from_bytes(name), AtFlags::empty())?)
    }

    fn remove_directory(&self, name: &[u8]) -> Result<(), Errno> {
        aqueduct_fs::check_name(name)?;
        Ok(rustix::fs::unlinkat(&self.0, OsStr::from_bytes(name), AtFlags::REMOVEDIR)?)
    }

    fn sync_all(&self) -> Result<(), Errno> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    fn syncs_all(&self) -> bool {
        rustix::fs::fstatfs(&self.0).is_ok_and(|stat| REACHED.contains(&stat.f_type))
    }

    fn free(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::fstatvfs(&self.0)?;
        Ok((stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_favail))
    }

    fn is_volatile(&self) -> bool {
        is_memory(self.0.as_fd())
    }

    fn peculiarity(&self) -> Peculiarity {
        match rustix::fs::fstatfs(&self.0).map(|stat| stat.f_type) {
            Ok(MAGIC) => Peculiarity::Lustre,
            Ok(magic) if UNSIZED.contains(&magic) => Peculiarity::Unsized,
            _ => Peculiarity::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where the kernel has no openat2.
    #[test]
    fn what_is_mounted_is_not_taken_for_a_directory_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            LocalDirectory(rustix::fs::open(path, flags, Mode::empty()).unwrap())
        };
        let (own, root) = (open(folder.path()), open(Path::new("/")));
        assert!(own.unmounted(b"d").is_ok() && own.same_mount(b"d").is_ok());
        assert!(root.directory(b"proc").is_ok());
        assert_eq!(root.unmounted(b"proc").err(), Some(Errno::EXDEV));
        assert_eq!(root.same_mount(b"proc").err(), Some(Errno::EXDEV));
    }

    #[test]
    fn attributes_are_those_of_what_was_opened_whatever_its_name_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = LocalDirectory(rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap());
        for (name, kind) in [("link", libc::S_IFLNK), ("fifo", libc::S_IFIFO)] {
            match kind {
                libc::S_IFLNK => directory.make_symlink(name.as_bytes(), b"anywhere").unwrap(),
                _ => directory.make_other(name.as_bytes(), kind, 0).unwrap(),
            }
            let node = directory.other(name.as_bytes()).unwrap();
            std::fs::rename(at(name), at("moved")).unwrap();
            std::fs::write(at(name), "").unwrap();
            let before = directory.look(name.as_bytes()).unwrap();
            let time = aqueduct_fs::Time { seconds: 1_000_000, nanos: 5 };
            let set = SetAttr { mtime: Some(SetTime::At(time)), gid: Some(before.attr.gid), ..SetAttr::default() };
            node.set(&set).unwrap();
            let mode = node.set(&SetAttr { mode: Some(0o621), ..SetAttr::default() });
            assert_eq!(mode.is_err(), kind == libc::S_IFLNK);
            assert_eq!(node.xattrs(), directory.xattrs_of(b"moved", &before));
            assert!(directory.look(name.as_bytes()).unwrap().is_as(&before));
            let moved = directory.look(b"moved").unwrap();
            assert_eq!((moved.attr.mtime, moved.attr.kind()), (time, kind));
            assert!(kind == libc::S_IFLNK || moved.attr.mode & 0o777 == 0o621);
            std::fs::remove_file(at("moved")).unwrap();
        }
    }
}
