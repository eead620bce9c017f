//! A server over a temporary directory, and a peer that sends it hand-made frames.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod gate;
pub mod timers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aqueduct_fs::late::Late;
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix, Watch, Watcher};
use aqueduct_server::{Access, Export, External, Limits, Server, ServerConfig, Squash};
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

/// Who the server is, each time it starts.
pub const SERVER: ServerIdentity = ServerIdentity { id: ServerId([7; 16]), incarnation: 1 };

/// Short times, for tests that wait for them.
pub fn limits() -> Limits {
    Limits {
        session_grace: Duration::from_millis(300),
        hello_timeout: Duration::from_millis(500),
        slots: 4,
        ..Limits::default()
    }
}

/// What a server of these tests stands over, below the layers of a test.
pub type Lower = Arc<dyn FileSystem>;

fn posix(directory: &std::path::Path, key: u8) -> Posix {
    Posix::open(directory, Options { key: [key; 32], keep_unlinked: true, ..Options::default() }).unwrap()
}

/// In the program `late` all of them stand over one that answers late.
const IS_LATE: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"late");

/// The longest that a call is late, before it is executed and after: some of a server's own steps,
/// and what the tests of a lease's times may lose of their patience.
const LATE_MAX: Duration = Duration::from_millis(2);

/// A file system as the servers of this program have it. LATE_SEED=7 gives other times where it is
/// late.
pub fn lower(filesystem: impl FileSystem + 'static) -> Lower {
    if !IS_LATE {
        return Arc::new(filesystem);
    }
    let seed = std::env::var("LATE_SEED").map_or(1, |seed| seed.parse().expect("LATE_SEED is a number"));
    Arc::new(Late::new(filesystem, LATE_MAX, seed, timers::Timers))
}

/// Who is let in, and how.
#[derive(Clone)]
pub struct Guard {
    pub access: Access,
    keys: Vec<Key>,
    administrator: Option<Key>,
    checksums: Checksums,
    /// A second address.
    pub listens_too: Option<SocketAddr>,
}

/// Everybody, as themselves: peers come by TCP, where root is nobody unless it is said otherwise.
impl Default for Guard {
    fn default() -> Guard {
        let (keys, administrator, checksums) = (Vec::new(), None, Checksums::default());
        Guard { access: trusting(), keys, administrator, checksums, listens_too: None }
    }
}

/// Root is root.
pub fn trusting() -> Access {
    Access { squash: Some(Squash::None), ..Access::default() }
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

fn start_all(
    filesystems: Vec<Arc<dyn FileSystem>>,
    sessions: Option<&std::path::Path>,
    listen: SocketAddr,
    limits: Limits,
    guard: Guard,
) -> (Arc<Server>, Arc<Group>) {
    let (config, group) = config(filesystems, sessions, listen, limits, guard);
    (Server::start(config, group.clone()).unwrap(), group)
}

/// The exports are `/e`, `/f` and so on.
fn config(
    filesystems: Vec<Arc<dyn FileSystem>>,
    sessions: Option<&std::path::Path>,
    listen: SocketAddr,
    limits: Limits,
    guard: Guard,
) -> (ServerConfig, Arc<Group>) {
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
        listen: [listen].into_iter().chain(guard.listens_too).collect(),
        name: "server".into(),
        identity: Some(SERVER),
        verifier: 9,
        limits,
        exports,
        keys: guard.keys,
        administrator: guard.administrator,
        checksums: guard.checksums,
        sessions: sessions.map(Into::into),
        ..ServerConfig::default()
    };
    (config, group)
}

