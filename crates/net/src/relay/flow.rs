//! A flow: two connections, and what goes from each to the other.
//!
//! The directions share nothing, and neither waits for the other. One thread moves both, which
//! alone watches their sockets: while it moves nobody sleeps who would be woken by each segment.
//! They are watched edge-triggered: who moves goes on until the kernel has no more, or no room,
//! and what happens then brings it back.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use aqueduct_wire::{RouteHeld, RouteHeldReply};
use aqueduct_worker::{Group, Readiness, Ready, Registration, lock};
use socket2::{Domain, Socket};

use crate::liveness::{Verdict, judge};
use crate::relay::counters::Series;
use crate::relay::held::Held;
use crate::relay::pipes::{self, Pipe, Pipes};
use crate::socket;
use crate::sys::{self, tcp_info};

/// Bytes that one direction moves before others of this thread have their turn.
const TURN_MAX: usize = 4 << 20;

/// Who has moved so many bytes at once does not look for more before it sleeps: what comes next
/// takes longer than a look, and who sends it may want this processor. Frames without payload are
/// shorter.
const BULK_MIN: usize = 64 << 10;

/// When no pipe could be made (descriptors, memory) it is tried again after so long.
const PIPE_PAUSE: Duration = Duration::from_millis(10);

/// A connection of a router: while it is greeted a task waits for it, then it is a flow's.
pub(crate) struct Side {
    pub(crate) socket: Arc<Socket>,
    registration: Mutex<Option<Registration>>,
    wakers: Mutex<Vec<Waker>>,
    /// Somebody sends a frame.
    is_sending: AtomicBool,
    flow: OnceLock<(Weak<Flow>, usize)>,
}

impl Side {
    /// Has a connection watched.
    pub(crate) fn new(group: &Group, socket: Socket) -> io::Result<Arc<Side>> {
        socket.set_nonblocking(true)?;
        let side = Arc::new(Side {
            socket: Arc::new(socket),
            registration: Mutex::default(),
            wakers: Mutex::default(),
            is_sending: AtomicBool::new(false),
            flow: OnceLock::new(),
        });
        side.watch_by(group)?;
        Ok(side)
    }

    /// Has it watched by this group from now on, and by no other.
    pub(crate) fn watch_by(self: &Arc<Side>, group: &Group) -> io::Result<()> {
        let mut registration = lock(&self.registration);
        if registration.as_ref().is_some_and(|known| known.is_of(group)) {
            return Ok(());
        }
        let before = registration.replace(group.register_edge(self.socket.clone(), self.clone())?);
        drop(registration);
        drop(before); // outside the lock
        Ok(())
    }

    /// Who is to be woken by whatever happens next, until it is a flow's.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        let mut wakers = lock(&self.wakers);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Whether the caller is who sends now: nobody else does.
    pub(crate) fn begin_sending(&self) -> bool {
        !self.is_sending.swap(true, Ordering::SeqCst)
    }

