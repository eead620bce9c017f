//! The destination of a READ: memory for the reply, written to the kernel by whichever thread has the data.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aqueduct_fs::Sink;
use aqueduct_fs::data::read_full;

use crate::buffer::{Buffer, Pool};
use crate::channel::Responder;
use crate::ring::Loan;

/// Replies up to this size are gathered in memory from the allocator, larger ones in a buffer of the pool.
const SMALL_MAX: usize = 64 << 10;

enum Memory {
    Small(Vec<u8>),
    Large(Buffer),
    /// The kernel takes it from there.
    Lent(Loan),
}

/// Answers one READ.
pub(crate) struct FuseSink {
    responder: Responder,
    pool: Arc<Pool>,
    /// What the kernel asked for: it takes no more.
    size: usize,
    memory: Option<Memory>,
    filled: usize,
    answered: Arc<AtomicBool>,
}

impl FuseSink {
    /// A sink for at most `size` bytes. The flag is raised when the request has been answered, or its answer was refused.
    pub(crate) fn new(responder: Responder, pool: Arc<Pool>, size: usize) -> (Box<FuseSink>, Arc<AtomicBool>) {
        let answered = Arc::new(AtomicBool::new(false));
        let sink = FuseSink { responder, pool, size, memory: None, filled: 0, answered: answered.clone() };
        (Box::new(sink), answered)
    }

    fn room(&mut self, length: usize) -> io::Result<&mut [u8]> {
        if length > self.size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Asked again for as much: the same memory, with what has come into it so far.
        if self.memory.is_none() || self.filled != length {
            self.memory = Some(match self.memory.take() {
                Some(Memory::Lent(loan)) => Memory::Lent(loan),
                _ => self.make_room(length)?,
            });
            self.filled = length;
        }
        Ok(match self.memory.as_mut().expect("was made above") {
            Memory::Small(bytes) => bytes,
            Memory::Large(buffer) => &mut buffer.bytes_mut()[..length],
            Memory::Lent(loan) => loan.bytes_mut().get_mut(..length).ok_or(io::ErrorKind::InvalidInput)?,
        })
    }

    fn make_room(&self, length: usize) -> io::Result<Memory> {
        if let Some(loan) = self.responder.lend() {
            return Ok(Memory::Lent(loan));
        }
        Ok(if length > SMALL_MAX { Memory::Large(self.pool.take()?) } else { Memory::Small(vec![0; length]) })
    }
}

impl Sink for FuseSink {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        let count = read_full(file, self.room(length)?, offset)?;
        self.filled = count;
        Ok(count)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.room(data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn memory(&mut self, length: usize) -> Option<&mut [u8]> {
        self.room(length).ok()
    }

    fn finish(self: Box<Self>, valid: usize) -> io::Result<()> {
        let valid = valid.min(self.filled);
        self.answered.store(true, Ordering::SeqCst);
        match self.memory {
            Some(Memory::Lent(loan)) => self.responder.done_lent(loan, valid),
            None => self.responder.done(&[]),
            Some(Memory::Small(bytes)) => self.responder.done(&[&bytes[..valid]]),
            Some(Memory::Large(buffer)) => self.responder.done(&[&buffer.bytes()[..valid]]),
        }
    }
}
