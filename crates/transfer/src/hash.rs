//! The hash of a file from the hashes of its chunks, in whatever order these were made.
//!
//! BLAKE3 is a tree: what chunks of one power of two come to merges into what `b3sum` prints.

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

/// The hash of a whole file.
pub type Hash = blake3::Hash;

/// Files of at most so many bytes are one chunk, and copied by one thread.
pub const WHOLE_MAX: u64 = 8 << 20;

/// The least and the greatest chunk: so small that several threads share a file of some MiB, so
/// large that one costs nothing beside its data.
const CHUNK_MIN: u64 = 4 << 20;
const CHUNK_MAX: u64 = 64 << 20;

/// A file has at least so many chunks for each thread, as far as [`CHUNK_MIN`] allows.
const CHUNKS_MIN: u64 = 32;

/// A file has at most so many chunks, of which little is kept: a file of 7 EiB is a hole, mostly.
const CHUNKS_MAX: u64 = 1 << 16;

/// The length of the chunks of a file: a power of two.
pub fn chunk_length(size: u64) -> u64 {
    let least = size.div_ceil(CHUNKS_MAX).next_power_of_two();
    (size / CHUNKS_MIN).max(1).next_power_of_two().clamp(CHUNK_MIN, CHUNK_MAX).max(least)
}

/// Hashes a chunk that begins at `offset`, a multiple of the length of chunks.
pub fn of_chunk(offset: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset);
    hasher
}

/// What a chunk comes to, of a file with more than one.
pub fn value(hasher: &Hasher) -> ChainingValue {
    hasher.finalize_non_root()
}

/// The hash of a file of `size` bytes from the values of all of its chunks, at least two.
pub fn merge(values: &[ChainingValue], chunk: u64, size: u64) -> Hash {
    let (left, right) = halves(values, chunk, size);
    merge_subtrees_root(&left, &right, Mode::Hash)
}

fn halves(values: &[ChainingValue], chunk: u64, size: u64) -> (ChainingValue, ChainingValue) {
    let left = left_subtree_len(size);
    let (first, rest) = values.split_at((left / chunk) as usize);
    (subtree(first, chunk, left), subtree(rest, chunk, size - left))
}

fn subtree(values: &[ChainingValue], chunk: u64, size: u64) -> ChainingValue {
    if let [value] = values {
        return *value;
    }
    let (left, right) = halves(values, chunk, size);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_merge_into_the_ordinary_hash(chunk in 0u32..4, size in 1u64..40_000, seed: u8) {
            let chunk = 1024u64 << chunk;
            prop_assume!(size > chunk);
            let data: Vec<u8> = (0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect();
            let values: Vec<ChainingValue> = (0..size.div_ceil(chunk))
                .map(|index| {
                    let mut hasher = of_chunk(index * chunk);
                    hasher.update(&data[(index * chunk) as usize..((index + 1) * chunk).min(size) as usize]);
                    value(&hasher)
                })
                .collect();
            prop_assert_eq!(merge(&values, chunk, size), blake3::hash(&data));
        }
    }

    #[test]
    fn chunks_grow_with_the_file() {
        assert_eq!((chunk_length(0), chunk_length(WHOLE_MAX + 1)), (CHUNK_MIN, CHUNK_MIN));
        assert_eq!((chunk_length(1 << 30), chunk_length(1 << 40)), (32 << 20, CHUNK_MAX));
        assert!(u64::MAX / chunk_length(u64::MAX) <= CHUNKS_MAX);
    }
}
