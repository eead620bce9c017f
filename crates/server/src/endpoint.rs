//! The server's half of a connection: the handshake, then what each frame is for.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use aqueduct_fs::{Errno, Sink, TRANSFER_SIZE_MAX};
use aqueduct_net::{Closed, Connection, Endpoint, Frame};
use aqueduct_wire::{
    CancelOutcome, CancelReply, Capabilities, Challenge, HEADER_SIZE, Header, Hello, HelloReply, Kind, Lane,
    NONCE_LENGTH, Op, Proof, Transcript, VERSION,
};

use crate::complaints::Complaint;
use crate::execute;
use crate::server::{Server, goodbye};
use crate::session::{Session, lock};

/// Bytes of a frame that comes before there is a session: HELLO has at most some 350 in this version, and may grow.
const GREETING_LENGTH_MAX: u32 = 4096;

/// Requests that one connection may have under way: what a client's own limits never exceed.
const CREDITS: u32 = 1024;

/// One connection of a client.
pub(crate) struct ServerEndpoint {
    server: Arc<Server>,
    /// Between CHALLENGE and PROOF.
    challenged: Mutex<Option<Challenged>>,
    /// It has another key.
    is_stranger: AtomicBool,
    peer: IpAddr,
    /// It is counted among those without a session.
    is_counted: AtomicBool,
    joined: OnceLock<Joined>,
}

struct Challenged {
    hello: Hello,
    checksums: bool,
    transcript: Transcript,
}

struct Joined {
    session: Arc<Session>,
    lane: Lane,
    /// This connection has proved to have the administrator's key.
    administers: bool,
}

impl ServerEndpoint {
    pub(crate) fn new(server: Arc<Server>, peer: IpAddr) -> ServerEndpoint {
        ServerEndpoint {
            server,
            challenged: Mutex::default(),
            is_stranger: AtomicBool::new(false),
            peer,
            is_counted: AtomicBool::new(true),
            joined: OnceLock::new(),
        }
    }

    /// Counts no more among those without a session.
    pub(crate) fn joined_or_gone(&self) {
        if self.is_counted.swap(false, Ordering::SeqCst) {
            self.server.joined_or_gone(self.peer);
        }
    }

    /// Ends a connection that has not come as far as it should have by now. False: it cannot have, and has as long again, since whoever attaches is told to wait
    /// for those who send again what the server's machine has lost.
    pub(crate) fn is_in_time(&self, connection: &Arc<Connection>) -> bool {
        match self.joined.get() {
            None => connection.close("no HELLO came in time".into()),
            Some(joined) if joined.session.attached.get().is_none() => {
                if self.server.recovery.awaits_replays() {
                    return false;
                }
                self.server.complain(self.peer, Complaint::Unjoined, "ended a session: no ATTACH came in time");
                self.server.end_session(&joined.session);
            }
            Some(_) => {}
        }
        true
    }

    pub(crate) fn has_session(&self) -> bool {
        self.joined.get().is_some()
    }

