//! From bytes to frames: a state machine that never waits, and that puts bulk data where they belong as they come.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use aqueduct_fs::Sink;
use aqueduct_wire::{Flags, FrameError, HEADER_SIZE, Header, Opener, TRAILER_SIZE, Trailer};
use bytes::Bytes;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

use crate::budget::{Charge, FRAME_FREE};
use crate::counters::Tally;
use crate::pool::{BufferPool, PoolBuffer};

/// What one system call may receive of frames' heads: some hundreds of small frames.
const SCRATCH_SIZE: usize = 64 << 10;

/// Frames handed out at a time, so that one connection cannot keep a thread for itself.
const FRAMES_PER_BATCH: usize = 64;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_SIZE].into_boxed_slice());
}

/// A whole frame.
#[derive(Debug)]
pub struct Frame {
    /// The header, checked.
    pub header: Header,
    /// The body, of `header.body_length` bytes, not yet decoded.
    pub body: Vec<u8>,
    /// The payload.
    pub payload: Payload,
    /// The room that it takes, until it is executed.
    room: Option<Charge>,
    /// When it was whole, if that may be asked for: with [`Flags::EXTENDED`] or [`Flags::TIMED`].
    came: Option<Instant>,
}

impl Frame {
    fn new(header: Header, body: Vec<u8>, payload: Payload, room: Option<Charge>) -> Frame {
        let came = header.flags.intersects(Flags::EXTENDED | Flags::TIMED).then(Instant::now);
        Frame { header, body, payload, room, came }
    }

    /// One without payload, that came before its connection belonged to a group.
    pub(crate) fn of_handshake(header: Header, body: Vec<u8>) -> Frame {
        Frame::new(header, body, Payload::None, None)
    }

    /// When it was whole; known of one with [`Flags::EXTENDED`] or [`Flags::TIMED`] only.
    pub fn came(&self) -> Option<Instant> {
        self.came
    }

    /// Whether it takes room.
    pub(crate) fn has_room(&self) -> bool {
        self.room.is_some()
    }

    /// The room that it takes, for whoever keeps it from now on; `None`: it is so short that it is not counted.
    pub fn take_room(&mut self) -> Option<Charge> {
        self.room.take()
    }
}

/// Where a frame's payload is.
#[derive(Debug)]
pub enum Payload {
    /// There is none.
    None,
    /// Here.
    Memory(Bytes),
    /// In the sink that was named for it: so many bytes, or why delivery failed.
    Delivered(io::Result<usize>),
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub struct Closed {
    /// For logs and messages.
    pub reason: String,
    /// The peer ended it between two frames.
    pub orderly: bool,
    /// Nothing is heard of the peer any more, or the peer hears nothing; the path may be mended.
    pub vanished: bool,
}

/// Why receiving ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("the peer closed the connection")]
    End,
    #[error("the peer closed the connection in the middle of a frame")]
    Truncated,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Refused(String),
}

impl ReceiveError {
    /// Whether the peer, or the way to it, has not answered the kernel's questions.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, ReceiveError::Socket(error) if ReceiveError::is_silence_of(error))
    }

    /// The same of an error of the socket.
    pub(crate) fn is_silence_of(error: &io::Error) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
    }
}

/// How much a connection reads ahead of what it knows to be there.
pub(crate) struct Plan<'a> {
    pub(crate) pool: &'a BufferPool,
    /// Bytes asked for when a header is due. Small on connections for bulk data: what is read past the header has to be copied.
    pub(crate) read_size: usize,
    /// Whether a frame that begins like this is taken.
    pub(crate) takes: &'a dyn Fn(&Header) -> Result<(), String>,
    /// The peer has held room in vain lately.
    pub(crate) hoards: bool,
    /// Set when a frame has no room yet: it is to be tried again.
    pub(crate) starved: bool,
    pub(crate) place: &'a mut dyn FnMut(&Header) -> Option<Box<dyn Sink>>,
}

enum Target {
    Memory(PoolBuffer),
    Sink(Box<dyn Sink>),
    /// A sink that is not memory: received here first.
    Copied(PoolBuffer, Box<dyn Sink>),
}

impl Target {
    fn memory(&mut self, length: usize) -> &mut [u8] {
        match self {
            Target::Memory(buffer) | Target::Copied(buffer, _) => buffer.memory(),
            Target::Sink(sink) => sink.memory(length).expect("a sink that offered memory keeps offering it"),
        }
    }

    fn finish(self, valid: usize) -> Payload {
        match self {
            Target::Memory(buffer) => Payload::Memory(buffer.into_bytes().slice(..valid)),
            Target::Sink(sink) => Payload::Delivered(sink.finish(valid).map(|()| valid)),
            Target::Copied(buffer, mut sink) => Payload::Delivered(
                sink.bytes(&buffer.as_ref()[..valid]).and_then(|()| sink.finish(valid)).map(|()| valid),
            ),
        }
    }
}

