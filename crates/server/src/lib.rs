//! The wire server: answers frames with any [`FileSystem`](aqueduct_fs::FileSystem).
//!
//! A client has one session, which outlives its connections; a session has one export. Whoever receives a request executes it on the same thread and replies:
//! see the module `execute`.
//! What an export allows to whom is in `access`, what clients may keep without asking again in `lease`.
//! What a session needs to outlive the server process is written down (`journal`, `intent`); how it goes on then is in `recovery` and `repeat`.

mod access;
mod administer;
mod agent;
mod complaints;
mod endpoint;
mod exclusion;
mod execute;
mod failpoint;
mod fetch;
mod intent;
mod jobs;
mod journal;
mod lease;
mod links;
mod listen;
mod metrics;
mod origin;
mod outbox;
mod outside;
mod pressure;
mod reach;
mod recovery;
mod repeat;
pub mod right;
mod server;
mod session;
mod silence;
mod sink;
mod slots;
mod status;
mod stored;
mod trace;
mod waits;

pub use aqueduct_net::local::folder as local_folder;

pub use access::{ANONYMOUS_ID, Access, Host, HostMaps, Squash};
pub use agent::{Allowed, Denied, Mover, Submitter};
pub use failpoint::Moment;
pub use outside::External;
pub use server::{Export, Limits, Role, Server, ServerConfig, StartError, export_id};
pub use trace::TraceConfig;
