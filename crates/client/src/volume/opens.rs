//! What is open, under numbers that this client chooses: with the session and the number that its
//! server has for it, or without one yet.
//!
//! Opens that were answered without the server are made there when they are first needed, or
//! before their right or their file could go: see [`making`](super::making).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use ahash::{HashMap, RandomState};
use aqueduct_fs::{Credential, Errno, OpenFlags, OpenId, Request};
use aqueduct_session::{Nanos, now};
use aqueduct_worker::lock;

use super::adopted::Places;
use super::parted::OfOpen;

/// So that workers seldom meet. An id is its number times this, with its shard, which is that of
/// its inode.
const SHARDS: usize = 16;

/// The most opens that the server does not know of. With more it is asked for each, so that
/// whether it has room for them is said by open(2), and not found out when they are to be made.
const UNSETTLED_MAX: usize = 1024;

/// So long after it had no room the server is asked for each open.
const FULL_FOR: Nanos = 1_000_000_000;

/// Stands for the number that a server has not given.
const NONE: u64 = u64::MAX;

/// Descriptors that are lost are told of once in so long.
const LOSS_TOLD_EVERY: Nanos = 60_000_000_000;

/// Between two questions for a lease on content that somebody reads who has none: asked more
/// often it would hold up those who write.
const CONTENT_ASKED_AGAIN: Nanos = 250_000_000;

/// All that is open. The servers bound their number, and `UNSETTLED_MAX` that of those of which no
/// server knows.
pub(crate) struct Opens {
    hasher: RandomState,
    /// The number of the next.
    pub(super) next: AtomicU64,
    shards: [Mutex<Shard>; SHARDS],
    /// Somebody looks after what stays open without the server's knowledge.
    pub(super) watched: AtomicBool,
    /// All that have numbers below were looked after.
    pub(super) looked_after: AtomicU64,
    /// How many there are that the server does not know of.
    unsettled: AtomicUsize,
    /// Until then the server is asked for each.
    full_until: AtomicU64,
    /// When the latest loss was told of.
    loss_told: AtomicU64,
}

type ById = HashMap<OpenId, Arc<Open>>;

/// The opens of some inodes.
#[derive(Default)]
struct Shard {
    by_id: ById,
    /// Those that the server does not know of, by their inodes.
    unsettled: HashMap<Arc<[u8]>, ById>,
    /// Those through which the inode may be written.
    writers: HashMap<Arc<[u8]>, ById>,
}

/// One open.
pub(crate) struct Open {
    pub(crate) id: OpenId,
    pub(crate) handle: Arc<[u8]>,
    /// That answers for the inode.
    pub(crate) session: usize,
    /// That moves its bytes.
    pub(super) data: usize,
    pub(super) credential: Credential,
    /// `None`: a directory.
    flags: Option<OpenFlags>,
    /// The thread that opened it; 0: unknown.
    by: u32,
    /// It was answered without the server.
    was_local: bool,
    /// The server's number, or [`NONE`].
    number: AtomicU64,
    /// Over how many servers the file's blocks are spread, where that is its own; known with the
    /// number.
    width: AtomicU16,
    pub(super) state: Mutex<State>,
    /// How often the server could not be asked, or had no room, though somebody needed it.
    failures: AtomicU32,
    /// Something was written, or attributes of the file were set by who has it open.
    wrote: AtomicBool,
    closes: AtomicBool,
    /// What was written through it could not be held back lately: others use the file.
    is_contended: AtomicBool,
    /// It was to be written beside others.
    asks_beside: AtomicBool,
    /// The session that moves the bytes has it open, too.
    pub(super) has_data: AtomicBool,
    /// Which of the movers move its bytes, once that was asked.
    pub(super) moved: Mutex<Option<Arc<Places>>>,
    /// Something was read through it where there are movers.
    pub(super) was_read: AtomicBool,
    /// When it was found, or asked, last that there is no lease on the content; 0: never.
    lacked_content: AtomicU64,
    /// What of its objects is open.
    pub(super) objects: OfOpen,
}