enum State {
    Header,
    /// There is no room for the rest yet.
    Waiting {
        header: Header,
    },
    Body {
        header: Header,
        body: Vec<u8>,
    },
    Payload {
        header: Header,
        body: Vec<u8>,
        target: Target,
        filled: usize,
    },
    Trailer {
        header: Header,
        body: Vec<u8>,
        target: Target,
    },
}

/// The receiving half of a connection. Holds memory only while a frame is incomplete.
pub(crate) struct Receiver {
    state: State,
    opener: Opener,
    leftover: Vec<u8>,
    /// Room for the frame that is not whole.
    charge: Option<Charge>,
    /// How often something has come.
    heard: u32,
    /// Nothing more is taken: what comes after a break could be anything, file content included.
    ended: bool,
    /// What has come since it was last asked.
    tally: Tally,
}

/// Bytes received and not yet consumed.
struct Input<'a> {
    scratch: &'a mut [u8],
    start: usize,
    end: usize,
    drained: bool,
}

impl Input<'_> {
    fn available(&self) -> usize {
        self.end - self.start
    }

    fn take(&mut self, length: usize) -> &[u8] {
        self.start += length;
        &self.scratch[self.start - length..self.start]
    }

    fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.available() < N {
            return None;
        }
        self.take(N).try_into().ok()
    }
}

impl Receiver {
    pub(crate) fn new(opener: Opener) -> Receiver {
        Receiver {
            state: State::Header,
            opener,
            leftover: Vec::new(),
            charge: None,
            heard: 0,
            ended: false,
            tally: Tally::default(),
        }
    }

    /// How often something has come.
    pub(crate) fn heard(&self) -> u32 {
        self.heard
    }

    /// What comes from now on has this version.
    pub(crate) fn set_version(&mut self, version: u16) {
        self.opener.set_version(version);
    }

    /// What comes from now on is checked by this.
    pub(crate) fn set_opener(&mut self, opener: Opener) {
        self.opener = opener;
    }

    /// What has come since this was last asked.
    pub(crate) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Gives back the sink of a frame that will never be whole.
    pub(crate) fn abandon(&mut self) -> Option<(Header, Box<dyn Sink>)> {
        self.leftover = Vec::new();
        self.ended = true;
        match std::mem::replace(&mut self.state, State::Header) {
            State::Payload { header, target: Target::Sink(sink) | Target::Copied(_, sink), .. }
            | State::Trailer { header, target: Target::Sink(sink) | Target::Copied(_, sink), .. } => {
                Some((header, sink))
            }
            _ => None,
        }
    }

