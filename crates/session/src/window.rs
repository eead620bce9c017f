//! The replay window: what was written and is not stable yet, kept so that it can be sent again when the server's machine has lost it.
//!
//! Kept are the bytes themselves, by file and in the order in which their writes were answered, until a Commit or Sync has made them stable. What is kept is
//! bounded: when half of the window is full files are committed in the background, and when all of it is, writers wait. A file that was closed stays here
//! with the token that opens it again.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Credential, Errno, OpenId};
use aqueduct_worker::lock;
use bytes::Bytes;

/// What a kept write takes beside its data, about: its entry here, and the request whose memory the data are part of.
const ENTRY_SIZE: usize = 256;

/// Files that nobody has open any more: beyond, the oldest are committed. At about 1 KiB each with handle and token they take 4 MiB.
const CLOSED_MAX: usize = 4096;

/// Commits under way in the background: the file systems below let several share one write to the journal.
const COMMITTERS_MAX: usize = 4;

/// The window of one client.
pub struct Window {
    /// In bytes; 0: nothing is kept.
    limit: usize,
    /// Those kept. Written under the lock, and read without it.
    bytes: AtomicUsize,
    /// A task waits for quiet.
    is_watched: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// That of the opens, since the last recovery.
    epoch: u64,
    /// The number of the next write.
    next: u64,
    /// By handle.
    files: HashMap<Arc<[u8]>, File>,
    by_open: HashMap<OpenId, Arc<[u8]>>,
    /// Files that nobody has open and of which something is kept.
    closed: usize,
    committers: usize,
    /// The client has left: nothing is kept any more, and nobody waits.
    has_ended: bool,
    /// Everything is to be committed, since the client leaves.
    leaves: bool,
    waiting: Vec<Waker>,
}

struct File {
    through: Through,
    /// Opens of the client through which it was written to.
    opens: usize,
    bytes: usize,
    writes: VecDeque<Kept>,
    is_busy: bool,
}

/// The open through which a file is reached.
#[derive(Clone)]
pub(crate) struct Through {
    pub(crate) open: OpenId,
    pub(crate) credential: Credential,
    pub(crate) token: Box<[u8]>,
    /// The program has closed it since: it has to be opened again.
    pub(crate) closed: bool,
}

/// One write.
#[derive(Clone)]
pub(crate) struct Kept {
    number: u64,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
    /// Under which it was answered.
    pub(crate) verifier: u64,
}

/// What of a file is not stable.
pub(crate) struct Unstable {
    pub(crate) handle: Arc<[u8]>,
    pub(crate) through: Through,
    /// Writes from this number on are not meant: they were answered later.
    pub(crate) mark: u64,
}

/// What became of a write that is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    Done,
    /// Done, and it is time to commit.
    Presses,
    /// A recovery that did not know of it has begun since it was answered.
    Late,
}

fn cost(data: &Bytes) -> usize {
    data.len() + ENTRY_SIZE
}

impl Window {
    /// Of this many bytes.
    pub(crate) fn new(limit: usize) -> Window {
        Window { limit, bytes: AtomicUsize::new(0), is_watched: AtomicBool::new(false), state: Mutex::default() }
    }

    /// How many bytes may be kept; 0: none are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes kept.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.limit > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether writers wait for room.
    pub fn is_full(&self) -> bool {
        self.is_on() && self.bytes() >= self.limit
    }

