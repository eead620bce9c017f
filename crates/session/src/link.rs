//! A link: one connection of a worker over one rail, for control or for bulk data, with the
//! requests that are under way on it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_fs::{Errno, Sink};
use aqueduct_net::{Closed, Connection, Endpoint, Frame, Hush, Payload};
use aqueduct_wire::{Class, HEADER_SIZE, Header, Kind, LeaseId, Map, Notice};
use aqueduct_worker::lock;
use bytes::Bytes;
use slab::Slab;

use crate::connect::told;
use crate::counters::Counters;
use crate::rails::{Carried, Choking, Direction, Rail};
use crate::silence::{self, LinkSilence};

/// Whose link it is.
pub(crate) trait Owner: Send + Sync {
    /// The link has lost its connection, which had this number.
    fn link_lost(&self, link: &Link, number: u32, closed: &Closed);

    /// The connection of this link, which has this number, ends then: another is to take its
    /// place.
    fn link_stops(&self, link: usize, number: u32, end: Instant);

    /// The server wants leases back that it granted in this epoch; `None`: the present one. Why
    /// the connection cannot go on, if so.
    fn recalled(&self, epoch: Option<u64>, leases: &[LeaseId]) -> Result<(), &'static str>;

    /// The server says which map of its volume holds.
    fn mapped(&self, map: Map);

    /// What has waited on another link has ended.
    fn completed_elsewhere(&self, link: usize, frame: Frame);
}

/// Which link it is.
pub(crate) struct Place {
    /// Among all of the session.
    pub(crate) index: usize,
    pub(crate) worker: usize,
    /// It is for bulk data.
    pub(crate) bulk: bool,
    /// Over which it is made.
    pub(crate) rail: Arc<Rail>,
    /// Who waits for this one or another of the same worker and kind.
    pub(crate) waiters: Arc<Waiters>,
}

/// Why another connection takes the place of one.
#[derive(Clone, Copy)]
pub(crate) enum Move {
    /// A router on its way stops.
    Around,
    /// It is to lead by this router, or is not to be.
    Back(SocketAddr),
    /// For what the server tells in the beginning of each.
    Asks,
}

/// Tasks that wait for a connection.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<Vec<Waker>>);

impl Waiters {
    pub(crate) fn add(&self, task: &TaskContext<'_>) {
        lock(&self.0).push(task.waker().clone());
    }

