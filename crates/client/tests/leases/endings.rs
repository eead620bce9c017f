//! How what is kept ends: by time, with the session, with a restart of the server, or because there is too much of it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_client::{ClientConfig, SessionConfig};
use aqueduct_fs::*;
use aqueduct_server::{External, Limits, Squash};

use crate::common::*;
use crate::fixture::*;

pub fn short() -> Limits {
    Limits {
        lease: Duration::from_secs(1),
        lease_patience: Duration::from_millis(300),
        lease_answer: Duration::from_millis(200),
        ..limits()
    }
}

#[test]
fn nothing_is_used_when_the_lease_is_over_and_everything_when_it_is_renewed() {
    let process = Process::within(short());
    std::fs::write(process.path("file"), "text").unwrap();
    let mount = process.mount();
    let file = mount.look_up("file").unwrap().handle;
    mount.warm(|| mount.stat(&file));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(mount.cached.hold_data(file.bytes()).is_none());
    assert_eq!(mount.round_trips(|| mount.stat(&mount.root)).0, 1, "the lease is over");
    mount.warm(|| mount.look_up("file")).unwrap();
}

/// Stands between a client and its server: lets what travels wait, or cuts it off.
pub struct Between {
    pub address: SocketAddr,
    stops: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Between {
    pub fn new(server: SocketAddr) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stops, streams) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (stopped, kept) = (stops.clone(), streams.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, Ok(onward)) = (stream.unwrap(), TcpStream::connect(server)) else { continue };
                for (from, to) in [(&stream, &onward), (&onward, &stream)] {
                    let (mut from, mut to, stopped) =
                        (from.try_clone().unwrap(), to.try_clone().unwrap(), stopped.clone());
                    std::thread::spawn(move || {
                        let mut buffer = [0; 65_536];
                        while let Ok(length @ 1..) = from.read(&mut buffer) {
                            while stopped.load(Ordering::SeqCst) {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                            if to.write_all(&buffer[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both); // it may have gone
                    });
                }
                kept.lock().unwrap().extend([stream, onward]);
            }
        });
        Between { address, stops, streams }
    }

    pub fn mount(&self) -> Mount {
        let config =
            in_session(client_config(self.address, "/e"), |session| SessionConfig { suspect: LONG, ..session });
        Mount::with(ClientConfig { leases: true, ..config })
    }

    pub fn stop(&self, stops: bool) {
        self.stops.store(stops, Ordering::SeqCst);
    }

    pub fn cut(&self) {
        self.streams.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// A client that nothing reaches uses what it has for no longer than its lease, and a change waits for that and no longer.
#[test]
fn who_is_cut_off_uses_nothing_that_others_have_changed() {
    let process = Process::within(short());
    std::fs::write(process.path("file"), "text").unwrap();
    let between = Between::new(process.server.addresses()[0]);
    let (mount, other) = (between.mount(), process.mount());
    let file = mount.look_up("file").unwrap().handle;
    mount.stat(&file);
    between.stop(true);
    let get = Request::GetAttr { handle: file.bytes(), open: None };
    let remembered = || match mount.cached.ask(&context(), get.clone()) {
        Call::Ready(Some(Ok(answer))) => answer.result.ok().and_then(|reply| reply.attr().ok()),
        _ => None,
    };
    assert_eq!(remembered().unwrap().mode & 0o777, 0o644);
    let start = Instant::now();
    let changed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            other.set_mode(&file, 0o600);
            changed.store(true, Ordering::SeqCst);
        });
        while !changed.load(Ordering::SeqCst) {
            let before = changed.load(Ordering::SeqCst);
            let seen = remembered();
            assert!(!before || seen.is_none(), "what is changed is not used");
            assert!(start.elapsed() < LONG);
        }
    });
    assert!(remembered().is_none());
    assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    between.stop(false);
    assert_eq!(mount.stat(&file).mode & 0o777, 0o600);
    until("what was recalled is back, and the rest is used again", || {
        mount.stat(&file);
        mount.round_trips(|| mount.stat(&file)).0 == 0
    });
}

#[test]
fn a_lost_connection_loses_no_recall() {
    let process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    let between = Between::new(process.server.addresses()[0]);
    let (mount, other) = (between.mount(), process.mount());
    let file = mount.look_up("file").unwrap().handle;
    between.cut();
    for mode in [0o600, 0o640, 0o644] {
        other.set_mode(&file, mode);
        assert_eq!(mount.stat(&file).mode & 0o777, mode);
        between.cut();
    }
}

/// Before Linux 6.16 nobody can have it forget all names below a directory.
#[test]
fn names_that_the_kernel_keeps_are_waited_for() {
    const KEPT: Duration = Duration::from_millis(700);
    let process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    let (holder, other) = (process.mount(), process.mount());
    holder.look_up("file").unwrap();
    let last = Instant::now() + KEPT;
    *holder.told.names_last.lock().unwrap() = Some(last);
    other.unlink("file").unwrap();
    assert!(Instant::now() >= last, "a name was changed that is in use");
}

