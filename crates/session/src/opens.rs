//! What a client has open and locked at its server, so that it can have it again after the server was restarted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::HashMap;
use aqueduct_fs::{Context, Credential, Errno, Lock, LockKind, LockSpace, OpenFlags, OpenId, Opened, Reply, Request};
use aqueduct_worker::lock;

use crate::window::Through;

/// The opens and locks of a client. The server bounds their number: it refuses what goes beyond its own limits.
#[derive(Default)]
pub struct Opens {
    state: Mutex<State>,
    /// How many opens are lost, so that nobody looks for one where there is none.
    lost: AtomicUsize,
    /// How many have lost data.
    failed: AtomicUsize,
    /// Files with locks.
    locked: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Counts recoveries. What the server did in an earlier epoch, and is not written down here, a recovery has not seen.
    epoch: u64,
    opens: HashMap<OpenId, Open>,
    /// By the handle of the inode.
    locks: HashMap<Box<[u8]>, Vec<Held>>,
}

#[derive(Clone)]
struct Open {
    credential: Credential,
    token: Box<[u8]>,
    handle: Box<[u8]>,
    directory: bool,
    lost: bool,
    /// Why data that were written are not on the server's disk: the first reason.
    error: Option<Errno>,
    /// Why something that was written and answered did not come to the server, until write or fsync has told it.
    late: Option<Late>,
    /// It was opened for writing.
    writes: bool,
    /// Its release is under way, and may have been executed: nobody uses it any more.
    ending: bool,
}

/// See [`Open`].
#[derive(Clone, Copy)]
struct Late {
    error: Errno,
    /// Something was written through the open: its close tells it. Who has written nothing is told by fsync and write.
    wrote: bool,
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    /// The open through which it was taken, and with which it ends.
    open: OpenId,
    owner: u64,
    space: LockSpace,
    lock: Lock,
    /// What is surely left of it while what gives it up, or changes it, is under way and may have
    /// been executed: others may have got what is not.
    left: LockKind,
}

/// What a recovery asks the server for.
pub(crate) struct Lists {
    pub(crate) opens: Vec<(OpenId, Credential, Box<[u8]>)>,
    pub(crate) locks: Vec<(Credential, OpenId, u64, LockSpace, Lock)>,
}

impl Opens {
    /// The number of the present epoch: connections belong to the one in which they were made.
    pub fn epoch(&self) -> u64 {
        lock(&self.state).epoch
    }

    /// A recovery begins: another epoch, with all that has to be had again. A lock that is being
    /// given up is not: the server may have given it up before it died, and somebody else, perhaps
    /// of this client, have got it since and been told.
    pub(crate) fn begin_epoch(&self) -> Lists {
        let mut state = lock(&self.state);
        state.epoch += 1;
        let present = state.opens.iter().filter(|(_, open)| !open.lost);
        let opens = present.map(|(id, open)| (*id, open.credential.clone(), open.token.clone())).collect();
        let held = state.locks.values().flatten().filter_map(|held| {
            let open = state.opens.get(&held.open).filter(|open| !open.lost && !open.ending)?;
            let lock = Lock { kind: held.left, ..held.lock };
            let is_left = held.left != LockKind::Unlock;
            is_left.then(|| (open.credential.clone(), held.open, held.owner, held.space, lock))
        });
        Lists { opens, locks: held.collect() }
    }

