//! The receiving state machine of a connection, over a TCP pair on loopback: a stream of frames in pieces. What is received must be what a simple
//! decoder, which has the whole stream before it, finds in it.
//!
//! The first byte: 1, headers are left as they are (else they get their checksums); 2, the connection carries bulk data; 4, so many pieces as the
//! next byte says, each of a size that follows. The rest is the stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use aqueduct_fs::{MemorySink, Sink};
use aqueduct_net::{BufferPool, Closed, Connection, Endpoint, Frame, Mode, Payload};
use aqueduct_wire::{Flags, HEADER_SIZE, Header, Kind, TRAILER_SIZE, Trailer};
use aqueduct_worker::{Group, Interest, Readiness, Ready, Registration, Settings, wait};
use rustix::event::{EventfdFlags, eventfd};
use socket2::Socket;

use crate::{frame, greeting, samples};

const RAW_HEADERS: u8 = 1;
const BULK: u8 = 2;
const PIECES: u8 = 4;

/// A frame as it was sent: header, body, the good part of the payload.
type Whole = (Header, Vec<u8>, Vec<u8>);

/// A destination that is not memory.
struct Opaque(MemorySink);

impl Sink for Opaque {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        self.0.file(file, offset, length)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.bytes(data)
    }

    fn memory(&mut self, _length: usize) -> Option<&mut [u8]> {
        None
    }

    fn finish(self: Box<Self>, valid: usize) -> io::Result<()> {
        Box::new(self.0).finish(valid)
    }
}

/// Notes what comes.
#[derive(Default)]
struct Recorder(Mutex<Record>);

#[derive(Default)]
struct Record {
    /// The destinations that were given, in order: the frames come in the same.
    sinks: VecDeque<Option<MemorySink>>,
    frames: Vec<Whole>,
    closed: bool,
}

impl Recorder {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("nobody panics with it")
    }
}

impl Endpoint for Recorder {
    fn place(&self, header: &Header) -> Option<Box<dyn Sink>> {
        let sink = MemorySink::default();
        let placed: Option<Box<dyn Sink>> = match header.slot % 3 {
            0 => None,
            1 => Some(Box::new(sink.clone())),
            _ => Some(Box::new(Opaque(sink.clone()))),
        };
        self.record().sinks.push_back(placed.is_some().then_some(sink));
        placed
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    fn frame(&self, _connection: &Arc<Connection>, frame: Frame) {
        let mut record = self.record();
        let sink = record.sinks.pop_front().expect("each frame was placed");
        let payload = match (frame.payload, sink) {
            (Payload::None, None) => Vec::new(),
            (Payload::Memory(bytes), None) => bytes.to_vec(),
            (Payload::Delivered(Ok(length)), Some(sink)) => {
                let data = sink.take().expect("it was delivered");
                assert_eq!(data.len(), length);
                data
            }
            (payload, sink) => panic!("{payload:?} for {sink:?}"),
        };
        record.frames.push((frame.header, frame.body, payload));
    }

    fn closed(&self, _connection: &Arc<Connection>, _closed: Closed) {
        self.record().closed = true;
    }
}

/// Rings in the turn in which it is rung, behind what is ready before it.
struct Bell {
    fd: OwnedFd,
    state: Mutex<(bool, Option<Waker>)>,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.state.lock().expect("nobody panics with it")
    }

    fn poll(&self, task: &mut TaskContext<'_>) -> Poll<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.0) {
            return Poll::Ready(());
        }
        state.1 = Some(task.waker().clone());
        Poll::Pending
    }
}

