//! What the leases of a server have it do: ask clients for them, and wait for rights at servers of
//! data.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_fs::ClientId;
use aqueduct_wire::LeaseId;
use aqueduct_worker::Group;

use crate::config::Role;
use crate::lease::InodeKey;
use crate::lease::clock::now;
use crate::lease::holder::Noted;
use crate::lease::keeper::{Keeper, Surroundings};
use crate::right::Granter;
use crate::state::Server;

/// How often is looked whether time is enough, and who is waited for.
const LOOK: Duration = Duration::from_millis(250);

/// After so many looks, and again after as many, the log says who is waited for.
const TOLD_EVERY: usize = 20;

impl Surroundings for Server {
    fn leases(&self) -> &Keeper {
        &self.leases
    }

    fn group(&self) -> &Arc<Group> {
        &self.group
    }

    fn recall(&self, client: ClientId, leases: &[LeaseId]) {
        if let Some(session) = self.session(client.0) {
            self.recall(&session, leases);
        }
    }

    fn revoke(self: Arc<Self>, inode: InodeKey) {
        let Role::Names(granter) = &self.config.role else { return self.leases.revoked(inode) };
        let (granter, floor, group) = (granter.clone(), granter.revoke(None), self.group.clone());
        group.spawn(async move {
            if self.rights_over(&granter, None, floor).await {
                self.leases.revoked(inode);
            }
        });
    }

    fn lose(&self, session: u64) {
        let Some(session) = self.session(session) else { return };
        tracing::warn!(client = %session.name, "it did not come back in time: what it had not written is lost");
        session.note_broken(true);
    }

    fn forget_lapse(&self) {
        self.folder.get().into_iter().for_each(|folder| folder.forget_lapse(now()));
    }
}

impl Server {
    /// Waits until nothing is executed any more, at a place or anywhere, under rights up to this
    /// one. False: the server ends before.
    pub(crate) async fn rights_over(&self, granter: &Granter, place: Option<u16>, floor: u64) -> bool {
        for look in 1.. {
            let over = poll_fn(|task| granter.poll_over(place, floor, now(), task));
            let is_over = self.group.within(LOOK, over).await.is_some();
            if is_over || self.draining.load(Ordering::SeqCst) {
                return is_over;
            }
            if look % TOLD_EVERY == 0 {
                let missing = granter.missing(floor).join(", ");
                tracing::warn!(
                    "waiting for {missing}, which may still write what it was given a right to: start it, or say fence = \"timed\" in the volume's file if time is enough"
                );
            }
        }
        false
    }
}
