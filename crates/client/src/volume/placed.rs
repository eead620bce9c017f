//! Where the objects of a file are that is written to, as far as its writer knows.

use std::sync::Arc;

use aqueduct_fs::stripe::Stripe;
use aqueduct_fs::{Layout, WriteAt};
use bytes::Bytes;

/// An ordinary file becomes another one with its first large write, unless there is no room. So
/// where it lies is asked for when one was answered; after so many answers that it is an ordinary
/// one, at each of so many writes.
const ASKED_FIRST: u32 = 4;
const ASKED_EACH: u32 = 32;

/// Where the objects of a file are. It may be wrong: then nothing is there, and nothing done.
pub(super) struct Placed {
    pub(super) stripe: Stripe,
    pub(super) places: Vec<u16>,
}

/// The same of an open.
#[derive(Default)]
pub(super) struct OfWriter {
    pub(super) known: Option<Arc<Placed>>,
    /// Large writes that were answered while that was not known.
    pub(super) answered: u32,
    /// How often it was asked for.
    asked: u32,
}

impl OfWriter {
    /// Whether it is to be asked for, before a large write at this offset.
    pub(super) fn asks(&mut self, offset: u64) -> bool {
        // Who begins behind the start writes to what is there already.
        let may_be_known = self.answered > 0 || offset > 0 && self.asked == 0;
        if !may_be_known || self.asked >= ASKED_FIRST && !self.answered.is_multiple_of(ASKED_EACH) {
            return false;
        }
        self.asked += 1;
        true
    }
}

impl Placed {
    pub(super) fn of(layout: &Layout) -> Option<Arc<Placed>> {
        let places = layout.parts.iter().map(|part| part.place()).collect();
        Some(Arc::new(Placed { stripe: layout.stripe()?, places }))
    }
}

/// A write in parts, each of which lies in one object.
pub(super) fn cut(placed: &Placed, write: WriteAt, data: &Bytes) -> Vec<(usize, WriteAt, Bytes)> {
    let mut at = 0;
    let pieces = placed.stripe.pieces(write.offset, data.len() as u64).into_iter();
    pieces
        .map(|piece| {
            let data = data.slice(at..at + piece.length as usize);
            at += piece.length as usize;
            (piece.part, WriteAt { offset: piece.offset, ..write }, data)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_file_lies_is_asked_for_when_it_may_be_known() {
        let mut writer = OfWriter::default();
        assert!(!writer.asks(0) && !writer.asks(0), "the first ones make an object of it");
        writer.answered = 1;
        assert!((0..ASKED_FIRST).all(|_| writer.asks(0)) && !writer.asks(1 << 20), "it stays an ordinary one");
        writer.answered = ASKED_EACH;
        assert!(writer.asks(0));
        let mut old = OfWriter::default();
        assert!(old.asks(1 << 20) && !old.asks(2 << 20), "once");
    }

    #[test]
    fn what_spans_objects_is_cut() {
        let stripe = Stripe { block: 100, width: 2 };
        let placed = Placed { stripe, places: vec![3, 1] };
        let data = Bytes::from((0..250).map(|byte| byte as u8).collect::<Vec<_>>());
        let write = WriteAt { open: aqueduct_fs::OpenId(1), offset: 50, append: false, stable: false };
        let parts: Vec<_> = cut(&placed, write, &data)
            .into_iter()
            .map(|(part, write, data)| (part, write.offset, data.len(), data[0]))
            .collect();
        assert_eq!(parts, [(0, 50, 50, 0), (1, 100, 100, 50), (0, 200, 100, 150)]);
    }
}