pub(super) enum State {
    /// The server does not know of it.
    Local,
    /// It is being asked; who waits for that.
    Making(Vec<Waker>),
    /// It was closed meanwhile.
    Closing,
    /// The server has it.
    Real,
    /// The server would not have it.
    Lost,
}

/// An open that its server knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real {
    /// That answers for the inode.
    pub(crate) session: usize,
    /// That moves its bytes.
    pub(super) data: usize,
    /// As its server calls it.
    pub(crate) number: OpenId,
}

/// What an id stands for.
pub(crate) enum Found {
    Real(Real),
    /// The server does not know of it, or would not have it.
    Local(Arc<Open>),
    /// It is closed.
    Unknown,
}

/// What opens an inode, and where.
pub(crate) struct New<'a> {
    pub(crate) handle: &'a Arc<[u8]>,
    /// That answer for it and move its bytes.
    pub(crate) sessions: (usize, usize),
    pub(crate) credential: &'a Credential,
    /// `None`: a directory.
    pub(crate) flags: Option<OpenFlags>,
    /// The thread that opens it; 0: unknown.
    pub(crate) by: u32,
    /// As [`Opened`](aqueduct_fs::Opened) has it, of what is open at the server.
    pub(crate) width: u16,
}

impl Default for Opens {
    fn default() -> Opens {
        Opens {
            hasher: RandomState::new(),
            next: AtomicU64::new(1),
            shards: Default::default(),
            watched: AtomicBool::new(false),
            looked_after: AtomicU64::new(0),
            unsettled: AtomicUsize::new(0),
            full_until: AtomicU64::new(0),
            loss_told: AtomicU64::new(0),
        }
    }
}

/// Whether what is written through an open with these flags may be held back. O_SYNC asks for
/// stable writes, and O_DIRECT for none that wait.
pub(crate) fn holds_back(flags: OpenFlags) -> bool {
    const STRAIGHT: OpenFlags = OpenFlags::SYNC.union(OpenFlags::DIRECT);
    flags.contains(OpenFlags::WRITE) && !flags.intersects(STRAIGHT)
}

fn remove_from(index: &mut HashMap<Arc<[u8]>, ById>, open: &Open) -> bool {
    let Some(opens) = index.get_mut(&open.handle) else { return false };
    let was_there = opens.remove(&open.id).is_some();
    if opens.is_empty() {
        index.remove(&open.handle);
    }
    was_there
}

impl Opens {
    fn of(&self, id: OpenId) -> &Mutex<Shard> {
        &self.shards[id.0 as usize % SHARDS]
    }

    fn of_handle(&self, handle: &[u8]) -> &Mutex<Shard> {
        &self.shards[self.place(handle) as usize]
    }

    fn place(&self, handle: &[u8]) -> u64 {
        self.hasher.hash_one(handle) % SHARDS as u64
    }

    fn add(&self, new: New<'_>, number: Option<OpenId>) -> OpenId {
        let shard = self.place(new.handle);
        let mut opens = lock(&self.shards[shard as usize]);
        // Taken under the lock, so that who has seen a later number finds this one.
        let id = OpenId((self.next.fetch_add(1, Ordering::SeqCst) * SHARDS as u64) | shard);
        let open = Arc::new(Open {
            id,
            handle: new.handle.clone(),
            session: new.sessions.0,
            data: new.sessions.1,
            credential: new.credential.clone(),
            flags: new.flags,
            by: new.by,
            was_local: number.is_none(),
            width: AtomicU16::new(new.width),
            number: AtomicU64::new(number.map_or(NONE, |number| number.0)),
            state: Mutex::new(if number.is_some() { State::Real } else { State::Local }),
            failures: AtomicU32::new(0),
            wrote: AtomicBool::new(false),
            closes: AtomicBool::new(false),
            is_contended: AtomicBool::new(false),
            asks_beside: AtomicBool::new(false),
            has_data: AtomicBool::new(new.sessions.0 == new.sessions.1),
            moved: Mutex::default(),
            was_read: AtomicBool::new(false),
            lacked_content: AtomicU64::new(0),
            objects: OfOpen::default(),
        });
        if number.is_none() {
            self.unsettled.fetch_add(1, Ordering::SeqCst);
            opens.unsettled.entry(new.handle.clone()).or_default().insert(id, open.clone());
        }
        if open.writes() {
            opens.writers.entry(new.handle.clone()).or_default().insert(id, open.clone());
        }
        opens.by_id.insert(id, open);
        id
    }

