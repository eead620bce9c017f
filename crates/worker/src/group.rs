//! The group: registration of descriptors, spawning, waking.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use async_task::Runnable;
use rustix::event::{EventfdFlags, epoll, eventfd};
use slab::Slab;

use crate::crew::Crew;
use crate::lock::lock;
use crate::timer::Timers;
use crate::turn_end::{self, Flush};
use crate::watch::Watch;

/// The epoll data of the group's own eventfd; slab keys never reach it.
pub(crate) const WAKE_KEY: u64 = u64::MAX;

thread_local! {
    /// The group that the thread turns.
    static CURRENT: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
}

/// What a group is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names its threads, so that `top -H` tells them apart. At most 15 bytes are shown.
    pub name: String,
    /// Threads that are always there. 0: only whoever calls [`wait`](crate::wait) turns the group.
    pub threads_min: usize,
    /// Threads when all others are held up in blocking system calls.
    pub threads_max: usize,
    /// The longest time that a thread looks for more before it sleeps.
    pub spin_max: Duration,
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Data to read, or the end.
    pub read: bool,
    /// Room to write.
    pub write: bool,
    /// Report once, then stay silent until armed again: for groups with several threads, so that one thread owns a descriptor at a time.
    pub once: bool,
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Data to read, the end, or an error that a read will tell.
    pub read: bool,
    /// Room to write, or an error that a write will tell.
    pub write: bool,
    /// The other end is gone or the descriptor has failed (EPOLLERR, EPOLLHUP).
    pub gone: bool,
}

/// Owns a registered descriptor and is told when it is ready.
pub trait Ready: Send + Sync {
    /// Called on a thread of the group. May block on files; others take over meanwhile where the group has more threads.
    fn ready(&self, readiness: Readiness);
}

/// One wait, its queue and its timers. See the crate.
pub struct Group {
    pub(crate) settings: Settings,
    pub(crate) epoll: OwnedFd,
    wake: OwnedFd,
    pub(crate) queue: Mutex<VecDeque<Runnable>>,
    /// Tasks in the queue, for those who only want to know whether there are any.
    pub(crate) queued: AtomicUsize,
    pub(crate) handlers: Mutex<Slab<Arc<dyn Ready>>>,
    pub(crate) timers: Mutex<Timers>,
    pub(crate) stopping: AtomicBool,
    /// Threads inside epoll_wait that nobody has woken yet.
    pub(crate) sleepers: AtomicUsize,
    /// Whether a thread looks for more instead of sleeping: one is enough, a second would take the core that the work needs.
    pub(crate) spinning: AtomicBool,
    pub(crate) crew: Crew,
    pub(crate) watch: Watch,
    pub(crate) this: Weak<Group>,
}

/// A descriptor that a registration keeps open, perhaps together with others.
pub type Watched = Arc<dyn AsFd + Send + Sync>;

/// A registered descriptor; dropping it ends the registration.
pub struct Registration {
    group: Weak<Group>,
    fd: Watched,
    key: usize,
}

