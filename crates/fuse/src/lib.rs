//! The kernel's front end: answers the requests of a FUSE mount with any [`FileSystem`](aqueduct_fs::FileSystem). Nothing of the kernel's protocol is known
//! outside this crate.
//!
//! [`mount`] connects a directory to a [`Device`]; [`start`] agrees with the kernel on version and capabilities and hands one clone of the device to each
//! worker group. A worker reads a request, polls its operation at once, and usually has answered before it reads the next; an operation that has to
//! wait becomes a task of the same group. The reply goes to the descriptor that the request came from.
//!
//! What the kernel may cache is decided by [`Config`]: nothing, what close-to-open allows, or what the file system has leases for.

mod abi;
mod below;
mod buffer;
mod caches;
mod caller;
mod channel;
mod config;
mod control;
mod convert;
mod device;
mod dispatch;
mod entry_drops;
mod error;
mod groups;
mod heap;
mod hot_names;
mod init;
mod interrupt;
mod job;
mod jobs;
mod keeping;
mod kept;
mod late_names;
mod listings;
mod metrics;
mod mount;
mod negotiated;
mod nodes;
mod notify;
mod offer;
mod ops;
mod pages;
mod pieces;
mod places;
mod policy;
mod readahead;
mod reader;
mod releases;
mod ring;
mod rings;
mod serve;
mod session;
mod shared;
mod sink;
mod sizes;
mod slots;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod trace;
mod turns;

pub use config::{CacheMode, Config, Names, Observed, STATUS_XATTR, Status, StatusPart, UNCHECKED};
pub use control::Control;
pub use device::Device;
pub use error::StartError;
pub use mount::{MountError, MountOptions, Remount, Unmount, mount, remount, unmount};
pub use negotiated::Negotiated;
pub use offer::{Feature, Offer, OfferError, offered};
pub use session::{Session, start};
pub use trace::{TRACE_XATTR, TraceConfig};
