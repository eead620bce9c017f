//! One at a time: while what tells whether an operation was executed is looked at and written
//! down, the operation executed, and its reply written down, no other client of this server does
//! the like with the same name, or appends to the same file. Else two who race for a name, one of
//! whom wins, could both be told that they won after the server died in between; and who had been
//! told that a name is his could lose it to one before him, taken for not executed and repeated.
//!
//! What else may change the size of a file, as writes do, does so beside others of the kind, and
//! not while anybody appends: what is written down of an append says where it will stand.
//!
//! An exclusion belongs to the operation and not to a thread: the operation may wait for others
//! while it has it. Who waits for it holds no thread either, and gets it in the order of asking.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use aqueduct_fs::{FileSystem, Handle, Request};
use aqueduct_worker::lock;
use hashbrown::HashTable;

use crate::lease::InodeKey;
use crate::lease::keeper::Keeper;

/// The parts of the table, each with its own lock, which is held for a look only: 64 keep apart as
/// many threads as a server has.
const SHARDS: usize = 64;

/// A hash of what is excluded, with a key of this process, so that nobody can make two meet. Two
/// that meet all the same, once in 2^64 times, wait for each other without need.
type Key = u64;

/// Who has what at present, and who waits for it: at most one entry for each request under way.
pub(crate) struct Exclusion {
    hasher: RandomState,
    shards: [Mutex<HashTable<Held>>; SHARDS],
}

/// What somebody has.
struct Held {
    key: Key,
    /// How many share it; 0: one has it alone.
    sharers: usize,
    waiting: VecDeque<Arc<Turn>>,
}

impl Held {
    /// Lets in whose turn it is, when nobody has it, or several share it: who has waited longest,
    /// or all in front of the queue who share it. The wakers are for whoever has let go of the
    /// shard.
    fn let_in(&mut self) -> Vec<Waker> {
        let is_for_one = self.waiting.front().is_some_and(|next| !next.shares);
        if is_for_one && self.sharers == 0 {
            return self.waiting.pop_front().and_then(|next| next.give()).into_iter().collect();
        }
        let mut wakers = Vec::new();
        while let Some(next) = self.waiting.front().filter(|next| next.shares).cloned() {
            self.waiting.pop_front();
            self.sharers += 1;
            wakers.extend(next.give());
        }
        wakers
    }
}

/// One who waits. Changed under the lock of the shard.
#[derive(Default)]
struct Turn {
    /// He may have it beside others who share it.
    shares: bool,
    state: Mutex<TurnState>,
}

#[derive(Default)]
struct TurnState {
    has_come: bool,
    waker: Option<Waker>,
}

impl Turn {
    /// Hands over; the waker is for whoever has let go of the shard.
    fn give(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.has_come = true;
        state.waker.take()
    }

    fn has_come(&self) -> bool {
        lock(&self.state).has_come
    }

    fn poll(&self, task: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.has_come {
            return Poll::Ready(());
        }
        state.waker = Some(task.waker().clone());
        Poll::Pending
    }
}

impl Default for Exclusion {
    fn default() -> Exclusion {
        Exclusion { hasher: RandomState::new(), shards: [const { Mutex::new(HashTable::new()) }; SHARDS] }
    }
}

impl Exclusion {
    fn shard(&self, key: Key) -> &Mutex<HashTable<Held>> {
        &self.shards[(key >> 32) as usize % SHARDS]
    }

    /// Has others kept away until what this gives is dropped.
    fn take(&self, key: Key) -> Taking<'_> {
        Taking { exclusion: self, key, shares: false, turn: None, is_over: false }
    }

    /// The same, but for those who share it.
    fn share(&self, key: Key) -> Taking<'_> {
        Taking { exclusion: self, key, shares: true, turn: None, is_over: false }
    }

    /// Takes what nobody has, or what others share for whom nobody waits; else queues.
    fn take_or_queue(&self, key: Key, shares: bool) -> Option<Arc<Turn>> {
        let mut shard = lock(self.shard(key));
        match shard.find_mut(key, |held| held.key == key) {
            Some(held) if shares && held.sharers > 0 && held.waiting.is_empty() => {
                held.sharers += 1;
                None
            }
            Some(held) => {
                let turn = Arc::new(Turn { shares, state: Mutex::default() });
                held.waiting.push_back(turn.clone());
                Some(turn)
            }
            None => {
                let held = Held { key, sharers: shares.into(), waiting: VecDeque::new() };
                shard.insert_unique(key, held, |held| held.key);
                None
            }
        }
    }

    /// One has it no more: the last hands over to whoever has waited longest.
    fn release(&self, key: Key) {
        let mut shard = lock(self.shard(key));
        let Ok(mut entry) = shard.find_entry(key, |held| held.key == key) else { return };
        let held = entry.get_mut();
        held.sharers = held.sharers.saturating_sub(1);
        if held.sharers > 0 {
            return;
        }
        if held.waiting.is_empty() {
            entry.remove();
            return;
        }
        let wakers = held.let_in();
        drop(shard);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Waits for an exclusion. One that is dropped leaves the queue.
struct Taking<'a> {
    exclusion: &'a Exclusion,
    key: Key,
    shares: bool,
    turn: Option<Arc<Turn>>,
    /// The exclusion is another's business: it was handed out.
    is_over: bool,
}

