//! A server over a temporary directory, and a peer that sends it hand-made frames.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix, Watch, Watcher};
use aqueduct_server::{Access, Export, External, Limits, Server, ServerConfig};
use aqueduct_wire::*;
use aqueduct_worker::{Group, Settings};
use socket2::{Domain, Socket, Type};

pub struct Fixture {
    pub server: Arc<Server>,
    pub group: Arc<Group>,
    pub directory: tempfile::TempDir,
    pub sessions: Option<tempfile::TempDir>,
    pub guard: Guard,
}

/// Short times, for tests that wait for them.
pub fn limits() -> Limits {
    Limits {
        session_grace: Duration::from_millis(300),
        hello_timeout: Duration::from_millis(500),
        slots: 4,
        ..Limits::default()
    }
}

fn posix(directory: &std::path::Path) -> Posix {
    Posix::open(directory, Options { key: [5; 32], ..Options::default() }).unwrap()
}

/// Who is let in, and how.
#[derive(Clone, Default)]
pub struct Guard {
    pub access: Access,
    keys: Vec<Key>,
    administrator: Option<Key>,
    checksums: Checksums,
}

fn start(
    filesystem: Arc<dyn FileSystem>,
    sessions: Option<&std::path::Path>,
    listen: SocketAddr,
    limits: Limits,
    guard: Guard,
) -> (Arc<Server>, Arc<Group>) {
    start_all(vec![filesystem], sessions, listen, limits, guard)
}

