//! Changes that others make than the clients of this server.

use std::sync::{Arc, Weak};

use aqueduct_fs::{Aspects, Handle, Outside};

use crate::complaints::Complaint;
use crate::export::Export;
use crate::origin::Identity;
use crate::state::Server;

/// Passes on to a server what is told.
struct ToServer(Weak<Server>);

impl Server {
    /// Whom to tell what has changed from outside, of any export.
    pub fn outside(self: &Arc<Server>) -> Arc<dyn Outside> {
        Arc::new(ToServer(Arc::downgrade(self)))
    }

    /// Something below an export was changed past this server. Leases on it are recalled, and none
    /// are granted on what was looked at before.
    pub fn changed_outside(&self, handle: &[u8], aspects: Aspects) {
        // Whichever export it was sealed for.
        let of_export = |export: &&Arc<Export>| export.filesystem.inode_name(handle).is_some();
        if let Some(export) = self.exports.iter().find(of_export).or(self.exports.first()) {
            self.leases.changed(&*export.filesystem, handle, aspects);
        }
    }

    /// Anything may have been changed past this server.
    pub fn changed_everything(&self) {
        self.leases.changed_everything();
    }
}

impl Outside for ToServer {
    fn changed(&self, handle: &Handle, aspects: Aspects) {
        let Some(server) = self.0.upgrade() else { return };
        server.metrics.outside.changes.increment();
        server.changed_outside(handle.bytes(), aspects);
    }

    fn everything(&self) {
        let Some(server) = self.0.upgrade() else { return };
        server.metrics.outside.overflows.increment();
        server.changed_everything();
        let what = "more changes from outside than could be told: clients forget all that they keep (see fs.fanotify.max_queued_events)";
        server.complaints.tell(Identity::Server, Complaint::Outside, what);
    }
}
