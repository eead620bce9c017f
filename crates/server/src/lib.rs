//! The wire server: answers frames with any [`FileSystem`](aqueduct_fs::FileSystem).
//!
//! A client has one session, which outlives its connections; a session has one export. Whoever
//! receives a request executes it on the same thread and replies: see the module `execute`. What
//! an export allows to whom is in `access`, what clients may keep without asking again in `lease`.
//! What a session needs to outlive the server process is written down (`journal`, `intent`); how
//! it goes on then is in `restore` and `repeat`.
//!
//! Modules use each other one way. Below all is what the server is configured with (`config`,
//! `export`, `access`); then what a client has (`session`, with its `links`, `outbox`, `journal`)
//! and what all share (`lease`, `right`, `exclusion`); then `state`, which holds all of it; then
//! what acts on that: `telling`, `map`, `leaving`, `leasing`, `sessions`, `restore`; then
//! `execute`, `endpoint`, `listen`, and `server`, which starts and ends it.

mod access;
mod administer;
mod agent;
mod attached;
mod complaints;
mod config;
mod endpoint;
mod exclusion;
mod execute;
mod export;
mod failpoint;
mod fetch;
mod frames;
mod intent;
mod jobs;
mod journal;
mod lease;
mod leasing;
mod leaving;
mod links;
mod listen;
mod listeners;
mod map;
mod metrics;
mod origin;
mod outbox;
mod outside;
mod pressure;
mod reach;
mod recovery;
mod repeat;
mod restore;
pub mod right;
mod room;
mod server;
mod session;
mod sessions;
mod silence;
mod sink;
mod slots;
mod staging;
mod state;
mod status;
mod stored;
mod telling;
mod timing;
mod trace;
mod unjoined;
mod waits;

pub use aqueduct_net::local::folder as local_folder;

pub use access::{ANONYMOUS_ID, Access, Host, HostMaps, Squash};
pub use agent::{Allowed, Denied, Mover, Submitter};
pub use config::{Limits, Role, ServerConfig, StartError};
pub use export::{Export, External, export_id};
pub use failpoint::Moment;
pub use state::Server;
pub use trace::TraceConfig;