    /// And has sent. Who waits for that is woken.
    pub(crate) fn end_sending(&self) {
        self.is_sending.store(false, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Watches no more. Its socket is closed when nobody uses it.
    pub(crate) fn leave(&self) {
        drop(lock(&self.registration).take());
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        drop(wakers); // outside the lock
    }

    /// Ends the connection at once, and throws away what was on its way.
    pub(crate) fn abort(&self) {
        if self.socket.domain().is_ok_and(|domain| domain == Domain::UNIX) {
            let _ = self.socket.shutdown(std::net::Shutdown::Both); // it is over, whatever this says
        } else {
            socket::reset(&self.socket);
        }
    }
}

impl Ready for Side {
    fn ready(&self, readiness: Readiness) {
        if let Some((flow, side)) = self.flow.get() {
            if let Some(flow) = flow.upgrade() {
                flow.ready(*side, readiness);
            }
        } else {
            self.wake();
        }
    }
}

/// What a flow is for, and whose.
pub(crate) struct About {
    /// Its number here.
    pub(crate) number: u64,
    /// Its number at its initiator.
    pub(crate) theirs: u64,
    /// Its initiator.
    pub(crate) initiator: [u8; 16],
    /// Where it goes, for people.
    pub(crate) target: String,
    /// Who has it.
    pub(crate) client: String,
    /// Gateway, or target.
    pub(crate) next: String,
    /// It carries bulk data.
    pub(crate) is_bulk: bool,
    /// Where it is counted: by route, client and network.
    pub(crate) series: [Series; 3],
}

/// Two connections that are one.
pub(crate) struct Flow {
    pub(crate) about: About,
    group: Weak<Group>,
    pipes: Arc<Pipes>,
    /// Of the initiator, and of the next hop.
    sides: [Arc<Side>; 2],
    /// From each of them.
    directions: [Direction; 2],
    /// The size of the sockets' buffers.
    buffer: AtomicUsize,
    /// For how long bytes lay here, if somebody asks.
    pub(crate) held: Held,
    /// All has come from both sides and was passed on, and may be in the sockets still.
    is_through: AtomicBool,
    is_over: AtomicBool,
    on_end: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    this: Weak<Flow>,
}

#[derive(Default)]
struct Direction {
    state: Mutex<State>,
    /// Who asks for it to be moved, while somebody moves it.
    calls: AtomicU32,
    /// It is moved further by a task that waits for its turn: one, however much happens meanwhile.
    is_due: AtomicBool,
    bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    pipe: Option<Pipe>,
    /// The receiver has had no room since then.
    blocked: Option<Instant>,
    /// All has come.
    ended: bool,
    /// And gone.
    shut: bool,
}

/// How far a direction was moved.
enum Step {
    /// Until the kernel had no more, or no room.
    Idle,
    /// As far as its turn goes.
    Turn,
    /// No pipe was to be had.
    Short,
}

impl Flow {
    /// Both connections as one, of which nothing is moved before [`begin`](Flow::begin).
    /// Their buffers have this size. `on_end` is called once, when it is over.
    pub(crate) fn new(
        group: Weak<Group>,
        pipes: Arc<Pipes>,
        about: About,
        (sides, buffer): ([Arc<Side>; 2], usize),
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Arc<Flow> {
        Arc::new_cyclic(|this| Flow {
            about,
            group,
            pipes,
            sides,
            directions: Default::default(),
            buffer: AtomicUsize::new(buffer),
            held: Held::default(),
            is_through: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            on_end: Mutex::new(Some(on_end)),
            this: this.clone(),
        })
    }

    /// Begins to move, on the threads of its group alone.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let group = self.group.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        for (index, side) in self.sides.iter().enumerate() {
            let _ = side.flow.set((self.this.clone(), index)); // nobody else sets it
            let wakers = std::mem::take(&mut *lock(&side.wakers));
            drop(wakers); // nobody waits for it any more
            side.watch_by(&group)?;
        }
        // It may have ended on its own thread before both sides were there to leave.
        if self.is_over.load(Ordering::SeqCst) {
            self.sides.iter().for_each(|side| side.leave());
            return Ok(());
        }
        // What happened before somebody was told of it.
        for index in 0..2 {
            let gone = Readiness { read: true, write: true, gone: true };
            self.ready(index, gone);
        }
        Ok(())
    }

    /// Bytes that have gone from the initiator, and to it.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|index: usize| self.directions[index].bytes.load(Ordering::Relaxed))
    }

    /// For how long the initiator has had no room, and the next hop.
    pub(crate) fn blocked(&self) -> [Duration; 2] {
        let of = |index: usize| lock(&self.directions[index].state).blocked.map_or(Duration::ZERO, |at| at.elapsed());
        [of(1), of(0)]
    }

    /// For how long bytes lay here.
    pub(crate) fn answer(&self, asked: &RouteHeld) -> RouteHeldReply {
        self.held.answer(asked, [&self.sides[1].socket, &self.sides[0].socket])
    }

    /// Has both sockets take less, or more: bytes for each direction.
    pub(crate) fn set_buffers(&self, bytes: usize) {
        self.buffer.store(bytes, Ordering::Relaxed);
        self.sides.iter().for_each(|side| set_buffers(&side.socket, bytes));
    }

    fn ready(&self, side: usize, readiness: Readiness) {
        if readiness.gone && self.sides[side].socket.take_error().is_ok_and(|error| error.is_some()) {
            return self.abort();
        }
        if readiness.read || readiness.gone {
            self.pump(side);
        }
        if readiness.write || readiness.gone {
            self.pump(1 - side);
        }
        self.end_if_taken();
    }

