//! Workers: threads that have one wait (epoll) and a queue of ready tasks, and nothing between the two.
//!
//! A [`Group`] is one epoll instance with its queue and its timers, turned by one or more threads. A client gives each worker a group of its own, with
//! its own connections and its own clone of /dev/fuse, so that a request never changes threads; a server has one group that all its threads share.
//! In each *turn* a thread takes what is ready in a batch, runs every ready task once, lets those who collected output send it ([`Flush`]), and
//! waits. Before it sleeps it looks again for a short while, because waking an idle core costs more than the work did
//! (40 to 50 us where this was measured); between two looks it yields its core to whom it has just answered. For the same reason, of the threads
//! of one group only one waits for events while requests are small (see `watch`).

mod crew;
mod done;
mod earlier;
mod group;
mod lock;
mod processors;
mod pulse;
mod run;
mod sentinel;
mod sleep;
mod timer;
mod turn_end;
mod wait;
mod watch;
mod wide;

pub use done::Done;
pub use earlier::{Begun, Earlier, Entered, Moment};
pub use group::{Group, Interest, Readiness, Ready, Registration, Settings, Watched};
pub use lock::lock;
pub use processors::{boot_of_machine, own_processors};
pub use pulse::Pulse;
pub use sleep::Sleep;
pub use turn_end::Flush;
pub use wait::wait;
pub use wide::Wide;
