//! Holds as the front end has them: an answer that is being passed on, and a read under way.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use aqueduct_fs::{Aspects, Hold};

use super::holds::Relied;
use super::leases::Leases;
use super::recalls::Forget;
use super::view::Hash;

/// An answer on its way, with what it relies on.
pub(super) struct OfAnswer {
    leases: Arc<Leases>,
    relied: Relied,
}

impl OfAnswer {
    /// Of nothing yet.
    pub(super) fn new(leases: &Arc<Leases>) -> OfAnswer {
        OfAnswer { leases: leases.clone(), relied: Relied::default() }
    }

    /// `None`: it relies on nothing.
    pub(super) fn into_hold(self) -> Option<Hold> {
        (!self.relied.is_empty()).then(|| Hold::new(self))
    }
}

impl Deref for OfAnswer {
    type Target = Relied;

    fn deref(&self) -> &Relied {
        &self.relied
    }
}

impl DerefMut for OfAnswer {
    fn deref_mut(&mut self) -> &mut Relied {
        &mut self.relied
    }
}

impl Drop for OfAnswer {
    fn drop(&mut self) {
        self.leases.holds.drop_answer(&self.relied);
        self.leases.recalls.hold_dropped();
    }
}

/// A read under way.
pub(super) struct OfRead {
    pub(super) leases: Arc<Leases>,
    pub(super) handle: Arc<[u8]>,
    pub(super) hash: Hash,
    pub(super) epoch: u64,
}

impl Drop for OfRead {
    fn drop(&mut self) {
        self.leases.holds.drop_read(self.hash);
        // A recovery does not wait for reads, which wait for it: what came under no lease is forgotten afterwards.
        if self.leases.epoch() != self.epoch {
            let (handle, aspects) = (self.handle.clone(), Aspects::DATA);
            self.leases.recalls.forget(Forget { handle, aspects, done: None });
        }
        self.leases.recalls.hold_dropped();
    }
}
