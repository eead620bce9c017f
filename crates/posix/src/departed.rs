//! What has just lost its last name: whoever had found it by that name may still come with its
//! handle, and opens it as a local program does that was between finding and opening.
//!
//! A client's kernel that meets ESTALE looks the name up once more and tries again. So one removal
//! in its way costs it nothing, and only names that are replaced again and again need help.
//! Nothing is held here until a handle was asked for that nothing is behind; for a while after
//! that, each file that loses its last name is held by a descriptor, for a moment and within
//! limits. Where nobody meets stale handles a removal costs nothing more, and space is given back
//! at once.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ahash::{HashMap, RandomState};

use crate::lock::lock;

/// How long an inode is held after its last name went: far longer than a request is on its way
/// after the answer that it goes by.
const HELD: Duration = Duration::from_secs(2);

/// How long inodes are held after a client came with a stale handle.
const WANTED: Duration = Duration::from_secs(60);

/// The most inodes that are held: one descriptor and some 700 bytes of the kernel's memory each.
const COUNT_MAX: usize = 1024;

/// The part of this process's descriptors that they may take.
const DESCRIPTORS_SHARE: u64 = 16;

/// The most bytes on the disk that they may take: a larger file takes longer to write than a
/// client takes to look its name up again.
const BYTES_MAX: u64 = 64 << 20;

/// The size of a block in what stat(2) says, in bytes.
const BLOCK: u64 = 512;

/// The locks that keep removals of one name apart: removals of different names rarely meet.
const SHARDS: usize = 64;

/// The inodes that are held, of all exports of a server: who removes a name through one of them may
/// be in the way of a client of another.
pub(crate) struct Departed {
    began: Instant,
    hasher: RandomState,
    /// Until when removals hold what they remove, in milliseconds since `began`.
    wanted_until: AtomicU64,
    removals: [Mutex<()>; SHARDS],
    held: Arc<Held>,
}

struct Held {
    state: Mutex<State>,
    changed: Condvar,
    count_max: usize,
}

#[derive(Default)]
struct State {
    by_name: HashMap<Box<[u8]>, Inode>,
    /// When each was taken, the oldest first. Some are gone from the table.
    order: VecDeque<(Instant, u64, Box<[u8]>)>,
    bytes: u64,
    issued: u64,
    /// A thread lets go of them in time.
    is_watched: bool,
    ended: bool,
}

struct Inode {
    number: u64,
    fd: Arc<OwnedFd>,
    bytes: u64,
    file_system: u64,
}

/// An inode, by its file system's number and the kernel's handle, which are the same through all
/// exports; where the kernel has no handles, by the handle that clients have.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) file_system: u64,
    pub(crate) handle: &'a [u8],
}

impl Name<'_> {
    fn key(self) -> Box<[u8]> {
        [&self.file_system.to_le_bytes(), self.handle].concat().into()
    }
}

impl State {
    /// Takes out the oldest.
    fn pop(&mut self) -> Option<Inode> {
        let (_, number, key) = self.order.pop_front()?;
        if self.by_name.get(&key)?.number != number {
            return None;
        }
        let inode = self.by_name.remove(&key)?;
        self.bytes -= inode.bytes;
        Some(inode)
    }
}

impl Held {
    /// Lets go of each in time, and ends when there is none.
    fn watch(&self) {
        let mut state = lock(&self.state);
        loop {
            let Some((taken, ..)) = state.order.front().filter(|_| !state.ended) else {
                state.is_watched = false;
                return;
            };
            let left = (*taken + HELD).saturating_duration_since(Instant::now());
            if left.is_zero() {
                let inode = state.pop();
                drop(state);
                drop(inode); // outside of the lock: its space is given back now
                state = lock(&self.state);
            } else {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(|poison| poison.into_inner()).0;
            }
        }
    }
}

impl Default for Departed {
    /// Of none so far.
    fn default() -> Departed {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let count_max = (limit / DESCRIPTORS_SHARE).min(COUNT_MAX as u64) as usize;
        Departed {
            began: Instant::now(),
            hasher: RandomState::new(),
            wanted_until: AtomicU64::new(0),
            removals: std::array::from_fn(|_| Mutex::default()),
            held: Arc::new(Held { state: Mutex::default(), changed: Condvar::new(), count_max }),
        }
    }
}

impl Departed {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Whether what is removed now is to be held.
    pub(crate) fn is_wanted(&self) -> bool {
        let until = self.wanted_until.load(Ordering::Relaxed);
        until > 0 && self.now() < until
    }

    /// The inode of a handle that leads nowhere else any more. Who asks is a reason to hold what
    /// is removed from now on.
    pub(crate) fn find(&self, name: Name<'_>) -> Option<Arc<OwnedFd>> {
        self.wanted_until.store(self.now() + WANTED.as_millis() as u64, Ordering::Relaxed);
        lock(&self.held.state).by_name.get(&name.key()).map(|inode| inode.fd.clone())
    }

