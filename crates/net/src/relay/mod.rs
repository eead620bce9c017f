//! A router: connections that begin with a preamble are passed on to where it says, byte by byte,
//! by `splice` through pipes. What they carry is not looked at.

mod admission;
mod core;
mod counters;
mod flood;
mod flow;
mod frames;
mod greet;
mod handle;
mod held;
mod movers;
mod pace;
mod pipes;
mod shares;
mod watch;

pub use admission::Limits as RelayLimits;
pub use core::{FlowStatus, RelayConfig};
pub use handle::{Relay, RelayStatus};
