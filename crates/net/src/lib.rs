//! Connections: frames over TCP.
//!
//! A [`Connection`] belongs to a [`Group`](aqueduct_worker::Group) and an [`Endpoint`], which is the server's or the client's half of the protocol. What
//! comes is received in batches, bulk data straight into its destination ([`Endpoint::place`]); what goes is collected during a turn and sent
//! at its end in one system call, files by `sendfile`. A connection that is idle holds no buffer.
//!
//! This crate is the one home of socket system calls.

pub mod blocking;
mod budget;
mod connection;
mod liveness;
mod pool;
mod receive;
mod send;
pub mod socket;
mod sys;

pub use blocking::Link;
pub use budget::{Budget, Charge};
pub use connection::{Closed, Connection, Endpoint, Mode};
pub use liveness::SUSPECT_MIN;
pub use pool::BufferPool;
pub use receive::{Frame, Payload};
