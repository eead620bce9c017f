//! The system calls that the crate's other modules need and that no safe crate offers, with every unsafe block, and those that need care to be called right.

use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use aqueduct_fs::{AccessMask, Errno};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};

/// The most bytes of a kernel file handle (MAX_HANDLE_SZ of linux/exportfs.h).
pub(crate) const KERNEL_HANDLE_LENGTH_MAX: usize = 128;

/// The most memory that a user's entry in the user database may take, in bytes: sixteen times what glibc suggests to start with.
const USER_ENTRY_SIZE_MAX: usize = 16 * 1024;

/// The most groups that the user database may name for one user (NGROUPS_MAX of Linux).
const USER_GROUPS_MAX: usize = 65_536;

/// The attributes that are asked for.
const STATX_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// The kernel's struct file_handle with room for the longest.
#[repr(C)]
struct RawHandle {
    length: libc::c_uint,
    kind: libc::c_int,
    data: [u8; KERNEL_HANDLE_LENGTH_MAX],
}

/// A file handle as the kernel made it.
#[derive(Clone, Copy)]
pub(crate) struct KernelHandle {
    /// The handle_type.
    pub(crate) kind: i32,
    data: [u8; KERNEL_HANDLE_LENGTH_MAX],
    length: usize,
}

impl KernelHandle {
    /// From its parts; `None` when `bytes` are too many.
    pub(crate) fn new(kind: i32, bytes: &[u8]) -> Option<KernelHandle> {
        let mut data = [0; KERNEL_HANDLE_LENGTH_MAX];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(KernelHandle { kind, data, length: bytes.len() })
    }

    /// The f_handle.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[..self.length]
    }
}

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 { Err(Errno::from(std::io::Error::last_os_error())) } else { Ok(result) }
}

/// What a file system tells only when a descriptor is closed: it is asked by closing another one of
/// the same open file.
pub fn late_errors(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let other = rustix::io::fcntl_dupfd_cloexec(fd, 0)?.into_raw_fd();
    // SAFETY: the descriptor was made just now, and nobody else knows it.
    match check(unsafe { libc::close(other) }.into()) {
        Ok(_) | Err(Errno::EINTR) => Ok(()), // it is closed whatever comes of it
        Err(error) => Err(error),
    }
}

/// name_to_handle_at of the descriptor itself: the handle and the id of the mount it was found through.
pub(crate) fn name_to_handle(fd: BorrowedFd<'_>) -> Result<(KernelHandle, i32), Errno> {
    let mut raw = RawHandle { length: KERNEL_HANDLE_LENGTH_MAX as u32, kind: 0, data: [0; KERNEL_HANDLE_LENGTH_MAX] };
    let mut mount: libc::c_int = 0;
    // SAFETY: `raw` is a file_handle with as much room as its length says, and `mount` an int; both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    })?;
    let length = (raw.length as usize).min(KERNEL_HANDLE_LENGTH_MAX);
    Ok((KernelHandle { kind: raw.kind, data: raw.data, length }, mount))
}

/// How often a handle is tried whose inode number is just being given to another file.
const HANDLE_TRIES: usize = 8;

/// open_by_handle_at with O_PATH, on the file system that `mount` lies on. Needs CAP_DAC_READ_SEARCH.
pub(crate) fn open_by_handle(mount: BorrowedFd<'_>, handle: &KernelHandle) -> Result<OwnedFd, Errno> {
    for _ in 1..HANDLE_TRIES {
        match try_handle(mount, handle) {
            // What ext4 says of an inode that is being made under the old number; once it is made, the handle is ESTALE.
            Err(Errno::ENOMEM) => std::thread::sleep(std::time::Duration::from_micros(100)),
            result => return result,
        }
    }
    try_handle(mount, handle)
}