/// The exports are `/e`, `/f` and so on.
fn start_all(
    filesystems: Vec<Arc<dyn FileSystem>>,
    sessions: Option<&std::path::Path>,
    listen: SocketAddr,
    limits: Limits,
    guard: Guard,
) -> (Arc<Server>, Arc<Group>) {
    let spin_max = Duration::from_micros(20);
    let group = Group::new(Settings { name: "server".into(), threads_min: 2, threads_max: 8, spin_max }).unwrap();
    let export = |(filesystem, id)| Export {
        name: format!("/{}", char::from(b'd' + id)),
        id: u32::from(id),
        filesystem,
        read_only: false,
        path: String::new(),
        access: guard.access.clone(),
        durable: false,
        external: External::None,
    };
    let exports = filesystems.into_iter().zip(1..).map(export).collect();
    let config = ServerConfig {
        listen: vec![listen],
        name: "server".into(),
        verifier: 9,
        limits,
        exports,
        keys: guard.keys,
        administrator: guard.administrator,
        checksums: guard.checksums,
        sessions: sessions.map(Into::into),
    };
    (Server::start(config, group.clone()).unwrap(), group)
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(None, Guard::default(), Arc::new)
    }

    /// One with a layer over its directory.
    pub fn layered<F: FileSystem + 'static>(layer: impl FnOnce(Posix) -> Arc<F>) -> Fixture {
        Fixture::with(None, Guard::default(), layer)
    }

    /// One whose sessions outlive it.
    pub fn surviving() -> Fixture {
        Fixture::allowing(Access::default())
    }

    /// The same, with an export that is not for everybody.
    pub fn allowing(access: Access) -> Fixture {
        Fixture::with(Some(tempfile::tempdir().unwrap()), Guard { access, ..Guard::default() }, Arc::new)
    }

    /// One that serves only who has one of these keys.
    pub fn keyed(keys: &[Key]) -> Fixture {
        Fixture::with(None, Guard { keys: keys.to_vec(), ..Guard::default() }, Arc::new)
    }

    /// One that serves only who has one of these keys, or everybody if there are none, and whose administrator has another.
    pub fn administered(keys: &[Key], administrator: Key) -> Fixture {
        let (keys, administrator) = (keys.to_vec(), Some(administrator));
        Fixture::with(None, Guard { keys, administrator, ..Guard::default() }, Arc::new)
    }

    /// One that wants checksums, or not.
    pub fn checking(checksums: Checksums) -> Fixture {
        Fixture::with(None, Guard { checksums, ..Guard::default() }, Arc::new)
    }

    /// One whose sessions outlive it, with limits of its own.
    pub fn limited(limits: Limits) -> Fixture {
        Fixture::limited_over(limits, Arc::new)
    }

    /// The same, with a layer over its directory.
    pub fn limited_over<F: FileSystem + 'static>(limits: Limits, layer: impl FnOnce(Posix) -> Arc<F>) -> Fixture {
        Fixture::with_limits(Some(tempfile::tempdir().unwrap()), (Guard::default(), limits), layer)
    }

    /// One whose sessions outlive it, with two exports of its directory, `/e` and `/f`, whose handles differ.
    pub fn twofold<F: FileSystem + 'static>(mut layer: impl FnMut(Posix) -> Arc<F>) -> Fixture {
        let (directory, sessions) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut filesystem = |key| -> Arc<dyn FileSystem> {
            layer(Posix::open(directory.path(), Options { key: [key; 32], ..Options::default() }).unwrap())
        };
        let (filesystems, guard) = (vec![filesystem(5), filesystem(6)], Guard::default());
        let listen = "127.0.0.1:0".parse().unwrap();
        let (server, group) = start_all(filesystems, Some(sessions.path()), listen, limits(), guard.clone());
        Fixture { server, group, directory, sessions: Some(sessions), guard }
    }

    /// As [`limited`](Fixture::limited), and it is told what others change in its directory; `None`: that cannot be had.
    pub fn watched(limits: Limits) -> Option<(Fixture, Watcher)> {
        let (mut watch, mut added) = (Watch::default(), false);
        let layer = |posix: Posix| {
            added = watch.add(&posix).is_ok();
            Arc::new(posix)
        };
        let fixture = Fixture::with_limits(Some(tempfile::tempdir().unwrap()), (Guard::default(), limits), layer);
        let watcher = watch.start(vec![fixture.server.outside(); usize::from(added)]).unwrap();
        added.then_some((fixture, watcher))
    }

    fn with<F: FileSystem + 'static>(
        sessions: Option<tempfile::TempDir>,
        guard: Guard,
        layer: impl FnOnce(Posix) -> Arc<F>,
    ) -> Fixture {
        Fixture::with_limits(sessions, (guard, limits()), layer)
    }

    fn with_limits<F: FileSystem + 'static>(
        sessions: Option<tempfile::TempDir>,
        (guard, limits): (Guard, Limits),
        layer: impl FnOnce(Posix) -> Arc<F>,
    ) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let folder = sessions.as_ref().map(|folder| folder.path());
        let filesystem = layer(posix(directory.path()));
        let (server, group) = start(filesystem, folder, "127.0.0.1:0".parse().unwrap(), limits, guard.clone());
        Fixture { server, group, directory, sessions, guard }
    }

    /// Ends the server without a word to anybody that would change what it knows, as its death does.
    pub fn kill(&self) {
        self.server.shutdown(Duration::ZERO);
        self.group.stop();
        self.group.join();
    }

    /// Another process at the same place.
    pub fn start_again(&mut self, limits: Limits) {
        let folder = self.sessions.as_ref().map(|folder| folder.path());
        let filesystem = Arc::new(posix(self.directory.path()));
        let (address, guard) = (self.server.addresses()[0], self.guard.clone());
        (self.server, self.group) = start(filesystem, folder, address, limits, guard);
    }

    pub fn restart(&mut self) {
        self.kill();
        self.start_again(limits());
    }

    /// The files of sessions, and not what the process has locked.
    pub fn files(&self) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(self.sessions.as_ref().unwrap()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with("server-")).collect()
    }

    pub fn connect(&self) -> Peer {
        self.connect_from("127.0.0.1")
    }

    /// As a machine of this address, which is one of loopback.
    pub fn connect_from(&self, host: &str) -> Peer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(host.parse().unwrap(), 0).into()).unwrap();
        socket.connect(&self.server.addresses()[0].into()).unwrap();
        Peer::over(socket.into())
    }

    /// A peer with a session, attached to the export, and the handle of its root.
    pub fn attached(&self) -> (Peer, HelloReply, Handle) {
        self.connect().attach()
    }

    /// A connection that joins a session again.
    pub fn joined(&self, session: &HelloReply) -> (Peer, HelloReply) {
        let mut peer = self.connect();
        let reply = peer.hello(session.session, session.secret).unwrap();
        (peer, reply)
    }

    /// One that has recovered, after it had these opens again.
    pub fn recovered(&self, session: &HelloReply, opens: &[&Opened]) -> Peer {
        let (mut peer, reply) = self.joined(session);
        assert!(reply.recovering);
        for open in opens {
            assert_eq!(peer.file((0, 0), &Request::Reopen { open: open.id, token: &open.token }).0.status, 0);
        }
        assert_eq!(peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
        peer
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server.shutdown(Duration::from_secs(5));
        self.group.stop();
        self.group.join();
    }
}

