//! What of a file was changed while somebody copies it elsewhere.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// Bytes that are copied, and noted, at once.
pub(crate) const CHUNK: u64 = 1 << 20;

/// So many chunks of a file are noted one by one. Beyond, all counts as changed that lies behind
/// the first one which is not.
const NOTED_MAX: usize = 1 << 14;

/// Notes of one file. Who changes bytes notes them afterwards, while he still holds up who wants
/// the file alone.
#[derive(Default)]
pub(crate) struct Changed(Mutex<Option<Noted>>);

struct Noted {
    chunks: BTreeSet<u64>,
    /// The first chunk of those that all have changed.
    from: u64,
}

/// Notes are taken until it is dropped.
pub(crate) struct Taking<'a>(&'a Changed);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        *self.0.noted() = None;
    }
}

/// Notes a range when it is dropped, however what changed it has ended.
pub(crate) struct Noting<'a> {
    changed: &'a Changed,
    offset: u64,
    end: u64,
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.changed.note(self.offset, self.end);
    }
}

impl Changed {
    fn noted(&self) -> MutexGuard<'_, Option<Noted>> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes notes until what is returned is dropped. `None`: another one copies the file.
    pub(crate) fn begin(&self) -> Option<Taking<'_>> {
        let mut noted = self.noted();
        if noted.is_some() {
            return None;
        }
        *noted = Some(Noted { chunks: BTreeSet::new(), from: u64::MAX });
        Some(Taking(self))
    }

    /// Bytes from `offset` to `end` are being changed, until what is returned is dropped.
    pub(crate) fn noting(&self, offset: u64, end: u64) -> Noting<'_> {
        Noting { changed: self, offset, end }
    }

    pub(crate) fn note(&self, offset: u64, end: u64) {
        let mut noted = self.noted();
        let Some(noted) = noted.as_mut().filter(|_| offset < end) else { return };
        let (first, last) = (offset / CHUNK, (end - 1) / CHUNK);
        if last - first >= NOTED_MAX as u64 || noted.chunks.len() >= NOTED_MAX {
            noted.from = noted.from.min(first);
        } else {
            noted.chunks.extend(first..=last);
        }
    }

    /// How many chunks of a file of this size have changed.
    pub(crate) fn count(&self, size: u64) -> u64 {
        let noted = self.noted();
        let all = size.div_ceil(CHUNK);
        noted.as_ref().map_or(0, |noted| {
            let before = noted.chunks.range(..noted.from.min(all)).count() as u64;
            before + all.saturating_sub(noted.from)
        })
    }

    /// Whether somebody copies the file.
    pub(crate) fn is_copied(&self) -> bool {
        self.noted().is_some()
    }

    /// The chunks below `size` that have changed. From now on they count as they are; what is
    /// noted behind stays: the file may have become longer since its size was looked at, or will.
    pub(crate) fn take(&self, size: u64) -> Vec<u64> {
        let mut noted = self.noted();
        let Some(noted) = noted.as_mut() else { return Vec::new() };
        let all = size.div_ceil(CHUNK);
        let from = noted.from.min(all);
        let behind = noted.chunks.split_off(&all);
        let chunks = std::mem::replace(&mut noted.chunks, behind);
        // All that was changed from some chunk on: what is left of that begins at the end.
        if noted.from != u64::MAX {
            noted.from = noted.from.max(all);
        }
        chunks.into_iter().filter(|chunk| *chunk < from).chain(from..all).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_meanwhile_is_told_once() {
        let changed = Changed::default();
        drop(changed.noting(0, 10));
        assert_eq!(changed.count(u64::MAX), 0, "nobody copies");
        let taking = changed.begin().unwrap();
        assert!(changed.begin().is_none());
        drop(changed.noting(CHUNK - 1, CHUNK + 1));
        drop(changed.noting(5 * CHUNK, 5 * CHUNK));
        drop(changed.noting(9 * CHUNK, 9 * CHUNK + 1));
        assert_eq!(changed.count(3 * CHUNK), 2);
        assert_eq!(changed.take(3 * CHUNK), [0, 1]);
        assert_eq!(changed.take(20 * CHUNK), [9], "the file was longer than whoever copies it knew");
        assert_eq!(changed.take(20 * CHUNK), []);
        drop(changed.noting(3, 4));
        drop(changed.noting(2 * CHUNK, u64::MAX));
        assert_eq!((changed.count(5 * CHUNK), changed.take(5 * CHUNK)), (4, vec![0, 2, 3, 4]));
        assert_eq!((changed.count(7 * CHUNK), changed.take(7 * CHUNK)), (2, vec![5, 6]), "it grew meanwhile");
        drop(taking);
        assert!(changed.begin().is_some());
    }
}