    /// The opens that hold locks.
    pub(crate) fn with_locks(&self) -> Vec<OpenId> {
        let state = lock(&self.state);
        let mut ids: Vec<OpenId> = state.locks.values().flatten().map(|held| held.open).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The open cannot be had again as it was: whoever uses it from now on gets EIO, until it is closed. False: nobody will.
    pub(crate) fn lose(&self, id: OpenId) -> bool {
        let mut state = lock(&self.state);
        let Some(open) = state.opens.get_mut(&id) else { return false };
        if open.ending {
            self.release(&mut state, id);
            return false;
        }
        if !std::mem::replace(&mut open.lost, true) {
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// Data that were written to an inode cannot be made stable: whoever has it open hears of it until he closes it.
    /// Whether anybody has it open.
    pub(crate) fn fail(&self, handle: &[u8], error: Errno) -> bool {
        let mut state = lock(&self.state);
        let mut is_open = false;
        for open in state.opens.values_mut().filter(|open| *open.handle == *handle) {
            is_open = true;
            if open.error.is_none() {
                open.error = Some(error);
                self.failed.fetch_add(1, Ordering::SeqCst);
            }
        }
        is_open
    }

    /// Something that was written to an inode and answered has not come to the server: whoever writes to it hears of it through each of his opens.
    pub fn fail_late(&self, handle: &[u8], wrote: &[OpenId], error: Errno) {
        let mut state = lock(&self.state);
        for (id, open) in state.opens.iter_mut().filter(|(_, open)| open.writes && *open.handle == *handle) {
            if open.late.replace(Late { error, wrote: wrote.contains(id) }).is_none() {
                self.failed.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// The error that sticks to an open, or one that has not been told yet, which is told with this.
    pub fn error(&self, id: OpenId) -> Result<(), Errno> {
        if self.failed.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mut state = lock(&self.state);
        let Some(open) = state.opens.get_mut(&id) else { return Ok(()) };
        let late = open.late.take().map(|late| late.error);
        self.failed.fetch_sub(usize::from(late.is_some()), Ordering::SeqCst);
        open.error.or(late).map_or(Ok(()), Err)
    }

    /// The same, for who closes a descriptor. It goes on to be told: a process that is just being forked closes the descriptors of the one that writes, and nobody
    /// looks at what its closes return.
    pub fn error_at_close(&self, id: OpenId) -> Result<(), Errno> {
        if self.failed.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let state = lock(&self.state);
        let Some(open) = state.opens.get(&id) else { return Ok(()) };
        let late = open.late.filter(|late| late.wrote).map(|late| late.error);
        open.error.or(late).map_or(Ok(()), Err)
    }

    /// Whether it is an open of a directory.
    pub fn is_directory(&self, id: OpenId) -> bool {
        lock(&self.state).opens.get(&id).is_some_and(|open| open.directory)
    }

    /// The inode of an open.
    pub fn handle(&self, id: OpenId) -> Option<Box<[u8]>> {
        lock(&self.state).opens.get(&id).map(|open| open.handle.clone())
    }

    /// The inode of an open, if this client has a lock on it.
    pub(crate) fn locked(&self, id: OpenId) -> Option<Box<[u8]>> {
        let state = lock(&self.state);
        let open = state.opens.get(&id)?;
        state.locks.contains_key(&open.handle).then(|| open.handle.clone())
    }

    /// Whether this client has any locks.
    pub fn has_any_locks(&self) -> bool {
        self.locked.load(Ordering::SeqCst) > 0
    }

    /// Whether this client has any locks on an inode, or its turn there.
    pub fn keeps_others_out(&self, handle: &[u8]) -> bool {
        self.has_any_locks() && lock(&self.state).locks.get(handle).is_some_and(|locks| !locks.is_empty())
    }

    /// Whether this client has any locks on an inode.
    pub fn has_locks(&self, handle: &[u8]) -> bool {
        // Turns are about what is seen, and not about what lasts.
        let is_lasting = |held: &Held| held.space != LockSpace::Turn;
        self.has_any_locks() && lock(&self.state).locks.get(handle).is_some_and(|locks| locks.iter().any(is_lasting))
    }

    /// Whether this client has POSIX locks on an inode.
    pub fn has_posix_locks(&self, handle: &[u8]) -> bool {
        let state = lock(&self.state);
        state.locks.get(handle).is_some_and(|locks| locks.iter().any(|held| held.space == LockSpace::Posix))
    }

    /// How an open's inode is reached: its handle, and what opens it again.
    pub(crate) fn place(&self, id: OpenId) -> Option<(Box<[u8]>, Through)> {
        let state = lock(&self.state);
        let open = state.opens.get(&id)?;
        let (credential, token) = (open.credential.clone(), open.token.clone());
        Some((open.handle.clone(), Through { open: id, credential, token, closed: false }))
    }

    /// What opens it again.
    pub fn token(&self, id: OpenId) -> Option<Box<[u8]>> {
        lock(&self.state).opens.get(&id).map(|open| open.token.clone())
    }

    /// Writes down what another server's token has opened here, which the server answered in
    /// `epoch`. False: a recovery has begun since.
    pub(crate) fn adopt(
        &self,
        epoch: u64,
        context: &Context,
        (handle, writes): (&[u8], bool),
        opened: &Opened,
    ) -> bool {
        let mut state = lock(&self.state);
        let is_present = state.epoch == epoch;
        if is_present && !state.opens.contains_key(&opened.id) {
            state.open(context, (handle, false), opened, writes);
        }
        is_present
    }

    /// EIO when one of these opens is lost.
    pub fn check(&self, ids: impl IntoIterator<Item = OpenId>) -> Result<(), Errno> {
        if self.lost.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let state = lock(&self.state);
        let is_lost = |id: OpenId| state.opens.get(&id).is_some_and(|open| open.lost);
        if ids.into_iter().any(is_lost) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// The error of a request that uses these opens. One that was under way when an open was lost has met a server that does not know it.
    pub(crate) fn explain(&self, error: Errno, ids: impl IntoIterator<Item = OpenId>) -> Errno {
        if error == Errno::EBADF && self.check(ids).is_err() { Errno::EIO } else { error }
    }

    /// An open is about to be released; whether it was lost, so that the server knows nothing of it, and is forgotten now.
    pub(crate) fn end(&self, id: OpenId) -> bool {
        let mut state = lock(&self.state);
        let Some(open) = state.opens.get_mut(&id) else { return false };
        open.ending = true;
        let lost = open.lost;
        if lost {
            self.release(&mut state, id);
            self.lost.fetch_sub(1, Ordering::SeqCst);
        }
        lost
    }

    /// A request is about to be sent. A recovery does not ask again for the part of a lock that
    /// this may give up.
    pub(crate) fn asks(&self, request: &Request<'_>) {
        let (open, owner, space, wanted) = match request {
            Request::SetLock { open, owner, space, lock, .. } => (*open, *owner, *space, *lock),
            Request::Flush { open, owner } => (*open, *owner, LockSpace::Posix, WHOLE),
            _ => return,
        };
        if self.locked.load(Ordering::SeqCst) > 0 {
            let left = |held: &Held| left_by(space, held.left, wanted.kind);
            lock(&self.state).change(open, (owner, space), &wanted, left);
        }
    }

    /// The server has refused the request, for want of room or because of another's lock. It has
    /// taken nothing but flocks, which are given up before they are converted.
    pub(crate) fn is_refused(&self, request: &Request<'_>) {
        if let Request::SetLock { open, owner, space, lock: range, .. } = request
            && (*space != LockSpace::Flock || range.kind == LockKind::Unlock)
        {
            lock(&self.state).change(*open, (*owner, *space), range, |held| held.lock.kind);
        }
    }

    /// Writes down what a request did, which the server answered in `epoch`. False: a recovery has begun since, and did not know of it; nothing is
    /// written down.
    pub(crate) fn note(&self, epoch: u64, context: &Context, request: &Request<'_>, reply: &Reply) -> bool {
        if !matters(request) {
            return true;
        }
        let mut state = lock(&self.state);
        if state.epoch != epoch {
            return false;
        }
        match (request, reply) {
            (Request::Open { handle, flags }, Reply::Opened(opened)) => {
                state.open(context, (handle, false), opened, flags.contains(OpenFlags::WRITE));
            }
            (Request::OpenDirectory { handle }, Reply::Opened(opened)) => {
                state.open(context, (handle, true), opened, false);
            }
            (Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. }, Reply::Created(entry, opened)) => {
                state.open(context, (entry.handle.bytes(), false), opened, flags.contains(OpenFlags::WRITE))
            }
            (Request::Release { open } | Request::ReleaseDirectory { open }, _) => self.release(&mut state, *open),
            (Request::Flush { open, owner }, _) => {
                let of_owner = |held: &Held| held.space == LockSpace::Posix && held.owner == *owner;
                state.unlock_where(*open, of_owner);
            }
            (Request::SetLock { open, owner, space, lock, .. }, _) => {
                let (open, owner, space, lock) = (*open, *owner, *space, *lock);
                state.set_lock(Held { open, owner, space, lock, left: lock.kind });
            }
            _ => {}
        }
        self.locked.store(state.locks.len(), Ordering::SeqCst);
        true
    }

    fn release(&self, state: &mut State, id: OpenId) {
        if let Some(open) = state.release(id) {
            let untold = usize::from(open.error.is_some()) + usize::from(open.late.is_some());
            self.failed.fetch_sub(untold, Ordering::SeqCst);
        }
    }
}

impl State {
    fn open(&mut self, context: &Context, (handle, directory): (&[u8], bool), opened: &Opened, writes: bool) {
        let (credential, token) = (context.credential.clone(), opened.token.clone());
        let (handle, lost, error, late, ending) = (handle.into(), false, None, None, false);
        self.opens.insert(opened.id, Open { credential, token, handle, directory, lost, error, late, writes, ending });
    }

    fn release(&mut self, id: OpenId) -> Option<Open> {
        self.unlock_where(id, |held| held.open == id);
        self.opens.remove(&id)
    }

    /// Forgets locks of the inode that is open as `id`.
    fn unlock_where(&mut self, id: OpenId, ends: impl Fn(&Held) -> bool) {
        let Some(open) = self.opens.get(&id) else { return };
        if let Some(locks) = self.locks.get_mut(&open.handle) {
            locks.retain(|held| !ends(held));
            if locks.is_empty() {
                self.locks.remove(&open.handle);
            }
        }
    }

    /// Writes down what is left of the locks of an owner in a range.
    fn change(&mut self, id: OpenId, (owner, space): (u64, LockSpace), range: &Lock, left: impl Fn(&Held) -> LockKind) {
        let Some(open) = self.opens.get(&id) else { return };
        let Some(locks) = self.locks.get_mut(&open.handle) else { return };
        for held in std::mem::take(locks) {
            let Some(lock) = held.within(owner, space, range) else {
                locks.push(held);
                continue;
            };
            locks.extend(without(&held, range));
            locks.push(Held { lock, left: left(&held), ..held });
        }
    }

    /// Takes a lock over those that its owner has there, or releases them.
    fn set_lock(&mut self, new: Held) {
        let Some(open) = self.opens.get(&new.open) else { return };
        let locks = self.locks.entry(open.handle.clone()).or_default();
        let mut rests = Vec::new();
        locks.retain(|held| {
            let is_there = held.within(new.owner, new.space, &new.lock).is_some();
            if is_there {
                rests.extend(without(held, &new.lock));
            }
            !is_there
        });
        locks.append(&mut rests);
        if new.lock.kind != LockKind::Unlock {
            locks.push(new);
        } else if locks.is_empty() {
            let handle = open.handle.clone();
            self.locks.remove(&handle);
        }
    }
}

/// All of a file.
const WHOLE: Lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Unlock, pid: 0 };

impl Held {
    /// What of it lies within a range, if it is this owner's.
    fn within(&self, owner: u64, space: LockSpace, range: &Lock) -> Option<Lock> {
        let (start, end) = (self.lock.start.max(range.start), self.lock.end.min(range.end));
        let is_it = self.owner == owner && self.space == space && start <= end;
        is_it.then_some(Lock { start, end, ..self.lock })
    }
}

/// What is surely left of a lock while a conversion is under way. A flock is given up before it is
/// converted, except from exclusive to shared, which is one step.
fn left_by(space: LockSpace, held: LockKind, wanted: LockKind) -> LockKind {
    match (held, wanted) {
        (LockKind::Unlock, _) | (_, LockKind::Unlock) => LockKind::Unlock,
        (LockKind::Write, LockKind::Read) => LockKind::Read,
        (LockKind::Read, LockKind::Write) if space != LockSpace::Posix => LockKind::Unlock,
        (held, _) => held,
    }
}

/// What is left of a lock before and behind a range.
fn without(held: &Held, range: &Lock) -> impl Iterator<Item = Held> {
    let part = |start, end| Held { lock: Lock { start, end, ..held.lock }, ..held.clone() };
    let before = (held.lock.start < range.start).then(|| part(held.lock.start, range.start - 1));
    let behind = (held.lock.end > range.end).then(|| part(range.end + 1, held.lock.end));
    before.into_iter().chain(behind)
}

/// Whether a request changes what is open or locked.
fn matters(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Open { .. }
            | Request::OpenDirectory { .. }
            | Request::Create { .. }
            | Request::CreateUnnamed { .. }
            | Request::Release { .. }
            | Request::ReleaseDirectory { .. }
            | Request::Flush { .. }
            | Request::SetLock { .. }
    )
}

#[cfg(test)]
mod tests {
    use aqueduct_fs::ClientId;

    use super::*;

    fn context() -> Context {
        Context::new(ClientId(0), Credential::root())
    }

    fn open(opens: &Opens, id: u64) {
        let opened = Reply::Opened(Opened { id: OpenId(id), token: Box::new([id as u8]), width: 0 });
        let flags = aqueduct_fs::OpenFlags::READ;
        assert!(opens.note(opens.epoch(), &context(), &Request::Open { handle: b"inode", flags }, &opened));
    }

    fn set(opens: &Opens, id: u64, range: (u64, u64), kind: LockKind) {
        let lock = Lock { start: range.0, end: range.1, kind, pid: 1 };
        let request = Request::SetLock { open: OpenId(id), owner: 7, space: LockSpace::Posix, lock, wait: false };
        assert!(opens.note(opens.epoch(), &context(), &request, &Reply::Done));
    }

    fn ranges(opens: &Opens) -> Vec<(u64, u64, LockKind)> {
        let mut ranges: Vec<_> =
            opens.begin_epoch().locks.iter().map(|(.., lock)| (lock.start, lock.end, lock.kind)).collect();
        ranges.sort_by_key(|range| range.0);
        ranges
    }

    #[test]
    fn who_has_a_file_open_hears_of_a_failure_and_nobody_else() {
        let opens = Opens::default();
        assert!(!opens.fail(b"inode", Errno::ESTALE), "nobody has it open");
        open(&opens, 1);
        assert!(!opens.fail(b"another", Errno::ESTALE));
        assert_eq!(opens.error(OpenId(1)), Ok(()));
        assert!(opens.fail(b"inode", Errno::ESTALE) && opens.fail(b"inode", Errno::EIO), "the first one stays");
        assert_eq!(opens.error(OpenId(1)), Err(Errno::ESTALE));
        assert!(opens.note(opens.epoch(), &context(), &Request::Release { open: OpenId(1) }, &Reply::Done));
        assert!(!opens.fail(b"inode", Errno::ESTALE), "it was closed meanwhile");
    }

    #[test]
    fn locks_are_split_and_replaced_as_the_server_does() {
        use LockKind::*;
        let opens = Opens::default();
        open(&opens, 1);
        open(&opens, 2);
        set(&opens, 1, (0, u64::MAX), Write);
        set(&opens, 1, (10, 19), Read);
        assert_eq!(ranges(&opens), [(0, 9, Write), (10, 19, Read), (20, u64::MAX, Write)]);
        set(&opens, 2, (5, 14), Unlock);
        assert_eq!(ranges(&opens), [(0, 4, Write), (15, 19, Read), (20, u64::MAX, Write)]);
        assert_eq!(opens.with_locks(), [OpenId(1)]);
        assert!(opens.note(opens.epoch(), &context(), &Request::Flush { open: OpenId(2), owner: 8 }, &Reply::Done));
        assert_eq!(ranges(&opens).len(), 3, "another owner");
        assert!(opens.note(opens.epoch(), &context(), &Request::Flush { open: OpenId(2), owner: 7 }, &Reply::Done));
        assert!(ranges(&opens).is_empty());
    }

    #[test]
    fn what_was_done_in_an_earlier_epoch_is_not_taken_for_known() {
        let opens = Opens::default();
        open(&opens, 1);
        let before = opens.epoch();
        assert_eq!(opens.begin_epoch().opens.len(), 1);
        let release = Request::Release { open: OpenId(1) };
        assert!(!opens.note(before, &context(), &release, &Reply::Done));
        assert!(opens.note(opens.epoch(), &context(), &release, &Reply::Done));
        assert!(opens.begin_epoch().opens.is_empty());
        let lookup = Request::Lookup { parent: b"p", name: b"n" };
        assert!(opens.note(before, &context(), &lookup, &Reply::Done), "nothing that a recovery looks after");
    }

    #[test]
    fn a_lost_open_gives_errors_until_it_is_closed() {
        let opens = Opens::default();
        open(&opens, 1);
        open(&opens, 2);
        set(&opens, 1, (0, 9), LockKind::Write);
        assert!(opens.lose(OpenId(1)) && opens.lose(OpenId(1)));
        assert_eq!(opens.check([OpenId(1)]), Err(Errno::EIO));
        assert_eq!(opens.check([OpenId(2)]), Ok(()));
        let explained = [1, 2].map(|id| opens.explain(Errno::EBADF, [OpenId(id)]));
        assert_eq!(explained, [Errno::EIO, Errno::EBADF], "also of what was under way");
        assert_eq!(opens.explain(Errno::ENOSPC, [OpenId(1)]), Errno::ENOSPC);
        let lists = opens.begin_epoch();
        assert_eq!((lists.opens.len(), lists.locks.len()), (1, 0));
        assert!(opens.end(OpenId(1)) && !opens.end(OpenId(1)) && !opens.end(OpenId(2)));
        assert_eq!(opens.check([OpenId(1)]), Ok(()), "the server says what it thinks of the id");
        assert!(opens.with_locks().is_empty());
    }

    /// The server may have executed it and died before it said so, and others have got the lock.
    #[test]
    fn what_is_being_given_up_is_not_had_again() {
        use LockKind::*;
        let asks = |opens: &Opens, space, (start, end), kind| {
            let lock = Lock { start, end, kind, pid: 1 };
            let request = Request::SetLock { open: OpenId(1), owner: 7, space, lock, wait: false };
            opens.asks(&request);
            request
        };
        let opens = Opens::default();
        open(&opens, 1);
        set(&opens, 1, (0, 99), Write);
        let unlock = asks(&opens, LockSpace::Posix, (10, 19), Unlock);
        assert_eq!(ranges(&opens), [(0, 9, Write), (20, 99, Write)]);
        opens.is_refused(&unlock);
        assert_eq!(ranges(&opens), [(0, 9, Write), (10, 19, Write), (20, 99, Write)]);
        asks(&opens, LockSpace::Posix, (20, 99), Read);
        assert_eq!(ranges(&opens)[2], (20, 99, Read), "others may have that as well");
        asks(&opens, LockSpace::Posix, (20, 99), Write);
        assert_eq!(ranges(&opens)[2], (20, 99, Read), "which stays until it is more");
        asks(&opens, LockSpace::Flock, (0, u64::MAX), Unlock);
        assert_eq!(ranges(&opens).len(), 3, "the families know nothing of each other");
        opens.asks(&Request::Flush { open: OpenId(1), owner: 8 });
        assert_eq!(ranges(&opens).len(), 3, "another owner");
        opens.asks(&Request::Flush { open: OpenId(1), owner: 7 });
        assert!(ranges(&opens).is_empty());

        let opens = Opens::default();
        open(&opens, 1);
        let flock = |kind| {
            let request = asks(&opens, LockSpace::Flock, (0, u64::MAX), kind);
            assert!(opens.note(opens.epoch(), &context(), &request, &Reply::Done));
        };
        flock(Write);
        asks(&opens, LockSpace::Flock, (0, u64::MAX), Read);
        assert_eq!(ranges(&opens), [(0, u64::MAX, Read)]);
        flock(Read);
        let more = asks(&opens, LockSpace::Flock, (0, u64::MAX), Write);
        opens.is_refused(&more);
        assert!(ranges(&opens).is_empty(), "it is given up before it is more");
        flock(Write);
        assert_eq!(ranges(&opens), [(0, u64::MAX, Write)]);
        assert!(!opens.end(OpenId(1)));
        assert!(ranges(&opens).is_empty(), "its file is being closed");
    }

    /// The server may have executed the release and died before it said so: then there is nothing to have again, and nothing is lost.
    #[test]
    fn what_was_being_closed_is_not_lost() {
        let opens = Opens::default();
        open(&opens, 1);
        set(&opens, 1, (0, 9), LockKind::Write);
        assert!(!opens.end(OpenId(1)));
        assert_eq!(opens.begin_epoch().opens.len(), 1, "or it was not executed, and has to be");
        assert!(!opens.lose(OpenId(1)) && !opens.lose(OpenId(1)));
        assert_eq!(opens.lost.load(Ordering::SeqCst), 0);
        assert!(opens.begin_epoch().opens.is_empty() && opens.with_locks().is_empty());
    }
}