    /// One that its server has, under this number.
    pub(super) fn add_real(&self, new: New<'_>, number: OpenId) -> OpenId {
        self.add(new, Some(number))
    }

    /// One that is answered without the server. To be called under the lock of what says that it
    /// may be, so that who is about to take that back sees it.
    pub(crate) fn add_local(&self, new: New<'_>) -> OpenId {
        self.add(new, None)
    }

    /// Whether one more may be answered without the server.
    pub(crate) fn has_room(&self, now: Nanos) -> bool {
        self.unsettled.load(Ordering::SeqCst) < UNSETTLED_MAX && now >= self.full_until.load(Ordering::SeqCst)
    }

    /// The server has been asked for it, or nobody needs it any more.
    pub(super) fn settled(&self, open: &Open) {
        self.settled_in(&mut lock(self.of(open.id)), open);
    }

    fn settled_in(&self, shard: &mut Shard, open: &Open) {
        if remove_from(&mut shard.unsettled, open) {
            self.unsettled.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The server could not be asked, or could not open anything.
    pub(super) fn note_failure(&self, error: Errno) {
        if matches!(error, Errno::ENFILE | Errno::EMFILE | Errno::ENOMEM) {
            self.full_until.fetch_max(now() + FULL_FOR, Ordering::SeqCst);
        }
    }

    /// Whether a loss is to be told of.
    pub(crate) fn tells_loss(&self) -> bool {
        let (now, told) = (now(), self.loss_told.load(Ordering::SeqCst));
        let is_due = told == 0 || now >= told + LOSS_TOLD_EVERY;
        is_due && self.loss_told.compare_exchange(told, now, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// An open through which a thread writes to an inode, and which it has not begun to close: it
    /// is told there what becomes of what it asks for.
    pub(crate) fn writer_of(&self, handle: &[u8], by: u32) -> Option<Arc<Open>> {
        let shard = lock(self.of_handle(handle));
        let is_it = |open: &&Arc<Open>| open.by == by && open.gathers() && !open.closes();
        shard.writers.get(handle)?.values().find(is_it).cloned()
    }

    /// The server's numbers of the opens through which something was written to an inode.
    pub(crate) fn that_wrote(&self, handle: &[u8]) -> Vec<OpenId> {
        let shard = lock(self.of_handle(handle));
        let wrote = shard.writers.get(handle).into_iter().flat_map(HashMap::values);
        wrote.filter(|open| open.wrote.load(Ordering::Relaxed)).filter_map(|open| open.number()).collect()
    }

    /// Whether a file is open for writing.
    pub(crate) fn may_be_written(&self, handle: &[u8]) -> bool {
        lock(self.of_handle(handle)).writers.get(handle).is_some_and(|writers| !writers.is_empty())
    }

    /// What an id stands for.
    pub(crate) fn find(&self, id: OpenId) -> Found {
        let shard = lock(self.of(id));
        let Some(open) = shard.by_id.get(&id) else { return Found::Unknown };
        open.real().map_or_else(|| Found::Local(open.clone()), Found::Real)
    }

    /// An open.
    pub(crate) fn get(&self, id: OpenId) -> Option<Arc<Open>> {
        lock(self.of(id)).by_id.get(&id).cloned()
    }

    /// One through which an inode may be written, by the server's number.
    pub(super) fn of_number(&self, handle: &[u8], number: OpenId) -> Option<Arc<Open>> {
        let shard = lock(self.of_handle(handle));
        shard.writers.get(handle)?.values().find(|open| open.number() == Some(number)).cloned()
    }

    /// An open through which its inode may be written.
    pub(crate) fn writer(&self, id: OpenId) -> Option<Arc<Open>> {
        self.get(id).filter(|open| open.writes())
    }

    /// The inode of an open.
    pub(crate) fn handle(&self, id: OpenId) -> Option<Arc<[u8]>> {
        lock(self.of(id)).by_id.get(&id).map(|open| open.handle.clone())
    }

    /// Those of an inode that the server does not know of.
    pub(crate) fn unsettled_of(&self, handle: &[u8]) -> Vec<Arc<Open>> {
        if self.unsettled.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let shard = lock(self.of_handle(handle));
        shard.unsettled.get(handle).map(|opens| opens.values().cloned().collect()).unwrap_or_default()
    }

    /// Those of a session's inodes that the server does not know of.
    pub(super) fn unsettled_at(&self, session: usize) -> Vec<Arc<Open>> {
        let mut found = self.numbered(0..u64::MAX);
        found.retain(|open| open.session == session);
        found
    }

    /// Those that the server does not know of, with these numbers.
    pub(super) fn numbered(&self, numbers: Range<u64>) -> Vec<Arc<Open>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(lock(shard).unsettled().filter(|open| numbers.contains(&open.sequence())).cloned());
        }
        found
    }

    /// Whether there is one that nobody has looked after.
    pub(super) fn has_more(&self) -> bool {
        let first = self.looked_after.load(Ordering::SeqCst);
        self.shards.iter().any(|shard| lock(shard).unsettled().any(|open| open.sequence() >= first))
    }

    /// Whether nobody looks after what stays open, which the caller does from now on.
    pub(super) fn is_unwatched(&self) -> bool {
        !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst)
    }

    /// Closes an open that the server does not know of; whether it was one. One that it knows
    /// stays, until [`remove`](Opens::remove).
    pub(crate) fn close_local(&self, id: OpenId) -> bool {
        let mut shard = lock(self.of(id));
        let Some(open) = shard.by_id.get(&id).cloned() else { return false };
        let mut state = lock(&open.state);
        if matches!(*state, State::Real) {
            return false;
        }
        shard.by_id.remove(&id);
        match &mut *state {
            State::Making(wakers) => {
                let wakers = std::mem::take(wakers);
                *state = State::Closing; // whoever makes it closes it
                drop((state, shard));
                wakers.into_iter().for_each(Waker::wake);
            }
            State::Local => {
                *state = State::Lost;
                self.settled_in(&mut shard, &open);
            }
            State::Closing | State::Lost | State::Real => {}
        }
        true
    }

    /// An open ends, and nobody uses its id any more.
    pub(super) fn remove(&self, id: OpenId) -> Option<Arc<Open>> {
        let mut shard = lock(self.of(id));
        let open = shard.by_id.remove(&id)?;
        if open.writes() {
            remove_from(&mut shard.writers, &open);
        }
        Some(open)
    }
}

impl Shard {
    fn unsettled(&self) -> impl Iterator<Item = &Arc<Open>> {
        self.unsettled.values().flat_map(HashMap::values)
    }
}

impl Open {
    /// Its place in the order in which all were opened.
    fn sequence(&self) -> u64 {
        self.id.0 / SHARDS as u64
    }

