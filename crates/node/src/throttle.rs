//! What an export is held to.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::FileSystem;
use aqueduct_fs::throttled::{Clock, Throttled};
use aqueduct_worker::Group;

use crate::exports::ExportConfig;

/// Held to the export's rate, if it has one.
pub(crate) fn throttled(
    filesystem: Arc<dyn FileSystem>,
    export: &ExportConfig,
    group: &Arc<Group>,
) -> Arc<dyn FileSystem> {
    match export.rate {
        Some(rate) => {
            Arc::new(Throttled::new(filesystem, rate, Timers { group: group.clone(), start: Instant::now() }))
        }
        None => filesystem,
    }
}

/// The group's timers, for what waits for its turn.
struct Timers {
    group: Arc<Group>,
    start: Instant,
}

impl Clock for Timers {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.group.sleep(duration))
    }
}
