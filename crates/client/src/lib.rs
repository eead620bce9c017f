//! A [`FileSystem`](aqueduct_fs::FileSystem) over the sessions of a volume, in rooms of which each
//! knows those before it:
//!
//! 1. `aqueduct-session`, a crate of its own: one server.
//! 2. `volume`: the sessions as one, with opens of its own.
//! 3. `writeback`: what is held back, and how it comes to its server.
//! 4. `cache`: what is kept under leases, and what may be held back under them.
//! 5. `stack`: all of it put together, for front ends. [`Cached`] answers from memory what the
//!    servers grant leases on.

mod cache;
mod stack;
mod volume;
mod writeback;

pub use aqueduct_session::{
    Address, AskError, Asker, Brought, ConnectError, Fault, KeyProblem, LocalEnd, PADDING_MAX, PATHS_MAX, Path, Policy,
    RAIL_SUSPECT, RAIL_SUSPECT_MIN, RailPaths, RailState, RailsConfig, SUSPECT_MIN, Session, SessionConfig, ask_agent,
    boottime, release_locks, server_locks, server_slow, server_status, volume_map,
};
pub use stack::{Cached, Client, ClientConfig};
pub use volume::{Map, MoverConfig, Remake, Spread};
