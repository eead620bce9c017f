//! Who may connect: the proof that a client has the key, and the tags that bind each frame to its connection and place.
//!
//! The client's HELLO and the server's CHALLENGE each hold a nonce. What the two frames say, whole, is the [`Transcript`]. From it and the key come the
//! client's proof, which no recorded handshake has, and a key for the frames of each direction.

use std::fmt;

use crate::header::{
    CHECKSUM_AT, FrameError, HANDSHAKE_VERSION, HEADER_SIZE, Header, Kind, TAG_AT, TAG_LENGTH, seal_header,
};
use crate::identity::{NodeName, ServerId};
use crate::{Flags, Trailer, content_checksum, header};

/// The length of a key in bytes: 256 bits, what BLAKE3 takes.
pub const KEY_LENGTH: usize = 32;

/// Keys that a server accepts: two while one takes another's place, and some more for groups of clients. A proof is tried with each.
pub const KEYS_MAX: usize = 8;

/// The length of a nonce in bytes: random ones never meet.
pub const NONCE_LENGTH: usize = 32;

/// The length of a proof in bytes.
pub const PROOF_LENGTH: usize = 32;

/// What makes a key of the same material for another use (BLAKE3's derive_key mode asks for texts that nobody else has).
const PROOF_CONTEXT: &str = "Aqueduct 2026-11-21 version 1: the client's proof";
const FROM_CLIENT_CONTEXT: &str = "Aqueduct 2026-11-21 version 1: frames from the client";
const ADMINISTRATOR_CONTEXT: &str = "Aqueduct 2026-11-22 version 1: the administrator's key";
const MEMBERS_CONTEXT: &str = "Aqueduct 2026-11-23 version 1: the servers of a volume";
const NODE_CONTEXT: &str = "Aqueduct 2026-11-23 version 1: a node's key";
const SERVER_CONTEXT: &str = "Aqueduct 2026-11-23 version 1: the server's identity";
const SECRET_CONTEXT: &str = "Aqueduct 2026-11-23 version 1: the session's secret";
const SESSION_CONTEXT: &str = "Aqueduct 2026-11-23 version 1: the proof of a session";
const FROM_SERVER_CONTEXT: &str = "Aqueduct 2026-11-21 version 1: frames from the server";

/// A random number that is used once.
pub type Nonce = [u8; NONCE_LENGTH];

/// The key that all members of a cluster have.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_LENGTH]);

/// Nothing of the key gets into logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What a client proves who it is with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientKey {
    /// The cluster's key, or the node's.
    pub key: Key,
    /// Whose key it is; `None`: the cluster's, which says that somebody is a member and not which.
    pub node: Option<NodeName>,
}

impl From<Key> for ClientKey {
    fn from(key: Key) -> ClientKey {
        ClientKey { key, node: None }
    }
}

/// What both sides have said before the proof: all bytes of HELLO and CHALLENGE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript([u8; 32]);

impl Transcript {
    /// Of the headers and bodies of both frames. A header has its body's length, so nothing can move from one part to the next.
    pub fn new(hello: (&Header, &[u8]), challenge: (&Header, &[u8])) -> Transcript {
        let mut hasher = blake3::Hasher::new();
        for (header, body) in [hello, challenge] {
            hasher.update(&header.encode()).update(body);
        }
        Transcript(hasher.finalize().into())
    }
}

/// One side's keys for a connection's frames: those that it sends, and those that it receives.
#[derive(Debug)]
pub struct FrameKeys {
    /// For the frames that it sends.
    pub send: FrameKey,
    /// For the frames that it receives.
    pub receive: FrameKey,
}

impl Key {
    /// The key of these bytes, which have to be random.
    pub fn new(bytes: [u8; KEY_LENGTH]) -> Key {
        Key(bytes)
    }

    /// What it is made of, for its file.
    pub fn bytes(&self) -> &[u8; KEY_LENGTH] {
        &self.0
    }

    /// The administrator's key of a server that has this secret.
    pub fn of_administrator(secret: &[u8; KEY_LENGTH]) -> Key {
        Key(blake3::derive_key(ADMINISTRATOR_CONTEXT, secret))
    }

