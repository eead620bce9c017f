//! A client whose server dies, and dies again while the client has back what it had: in the end all is as it was, and nobody took a lock meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_client::{Client, ClientConfig};
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Access, Export, Limits, Moment, Server, ServerConfig, export_id};
use aqueduct_wire::Checksums;
use aqueduct_worker::{Group, Settings, wait};

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// The longest that anything here may take: many times what it takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn group(threads: usize) -> Arc<Group> {
    let spin_max = Duration::from_micros(20);
    Group::new(Settings { name: "test".into(), threads_min: threads, threads_max: threads, spin_max }).unwrap()
}

/// A server process that can be killed and started again.
struct Process {
    directory: tempfile::TempDir,
    sessions: tempfile::TempDir,
    server: Arc<Server>,
    group: Arc<Group>,
}

fn start(directory: &Path, sessions: &Path, listen: &str) -> (Arc<Server>, Arc<Group>) {
    let options = Options { key: [5; 32], ..Options::default() };
    let export = Export {
        name: "/e".into(),
        id: export_id("/e"),
        filesystem: Arc::new(Posix::open(directory, options).unwrap()),
        read_only: false,
        path: String::new(),
        access: Access::default(),
        durable: false,
    };
    let group = group(2);
    let config = ServerConfig {
        listen: vec![listen.parse().unwrap()],
        name: "server".into(),
        verifier: 1,
        limits: Limits { recovery_grace: LONG, session_grace: LONG, ..Limits::default() },
        exports: vec![export],
        keys: Vec::new(),
        checksums: Checksums::Auto,
        sessions: Some(sessions.to_owned()),
    };
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

/// A mount's client, without the mount.
struct Node {
    client: Arc<Client>,
    group: Arc<Group>,
    root: Handle,
}

impl Node {
    fn new(process: &Process) -> Node {
        let config = ClientConfig {
            server: process.server.addresses()[0].to_string(),
            export: "/e".into(),
            name: "client".into(),
            read_only: false,
            soft: false,
            timeout: LONG,
            suspect: Duration::from_secs(5),
            key: None,
            replay_window: 1 << 20,
            checksums: Checksums::Auto,
        };
        let group = group(1);
        let client = Client::connect(config, std::slice::from_ref(&group)).unwrap();
        let context = Context::new(ClientId(0), Credential::root());
        let root = wait(&group, client.call(&context, Request::Root)).unwrap().entry().unwrap().handle;
        Node { client, group, root }
    }

    fn ask(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let context = Context::new(ClientId(0), Credential::root());
        wait(&self.group, self.client.call(&context, request.clone()))
    }

    fn create(&self, name: &str) -> Opened {
        let (parent, name) = (self.root.bytes(), name.as_bytes());
        let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
        self.ask(&create).unwrap().created().unwrap().1
    }

    fn lock(&self, open: OpenId, owner: u64, kind: LockKind, wait: bool) -> Result<Reply, Errno> {
        let lock = Lock { start: 0, end: 9, kind, pid: 1 };
        self.ask(&Request::SetLock { open, owner, space: LockSpace::Posix, lock, wait })
    }

    fn write(&self, open: OpenId, text: &'static [u8]) -> Result<Written, Errno> {
        let context = Context::new(ClientId(0), Credential::root());
        let write = WriteAt { open, offset: 0, append: true, stable: false };
        wait(&self.group, self.client.write(&context, write, Source::Memory(text.into())))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.client.disconnect();
        self.group.stop();
        self.group.join();
    }
}

/// The server dies, dies once more when the recovery of a client that holds a lock comes to `moment`, and comes back.
fn dies_in_recovery(moment: Moment) {
    let mut process = Process::new();
    let (holder, other) = (Node::new(&process), Arc::new(Node::new(&process)));
    let open = holder.create("file").id;
    let held = holder.create("held").id;
    holder.write(open, b"before ").unwrap();
    holder.lock(held, 1, LockKind::Write, false).unwrap();
    let others = other.create("held").id;
    process.kill();
    process.start();
    let died = process.die_at(moment);
    let (granted, grants) = mpsc::channel();
    let waiter = other.clone();
    std::thread::spawn(move || granted.send(waiter.lock(others, 2, LockKind::Write, true).map(drop)).is_ok());
    died.recv_timeout(LONG).expect("a recovery comes to that moment");
    process.kill();
    process.start();
    assert_eq!(holder.write(open, b"after").unwrap().count, 5);
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
    let (holder, other) = (Node::new(&process), Arc::new(Node::new(&process)));
    let names = ["one", "two"];
    let held = names.map(|name| holder.create(name).id);
    held.iter().for_each(|open| drop(holder.lock(*open, 1, LockKind::Write, false).unwrap()));
    let wanted = names.map(|name| other.create(name).id);
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