    /// Receives until at least one frame is whole or nothing more is there, without waiting. Returns whether the socket was drained.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        plan: &mut Plan<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<bool, ReceiveError> {
        if self.ended {
            return Err(ReceiveError::End);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let end = self.leftover.len();
            scratch[..end].copy_from_slice(&self.leftover);
            self.leftover.clear();
            let mut input = Input { scratch, start: 0, end, drained: false };
            let result = self.receive_into(socket, plan, &mut input, frames);
            self.ended = result.is_err();
            self.tally.frames += frames.len() as u64;
            self.leftover.extend_from_slice(&input.scratch[input.start..input.end]);
            if self.leftover.is_empty() && self.leftover.capacity() > 4096 {
                self.leftover = Vec::new();
            }
            result
        })
    }

    fn receive_into(
        &mut self,
        socket: BorrowedFd<'_>,
        plan: &mut Plan<'_>,
        input: &mut Input<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<bool, ReceiveError> {
        loop {
            while frames.len() < FRAMES_PER_BATCH && self.step(plan, input, frames)? {}
            if plan.starved {
                return Ok(true);
            }
            if input.drained || !frames.is_empty() {
                return Ok(input.drained && frames.len() < FRAMES_PER_BATCH);
            }
            if !self.fill(socket, plan.read_size, input)? {
                return Ok(true);
            }
        }
    }

    /// One system call. Returns false when nothing is there.
    fn fill(&mut self, socket: BorrowedFd<'_>, read_size: usize, input: &mut Input<'_>) -> Result<bool, ReceiveError> {
        input.scratch.copy_within(input.start..input.end, 0);
        (input.start, input.end) = (0, input.available());
        let inside = !matches!(self.state, State::Header) || input.end > 0;
        let mut direct: &mut [u8] = &mut [];
        if let State::Payload { header, target, filled, .. } = &mut self.state {
            direct = &mut target.memory(header.payload_length as usize)[*filled..];
        }
        let wanted_direct = direct.len();
        let spare_end = SCRATCH_SIZE.min(input.end + read_size);
        let spare = &mut input.scratch[input.end..spare_end];
        let wanted = wanted_direct + spare.len();
        let mut parts = [IoSliceMut::new(direct), IoSliceMut::new(spare)];
        let parts = if wanted_direct == 0 { &mut parts[1..] } else { &mut parts[..] };
        let received = loop {
            match recvmsg(socket, parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
                Ok(message) => break message.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(ReceiveError::Socket(error.into())),
            }
        };
        if received == 0 {
            return Err(if inside { ReceiveError::Truncated } else { ReceiveError::End });
        }
        self.tally.calls += 1;
        self.tally.bytes += received as u64;
        self.heard = self.heard.wrapping_add(1);
        input.drained = received < wanted;
        if let State::Payload { filled, .. } = &mut self.state {
            *filled += received.min(wanted_direct);
        }
        input.end += received.saturating_sub(wanted_direct);
        Ok(true)
    }

    /// The body is there. Before anything of the frame is placed or handed on its tag is checked; the checksum waits for the payload.
    fn after_body(
        &mut self,
        plan: &mut Plan<'_>,
        header: Header,
        body: Vec<u8>,
        frames: &mut Vec<Frame>,
    ) -> Result<(), ReceiveError> {
        self.opener.check(&header, &body)?;
        if header.payload_length > 0 || header.flags.contains(Flags::TRAILER) {
            self.state = State::Payload { target: target(plan, &header), header, body, filled: 0 };
            return Ok(());
        }
        header.check_content(&body, &[])?;
        let payload = match (plan.place)(&header) {
            Some(sink) => Payload::Delivered(sink.finish(0).map(|()| 0)),
            None => Payload::None,
        };
        frames.push(Frame::new(header, body, payload, self.charge.take()));
        Ok(())
    }

    /// Gives up the room of a frame that will never be whole.
    pub(crate) fn take_room(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// Whether more has been read than the frames that were handed out.
    pub(crate) fn has_leftover(&self) -> bool {
        !self.leftover.is_empty()
    }

    /// Whether a frame has room and is not whole.
    pub(crate) fn holds_room(&self) -> bool {
        self.charge.is_some()
    }

    /// Begins with what follows a header, if there is room for it.
    fn begin(&mut self, plan: &mut Plan<'_>, header: Header) -> bool {
        let (body, payload) = (header.body_length as usize, header.payload_length as usize);
        if let Some(budget) = plan.pool.budget().filter(|_| body > FRAME_FREE || payload > 0) {
            let Some(charge) = budget.take(body + plan.pool.size_for(payload), plan.hoards) else {
                plan.starved = true;
                self.state = State::Waiting { header };
                return false;
            };
            self.charge = Some(charge);
        }
        self.state = State::Body { header, body: Vec::with_capacity(body) };
        true
    }

    /// Consumes what is there; false when it does not suffice for progress.
    fn step(
        &mut self,
        plan: &mut Plan<'_>,
        input: &mut Input<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<bool, ReceiveError> {
        match std::mem::replace(&mut self.state, State::Header) {
            State::Header => {
                let Some(bytes) = input.take_array::<HEADER_SIZE>() else { return Ok(false) };
                let header = self.opener.header(&bytes)?;
                (plan.takes)(&header).map_err(ReceiveError::Refused)?;
                return Ok(self.begin(plan, header));
            }
            State::Waiting { header } => return Ok(self.begin(plan, header)),
            State::Body { header, mut body } => {
                let missing = header.body_length as usize - body.len();
                let taken = missing.min(input.available());
                body.extend_from_slice(input.take(taken));
                if taken < missing {
                    self.state = State::Body { header, body };
                    return Ok(false);
                }
                self.after_body(plan, header, body, frames)?;
            }
            State::Payload { header, body, mut target, mut filled } => {
                let length = header.payload_length as usize;
                let taken = (length - filled).min(input.available());
                target.memory(length)[filled..filled + taken].copy_from_slice(input.take(taken));
                filled += taken;
                if filled < length {
                    self.state = State::Payload { header, body, target, filled };
                    return Ok(false);
                }
                if header.flags.contains(Flags::TRAILER) {
                    self.state = State::Trailer { header, body, target };
                } else if let Err(error) = header.check_content(&body, target.memory(length)) {
                    self.state = State::Payload { header, body, target, filled }; // its sink is handed back
                    return Err(error.into());
                } else {
                    frames.push(Frame::new(header, body, target.finish(length), self.charge.take()));
                }
            }
            State::Trailer { header, body, mut target } => {
                let Some(bytes) = input.take_array::<TRAILER_SIZE>() else {
                    self.state = State::Trailer { header, body, target };
                    return Ok(false);
                };
                let payload = target.memory(header.payload_length as usize);
                let whole = |trailer: Trailer| trailer.check_content(&header, &body, payload).map(|()| trailer);
                let trailer = match Trailer::decode(&bytes).and_then(whole) {
                    Ok(trailer) => trailer,
                    Err(error) => {
                        self.state = State::Trailer { header, body, target }; // its sink is handed back
                        return Err(error.into());
                    }
                };
                let valid = (trailer.valid as usize).min(header.payload_length as usize);
                frames.push(Frame::new(header, body, target.finish(valid), self.charge.take()));
            }
        }
        Ok(true)
    }
}

fn target(plan: &mut Plan<'_>, header: &Header) -> Target {
    let length = header.payload_length as usize;
    match (plan.place)(header) {
        None => Target::Memory(plan.pool.take(length)),
        Some(mut sink) => {
            if sink.memory(length).is_some() {
                Target::Sink(sink)
            } else {
                Target::Copied(plan.pool.take(length), sink)
            }
        }
    }
}
