//! A connection takes one descriptor: servers have tens of thousands, and processes are allowed so many. The only test of its process, whose descriptors it counts.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::Sink;
use aqueduct_net::{BufferPool, Closed, Connection, Endpoint, Frame, Mode, SUSPECT_MIN};
use aqueduct_wire::Header;
use aqueduct_worker::{Group, Settings};
use socket2::Socket;

struct Deaf;

impl Endpoint for Deaf {
    fn place(&self, _header: &Header) -> Option<Box<dyn Sink>> {
        None
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    fn frame(&self, _connection: &Arc<Connection>, _frame: Frame) {}

    fn closed(&self, _connection: &Arc<Connection>, _closed: Closed) {}
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_connection_takes_one_descriptor() {
    const COUNT: usize = 50;
    let settings = Settings { name: "test".into(), threads_min: 1, threads_max: 1, spin_max: Duration::ZERO };
    let group = Group::new(settings).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = |_| {
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (peer, Socket::from(listener.accept().unwrap().0))
    };
    let (peers, sockets): (Vec<_>, Vec<_>) = (0..COUNT).map(pair).unzip();
    let before = open_files();
    let start = |socket| {
        let mode = Mode { bulk: false, shared: false, suspect: SUSPECT_MIN };
        Connection::start(&group, socket, mode, BufferPool::new(4096, 1), Arc::new(Deaf)).unwrap()
    };
    let connections: Vec<_> = sockets.into_iter().map(start).collect();
    assert_eq!(open_files(), before);
    for connection in connections {
        connection.close("the test is over".into());
    }
    group.stop();
    group.join();
    drop(group);
    assert!(open_files() <= before - COUNT, "and gives it back");
    drop(peers);
}
