//! What is on its way to sessions that move data, by inode: who gives up what covers it waits
//! until it is answered.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use ahash::HashMap;
use aqueduct_fs::{Cancel, Errno};
use aqueduct_worker::lock;

/// One entry for each inode with something on its way; who sends more is bounded by the front
/// end's requests.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<Arc<[u8]>, Inode>>);

#[derive(Default)]
struct Inode {
    count: usize,
    waiting: Vec<Waker>,
}

/// Something is on its way.
pub(super) struct Flight<'a, F: FnMut()> {
    flights: &'a Flights,
    handle: Arc<[u8]>,
    /// Called when it has come to its end.
    landed: F,
}

impl Flights {
    pub(super) fn begin<F: FnMut()>(&self, handle: Arc<[u8]>, landed: F) -> Flight<'_, F> {
        lock(&self.0).entry(handle.clone()).or_default().count += 1;
        Flight { flights: self, handle, landed }
    }

    pub(super) fn count(&self, handle: &[u8]) -> usize {
        lock(&self.0).get(handle).map_or(0, |inode| inode.count)
    }

    /// Waits until nothing of an inode is on its way; EINTR when cancelled before.
    pub(super) async fn quiet(&self, handle: &[u8], cancel: &Cancel) -> Result<(), Errno> {
        poll_fn(|task| {
            let mut inodes = lock(&self.0);
            let Some(inode) = inodes.get_mut(handle) else { return Poll::Ready(Ok(())) };
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            inode.waiting.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<F: FnMut()> Drop for Flight<'_, F> {
    fn drop(&mut self) {
        let mut inodes = lock(&self.flights.0);
        let Some(inode) = inodes.get_mut(&self.handle) else { return };
        inode.count -= 1;
        if inode.count > 0 {
            return;
        }
        let waiting = inodes.remove(&self.handle).map(|inode| inode.waiting).unwrap_or_default();
        drop(inodes);
        waiting.into_iter().for_each(Waker::wake);
        (self.landed)();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn who_waits_for_an_inode_waits_for_all_of_it_and_nothing_else() {
        let flights = Flights::default();
        let mut landed = 0;
        let first = flights.begin(b"a"[..].into(), || landed += 1);
        let second = flights.begin(b"a"[..].into(), || ());
        let cancel = Cancel::default();
        let mut waits = pin!(flights.quiet(b"a", &cancel));
        let mut task = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut task).is_pending());
        drop(first);
        assert!(waits.as_mut().poll(&mut task).is_pending() && flights.count(b"a") == 1);
        assert_eq!(pin!(flights.quiet(b"b", &cancel)).poll(&mut task), Poll::Ready(Ok(())));
        drop(second);
        assert_eq!(waits.as_mut().poll(&mut task), Poll::Ready(Ok(())));
        assert_eq!((landed, flights.count(b"a")), (0, 0), "the last one tells");
    }
}