#[test]
fn a_restart_of_the_server_ends_everything_before_others_change_anything() {
    let mut process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    let mount = process.mount();
    let file = mount.look_up("file").unwrap().handle;
    for round in 1..4 {
        mount.stat(&file);
        mount.look_up("file").unwrap();
        process.kill();
        process.start();
        let other = process.mount();
        other.set_mode(&file, 0o600 + round);
        assert_eq!(*mount.told.all.lock().unwrap(), round as usize, "the kernel has forgotten all");
        assert_eq!(mount.stat(&file).mode & 0o777, 0o600 + round);
        other.rename("file", "renamed").unwrap();
        assert_eq!(mount.look_up("file"), Err(Errno::ENOENT));
        other.rename("renamed", "file").unwrap();
        assert!(mount.look_up("file").is_ok());
    }
}

/// The server gives a session up; the next one begins with nothing.
#[test]
fn a_new_session_begins_with_nothing() {
    let process = Process::within(Limits { session_grace: Duration::from_millis(200), ..short() });
    std::fs::write(process.path("file"), "text").unwrap();
    let between = Between::new(process.server.addresses()[0]);
    let (mount, other) = (between.mount(), process.mount());
    let file = mount.look_up("file").unwrap().handle;
    mount.release(mount.open(&file, READ).unwrap());
    let open = mount.warm(|| mount.open(&file, READ).unwrap());
    between.stop(true);
    between.cut();
    other.set_mode(&file, 0o600); // which waits until what the client believes is over
    between.stop(false);
    assert_eq!(mount.stat(&file).mode & 0o777, 0o600);
    assert_eq!(mount.read(open), Ok("text".into()));
    until("leases are granted again", || {
        mount.stat(&file);
        mount.round_trips(|| mount.stat(&file)).0 == 0
    });
}

/// A server that grants no more than so many has the oldest back.
#[test]
fn who_has_too_much_gives_some_back() {
    let process = Process::within(Limits { leases_of_client_max: 32, ..limits() });
    for number in 0..200 {
        std::fs::write(process.path(&format!("file{number}")), "text").unwrap();
    }
    let (mount, other) = (process.mount(), process.mount());
    for number in 0..200 {
        mount.look_up(&format!("file{number}")).unwrap();
    }
    until("some are given back", || mount.status()["leases"]["inodes"].as_u64().unwrap() <= 64);
    for number in 0..200 {
        let name = format!("file{number}");
        let file = other.look_up(&name).unwrap().handle;
        other.set_mode(&file, 0o600);
        assert_eq!(mount.look_up(&name).unwrap().attr.mode & 0o777, 0o600);
    }
}

/// A client that outlives a restart goes by what the server says of the export then.
#[test]
fn what_the_export_is_like_is_asked_anew_after_a_restart() {
    let mut process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    let mount = process.mount();
    let file = mount.look_up("file").unwrap().handle;
    let status = |what: &str| mount.status()[what].as_u64();
    let age = || mount.status()["leases"]["age_max"].as_u64();
    assert_eq!(age(), Some(0));
    let mut restart = |export: Configured| {
        process.kill();
        until("the server is missed", || status("connections") == Some(0));
        process.export = export;
        process.start();
        until("the server is back", || status("connections") == Some(2));
    };
    restart(Configured { external: External::Poll(Duration::from_secs(2)), ..Configured::default() });
    assert_eq!(age(), Some(2000));
    mount.stat(&file);
    mount.warm(|| mount.stat(&file));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(mount.round_trips(|| mount.stat(&file)).0, 1, "it is too old");
    restart(Configured { squash: Some(Squash::All), ..Configured::default() });
    for _ in 0..3 {
        let (count, _) = mount.round_trips(|| mount.stat(&file));
        assert_eq!(count, 1, "nothing is kept for callers who are others at the server");
    }
    restart(Configured::default());
    assert_eq!(age(), Some(0));
    mount.stat(&file);
    mount.warm(|| mount.stat(&file));
}

/// Its connection is on its way when the client leaves, and the server has not heard of that.
#[test]
fn a_connection_that_comes_when_its_client_has_left_is_closed() {
    let process = Process::new();
    let between = Between::new(process.server.addresses()[0]);
    let mount = between.mount();
    let there = || {
        let status: serde_json::Value = serde_json::from_str(&process.server.status_of_all()).unwrap();
        status["connections"].as_u64().unwrap()
    };
    between.stop(true);
    between.cut();
    until("the server has lost it", || there() == 0);
    until("it has come again", || there() > 0);
    mount.client.disconnect();
    between.stop(false);
    until("the server has none", || there() == 0);
}
