//! Opens that were answered without the server, and are made there when they are first needed, or before their right or their file could go.

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use aqueduct_fs::{ClientId, Context, Credential, Errno, FileSystem, OpenFlags, OpenId, Request};
use aqueduct_wire::Class;

use super::clock::now;
use super::leases::{Brought, Leases};
use super::shard::{Hash, Nanos};
use crate::client::Client;
use crate::lane::lock;

/// Ids of this client's own have this bit. The server numbers its opens from 1, and never comes so far.
const LOCAL: u64 = 1 << 63;

/// So that workers seldom meet. An id is its number times this, with its shard.
const SHARDS: usize = 16;

/// What stays open for longer, for up to twice as long, the server is asked for: processes there, which no lease keeps waiting, may take file or right away. A
/// program that reads one file after another has none open for that long.
const LOCAL_MAX: Duration = Duration::from_millis(250);

/// Of those the server is asked for so many at once: a few more requests among those of programs.
const ASKED_MAX: usize = 16;

/// The most opens that the server does not know of. With more it is asked for each, so that whether it has room for them is said by open(2), and not found
/// out when they are to be made.
const UNSETTLED_MAX: usize = 1024;

/// So long after it had no room the server is asked for each open.
const FULL_FOR: Nanos = 1_000_000_000;

/// Descriptors that are lost are told of once in so long.
const LOSS_TOLD_EVERY: Nanos = 60_000_000_000;

/// Opens of all inodes.
#[derive(Default)]
pub(crate) struct LocalOpens {
    /// The number of the next.
    next: AtomicU64,
    /// By their inodes.
    shards: [Mutex<Locals>; SHARDS],
    /// Somebody looks after what stays open.
    watched: AtomicBool,
    /// He has looked after all that have numbers below.
    looked_after: AtomicU64,
    /// How many there are that the server does not know of.
    unsettled: AtomicUsize,
    /// Until then the server is asked for each.
    full_until: AtomicU64,
    /// When the latest loss was told of.
    loss_told: AtomicU64,
    /// The inodes of the server's opens through which is written.
    writers: [Mutex<HashMap<OpenId, Writer>>; SHARDS],
}

/// An open through which is written.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) handle: Arc<[u8]>,
    /// What is written through it may be held back.
    pub(super) gathers: bool,
    /// The thread that opened it; 0: unknown.
    by: u32,
    uses: Arc<Uses>,
}

/// What was done through an open.
#[derive(Default)]
struct Uses {
    /// Something was written, or attributes of the file were set by who has it open.
    wrote: AtomicBool,
    closes: AtomicBool,
}

impl Writer {
    pub(super) fn new(handle: Arc<[u8]>, gathers: bool, by: u32) -> Writer {
        Writer { handle, gathers, by, uses: Arc::default() }
    }

    /// A descriptor of it was closed, perhaps the last.
    pub(super) fn closes(&self) -> bool {
        self.uses.closes.load(Ordering::SeqCst)
    }

    /// Its close tells of errors from now on.
    pub(super) fn wrote(&self) {
        self.uses.wrote.store(true, Ordering::Relaxed);
    }
}

type ById = HashMap<OpenId, Arc<LocalOpen>>;

/// The opens of some inodes.
#[derive(Default)]
struct Locals {
    by_id: ById,
    /// Those that the server does not know of.
    by_inode: HashMap<Arc<[u8]>, ById>,
}

/// What is open, by whom.
pub(super) struct LocalOpen {
    pub(super) id: OpenId,
    pub(super) handle: Arc<[u8]>,
    credential: Credential,
    /// `None`: a directory.
    flags: Option<OpenFlags>,
    state: Mutex<State>,
    /// How often the server could not be asked, or had no room, though somebody needed it.
    failures: AtomicU32,
}

enum State {
    /// The server does not know of it.
    Local,
    /// It is being asked; who waits for that.
    Making(Vec<Waker>),
    /// It was closed meanwhile.
    Closing,
    Real(OpenId),
    /// The server would not have it.
    Lost,
}

