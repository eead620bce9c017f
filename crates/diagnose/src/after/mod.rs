//! After the fact: what logs and counters that others wrote say of a transfer or a run.
//!
//! Each file is known by its content. What is in them is joined by time. Foreign files are
//! checked, read a line at a time where they have lines, and what is kept of them is limited.

mod darshan;
mod gridftp;
mod judge;
mod lmt;
mod records;
mod reports;
mod series;
mod statistics;
mod text;

pub use darshan::FileOfRun;
pub use gridftp::Transfer;
pub use judge::judge;
pub use lmt::Activity;
pub use records::{ReadError, Records};
pub use reports::Measurement;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
