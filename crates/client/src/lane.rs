//! A lane: one connection of a worker, for control or for bulk data, with the requests that are under way on it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_fs::{Errno, Sink};
use aqueduct_net::{Closed, Connection, Endpoint, Frame, Payload};
use aqueduct_wire::{HEADER_SIZE, Header, Kind};
use bytes::Bytes;
use slab::Slab;

use crate::client::Client;
use crate::connect::told;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Counters of a client, since it connected.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) reconnects: AtomicU64,
}

/// One lane of a client.
pub(crate) struct Lane {
    pub(crate) index: usize,
    state: Mutex<LaneState>,
    client: Weak<Client>,
}

#[derive(Default)]
struct LaneState {
    connection: Option<Arc<Connection>>,
    /// In which the connection was made: see `Opens`.
    epoch: u64,
    requests: Slab<Entry>,
    generation: u32,
    /// Tasks that wait for a connection.
    waiters: Vec<Waker>,
}

struct Entry {
    generation: u32,
    sent: Instant,
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
    lane: &'a Lane,
    pub(crate) id: u64,
    /// That of the connection on which it was sent, and is answered.
    pub(crate) epoch: u64,
}

/// Request ids: which lane, which use of the table entry, which entry.
fn request_id(lane: usize, generation: u32, key: usize) -> u64 {
    (lane as u64) << 56 | u64::from(generation & 0xff_ffff) << 32 | key as u64
}

impl LaneState {
    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        let entry = self.requests.get_mut((id & 0xffff_ffff) as usize)?;
        (entry.generation == (id >> 32) as u32 & 0xff_ffff).then_some(entry)
    }
}

impl Lane {
    pub(crate) fn new(index: usize, client: Weak<Client>) -> Lane {
        Lane { index, state: Mutex::default(), client }
    }

    /// Gives the lane its connection, and wakes who waited for it. False when it has ended already.
    pub(crate) fn connected(&self, connection: Arc<Connection>, epoch: u64) -> bool {
        let mut state = lock(&self.state);
        state.epoch = epoch;
        let replaced = state.connection.replace(connection.clone());
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        if let Some(replaced) = replaced {
            replaced.close("another connection takes its place".into());
        }
        if connection.is_closed() {
            self.lost(&connection);
        }
        waiters.into_iter().for_each(Waker::wake);
        !connection.is_closed()
    }