/// What an id stands for.
pub(super) enum Found {
    /// The server's number.
    Real(OpenId),
    Local(Arc<LocalOpen>),
    /// Of this client's own, and closed.
    Unknown,
}

impl Locals {
    /// The server has been asked for it, or nobody needs it any more. False: that was known.
    fn settled(&mut self, open: &LocalOpen) -> bool {
        let Some(opens) = self.by_inode.get_mut(&open.handle) else { return false };
        let was_unsettled = opens.remove(&open.id).is_some();
        if opens.is_empty() {
            self.by_inode.remove(&open.handle);
        }
        was_unsettled
    }

    fn unsettled(&self) -> impl Iterator<Item = &Arc<LocalOpen>> {
        self.by_inode.values().flat_map(HashMap::values)
    }
}

impl LocalOpens {
    fn of(&self, id: OpenId) -> &Mutex<Locals> {
        &self.shards[id.0 as usize % SHARDS]
    }

    /// A new one. To be called under the lock of the inode's shard, so that who gives its lease back sees it.
    pub(super) fn add(
        &self,
        (handle, hash): (Arc<[u8]>, Hash),
        credential: &Credential,
        flags: Option<OpenFlags>,
    ) -> OpenId {
        let shard = hash.0 % SHARDS as u64;
        let (credential, state, failures) = (credential.clone(), Mutex::new(State::Local), AtomicU32::new(0));
        let mut locals = lock(&self.shards[shard as usize]);
        // Taken under the lock, so that who has seen a later number finds this one.
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let id = OpenId(LOCAL | (number * SHARDS as u64) | shard);
        let open = Arc::new(LocalOpen { id, handle: handle.clone(), credential, flags, state, failures });
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        locals.by_id.insert(id, open.clone());
        locals.by_inode.entry(handle).or_default().insert(id, open);
        id
    }

    /// Whether one more may be answered without the server.
    pub(super) fn has_room(&self, now: Nanos) -> bool {
        self.unsettled.load(Ordering::SeqCst) < UNSETTLED_MAX && now >= self.full_until.load(Ordering::SeqCst)
    }

