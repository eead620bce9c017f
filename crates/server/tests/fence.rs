//! A session that ends while requests of it are being executed: nobody gets what it held before they are over.

mod common;

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::{Access, Export, External, Limits, Server, ServerConfig, Squash};
use aqueduct_wire::*;
use aqueduct_worker::{Group, Settings};
use common::*;

/// Holds up fallocate, which waits for disks, until it is told to go on, and tells what happens.
struct Held {
    go_on: Mutex<Receiver<()>>,
    events: Sender<&'static str>,
}

impl FileSystem for Held {
    fn call<'a>(&'a self, _context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        let directory = Attr { mode: 0o040755, nlink: 2, ..Attr::default() };
        let entry = Entry { handle: Handle::new(b"root").unwrap(), attr: directory };
        if let Request::Fallocate { .. } = request {
            let _ = self.events.send("begins");
            let _ = self.go_on.lock().unwrap().recv_timeout(Duration::from_secs(20)); // or the test has failed
            let _ = self.events.send("ends");
        }
        Call::ready(Ok(Reply::Entry(entry)))
    }

    fn read<'a>(&'a self, _: &'a Context, _: ReadAt, _: Box<dyn Sink>) -> Call<'a, usize> {
        Call::ready(Ok(0))
    }

    fn write<'a>(&'a self, _: &'a Context, _: WriteAt, _: Source) -> Call<'a, Written> {
        Call::ready(Err(Errno::EROFS))
    }

    fn depart(&self, _: ClientId) -> Call<'_, ()> {
        let _ = self.events.send("departs"); // nobody listens when the test has ended
        Call::ready(Ok(()))
    }
}

#[test]
fn what_a_session_held_is_freed_after_its_last_request() {
    let ((go_on, wait), (events, happened)) = (channel(), channel());
    let spin_max = Duration::from_micros(20);
    let group = Group::new(Settings { name: "server".into(), threads_min: 2, threads_max: 8, spin_max }).unwrap();
    let filesystem = lower(Held { go_on: Mutex::new(wait), events });
    let config = ServerConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        name: "server".into(),
        verifier: 9,
        limits: Limits { session_grace: Duration::from_millis(100), ..limits() },
        exports: vec![Export {
            name: "/e".into(),
            id: 1,
            filesystem,
            read_only: false,
            path: String::new(),
            access: Access { squash: Some(Squash::None), ..Access::default() },
            durable: false,
            external: External::None,
        }],
        ..ServerConfig::default()
    };
    let server = Server::start(config, group.clone()).unwrap();
    let fixture =
        Fixture { server, group, directory: tempfile::tempdir().unwrap(), sessions: None, guard: Guard::default() };
    let (mut peer, session, _) = fixture.attached();
    let mut body = Vec::new();
    let allocate = Request::Fallocate { open: OpenId(1), offset: 0, length: 1, flags: FallocateFlags::empty() };
    let op = encode_request(&context(), &allocate, &mut body);
    peer.request(op, (0, 1), &body);
    let next = || happened.recv_timeout(Duration::from_secs(10));
    assert_eq!(next(), Ok("begins"));
    drop(peer);
    let started = Instant::now();
    while fixture.connect().hello(session.session, session.secret).is_ok() {
        assert!(started.elapsed() < Duration::from_secs(10), "the session does not end");
        std::thread::sleep(Duration::from_millis(300)); // longer than its grace, which each of these begins anew
    }
    assert!(
        happened.recv_timeout(Duration::from_millis(300)).is_err(),
        "others would get its locks while it is at work"
    );
    go_on.send(()).unwrap();
    assert_eq!([next(), next()], [Ok("ends"), Ok("departs")]);
}
