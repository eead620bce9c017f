//! The heap once the load is over. The allocator keeps freed memory for each thread, and returns
//! it to the system only from the end of a heap. Without help a mount stays as large as it was
//! under load.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aqueduct_worker::Group;

use crate::shared::Shared;
use crate::sys;

/// How long requests are counted before a look. It is longer than written data are kept until they
/// are stable (10 s).
const INTERVAL: Duration = Duration::from_secs(15);

/// With fewer requests in an interval the mount counts as idle. Programs that look at it regularly
/// make about as many.
const FEW: u64 = 100;

/// What is done after an interval.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Look,
    /// Gives back what nobody uses, and looks no more.
    GiveBack,
    End,
}

/// After an interval with so many requests.
fn next(was_busy: &mut bool, requests: u64) -> Next {
    match requests >= FEW {
        true => {
            *was_busy = true;
            Next::Look
        }
        false if *was_busy => Next::GiveBack,
        false => Next::End,
    }
}

fn requests(shared: &Shared) -> u64 {
    shared.metrics.by_device.get() + shared.metrics.by_ring.get()
}

/// A request has come: somebody looks from now on whether more do.
pub(crate) fn used(shared: &Arc<Shared>, group: &Weak<Group>) {
    let is_watched = &shared.heap_is_watched;
    if is_watched.load(Ordering::Relaxed) || is_watched.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(running) = group.upgrade() {
        running.spawn(watch(Arc::downgrade(shared), group.clone()));
    }
}

async fn watch(weak: Weak<Shared>, group: Weak<Group>) {
    let (mut before, mut was_busy) = (weak.upgrade().map_or(0, |shared| requests(&shared)), false);
    loop {
        let Some(sleep) = group.upgrade().map(|group| group.sleep(INTERVAL)) else { return };
        sleep.await;
        let Some(shared) = weak.upgrade() else { return };
        let now = requests(&shared);
        let next = next(&mut was_busy, now - before);
        before = now;
        if next != Next::Look {
            shared.heap_is_watched.store(false, Ordering::Relaxed);
            drop(shared);
            if next == Next::GiveBack {
                sys::trim_heap();
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_given_back_once_after_a_load() {
        let mut was_busy = false;
        assert_eq!(next(&mut was_busy, FEW - 1), Next::End, "there was no load");
        assert_eq!([FEW, 9 * FEW].map(|requests| next(&mut was_busy, requests)), [Next::Look, Next::Look]);
        assert_eq!(next(&mut was_busy, 3), Next::GiveBack);
    }
}
