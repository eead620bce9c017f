//! One server as its client sees it: a session, and the connections that come and go under it.
//!
//! Each worker of the client has two connections of its own over each rail, one for control and
//! one for bulk data, so that a request is sent, and its reply received, on the thread where it
//! arose. The session, its slots and the counters are shared. A connection that breaks is made
//! again; what was under way on it is sent again, in its slot, where the server remembers
//! whether it was done. What was written is kept until it is stable.
//!
//! A session knows no leases: what the server says of them goes to its [`Holder`], as plain data.

mod asker;
mod calls;
mod connect;
mod counters;
mod dial;
mod exchange;
mod heal;
mod held;
mod holder;
mod lane;
mod link;
mod opens;
mod rails;
mod reconnect;
mod recovery;
mod replay;
mod requests;
mod right;
mod session;
mod silence;
mod slots;
mod staged;
mod window;

pub use aqueduct_net::{Address, Local as LocalEnd, PATHS_MAX, Path, SUSPECT_MIN};
pub use asker::{AskError, Asker, PADDING_MAX};
pub use connect::{
    ConnectError, KeyProblem, ask_agent, release_locks, server_locks, server_slow, server_status, volume_map,
};
pub use counters::Counters;
pub use holder::{Brought, Holder, Nanos, Recovery, boottime, now};
pub use opens::Opens;
pub use rails::{Fault, Policy, RAIL_SUSPECT, RAIL_SUSPECT_MIN, RailPaths, RailState, RailsConfig};
pub use requests::{frees_others, used};
pub use session::{Session, SessionConfig};
pub use slots::{KeptSlot, Slots};
pub use window::Window;
