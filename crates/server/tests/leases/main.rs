//! Leases as raw peers see them: what is granted, what is recalled when, who waits for whom and for how long.

#[path = "../common/mod.rs"]
mod common;

mod changes;
mod client;
mod exclusive;
mod grants;
mod hostile;
mod outside;
mod races;
mod restart;
mod times;
