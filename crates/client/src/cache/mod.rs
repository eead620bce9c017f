//! What a client keeps under leases, and the file system that answers from it.
//!
//! - [`view`], [`shard`], [`inode`], [`names`], [`gate`]: what is kept and what may be told, pure.
//! - [`leases`], [`holds`], [`hold`], [`clock`]: the same, shared by threads, with a clock: one
//!   for each session that grants leases.
//! - [`recalls`], [`recall`]: how leases are given back.
//! - [`parts`], [`memory`], [`change`], [`filesystem`]: the operations.
//! - [`held`], [`own`]: what is held back, and what has to wait for it.
//! - [`straight`]: what is not, and goes straight to servers of data.
//! - [`scan`], [`coming`], [`ahead`]: small files and directories that are fetched before they are opened.

mod ahead;
mod change;
mod clock;
mod coming;
mod filesystem;
mod gate;
mod held;
mod hold;
mod holds;
mod inode;
#[cfg(test)]
mod layout_tests;
mod leases;
mod memory;
mod names;
mod own;
mod parts;
mod recall;
mod recalls;
mod scan;
mod shard;
mod straight;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use leases::Leases;
pub(crate) use parts::Cache;
pub(crate) use recall::start;
