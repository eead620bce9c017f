//! The handshake: who greets, who answers, and how both prove who they are.

use crate::auth::{NONCE_LENGTH, Nonce, PROOF_LENGTH};
use crate::capabilities::Capabilities;
use crate::field::*;
use crate::header::Lane;
use crate::identity::{NodeName, ServerId, ServerIdentity};
use crate::session::get_text;

/// Begins or joins a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version the client speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// What it can do. Unknown bits are ignored.
    pub capabilities: Capabilities,
    /// The server that is meant; `None`: whichever answers.
    pub server: Option<ServerId>,
    /// The session to join; 0 begins one.
    pub session: u64,
    /// The number of this connection among the session's, which its client chooses: from 1, each
    /// greater than the ones before.
    pub link: u32,
    /// What this connection is for.
    pub lane: Lane,
    /// Random, the same for all sessions of one client process.
    pub client_instance: [u8; 16],
    /// For people.
    pub client_name: String,
    /// New for each connection, so that no proof can be used again.
    pub nonce: Nonce,
    /// The client has a key, and lets only servers serve it that prove to have it too.
    pub keyed: bool,
    /// The node whose key it is; `None`: the cluster's, or the administrator's.
    pub node: Option<NodeName>,
}

/// Answers HELLO, when the header's status is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HelloReply {
    /// The version from here on.
    pub version: u16,
    /// What the server can do.
    pub capabilities: Capabilities,
    /// The session.
    pub session: u64,
    /// By it later connections prove to belong to it. Only told to begin a session without a key:
    /// with one both sides make it of that ([`crate::Key::session_secret`]). Else 0.
    pub secret: [u8; 16],
    /// The server's boot: see `Written::verifier`.
    pub verifier: u64,
    /// Slots in each class.
    pub slots: u32,
    /// The longest payload it takes, in bytes.
    pub payload_max: u32,
    /// How long leases last; 0: it grants none.
    pub lease_seconds: u32,
    /// For people.
    pub server_name: String,
    /// The server has been restarted since the session began and knows of it what it had written
    /// down: its slots, not its opens and locks. Before anything else the client reopens what it
    /// had open, takes its locks again (nobody else can meanwhile), and says `Recovered`.
    pub recovering: bool,
    /// Which server this is, and which start of it.
    pub server: ServerIdentity,
    /// The volume that it has a part of; 0: none.
    pub volume: [u8; 16],
    /// The epoch of the volume's map; 0: none.
    pub epoch: u64,
    /// Where else the server listens, as `ADDRESS:PORT`: hints, at most [`ADDRESSES_MAX`].
    pub addresses: Vec<String>,
}

/// The longest name of a client or server in bytes (a host name has at most 255). Longer ones are
/// cut when they are encoded: they are for people.
pub const PEER_NAME_LENGTH_MAX: usize = 255;

/// The most slots in each class that a server may offer: what a client keeps for them is 8 bytes
/// each, 1 MiB in all.
pub const SLOTS_MAX: u32 = 65_536;

/// The most addresses of a server that are told, and the longest in bytes: an IPv6 address with
/// its zone and port has room, and so has a host's name.
pub const ADDRESSES_MAX: usize = 64;

/// See [`ADDRESSES_MAX`].
pub const ADDRESS_LENGTH_MAX: usize = 255;

