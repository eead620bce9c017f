//! The handshake, and what can go wrong in it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use aqueduct_fs::Errno;
use aqueduct_net::blocking::ExchangeError;
use aqueduct_net::{Link, socket};
use aqueduct_wire::{
    Attach, AttachReply, Capabilities, Challenge, Checksums, Header, Hello, HelloReply, Key, Kind, Lane, NONCE_LENGTH,
    Nonce, Op, Proof, Transcript, VERSION,
};

use crate::recovery::AGAIN;

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
                "name the file with the server's key: mount with -o key=FILE, 'aqueduct status' with --key FILE"
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
            ConnectError::Connect { .. } => {
                "check that the host is up, the network reaches it and no firewall drops the port".into()
            }
            ConnectError::NotAqueduct { .. } => {
                "another service listens on that port: give the port that 'aqueduct serve' prints when it starts".into()
            }
            ConnectError::Refused { .. } | ConnectError::UnknownSession { .. } => "see the server's log".into(),
            ConnectError::Key { problem, .. } => problem.hint().into(),
            ConnectError::UnknownExport { known, .. } if known.is_empty() => {
                "name a directory to 'aqueduct serve' on the server".into()
            }
            ConnectError::UnknownExport { .. } => {
                "mount one of these, or name the directory to 'aqueduct serve' on the server".into()
            }
            ConnectError::Forbidden { .. } => {
                "add this machine's address to the export's 'hosts' in the server's configuration file".into()
            }
            ConnectError::UnknownClient { .. } => {
                "it has gone, and its locks with it, or has a new number: see 'aqueduct status --locks'".into()
            }
            ConnectError::Local { .. } => "check this machine's limits on open files and memory".into(),
        }
    }

    /// Whether somebody has to change something before it can succeed.
    pub(crate) fn is_of_configuration(&self) -> bool {
        matches!(self, ConnectError::Key { .. } | ConnectError::UnknownExport { .. } | ConnectError::Forbidden { .. })
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
    /// Only servers that have it are talked to.
    pub(crate) key: Option<Key>,
    /// For each address to be reached.
    pub(crate) connect_timeout: Duration,
    pub(crate) checksums: Checksums,
    /// The key is the administrator's.
    pub(crate) administers: bool,
}

/// A session as the client knows it.
#[derive(Clone)]
pub(crate) struct SessionKey {
    pub(crate) id: u64,
    pub(crate) secret: [u8; 16],
}

pub(crate) fn resolve(server: &str) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |source| ConnectError::Resolve { server: server.to_owned(), source };
    let addresses: Vec<SocketAddr> = server.to_socket_addrs().map_err(failed)?.collect();
    if addresses.is_empty() { Err(failed(io::ErrorKind::NotFound.into())) } else { Ok(addresses) }
}

impl Greeting {
    fn connect(&self) -> Result<Link, ConnectError> {
        let mut last = None;
        for address in resolve(&self.server)? {
            match socket::connect(address, self.connect_timeout) {
                Ok(socket) => return Ok(socket.into()),
                Err(error) => last = Some(error),
            }
        }
        let source = last.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(ConnectError::Connect { server: self.server.clone(), source })
    }