pub struct Peer {
    pub stream: TcpStream,
    next: u64,
    pub sealer: Sealer,
    pub opener: Opener,
}

impl Peer {
    pub fn over(stream: TcpStream) -> Peer {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Peer { stream, next: 1, sealer: Sealer::default(), opener: Opener::default() }
    }

    /// A new session, attached to the export, and the handle of its root.
    pub fn attach(self) -> (Peer, HelloReply, Handle) {
        self.attach_to("/e")
    }

    pub fn attach_to(mut self, export: &str) -> (Peer, HelloReply, Handle) {
        let reply = self.hello(0, [0; 16]).unwrap();
        let mut body = Vec::new();
        Attach { export, read_only: false }.encode(&mut body);
        let (_, body) = self.call(Op::Attach, (0, 0), &body);
        let root = AttachReply::decode(&body).unwrap().root.handle;
        (self, reply, root)
    }

    /// A frame as it is sent.
    pub fn sealed(&mut self, header: Header, body: &[u8]) -> Vec<u8> {
        let header = Header { body_length: body.len() as u32, ..header };
        let mut frame = [&header.encode()[..], body].concat();
        self.sealer.seal(&mut frame, &[]);
        frame
    }

    pub fn send(&mut self, header: Header, body: &[u8]) {
        let frame = self.sealed(header, body);
        // A server that has closed the connection meanwhile is what some tests are about.
        let _ = self.stream.write_all(&frame);
    }

    pub fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let (header, body) = self.receive_unchecked()?;
        self.opener.check(&header, &body[..header.body_length as usize]).unwrap();
        Some((header, body))
    }

    pub fn receive_unchecked(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER_SIZE];
        self.stream.read_exact(&mut bytes).ok()?;
        let header = Header::decode(&bytes).unwrap();
        let mut body = vec![0; (header.body_length + header.payload_length) as usize];
        self.stream.read_exact(&mut body).ok()?;
        Some((header, body))
    }

    pub fn hello(&mut self, session: u64, secret: [u8; 16]) -> Result<HelloReply, u32> {
        let mut body = Vec::new();
        Hello { session, secret, ..hello() }.encode(&mut body);
        self.send(Header::new(Kind::Hello), &body);
        let (header, body) = self.receive().unwrap();
        if header.status == 0 { Ok(HelloReply::decode(&body).unwrap()) } else { Err(header.status) }
    }

    pub fn request(&mut self, op: Op, (slot, sequence): (u32, u32), body: &[u8]) -> u64 {
        let mut header = Header::new(Kind::Request);
        header.op = op as u16;
        header.slot = slot;
        header.sequence = sequence;
        header.request = self.next;
        self.next += 1;
        self.send(header, body);
        header.request
    }

    pub fn call(&mut self, op: Op, place: (u32, u32), body: &[u8]) -> (Header, Vec<u8>) {
        let id = self.request(op, place, body);
        let (header, body) = self.receive().unwrap();
        assert_eq!(header.request, id);
        (header, body)
    }

    pub fn file(&mut self, place: (u32, u32), request: &Request<'_>) -> (Header, Vec<u8>) {
        let mut body = Vec::new();
        let op = encode_request(&context(), request, &mut body);
        self.call(op, place, &body)
    }

    /// The reason of a goodbye, after which the connection must end.
    pub fn goodbye(&mut self) -> String {
        let (header, body) = self.receive().expect("a goodbye");
        assert_eq!(header.kind, Kind::Goodbye);
        assert!(self.receive().is_none());
        String::from_utf8(body).unwrap()
    }
}

