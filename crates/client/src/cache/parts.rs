//! The cache: what each session of a volume grants, above the volume.

use std::sync::Arc;

use aqueduct_fs::{Errno, Observer, OpenId, Request};

use super::leases::Leases;
use crate::volume::Volume;

/// A volume of which is kept what leases are granted on. Epoch, renewal, recalls and forgetting
/// belong to the session that grants.
pub(crate) struct Cache {
    pub(crate) volume: Arc<Volume>,
    /// For each session; `None`: nothing of it is kept, and everything goes straight through.
    pub(crate) leases: Box<[Option<Arc<Leases>>]>,
}

impl Cache {
    /// From now on this one is told what whoever gets answers has to forget.
    pub(crate) fn set_observer(&self, observer: &Arc<dyn Observer>) {
        self.leases.iter().flatten().for_each(|leases| leases.set_observer(observer.clone()));
    }

    /// What covers an inode.
    pub(super) fn of_inode(&self, handle: &[u8]) -> Option<&Arc<Leases>> {
        match &*self.leases {
            [alone] => alone.as_ref(),
            all => all[self.volume.namespace(handle)].as_ref(),
        }
    }

    /// What covers the inode of an open.
    pub(super) fn of_open(&self, open: OpenId) -> Option<&Arc<Leases>> {
        match &*self.leases {
            [alone] => alone.as_ref(),
            all => all[self.volume.opens.get(open)?.session].as_ref(),
        }
    }

    /// What covers what a request is about. EXDEV: that is at two sessions.
    pub(super) fn of_request(&self, request: &Request<'_>) -> Result<Option<&Arc<Leases>>, Errno> {
        match &*self.leases {
            [alone] => Ok(alone.as_ref()),
            all => self.volume.session_of(request).map(|session| all[session].as_ref()),
        }
    }
}
