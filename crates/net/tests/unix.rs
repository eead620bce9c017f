//! Unix sockets as links: who is at the other end, what becomes of sockets that are there already,
//! and that frames and files travel as over TCP.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use aqueduct_fs::Sink;
use aqueduct_net::{Address, BufferPool, Closed, Connection, Endpoint, Frame, Mode, Payload, Peer, named, socket};
use aqueduct_wire::{HEADER_SIZE, Header, Kind};
use aqueduct_worker::{Group, Settings};
use socket2::Socket;

const SOON: Duration = Duration::from_secs(10);

enum Event {
    Frame(Kind, usize),
    Closed(Closed),
}

/// Tells what happens.
struct Told(Sender<Event>);

impl Endpoint for Told {
    fn place(&self, _header: &Header) -> Option<Box<dyn Sink>> {
        None
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    fn frame(&self, _connection: &Arc<Connection>, frame: Frame) {
        let length = match frame.payload {
            Payload::Memory(bytes) => bytes.iter().take_while(|byte| **byte == 7).count(),
            Payload::None | Payload::Delivered(_) => 0,
        };
        let _ = self.0.send(Event::Frame(frame.header.kind, length));
    }

    fn closed(&self, _connection: &Arc<Connection>, closed: Closed) {
        let _ = self.0.send(Event::Closed(closed));
    }
}

fn start(group: &Arc<Group>, socket: Socket) -> (Arc<Connection>, Receiver<Event>) {
    let (sender, events) = channel();
    let mode = Mode { bulk: false, shared: true, suspect: Duration::from_secs(2) };
    let connection = Connection::start(group, socket, mode, BufferPool::new(1 << 20, 2), Arc::new(Told(sender)));
    (connection.unwrap(), events)
}

fn accepted(listener: &Socket) -> (Socket, Peer) {
    let end = Instant::now() + SOON;
    loop {
        if let Some(accepted) = socket::accept(listener).unwrap() {
            return accepted;
        }
        assert!(Instant::now() < end, "nobody comes");
        std::thread::yield_now();
    }
}

fn connect(path: &Path) -> Socket {
    socket::connect_to(&Address::Unix(path.into()), SOON).unwrap()
}

#[test]
fn frames_and_files_travel_and_the_end_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let (listener, _) = named::listen(&path).unwrap();
    let near = connect(&path);
    let (far, peer) = accepted(&listener);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(peer, Peer::Process { uid, pid: std::process::id() });
    assert!(peer.is_near() && peer.ip().is_none());
    assert_eq!(socket::peer(&near).unwrap(), peer, "the listener is this process too");

    let settings = Settings { name: "t".into(), threads_min: 2, threads_max: 4, spin_max: Duration::ZERO };
    let group = Group::new(settings).unwrap();
    let ((near, near_events), (far, far_events)) = (start(&group, near), start(&group, far));
    near.send(&Header::new(Kind::Ping).encode()[..HEADER_SIZE], None);
    assert!(matches!(far_events.recv_timeout(SOON).unwrap(), Event::Frame(Kind::Ping, 0)));
    // By sendfile, and more than the socket holds.
    const LENGTH: usize = 1 << 20;
    let mut file = File::options().read(true).write(true).create_new(true).open(folder.path().join("f")).unwrap();
    file.write_all(&vec![7; LENGTH]).unwrap();
    for _ in 0..8 {
        assert_eq!(
            far.send_file((Header::new(Kind::Reply), &|_| Vec::new()), file.as_fd(), 0, LENGTH).unwrap(),
            LENGTH
        );
    }
    for _ in 0..8 {
        assert!(matches!(near_events.recv_timeout(SOON).unwrap(), Event::Frame(Kind::Reply, LENGTH)));
    }
    let before = Instant::now();
    near.close("the test is over".into());
    let Event::Closed(closed) = far_events.recv_timeout(SOON).unwrap() else { panic!("a frame") };
    assert!(!closed.vanished && before.elapsed() < Duration::from_secs(1), "{closed:?} {:?}", before.elapsed());
    group.stop();
    group.join();
}

#[test]
fn a_socket_is_replaced_only_if_nobody_listens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let (first, _) = named::listen(&path).unwrap();
    assert_eq!(named::listen(&path).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(first); // as a process that was killed: the name stays
    assert!(path.exists());
    let (second, _) = named::listen(&path).unwrap();
    connect(&path);
    drop(second);
    // What is no socket is somebody's.
    let file = folder.path().join("f");
    fs::write(&file, "precious").unwrap();
    assert_eq!(named::listen(&file).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}
