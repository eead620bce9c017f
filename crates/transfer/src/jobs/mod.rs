//! Jobs in a store (PostgreSQL) that many agents work on, on any hosts.

mod agent;
mod board;
mod context;
mod database;
mod execute;
mod large;
mod order;
mod spans;
mod submit;
mod tls;
mod unit;

pub use agent::{AgentSettings, run_agent};
pub use database::Database;
pub use submit::{Change, Listed, Listeners, Submitted, change, list, submit, watch, write_manifest};
