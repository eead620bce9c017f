//! What is given another name while somebody looks through the tree. A walk misses what is moved
//! from where it has not been yet to where it has been; so whoever moves something notes it, and
//! the walk looks at that by its handle, wherever it is by then.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use aqueduct_fs::{Errno, Handle};

/// The most that is noted of one walk; beyond, it is not known what it has missed.
const NOTED_MAX: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Moves {
    is_on: AtomicBool,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// What the walk has not looked at since it was noted.
    handles: HashSet<Handle>,
    /// There were more than can be noted.
    is_over: bool,
}

/// Notes are taken until it is dropped.
pub(crate) struct Watching<'a>(&'a Moves);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.is_on.store(false, Ordering::SeqCst);
        *self.0.noted() = Noted::default();
    }
}

impl Moves {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes notes until what is returned is dropped. `None`: somebody else has them taken.
    pub(crate) fn watch(&self) -> Option<Watching<'_>> {
        (!self.is_on.swap(true, Ordering::SeqCst)).then(|| Watching(self))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    pub(crate) fn note(&self, handle: Handle) {
        let mut noted = self.noted();
        if noted.handles.len() < NOTED_MAX {
            noted.handles.insert(handle);
        } else {
            noted.is_over |= !noted.handles.contains(&handle);
        }
    }
}

impl Watching<'_> {
    /// What was noted since the last time. EBUSY: more than can be.
    pub(crate) fn take(&self) -> Result<HashSet<Handle>, Errno> {
        let mut noted = self.0.noted();
        if noted.is_over {
            return Err(Errno::EBUSY);
        }
        Ok(std::mem::take(&mut noted.handles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_is_told_once_and_never_without_end() {
        let handle = |number: u64| Handle::new(&number.to_le_bytes()).unwrap();
        let moves = Moves::default();
        let watching = moves.watch().unwrap();
        assert!(moves.watch().is_none() && moves.is_on());
        [1, 2, 1].into_iter().for_each(|number| moves.note(handle(number)));
        assert_eq!(watching.take().unwrap(), [handle(1), handle(2)].into());
        assert_eq!(watching.take().unwrap(), HashSet::new());
        // The same ones again and again are no more than they were.
        (0..NOTED_MAX as u64 + 9).for_each(|number| moves.note(handle(number % 7)));
        assert_eq!(watching.take().unwrap().len(), 7);
        (0..=NOTED_MAX as u64).for_each(|number| moves.note(handle(number)));
        assert_eq!(watching.take(), Err(Errno::EBUSY));
        drop(watching);
        assert!(!moves.is_on() && moves.watch().unwrap().take().unwrap().is_empty());
    }
}