    /// The key by which servers of a volume know each other, made of the volume's.
    pub fn of_members(volume: &[u8; KEY_LENGTH]) -> Key {
        Key(blake3::derive_key(MEMBERS_CONTEXT, volume))
    }

    /// The key of a node, made of the cluster's, which this is. Nobody finds the cluster's by it,
    /// or another node's.
    pub fn of_node(&self, node: &NodeName) -> Key {
        Key(blake3::Hasher::new_derive_key(NODE_CONTEXT)
            .update(&self.0)
            .update(node.as_str().as_bytes())
            .finalize()
            .into())
    }

    /// The secret of the session that begins with this transcript, which so never travels.
    pub fn session_secret(&self, transcript: &Transcript) -> [u8; 16] {
        let mut secret = [0; 16];
        secret.copy_from_slice(&self.derive(SECRET_CONTEXT, transcript)[..16]);
        secret
    }

    fn derive(&self, context: &str, transcript: &Transcript) -> [u8; 32] {
        blake3::Hasher::new_derive_key(context).update(&self.0).update(&transcript.0).finalize().into()
    }

    /// What only somebody who has the key can say after this transcript.
    pub fn proof(&self, transcript: &Transcript) -> [u8; PROOF_LENGTH] {
        self.derive(PROOF_CONTEXT, transcript)
    }

    /// Whether a proof was made with this key. The time that it takes tells nothing.
    pub fn has_made(&self, proof: &[u8; PROOF_LENGTH], transcript: &Transcript) -> bool {
        blake3::Hash::from_bytes(self.proof(transcript)) == *proof // compared in constant time, as blake3 promises
    }

    /// The client's keys for the frames after its proof.
    pub fn of_client(&self, transcript: &Transcript) -> FrameKeys {
        FrameKeys {
            send: FrameKey::new(self.derive(FROM_CLIENT_CONTEXT, transcript)),
            receive: FrameKey::new(self.derive(FROM_SERVER_CONTEXT, transcript)),
        }
    }

    /// The server's keys for the frames after the proof.
    pub fn of_server(&self, transcript: &Transcript) -> FrameKeys {
        let FrameKeys { send, receive } = self.of_client(transcript);
        FrameKeys { send: receive, receive: send }
    }
}

/// What only somebody who has the session's secret can say after this transcript.
pub fn session_proof(secret: &[u8; 16], transcript: &Transcript) -> [u8; PROOF_LENGTH] {
    blake3::Hasher::new_derive_key(SESSION_CONTEXT).update(secret).update(&transcript.0).finalize().into()
}

/// Whether a proof was made with the session's secret. The time that it takes tells nothing.
pub fn session_is_proved(secret: &[u8; 16], proof: &[u8; PROOF_LENGTH], transcript: &Transcript) -> bool {
    // Compared in constant time, as blake3 promises.
    blake3::Hash::from_bytes(session_proof(secret, transcript)) == *proof
}

impl ServerId {
    /// The identity of the server that has this secret in its state folder.
    pub fn of_secret(secret: &[u8; KEY_LENGTH]) -> ServerId {
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::derive_key(SERVER_CONTEXT, secret)[..16]);
        ServerId(id)
    }
}

/// Makes the tags of one direction of a connection, one for each frame in its order.
pub struct FrameKey {
    key: [u8; 32],
    /// Frames so far. It is part of each tag and never sent: a frame that was left out, repeated or moved makes all that follow wrong.
    count: u64,
}

impl fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameKey(.., {} frames)", self.count)
    }
}

impl FrameKey {
    fn new(key: [u8; 32]) -> FrameKey {
        FrameKey { key, count: 0 }
    }

    /// The tag of the next frame. Of its header all counts but the tag itself and what is computed of the whole.
    fn tag(&mut self, header: &[u8; HEADER_SIZE], body: &[u8]) -> [u8; TAG_LENGTH] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.count.to_le_bytes());
        hasher.update(&header[..TAG_AT]).update(&header[TAG_AT + TAG_LENGTH..CHECKSUM_AT]).update(body);
        self.count += 1;
        let hash = hasher.finalize();
        let mut tag = [0; TAG_LENGTH];
        tag.copy_from_slice(&hash.as_bytes()[..TAG_LENGTH]);
        tag
    }
}

