//! What is written, so that what is read can be recognized: each transfer has the mark of its rank, of the run and of its place.

/// What transfers hold (`-l`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Packet {
    /// Rank and time stamp, and the place within the transfer: every transfer of a rank holds the same
    #[default]
    #[value(alias = "t")]
    Timestamp,
    /// As timestamp, and the transfer's place in the file: what came to the wrong place is found too
    #[value(alias = "o")]
    Offset,
    /// Noise that nothing compresses, and the transfer's place in the file
    #[value(alias = "i")]
    Incompressible,
    /// Noise that is another for each transfer, so that nothing finds it twice; making it takes time
    #[value(alias = "r")]
    Random,
}

/// Where the transfer's place in the file stands: once in so many bytes.
const PLACE_EVERY: usize = 512;

/// What is different in the data of different ranks and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What kind of data.
    pub packet: Packet,
    /// `-G`, or the time at which the repetition began.
    pub stamp: u32,
    /// The rank that writes.
    pub rank: u32,
}

/// 8 bytes that a transfer should not have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// From the start of the transfer.
    pub at: usize,
    /// What was written, or would have been.
    pub expected: u64,
    /// What was read.
    pub found: u64,
    /// How many such words the transfer has.
    pub words: u64,
}

impl Signature {
    /// Whether the data of transfers of one rank differ.
    pub fn has_place(&self) -> bool {
        self.packet != Packet::Timestamp
    }

    /// Fills a transfer's buffer with all that does not depend on its place.
    pub fn fill(&self, buffer: &mut [u8]) {
        let seed = u64::from(self.rank) << 32 | u64::from(self.stamp);
        for (index, word) in buffer.chunks_exact_mut(8).enumerate() {
            let value = match self.packet {
                Packet::Timestamp | Packet::Offset if index % 2 == 0 => seed,
                Packet::Timestamp | Packet::Offset => (index * 8) as u64,
                Packet::Incompressible | Packet::Random => mix(seed.wrapping_add(mix(index as u64))),
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Adds the place to a filled buffer. Only where [`has_place`](Signature::has_place).
    #[inline]
    pub fn place(&self, buffer: &mut [u8], offset: u64) {
        if self.packet == Packet::Random {
            let seed = mix(offset ^ u64::from(self.rank) << 32 ^ u64::from(self.stamp));
            for (index, word) in buffer.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&mix(seed.wrapping_add(index as u64)).to_le_bytes());
            }
            return;
        }
        for (index, part) in buffer.chunks_mut(PLACE_EVERY).enumerate() {
            // The second word: the first says whose it is.
            let place = offset + (index * PLACE_EVERY) as u64;
            let at = if part.len() >= 16 { 8 } else { 0 };
            part[at..at + 8].copy_from_slice(&place.to_le_bytes());
        }
    }
}

/// splitmix64 (Steele, Lea and Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The first difference, if there is any. Both have the same length, whole words.
pub fn compare(expected: &[u8], found: &[u8]) -> Option<Difference> {
    if expected == found {
        return None;
    }
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let pairs = expected.chunks_exact(8).zip(found.chunks_exact(8));
    let mut wrong = pairs.enumerate().filter(|(_, (expected, found))| expected != found);
    let (index, (first, other)) = wrong.next()?;
    let difference = Difference { at: index * 8, expected: word(first), found: word(other), words: 1 };
    Some(Difference { words: 1 + wrong.count() as u64, ..difference })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made(signature: Signature, length: usize, offset: u64) -> Vec<u8> {
        let mut buffer = vec![0; length];
        signature.fill(&mut buffer);
        if signature.has_place() {
            signature.place(&mut buffer, offset);
        }
        buffer
    }

    fn signature() -> impl Strategy<Value = Signature> {
        let packets = [Packet::Timestamp, Packet::Offset, Packet::Incompressible, Packet::Random];
        (prop::sample::select(packets.to_vec()), any::<u32>(), any::<u32>())
            .prop_map(|(packet, stamp, rank)| Signature { packet, stamp, rank })
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_found_where_it_is(
            signature in signature(), words in 1usize..300, offset in 0u64..1 << 50, at in any::<prop::sample::Index>(), bit in 0u8..8
        ) {
            let offset = offset / 8 * 8;
            let expected = made(signature, words * 8, offset);
            let mut found = expected.clone();
            prop_assert_eq!(compare(&expected, &found), None);
            let at = at.index(found.len());
            found[at] ^= 1 << bit;
            let difference = compare(&expected, &found).unwrap();
            prop_assert_eq!((difference.at, difference.words), (at / 8 * 8, 1));
            prop_assert_ne!(difference.expected, difference.found);
        }

        #[test]
        fn what_comes_from_another_place_is_found(signature in signature(), words in 1usize..300, place in 0u64..1000, other in 0u64..1000) {
            let size = words as u64 * 8;
            let (here, there) = (made(signature, words * 8, place * size), made(signature, words * 8, other * size));
            prop_assert_eq!(compare(&here, &there).is_some(), signature.has_place() && place != other);
        }

        #[test]
        fn what_another_rank_or_run_wrote_is_found(signature in signature(), words in 2usize..300, rank: u32, stamp: u32) {
            let other = Signature { rank, stamp, ..signature };
            let (here, there) = (made(signature, words * 8, 0), made(other, words * 8, 0));
            prop_assert_eq!(compare(&here, &there).is_some(), other != signature);
        }
    }

    #[test]
    fn even_words_have_rank_and_stamp_and_odd_ones_the_place() {
        let buffer = made(Signature { packet: Packet::Timestamp, stamp: 5, rank: 3 }, 32, 4096);
        let words: Vec<u64> = buffer.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [3 << 32 | 5, 8, 3 << 32 | 5, 24]);
        let buffer = made(Signature { packet: Packet::Offset, stamp: 5, rank: 3 }, 1024, 4096);
        assert_eq!(buffer[8..16], 4096u64.to_le_bytes());
        assert_eq!(buffer[512 + 8..512 + 16], (4096u64 + 512).to_le_bytes());
    }
}
