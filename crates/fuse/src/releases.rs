//! The releases under way.
//!
//! close(2) does not wait for RELEASE, and flock and OFD locks end only there. So that who closes a file and then asks for its lock is not told that he
//! still has it, a lock that cannot be had is asked for once more when the releases that the kernel had sent before have been done.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use aqueduct_fs::Cancel;
use aqueduct_worker::{Earlier, Entered, Group};

use crate::slots::Slots;

/// Looks at a thread that is just reading before it is left to run; then one look at a time.
const LOOKS: usize = 20;
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Releases that were read and are not done, in the order of their reading.
#[derive(Default)]
pub(crate) struct Releases {
    /// For each thread, odd while it has read, or is about to, and has not yet entered what it read.
    reading: Slots,
    under_way: Arc<Earlier>,
}

/// A thread that is about to read a request.
pub(crate) struct Reading<'a>(&'a AtomicU64);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Releases {
    /// To be held from before a request is read until it is known what it is.
    pub(crate) fn reading(&self) -> Reading<'_> {
        let mine = self.reading.mine();
        mine.fetch_add(1, Ordering::SeqCst);
        Reading(mine)
    }

    /// A release was read; it is done when what this returns is dropped.
    pub(crate) fn enter(&self) -> Entered {
        self.under_way.enter()
    }

    /// Waits until the releases that were read before are done. The kernel hands requests out in the order in which they were made, so these are all
    /// that were made before the request that waits here. Ends early when that is cancelled.
    pub(crate) async fn settled(&self, cancel: &Cancel) {
        self.readers_through(cancel).await;
        let begun = self.under_way.begun();
        poll_fn(|task| match self.under_way.poll_ended(begun, task) {
            Poll::Pending => cancel.poll(task),
            ended => ended,
        })
        .await;
    }

    /// Waits until all threads that are reading have entered what they read. Reading does not block, but a thread may lose its processor meanwhile.
    async fn readers_through(&self, cancel: &Cancel) {
        let at_it =
            self.reading.iter().map(|slot| (slot, slot.load(Ordering::SeqCst))).filter(|(_, turn)| turn % 2 == 1);
        for (slot, turn) in at_it.collect::<Vec<_>>() {
            let mut looks = 0;
            while slot.load(Ordering::SeqCst) == turn && !cancel.is_raised() {
                looks += 1;
                match Group::current() {
                    Some(group) if looks > LOOKS => group.sleep(LOOK_INTERVAL).await,
                    _ => std::thread::yield_now(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn settled_waits_for_earlier_releases_only() {
        let releases = Arc::new(Releases::default());
        let first = releases.enter();
        let cancel = Cancel::default();
        let mut settled = pin!(releases.settled(&cancel));
        let mut task = Context::from_waker(Waker::noop());
        assert!(settled.as_mut().poll(&mut task).is_pending());
        let _later = releases.enter();
        assert!(settled.as_mut().poll(&mut task).is_pending());
        drop(first);
        assert!(settled.as_mut().poll(&mut task).is_ready());
    }

    #[test]
    fn nothing_under_way_is_settled() {
        let releases = Arc::new(Releases::default());
        drop(releases.reading());
        drop(releases.enter());
        assert!(pin!(releases.settled(&Cancel::default())).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
