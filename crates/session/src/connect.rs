//! The handshake, and what can go wrong in it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::{Context, Errno};
use aqueduct_net::blocking::ExchangeError;
use aqueduct_net::{Initiator, Link, Path};
use aqueduct_wire::{
    Attach, AttachReply, BODY_LENGTH_MAX, Capabilities, Challenge, Checksums, ClientKey, Header, Hello, HelloReply,
    Key, Kind, Lane, Map, NONCE_LENGTH, Nonce, Op, Proof, ServerId, Transcript, VERSION, VERSION_MIN, agree_on_version,
    session_proof, volume_id,
};

/// Between two tries while a server waits for other clients: it gives them some seconds.
pub(crate) const AGAIN: Duration = Duration::from_millis(20);

/// Why a server could not be used. The message says what was tried and why it failed; [`ConnectError::hint`] what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host's name has no address.
    #[error("cannot find the address of '{server}': {source}")]
    Resolve {
        /// As it was given.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers at the address.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// As it was given.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// Whoever listens there took the connection, and said nothing.
    #[error("{server} takes connections, and says nothing within {timeout:?}")]
    Silent {
        /// As it was given.
        server: String,
        /// For so long it was waited for.
        timeout: Duration,
    },
    /// Somebody answers who is not an Aqueduct server.
    #[error("{server} does not speak Aqueduct's protocol: {detail}")]
    NotAqueduct {
        /// As it was given.
        server: String,
        /// What came instead.
        detail: String,
    },
    /// The server refuses.
    #[error("the server {server} refuses: {reason}")]
    Refused {
        /// As it was given.
        server: String,
        /// In its words.
        reason: String,
    },
    /// The server does not know the session (any more): it was restarted, or we stayed away too long.
    #[error("the server {server} refuses: the session is not known any more")]
    UnknownSession {
        /// As it was given.
        server: String,
    },
    /// At the address there is another server than the one that is meant.
    #[error("at {server} there is another server than the one that was mounted")]
    WrongServer {
        /// As it was given.
        server: String,
    },
    /// The server knows the session, and does not let this connection join it.
    #[error(
        "the server {server} does not let this connection join its session: it comes from another node or place, with other rights"
    )]
    LinkRefused {
        /// As it was given.
        server: String,
    },
    /// The two sides do not have the same key.
    #[error("the server {server} {problem}")]
    Key {
        /// As it was given.
        server: String,
        /// Who lacks it.
        problem: KeyProblem,
    },
    /// The server does not know the export.
    #[error("the server {server} has no export '{export}'; it has: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    UnknownExport {
        /// As it was given.
        server: String,
        /// What was asked for.
        export: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The export is not for this host.
    #[error("the server {server} does not let this machine mount '{export}': {reason}")]
    Forbidden {
        /// As it was given.
        server: String,
        /// What was asked for.
        export: String,
        /// In the server's words.
        reason: String,
    },
    /// The server has no part of the volume that is meant.
    #[error("the server {server} has no part of the volume '{volume}'")]
    OtherVolume {
        /// As it was given.
        server: String,
        /// What was asked for.
        volume: String,
    },
    /// The server does not know the client whose locks are to be released.
    #[error("the server {server} has no client {client:016x}")]
    UnknownClient {
        /// As it was given.
        server: String,
        /// Its number.
        client: u64,
    },
    /// The client itself lacks something.
    #[error("cannot start the connection to {server}: {source}")]
    Local {
        /// As it was given.
        server: String,
        /// Why.
        source: io::Error,
    },
}

/// Why a key lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// The server has one, and the client none.
    #[error("lets only those in who have its key, and no key was given")]
    Missing,
    /// Another than the server's.
    #[error("does not accept the key that was given")]
    Wrong,
    /// The client has one, and the server does not show that it has it.
    #[error("has not proved to have the key that was given")]
    Unproved,
}

