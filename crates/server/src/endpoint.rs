//! The server's half of a connection: the handshake, then what each frame is for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use aqueduct_fs::{Errno, Sink, TRANSFER_SIZE_MAX};
use aqueduct_net::{Closed, Connection, Counters, Endpoint, Frame, Peer};
use aqueduct_wire::{
    CancelOutcome, CancelReply, Capabilities, Challenge, Header, Hello, HelloReply, Key, Kind, Lane, NONCE_LENGTH, Op,
    PROOF_LENGTH, Proof, Route, RouteReply, RouteStatus, Target, Transcript, VERSION, agree_on_version,
    session_is_proved,
};
use aqueduct_worker::lock;

use crate::complaints::Complaint;
use crate::execute;
use crate::frames::{self, goodbye, send};
use crate::links::{self, Link};
use crate::origin::{Identity, Origin};
use crate::session::Session;
use crate::state::Server;

/// Bytes of a frame that comes before there is a session: HELLO has at most some 350 in this version, and may grow.
const GREETING_LENGTH_MAX: u32 = 4096;

/// One connection of a client.
pub(crate) struct ServerEndpoint {
    server: Arc<Server>,
    /// Between CHALLENGE and PROOF.
    challenged: Mutex<Option<Challenged>>,
    /// It has another key.
    is_stranger: AtomicBool,
    peer: Peer,
    /// A router passes on what comes.
    is_routed: AtomicBool,
    /// It is counted among those without a session.
    is_counted: AtomicBool,
    joined: OnceLock<Joined>,
}

struct Challenged {
    hello: Hello,
    checksums: bool,
    transcript: Transcript,
}

/// A client whose greeting was answered as it had to be.
struct Greeted {
    hello: Hello,
    checksums: bool,
    /// What it has proved, if it was asked.
    proved: Option<Proved>,
}

struct Proved {
    transcript: Transcript,
    /// The key that it has: the cluster's, its node's or the administrator's.
    key: Option<Key>,
    /// To be that of the session's secret.
    session: Option<[u8; PROOF_LENGTH]>,
}

struct Joined {
    session: Arc<Session>,
    link: Arc<Link>,
    lane: Lane,
    /// This connection has proved to have the administrator's key.
    administers: bool,
}

impl ServerEndpoint {
    pub(crate) fn new(server: Arc<Server>, peer: Peer) -> ServerEndpoint {
        ServerEndpoint {
            server,
            challenged: Mutex::default(),
            is_stranger: AtomicBool::new(false),
            peer,
            is_routed: AtomicBool::new(false),
            is_counted: AtomicBool::new(true),
            joined: OnceLock::new(),
        }
    }

    /// Counts no more among those without a session.
    pub(crate) fn joined_or_gone(&self) {
        if self.is_counted.swap(false, Ordering::SeqCst) {
            self.server.unjoined.go(self.peer.into());
        }
    }

    /// Ends a connection that has not come as far as it should have by now. False: it cannot have,
    /// and has as long again, since whoever attaches is told to wait for those who send again what
    /// the server's machine has lost; or need not, since a server of data beats on it.
    pub(crate) fn is_in_time(&self, connection: &Arc<Connection>) -> bool {
        match self.joined.get() {
            None => connection.close("no HELLO came in time".into()),
            Some(joined) if joined.session.attached.get().is_none() => {
                if self.server.recovery.awaits_replays() || joined.session.has_beaten.swap(false, Ordering::SeqCst) {
                    return false;
                }
                self.server.complaints.tell(
                    self.identity(),
                    Complaint::Unjoined,
                    "ended a session: no ATTACH came in time",
                );
                self.server.end_session(&joined.session);
            }
            Some(_) => {}
        }
        true
    }

    /// The other end, as far as it is known.
    fn peer(&self) -> Peer {
        if self.is_routed.load(Ordering::SeqCst) { self.peer.behind_router() } else { self.peer }
    }

    /// By what its client is known so far.
    fn identity(&self) -> Identity {
        self.joined.get().map_or_else(|| self.peer().into(), |joined| joined.session.origin.identity())
    }

    pub(crate) fn has_session(&self) -> bool {
        self.joined.get().is_some()
    }

