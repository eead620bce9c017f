//! The frame: a header of 64 bytes, a body, a payload, and sometimes a trailer.

use crate::checksum::content_checksum;
use crate::{BODY_LENGTH_MAX, PAYLOAD_LENGTH_MAX};

/// The first four bytes of every frame.
pub const MAGIC: u32 = u32::from_le_bytes(*b"AQDT");
/// The newest version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;
/// The oldest.
pub const VERSION_MIN: u16 = 1;
/// The version in the headers of all frames of a handshake, whatever follows.
pub(crate) const HANDSHAKE_VERSION: u16 = 1;
/// The size of a header in bytes.
pub const HEADER_SIZE: usize = 64;
/// The size of a trailer in bytes.
pub const TRAILER_SIZE: usize = 16;
/// Where the flags, the checksum of the content, the tag and the header's own checksum stand in a header.
const VERSION_AT: usize = 4;
const FLAGS_AT: usize = 8;
const CONTENT_CHECKSUM_AT: usize = 40;
pub(crate) const TAG_AT: usize = 48;
pub(crate) const TAG_LENGTH: usize = 8;
pub(crate) const CHECKSUM_AT: usize = 60;
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"AQTR");

/// What is wrong with a frame. The connection cannot go on: nobody knows where the next frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are not the magic.
    #[error("these are not frames of Aqueduct's protocol (they begin with {0:#010x})")]
    Magic(u32),
    /// Another version.
    #[error("the frame is of version {found}, those of this connection are of version {expected}")]
    Version {
        /// The frame's.
        found: u16,
        /// What was agreed on, or that of a handshake.
        expected: u16,
    },
    /// The header's checksum does not match.
    #[error("the header is damaged (checksum)")]
    Checksum,
    /// A value that this version does not have.
    #[error("the header's {field} is {value}, which this release does not know")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A length above its limit.
    #[error("the {part} is {length} bytes long, more than the {limit} allowed")]
    Length {
        /// Body or payload.
        part: &'static str,
        /// As announced.
        length: u32,
        /// What is allowed.
        limit: usize,
    },
    /// A field that belongs to a flag, without the flag.
    #[error("the header's {0} is set without its flag")]
    Stray(&'static str),
    /// A body or payload that does not have its checksum.
    #[error("the body or payload is damaged (checksum)")]
    Content,
    /// A trailer that is none.
    #[error("the trailer is damaged")]
    Trailer,
    /// No tag where every frame has one.
    #[error("the frame is not keyed, as all are between those who have the key")]
    NotKeyed,
    /// A tag where no key is in use.
    #[error("the frame is keyed, though no key was agreed on")]
    Keyed,
    /// A tag that is not the one of this frame at this place of this connection.
    #[error(
        "the frame's tag is wrong: it was changed on the way, left out, repeated or moved, or its sender does not have the key"
    )]
    Tag,
    /// A frame behind PROOF, before its answer.
    #[error("a frame came before the answer to PROOF")]
    Early,
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant = $code,)* }

        impl $name {
            /// The value of a code; `None` for one that this version does not have.
            pub const fn from_code(code: u8) -> Option<$name> {
                match code { $($code => Some($name::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// What a frame is.
    Kind:
    /// A client greets, to begin or to join a session.
    Hello = 1,
    /// The server's answer to HELLO.
    HelloReply = 2,
    /// An operation to execute.
    Request = 3,
    /// Its result.
    Reply = 4,
    /// Its result will come later as a COMPLETION; its slot and credit are free.
    Pending = 5,
    /// The result of an operation that was PENDING.
    Completion = 6,
    /// The sender no longer wants the result of a request.
    Cancel = 7,
    /// What became of it.
    CancelReply = 8,
    /// The server asks the client (recalls).
    Callback = 9,
    /// The client's answer.
    CallbackReply = 10,
    /// The sender ends the connection, or the session; the body says why.
    Goodbye = 11,
    /// Are you there?
    Ping = 12,
    /// Yes.
    Pong = 13,
    /// The server asks who greets to prove that it has the key.
    Challenge = 14,
    /// The proof.
    Proof = 15,
    /// What the server has sent by itself has come to the client.
    Acknowledge = 16,
    /// The sender ends a link when what is under way there has ended.
    Retire = 17,
    /// The server tells of itself.
    Notice = 18,
    /// Writes are stable that somebody else has made so.
    Committed = 19,
    /// Who connects to a router asks to be passed on.
    Route = 20,
    /// The router's answer, or the server's behind it.
    RouteReply = 21,
    /// A router tells of itself.
    RouteNotice = 22,
    /// An initiator asks for how long bytes of a flow lay in the router.
    RouteHeld = 23,
    /// The router's answer.
    RouteHeldReply = 24,
}

impl Kind {
    /// Whether its body may begin with [`crate::Extensions`].
    pub const fn is_extensible(self) -> bool {
        matches!(self, Kind::Request | Kind::Reply)
    }
}

codes! {
    /// The class of slots that a request belongs to.
    Class:
    /// What may have to wait for others.
    Ordinary = 0,
    /// What frees others: unlock, close, the return of a lease.
    Releasing = 1,
    /// From the server to the client.
    Callback = 2,
}

codes! {
    /// What a connection is for.
    Lane:
    /// Small messages.
    Control = 0,
    /// Bulk data.
    Bulk = 1,
}

bitflags::bitflags! {
    /// What is particular about a frame.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u16 {
        /// The header, or the trailer if there is one, holds the checksum of body and payload.
        const CHECKSUM = 1;
        /// A trailer follows the payload.
        const TRAILER = 1 << 1;
        /// The request may have been executed already.
        const RETRY = 1 << 2;
        /// The header has the frame's tag.
        const KEYED = 1 << 3;
        /// The client keeps what the reply grants leases on.
        const LEASES = 1 << 4;
        /// The reply's body begins with grants: see [`crate::Grant`].
        const GRANTS = 1 << 5;
        /// The reply renews the session's leases.
        const RENEWS = 1 << 6;
        /// What is written, or which attributes are set, was held back under an exclusive lease.
        const HELD = 1 << 7;
        /// The client would hold back what it writes: of what it asks leases for, it asks for an exclusive one.
        const EXCLUSIVE = 1 << 8;
        /// Whether the inode that the request makes is bare is to be told: see [`crate::Subject::Bare`].
        const BARE = 1 << 9;
        /// The body of the request or reply begins with [`crate::Extensions`].
        const EXTENDED = 1 << 10;
        /// The reply is to say how long it took at the server, where that is worth telling: see
        /// [`crate::TOLD_MIN_US`].
        const TIMED = 1 << 11;
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// The class of its slot.
    pub class: Class,
    /// See [`Flags`].
    pub flags: Flags,
    /// The operation of a request or reply: see [`crate::Op`].
    pub op: u16,
    /// The errno of a reply; 0 for success.
    pub status: u32,
    /// The slot of a request that changes something.
    pub slot: u32,
    /// Its sequence number in that slot.
    pub sequence: u32,
    /// Pairs replies with requests; unique in a session while the request is under way.
    pub request: u64,
    /// Bytes of body that follow the header.
    pub body_length: u32,
    /// Bytes of payload that follow the body.
    pub payload_length: u32,
    /// CRC32C of body and payload, with [`Flags::CHECKSUM`] and without [`Flags::TRAILER`]; else zero.
    pub content_checksum: u32,
    /// The epoch of the map by which the client chose this server.
    pub epoch: u32,
    /// The frame's tag, with [`Flags::KEYED`]; else zeros. See [`crate::Sealer`].
    pub tag: [u8; 8],
}

const _: () = assert!(HEADER_SIZE == 4 + 2 + 1 + 1 + 2 + 2 + 4 * 3 + 8 + 4 * 4 + 8 + 4 + 4);

impl Header {
    /// A header of this kind, everything else zero.
    pub const fn new(kind: Kind) -> Header {
        Header {
            kind,
            class: Class::Ordinary,
            flags: Flags::empty(),
            op: 0,
            status: 0,
            slot: 0,
            sequence: 0,
            request: 0,
            body_length: 0,
            payload_length: 0,
            content_checksum: 0,
            epoch: 0,
            tag: [0; 8],
        }
    }

    /// The same for a frame of this body and no payload, with the checksum of the body, as the frames of a handshake are.
    pub fn checked(self, body: &[u8]) -> Header {
        let content_checksum = content_checksum(body, &[], None);
        Header { body_length: body.len() as u32, flags: self.flags | Flags::CHECKSUM, content_checksum, ..self }
    }

    /// The 64 bytes, with their checksum, as those of a handshake. [`crate::Sealer`] puts the
    /// connection's version into what it sends.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        self.encode_as(HANDSHAKE_VERSION)
    }

    /// The same with another version.
    pub(crate) fn encode_as(&self, version: u16) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_le_bytes());
        put(VERSION_AT, &version.to_le_bytes());
        put(6, &[self.kind as u8, self.class as u8]);
        put(FLAGS_AT, &self.flags.bits().to_le_bytes());
        put(10, &self.op.to_le_bytes());
        put(12, &self.status.to_le_bytes());
        put(16, &self.slot.to_le_bytes());
        put(20, &self.sequence.to_le_bytes());
        put(24, &self.request.to_le_bytes());
        put(32, &self.body_length.to_le_bytes());
        put(36, &self.payload_length.to_le_bytes());
        put(CONTENT_CHECKSUM_AT, &self.content_checksum.to_le_bytes());
        put(44, &self.epoch.to_le_bytes());
        put(TAG_AT, &self.tag);
        seal_header(&mut bytes);
        bytes
    }

    /// The header of these bytes, every field checked, as one of a handshake.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Header, FrameError> {
        Header::decode_as(bytes, HANDSHAKE_VERSION)
    }

    /// The header of these bytes, every field checked, of a connection that has this version.
    pub fn decode_as(bytes: &[u8; HEADER_SIZE], version: u16) -> Result<Header, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if u32_at(0) != MAGIC {
            return Err(FrameError::Magic(u32_at(0)));
        }
        if u16_at(VERSION_AT) != version {
            return Err(FrameError::Version { found: u16_at(VERSION_AT), expected: version });
        }
        if crc32c::crc32c(&bytes[..CHECKSUM_AT]) != u32_at(CHECKSUM_AT) {
            return Err(FrameError::Checksum);
        }
        let unknown = |field, value| FrameError::Unknown { field, value };
        if u32_at(56) != 0 {
            return Err(unknown("reserved field", u32_at(56)));
        }
        let header = Header {
            kind: Kind::from_code(bytes[6]).ok_or(unknown("kind", u32::from(bytes[6])))?,
            class: Class::from_code(bytes[7]).ok_or(unknown("class", u32::from(bytes[7])))?,
            flags: Flags::from_bits(u16_at(8)).ok_or(unknown("flags", u32::from(u16_at(8))))?,
            op: u16_at(10),
            status: u32_at(12),
            slot: u32_at(16),
            sequence: u32_at(20),
            request: u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32,
            body_length: u32_at(32),
            payload_length: u32_at(36),
            content_checksum: u32_at(40),
            epoch: u32_at(44),
            tag: [bytes[48], bytes[49], bytes[50], bytes[51], bytes[52], bytes[53], bytes[54], bytes[55]],
        };
        if header.content_checksum != 0 && !header.flags.contains(Flags::CHECKSUM) {
            return Err(FrameError::Stray("content checksum"));
        }
        if header.tag != [0; 8] && !header.flags.contains(Flags::KEYED) {
            return Err(FrameError::Stray("tag"));
        }
        if header.flags.contains(Flags::EXTENDED) && !header.kind.is_extensible() {
            return Err(unknown("flags", u32::from(u16_at(FLAGS_AT))));
        }
        check_length("body", header.body_length, BODY_LENGTH_MAX)?;
        check_length("payload", header.payload_length, PAYLOAD_LENGTH_MAX)?;
        Ok(header)
    }

    /// Whether body and payload are what was sent, where the header tells: without a trailer.
    pub fn check_content(&self, body: &[u8], payload: &[u8]) -> Result<(), FrameError> {
        let tells = self.flags.contains(Flags::CHECKSUM) && !self.flags.contains(Flags::TRAILER);
        let is_damaged = tells && content_checksum(body, payload, None) != self.content_checksum;
        if is_damaged { Err(FrameError::Content) } else { Ok(()) }
    }
}