fn try_handle(mount: BorrowedFd<'_>, handle: &KernelHandle) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle { length: handle.length as u32, kind: handle.kind, data: handle.data };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: `raw` is a file_handle whose data hold at least the length it says, and outlives the call.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags) })?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Sets the file system uid of this thread; EPERM when the kernel kept another.
pub(crate) fn set_fsuid(uid: u32) -> Result<(), Errno> {
    // SAFETY: setfsuid takes a number and changes this thread's credential only; -1 changes nothing and tells the present one.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX)
    };
    if now as u32 == uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Sets the file system gid of this thread; EPERM when the kernel kept another.
pub(crate) fn set_fsgid(gid: u32) -> Result<(), Errno> {
    // SAFETY: setfsgid takes a number and changes this thread's credential only; -1 changes nothing and tells the present one.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX)
    };
    if now as u32 == gid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Sets the supplementary groups of this thread only (the C library's function would set those of all threads).
pub(crate) fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: `groups` are as many 32-bit ids as its length says.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// The supplementary groups of this thread.
pub(crate) fn groups() -> Result<Vec<u32>, Errno> {
    rustix::process::getgroups().map(|groups| groups.into_iter().map(|gid| gid.as_raw()).collect()).map_err(Errno::from)
}

/// Gives this thread a umask (and working folder) of its own.
pub(crate) fn unshare_umask() -> bool {
    // SAFETY: CLONE_FS separates umask, root and working folder of this thread; the descriptor table stays shared.
    unsafe { libc::unshare(libc::CLONE_FS) == 0 }
}

/// The supplementary groups of a user by the user database of this machine; none for a user that it does not know.
pub(crate) fn groups_of_user(uid: u32, gid: u32) -> Vec<u32> {
    let Some(name) = user_name(uid) else { return Vec::new() };
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    while groups.len() <= USER_GROUPS_MAX {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: `name` ends with NUL, and `groups` has room for `count` ids.
        let result = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if result >= 0 {
            groups.truncate(count as usize);
            return groups;
        }
        let larger = (count as usize).max(groups.len() * 2);
        groups.resize(larger, 0);
    }
    Vec::new()
}

/// The name of a user by the user database of this machine.
pub(crate) fn user_name(uid: u32) -> Option<CString> {
    user_entry(
        // SAFETY: the pointers are to what is as large as said.
        |entry, memory, size, found| unsafe { libc::getpwuid_r(uid, entry, memory, size, found) },
        // SAFETY: the entry is filled in: its name ends with NUL.
        |entry| unsafe { CStr::from_ptr(entry.pw_name) }.to_owned(),
    )
}

/// The uid and primary gid of a user by the user database of this machine.
pub(crate) fn user_by_name(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    user_entry(
        // SAFETY: `name` ends with NUL, and the pointers are to what is as large as said.
        |entry, memory, size, found| unsafe { libc::getpwnam_r(name.as_ptr(), entry, memory, size, found) },
        |entry| (entry.pw_uid, entry.pw_gid),
    )
}

/// An entry of the user database. `look_up` asks for it, with memory for its texts; `read` takes
/// what is wanted from it.
fn user_entry<T>(
    look_up: impl Fn(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
    read: impl Fn(&libc::passwd) -> T,
) -> Option<T> {
    let mut memory = vec![0 as libc::c_char; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        let result = look_up(entry.as_mut_ptr(), memory.as_mut_ptr(), memory.len(), &raw mut found);
        if result == libc::ERANGE && memory.len() < USER_ENTRY_SIZE_MAX {
            memory.resize(memory.len() * 2, 0);
            continue;
        }
        if result != 0 || found.is_null() {
            return None;
        }
        // SAFETY: `found` is not null, so it points to `entry`, which the call has filled in. The
        // texts of `entry` are in `memory`, which outlives this.
        return Some(read(unsafe { &*found }));
    }
}

/// access of the descriptor's inode with this thread's file system identity; ENOSYS before Linux 5.8.
pub(crate) fn access(fd: BorrowedFd<'_>, mask: AccessMask) -> Result<(), Errno> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a static string, the rest are numbers.
    check(unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), mask.bits(), flags) }).map(drop)
}

/// chmod of the descriptor's inode, also when it is open only as a path.
pub(crate) fn change_mode(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    if !MISSING.load(Ordering::Relaxed) {
        // SAFETY: the path is a static string, the rest are numbers.
        let result = check(unsafe {
            libc::syscall(libc::SYS_fchmodat2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH)
        });
        match result {
            Err(Errno::ENOSYS) => MISSING.store(true, Ordering::Relaxed),
            result => return result.map(drop),
        }
    }
    let path = ProcPath::new(fd);
    // SAFETY: the path ends with NUL.
    check(libc::c_long::from(unsafe { libc::chmod(path.as_c_str().as_ptr(), mode) })).map(drop)
}

/// truncate of the descriptor's inode by path, so that the caller's permission to write counts.
pub(crate) fn truncate(fd: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    let size = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
    let path = ProcPath::new(fd);
    // SAFETY: the path ends with NUL.
    check(libc::c_long::from(unsafe { libc::truncate64(path.as_c_str().as_ptr(), size) })).map(drop)
}

