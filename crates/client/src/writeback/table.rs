//! What is held back of all files, shared by threads.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_fs::SetAttr;
use aqueduct_metrics::Counter;
use aqueduct_session::KeptSlot;
use aqueduct_worker::lock;
use bytes::Bytes;

use super::file::{FLYING_MAX, File, PIECE_COST, Piece, Place};

/// What all that is held back or under way costs at most, in bytes, and at first: see [`DRAIN_MAX`].
const COST_MAX: usize = 32 << 20;
const COST_FIRST: usize = 256 << 10;
/// What the slowest wire is good for.
const COST_LEAST: usize = 64 << 10;

/// No more is held back than comes to the server in about this time. Others wait for it as long, and for no longer than the answer to a recall and a lease take:
/// what has not come there by then is lost.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Files of which something is held back.
const FILES_MAX: usize = 4096;

/// So that workers seldom meet.
const SHARDS: usize = 16;

/// A wire on which a piece takes longer is given no second one beside it: several large writes at once on a slow wire keep each other's connections silent for
/// so long that they seem dead.
const FAST: Duration = Duration::from_millis(100);

/// By the hashes of the inodes: when it was last that something of them came to the server.
const ENDS: usize = 4096;

/// A file, with the hash of its handle.
#[derive(Clone, Copy)]
pub(crate) struct Which<'a> {
    pub(crate) handle: &'a [u8],
    pub(crate) hash: u64,
}

/// Whoever's leases cover what is held back.
pub(crate) trait Covers: Send + Sync {
    /// The server has all that was held back of a file, which reaches so far. Returns the number
    /// of this event among others.
    fn end(&self, handle: &[u8], end: u64) -> u64;

    /// Something of a file has failed: what its attributes are only the server knows.
    fn forget_own(&self, handle: &[u8]);

    /// Something has come to the server: who waits for that may look again.
    fn landed(&self);
}

type Files = HashMap<Arc<[u8]>, File>;

/// See the module.
pub(crate) struct Gather {
    /// The server grants exclusive leases, and the mount's configuration uses them.
    is_on: AtomicBool,
    /// Attributes may be held back as well.
    takes_sets: AtomicBool,
    /// And appends.
    takes_appends: AtomicBool,
    /// Nothing is sent, and nothing taken, since the session begins anew.
    is_grounded: AtomicBool,
    /// That of the connections on which it is sent.
    epoch: AtomicU64,
    shards: [Mutex<Files>; SHARDS],
    files: AtomicUsize,
    /// Pieces that set attributes.
    sets: AtomicUsize,
    /// Of all that is held back.
    cost: AtomicUsize,
    /// As much as may be, by how fast it comes to the server.
    cost_max: AtomicUsize,
    /// The number of the next piece.
    next: AtomicU64,
    ends: Box<[AtomicU64]>,
    last_end: AtomicU64,
    is_watched: AtomicBool,
    /// Pieces of one file that are under way at once, as many as the wire is good for.
    flying_max: AtomicUsize,
    /// Tasks that wait for room.
    waiting: Mutex<Vec<Waker>>,
    pub(crate) counters: Counters,
}

/// Since the start.
#[derive(Default)]
pub(crate) struct Counters {
    /// Writes that were held back.
    pub(crate) held: Counter,
    /// Changes of attributes that were.
    pub(crate) set: Counter,
    /// Requests by which they came to the server.
    pub(crate) sent: Counter,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather {
            is_on: AtomicBool::new(false),
            takes_sets: AtomicBool::new(false),
            takes_appends: AtomicBool::new(false),
            is_grounded: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            shards: Default::default(),
            files: AtomicUsize::new(0),
            sets: AtomicUsize::new(0),
            cost: AtomicUsize::new(0),
            cost_max: AtomicUsize::new(COST_FIRST),
            next: AtomicU64::new(0),
            ends: (0..ENDS).map(|_| AtomicU64::new(0)).collect(),
            last_end: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
            flying_max: AtomicUsize::new(1),
            waiting: Mutex::default(),
            counters: Counters::default(),
        }
    }
}

impl Gather {
    /// Something may be held back, or not; attributes and appends, too, or not.
    pub(crate) fn set_on(&self, on: bool, (takes_sets, takes_appends): (bool, bool)) {
        self.is_on.store(on, Ordering::SeqCst);
        self.takes_sets.store(on && takes_sets, Ordering::SeqCst);
        self.takes_appends.store(on && takes_appends, Ordering::SeqCst);
    }

