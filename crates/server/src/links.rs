//! The links of a session: its connections, by their numbers. What is under way on each, who asked
//! for it, and how one is ended without its session.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use aqueduct_net::Connection;
use aqueduct_wire::{Extensions, Flags, Header, Times};
use aqueduct_worker::lock;

use crate::frames::send;

/// One connection of a session, until nothing that came by it is under way any more.
pub(crate) struct Link {
    pub(crate) number: u32,
    connection: Weak<Connection>,
    is_given_up: AtomicBool,
    pub(crate) is_retired: AtomicBool,
    /// Its last frame is sent.
    pub(crate) is_over: AtomicBool,
    /// Requests that are being executed.
    executing: AtomicUsize,
    /// What has to have ended before the client asks anew: changes without a slot that are being
    /// executed, and locks that wait.
    fenced: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

/// A request under way on a link.
pub(crate) struct Running {
    link: Arc<Link>,
    is_fenced: bool,
}

impl Link {
    pub(crate) fn new(number: u32, connection: &Arc<Connection>) -> Link {
        Link {
            number,
            connection: Arc::downgrade(connection),
            is_given_up: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            executing: AtomicUsize::new(0),
            fenced: AtomicUsize::new(0),
            wakers: Mutex::default(),
        }
    }

    /// A request begins; `None`: the link was given up before. `is_fenced`: it changes something
    /// and has no slot.
    pub(crate) fn enter(self: &Arc<Link>, is_fenced: bool) -> Option<Running> {
        let running = Running { link: self.clone(), is_fenced };
        self.executing.fetch_add(1, Ordering::SeqCst);
        self.fenced.fetch_add(usize::from(is_fenced), Ordering::SeqCst);
        // Looked at after it was counted: whoever ends the link either sees it or is seen.
        let is_open = !self.is_given_up() && !self.is_over.load(Ordering::SeqCst);
        is_open.then_some(running)
    }

    /// Its connection, which may have ended, as long as anybody has it.
    pub(crate) fn last_connection(&self) -> Option<Arc<Connection>> {
        self.connection.upgrade()
    }

    /// Its connection, unless that has ended.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.upgrade().filter(|connection| !connection.is_closed())
    }

    /// Whether somebody may look at what is sent there.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_given_up() && self.connection().is_some()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }

    /// Nothing is begun here any more.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
        if let Some(connection) = self.connection.upgrade() {
            connection.close("its client gave it up".into());
        }
    }

    fn wake(&self) {
        std::mem::take(&mut *lock(&self.wakers)).into_iter().for_each(Waker::wake);
    }

    /// Ready when none of a number is left.
    fn poll_none(&self, count: &AtomicUsize, task: &mut Context<'_>) -> Poll<()> {
        lock(&self.wakers).push(task.waker().clone());
        // Looked at after it listens.
        if count.load(Ordering::SeqCst) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ready when nothing of it runs that the client would have to fear.
    pub(crate) fn poll_fence(&self, task: &mut Context<'_>) -> Poll<()> {
        self.poll_none(&self.fenced, task)
    }

    /// Ready when nothing of it is executed.
    pub(crate) fn poll_idle(&self, task: &mut Context<'_>) -> Poll<()> {
        self.poll_none(&self.executing, task)
    }
}

impl Running {
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// It was answered PENDING, and is not executed until what is returned is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.link.executing.fetch_sub(1, Ordering::SeqCst);
        self.link.wake();
        Waiting(&self.link)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.link.executing.fetch_sub(1, Ordering::SeqCst);
        self.link.fenced.fetch_sub(usize::from(self.is_fenced), Ordering::SeqCst);
        self.link.wake();
    }
}

/// A request that waits.
pub(crate) struct Waiting<'a>(&'a Link);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.executing.fetch_add(1, Ordering::SeqCst);
    }
}

/// Something waits that was asked for on a link: whoever gives that up hears of it when this is
/// gone.
pub(crate) struct Fence(Arc<Link>);

impl Fence {
    pub(crate) fn new(link: &Arc<Link>) -> Fence {
        link.fenced.fetch_add(1, Ordering::SeqCst);
        Fence(link.clone())
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.0.fenced.fetch_sub(1, Ordering::SeqCst);
        self.0.wake();
    }
}

/// Who asks for a reply.
#[derive(Clone)]
pub(crate) struct Asker {
    /// By which link.
    pub(crate) link: Arc<Link>,
    /// Under which number.
    pub(crate) request: u64,
    /// Microseconds that the request was queued, if the reply is to say so.
    pub(crate) queue_time: Option<u32>,
}

impl Asker {
    /// Answers what was executed for somebody else who asked for the same.
    pub(crate) fn answer(&self, header: Header, body: &[u8]) {
        let Some(connection) = self.link.connection() else { return };
        let mut header = Header { request: self.request, ..header };
        let prefix = prefix(self.queue_time, None, &mut header);
        send(&connection, header, &[&prefix, body].concat());
    }
}

/// What a reply says before anything else; empty: nothing.
pub(crate) fn prefix(queue_time: Option<u32>, times: Option<Times>, header: &mut Header) -> Vec<u8> {
    let mut prefix = Vec::new();
    if (queue_time.is_some() || times.is_some()) && header.kind.is_extensible() {
        header.flags |= Flags::EXTENDED;
        Extensions { queue_time, times, ..Extensions::default() }.encode(&mut prefix);
    }
    prefix
}