    fn hello(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<(), String> {
        let hello = Hello::decode(&frame.body).map_err(|error| format!("HELLO: {error}"))?;
        if hello.version_min > VERSION || hello.version_max < VERSION {
            return Err(format!(
                "this server speaks version {VERSION} of the protocol, you speak {} to {}: install the same release on both",
                hello.version_min, hello.version_max
            ));
        }
        let is_near = connection.peer().ip().to_canonical().is_loopback();
        let checksums = self.server.config.checksums.agree(hello.capabilities, is_near)?;
        let administers = hello.capabilities.contains(Capabilities::ADMINISTRATOR);
        if self.server.config.keys.is_empty() && !administers {
            self.join(connection, &hello, checksums, &frame.header);
            return Ok(());
        }
        if hello.nonce.is_none() {
            refuse(connection, &frame.header, Errno::ENOKEY);
            return Err("this server lets only those in who have its key: mount with -o key=FILE".into());
        }
        let mut nonce = [0; NONCE_LENGTH];
        getrandom::fill(&mut nonce).map_err(|error| format!("cannot make a challenge: {error}"))?;
        let mut body = Vec::new();
        Challenge { nonce }.encode(&mut body);
        let challenge = reply_header(Kind::Challenge, &frame.header).checked(&body);
        let transcript = Transcript::new((&frame.header, &frame.body), (&challenge, &body));
        match &mut *lock(&self.challenged) {
            Some(_) => return Err("one HELLO is enough".into()),
            challenged => *challenged = Some(Challenged { hello, checksums, transcript }),
        }
        send(connection, challenge, &body);
        Ok(())
    }

    /// Lets in who has one of the keys. From its answer on, each frame of the connection has a tag.
    fn proof(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<(), String> {
        let challenged = lock(&self.challenged).take().ok_or("the first frame must be HELLO, not Proof")?;
        let Proof { proof } = Proof::decode(&frame.body).map_err(|error| format!("PROOF: {error}"))?;
        let config = &self.server.config;
        let administers = challenged.hello.capabilities.contains(Capabilities::ADMINISTRATOR);
        let mut keys = if administers { config.administrator.as_slice() } else { &config.keys }.iter();
        let Some(key) = keys.find(|key| key.has_made(&proof, &challenged.transcript)) else {
            refuse(connection, &frame.header, Errno::EKEYREJECTED);
            self.is_stranger.store(true, Ordering::SeqCst);
            return Err("the client's key is none of this server's".into());
        };
        connection.set_keys(key.of_server(&challenged.transcript));
        self.join(connection, &challenged.hello, challenged.checksums, &frame.header);
        Ok(())
    }

    fn join(&self, connection: &Arc<Connection>, hello: &Hello, checksums: bool, request: &Header) {
        let mut header = reply_header(Kind::HelloReply, request);
        let session = match hello.session {
            0 => self.server.new_session(hello.client_name.clone(), connection.peer()).ok_or(Errno::ENFILE),
            id => self.server.find_session(id, &hello.secret).ok_or(Errno::ESTALE),
        };
        let session = session.and_then(|session| match session.admits(connection.peer()) {
            Err(error) => {
                let what = format_args!("refused a connection: the session of {} is another host's", hello.client_name);
                self.server.complain(self.peer, Complaint::Refused, what);
                Err(error)
            }
            Ok(()) => Ok(session),
        });
        let session = session.and_then(|session| match session.add_connection(connection) {
            true => Ok(session),
            false => Err(Errno::ESTALE),
        });
        let mut body = Vec::new();
        match session {
            Err(error) => header.status = error.raw() as u32,
            Ok(session) => {
                self.reply(&session, checksums).encode(&mut body);
                connection.set_bulk(hello.lane == Lane::Bulk);
                tracing::debug!(client = %hello.client_name, peer = %connection.peer(), lane = ?hello.lane, "a connection joined its session");
                // Without the key's proof nobody comes here who says so.
                let administers = hello.capabilities.contains(Capabilities::ADMINISTRATOR);
                let joined = self.joined.get_or_init(|| Joined { session, lane: hello.lane, administers });
                self.joined_or_gone();
                if connection.is_closed() {
                    // Its end came before there was a session to tell.
                    self.left(joined, connection, false);
                }
            }
        }
        if checksums {
            connection.add_checksums();
        }
        send(connection, header.checked(&body), &body);
        if let Some(joined) = self.joined.get().filter(|joined| joined.lane == Lane::Control) {
            joined.session.add_control(connection);
            self.server.leases.recall_again(&joined.session, connection);
        }
    }

    fn reply(&self, session: &Session, checksums: bool) -> HelloReply {
        let config = &self.server.config;
        let in_use = if checksums { Capabilities::CHECKSUM } else { Capabilities::empty() };
        HelloReply {
            version: VERSION,
            capabilities: Capabilities::COMPOUND
                | Capabilities::PENDING
                | Capabilities::EXCLUSIVE
                | Capabilities::BARE
                | Capabilities::HELD_SETATTR
                | in_use,
            session: session.id,
            secret: session.secret,
            verifier: config.verifier,
            slots: session.slots(),
            credits: CREDITS,
            payload_max: TRANSFER_SIZE_MAX as u32,
            lease_seconds: self.server.leases.lease().as_secs() as u32,
            server_name: config.name.clone(),
            recovering: session.is_recovering(),
        }
    }

    /// A connection has left its session; more than once does no harm.
    fn left(&self, joined: &Joined, connection: &Arc<Connection>, vanished: bool) {
        joined.session.cancel_waits_of(connection);
        match joined.session.remove_connection(connection) {
            Some(joins) => self.server.expire_later(&joined.session, joins, vanished),
            // What it was asked for there may be lost.
            None if joined.lane == Lane::Control => {
                if let Some(other) = joined.session.control() {
                    self.server.leases.recall_again(&joined.session, &other);
                }
            }
            None => {}
        }
    }

    fn joined_frame(&self, joined: &Joined, connection: &Arc<Connection>, frame: Frame) -> Result<(), String> {
        match frame.header.kind {
            Kind::Request if [Op::Locks as u16, Op::ReleaseLocks as u16].contains(&frame.header.op) => {
                self.administer(joined, connection, &frame);
            }
            Kind::Request => execute::request(&self.server, &joined.session, connection, frame),
            Kind::Cancel => {
                let request = aqueduct_wire::decode_cancel(&frame.body).map_err(|error| format!("CANCEL: {error}"))?;
                let outcome = if joined.session.cancel(request) { CancelOutcome::Never } else { CancelOutcome::Done };
                let mut body = Vec::new();
                CancelReply { outcome }.encode(&mut body);
                send(connection, reply_header(Kind::CancelReply, &frame.header), &body);
            }
            Kind::Ping => send(connection, reply_header(Kind::Pong, &frame.header), &[]),
            Kind::CallbackReply => {
                let leases =
                    aqueduct_wire::decode_leases(&frame.body).map_err(|error| format!("CALLBACK REPLY: {error}"))?;
                self.server.leases.returned(joined.session.client(), &leases);
            }
            Kind::Goodbye => {
                joined.session.said_goodbye.store(true, Ordering::SeqCst);
                self.server.end_session(&joined.session);
            }
            kind => return Err(format!("a {kind:?} frame makes no sense to a server")),
        }
        Ok(())
    }
}

impl ServerEndpoint {
    /// Answers what only an administrator may ask.
    fn administer(&self, joined: &Joined, connection: &Arc<Connection>, frame: &Frame) {
        let answer = if !joined.administers {
            let what = format_args!(
                "refused {} to see or release locks: it has not the administrator's key",
                joined.session.name
            );
            self.server.complain(self.peer, Complaint::Refused, what);
            Err(Errno::EPERM)
        } else if frame.header.op == Op::Locks as u16 {
            Ok(self.server.locks_json())
        } else {
            let session = aqueduct_wire::decode_release_locks(&frame.body).map_err(|error| error.errno());
            session.and_then(|session| self.server.release_locks(session)).map(|()| String::new())
        };
        let header =
            execute::reply_header(&frame.header, Kind::Reply, answer.as_ref().map(drop).map_err(|error| *error));
        send(connection, header, answer.unwrap_or_default().as_bytes());
    }
}

fn reply_header(kind: Kind, request: &Header) -> Header {
    Header { request: request.request, ..Header::new(kind) }
}

/// Tells who greets why it is not let in.
fn refuse(connection: &Connection, request: &Header, error: Errno) {
    let header = Header { status: error.raw() as u32, ..reply_header(Kind::HelloReply, request) };
    send(connection, header.checked(&[]), &[]);
}

pub(crate) fn send(connection: &Connection, mut header: Header, body: &[u8]) {
    header.body_length = body.len() as u32;
    let mut frame = Vec::with_capacity(HEADER_SIZE + body.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(body);
    connection.send(&frame, None);
}

impl Endpoint for ServerEndpoint {
    fn place(&self, _header: &Header) -> Option<Box<dyn Sink>> {
        None
    }

    fn takes(&self, header: &Header) -> Result<(), String> {
        let greets = header.payload_length == 0 && header.body_length <= GREETING_LENGTH_MAX;
        if greets || self.has_session() { Ok(()) } else { Err("before HELLO nothing so long is taken".into()) }
    }

    fn is_slow(&self, header: &Header) -> bool {
        let Some(joined) = self.joined.get() else { return false };
        joined.lane == Lane::Bulk
            || header.payload_length > 0
            || Op::from_code(header.op).is_some_and(|op| {
                execute::waits_for_disk(op) || joined.session.is_durable() && execute::changes_names_or_attributes(op)
            })
    }

    fn frame(&self, connection: &Arc<Connection>, frame: Frame) {
        if self.server.draining.load(Ordering::SeqCst) {
            return; // the client hears GOODBYE in a moment
        }
        let result = match (self.joined.get(), frame.header.kind) {
            (None, Kind::Hello) => self.hello(connection, &frame),
            (None, Kind::Proof) => self.proof(connection, &frame),
            (None, kind) => Err(format!("the first frame must be HELLO, not {kind:?}")),
            (Some(joined), _) => self.joined_frame(joined, connection, frame),
        };
        if let Err(reason) = result {
            self.damaged(connection, &reason);
            connection.close(reason);
        }
    }

    fn damaged(&self, connection: &Arc<Connection>, reason: &str) {
        if self.has_session() {
            let what = format_args!("closed a connection: {reason}"); // else `closed` says it
            self.server.complain(connection.peer().ip(), Complaint::Damaged, what);
        }
        connection.send(&goodbye(reason), None);
        aqueduct_worker::Flush::flush(&**connection);
    }

    fn closed(&self, connection: &Arc<Connection>, closed: Closed) {
        self.server.connections.fetch_sub(1, Ordering::SeqCst);
        self.joined_or_gone();
        let Some(joined) = self.joined.get() else {
            if !closed.orderly {
                let what = format_args!("a connection ended before it had a session: {}", closed.reason);
                let is_stranger = self.is_stranger.load(Ordering::SeqCst);
                let kind = if is_stranger { Complaint::Stranger } else { Complaint::Unjoined };
                self.server.complain(connection.peer().ip(), kind, what);
            }
            return;
        };
        tracing::debug!(client = %joined.session.name, peer = %connection.peer(), reason = %closed.reason, "a connection ended");
        self.left(joined, connection, closed.vanished);
    }
}

/// The weak connections that a reply goes to besides its own.
pub(crate) type Others = Vec<(Weak<Connection>, u64)>;
