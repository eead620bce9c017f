//! A client that asks for leases, and shows what it is granted and asked for.

use std::collections::VecDeque;
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;

use super::common::{self, *};

pub const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
pub const ATTRIBUTES: Aspects = Aspects::ATTRIBUTES;
pub const DATA: Aspects = Aspects::DATA;
pub const NAMES: Aspects = Aspects::NAMES;
pub const EXCLUSIVE: Aspects = ATTRIBUTES.union(DATA).union(Aspects::WRITES);

/// Without a hold-off, which would refuse what a test asks for, and with as many slots as it needs.
pub fn quick() -> Limits {
    Limits { slots: 64, lease_holdoff: Duration::ZERO, hello_timeout: Duration::from_secs(10), ..common::limits() }
}

pub struct Client {
    pub peer: Peer,
    pub session: HelloReply,
    pub root: Handle,
    sequence: u32,
    /// Of all requests: whether it asks for leases.
    pub flags: Flags,
    /// Of the latest reply.
    pub grants: Vec<Grant>,
    /// Of the directory that the request has changed.
    pub changed: Option<Attr>,
    pub renews: bool,
    recalls: VecDeque<Vec<LeaseId>>,
    replies: Vec<(Header, Vec<u8>)>,
}

impl Client {
    pub fn new(fixture: &Fixture) -> Client {
        let (peer, session, root) = fixture.attached();
        Client::over(peer, session, root)
    }

    pub fn over(peer: Peer, session: HelloReply, root: Handle) -> Client {
        let (flags, grants, recalls, replies) = (Flags::LEASES, Vec::new(), VecDeque::new(), Vec::new());
        Client { peer, session, root, sequence: 0, flags, grants, changed: None, renews: false, recalls, replies }
    }

    /// One that asks for no leases.
    pub fn plain(fixture: &Fixture) -> Client {
        Client { flags: Flags::empty(), ..Client::new(fixture) }
    }

    /// One that would hold back what it writes.
    pub fn exclusive(fixture: &Fixture) -> Client {
        Client { flags: Flags::LEASES | Flags::EXCLUSIVE, ..Client::new(fixture) }
    }

    fn header(&mut self, op: Op, changes: bool) -> Header {
        self.sequence += 1;
        let (slot, sequence) = if changes { (self.sequence % 64, self.sequence) } else { (0, 0) };
        let request = 1_000_000 + u64::from(self.sequence);
        Header { op: op as u16, flags: self.flags, request, slot, sequence, ..Header::new(Kind::Request) }
    }

    /// Sends a request; what comes of it is had by [`Client::take`].
    pub fn send(&mut self, request: &Request<'_>) -> u64 {
        let mut body = Vec::new();
        let op = encode_request(&context(), request, &mut body);
        let header = self.header(op, request.changes_state());
        self.peer.send(header, &body);
        header.request
    }

    pub fn send_write(&mut self, open: OpenId, data: &[u8]) -> u64 {
        let header = self.header(Op::Write, true);
        self.send_write_as(header, open, data)
    }

    /// What is sent again after the machine has lost it.
    pub fn send_write_again(&mut self, open: OpenId, data: &[u8]) -> u64 {
        let header = self.header(Op::Write, false);
        self.send_write_as(header, open, data)
    }

    /// What was held back.
    pub fn send_held(&mut self, open: OpenId, data: &[u8]) -> u64 {
        let header = self.header(Op::Write, true);
        self.send_write_as(Header { flags: Flags::HELD, class: Class::Releasing, ..header }, open, data)
    }

    /// A chmod that was held back.
    pub fn send_held_set(&mut self, request: &Request<'_>, again: bool) -> u64 {
        let mut body = Vec::new();
        let op = encode_request(&context(), request, &mut body);
        let header = Header { flags: Flags::HELD, ..self.header(op, !again) };
        self.peer.send(header, &body);
        header.request
    }

    /// The next request is the latest once more.
    pub fn repeats(&mut self) {
        self.sequence -= 1;
    }

    /// An append that was held back, in a slot or without.
    pub fn send_held_append(&mut self, open: OpenId, data: &[u8], in_slot: bool) -> u64 {
        let mut body = Vec::new();
        encode_write(&context(), &WriteAt { open, offset: 0, append: true, stable: false }, &mut body);
        let header =
            Header { flags: Flags::HELD, payload_length: data.len() as u32, ..self.header(Op::Write, in_slot) };
        self.peer.send(header, &body);
        std::io::Write::write_all(&mut self.peer.stream, data).unwrap();
        header.request
    }

    /// What was held back before the server was started again.
    pub fn send_held_again(&mut self, open: OpenId, data: &[u8]) -> u64 {
        let header = self.header(Op::Write, false);
        self.send_write_as(Header { flags: Flags::HELD, ..header }, open, data)
    }

    pub fn send_read(&mut self, open: OpenId) -> u64 {
        let mut body = Vec::new();
        encode_read(&context(), &ReadAt { open, offset: 0, length: 100 }, &mut body);
        let header = self.header(Op::Read, false);
        self.peer.send(header, &body);
        header.request
    }

    /// Fetch or List of one inode.
    pub fn send_fetch(&mut self, op: Op, handle: &Handle) -> u64 {
        let mut body = Vec::new();
        match op {
            Op::List => encode_list(&context(), &[handle.bytes()], &mut body),
            _ => encode_fetch(&context(), &[handle.bytes()], 100, &mut body),
        }
        let header = self.header(op, false);
        self.peer.send(header, &body);
        header.request
    }

