//! The wire server: answers frames with any [`FileSystem`](aqueduct_fs::FileSystem).
//!
//! A client has one session, which outlives its connections; a session has one export. Whoever receives a request executes it on the same thread and replies:
//! see the module `execute`.

mod endpoint;
mod execute;
mod server;
mod session;
mod sink;
mod status;

pub use server::{Export, Limits, Server, ServerConfig, StartError, export_id};