    pub(crate) fn takes_appends(&self) -> bool {
        self.takes_appends.load(Ordering::SeqCst)
    }

    pub(crate) fn takes_sets(&self) -> bool {
        self.takes_sets.load(Ordering::SeqCst)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Whether nothing is held back of any file.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.load(Ordering::SeqCst) == 0
    }

    /// Files and bytes, with what their pieces count for.
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.files.load(Ordering::Relaxed), self.cost.load(Ordering::Relaxed))
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Files> {
        lock(&self.shards[hash as usize % SHARDS])
    }

    /// Whether something of a file is held back.
    pub(crate) fn has(&self, which: Which<'_>) -> bool {
        !self.is_empty() && self.shard(which.hash).contains_key(which.handle)
    }

    /// Whether attributes of a file are held back, or of any file.
    pub(crate) fn has_sets(&self, which: Option<Which<'_>>) -> bool {
        let is_any = self.sets.load(Ordering::SeqCst) > 0;
        let has = |which: Which<'_>| self.shard(which.hash).get(which.handle).is_some_and(|file| file.sets() > 0);
        is_any && which.is_none_or(has)
    }

    /// Whether anything of any file was held back at some time since then.
    pub(crate) fn was_active_since(&self, number: u64) -> bool {
        !self.is_empty() || self.last_end.load(Ordering::SeqCst) > number
    }

    /// Whether something of this file was, so that what was asked for then may lack it. Who shares its place with another is taken for it.
    pub(crate) fn was_held_since(&self, which: Which<'_>, number: u64) -> bool {
        self.has(which) || self.ends[which.hash as usize % ENDS].load(Ordering::SeqCst) > number
    }

    /// Looks at a file, of which something may be held back if its leases let it be. Nobody else
    /// looks at it meanwhile. `None`: the session begins anew.
    pub(crate) fn enter<'a>(&'a self, which: Which<'a>) -> Option<Entered<'a>> {
        let files = self.shard(which.hash);
        let is_grounded = self.is_grounded.load(Ordering::SeqCst);
        (!is_grounded).then_some(Entered { gather: self, files, which, is_counted: false })
    }

    /// Whether a write is not too large for the wire to be held back.
    pub(crate) fn may_take(&self, length: usize) -> bool {
        length + PIECE_COST <= self.cost_max.load(Ordering::Relaxed)
    }

    /// Whether there is room for one, beside all others.
    fn has_room(&self, length: usize) -> bool {
        self.cost.load(Ordering::SeqCst) + length + PIECE_COST <= self.cost_max.load(Ordering::Relaxed)
    }

    /// All that is held back of a file is to go now. Returns the mark up to which it is; `None`: there is nothing.
    pub(super) fn seal(&self, which: Which<'_>) -> Option<u64> {
        let mut files = self.shard(which.hash);
        let next = self.next.load(Ordering::SeqCst);
        files.get_mut(which.handle).map(|file| file.seal(next))
    }

    /// The files with something that waits since `age` or longer, all of which is to go now.
    pub(super) fn seal_all(&self, age: Duration) -> Vec<Arc<[u8]>> {
        let (mut sealed, now) = (Vec::new(), Instant::now());
        for shard in &self.shards {
            let mut files = lock(shard);
            let next = self.next.load(Ordering::SeqCst);
            for (handle, file) in files.iter_mut() {
                if age.is_zero() || file.since().is_some_and(|since| now.saturating_duration_since(since) >= age) {
                    file.seal(next);
                    sealed.push(handle.clone());
                }
            }
        }
        sealed
    }

    /// The next piece of a file that may go, and the epoch in which it may.
    pub(super) fn take_off(&self, which: Which<'_>) -> Option<(Piece, u64)> {
        let mut files = self.shard(which.hash);
        // Looked at first: were it that of a session which begins just now, a piece that its recovery sends would go once more after that.
        let epoch = self.epoch.load(Ordering::SeqCst);
        if self.is_grounded.load(Ordering::SeqCst) {
            return None;
        }
        let piece = files.get_mut(which.handle)?.take_off(self.flying_max.load(Ordering::Relaxed))?;
        Some((piece, epoch))
    }

    /// Whether a piece is under way, and no recovery has seen to it.
    pub(super) fn is_flying(&self, which: Which<'_>, number: u64) -> bool {
        self.shard(which.hash).get(which.handle).is_some_and(|file| file.is_flying(number))
    }

    /// A piece has been answered after so long, if no recovery has seen to it.
    pub(super) fn land(&self, which: Which<'_>, number: u64, took: Duration, covers: &dyn Covers) {
        let flying_max = self.flying_max.load(Ordering::Relaxed);
        self.flying_max.store(if took <= FAST { FLYING_MAX.min(flying_max + 1) } else { 1 }, Ordering::Relaxed);
        self.change(which, covers, |file| {
            let (before, pieces) = (file.cost(), file.pieces());
            file.land(number);
            self.pace(took * pieces as u32 / flying_max as u32, before - file.cost());
        });
    }

    /// A write that was too large has come to the server in this time.
    pub(crate) fn went_straight(&self, length: usize, took: Duration) {
        self.pace(took, length + PIECE_COST);
    }

    /// All that a file had held back comes to the server in this time, if a piece that costs so much is like the others: as much more, or less, may be held back.
    fn pace(&self, drain: Duration, cost: usize) {
        let paced = |most: usize| match drain <= DRAIN_MAX {
            true => Some((most + cost).min(COST_MAX)),
            false => Some(most.saturating_sub(cost).max(COST_LEAST)),
        };
        let _before = self.cost_max.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paced);
    }

    /// The first piece of a file of which nothing is under way.
    pub(super) fn first(&self, which: Which<'_>) -> Option<Piece> {
        self.shard(which.hash).get_mut(which.handle)?.first()
    }

    /// It has been seen to.
    pub(super) fn drop_first(&self, which: Which<'_>, covers: &dyn Covers) {
        self.change(which, covers, File::drop_first);
    }

    /// Changes a file, which is forgotten when nothing is left of it, and wakes who waits.
    fn change(&self, which: Which<'_>, covers: &dyn Covers, change: impl FnOnce(&mut File)) {
        let mut files = self.shard(which.hash);
        let Entry::Occupied(mut entry) = files.entry(which.handle.into()) else { return };
        let file = entry.get_mut();
        let before = (file.cost(), file.sets());
        change(file);
        self.cost.fetch_sub(before.0 - file.cost(), Ordering::SeqCst);
        self.sets.fetch_sub(before.1 - file.sets(), Ordering::SeqCst);
        let mut wakers = std::mem::take(&mut file.wakers);
        if file.is_empty() {
            let end = covers.end(which.handle, file.end());
            self.ends[which.hash as usize % ENDS].fetch_max(end, Ordering::SeqCst);
            self.last_end.fetch_max(end, Ordering::SeqCst);
            entry.remove();
            self.files.fetch_sub(1, Ordering::SeqCst);
        }
        drop(files);
        wakers.append(&mut lock(&self.waiting));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ready when nothing of a file is left that came before the mark.
    pub(super) fn poll_gone(&self, which: Which<'_>, mark: u64, task: &mut TaskContext<'_>) -> Poll<()> {
        match self.shard(which.hash).get_mut(which.handle).filter(|file| file.has_below(mark)) {
            Some(file) => {
                file.wakers.push(task.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Ready when there is room for so many bytes more of a file.
    pub(super) fn poll_room(&self, which: Which<'_>, length: usize, task: &mut TaskContext<'_>) -> Poll<()> {
        let files = self.shard(which.hash);
        let mut waiting = lock(&self.waiting);
        let has_room = files.get(which.handle).is_none_or(|file| file.has_room(length))
            && self.has_room(length)
            && self.files.load(Ordering::SeqCst) < FILES_MAX;
        if has_room || !self.may_take(length) {
            return Poll::Ready(());
        }
        waiting.push(task.waker().clone());
        Poll::Pending
    }

    /// The session begins anew: what is under way will not be answered. Nothing is taken or sent until [`take_up`](Gather::take_up).
    pub(crate) fn ground(&self, epoch: u64) {
        self.is_grounded.store(true, Ordering::SeqCst);
        self.epoch.store(epoch, Ordering::SeqCst);
        for shard in &self.shards {
            let mut files = lock(shard);
            let next = self.next.load(Ordering::SeqCst);
            for file in files.values_mut() {
                file.ground();
                file.seal(next);
            }
        }
    }

    /// It goes on.
    pub(crate) fn take_up(&self) {
        self.is_grounded.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// All files of which something is held back.
    pub(super) fn files(&self) -> Vec<Arc<[u8]>> {
        self.shards.iter().flat_map(|shard| lock(shard).keys().cloned().collect::<Vec<_>>()).collect()
    }

    /// Whether somebody is to look after what waits for long, which the caller does from now on.
    pub(super) fn begin_watch(&self) -> bool {
        !self.is_watched.load(Ordering::SeqCst) && !self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// Whether he may go.
    pub(super) fn end_watch(&self) -> bool {
        if !self.is_empty() {
            return false;
        }
        self.is_watched.store(false, Ordering::SeqCst);
        // Looked at after the flag fell: whoever holds back something later has it watched anew.
        self.is_empty() || !self.begin_watch()
    }
}

/// One file, while it is decided whether something of it is held back.
pub(crate) struct Entered<'a> {
    gather: &'a Gather,
    files: MutexGuard<'a, Files>,
    which: Which<'a>,
    /// It counts as one of which something is held back, and nothing is yet.
    is_counted: bool,
}

impl<'a> Entered<'a> {
    fn file(&self) -> Option<&File> {
        self.files.get(self.which.handle)
    }

    /// Whether nothing of it is held back yet.
    pub(crate) fn is_first(&self) -> bool {
        self.file().is_none()
    }

    /// Whether there is room for so many bytes more, of this file and of all.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.file().is_none_or(|file| file.has_room(length)) && self.gather.has_room(length)
    }

    /// How far it has been written.
    pub(crate) fn end(&self) -> u64 {
        self.file().map_or(0, File::end)
    }

    /// The first that is held back of it is about to be: it counts from now on, before its leases
    /// are looked at for the last time. Whoever gives them back looks here afterwards. False:
    /// there are too many files.
    pub(crate) fn count(&mut self) -> bool {
        let has_room = self.gather.files.load(Ordering::SeqCst) < FILES_MAX;
        if has_room {
            self.gather.files.fetch_add(1, Ordering::SeqCst);
            self.is_counted = true;
        }
        has_room
    }

    fn change(mut self, change: impl FnOnce(&mut File, u64)) {
        let number = self.gather.next.fetch_add(1, Ordering::SeqCst);
        let file = self.files.entry(self.which.handle.into()).or_insert_with(File::new);
        let before = (file.cost(), file.sets());
        change(file, number);
        let (cost, sets) = (file.cost() - before.0, file.sets() - before.1);
        self.gather.cost.fetch_add(cost, Ordering::SeqCst);
        self.gather.sets.fetch_add(sets, Ordering::SeqCst);
        self.is_counted = false; // it has come
    }

    /// Holds back a write.
    pub(crate) fn add(self, place: &Place, data: &Bytes) {
        self.gather.counters.held.increment();
        self.change(|file, number| file.add(place, data, number));
    }

    /// Whether an append becomes a part of what is held back already; else it needs a slot.
    pub(crate) fn takes_append(&self, place: &Place, length: usize) -> bool {
        self.file().is_some_and(|file| file.takes_append(place, length))
    }

    /// Holds back an append.
    pub(crate) fn append(self, place: &Place, data: &Bytes, slot: Option<Arc<KeptSlot>>) {
        self.gather.counters.held.increment();
        self.change(|file, number| file.append(place, data, (number, slot)));
    }

    /// Attributes are about to be held back: they count from now on, so that whoever opens the
    /// file sees it before they are so.
    pub(crate) fn count_set(&self) -> Setting<'a> {
        self.gather.sets.fetch_add(1, Ordering::SeqCst);
        Setting(self.gather)
    }

    /// Holds back attributes that somebody sets.
    pub(crate) fn set(self, place: &Place, set: &SetAttr) {
        self.gather.counters.set.increment();
        self.change(|file, number| file.set(place, set, number));
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            self.gather.files.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Attributes that are being set count.
pub(crate) struct Setting<'a>(&'a Gather);

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.0.sets.fetch_sub(1, Ordering::SeqCst);
    }
}