    /// Moves what comes from a side, unless somebody does: then that one goes on.
    fn pump(&self, from: usize) {
        let direction = &self.directions[from];
        if direction.is_due.load(Ordering::SeqCst) {
            return; // it has had its turn
        }
        if direction.calls.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            let step = self.step(from);
            match step {
                Ok(Step::Idle) => {}
                Ok(Step::Turn) => {
                    direction.calls.store(0, Ordering::SeqCst);
                    return self.pump_later(from, Duration::ZERO);
                }
                Ok(Step::Short) => {
                    direction.calls.store(0, Ordering::SeqCst);
                    return self.pump_later(from, PIPE_PAUSE);
                }
                Err(_) => {
                    direction.calls.store(0, Ordering::SeqCst);
                    return self.abort();
                }
            }
            match direction.calls.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    fn pump_later(&self, from: usize, pause: Duration) {
        let (Some(group), Some(this)) = (self.group.upgrade(), self.this.upgrade()) else { return };
        if self.directions[from].is_due.swap(true, Ordering::SeqCst) {
            return;
        }
        let pause = (!pause.is_zero()).then(|| group.sleep(pause));
        group.spawn(async move {
            if let Some(pause) = pause {
                pause.await;
            }
            this.directions[from].is_due.store(false, Ordering::SeqCst);
            this.pump(from);
        });
    }

    fn step(&self, from: usize) -> io::Result<Step> {
        let (source, sink) = (&self.sides[from].socket, &self.sides[1 - from].socket);
        let turn = self.held.begins(from, source);
        let mut state = lock(&self.directions[from].state);
        let mut moved = 0;
        let result = loop {
            if state.shut || self.is_over.load(Ordering::SeqCst) {
                break Ok(Step::Idle);
            }
            let mut pipe = match state.pipe.take() {
                Some(pipe) => pipe,
                None if state.ended => {
                    state.shut = true;
                    let _ = sink.shutdown(std::net::Shutdown::Write); // it may have gone
                    drop(state);
                    self.count(from, moved, Duration::ZERO);
                    self.end_if_both();
                    return Ok(Step::Idle);
                }
                None if moved >= TURN_MAX => break Ok(Step::Turn),
                None => match self.fill(source, &mut state) {
                    Ok(Some(pipe)) => pipe,
                    Ok(None) if state.ended => continue,
                    Ok(None) => break Ok(Step::Idle),
                    Err(Lack::Pipe) => break Ok(Step::Short),
                    Err(Lack::Peer(error)) => break Err(error),
                },
            };
            match pipe.empty(sink) {
                Ok(count) => moved += count,
                Err(error) if is_later(&error) => {
                    state.pipe = Some(pipe);
                    state.blocked.get_or_insert_with(Instant::now);
                    break Ok(Step::Idle);
                }
                Err(error) => {
                    state.pipe = Some(pipe);
                    break Err(error);
                }
            }
            if let Some(since) = state.blocked.take() {
                self.count(from, 0, since.elapsed());
            }
            if pipe.held > 0 {
                state.pipe = Some(pipe);
            } else {
                self.pipes.give(pipe);
            }
        };
        drop(state);
        if let Some(turn) = turn {
            self.held.ends(&turn, sink);
        }
        self.count(from, moved, Duration::ZERO);
        if moved >= BULK_MIN {
            Group::rest();
        }
        result
    }

    /// A pipe with what has come; `None`: nothing has, by now or at all.
    fn fill(&self, source: &Socket, state: &mut State) -> Result<Option<Pipe>, Lack> {
        let mut pipe = self.pipes.take().map_err(|_| Lack::Pipe)?;
        match pipe.fill(source, pipes::room(self.buffer.load(Ordering::Relaxed))) {
            Ok(0) => state.ended = true,
            Ok(_) => return Ok(Some(pipe)),
            Err(error) if is_later(&error) => {}
            Err(error) => {
                self.pipes.give(pipe);
                return Err(Lack::Peer(error));
            }
        }
        self.pipes.give(pipe);
        Ok(None)
    }

    fn count(&self, from: usize, bytes: usize, blocked: Duration) {
        if bytes > 0 {
            self.directions[from].bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        if bytes > 0 || !blocked.is_zero() {
            self.about.series.iter().for_each(|series| series.moved(from, bytes as u64, blocked));
        }
    }

    fn end_if_both(&self) {
        if self.directions.iter().all(|direction| lock(&direction.state).shut) {
            self.is_through.store(true, Ordering::SeqCst);
            self.end_if_taken();
        }
    }

    /// Ends it when all has been passed on, and taken by those for whom it was: what is left in a
    /// socket that is closed the kernel gives up soon, where its receiver has no room for a while.
    /// That a peer has taken the end is told as whatever happens to a socket.
    fn end_if_taken(&self) {
        let is_left = |side: &Arc<Side>| {
            tcp_info(side.socket.as_fd()).is_ok_and(|info| info.unacknowledged > 0 || info.unsent > 0)
        };
        if self.is_through.load(Ordering::SeqCst) && !self.sides.iter().any(is_left) {
            self.end();
        }
    }

    /// Resets both sides, and throws away what was on its way.
    pub(crate) fn abort(&self) {
        self.sides.iter().for_each(|side| side.abort());
        self.end();
    }

    fn end(&self) {
        if self.is_over.swap(true, Ordering::SeqCst) {
            return;
        }
        for direction in &self.directions {
            let mut state = lock(&direction.state);
            state.shut = true;
            state.pipe.take().into_iter().for_each(|pipe| self.pipes.give(pipe));
        }
        self.sides.iter().for_each(|side| side.leave());
        self.about.series.iter().for_each(|series| series.ended());
        let on_end = lock(&self.on_end).take();
        on_end.into_iter().for_each(|on_end| on_end());
    }

    /// Ends it when one of its peers is not heard any more though it was asked, or both have taken
    /// all of it.
    pub(crate) fn look(&self, suspect: Duration) {
        self.end_if_taken();
        let is_dead = |side: &Arc<Side>| {
            let info = tcp_info(side.socket.as_fd()).ok();
            info.is_some_and(|info| matches!(judge(&info, suspect), Verdict::Dead(_)))
        };
        if !self.is_over.load(Ordering::SeqCst) && self.sides.iter().any(is_dead) {
            self.abort();
        }
    }
}

/// Why nothing was received.
enum Lack {
    Pipe,
    Peer(io::Error),
}

fn is_later(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Has a socket take so much, in each direction. A kernel that does not is no reason to fail.
pub(crate) fn set_buffers(socket: &Socket, bytes: usize) {
    for which in [sys::Buffer::Receive, sys::Buffer::Send] {
        let _ = sys::set_buffer(socket.as_fd(), which, bytes);
    }
}
