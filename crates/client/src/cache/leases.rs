//! All that a client keeps under the leases of one session: shards of inodes, an index of the
//! leases by name, and what stands between them and threads, clock and server. Epoch, renewal,
//! recalls and forgetting are that session's: what becomes of another one changes nothing here.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ahash::{HashMap, HashSet, RandomState};
use aqueduct_fs::{Aspects, Context, Credential, Groups, Observer};
use aqueduct_metrics::Counter;
use aqueduct_session::{Brought, Nanos, now};
use aqueduct_wire::LeaseId;
use aqueduct_worker::lock;

use super::clock::Renewal;
use super::gate::Number;
use super::holds::{Holds, Relied};
use super::recalls::{INODES_MAX, Recalls};
use super::scan::Scans;
use super::shard::{Granted, Shard};
use super::view::{Fetched, Hash, Touch, View};
use crate::writeback::{Which, Writeback};

/// So that workers seldom meet.
const SHARDS: usize = 16;

/// Bytes kept, about: what a source tree of 50,000 files takes.
pub(crate) const BYTES_MAX: usize = 32 << 20;

/// Credentials of which verdicts are kept: with 1024 groups each they take 4 MiB.
const CREDENTIALS_MAX: usize = 1024;

/// Whoever sets modes of what he has made (tar, and not cp) goes on to do so. To look for lists takes the server some 20 us for each file.
const BARE_WANTED: Nanos = 10_000_000_000;

/// When one of the limits is reached, this part of a shard leaves.
const LEAVING_PART: usize = 8;

/// The leases by their places, and the number before which no answer brings a new one: one was recalled that had not come yet.
#[derive(Default)]
struct Index {
    handles: HashMap<u32, Arc<[u8]>>,
    floor: Number,
}

/// Counters since the start.
pub(crate) struct Uses {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) recalls: Counter,
}

impl Default for Uses {
    fn default() -> Uses {
        Uses { hits: Counter::sharded(), misses: Counter::sharded(), recalls: Counter::default() }
    }
}

/// See the module.
pub(crate) struct Leases {
    shards: [Mutex<Shard>; SHARDS],
    index: Mutex<Index>,
    hasher: RandomState,
    /// The latest event.
    numbers: AtomicU64,
    renewal: Renewal,
    /// The server says of what is made whether it is bare.
    tells_bare: AtomicBool,
    /// Until then that is asked for.
    bare_wanted_until: AtomicU64,
    /// The number after that of the epoch in which what root of this client has made was root's: it is nobody else at the server.
    root_in: AtomicU64,
    /// A caller's ids do not say what the server lets it do: nothing is kept.
    one_user: AtomicBool,
    age_max: AtomicU64,
    epoch: AtomicU64,
    /// Changes of names under way of which nobody knows for certain what inodes they touch: no attributes are kept meanwhile.
    uncertain: AtomicU32,
    /// Those of them of which nobody knows either whether they are over: until the next session.
    unsettled: AtomicU32,
    /// Nor those that were asked for before.
    attributes_floor: AtomicU64,
    inodes: AtomicUsize,
    bytes: AtomicUsize,
    limits: (usize, usize),
    observer: Mutex<Option<Arc<dyn Observer>>>,
    credentials: Mutex<HashSet<Arc<Credential>>>,
    pub(super) holds: Holds,
    pub(crate) recalls: Recalls,
    /// Files that are written beside others, of each of which somebody looks whether it still is.
    beside: Mutex<HashSet<Arc<[u8]>>>,
    /// What is held back under them.
    pub(crate) writeback: Arc<Writeback>,
    /// The session that grants them, by its place in the volume.
    session: usize,
    /// The volume has no other.
    is_alone: bool,
    pub(super) scans: Mutex<Scans>,
    pub(crate) uses: Uses,
}

/// Whether who may open what can be kept for these callers.
pub(super) fn has_known_groups(credential: &Credential) -> bool {
    matches!(credential.groups, Groups::Known(_))
}

#[cfg(test)]
impl Default for Leases {
    fn default() -> Leases {
        Leases::of_test((INODES_MAX, BYTES_MAX))
    }
}

#[cfg(test)]
impl Leases {
    /// Of so many inodes and bytes, of a session that there is not.
    pub(super) fn of_test(limits: (usize, usize)) -> Leases {
        Leases::within(limits, (0, true), Arc::new(Writeback::new(0, Arc::default())))
    }
}

