//! Makes the kernel drop pages, on a thread of its own: it waits for reads and writes of them that are under way, which no thread may do that answers
//! requests.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

use aqueduct_worker::{Done, lock};

/// What a file holds in its last page.
pub(crate) struct Tail {
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
    /// A lease is held until the kernel has it.
    pub(crate) is_leased: bool,
}

impl Tail {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// The nodes whose pages are to be dropped, in the order in which that was asked for, and what is
/// to be stored then.
#[derive(Default)]
pub(crate) struct PageDrops {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    drops: VecDeque<Drop>,
    closed: bool,
}

struct Drop {
    node: u64,
    tail: Option<Tail>,
    done: Option<Arc<Done>>,
}

impl PageDrops {
    /// Starts the thread, which ends when this is closed. `drop` has the kernel drop the pages of
    /// a node, and then know the end of its file.
    pub(crate) fn start(self: &Arc<PageDrops>, drop: impl Fn(u64, Option<&Tail>) + Send + 'static) -> io::Result<()> {
        let drops = self.clone();
        std::thread::Builder::new().name("aqueduct-pages".into()).spawn(move || drops.work(drop))?;
        Ok(())
    }

    fn work(&self, drop: impl Fn(u64, Option<&Tail>)) {
        while let Some(Drop { node, tail, done }) = self.next() {
            drop(node, tail.as_ref());
            if let Some(done) = done {
                done.set();
            }
        }
    }

    /// The next, also what is left when this is closed: somebody may wait for it.
    fn next(&self) -> Option<Drop> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(next) = queue.drops.pop_front() {
                return Some(next);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(|poison| poison.into_inner());
        }
    }

    fn push(&self, node: u64, tail: Option<Tail>, done: Option<Arc<Done>>) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.drops.push_back(Drop { node, tail, done });
            self.changed.notify_one();
        } else if let Some(done) = done {
            drop(queue);
            done.set(); // the mount ends: there is nothing to drop
        }
    }

    /// Drops the pages of a node soon.
    pub(crate) fn drop_soon(&self, node: u64) {
        self.push(node, None, None);
    }

    /// Drops the pages of a node that no lease covers. When it has returned, none is left of those that the kernel had asked for before.
    pub(crate) async fn drop_now(&self, node: u64) {
        let done = Arc::new(Done::default());
        self.push(node, None, Some(done.clone()));
        done.wait().await;
    }

    /// As [`drop_now`](PageDrops::drop_now), and then has the kernel know the end of the file.
    pub(crate) async fn refresh(&self, node: u64, tail: Tail) {
        let done = Arc::new(Done::default());
        self.push(node, Some(tail), Some(done.clone()));
        done.wait().await;
    }

    /// The mount has ended.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn nobody_waits_for_ever_when_the_mount_ends() {
        let drops = Arc::new(PageDrops::default());
        let mut task = Context::from_waker(Waker::noop());
        let mut early = Box::pin(drops.drop_now(16));
        assert!(early.as_mut().poll(&mut task).is_pending());
        drops.close();
        assert!(pin!(drops.drop_now(32)).poll(&mut task).is_ready());
        drops.work(|_, _| {});
        assert!(early.as_mut().poll(&mut task).is_ready());
    }
}