fn put_peer_name(name: &str, out: &mut Vec<u8>) {
    let end = (0..=name.len().min(PEER_NAME_LENGTH_MAX)).rev().find(|end| name.is_char_boundary(*end));
    Text::put(&&name.as_bytes()[..end.unwrap_or(0)], out);
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
        Bool::put(&self.server.is_some(), out);
        out.extend(self.server.iter().flat_map(|server| server.0));
        U64::put(&self.session, out);
        U32::put(&self.link, out);
        out.push(self.lane as u8);
        out.extend_from_slice(&self.client_instance);
        put_peer_name(&self.client_name, out);
        out.extend_from_slice(&self.nonce);
        Bool::put(&self.keyed, out);
        Text::put(&self.node.as_ref().map_or("", NodeName::as_str).as_bytes(), out);
    }

    /// The greeting of a body. Bytes behind the last field are a newer version's, and ignored.
    pub fn decode(body: &[u8]) -> Result<Hello, BodyError> {
        let mut reader = Reader::new(body);
        Ok(Hello {
            version_min: reader.get::<U16>()?,
            version_max: reader.get::<U16>()?,
            capabilities: Capabilities::from_bits_truncate(reader.get::<U64>()?),
            server: match reader.get::<Bool>()? {
                true => Some(ServerId(reader.array("the server")?)),
                false => None,
            },
            session: reader.get::<U64>()?,
            link: reader.get::<U32>()?,
            lane: Lane::from_code(reader.get::<U8>()?).ok_or(BodyError::Value("the lane"))?,
            client_instance: reader.array("the instance")?,
            client_name: get_peer_name(&mut reader, "the client's name")?,
            nonce: reader.array("the nonce")?,
            keyed: reader.get::<Bool>()?,
            node: match reader.get::<Text>()? {
                b"" => None,
                name => {
                    let name = std::str::from_utf8(name).ok().and_then(NodeName::new);
                    Some(name.ok_or(BodyError::Value("the node's name"))?)
                }
            },
        })
    }
}

/// Asks for the proofs that a client has its key and its session's secret: the body of CHALLENGE.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Made with the key, of all that was said before; `None`: the client has none.
    pub key: Option<[u8; PROOF_LENGTH]>,
    /// Made with the secret of the session that it joins, of the same: see
    /// [`crate::session_proof`].
    pub session: Option<[u8; PROOF_LENGTH]>,
}

impl Proof {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for proof in [self.key, self.session] {
            Bool::put(&proof.is_some(), out);
            out.extend(proof.iter().flatten());
        }
    }

    /// The proofs of a body.
    pub fn decode(body: &[u8]) -> Result<Proof, BodyError> {
        let mut reader = Reader::new(body);
        let mut next = || match reader.get::<Bool>()? {
            true => reader.array("the proof").map(Some),
            false => Ok(None),
        };
        let proof = Proof { key: next()?, session: next()? };
        reader.end().map(|()| proof)
    }
}

fn get_addresses(reader: &mut Reader<'_>) -> Result<Vec<String>, BodyError> {
    const WHAT: &str = "an address";
    let count = usize::from(reader.get::<U16>()?);
    if count > ADDRESSES_MAX {
        return Err(BodyError::Value("the number of addresses"));
    }
    let mut next = || {
        let address = get_text(reader, ADDRESS_LENGTH_MAX, WHAT)?;
        if address.contains(char::is_control) { Err(BodyError::Value(WHAT)) } else { Ok(address.to_owned()) }
    };
    (0..count).map(|_| next()).collect()
}

impl HelloReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        U16::put(&self.version, out);
        U64::put(&self.capabilities.bits(), out);
        U64::put(&self.session, out);
        out.extend_from_slice(&self.secret);
        U64::put(&self.verifier, out);
        for value in [self.slots, self.payload_max, self.lease_seconds] {
            U32::put(&value, out);
        }
        put_peer_name(&self.server_name, out);
        Bool::put(&self.recovering, out);
        out.extend_from_slice(&self.server.id.0);
        U64::put(&self.server.incarnation, out);
        out.extend_from_slice(&self.volume);
        U64::put(&self.epoch, out);
        let fits = |address: &&String| address.len() <= ADDRESS_LENGTH_MAX;
        let addresses: Vec<_> = self.addresses.iter().filter(fits).take(ADDRESSES_MAX).collect();
        U16::put(&(addresses.len() as u16), out);
        addresses.iter().for_each(|address| Text::put(&address.as_bytes(), out));
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
            payload_max: reader.get::<U32>()?,
            lease_seconds: reader.get::<U32>()?,
            server_name: get_peer_name(&mut reader, "the server's name")?,
            recovering: reader.get::<Bool>()?,
            server: ServerIdentity { id: ServerId(reader.array("the server")?), incarnation: reader.get::<U64>()? },
            volume: reader.array("the volume")?,
            epoch: reader.get::<U64>()?,
            addresses: get_addresses(&mut reader)?,
        };
        if reply.slots > SLOTS_MAX { Err(BodyError::Value("the number of slots")) } else { Ok(reply) }
    }
}
