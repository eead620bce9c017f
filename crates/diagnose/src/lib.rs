//! Names what holds a transfer, a mount or a volume back: which stage, which server, disk or rail,
//! how sure that is, what would come next, and what to do; or between which two it cannot tell.
//!
//! - [`active`]: runs the legs of a copy apart and together.
//! - [`watch`]: watches what runs, and has it named.
//! - [`passive`]: names it from what a running copy or mount has counted.
//! - [`Verdict`]: what is said in the end, as JSON and for people.
//! - [`after`]: what logs and counters that others wrote say.
//! - [`host`]: what the kernel of this machine counts.
//!
//! What judges is pure: measurements go in, a [`Verdict`] comes out. What measures is bounded in
//! time, and says what did not answer.

#![forbid(unsafe_code)]

pub mod active;
pub mod after;
pub mod host;
pub mod passive;
mod verdict;
pub mod watch;

pub use verdict::{Cause, Kind, Stage, TIE, Verdict};