impl Leases {
    /// Those that a session of a volume grants, of which it is the only one or not.
    pub(crate) fn new((session, is_alone): (usize, bool), writeback: Arc<Writeback>) -> Leases {
        Leases::within((INODES_MAX, BYTES_MAX), (session, is_alone), writeback)
    }

    /// The same, of so many inodes and bytes.
    pub(super) fn within(
        limits: (usize, usize),
        (session, is_alone): (usize, bool),
        writeback: Arc<Writeback>,
    ) -> Leases {
        Leases {
            shards: Default::default(),
            index: Mutex::default(),
            hasher: writeback.hasher().clone(),
            numbers: AtomicU64::new(1),
            renewal: Renewal::default(),
            tells_bare: AtomicBool::new(false),
            bare_wanted_until: AtomicU64::new(0),
            root_in: AtomicU64::new(0),
            one_user: AtomicBool::new(false),
            age_max: AtomicU64::new(u64::MAX),
            epoch: AtomicU64::new(0),
            uncertain: AtomicU32::new(0),
            unsettled: AtomicU32::new(0),
            attributes_floor: AtomicU64::new(0),
            inodes: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            limits,
            observer: Mutex::default(),
            credentials: Mutex::default(),
            holds: Holds::default(),
            recalls: Recalls::default(),
            beside: Mutex::default(),
            writeback,
            session,
            is_alone,
            scans: Mutex::default(),
            uses: Uses::default(),
        }
    }

    /// What the server has said of its leases and of the export.
    pub(crate) fn set_terms(&self, lease_seconds: u32, age_max: u32, one_user: bool) {
        self.one_user.store(one_user, Ordering::SeqCst);
        self.set_lease(lease_seconds);
        let age_max = match age_max {
            0 => u64::MAX,
            milliseconds => u64::from(milliseconds) * 1_000_000,
        };
        self.age_max.store(age_max, Ordering::SeqCst);
    }

    /// A connection was greeted: how long leases last there.
    pub(crate) fn set_lease(&self, seconds: u32) {
        let keeps = !self.one_user.load(Ordering::SeqCst);
        self.renewal.set_lease(if keeps { seconds } else { 0 });
    }

    /// Whether it says of what is made whether it is bare.
    pub(crate) fn set_tells_bare(&self, tells: bool) {
        self.tells_bare.store(tells, Ordering::SeqCst);
    }

    /// Somebody has made in an epoch what is this user's.
    pub(super) fn has_made(&self, context: &Context, uid: u32, epoch: u64) {
        if context.credential.uid == 0 && uid == 0 {
            self.root_in.fetch_max(epoch + 1, Ordering::Relaxed);
        }
    }

    /// Whether root of this client is root at the server.
    pub(super) fn is_root(&self) -> bool {
        self.root_in.load(Ordering::Relaxed) == self.epoch() + 1
    }

    /// Somebody wants to know of access control lists now, and so perhaps of what is made next.
    pub(super) fn wants_bare(&self, now: Nanos) {
        self.bare_wanted_until.store(now + BARE_WANTED, Ordering::Relaxed);
    }

    /// Whether the server is to be asked if what is made is bare.
    pub(super) fn asks_bare(&self) -> bool {
        self.tells_bare.load(Ordering::SeqCst) && now() < self.bare_wanted_until.load(Ordering::Relaxed)
    }

    /// Whether the server grants leases.
    pub(crate) fn is_on(&self) -> bool {
        self.renewal.is_on()
    }

    /// A request that was sent then was answered.
    pub(crate) fn renew(&self, epoch: u64, sent: Nanos) {
        self.renewal.renew(epoch, sent);
    }

    /// The session that grants them.
    pub(super) fn session(&self) -> usize {
        self.session
    }

    /// The present moment, if anything that is kept may be used now.
    pub(super) fn view(&self) -> Option<View> {
        let view = self.any_view();
        (view.now < view.until).then_some(view)
    }

