//! A volume: what the sessions to its servers are to the layers above, one file system with opens
//! of its own.
//!
//! - [`map`]: which session serves what.
//! - [`opens`], [`making`]: opens under numbers that this client chooses, and how those that no
//!   server knows are made there.
//! - [`flights`]: what is on its way to the sessions that move data.
//! - [`movers`], [`mover`], [`moved`], [`adopted`], [`spread`], [`lent`]: servers that move bytes
//!   under leases of the one that has the names, which of them moves whose and has it open, and a
//!   sink that comes back from one that does not answer.
//! - [`mapped`]: servers that come and go while the volume is mounted.
//! - [`objects`], [`parted`], [`turns`]: files whose bytes lie in objects, which are read there.
//! - [`ways`], [`lanes`]: what is written straight to servers of data, under rights.
//! - [`staged`], [`placed`]: writes to objects, whose data are brought to the servers of data.
//! - [`behind`]: what tasks waited for that work for several operations.
//! - [`beside`]: what programs write without its being held back, also while others do.
//! - [`parts`], [`calls`], [`seam`], [`connect`]: the volume and its operations.
//!
//! A mount of one server is a volume of one session: then there is no map, nothing is counted, and
//! nothing is ordered.

mod above;
mod adopted;
mod behind;
mod beside;
mod calls;
mod connect;
mod flights;
mod lanes;
mod lent;
mod making;
mod map;
mod mapped;
mod moved;
mod mover;
mod movers;
mod objects;
mod opens;
mod parted;
mod parts;
mod placed;
mod seam;
mod spread;
mod staged;
mod turns;
mod ways;

pub(crate) use above::Above;
pub(crate) use beside::{Direct, Piece, Went, of_pieces};
pub(crate) use connect::Member;
pub use map::Map;
pub use mover::MoverConfig;
pub(crate) use movers::Movers;
pub use movers::Remake;
pub(crate) use opens::{Found, New, Open, Opens, holds_back};
pub(crate) use parts::Volume;
pub use spread::Spread;
pub(crate) use ways::HeldWrite;