impl Ready for Bell {
    fn ready(&self, _readiness: Readiness) {
        rustix::io::read(&self.fd, &mut [0; 8]).expect("it was rung");
        let mut state = self.state();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

/// What all inputs share.
struct World {
    bell: Arc<Bell>,
    _bell_watch: Registration,
    listener: TcpListener,
    address: SocketAddr,
    group: Arc<Group>,
    pool: BufferPool,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

impl World {
    fn new() -> World {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a port");
        let address = listener.local_addr().expect("it is bound");
        let settings = Settings { name: "receive".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let group = Group::new(settings).expect("a group needs little");
        let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("there is room for a descriptor");
        let bell = Arc::new(Bell { fd, state: Mutex::default() });
        let interest = Interest { read: true, write: false, once: false };
        let watch = group.register(bell.fd.as_fd(), interest, bell.clone()).expect("it can be watched");
        World { bell, _bell_watch: watch, listener, address, group, pool: BufferPool::new(1 << 20, 2) }
    }

    /// Sends the stream in pieces, each followed by one turn of the receiver; returns what came.
    fn receive<'a>(&self, bulk: bool, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Whole> {
        let mut sender = TcpStream::connect(self.address).expect("the listener is there");
        let socket = Socket::from(self.listener.accept().expect("somebody connects").0);
        sender.set_nodelay(true).expect("it is TCP");
        // Else each of some thousand connections a second would keep its port for a minute.
        socket.set_linger(Some(Duration::ZERO)).expect("it is TCP");
        let recorder = Arc::new(Recorder::default());
        let mode = Mode { bulk, shared: false };
        let connection = Connection::start(&self.group, socket, mode, self.pool.clone(), recorder.clone());
        let connection = connection.expect("its socket is connected");
        for piece in pieces {
            // What is damaged ends the connection before all is sent.
            if connection.is_closed() || sender.write_all(piece).is_err() {
                break;
            }
            self.turn();
        }
        let _ = sender.shutdown(std::net::Shutdown::Write);
        while !connection.is_closed() {
            self.turn();
        }
        let mut record = recorder.record();
        assert!(record.closed);
        std::mem::take(&mut record.frames)
    }

    /// Lets the receiver take what is there: its event comes before the bell's.
    fn turn(&self) {
        rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes()).expect("an event descriptor counts far");
        wait(&self.group, poll_fn(|task| self.bell.poll(task)));
    }
}

/// Gives the headers of a stream their checksums.
fn seal_headers(stream: &mut [u8]) {
    let mut rest = stream;
    while let Some((header, after)) = rest.split_first_chunk_mut::<HEADER_SIZE>() {
        frame::seal(header);
        let Ok(header) = Header::decode(header) else { return };
        let length = follows(&header).min(after.len());
        rest = &mut after[length..];
    }
}

/// The bytes that follow a header.
fn follows(header: &Header) -> usize {
    let trailer = if header.flags.contains(Flags::TRAILER) { TRAILER_SIZE } else { 0 };
    header.body_length as usize + header.payload_length as usize + trailer
}

/// The frames of a stream up to the first that is damaged or not whole.
fn expected(mut stream: &[u8]) -> Vec<Whole> {
    let mut frames = Vec::new();
    while let Some((header, after)) = stream.split_first_chunk::<HEADER_SIZE>() {
        let Ok(header) = Header::decode(header) else { break };
        let Some((frame, rest)) = after.split_at_checked(follows(&header)) else { break };
        let (body, payload) = frame.split_at(header.body_length as usize);
        let (mut payload, trailer) = payload.split_at(header.payload_length as usize);
        if let Some(trailer) = trailer.first_chunk::<TRAILER_SIZE>() {
            let Ok(trailer) = Trailer::decode(trailer) else { break };
            payload = &payload[..payload.len().min(trailer.valid as usize)];
        }
        frames.push((header, body.to_vec(), payload.to_vec()));
        stream = rest;
    }
    frames
}

/// See the module.
pub fn run(data: &[u8]) {
    let Some((how, mut rest)) = data.split_first() else { return };
    let mut sizes: &[u8] = &[];
    if how & PIECES != 0 {
        let Some((count, after)) = rest.split_first() else { return };
        let Some((taken, after)) = after.split_at_checked(usize::from(count % 16)) else { return };
        (sizes, rest) = (taken, after);
    }
    let mut stream = rest.to_vec();
    if how & RAW_HEADERS == 0 {
        seal_headers(&mut stream);
    }
    let mut left = &stream[..];
    let mut pieces: Vec<&[u8]> = Vec::new();
    for size in sizes {
        let (piece, after) = left.split_at(left.len().min(usize::from(*size)));
        pieces.push(piece);
        left = after;
    }
    pieces.push(left);
    let received = WORLD.with_borrow_mut(|world| {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        world.get_or_insert_with(World::new).receive(how & BULK != 0, pieces)
    });
    assert_eq!(received, expected(&stream));
}

/// Frames with bodies, payloads and trailers into every kind of destination, whole and in pieces.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut stream = Vec::new();
    let mut push = |header: Header, body: &[u8], payload: &[u8], trailer: Option<Trailer>| {
        let lengths = Header { body_length: body.len() as u32, payload_length: payload.len() as u32, ..header };
        stream.extend_from_slice(&lengths.encode());
        stream.extend_from_slice(body);
        stream.extend_from_slice(payload);
        stream.extend(trailer.iter().flat_map(Trailer::encode));
    };
    let mut hello = Vec::new();
    greeting::hello().encode(&mut hello);
    push(Header::new(Kind::Hello), &hello, &[], None);
    push(Header::new(Kind::Ping), &[], &[], None);
    for slot in 0..3 {
        let header = Header { slot, op: 4, ..Header::new(Kind::Reply) };
        push(header, b"body", &[7; 100], None);
        push(header, samples::page().packed(), &[], None);
        push(Header { flags: Flags::TRAILER, ..header }, &[], &[8; 50], Some(Trailer { valid: 20, checksum: 0 }));
    }
    let whole = [&[0], &stream[..]].concat();
    let bulk = [&[BULK], &stream[..]].concat();
    let pieces = [&[PIECES | BULK, 8, 1, 63, 64, 10, 5, 100, 200, 30], &stream[..]].concat();
    let raw = [&[RAW_HEADERS], &stream[..200]].concat();
    vec![whole, bulk, pieces, raw]
}