/// Completes the headers of the frames that one side of a connection sends.
#[derive(Debug)]
pub struct Sealer {
    key: Option<FrameKey>,
    checksums: bool,
    version: u16,
}

impl Default for Sealer {
    fn default() -> Sealer {
        Sealer::new(None, false)
    }
}

impl Sealer {
    /// `key`: each frame gets a tag. `checksums`: and the checksum of its content.
    pub fn new(key: Option<FrameKey>, checksums: bool) -> Sealer {
        Sealer { key, checksums, version: HANDSHAKE_VERSION }
    }

    /// Each frame has this version from now on.
    pub fn set_version(&mut self, version: u16) {
        self.version = version;
    }

    /// Each frame gets a tag from now on.
    pub fn set_key(&mut self, key: FrameKey) {
        self.key = Some(key);
    }

    /// Each frame gets the checksum of its content from now on.
    pub fn add_checksums(&mut self) {
        self.checksums = true;
    }

    /// Whether each frame gets the checksum of its content.
    pub fn adds_checksums(&self) -> bool {
        self.checksums
    }

    /// Completes the header of the next frame, which is this header and body, and of which this payload follows.
    pub fn seal(&mut self, frame: &mut [u8], payload: &[u8]) {
        if self.key.is_none() && !self.checksums && self.version == HANDSHAKE_VERSION {
            return;
        }
        let Some((header, body)) = frame.split_first_chunk_mut::<HEADER_SIZE>() else { return };
        header::set_version(header, self.version);
        if self.checksums {
            header::add_content_checksum(header, body, payload);
        }
        if let Some(key) = &mut self.key {
            header::add_flags(header, Flags::KEYED);
            let tag = key.tag(header, body);
            header[TAG_AT..TAG_AT + TAG_LENGTH].copy_from_slice(&tag);
        }
        seal_header(header);
    }

    /// The trailer of a frame.
    pub fn trailer(&self, valid: u32, body: &[u8], payload: &[u8]) -> Trailer {
        let checksum = if self.checksums { content_checksum(body, payload, Some(valid)) } else { 0 };
        Trailer { valid, checksum }
    }
}

/// Checks the frames that one side of a connection receives.
#[derive(Debug)]
pub struct Opener {
    key: Option<FrameKey>,
    version: u16,
    /// A proof has come, and nobody has said yet what follows from it.
    proved: bool,
}

impl Default for Opener {
    fn default() -> Opener {
        Opener::new(None)
    }
}

impl Opener {
    /// `key`: each frame has to have its tag.
    pub fn new(key: Option<FrameKey>) -> Opener {
        Opener { key, version: HANDSHAKE_VERSION, proved: false }
    }

    /// Each frame has to have this version from now on.
    pub fn set_version(&mut self, version: u16) {
        self.version = version;
    }

    /// The header of these bytes, every field checked.
    pub fn header(&self, bytes: &[u8; HEADER_SIZE]) -> Result<Header, FrameError> {
        Header::decode_as(bytes, self.version)
    }

    /// Checks the next frame, in the order in which they come.
    pub fn check(&mut self, header: &Header, body: &[u8]) -> Result<(), FrameError> {
        let is_keyed = header.flags.contains(Flags::KEYED);
        match &mut self.key {
            // What came with the proof, before the server has looked at it, has no tag that could be checked.
            None if self.proved => Err(FrameError::Early),
            None if is_keyed => Err(FrameError::Keyed),
            None => {
                self.proved = header.kind == Kind::Proof;
                Ok(())
            }
            Some(_) if !is_keyed => Err(FrameError::NotKeyed),
            Some(key) => {
                let tag = key.tag(&header.encode_as(self.version), body);
                let difference = tag.iter().zip(&header.tag).fold(0, |difference, (a, b)| difference | (a ^ b));
                if difference == 0 { Ok(()) } else { Err(FrameError::Tag) }
            }
        }
    }
}
