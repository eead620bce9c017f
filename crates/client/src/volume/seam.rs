//! Between a session and who keeps what it grants: the session's recovery also has to have again
//! what is open without the server's knowledge, and that the volume knows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use aqueduct_session::{ConnectError, Holder, Nanos, Recovery};
use aqueduct_wire::{AttachReply, HelloReply, LeaseId, Map};

use super::above::Above;
use super::making::open_locals;
use super::opens::Opens;
use super::parts::Volume;

/// The holder of one session.
pub(super) struct Seam {
    pub(super) session: usize,
    pub(super) opens: Arc<Opens>,
    /// `None`: nobody keeps anything.
    pub(super) above: Option<Arc<dyn Above>>,
    /// The latest epoch of a map that the server has named.
    pub(super) map: AtomicU64,
    /// Set as soon as there is one.
    pub(super) volume: OnceLock<Weak<Volume>>,
}

impl Seam {
    fn volume(&self) -> Option<Arc<Volume>> {
        self.volume.get().and_then(Weak::upgrade)
    }
}

impl Holder for Seam {
    fn greeted(&self, hello: &HelloReply) {
        self.above.iter().for_each(|above| above.greeted(hello));
        self.map.fetch_max(hello.epoch, Ordering::SeqCst);
        self.volume().iter().for_each(|volume| volume.map_is(hello.epoch));
    }

    fn mapped(&self, map: Map) {
        self.map.fetch_max(map.epoch, Ordering::SeqCst);
        self.volume().iter().for_each(|volume| volume.mapped(map.clone()));
    }

    fn attached(&self, hello: &HelloReply, attached: &AttachReply) {
        self.above.iter().for_each(|above| above.attached(hello, attached));
    }

    fn asks(&self) -> bool {
        self.above.as_ref().is_some_and(|above| above.asks())
    }

    fn renewed(&self, epoch: u64, sent: Nanos) {
        self.above.iter().for_each(|above| above.renewed(epoch, sent));
    }

    fn recalled(&self, epoch: u64, leases: &[LeaseId]) -> bool {
        self.above.as_ref().is_some_and(|above| above.recalled(epoch, leases))
    }

    fn epoch_begins(&self, epoch: u64) {
        self.above.iter().for_each(|above| above.epoch_begins(epoch));
        self.volume().iter().for_each(|volume| volume.lanes_begin_epoch(epoch));
    }

    fn reopen(&self, recovery: &mut dyn Recovery) -> Result<usize, ConnectError> {
        open_locals((&self.opens, self.session), self.above.as_deref(), recovery, |open, number| {
            if let Some(volume) = self.volume() {
                volume.close_unused_later(open, number);
            }
        })
    }

    fn send_held(&self, recovery: &mut dyn Recovery) -> Result<usize, ConnectError> {
        // What was answered goes before what was not.
        let bytes = self.volume().map_or(Ok(0), |volume| volume.recover_lanes(recovery))?;
        let held = self.above.as_ref().map_or(Ok(0), |above| above.send_held(recovery))?;
        Ok(bytes + held)
    }

    fn lose_held(&self, recovery: &mut dyn Recovery) {
        self.volume().iter().for_each(|volume| volume.lose_lanes(recovery));
        self.above.iter().for_each(|above| above.lose_held(recovery));
    }

    fn goes_on(&self) {
        self.above.iter().for_each(|above| above.goes_on());
    }
}
