//! The receiving state machine of a connection, over a TCP pair on loopback: a stream of frames in pieces. What is received must be what a simple
//! decoder, which has the whole stream before it, finds in it.
//!
//! The first byte: 1, headers are left as they are (else they get their checksums); 2, the connection carries bulk data; 4, so many pieces as the
//! next byte says, each of a size that follows; 8, the connection has a key (and headers get their tags); 16, headers get
//! the checksums of bodies and payloads. The rest is the stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aqueduct_fs::{MemorySink, Sink};
use aqueduct_net::{BufferPool, Closed, Connection, Endpoint, Frame, Link, Mode, Payload};
use aqueduct_wire::{
    Flags, FrameKeys, HEADER_SIZE, Header, Key, Kind, Opener, Sealer, TRAILER_SIZE, Trailer, Transcript,
};
use socket2::Socket;

use crate::turner::Turner;
use crate::{frame, greeting, samples};

const RAW_HEADERS: u8 = 1;
const BULK: u8 = 2;
const PIECES: u8 = 4;
const KEYED: u8 = 8;
const CHECKSUMS: u8 = 16;

/// The keys of the two ends, the sender's first.
fn keys() -> [FrameKeys; 2] {
    let frame = (&Header::new(Kind::Hello), &b""[..]);
    let (key, transcript) = (Key::new([7; 32]), Transcript::new(frame, frame));
    [key.of_client(&transcript), key.of_server(&transcript)]
}

/// A frame as it was sent: header, body, the good part of the payload.
pub(crate) type Whole = (Header, Vec<u8>, Vec<u8>);

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

/// What all inputs share.
struct World {
    listener: TcpListener,
    address: SocketAddr,
    turner: Turner,
    pool: BufferPool,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

impl World {
    fn new() -> World {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a port");
        let address = listener.local_addr().expect("it is bound");
        World { listener, address, turner: Turner::new(), pool: BufferPool::new(1 << 20, 2) }
    }

    /// Sends the stream in pieces, each followed by one turn of the receiver; returns what came.
    fn receive<'a>(&self, bulk: bool, keys: Option<FrameKeys>, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Whole> {
        let mut sender = TcpStream::connect(self.address).expect("the listener is there");
        let socket = Socket::from(self.listener.accept().expect("somebody connects").0);
        sender.set_nodelay(true).expect("it is TCP");
        // Else each of some thousand connections a second would keep its port for a minute.
        socket.set_linger(Some(Duration::ZERO)).expect("it is TCP");
        let mut link = Link::from(socket);
        keys.into_iter().for_each(|keys| link.set_keys(keys));
        let recorder = Arc::new(Recorder::default());
        let mode = Mode { bulk, shared: false, suspect: Duration::from_secs(5) };
        let connection = Connection::start(&self.turner.group, link, mode, self.pool.clone(), recorder.clone());
        let connection = connection.expect("its socket is connected");
        for piece in pieces {
            // What is damaged ends the connection before all is sent.
            if connection.is_closed() || sender.write_all(piece).is_err() {
                break;
            }
            self.turner.turn();
        }
        let _ = sender.shutdown(std::net::Shutdown::Write);
        while !connection.is_closed() {
            self.turner.turn();
        }
        let mut record = recorder.record();
        assert!(record.closed);
        std::mem::take(&mut record.frames)
    }
}

/// Gives the headers of a stream their checksums, and their tags if the sealer has a key.
pub(crate) fn seal_headers(stream: &mut [u8], sealer: &mut Sealer) {
    let mut rest = stream;
    while let Some(header) = rest.first_chunk_mut::<HEADER_SIZE>() {
        frame::seal(header);
        let Ok(header) = Header::decode(header) else { return };
        let head = HEADER_SIZE + header.body_length as usize;
        let length = (HEADER_SIZE + follows(&header)).min(rest.len());
        if let Some((head, payload)) = rest[..length].split_at_mut_checked(head) {
            let payload = &payload[..payload.len().min(header.payload_length as usize)];
            sealer.seal(head, payload);
        }
        rest = &mut rest[length..];
    }
}

/// The bytes that follow a header.
pub(crate) fn follows(header: &Header) -> usize {
    let trailer = if header.flags.contains(Flags::TRAILER) { TRAILER_SIZE } else { 0 };
    header.body_length as usize + header.payload_length as usize + trailer
}

