//! A [`FileSystem`](aqueduct_fs::FileSystem) over a session to a server.
//!
//! Each worker of the client has two connections of its own, one for control and one for bulk data, so that a request is sent, and its reply received, on
//! the thread where it arose. The session, its slots and the counters are shared. A connection that breaks is made again; what was under way
//! on it is sent again, in its slot, where the server remembers whether it was done.
//!
//! [`Cached`] answers from memory what the server grants leases on.

mod cache;
mod client;
mod connect;
mod filesystem;
mod gather;
mod lane;
mod opens;
mod recovery;
mod replay;
mod slots;
mod window;

pub use aqueduct_net::SUSPECT_MIN;
pub use cache::Cached;
pub use client::{Client, ClientConfig};
pub use connect::{ConnectError, KeyProblem, release_locks, server_locks, server_status};