impl KeyProblem {
    fn hint(self) -> &'static str {
        match self {
            KeyProblem::Missing => {
                "name the file with the server's key: -o key=FILE of a mount, --key FILE of other commands"
            }
            KeyProblem::Wrong => "give the file that the server was given with 'aqueduct serve --key', or a copy of it",
            KeyProblem::Unproved => {
                "give the server the same file with 'aqueduct serve --key'; it is another server, or somebody who stands between, unless it was started without"
            }
        }
    }
}

impl ConnectError {
    /// What a user can do about it.
    pub fn hint(&self) -> String {
        match self {
            ConnectError::Resolve { .. } => "check the name, or give the server's IP address".into(),
            ConnectError::Connect { server, source } if source.kind() == io::ErrorKind::ConnectionRefused => {
                format!("start the server ('aqueduct serve DIR' on that host), or give its port: is {server} right?")
            }
            // Where the kernel says so, there is no router of ours.
            ConnectError::Connect { source, .. }
                if source.kind() == io::ErrorKind::NetworkUnreachable && source.raw_os_error().is_none() =>
            {
                "see on the router that is named what 'aqueduct route show' says, and its log".into()
            }
            ConnectError::Connect { .. } => {
                "check that the host is up, the network reaches it and no firewall drops the port".into()
            }
            ConnectError::Silent { .. } => {
                "see whether the server hangs, is stopped or overloaded: its log, and 'ps' on that host; if another service listens there that waits to be spoken to, give the port that 'aqueduct serve' prints when it starts".into()
            }
            ConnectError::NotAqueduct { .. } => {
                "another service listens on that port: give the port that 'aqueduct serve' prints when it starts".into()
            }
            ConnectError::Refused { .. } | ConnectError::UnknownSession { .. } | ConnectError::LinkRefused { .. } => {
                "see the server's log".into()
            }
            ConnectError::WrongServer { .. } => {
                "give the server its address back; if it was replaced for good, or has lost its state folder, unmount and mount again".into()
            }
            ConnectError::Key { problem, .. } => problem.hint().into(),
            ConnectError::UnknownExport { known, .. } if known.is_empty() => {
                "name a directory to 'aqueduct serve' on the server".into()
            }
            ConnectError::UnknownExport { .. } => {
                "mount one of these, or name the directory to 'aqueduct serve' on the server".into()
            }
            ConnectError::Forbidden { .. } => {
                "add node:NAME, if this machine has a node's key, or its address, which counts only where no router is between, to the export's 'hosts' in the server's configuration file".into()
            }
            ConnectError::OtherVolume { .. } => {
                "give the name that stands in the volume's file, and the address of one of its servers; without VOLUME@ a server that stands alone is mounted".into()
            }
            ConnectError::UnknownClient { .. } => {
                "it has gone, and its locks with it, or has a new number: see 'aqueduct status --locks'".into()
            }
            ConnectError::Local { .. } => "check this machine's limits on open files and memory".into(),
        }
    }

    /// Whether somebody has to change something before it can succeed.
    pub(crate) fn is_of_configuration(&self) -> bool {
        use ConnectError::{Forbidden, Key, UnknownExport, WrongServer};
        matches!(self, Key { .. } | UnknownExport { .. } | Forbidden { .. } | WrongServer { .. })
    }

    /// Whether it is about one address, and another may do.
    pub(crate) fn is_of_address(&self) -> bool {
        use ConnectError::{Connect, Key, LinkRefused, NotAqueduct, Silent, WrongServer};
        matches!(
            self,
            Connect { .. } | Silent { .. } | NotAqueduct { .. } | WrongServer { .. } | LinkRefused { .. } | Key { .. }
        )
    }

    /// Whether the session is unknown to the server. A GOODBYE never says so: anybody can send one before the server has proved who it is.
    pub(crate) fn is_unknown_session(&self) -> bool {
        matches!(self, ConnectError::UnknownSession { .. })
    }
}

