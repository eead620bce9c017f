//! Has the kernel drop entries of directories that were moved ([`crate::places`] says why), on a
//! thread that nothing waits for.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use aqueduct_worker::{Done, Group, lock};

use crate::places::Place;

/// How long an answer waits until the kernel has dropped the entry at an old place: a hundred
/// times what that takes where nobody holds the lock.
const PATIENCE: Duration = Duration::from_millis(20);

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
    drops: VecDeque<(Place, Arc<Done>)>,
    closed: bool,
}

impl EntryDrops {
    /// Starts the thread, which ends when this is closed. `drop` has the kernel drop an entry.
    pub(crate) fn start(self: &Arc<EntryDrops>, drop: impl Fn(&Place) + Send + 'static) -> io::Result<()> {
        let drops = self.clone();
        let work = move || {
            while let Some((place, done)) = drops.next() {
                drop(&place);
                done.set();
            }
        };
        std::thread::Builder::new().name("aqueduct-names".into()).spawn(work)?;
        Ok(())
    }

    fn next(&self) -> Option<(Place, Arc<Done>)> {
        let mut queue = lock(&self.queue);
        while !queue.closed {
            if let Some(next) = queue.drops.pop_front() {
                return Some(next);
            }
            queue = self.changed.wait(queue).unwrap_or_else(|poison| poison.into_inner());
        }
        None
    }

    /// Has an entry dropped, and waits for it for [`PATIENCE`].
    pub(crate) async fn drop_soon(&self, place: Place) {
        let Some(done) = self.push(place) else { return };
        let Some(group) = Group::current() else { return };
        let (mut dropped, mut patience) = (pin!(done.wait()), pin!(group.sleep(PATIENCE)));
        poll_fn(|task| {
            let is_over = dropped.as_mut().poll(task).is_ready() || patience.as_mut().poll(task).is_ready();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Has an entry dropped. `None`: there are too many already, or the mount has ended.
    pub(crate) fn push(&self, place: Place) -> Option<Arc<Done>> {
        let mut queue = lock(&self.queue);
        let has_room = !queue.closed && queue.drops.len() < QUEUE_MAX;
        has_room.then(|| {
            let done = Arc::new(Done::default());
            queue.drops.push_back((place, done.clone()));
            self.changed.notify_one();
            done
        })
    }

    /// The mount has ended.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.drops.clear();
        self.changed.notify_all();
    }
}
