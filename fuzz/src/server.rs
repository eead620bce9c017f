//! A server over a synthetic file system, and a client that sends it what it likes on one connection. Whatever that is, the server goes on, and its
//! successful replies have the form of their operation.
//!
//! The first byte: 1, headers are left as they are (else they get their checksums). The rest is the stream.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::synthetic::Synthetic;
use aqueduct_fs::{OpenFlags, OpenId, ReadAt, Request, SetAttr, WriteAt};
use aqueduct_server::{Access, Export, External, Limits, Server, ServerConfig, Squash, export_id};
use aqueduct_wire::{
    Attach, AttachReply, Capabilities, Flags, Header, Hello, HelloReply, Kind, LeaseId, Op, Opener, Sealer,
    ServerIdentity, decode_fetched, decode_leases, decode_listed, decode_reply, encode_cancel, encode_compound,
    encode_fetch, encode_leases, encode_read, encode_release_locks, encode_request, encode_write, take_grants,
};

use tempfile::TempDir;

use crate::turner::Turner;
use crate::{greeting, receive, samples};

const RAW_HEADERS: u8 = 1;
const EXPORT: &str = "zero";
/// What the synthetic file system calls its root and its file.
const ROOT: &[u8] = b"root";
const FILE: &[u8] = b"zero";
const FILE_OPEN: OpenId = OpenId(1);

/// What all inputs share.
struct World {
    turner: Turner,
    address: SocketAddr,
    _server: Arc<Server>,
    /// Where sessions are written down, without which no leases are granted.
    _sessions: TempDir,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// A server of one export that listens nowhere.
pub(crate) fn config() -> ServerConfig {
    let export = Export {
        name: EXPORT.into(),
        id: export_id(EXPORT),
        filesystem: Arc::new(Synthetic { size: 1 << 20 }),
        read_only: false,
        path: String::new(),
        access: Access { squash: Some(Squash::None), ..Access::default() },
        durable: false,
        external: External::None,
    };
    let identity = Some(ServerIdentity::default());
    ServerConfig {
        name: "server.example".into(),
        identity,
        verifier: 8,
        exports: vec![export],
        ..ServerConfig::default()
    }
}

impl World {
    fn new() -> World {
        let turner = Turner::new();
        // Nobody comes back to a session, and few slots are soon met again.
        let limits = Limits { sessions_max: 64, slots: 4, session_grace: Duration::ZERO, ..Limits::default() };
        // What those had who have gone is no longer in the way.
        let short = Duration::from_millis(1);
        let limits = Limits { lease: short, lease_patience: short, lease_answer: short, ..limits };
        let sessions = tempfile::tempdir().expect("there is room");
        let listen = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        let config = ServerConfig { listen, limits, sessions: Some(sessions.path().into()), ..config() };
        let server = Server::start(config, turner.group.clone()).expect("loopback has a port");
        World { address: server.addresses()[0], turner, _server: server, _sessions: sessions }
    }

    /// What the server answers to a stream, until it closes.
    fn exchange(&self, stream: &[u8]) -> Vec<u8> {
        let mut client = TcpStream::connect(self.address).expect("the server listens");
        client.write_all(stream).expect("it fits into the buffers of the kernel");
        client.shutdown(Shutdown::Write).expect("it is connected");
        client.set_nonblocking(true).expect("it is a socket");
        let mut answers = Vec::new();
        loop {
            self.turner.turn();
            match client.read_to_end(&mut answers) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // What the server did not read, because it was damaged, resets the connection.
                Ok(_) | Err(_) => return answers,
            }
        }
    }
}

/// A reply of the form that its operation has.
fn check((header, body, payload): &receive::Whole) {
    assert!(payload.is_empty() || header.op == Op::Read as u16, "{header:?} has a payload");
    let mut body = &body[..];
    if header.flags.contains(Flags::GRANTS) {
        let (granted, rest) = take_grants(body).expect("leases that make sense");
        assert!(!granted.grants.is_empty() && header.kind == Kind::Reply, "{header:?}");
        body = rest;
    }
    match header.kind {
        Kind::Callback => assert!(decode_leases(body).is_ok(), "{header:?} {body:?}"),
        Kind::HelloReply if header.status == 0 => assert!(HelloReply::decode(body).is_ok(), "{header:?} {body:?}"),
        Kind::Reply if header.status == 0 => match Op::from_code(header.op).expect("it was executed") {
            Op::Attach => assert!(AttachReply::decode(body).is_ok(), "{header:?} {body:?}"),
            Op::Status | Op::Compound | Op::Recovered | Op::Locks | Op::ReleaseLocks => {}
            Op::Fetch => assert!(decode_fetched(body).is_ok(), "{header:?} {body:?}"),
            Op::List => assert!(decode_listed(body).is_ok(), "{header:?} {body:?}"),
            op => assert!(decode_reply(op, body).is_ok(), "{header:?} {body:?}"),
        },
        _ => {}
    }
}

/// See the module.
pub fn run(data: &[u8]) {
    let Some((how, stream)) = data.split_first() else { return };
    let mut stream = stream.to_vec();
    if how & RAW_HEADERS == 0 {
        receive::seal_headers(&mut stream, &mut Sealer::default());
    }
    let answers = WORLD.with_borrow_mut(|world| world.get_or_insert_with(World::new).exchange(&stream));
    receive::frames(&answers, Opener::default()).iter().for_each(check);
}