    /// The server's number, if there is one.
    pub(crate) fn number(&self) -> Option<OpenId> {
        Some(self.number.load(Ordering::SeqCst)).filter(|number| *number != NONE).map(OpenId)
    }

    /// Over how many servers its blocks are spread; 0: as the map says.
    pub(super) fn width(&self) -> u16 {
        self.width.load(Ordering::SeqCst)
    }

    /// Where it is known, if it is.
    pub(crate) fn real(&self) -> Option<Real> {
        self.number().map(|number| Real { session: self.session, data: self.data, number })
    }

    /// Whether it was answered without the server.
    pub(crate) fn was_local(&self) -> bool {
        self.was_local
    }

    /// Whether the session that answers for the inode moves its bytes as well.
    pub(crate) fn is_moved_here(&self) -> bool {
        self.session == self.data
    }

    /// Whether the inode may be written through it.
    pub(crate) fn writes(&self) -> bool {
        self.flags.is_some_and(|flags| flags.contains(OpenFlags::WRITE))
    }

    /// `None`: a directory.
    pub(crate) fn flags(&self) -> Option<OpenFlags> {
        self.flags
    }

    /// Whether what is written through it may be held back. What moves through another session is
    /// not: its recovery would not know of it.
    pub(crate) fn gathers(&self) -> bool {
        self.flags.is_some_and(holds_back) && self.session == self.data
    }

