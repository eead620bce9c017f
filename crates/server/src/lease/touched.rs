//! Inodes, with what a request changes of them or looks at.

use aqueduct_fs::Aspects;

use super::InodeKey;

/// The most inodes that one request changes: two directories, the inode that moves, and the one it
/// replaces.
pub(crate) const TOUCHED_MAX: usize = 4;

/// What is touched of an inode that is only looked at.
pub(crate) const LOOK: Aspects = Aspects::WRITES;

/// What a lease covers under which writes are held back.
pub(crate) const EXCLUSIVE: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES).union(Aspects::WRITES);

/// What a write changes that is made under a lease to write beside others.
pub(crate) const TOGETHER: Aspects = Aspects::DATA.union(Aspects::CONCURRENT);

/// Inodes with what a request changes of them, or that it looks at, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    parts: [Option<(InodeKey, Aspects)>; TOUCHED_MAX],
    /// What it looks at is known once its names have been looked up.
    by_name: bool,
}

impl Touched {
    /// What a request looks at by names.
    pub(crate) fn by_name() -> Touched {
        Touched { by_name: true, ..Touched::default() }
    }

    /// A look at an inode.
    pub(crate) fn look(inode: InodeKey) -> Touched {
        let mut touched = Touched::default();
        touched.add(inode, LOOK);
        touched
    }

    pub(crate) fn add(&mut self, inode: InodeKey, aspects: Aspects) {
        let is_it = |part: &&mut Option<_>| part.as_ref().is_none_or(|(other, _)| *other == inode);
        let Some(part) = self.parts.iter_mut().find(is_it) else { return };
        // Who changes an inode waits for all that a look at it waits for.
        match part {
            Some((_, present)) if *present == LOOK => *present = aspects,
            Some((_, present)) if aspects != LOOK => *present |= aspects,
            Some(_) => {}
            None => *part = Some((inode, aspects)),
        }
    }

    /// Whether anything of it is changed.
    pub(crate) fn changes(&self) -> bool {
        self.iter().any(|(_, aspects)| aspects != LOOK)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (InodeKey, Aspects)> + '_ {
        self.parts.iter().copied().flatten()
    }
}