    pub(crate) fn wake(&self) {
        let waiters = std::mem::take(&mut *lock(&self.0));
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// One link of a client.
pub(crate) struct Link {
    pub(crate) place: Place,
    state: Mutex<LinkState>,
    /// Whether there is a connection, to be looked at without the lock.
    is_connected: AtomicBool,
    silence: Mutex<LinkSilence>,
    /// Of a link for bulk data.
    choking: Mutex<Choking>,
    owner: Weak<dyn Owner>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Arc<Connection>>,
    /// What the server knows the connection by.
    number: u32,
    /// In which the connection was made: see `Opens`.
    epoch: u64,
    requests: Slab<Entry>,
    generation: u32,
    quiet: Quiet,
    /// The connection of which was told last that it stops, and when.
    told_stop: Option<(u32, Instant)>,
    /// One whose place another has taken, and on which requests are still answered.
    retiring: Option<Retiring>,
    /// Those that were closed when others took their places, and have not ended yet: an answer
    /// may be on its way into the sink of its request, which nobody else has meanwhile.
    replaced: Vec<Retiring>,
    /// Another connection of the same epoch has been made, and takes the place next: the server
    /// may ask there already.
    is_moving: bool,
}

struct Retiring {
    connection: Arc<Connection>,
    number: u32,
    /// The server has said that nothing is under way there any more; what waited there it
    /// completes elsewhere.
    is_done: bool,
}

impl Retiring {
    fn new(connection: Arc<Connection>, number: u32) -> Retiring {
        Retiring { connection, number, is_done: false }
    }
}

/// How long nothing has come, in looks; see [`Link::look_for_quiet`].
#[derive(Default)]
struct Quiet {
    heard: u32,
    moved: u64,
    looks: u32,
    /// A question is under way.
    is_asked: bool,
}

struct Entry {
    generation: u32,
    /// Of the connection on which it was sent.
    number: u32,
    sent: Instant,
    /// It is waited for however long it takes.
    is_patient: bool,
    sink: Option<Box<dyn Sink>>,
    waker: Option<Waker>,
    progress: Progress,
}

enum Progress {
    Sent,
    /// The server will answer later, and has freed the slot.
    Pending,
    Answered(Frame),
    /// The connection ended first.
    Lost,
    /// The time of a soft mount is over.
    TimedOut,
}

/// How a request is getting on.
pub(crate) enum Answer {
    /// The slot is free; the answer comes later.
    Pending,
    /// Its reply.
    Frame(Frame),
    /// The connection ended first; the sink, if it still is.
    Lost(Option<Box<dyn Sink>>),
    /// The time of a soft mount is over.
    TimedOut,
    /// The caller gave it up, and the server does not say what became of it.
    Unsettled,
}

/// A request under way. Dropping it forgets the request; a reply that still comes is ignored.
pub(crate) struct Ticket<'a> {
    pub(crate) link: &'a Link,
    pub(crate) id: u64,
    /// Of the connection.
    pub(crate) number: u32,
    carried: Option<Carried>,
    /// That of the connection on which it was sent, and is answered.
    pub(crate) epoch: u64,
    pub(crate) sent: Instant,
}

/// Bulk data of a request: which way they go, and how many bytes.
pub(crate) type Load = (Direction, u64);

/// The number of the connection of a request whose own was retired while it waited: whatever
/// connection the session has tells of its end.
const OUTLIVED: u32 = 0;

/// Request ids: which link (16 bits), which use of the table entry (24), which entry (24, of which
/// none needs more: each entry takes hundreds of bytes).
fn request_id(link: usize, generation: u32, key: usize) -> u64 {
    (link as u64) << 48 | u64::from(generation & 0xff_ffff) << 24 | (key as u64 & 0xff_ffff)
}

/// The link of a request.
fn link_of(request: u64) -> usize {
    (request >> 48) as usize
}

/// Its entry in the link's table.
fn key_of(request: u64) -> usize {
    (request & 0xff_ffff) as usize
}

impl LinkState {
    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        let entry = self.requests.get_mut(key_of(id))?;
        (entry.generation == (id >> 24) as u32 & 0xff_ffff).then_some(entry)
    }

    /// Says of all that was sent on a connection that it has ended; `all`: also of what waits.
    /// Returns who is to be woken.
    fn lose_requests(&mut self, number: u32, all: bool) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (_, entry) in self.requests.iter_mut().filter(|(_, entry)| entry.number == number) {
            if matches!(entry.progress, Progress::Sent) || all && matches!(entry.progress, Progress::Pending) {
                entry.progress = Progress::Lost;
                wakers.extend(entry.waker.take());
            }
        }
        wakers
    }
}

impl LinkState {
    /// The connection, if another has its place.
    fn take_retired(&mut self, connection: &Arc<Connection>) -> Option<Retiring> {
        let is_it = |one: &Retiring| Arc::ptr_eq(&one.connection, connection);
        let replaced = |state: &mut LinkState| {
            let at = state.replaced.iter().position(is_it)?;
            Some(state.replaced.swap_remove(at))
        };
        self.retiring.take_if(|retiring| is_it(retiring)).or_else(|| replaced(self))
    }

    /// A retired connection has ended: what waits there outlives it, if the server has said so.
    fn end_retired(&mut self, retired: &Retiring) -> Vec<Waker> {
        let wakers = self.lose_requests(retired.number, !retired.is_done);
        for (_, entry) in self.requests.iter_mut().filter(|(_, entry)| entry.number == retired.number) {
            entry.number = OUTLIVED;
        }
        wakers
    }
}

impl Link {
    pub(crate) fn new(place: Place, owner: Weak<dyn Owner>, counters: Arc<Counters>) -> Link {
        let is_connected = AtomicBool::new(false);
        Link {
            place,
            state: Mutex::default(),
            is_connected,
            silence: Mutex::default(),
            choking: Mutex::default(),
            owner,
            counters,
        }
    }

