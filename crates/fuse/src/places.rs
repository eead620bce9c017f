//! Where the kernel knows each directory, and how it is made to forget the old place of one that
//! others have moved.
//!
//! The kernel has one entry for a directory. When it finds it at another place it moves that entry
//! there, for which it takes locks that rename(2) holds already: a rename that is the first to
//! find a directory at its new place gets ESTALE, however long ago others moved it. So the entry
//! at the old place is dropped before the kernel is told of the new one. That waits for the lock
//! of the directory where it was, which the same rename may hold: so it is done on a thread that
//! nothing waits for, and the answer goes when it is done, or soon in any case. Then the kernel
//! gives up that lock, and tries once more.

use std::sync::Mutex;

use ahash::HashMap;
use aqueduct_worker::lock;

/// A name in a directory.
pub(crate) type Place = (u64, Box<[u8]>);

/// Where the kernel was told of each directory last.
#[derive(Default)]
pub(crate) struct Places(Mutex<Known>);

#[derive(Default)]
struct Known {
    of: HashMap<u64, Place>,
    at: HashMap<Place, u64>,
}

impl Known {
    fn forget(&mut self, node: u64) {
        if let Some(place) = self.of.remove(&node)
            && self.at.get(&place) == Some(&node)
        {
            self.at.remove(&place);
        }
        if self.of.is_empty() {
            *self = Known::default(); // a tree walk leaves room for all it met: give it back
        }
    }

    fn put(&mut self, node: u64, place: Place) {
        self.forget(node);
        self.at.insert(place.clone(), node);
        self.of.insert(node, place);
    }
}

impl Places {
    /// The kernel is about to be told of a directory at a place. Gives the place where it has an
    /// entry of it, if that is in another directory.
    pub(crate) fn found(&self, node: u64, parent: u64, name: &[u8]) -> Option<Place> {
        let mut known = lock(&self.0);
        match known.of.get(&node) {
            Some(place) if (place.0, &*place.1) == (parent, name) => return None,
            _ => {}
        }
        let before = known.of.get(&node).cloned();
        known.put(node, (parent, name.into()));
        // Beside others in one directory the kernel moves its entry without more locks. Where it
        // was told of another since, it has dropped this one.
        before.filter(|place| place.0 != parent && !known.at.contains_key(place))
    }

    /// The kernel may be about to enter a directory that it finds in a listing. It moves an entry
    /// that it has of it, if it can.
    pub(crate) fn listed(&self, node: u64, parent: u64, name: &[u8]) {
        let mut known = lock(&self.0);
        if !known.of.contains_key(&node) {
            known.put(node, (parent, name.into()));
        }
    }

    /// The kernel has renamed what is at a place.
    pub(crate) fn renamed(&self, (parent, name): (u64, &[u8]), (new_parent, new_name): (u64, &[u8]), exchange: bool) {
        let (old, new): (Place, Place) = ((parent, name.into()), (new_parent, new_name.into()));
        let mut known = lock(&self.0);
        let (moved, replaced) = (known.at.get(&old).copied(), known.at.get(&new).copied());
        replaced.iter().for_each(|node| known.forget(*node));
        if let Some(node) = moved {
            known.put(node, new);
        }
        if let Some(node) = replaced.filter(|_| exchange) {
            known.put(node, old);
        }
    }

    /// Where a directory is.
    pub(crate) fn of(&self, node: u64) -> Option<Place> {
        lock(&self.0).of.get(&node).cloned()
    }

    /// The kernel has forgotten an inode.
    pub(crate) fn forget(&self, node: u64) {
        lock(&self.0).forget(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(parent: u64, name: &[u8]) -> Option<Place> {
        Some((parent, name.into()))
    }

    #[test]
    fn the_old_place_of_a_directory_is_told_once_and_only_while_it_is_its_own() {
        let places = Places::default();
        assert_eq!(places.found(16, 1, b"a"), None);
        assert_eq!(places.found(16, 1, b"a"), None, "where it was");
        assert_eq!(places.found(16, 1, b"b"), None, "in the same directory");
        assert_eq!(places.found(16, 32, b"c"), place(1, b"b"));
        assert_eq!(places.found(16, 32, b"c"), None);
        assert_eq!(places.found(48, 32, b"c"), None, "another in its place");
        assert_eq!(places.found(16, 1, b"b"), None, "the kernel knows that it is not there any more");
        places.listed(16, 32, b"d");
        assert_eq!(places.found(16, 32, b"d"), place(1, b"b"), "from a listing the kernel need not have entered it");
        places.listed(64, 1, b"e");
        assert_eq!(places.found(64, 32, b"e"), place(1, b"e"));
        places.forget(64);
        assert_eq!(places.found(64, 1, b"e"), None);
    }

    #[test]
    fn what_this_mount_renames_is_known_where_it_is() {
        let places = Places::default();
        places.found(16, 1, b"a");
        places.renamed((1, b"a"), (32, b"b"), false);
        assert_eq!(places.found(16, 32, b"b"), None);
        places.found(48, 1, b"c");
        places.renamed((1, b"c"), (32, b"b"), true);
        assert_eq!((places.found(48, 32, b"b"), places.found(16, 1, b"c")), (None, None));
        places.renamed((1, b"c"), (32, b"b"), false);
        assert_eq!(places.found(16, 32, b"b"), None);
        assert_eq!(places.found(48, 1, b"c"), None, "it is gone, and this a new one");
        places.renamed((1, b"none"), (32, b"b"), false);
        assert_eq!(places.found(16, 1, b"x"), None, "what came there dropped its entry");
        [16, 48].iter().for_each(|node| places.forget(*node));
        assert!(lock(&places.0).of.is_empty() && lock(&places.0).at.is_empty());
    }
}
