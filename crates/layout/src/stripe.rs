//! Where a file's bytes lie: arithmetic of blocks that go round over objects, and the choice of
//! servers.

/// A server of a volume, as layouts name it: a hash of its id.
pub type ServerKey = u64;

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

/// The name of a server in layouts.
pub fn server_key(id: &str) -> ServerKey {
    let hash = blake3::Hasher::new_derive_key("aqueduct 2026 server of a volume").update(id.as_bytes()).finalize();
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// The servers of a file in rendezvous order, by the file's id: each server has the same share,
/// and one that comes or goes moves nobody else's files.
pub fn order(id: &[u8; 16], mut servers: Vec<ServerKey>) -> Vec<ServerKey> {
    servers.sort_by_cached_key(|server| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(id).update(&server.to_le_bytes());
        *hasher.finalize().as_bytes()
    });
    servers
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
    fn servers_have_even_shares_and_a_new_one_takes_only_its_own() {
        let servers: Vec<_> = ["a", "b", "c"].map(server_key).into();
        let mut counts = [0; 3];
        for number in 0..3000u128 {
            let id = number.to_le_bytes();
            let first = order(&id, servers.clone())[0];
            counts[servers.iter().position(|server| *server == first).unwrap()] += 1;
            let more = order(&id, [&servers[..], &[server_key("d")]].concat())[0];
            assert!(more == first || more == server_key("d"));
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