    /// Gives the link its connection, and wakes who waited for it. False when it has ended
    /// already.
    pub(crate) fn connected(&self, connection: Arc<Connection>, number: u32, epoch: u64) -> bool {
        let mut state = lock(&self.state);
        let before = state.number;
        (state.epoch, state.number, state.quiet) = (epoch, number, Quiet::default());
        let replaced = state.connection.replace(connection.clone());
        state.replaced.extend(replaced.clone().map(|connection| Retiring::new(connection, before)));
        self.is_connected.store(true, Ordering::SeqCst);
        let retiring = state.retiring.as_ref().filter(|retiring| !retiring.is_done).map(|retiring| retiring.number);
        drop(state);
        // The connection on which that was said may have ended before the server read it.
        retiring.into_iter().for_each(|number| retire(&connection, number));
        lock(&self.silence).begin();
        if let Some(replaced) = replaced {
            replaced.close("another connection takes its place".into());
        }
        if connection.is_closed() {
            self.lost(&connection);
        }
        self.stops(&connection);
        self.place.waiters.wake();
        !connection.is_closed()
    }

    /// Another connection is about to be started, and [`moves`](Link::moves) the link next.
    pub(crate) fn begins_to_move(&self) {
        lock(&self.state).is_moving = true;
    }

    /// Gives the link another connection, while the one that it has, of this number, answers
    /// what is under way there. False when it has ended already, or the link another by now.
    pub(crate) fn moves(&self, connection: Arc<Connection>, (before, number): (u32, u32)) -> bool {
        let mut state = lock(&self.state);
        state.is_moving = false;
        let Some(present) = state.connection.clone().filter(|_| state.number == before) else {
            drop(state);
            connection.close("its link has another connection by now".into());
            return false;
        };
        (state.number, state.quiet) = (number, Quiet::default());
        state.connection = Some(connection.clone());
        let older = state.retiring.replace(Retiring::new(present, before));
        let closes = older.as_ref().map(|older| older.connection.clone());
        state.replaced.extend(older);
        drop(state);
        if let Some(older) = closes {
            // Its requests are sent again.
            older.close("another takes its place already".into());
        }
        retire(&connection, before);
        // Its end came before it was the link's, and nobody heard of it.
        if connection.is_closed()
            && let Some((owner, number)) = self.owner.upgrade().zip(self.lost(&connection))
        {
            let reason = "its successor was cut off at once".into();
            owner.link_lost(self, number, &Closed { reason, orderly: false, vanished: false });
        }
        self.stops(&connection);
        !connection.is_closed()
    }

    /// If a router on the way of the link's connection has said that it stops, perhaps before the
    /// connection was the link's, another is to take its place.
    fn stops(&self, connection: &Arc<Connection>) {
        let Some((_, Some(end))) = connection.gateway() else { return };
        let number = {
            let mut state = lock(&self.state);
            let is_present = state.connection.as_ref().is_some_and(|present| Arc::ptr_eq(present, connection));
            let number = state.number;
            if !is_present || state.told_stop.replace((number, end)) == Some((number, end)) {
                return;
            }
            number
        };
        if let Some(owner) = self.owner.upgrade() {
            owner.link_stops(self.place.index, number, end);
        }
    }