    fn settled(&self, locals: &mut Locals, open: &LocalOpen) {
        if locals.settled(open) {
            self.unsettled.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The server could not be asked, or could not open anything.
    fn note_failure(&self, error: Errno) {
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

    pub(super) fn add_writer(&self, id: OpenId, writer: Writer) {
        lock(&self.writers[id.0 as usize % SHARDS]).insert(id, writer);
    }

    pub(super) fn writer(&self, id: OpenId) -> Option<Writer> {
        lock(&self.writers[id.0 as usize % SHARDS]).get(&id).cloned()
    }

    /// The inode that is written through this open.
    pub(super) fn written(&self, id: OpenId) -> Option<Arc<[u8]>> {
        self.writer(id).map(|writer| writer.handle)
    }

    /// An open through which a thread writes to an inode, and which it has not begun to close: it is told there what becomes of what it asks for.
    pub(super) fn writer_of(&self, handle: &[u8], by: u32) -> Option<(OpenId, Writer)> {
        let is_it =
            |writer: &Writer| writer.by == by && writer.gathers && *writer.handle == *handle && !writer.closes();
        self.writers.iter().find_map(|writers| {
            let writers = lock(writers);
            let mut found = writers.iter().filter(|(_, writer)| is_it(writer));
            found.next().map(|(id, writer)| (*id, writer.clone()))
        })
    }

    /// A descriptor is closed, which may be the last of its open, and tells of errors.
    pub(super) fn begins_to_close(&self, id: OpenId) {
        if let Some(writer) = lock(&self.writers[id.0 as usize % SHARDS]).get(&id) {
            writer.uses.closes.store(true, Ordering::SeqCst);
        }
    }

    /// The opens through which something was written to an inode.
    pub(crate) fn that_wrote(&self, handle: &[u8]) -> Vec<OpenId> {
        let mut found = Vec::new();
        for writers in &self.writers {
            let writers = lock(writers);
            let wrote = |writer: &Writer| *writer.handle == *handle && writer.uses.wrote.load(Ordering::Relaxed);
            found.extend(writers.iter().filter(|(_, writer)| wrote(writer)).map(|(id, _)| *id));
        }
        found
    }

    pub(super) fn remove_writer(&self, id: OpenId) -> Option<Arc<[u8]>> {
        lock(&self.writers[id.0 as usize % SHARDS]).remove(&id).map(|writer| writer.handle)
    }

    pub(super) fn find(&self, id: OpenId) -> Found {
        if id.0 & LOCAL == 0 {
            return Found::Real(id);
        }
        let Some(open) = lock(self.of(id)).by_id.get(&id).cloned() else { return Found::Unknown };
        let real = match *lock(&open.state) {
            State::Real(real) => Some(real),
            _ => None,
        };
        real.map_or(Found::Local(open), Found::Real)
    }

    /// The inode of a local id.
    pub(super) fn handle(&self, id: OpenId) -> Option<Arc<[u8]>> {
        lock(self.of(id)).by_id.get(&id).map(|open| open.handle.clone())
    }

    /// Those of an inode that the server does not know of.
    pub(super) fn of_inode(&self, handle: &[u8], hash: Hash) -> Vec<Arc<LocalOpen>> {
        let locals = lock(&self.shards[hash.0 as usize % SHARDS]);
        locals.by_inode.get(handle).map(|opens| opens.values().cloned().collect()).unwrap_or_default()
    }

    /// All that the server does not know of.
    pub(super) fn all_local(&self) -> Vec<Arc<LocalOpen>> {
        self.numbered(0..u64::MAX)
    }

    /// Those of them with these numbers.
    fn numbered(&self, numbers: Range<u64>) -> Vec<Arc<LocalOpen>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(lock(shard).unsettled().filter(|open| numbers.contains(&open.number())).cloned());
        }
        found
    }

    /// Whether there is one that nobody has looked after.
    fn has_more(&self) -> bool {
        let first = self.looked_after.load(Ordering::SeqCst);
        self.shards.iter().any(|shard| lock(shard).unsettled().any(|open| open.number() >= first))
    }

    /// Whether nobody looks after what stays open, which the caller does from now on.
    fn is_unwatched(&self) -> bool {
        !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst)
    }

    /// It is closed; returns the server's number if there is one that has to be closed as well.
    pub(super) fn close(&self, id: OpenId) -> Option<OpenId> {
        let mut locals = lock(self.of(id));
        let open = locals.by_id.remove(&id)?;
        let mut state = lock(&open.state);
        match &mut *state {
            State::Real(real) => return Some(*real),
            State::Making(wakers) => {
                let wakers = std::mem::take(wakers);
                *state = State::Closing; // whoever makes it closes it
                drop((state, locals));
                wakers.into_iter().for_each(Waker::wake);
            }
            State::Local => {
                *state = State::Lost;
                self.settled(&mut locals, &open);
            }
            State::Closing | State::Lost => {}
        }
        None
    }
}

impl LocalOpen {
    fn number(&self) -> u64 {
        (self.id.0 & !LOCAL) / SHARDS as u64
    }

    /// How often it could not be had by somebody who needed it.
    pub(super) fn failures(&self) -> u32 {
        self.failures.load(Ordering::SeqCst)
    }

    /// Whether the server has been asked for it since there were so many failures, and has answered or cannot now.
    pub(super) fn is_settled(&self, failures: u32) -> bool {
        match *lock(&self.state) {
            State::Real(_) | State::Lost => true,
            State::Local => self.failures() != failures,
            State::Making(_) | State::Closing => false,
        }
    }

