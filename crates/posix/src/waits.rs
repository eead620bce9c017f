//! The lock table in use: shared by threads, and with futures for those who wait.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_fs::{Cancel, ClientId, Errno, Lock};

use crate::lock::lock;
use crate::locks::{Answer, Ask, Inode, Listed, Locks, Owner, WaitId};
use crate::open_file::OpenFile;
use crate::shared;

/// Where a wait's result arrives.
#[derive(Default)]
struct Cell {
    result: Option<Result<(), Errno>>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    locks: Locks,
    cells: HashMap<WaitId, Arc<Mutex<Cell>>>,
}

/// All locks of a [`Domain`](crate::Domain).
pub(crate) struct LockService {
    state: Mutex<State>,
    /// From when the table's time counts.
    started: Instant,
}

/// What became of a request for a lock.
pub(crate) enum Outcome<'a> {
    Done,
    Waits(Wait<'a>),
}

impl Default for LockService {
    fn default() -> LockService {
        LockService { state: Mutex::default(), started: Instant::now() }
    }
}

impl LockService {
    /// Changes the table, and tells those whose waits it decided.
    fn change<T>(&self, change: impl FnOnce(&mut Locks, &mut HashMap<WaitId, Arc<Mutex<Cell>>>) -> T) -> T {
        let mut wakers = Vec::new();
        let mut state = lock(&self.state);
        let State { locks, cells } = &mut *state;
        locks.set_time(self.started.elapsed());
        let value = change(locks, cells);
        for (wait, result) in locks.take_decided() {
            if let Some(cell) = cells.remove(&wait) {
                let mut cell = lock(&cell);
                cell.result = Some(result);
                wakers.extend(cell.waker.take());
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        value
    }

    /// F_GETLK.
    pub(crate) fn test(&self, ask: &Ask) -> Result<Lock, Errno> {
        lock(&self.state).locks.test(ask)
    }

    /// F_SETLK, F_SETLKW, flock. EBADF when the open has ended meanwhile; EBUSY when the lock goes with memory that another client has mapped, which may
    /// take hours: nobody waits for that.
    pub(crate) fn set<'a>(
        &'a self,
        open: &OpenFile,
        ask: &Ask,
        wait: bool,
        cancel: &'a Cancel,
    ) -> Result<Outcome<'a>, Errno> {
        let is_of_memory = shared::is_attached_by(open, ask);
        self.change(|locks, cells| {
            if open.ended.load(Ordering::SeqCst) {
                return Err(Errno::EBADF);
            }
            if is_of_memory && locks.is_held_elsewhere(ask) {
                return Err(Errno::EBUSY);
            }
            match locks.set(ask, wait)? {
                Answer::Granted => Ok(Outcome::Done),
                Answer::Waits(wait) => {
                    let cell = Arc::new(Mutex::new(Cell::default()));
                    cells.insert(wait, cell.clone());
                    Ok(Outcome::Waits(Wait { service: self, wait, cell, cancel, ended: false }))
                }
            }
        })
    }

    /// A descriptor was closed.
    pub(crate) fn flush(&self, inode: Inode, owner: Owner) {
        self.change(|locks, _| locks.flush(inode, owner));
    }

    /// An open has ended.
    pub(crate) fn release(&self, open: &OpenFile) {
        self.change(|locks, _| {
            mark_ended(&open.ended);
            locks.release(open.inode, open.client, open.id);
        });
    }

    /// A client has gone.
    pub(crate) fn depart(&self, client: ClientId) {
        self.change(|locks, _| locks.depart(client));
    }

    /// At most `limit` of the locks that these clients have and wait for, each with how long that
    /// has been so.
    pub(crate) fn list(&self, limit: usize, whose: impl Fn(ClientId) -> bool) -> Vec<(Listed, Duration)> {
        let listed = lock(&self.state).locks.list(limit, whose);
        let now = self.started.elapsed();
        listed.into_iter().map(|lock| (lock, now.saturating_sub(lock.since))).collect()
    }

    /// The locked ranges and the waits of these clients.
    pub(crate) fn counts(&self, whose: impl Fn(ClientId) -> bool) -> (usize, usize) {
        lock(&self.state).locks.counts(whose)
    }

    fn cancel(&self, wait: WaitId) -> bool {
        self.change(|locks, cells| {
            cells.remove(&wait);
            locks.cancel(wait)
        })
    }
}

fn mark_ended(ended: &AtomicBool) {
    ended.store(true, Ordering::SeqCst);
}

/// A wait for a lock. One that is dropped unfinished leaves the queue; a lock that was granted before stays until its owner gives it back.
pub(crate) struct Wait<'a> {
    service: &'a LockService,
    wait: WaitId,
    cell: Arc<Mutex<Cell>>,
    cancel: &'a Cancel,
    ended: bool,
}

impl Future for Wait<'_> {
    type Output = Result<(), Errno>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        {
            let mut cell = lock(&self.cell);
            if cell.result.is_none() {
                cell.waker = Some(task.waker().clone());
            }
        }
        let cancelled = self.cancel.poll(task).is_ready() && self.service.cancel(self.wait);
        let result = if cancelled { Some(Err(Errno::EINTR)) } else { lock(&self.cell).result.take() };
        match result {
            Some(result) => {
                self.ended = true;
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.service.cancel(self.wait);
        }
    }
}
