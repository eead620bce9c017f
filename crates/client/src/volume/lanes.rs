//! What a client writes straight to servers of data: a **lane** for each of them and each file.
//! Pure: no sockets, no threads.
//!
//! What a lane's server has answered and not made stable is kept, in the order of the answers; two
//! writes that lie over each other are never under way at once. All that belongs to a lane's
//! blocks goes through it as long as it is there, and nothing else, so that one place has all
//! copies that may have to be written again, in their order. A lane **closes** when what is
//! under way has been answered and all that is kept is stable; where its server does not answer,
//! when the server of the names has said that nothing of it is executed any more, and has what
//! is kept.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context as TaskContext, Poll, Waker};

use aqueduct_fs::{Credential, OpenId, WriteAt};
use aqueduct_wire::Ordinal;
use aqueduct_worker::{Done, lock};
use bytes::Bytes;

/// Lanes that are there at once; what finds no room goes to the server of the names.
const LANES_MAX: usize = 4096;

/// Bytes kept of one lane, beyond which it is made stable; of all, beyond which who writes waits
/// for that.
const KEPT_OF_LANE: usize = 32 << 20;
const KEPT_MAX: usize = 128 << 20;

/// Says of a write at the server of the names that it may have been executed elsewhere before.
pub(super) const REPEATED: Ordinal = Ordinal { number: 0, settled: 0 };

/// Stands for all servers of data.
pub(super) const ALL: u16 = u16::MAX;

/// Stands for the server of the names, where it has a block.
pub(super) const NAMES: u16 = u16::MAX - 1;

/// A lane's file and server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) handle: Arc<[u8]>,
    pub(super) place: u16,
    /// The epoch of the map by which the server is that of a block; 0 with [`ALL`].
    pub(super) map: u64,
}

/// A write that was answered, and is not known to be stable.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    number: u64,
    pub(super) open: OpenId,
    pub(super) credential: Credential,
    pub(super) offset: u64,
    pub(super) data: Bytes,
    pub(super) verifier: u64,
    /// It is to be stable when it is written again.
    pub(super) is_stable: bool,
    /// It is written beside other clients.
    pub(super) is_shared: bool,
}

/// What was kept of a lane, or of a program's write that was under way.
#[derive(Clone)]
pub(super) struct Left {
    pub(super) key: Key,
    pub(super) kept: Vec<Kept>,
    /// Who waits to hear what becomes of it.
    pub(super) write: Option<Arc<Write>>,
}

/// A program's write that goes by the leases of its client, until it is answered.
#[derive(Default)]
pub(super) struct Write {
    /// It was under way when an epoch ended: whether the recovery has written it.
    written: OnceLock<bool>,
    done: Done,
}

impl Write {
    /// The recovery has seen to it.
    pub(super) fn recovered(&self, is_written: bool) {
        _ = self.written.set(is_written);
        self.done.set();
    }

    /// Whether the recovery has written it.
    pub(super) async fn is_recovered(&self) -> bool {
        self.done.wait().await;
        self.written.get() == Some(&true)
    }
}

/// What a lane is about.
#[derive(Clone, Debug)]
enum State {
    /// A right is being asked for.
    Opening,
    /// Writes go under the right of this token.
    Open(Arc<[u8]>),
    Closing {
        /// Its server does not answer.
        is_dead: bool,
        /// Nothing that was sent is executed any more.
        is_over: bool,
    },
}

struct Lane {
    state: State,
    /// Writes under way.
    flying: usize,
    kept: VecDeque<Kept>,
    bytes: usize,
    is_committing: bool,
    wakers: Vec<Waker>,
}

#[derive(Default)]
struct Lanes {
    /// Of the session of the server of the names.
    epoch: u64,
    /// The epoch of the map that holds.
    map: u64,
    /// There may be something by a map before.
    has_former: bool,
    lanes: HashMap<Key, Lane>,
    /// What is under way to the server of the names instead.
    straight: HashMap<Key, usize>,
    bytes: usize,
    next: u64,
    /// Programs' writes under way.
    writes: HashMap<u64, (Key, Kept, Arc<Write>)>,
    /// Where those go of which is not known what has become of them, those among them that a
    /// recovery sees to.
    unsettled: BTreeMap<u64, Key>,
    /// Who waits for the end of another write.
    waiting: Vec<Waker>,
    /// Files of programs that were killed in the midst of a write, which goes on: how many do.
    abandoned: HashMap<Arc<[u8]>, usize>,
}

/// See the module.
#[derive(Default)]
pub(super) struct AllLanes(Mutex<Lanes>);