/// Who greets: a client with or without a session.
#[derive(Clone)]
pub(crate) struct Greeting {
    pub(crate) server: String,
    pub(crate) client_name: String,
    pub(crate) instance: [u8; 16],
    /// For each answer.
    pub(crate) timeout: Duration,
    /// Only servers that have it, or have made it, are talked to.
    pub(crate) key: Option<ClientKey>,
    /// The number of the next connection: no two of a session have the same.
    pub(crate) links: Arc<AtomicU32>,
    /// For each address to be reached.
    pub(crate) connect_timeout: Duration,
    pub(crate) checksums: Checksums,
    /// The key is the administrator's.
    pub(crate) administers: bool,
    /// To servers in networks that have a name.
    pub(crate) routes: Option<Arc<Initiator>>,
    /// Where the server answered last, of several addresses.
    pub(crate) latest: Arc<Mutex<Option<Path>>>,
}

/// A session as the client knows it.
#[derive(Clone)]
pub(crate) struct SessionKey {
    pub(crate) id: u64,
    pub(crate) secret: [u8; 16],
    /// Whose session it is.
    pub(crate) server: ServerId,
}

/// A new connection, and what the server said to it.
pub(crate) struct Greeted {
    pub(crate) link: Link,
    /// What the server knows it by.
    pub(crate) number: u32,
    pub(crate) hello: HelloReply,
}

/// What a new connection is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// A session, at whichever server answers.
    Any,
    /// A session at this server.
    Begin(ServerId),
    /// This session.
    Join(&'a SessionKey),
}

/// The same, for another thread.
pub(crate) enum OwnedPurpose {
    Any,
    Begin(ServerId),
    Join(SessionKey),
}

impl OwnedPurpose {
    pub(crate) fn as_ref(&self) -> Purpose<'_> {
        match self {
            OwnedPurpose::Any => Purpose::Any,
            OwnedPurpose::Begin(server) => Purpose::Begin(*server),
            OwnedPurpose::Join(session) => Purpose::Join(session),
        }
    }
}

impl<'a> Purpose<'a> {
    pub(crate) fn to_owned(self) -> OwnedPurpose {
        match self {
            Purpose::Any => OwnedPurpose::Any,
            Purpose::Begin(server) => OwnedPurpose::Begin(server),
            Purpose::Join(session) => OwnedPurpose::Join(session.clone()),
        }
    }

    fn server(self) -> Option<ServerId> {
        match self {
            Purpose::Any => None,
            Purpose::Begin(server) => Some(server),
            Purpose::Join(session) => Some(session.server),
        }
    }

    fn session(self) -> Option<&'a SessionKey> {
        match self {
            Purpose::Join(session) => Some(session),
            Purpose::Any | Purpose::Begin(_) => None,
        }
    }
}

impl Greeting {
    pub(crate) fn failed(&self, error: ExchangeError) -> ConnectError {
        let server = self.server.clone();
        match error {
            ExchangeError::Socket(source) if source.kind() == io::ErrorKind::WouldBlock => {
                ConnectError::Silent { server, timeout: self.timeout }
            }
            ExchangeError::Socket(source) => ConnectError::Connect { server, source },
            error => ConnectError::NotAqueduct { server, detail: error.to_string() },
        }
    }

    fn expect(&self, (header, body): (Header, Vec<u8>), expected: Kind) -> Result<(Header, Vec<u8>), ConnectError> {
        let server = || self.server.clone();
        match header.kind {
            kind if kind == expected => Ok((header, body)),
            Kind::Goodbye => Err(ConnectError::Refused { server: server(), reason: told(&body) }),
            kind => Err(ConnectError::NotAqueduct {
                server: server(),
                detail: format!("it answered with a {kind:?} frame"),
            }),
        }
    }