    /// Whether anything is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.state).requests.is_empty()
    }

    pub(crate) fn is_connected(&self) -> bool {
        lock(&self.state).connection.is_some()
    }

    /// Wakes who waits for a connection, so that they look at the client's state again.
    pub(crate) fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut lock(&self.state).waiters);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Ready when the lane has a connection.
    pub(crate) fn poll_connected(&self, task: &mut TaskContext<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.connection.is_some() {
            return Poll::Ready(());
        }
        state.waiters.push(task.waker().clone());
        Poll::Pending
    }

    /// Sends a request: `frame` is its header, still without id, and its body. Gives the sink back when there is no connection, or none of the epoch in which
    /// alone it may be sent.
    pub(crate) fn send(
        &self,
        (header, only_in): (&mut Header, Option<u64>),
        frame: &mut [u8],
        payload: Option<Bytes>,
        sink: Option<Box<dyn Sink>>,
    ) -> Result<Ticket<'_>, Option<Box<dyn Sink>>> {
        let mut state = lock(&self.state);
        let may = only_in.is_none_or(|epoch| epoch == state.epoch);
        let Some(connection) = state.connection.clone().filter(|_| may) else { return Err(sink) };
        state.generation = state.generation.wrapping_add(1) & 0xff_ffff;
        let (generation, epoch) = (state.generation, state.epoch);
        let key = state.requests.insert(Entry {
            generation,
            sent: Instant::now(),
            sink,
            waker: None,
            progress: Progress::Sent,
        });
        drop(state);
        let id = request_id(self.index, generation, key);
        header.request = id;
        frame[..HEADER_SIZE].copy_from_slice(&header.encode());
        connection.send(frame, payload);
        Ok(Ticket { lane: self, id, epoch })
    }

    /// Sends a frame that has no answer of its own here.
    pub(crate) fn send_frame(&self, frame: &[u8]) -> bool {
        let connection = lock(&self.state).connection.clone();
        connection.inspect(|connection| connection.send(frame, None)).is_some()
    }

    /// As [`send_frame`](Lane::send_frame), on a connection of this epoch only.
    pub(crate) fn send_frame_in(&self, epoch: u64, frame: &[u8]) -> bool {
        let state = lock(&self.state);
        let connection = state.connection.clone().filter(|_| state.epoch == epoch);
        drop(state);
        connection.inspect(|connection| connection.send(frame, None)).is_some()
    }

    /// The server wants leases back. Why the connection cannot go on, if so.
    fn recall(&self, connection: &Arc<Connection>, body: &[u8]) -> Result<(), &'static str> {
        let Some(client) = self.client.upgrade() else { return Ok(()) };
        let Some(leases) = &client.leases else {
            return Err("the server wants leases back from a client that has none");
        };
        let recalled =
            aqueduct_wire::decode_leases(body).map_err(|_| "the server sent a recall that makes no sense")?;
        let epoch = {
            let state = lock(&self.state);
            let is_present = state.connection.as_ref().is_some_and(|present| Arc::ptr_eq(present, connection));
            is_present.then_some(state.epoch)
        };
        // One that has been replaced meanwhile is asked for again on its successor.
        match epoch {
            Some(epoch) if !leases.recalls.add(epoch, &recalled) => {
                Err("the server wants more leases back than it can have granted")
            }
            _ => Ok(()),
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self, reason: &str) {
        let connection = lock(&self.state).connection.clone();
        if let Some(connection) = connection {
            connection.close(reason.to_owned());
        }
    }

    /// Gives up requests that were sent longer than `age` ago.
    pub(crate) fn time_out(&self, age: Duration) {
        let mut wakers = Vec::new();
        let mut state = lock(&self.state);
        for (_, entry) in state.requests.iter_mut() {
            if matches!(entry.progress, Progress::Sent) && entry.sent.elapsed() > age {
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

    fn lost(&self, connection: &Arc<Connection>) {
        let mut wakers = Vec::new();
        let mut state = lock(&self.state);
        if !state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            return;
        }
        state.connection = None;
        for (_, entry) in state.requests.iter_mut() {
            if matches!(entry.progress, Progress::Sent | Progress::Pending) {
                entry.progress = Progress::Lost;
                wakers.extend(entry.waker.take());
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Ticket<'_> {
    /// Ready with the next news about the request. `seen_pending`: PENDING is no news any more.
    pub(crate) fn poll(&self, task: &mut TaskContext<'_>, seen_pending: bool) -> Poll<Answer> {
        let mut state = lock(&self.lane.state);
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

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.lane.state);
        if state.entry(self.id).is_some() {
            let entry = state.requests.remove((self.id & 0xffff_ffff) as usize);
            drop(state);
            drop(entry); // its sink's drop may do I/O
        }
    }
}

impl Endpoint for Lane {
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

    fn frame(&self, connection: &Arc<Connection>, frame: Frame) {
        match frame.header.kind {
            Kind::Reply | Kind::Completion => self.progress(frame.header.request, Progress::Answered(frame)),
            Kind::Pending => self.progress(frame.header.request, Progress::Pending),
            Kind::CancelReply | Kind::Pong => {} // the cancelled request's own answer follows
            Kind::Callback => {
                if let Err(reason) = self.recall(connection, &frame.body) {
                    connection.close(reason.to_owned());
                }
            }
            Kind::Goodbye => connection.close(format!("the server said goodbye: {}", told(&frame.body))),
            kind => connection.close(format!("the server sent a {kind:?} frame, which makes no sense to a client")),
        }
    }

    fn closed(&self, connection: &Arc<Connection>, closed: Closed) {
        self.lost(connection);
        if let Some(client) = self.client.upgrade() {
            client.lane_lost(&closed);
        }
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