/// Frames of a client.
struct Stream {
    bytes: Vec<u8>,
    sequence: u32,
    flags: Flags,
}

impl Stream {
    /// One that has greeted and attached.
    fn attached() -> Stream {
        let mut stream = Stream { bytes: vec![0], sequence: 0, flags: Flags::empty() };
        // Who administers would have to prove it.
        let hello = greeting::hello();
        let capabilities = hello.capabilities - Capabilities::ADMINISTRATOR;
        let hello = Hello { session: 0, capabilities, ..hello };
        stream.frame(Header::new(Kind::Hello), |body| hello.encode(body), &[]);
        stream.request(Op::Attach, false, |body| Attach { export: EXPORT, read_only: false }.encode(body), &[]);
        stream
    }

    fn frame(&mut self, header: Header, encode: impl FnOnce(&mut Vec<u8>), payload: &[u8]) {
        let mut body = Vec::new();
        encode(&mut body);
        let header = Header { body_length: body.len() as u32, payload_length: payload.len() as u32, ..header };
        self.bytes.extend_from_slice(&header.encode());
        self.bytes.extend_from_slice(&body);
        self.bytes.extend_from_slice(payload);
    }

    fn request(&mut self, op: Op, in_slot: bool, encode: impl FnOnce(&mut Vec<u8>), payload: &[u8]) {
        self.sequence += u32::from(in_slot);
        let sequence = if in_slot { self.sequence } else { 0 };
        let flags = self.flags;
        let header = Header { op: op as u16, sequence, request: 7, flags, ..Header::new(Kind::Request) };
        self.frame(header, encode, payload);
    }

    fn ask(&mut self, request: &Request<'_>) {
        let encode = |body: &mut Vec<u8>| {
            encode_request(&samples::context(), request, body);
        };
        self.request(Op::of(request), request.changes_state(), encode, &[]);
    }
}

/// A greeting and one request of each operation; what the file system has; and frames that are no requests.
pub fn seeds() -> Vec<Vec<u8>> {
    let context = samples::context();
    let mut streams: Vec<Stream> = samples::requests()
        .iter()
        .map(|request| {
            let mut stream = Stream::attached();
            stream.ask(request);
            stream
        })
        .collect();
    let mut used = Stream::attached();
    let requests = [
        Request::Lookup { parent: ROOT, name: FILE },
        Request::GetAttr { handle: FILE, open: None },
        Request::Open { handle: FILE, flags: OpenFlags::READ },
        Request::ReadDirectory { open: OpenId(2), cookie: 0, size: 4096, plus: true },
        Request::Flush { open: FILE_OPEN, owner: 1 },
    ];
    requests.iter().for_each(|request| used.ask(request));
    let read = ReadAt { open: FILE_OPEN, offset: 0, length: 100 };
    used.request(Op::Read, false, |body| encode_read(&context, &read, body), &[]);
    let write = WriteAt { open: FILE_OPEN, offset: 0, append: false, stable: true };
    used.request(Op::Write, true, |body| encode_write(&context, &write, body), &[7; 100]);
    used.request(Op::Compound, true, |body| encode_compound(&context, &requests, body), &[]);
    used.request(Op::Status, false, |_| {}, &[]);
    used.request(Op::Recovered, false, |_| {}, &[]);
    used.request(Op::Locks, false, |_| {}, &[]);
    used.request(Op::ReleaseLocks, false, |body| encode_release_locks(1, body), &[]);
    let mut leasing = Stream::attached();
    leasing.flags = Flags::LEASES;
    requests.iter().for_each(|request| leasing.ask(request));
    leasing.request(Op::Fetch, false, |body| encode_fetch(&context, &[FILE], 100, body), &[]);
    let own = [LeaseId(0), LeaseId(1 << 32 | 3), LeaseId(u64::MAX)];
    leasing.frame(Header::new(Kind::CallbackReply), |body| encode_leases(&own, body), &[]);
    leasing.ask(&Request::SetAttr { handle: FILE, open: None, set: SetAttr { size: Some(1), ..SetAttr::default() } });
    let mut others = Stream::attached();
    others.frame(Header::new(Kind::Ping), |_| {}, &[]);
    others.frame(Header::new(Kind::Cancel), |body| encode_cancel(7, body), &[]);
    others.frame(Header::new(Kind::Goodbye), |body| body.extend_from_slice(b"enough"), &[]);
    streams.extend([leasing, used, others]);
    streams.into_iter().map(|stream| stream.bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_served() {
        let world = World::new();
        let answers = |seed: &[u8]| receive::frames(&world.exchange(&seed[1..]), Opener::default());
        let succeeded = |(header, _, _): &receive::Whole| header.kind == Kind::Reply && header.status == 0;
        let seeds = seeds();
        assert!(seeds.iter().all(|seed| answers(seed).iter().any(succeeded)), "a client attaches");
        let used = answers(&seeds[seeds.len() - 2]);
        assert!(used.iter().filter(|answer| succeeded(answer)).count() >= 10, "{used:?}");
        let leasing = answers(&seeds[seeds.len() - 3]);
        assert!(leasing.iter().any(|(header, _, _)| header.flags.contains(Flags::GRANTS)), "{leasing:?}");
    }
}