    pub(crate) fn exchange(
        &self,
        link: &mut Link,
        header: Header,
        body: &[u8],
        expected: Kind,
    ) -> Result<(Header, Vec<u8>), ConnectError> {
        self.exchange_with(link, header, (body, &[]), expected)
    }

    /// As [`exchange`](Greeting::exchange), with a payload behind the body.
    pub(crate) fn exchange_with(
        &self,
        link: &mut Link,
        header: Header,
        content: (&[u8], &[u8]),
        expected: Kind,
    ) -> Result<(Header, Vec<u8>), ConnectError> {
        let answer = link.ask(header, content, self.timeout).map_err(|error| self.failed(error))?;
        self.expect(answer, expected)
    }

    pub(crate) fn broken(&self, error: impl ToString) -> ConnectError {
        ConnectError::NotAqueduct { server: self.server.clone(), detail: error.to_string() }
    }

    fn refused(&self, reason: &str) -> ConnectError {
        ConnectError::Refused { server: self.server.clone(), reason: reason.to_owned() }
    }

    fn key_problem(&self, problem: KeyProblem) -> ConnectError {
        ConnectError::Key { server: self.server.clone(), problem }
    }

    fn hello(&self, purpose: Purpose<'_>, lane: Lane) -> Result<Hello, ConnectError> {
        let mut capabilities = Capabilities::COMPOUND | Capabilities::PENDING | self.checksums.offered();
        capabilities.set(Capabilities::ADMINISTRATOR, self.administers);
        Ok(Hello {
            version_min: VERSION_MIN,
            version_max: VERSION,
            capabilities,
            server: purpose.server(),
            session: purpose.session().map_or(0, |session| session.id),
            link: 1 + self.links.fetch_add(1, Ordering::Relaxed),
            lane,
            client_name: self.client_name.clone(),
            client_instance: self.instance,
            nonce: nonce().map_err(|source| ConnectError::Local { server: self.server.clone(), source })?,
            keyed: self.key.is_some(),
            node: self.key.as_ref().and_then(|key| key.node.clone()),
        })
    }

    pub(crate) fn greet(&self, mut link: Link, purpose: Purpose<'_>, lane: Lane) -> Result<Greeted, ConnectError> {
        let mut body = Vec::new();
        let own = self.hello(purpose, lane)?;
        own.encode(&mut body);
        let hello = Header::new(Kind::Hello).checked(&body);
        let ((header, body), secret) = self.introduce(&mut link, purpose, (&hello, &body))?;
        match header.status as i32 {
            0 => {}
            libc_errno::ESTALE => return Err(ConnectError::UnknownSession { server: self.server.clone() }),
            libc_errno::EREMCHG => return Err(self.wrong_server()),
            libc_errno::EACCES | libc_errno::EEXIST => {
                return Err(ConnectError::LinkRefused { server: self.server.clone() });
            }
            libc_errno::ENFILE => return Err(self.refused("it has as many clients as it takes")),
            libc_errno::ENOKEY => return Err(self.key_problem(KeyProblem::Missing)),
            number => return Err(self.refused(&aqueduct_fs::Errno::from_raw(number).to_string())),
        }
        let reply = HelloReply::decode(&body).map_err(|error| self.broken(error))?;
        if purpose.server().is_some_and(|meant| meant != reply.server.id) {
            return Err(self.wrong_server());
        }
        if reply.slots == 0 || (reply.payload_max as usize) < aqueduct_fs::TRANSFER_SIZE_MAX {
            return Err(self.broken("it grants no slots, or payloads of less than 1 MiB"));
        }
        if agree_on_version(reply.version, reply.version).is_none() {
            return Err(self.broken("it answers with a version that was not offered"));
        }
        link.set_version(reply.version);
        if reply.capabilities.contains(Capabilities::CHECKSUM) {
            link.add_checksums();
        }
        let secret = secret.or(purpose.session().map(|session| session.secret)).unwrap_or(reply.secret);
        Ok(Greeted { link, number: own.link, hello: HelloReply { secret, ..reply } })
    }

