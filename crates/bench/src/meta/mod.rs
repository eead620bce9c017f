//! `aqueduct bench meta`: how many names a file system makes, looks up and removes in a second, measured as mdtest does, with its options, its names of files
//! and its tables.
//!
//! A [`plan`] is what the options come to; each rank goes through the [`session`] of each iteration, whose system calls are in [`target`]; [`results`] makes tables
//! of what all ranks measured. One rank's items are named by [`names`]; [`place`] has the directories around them.

pub mod arguments;
pub mod names;
pub mod place;
pub mod plan;
pub mod results;
mod run;
pub mod session;
pub mod target;

pub use arguments::Arguments;
pub use run::run;