    /// Answers as the last hop of a route. What comes by a router is nobody's of this machine.
    fn route(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<(), String> {
        let route = Route::decode(&frame.body).map_err(|error| format!("ROUTE: {error}"))?;
        if lock(&self.challenged).is_some() || self.is_routed.swap(true, Ordering::SeqCst) {
            return Err("ROUTE comes first, and once".into());
        }
        let (own, server) = (self.server.config.identity.id, &self.server);
        let refused = match route.target {
            Target::Router | Target::Hop { .. } => Some("this is a server, and no router"),
            Target::Server(meant) if meant != own => Some("another server is meant"),
            _ if server.config.keys.is_empty() && server.listeners.are_on_loopback_alone() => Some(
                "this server has no key and listens on loopback alone, so it takes nothing that comes by a router: give it a key",
            ),
            _ => None,
        };
        let status = if refused.is_some() { RouteStatus::Refused } else { RouteStatus::Open };
        let text = refused.map_or_else(String::new, |why| format!("server {}: {why}", self.server.config.name));
        let mut body = Vec::new();
        RouteReply { status, hop: 0, text }.encode(&mut body);
        send(connection, reply_header(Kind::RouteReply, &frame.header).checked(&body), &body);
        refused.map_or(Ok(()), |why| Err(why.into()))
    }

    fn hello(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<(), String> {
        let hello = Hello::decode(&frame.body).map_err(|error| format!("HELLO: {error}"))?;
        if agree_on_version(hello.version_min, hello.version_max).is_none() {
            return Err(format!(
                "this server speaks version {VERSION} of the protocol, you speak {} to {}: install the same release on both",
                hello.version_min, hello.version_max
            ));
        }
        let own = self.server.config.identity.id;
        if hello.server.is_some_and(|meant| meant != own) {
            refuse(connection, &frame.header, Errno::EREMCHG);
            return Err(format!("the client means another server: this one is {own}"));
        }
        let checksums = self.server.config.checksums.agree(hello.capabilities, self.peer().is_near())?;
        let asks_key = self.asks_key(&hello);
        if asks_key && !hello.keyed {
            refuse(connection, &frame.header, Errno::ENOKEY);
            return Err("this server lets only those in who have its key: mount with -o key=FILE".into());
        }
        if !asks_key && hello.session == 0 {
            self.join(connection, Greeted { hello, checksums, proved: None }, &frame.header);
            return Ok(());
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

    /// Whether a client has to prove a key. Where everybody is let in, who has one may be one of
    /// the volume's servers.
    fn asks_key(&self, hello: &Hello) -> bool {
        let config = &self.server.config;
        let administers = hello.capabilities.contains(Capabilities::ADMINISTRATOR);
        !config.keys.is_empty() || administers || (hello.keyed && config.members.is_some())
    }

    /// Lets in who has proved to have one of the keys, if there are any, and the secret of the
    /// session that it joins. From the answer to a key on, each frame of the connection has a tag.
    fn proof(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<(), String> {
        let Challenged { hello, checksums, transcript } =
            lock(&self.challenged).take().ok_or("the first frame must be HELLO, not Proof")?;
        let proof = Proof::decode(&frame.body).map_err(|error| format!("PROOF: {error}"))?;
        let config = &self.server.config;
        let administers = hello.capabilities.contains(Capabilities::ADMINISTRATOR);
        if !self.asks_key(&hello) {
            connection.set_keys(None);
            let proved = Some(Proved { transcript, key: None, session: proof.session });
            self.join(connection, Greeted { hello, checksums, proved }, &frame.header);
            return Ok(());
        }
        let keys = if administers { config.administrator.as_slice() } else { &config.keys };
        let keys = keys.iter().map(|key| match &hello.node {
            Some(node) => key.of_node(node),
            None => key.clone(),
        });
        let members = config.members.iter().filter(|_| !administers && hello.node.is_none()).cloned();
        let has_made = |key: &Key| proof.key.is_some_and(|proof| key.has_made(&proof, &transcript));
        let Some(key) = keys.chain(members).find(has_made) else {
            refuse(connection, &frame.header, Errno::EKEYREJECTED);
            self.is_stranger.store(true, Ordering::SeqCst);
            return Err(match &hello.node {
                Some(node) => format!("the key of node {node} is not made of one of this server's"),
                None => "the client's key is none of this server's".into(),
            });
        };
        connection.set_keys(Some(key.of_server(&transcript)));
        let proved = Some(Proved { transcript, key: Some(key), session: proof.session });
        self.join(connection, Greeted { hello, checksums, proved }, &frame.header);
        Ok(())
    }

    /// The session that is begun or joined.
    fn session(&self, hello: &Hello, proved: Option<&Proved>, origin: &Origin) -> Result<Arc<Session>, Errno> {
        if hello.session == 0 {
            let secret = proved.and_then(|proved| Some(proved.key.as_ref()?.session_secret(&proved.transcript)));
            return self.server.new_session(hello.client_name.clone(), origin.clone(), secret).ok_or(Errno::ENFILE);
        }
        let has_secret = |session: &Arc<Session>| {
            proved.is_some_and(|proved| {
                let proof = proved.session.as_ref();
                proof.is_some_and(|proof| session_is_proved(&session.secret, proof, &proved.transcript))
            })
        };
        self.server.session(hello.session).filter(has_secret).ok_or(Errno::ESTALE)
    }

    fn join(&self, connection: &Arc<Connection>, greeted: Greeted, request: &Header) {
        let Greeted { hello, checksums, proved } = greeted;
        let mut header = reply_header(Kind::HelloReply, request);
        let version = agree_on_version(hello.version_min, hello.version_max).unwrap_or(VERSION);
        let is_keyed = proved.as_ref().is_some_and(|proved| proved.key.is_some());
        // Without its key's proof a name is none.
        let node = hello.node.as_ref().filter(|_| is_keyed).map(|node| Arc::from(node.as_str()));
        let key = proved.as_ref().and_then(|proved| proved.key.as_ref());
        let is_member = key.is_some() && key == self.server.config.members.as_ref();
        let origin = Origin { node, peer: self.peer(), is_member };
        let session = self.session(&hello, proved.as_ref(), &origin);
        let session = session.and_then(|session| match session.admits(&origin) {
            Err(error) => {
                let what = format_args!("refused a connection: the session of {} is another's", hello.client_name);
                self.server.complaints.tell(&origin, Complaint::Refused, what);
                Err(error)
            }
            Ok(()) => session.add_connection(connection, hello.link).map(|()| session),
        });
        let mut body = Vec::new();
        match session {
            Err(error) => header.status = error.raw() as u32,
            Ok(session) => {
                let tells_secret = hello.session == 0 && !is_keyed;
                let secret = if tells_secret { session.secret } else { [0; 16] };
                HelloReply { version, secret, ..self.reply(&session, checksums) }.encode(&mut body);
                connection.set_hoards(self.server.hoarders.has(&session.origin.identity()));
                connection.set_bulk(hello.lane == Lane::Bulk);
                tracing::debug!(client = %hello.client_name, %origin, link = hello.link, lane = ?hello.lane, "a connection joined its session");
                // Without the key's proof nobody comes here who says so.
                let administers = hello.capabilities.contains(Capabilities::ADMINISTRATOR);
                let link = session.add_link(hello.link, connection);
                let joined = self.joined.get_or_init(|| Joined { session, link, lane: hello.lane, administers });
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
        connection.set_version(version);
        if let Some(joined) = self.joined.get().filter(|joined| joined.lane == Lane::Control) {
            joined.session.add_control(connection);
            self.server.recall_again(&joined.session, connection);
        }
    }

    fn reply(&self, session: &Session, checksums: bool) -> HelloReply {
        let (config, map) = (&self.server.config, self.server.map());
        let epoch = map.as_ref().map_or(0, |map| map.epoch);
        session.map_told.store(epoch, Ordering::SeqCst);
        let in_use = if checksums { Capabilities::CHECKSUM } else { Capabilities::empty() };
        HelloReply {
            version: VERSION,
            capabilities: Capabilities::COMPOUND
                | Capabilities::PENDING
                | Capabilities::EXCLUSIVE
                | Capabilities::BARE
                | Capabilities::HELD_SETATTR
                | Capabilities::HELD_APPEND
                | Capabilities::TIMES
                | in_use,
            session: session.id,
            secret: [0; 16],
            verifier: config.verifier,
            slots: session.slots(),
            payload_max: TRANSFER_SIZE_MAX as u32,
            lease_seconds: self.server.leases.lease().as_secs() as u32,
            server_name: config.name.clone(),
            recovering: session.is_recovering(),
            server: config.identity,
            volume: map.as_ref().map_or([0; 16], |map| map.volume),
            epoch,
            addresses: self.addresses(),
        }
    }

    /// Where its client may reach the server too.
    fn addresses(&self) -> Vec<String> {
        let listened = self.server.listeners.addresses();
        self.server.reach.addresses_for(&listened, self.peer()).iter().map(ToString::to_string).collect()
    }

    /// A connection has left its session; more than once does no harm.
    fn left(&self, joined: &Joined, connection: &Arc<Connection>, vanished: bool) {
        joined.session.waits.left();
        // The end of a router looks like that of the client behind it, which lives on.
        let is_cut = vanished || self.is_routed.load(Ordering::SeqCst);
        match joined.session.remove_connection(connection, is_cut) {
            Some(forsaken) => self.server.expire_later(&joined.session, forsaken),
            // What it was asked for there may be lost.
            None if joined.lane == Lane::Control => {
                if let Some(other) = joined.session.control() {
                    self.server.recall_again(&joined.session, &other);
                }
            }
            None => {}
        }
    }

    fn joined_frame(&self, joined: &Joined, connection: &Arc<Connection>, frame: Frame) -> Result<(), String> {
        match frame.header.kind {
            Kind::Request
                if [Op::Locks as u16, Op::ReleaseLocks as u16].contains(&frame.header.op)
                    || frame.header.op == Op::Status as u16 && joined.administers =>
            {
                self.administer(joined, connection, frame);
            }
            Kind::Request => execute::request(&self.server, &joined.session, (&joined.link, connection), frame),
            Kind::Retire => {
                let link = aqueduct_wire::decode_retire(&frame.body).map_err(|error| format!("RETIRE: {error}"))?;
                self.server.retire(&joined.session, link);
            }
            Kind::Cancel => {
                let request = aqueduct_wire::decode_cancel(&frame.body).map_err(|error| format!("CANCEL: {error}"))?;
                let outcome =
                    if joined.session.waits.cancel(request) { CancelOutcome::Never } else { CancelOutcome::Done };
                let mut body = Vec::new();
                CancelReply { outcome }.encode(&mut body);
                send(connection, reply_header(Kind::CancelReply, &frame.header), &body);
            }
            Kind::Ping => send(connection, reply_header(Kind::Pong, &frame.header), &[]),
            Kind::Pong => {} // that something came is the answer
            Kind::Acknowledge => lock(&joined.session.outbox).acknowledge(frame.header.sequence, connection),
            Kind::CallbackReply => {
                let leases =
                    aqueduct_wire::decode_leases(&frame.body).map_err(|error| format!("CALLBACK REPLY: {error}"))?;
                self.server.leases.returned(joined.session.client(), &leases);
            }
            Kind::Goodbye if frame.header.status == Errno::ETIMEDOUT.raw() as u32 => {
                connection.vanish("the client hears nothing on it any more".into());
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
    /// Answers what only an administrator may ask. By a task, since file systems may have to ask
    /// others for locks.
    fn administer(&self, joined: &Joined, connection: &Arc<Connection>, mut frame: Frame) {
        let asked = execute::extended::take(&self.server, &joined.session, connection, &mut frame);
        let answer = if !joined.administers {
            let what = format_args!(
                "refused {} to see or release locks: it has not the administrator's key",
                joined.session.name
            );
            self.server.complaints.tell(self.identity(), Complaint::Refused, what);
            Some(Err(Errno::EPERM))
        } else {
            asked.as_ref().err().map(|error| Err(*error))
        };
        let queue_time = asked.ok().and_then(|asked| asked.timing.queue_time());
        let (server, connection) = (self.server.clone(), connection.clone());
        self.server.group.run_now(async move {
            let answer = match answer {
                Some(refused) => refused,
                None if frame.header.op == Op::Locks as u16 => server.locks_json().await,
                None if frame.header.op == Op::Status as u16 => {
                    let from = aqueduct_wire::decode_slow(&frame.body).map_err(|error| error.errno());
                    from.map(|from| server.tracer.report(from))
                }
                None => {
                    let session = aqueduct_wire::decode_release_locks(&frame.body).map_err(|error| error.errno());
                    session.and_then(|session| server.release_locks(session)).map(|()| String::new())
                }
            };
            let result = answer.as_ref().map(drop).map_err(|error| *error);
            let mut header = frames::reply_header(&frame.header, Kind::Reply, result);
            let prefix = links::prefix(queue_time, None, &mut header);
            send(&connection, header, &[&prefix, answer.unwrap_or_default().as_bytes()].concat());
        });
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
            (None, Kind::Route) => self.route(connection, &frame),
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
            self.server.complaints.tell(self.identity(), Complaint::Damaged, what);
        }
        connection.send(&goodbye(reason), None);
        aqueduct_worker::Flush::flush(&**connection);
    }

    fn counters(&self) -> Option<&Counters> {
        Some(self.server.metrics.of(self.joined.get().map(|joined| joined.lane)))
    }

    fn closed(&self, connection: &Arc<Connection>, closed: Closed) {
        self.server.metrics.vanished.add(closed.vanished.into());
        self.server.connections.fetch_sub(1, Ordering::SeqCst);
        self.joined_or_gone();
        let Some(joined) = self.joined.get() else {
            if !closed.orderly {
                let what = format_args!("a connection ended before it had a session: {}", closed.reason);
                let is_stranger = self.is_stranger.load(Ordering::SeqCst);
                let kind = if is_stranger { Complaint::Stranger } else { Complaint::Unjoined };
                self.server.complaints.tell(self.peer(), kind, what);
            }
            return;
        };
        tracing::debug!(client = %joined.session.name, peer = %connection.peer(), reason = %closed.reason, "a connection ended");
        self.left(joined, connection, closed.vanished);
    }
}
