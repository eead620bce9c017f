//! Where bulk data goes and comes from. Data never travel in replies: a read is given the place where they end up, a write the place where they lie,
//! and each pair of file system and place picks the cheapest way between them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::Errno;

/// The destination of one read. Exactly one of [`file`](Sink::file), [`bytes`](Sink::bytes) and [`memory`](Sink::memory) is called, once, and
/// then [`finish`](Sink::finish), once: whoever moves the data delivers them in place, so that nobody has to be woken to do it. If the read fails
/// first, the sink is dropped untouched and the caller answers with the errno.
pub trait Sink: Send {
    /// Moves up to `length` bytes of a file here, from `offset`. Returns how many came: fewer only
    /// where the file ends. An error means that nothing was delivered.
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize>;

    /// Takes these bytes. An error means that nothing was delivered.
    fn bytes(&mut self, data: &[u8]) -> io::Result<()>;

    /// `length` bytes of memory to receive into, if this sink is memory; their content is
    /// unspecified at first. Data may come in pieces: asked again with the same length, it gives
    /// the same memory, untouched. It stays where it is until the sink is used in another way or
    /// dropped, wherever the sink itself is moved: parts of it may be filled by others meanwhile
    /// (see [`parts`](crate::parts)). `None`: use one of the others.
    fn memory(&mut self, length: usize) -> Option<&mut [u8]>;

    /// All has come, and the first `valid` bytes of it are good: deliver.
    fn finish(self: Box<Self>, valid: usize) -> io::Result<()>;
}

/// The data of one write. Cheap to clone, so that what must be sent again can be kept.
#[derive(Clone, Debug)]
pub enum Source {
    /// Bytes in memory; shared, never copied on the way.
    Memory(Bytes),
    /// Bytes that who writes has brought to the server below that writes them. ENODATA: that one
    /// does not have them, and nothing was done. EOPNOTSUPP: there is no such server.
    Staged(Staged),
}

/// Bytes that were brought to where they are to be written, and are nobody's until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Chosen at random by who brought them: whoever knows it may have them written.
    pub id: [u8; 16],
    /// How many, in bytes.
    pub length: u32,
}

impl Source {
    /// Its size in bytes.
    pub fn length(&self) -> usize {
        match self {
            Source::Memory(bytes) => bytes.len(),
            Source::Staged(staged) => staged.length as usize,
        }
    }

    /// The bytes, for who writes nothing that was staged elsewhere: EOPNOTSUPP.
    pub fn memory(self) -> Result<Bytes, Errno> {
        match self {
            Source::Memory(bytes) => Ok(bytes),
            Source::Staged(_) => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// A sink for tools and tests: the bytes appear in a vector that is shared with whoever asked.
#[derive(Clone, Debug, Default)]
pub struct MemorySink {
    delivered: Arc<Mutex<Option<Vec<u8>>>>,
    filling: Vec<u8>,
}

impl MemorySink {
    /// The bytes, once delivered; then nothing again.
    pub fn take(&self) -> Option<Vec<u8>> {
        self.delivered.lock().unwrap_or_else(|poison| poison.into_inner()).take()
    }
}

impl Sink for MemorySink {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        self.filling.resize(length, 0);
        read_full(file, &mut self.filling, offset)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.filling.extend_from_slice(data);
        Ok(())
    }

    fn memory(&mut self, length: usize) -> Option<&mut [u8]> {
        self.filling.resize(length, 0);
        Some(&mut self.filling)
    }

    fn finish(mut self: Box<Self>, valid: usize) -> io::Result<()> {
        self.filling.truncate(valid);
        *self.delivered.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(std::mem::take(&mut self.filling));
        Ok(())
    }
}

/// Memory for the reads of a program that measures, one after the other: what is read replaces what was read before, and takes no new memory.
#[derive(Clone, Debug, Default)]
pub struct ReadBuffer(Arc<Mutex<Vec<u8>>>);

impl ReadBuffer {
    /// Where the next read of at most `length` bytes ends up.
    pub fn sink(&self, length: usize) -> Box<dyn Sink> {
        let mut memory = self.with(std::mem::take);
        memory.resize(length, 0);
        Box::new(Filling { memory, buffer: self.clone() })
    }

    /// Uses what was read last.
    pub fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(|poison| poison.into_inner()))
    }
}

struct Filling {
    memory: Vec<u8>,
    buffer: ReadBuffer,
}

impl Sink for Filling {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        self.memory.resize(length, 0);
        read_full(file, &mut self.memory, offset)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.memory.clear();
        self.memory.extend_from_slice(data);
        Ok(())
    }

    fn memory(&mut self, length: usize) -> Option<&mut [u8]> {
        self.memory.resize(length, 0);
        Some(&mut self.memory)
    }

    fn finish(self: Box<Self>, valid: usize) -> io::Result<()> {
        let Filling { mut memory, buffer } = *self;
        memory.truncate(valid);
        buffer.with(|place| *place = memory);
        Ok(())
    }
}

/// Reads until the buffer is full or the file ends; returns the bytes read.
pub fn read_full(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) if filled == 0 => return Err(error.into()),
            Err(_) => break, // what was read is good; the next read meets the error again
        }
    }
    Ok(filled)
}