    fn any_view(&self) -> View {
        View { until: self.renewal.until(), now: now(), age_max: self.age_max.load(Ordering::Relaxed) }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// The number for a request that is about to be sent.
    pub(crate) fn asks(&self) -> Number {
        self.numbers.load(Ordering::SeqCst)
    }

    /// The number of a change that has ended, or a lease that was given back.
    fn advance(&self) -> Number {
        self.numbers.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn hash(&self, handle: &[u8]) -> Hash {
        Hash(self.hasher.hash_one(handle))
    }

    pub(super) fn name_hash(&self, parent: Hash, name: &[u8]) -> Hash {
        Hash(self.hasher.hash_one((parent.0, name)))
    }

    /// Looks at a shard or changes it.
    pub(super) fn shard<T>(&self, hash: Hash, look: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = lock(&self.shards[hash.0 as usize % SHARDS]);
        let before = (shard.len(), shard.bytes());
        let value = look(&mut shard);
        let after = (shard.len(), shard.bytes());
        drop(shard);
        for (counter, before, after) in [(&self.inodes, before.0, after.0), (&self.bytes, before.1, after.1)] {
            if after != before {
                counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        }
        value
    }

    /// The oldest that anything may be which is used, in milliseconds; 0: of any age.
    pub(crate) fn age_max(&self) -> u64 {
        match self.age_max.load(Ordering::Relaxed) {
            u64::MAX => 0,
            nanoseconds => nanoseconds / 1_000_000,
        }
    }

    /// Inodes and bytes kept.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.inodes.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Finds what is kept of an inode; what is found is held for the answer.
    pub(super) fn find<T>(
        &self,
        handle: &[u8],
        hold: &mut Relied,
        find: impl FnOnce(&mut Shard, Hash) -> Option<T>,
    ) -> Option<T> {
        let hash = self.hash(handle);
        let found = self.shard(hash, |shard| find(shard, hash).inspect(|_| self.holds.add_answer(hash)))?;
        hold.add(hash);
        Some(found)
    }

    /// A handle to be shared.
    pub(super) fn key(&self, handle: &[u8]) -> Arc<[u8]> {
        self.shard(self.hash(handle), |shard| shard.key(handle)).unwrap_or_else(|| handle.into())
    }

    /// A credential to be shared by all verdicts on it; `None`: there are too many, or only the server knows its groups, which tells nobody when they change.
    pub(super) fn credential(&self, credential: &Credential) -> Option<Arc<Credential>> {
        if !has_known_groups(credential) {
            return None;
        }
        let mut known = lock(&self.credentials);
        if let Some(found) = known.get(credential) {
            return Some(found.clone());
        }
        if known.len() >= CREDENTIALS_MAX {
            known.retain(|found| Arc::strong_count(found) > 1);
        }
        let is_room = known.len() < CREDENTIALS_MAX;
        is_room.then(|| {
            let credential = Arc::new(credential.clone());
            known.insert(credential.clone());
            credential
        })
    }

    /// The file that a handle stands for, for who gathers writes.
    pub(crate) fn which<'a>(&self, handle: &'a [u8]) -> Which<'a> {
        Which { handle, hash: self.hash(handle).0 }
    }

    /// A file is about to be opened for writing. Returns what the kernel has to forget of it first.
    pub(super) fn add_writer(&self, handle: &[u8]) -> Aspects {
        self.shard(self.hash(handle), |shard| shard.add_writer(handle, now()))
    }

    /// It is closed, or was not opened. Whether the server is to be told that nobody writes to the file any more, after which comes
    /// [`end_sharing`](Leases::end_sharing).
    pub(super) fn remove_writer(&self, handle: &[u8]) -> bool {
        let hash = self.hash(handle);
        self.shard(hash, |shard| shard.remove_writer(handle, hash, self.advance()))
    }

    /// It has been told, or is another since that epoch, to which everything is shared.
    pub(super) fn end_sharing(&self, handle: &[u8], epoch: u64) {
        let hash = self.hash(handle);
        self.shard(hash, |shard| {
            if shard.epoch() == epoch {
                shard.end_sharing(hash, self.advance());
            }
        });
    }

    /// Something that was held back of a file has failed: what its attributes are only the server knows.
    pub(crate) fn forget_own(&self, handle: &[u8]) {
        self.shard(self.hash(handle), |shard| shard.forget_own(handle));
    }

    /// Whether attributes that were asked for then may be kept.
    pub(super) fn keeps_attributes(&self, asked: Number) -> bool {
        self.uncertain.load(Ordering::SeqCst) == 0 && asked >= self.attributes_floor.load(Ordering::SeqCst)
    }

    /// A lease has come on an inode: keeps what came with it, as far as it may be.
    pub(super) fn keep<T>(
        &self,
        handle: &[u8],
        (lease, aspects): (LeaseId, Aspects),
        (asked, brought): (Number, &Brought),
        keep: impl FnOnce(&mut Shard, Hash, Fetched) -> T,
    ) -> Option<T> {
        let hash = self.hash(handle);
        let fetched = Fetched { asked, at: brought.sent };
        self.make_room(hash);
        if self.is_over(2) {
            return None; // what leaves is not gone yet
        }
        let mut displaced = None;
        let kept = self.shard(hash, |shard| {
            let key = shard.key(handle).unwrap_or_else(|| handle.into());
            match shard.grant((&key, hash), (lease, aspects), (fetched, now()), brought.epoch) {
                Granted::Late => return None,
                Granted::Kept => {}
                Granted::New => {
                    let mut index = lock(&self.index);
                    if asked < index.floor {
                        shard.take_back(handle);
                        return None;
                    }
                    displaced = index.handles.insert(lease.place(), key.clone()).filter(|other| *other != key);
                }
            }
            Some(keep(shard, hash, fetched))
        });
        if let Some(other) = displaced {
            self.give_back(&other); // the server has given its name to another lease, so it is over
        }
        kept
    }

    /// Gives back what was not used for longest among the inodes of a shard, if there is too much.
    fn make_room(&self, hash: Hash) {
        if self.is_over(1) && self.recalls.has_room() {
            self.recalls.give_back(self.shard(hash, |shard| shard.leave_eldest(LEAVING_PART)));
        }
    }

    /// Whether more may be kept than what comes with leases, which makes room for itself.
    pub(super) fn has_room(&self) -> bool {
        !self.is_over(1)
    }

    /// Whether more is kept than so many times what may be.
    fn is_over(&self, times: usize) -> bool {
        let (inodes, bytes) = self.kept();
        inodes >= self.limits.0 * times || bytes >= self.limits.1 * times
    }

    /// The inode of a lease that is recalled, which leaves from now on; `None`: the server may have it at once.
    pub(super) fn recall(&self, lease: LeaseId) -> Option<Arc<[u8]>> {
        let handle = {
            let mut index = lock(&self.index);
            let handle = index.handles.get(&lease.place()).cloned();
            if handle.is_none() {
                index.floor = self.advance(); // the reply that grants it may still be on its way
            }
            handle?
        };
        let hash = self.hash(&handle);
        let is_it = self.shard(hash, |shard| match shard.lease(&handle) {
            Some((present, _)) if lease.covers(present) => shard.leave(&handle),
            _ => false, // it has had a later name since
        });
        is_it.then_some(handle)
    }

    /// The server says that there is no such inode any more. What is kept of it goes, so that whoever looks up its name again has the server asked.
    pub(super) fn is_gone(&self, handle: &[u8]) {
        let leaves = self.shard(self.hash(handle), |shard| {
            let key = shard.key(handle).filter(|_| !shard.is_leaving(handle))?;
            shard.leave(handle).then_some(key)
        });
        self.recalls.give_back(Vec::from_iter(leaves));
    }

    /// A file is written beside others. Whether nobody looks yet whether it still is, which the
    /// caller does from now on.
    pub(super) fn is_unwatched(&self, handle: &Arc<[u8]>) -> bool {
        lock(&self.beside).insert(handle.clone())
    }

    /// Gives back a lease to write beside others under which nothing was written for so long.
    /// False: there is nothing more to look after.
    pub(super) fn look_after(&self, handle: &Arc<[u8]>, unused: Nanos) -> bool {
        let leaves = self.shard(self.hash(handle), |shard| match shard.beside_used(handle) {
            Some(used) if now() < used + unused => None,
            Some(_) => Some(shard.leave(handle)),
            None => Some(false),
        });
        if let Some(leaves) = leaves {
            lock(&self.beside).remove(handle);
            self.recalls.give_back(Vec::from_iter(leaves.then(|| handle.clone())));
        }
        leaves.is_none()
    }

    pub(super) fn is_held(&self, handle: &[u8]) -> bool {
        self.holds.is_held(self.hash(handle))
    }

    /// Whether an inode is being given back.
    pub(super) fn is_leaving(&self, handle: &[u8]) -> bool {
        self.shard(self.hash(handle), |shard| shard.is_leaving(handle))
    }

    /// What the kernel has to forget of an inode.
    pub(super) fn take_told(&self, handle: &[u8], aspects: Aspects) -> Aspects {
        self.shard(self.hash(handle), |shard| shard.take_told(handle, aspects, now()))
    }

    /// Nothing of an inode is used any more. Returns the name under which its lease is given back.
    pub(super) fn give_back(&self, handle: &[u8]) -> Option<LeaseId> {
        let hash = self.hash(handle);
        let lease = self.shard(hash, |shard| {
            let (lease, breaks) = shard.give_back(handle, hash, self.advance())?;
            if breaks {
                self.begin_uncertain(); // others may now give these names to other inodes than we know of
            }
            Some(lease)
        })?;
        let mut index = lock(&self.index);
        if index.handles.get(&lease.place()).is_some_and(|found| **found == *handle) {
            index.handles.remove(&lease.place());
        }
        Some(lease)
    }

    /// The session begins anew: nothing of before is used any more, neither here nor in the kernel, when this returns.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
        self.renewal.begin_epoch(epoch);
        lock(&self.scans).begins();
        let mut forgotten = Vec::new();
        for at in 0..SHARDS {
            if !self.is_alone {
                self.shard(Hash(at as u64), |shard| forgotten.extend(shard.handles()));
            }
            let broken = self.shard(Hash(at as u64), |shard| shard.begin_epoch(epoch, self.advance()));
            (0..broken).for_each(|_| self.begin_uncertain());
        }
        (0..self.unsettled.swap(0, Ordering::SeqCst)).for_each(|_| self.end_uncertain());
        *lock(&self.index) = Index { floor: self.advance(), ..Index::default() };
        self.holds.wait_for_answers(None);
        let Some(observer) = self.observer() else { return };
        if self.is_alone {
            return observer.forget_everything();
        }
        // What other sessions granted is still so.
        for handle in forgotten {
            observer.forget_names_of(&handle);
            observer.forget(&handle, Aspects::all());
        }
    }

