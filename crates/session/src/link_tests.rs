//! A link between two connections, of which one takes the place of the other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use aqueduct_net::{Address, BufferPool, Mode, Path, dial};
use aqueduct_wire::Lane;
use aqueduct_worker::{Group, Settings};

use super::*;
use crate::rails::{Rails, RailsConfig};

/// Longer than anything here takes, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(20);

struct Nobody;

impl Owner for Nobody {
    fn link_lost(&self, _link: &Link, _number: u32, _closed: &Closed) {}

    fn link_stops(&self, _link: usize, _number: u32, _end: Instant) {}

    fn recalled(&self, _epoch: Option<u64>, _leases: &[LeaseId]) -> Result<(), &'static str> {
        Ok(())
    }

    fn mapped(&self, _map: Map) {}

    fn completed_elsewhere(&self, _link: usize, _frame: Frame) {}
}

/// A link, and a server that is the test.
struct World {
    group: Arc<Group>,
    link: Arc<Link>,
    listener: TcpListener,
}

impl World {
    fn new() -> World {
        let settings = Settings { name: "test".into(), threads_min: 1, threads_max: 1, spin_max: Duration::ZERO };
        let rails = Rails::new(&RailsConfig::default(), 1);
        let (rail, waiters) = (rails.list()[0].clone(), Arc::default());
        let place = Place { index: 0, worker: 0, bulk: false, rail, waiters };
        let link = Link::new(place, Weak::<Nobody>::new(), Arc::default()).into();
        World { group: Group::new(settings).unwrap(), link, listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    /// A connection for the link, and the server's end of it.
    fn connection(&self) -> (Arc<Connection>, TcpStream) {
        let path = Path::from(Address::Tcp(self.listener.local_addr().unwrap()));
        let link = dial(&path, None, Lane::Control, PATIENCE).unwrap();
        let server = self.listener.accept().unwrap().0;
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let mode = Mode { bulk: false, shared: false, suspect: PATIENCE };
        let pool = BufferPool::new(0, 0);
        (Connection::start(&self.group, link, mode, pool, self.link.clone()).unwrap(), server)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.group.stop();
        self.group.join();
    }
}

/// The number of the connection that the next frame retires.
fn retired(server: &mut TcpStream) -> u32 {
    let mut header = [0; HEADER_SIZE];
    server.read_exact(&mut header).expect("a frame comes");
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.body_length as usize];
    server.read_exact(&mut body).unwrap();
    assert_eq!(header.kind, Kind::Retire);
    aqueduct_wire::decode_retire(&body).unwrap()
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Else the link would keep two connections, and never lead by another router again.
#[test]
fn what_retires_is_said_again_where_the_successor_was_lost() {
    let world = World::new();
    let link = &world.link;
    let (first, mut old) = world.connection();
    assert!(link.connected(first, 1, 0));
    let (second, lost) = world.connection();
    assert!(link.moves(second, (1, 2)));
    drop(lost); // unread
    wait_until(|| !link.is_connected());
    let (third, mut server) = world.connection();
    assert!(link.connected(third, 3, 0));
    assert_eq!((retired(&mut server), link.number()), (1, None));
    old.write_all(&Header::new(Kind::Retire).encode()).unwrap();
    wait_until(|| link.number() == Some(3));
    // And not again.
    drop(server);
    wait_until(|| !link.is_connected());
    let (fourth, mut server) = world.connection();
    assert!(link.connected(fourth, 4, 0));
    server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(server.read(&mut [0]).is_err());
}
