//! The rings by which requests of a mount come, as far as the mount has to know them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_worker::{Done, Group, lock};

/// For so long another thread is waited for until it has begun what its queues hold.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// One ring, for who waits for what it holds or ends it: no request comes by this.
pub(crate) trait MountRing: Send + Sync {
    /// The group that serves it, unless that has ended.
    fn group(&self) -> Option<Arc<Group>>;

    /// Begins all requests that it holds; on a thread of its group.
    fn take_all(self: Arc<Self>);

    /// Takes no more requests.
    fn stop(&self);
}

/// The rings of a mount; none when requests come by /dev/fuse.
#[derive(Default)]
pub(crate) struct Rings(Mutex<Vec<Arc<dyn MountRing>>>);

impl Rings {
    /// Requests come by these from now on.
    pub(crate) fn set(&self, rings: Vec<Arc<dyn MountRing>>) {
        *lock(&self.0) = rings;
    }

    /// Waits until all requests have been begun that were made before, but not for long: a thread
    /// may have lost its processor to others.
    pub(crate) async fn drained(&self) {
        let rings = lock(&self.0).clone();
        for ring in rings {
            let (Some(group), Some(own)) = (ring.group(), Group::current()) else { continue };
            let done = Arc::new(Done::default());
            let drained = done.clone();
            group.spawn(async move {
                ring.take_all();
                drained.set();
            });
            _ = own.within(DRAIN_MAX, done.wait()).await; // late, it begins what it holds all the same
        }
    }

    /// Takes no more requests.
    pub(crate) fn stop(&self) {
        for ring in std::mem::take(&mut *lock(&self.0)) {
            ring.stop();
        }
    }
}
