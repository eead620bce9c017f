//! Frames and messages of Aqueduct's protocol, version 1. Pure: no sockets, no clock. PROTOCOL.md shows the byte layouts.

#![forbid(unsafe_code)]

mod auth;
mod capabilities;
mod checksum;
mod extension;
mod fetch;
mod field;
mod handshake;
mod header;
mod identity;
mod layout;
mod lease;
mod limits;
mod link;
mod map;
mod names;
mod reply;
mod reply_length;
mod request;
mod right;
mod route;
mod session;

pub use auth::{
    ClientKey, FrameKey, FrameKeys, KEY_LENGTH, KEYS_MAX, Key, NONCE_LENGTH, Nonce, Opener, PROOF_LENGTH, Sealer,
    Transcript, session_is_proved, session_proof,
};
pub use capabilities::Capabilities;
pub use checksum::{Checksums, content_checksum};
pub use extension::{
    EXTENSIONS_LENGTH_MAX, Extensions, JOB_LENGTH_MAX, Ordinal, RIGHT_LENGTH_MAX, TOLD_MIN_US, Times, is_job,
};
pub use fetch::{
    FETCH_LENGTH_MAX, FETCH_MAX, Fetched, LIST_MAX, decode_fetch, decode_fetched, decode_list, decode_listed,
    encode_fetch, encode_fetched, encode_list, encode_listed, fetch_room,
};
pub use field::BodyError;
pub use handshake::{
    ADDRESS_LENGTH_MAX, ADDRESSES_MAX, Challenge, Hello, HelloReply, PEER_NAME_LENGTH_MAX, Proof, SLOTS_MAX,
};
pub use header::{
    Class, Flags, FrameError, HEADER_SIZE, Header, Kind, Lane, MAGIC, TRAILER_SIZE, Trailer, VERSION, VERSION_MIN,
    agree_on_version,
};
pub use identity::{NODE_NAME_LENGTH_MAX, NodeName, ServerId, ServerIdentity};
pub use lease::{
    GRANTS_MAX, Grant, Granted, LEASES_TOLD_MAX, LeaseId, Subject, decode_leases, encode_grants, encode_leases,
    take_grants,
};
pub use limits::{BODY_LENGTH_MAX, DIRECTORY_PAGE_MAX, PAYLOAD_LENGTH_MAX};
pub use link::{
    COMMITTED_MAX, Committed, CommittedWrite, GiveUp, LINKS_MAX, Notice, WriteNumber, decode_retire, encode_retire,
};
pub use map::{DATA_EXPORT, DATA_SERVERS_MAX, DataServer, Map, STATUS_MOVED, VolumeMode, place_of, volume_id};
pub use reply::{decode_compound_reply, decode_reply, encode_compound_reply, encode_reply};
pub use request::{
    COMPOUND_MAX, Caller, OPEN_LATEST, Op, decode_compound, decode_read, decode_request, decode_stage, decode_transfer,
    decode_write, encode_compound, encode_read, encode_request, encode_stage, encode_transfer, encode_write,
    substitute_latest,
};
pub use right::{Beat, BeatReply, NO_PLACE, Right, RightKey, decode_revoke, decode_right, encode_revoke, encode_right};
pub use route::{
    FLOWS_TOLD_MAX, HOPS_MAX, NETWORK_NAME_LENGTH_MAX, NetworkName, ROUTE_LENGTH_MAX, ROUTE_TEXT_LENGTH_MAX, Route,
    RouteHeld, RouteHeldReply, RouteNotice, RouteReply, RouteStatus, Target,
};
pub use session::{
    Attach, AttachReply, CancelOutcome, CancelReply, EXPORT_NAME_LENGTH_MAX, decode_cancel, decode_release_locks,
    decode_slow, encode_cancel, encode_release_locks, encode_slow,
};

/// uid, gid, pid, the number of groups, the groups.
const CALLER_LENGTH_MAX: usize = 4 + 4 + 4 + 2 + 4 * aqueduct_fs::GROUPS_MAX;

const _: () = {
    use aqueduct_fs::{HANDLE_LENGTH_MAX, XATTR_NAME_LENGTH_MAX, XATTR_SIZE_MAX};
    let set_xattr = (2 + HANDLE_LENGTH_MAX) + (2 + XATTR_NAME_LENGTH_MAX) + (4 + XATTR_SIZE_MAX) + 1;
    assert!(2 + EXTENSIONS_LENGTH_MAX + CALLER_LENGTH_MAX + set_xattr <= BODY_LENGTH_MAX);
    assert!((DIRECTORY_PAGE_MAX as usize) < BODY_LENGTH_MAX && XATTR_SIZE_MAX < BODY_LENGTH_MAX);
};
