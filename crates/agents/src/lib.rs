//! Agents of one host, each isolated from the others: a network namespace with an interface of its
//! own, processors near that interface, limits of processor time and memory.
//!
//! [`settings`] is what a person wrote, [`plan`] the steps that it comes to on this host. A step
//! knows how it is taken back; it stands in the [`journal`] before it is taken, so that another
//! process can take back what this one did not live to. All that is done to the host goes through
//! [`host::Host`].

#![forbid(unsafe_code)]

mod agent;
mod cards;
mod cgroups;
mod command;
mod container;
mod controllers;
mod enter;
mod group;
pub mod host;
mod image;
pub mod journal;
mod machine;
#[cfg(test)]
mod made_up;
pub mod plan;
mod programs;
pub mod settings;
mod status;
pub mod step;
#[cfg(test)]
mod tests;
mod work;

pub use agent::Agent;
pub use enter::{Entry, enter};
pub use group::{Done, down, dry_run, names, up};
pub use status::{AgentStatus, status};
