//! What servers of data know of an open whose file lies in objects.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aqueduct_fs::OpenId;
use aqueduct_session::{Nanos, Session, now};

use super::adopted::Adopted;
use super::placed::OfWriter;
use super::turns::Turns;

/// After a server of data would not let an object be read it is not asked for so long.
const REFUSED: Nanos = 5_000_000_000;

/// What servers of data know of an open.
#[derive(Default)]
pub(super) struct OfOpen {
    /// Of asking where the bytes lie.
    pub(super) asking: Turns,
    /// Small reads while that was not known.
    pub(super) small: AtomicU32,
    pub(super) objects: Mutex<State>,
    /// Where who writes to it brings the data.
    pub(super) writer: Mutex<OfWriter>,
}

#[derive(Default)]
pub(super) enum State {
    #[default]
    None,
    Known(Arc<Objects>),
    /// The open has ended.
    Closed,
}

/// The objects of one layout.
pub(super) struct Objects {
    pub(super) id: [u8; 16],
    pub(super) epoch: u64,
    pub(super) parts: Box<[OfPart]>,
    /// When one was refused; 0: none was.
    pub(super) refused: AtomicU64,
}

pub(super) struct OfPart {
    /// The number of the open at the object's server.
    pub(super) number: OpenId,
    pub(super) adopted: Adopted,
    /// Of opening it.
    pub(super) opening: Turns,
    /// Who has it, as soon as somebody may.
    pub(super) session: Mutex<Option<Arc<Session>>>,
}

impl Objects {
    /// Whether one was refused lately; `None`: none was.
    pub(super) fn has_refused_lately(&self) -> Option<bool> {
        match self.refused.load(Ordering::Relaxed) {
            0 => None,
            at => Some(now() < at + REFUSED),
        }
    }
}
