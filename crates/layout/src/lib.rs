//! Volumes of plain directories that share nothing. One server has the real tree, with its names
//! and its small files; the bytes of larger files lie in *objects*, spread over the *stores* of
//! several servers.
//!
//! [`Plain`] is the layer over the tree that makes one file system of both. Everything it needs
//! of a store is a [`FileSystem`](aqueduct_fs::FileSystem): a directory of this machine, or a
//! session to another server.
//!
//! - **A small file is an ordinary file.** One that outgrows `inline_max` is *promoted*: its bytes
//!   move to objects, and what is left in the tree is its *stub*, with names, owner, times and
//!   length.
//! - **The stub has an attribute** ([`attribute`]) that says where the bytes are, and a copy of
//!   that in its first block, so that a stub which was copied without its attribute is known.
//! - **The stub's length is the file's size.** Data are written to objects before the stub grows,
//!   and objects are cut to the size before it grows again after an unclean end.
//! - **Nothing of a store is believed before its marker is checked** ([`marker`]), and an object
//!   that the attribute names and the store has not is an error, never zeros.

mod adopt;
pub mod attribute;
mod away;
mod backing;
mod change;
mod changed;
mod check;
mod copy;
mod gate;
mod generations;
mod holdings;
mod io;
mod job;
mod layer;
mod ledger;
pub mod marker;
mod moves;
mod moving;
mod names;
mod pinned;
mod placing;
mod plain;
mod promote;
mod repair;
mod rooms;
mod served;
mod spread;
mod store;
pub mod stripe;
mod sweep;
mod taken;
#[cfg(test)]
mod tests;
mod token;
mod told;
mod walk;
mod wanted;
mod widths;

pub use backing::{Backing, PROJECT};
pub use check::Report;
pub use holdings::LOST;
pub use job::Job;
pub use moving::{Found, Goal};
pub use plain::{Config, FOLDER, OpenError, Plain};
pub use repair::{Act, Done, Repair};
pub use served::Served;
pub use store::{Start, Store, is_nearly_full};