/// fallocate with the kernel's mode bits as they are.
pub(crate) fn allocate(fd: BorrowedFd<'_>, mode: u32, offset: u64, length: u64) -> Result<(), Errno> {
    let flags = rustix::fs::FallocateFlags::from_bits_retain(mode);
    rustix::fs::fallocate(fd, flags, offset, length).map_err(Errno::from)
}

/// Has the kernel begin to write the data of a file to its disk. Who wants to know whether it did
/// asks by fsync.
pub(crate) fn begin_writing_back(fd: BorrowedFd<'_>) {
    // SAFETY: a system call without pointers.
    let _ = unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Fills `buffer` with directory records (struct linux_dirent64) from where the descriptor stands; 0 at the end.
pub(crate) fn read_directory(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: `buffer` is ours and as long as said.
    check(unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) })
        .map(|count| count as usize)
}

/// File systems that find a name by its very bytes, unless the directory says otherwise: ext2 to ext4, Btrfs, tmpfs and F2FS, by the numbers that statfs(2)
/// gives them. XFS may be made to find others without saying so here.
const EXACT: [u32; 4] = [0x0000_ef53, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// FS_CASEFOLD_FL of linux/fs.h: names in this directory are found in upper and lower case.
const CASEFOLD: u32 = 0x4000_0000;

/// Whether a name that is not listed in a directory is not to be found in it either.
pub(crate) fn lists_exact_names(directory: BorrowedFd<'_>) -> bool {
    let is_exact = |stat: rustix::fs::StatFs| EXACT.contains(&(stat.f_type as u32));
    rustix::fs::fstatfs(directory).is_ok_and(is_exact)
        && match rustix::fs::ioctl_getflags(directory) {
            Ok(flags) => flags.bits() & CASEFOLD == 0,
            // A tmpfs from before there were any flags, so also not this one.
            Err(error) => error == rustix::io::Errno::NOTTY,
        }
}

/// The path by which a descriptor of this process is opened again: the kernel follows it to the very inode, whatever its names are.
pub(crate) struct ProcPath([u8; 32]);

impl ProcPath {
    /// The path of `fd`, which must stay open while the path is used.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> ProcPath {
        let mut path = [0; 32];
        // The longest, with ten digits, leaves a NUL at the end.
        let _ = write!(&mut path[..31], "/proc/self/fd/{}", fd.as_raw_fd());
        ProcPath(path)
    }

    /// As system calls take it.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

/// The path of what a descriptor stands for, as its name is now; the kernel adds ` (deleted)` where it has none any more.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Option<Box<[u8]>> {
    let path = rustix::fs::readlink(ProcPath::new(fd).as_c_str(), Vec::new()).ok()?;
    Some(path.into_bytes().into())
}

/// Opens the inode of a descriptor anew, with the permissions of this thread. Only for what was seen to be a regular file or a directory.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::LARGEFILE;
    rustix::fs::open(ProcPath::new(fd).as_c_str(), flags, Mode::empty()).map_err(Errno::from)
}

/// Opens `name` in `directory`, never following a link and never leaving it; EXDEV at mount points unless `cross_mounts`.
///
/// Where the kernel has no openat2 (before Linux 5.6) mount points pass here; the caller then compares mount ids.
pub(crate) fn open_name(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: u32,
    cross_mounts: bool,
) -> Result<OwnedFd, Errno> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NOCTTY | OFlags::LARGEFILE;
    }
    let mode = Mode::from_raw_mode(mode);
    if !MISSING.load(Ordering::Relaxed) {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        resolve.set(ResolveFlags::NO_XDEV, !cross_mounts);
        match rustix::fs::openat2(directory, name, flags, mode, resolve) {
            Err(rustix::io::Errno::NOSYS) => MISSING.store(true, Ordering::Relaxed),
            result => return result.map_err(Errno::from),
        }
    }
    rustix::fs::openat(directory, name, flags, mode).map_err(Errno::from)
}

/// Sets the times of the descriptor's inode, also when it is open only as a path.
pub(crate) fn set_times(fd: BorrowedFd<'_>, times: &rustix::fs::Timestamps) -> Result<(), Errno> {
    match rustix::fs::utimensat(fd, c"", times, AtFlags::EMPTY_PATH) {
        // Before Linux 5.8 the flag is unknown.
        Err(rustix::io::Errno::INVAL) => {
            rustix::fs::utimensat(rustix::fs::CWD, ProcPath::new(fd).as_c_str(), times, AtFlags::empty())
        }
        result => result,
    }
    .map_err(Errno::from)
}