    fn send_write_as(&mut self, header: Header, open: OpenId, data: &[u8]) -> u64 {
        let mut body = Vec::new();
        encode_write(&context(), &WriteAt { open, offset: 0, append: false, stable: false }, &mut body);
        self.peer.send(Header { payload_length: data.len() as u32, ..header }, &body);
        std::io::Write::write_all(&mut self.peer.stream, data).unwrap();
        header.request
    }

    pub fn send_compound(&mut self, requests: &[Request<'_>]) -> u64 {
        let mut body = Vec::new();
        encode_compound(&context(), requests, &mut body);
        let header = self.header(Op::Compound, true);
        self.peer.send(header, &body);
        header.request
    }

    /// The next frame is put where it belongs. False: none comes in time.
    fn receive(&mut self) -> bool {
        let Some((header, body)) = self.peer.receive() else { return false };
        if header.flags.contains(Flags::TRAILER) {
            std::io::Read::read_exact(&mut self.peer.stream, &mut [0; TRAILER_SIZE]).unwrap();
        }
        match header.kind {
            Kind::Callback => {
                assert_eq!(header.class, Class::Callback);
                self.recalls.push_back(decode_leases(&body).unwrap());
            }
            _ => self.replies.push((header, body)),
        }
        true
    }

    /// The reply to a request, with its grants taken off.
    pub fn take(&mut self, request: u64) -> Result<Vec<u8>, Errno> {
        let at = loop {
            match self.replies.iter().position(|(header, _)| header.request == request) {
                Some(at) => break at,
                None => assert!(self.receive(), "the server answers {request}"),
            }
        };
        let (header, body) = self.replies.remove(at);
        let has_grants = header.flags.contains(Flags::GRANTS);
        let (granted, rest) = if has_grants { take_grants(&body).unwrap() } else { (Granted::default(), &body[..]) };
        assert!(!has_grants || !granted.grants.is_empty());
        (self.grants, self.changed) = (granted.grants, granted.changed);
        self.renews = header.flags.contains(Flags::RENEWS);
        match header.status {
            0 => Ok(rest.to_vec()),
            number => Err(Errno::from_raw(number as i32)),
        }
    }

    pub fn ask(&mut self, request: &Request<'_>) -> Result<Reply, Errno> {
        let id = self.send(request);
        self.take(id).map(|body| decode_reply(Op::of(request), &body).unwrap())
    }

    /// Nothing is answered within a moment.
    pub fn waits(&mut self) -> bool {
        let usual = self.peer.stream.read_timeout().unwrap();
        self.peer.stream.set_read_timeout(Some(Duration::from_millis(60))).unwrap();
        let waits = !self.receive();
        self.peer.stream.set_read_timeout(usual).unwrap();
        waits
    }

    /// The next leases that the server asks for.
    pub fn recalled(&mut self) -> Vec<LeaseId> {
        while self.recalls.is_empty() {
            assert!(self.receive(), "the server asks");
        }
        self.recalls.pop_front().unwrap()
    }

    /// Nothing is asked for.
    pub fn is_left_alone(&mut self) -> bool {
        self.recalls.is_empty() && self.waits() && self.recalls.is_empty()
    }

    pub fn give_back(&mut self, leases: &[LeaseId]) {
        let mut body = Vec::new();
        encode_leases(leases, &mut body);
        self.peer.send(Header { class: Class::Callback, ..Header::new(Kind::CallbackReply) }, &body);
    }

    /// What the latest reply grants on a subject.
    pub fn granted(&self, subject: Subject) -> Option<(Aspects, LeaseId)> {
        let mut of = self.grants.iter().filter(|grant| grant.subject == subject);
        let found = of.next().map(|grant| (grant.aspects, grant.lease));
        assert!(of.next().is_none());
        found
    }

    /// Asks, and expects a lease on the inode of the reply.
    pub fn lease(&mut self, request: &Request<'_>) -> LeaseId {
        self.ask(request).unwrap();
        self.granted(Subject::Inode).expect("a lease").1
    }

    /// The session goes on over a new connection; the old one has gone. What was not answered is not.
    pub fn reconnect(&mut self, fixture: &Fixture) {
        let (peer, reply) = fixture.joined(&self.session);
        assert!(!reply.recovering);
        self.peer = peer;
        self.recalls.clear();
    }

    /// The session goes on at another server.
    pub fn recover(&mut self, fixture: &Fixture) {
        self.peer = fixture.recovered(&self.session, &[]);
        self.recalls.clear();
    }

    /// Gives back what the latest reply granted, and goes when the server has understood.
    pub fn let_go(mut self) {
        let leases: Vec<_> = self.grants.iter().map(|grant| grant.lease).collect();
        self.give_back(&leases);
        self.flags = Flags::empty();
        let root = self.root.clone();
        self.ask(&get_attr(&root)).unwrap();
        self.leave();
    }

    /// Says that it goes, and waits until the server has understood.
    pub fn leave(mut self) {
        self.peer.send(Header::new(Kind::Goodbye), &[]);
        while self.receive() {}
    }
}

pub fn get_attr(handle: &Handle) -> Request<'_> {
    Request::GetAttr { handle: handle.bytes(), open: None }
}

pub fn look_up<'a>(parent: &'a Handle, name: &'a str) -> Request<'a> {
    Request::Lookup { parent: parent.bytes(), name: name.as_bytes() }
}

pub fn chmod(handle: &Handle, mode: u32) -> Request<'_> {
    Request::SetAttr { handle: handle.bytes(), open: None, set: SetAttr { mode: Some(mode), ..SetAttr::default() } }
}
