//! Changes that others make than the clients of this server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use aqueduct_fs::{Aspects, Handle, Outside};
use aqueduct_metrics::Counter;

use crate::complaints::Complaint;
use crate::origin::Identity;
use crate::server::Server;

/// How changes from outside come to light in an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum External {
    /// They are told to the server. Should one be missed, what clients keep is no older than this.
    Watch(Duration),
    /// By clients, who keep nothing that is older than this.
    Poll(Duration),
    /// There are none.
    #[default]
    None,
}

impl External {
    /// As it is configured and shown.
    pub fn name(self) -> &'static str {
        match self {
            External::Watch(_) => "watch",
            External::Poll(_) => "poll",
            External::None => "none",
        }
    }

    /// How old what clients keep may become, in milliseconds; 0: as old as they like.
    pub(crate) fn age_max(self) -> u32 {
        match self {
            External::Watch(age) | External::Poll(age) => u32::try_from(age.as_millis()).unwrap_or(u32::MAX).max(1),
            External::None => 0,
        }
    }
}

/// What was told so far, of all exports.
#[derive(Default)]
pub(crate) struct Told {
    /// Inodes that have changed.
    pub(crate) changes: Counter,
    /// That there were more than could be told.
    pub(crate) overflows: Counter,
}

/// Passes on to a server what is told.
struct ToServer(Weak<Server>);

impl Server {
    /// Whom to tell what has changed from outside, of any export.
    pub fn outside(self: &Arc<Server>) -> Arc<dyn Outside> {
        Arc::new(ToServer(Arc::downgrade(self)))
    }
}

impl Outside for ToServer {
    fn changed(&self, handle: &Handle, aspects: Aspects) {
        let Some(server) = self.0.upgrade() else { return };
        server.told.changes.increment();
        server.changed_outside(handle.bytes(), aspects);
    }

    fn everything(&self) {
        let Some(server) = self.0.upgrade() else { return };
        server.told.overflows.increment();
        server.changed_everything();
        let what = "more changes from outside than could be told: clients forget all that they keep (see fs.fanotify.max_queued_events)";
        server.complain(Identity::Server, Complaint::Outside, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_milliseconds() {
        assert_eq!(External::Poll(Duration::from_secs(3)).age_max(), 3000);
        assert_eq!(External::Watch(Duration::from_micros(10)).age_max(), 1, "0 would be no bound");
        assert_eq!(External::Poll(Duration::from_secs(1_000_000_000)).age_max(), u32::MAX);
        assert_eq!(External::None.age_max(), 0);
    }
}
