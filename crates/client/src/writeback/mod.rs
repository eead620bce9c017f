//! Writes, modes and times that are held back under exclusive leases: they were answered to their
//! programs, and the server does not know of them yet.
//!
//! - [`file`]: those of one file, pure.
//! - [`table`]: those of all files, shared by threads.
//! - [`send`]: how they come to the server.
//!
//! Small writes are gathered to large ones, and large ones go at once, several at a time. Nothing
//! waits for longer than [`send::HELD_MAX`]. While something of a file is held back, it counts as
//! being changed by this client: nothing that is kept of it is used. What a write may be held back
//! under only the layer above knows, which asks first; here it is told when all has come to the
//! server.

mod file;
mod send;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use file::Place;
pub(crate) use send::Writeback;
pub(crate) use table::{Covers, Which};
