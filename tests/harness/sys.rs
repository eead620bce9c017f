//! System calls that the standard library and rustix do not have: record locks, timers, whole-process credentials.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a record lock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Read,
    Write,
    Unlock,
}

/// How a record lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Of the process.
    Process,
    /// Of the open file.
    OpenFile,
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn range(hold: Hold, start: i64, length: i64) -> libc::flock {
    // SAFETY: flock is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = match hold {
        Hold::Read => libc::F_RDLCK,
        Hold::Write => libc::F_WRLCK,
        Hold::Unlock => libc::F_UNLCK,
    } as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, length);
    lock
}

/// F_SETLK and its like.
pub fn lock(fd: BorrowedFd<'_>, request: Request, hold: Hold, start: i64, length: i64, wait: bool) -> io::Result<()> {
    let lock = range(hold, start, length);
    let command = match (request, wait) {
        (Request::Process, false) => libc::F_SETLK,
        (Request::Process, true) => libc::F_SETLKW,
        (Request::OpenFile, false) => libc::F_OFD_SETLK,
        (Request::OpenFile, true) => libc::F_OFD_SETLKW,
    };
    // SAFETY: `lock` is a valid flock that outlives the call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw const lock) })
}

/// F_GETLK for a write lock: start, length and holder of what is in the way.
pub fn test_lock(fd: BorrowedFd<'_>, start: i64, length: i64) -> io::Result<Option<(i64, i64, i32)>> {
    let mut lock = range(Hold::Write, start, length);
    // SAFETY: `lock` is a valid flock that outlives the call and may be written.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLK, &raw mut lock) })?;
    let free = lock.l_type == libc::F_UNLCK as libc::c_short;
    Ok((!free).then_some((lock.l_start, lock.l_len, lock.l_pid)))
}

extern "C" fn do_nothing(_: libc::c_int) {}

/// SIGALRM after `milliseconds` and then as often again, handled by a function that does nothing; system calls restart where they can.
pub fn alarm(milliseconds: u32) -> io::Result<()> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: libc::suseconds_t::from(milliseconds) * 1000 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the handler touches nothing; both structures are valid and outlive the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        check(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()))?;
        check(libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()))
    }
}

/// truncate(2), by name.
pub fn truncate(path: &Path, size: i64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with NUL and outlives the call.
    check(unsafe { libc::truncate64(path.as_ptr(), size) })
}

/// Gives up root for good, in all threads.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no memory is passed: there are no groups.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid))
    }
}

/// Throws away what the file system has not written yet, its journal too, and takes nothing any more: as in a power failure.
pub fn shut_down(fd: BorrowedFd<'_>) -> io::Result<()> {
    /// EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: `_IOR('X', 125, __u32)`.
    const SHUTDOWN: libc::c_ulong = 0x8004_587d;
    // EXT4_GOING_FLAGS_NOLOGFLUSH, XFS_FSOP_GOING_FLAGS_NOLOGFLUSH.
    let flags: u32 = 2;
    // SAFETY: the kernel reads a u32, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), SHUTDOWN, &raw const flags) })
}

/// Maps the first `length` bytes of a file shared and writable, stores `value` at byte `at`, and
/// waits for msync. EFAULT: there is no such page, as of a mount that is dead. A plain store would
/// end the process by SIGBUS.
pub fn store_shared(fd: BorrowedFd<'_>, length: usize, at: usize, value: u8) -> io::Result<()> {
    let mapping = Mapping::new(fd, length)?;
    mapping.store_or_fault(at, value)?;
    mapping.sync()
}

/// The first bytes of a file, shared, until it is dropped.
pub struct Mapping {
    base: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    /// Writable.
    pub fn new(fd: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        Mapping::at(fd, 0, length, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// To be loaded from only.
    pub fn read_only(fd: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        Mapping::at(fd, 0, length, libc::PROT_READ)
    }

    /// Not of the first bytes, but of those from `offset`, a whole number of pages.
    pub fn at(fd: BorrowedFd<'_>, offset: i64, length: usize, protection: i32) -> io::Result<Mapping> {
        // SAFETY: a mapping of our own at a place that the kernel chooses.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapping { base, length }) }
    }

    /// Stores a byte by the kernel's hand.
    fn store_or_fault(&self, at: usize, value: u8) -> io::Result<()> {
        assert!(at < self.length);
        let from = libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: 1 };
        // SAFETY: within the mapping, which is not unmapped before this is dropped.
        let to = libc::iovec { iov_base: unsafe { self.base.byte_add(at) }, iov_len: 1 };
        // SAFETY: both places are of this process, and the kernel checks them.
        let stored = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) };
        if stored == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The byte at a place.
    pub fn load(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: it lies inside.
        unsafe { self.base.cast::<u8>().add(at).read_volatile() }
    }

    /// Stores each value in one piece.
    pub fn store<T: Copy>(&self, at: usize, values: &[T]) {
        assert!(at + size_of_val(values) <= self.length && at.is_multiple_of(align_of::<T>()));
        for (number, value) in values.iter().enumerate() {
            // SAFETY: the values lie inside, at a place for such.
            unsafe { self.base.cast::<u8>().add(at).cast::<T>().add(number).write_volatile(*value) };
        }
    }

    /// Waits until what was stored is written (msync).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping is there until it is dropped.
        check(unsafe { libc::msync(self.base, self.length, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more, and it is unmapped once.
        unsafe { libc::munmap(self.base, self.length) };
    }
}

/// Closes a file and gives what close(2) says, which dropping it does not.
pub fn close(file: impl Into<OwnedFd>) -> io::Result<()> {
    // SAFETY: the descriptor was ours, and was given up for this.
    check(unsafe { libc::close(file.into().into_raw_fd()) })
}

/// A copy of the first `length` bytes of a file, taken through a private mapping.
pub fn load_private(fd: BorrowedFd<'_>, length: usize) -> io::Result<Vec<u8>> {
    // SAFETY: as above; the mapping is read only inside its length.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, fd.as_raw_fd(), 0);
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes = std::slice::from_raw_parts(base.cast::<u8>(), length).to_vec();
        libc::munmap(base, length);
        Ok(bytes)
    }
}
