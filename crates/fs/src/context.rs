//! Who asks: the client, the caller's credential, and whether the caller still wants the answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};

use crate::steps::Steps;

/// One client of a file system: a session at the server, or a front end in the same process. Locks and opens belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// The supplementary groups of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Groups {
    /// These, as the caller's host knows them.
    Known(Arc<[u32]>),
    /// The caller's host could not tell (its process is outside the daemon's pid namespace): look the user up where the I/O is done.
    Resolve,
    /// As [`Groups::Resolve`], but with this group in the place of root's (gid 0).
    ResolveSquashed(u32),
}

/// The identity on which the backing file system decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credential {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Credential {
    /// The superuser, without supplementary groups.
    pub fn root() -> Credential {
        Credential { uid: 0, gid: 0, groups: Groups::Known(Arc::new([])) }
    }
}

/// What goes with every operation.
#[derive(Clone, Debug)]
pub struct Context {
    /// Whose operation.
    pub client: ClientId,
    /// As whom.
    pub credential: Credential,
    /// The calling process, as known on its own host; 0 when unknown, and of pages that a kernel
    /// writes back. For logs and lock lists, and to tell pages.
    pub pid: u32,
    /// Raised when the caller no longer waits.
    pub cancel: Cancel,
    /// The job of a batch system that the caller works for, if it is known: 1 to 64 printable
    /// characters of ASCII without spaces. For counters and logs only.
    pub job: Option<Arc<str>>,
}

impl Context {
    /// A context for `client` as `credential`, that nobody cancels yet.
    pub fn new(client: ClientId, credential: Credential) -> Context {
        Context { client, credential, pid: 0, cancel: Cancel::default(), job: None }
    }

    /// What the operation waited for so far.
    pub fn steps(&self) -> &Steps {
        self.cancel.steps()
    }

    /// The same operation, which goes on when the caller no longer waits.
    pub fn lasting(&self) -> Context {
        let state = CancelState { of: Some(self.cancel.clone()), ..CancelState::default() };
        Context { cancel: Cancel(Arc::new(state)), ..self.clone() }
    }
}

/// A flag that ends one operation early. Whoever waits for others (a lock, a server) watches it, settles the operation, and returns
/// EINTR, or the result if it was too late. Leaves that complete at once never look.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    raised: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// Of the same operation; here, so that an operation allocates once.
    steps: Steps,
    /// Whose steps count instead: this is of the same operation.
    of: Option<Cancel>,
}

impl Cancel {
    /// Of an operation whose steps are kept, and that belongs to this trace.
    pub fn traced(trace: Option<[u8; 16]>) -> Cancel {
        Cancel(Arc::new(CancelState { steps: Steps::kept(trace), ..CancelState::default() }))
    }

    /// What the operation waited for so far.
    pub fn steps(&self) -> &Steps {
        self.0.of.as_ref().map_or(&self.0.steps, Cancel::steps)
    }

    /// Asks the operation to end; it may already have.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        let waker = self.0.waker.lock().unwrap_or_else(|poison| poison.into_inner()).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Ready once raised; else remembers the one task that waits.
    pub fn poll(&self, task: &mut TaskContext<'_>) -> Poll<()> {
        if self.is_raised() {
            return Poll::Ready(());
        }
        *self.0.waker.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(task.waker().clone());
        if self.is_raised() { Poll::Ready(()) } else { Poll::Pending }
    }
}