    /// Its close tells of errors from now on.
    pub(crate) fn wrote(&self) {
        self.wrote.store(true, Ordering::Relaxed);
    }

    /// Whether what is written through it could not be held back lately.
    pub(crate) fn is_contended(&self) -> bool {
        self.is_contended.load(Ordering::Relaxed)
    }

    pub(crate) fn set_contended(&self, is_contended: bool) {
        self.is_contended.store(is_contended, Ordering::Relaxed);
    }

    /// There is no lease on the content. Whether it is time to ask for one: a while after it was
    /// found missing first, which it mostly is since others write.
    pub(super) fn asks_for_content(&self, now: Nanos) -> bool {
        let last = self.lacked_content.load(Ordering::Relaxed);
        if last != 0 && now < last + CONTENT_ASKED_AGAIN {
            return false;
        }
        let is_first = self.lacked_content.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_first && last != 0
    }

    /// Whether it was to be written beside others.
    pub(crate) fn asks_beside_others(&self) -> bool {
        self.asks_beside.load(Ordering::Relaxed)
    }

    pub(crate) fn set_asks_beside_others(&self) {
        self.asks_beside.store(true, Ordering::Relaxed);
    }

    /// A descriptor is closed, which may be the last of its open, and tells of errors.
    pub(crate) fn begins_to_close(&self) {
        self.closes.store(true, Ordering::SeqCst);
    }

    /// A descriptor of it was closed, perhaps the last.
    pub(crate) fn closes(&self) -> bool {
        self.closes.load(Ordering::SeqCst)
    }

    /// How often it could not be had by somebody who needed it.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::SeqCst)
    }

    pub(super) fn fails(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the server has been asked for it since there were so many failures, and has
    /// answered or cannot now.
    pub(crate) fn is_settled(&self, failures: u32) -> bool {
        match *lock(&self.state) {
            State::Real | State::Lost => true,
            State::Local => self.failures() != failures,
            State::Making(_) | State::Closing => false,
        }
    }

    pub(super) fn request(&self) -> Request<'_> {
        match self.flags {
            Some(flags) => Request::Open { handle: &self.handle, flags },
            None => Request::OpenDirectory { handle: &self.handle },
        }
    }

    pub(super) fn release(&self, number: OpenId) -> Request<'static> {
        match self.flags {
            Some(_) => Request::Release { open: number },
            None => Request::ReleaseDirectory { open: number },
        }
    }

    /// Whoever gets true asks the server, and settles it.
    pub(super) fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        let is_local = matches!(*state, State::Local);
        if is_local {
            *state = State::Making(Vec::new());
        }
        is_local
    }

    /// The same in a recovery, which asks also for what is being asked for: that is answered only
    /// when others may have taken right and file away. False: somebody else asks too, and settles
    /// it should the recovery not have it. `None`: nobody needs it.
    pub(super) fn begin_in_recovery(&self) -> Option<bool> {
        if self.begin() {
            return Some(true);
        }
        matches!(*lock(&self.state), State::Making(_)).then_some(false)
    }

    /// An answer has come: the server's number and the file's width, or none. Returns what it was
    /// before; `None`: another answer came first.
    pub(super) fn answered(&self, made: Option<(OpenId, u16)>) -> Option<State> {
        let mut state = lock(&self.state);
        if matches!(*state, State::Real | State::Lost) {
            return None;
        }
        let before = std::mem::replace(&mut *state, if made.is_some() { State::Real } else { State::Lost });
        if let Some((number, width)) = made {
            self.width.store(width, Ordering::SeqCst);
            self.number.store(number.0, Ordering::SeqCst);
        }
        Some(before)
    }

    /// It cannot be had now: whoever needs it asks again. False: it was closed meanwhile.
    pub(super) fn put_back(&self) -> bool {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Making(_)) {
            return false;
        }
        let before = std::mem::replace(&mut *state, State::Local);
        drop(state);
        if let State::Making(wakers) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
        true
    }
}