/// The greeting of a client without a key that begins a session.
pub fn hello() -> Hello {
    Hello {
        version_min: VERSION,
        version_max: VERSION,
        capabilities: Capabilities::COMPOUND | Capabilities::PENDING | Capabilities::CHECKSUM,
        session: 0,
        secret: [0; 16],
        lane: Lane::Control,
        client_instance: [1; 16],
        client_name: "peer".into(),
        nonce: None,
    }
}

pub fn context() -> Context {
    Context::new(ClientId(0), Credential::root())
}

pub fn make_directory<'a>(root: &'a Handle, name: &'a str) -> Request<'a> {
    Request::MakeDirectory { parent: root.bytes(), name: name.as_bytes(), mode: 0o755, umask: 0 }
}

pub fn locked_file(peer: &mut Peer, root: &Handle) -> OpenId {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let create = Request::Create { parent: root.bytes(), name: b"l", mode: 0o644, umask: 0, flags };
    let (header, body) = peer.file((0, 1), &create);
    assert_eq!(header.status, 0);
    decode_reply(Op::Create, &body).unwrap().created().unwrap().1.id
}

pub fn set_lock(open: OpenId, owner: u64, kind: LockKind, wait: bool) -> Request<'static> {
    Request::SetLock { open, owner, space: LockSpace::Posix, lock: Lock { start: 0, end: 9, kind, pid: 1 }, wait }
}

/// The result of a request: its reply, or the errno.
pub fn result(op: Op, (header, body): (Header, Vec<u8>)) -> Result<Reply, Errno> {
    match header.status {
        0 => Ok(decode_reply(op, &body).unwrap()),
        number => Err(Errno::from_raw(number as i32)),
    }
}

impl Peer {
    /// Sends a request and returns its result.
    pub fn ask(&mut self, place: (u32, u32), request: &Request<'_>) -> Result<Reply, Errno> {
        let answer = self.file(place, request);
        result(Op::of(request), answer)
    }

    pub fn create(
        &mut self,
        place: (u32, u32),
        root: &Handle,
        name: &str,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        let create = Request::Create { parent: root.bytes(), name: name.as_bytes(), mode: 0o644, umask: 0, flags };
        self.ask(place, &create)?.created()
    }

    pub fn write(&mut self, place: (u32, u32), write: &WriteAt, data: &[u8]) -> Result<Written, Errno> {
        let mut body = Vec::new();
        encode_write(&context(), write, &mut body);
        result(Op::Write, self.call_with(Op::Write, place, &body, data))?.written()
    }

    /// Sends a request with a payload.
    pub fn send_with(&mut self, op: Op, (slot, sequence): (u32, u32), body: &[u8], data: &[u8]) {
        let mut header = Header { op: op as u16, slot, sequence, request: self.next, ..Header::new(Kind::Request) };
        self.next += 1;
        header.body_length = body.len() as u32;
        header.payload_length = data.len() as u32;
        self.stream.write_all(&[&header.encode()[..], body, data].concat()).unwrap();
    }

    pub fn call_with(&mut self, op: Op, place: (u32, u32), body: &[u8], data: &[u8]) -> (Header, Vec<u8>) {
        self.send_with(op, place, body, data);
        self.receive().unwrap()
    }
}
