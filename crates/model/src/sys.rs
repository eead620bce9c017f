//! System calls that have no safe wrapper: mappings, record locks, threads that act as processes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use crate::op::Hold;

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let code = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Errno::from_raw_os_error(code))
}

/// Gives the calling thread its own file table (empty but for 0, 1 and 2), its own working directory and umask.
pub fn become_process() -> Result<(), Errno> {
    // Before Linux 6.4 it is read from /proc/self/auxv, once, which is not there after a chroot.
    rustix::param::page_size();
    // SAFETY: unshare takes flags only. The thread has opened nothing yet, so nobody misses what close_range takes from its new table.
    unsafe {
        check(libc::unshare(libc::CLONE_FS).into())?;
        check(libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE))?;
    }
    Ok(())
}

/// Sets uid, gid, groups and umask of the calling thread alone; the C library's functions would change every thread.
pub fn become_user(uid: u32, gid: u32, groups: &[u32], umask: u32) -> Result<(), Errno> {
    // SAFETY: `groups` outlives the call and its length is given; the others take numbers.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
        check(libc::syscall(libc::SYS_umask, umask))?;
    }
    Ok(())
}

/// truncate(2).
pub fn truncate(path: &CStr, length: u64) -> Result<(), Errno> {
    // SAFETY: `path` ends with NUL and outlives the call.
    check(unsafe { libc::truncate(path.as_ptr(), length as libc::off_t) }.into()).map(drop)
}

fn range(hold: Hold, start: u64, length: u64) -> libc::flock {
    // SAFETY: flock is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = match hold {
        Hold::Read => libc::F_RDLCK,
        Hold::Write => libc::F_WRLCK,
        Hold::Unlock => libc::F_UNLCK,
    } as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start as libc::off_t;
    lock.l_len = length as libc::off_t;
    lock
}

/// F_SETLK or F_OFD_SETLK.
pub fn lock(fd: BorrowedFd<'_>, open_file: bool, hold: Hold, start: u64, length: u64) -> Result<(), Errno> {
    let lock = range(hold, start, length);
    let command = if open_file { libc::F_OFD_SETLK } else { libc::F_SETLK };
    // SAFETY: `lock` is a valid flock that outlives the call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw const lock) }.into()).map(drop)
}

/// F_GETLK or F_OFD_GETLK: true when a lock of somebody else is in the way.
pub fn test_lock(fd: BorrowedFd<'_>, open_file: bool, hold: Hold, start: u64, length: u64) -> Result<bool, Errno> {
    let mut lock = range(hold, start, length);
    let command = if open_file { libc::F_OFD_GETLK } else { libc::F_GETLK };
    // SAFETY: `lock` is a valid flock that outlives the call and may be written.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) }.into())?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// A mapping of `offset..offset + length` of a file, which must not shrink below that while it is there.
pub struct Mapping {
    base: *mut libc::c_void,
    mapped: usize,
    skip: usize,
    length: usize,
}

impl Mapping {
    /// Maps the range shared and writable, or private and readable.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, length: usize, shared: bool) -> Result<Self, Errno> {
        let skip = (offset % rustix::param::page_size() as u64) as usize;
        let mapped = skip + length;
        let (protection, flags) = match shared {
            true => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
            false => (libc::PROT_READ, libc::MAP_PRIVATE),
        };
        let start = (offset - skip as u64) as libc::off_t;
        // SAFETY: the kernel chooses the place, so no memory of ours is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), mapped, protection, flags, fd.as_raw_fd(), start) };
        if base == libc::MAP_FAILED {
            check(-1)?;
        }
        Ok(Self { base, mapped, skip, length })
    }

    /// A copy of the mapped bytes.
    pub fn load(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: the range lies in the mapping, which lives as long as `self`; a copy through raw pointers tolerates that others write the file.
        unsafe { ptr::copy_nonoverlapping(self.base.cast::<u8>().add(self.skip), bytes.as_mut_ptr(), self.length) };
        bytes
    }

    /// Stores `bytes` (of the mapped length) and waits until the file system has them.
    pub fn store(&self, bytes: &[u8]) -> Result<(), Errno> {
        assert_eq!(bytes.len(), self.length);
        // SAFETY: as in `load`; the mapping is writable because only shared ones are stored to.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.cast::<u8>().add(self.skip), self.length);
            check(libc::msync(self.base, self.mapped, libc::MS_SYNC).into())?;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `mapped` are what mmap gave, and no reference into the mapping is left.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}