/// How a write goes.
pub(super) enum Boarded {
    /// By another map, which holds meanwhile.
    Moved,
    /// To the server of the names.
    Straight,
    /// Whoever is told so asks for a right.
    Opens,
    /// Under the right of this token.
    Flies(Arc<[u8]>),
}

/// What becomes of a write that goes through a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is time to make the lane stable.
    Commits,
    Nothing,
}

impl Lane {
    fn new() -> Lane {
        let (kept, wakers) = (VecDeque::new(), Vec::new());
        Lane { state: State::Opening, flying: 0, kept, bytes: 0, is_committing: false, wakers }
    }

    fn wait(&mut self, task: &TaskContext<'_>) {
        self.wakers.retain(|waker| !waker.will_wake(task.waker()));
        self.wakers.push(task.waker().clone());
    }
}

impl Lanes {
    /// Changes a lane of this epoch, and wakes who waits for that.
    fn change<T>(&mut self, (key, epoch): (&Key, u64), change: impl FnOnce(&mut Lane) -> T) -> Option<(T, Vec<Waker>)> {
        let lane = self.lanes.get_mut(key).filter(|_| self.epoch == epoch)?;
        let changed = change(lane);
        Some((changed, std::mem::take(&mut lane.wakers)))
    }

    /// Whether something of a file is on its way, or kept, by a map before the present one.
    fn has_former(&mut self, handle: &[u8]) -> bool {
        if !self.has_former {
            return false;
        }
        let map = self.map;
        let keys = || self.lanes.keys().chain(self.straight.keys()).filter(|key| key.place != ALL && key.map < map);
        let (has_any, has_it) = (keys().next().is_some(), keys().any(|key| *key.handle == *handle));
        self.has_former = has_any;
        has_it
    }
}

