//! A lane: what a worker sends on, for control or for bulk data. It has a link over each rail.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::link::{Link, Waiters};
use crate::rails::{Asker, Direction, Need, Rails, cut, pick};

/// What a request needs of its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Its bulk data, if it has some.
    pub(crate) data: Option<(Direction, u64)>,
    /// The rail that it is cut for.
    pub(crate) rail: Option<usize>,
}

/// One lane of a client.
pub(crate) struct Lane {
    worker: usize,
    /// By rail.
    links: Vec<Arc<Link>>,
    waiters: Arc<Waiters>,
}

impl Lane {
    pub(crate) fn new(worker: usize, links: Vec<Arc<Link>>, waiters: Arc<Waiters>) -> Lane {
        Lane { worker, links, waiters }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.links.iter().any(|link| link.is_connected())
    }

    /// Wakes who waits for a connection, so that they look at the session's state again.
    pub(crate) fn wake_waiters(&self) {
        self.waiters.wake();
    }

    /// Ready when the lane has a connection.
    pub(crate) fn poll_connected(&self, task: &mut Context<'_>) -> Poll<()> {
        if self.is_connected() {
            return Poll::Ready(());
        }
        self.waiters.add(task);
        // Looked at once more after it listens.
        if self.is_connected() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The link for a request: one that has a connection, if any has.
    pub(crate) fn choose(&self, rails: &Rails, wish: Wish) -> &Arc<Link> {
        if let [only] = self.links.as_slice() {
            return only;
        }
        let usable = self.usable();
        if let Some(meant) = wish.rail.and_then(|rail| usable.iter().find(|link| link.place.rail.index == rail)) {
            return meant;
        }
        let (direction, need) = match wish.data {
            Some((direction, bytes)) => (direction, Need::Bulk(bytes)),
            None => (Direction::In, Need::Small),
        };
        let candidates: Vec<_> = usable.iter().map(|link| link.place.rail.candidate(direction)).collect();
        if candidates.is_empty() {
            return &self.links[0];
        }
        let asker = Asker { worker: self.worker, turn: rails.next_turn() };
        &self.links[pick(rails.policy, &candidates, need, asker)]
    }

    /// How a read of this length is cut over the rails: which rail, and how many bytes.
    pub(crate) fn cut(&self, rails: &Rails, length: usize) -> Vec<(usize, usize)> {
        let candidates: Vec<_> = self.usable().iter().map(|link| link.place.rail.candidate(Direction::In)).collect();
        if candidates.len() < 2 { Vec::new() } else { cut(rails.policy, &candidates, length) }
    }

    /// The links with a connection over rails on which nothing is overdue; else any with one.
    fn usable(&self) -> Vec<&Arc<Link>> {
        let connected = || self.links.iter().filter(|link| link.is_connected());
        let sound: Vec<_> = connected().filter(|link| !link.place.rail.is_suspected()).collect();
        if sound.is_empty() { connected().collect() } else { sound }
    }
}
