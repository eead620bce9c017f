//! From frames to bytes: what goes is collected, and sent in as few system calls as possible; a file's range goes by `sendfile`.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use aqueduct_wire::{Sealer, Trailer};
use bytes::Bytes;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::counters::Tally;

/// Parts of one sendmsg; the kernel takes 1024, a few dozen already amortise the call.
const PARTS_PER_SEND: usize = 32;

/// Small frames are gathered in chunks of about this size.
const CHUNK_SIZE: usize = 64 << 10;

enum Chunk {
    Gathered(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Gathered(bytes) => bytes,
            Chunk::Shared(bytes) => bytes,
        }
    }
}

/// The sending half of a connection.
#[derive(Default)]
pub(crate) struct Sender {
    /// Completes frames in the order in which they are queued, which is that in which they go.
    sealer: Sealer,
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that have gone.
    gone: usize,
    backlog: usize,
    /// What has gone since it was last asked.
    tally: Tally,
    /// The peer takes nothing any more: what is queued goes nowhere.
    broken: bool,
}

impl Sender {
    pub(crate) fn new(sealer: Sealer) -> Sender {
        Sender { sealer, ..Sender::default() }
    }

    /// What completes frames that are queued from now on.
    pub(crate) fn sealer(&mut self) -> &mut Sealer {
        &mut self.sealer
    }

    /// What has gone since this was last asked.
    pub(crate) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.backlog
    }

    /// The peer takes nothing any more: forgets what waits, and what is queued from now on.
    pub(crate) fn break_off(&mut self) {
        self.discard();
        self.broken = true;
    }

    /// Whether the peer takes nothing any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Forgets what waits: nobody takes it any more.
    pub(crate) fn discard(&mut self) {
        self.chunks = VecDeque::new();
        (self.gone, self.backlog) = (0, 0);
    }

    /// Queues a frame's header and body, and its payload if it has one.
    pub(crate) fn queue(&mut self, head: &[u8], payload: Option<Bytes>) {
        self.head(head, payload.as_deref().unwrap_or_default());
        if let Some(payload) = payload {
            self.append(payload);
        }
    }

    /// Queues a frame's header and body; the payload has to follow, unless it comes with a trailer.
    pub(crate) fn head(&mut self, head: &[u8], payload: &[u8]) {
        self.tally.frames += 1;
        self.gather(head);
        if let Some(Chunk::Gathered(chunk)) = self.chunks.back_mut() {
            let start = chunk.len() - head.len();
            self.sealer.seal(&mut chunk[start..], payload);
        }
    }

    /// Queues bytes without copying them.
    pub(crate) fn append(&mut self, bytes: Bytes) {
        if self.broken {
            return;
        }
        self.backlog += bytes.len();
        self.chunks.push_back(Chunk::Shared(bytes));
    }

    /// Queues bytes by copying them.
    pub(crate) fn gather(&mut self, bytes: &[u8]) {
        if self.broken {
            return;
        }
        self.backlog += bytes.len();
        match self.chunks.back_mut() {
            Some(Chunk::Gathered(chunk)) if chunk.len() + bytes.len() <= CHUNK_SIZE => chunk.extend_from_slice(bytes),
            _ => self.chunks.push_back(Chunk::Gathered(bytes.to_vec())),
        }
    }

    /// Sends what the socket takes; with `wait`, waits a little for room. Returns whether nothing is left.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, flags: SendFlags, wait: bool) -> io::Result<bool> {
        let flags = flags | SendFlags::NOSIGNAL | if wait { SendFlags::empty() } else { SendFlags::DONTWAIT };
        while !self.chunks.is_empty() {
            let first = self.gone;
            let parts = self.chunks.iter().take(PARTS_PER_SEND).enumerate();
            let parts: Vec<IoSlice<'_>> =
                parts.map(|(at, chunk)| IoSlice::new(&chunk.bytes()[if at == 0 { first } else { 0 }..])).collect();
            match sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => self.advance(sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false), // with `wait`: SO_SNDTIMEO has passed
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, sent: usize) {
        self.note_gone(sent);
        self.backlog -= sent;
        self.gone += sent;
        while let Some(front) = self.chunks.front() {
            let length = front.bytes().len();
            if self.gone < length {
                return;
            }
            self.gone -= length;
            self.chunks.pop_front();
        }
    }

    /// A system call has taken so many bytes.
    fn note_gone(&mut self, sent: usize) {
        self.tally.calls += 1;
        self.tally.bytes += sent as u64;
    }

    /// Sends everything queued, then a frame. Waits a little for room, unless there is none for what was queued before.
    pub(crate) fn send_whole(&mut self, socket: BorrowedFd<'_>, head: &[u8], payload: Bytes) -> io::Result<()> {
        let reads = self.backlog == 0;
        self.queue(head, Some(payload));
        self.send(socket, SendFlags::empty(), reads).map(drop)
    }

    /// Sends everything queued, then `head`, then `length` bytes of the file, then the trailer. Waits a little for room; what there is none for, or
    /// for what was queued before, is copied and queued. If the file has become shorter, zeros fill the frame and the trailer tells how many bytes
    /// are valid, which are returned. There is no checksum of what nobody has read.
    pub(crate) fn send_file(
        &mut self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<usize> {
        let reads = self.backlog == 0;
        self.head(head, &[]);
        let mut has_room = self.send(socket, SendFlags::MORE, reads)?;
        let mut position = offset;
        let mut sent = 0;
        while has_room && sent < length {
            match rustix::fs::sendfile(socket, file, Some(&mut position), length - sent) {
                Ok(0) => break,
                Ok(count) => {
                    self.note_gone(count);
                    sent += count;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => has_room = false,
                Err(error) if is_socket_error(error) => return Err(error.into()),
                // The file failed (EIO, ESTALE): the frame is completed, what was sent of it is good, and the reader asks again for the rest.
                Err(_) => break,
            }
        }
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut missing = length - sent;
        if !has_room {
            let mut rest = vec![0; missing];
            // As above: what cannot be read is not valid.
            sent += aqueduct_fs::data::read_full(file, &mut rest, position).unwrap_or(0);
            self.append(rest.into());
            missing = 0;
        }
        while missing > 0 {
            let count = missing.min(ZEROS.len());
            self.gather(&ZEROS[..count]);
            missing -= count;
        }
        self.gather(&Trailer { valid: sent as u32, checksum: 0 }.encode());
        self.send(socket, SendFlags::empty(), has_room)?;
        Ok(sent)
    }
}

fn is_socket_error(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(
        error,
        Errno::PIPE
            | Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::TIMEDOUT
            | Errno::NOTCONN
            | Errno::SHUTDOWN
            | Errno::NETDOWN
            | Errno::HOSTUNREACH
    )
}
