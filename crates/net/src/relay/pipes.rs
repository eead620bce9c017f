//! Pipes through which bytes go from socket to socket, lent while any are on their way.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct_worker::lock;
use socket2::Socket;

use crate::sys;

/// The size of a pipe in bytes: what the kernel gives to anybody (`pipe-max-size`). Measured over
/// loopback, one stream: with 256 KiB, or buffers of sockets of 1 MiB, a router takes more than
/// twice the processor time, since it wakes its peers so much more often. A user without rights
/// has 16,384 pages of pipes, 64 of these; what comes then is smaller, and works.
const PIPE_SIZE: usize = 1 << 20;

/// How many bytes of a flow whose sockets have buffers of this size are in a pipe at most.
pub(crate) const fn room(buffer: usize) -> usize {
    if buffer < PIPE_SIZE { buffer } else { PIPE_SIZE }
}

/// Pipes kept for the next who needs one: as many as threads can use at a time, with room.
const IDLE_MAX: usize = 32;

/// A pipe, empty or with what is on its way.
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
    /// Bytes in it.
    pub(crate) held: usize,
}

impl Pipe {
    /// Fills an empty pipe from a socket with so many bytes at most; those that came, 0 at the end
    /// of all.
    pub(crate) fn fill(&mut self, from: &Socket, room: usize) -> io::Result<usize> {
        let moved = sys::splice(from.as_fd(), self.write.as_fd(), self.size.min(room), false)?;
        self.held += moved;
        Ok(moved)
    }

    /// Empties it into a socket, as far as there is room; the bytes that went.
    pub(crate) fn empty(&mut self, to: &Socket) -> io::Result<usize> {
        let moved = sys::splice(self.read.as_fd(), to.as_fd(), self.held, false)?;
        self.held = self.held.saturating_sub(moved);
        Ok(moved)
    }
}

/// The pipes of a router.
#[derive(Default)]
pub(crate) struct Pipes {
    idle: Mutex<Vec<Pipe>>,
    lent: AtomicUsize,
}

impl Pipes {
    /// Lends one.
    pub(crate) fn take(&self) -> io::Result<Pipe> {
        let idle = lock(&self.idle).pop();
        let pipe = match idle {
            Some(pipe) => pipe,
            None => {
                let (read, write, size) = sys::pipe(PIPE_SIZE)?;
                Pipe { read, write, size, held: 0 }
            }
        };
        self.lent.fetch_add(1, Ordering::Relaxed);
        Ok(pipe)
    }

    /// Takes one back. What is still in it is thrown away, with the pipe.
    pub(crate) fn give(&self, pipe: Pipe) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
        let mut idle = lock(&self.idle);
        if pipe.held == 0 && idle.len() < IDLE_MAX {
            idle.push(pipe);
        }
    }

    /// Pipes that are lent.
    pub(crate) fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }
}