/// The newest version that both sides speak, of which the other speaks these.
pub fn agree_on_version(min: u16, max: u16) -> Option<u16> {
    let version = max.min(VERSION);
    (version >= min.max(VERSION_MIN)).then_some(version)
}

/// Gives an encoded header a version.
pub(crate) fn set_version(bytes: &mut [u8; HEADER_SIZE], version: u16) {
    bytes[VERSION_AT..VERSION_AT + 2].copy_from_slice(&version.to_le_bytes());
}

/// Gives an encoded header its checksum.
pub(crate) fn seal_header(bytes: &mut [u8; HEADER_SIZE]) {
    let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
}

/// Adds flags to an encoded header, and returns all it has.
pub(crate) fn add_flags(bytes: &mut [u8; HEADER_SIZE], flags: Flags) -> Flags {
    let flags = flags.bits() | u16::from_le_bytes([bytes[FLAGS_AT], bytes[FLAGS_AT + 1]]);
    bytes[FLAGS_AT..FLAGS_AT + 2].copy_from_slice(&flags.to_le_bytes());
    Flags::from_bits_truncate(flags)
}

/// Gives an encoded header the checksum of its body and payload, or the flag that its trailer has it.
pub(crate) fn add_content_checksum(bytes: &mut [u8; HEADER_SIZE], body: &[u8], payload: &[u8]) {
    if !add_flags(bytes, Flags::CHECKSUM).contains(Flags::TRAILER) {
        let checksum = content_checksum(body, payload, None);
        bytes[CONTENT_CHECKSUM_AT..CONTENT_CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn check_length(part: &'static str, length: u32, limit: usize) -> Result<(), FrameError> {
    if length as usize > limit { Err(FrameError::Length { part, length, limit }) } else { Ok(()) }
}

/// What follows a payload whose length was promised before its data were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// How many bytes of the payload are valid; the rest is filling.
    pub valid: u32,
    /// CRC32C of body, payload and `valid`, with [`Flags::CHECKSUM`]; else zero.
    pub checksum: u32,
}

impl Trailer {
    /// The 16 bytes.
    pub fn encode(&self) -> [u8; TRAILER_SIZE] {
        let mut bytes = [0; TRAILER_SIZE];
        bytes[0..4].copy_from_slice(&TRAILER_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.valid.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// The trailer of these bytes.
    pub fn decode(bytes: &[u8; TRAILER_SIZE]) -> Result<Trailer, FrameError> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if u32_at(0) != TRAILER_MAGIC || u32_at(12) != 0 {
            return Err(FrameError::Trailer);
        }
        Ok(Trailer { valid: u32_at(4), checksum: u32_at(8) })
    }

    /// Whether this trailer, and what stands between it and its header, are what was sent, where the header says that the trailer tells.
    pub fn check_content(&self, header: &Header, body: &[u8], payload: &[u8]) -> Result<(), FrameError> {
        let tells = header.flags.contains(Flags::CHECKSUM);
        let is_damaged = tells && content_checksum(body, payload, Some(self.valid)) != self.checksum;
        if is_damaged { Err(FrameError::Content) } else { Ok(()) }
    }
}
