//! What clients and servers in one process are made of, and a client as a mount has one.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_client::{Client, ClientConfig, SessionConfig};
use aqueduct_fs::*;
use aqueduct_server::{Access, Export, External, ServerConfig, Squash, export_id};
use aqueduct_wire::{Checksums, ServerId, ServerIdentity};
use aqueduct_worker::{Group, Settings, wait};

/// The longest that anything may take: many times what it takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

pub const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub fn context() -> Context {
    Context::new(ClientId(0), Credential::root())
}

/// Without threads it is turned by whoever waits.
pub fn group(threads: usize) -> Arc<Group> {
    let spin_max = Duration::from_micros(20);
    Group::new(Settings { name: "test".into(), threads_min: threads, threads_max: threads, spin_max }).unwrap()
}

/// A server of one export, whose sessions end with it, at a free port.
pub fn server_config(name: &str, filesystem: Arc<dyn FileSystem>) -> ServerConfig {
    let export = Export {
        name: name.into(),
        id: export_id(name),
        filesystem,
        read_only: false,
        path: "none".into(),
        access: Access { squash: Some(Squash::None), ..Access::default() },
        durable: false,
        external: External::None,
    };
    ServerConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        name: "server".into(),
        identity: Some(ServerIdentity { id: ServerId([7; 16]), incarnation: 1 }),
        verifier: 1,
        exports: vec![export],
        ..ServerConfig::default()
    }
}

pub fn client_config(server: SocketAddr, export: &str) -> ClientConfig {
    let session = SessionConfig {
        server: server.to_string(),
        export: export.into(),
        name: "client".into(),
        read_only: false,
        soft: false,
        timeout: LONG,
        suspect: Duration::from_secs(5),
        key: None,
        replay_window: 1 << 20,
        checksums: Checksums::Auto,
        bulk_lanes: true,
        asks_queue_time: false,
        routes: None,
        rails: Default::default(),
    };
    ClientConfig { session, leases: false, gathers: true, is_atomic: false }
}

/// The same client with another session.
pub fn in_session(config: ClientConfig, change: impl FnOnce(SessionConfig) -> SessionConfig) -> ClientConfig {
    ClientConfig { session: change(config.session), ..config }
}

/// A mount's client, without the mount.
pub struct Node {
    pub client: Arc<Client>,
    pub group: Arc<Group>,
    pub root: Handle,
}

impl Node {
    pub fn new(server: SocketAddr, export: &str) -> Node {
        Node::with(client_config(server, export))
    }

    pub fn with(config: ClientConfig) -> Node {
        let group = group(1);
        let client = Client::connect(config, std::slice::from_ref(&group)).unwrap();
        let context = context();
        let root = wait(&group, client.call(&context, Request::Root)).unwrap().entry().unwrap().handle;
        Node { client, group, root }
    }

    pub fn ask(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        self.ask_as(&context(), request)
    }

    pub fn ask_as(&self, context: &Context, request: &Request<'_>) -> Result<Reply, Errno> {
        wait(&self.group, self.client.call(context, request.clone()))
    }

    pub fn create(&self, name: &str) -> OpenId {
        let (parent, name) = (self.root.bytes(), name.as_bytes());
        let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
        self.ask(&create).unwrap().created().unwrap().1.id
    }

    pub fn lock(&self, open: OpenId, owner: u64, kind: LockKind, wait: bool) -> Result<Reply, Errno> {
        let lock = Lock { start: 0, end: 9, kind, pid: 1 };
        self.ask(&Request::SetLock { open, owner, space: LockSpace::Posix, lock, wait })
    }

    /// Writes at the start, as a program that may be killed.
    pub fn write_as(&self, context: &Context, open: OpenId, text: &'static [u8]) -> Result<Written, Errno> {
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        wait(&self.group, self.client.write(context, write, Source::Memory(text.into())))
    }

    /// Writes at the start, or appends.
    pub fn write(&self, open: OpenId, append: bool, text: &'static [u8]) -> Result<Written, Errno> {
        let write = WriteAt { open, offset: 0, append, stable: false };
        wait(&self.group, self.client.write(&context(), write, Source::Memory(text.into())))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.client.disconnect();
        self.group.stop();
        self.group.join();
    }
}
