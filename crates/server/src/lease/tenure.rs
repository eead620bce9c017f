//! Leases to write beside others, from the first of them on an inode to the return of the last.

use aqueduct_fs::Aspects;
use aqueduct_wire::Right;

use super::terms::{Limits, Now, REMEMBERED_FOR};

/// What others may keep of a file.
pub(super) const KEPT: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES).union(Aspects::WRITES);

/// What writers have leases on.
pub(super) const WRITERS: Aspects = Aspects::WRITES.union(Aspects::CONCURRENT);

/// Whether a change of these aspects is any but one that is made under a writer's lease.
pub(super) fn is_plain(changed: Aspects) -> bool {
    changed.intersects(Aspects::DATA | Aspects::ATTRIBUTES) && !changed.intersects(WRITERS)
}

/// Whether a lease is in the way of what is wanted by another client.
pub(super) fn meets(held: Aspects, wanted: Aspects) -> bool {
    match wanted.contains(Aspects::CONCURRENT) {
        true => held.intersects(KEPT),
        false => held.intersects(wanted) || held.contains(Aspects::CONCURRENT) && is_plain(wanted),
    }
}

/// The rights of several writers of an inode, as long as any has a lease to write it so.
pub(super) struct Tenured {
    /// The epoch of the map by which all are given: by another one a block might have another
    /// server.
    pub(super) map: u64,
    /// The first at each place.
    pub(super) rights: Vec<Right>,
}

/// How often the leases of several writers have been taken back lately.
#[derive(Default)]
pub(super) struct Tenure {
    pub(super) breaks: u32,
    pub(super) cool_at: Now,
}

/// So often that costs nobody anything: each who comes to write a file that others write does so
/// once.
pub(super) const BREAKS_FREE: u32 = 16;

impl Tenure {
    pub(super) fn is_forgotten(&self, now: Now) -> bool {
        self.breaks == 0 || now >= self.cool_at + REMEMBERED_FOR
    }

    pub(super) fn breaks(&mut self, now: Now, limits: &Limits) {
        self.breaks = if self.is_forgotten(now) { 1 } else { self.breaks.saturating_add(1) };
        let doubled = self.breaks.saturating_sub(BREAKS_FREE + 1).min(16);
        let holdoff = (limits.holdoff_first * (1 << doubled)).min(limits.holdoff_last);
        self.cool_at = if self.breaks > BREAKS_FREE { now + holdoff } else { now };
    }
}
