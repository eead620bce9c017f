//! Clients that keep what the server grants leases on: what one changes the others see at once, and what nobody changes costs no round trip.

mod appended;
#[path = "../common/mod.rs"]
mod common;
mod fixture;
mod gathered;

mod changes;
mod endings;
mod listings;
mod modes;
mod moved;
mod opens;
mod scripted;
mod volume;
mod warm;
