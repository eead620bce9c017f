//! Whether the server that moves a file's bytes has an open of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::mover::{Mover, Shape};
use super::turns::Turns;

/// A server that may move an open's bytes.
pub(super) struct Moved {
    /// Its place in the map.
    pub(super) place: u16,
    /// `None`: it is the server of the names.
    pub(super) mover: Option<Arc<Mover>>,
    pub(super) adopted: Adopted,
    /// Of having it opened there.
    pub(super) opening: Turns,
}

/// Those of one open.
pub(crate) struct Places {
    /// By which map.
    pub(super) shape: Arc<Shape>,
    /// Over how many of them its blocks are spread.
    pub(super) width: usize,
    /// In the file's order.
    pub(super) present: Box<[Arc<Moved>]>,
    /// That had it by maps before.
    pub(super) former: Box<[Arc<Moved>]>,
}

impl Places {
    /// In which order they are asked for what begins at an offset.
    pub(super) fn order(&self, offset: u64) -> impl Iterator<Item = &Arc<Moved>> {
        let order = self.shape.spread.order(offset, self.width, self.present.len());
        order.filter_map(|at| self.present.get(at))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Moved>> {
        self.present.iter().chain(&self.former)
    }
}

/// Whether a mover has an open, as it is known here.
#[derive(Default)]
pub(crate) struct Adopted(AtomicU8);

pub(super) const NEW: u8 = 0;
/// Somebody asks for it.
pub(super) const ASKED: u8 = 1;
pub(super) const THERE: u8 = 2;
/// The mover would not have it, or it is closed.
pub(super) const OVER: u8 = 3;

impl Adopted {
    pub(super) fn changes(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.load(Ordering::SeqCst) == THERE
    }

    /// It is closed: whether the mover has to be told.
    pub(super) fn close(&self) -> bool {
        self.0.swap(OVER, Ordering::SeqCst) == THERE
    }
}

/// A mover is being asked for an open by somebody who may give up.
pub(super) struct Asking<'a> {
    pub(super) adopted: &'a Adopted,
    /// What holds after that.
    pub(super) then: u8,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.adopted.changes(ASKED, self.then);
    }
}
