//! A client whose writes are not stable yet, at a server that cannot make them so, or does not say when.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_client::{Client, ClientConfig};
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Access, Export, Limits, Server, ServerConfig, export_id};
use aqueduct_wire::Checksums;
use aqueduct_worker::{Group, Settings, wait};

/// The longest that anything here may take: many times what it takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A directory on a disk that fails, as soon as the test says so, when data are to be made stable.
struct Failing {
    below: Posix,
    asked: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl FileSystem for Failing {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        if let Request::Commit { .. } = request {
            let _ = self.asked.send(()); // nobody listens when the test has ended
            let _ = self.go_on.lock().unwrap().recv_timeout(LONG); // an end of the sender says so for ever
            return Call::ready(Err(Errno::EIO));
        }
        self.below.call(context, request)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.below.read(context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        match self.below.write(context, write, source) {
            // Also where the directory lies in memory.
            Call::Ready(Some(Ok(written))) => Call::ready(Ok(Written { verifier: 7, ..written })),
            other => other,
        }
    }

    fn depart(&self, client: ClientId) {
        self.below.depart(client);
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Option<Handle> {
        self.below.inode(client, open)
    }
}

fn group(threads: usize) -> Arc<Group> {
    let spin_max = Duration::from_micros(20);
    Group::new(Settings { name: "test".into(), threads_min: threads, threads_max: threads, spin_max }).unwrap()
}

/// A server over such a directory.
struct Fixture {
    server: Arc<Server>,
    group: Arc<Group>,
    asked: Receiver<()>,
    go_on: Sender<()>,
    _directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let ((asked, asks), (go_on, goes_on)) = (channel(), channel());
        let below = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
        let filesystem = Arc::new(Failing { below, asked, go_on: Mutex::new(goes_on) });
        let (name, access) = ("/e".to_owned(), Access::default());
        let (id, path) = (export_id(&name), String::new());
        let export = Export { name, id, filesystem, read_only: false, path, access, durable: false };
        let config = ServerConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            name: "server".into(),
            verifier: 7,
            limits: Limits::default(),
            exports: vec![export],
            keys: Vec::new(),
            checksums: Checksums::Auto,
            sessions: None,
        };
        let group = group(2);
        let server = Server::start(config, group.clone()).unwrap();
        Fixture { server, group, asked: asks, go_on, _directory: directory }
    }

    fn end(self) {
        drop(self.go_on);
        self.server.shutdown(LONG);
        self.group.stop();
        self.group.join();
    }
}

/// A mount's client, without the mount.
struct Node {
    client: Arc<Client>,
    group: Arc<Group>,
    root: Handle,
}

impl Node {
    fn new(fixture: &Fixture) -> Node {
        let config = ClientConfig {
            server: fixture.server.addresses()[0].to_string(),
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

    fn open(&self) -> OpenId {
        let (parent, flags) = (self.root.bytes(), OpenFlags::READ | OpenFlags::WRITE);
        let create = Request::Create { parent, name: b"file", mode: 0o644, umask: 0, flags };
        self.ask(&create).unwrap().created().unwrap().1.id
    }

    fn lock(&self, open: OpenId, kind: LockKind) -> Result<Reply, Errno> {
        let lock = Lock { start: 0, end: 9, kind, pid: 1 };
        self.ask(&Request::SetLock { open, owner: 1, space: LockSpace::Posix, lock, wait: false })
    }

    fn write(&self, open: OpenId) -> Result<Written, Errno> {
        let context = Context::new(ClientId(0), Credential::root());
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        wait(&self.group, self.client.write(&context, write, Source::Memory(b"unstable"[..].into())))
    }

    fn end(self) {
        self.client.disconnect();
        // What still waited has been woken by now, and lets others run.
        let (turn, turns) = channel();
        self.group.spawn(async move { turn.send(()).unwrap_or_default() });
        turns.recv_timeout(LONG).expect("the client's thread is free");
        self.group.stop();
        self.group.join();
    }
}

/// What frees others is done also when what was written under the lock cannot be made stable: else they would wait for ever.
#[test]
fn a_lock_is_given_up_also_when_data_cannot_be_made_stable() {
    let mut fixture = Fixture::new();
    fixture.go_on = channel().0; // it fails at once
    let (holder, other) = (Node::new(&fixture), Node::new(&fixture));
    for closes in [false, true] {
        let (held, wanted) = (holder.open(), other.open());
        holder.lock(held, LockKind::Write).unwrap();
        holder.write(held).unwrap();
        assert_eq!(other.lock(wanted, LockKind::Write), Err(Errno::EAGAIN));
        if closes {
            assert_eq!(holder.ask(&Request::Flush { open: held, owner: 1 }), Err(Errno::EIO));
        } else {
            holder.lock(held, LockKind::Unlock).unwrap();
            assert_eq!(holder.write(held), Err(Errno::EIO), "whoever goes on hears of it");
        }
        other.lock(wanted, LockKind::Write).expect("the lock is free");
        holder.ask(&Request::Release { open: held }).unwrap();
        other.ask(&Request::Release { open: wanted }).unwrap();
    }
    holder.end();
    other.end();
    fixture.end();
}

/// A client that leaves while its server dies ends, whatever it still keeps.
#[test]
fn a_client_that_leaves_a_dying_server_ends() {
    let fixture = Fixture::new();
    let node = Node::new(&fixture);
    node.write(node.open()).unwrap();
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        node.end();
        let _ = ended.send(());
    });
    fixture.asked.recv_timeout(LONG).expect("what was written is to become stable");
    fixture.server.shutdown(Duration::ZERO);
    ends.recv_timeout(LONG).expect("the client ends");
    fixture.end();
}