    fn request(&self) -> Request<'_> {
        match self.flags {
            Some(flags) => Request::Open { handle: &self.handle, flags },
            None => Request::OpenDirectory { handle: &self.handle },
        }
    }

    /// Whoever gets true asks the server, and settles it.
    fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        let is_local = matches!(*state, State::Local);
        if is_local {
            *state = State::Making(Vec::new());
        }
        is_local
    }

    /// The same in a recovery, which asks also for what is being asked for: that is answered only when others may have taken right and file away. False:
    /// somebody else asks too, and settles it should the recovery not have it. `None`: nobody needs it.
    fn begin_in_recovery(&self) -> Option<bool> {
        if self.begin() {
            return Some(true);
        }
        matches!(*lock(&self.state), State::Making(_)).then_some(false)
    }

    /// Waits until the server is not being asked any more.
    async fn tried(&self) {
        poll_fn(|task| match &mut *lock(&self.state) {
            State::Making(wakers) => {
                wakers.push(task.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// It cannot be had now: whoever needs it asks again. False: it was closed meanwhile.
    fn put_back(&self) -> bool {
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

/// An answer about an open that was made real has come: it is written down, and who waits for it is woken. A recovery may have asked as well: what came
/// first counts. Returns what nobody needs, so that the server has to close it.
fn settle(leases: &Leases, open: &LocalOpen, made: Result<OpenId, Errno>) -> Option<OpenId> {
    let mut state = lock(&open.state);
    if matches!(*state, State::Real(_) | State::Lost) {
        return made.ok();
    }
    let before = std::mem::replace(&mut *state, made.map_or(State::Lost, State::Real));
    drop(state);
    leases.opens.settled(&mut lock(leases.opens.of(open.id)), open);
    leases.recalls.nudge();
    match (before, made) {
        (State::Making(wakers), made) => {
            wakers.into_iter().for_each(Waker::wake);
            if let Err(error) = made.as_ref()
                && leases.opens.tells_loss()
            {
                tracing::warn!(%error, "a file that was opened without asking the server cannot be had from it: its descriptor gives EIO (more are not told for a minute)");
            }
            None
        }
        (State::Closing, made) => made.ok(),
        _ => None,
    }
}

/// Whether an error is the server's word on right or file. Others are of a server that is away or has no room, now.
fn is_final(error: Errno) -> bool {
    use Errno as E;
    !matches!(error, E::EIO | E::EINTR | E::EAGAIN | E::ENOMEM | E::ENFILE | E::EMFILE | E::ENOSPC | E::ETIMEDOUT)
}

/// Who asks the server for an open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// Somebody who needs it: what the server says of right and file is final.
    Use,
    /// Nobody yet.
    Later,
}

impl Client {
    /// Has the server asked for opens that it does not know of, unless it is being asked already.
    pub(super) fn make_real(&self, open: &Arc<LocalOpen>) {
        self.begin_real(open, For::Use);
    }

    fn begin_real(&self, open: &Arc<LocalOpen>, why: For) {
        let Some(client) = self.this.upgrade().filter(|_| open.begin()) else { return };
        let open = open.clone();
        self.groups[0].spawn(async move {
            let context = Context::new(ClientId(0), open.credential.clone());
            // A recall waits for it, and requests in all ordinary slots may wait for the recall.
            let made = client.answer_call_in(Class::Releasing, &context, open.request(), &mut Brought::default()).await;
            let made = made.and_then(|reply| Ok(reply.opened()?.id));
            let Some(leases) = &client.leases else { return };
            if let Err(error) = made
                && (why == For::Later || !is_final(error))
            {
                leases.opens.note_failure(error);
                open.failures.fetch_add(u32::from(why == For::Use), Ordering::SeqCst);
                if open.put_back() {
                    return leases.recalls.nudge();
                }
            }
            if let Some(real) = settle(leases, &open, made) {
                client.close_real(&open, real).await;
            }
        });
    }

    /// Sees to it that what stays open is made real. To be called after each open that was answered here.
    pub(super) fn watch_opens(&self, leases: &Leases) {
        if !leases.opens.is_unwatched() {
            return;
        }
        let (this, group) = (self.this.clone(), self.groups[0].clone());
        // Those below are open for long enough by then.
        let mut before = leases.opens.next.load(Ordering::SeqCst);
        self.groups[0].spawn(async move {
            loop {
                group.sleep(LOCAL_MAX).await;
                let Some(client) = this.upgrade() else { return };
                let Some(leases) = &client.leases else { return };
                let opens = &leases.opens;
                for some in opens.numbered(opens.looked_after.load(Ordering::SeqCst)..before).chunks(ASKED_MAX) {
                    some.iter().for_each(|open| client.begin_real(open, For::Later));
                    for open in some {
                        open.tried().await;
                    }
                }
                opens.looked_after.store(before, Ordering::SeqCst);
                before = opens.next.load(Ordering::SeqCst);
                if opens.has_more() {
                    continue;
                }
                opens.watched.store(false, Ordering::SeqCst);
                // Looked at after the flag fell: whoever opens later has it watched anew.
                if !opens.has_more() || !opens.is_unwatched() {
                    return;
                }
            }
        });
    }

    async fn close_real(&self, open: &LocalOpen, real: OpenId) {
        let context = Context::new(ClientId(0), open.credential.clone());
        let release = match open.flags {
            Some(_) => Request::Release { open: real },
            None => Request::ReleaseDirectory { open: real },
        };
        if let Err(error) = self.call(&context, release).await {
            tracing::debug!(%error, "a file that was closed while it was being opened has not been closed at the server");
        }
    }

    /// The server's number of an open, which is asked for if there is none yet.
    pub(super) async fn real(&self, open: &Arc<LocalOpen>) -> Result<OpenId, Errno> {
        let before = open.failures();
        poll_fn(|task| {
            let has_failed = || open.failures() != before;
            if !has_failed() {
                self.begin_real(open, For::Use);
            }
            match &mut *lock(&open.state) {
                State::Real(real) => Poll::Ready(Ok(*real)),
                State::Lost => Poll::Ready(Err(Errno::EIO)),
                State::Local if has_failed() => Poll::Ready(Err(Errno::EIO)),
                State::Local => {
                    task.waker().wake_by_ref(); // it was just put back
                    Poll::Pending
                }
                State::Closing => Poll::Ready(Err(Errno::EBADF)),
                State::Making(wakers) => {
                    wakers.push(task.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// In a recovery: has the server open what it does not know of, before others may take the right or the file away; what it cannot be asked for now is
    /// opened when it is used. Returns how many it refused.
    pub(crate) fn open_locals<E>(
        &self,
        mut ask: impl FnMut(&Context, &Request<'_>) -> Result<Option<Result<OpenId, Errno>>, E>,
    ) -> Result<usize, E> {
        let Some(leases) = &self.leases else { return Ok(0) };
        let mut refused = 0;
        for open in &leases.opens.all_local() {
            let Some(asks_alone) = open.begin_in_recovery() else { continue };
            let context = Context::new(ClientId(0), open.credential.clone());
            let asked = ask(&context, &open.request());
            if !asks_alone && !matches!(asked, Ok(Some(Ok(_)))) {
                asked?;
                continue;
            }
            let made = match asked {
                Ok(Some(made)) if made.is_ok() || made.is_err_and(is_final) => made,
                asked => {
                    if !open.put_back() {
                        settle(leases, open, Err(Errno::EBADF)); // it was closed meanwhile
                    }
                    asked?;
                    continue;
                }
            };
            refused += usize::from(made.is_err());
            if let (Some(real), Some(client)) = (settle(leases, open, made), self.this.upgrade()) {
                let open = open.clone();
                self.groups[0].spawn(async move { client.close_real(&open, real).await });
            }
        }
        Ok(refused)
    }
}
