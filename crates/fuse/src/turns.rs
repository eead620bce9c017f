//! Turns: what a program reads or writes at once is whole, though the kernel asks for it in pieces
//! of at most [`TRANSFER_SIZE_MAX`](aqueduct_fs::TRANSFER_SIZE_MAX).
//!
//! Whoever reads or writes takes a turn at the file system first, as a lock on the whole file
//! ([`LockSpace::Turn`](aqueduct_fs::LockSpace::Turn)): one that others may have too to read, one
//! for itself to write. It keeps it until the last piece of the system call has been answered.
//! Which that is says /proc, of the thread that waits for the first one; where this process may
//! not look there (another pid namespace, asynchronous I/O), each piece has a turn of its own.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use aqueduct_fs::{LockKind, OpenId};
use aqueduct_worker::lock;

/// What comes next of a system call.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) open: OpenId,
    pub(crate) kind: LockKind,
    /// As the file system knows it.
    pub(crate) owner: u64,
    pub(crate) offset: u64,
    pub(crate) left: u64,
    /// What tells the call from others.
    pub(crate) call: Box<str>,
}

/// The turns of a mount.
#[derive(Default)]
pub(crate) struct Turns {
    /// Between two pieces, by the thread that is to ask for the next.
    pub(crate) going: Mutex<HashMap<u32, Turn>>,
    pub(crate) owners: AtomicU64,
    pub(crate) told: AtomicBool,
}

impl Turns {
    /// The turn of a thread, if this is the next piece; else its turn is over, and given.
    pub(crate) fn take(&self, tid: u32, fits: impl Fn(&Turn) -> bool) -> Option<Result<Turn, Turn>> {
        let turn = lock(&self.going).remove(&tid)?;
        Some(if fits(&turn) { Ok(turn) } else { Err(turn) })
    }

    /// The same for who watches: a turn that has not gone on.
    pub(crate) fn take_if(&self, tid: u32, seen: &Turn) -> Option<Turn> {
        let mut going = lock(&self.going);
        let is_same = going.get(&tid).is_some_and(|turn| (turn.owner, turn.left) == (seen.owner, seen.left));
        if is_same { going.remove(&tid) } else { None }
    }

    pub(crate) fn has(&self, tid: u32, seen: &Turn) -> bool {
        lock(&self.going).get(&tid).is_some_and(|turn| (turn.owner, turn.left) == (seen.owner, seen.left))
    }
}