    fn wrong_server(&self) -> ConnectError {
        ConnectError::WrongServer { server: self.server.clone() }
    }

    /// Sends HELLO, proves what there is to prove, and returns the answer, with which the server
    /// has proved to have the key, and the secret of the session if that is made of the key.
    fn introduce(
        &self,
        link: &mut Link,
        purpose: Purpose<'_>,
        hello: (&Header, &[u8]),
    ) -> Result<(Answer, Option<[u8; 16]>), ConnectError> {
        let answer = link.exchange(*hello.0, (hello.1, &[]), self.timeout).map_err(|error| self.failed(error))?;
        if answer.0.kind == Kind::HelloReply {
            return match &self.key {
                // Anybody may say so: it keeps the client from this address, and from nothing
                // else.
                Some(_) if answer.0.status as i32 == libc_errno::EREMCHG => Ok((answer, None)),
                Some(_) => Err(self.key_problem(KeyProblem::Unproved)),
                None => Ok((answer, None)),
            };
        }
        let (header, body) = self.expect(answer, Kind::Challenge)?;
        Challenge::decode(&body).map_err(|error| self.broken(error))?;
        let transcript = Transcript::new(hello, (&header, &body));
        let key = self.key.as_ref().map(|key| &key.key);
        let mut proof = Vec::new();
        Proof {
            key: key.map(|key| key.proof(&transcript)),
            session: purpose.session().map(|session| session_proof(&session.secret, &transcript)),
        }
        .encode(&mut proof);
        let sent = link.send(Header::new(Kind::Proof).checked(&proof), (&proof, &[]), self.timeout);
        let answer = sent.and_then(|()| link.receive_unchecked(self.timeout)).map_err(|error| self.failed(error))?;
        if let Some(key) = key {
            link.set_keys(key.of_client(&transcript));
        }
        let checked = link.check(&answer.0, &answer.1);
        let (header, body) = self.expect(answer, Kind::HelloReply)?;
        match (key, checked) {
            // It has no key to prove this with.
            (Some(_), Err(_)) if header.status as i32 == libc_errno::EKEYREJECTED => {
                Err(self.key_problem(KeyProblem::Wrong))
            }
            (Some(_), Err(_)) => Err(self.key_problem(KeyProblem::Unproved)),
            (None, Err(error)) => Err(self.broken(error)),
            (_, Ok(())) => {
                let begins = purpose.session().is_none();
                let secret = key.filter(|_| begins).map(|key| key.session_secret(&transcript));
                Ok(((header, body), secret))
            }
        }
    }

    /// Asks for an export on a lane that has joined a session.
    pub(crate) fn attach(&self, link: &mut Link, export: &str, read_only: bool) -> Result<AttachReply, ConnectError> {
        let mut body = Vec::new();
        Attach { export, read_only }.encode(&mut body);
        let mut header = Header::new(Kind::Request);
        header.op = Op::Attach as u16;
        let (header, body) = loop {
            let answer = self.exchange(link, header, &body, Kind::Reply)?;
            // Its machine was booted, and other clients have still to send again what was lost.
            if answer.0.status as i32 != libc_errno::EAGAIN {
                break answer;
            }
            std::thread::sleep(AGAIN);
        };
        match header.status as i32 {
            0 => AttachReply::decode(&body).map_err(|error| self.broken(error)),
            libc_errno::ENOENT => Err(ConnectError::UnknownExport {
                server: self.server.clone(),
                export: export.to_owned(),
                known: body.split(|byte| *byte == b'\n').filter(|name| !name.is_empty()).map(told).collect(),
            }),
            libc_errno::EACCES => Err(ConnectError::Forbidden {
                server: self.server.clone(),
                export: export.to_owned(),
                reason: told(&body),
            }),
            number => Err(ConnectError::Refused {
                server: self.server.clone(),
                reason: format!("attaching export '{export}': {}", aqueduct_fs::Errno::from_raw(number)),
            }),
        }
    }
}