    /// Waits while it is full; EINTR when cancelled before, EIO when the client leaves.
    pub(crate) async fn room(&self, cancel: &Cancel) -> Result<(), Errno> {
        poll_fn(|task| {
            let mut state = lock(&self.state);
            if !self.is_full() {
                return Poll::Ready(Ok(()));
            }
            if state.has_ended {
                return Poll::Ready(Err(Errno::EIO));
            }
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            state.waiting.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Keeps a write through `open` that was answered in `epoch`. One that is stable itself is kept only over others, which would else be sent again over
    /// it. `look_up` tells how the open is reached.
    pub(crate) fn keep(
        &self,
        (epoch, open): (u64, OpenId),
        (verifier, offset, stable): (u64, u64, bool),
        data: Bytes,
        look_up: impl FnOnce() -> Option<(Box<[u8]>, Through)>,
    ) -> Keeping {
        if data.is_empty() {
            return Keeping::Done;
        }
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if state.epoch != epoch {
            return Keeping::Late;
        }
        let handle = match state.by_open.get(&open) {
            Some(handle) => handle.clone(),
            None => {
                let Some((handle, through)) = look_up() else { return Keeping::Done }; // nobody has it open
                let handle: Arc<[u8]> = handle.into();
                let has_others = state.files.get(&handle).is_some_and(|file| !file.writes.is_empty());
                if stable && !has_others {
                    return Keeping::Done;
                }
                state.add_open(&handle, through);
                handle
            }
        };
        let Some(file) = state.files.get_mut(&handle) else { return Keeping::Done };
        if stable && file.writes.is_empty() {
            return Keeping::Done;
        }
        let cost = cost(&data);
        file.writes.push_back(Kept { number: state.next, offset, data, verifier });
        file.bytes += cost;
        state.next += 1;
        let bytes = self.bytes.fetch_add(cost, Ordering::Relaxed) + cost;
        let presses = self.presses(state, bytes) && state.committers < COMMITTERS_MAX;
        if presses { Keeping::Presses } else { Keeping::Done }
    }

    fn presses(&self, state: &State, bytes: usize) -> bool {
        bytes > self.limit / 2 || state.closed > CLOSED_MAX || (state.leaves && bytes > 0)
    }

    /// The number of the next write: what is kept now has a smaller one. `None`: nothing is.
    pub(crate) fn mark(&self) -> Option<u64> {
        (!self.is_empty()).then(|| lock(&self.state).next)
    }

    /// What of a file is not stable; nothing when all is.
    pub(crate) fn unstable(&self, handle: &[u8]) -> Option<Unstable> {
        let state = lock(&self.state);
        let (handle, file) = state.files.get_key_value(handle).filter(|(_, file)| !file.writes.is_empty())?;
        Some(Unstable { handle: handle.clone(), through: file.through.clone(), mark: state.next })
    }

    /// All files with something that is not stable.
    pub(crate) fn all_unstable(&self) -> Vec<Unstable> {
        let state = lock(&self.state);
        let kept = state.files.iter().filter(|(_, file)| !file.writes.is_empty());
        kept.map(|(handle, file)| Unstable { handle: handle.clone(), through: file.through.clone(), mark: state.next })
            .collect()
    }

    /// The writes of a file, from the oldest, below a mark, that were not answered under `verifier`.
    pub(crate) fn lost(&self, handle: &[u8], mark: u64, verifier: u64) -> Vec<Kept> {
        let state = lock(&self.state);
        let Some(file) = state.files.get(handle) else { return Vec::new() };
        file.writes.iter().filter(|kept| kept.number < mark && kept.verifier != verifier).cloned().collect()
    }

    /// What was lost has been sent again.
    pub(crate) fn renew(&self, handle: &[u8], kept: &Kept, verifier: u64) {
        let mut state = lock(&self.state);
        let Some(file) = state.files.get_mut(handle) else { return };
        // Their numbers grow.
        if let Ok(at) = file.writes.binary_search_by_key(&kept.number, |found| found.number) {
            file.writes[at].verifier = verifier;
        }
    }

    /// The writes of a file below a mark, of this verifier or any, are stable, or of no interest any more.
    pub(crate) fn settle(&self, handle: &[u8], mark: u64, verifier: Option<u64>) {
        let ends = |kept: &Kept| kept.number < mark && verifier.is_none_or(|verifier| kept.verifier == verifier);
        self.change(handle, |kept| !ends(kept));
    }

    /// The file has become as short as this; `mark` is of before. False: a recovery has begun since that was answered in `epoch`, and may have made it
    /// longer again.
    pub(crate) fn trim(&self, epoch: u64, handle: &[u8], size: u64, mark: u64) -> bool {
        // A recovery that begins after this look sends what is left here.
        let state = lock(&self.state);
        if state.epoch != epoch {
            return false;
        }
        self.change_in(state, handle, |kept| {
            if kept.number < mark {
                let left = size.saturating_sub(kept.offset).min(kept.data.len() as u64) as usize;
                kept.data.truncate(left);
            }
            !kept.data.is_empty()
        });
        true
    }

    /// Lets `keeps` change the writes of a file, and say which stay.
    fn change(&self, handle: &[u8], keeps: impl FnMut(&mut Kept) -> bool) {
        self.change_in(lock(&self.state), handle, keeps);
    }

    fn change_in(&self, mut guard: MutexGuard<'_, State>, handle: &[u8], keeps: impl FnMut(&mut Kept) -> bool) {
        let mut dropped = VecDeque::new();
        let state = &mut *guard;
        let Some(file) = state.files.get_mut(handle) else { return };
        let mut keeps = keeps;
        let before = file.bytes;
        for mut kept in std::mem::take(&mut file.writes) {
            if keeps(&mut kept) {
                file.writes.push_back(kept);
            } else {
                dropped.push_back(kept);
            }
        }
        file.bytes = file.writes.iter().map(|kept| cost(&kept.data)).sum();
        self.bytes.fetch_sub(before - file.bytes, Ordering::Relaxed);
        state.closed -= usize::from(file.opens == 0 && before > 0 && file.writes.is_empty());
        state.forget_unused(handle);
        let waiting = std::mem::take(&mut state.waiting);
        drop(guard);
        waiting.into_iter().for_each(Waker::wake);
        drop(dropped); // whose memory goes back to its owner
    }

    /// The program has closed an open.
    pub(crate) fn close(&self, open: OpenId) {
        if !self.is_on() {
            return;
        }
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let Some(handle) = state.by_open.remove(&open) else { return };
        let Some(file) = state.files.get_mut(&handle) else { return };
        file.opens -= 1;
        file.through.closed |= file.through.open == open;
        state.closed += usize::from(file.opens == 0 && !file.writes.is_empty());
        state.forget_unused(&handle);
    }

    /// Another epoch of the opens begins: what is answered in the one before is late.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        lock(&self.state).epoch = epoch;
    }

    /// The next file to commit, for a task that does so in the background; nothing: it may end.
    pub(crate) fn work(&self) -> Option<Unstable> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let only_closed = self.bytes() <= self.limit / 2 && !state.leaves;
        let found = if self.presses(state, self.bytes()) {
            let idle = state.files.iter_mut().filter(|(_, file)| !file.is_busy && !file.writes.is_empty());
            match only_closed {
                true => idle
                    .filter(|(_, file)| file.opens == 0)
                    .min_by_key(|(_, file)| file.writes.front().map(|kept| kept.number)),
                false => idle.max_by_key(|(_, file)| file.bytes),
            }
        } else {
            None
        };
        let Some((handle, file)) = found else {
            state.committers -= 1;
            return None;
        };
        file.is_busy = true;
        Some(Unstable { handle: handle.clone(), through: file.through.clone(), mark: state.next })
    }

    /// Enters a task that asks for [`work`](Window::work); false: there are enough.
    pub(crate) fn begin_work(&self) -> bool {
        let mut state = lock(&self.state);
        let room = state.committers < COMMITTERS_MAX;
        state.committers += usize::from(room);
        room
    }

    /// Work has ended, whatever it came to.
    pub(crate) fn end_work(&self, handle: &[u8]) {
        let mut state = lock(&self.state);
        if let Some(file) = state.files.get_mut(handle) {
            file.is_busy = false;
        }
        state.forget_unused(handle);
    }

    /// Enters the task that waits for quiet; false: there is one.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.load(Ordering::SeqCst) && !self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// Leaves it when nothing is kept; whether it did.
    pub(crate) fn end_watch(&self) -> bool {
        if !self.is_empty() {
            return false;
        }
        self.is_watched.store(false, Ordering::SeqCst);
        // Looked at once more after the flag fell: whoever keeps something later enters a task of its own.
        self.is_empty() || self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// The client has left: whoever waits for room waits in vain.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// From now on everything is to be committed.
    pub(crate) fn leave(&self) {
        lock(&self.state).leaves = true;
    }
}

impl State {
    fn add_open(&mut self, handle: &Arc<[u8]>, through: Through) {
        self.by_open.insert(through.open, handle.clone());
        match self.files.get_mut(handle) {
            Some(file) => {
                self.closed -= usize::from(file.opens == 0 && !file.writes.is_empty());
                file.opens += 1;
                if file.through.closed {
                    file.through = through;
                }
            }
            None => {
                let file = File { through, opens: 1, bytes: 0, writes: VecDeque::new(), is_busy: false };
                self.files.insert(handle.clone(), file);
            }
        }
    }

    fn forget_unused(&mut self, handle: &[u8]) {
        if self.files.get(handle).is_some_and(|file| file.opens == 0 && file.writes.is_empty() && !file.is_busy) {
            self.files.remove(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(open: u64) -> Through {
        Through { open: OpenId(open), credential: Credential::root(), token: Box::from([open as u8]), closed: false }
    }

    fn keep(window: &Window, open: u64, handle: &[u8], offset: u64, data: &'static [u8]) -> Keeping {
        let look_up = || Some((handle.into(), through(open)));
        window.keep((0, OpenId(open)), (7, offset, false), Bytes::from_static(data), look_up)
    }

    /// What would be sent again: offsets and data.
    fn kept(window: &Window, handle: &[u8]) -> Vec<(u64, Vec<u8>)> {
        window.lost(handle, u64::MAX, 8).into_iter().map(|kept| (kept.offset, kept.data.to_vec())).collect()
    }

    #[test]
    fn writes_are_kept_in_order_until_they_are_stable() {
        let window = Window::new(1 << 20);
        assert!(window.is_empty() && window.mark().is_none());
        keep(&window, 1, b"a", 0, b"one");
        keep(&window, 2, b"a", 1, b"two");
        let mark = window.mark().unwrap();
        keep(&window, 1, b"a", 9, b"later");
        keep(&window, 3, b"b", 0, b"other");
        assert_eq!(kept(&window, b"a"), [(0, b"one".to_vec()), (1, b"two".to_vec()), (9, b"later".to_vec())]);
        window.settle(b"a", mark, None);
        assert_eq!(kept(&window, b"a"), [(9, b"later".to_vec())]);
        window.settle(b"a", u64::MAX, Some(6));
        assert_eq!(kept(&window, b"a").len(), 1, "another verifier");
        window.settle(b"a", u64::MAX, Some(7));
        window.settle(b"b", u64::MAX, None);
        assert!(window.is_empty());
        assert_eq!(lock(&window.state).files.len(), 2, "they are open");
        (1..=3).for_each(|open| window.close(OpenId(open)));
        assert!(lock(&window.state).files.is_empty());
        assert!(lock(&window.state).by_open.is_empty());
    }

    #[test]
    fn a_shorter_file_shortens_what_is_kept_of_before() {
        let window = Window::new(1 << 20);
        keep(&window, 1, b"a", 0, b"0123");
        keep(&window, 1, b"a", 2, b"2345");
        keep(&window, 1, b"a", 8, b"89");
        let mark = window.mark().unwrap();
        keep(&window, 1, b"a", 6, b"after");
        assert!(window.trim(0, b"a", 3, mark));
        assert_eq!(kept(&window, b"a"), [(0, b"012".to_vec()), (2, b"2".to_vec()), (6, b"after".to_vec())]);
        assert_eq!(window.bytes(), 3 * ENTRY_SIZE + 9);
        window.begin_epoch(1);
        assert!(!window.trim(0, b"a", 0, mark));
        assert_eq!(keep(&window, 1, b"a", 0, b"x"), Keeping::Late);
    }

    #[test]
    fn a_stable_write_is_kept_only_over_others() {
        let window = Window::new(1 << 20);
        let stable = |data| {
            let look_up = || Some((b"a"[..].into(), through(1)));
            window.keep((0, OpenId(1)), (7, 0, true), Bytes::from_static(data), look_up);
        };
        stable(b"alone");
        assert!(window.is_empty());
        keep(&window, 2, b"a", 0, b"unstable");
        stable(b"over");
        assert_eq!(kept(&window, b"a"), [(0, b"unstable".to_vec()), (0, b"over".to_vec())]);
    }

    #[test]
    fn what_is_closed_stays_and_the_largest_is_committed_first() {
        let window = Window::new(8 * ENTRY_SIZE);
        assert_eq!(keep(&window, 1, b"a", 0, b"a"), Keeping::Done);
        window.close(OpenId(1));
        assert_eq!(lock(&window.state).closed, 1);
        assert!(window.unstable(b"a").unwrap().through.closed);
        keep(&window, 2, b"a", 1, b"a");
        assert_eq!(lock(&window.state).closed, 0);
        assert_eq!(window.unstable(b"a").unwrap().through.open, OpenId(2), "one that is open");
        assert!(window.begin_work() && window.work().is_none(), "nothing presses");
        for number in 0..3 {
            keep(&window, 3, b"b", number, b"b");
        }
        assert_eq!(keep(&window, 3, b"b", 9, b"b"), Keeping::Presses);
        assert!(window.begin_work());
        let first = window.work().unwrap();
        assert_eq!(&first.handle[..], b"b");
        assert_eq!(&window.work().unwrap().handle[..], b"a", "the other is being committed");
        assert!(!window.is_full());
        keep(&window, 3, b"b", 9, b"b");
        keep(&window, 3, b"b", 9, b"b");
        assert!(window.is_full());
        window.settle(b"b", first.mark, Some(7));
        assert!(!window.is_full() && kept(&window, b"b").len() == 2);
    }

    #[test]
    fn who_waits_for_room_does_not_when_the_client_leaves() {
        let window = Window::new(1);
        keep(&window, 1, b"a", 0, b"full");
        let cancel = Cancel::default();
        let mut room = std::pin::pin!(window.room(&cancel));
        let mut task = std::task::Context::from_waker(Waker::noop());
        assert!(room.as_mut().poll(&mut task).is_pending());
        window.end();
        assert_eq!(room.poll(&mut task), Poll::Ready(Err(Errno::EIO)));
        assert!(lock(&window.state).waiting.is_empty());
    }

    #[test]
    fn without_a_limit_nothing_is_full() {
        assert!(!Window::new(0).is_full() && !Window::new(0).is_on());
    }
}
