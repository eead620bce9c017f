//! Where the objects of a file are that is written to, as far as its writer knows.

use std::sync::Arc;

use aqueduct_fs::stripe::Stripe;
use aqueduct_fs::{Layout, Staged, WriteAt};
use bytes::Bytes;

/// An ordinary file becomes another one with its first large write, unless there is no room. So
/// where it lies is asked for when one was answered; after so many answers that it is an ordinary
/// one, at each of so many writes.
const ASKED_FIRST: u32 = 4;
const ASKED_EACH: u32 = 32;

/// After so many times that nothing was there nothing is brought any more through the same open: a
/// file moves once or twice.
const REFUSED_MAX: u32 = 8;

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
    /// How often what was brought was not found: each costs as much again.
    refused: u32,
}

impl OfWriter {
    /// Whether it is to be asked for, before a large write at this offset.
    pub(super) fn asks(&mut self, offset: u64) -> bool {
        // Who begins behind the start writes to what is there already.
        let may_be_known = self.answered > 0 || offset > 0 && self.asked == 0;
        if self.refused >= REFUSED_MAX
            || !may_be_known
            || self.asked >= ASKED_FIRST && !self.answered.is_multiple_of(ASKED_EACH)
        {
            return false;
        }
        self.asked += 1;
        true
    }

    /// What was brought is not where the file lies: it has moved.
    pub(super) fn refused(&mut self) {
        let refused = self.refused + 1;
        *self = OfWriter { answered: 1, refused, ..OfWriter::default() };
    }
}

impl Placed {
    pub(super) fn of(layout: &Layout) -> Option<Arc<Placed>> {
        let places = layout.parts.iter().map(|part| part.place()).collect();
        Some(Arc::new(Placed { stripe: layout.stripe()?, places }))
    }

    /// Whether anything of so many bytes lies together.
    pub(super) fn is_worth(&self, least: usize) -> bool {
        self.stripe.width == 1 || self.stripe.block >= least as u64
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

/// The same with what was brought of each: what was not is written together, where it lies together.
pub(super) fn together(
    data: &Bytes,
    parts: Vec<(usize, WriteAt, Bytes)>,
    brought: Vec<Option<Staged>>,
) -> Vec<(WriteAt, Bytes, Option<Staged>)> {
    let (mut all, mut at) = (Vec::<(WriteAt, Bytes, Option<Staged>)>::new(), 0);
    for ((_, write, part), staged) in parts.into_iter().zip(brought) {
        let end = at + part.len();
        match all.last_mut() {
            Some((_, last, None)) if staged.is_none() => *last = data.slice(at - last.len()..end),
            _ => all.push((write, part, staged)),
        }
        at = end;
    }
    all
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

    #[test]
    fn what_was_not_brought_is_written_together() {
        let stripe = Stripe { block: 100, width: 4 };
        let placed = Placed { stripe, places: vec![0, 1, 2, 3] };
        let data = Bytes::from((0..250).map(|byte| byte as u8).collect::<Vec<_>>());
        let write = WriteAt { open: aqueduct_fs::OpenId(1), offset: 50, append: false, stable: false };
        let staged = Some(Staged { id: [1; 16], length: 100 });
        let told = |brought: [Option<Staged>; 3]| -> Vec<_> {
            let all = together(&data, cut(&placed, write, &data), brought.to_vec());
            all.into_iter().map(|(write, data, staged)| (write.offset, data, staged.is_some())).collect()
        };
        let part = |range: std::ops::Range<usize>| data.slice(range);
        assert_eq!(told([None; 3]), [(50, part(0..250), false)]);
        assert_eq!(told([None, None, staged]), [(50, part(0..150), false), (200, part(150..250), true)]);
        let apart = [(50, part(0..50), true), (100, part(50..150), false), (200, part(150..250), true)];
        assert_eq!(told([staged, None, staged]), apart);
    }

    #[test]
    fn nothing_is_brought_for_ever_to_where_nothing_is_found() {
        let mut writer = OfWriter { answered: 1, ..OfWriter::default() };
        for _ in 0..REFUSED_MAX {
            assert!(writer.asks(0));
            writer.refused();
        }
        assert!(!writer.asks(0) && !writer.asks(1 << 20));
        let small = Placed { stripe: Stripe { block: 100, width: 2 }, places: vec![0, 1] };
        assert!(small.is_worth(100) && !small.is_worth(101));
        assert!(Placed { stripe: Stripe { block: 100, width: 1 }, places: vec![0] }.is_worth(101));
    }
}