/// A frame that answers.
type Answer = (Header, Vec<u8>);

/// The errnos that a handshake looks at, as patterns.
mod libc_errno {
    use aqueduct_fs::Errno;

    pub(super) const EACCES: i32 = Errno::EACCES.raw();
    pub(super) const EAGAIN: i32 = Errno::EAGAIN.raw();
    pub(super) const EEXIST: i32 = Errno::EEXIST.raw();
    pub(super) const EREMCHG: i32 = Errno::EREMCHG.raw();
    pub(super) const ENOENT: i32 = Errno::ENOENT.raw();
    pub(super) const ENFILE: i32 = Errno::ENFILE.raw();
    pub(super) const ESTALE: i32 = Errno::ESTALE.raw();
    pub(super) const ENOKEY: i32 = Errno::ENOKEY.raw();
    pub(super) const EKEYREJECTED: i32 = Errno::EKEYREJECTED.raw();
}

/// The most characters that are shown of what a server says for people.
const TOLD_LENGTH_MAX: usize = 1000;

/// What a server says for people. It ends up on terminals and in logs, and before there was a proof it may be anybody's: without what would change them.
pub(crate) fn told(body: &[u8]) -> String {
    let shown = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    String::from_utf8_lossy(body).chars().take(TOLD_LENGTH_MAX).map(shown).collect()
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_LENGTH];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

/// Asks a server for its status: exports, clients, counters, as JSON.
pub fn server_status(
    server: &str,
    (key, routes): (Option<ClientKey>, Option<Arc<Initiator>>),
    timeout: Duration,
) -> Result<String, ConnectError> {
    let greeting = Greeting { routes, ..Greeting::of_tool(server, key, false, timeout) };
    let text = greeting.ask(Op::Status, &[])?.map_err(|error| greeting.broken(error))?;
    String::from_utf8(text).map_err(|error| greeting.broken(error))
}

/// Asks a server of a volume for the volume's map: the first of its addresses that answers.
pub fn volume_map(
    server: &str,
    volume: &str,
    (key, routes): (Option<ClientKey>, Option<Arc<Initiator>>),
    timeout: Duration,
) -> Result<Map, ConnectError> {
    let greeting = Greeting { routes, ..Greeting::of_tool(server, key, false, timeout) };
    let body = greeting.ask(Op::Map, &[])?.map_err(|error| greeting.broken(error))?;
    let map = Map::decode(&body).map_err(|error| greeting.broken(error))?;
    match map.volume == volume_id(volume) && !map.names.is_empty() {
        true => Ok(map),
        false => Err(ConnectError::OtherVolume { server: server.to_owned(), volume: volume.to_owned() }),
    }
}

/// Asks a server who has and who waits for locks, as JSON. The key is its administrator's.
pub fn server_locks(server: &str, administrator: Key, timeout: Duration) -> Result<String, ConnectError> {
    let greeting = Greeting::of_tool(server, Some(administrator.into()), true, timeout);
    let text = greeting.ask(Op::Locks, &[])?.map_err(|error| greeting.broken(error))?;
    String::from_utf8(text).map_err(|error| greeting.broken(error))
}

/// Asks a server for its slow operations from this number on, as JSON. The key is its
/// administrator's.
pub fn server_slow(server: &str, administrator: Key, from: u64, timeout: Duration) -> Result<String, ConnectError> {
    let greeting = Greeting::of_tool(server, Some(administrator.into()), true, timeout);
    let mut body = Vec::new();
    aqueduct_wire::encode_slow(from, &mut body);
    let text = greeting.ask(Op::Status, &body)?.map_err(|error| greeting.broken(error))?;
    String::from_utf8(text).map_err(|error| greeting.broken(error))
}

