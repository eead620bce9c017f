//! The map of a volume that is mounted: it may change, and what moves then moves in order.
//!
//! The new map holds for whatever is written from then on. A file that has a lane by the map before
//! is written by the new one only when all its lanes of before have closed: what they kept is
//! stable, so that no copy of it is ever written over what came later ([`lanes`](super::lanes)).
//! Reads need no order: whoever reads has a lease, and all servers read the same.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{ClientId, Context, Credential};
use aqueduct_wire::Map;

use super::movers::{Movers, RETRY};
use super::parts::Volume;

/// The longest pause between two questions for a map that the server of the names does not tell.
const ASKED_AGAIN_MAX: Duration = Duration::from_secs(30);

impl Volume {
    /// Begins to connect to those who move bytes; nobody waits for that.
    pub(crate) fn connect_movers(&self) -> std::io::Result<()> {
        match self.movers.as_ref().is_some_and(|movers| movers.comes(None)) {
            true => self.see_to_movers(),
            false => Ok(()),
        }
    }

    /// The server of the names says that a map of this epoch holds. It is asked for that until it
    /// tells it: by the one before no rights are given any more.
    pub(super) fn map_is(&self, epoch: u64) {
        if !self.movers.as_ref().is_some_and(|movers| movers.is_named(epoch)) {
            return;
        }
        let (this, group) = (self.this.clone(), &self.sessions[0].groups()[0]);
        let sleeps = group.clone();
        group.spawn(async move {
            let mut pause = RETRY;
            while let Some(volume) = this.upgrade() {
                if volume.movers.as_ref().is_none_or(Movers::asks_no_more) {
                    return;
                }
                let context = Context::new(ClientId(0), Credential::root());
                let asked = volume.sessions[0].ask_for_map(&context).await;
                if volume.movers.as_ref().is_none_or(Movers::asks_no_more) {
                    return;
                }
                let error = asked.err().map(|error| error.to_string());
                let why = error.as_deref().unwrap_or("it tells an older one");
                tracing::warn!(%why, again_in = ?pause, "the server of the names does not tell the volume's present map; it is asked again");
                drop(volume);
                sleeps.sleep(pause).await;
                pause = (pause * 2).min(ASKED_AGAIN_MAX);
            }
        });
    }

    fn has_older_map(&self, epoch: u64) -> bool {
        self.movers.as_ref().is_some_and(|movers| movers.is_newer(epoch))
    }

    /// The server of the names says which map holds.
    pub(super) fn mapped(&self, map: Map) {
        if self.has_older_map(map.epoch)
            && self.movers.as_ref().is_some_and(|movers| movers.comes(Some(map)))
            && let Err(error) = self.see_to_movers()
        {
            tracing::error!(%error, "the volume's new map is not used: no thread can be started; free memory or raise the limit on processes, and mount anew");
            self.movers.iter().for_each(Movers::is_not_seen_to);
        }
    }

    /// Starts the thread that connects to servers, has maps hold, and leaves servers, until all is
    /// done.
    fn see_to_movers(&self) -> std::io::Result<()> {
        let (this, groups) = (self.this.clone(), self.sessions[0].groups().to_vec());
        let see_to = move || {
            while let Some(volume) = this.upgrade() {
                let Some(movers) = &volume.movers else { return };
                if let Some(map) = movers.take_coming() {
                    volume.set_map(movers, &map);
                }
                let is_left = movers.let_go(|place, until| volume.lanes.has_before(place, until));
                if movers.connect(&groups) && is_left && movers.rests() {
                    return;
                }
                drop(volume);
                std::thread::sleep(RETRY);
            }
        };
        std::thread::Builder::new().name("movers".into()).spawn(see_to).map(drop)
    }

    fn set_map(self: &Arc<Volume>, movers: &Movers, map: &Map) {
        let Some(map) = movers.set_map(map) else { return };
        for (key, epoch) in self.lanes.set_map(map) {
            self.close(&key, epoch);
        }
    }
}
