//! What files held at their ends when their sizes were told, for reads that are answered after
//! another client has made the file shorter.
//!
//! Who reads from pages goes by the size that the kernel knew when it began. A page that it fetches
//! meanwhile may be answered with less: the kernel fills the rest with zeros, and takes the smaller
//! size for true only if it was told of no other since it asked. Otherwise these zeros would be
//! read. What the file held when its size was told is what a read may give that had begun by then.

use std::collections::HashMap;
use std::sync::Mutex;

use aqueduct_worker::lock;

/// At most so many files are remembered, a page of each: 4 MiB.
const FILES_MAX: usize = 1024;

/// The last page of a file, as far as it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

impl Tail {
    /// The end of the data read at `offset`, if they end with the file and `size` says so.
    pub(crate) fn of(offset: u64, data: &[u8]) -> Option<Tail> {
        let page = rustix::param::page_size() as u64;
        let last = (offset + data.len() as u64).checked_sub(1)?;
        let start = (last - last % page).max(offset);
        Some(Tail { offset: start, data: data.get((start - offset) as usize..)?.to_vec() })
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// What a read at `offset` that found `found` is answered with, if the file was longer and all
    /// that is missing is known.
    fn complete(&self, offset: u64, found: &[u8], length: usize) -> Option<Vec<u8>> {
        let end = offset + found.len() as u64;
        if found.len() >= length || end >= self.end() || end < self.offset {
            return None;
        }
        let missing = &self.data[(end - self.offset) as usize..];
        let mut whole = found.to_vec();
        whole.extend_from_slice(&missing[..missing.len().min(length - found.len())]);
        Some(whole)
    }
}

/// The ends of files, by node.
#[derive(Default)]
pub(crate) struct Tails(Mutex<HashMap<u64, Tail>>);

impl Tails {
    /// A size was told, or data up to it.
    pub(crate) fn keep(&self, node: u64, tail: Tail) {
        let mut tails = lock(&self.0);
        if tails.len() >= FILES_MAX && !tails.contains_key(&node) {
            tails.clear();
        }
        tails.insert(node, tail);
    }

    /// The file is changed through this mount, or nobody reads it any more.
    pub(crate) fn forget(&self, node: u64) {
        let mut tails = lock(&self.0);
        tails.remove(&node);
        if tails.is_empty() {
            tails.shrink_to_fit();
        }
    }

    /// See [`Tail::complete`].
    pub(crate) fn complete(&self, node: u64, offset: u64, found: &[u8], length: usize) -> Option<Vec<u8>> {
        lock(&self.0).get(&node)?.complete(offset, found, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_ends_too_soon_is_completed_with_what_was_there() {
        let tails = Tails::default();
        assert_eq!(tails.complete(16, 0, b"", 4096), None);
        tails.keep(16, Tail::of(0, b"0123456789").unwrap());
        assert_eq!(tails.complete(16, 0, b"", 4096).unwrap(), b"0123456789");
        assert_eq!(tails.complete(16, 0, b"abc", 4096).unwrap(), b"abc3456789");
        assert_eq!(tails.complete(16, 0, b"abc", 5).unwrap(), b"abc34");
        assert_eq!(tails.complete(16, 0, b"0123456789", 4096), None, "it is as long");
        assert_eq!(tails.complete(16, 20, b"", 4096), None, "behind its end");
        // Only the last page is known.
        let long = Tail::of(0, &[b'x'; 5000]).unwrap();
        assert_eq!((long.offset, long.data.len()), (4096, 904));
        tails.keep(16, long);
        assert_eq!(tails.complete(16, 0, b"", 8192), None);
        assert_eq!(tails.complete(16, 0, &[b'y'; 4096], 8192).unwrap().len(), 5000);
        tails.forget(16);
        assert!(tails.complete(16, 0, b"", 4096).is_none() && Tail::of(0, b"").is_none());
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let tails = Tails::default();
        (0..5000).for_each(|node| tails.keep(node, Tail::of(0, b"x").unwrap()));
        assert!(lock(&tails.0).len() <= FILES_MAX && tails.complete(4999, 0, b"", 1).is_some());
    }
}