    /// Whether anything is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.state).requests.is_empty()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::SeqCst)
    }

    /// The connection, if there is one.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.state).connection.clone()
    }

    /// Sends a request: `frame` is its header, still without id, and its body. Gives the sink
    /// back when there is no connection, or none of the epoch in which alone it may be sent.
    pub(crate) fn send(
        &self,
        (header, only_in, is_patient): (&mut Header, Option<u64>, bool),
        frame: &mut [u8],
        payload: Option<Bytes>,
        (sink, load): (Option<Box<dyn Sink>>, Option<Load>),
        begins: impl FnOnce(),
    ) -> Result<Ticket<'_>, Option<Box<dyn Sink>>> {
        let mut state = lock(&self.state);
        let may = only_in.is_none_or(|epoch| epoch == state.epoch);
        let Some(connection) = state.connection.clone().filter(|_| may) else { return Err(sink) };
        state.generation = state.generation.wrapping_add(1) & 0xff_ffff;
        let (generation, epoch, sent) = (state.generation, state.epoch, Instant::now());
        let number = state.number;
        let entry = Entry { generation, number, sent, is_patient, sink, waker: None, progress: Progress::Sent };
        let key = state.requests.insert(entry);
        begins(); // before a new epoch can begin: a recovery takes this lock first
        drop(state);
        let carried = load.map(|(direction, bytes)| self.place.rail.carry(direction, bytes));
        let id = request_id(self.place.index, generation, key);
        header.request = id;
        frame[..HEADER_SIZE].copy_from_slice(&header.encode());
        connection.send(frame, payload);
        Ok(Ticket { link: self, id, number, carried, epoch, sent })
    }

    /// Sends a frame that has no answer of its own here.
    pub(crate) fn send_frame(&self, frame: &[u8]) -> bool {
        let connection = lock(&self.state).connection.clone();
        connection.inspect(|connection| connection.send(frame, None)).is_some()
    }

    /// As [`send_frame`](Link::send_frame), on a connection of this epoch only.
    pub(crate) fn send_frame_in(&self, epoch: u64, frame: &[u8]) -> bool {
        let state = lock(&self.state);
        let connection = state.connection.clone().filter(|_| state.epoch == epoch);
        drop(state);
        connection.inspect(|connection| connection.send(frame, None)).is_some()
    }

    /// The server wants leases back. Why the connection cannot go on, if so.
    fn recall(&self, connection: &Arc<Connection>, body: &[u8]) -> Result<(), &'static str> {
        let Some(owner) = self.owner.upgrade() else { return Ok(()) };
        let recalled =
            aqueduct_wire::decode_leases(body).map_err(|_| "the server sent a recall that makes no sense")?;
        let epoch = {
            let state = lock(&self.state);
            match &state.connection {
                Some(present) => {
                    let retires = state.retiring.as_ref().is_some_and(|one| Arc::ptr_eq(&one.connection, connection));
                    (retires || state.is_moving || Arc::ptr_eq(present, connection)).then_some(Some(state.epoch))
                }
                // This one has just been made, and is not the link's yet: the server asks right
                // behind its greeting.
                None => Some(None),
            }
        };
        // One that has been replaced meanwhile is asked for again on its successor.
        epoch.map_or(Ok(()), |epoch| owner.recalled(epoch, &recalled))
    }

    /// What has waited has ended. The server says so over another connection when this link's does
    /// not take it.
    pub(crate) fn complete(&self, frame: Frame) {
        let link = link_of(frame.header.request);
        if link == self.place.index {
            self.progress(frame.header.request, Progress::Answered(frame));
        } else if let Some(owner) = self.owner.upgrade() {
            owner.completed_elsewhere(link, frame);
        }
    }

    /// One look whether the server is silent here. `always`: also when no request is under way.
    pub(crate) fn look_for_silence(&self, always: bool) {
        let state = lock(&self.state);
        let is_due = always || !state.requests.is_empty();
        let Some(connection) = state.connection.clone() else { return };
        drop(state);
        let hush = lock(&self.silence).look(is_due, connection.heard(), || connection.moved());
        match hush {
            Hush::Heard => {}
            Hush::Ask | Hush::AskAgain => silence::ask(&connection),
            Hush::Gone => silence::give_up(&connection),
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self, reason: &str) {
        let connection = lock(&self.state).connection.clone();
        if let Some(connection) = connection {
            connection.close(reason.to_owned());
        }
    }

    /// The session begins anew, or ends: no connection tells of the end of what waits any more.
    pub(crate) fn lose_waits(&self) {
        let wakers = lock(&self.state).lose_requests(OUTLIVED, true);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Gives up requests that were sent longer than `age` ago.
    pub(crate) fn time_out(&self, age: Duration) {
        let mut wakers = Vec::new();
        let mut state = lock(&self.state);
        for (_, entry) in state.requests.iter_mut() {
            if matches!(entry.progress, Progress::Sent) && !entry.is_patient && entry.sent.elapsed() > age {
                entry.progress = Progress::TimedOut;
                wakers.extend(entry.waker.take());
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn progress(&self, id: u64, progress: Progress) {
        let mut state = lock(&self.state);
        let Some(entry) = state.entry(id) else { return };
        entry.progress = progress;
        let waker = entry.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The server has said that nothing is under way on this connection any more.
    fn retires(&self, connection: &Arc<Connection>) {
        let mut state = lock(&self.state);
        let retiring = state.retiring.as_mut().filter(|retiring| Arc::ptr_eq(&retiring.connection, connection));
        if let Some(retiring) = retiring {
            retiring.is_done = true;
        }
    }

    /// Returns the number of the connection that is lost, if it was this link's.
    fn lost(&self, connection: &Arc<Connection>) -> Option<u32> {
        let mut state = lock(&self.state);
        if let Some(retired) = state.take_retired(connection) {
            let wakers = state.end_retired(&retired);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
            return None;
        }
        if !state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            return None;
        }
        (state.connection, state.quiet) = (None, Quiet::default());
        self.is_connected.store(false, Ordering::SeqCst);
        let number = state.number;
        let wakers = state.lose_requests(number, true);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Some(number)
    }

    /// One look whether the server is silent here while others hear it: how many looks in a row
    /// nothing has come though something was to; 0 else.
    pub(crate) fn look_for_quiet(&self) -> u32 {
        let mut state = lock(&self.state);
        let is_due = state.requests.iter().any(|(_, entry)| matches!(entry.progress, Progress::Sent));
        let Some(connection) = state.connection.clone() else { return 0 };
        let (heard, quiet) = (connection.heard(), &mut state.quiet);
        if heard != quiet.heard {
            *quiet = Quiet { heard, moved: quiet.moved, looks: 0, is_asked: false };
        } else if !is_due && !quiet.is_asked {
            quiet.looks = 0;
        } else {
            quiet.looks += 1;
        }
        if quiet.looks >= 2 {
            // Not the peer's silence where it takes what is sent, or this side has not read.
            let moved = connection.moved();
            if moved != std::mem::replace(&mut quiet.moved, moved) || connection.has_unread() {
                quiet.looks = 0;
            }
        }
        quiet.looks
    }

    /// Asks whether the server is there. From now on it owes an answer, and as if it had for
    /// `looks` looks already.
    pub(crate) fn ask(&self, looks: u32) {
        let mut state = lock(&self.state);
        let Some(connection) = state.connection.clone() else { return };
        let quiet = &mut state.quiet;
        if !quiet.is_asked {
            (quiet.is_asked, quiet.looks) = (true, quiet.looks.max(looks));
        }
        drop(state);
        silence::ask(&connection);
    }

    /// As the kernel measures it.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.connection()?.round_trip()
    }

    /// The number of its connection, if it has one and may have another.
    pub(crate) fn number(&self) -> Option<u32> {
        let state = lock(&self.state);
        (state.connection.is_some() && state.retiring.is_none()).then_some(state.number)
    }

    /// The number of its connection, if that leads by another router than this one and goes on
    /// doing so.
    pub(crate) fn strays(&self, gateway: SocketAddr) -> Option<u32> {
        let state = lock(&self.state);
        let (present, end) = state.connection.as_ref().filter(|_| state.retiring.is_none())?.gateway()?;
        (present != gateway && end.is_none()).then_some(state.number)
    }

    /// Whether a question is under way.
    pub(crate) fn is_asked(&self) -> bool {
        lock(&self.state).quiet.is_asked
    }

    /// Gives the connection up, over which bulk data do not come, though the rail answers. Returns
    /// how long it is left alone.
    pub(crate) fn chokes(&self) -> Duration {
        let held_off = lock(&self.choking).failed();
        self.vanish("no bulk data come over it, while its rail answers");
        held_off
    }

    /// How long the link has no connection since it chokes.
    pub(crate) fn held_off(&self) -> Duration {
        lock(&self.choking).held_off()
    }

    /// Gives the connection up, whose peer is not heard any more.
    pub(crate) fn vanish(&self, reason: &str) {
        if let Some(connection) = self.connection() {
            connection.vanish(reason.to_owned());
        }
    }
}

impl Ticket<'_> {
    /// Ready with the next news about the request. `seen_pending`: PENDING is no news any more.
    pub(crate) fn poll(&self, task: &mut TaskContext<'_>, seen_pending: bool) -> Poll<Answer> {
        let mut state = lock(&self.link.state);
        let Some(entry) = state.entry(self.id) else { return Poll::Ready(Answer::Lost(None)) };
        match &entry.progress {
            Progress::Sent => {}
            Progress::Pending if seen_pending => {}
            Progress::Pending => return Poll::Ready(Answer::Pending),
            Progress::Lost => return Poll::Ready(Answer::Lost(entry.sink.take())),
            Progress::TimedOut => return Poll::Ready(Answer::TimedOut),
            Progress::Answered(_) => {
                if let Progress::Answered(frame) = std::mem::replace(&mut entry.progress, Progress::Lost) {
                    return Poll::Ready(Answer::Frame(frame));
                }
            }
        }
        entry.waker = Some(task.waker().clone());
        Poll::Pending
    }
}

impl Ticket<'_> {
    /// All of its data have come, or the server has taken them.
    pub(crate) fn is_answered(&mut self) {
        if let Some(carried) = &mut self.carried {
            carried.is_done();
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.link.state);
        if state.entry(self.id).is_some() {
            let entry = state.requests.remove(key_of(self.id));
            drop(state);
            drop(entry); // its sink's drop may do I/O
        }
    }
}

impl Endpoint for Link {
    fn place(&self, header: &Header) -> Option<Box<dyn Sink>> {
        if header.kind != Kind::Reply || header.status != 0 {
            return None;
        }
        lock(&self.state).entry(header.request)?.sink.take()
    }

    fn put_back(&self, header: &Header, sink: Box<dyn Sink>) {
        if let Some(entry) = lock(&self.state).entry(header.request) {
            entry.sink = Some(sink);
        }
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    /// The sink of a read is used up when its answer has come, which cannot be asked for again.
    fn takes_last(&self) -> bool {
        true
    }

    fn frame(&self, connection: &Arc<Connection>, frame: Frame) {
        match frame.header.kind {
            // What the server says by itself it says again elsewhere.
            kind if connection.is_closed() && !matches!(kind, Kind::Reply | Kind::Completion) => {}
            Kind::Ping => connection.send(&Header::new(Kind::Pong).encode(), None),
            Kind::Reply => self.progress(frame.header.request, Progress::Answered(frame)),
            Kind::Completion => {
                acknowledge(connection, &frame.header);
                self.complete(frame);
            }
            Kind::Pending => self.progress(frame.header.request, Progress::Pending),
            Kind::CancelReply | Kind::Pong => {} // the cancelled request's own answer follows
            Kind::Callback => {
                acknowledge(connection, &frame.header);
                if let Err(reason) = self.recall(connection, &frame.body) {
                    connection.close(reason.to_owned());
                }
            }
            Kind::Notice => {
                acknowledge(connection, &frame.header);
                match Notice::decode(&frame.body) {
                    Ok(Notice::Map(map)) => {
                        if let Some(owner) = self.owner.upgrade() {
                            owner.mapped(map);
                        }
                    }
                    notice => tracing::info!(?notice, "the server tells of itself"),
                }
            }
            Kind::Retire => {
                self.retires(connection);
                connection.close("the server retires it: nothing is under way there any more".into());
            }
            Kind::Goodbye => connection.close(format!("the server said goodbye: {}", told(&frame.body))),
            kind => connection.close(format!("the server sent a {kind:?} frame, which makes no sense to a client")),
        }
    }

    fn counters(&self) -> Option<&aqueduct_net::Counters> {
        Some(if self.place.bulk { &self.counters.bulk } else { &self.counters.control })
    }

    fn stopping(&self, connection: &Arc<Connection>, _end: Instant) {
        self.stops(connection);
    }

    fn closed(&self, connection: &Arc<Connection>, closed: Closed) {
        let number = self.lost(connection);
        if let Some((owner, number)) = self.owner.upgrade().zip(number) {
            owner.link_lost(self, number, &closed);
        }
    }
}

/// Tells the server that nothing more is sent on the connection of this number, however often.
fn retire(connection: &Connection, number: u32) {
    let mut frame = vec![0; HEADER_SIZE];
    aqueduct_wire::encode_retire(number, &mut frame);
    let header = Header { body_length: (frame.len() - HEADER_SIZE) as u32, ..Header::new(Kind::Retire) };
    frame[..HEADER_SIZE].copy_from_slice(&header.encode());
    connection.send(&frame, None);
}

/// Tells the server that what it has sent by itself has come: else it sends it again, over another
/// connection.
fn acknowledge(connection: &Connection, message: &Header) {
    if message.sequence != 0 {
        let header = Header { class: Class::Callback, sequence: message.sequence, ..Header::new(Kind::Acknowledge) };
        connection.send(&header.encode(), None);
    }
}

/// The data of a bulk reply: delivered to its sink, or why not.
pub(crate) fn delivered(payload: Payload) -> Result<usize, Errno> {
    match payload {
        Payload::Delivered(result) => result.map_err(Errno::from),
        Payload::None => Ok(0),
        Payload::Memory(_) => Err(Errno::EPROTO),
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
