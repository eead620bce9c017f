//! Requests through io_uring, where the kernel has it (Linux 6.14, with the parameter `enable_uring` of the module `fuse`).
//!
//! The kernel has a queue for each processor, and a caller uses that of its own. Each worker group serves the queues that fall to it with one ring of
//! commands. An *entry* is memory for one request and its reply: it waits for a request, holds it until it is answered, and with the answer waits for the next, in one
//! system call. /dev/fuse goes on to carry what has no reply: FORGET and INTERRUPT.
//!
//! A request that waits, for a lock or for a server that is away, holds its entry, and the kernel keeps further requests of that processor to itself
//! while no entry is free: the unlock would never arrive. So a queue that has stood still for a moment without a free entry gets more. The kernel gives a new entry
//! to the next request that is made, and leaves those that have waited for one until an entry of their queue is answered: so each new one is given something to answer.

mod entry;
mod queues;
mod sys;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use aqueduct_fs::Errno;
use aqueduct_worker::{Group, Interest, Readiness, Ready, Registration, lock};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::abi::{Field, InHeader, ReadIn, opcode};
use crate::channel::{Channel, Responder};
use crate::job::Job;
use crate::notify;
use crate::rings::MountRing;
use crate::serve::serve_now;
use crate::shared::Shared;
use entry::Entry;
pub(crate) use entry::Loan;
use queues::{Queue, Queues};
use sys::{Commands, Completion};

/// Entries of a queue to begin with: as many requests of one processor are answered side by side.
const ENTRIES: usize = 8;

/// The most entries of a queue. As many requests of one processor can wait before others of it have to.
const ENTRIES_MAX: usize = 4096;

/// For so long a queue without a free entry stands still before it gets more.
const STALL: Duration = Duration::from_millis(10);

/// Requests that we have the kernel make have numbers from here on: its own begin at 2 and are even, too.
const OWN_REQUESTS: u64 = 1 << 63;

/// Completions taken before the group's other work has its turn.
const BATCH: usize = 16;

/// Requests that carry so much, either way, are bulk: their copies take longer than it takes to wake another processor.
const BULK_MIN: usize = 64 << 10;

/// With so many requests of one processor under way at once, whoever makes them does not sleep until each is answered: he may need his processor, as a program that uses
/// io_uring does (buffered reads of 4 KiB, 16 under way: 14 k/s with this thread on the same processor, 59 k elsewhere).
const SEVERAL: usize = 3;

/// So many requests after the last one that was bulk or one of several, a thread stays near its queues again.
const ALONE_ENOUGH: u32 = 64;

/// Commands that are under way at once: each is submitted by itself.
const COMMANDS: u32 = 64;

/// Rings that could be made, and the queues that there are, before the kernel is told.
pub(crate) struct Prepared {
    rings: Vec<Commands>,
    /// For each ring, the queues that fall to it.
    shares: Vec<Vec<u16>>,
    /// Where this process may run.
    allowed: CpuSet,
}

impl Prepared {
    /// A ring for each group; none where this system gives none, where several threads serve a group (one thread alone may use a ring), or where this process may not
    /// run on all processors: it could not stay near the others' callers, and is not to.
    pub(crate) fn new(groups: &[Arc<Group>]) -> Option<Prepared> {
        if !groups.iter().all(|group| group.has_one_thread()) {
            return None;
        }
        let made = groups.iter().map(|_| Commands::new(COMMANDS)).collect::<io::Result<Vec<_>>>();
        let prepared = made.and_then(|rings| {
            let (possible, online) = (processors("possible")?, processors("online")?);
            let allowed = sched_getaffinity(None)?;
            if !online.iter().all(|cpu| usize::from(*cpu) < CpuSet::MAX_CPU && allowed.is_set(usize::from(*cpu))) {
                return Err(io::Error::other("this process may not run on all processors"));
            }
            Ok(Prepared { rings, shares: shares(&possible, &online, groups.len()), allowed })
        });
        prepared.inspect_err(|error| tracing::debug!(%error, "no io_uring here: requests come by /dev/fuse")).ok()
    }

