//! What a connection makes of frames that were damaged on the way: it ends, and what a payload was meant for can be used again.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::{MemorySink, Sink};
use aqueduct_net::{BufferPool, Closed, Connection, Endpoint, Frame, Link, Mode, Payload};
use aqueduct_wire::{Flags, HEADER_SIZE, Header, Kind, Sealer};
use aqueduct_worker::{Group, Settings};
use socket2::Socket;

const PATIENCE: Duration = Duration::from_secs(20);
const LENGTH: usize = 200_000;

/// A destination of its own, whose data have to be copied into it.
struct Copied(MemorySink);

impl Sink for Copied {
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

/// Has one sink for the next payload, and tells what happens.
struct Waiter {
    sink: Mutex<Option<Box<dyn Sink>>>,
    events: Mutex<Sender<Event>>,
}

#[derive(Debug)]
enum Event {
    Frame(Payload),
    Closed(String),
}

impl Endpoint for Waiter {
    fn place(&self, _header: &Header) -> Option<Box<dyn Sink>> {
        self.sink.lock().unwrap().take()
    }

    fn put_back(&self, _header: &Header, sink: Box<dyn Sink>) {
        *self.sink.lock().unwrap() = Some(sink);
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    fn frame(&self, _connection: &Arc<Connection>, frame: Frame) {
        self.events.lock().unwrap().send(Event::Frame(frame.payload)).unwrap();
    }

    fn closed(&self, _connection: &Arc<Connection>, closed: Closed) {
        let _ = self.events.lock().unwrap().send(Event::Closed(closed.reason)); // at the end nobody listens
    }
}

struct World {
    group: Arc<Group>,
    waiter: Arc<Waiter>,
    events: Receiver<Event>,
}

impl World {
    fn new(sink: Option<Box<dyn Sink>>) -> World {
        let settings = Settings { name: "test".into(), threads_min: 1, threads_max: 1, spin_max: Duration::ZERO };
        let (sender, events) = channel();
        let waiter = Arc::new(Waiter { sink: Mutex::new(sink), events: Mutex::new(sender) });
        World { group: Group::new(settings).unwrap(), waiter, events }
    }

    /// A connection of the waiter, and its other end.
    fn connect(&self) -> (TcpStream, Arc<Connection>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = Link::from(Socket::from(listener.accept().unwrap().0));
        let (mode, pool) = (Mode { bulk: true, shared: false, suspect: PATIENCE }, BufferPool::new(1 << 20, 1));
        (peer, Connection::start(&self.group, link, mode, pool, self.waiter.clone()).unwrap())
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.group.stop();
        self.group.join();
    }
}

fn data() -> Vec<u8> {
    (0..LENGTH as u32).map(|n| (n / 3) as u8).collect()
}

/// A reply with checksums, and the places of its body, payload and, if it has one, trailer.
fn reply(with_trailer: bool) -> (Vec<u8>, Vec<usize>) {
    let (sealer, body) = (&mut Sealer::new(None, true), if with_trailer { &b""[..] } else { b"body" });
    let flags = if with_trailer { Flags::TRAILER } else { Flags::empty() };
    let (body_length, payload_length) = (body.len() as u32, LENGTH as u32);
    let header = Header { flags, body_length, payload_length, ..Header::new(Kind::Reply) };
    let mut bytes = [&header.encode()[..], body].concat();
    sealer.seal(&mut bytes, &data());
    let mut places = if with_trailer { vec![] } else { vec![HEADER_SIZE] };
    places.extend([bytes.len(), bytes.len() + LENGTH / 2, bytes.len() + LENGTH - 1]);
    bytes.extend_from_slice(&data());
    if with_trailer {
        places.extend([bytes.len() + 4, bytes.len() + 8]); // how much is valid, and the checksum
        bytes.extend(sealer.trailer(LENGTH as u32 - 7, &[], &data()).encode());
    }
    (bytes, places)
}

/// Each place is damaged once; the same sink then takes the payload of the whole frame.
fn the_sink_is_used_again(sink: Box<dyn Sink>, seen: &MemorySink, with_trailer: bool) {
    let world = World::new(Some(sink));
    let (whole, places) = reply(with_trailer);
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        let (mut peer, _connection) = world.connect();
        peer.write_all(&damaged).unwrap();
        match world.event() {
            Event::Closed(reason) => assert!(reason.contains("damaged"), "{at}: {reason}"),
            event => panic!("{at}: {event:?}"),
        }
        assert!(seen.take().is_none(), "{at}: it was delivered");
        assert!(world.waiter.sink.lock().unwrap().is_some(), "{at}: the sink is lost");
    }
    let (mut peer, _connection) = world.connect();
    peer.write_all(&whole).unwrap();
    let valid = if with_trailer { LENGTH - 7 } else { LENGTH };
    match world.event() {
        Event::Frame(Payload::Delivered(Ok(length))) => assert_eq!(length, valid),
        event => panic!("{event:?}"),
    }
    assert!(seen.take().unwrap() == data()[..valid]);
}

#[test]
fn a_damaged_payload_is_not_delivered_and_its_sink_is_used_again() {
    for with_trailer in [false, true] {
        let seen = MemorySink::default();
        the_sink_is_used_again(Box::new(seen.clone()), &seen, with_trailer);
        the_sink_is_used_again(Box::new(Copied(seen.clone())), &seen, with_trailer);
    }
}

#[test]
fn a_damaged_frame_into_memory_is_not_handed_on() {
    let (whole, places) = reply(false);
    let world = World::new(None);
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x80;
        let (mut peer, _connection) = world.connect();
        peer.write_all(&damaged).unwrap();
        assert!(matches!(world.event(), Event::Closed(reason) if reason.contains("damaged")), "{at}");
    }
    // Nothing is checked where nothing was promised.
    let mut unchecked = whole;
    let header = Header::decode(unchecked.first_chunk().unwrap()).unwrap();
    let header = Header { flags: Flags::empty(), content_checksum: 0, ..header };
    unchecked[..HEADER_SIZE].copy_from_slice(&header.encode());
    let (mut peer, _connection) = world.connect();
    peer.write_all(&unchecked).unwrap();
    assert!(matches!(world.event(), Event::Frame(Payload::Memory(bytes)) if bytes == data()));
}
