//! One entry of a queue: a request, then its reply.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;

use super::queues::Queues;
use super::sys::{Cell, Memory};
use aqueduct_worker::lock;

use crate::abi::{Field, InHeader, OutHeader, RingEntry, opcode, ring};
use crate::buffer::{HAND_OVER_MIN, Pool};

/// An entry. What its memory holds is a request from the completion that tells of it until it is answered; then it is the kernel's.
pub(super) struct Entry {
    this: Weak<Entry>,
    queues: Weak<Queues>,
    number: usize,
    queue: usize,
    memory: Cell,
    turn: Mutex<Turn>,
}

/// The request that the memory is for.
#[derive(Default)]
struct Turn {
    /// Its number; 0 when it has been answered, or none has come: the memory is the kernel's, and whoever still means to answer comes too late.
    unique: u64,
    /// The regular file that it is about, if that is known: while it is under way, the kernel knows the file.
    file: Option<u64>,
    /// Its answer, if its memory was lent when it was given: the kernel gets it when the memory comes back.
    late: Option<i32>,
}

/// The memory for the payload of a reply, lent to whoever has the data.
pub(crate) struct Loan {
    entry: Arc<Entry>,
    unique: u64,
    memory: Option<Memory>,
}

impl Entry {
    pub(super) fn new(queues: Weak<Queues>, number: usize, queue: usize, memory: Cell) -> Arc<Entry> {
        Arc::new_cyclic(|this| Entry { this: this.clone(), queues, number, queue, memory, turn: Mutex::default() })
    }

    /// The number of its queue among those of its ring.
    pub(super) fn queue(&self) -> usize {
        self.queue
    }

    /// The request that came, as it would have come from /dev/fuse: its header, and all of it. An error is the number of a request that is not well formed.
    pub(super) fn request(&self, pool: &Arc<Pool>) -> Result<(InHeader, Bytes), u64> {
        let mut turn = lock(&self.turn);
        let memory = lock(&self.memory);
        let memory = memory.as_ref().ok_or(0u64)?;
        let (header, _) = InHeader::parse(memory.headers()).ok_or(0u64)?;
        let is_of_file = matches!(header.opcode, opcode::SETLKW | opcode::READ | opcode::WRITE | opcode::FLUSH);
        *turn = Turn { unique: header.unique, file: is_of_file.then_some(header.nodeid), late: None };
        parts(memory, &header)
            .and_then(|parts| frame(parts, &header, pool))
            .map(|frame| (header, frame))
            .ok_or(header.unique)
    }

    /// The regular file that the request under way is about.
    pub(super) fn file(&self) -> Option<u64> {
        let turn = lock(&self.turn);
        turn.file.filter(|_| turn.unique != 0)
    }

    /// The turn of this request, if it still has to be answered.
    fn turn_of(&self, unique: u64) -> io::Result<MutexGuard<'_, Turn>> {
        let turn = lock(&self.turn);
        if unique == 0 || turn.unique != unique { Err(io::ErrorKind::NotFound.into()) } else { Ok(turn) }
    }

    /// Answers the request whose turn it is; `write` puts the payload of the reply into the memory, and returns its length.
    fn finish(
        &self,
        mut turn: MutexGuard<'_, Turn>,
        error: i32,
        write: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        {
            let mut memory = lock(&self.memory);
            let Some(memory) = memory.as_mut() else {
                // Whoever fetched the data still writes them. The kernel must not use this memory before he is through.
                turn.late.get_or_insert(error);
                return Ok(());
            };
            let length = write(memory.payload_mut())?;
            put_header(memory, turn.unique, error, length)?;
        }
        let unique = std::mem::take(&mut turn.unique);
        drop(turn);
        self.commit(unique)
    }

    /// Answers the request, as [`Channel`](crate::channel::Channel) says of this and the two
    /// below.
    pub(super) fn reply(&self, unique: u64, error: i32, body: &[&[u8]]) -> io::Result<()> {
        self.finish(self.turn_of(unique)?, error, |payload| {
            let length = body.iter().map(|part| part.len()).sum();
            let mut room = payload.get_mut(..length).ok_or(io::ErrorKind::InvalidInput)?;
            for part in body {
                let (place, rest) = room.split_at_mut(part.len());
                place.copy_from_slice(part);
                room = rest;
            }
            Ok(length)
        })
    }

    pub(super) fn lend_memory(&self, unique: u64) -> Option<Loan> {
        let entry = self.this.upgrade()?;
        let turn = self.turn_of(unique).ok()?;
        let memory = lock(&self.memory).take()?;
        drop(turn);
        Some(Loan { entry, unique, memory: Some(memory) })
    }

    pub(super) fn reply_lent(&self, unique: u64, length: usize) -> io::Result<()> {
        self.finish(self.turn_of(unique)?, 0, |_| Ok(length))
    }

    fn commit(&self, unique: u64) -> io::Result<()> {
        self.queues.upgrade().ok_or(io::ErrorKind::NotConnected)?.commit(self.number, self.queue, unique)
    }
}

/// The header, the first argument, and what follows it.
fn parts<'a>(memory: &'a Memory, header: &InHeader) -> Option<[&'a [u8]; 3]> {
    const HEADER: usize = <InHeader as Field>::SIZE;
    let headers = memory.headers();
    let (about, _) = RingEntry::parse(headers.get(ring::ENTRY..)?)?;
    let payload = memory.payload().get(..about.payload_size as usize)?;
    let argument = (header.len as usize).checked_sub(HEADER + payload.len())?;
    let argument = headers.get(ring::ARGUMENT..ring::ARGUMENT + ring::ARGUMENT_MAX)?.get(..argument)?;
    Some([&headers[..HEADER], argument, payload])
}

/// One piece of memory with all of a request. Data to be written that are many keep a buffer of the pool, as those from /dev/fuse do.
fn frame(parts: [&[u8]; 3], header: &InHeader, pool: &Arc<Pool>) -> Option<Bytes> {
    let length = header.len as usize;
    if header.opcode != opcode::WRITE || length < HAND_OVER_MIN {
        return Some(Bytes::from(parts.concat()));
    }
    let mut buffer = pool.take().inspect_err(|error| tracing::warn!(%error, "no memory for a request")).ok()?;
    let mut room = buffer.request_area().get_mut(..length)?;
    for part in parts {
        let (place, rest) = room.split_at_mut(part.len());
        place.copy_from_slice(part);
        room = rest;
    }
    Some(buffer.into_request(length))
}

/// Writes the header of a reply with a payload of `length` bytes.
fn put_header(memory: &mut Memory, unique: u64, error: i32, length: usize) -> io::Result<()> {
    let size = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = OutHeader { len: size + <OutHeader as Field>::SIZE as u32, error, unique };
    let about = RingEntry { commit_id: unique, payload_size: size, ..RingEntry::default() };
    let headers = memory.headers_mut();
    headers[..<OutHeader as Field>::SIZE].copy_from_slice(&header.to_vec());
    headers[ring::ENTRY..].copy_from_slice(&about.to_vec());
    Ok(())
}

impl Loan {
    /// The memory.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], Memory::payload_mut)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let turn = lock(&self.entry.turn);
        *lock(&self.entry.memory) = self.memory.take();
        if let Some(late) = turn.late
            && let Err(error) = self.entry.finish(turn, late, |_| Ok(0))
        {
            tracing::debug!(%error, unique = self.unique, "the kernel did not take a late reply");
        }
    }
}
