//! The bodies of the frames around requests: greeting, attaching, cancelling.

use aqueduct_fs::Entry;

use crate::auth::{NONCE_LENGTH, Nonce, PROOF_LENGTH};
use crate::field::*;
use crate::header::Lane;

bitflags::bitflags! {
    /// What one side can do beyond the basics; both use what both have.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// Frames have checksums of body and payload.
        const CHECKSUM = 1;
        /// COMPOUND is understood.
        const COMPOUND = 1 << 1;
        /// PENDING and COMPLETION are understood.
        const PENDING = 1 << 2;
        /// A client talks to no server that adds no checksums.
        const CHECKSUM_REQUIRED = 1 << 3;
        /// The client has the administrator's key.
        const ADMINISTRATOR = 1 << 4;
        /// Exclusive leases are granted, and asked for and written under by flags.
        const EXCLUSIVE = 1 << 5;
        /// What is made is said to be bare, where that is asked for by a flag and so.
        const BARE = 1 << 6;
        /// SETATTR may be sent as held back, as WRITE may.
        const HELD_SETATTR = 1 << 7;
    }
}

/// Begins or joins a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version the client speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// What it can do. Unknown bits are ignored.
    pub capabilities: Capabilities,
    /// The session to join; 0 begins one.
    pub session: u64,
    /// The session's secret.
    pub secret: [u8; 16],
    /// What this connection is for.
    pub lane: Lane,
    /// Random, the same for all sessions of one client process.
    pub client_instance: [u8; 16],
    /// For people.
    pub client_name: String,
    /// The client has a key, and lets only servers serve it that prove to have it too.
    pub nonce: Option<Nonce>,
}

/// Answers HELLO, when the header's status is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The version from here on.
    pub version: u16,
    /// What the server can do.
    pub capabilities: Capabilities,
    /// The session.
    pub session: u64,
    /// Proves later connections to belong to it.
    pub secret: [u8; 16],
    /// The server's boot: see `Written::verifier`.
    pub verifier: u64,
    /// Slots in each class.
    pub slots: u32,
    /// Requests that may be under way on one connection.
    pub credits: u32,
    /// The longest payload it takes, in bytes.
    pub payload_max: u32,
    /// How long leases last; 0: it grants none.
    pub lease_seconds: u32,
    /// For people.
    pub server_name: String,
    /// The server has been restarted since the session began and knows of it what it had written down: its slots, not its opens and locks. Before
    /// anything else the client reopens what it had open, takes its locks again (nobody else can meanwhile), and says `Recovered`.
    pub recovering: bool,
}

/// The longest name of a client or server in bytes (a host name has at most 255). Longer ones are cut when they are encoded: they are for people.
pub const PEER_NAME_LENGTH_MAX: usize = 255;

/// The longest name of an export in bytes: that of a path (PATH_MAX of Linux).
pub const EXPORT_NAME_LENGTH_MAX: usize = 4096;

/// The most slots in each class that a server may offer: what a client keeps for them is 8 bytes each, 1 MiB in all.
pub const SLOTS_MAX: u32 = 65_536;

fn put_peer_name(name: &str, out: &mut Vec<u8>) {
    let end = (0..=name.len().min(PEER_NAME_LENGTH_MAX)).rev().find(|end| name.is_char_boundary(*end));
    Text::put(&&name.as_bytes()[..end.unwrap_or(0)], out);
}

fn get_text<'a>(reader: &mut Reader<'a>, length_max: usize, what: &'static str) -> Result<&'a str, BodyError> {
    let bytes = reader.get::<Text>()?;
    if bytes.len() > length_max {
        return Err(BodyError::Value(what));
    }
    std::str::from_utf8(bytes).map_err(|_| BodyError::Value(what))
}

/// Without control characters, since it stands in logs and on terminals.
fn get_peer_name(reader: &mut Reader<'_>, what: &'static str) -> Result<String, BodyError> {
    let name = get_text(reader, PEER_NAME_LENGTH_MAX, what)?;
    if name.contains(char::is_control) { Err(BodyError::Value(what)) } else { Ok(name.to_owned()) }
}

impl Hello {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        U16::put(&self.version_min, out);
        U16::put(&self.version_max, out);
        U64::put(&self.capabilities.bits(), out);
        U64::put(&self.session, out);
        out.extend_from_slice(&self.secret);
        out.push(self.lane as u8);
        out.extend_from_slice(&self.client_instance);
        put_peer_name(&self.client_name, out);
        Bool::put(&self.nonce.is_some(), out);
        out.extend(self.nonce.iter().flatten());
    }

    /// The greeting of a body. Bytes behind the last field are a newer version's, and ignored.
    pub fn decode(body: &[u8]) -> Result<Hello, BodyError> {
        let mut reader = Reader::new(body);
        Ok(Hello {
            version_min: reader.get::<U16>()?,
            version_max: reader.get::<U16>()?,
            capabilities: Capabilities::from_bits_truncate(reader.get::<U64>()?),
            session: reader.get::<U64>()?,
            secret: reader.array("the secret")?,
            lane: Lane::from_code(reader.get::<U8>()?).ok_or(BodyError::Value("the lane"))?,
            client_instance: reader.array("the instance")?,
            client_name: get_peer_name(&mut reader, "the client's name")?,
            nonce: match reader.get::<Bool>()? {
                true => Some(reader.array("the nonce")?),
                false => None,
            },
        })
    }
}

/// Asks for the proof that a client has the key: the body of CHALLENGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The server's.
    pub nonce: [u8; NONCE_LENGTH],
}

impl Challenge {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.nonce);
    }

    /// The challenge of a body.
    pub fn decode(body: &[u8]) -> Result<Challenge, BodyError> {
        let mut reader = Reader::new(body);
        let challenge = Challenge { nonce: reader.array("the nonce")? };
        reader.end().map(|()| challenge)
    }
}

