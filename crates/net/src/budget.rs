//! What peers make a server keep in memory: frames that are not whole yet or not executed, and replies that nobody reads. Both are counted for all
//! connections together. A connection whose frame has no room waits, unwatched, until there is; whoever holds room without using it can be found.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use aqueduct_worker::lock;

/// A frame up to this size, with its body, is not counted: it is what most requests have.
pub(crate) const FRAME_FREE: usize = 512;

/// Replies up to this size that wait to be sent are not counted.
pub(crate) const UNSENT_FREE: usize = 4096;

/// While unsent replies are over their limit, no more is asked of a connection that has so many.
pub(crate) const UNSENT_PAUSES: usize = 64 << 10;

/// The longest frame with its buffer: as long as there is room for it, another connection may go on.
const FRAME_MAX: usize = (1 << 20) + aqueduct_wire::BODY_LENGTH_MAX;

/// A connection that waits for room. It is met by a pointer only while room is short.
pub(crate) trait Waiter: Send + Sync {
    /// It has ended, and needs no room any more.
    fn is_closed(&self) -> bool;

    /// There is room for its frame.
    fn resume(&self);
}

/// Memory that all connections of a server share.
pub struct Budget {
    frames_max: usize,
    unsent_max: usize,
    frames: AtomicUsize,
    unsent: AtomicUsize,
    /// Those of good repute, and the others.
    waiting: [Mutex<VecDeque<Weak<dyn Waiter>>>; 2],
    waiters: [AtomicUsize; 2],
    short: Box<dyn Fn() + Send + Sync>,
}

impl Budget {
    /// `short` is called when there is too little of one of them; it has to see to it that whoever holds it in vain gives it back.
    pub fn new(frames_max: usize, unsent_max: usize, short: impl Fn() + Send + Sync + 'static) -> Arc<Budget> {
        Arc::new(Budget {
            frames_max: frames_max.max(FRAME_MAX),
            unsent_max,
            frames: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            waiting: Default::default(),
            waiters: Default::default(),
            short: Box::new(short),
        })
    }

    /// Connections that wait for room for a frame.
    pub fn waiters(&self) -> usize {
        self.waiters.iter().map(|waiters| waiters.load(Ordering::SeqCst)).sum()
    }

    /// Bytes that are held for frames, and for replies that nobody has read.
    pub fn held(&self) -> (usize, usize) {
        (self.frames.load(Ordering::Relaxed), self.unsent.load(Ordering::Relaxed))
    }

    /// Whether replies that nobody reads take more than they may.
    pub fn is_unsent_full(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > self.unsent_max
    }

    /// Beyond this, whoever does not take its replies is not waited for.
    pub(crate) fn is_unsent_over(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > self.unsent_max + self.unsent_max / 2
    }

    /// Little room is left: connections read no further than they have to.
    pub(crate) fn is_tight(&self) -> bool {
        self.frames.load(Ordering::Relaxed) > self.frames_max - self.frames_max / 4
    }

    /// What there may be in all when a connection takes some: who has held room in vain leaves half of it to the others.
    fn most(&self, hoards: bool) -> usize {
        if hoards { (self.frames_max / 2).max(FRAME_MAX) } else { self.frames_max }
    }

    /// Room for a frame; `None`: there is none.
    pub(crate) fn take(self: &Arc<Budget>, size: usize, hoards: bool) -> Option<Charge> {
        let add = |frames: usize| Some(frames + size).filter(|sum| *sum <= self.most(hoards));
        self.frames.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        self.wake_one();
        Some(Charge { budget: self.clone(), size })
    }

    /// Has a connection go on when there is room.
    pub(crate) fn wait(&self, waiter: Weak<dyn Waiter>, hoards: bool) {
        self.waiters[usize::from(hoards)].fetch_add(1, Ordering::SeqCst); // first, so that it is never less than what is there
        lock(&self.waiting[usize::from(hoards)]).push_back(waiter);
        (self.short)();
        self.wake_one(); // whoever gave room back before has not seen that it waits
    }

    /// Has one go on for which there is room, whatever its frame; when it has taken its room, it has the next one go on. As one that has gone meanwhile does
    /// not, whoever looks for room calls this too.
    pub fn wake_one(&self) {
        for hoards in [false, true] {
            while self.waiters[usize::from(hoards)].load(Ordering::SeqCst) > 0
                && self.frames.load(Ordering::SeqCst) + FRAME_MAX <= self.most(hoards)
            {
                let Some(next) = lock(&self.waiting[usize::from(hoards)]).pop_front() else { break };
                self.waiters[usize::from(hoards)].fetch_sub(1, Ordering::SeqCst);
                if let Some(waiter) = next.upgrade().filter(|waiter| !waiter.is_closed()) {
                    return waiter.resume();
                }
            }
        }
    }

    /// The unsent bytes of a connection have changed.
    pub(crate) fn unsent_changed(&self, before: usize, now: usize) {
        let counted = |bytes: usize| if bytes > UNSENT_FREE { bytes } else { 0 };
        match (counted(before), counted(now)) {
            (before, now) if before == now => {}
            (before, now) if before > now => {
                self.unsent.fetch_sub(before - now, Ordering::SeqCst);
            }
            (before, now) => {
                let sum = self.unsent.fetch_add(now - before, Ordering::SeqCst) + now - before;
                if sum > self.unsent_max {
                    (self.short)();
                }
            }
        }
    }
}

/// Room on loan.
pub struct Charge {
    budget: Arc<Budget>,
    size: usize,
}

impl Charge {
    /// In bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl std::fmt::Debug for Charge {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Charge({})", self.size)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.frames.fetch_sub(self.size, Ordering::SeqCst);
        self.budget.wake_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_comes_back() {
        let calls = Arc::new(AtomicUsize::new(0));
        let called = calls.clone();
        let budget = Budget::new(3 << 20, 1 << 20, move || {
            called.fetch_add(1, Ordering::SeqCst);
        });
        let taken: Vec<_> = (0..4).filter_map(|_| budget.take(1 << 20, false)).collect();
        assert_eq!(taken.len(), 3);
        assert!(budget.is_tight() && budget.take(1, false).is_none());
        drop(taken);
        assert!(!budget.is_tight() && budget.take(1, false).is_some());
        let taken: Vec<_> = (0..4).filter_map(|_| budget.take(1 << 20, true)).collect();
        assert_eq!(taken.len(), 1, "half is left to the others");
        budget.unsent_changed(0, UNSENT_FREE);
        assert_eq!(budget.unsent.load(Ordering::SeqCst), 0);
        budget.unsent_changed(UNSENT_FREE, 1 << 20);
        assert!(!budget.is_unsent_full() && calls.load(Ordering::SeqCst) == 0);
        budget.unsent_changed(0, 1 << 20);
        assert!(budget.is_unsent_full() && budget.is_unsent_over() && calls.load(Ordering::SeqCst) == 1);
        budget.unsent_changed(1 << 20, 7);
        budget.unsent_changed(1 << 20, 0);
        assert_eq!(budget.unsent.load(Ordering::SeqCst), 0);
    }
}
