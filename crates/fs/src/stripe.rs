//! Where the bytes of a file lie that is spread over objects: arithmetic of blocks that go round,
//! and what the server of the names says of it.

/// The most objects of a file.
pub const PARTS_MAX: usize = 64;

/// The longest token of an object, in bytes.
pub const OBJECT_TOKEN_LENGTH_MAX: usize = 128;

/// Where a file's bytes lie, as they are read without the server of the names while nobody changes
/// the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The file's size in bytes. An object that is shorter than its share ends in zeros; what lies
    /// behind its share is nobody's.
    pub size: u64,
    /// Bytes of a stripe's block.
    pub block: u32,
    /// Names the objects.
    pub id: [u8; 16],
    /// Another one: the objects may be others, though they have the same names.
    pub epoch: u64,
    /// The objects in order, at most [`PARTS_MAX`]. None: the server of the names has the bytes.
    pub parts: Vec<Part>,
}

/// One of a file's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// There is none: zeros.
    Hole {
        /// Where it will lie: the server's place among those of the volume's map.
        place: u16,
    },
    /// It lies there, for who writes and may not read.
    Untold {
        /// The server's place among those of the volume's map.
        place: u16,
    },
    /// It lies at a server of data.
    At {
        /// The server's place among those of the volume's map.
        place: u16,
        /// Lets the object be opened there, with [`Request::Reopen`](crate::Request::Reopen); at
        /// most [`OBJECT_TOKEN_LENGTH_MAX`] bytes.
        token: Box<[u8]>,
    },
}

impl Part {
    /// The place of its server among those of the volume's map.
    pub fn place(&self) -> u16 {
        let (Part::Hole { place } | Part::Untold { place } | Part::At { place, .. }) = self;
        *place
    }
}

impl Layout {
    /// How the bytes are cut; `None`: they are not, or what says so makes no sense.
    pub fn stripe(&self) -> Option<Stripe> {
        let is_some = self.block > 0 && !self.parts.is_empty();
        is_some.then(|| Stripe { block: self.block.into(), width: self.parts.len() as u64 })
    }
}

/// How a file's bytes are cut: block n lies in object n mod `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Bytes of a block, at least 1.
    pub block: u64,
    /// Objects, at least 1.
    pub width: u64,
}

/// A range of a file that lies together in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which object.
    pub part: usize,
    /// The first byte in the object.
    pub at: u64,
    /// The first byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Stripe {
    /// The pieces of `length` bytes from `offset`, in the file's order.
    pub fn pieces(self, offset: u64, length: u64) -> Vec<Piece> {
        let end = offset.saturating_add(length);
        let mut pieces = Vec::new();
        let mut offset = offset;
        while offset < end {
            let block = offset / self.block;
            let until = match self.width {
                1 => end,
                _ => (block + 1).saturating_mul(self.block).min(end),
            };
            let at = (block / self.width) * self.block + offset % self.block;
            pieces.push(Piece { part: (block % self.width) as usize, at, offset, length: until - offset });
            offset = until;
        }
        pieces
    }

    /// How many of the first `size` bytes of the file lie in an object: also the place there where
    /// the file's byte `size` would be, or the next one of that object.
    pub fn length_of(self, size: u64, part: usize) -> u64 {
        let (block, rest) = (size / self.block, size % self.block);
        let (round, last) = (block / self.width, block % self.width);
        let more = match (part as u64).cmp(&last) {
            std::cmp::Ordering::Less => self.block,
            std::cmp::Ordering::Equal => rest,
            std::cmp::Ordering::Greater => 0,
        };
        round * self.block + more
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_a_range_once_and_objects_have_no_gaps(
            block in 1u64..50, width in 1u64..6, offset in 0u64..500, length in 0u64..500,
        ) {
            let stripe = Stripe { block, width };
            let mut next = offset;
            for piece in stripe.pieces(offset, length) {
                prop_assert_eq!(piece.offset, next);
                prop_assert!(piece.length > 0);
                next += piece.length;
                // Bytes of a piece are where a byte at a time says.
                for at in 0..piece.length {
                    let byte = stripe.pieces(piece.offset + at, 1)[0];
                    prop_assert_eq!((byte.part, byte.at), (piece.part, piece.at + at));
                }
            }
            prop_assert_eq!(next, offset + length);
            // The length of an object counts its bytes one by one.
            for part in 0..width as usize {
                let counted = (0..offset).filter(|&at| stripe.pieces(at, 1)[0].part == part).count() as u64;
                prop_assert_eq!(stripe.length_of(offset, part), counted);
            }
        }
    }

    #[test]
    fn a_whole_file_is_one_piece_and_huge_sizes_do_not_overflow() {
        let stripe = Stripe { block: 1 << 20, width: 1 };
        assert_eq!(stripe.pieces(5 << 20, 9 << 20).len(), 1);
        assert_eq!(stripe.length_of(u64::MAX >> 1, 0), u64::MAX >> 1);
        let wide = Stripe { block: 1 << 30, width: 64 };
        assert!(wide.length_of(u64::MAX >> 1, 63) < u64::MAX >> 1);
    }

    #[test]
    fn what_makes_no_sense_cuts_nothing() {
        assert_eq!(Layout::default().stripe(), None);
        let parts = vec![Part::Hole { place: 0 }];
        assert_eq!(Layout { parts: parts.clone(), ..Layout::default() }.stripe(), None);
        let stripe = Layout { parts, block: 7, ..Layout::default() }.stripe();
        assert_eq!(stripe, Some(Stripe { block: 7, width: 1 }));
    }
}