impl AllLanes {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.0)
    }

    fn change<T>(&self, lane: (&Key, u64), change: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let (changed, wakers) = self.lanes().change(lane, change)?;
        wakers.into_iter().for_each(Waker::wake);
        Some(changed)
    }

    /// A write is about to go: how, as soon as that is known. After
    /// [`Straight`](Boarded::Straight) [`landed_straight`](AllLanes::landed_straight) must
    /// follow, after [`Flies`](Boarded::Flies) one of what ends a flight, after
    /// [`Opens`](Boarded::Opens) [`opened`](AllLanes::opened).
    pub(super) fn poll_board(&self, (key, epoch): (&Key, u64), opens: bool, task: &TaskContext<'_>) -> Poll<Boarded> {
        let mut all = self.lanes();
        if key.map > all.map {
            (all.map, all.has_former) = (key.map, true);
        }
        if all.epoch != epoch {
            // A recovery sees to it; nobody counts what goes in vain.
            *all.straight.entry(key.clone()).or_default() += 1;
            return Poll::Ready(Boarded::Straight);
        }
        if let Some(lane) = all.lanes.get_mut(key) {
            return match &lane.state {
                State::Open(token) => {
                    let token = token.clone();
                    lane.flying += 1;
                    Poll::Ready(Boarded::Flies(token))
                }
                _ => {
                    lane.wait(task);
                    Poll::Pending
                }
            };
        }
        if key.map < all.map {
            return Poll::Ready(Boarded::Moved);
        }
        if all.has_former(&key.handle) {
            all.waiting.push(task.waker().clone());
            return Poll::Pending;
        }
        let of_all = Key { place: ALL, map: 0, ..key.clone() };
        let is_free = ![key, &of_all].into_iter().any(|key| all.straight.contains_key(key));
        if opens && is_free && all.lanes.len() < LANES_MAX {
            all.lanes.insert(key.clone(), Lane::new());
            return Poll::Ready(Boarded::Opens);
        }
        *all.straight.entry(key.clone()).or_default() += 1;
        Poll::Ready(Boarded::Straight)
    }

    /// A program's write goes by a lease in this epoch, until [`end_write`](AllLanes::end_write),
    /// as soon as none is under way that it lies over: that one may be written once more. `None`:
    /// another epoch has begun. After its end [`settled`](AllLanes::settled) must follow.
    pub(super) fn poll_begin_write(
        &self,
        (key, epoch): (&Key, u64),
        kept: &Kept,
        task: &TaskContext<'_>,
    ) -> Poll<Option<(u64, Arc<Write>)>> {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return Poll::Ready(None);
        }
        if all.writes.values().any(|(of, other, _)| of.handle == key.handle && other.meets(kept)) {
            all.waiting.push(task.waker().clone());
            return Poll::Pending;
        }
        all.next += 1;
        let (number, write) = (all.next, Arc::<Write>::default());
        all.writes.insert(number, (key.clone(), kept.clone(), write.clone()));
        all.unsettled.insert(number, key.clone());
        Poll::Ready(Some((number, write)))
    }

    /// What a server of data is told with a write that goes there now.
    pub(super) fn ordinal(&self, number: u64, place: u16) -> Ordinal {
        let all = self.lanes();
        let first = all.unsettled.iter().find(|(_, key)| key.place == place);
        Ordinal { number, settled: first.map_or(number, |(first, _)| number.min(*first)) }
    }

    /// Nobody writes it again.
    pub(super) fn settled(&self, number: u64) {
        self.lanes().unsettled.remove(&number);
    }

    /// It is known what has become of it. False: it was under way when its epoch ended, and its
    /// recovery sees to it.
    pub(super) fn end_write(&self, number: u64) -> bool {
        let mut all = self.lanes();
        let is_of_now = all.writes.remove(&number).is_some();
        let waiting = std::mem::take(&mut all.waiting);
        drop(all);
        waiting.into_iter().for_each(Waker::wake);
        is_of_now
    }

    /// Who wrote to a file waits no longer, and what is under way goes on until
    /// [`abandoned_ends`](AllLanes::abandoned_ends).
    pub(super) fn abandoned(&self, handle: &Arc<[u8]>) {
        *self.lanes().abandoned.entry(handle.clone()).or_default() += 1;
    }

    pub(super) fn abandoned_ends(&self, handle: &Arc<[u8]>) {
        let mut all = self.lanes();
        if let Some(count) = all.abandoned.get_mut(handle) {
            *count -= 1;
            if *count == 0 {
                all.abandoned.remove(handle);
            }
        }
        let waiting = std::mem::take(&mut all.waiting);
        drop(all);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether anything is under way for which no program waits.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.lanes().abandoned.is_empty()
    }

    /// Ready when nothing is under way to a file whose program does not wait for it.
    pub(super) fn poll_none_abandoned(&self, handle: &[u8], task: &TaskContext<'_>) -> Poll<()> {
        let mut all = self.lanes();
        if !all.abandoned.contains_key(handle) {
            return Poll::Ready(());
        }
        all.waiting.push(task.waker().clone());
        Poll::Pending
    }

    /// Something goes to the server of the names: no such lane is opened meanwhile.
    pub(super) fn begin_straight(&self, key: &Key) {
        *self.lanes().straight.entry(key.clone()).or_default() += 1;
    }

    /// It has been answered.
    pub(super) fn landed_straight(&self, key: &Key) {
        let mut all = self.lanes();
        if let Some(count) = all.straight.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                all.straight.remove(key);
            }
        }
        let waiting = if all.has_former { std::mem::take(&mut all.waiting) } else { Vec::new() };
        drop(all);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Another map holds from now on. Returns the lanes there are, which are to close.
    pub(super) fn set_map(&self, map: u64) -> Vec<(Key, u64)> {
        let mut all = self.lanes();
        (all.map, all.has_former) = (all.map.max(map), true);
        let lanes = all.lanes.keys().filter(|key| key.map < map);
        lanes.map(|key| (key.clone(), all.epoch)).collect()
    }

    /// Whether there is a lane to a place by a map before this one.
    pub(super) fn has_before(&self, place: u16, map: u64) -> bool {
        self.lanes().lanes.keys().any(|key| key.place == place && key.map < map)
    }

    /// Whoever was told to ask has a right, or none. A lane of which nothing is kept is not there
    /// without one; else it has to close. True: the caller sees to that.
    pub(super) fn opened(&self, key: &Key, epoch: u64, token: Option<Arc<[u8]>>) -> bool {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return false;
        }
        let Some(lane) = all.lanes.get_mut(key) else { return false };
        let wakers = std::mem::take(&mut lane.wakers);
        let mut closes = false;
        match token {
            // What wanted it to close meanwhile goes first.
            Some(token) if matches!(lane.state, State::Opening) => lane.state = State::Open(token),
            Some(_) => closes = true,
            None if lane.kept.is_empty() && lane.flying == 0 => _ = all.lanes.remove(key),
            None => {
                if matches!(lane.state, State::Opening) {
                    lane.state = State::Closing { is_dead: false, is_over: false };
                }
                closes = true;
            }
        }
        let waiting = if all.has_former { std::mem::take(&mut all.waiting) } else { Vec::new() };
        drop(all);
        wakers.into_iter().chain(waiting).for_each(Waker::wake);
        closes
    }

    /// A write has been answered, and is kept unless it is stable.
    pub(super) fn landed(&self, (key, epoch): (&Key, u64), kept: Kept) -> After {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return After::Nothing;
        }
        let (number, cost) = (all.next, kept.data.len());
        let Some(lane) = all.lanes.get_mut(key) else { return After::Nothing };
        lane.flying -= 1;
        let wakers = std::mem::take(&mut lane.wakers);
        let mut after = After::Nothing;
        if kept.verifier != 0 {
            lane.kept.push_back(Kept { number, ..kept });
            lane.bytes += cost;
            let is_open = matches!(lane.state, State::Open(_));
            if lane.bytes >= KEPT_OF_LANE && is_open && !lane.is_committing {
                lane.is_committing = true;
                after = After::Commits;
            }
            all.bytes += cost;
            all.next += 1;
        }
        drop(all);
        wakers.into_iter().for_each(Waker::wake);
        after
    }

    /// A write was refused, so that its right is over. True: the caller asks for another one.
    pub(super) fn refused(&self, key: &Key, epoch: u64, token: &Arc<[u8]>) -> bool {
        let asks = self.change((key, epoch), |lane| {
            lane.flying -= 1;
            let is_the_same = matches!(&lane.state, State::Open(present) if Arc::ptr_eq(present, token));
            if is_the_same {
                lane.state = State::Opening;
            }
            is_the_same
        });
        asks == Some(true)
    }

    /// Nobody knows what has become of a write, and its lane is to close. True: the caller sees to
    /// that.
    pub(super) fn is_dead(&self, key: &Key, epoch: u64) -> bool {
        let closes = self.change((key, epoch), |lane| match &mut lane.state {
            State::Closing { is_dead, .. } => {
                *is_dead = true;
                false
            }
            State::Open(_) | State::Opening => {
                let is_opening = matches!(lane.state, State::Opening);
                lane.state = State::Closing { is_dead: true, is_over: false };
                !is_opening // who asks for a right finds out
            }
        });
        closes == Some(true)
    }

    /// A lane is to close. True: the caller sees to that.
    pub(super) fn close(&self, key: &Key, epoch: u64) -> bool {
        let closes = self.change((key, epoch), |lane| match lane.state {
            State::Closing { .. } => false,
            State::Open(_) => {
                lane.state = State::Closing { is_dead: false, is_over: false };
                true
            }
            State::Opening => {
                lane.state = State::Closing { is_dead: false, is_over: false };
                false // who asks for a right sees to it
            }
        });
        closes == Some(true)
    }

    /// Ready when what a flight does not know is known: nothing of it is executed any more.
    pub(super) fn poll_over(&self, key: &Key, epoch: u64, task: &TaskContext<'_>) -> Poll<()> {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return Poll::Ready(());
        }
        let Some(lane) = all.lanes.get_mut(key) else { return Poll::Ready(()) };
        if matches!(lane.state, State::Closing { is_over: true, .. }) {
            return Poll::Ready(());
        }
        lane.wait(task);
        Poll::Pending
    }

    /// A flight ends of which nothing has come.
    pub(super) fn vanished(&self, key: &Key, epoch: u64) {
        self.change((key, epoch), |lane| lane.flying -= 1);
    }

    /// Ready when nothing of a closing lane is under way (true), or its server does not answer.
    pub(super) fn poll_quiet(&self, key: &Key, epoch: u64, task: &TaskContext<'_>) -> Poll<bool> {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return Poll::Ready(true);
        }
        let Some(lane) = all.lanes.get_mut(key) else { return Poll::Ready(true) };
        match lane.state {
            _ if lane.flying == 0 => Poll::Ready(true),
            State::Closing { is_dead: true, is_over: false } => Poll::Ready(false),
            _ => {
                lane.wait(task);
                Poll::Pending
            }
        }
    }

    /// The server of the names has said that nothing of a lane is executed any more.
    pub(super) fn over(&self, key: &Key, epoch: u64) {
        self.change((key, epoch), |lane| lane.state = State::Closing { is_dead: true, is_over: true });
    }

    /// All that is kept of a lane.
    pub(super) fn kept(&self, key: &Key, epoch: u64) -> Vec<Kept> {
        let all = self.lanes();
        let lane = all.lanes.get(key).filter(|_| all.epoch == epoch);
        lane.map_or_else(Vec::new, |lane| lane.kept.iter().cloned().collect())
    }

    /// A lane has closed.
    pub(super) fn closed(&self, key: &Key, epoch: u64) {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return;
        }
        let Some(lane) = all.lanes.remove(key) else { return };
        all.bytes -= lane.bytes;
        let waiting = if all.has_former { std::mem::take(&mut all.waiting) } else { Vec::new() };
        drop(all);
        lane.wakers.into_iter().chain(waiting).for_each(Waker::wake);
    }

    /// Of what is kept of a file: its lanes, each with the number below which it is now.
    pub(super) fn unstable(&self, handle: Option<&[u8]>) -> Vec<(Key, u64, u64)> {
        let all = self.lanes();
        let is_meant = |key: &Key| handle.is_none_or(|handle| *key.handle == *handle);
        let kept = all.lanes.iter().filter(|(key, lane)| is_meant(key) && !lane.kept.is_empty());
        kept.map(|(key, _)| (key.clone(), all.epoch, all.next)).collect()
    }

    /// A lane was made stable below a number, as its server says with this verifier, or was not.
    /// False: it lost something, or that is not known.
    pub(super) fn committed(&self, (key, epoch): (&Key, u64), below: u64, verifier: Option<u64>) -> bool {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return true;
        }
        let Some(lane) = all.lanes.get_mut(key) else { return true };
        lane.is_committing = false;
        let before = lane.bytes;
        let mut is_whole = verifier.is_some();
        while lane.kept.front().is_some_and(|kept| kept.number < below && Some(kept.verifier) == verifier) {
            let stable = lane.kept.pop_front();
            lane.bytes -= stable.map_or(0, |kept| kept.data.len());
        }
        is_whole &= lane.kept.front().is_none_or(|kept| kept.number >= below);
        let freed = before - lane.bytes;
        let wakers = std::mem::take(&mut lane.wakers);
        all.bytes -= freed;
        drop(all);
        wakers.into_iter().for_each(Waker::wake);
        is_whole
    }

    /// The lanes of a file, or all.
    pub(super) fn of(&self, handle: Option<&[u8]>) -> Vec<(Key, u64)> {
        let all = self.lanes();
        let is_meant = |key: &&Key| handle.is_none_or(|handle| *key.handle == *handle);
        all.lanes.keys().filter(is_meant).map(|key| (key.clone(), all.epoch)).collect()
    }

    /// Ready when a lane is not there any more.
    pub(super) fn poll_closed(&self, key: &Key, epoch: u64, task: &TaskContext<'_>) -> Poll<()> {
        let mut all = self.lanes();
        if all.epoch != epoch {
            return Poll::Ready(());
        }
        match all.lanes.get_mut(key) {
            Some(lane) => {
                lane.wait(task);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Whether so much is kept that who writes has to wait until less is.
    pub(super) fn is_full(&self) -> bool {
        self.lanes().bytes >= KEPT_MAX
    }

    /// Another epoch begins: no right is one any more, and nothing under way is answered. Returns
    /// what was kept, for which another has to see.
    pub(super) fn begin_epoch(&self, epoch: u64) -> Vec<Left> {
        let mut all = self.lanes();
        let lanes = std::mem::take(&mut all.lanes);
        let mut writes: Vec<_> = std::mem::take(&mut all.writes).into_iter().collect();
        (all.epoch, all.bytes) = (epoch, 0);
        let waiting = std::mem::take(&mut all.waiting);
        drop(all);
        waiting.into_iter().for_each(Waker::wake);
        let mut left = Vec::new();
        for (key, lane) in lanes {
            lane.wakers.into_iter().for_each(Waker::wake);
            if !lane.kept.is_empty() {
                left.push(Left { key, kept: lane.kept.into(), write: None });
            }
        }
        // What was answered goes before what was not.
        writes.sort_unstable_by_key(|(number, _)| *number);
        for (_, (key, kept, write)) in writes {
            left.push(Left { key, kept: vec![kept], write: Some(write) });
        }
        left
    }
}

impl Kept {
    /// What was written through an open of the server of the names, and answered with a verifier.
    pub(super) fn new((open, credential): (OpenId, &Credential), (offset, data): (u64, Bytes), verifier: u64) -> Kept {
        let credential = credential.clone();
        Kept { number: 0, open, credential, offset, data, verifier, is_stable: false, is_shared: false }
    }

    /// Whether it lies over another one of its file.
    fn meets(&self, other: &Kept) -> bool {
        let end = |kept: &Kept| kept.offset.saturating_add(kept.data.len() as u64);
        self.offset < end(other) && other.offset < end(self)
    }

    /// The same, of a write that is to be stable or not, beside others or not.
    pub(super) fn of(self, write: &WriteAt, is_shared: bool) -> Kept {
        Kept { is_stable: write.stable, is_shared, ..self }
    }

    /// What the server of the names is told with its repeat.
    pub(super) fn ordinal(&self) -> Option<Ordinal> {
        self.is_shared.then_some(REPEATED)
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
