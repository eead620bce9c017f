//! Frames and messages of Aqueduct's protocol, version 1. Pure: no sockets, no clock. PROTOCOL.md shows the byte layouts.

#![forbid(unsafe_code)]

mod field;
mod header;
mod reply;
mod request;
mod session;

pub use field::BodyError;
pub use header::{Class, Flags, FrameError, HEADER_SIZE, Header, Kind, Lane, MAGIC, TRAILER_SIZE, Trailer, VERSION};
pub use reply::{decode_compound_reply, decode_reply, encode_compound_reply, encode_reply};
pub use request::{
    COMPOUND_MAX, Caller, OPEN_LATEST, Op, decode_compound, decode_read, decode_request, decode_write, encode_compound,
    encode_read, encode_request, encode_write, substitute_latest,
};
pub use session::{
    Attach, AttachReply, CancelOutcome, CancelReply, Capabilities, Hello, HelloReply, decode_cancel, encode_cancel,
};

/// The longest body in bytes: an extended attribute of 64 KiB, or a directory page of as much, with a caller of 1024 groups and the rest of the request.
pub const BODY_LENGTH_MAX: usize = 128 << 10;

/// The longest payload in bytes.
pub const PAYLOAD_LENGTH_MAX: usize = aqueduct_fs::TRANSFER_SIZE_MAX;
