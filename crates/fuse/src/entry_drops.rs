//! Has the kernel drop entries of directories that were moved ([`crate::places`] says why), on a
//! thread that nothing waits for.
//!
//! A rename that holds the lock of the directory where the entry is has its answer before that is
//! dropped, gets ESTALE, gives up its locks and looks once more, from the beginning of the path.
//! Were it answered at once it would have its locks again before the thread has had its turn. So
//! whoever looks at that directory meanwhile waits for the drop, and whoever comes once more to
//! the one that was moved.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use aqueduct_worker::{Group, lock};

use crate::places::Place;

/// How long an answer waits until the kernel has dropped the entry at an old place: a hundred
/// times what that takes where nobody holds the lock.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a later lookup waits. Where the lock is free the thread only needs its turn, which may
/// take long on a busy machine.
const LATER_PATIENCE: Duration = Duration::from_millis(200);

/// The most entries that wait to be dropped. Beyond, the kernel is left to itself, as for entries
/// that it cannot drop.
const QUEUE_MAX: usize = 1024;

/// The entries that the kernel is to drop, in the order in which that was asked for.
#[derive(Default)]
pub(crate) struct EntryDrops {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Where the kernel has entries, and of which directory if it was moved. The first is being
    /// dropped.
    drops: VecDeque<(Option<u64>, Place)>,
    /// Tasks that wait for some.
    wakers: Vec<Waker>,
    closed: bool,
}

impl Queue {
    /// Whether somebody who looks at a directory meets the drop of one that was moved: of its own
    /// entry, or in it.
    fn concerns(&self, node: u64) -> bool {
        self.drops.iter().any(|(moved, place)| moved.is_some_and(|moved| moved == node || place.0 == node))
    }
}

impl EntryDrops {
    /// Starts the thread, which ends when this is closed. `drop` has the kernel drop an entry.
    pub(crate) fn start(self: &Arc<EntryDrops>, drop: impl Fn(&Place) + Send + 'static) -> io::Result<()> {
        let drops = self.clone();
        let work = move || {
            while let Some(place) = drops.next() {
                drop(&place);
                drops.dropped();
            }
        };
        std::thread::Builder::new().name("aqueduct-names".into()).spawn(work)?;
        Ok(())
    }

    fn next(&self) -> Option<Place> {
        let mut queue = lock(&self.queue);
        while !queue.closed {
            if let Some((_, next)) = queue.drops.front() {
                return Some(next.clone());
            }
            queue = self.changed.wait(queue).unwrap_or_else(|poison| poison.into_inner());
        }
        None
    }

    fn dropped(&self) {
        let mut queue = lock(&self.queue);
        queue.drops.pop_front();
        let wakers = std::mem::take(&mut queue.wakers);
        std::mem::drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Has the entry of a directory that was moved dropped, and waits for it for a moment.
    pub(crate) async fn drop_soon(&self, node: u64, place: Place) {
        if self.add(Some(node), place) {
            self.wait(node, PATIENCE).await;
        }
    }

    /// Has an entry dropped that is in nobody's way.
    pub(crate) fn push(&self, place: Place) {
        self.add(None, place);
    }

    /// Whether there was room, and the mount has not ended.
    fn add(&self, moved: Option<u64>, place: Place) -> bool {
        let mut queue = lock(&self.queue);
        let has_room = !queue.closed && queue.drops.len() < QUEUE_MAX;
        if has_room {
            queue.drops.push_back((moved, place));
            self.changed.notify_one();
        }
        has_room
    }

    /// Waits for drops that were asked for before, if somebody who looks at this directory would
    /// meet them.
    pub(crate) async fn settle(&self, node: u64) {
        if lock(&self.queue).concerns(node) {
            self.wait(node, LATER_PATIENCE).await;
        }
    }

    async fn wait(&self, node: u64, patience: Duration) {
        let Some(group) = Group::current() else { return };
        let mut patience = pin!(group.sleep(patience));
        poll_fn(|task| {
            let mut queue = lock(&self.queue);
            if !queue.concerns(node) {
                return Poll::Ready(());
            }
            queue.wakers.push(task.waker().clone());
            std::mem::drop(queue);
            patience.as_mut().poll(task)
        })
        .await;
    }

    /// The mount has ended.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.drops.clear();
        let wakers = std::mem::take(&mut queue.wakers);
        std::mem::drop(queue);
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use aqueduct_worker::Settings;

    use super::*;

    /// An entry that cannot be dropped yet holds up nobody for ever. A later lookup waits for it.
    #[test]
    fn who_comes_again_waits_for_what_was_to_be_dropped_before() {
        let settings = Settings { name: "test".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let (group, drops) = (Group::new(settings).unwrap(), Arc::new(EntryDrops::default()));
        let (frees, lock_of_directory) = channel::<()>();
        let (dropped, drops_seen) = channel();
        drops
            .start(move |place| {
                lock_of_directory.recv().unwrap();
                dropped.send(place.clone()).unwrap();
            })
            .unwrap();
        aqueduct_worker::wait(&group, drops.drop_soon(16, (32, b"old"[..].into())));
        assert!(drops_seen.try_recv().is_err(), "its answer has gone");
        aqueduct_worker::wait(&group, drops.settle(48));
        assert!(drops_seen.try_recv().is_err(), "it is not concerned");
        for node in [16, 32] {
            assert!(lock(&drops.queue).concerns(node));
        }
        frees.send(()).unwrap();
        aqueduct_worker::wait(&group, drops.settle(32));
        assert_eq!(drops_seen.recv().unwrap(), (32, b"old"[..].into()));
        drops.close();
    }
}