    /// Has the rings serve the mount. The kernel holds all requests back until each queue has an entry.
    pub(crate) fn start(self, shared: &Arc<Shared>, groups: &[Arc<Group>], device: BorrowedFd<'_>) -> io::Result<()> {
        let (sender, receiver) = mpsc::channel();
        let mut rings: Vec<Arc<dyn MountRing>> = Vec::with_capacity(groups.len());
        for ((commands, share), group) in self.rings.into_iter().zip(self.shares).zip(groups) {
            let device = device.try_clone_to_owned()?;
            let queues = Arc::new(Queues {
                group: Arc::downgrade(group),
                device,
                commands: Mutex::new(commands),
                all: share.into_iter().map(Queue::new).collect(),
            });
            let ring = Arc::new_cyclic(|this| Ring {
                this: this.clone(),
                shared: shared.clone(),
                queues,
                entries: Mutex::default(),
                allowed: self.allowed,
                alone: AtomicU32::new(ALONE_ENOUGH),
                registration: Mutex::default(),
                own_requests: AtomicU64::new(OWN_REQUESTS),
            });
            let (starting, sender) = (ring.clone(), sender.clone());
            group.spawn(async move {
                let _ = sender.send(starting.begin()); // who waits for it is below
            });
            rings.push(ring);
        }
        let count = rings.len();
        shared.rings.set(rings); // first: they end with the session, however this does
        for _ in 0..count {
            receiver.recv().map_err(|_| io::Error::from(io::ErrorKind::NotConnected))??;
        }
        Ok(())
    }
}

