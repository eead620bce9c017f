//! Names of one inode: the first is copied, the others are linked to it once it has its name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use aqueduct_worker::lock;

/// The names of inodes with several.
pub struct Links<I>(Mutex<HashMap<Vec<u8>, Link<I>>>);

enum Link<I> {
    /// The first is being copied; these wait for it.
    UnderWay(Vec<I>),
    /// It has this path at the destination.
    Done(Vec<u8>),
}

/// What is to be done with a name.
pub enum Claim<I> {
    /// It is the first: it is copied.
    First(I),
    /// It comes back when the first is done.
    Waits,
    /// It becomes a further name of this path.
    LinkTo(I, Vec<u8>),
}

impl<I> Links<I> {
    /// None so far.
    pub fn new() -> Links<I> {
        Links(Mutex::new(HashMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Link<I>>> {
        lock(&self.0)
    }

    /// A name of this inode is to be copied.
    pub fn claim(&self, identity: &[u8], item: I) -> Claim<I> {
        let mut links = self.lock();
        match links.get_mut(identity) {
            None => {
                links.insert(identity.to_vec(), Link::UnderWay(Vec::new()));
                Claim::First(item)
            }
            Some(Link::UnderWay(waiting)) => {
                waiting.push(item);
                Claim::Waits
            }
            Some(Link::Done(path)) => Claim::LinkTo(item, path.clone()),
        }
    }

    /// The first has its name. Returns those that waited.
    pub fn done(&self, identity: &[u8], path: &[u8]) -> Vec<I> {
        match self.lock().insert(identity.to_vec(), Link::Done(path.to_vec())) {
            Some(Link::UnderWay(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// The first failed: another of those that waited, which are returned, will be it.
    pub fn failed(&self, identity: &[u8]) -> Vec<I> {
        let mut links = self.lock();
        match links.remove(identity) {
            Some(Link::UnderWay(waiting)) => waiting,
            Some(done) => {
                links.insert(identity.to_vec(), done);
                Vec::new()
            }
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_is_elected_when_the_first_fails() {
        let links = Links::new();
        assert!(matches!(links.claim(b"i", 1), Claim::First(1)));
        assert!(matches!(links.claim(b"i", 2), Claim::Waits));
        assert_eq!(links.failed(b"i"), [2]);
        assert!(matches!(links.claim(b"i", 2), Claim::First(2)));
        assert!(matches!(links.claim(b"i", 3), Claim::Waits));
        assert_eq!(links.done(b"i", b"p"), [3]);
        assert!(matches!(links.claim(b"i", 3), Claim::LinkTo(3, path) if path == b"p"));
        assert_eq!(links.failed(b"i"), [0; 0]);
    }
}
