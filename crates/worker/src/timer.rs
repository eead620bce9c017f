//! Timers of a group: a heap of instants and the tasks that wait for them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
}

struct Timer {
    at: Instant,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.at == other.at
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl Timers {
    /// Adds one; whether it is now the first to end.
    pub(crate) fn add(&mut self, at: Instant, waker: Waker) -> bool {
        let first = self.heap.peek().is_none_or(|Reverse(timer)| at < timer.at);
        self.heap.push(Reverse(Timer { at, waker }));
        first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Takes those that have ended.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while self.heap.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            wakers.extend(self.heap.pop().map(|Reverse(timer)| timer.waker));
        }
        wakers
    }

    /// How long until the next ends.
    pub(crate) fn next(&self, now: Instant) -> Option<Duration> {
        self.heap.peek().map(|Reverse(timer)| timer.at.saturating_duration_since(now))
    }
}