    /// Waits until nobody else removes this name: of two who remove it at once the second removes
    /// what the first has put there.
    pub(crate) fn removal(&self, directory: Name<'_>, name: &[u8]) -> MutexGuard<'_, ()> {
        lock(&self.removals[self.hasher.hash_one((directory.key(), name)) as usize % SHARDS])
    }

    /// Holds an inode from now on; gives the number by which it can be let go of.
    pub(crate) fn hold(&self, name: Name<'_>, fd: OwnedFd, blocks: u64) -> Option<u64> {
        let bytes = blocks.saturating_mul(BLOCK);
        if bytes > BYTES_MAX {
            return None;
        }
        let mut let_go = Vec::new();
        let mut state = lock(&self.held.state);
        if state.ended || !self.watch(&mut state) {
            return None;
        }
        while state.order.len() >= self.held.count_max || state.bytes + bytes > BYTES_MAX {
            let_go.push(state.pop());
        }
        state.issued += 1;
        let number = state.issued;
        state.bytes += bytes;
        let inode = Inode { number, fd: Arc::new(fd), bytes, file_system: name.file_system };
        let_go.push(state.by_name.insert(name.key(), inode));
        state.bytes -= let_go.last().and_then(Option::as_ref).map_or(0, |before| before.bytes);
        state.order.push_back((Instant::now(), number, name.key()));
        drop(state);
        Some(number)
    }

    /// Has a thread let go of what is held, in time.
    fn watch(&self, state: &mut State) -> bool {
        if !state.is_watched {
            let held = self.held.clone();
            let thread = std::thread::Builder::new().name("departed".into());
            state.is_watched = thread.spawn(move || held.watch()).is_ok();
        }
        state.is_watched
    }

    /// It was not removed after all.
    pub(crate) fn let_go(&self, name: Name<'_>, number: u64) {
        let (key, mut state) = (name.key(), lock(&self.held.state));
        if state.by_name.get(&key).is_some_and(|inode| inode.number == number)
            && let Some(inode) = state.by_name.remove(&key)
        {
            state.bytes -= inode.bytes;
        }
    }

    /// Lets go of all that lie on this file system, or on any, for whoever needs the space.
    /// Whether there were any.
    pub(crate) fn let_go_of_all(&self, file_system: Option<u64>) -> bool {
        let mut state = lock(&self.held.state);
        let is_of_it = |inode: &Inode| file_system.is_none_or(|file_system| inode.file_system == file_system);
        let let_go: Vec<_> = state.by_name.extract_if(|_, inode| is_of_it(inode)).collect();
        state.bytes -= let_go.iter().map(|(_, inode)| inode.bytes).sum::<u64>();
        drop(state);
        !let_go.is_empty()
    }

    /// The inodes held.
    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.held.state).by_name.len()
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        lock(&self.held.state).ended = true;
        self.let_go_of_all(None);
        self.held.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/").unwrap().into()
    }

    fn named(handle: &[u8]) -> Name<'_> {
        Name { file_system: 1, handle }
    }

    #[test]
    fn what_is_held_is_bounded_in_number_in_bytes_and_in_time() {
        let departed = Departed::default();
        assert!(!departed.is_wanted());
        assert!(departed.find(named(b"handle")).is_none());
        assert!(departed.is_wanted(), "somebody came with a stale handle");
        let limit = departed.held.count_max;
        for number in 0..limit as u64 + 10 {
            departed.hold(named(&number.to_le_bytes()), descriptor(), 8).unwrap();
        }
        assert_eq!(departed.len(), limit);
        assert!(
            departed.find(named(&9u64.to_le_bytes())).is_none() && departed.find(named(&10u64.to_le_bytes())).is_some()
        );
        let half = BYTES_MAX / BLOCK / 2;
        assert!(departed.hold(named(b"first"), descriptor(), half).is_some());
        assert!(departed.hold(named(b"second"), descriptor(), half).is_some());
        assert_eq!(departed.len(), 2, "the rest had to go");
        assert!(departed.hold(named(b"third"), descriptor(), 2 * half + 1).is_none(), "it is too large");
        let began = Instant::now();
        while departed.len() > 0 {
            assert!(began.elapsed() < 10 * HELD, "they are let go of");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(lock(&departed.held.state).bytes, 0);
    }

    #[test]
    fn what_is_held_again_or_was_not_removed_is_counted_right() {
        let departed = Departed::default();
        let first = departed.hold(named(b"handle"), descriptor(), 8).unwrap();
        let second = departed.hold(named(b"handle"), descriptor(), 16).unwrap();
        departed.let_go(named(b"handle"), first);
        assert_eq!(departed.len(), 1, "the number of an earlier time");
        departed.let_go(named(b"handle"), second);
        assert_eq!((departed.len(), lock(&departed.held.state).bytes), (0, 0));
        assert!(!departed.let_go_of_all(None));
        let other = Name { file_system: 2, handle: b"handle" };
        for name in [named(b"handle"), other] {
            departed.hold(name, descriptor(), 8).unwrap();
        }
        assert!(departed.let_go_of_all(Some(1)) && !departed.let_go_of_all(Some(1)));
        assert!(departed.find(named(b"handle")).is_none() && departed.find(other).is_some());
        assert_eq!(lock(&departed.held.state).bytes, 8 * BLOCK);
        assert!(departed.let_go_of_all(None) && !departed.let_go_of_all(None));
    }
}