/// The processors of a kind: all that there may ever be (the kernel has as many queues), or those at work.
fn processors(kind: &str) -> io::Result<Vec<u16>> {
    let list = fs::read_to_string(format!("/sys/devices/system/cpu/{kind}"))?;
    numbers(list.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What a list like `0-3,8` holds.
fn numbers(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Which ring has which queues: each has as many as the others of those whose processors are at work, and those side by side.
fn shares(possible: &[u16], online: &[u16], rings: usize) -> Vec<Vec<u16>> {
    let mut shares = vec![Vec::new(); rings];
    for number in 0..=possible.iter().copied().max().unwrap_or_default() {
        let at_work = online.iter().position(|cpu| *cpu == number);
        shares[at_work.map_or(usize::from(number) % rings, |rank| rank * rings / online.len())].push(number);
    }
    shares
}

/// What one group serves: the queues that fall to it.
pub(crate) struct Ring {
    this: Weak<Ring>,
    shared: Arc<Shared>,
    queues: Arc<Queues>,
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Where its thread may run when it is not kept near its queues.
    allowed: CpuSet,
    /// Requests since the last that was bulk or one of several; from [`ALONE_ENOUGH`] on the thread is near its queues.
    alone: AtomicU32,
    registration: Mutex<Option<Registration>>,
    /// The number of the next request that we have the kernel make.
    own_requests: AtomicU64,
}

impl Ring {
    /// Makes the ring ready, on the thread that uses it from now on.
    fn begin(self: &Arc<Ring>) -> io::Result<()> {
        let group = self.queues.group.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        self.run_on(&self.near());
        let commands = lock(&self.queues.commands);
        commands.enable()?;
        let readable = Interest { read: true, write: false, once: false };
        *lock(&self.registration) = Some(group.register(commands.fd(), readable, self.clone())?);
        drop(commands);
        (0..self.queues.all.len()).try_for_each(|queue| self.add_entries(queue, ENTRIES))
    }

    /// Keeps the thread on the processors whose queues it serves while requests are small and come one by one: where a caller sleeps until it is answered, this thread runs at
    /// once, without waking another processor for each request and again for each answer. In a virtual machine of two processors a write of 4 KiB takes 12 us so, and 25 us
    /// elsewhere. Else (`is_loaded`) it may run anywhere: a program that reads as fast as it can needs its processor itself (one buffered reader: 1,616 MiB/s near its queue,
    /// 2,167 anywhere).
    fn note_load(&self, is_loaded: bool) {
        let alone = self.alone.load(Ordering::Relaxed);
        if !is_loaded && alone < ALONE_ENOUGH {
            self.alone.store(alone + 1, Ordering::Relaxed);
            if alone + 1 == ALONE_ENOUGH {
                self.run_on(&self.near());
            }
        } else if is_loaded {
            self.alone.store(0, Ordering::Relaxed);
            if alone >= ALONE_ENOUGH {
                self.run_on(&self.allowed);
            }
        }
    }

    /// The processors whose queues this ring serves.
    fn near(&self) -> CpuSet {
        let mut near = CpuSet::new();
        let numbers = self.queues.all.iter().map(|queue| usize::from(queue.number));
        numbers.filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| near.set(cpu));
        near
    }

    fn run_on(&self, processors: &CpuSet) {
        if let Err(error) = sched_setaffinity(None, processors) {
            tracing::debug!(%error, "a thread that serves a mount stays where it may run anyway");
        }
    }

    fn add_entries(self: &Arc<Ring>, queue: usize, count: usize) -> io::Result<()> {
        let Queue { number, entries, free, .. } = &self.queues.all[queue];
        let payload_max = self.shared.pool.data_max();
        for _ in 0..count {
            let cell = lock(&self.queues.commands).register(self.queues.device.as_fd(), *number, payload_max)?;
            let mut all = lock(&self.entries);
            let entry = Entry::new(Arc::downgrade(&self.queues), all.len(), queue, cell);
            all.push(entry);
            entries.fetch_add(1, Ordering::SeqCst);
            free.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Has each of so many new entries fetch a request that came before there were any. Only locks wait for requests that come later, and are of regular files.
    fn fetch(&self, at: usize, count: usize) -> io::Result<()> {
        let entries = lock(&self.entries).clone();
        let mut files = entries.iter().filter(|entry| entry.queue() == at).filter_map(|entry| entry.file());
        let Some(mut file) = files.next() else { return Ok(()) };
        let (before, mut there) = (sched_getaffinity(None)?, CpuSet::new());
        there.set(usize::from(self.queues.all[at].number).min(CpuSet::MAX_CPU - 1));
        sched_setaffinity(None, &there)?; // a request goes to the queue of the processor on which it is made
        let fetched = (0..count).try_for_each(|_| {
            let unique = self.own_requests.fetch_add(2, Ordering::SeqCst);
            // One that was answered meanwhile, by another thread, may be forgotten.
            while !self.shared.notify(&notify::retrieve_nothing(file, unique))? {
                let Some(next) = files.next() else { return Ok(()) };
                file = next;
            }
            Ok(())
        });
        sched_setaffinity(None, &before)?;
        fetched
    }

    /// Begins the next request; false: there is none.
    fn take(self: &Arc<Ring>) -> bool {
        let Some(done) = lock(&self.queues.commands).next() else { return false };
        self.completed(&done);
        true
    }

    fn completed(self: &Arc<Ring>, done: &Completion) {
        let Some(entry) = lock(&self.entries).get(done.entry).cloned() else { return };
        let queue = &self.queues.all[entry.queue()];
        if queue.free.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.expect_stall(entry.queue());
        }
        if done.result < 0 {
            queue.entries.fetch_sub(1, Ordering::SeqCst);
            tracing::debug!(errno = -done.result, queue = queue.number, "an entry of a queue has ended");
            return;
        }
        let Some(group) = self.queues.group.upgrade() else { return };
        let _busy = self.shared.busy();
        match entry.request(&self.shared.pool) {
            Ok((header, frame)) => {
                tracing::trace!(opcode = header.opcode, unique = header.unique, node = header.nodeid, "request");
                self.note_load(is_bulk(&header, &frame) || queue.under_way() >= SEVERAL);
                let responder = Responder::new(entry, header.unique);
                if header.opcode == opcode::NOTIFY_REPLY {
                    let _ = responder.done(&[]); // asked for by `fetch`: nobody waits for it
                    return;
                }
                self.shared.metrics.by_ring.increment();
                serve_now(Job::new(self.shared.clone(), header, frame, responder), &group);
            }
            Err(unique) => {
                tracing::debug!(unique, "a request that is not well formed");
                Responder::new(entry, unique).failed(Errno::EIO);
            }
        }
    }

    /// A queue has no free entry: looks after it until it has.
    fn expect_stall(self: &Arc<Ring>, queue: usize) {
        if let Some(group) = self.queues.group.upgrade()
            && !self.queues.all[queue].is_watched.swap(true, Ordering::SeqCst)
        {
            group.spawn(relieve(Arc::downgrade(self), queue));
        }
    }

    /// One look after a queue without free entries; false when that is over.
    fn relieve(self: &Arc<Ring>, at: usize, answered_before: usize) -> bool {
        let queue = &self.queues.all[at];
        let answered = queue.answered.load(Ordering::SeqCst);
        if queue.free.load(Ordering::SeqCst) > 0 || self.shared.ended() {
            queue.is_watched.store(false, Ordering::SeqCst);
            return false;
        }
        if answered == answered_before {
            let present = queue.entries.load(Ordering::SeqCst);
            let more = present.max(ENTRIES).min(ENTRIES_MAX.saturating_sub(present));
            tracing::debug!(queue = queue.number, present, more, "requests that wait hold all entries of a queue");
            let added = self.add_entries(at, more).and_then(|()| self.fetch(at, more));
            if let Err(error) = added {
                tracing::warn!(%error, "cannot take more requests: those of one processor wait until others are answered");
            }
        }
        true
    }
}

/// Whether a request, or its answer, carries so much data that the copy is most of it.
fn is_bulk(header: &InHeader, frame: &[u8]) -> bool {
    let reads = || ReadIn::parse(frame.get(<InHeader as Field>::SIZE..)?).map(|(read, _)| read.size as usize);
    match header.opcode {
        opcode::READ => reads().is_some_and(|size| size >= BULK_MIN),
        opcode::WRITE => frame.len() >= BULK_MIN,
        _ => false,
    }
}

async fn relieve(ring: Weak<Ring>, queue: usize) {
    loop {
        let Some((ring_now, group)) =
            ring.upgrade().and_then(|ring| Some((ring.clone(), ring.queues.group.upgrade()?)))
        else {
            return;
        };
        let answered = ring_now.queues.all[queue].answered.load(Ordering::SeqCst);
        let pause = group.sleep(STALL);
        drop((ring_now, group)); // a group that is stopped meanwhile would never be dropped
        pause.await;
        if !ring.upgrade().is_some_and(|ring| ring.relieve(queue, answered)) {
            return;
        }
    }
}

impl MountRing for Ring {
    fn group(&self) -> Option<Arc<Group>> {
        self.queues.group.upgrade()
    }

    fn take_all(self: Arc<Self>) {
        lock(&self.queues.commands).look();
        while self.take() {}
    }

    fn stop(&self) {
        let registration = lock(&self.registration).take();
        drop(registration); // outside the lock: it may hold the last reference to the ring
    }
}

impl Channel for Entry {
    fn answer(&self, unique: u64, error: i32, body: &[&[u8]]) -> io::Result<()> {
        self.reply(unique, error, body)
    }

    fn lend(&self, unique: u64) -> Option<Loan> {
        self.lend_memory(unique)
    }

    fn answer_lent(&self, unique: u64, length: usize) -> io::Result<()> {
        self.reply_lent(unique, length)
    }
}

impl Ready for Ring {
    fn ready(&self, _: Readiness) {
        if let Some(ring) = self.this.upgrade() {
            let _ = (0..BATCH).all(|_| ring.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_of_processors_at_work_are_shared_out_evenly() {
        let possible = numbers("0-7").unwrap();
        assert_eq!(shares(&possible, &numbers("0-1").unwrap(), 2), [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
        assert_eq!(shares(&possible, &numbers("0-2,5").unwrap(), 2), [vec![0, 1, 4, 6], vec![2, 3, 5, 7]]);
        assert_eq!(shares(&numbers("0-1").unwrap(), &[0, 1], 3), [vec![0], vec![1], vec![]]);
        assert_eq!(shares(&[0], &[0], 1), [vec![0]]);
        assert_eq!((numbers(""), numbers("0-"), numbers("7")), (None, None, Some(vec![7])));
    }
}