/// Answers CHALLENGE: see [`crate::Key::proof`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Made with the key, of all that was said before.
    pub proof: [u8; PROOF_LENGTH],
}

impl Proof {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.proof);
    }

    /// The proof of a body.
    pub fn decode(body: &[u8]) -> Result<Proof, BodyError> {
        let mut reader = Reader::new(body);
        let proof = Proof { proof: reader.array("the proof")? };
        reader.end().map(|()| proof)
    }
}

impl HelloReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        U16::put(&self.version, out);
        U64::put(&self.capabilities.bits(), out);
        U64::put(&self.session, out);
        out.extend_from_slice(&self.secret);
        U64::put(&self.verifier, out);
        for value in [self.slots, self.credits, self.payload_max, self.lease_seconds] {
            U32::put(&value, out);
        }
        put_peer_name(&self.server_name, out);
        Bool::put(&self.recovering, out);
    }

    /// The answer of a body. Bytes behind the last field are a newer version's, and ignored.
    pub fn decode(body: &[u8]) -> Result<HelloReply, BodyError> {
        let mut reader = Reader::new(body);
        let reply = HelloReply {
            version: reader.get::<U16>()?,
            capabilities: Capabilities::from_bits_truncate(reader.get::<U64>()?),
            session: reader.get::<U64>()?,
            secret: reader.array("the secret")?,
            verifier: reader.get::<U64>()?,
            slots: reader.get::<U32>()?,
            credits: reader.get::<U32>()?,
            payload_max: reader.get::<U32>()?,
            lease_seconds: reader.get::<U32>()?,
            server_name: get_peer_name(&mut reader, "the server's name")?,
            recovering: reader.get::<Bool>()?,
        };
        if reply.slots > SLOTS_MAX { Err(BodyError::Value("the number of slots")) } else { Ok(reply) }
    }
}

/// Asks for an export: the body of an ATTACH request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach<'a> {
    /// Its name.
    pub export: &'a str,
    /// The client will change nothing.
    pub read_only: bool,
}

/// Answers ATTACH. With status ENOENT the body is the names of the exports there are, one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachReply {
    /// The root of the export.
    pub root: Entry,
    /// Its number.
    pub export_id: u32,
    /// Nothing may be changed.
    pub read_only: bool,
    /// How old what is kept under leases may become, in milliseconds, because others than this server may change it; 0: the leases say it all.
    pub age_max: u32,
    /// A caller's own ids do not tell what it may do: all act as one user, or under other ids.
    pub one_user: bool,
}

impl<'a> Attach<'a> {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Text::put(&self.export.as_bytes(), out);
        Bool::put(&self.read_only, out);
    }

    /// The request of a body.
    pub fn decode(body: &'a [u8]) -> Result<Attach<'a>, BodyError> {
        let mut reader = Reader::new(body);
        let export = get_text(&mut reader, EXPORT_NAME_LENGTH_MAX, "the export's name")?;
        let attach = Attach { export, read_only: reader.get::<Bool>()? };
        reader.end().map(|()| attach)
    }
}

impl AttachReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Inode::put(&self.root, out);
        U32::put(&self.export_id, out);
        Bool::put(&self.read_only, out);
        U32::put(&self.age_max, out);
        Bool::put(&self.one_user, out);
    }

    /// The answer of a body.
    pub fn decode(body: &[u8]) -> Result<AttachReply, BodyError> {
        let mut reader = Reader::new(body);
        let reply = AttachReply {
            root: reader.get::<Inode>()?,
            export_id: reader.get::<U32>()?,
            read_only: reader.get::<Bool>()?,
            age_max: reader.get::<U32>()?,
            one_user: reader.get::<Bool>()?,
        };
        reader.end().map(|()| reply)
    }
}

/// Appends the body of CANCEL: the id of the request.
pub fn encode_cancel(request: u64, out: &mut Vec<u8>) {
    U64::put(&request, out);
}

/// Appends the body of RELEASE LOCKS: the session whose locks are to be released.
pub fn encode_release_locks(session: u64, out: &mut Vec<u8>) {
    U64::put(&session, out);
}

/// The session of a RELEASE LOCKS.
pub fn decode_release_locks(body: &[u8]) -> Result<u64, BodyError> {
    let mut reader = Reader::new(body);
    let session = reader.get::<U64>()?;
    reader.end().map(|()| session)
}

/// The id of the request that a CANCEL is about.
pub fn decode_cancel(body: &[u8]) -> Result<u64, BodyError> {
    let mut reader = Reader::new(body);
    let request = reader.get::<U64>()?;
    reader.end().map(|()| request)
}

/// What became of a cancelled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It does not wait: its reply has been sent or will be. If that is PENDING, it has begun to wait since, and CANCEL has to be sent again.
    Done,
    /// It waited, and no longer does: its COMPLETION says EINTR, or success where it was granted at the last moment.
    Never,
}

/// The body of CANCEL's reply: the outcome as a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelReply {
    /// What became of it.
    pub outcome: CancelOutcome,
}

impl CancelReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.outcome {
            CancelOutcome::Done => 0,
            CancelOutcome::Never => 1,
        });
    }

    /// The outcome of a body.
    pub fn decode(body: &[u8]) -> Result<CancelReply, BodyError> {
        let mut reader = Reader::new(body);
        let outcome = match reader.get::<U8>()? {
            0 => CancelOutcome::Done,
            1 => CancelOutcome::Never,
            _ => return Err(BodyError::Value("the outcome")),
        };
        reader.end().map(|()| CancelReply { outcome })
    }
}
