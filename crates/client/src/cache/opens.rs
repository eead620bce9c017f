//! Opens that were answered without the server, and are made there when they are first needed, or before their right or their file could go.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use aqueduct_fs::{ClientId, Context, Credential, Errno, FileSystem, OpenFlags, OpenId, Request};

use super::leases::Leases;
use crate::client::Client;
use crate::lane::lock;

/// Ids of this client's own have this bit. The server numbers its opens from 1, and never comes so far.
const LOCAL: u64 = 1 << 63;

/// So that workers seldom meet.
const SHARDS: usize = 16;

/// Opens of all inodes.
#[derive(Default)]
pub(super) struct LocalOpens {
    next: AtomicU64,
    by_id: [Mutex<HashMap<OpenId, Arc<LocalOpen>>>; SHARDS],
    /// Those that the server does not know of.
    by_inode: Mutex<OfInodes>,
    /// The inodes of the server's opens through which is written.
    writers: [Mutex<HashMap<OpenId, Arc<[u8]>>>; SHARDS],
}

type OfInodes = HashMap<Arc<[u8]>, Vec<Arc<LocalOpen>>>;

/// What is open, by whom.
pub(super) struct LocalOpen {
    pub(super) id: OpenId,
    pub(super) handle: Arc<[u8]>,
    credential: Credential,
    /// `None`: a directory.
    flags: Option<OpenFlags>,
    state: Mutex<State>,
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

impl LocalOpens {
    fn of(&self, id: OpenId) -> &Mutex<HashMap<OpenId, Arc<LocalOpen>>> {
        &self.by_id[id.0 as usize % SHARDS]
    }

    /// A new one. To be called under the lock of the inode's shard, so that who gives its lease back sees it.
    pub(super) fn add(&self, handle: Arc<[u8]>, credential: &Credential, flags: Option<OpenFlags>) -> OpenId {
        let id = OpenId(LOCAL | self.next.fetch_add(1, Ordering::Relaxed));
        let (credential, state) = (credential.clone(), Mutex::new(State::Local));
        let open = Arc::new(LocalOpen { id, handle: handle.clone(), credential, flags, state });
        lock(self.of(id)).insert(id, open.clone());
        lock(&self.by_inode).entry(handle).or_default().push(open);
        id
    }

    pub(super) fn add_writer(&self, id: OpenId, handle: Arc<[u8]>) {
        lock(&self.writers[id.0 as usize % SHARDS]).insert(id, handle);
    }

    /// The inode that is written through this open.
    pub(super) fn written(&self, id: OpenId) -> Option<Arc<[u8]>> {
        lock(&self.writers[id.0 as usize % SHARDS]).get(&id).cloned()
    }

    pub(super) fn remove_writer(&self, id: OpenId) -> Option<Arc<[u8]>> {
        lock(&self.writers[id.0 as usize % SHARDS]).remove(&id)
    }

    pub(super) fn find(&self, id: OpenId) -> Found {
        if id.0 & LOCAL == 0 {
            return Found::Real(id);
        }
        let Some(open) = lock(self.of(id)).get(&id).cloned() else { return Found::Unknown };
        let real = match *lock(&open.state) {
            State::Real(real) => Some(real),
            _ => None,
        };
        real.map_or(Found::Local(open), Found::Real)
    }

    /// The inode of a local id.
    pub(super) fn handle(&self, id: OpenId) -> Option<Arc<[u8]>> {
        lock(self.of(id)).get(&id).map(|open| open.handle.clone())
    }

    /// Those of an inode that the server does not know of.
    pub(super) fn of_inode(&self, handle: &[u8]) -> Vec<Arc<LocalOpen>> {
        lock(&self.by_inode).get(handle).cloned().unwrap_or_default()
    }

    /// All that the server does not know of.
    pub(super) fn all_local(&self) -> Vec<Arc<LocalOpen>> {
        lock(&self.by_inode).values().flatten().cloned().collect()
    }

    fn settled(&self, open: &LocalOpen) {
        let mut by_inode = lock(&self.by_inode);
        if let Some(opens) = by_inode.get_mut(&open.handle) {
            opens.retain(|other| other.id != open.id);
            if opens.is_empty() {
                by_inode.remove(&open.handle);
            }
        }
    }

    /// It is closed; returns the server's number if there is one that has to be closed as well.
    pub(super) fn close(&self, id: OpenId) -> Option<OpenId> {
        let open = lock(self.of(id)).remove(&id)?;
        let mut state = lock(&open.state);
        match &*state {
            State::Real(real) => return Some(*real),
            State::Making(_) => *state = State::Closing, // whoever makes it closes it
            State::Local => {
                *state = State::Lost;
                drop(state);
                self.settled(&open);
            }
            State::Closing | State::Lost => {}
        }
        None
    }
}

impl LocalOpen {
    /// Whether the server has been asked for it, and has answered.
    pub(super) fn is_settled(&self) -> bool {
        matches!(*lock(&self.state), State::Real(_) | State::Lost)
    }

    fn request(&self) -> Request<'_> {
        match self.flags {
            Some(flags) => Request::Open { handle: &self.handle, flags },
            None => Request::OpenDirectory { handle: &self.handle },
        }
    }
}

/// An answer about an open that was made real has come: it is written down, and who waits for it is woken. Returns what was closed meanwhile, so that the
/// server has to close it.
fn settle(leases: &Leases, open: &LocalOpen, made: Result<OpenId, Errno>) -> Option<OpenId> {
    let state = if let Ok(real) = made { State::Real(real) } else { State::Lost };
    let before = std::mem::replace(&mut *lock(&open.state), state);
    leases.opens.settled(open);
    leases.recalls.nudge();
    match (before, made) {
        (State::Making(wakers), made) => {
            wakers.into_iter().for_each(Waker::wake);
            if let Err(error) = made {
                tracing::warn!(%error, "a file that was opened without asking the server cannot be had from it: its descriptor gives EIO");
            }
            None
        }
        (State::Closing, made) => made.ok(),
        _ => None,
    }
}

impl LocalOpen {
    /// Whoever gets true asks the server, and settles it.
    fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        let is_local = matches!(*state, State::Local);
        if is_local {
            *state = State::Making(Vec::new());
        }
        is_local
    }
}

impl Client {
    /// Has the server asked for an open that it does not know of, unless it is being asked already.
    pub(super) fn make_real(&self, open: &Arc<LocalOpen>) {
        let Some(client) = self.this.upgrade().filter(|_| open.begin()) else { return };
        let open = open.clone();
        self.groups[0].spawn(async move {
            let context = Context::new(ClientId(0), open.credential.clone());
            let made = client.call(&context, open.request()).await.and_then(|reply| Ok(reply.opened()?.id));
            let Some(leases) = &client.leases else { return };
            if let Some(real) = settle(leases, &open, made) {
                client.close_real(&open, real).await;
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
        poll_fn(|task| {
            self.make_real(open);
            match &mut *lock(&open.state) {
                State::Real(real) => Poll::Ready(Ok(*real)),
                State::Lost | State::Local => Poll::Ready(Err(Errno::EIO)),
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
        for open in leases.opens.all_local().iter().filter(|open| open.begin()) {
            let context = Context::new(ClientId(0), open.credential.clone());
            let asked = ask(&context, &open.request());
            let Ok(Some(made)) = asked else {
                let before = std::mem::replace(&mut *lock(&open.state), State::Local);
                if let State::Making(wakers) = before {
                    wakers.into_iter().for_each(Waker::wake); // they ask themselves
                }
                asked?;
                continue;
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
