//! What needs `unsafe`: handing commands and memory to the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use io_uring::{IoUring, Submitter, cqueue, opcode, squeue, types};

use crate::abi::{Field, RingCommand, ring};
use crate::sys::Pages;

/// Where the payload begins in the memory of an entry: behind the page of the headers.
const PAYLOAD: usize = 4096;

/// Where the field `len` lies in an entry of the submission queue (`struct io_uring_sqe`).
const SQE_LEN: usize = 24;

/// The memory of one entry: a request of the kernel, then our reply, in turn. Nobody but the kernel may touch it while the entry waits for a request.
pub struct Memory(Pages);

impl Memory {
    fn new(payload_max: usize) -> io::Result<Memory> {
        Pages::new(PAYLOAD + payload_max).map(Memory)
    }

    /// The headers (`struct fuse_uring_req_header`).
    pub fn headers(&self) -> &[u8] {
        &self.0.bytes()[..ring::HEADERS]
    }

    /// The headers, to be written.
    pub fn headers_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes_mut()[..ring::HEADERS]
    }

    /// What follows them.
    pub fn payload(&self) -> &[u8] {
        &self.0.bytes()[PAYLOAD..]
    }

    /// What follows them, to be written.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes_mut()[PAYLOAD..]
    }
}

/// Where the memory of an entry lies while nobody has borrowed it.
pub type Cell = Arc<Mutex<Option<Memory>>>;

/// The memory of an entry, and who has it.
struct Lent {
    memory: Cell,
    /// The kernel may write to it.
    to_kernel: bool,
}

/// A ring of commands for /dev/fuse, used by one thread only, and the memory of its entries. The first commands make entries, each further one answers the request of
/// an entry and asks for the next.
pub struct Commands {
    ring: IoUring<squeue::Entry128>,
    entries: Vec<Lent>,
}

/// The entry of this number has a request, or an error: it has ended.
pub struct Completion {
    pub entry: usize,
    pub result: i32,
}

impl Commands {
    /// A ring that is at rest until the thread that is to use it calls [`enable`](Commands::enable).
    pub fn new(size: u32) -> io::Result<Commands> {
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            // The kernel hands requests over when the thread enters it anyway, and does not interrupt it for that.
            .setup_coop_taskrun()
            .build(size)?;
        Ok(Commands { ring, entries: Vec::new() })
    }

    /// Makes the calling thread the one that uses the ring.
    pub fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// The descriptor that is readable when there are completions.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the ring, which `self` borrows, is.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Makes an entry of a queue, which waits for requests with up to `payload_max` bytes from now on. Its number is one more than the last one's.
    pub fn register(&mut self, device: BorrowedFd<'_>, queue: u16, payload_max: usize) -> io::Result<Cell> {
        let mut memory = Memory::new(payload_max)?;
        let (headers, payload) = memory.0.bytes_mut().split_at_mut(PAYLOAD);
        let parts =
            [headers, payload].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        let memory = Arc::new(Mutex::new(Some(memory)));
        let command = RingCommand { qid: queue, ..RingCommand::default() };
        let entry = self.entries.len();
        let mut sqe = submission(device, ring::REGISTER, command, Some(parts.as_ptr() as u64), entry);
        // SAFETY: `Entry128` is `struct io_uring_sqe` of 128 bytes in memory, in which a u32 lies at SQE_LEN; the library has no way to set it for this command.
        unsafe { (&raw mut sqe).cast::<u8>().add(SQE_LEN).cast::<u32>().write_unaligned(parts.len() as u32) };
        self.entries.push(Lent { memory: memory.clone(), to_kernel: true });
        // `parts` are read while this call lasts. The memory behind them is kept for as long as the kernel may write to it.
        if let Err(error) = self.submit(&sqe) {
            self.entries.pop();
            return Err(error);
        }
        Ok(memory)
    }

    /// Answers the request `unique` of an entry with what its memory holds, and asks for the next.
    pub fn commit(&mut self, device: BorrowedFd<'_>, queue: u16, unique: u64, entry: usize) -> io::Result<()> {
        let command = RingCommand { commit_id: unique, qid: queue, ..RingCommand::default() };
        let sqe = submission(device, ring::COMMIT_AND_FETCH, command, None, entry);
        self.entries[entry].to_kernel = true;
        self.submit(&sqe)
    }

    fn submit(&mut self, sqe: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the command points to lives long enough: see `register`, and `drop`.
        unsafe { self.ring.submission().push(sqe) }.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        loop {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|_| ()),
            }
        }
    }

    /// The next completion, if there is one.
    pub fn next(&mut self) -> Option<Completion> {
        let mut next: Option<cqueue::Entry> = self.ring.completion().next();
        if next.is_none() && self.ring.submission().cq_overflow() {
            self.look(); // there were more than the queue holds: the kernel keeps the rest until it is asked for them
            next = self.ring.completion().next();
        }
        let done = next?;
        let entry = usize::try_from(done.user_data()).ok().filter(|entry| *entry < self.entries.len())?;
        self.entries[entry].to_kernel = false;
        Some(Completion { entry, result: done.result() })
    }

    /// Has the kernel hand over what it has for this ring, and take what it did not take before: completions may come of it.
    pub fn look(&mut self) {
        let left = self.ring.submission().len() as u32;
        let submitter: Submitter<'_> = self.ring.submitter();
        // SAFETY: no argument points anywhere; of what is submitted see `submit`.
        let looked = unsafe { submitter.enter::<libc::sigset_t>(left, 0, GETEVENTS, None) };
        if let Err(error) = looked {
            tracing::debug!(%error, "could not look for completions");
        }
    }
}

/// IORING_ENTER_GETEVENTS.
const GETEVENTS: u32 = 1;

impl Drop for Commands {
    /// The ring goes before its memory. What the kernel may still write to (a request that was on its way to an entry) is never given back.
    fn drop(&mut self) {
        for lent in self.entries.drain(..).filter(|lent| lent.to_kernel) {
            std::mem::forget(lent.memory);
        }
    }
}

fn submission(
    device: BorrowedFd<'_>,
    operation: u32,
    command: RingCommand,
    address: Option<u64>,
    entry: usize,
) -> squeue::Entry128 {
    let mut bytes = command.to_vec();
    bytes.resize(80, 0);
    let bytes = bytes.try_into().unwrap_or([0; 80]);
    opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), operation)
        .cmd(bytes)
        .addr(address)
        .build()
        .user_data(entry as u64)
}
