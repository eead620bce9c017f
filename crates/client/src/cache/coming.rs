//! Directories that the server is being asked for, and who waits for them. Pure.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use ahash::HashMap;

/// As many as there are requests under way, and those that each asks for.
#[derive(Debug, Default)]
pub(super) struct Coming {
    directories: HashMap<Arc<[u8]>, Next>,
    /// The latest number.
    number: u64,
}

/// What comes next of a directory.
#[derive(Debug)]
struct Next {
    number: u64,
    waiters: Vec<Waker>,
}

impl Coming {
    /// The server is asked for these.
    pub(super) fn begin(&mut self, handles: &[Arc<[u8]>]) {
        for handle in handles {
            self.number += 1;
            let number = self.number;
            self.directories.entry(handle.clone()).or_insert_with(|| Next { number, waiters: Vec::new() });
        }
    }

    /// A page has come of one of them, but not the last. Returns who is to be woken.
    pub(super) fn page(&mut self, handle: &[u8]) -> Vec<Waker> {
        let Some(next) = self.directories.get_mut(handle) else { return Vec::new() };
        self.number += 1;
        next.number = self.number;
        std::mem::take(&mut next.waiters)
    }

    /// They have come, or will not. Returns who is to be woken.
    pub(super) fn end(&mut self, handles: &[Arc<[u8]>]) -> Vec<Waker> {
        handles.iter().filter_map(|handle| self.directories.remove(handle)).flat_map(|next| next.waiters).collect()
    }

    pub(super) fn contains(&self, handle: &[u8]) -> bool {
        self.directories.contains_key(handle)
    }

    /// The number of what comes next of a directory, if anything does.
    pub(super) fn next(&self, handle: &[u8]) -> Option<u64> {
        Some(self.directories.get(handle)?.number)
    }

    /// Ready when that has come, or will not.
    pub(super) fn poll(&mut self, handle: &[u8], number: u64, task: &TaskContext<'_>) -> Poll<()> {
        match self.directories.get_mut(handle).filter(|next| next.number == number) {
            Some(next) => {
                next.waiters.push(task.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_a_directory_that_is_coming_waits_for_one_page() {
        let (one, other): (Arc<[u8]>, Arc<[u8]>) = (Arc::from(*b"one"), Arc::from(*b"other"));
        let mut coming = Coming::default();
        let task = TaskContext::from_waker(Waker::noop());
        let is_ready = |coming: &mut Coming, number| coming.poll(&one, number, &task).is_ready();
        assert_eq!(coming.next(&one), None);
        coming.begin(&[one.clone(), other.clone()]);
        let number = coming.next(&one).unwrap();
        assert!(!is_ready(&mut coming, number));
        assert!(coming.page(&other).is_empty());
        assert!(!is_ready(&mut coming, number));
        assert_eq!(coming.page(&one).len(), 2, "all who wait are woken");
        assert!(is_ready(&mut coming, number));
        let number = coming.next(&one).unwrap();
        assert!(!is_ready(&mut coming, number));
        assert_eq!(coming.end(std::slice::from_ref(&one)).len(), 1);
        coming.begin(std::slice::from_ref(&one));
        assert!(is_ready(&mut coming, number), "what is asked for anew is something else");
        assert_eq!(coming.end(&[one.clone(), other]).len(), 0);
        assert!(coming.directories.is_empty());
    }
}
