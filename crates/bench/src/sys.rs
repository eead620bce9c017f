//! Memory in whole pages, io_uring, and close(2) with its error: what no safe crate offers.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Closes a file and gives the error of that: file systems that write late report it here.
pub(crate) fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: `into_raw_fd` has just taken the descriptor from its only owner: nobody else uses or
    // closes it.
    let result = unsafe { libc::close(file.into_raw_fd()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A file that cannot be closed, as one of which a file system cannot write what it has promised.
#[cfg(test)]
pub(crate) fn unclosable() -> OwnedFd {
    // SAFETY: no process has so many files open, so that this is nobody's descriptor.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(i32::MAX) }
}

/// What O_DIRECT wants at most: the page of every processor that we run on divides it.
const ALIGNMENT: usize = 64 << 10;

/// Memory that begins on a page and is all there: for O_DIRECT, and so that nothing is mapped while time is taken.
pub(crate) struct Aligned {
    memory: NonNull<u8>,
    length: usize,
    mapped: usize,
}

// SAFETY: it owns its memory, which nobody else knows of.
unsafe impl Send for Aligned {}

impl Aligned {
    /// Zeros.
    pub(crate) fn new(length: usize) -> io::Result<Aligned> {
        let mapped = length.max(1).checked_next_multiple_of(ALIGNMENT).ok_or(io::ErrorKind::OutOfMemory)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: the kernel chooses where the new mapping lies, so that nothing else is there.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Aligned { memory, length, mapped })
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has at least this length, all of it initialized with zeros, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.length) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.length) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: it is the mapping that was made, and no reference to it outlives `self`. A failure leaves it mapped, which harms nobody.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.mapped) };
    }
}

/// An io_uring with buffers, each for one read or write under way. The kernel is done with all of them before they are freed.
pub(crate) struct Ring {
    ring: IoUring,
    buffers: Vec<Aligned>,
    /// What of each buffer is under way.
    busy: Vec<bool>,
    file: Option<OwnedFd>,
}

/// What a buffer is used for next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub(crate) slot: usize,
    pub(crate) writes: bool,
    /// What of the buffer: from here to its end.
    pub(crate) from: usize,
    /// Where in the file that goes, or comes from.
    pub(crate) offset: u64,
}

impl Ring {
    /// As many buffers as requests can be under way, of `length` bytes each.
    pub(crate) fn new(depth: u32, length: usize) -> io::Result<Ring> {
        let entries = depth.next_power_of_two();
        // Kernels before 6.0 do not know that one thread alone submits, and only work a little more.
        let ring = IoUring::builder().setup_single_issuer().build(entries).or_else(|_| IoUring::new(entries))?;
        let buffers = (0..depth).map(|_| Aligned::new(length)).collect::<io::Result<Vec<_>>>()?;
        let busy = vec![false; buffers.len()];
        Ok(Ring { ring, buffers, busy, file: None })
    }

    /// Has requests go to this file from now on. Closes the last one, and returns the error of that.
    /// Only while nothing is under way.
    pub(crate) fn set_file(&mut self, file: Option<OwnedFd>) -> io::Result<()> {
        self.drain();
        std::mem::replace(&mut self.file, file).map_or(Ok(()), close)
    }

    /// The file.
    pub(crate) fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// How many buffers there are.
    pub(crate) fn depth(&self) -> usize {
        self.buffers.len()
    }

    /// A buffer, while the kernel does not have it.
    pub(crate) fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.busy[slot], "the kernel has this buffer");
        &mut self.buffers[slot]
    }

    /// Queues a read or write; [`wait`](Ring::wait) hands it to the kernel.
    pub(crate) fn submit(&mut self, submission: Submission) -> io::Result<()> {
        let Submission { slot, writes, from, offset } = submission;
        assert!(!self.busy[slot] && from <= self.buffers[slot].len(), "the kernel has this buffer");
        let file = types::Fd(self.file.as_ref().ok_or(io::ErrorKind::NotConnected)?.as_raw_fd());
        let buffer = &mut self.buffers[slot][from..];
        let length = u32::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let entry = if writes {
            opcode::Write::new(file, buffer.as_ptr(), length).offset(offset).build()
        } else {
            opcode::Read::new(file, buffer.as_mut_ptr(), length).offset(offset).build()
        };
        // SAFETY: the buffer is a mapping of `self.buffers`, which is neither touched nor freed while `busy` says that the kernel has it, nor is the
        // file closed: `set_file` and `drop` wait for all that is under way.
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }
            .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        self.busy[slot] = true;
        Ok(())
    }

    /// The next that is done, and how many bytes it moved. What was queued goes to the kernel when all that is done has been taken, in one call.
    pub(crate) fn wait(&mut self) -> io::Result<(usize, io::Result<usize>)> {
        loop {
            let done = self.ring.completion().next();
            if let Some(done) = done {
                // What was submitted has the number of its buffer.
                let slot = usize::try_from(done.user_data()).unwrap_or(usize::MAX);
                *self.busy.get_mut(slot).ok_or(io::ErrorKind::InvalidData)? = false;
                let result = done.result();
                return Ok((slot, usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))));
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until nothing is under way.
    fn drain(&mut self) {
        while self.busy.contains(&true) {
            if self.wait().is_err() {
                // Never free what the kernel may still write to.
                std::process::abort();
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_on_a_page_and_can_be_written() {
        for length in [0, 1, 4096, 100_000] {
            let mut memory = Aligned::new(length).unwrap();
            assert_eq!(memory.as_ptr() as usize % 4096, 0);
            assert_eq!(memory.len(), length);
            assert!(memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
            assert!(memory.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn a_ring_writes_and_reads_what_lies_in_its_buffers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let Ok(mut ring) = Ring::new(4, 4096) else {
            return; // kernels can be told to offer no io_uring
        };
        ring.set_file(Some(file.into())).unwrap();
        for slot in 0..4 {
            ring.buffer(slot).fill(slot as u8 + 1);
            ring.submit(Submission { slot, writes: true, from: 0, offset: slot as u64 * 4096 }).unwrap();
        }
        let mut done: Vec<_> =
            (0..4).map(|_| ring.wait().unwrap()).map(|(slot, moved)| (slot, moved.unwrap())).collect();
        done.sort_unstable();
        assert_eq!(done, [(0, 4096), (1, 4096), (2, 4096), (3, 4096)]);
        let content = std::fs::read(&path).unwrap();
        assert!(content.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 4096 + 1));
        ring.submit(Submission { slot: 0, writes: false, from: 96, offset: 8192 }).unwrap();
        assert_eq!(ring.wait().unwrap().1.unwrap(), 4000);
        assert!(
            ring.buffer(0)[..96].iter().all(|byte| *byte == 1) && ring.buffer(0)[96..].iter().all(|byte| *byte == 3)
        );
        ring.set_file(None).unwrap();
        assert!(ring.submit(Submission { slot: 0, writes: false, from: 0, offset: 0 }).is_err());
    }
}