/// Gives the inode of a descriptor a name; a symbolic link itself, not what it points to.
pub(crate) fn link(fd: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let path = ProcPath::new(fd);
    rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), directory, name, AtFlags::SYMLINK_FOLLOW).map_err(Errno::from)
}

/// The attributes of the descriptor's inode.
pub(crate) fn statx(fd: impl AsFd) -> Result<rustix::fs::Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, STATX_MASK).map_err(Errno::from)
}

/// The number of the mount through which the descriptor was opened, if it is one that never comes back (Linux 6.8).
pub(crate) fn unique_mount_id(fd: BorrowedFd<'_>) -> Option<u64> {
    /// STATX_MNT_ID_UNIQUE of linux/stat.h.
    const MNT_ID_UNIQUE: u32 = 0x4000;
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(MNT_ID_UNIQUE)).ok()?;
    (stat.stx_mask & MNT_ID_UNIQUE != 0).then_some(stat.stx_mnt_id)
}

/// Whether this process sees the mounts that the first process of the machine sees.
pub(crate) fn is_in_first_mount_namespace() -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt"));
    matches!((of("1"), of("self")), (Ok(first), Ok(own)) if first == own)
}

/// The attributes of a name's inode; of a symbolic link itself.
pub(crate) fn statx_name(directory: BorrowedFd<'_>, name: &[u8]) -> Result<rustix::fs::Statx, Errno> {
    rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, STATX_MASK).map_err(Errno::from)
}

/// What fanotify tells of: what changes data, attributes or names. The end of writing is among it since stores through a mapping raise nothing before.
const CHANGES: u64 = libc::FAN_MODIFY
    | libc::FAN_CLOSE_WRITE
    | libc::FAN_ATTRIB
    | libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_DELETE_SELF
    | libc::FAN_MOVE_SELF
    | libc::FAN_ONDIR;

/// A queue of changes, which names inodes by their handles. Needs Linux 5.1; EINVAL before.
pub(crate) fn change_queue() -> Result<OwnedFd, Errno> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
    // SAFETY: both arguments are numbers.
    let fd = check(libc::c_long::from(unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) }))?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// From now on all changes on the file system of `directory` come into the queue. Needs CAP_SYS_ADMIN.
pub(crate) fn queue_changes(queue: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    // SAFETY: the path is a static string, the rest are numbers.
    let result =
        unsafe { libc::fanotify_mark(queue.as_raw_fd(), flags, CHANGES, directory.as_raw_fd(), c".".as_ptr()) };
    check(libc::c_long::from(result)).map(drop)
}

/// struct fsxattr of linux/fs.h: what a file system that knows projects has of an inode.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InodeFlags {
    /// FS_XFLAG_*.
    pub(crate) flags: u32,
    extent_size: u32,
    extents: u32,
    /// The project.
    pub(crate) project: u32,
    copied_extent_size: u32,
    padding: [u8; 8],
}

/// FS_IOC_FSGETXATTR: ENOTTY or EOPNOTSUPP where a file system has nothing of the kind.
pub(crate) fn inode_flags(fd: BorrowedFd<'_>) -> Result<InodeFlags, Errno> {
    use rustix::ioctl::{Getter, ioctl, opcode};
    // SAFETY: the kernel writes a struct fsxattr, which `InodeFlags` is laid out as.
    let get = unsafe { Getter::<{ opcode::read::<InodeFlags>(b'X', 31) }, InodeFlags>::new() };
    // SAFETY: the request changes nothing of this process.
    Ok(unsafe { ioctl(fd, get) }?)
}

/// FS_IOC_FSSETXATTR. What is not to change has to be as [`inode_flags`] said.
pub(crate) fn set_inode_flags(fd: BorrowedFd<'_>, flags: InodeFlags) -> Result<(), Errno> {
    use rustix::ioctl::{Setter, ioctl, opcode};
    // SAFETY: the kernel reads a struct fsxattr, which `InodeFlags` is laid out as.
    let set = unsafe { Setter::<{ opcode::write::<InodeFlags>(b'X', 32) }, InodeFlags>::new(flags) };
    // SAFETY: the request changes nothing of this process.
    Ok(unsafe { ioctl(fd, set) }?)
}
