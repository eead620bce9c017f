//! Whether what clients saw could have happened on one machine. Pure: no clock, no files, no sockets; times are whatever the recorder's clock says.

mod closes;
mod linear;
mod locks;
mod names;
mod objects;
mod planted;
mod properties;
mod registers;
mod verdict;

pub use verdict::{Limits, Promise, Violation, check};
