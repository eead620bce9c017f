//! Code that needs `unsafe`: memory for requests, heap memory that goes back to the system, and
//! the ioctl that clones a device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// FUSE_DEV_IOC_CLONE, `_IOR(229, 0, uint32_t)`.
const DEV_IOC_CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Makes a freshly opened /dev/fuse a further descriptor of the connection of `device`.
pub fn clone_device(fresh: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
    let mut descriptor = device.as_fd().as_raw_fd() as u32;
    // SAFETY: the kernel reads a u32, the number of a descriptor that lives through the call, and writes nothing.
    unsafe { ioctl(fresh, Updater::<DEV_IOC_CLONE, u32>::new(&mut descriptor)) }?;
    Ok(())
}

/// Returns unused heap memory to the system, wherever it lies. That takes some milliseconds for
/// 100 MB. Allocators other than glibc's do it by themselves.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and leaves alone what is in use.
    let _gave_any = unsafe { libc::malloc_trim(0) };
}

/// Zeroed memory of its own pages: taken from the kernel when touched, and given back when dropped, whatever the allocator thinks.
pub struct Pages {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: `Pages` owns its mapping, as a Box<[u8]> owns its memory.
unsafe impl Send for Pages {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `length` bytes.
    pub fn new(length: usize) -> io::Result<Pages> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, length })
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping holds `length` initialised bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The memory, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