impl Group {
    /// A group without threads.
    pub(crate) fn idle(settings: Settings) -> io::Result<Arc<Group>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE_KEY), epoll::EventFlags::IN)?;
        Ok(Arc::new_cyclic(|this| Group {
            epoll,
            wake,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            handlers: Mutex::default(),
            timers: Mutex::default(),
            stopping: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            spinning: AtomicBool::new(false),
            crew: Crew::default(),
            watch: Watch::default(),
            this: this.clone(),
            settings,
        }))
    }

    /// The group whose thread this is, if any.
    pub fn current() -> Option<Arc<Group>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Makes `group` the one whose thread this is; returns which it was before.
    pub(crate) fn set_current(group: Option<Arc<Group>>) -> Option<Arc<Group>> {
        CURRENT.replace(group)
    }

    /// Whether the calling thread turns this group.
    pub fn is_current(&self) -> bool {
        let is_it = |current: &Arc<Group>| std::ptr::eq(Arc::as_ptr(current), self);
        // A thread that is at its end turns no group; what it lets go of then may still wake
        // tasks.
        CURRENT.try_with(|current| current.borrow().as_ref().is_some_and(is_it)).unwrap_or(false)
    }

    /// Runs a task to its end on this group's threads; it is first polled in the current turn, or as soon as a thread is free.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.task(future).schedule();
    }

    fn task(&self, future: impl Future<Output = ()> + Send + 'static) -> Runnable {
        let group = self.this.clone();
        let schedule = move |runnable: Runnable| {
            if let Some(group) = group.upgrade() {
                group.enqueue(runnable);
            }
        };
        let (runnable, task) = async_task::spawn(future, schedule);
        task.detach();
        runnable
    }

    /// Polls a task once on the calling thread, and goes on with it as [`spawn`](Group::spawn) does if it has to wait.
    pub fn run_now(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.task(future).run();
    }

    fn enqueue(&self, runnable: Runnable) {
        self.queued.fetch_add(1, Ordering::SeqCst); // first, so that it is never less than what is there
        lock(&self.queue).push_back(runnable);
        // The thread that turns this group looks at the queue before it sleeps.
        if !self.is_current() {
            self.wake_one();
        }
    }

    pub(crate) fn dequeue(&self) -> Option<Runnable> {
        if !self.has_tasks() {
            return None;
        }
        lock(&self.queue).pop_front().inspect(|_| {
            self.queued.fetch_sub(1, Ordering::SeqCst);
        })
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.settings.threads_min > 0
    }

    /// Whether one thread alone ever turns this group.
    pub fn has_one_thread(&self) -> bool {
        self.settings.threads_min == 1 && self.settings.threads_max <= 1
    }

    pub(crate) fn has_tasks(&self) -> bool {
        self.queued.load(Ordering::SeqCst) > 0
    }

    /// Ends one wait, if a thread waits.
    pub(crate) fn wake_one(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A full counter (EAGAIN) has woken everybody already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        } else if !self.spinning.load(Ordering::SeqCst) {
            self.watch.summon(); // who spins looks at the tasks before it sleeps
        }
    }

    pub(crate) fn drain_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Watches a descriptor. The group keeps a duplicate of it, so the caller may close its own.
    pub fn register(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        handler: Arc<dyn Ready>,
    ) -> io::Result<Registration> {
        self.add(Arc::new(fd.try_clone_to_owned()?), flags(interest), handler)
    }

    /// As [`register`](Group::register), without a duplicate: the registration keeps the descriptor itself open. For those of which there are many.
    pub fn register_shared(
        &self,
        fd: Watched,
        interest: Interest,
        handler: Arc<dyn Ready>,
    ) -> io::Result<Registration> {
        self.add(fd, flags(interest), handler)
    }

    /// Watches, for reading, a descriptor whose queue several groups watch (clones of one /dev/fuse): an event wakes one group that sleeps, and not
    /// all of them. Cannot be armed for anything else.
    pub fn register_exclusive(&self, fd: BorrowedFd<'_>, handler: Arc<dyn Ready>) -> io::Result<Registration> {
        let fd = Arc::new(fd.try_clone_to_owned()?);
        self.add(fd, epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE, handler)
    }

    /// Watches for data and for room, and reports each only as it comes (edge-triggered): for who
    /// goes on until the kernel says that there is no more, and wants no system call between.
    /// Several threads may be told of one descriptor at a time. Cannot be armed for anything else.
    pub fn register_edge(&self, fd: Watched, handler: Arc<dyn Ready>) -> io::Result<Registration> {
        use epoll::EventFlags as Of;
        self.add(fd, Of::IN | Of::OUT | Of::RDHUP | Of::ET, handler)
    }

    fn add(&self, fd: Watched, flags: epoll::EventFlags, handler: Arc<dyn Ready>) -> io::Result<Registration> {
        let key = lock(&self.handlers).insert(handler);
        if let Err(error) = epoll::add(&self.epoll, fd.as_fd(), epoll::EventData::new_u64(key as u64), flags) {
            lock(&self.handlers).remove(key);
            return Err(error.into());
        }
        Ok(Registration { group: self.this.clone(), fd, key })
    }

    /// Calls `flush` once at the end of this turn, however often it is asked for; at once when the calling thread is not of a group.
    pub fn flush_later(flush: Arc<dyn Flush>) {
        if CURRENT.with_borrow(Option::is_none) {
            return flush.flush();
        }
        turn_end::flush_later(flush);
    }

    /// Has the calling thread sleep at the end of its turn without a look for more: for who has
    /// moved so much that more will come later than a look takes.
    pub fn rest() {
        turn_end::rest();
    }

    /// Call it before a system call that may block for long: sends what this turn has collected, and has other threads, if any are idle, come for
    /// the tasks that wait and watch.
    pub fn before_blocking(&self) {
        turn_end::flush_now();
        self.watch.widen();
        if self.has_tasks() {
            self.wake_one();
        }
    }

    pub(crate) fn add_timer(&self, at: Instant, waker: std::task::Waker) {
        let first = lock(&self.timers).add(at, waker);
        // The only thread of a group looks at the timers before it sleeps. Of several, another may sleep already, for longer, and keep this one parked.
        if first && (self.settings.threads_max > 1 || !self.is_current()) {
            self.wake_one();
        }
    }

    /// Ends the threads after their current turn, and drops all tasks that are ready. Does not
    /// wait.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        self.watch.widen();
        self.crew.sentinel.wake();
    }

    /// Waits until all threads have ended, then drops the tasks that wait for a time and what is
    /// called for watched descriptors, which may hold the group themselves. Call
    /// [`stop`](Group::stop) first. Never from a thread of the group.
    pub fn join(&self) {
        loop {
            let Some(thread) = lock(&self.crew.threads).pop() else { break };
            let _ = thread.join();
        }
        // Outside the locks: what is dropped may take them. A task whose last waker is dropped
        // comes to the queue once more, to be dropped there.
        loop {
            let timers = std::mem::take(&mut *lock(&self.timers));
            let handlers = std::mem::take(&mut *lock(&self.handlers));
            let tasks = std::mem::take(&mut *lock(&self.queue));
            if timers.is_empty() && handlers.is_empty() && tasks.is_empty() {
                return;
            }
            self.queued.store(0, Ordering::SeqCst);
            drop((timers, handlers, tasks));
        }
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    flags.set(epoll::EventFlags::ONESHOT, interest.once);
    flags
}

impl Registration {
    /// Watches for something else from now on, or again after a `once`.
    pub fn arm(&self, interest: Interest) -> io::Result<()> {
        let group = self.group.upgrade().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        Ok(epoll::modify(&group.epoll, self.fd(), epoll::EventData::new_u64(self.key as u64), flags(interest))?)
    }

    /// Whether it is this group that watches.
    pub fn is_of(&self, group: &Group) -> bool {
        std::ptr::eq(self.group.as_ptr(), group)
    }

    /// The watched descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(group) = self.group.upgrade() {
            let _ = epoll::delete(&group.epoll, self.fd());
            let handler = lock(&group.handlers).try_remove(self.key);
            drop(handler); // outside the lock: its own drop may take it
        }
    }
}