impl<'a> Future for Taking<'a> {
    type Output = Excluded<'a>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Excluded<'a>> {
        if self.turn.is_none() {
            self.turn = self.exclusion.take_or_queue(self.key, self.shares);
        }
        if self.turn.as_ref().is_some_and(|turn| turn.poll(task).is_pending()) {
            return Poll::Pending;
        }
        self.is_over = true;
        Poll::Ready(Excluded { exclusion: self.exclusion, key: self.key })
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take().filter(|_| !self.is_over) else { return };
        let mut shard = lock(self.exclusion.shard(self.key));
        let has_come = turn.has_come();
        let mut wakers = Vec::new();
        if let Some(held) = shard.find_mut(self.key, |held| held.key == self.key).filter(|_| !has_come) {
            held.waiting.retain(|other| !Arc::ptr_eq(other, &turn));
            if held.sharers > 0 {
                wakers = held.let_in(); // who waited for nobody but this one
            }
        }
        drop(shard);
        wakers.into_iter().for_each(Waker::wake);
        if has_come {
            self.exclusion.release(self.key);
        }
    }
}

/// Keeps others away until it is dropped.
pub(crate) struct Excluded<'a> {
    exclusion: &'a Exclusion,
    key: Key,
}

impl Drop for Excluded<'_> {
    fn drop(&mut self) {
        self.exclusion.release(self.key);
    }
}

/// The names of an operation, which are taken in the order of their keys, so that nobody waits for
/// another who waits for him.
#[derive(Default)]
pub(crate) struct ExcludedNames<'a> {
    _pair: [Option<Excluded<'a>>; 2],
    more: Vec<Excluded<'a>>,
}

