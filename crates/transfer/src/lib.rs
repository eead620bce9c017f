//! Copies trees between file systems, and proves that they arrived.
//!
//! Each side is a directory of this machine or of a server's export ([`Place`]), behind one trait.
//! [`copy`] walks the source with several threads, writes each file under a name that is not its
//! own, and gives it its name once it is whole. [`verify`] compares a tree with the manifest that
//! a copy wrote.

#![forbid(unsafe_code)]

mod attributes;
mod batch;
mod claim;
mod compare;
mod content;
mod delete;
mod done;
mod earlier;
mod filter;
mod flush;
mod folded;
mod hash;
mod job;
pub mod jobs;
mod ledger;
mod links;
mod listed;
mod manifest;
mod manifest_table;
mod naming;
mod nested;
mod options;
mod outcome;
mod pattern;
mod polite;
mod queue;
mod replace;
mod run;
mod running;
mod settled;
mod side;
mod sign;
mod signature;
mod spans;
mod store;
pub mod third;
mod throttle;
mod tune;
mod walk;
mod ways;
mod writable;

pub use aqueduct_node::{Failure, Kind};
pub use compare::{Verified, b3sum, verify};
pub use filter::Filter;
pub use ledger::{Stage, StageRecord, Watch, limit};
pub use manifest_table::check as check_manifest;
pub use options::{Options, Verify};
pub use outcome::{Counts, Lost, Summary, Trouble};
pub use run::{Plan, copy};
pub use running::{OperationRecord, Running, SessionRecord, TOLD_INTERVAL};
pub use side::{Access, Directory, File, Listed, Node, Place, Root, STEP, Seen};
pub use sign::{Signer, check_signature, signature_of};
pub use spans::{Described, Spans};
