//! Where the kernel gives no handles, or will not take them back (a plain user's server): the inodes that were shown to clients, with the name
//! under which each was last seen. Bounded; what was forgotten is ESTALE until it is looked up again.

use std::borrow::Borrow;
use std::hash::Hash;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use ahash::HashMap;

use crate::lock::lock;
use crate::seal::TableKey;

/// The most inodes whose names are remembered: about 200 bytes each, 50 MiB when full. A client whose kernel holds more gets ESTALE for those
/// it has not used for longest.
pub(crate) const TABLE_INODES_MAX: usize = 262_144;

/// A bounded map that forgets what was not used for longest, roughly: two halves, of which the older is dropped when the younger is full.
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq, V: Clone> Recent<K, V> {
    /// Of at most `limit` entries, at least two.
    pub(crate) fn new(limit: usize) -> Recent<K, V> {
        Recent { young: HashMap::default(), old: HashMap::default(), half: (limit / 2).max(1) }
    }

    /// What is kept under `key`, which thereby counts as used.
    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    /// Keeps `value` under `key`.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// The entries kept.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// A name in a directory.
#[derive(Clone)]
pub(crate) struct Hint {
    pub(crate) parent: TableKey,
    pub(crate) name: Arc<[u8]>,
}

/// The inodes shown to clients.
pub(crate) struct Table {
    /// Tells the handles of this table from those of an earlier process.
    pub(crate) id: u64,
    hints: Mutex<Recent<TableKey, Hint>>,
    /// Directories only: a descriptor of a file would keep the space of a removed file taken.
    directories: Mutex<Recent<TableKey, Arc<OwnedFd>>>,
}

impl Table {
    /// Of at most `descriptors_max` open directories.
    pub(crate) fn new(id: u64, inodes_max: usize, descriptors_max: usize) -> Table {
        let directories = Mutex::new(Recent::new(descriptors_max));
        Table { id, hints: Mutex::new(Recent::new(inodes_max)), directories }
    }

    /// Remembers where an inode was seen.
    pub(crate) fn learn(&self, key: TableKey, hint: Hint) {
        lock(&self.hints).insert(key, hint);
    }

    /// Where it was last seen.
    pub(crate) fn hint(&self, key: &TableKey) -> Option<Hint> {
        lock(&self.hints).get(key)
    }

    /// Its descriptor, if it is a directory and still open.
    pub(crate) fn directory(&self, key: &TableKey) -> Option<Arc<OwnedFd>> {
        lock(&self.directories).get(key)
    }

    /// Keeps the descriptor of a directory.
    pub(crate) fn keep(&self, key: TableKey, directory: Arc<OwnedFd>) {
        lock(&self.directories).insert(key, directory);
    }

    /// The inodes remembered.
    pub(crate) fn len(&self) -> usize {
        lock(&self.hints).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_forgotten() {
        let mut recent = Recent::new(8);
        for key in 0..100 {
            recent.insert(key, key);
            assert_eq!(recent.get(&0), Some(0), "used each time, after {key}");
            assert!(recent.len() <= 8);
        }
        assert_eq!(recent.get(&99), Some(99));
        assert_eq!(recent.get(&50), None);
    }
}
