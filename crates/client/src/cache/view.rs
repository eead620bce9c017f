//! How what is kept is found, looked at and touched. Pure.

use aqueduct_fs::Aspects;
use aqueduct_session::Nanos;

use super::gate::Number;

/// Gates of inodes and of names in one shard.
pub(super) const GATES: usize = 128;
pub(super) const NAME_GATES: usize = 512;

/// Where an inode is found: its handle's hash says in which shard, and behind which gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(pub(super) u64);

impl Hash {
    pub(super) fn gate(self) -> usize {
        (self.0 >> 8) as usize % GATES
    }

    pub(super) fn name_gate(self) -> usize {
        (self.0 >> 8) as usize % NAME_GATES
    }
}

/// When somebody looks, and until when what is kept may be used at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) now: Nanos,
    pub(super) until: Nanos,
    pub(super) age_max: Nanos,
}

impl View {
    /// For how much longer what was fetched then may be used.
    pub(super) fn left(&self, at: Nanos) -> Option<Nanos> {
        let age = self.now.saturating_sub(at);
        let left = self.until.saturating_sub(self.now).min(self.age_max.saturating_sub(age));
        (left > 0).then_some(left)
    }
}

/// An answer that may be kept: when it was asked for, by number and time, and under which lease it
/// came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetched {
    pub(super) asked: Number,
    pub(super) at: Nanos,
}

/// What a credential may open an inode for: the flags of the open, or `RIGHT_TO_LIST`.
pub(super) type Rights = u32;

/// To open a directory.
pub(super) const RIGHT_TO_LIST: Rights = 1 << 31;

/// What a change of an inode concerns beside its aspects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Reach {
    Itself,
    /// Who may open it, too.
    Rights,
    /// And which extended attributes it has.
    Xattrs,
}

/// What a change of this client's own touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Touch<'a> {
    /// These aspects of an inode.
    Inode { handle: &'a [u8], aspects: Aspects, reach: Reach },
    /// One name in a directory.
    Name { parent: &'a [u8], name: &'a [u8], hash: Hash },
}

impl<'a> Touch<'a> {
    /// The inode whose shard knows of it.
    pub(super) fn handle(&self) -> &'a [u8] {
        match *self {
            Touch::Inode { handle, .. } => handle,
            Touch::Name { parent, .. } => parent,
        }
    }
}

/// What a write changes.
pub(super) const BOTH: Aspects = Aspects::ATTRIBUTES.union(Aspects::DATA);
