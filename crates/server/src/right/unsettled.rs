//! What several writers have written, and may write again: see [`right`](super).

use std::collections::HashMap;
use std::ops::Range;

use aqueduct_wire::Ordinal;

/// Writes that are remembered, and sessions of which is known what is settled: 64 writes under way
/// of each of 1,000 clients. Some 100 bytes each.
const REMEMBERED_MAX: usize = 65_536;

/// Of one file, through which each write there looks.
const REMEMBERED_OF_FILE: usize = 4096;

/// One write of one of several writers.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    /// Of the client, here.
    pub(crate) session: u64,
    pub(crate) handle: &'a [u8],
    pub(crate) range: Range<u64>,
    pub(crate) number: Ordinal,
}

/// Writes that were let in under rights of several writers, as long as their sender may not know
/// what became of them.
#[derive(Default)]
pub(super) struct Unsettled {
    files: HashMap<Box<[u8]>, File>,
    /// Sessions repeat nothing below these numbers.
    settled: HashMap<u64, u64>,
    /// Entries of all files.
    count: usize,
    /// The latest tenure of which something was let in.
    latest: u64,
    /// What earlier ones had let in was forgotten: nothing of them is let in any more.
    least: u64,
}

/// What was let in of one tenure of a file.
struct File {
    tenure: u64,
    entries: Vec<Entry>,
}

struct Entry {
    session: u64,
    number: u64,
    range: Range<u64>,
}

impl Unsettled {
    /// Whether a write may be executed: it lies over nothing that another client may write again.
    /// The same is then true of what others write over it.
    pub(super) fn admit(&mut self, tenure: u64, piece: &Piece<'_>) -> bool {
        let settled = self.settled.entry(piece.session).or_default();
        *settled = (*settled).max(piece.number.settled);
        if self.count + self.settled.len() >= REMEMBERED_MAX {
            self.sweep();
        }
        if tenure < self.least {
            return false;
        }
        self.latest = self.latest.max(tenure);
        let (settled, count) = (&self.settled, &mut self.count);
        let file = self.files.entry(piece.handle.into()).or_insert_with(|| File { tenure, entries: Vec::new() });
        *count -= file.entries.len();
        if file.tenure != tenure {
            // All who wrote in that one have returned their leases: they repeat nothing.
            *file = File { tenure, entries: Vec::new() };
        }
        file.entries.retain(|entry| !entry.is_settled(settled));
        let meets = |entry: &Entry| entry.session != piece.session && meets(&entry.range, &piece.range);
        let may = file.entries.len() < REMEMBERED_OF_FILE && !file.entries.iter().any(meets);
        if may {
            let (session, number, range) = (piece.session, piece.number.number, piece.range.clone());
            file.entries.push(Entry { session, number, range });
        }
        *count += file.entries.len();
        may
    }

    /// Makes room: what is settled goes, and if that is not much all that is remembered, and with
    /// it whoever has a right of a tenure up to now.
    fn sweep(&mut self) {
        let settled = &self.settled;
        self.files.retain(|_, file| {
            file.entries.retain(|entry| !entry.is_settled(settled));
            !file.entries.is_empty()
        });
        self.count = self.files.values().map(|file| file.entries.len()).sum();
        self.settled.clear();
        if self.count > REMEMBERED_MAX / 2 {
            self.forget();
        }
    }

    /// Nothing is known of what was let in up to now: nobody of before is let in any more.
    pub(super) fn forget(&mut self) {
        *self = Unsettled { latest: self.latest, least: self.latest + 1, ..Unsettled::default() };
    }
}

impl Entry {
    fn is_settled(&self, settled: &HashMap<u64, u64>) -> bool {
        settled.get(&self.session).is_some_and(|settled| self.number < *settled)
    }
}

fn meets(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &[u8] = b"file";

    fn piece(session: u64, (number, settled): (u64, u64), range: Range<u64>) -> Piece<'static> {
        Piece { session, handle: FILE, range, number: Ordinal { number, settled } }
    }

    #[test]
    fn what_another_client_may_repeat_is_not_overwritten() {
        let mut unsettled = Unsettled::default();
        assert!(unsettled.admit(3, &piece(1, (5, 5), 0..10)));
        assert!(!unsettled.admit(3, &piece(2, (1, 1), 9..20)), "nobody knows whether it is repeated");
        assert!(unsettled.admit(3, &piece(2, (1, 1), 10..20)) && unsettled.admit(3, &piece(1, (6, 5), 5..8)));
        assert!(unsettled.admit(3, &Piece { handle: b"other", ..piece(2, (2, 1), 0..10) }), "another file");
        assert!(unsettled.admit(3, &piece(1, (7, 6), 30..31)), "5 is settled, 6 is not");
        assert!(unsettled.admit(3, &piece(2, (3, 3), 0..5)) && !unsettled.admit(3, &piece(2, (4, 3), 4..6)));
        // A frame that came late says less than was known.
        assert!(unsettled.admit(3, &piece(1, (8, 8), 40..41)) && unsettled.admit(3, &piece(1, (9, 2), 50..51)));
        assert!(unsettled.admit(3, &piece(2, (5, 5), 5..8)), "6 is settled");
    }

    #[test]
    fn a_tenure_that_is_over_is_in_nobodys_way() {
        let mut unsettled = Unsettled::default();
        assert!(unsettled.admit(3, &piece(1, (5, 5), 0..10)) && !unsettled.admit(3, &piece(2, (1, 1), 0..10)));
        assert!(unsettled.admit(2, &piece(2, (1, 1), 0..10)), "also one whose first right was drawn before");
        assert_eq!(unsettled.count, 1);
    }

    #[test]
    fn what_is_remembered_has_a_limit_beyond_which_nobody_of_before_writes() {
        let mut unsettled = Unsettled::default();
        let at = |number: u64| number * 10..number * 10 + 10;
        let most = REMEMBERED_MAX as u64;
        // Of many files, 16 writes each.
        let mut admit = |of: u64, (tenure, session): (u64, u64), number: (u64, u64)| {
            let handle = (of / 16).to_le_bytes();
            unsettled.admit(tenure, &Piece { handle: &handle, ..piece(session, number, at(of)) })
        };
        for number in 1..most {
            assert!(admit(number, (3, 1), (number, 1)), "{number}");
        }
        assert!(!admit(1, (3, 2), (1, 1)), "it was forgotten what is unsettled");
        assert!(!admit(most, (3, 1), (most, most)));
        assert!(admit(1, (4, 2), (1, 1)));
        assert_eq!(unsettled.count, 1);
        // What is settled is forgotten without harm.
        let mut unsettled = Unsettled::default();
        for number in 1..2 * most {
            let handle = number.to_le_bytes();
            let piece = Piece { handle: &handle, ..piece(1, (number, number), at(number)) };
            assert!(unsettled.admit(3, &piece), "{number}");
        }
        assert!(unsettled.count < REMEMBERED_MAX && unsettled.least == 0);
        for number in 1..REMEMBERED_OF_FILE as u64 + 1 {
            assert!(unsettled.admit(5, &piece(7, (number, 1), at(number))));
        }
        assert!(!unsettled.admit(5, &piece(7, (most, 1), at(most))), "too many of one file");
    }
}
