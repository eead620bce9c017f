//! Names what limits from counters that a pipeline keeps anyway: pure, nothing is slowed, nothing
//! is asked.

mod counters;
mod kind;
mod name;
mod pool;
mod student;
mod sure;
mod target;

pub use counters::{RailCounts, STATES, Shape, StageCounts, State, Window};
pub use kind::evidence;
pub use name::{Named, name};
pub(crate) use pool::slope;
pub use sure::{FEATURES, features};
pub(crate) use target::slow;
