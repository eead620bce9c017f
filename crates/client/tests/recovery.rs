//! A client whose server dies, and dies again while the client has back what it had: in the end all is as it was, and nobody took a lock meanwhile.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Limits, Moment, Server, ServerConfig};
use aqueduct_worker::Group;
use common::*;

/// A server process that can be killed and started again.
struct Process {
    directory: tempfile::TempDir,
    sessions: tempfile::TempDir,
    server: Arc<Server>,
    group: Arc<Group>,
}

fn start(directory: &Path, sessions: &Path, listen: &str) -> (Arc<Server>, Arc<Group>) {
    let options = Options { key: [5; 32], ..Options::default() };
    let config = ServerConfig {
        listen: vec![listen.parse().unwrap()],
        limits: Limits { recovery_grace: LONG, session_grace: LONG, ..Limits::default() },
        sessions: Some(sessions.to_owned()),
        ..server_config("/e", Arc::new(Posix::open(directory, options).unwrap()))
    };
    let group = group(2);
    (Server::start(config, group.clone()).unwrap(), group)
}

impl Process {
    fn new() -> Process {
        let (directory, sessions) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (server, group) = start(directory.path(), sessions.path(), "127.0.0.1:0");
        Process { directory, sessions, server, group }
    }

    fn kill(&self) {
        self.server.shutdown(Duration::ZERO);
        self.group.stop();
        self.group.join();
    }

    fn start(&mut self) {
        let listen = self.server.addresses()[0].to_string();
        (self.server, self.group) = start(self.directory.path(), self.sessions.path(), &listen);
    }

    fn node(&self) -> Node {
        Node::new(self.server.addresses()[0], "/e")
    }

    /// Answers nothing from the first time on that a request comes to `moment`; says when that was.
    fn die_at(&self, moment: Moment) -> Receiver<()> {
        let (died, deaths) = mpsc::channel();
        let (died, dead) = (Mutex::new(died), AtomicBool::new(false));
        self.server.set_failpoint(move |now| {
            if now == moment && !dead.swap(true, Ordering::SeqCst) {
                let _ = died.lock().unwrap().send(());
            }
            dead.load(Ordering::SeqCst)
        });
        deaths
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server dies, dies once more when the recovery of a client that holds a lock comes to `moment`, and comes back.
fn dies_in_recovery(moment: Moment) {
    let mut process = Process::new();
    let (holder, other) = (process.node(), Arc::new(process.node()));
    let open = holder.create("file");
    let held = holder.create("held");
    holder.write(open, true, b"before ").unwrap();
    holder.lock(held, 1, LockKind::Write, false).unwrap();
    let others = other.create("held");
    process.kill();
    process.start();
    let died = process.die_at(moment);
    let (granted, grants) = mpsc::channel();
    let waiter = other.clone();
    std::thread::spawn(move || granted.send(waiter.lock(others, 2, LockKind::Write, true).map(drop)).is_ok());
    died.recv_timeout(LONG).expect("a recovery comes to that moment");
    process.kill();
    process.start();
    assert_eq!(holder.write(open, true, b"after").unwrap().count, 5);
    let data = std::fs::read(process.directory.path().join("file")).unwrap();
    assert_eq!(String::from_utf8(data).unwrap(), "before after");
    let too_early = grants.recv_timeout(Duration::from_millis(200));
    assert!(too_early.is_err(), "the lock was another's all the time: {too_early:?}");
    holder.lock(held, 1, LockKind::Unlock, false).unwrap();
    grants.recv_timeout(LONG).expect("the lock is free").unwrap();
}

#[test]
fn the_server_dies_when_an_open_has_been_had_again() {
    dies_in_recovery(Moment::Reopened);
}

#[test]
fn the_server_dies_when_a_lock_has_been_had_again() {
    dies_in_recovery(Moment::Reclaimed);
}

#[test]
fn the_server_dies_when_all_has_been_had_again() {
    dies_in_recovery(Moment::Recovered);
}

#[test]
fn nobody_takes_a_lock_while_its_holder_has_only_others_again() {
    let mut process = Process::new();
    let (holder, other) = (process.node(), Arc::new(process.node()));
    let names = ["one", "two"];
    let held = names.map(|name| holder.create(name));
    held.iter().for_each(|open| drop(holder.lock(*open, 1, LockKind::Write, false).unwrap()));
    let wanted = names.map(|name| other.create(name));
    process.kill();
    process.start();
    // The holder has one of the two again, and does not hear of it for a while.
    let (reclaimed, reclaims) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (reclaimed, goes_on) = (Mutex::new(reclaimed), Mutex::new(goes_on));
    process.server.set_failpoint(move |moment| {
        if moment == Moment::Reclaimed && reclaimed.lock().unwrap().send(()).is_ok() {
            let _ = goes_on.lock().unwrap().recv_timeout(LONG);
        }
        false
    });
    reclaims.recv_timeout(LONG).expect("a lock is reclaimed");
    let (granted, grants) = mpsc::channel();
    for open in wanted {
        let (granted, waiter) = (granted.clone(), other.clone());
        std::thread::spawn(move || granted.send(waiter.lock(open, 2, LockKind::Write, true).map(drop)).is_ok());
    }
    let too_early = grants.recv_timeout(Duration::from_millis(300));
    assert!(too_early.is_err(), "both locks are the holder's: {too_early:?}");
    drop(reclaims);
    drop(go_on);
    let too_early = grants.recv_timeout(Duration::from_millis(200));
    assert!(too_early.is_err(), "both locks are the holder's again: {too_early:?}");
    for open in held {
        holder.lock(open, 1, LockKind::Unlock, false).unwrap();
        grants.recv_timeout(LONG).expect("the lock is free").unwrap();
    }
}
