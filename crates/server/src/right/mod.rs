//! Rights to write at servers of data: what lets several servers write one file, which only one of
//! them grants leases on.
//!
//! # The rules
//!
//! - The server of the names gives a **right** on an inode at one server of data to the client that
//!   holds the inode exclusively. Rights are numbered; a number is drawn before the lease is looked
//!   at.
//! - A server of data executes a write only under a right that this start of it was given by the
//!   start of the server of the names that it obeys, and whose number is above its **floor**. So a
//!   server of data that is started anew has nothing to remember: all rights of before are void.
//! - It works under an **authority**, for which it asks with a beat, and which it counts from when
//!   it asked. Without it nothing new is executed. Who watches over the process kills it if what
//!   runs has not ended by then ([`Watch`]), and tells the server of the names when it has ended.
//! - Before others use an inode on which a right was given and whose lease is **broken**, the
//!   server of the names raises the floor everywhere where the inode has rights, and waits until
//!   nothing below it is executed: the server of data says so in its next beat, or another start of
//!   it beats, or it has ended, or (if the volume says that time is enough) its authority has run
//!   out. All rights below the floor are over with that; the living ask for new ones.
//! - **Several clients** write one file at the same time under leases on
//!   [`CONCURRENT`](aqueduct_fs::Aspects::CONCURRENT), from the first of them to the return of the
//!   last: one **tenure**. What they write is stable when it is answered, at the server of the
//!   names as well, so that nobody ever repeats what was answered. At each place all rights of a
//!   tenure are of one start of the server of data, and none of them has been ended there. So when
//!   a client does not know what became of a write, and has had its rights ended to write it again
//!   through the server of the names, nobody else has written there in between: the others find no
//!   right, and wait as any change does until it has returned its lease. Nor did anybody before
//!   that: a server of data refuses a write over what another client has written in the same
//!   tenure, until that one has said that it knows what became of it. Who is refused writes as any
//!   change is made, and so waits until all leases of the tenure have been returned. What two of
//!   them do not know the end of, and lies over each other, only one of them writes again, since
//!   nobody knows which was to come first; the other one's program gets an error.
//! - Rights are given by the server of the names' present map, to clients that have it; where
//!   another server has come or gone, the rights of one tenure are still all of one map, so that a
//!   block has one server for all who write it. A server of data that has gone from the map is
//!   given no rights, and is waited for as long as it may have some.
//! - A client that **returns** its lease has had all answered that it sent under its rights, and
//!   has given up nothing of it; what it wrote is stable.
//! - A server of the names that is **started** lets nobody look at anything or change it before all
//!   servers of data for which a right was given obey it.

mod authority;
mod granter;
mod repeated;
#[cfg(test)]
mod schedule;
mod unsettled;

pub(crate) use authority::Executing;
pub use authority::{Authority, Heard, Watch};
pub(crate) use granter::Drawn;
pub use granter::{Fence, Granter, GranterConfig, Places};
pub(crate) use repeated::RECOVERED;
pub(crate) use unsettled::Piece;