impl Exclusion {
    /// For an append to a file. As leases do, exclusions go by the inode: more than one export may
    /// lead to it.
    pub(crate) async fn appends(&self, leases: &Keeper, filesystem: &dyn FileSystem, handle: &Handle) -> Excluded<'_> {
        self.take(self.file(leases, filesystem, handle.bytes())).await
    }

    /// For what else may change the size of a file: beside others of the kind, and no append.
    pub(crate) async fn resizes(&self, leases: &Keeper, filesystem: &dyn FileSystem, handle: &[u8]) -> Excluded<'_> {
        self.share(self.file(leases, filesystem, handle)).await
    }

    fn file(&self, leases: &Keeper, filesystem: &dyn FileSystem, handle: &[u8]) -> Key {
        let InodeKey(file) = leases.key(filesystem, handle);
        self.hasher.hash_one(file)
    }

    /// For what makes or removes names.
    pub(crate) async fn names(
        &self,
        leases: &Keeper,
        filesystem: &dyn FileSystem,
        request: &Request<'_>,
    ) -> ExcludedNames<'_> {
        let key = |parent, name: &[u8]| {
            let InodeKey(parent) = leases.key(filesystem, parent);
            self.hasher.hash_one((parent, name))
        };
        let (one, other) = match *request {
            Request::Create { parent, name, .. }
            | Request::MakeDirectory { parent, name, .. }
            | Request::MakeNode { parent, name, .. }
            | Request::Symlink { parent, name, .. }
            | Request::Link { parent, name, .. }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name } => (key(parent, name), None),
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                let (one, other) = (key(parent, name), key(new_parent, new_name));
                (one.min(other), Some(one.max(other)).filter(|_| one != other))
            }
            Request::PutFiles { parent, files, .. } => {
                let files = aqueduct_fs::put::unpack(files).unwrap_or_default();
                let keys: BTreeSet<Key> = files.iter().map(|file| key(parent, file.name)).collect();
                let mut all = ExcludedNames::default();
                for key in keys {
                    all.more.push(self.take(key).await);
                }
                return all;
            }
            _ => return ExcludedNames::default(),
        };
        let first = self.take(one).await;
        let second = match other {
            Some(other) => Some(self.take(other).await),
            None => None,
        };
        ExcludedNames { _pair: [Some(first), second], more: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Waiting<'a> {
        taking: Pin<Box<Taking<'a>>>,
        wakes: Arc<Wakes>,
    }

    impl<'a> Waiting<'a> {
        fn new(exclusion: &'a Exclusion, key: Key) -> Waiting<'a> {
            Waiting { taking: Box::pin(exclusion.take(key)), wakes: Arc::default() }
        }

        fn sharing(exclusion: &'a Exclusion) -> Waiting<'a> {
            Waiting { taking: Box::pin(exclusion.share(7)), wakes: Arc::default() }
        }

        fn poll(&mut self) -> Option<Excluded<'a>> {
            let waker = Waker::from(self.wakes.clone());
            match self.taking.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(excluded) => Some(excluded),
                Poll::Pending => None,
            }
        }

        fn is_woken(&self) -> bool {
            self.wakes.0.load(Ordering::SeqCst) > 0
        }
    }

    fn is_empty(exclusion: &Exclusion) -> bool {
        exclusion.shards.iter().all(|shard| lock(shard).is_empty())
    }

    #[test]
    fn who_asked_first_is_first_and_others_are_left_alone() {
        let exclusion = Exclusion::default();
        let [mut one, mut two, mut three, mut other] = [7, 7, 7, 8].map(|key| Waiting::new(&exclusion, key));
        let first = one.poll().unwrap();
        assert!(other.poll().is_some(), "what has another key");
        assert!(two.poll().is_none() && three.poll().is_none() && two.poll().is_none());
        drop(first);
        assert_eq!((two.is_woken(), three.is_woken()), (true, false));
        assert!(three.poll().is_none(), "who comes later does not overtake");
        assert!(Waiting::new(&exclusion, 7).poll().is_none());
        let second = two.poll().unwrap();
        drop(second);
        assert!(three.is_woken());
        drop(three.poll().unwrap());
        assert!(is_empty(&exclusion), "nothing is kept of what nobody has");
    }

    #[test]
    fn who_goes_away_holds_nobody_up() {
        let exclusion = Exclusion::default();
        let [mut one, mut two, mut three, mut four] = [7; 4].map(|key| Waiting::new(&exclusion, key));
        let first = one.poll().unwrap();
        assert!(two.poll().is_none() && three.poll().is_none() && four.poll().is_none());
        drop(two); // while it waits
        drop(first);
        assert!(three.is_woken());
        drop(three); // when its turn has come, and before it knows
        assert!(four.is_woken());
        drop(four.poll().unwrap());
        drop(Waiting::new(&exclusion, 7)); // before it asked
        assert!(is_empty(&exclusion));
    }

    #[test]
    fn those_who_share_keep_only_others_waiting() {
        let exclusion = Exclusion::default();
        let [mut one, mut two, mut late, mut later] = [(); 4].map(|()| Waiting::sharing(&exclusion));
        let [mut alone, mut last] = [7; 2].map(|key| Waiting::new(&exclusion, key));
        let [first, second] = [one.poll().unwrap(), two.poll().unwrap()];
        assert!(alone.poll().is_none());
        assert!(late.poll().is_none() && later.poll().is_none(), "they do not overtake");
        assert!(last.poll().is_none());
        drop(first);
        assert!(!alone.is_woken(), "one of two has left");
        drop(second);
        assert!(alone.is_woken() && !late.is_woken());
        let had = alone.poll().unwrap();
        assert!(late.poll().is_none());
        drop(had);
        assert!(late.is_woken() && later.is_woken() && !last.is_woken(), "both at once");
        let [third, fourth] = [late.poll().unwrap(), later.poll().unwrap()];
        drop((third, fourth));
        drop(last.poll().unwrap());
        assert!(is_empty(&exclusion));
    }

    #[test]
    fn who_waits_behind_one_that_goes_away_shares_at_once() {
        let exclusion = Exclusion::default();
        let [mut one, mut two, mut three] = [(); 3].map(|()| Waiting::sharing(&exclusion));
        let [mut alone, mut last] = [7; 2].map(|key| Waiting::new(&exclusion, key));
        let first = one.poll().unwrap();
        assert!(alone.poll().is_none() && two.poll().is_none() && last.poll().is_none());
        drop(alone);
        assert!(two.is_woken() && !last.is_woken());
        drop(two); // when its turn has come, and before it knows
        drop(first);
        assert!(last.is_woken());
        assert!(three.poll().is_none());
        drop(last.poll().unwrap());
        drop(three.poll().unwrap());
        assert!(is_empty(&exclusion), "nothing is kept of what nobody has");
    }

    #[test]
    fn threads_have_their_turns_one_at_a_time() {
        const TURNS: usize = 2000;
        let spin_max = std::time::Duration::ZERO;
        let settings = aqueduct_worker::Settings { name: "test".into(), threads_min: 4, threads_max: 4, spin_max };
        let group = aqueduct_worker::Group::new(settings).unwrap();
        let (exclusion, inside) = (Arc::new(Exclusion::default()), Arc::new(AtomicUsize::new(0)));
        let (done, all) = std::sync::mpsc::channel();
        for _ in 0..8 {
            let (exclusion, inside, done, group_of) = (exclusion.clone(), inside.clone(), done.clone(), group.clone());
            group.spawn(async move {
                for turn in 0..TURNS {
                    let excluded = exclusion.take(7).await;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else has it");
                    if turn % 100 == 0 {
                        // As one that waits for others.
                        group_of.sleep(std::time::Duration::from_micros(100)).await;
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(excluded);
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..8 {
            all.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        }
        assert!(is_empty(&exclusion));
        group.stop();
        group.join();
    }
}