/// Has a server release the locks of a client, whose session ends. The key is the server's administrator's.
pub fn release_locks(server: &str, administrator: Key, client: u64, timeout: Duration) -> Result<(), ConnectError> {
    let greeting = Greeting::of_tool(server, Some(administrator.into()), true, timeout);
    let mut body = Vec::new();
    aqueduct_wire::encode_release_locks(client, &mut body);
    match greeting.ask(Op::ReleaseLocks, &body)? {
        Ok(_) => Ok(()),
        Err(Errno::ENOENT) => Err(ConnectError::UnknownClient { server: server.to_owned(), client }),
        Err(error) => Err(greeting.broken(error)),
    }
}

/// Asks a server that is an agent, as whom `context` says: text (JSON) for text.
pub fn ask_agent(
    server: &str,
    (key, routes): (Option<ClientKey>, Option<Arc<Initiator>>),
    (context, text): (&Context, &str),
    timeout: Duration,
) -> Result<String, ConnectError> {
    let client_name = "aqueduct cp".into();
    let greeting = Greeting { client_name, routes, ..Greeting::of_tool(server, key, false, timeout) };
    let mut body = Vec::new();
    aqueduct_wire::encode_transfer(context, text, &mut body);
    let refused = |reason: String| ConnectError::Refused { server: server.to_owned(), reason };
    if body.len() > BODY_LENGTH_MAX {
        return Err(refused(format!("the request has {} bytes, and {BODY_LENGTH_MAX} is the most", body.len())));
    }
    let answer = greeting.ask(Op::Transfer, &body)?.map_err(|error| match error {
        Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOTCONN => {
            refused("it is no agent: start it with 'aqueduct serve --agent'".to_owned())
        }
        error => refused(format!("making a copy: {error}")),
    })?;
    String::from_utf8(answer).map_err(|error| greeting.broken(error))
}

impl Greeting {
    /// Of who asks one thing and goes.
    pub(crate) fn of_tool(server: &str, key: Option<ClientKey>, administers: bool, timeout: Duration) -> Greeting {
        let (server, client_name) = (server.to_owned(), "aqueduct status".into());
        let (instance, connect_timeout, checksums) = ([0; 16], timeout, Checksums::Auto);
        Greeting {
            server,
            client_name,
            instance,
            timeout,
            key,
            links: Arc::default(),
            connect_timeout,
            checksums,
            administers,
            routes: None,
            latest: Arc::default(),
        }
    }

    /// Asks one thing in a session of its own: the body of the answer, or the error that is the answer.
    fn ask(&self, op: Op, body: &[u8]) -> Result<Result<Vec<u8>, Errno>, ConnectError> {
        let mut link = self.join(Purpose::Any, Lane::Control)?.link;
        let mut header = Header::new(Kind::Request);
        header.op = op as u16;
        let (header, body) = self.exchange(&mut link, header, body, Kind::Reply)?;
        // The answer is here; a goodbye that does not arrive only means that the session ends a little later.
        let _ = link.send(Header::new(Kind::Goodbye), (&[], &[]), self.timeout);
        Ok(if header.status == 0 { Ok(body) } else { Err(Errno::from_raw(header.status as i32)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_does_nothing_to_a_terminal() {
        assert_eq!(told(b"no\x1b[2J\nroot: yes\xc2\x9b!\xff"), "no\u{fffd}[2J\u{fffd}root: yes\u{fffd}!\u{fffd}");
        assert_eq!(told(&[b'a'; 5000]).len(), TOLD_LENGTH_MAX);
    }

    #[test]
    fn a_router_is_blamed_only_where_one_said_so() {
        let hint = |source| ConnectError::Connect { server: "s".into(), source }.hint();
        let by_kernel = io::Error::from(rustix::io::Errno::NETUNREACH);
        assert!(!hint(by_kernel).contains("router"));
        assert!(hint(io::Error::new(io::ErrorKind::NetworkUnreachable, "no route leads there")).contains("router"));
    }
}