fn over_nothing(lower: Lower) -> Lower {
    lower
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(None, Guard::default(), over_nothing)
    }

    /// One with a layer over its directory.
    pub fn layered(layer: impl FnOnce(Lower) -> Lower) -> Fixture {
        Fixture::with(None, Guard::default(), layer)
    }

    /// One whose sessions outlive it.
    pub fn surviving() -> Fixture {
        Fixture::allowing(trusting())
    }

    /// The same, with an export that is not for everybody.
    pub fn allowing(access: Access) -> Fixture {
        Fixture::with(Some(tempfile::tempdir().unwrap()), Guard { access, ..Guard::default() }, over_nothing)
    }

    /// One that serves only who has one of these keys.
    pub fn keyed(keys: &[Key]) -> Fixture {
        Fixture::with(None, Guard { keys: keys.to_vec(), ..Guard::default() }, over_nothing)
    }

    /// The same, with an export that is not the same for everybody.
    pub fn keyed_with(keys: &[Key], access: Access) -> Fixture {
        Fixture::with(None, Guard { keys: keys.to_vec(), access, ..Guard::default() }, over_nothing)
    }

    /// One that serves only who has one of these keys, or everybody if there are none, and whose administrator has another.
    pub fn administered(keys: &[Key], administrator: Key) -> Fixture {
        let (keys, administrator) = (keys.to_vec(), Some(administrator));
        Fixture::with(None, Guard { keys, administrator, ..Guard::default() }, over_nothing)
    }

    /// One that listens on these addresses.
    pub fn listening(address: SocketAddr, listens_too: Option<SocketAddr>) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let (filesystem, guard) = (lower(posix(directory.path(), 5)), Guard { listens_too, ..Guard::default() });
        let (server, group) = start(filesystem, None, address, limits(), guard.clone());
        Fixture { server, group, directory, sessions: None, guard }
    }

    /// One that wants checksums, or not.
    pub fn checking(checksums: Checksums) -> Fixture {
        Fixture::with(None, Guard { checksums, ..Guard::default() }, over_nothing)
    }

    /// One whose sessions outlive it, with limits of its own.
    pub fn limited(limits: Limits) -> Fixture {
        Fixture::limited_over(limits, over_nothing)
    }

    /// The same, with a layer over its directory.
    pub fn limited_over(limits: Limits, layer: impl FnOnce(Lower) -> Lower) -> Fixture {
        Fixture::with_limits(Some(tempfile::tempdir().unwrap()), (Guard::default(), limits), layer)
    }

    /// One whose sessions outlive it, with two exports of its directory, `/e` and `/f`, whose handles differ.
    pub fn twofold(mut layer: impl FnMut(Lower) -> Lower) -> Fixture {
        let (directory, sessions) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut filesystem = |key| layer(lower(posix(directory.path(), key)));
        let (filesystems, guard) = (vec![filesystem(5), filesystem(6)], Guard::default());
        let listen = "127.0.0.1:0".parse().unwrap();
        let (server, group) = start_all(filesystems, Some(sessions.path()), listen, limits(), guard.clone());
        Fixture { server, group, directory, sessions: Some(sessions), guard }
    }

    /// As [`limited`](Fixture::limited), and it is told what others change in its directory; `None`: that cannot be had.
    pub fn watched(limits: Limits) -> Option<(Fixture, Watcher)> {
        let (mut watch, mut added) = (Watch::default(), false);
        let over = |posix: Posix| {
            added = watch.add(&posix).is_ok();
            lower(posix)
        };
        let fixture = Fixture::over(Some(tempfile::tempdir().unwrap()), (Guard::default(), limits), over);
        let watcher = watch.start(vec![fixture.server.outside(); usize::from(added)]).unwrap();
        added.then_some((fixture, watcher))
    }

    fn with(sessions: Option<tempfile::TempDir>, guard: Guard, layer: impl FnOnce(Lower) -> Lower) -> Fixture {
        Fixture::with_limits(sessions, (guard, limits()), layer)
    }

    fn with_limits(
        sessions: Option<tempfile::TempDir>,
        terms: (Guard, Limits),
        layer: impl FnOnce(Lower) -> Lower,
    ) -> Fixture {
        Fixture::over(sessions, terms, |posix| layer(lower(posix)))
    }

    fn over(
        sessions: Option<tempfile::TempDir>,
        (guard, limits): (Guard, Limits),
        over: impl FnOnce(Posix) -> Lower,
    ) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let folder = sessions.as_ref().map(|folder| folder.path());
        let filesystem = over(posix(directory.path(), 5));
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
        self.start_again_over(limits, over_nothing);
    }

    /// The same, with a layer over its directory.
    pub fn start_again_over(&mut self, limits: Limits, layer: impl FnOnce(Lower) -> Lower) {
        let folder = self.sessions.as_ref().map(|folder| folder.path());
        let filesystem = layer(lower(posix(self.directory.path(), 5)));
        let (address, guard) = (self.server.addresses()[0], self.guard.clone());
        (self.server, self.group) = start(filesystem, folder, address, limits, guard);
    }

    /// As [`start_again`](Fixture::start_again), with something in the way.
    pub fn try_start_again(&self) -> Result<(), aqueduct_server::StartError> {
        let folder = self.sessions.as_ref().map(|folder| folder.path());
        let (address, guard) = (self.server.addresses()[0], self.guard.clone());
        let (config, group) = config(vec![lower(posix(self.directory.path(), 5))], folder, address, limits(), guard);
        let started = Server::start(config, group.clone()).map(drop);
        group.stop();
        group.join();
        started
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
    /// The number of this connection in its session.
    pub link: u32,
    next: u64,
    pub sealer: Sealer,
    pub opener: Opener,
}

impl Peer {
    pub fn over(stream: TcpStream) -> Peer {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Peer { stream, link: 0, next: 1, sealer: Sealer::default(), opener: Opener::default() }
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
        self.greet(&Hello { session, link: link(), ..hello() }, secret)
    }

    /// Greets as it is said, and proves to have the secret if that is asked for. The answer has
    /// the secret in any case.
    pub fn greet(&mut self, hello: &Hello, secret: [u8; 16]) -> Result<HelloReply, u32> {
        let mut sent = Vec::new();
        hello.encode(&mut sent);
        self.send(Header::new(Kind::Hello), &sent);
        self.link = hello.link;
        const CLOSED: u32 = u32::MAX;
        let Some((mut header, mut body)) = self.receive() else { return Err(CLOSED) };
        if header.kind == Kind::Challenge {
            let greeted = Header { body_length: sent.len() as u32, ..Header::new(Kind::Hello) };
            let transcript = Transcript::new((&greeted, &sent), (&header, &body));
            let mut proof = Vec::new();
            Proof { key: None, session: Some(session_proof(&secret, &transcript)) }.encode(&mut proof);
            self.send(Header::new(Kind::Proof), &proof);
            let Some(answer) = self.receive() else { return Err(CLOSED) };
            (header, body) = answer;
        }
        assert_eq!(header.kind, Kind::HelloReply);
        match header.status {
            0 if hello.session == 0 => Ok(HelloReply::decode(&body).unwrap()),
            0 => Ok(HelloReply { secret, ..HelloReply::decode(&body).unwrap() }),
            status => Err(status),
        }
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

/// The number of another connection.
pub fn link() -> u32 {
    static LINKS: AtomicU32 = AtomicU32::new(1);
    LINKS.fetch_add(1, Ordering::Relaxed)
}

/// The greeting of a client without a key that begins a session.
pub fn hello() -> Hello {
    Hello {
        version_min: VERSION,
        version_max: VERSION,
        capabilities: Capabilities::COMPOUND | Capabilities::PENDING | Capabilities::CHECKSUM,
        session: 0,
        server: None,
        link: 0,
        lane: Lane::Control,
        client_instance: [1; 16],
        client_name: "peer".into(),
        nonce: [3; NONCE_LENGTH],
        keyed: false,
        node: None,
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
