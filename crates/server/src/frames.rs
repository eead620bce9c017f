//! Frames that the server makes.

use aqueduct_fs::Errno;
use aqueduct_net::Connection;
use aqueduct_wire::{HEADER_SIZE, Header, Kind};

/// Sends a frame without a payload.
pub(crate) fn send(connection: &Connection, mut header: Header, body: &[u8]) {
    header.body_length = body.len() as u32;
    let mut frame = Vec::with_capacity(HEADER_SIZE + body.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(body);
    connection.send(&frame, None);
}

/// The header of a reply, but for the lengths.
pub(crate) fn reply_header(request: &Header, kind: Kind, result: Result<(), Errno>) -> Header {
    Header {
        op: request.op,
        status: result.map_or_else(|error| error.raw() as u32, |()| 0),
        class: request.class,
        slot: request.slot,
        sequence: request.sequence,
        request: request.request,
        ..Header::new(kind)
    }
}

/// A GOODBYE frame with its reason.
pub(crate) fn goodbye(reason: &str) -> Vec<u8> {
    let mut header = Header::new(Kind::Goodbye);
    header.body_length = reason.len() as u32;
    let mut frame = Vec::with_capacity(HEADER_SIZE + reason.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(reason.as_bytes());
    frame
}