/// The frames of a stream up to the first that is damaged, not whole, or out of place.
pub(crate) fn frames(mut stream: &[u8], mut opener: Opener) -> Vec<Whole> {
    let mut frames = Vec::new();
    while let Some((header, after)) = stream.split_first_chunk::<HEADER_SIZE>() {
        let Ok(header) = Header::decode(header) else { break };
        let Some((frame, rest)) = after.split_at_checked(follows(&header)) else { break };
        let (body, payload) = frame.split_at(header.body_length as usize);
        if opener.check(&header, body).is_err() {
            break;
        }
        let (mut payload, trailer) = payload.split_at(header.payload_length as usize);
        if header.check_content(body, payload).is_err() {
            break;
        }
        if let Some(trailer) = trailer.first_chunk::<TRAILER_SIZE>() {
            let Ok(trailer) = Trailer::decode(trailer) else { break };
            if trailer.check_content(&header, body, payload).is_err() {
                break;
            }
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
    let [sender, receiver] = keys();
    let (send, receive) = if how & KEYED == 0 { (None, None) } else { (Some(sender.send), Some(receiver)) };
    let mut stream = rest.to_vec();
    if how & RAW_HEADERS == 0 {
        seal_headers(&mut stream, &mut Sealer::new(send, how & CHECKSUMS != 0));
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
        world.get_or_insert_with(World::new).receive(how & BULK != 0, receive, pieces)
    });
    let [_, FrameKeys { receive, .. }] = keys();
    assert_eq!(received, frames(&stream, Opener::new((how & KEYED != 0).then_some(receive))));
}

fn push(stream: &mut Vec<u8>, header: Header, body: &[u8], payload: &[u8], trailer: Option<Trailer>) {
    let header = Header { body_length: body.len() as u32, payload_length: payload.len() as u32, ..header };
    stream.extend_from_slice(&header.encode());
    stream.extend_from_slice(body);
    stream.extend_from_slice(payload);
    stream.extend(trailer.iter().flat_map(Trailer::encode));
}

/// Frames into every kind of destination.
fn sample(with_trailers: bool) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut hello = Vec::new();
    greeting::hello().encode(&mut hello);
    push(&mut stream, Header::new(Kind::Hello), &hello, &[], None);
    push(&mut stream, Header::new(Kind::Ping), &[], &[], None);
    for slot in 0..3 {
        let header = Header { slot, op: 4, ..Header::new(Kind::Reply) };
        push(&mut stream, header, b"body", &[7; 100], None);
        push(&mut stream, header, samples::page().packed(), &[], None);
        if with_trailers {
            let header = Header { flags: Flags::TRAILER, ..header };
            push(&mut stream, header, &[], &[8; 50], Some(Trailer { valid: 20, checksum: 0 }));
        }
    }
    stream
}

/// A frame whose trailer has the checksum.
fn trailer_seed() -> Vec<u8> {
    let mut seed = vec![0];
    let header = Header { flags: Flags::TRAILER | Flags::CHECKSUM, slot: 1, ..Header::new(Kind::Reply) };
    push(&mut seed, header, &[], &[8; 50], Some(Sealer::new(None, true).trailer(20, &[], &[8; 50])));
    seed
}

/// Frames with bodies, payloads and trailers, whole and in pieces.
pub fn seeds() -> Vec<Vec<u8>> {
    let (stream, without_trailers) = (sample(true), sample(false));
    let whole = [&[0], &stream[..]].concat();
    let bulk = [&[BULK], &stream[..]].concat();
    let pieces = [&[PIECES | BULK, 8, 1, 63, 64, 10, 5, 100, 200, 30], &stream[..]].concat();
    let raw = [&[RAW_HEADERS], &stream[..200]].concat();
    let keyed = [&[KEYED], &stream[..]].concat();
    let keyed_pieces = [&[KEYED | PIECES, 3, 64, 90, 130], &stream[..]].concat();
    let keyed_raw = [&[KEYED | RAW_HEADERS], &stream[..200]].concat();
    let checked = [&[CHECKSUMS], &without_trailers[..]].concat();
    let both = [&[CHECKSUMS | KEYED | PIECES, 2, 100, 100], &without_trailers[..]].concat();
    vec![whole, bulk, pieces, raw, keyed, keyed_pieces, keyed_raw, checked, both, trailer_seed()]
}
