//! What the kernel and the file systems of this machine count for each target: a disk, a mount, an
//! interface, a processor, a target of Lustre. Parsers are pure; [`Collector`] reads the files.
//!
//! Every value only grows, until its source starts again. Times are in microseconds, sizes in
//! bytes.

mod collector;
mod kernel;
mod lustre;
mod nfs;
mod reading;

pub use collector::Collector;
pub use kernel::{diskstats, ext4, interfaces, pressure, processors, protocols, schedstat, xfs};
pub use lustre::parameters;
pub use nfs::mountstats;
pub use reading::{NAME_MAX, READINGS_MAX, Reading, Readings};

#[cfg(test)]
mod tests;