    fn failed(&self, error: ExchangeError) -> ConnectError {
        let server = self.server.clone();
        match error {
            ExchangeError::Socket(source) if source.kind() == io::ErrorKind::WouldBlock => {
                ConnectError::NotAqueduct { server, detail: format!("no answer within {:?}", self.timeout) }
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
        let answer = link.exchange(header, content, self.timeout).map_err(|error| self.failed(error))?;
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

    fn hello(&self, session: Option<&SessionKey>, lane: Lane) -> Result<Hello, ConnectError> {
        let nonce = self.key.as_ref().map(|_| nonce()).transpose();
        let mut capabilities = Capabilities::COMPOUND | Capabilities::PENDING | self.checksums.offered();
        capabilities.set(Capabilities::ADMINISTRATOR, self.administers);
        Ok(Hello {
            version_min: VERSION,
            version_max: VERSION,
            capabilities,
            session: session.map_or(0, |session| session.id),
            secret: session.map_or([0; 16], |session| session.secret),
            lane,
            client_name: self.client_name.clone(),
            client_instance: self.instance,
            nonce: nonce.map_err(|source| ConnectError::Local { server: self.server.clone(), source })?,
        })
    }

    /// Connects one lane, to a new session if there is none yet.
    pub(crate) fn join(&self, session: Option<&SessionKey>, lane: Lane) -> Result<(Link, HelloReply), ConnectError> {
        let mut link = self.connect()?;
        let mut body = Vec::new();
        self.hello(session, lane)?.encode(&mut body);
        let hello = Header::new(Kind::Hello).checked(&body);
        let (header, body) = match &self.key {
            None => self.exchange(&mut link, hello, &body, Kind::HelloReply)?,
            Some(key) => self.prove(&mut link, key, (&hello, &body))?,
        };
        match header.status as i32 {
            0 => {}
            libc_errno::ESTALE => return Err(ConnectError::UnknownSession { server: self.server.clone() }),
            libc_errno::EACCES => return Err(self.refused("the session's export is closed to this machine's address")),
            libc_errno::ENFILE => return Err(self.refused("it has as many clients as it takes")),
            libc_errno::ENOKEY => return Err(self.key_problem(KeyProblem::Missing)),
            number => return Err(self.refused(&aqueduct_fs::Errno::from_raw(number).to_string())),
        }
        let reply = HelloReply::decode(&body).map_err(|error| self.broken(error))?;
        if reply.slots == 0 || (reply.payload_max as usize) < aqueduct_fs::TRANSFER_SIZE_MAX {
            return Err(self.broken("it grants no slots, or payloads of less than 1 MiB"));
        }
        if reply.capabilities.contains(Capabilities::CHECKSUM) {
            link.add_checksums();
        }
        Ok((link, reply))
    }

    /// Sends HELLO, proves to have the key, and returns the answer, with which the server has proved it too.
    fn prove(&self, link: &mut Link, key: &Key, hello: (&Header, &[u8])) -> Result<(Header, Vec<u8>), ConnectError> {
        let answer = link.exchange(*hello.0, (hello.1, &[]), self.timeout).map_err(|error| self.failed(error))?;
        if answer.0.kind == Kind::HelloReply {
            return Err(self.key_problem(KeyProblem::Unproved));
        }
        let (header, body) = self.expect(answer, Kind::Challenge)?;
        Challenge::decode(&body).map_err(|error| self.broken(error))?;
        let transcript = Transcript::new(hello, (&header, &body));
        let mut proof = Vec::new();
        Proof { proof: key.proof(&transcript) }.encode(&mut proof);
        let sent = link.send(Header::new(Kind::Proof).checked(&proof), (&proof, &[]), self.timeout);
        let answer = sent.and_then(|()| link.receive_unchecked(self.timeout)).map_err(|error| self.failed(error))?;
        link.set_keys(key.of_client(&transcript));
        let is_proved = link.check(&answer.0, &answer.1).is_ok();
        let (header, body) = self.expect(answer, Kind::HelloReply)?;
        match header.status as i32 {
            // It has no key to prove this with.
            libc_errno::EKEYREJECTED if !is_proved => Err(self.key_problem(KeyProblem::Wrong)),
            _ if !is_proved => Err(self.key_problem(KeyProblem::Unproved)),
            _ => Ok((header, body)),
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

/// The errnos that a handshake looks at, as patterns.
mod libc_errno {
    use aqueduct_fs::Errno;

    pub(super) const EACCES: i32 = Errno::EACCES.raw();
    pub(super) const EAGAIN: i32 = Errno::EAGAIN.raw();
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
pub fn server_status(server: &str, key: Option<Key>, timeout: Duration) -> Result<String, ConnectError> {
    let greeting = Greeting::of_tool(server, key, false, timeout);
    let text = greeting.ask(Op::Status, &[])?.map_err(|error| greeting.broken(error))?;
    String::from_utf8(text).map_err(|error| greeting.broken(error))
}

/// Asks a server who has and who waits for locks, as JSON. The key is its administrator's.
pub fn server_locks(server: &str, administrator: Key, timeout: Duration) -> Result<String, ConnectError> {
    let greeting = Greeting::of_tool(server, Some(administrator), true, timeout);
    let text = greeting.ask(Op::Locks, &[])?.map_err(|error| greeting.broken(error))?;
    String::from_utf8(text).map_err(|error| greeting.broken(error))
}

/// Has a server release the locks of a client, whose session ends. The key is the server's administrator's.
pub fn release_locks(server: &str, administrator: Key, client: u64, timeout: Duration) -> Result<(), ConnectError> {
    let greeting = Greeting::of_tool(server, Some(administrator), true, timeout);
    let mut body = Vec::new();
    aqueduct_wire::encode_release_locks(client, &mut body);
    match greeting.ask(Op::ReleaseLocks, &body)? {
        Ok(_) => Ok(()),
        Err(Errno::ENOENT) => Err(ConnectError::UnknownClient { server: server.to_owned(), client }),
        Err(error) => Err(greeting.broken(error)),
    }
}

impl Greeting {
    /// Of who asks one thing and goes.
    fn of_tool(server: &str, key: Option<Key>, administers: bool, timeout: Duration) -> Greeting {
        let (server, client_name) = (server.to_owned(), "aqueduct status".into());
        let (instance, connect_timeout, checksums) = ([0; 16], timeout, Checksums::Auto);
        Greeting { server, client_name, instance, timeout, key, connect_timeout, checksums, administers }
    }

    /// Asks one thing in a session of its own: the body of the answer, or the error that is the answer.
    fn ask(&self, op: Op, body: &[u8]) -> Result<Result<Vec<u8>, Errno>, ConnectError> {
        let (mut link, _) = self.join(None, Lane::Control)?;
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
}