    pub(super) fn set_observer(&self, observer: Arc<dyn Observer>) {
        *lock(&self.observer) = Some(observer);
    }

    /// Has the kernel forget attributes or names that it was told, if that can be done at once. False: somebody has to wait, and has not begun to.
    pub(super) fn forget_at_once(&self, handle: &[u8], told: Aspects) -> bool {
        let Some(observer) = self.observer() else { return true };
        // What the kernel is being told it cannot forget yet.
        !self.holds.has_answers(self.hash(handle)) && observer.forget_at_once(handle, told)
    }

    pub(super) fn observer(&self) -> Option<Arc<dyn Observer>> {
        lock(&self.observer).clone()
    }

    /// A change of this client's own begins. Returns what the kernel has to forget first.
    pub(super) fn begin(&self, touch: &Touch<'_>) -> Aspects {
        let hash = self.hash(touch.handle());
        self.shard(hash, |shard| shard.begin(touch, hash, now()))
    }

    /// A name is about to be changed. What it stands for, if that is known for certain.
    pub(super) fn begin_name(
        &self,
        touch: &Touch<'_>,
        parent: &[u8],
        name: &[u8],
    ) -> (Option<Option<Arc<[u8]>>>, Aspects) {
        let (hash, view) = (self.hash(parent), self.view());
        self.shard(hash, |shard| {
            let known = view.and_then(|view| shard.known(parent, hash, name, &view));
            (known, shard.begin(touch, hash, now()))
        })
    }

    /// It has ended. What came with its answer is kept by `keep` if that tells how things are now.
    pub(super) fn end(&self, touch: &Touch<'_>, asked: Number, settled: bool, keep: impl FnOnce(&mut Shard)) {
        let hash = self.hash(touch.handle());
        let mends = self.shard(hash, |shard| {
            let ended = shard.end(touch, hash, (asked, self.advance()), settled);
            if ended.is_alone {
                keep(shard);
            }
            if let Touch::Name { parent, name, .. } = touch {
                shard.name_changed(parent, name);
            }
            ended.mends
        });
        if mends {
            self.end_uncertain();
        }
    }

    /// From now on no attributes are kept.
    pub(super) fn begin_uncertain(&self) {
        self.uncertain.fetch_add(1, Ordering::SeqCst);
    }

    /// A change that nobody waits for any more may be made until the next session.
    pub(super) fn leave_uncertain(&self) {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
    }

    /// They are again, those that are asked for from now on.
    pub(super) fn end_uncertain(&self) {
        self.attributes_floor.store(self.advance(), Ordering::SeqCst);
        self.uncertain.fetch_sub(1, Ordering::SeqCst);
    }
}
