//! Connections: frames over TCP, or a Unix socket.
//!
//! A [`Connection`] belongs to a [`Group`](aqueduct_worker::Group) and an [`Endpoint`], which is the server's or the client's half of the protocol. What
//! comes is received in batches, bulk data straight into its destination ([`Endpoint::place`]); what goes is collected during a turn and sent
//! at its end in one system call, files by `sendfile`. A connection that is idle holds no buffer.
//!
//! This crate is the one home of socket system calls.

pub mod blocking;
mod budget;
mod connection;
mod counters;
mod data_age;
mod holding;
mod hop;
mod initiator;
pub mod interfaces;
mod liveness;
pub mod local;
pub mod named;
mod path;
mod peer;
mod pool;
mod receive;
mod relay;
pub mod routes;
mod send;
mod silence;
pub mod socket;
mod sys;
mod way;

pub use blocking::Link;
pub use budget::{Budget, Charge};
pub use connection::{Body, Connection, Endpoint, Mode};
pub use counters::Counters;
pub use hop::Hop;
pub use initiator::{Initiator, RouteError, ping};
pub use interfaces::{Interface, interfaces};
pub use liveness::SUSPECT_MIN;
pub use path::{DialError, PATHS_MAX, Path, dial, pairs};
pub use peer::{Address, Peer};
pub use pool::BufferPool;
pub use receive::{Closed, Frame, Payload};
pub use relay::{FlowStatus, Relay, RelayConfig, RelayLimits, RelayStatus};
pub use silence::{Hush, Silence};
pub use socket::Local;
