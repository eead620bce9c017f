//! What is recalled, leaves by itself or is to be forgotten, and waits for the threads that see to
//! it: see [`recall`](super::recall).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use aqueduct_fs::Aspects;
use aqueduct_wire::LeaseId;
use aqueduct_worker::{Done, lock};

/// Inodes kept. Beyond, those are given back that were not used for longest.
pub(super) const INODES_MAX: usize = 65_536;

/// Recalls that wait to be looked at: a server has no more than it granted, and asks once more on
/// a new connection. 2 MiB.
const RECALLS_MAX: usize = 2 * INODES_MAX;

/// What there is to give back, and who waits for that.
#[derive(Default)]
pub(crate) struct Recalls {
    pub(super) work: Mutex<Work>,
    changed: Condvar,
    /// The thread waits for holds.
    pub(super) awaits_holds: AtomicBool,
    /// Inodes that leave by themselves and have not gone yet.
    leaving: AtomicUsize,
    /// For changes of this client's own.
    pub(super) forgets: Forgets,
}

#[derive(Default)]
pub(super) struct Work {
    /// With the epochs in which they came.
    pub(super) recalled: VecDeque<(u64, LeaseId)>,
    /// Inodes that leave by themselves.
    pub(super) leaving: Vec<Arc<[u8]>>,
    /// What the kernel is to forget.
    pub(super) forget: Vec<Forget>,
    nudged: bool,
    has_ended: bool,
}

/// What the kernel is to forget.
pub(super) struct Forget {
    pub(super) handle: Arc<[u8]>,
    pub(super) aspects: Aspects,
    pub(super) done: Option<Arc<Done>>,
}

impl Forget {
    /// It is done, or its client has gone, and with it whoever kept anything.
    pub(super) fn set_done(&self) {
        if let Some(done) = &self.done {
            done.set();
        }
    }
}

impl Recalls {
    /// The server asks for leases. False: it asks for more than it can have granted.
    pub(crate) fn add(&self, epoch: u64, leases: &[LeaseId]) -> bool {
        let mut work = lock(&self.work);
        if work.recalled.len() + leases.len() > RECALLS_MAX {
            return false;
        }
        work.recalled.extend(leases.iter().map(|lease| (epoch, *lease)));
        self.changed.notify_one();
        true
    }

    /// Whether all have gone that were to leave by themselves, so that more may.
    pub(super) fn has_room(&self) -> bool {
        self.leaving.load(Ordering::SeqCst) == 0
    }

    /// So many of them have gone.
    pub(super) fn has_left(&self, count: usize) {
        self.leaving.fetch_sub(count, Ordering::SeqCst);
    }

    /// These are given back without being asked for. They leave already.
    pub(super) fn give_back(&self, handles: Vec<Arc<[u8]>>) {
        if !handles.is_empty() {
            self.leaving.fetch_add(handles.len(), Ordering::SeqCst);
            lock(&self.work).leaving.extend(handles);
            self.changed.notify_one();
        }
    }

    pub(super) fn forget(&self, forget: Forget) {
        let mut work = lock(&self.work);
        if work.has_ended {
            return forget.set_done();
        }
        work.forget.push(forget);
        self.changed.notify_one();
    }

    /// A hold is dropped.
    pub(super) fn hold_dropped(&self) {
        if self.awaits_holds.load(Ordering::SeqCst) {
            self.nudge();
        }
    }

    /// Has the thread look again.
    pub(crate) fn nudge(&self) {
        lock(&self.work).nudged = true;
        self.changed.notify_one();
    }

    /// The client has gone.
    pub(crate) fn end(&self) {
        let mut work = lock(&self.work);
        work.has_ended = true;
        let left = std::mem::take(&mut work.forget);
        drop(work);
        left.iter().for_each(Forget::set_done);
        self.changed.notify_one();
        self.forgets.end();
    }

    /// What there is to do, when there is something, or that there is nothing by then. `None`: the
    /// client has gone.
    pub(super) fn next(&self, until: Option<Instant>) -> Option<Work> {
        let mut work = lock(&self.work);
        loop {
            if work.has_ended {
                return None;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_idle = work.recalled.is_empty() && work.leaving.is_empty() && work.forget.is_empty();
            if !is_idle || work.nudged || left == Some(Duration::ZERO) {
                return Some(std::mem::take(&mut *work));
            }
            work = match left {
                Some(left) => self.changed.wait_timeout(work, left).unwrap_or_else(|poison| poison.into_inner()).0,
                None => self.changed.wait(work).unwrap_or_else(|poison| poison.into_inner()),
            };
        }
    }
}

/// What kernels are to forget before this client changes it. Only what they do without waiting for
/// anything: attributes and names.
#[derive(Default)]
pub(super) struct Forgets {
    work: Mutex<(VecDeque<Forget>, bool)>,
    changed: Condvar,
}

impl Forgets {
    pub(super) fn add(&self, forget: Forget) {
        let mut work = lock(&self.work);
        if work.1 {
            return forget.set_done();
        }
        work.0.push_back(forget);
        self.changed.notify_one();
    }

    fn end(&self) {
        lock(&self.work).1 = true;
        self.changed.notify_one();
    }

    pub(super) fn next(&self) -> Option<Forget> {
        let mut work = lock(&self.work);
        loop {
            if let Some(forget) = work.0.pop_front() {
                return Some(forget);
            }
            if work.1 {
                return None;
            }
            work = self.changed.wait(work).unwrap_or_else(|poison| poison.into_inner());
        }
    }
}
