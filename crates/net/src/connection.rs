//! A connection: its socket, its two halves, and who is told.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

use aqueduct_fs::Sink;
use aqueduct_fs::steps::Router;
use aqueduct_metrics::status::WayStatus;
use aqueduct_wire::{Flags, FrameKeys, HEADER_SIZE, Header, Opener};
use aqueduct_worker::{Flush, Group, Interest, Readiness, Ready, Registration, lock};
use bytes::Bytes;
use socket2::Socket;

use crate::blocking::Link;
use crate::budget::{UNSENT_FREE, UNSENT_PAUSES, Waiter};
use crate::counters::Counters;
use crate::data_age::DataAge;
use crate::holding::{Handed, Holding};
use crate::liveness::{Liveness, was_cut};
use crate::peer::Peer;
use crate::pool::{BufferPool, Scratch};
use crate::receive::{Closed, Frame, Plan, ReceiveError, Receiver};
use crate::send::Sender;
use crate::socket::{discard_unsent, guard, reset};
use crate::sys::tcp_info;
use crate::way::Way;

/// While this many bytes wait to be sent, nothing more is received: a peer that does not read its replies gets no further requests served.
const BACKLOG_PAUSES: usize = 4 << 20;

/// Up to here data of files are copied; above `sendfile` pays (measured between 8 and 32 KiB).
const COPY_MAX: usize = 16 << 10;

/// Batches of frames that are received one after the other before others have their turn: a peer
/// that sends as fast as it is served would keep the thread else.
const BATCHES_PER_TURN: u32 = 16;

/// How a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Carries bulk data: nothing is read past a header that would then have to be copied.
    pub bulk: bool,
    /// The group has several threads.
    pub shared: bool,
    /// A peer of which nothing is heard for so long, though it was asked, is dead; at least [`SUSPECT_MIN`](crate::SUSPECT_MIN).
    pub suspect: Duration,
}

/// One half of the protocol: what happens with the frames of a connection.
pub trait Endpoint: Send + Sync {
    /// Where the payload of this frame, which is about to come, goes. `None`: into memory, with it.
    /// Called for each frame, also when its payload is empty.
    fn place(&self, header: &Header) -> Option<Box<dyn Sink>>;

    /// The connection ended before all of the payload had come: the sink that [`place`](Endpoint::place) gave for it, untouched by `finish`.
    fn put_back(&self, _header: &Header, _sink: Box<dyn Sink>) {}

    /// Whether a frame that begins like this is taken; else why not, and the connection ends.
    fn takes(&self, _header: &Header) -> Result<(), String> {
        Ok(())
    }

    /// A frame that may hold the thread for long, while the connection should go on elsewhere.
    fn is_slow(&self, header: &Header) -> bool;

    /// A whole frame has come.
    fn frame(&self, connection: &Arc<Connection>, frame: Frame);

    /// Whether frames are handed on that were whole when somebody ended the connection, before its
    /// [`closed`](Endpoint::closed): answers are, whose data are where they belong already. What
    /// asks for something is not, since it may not be wanted any more.
    fn takes_last(&self) -> bool {
        false
    }

    /// What came is not a frame; the connection ends next. The peer can still be told why.
    fn damaged(&self, _connection: &Arc<Connection>, _reason: &str) {}

    /// Where what the connection carries is counted, at present.
    fn counters(&self) -> Option<&Counters> {
        None
    }

    /// A router on the way of the connection stops, and the connection ends then: another is to
    /// take its place before.
    fn stopping(&self, _connection: &Arc<Connection>, _end: Instant) {}

    /// The connection has ended; nothing more will come. Called once.
    fn closed(&self, connection: &Arc<Connection>, closed: Closed);
}

/// A connection that belongs to a group and an endpoint.
pub struct Connection {
    socket: Arc<Socket>,
    peer: Peer,
    mode: Mode,
    pool: BufferPool,
    endpoint: Arc<dyn Endpoint>,
    receiver: Mutex<Receiver>,
    sender: Mutex<Sender>,
    registration: Mutex<Option<Registration>>,
    group: Weak<Group>,
    bulk: AtomicBool,
    checksums: AtomicBool,
    is_closed: AtomicBool,
    liveness: Liveness,
    data_age: DataAge,
    /// What the peer had acknowledged when something was on its way last.
    moved: AtomicU64,
    holding: Holding,
    /// It leads through a router.
    way: Option<Arc<Way>>,
    this: Weak<Connection>,
}

impl Connection {
    /// Starts a connection over a connected, blocking socket.
    pub fn start(
        group: &Arc<Group>,
        link: impl Into<Link>,
        mode: Mode,
        pool: BufferPool,
        endpoint: Arc<dyn Endpoint>,
    ) -> io::Result<Arc<Connection>> {
        let Link { socket, sealer, opener, way, aside } = link.into();
        let checksums = AtomicBool::new(sealer.adds_checksums());
        let peer = Peer::of(&socket)?;
        guard(&socket, mode.suspect)?;
        let socket = Arc::new(socket);
        let connection = Arc::new_cyclic(|this| Connection {
            socket,
            peer,
            mode,
            bulk: AtomicBool::new(mode.bulk),
            pool,
            endpoint,
            receiver: Mutex::new(Receiver::new(opener)),
            sender: Mutex::new(Sender::new(sealer)),
            registration: Mutex::default(),
            group: Arc::downgrade(group),
            checksums,
            is_closed: AtomicBool::new(false),
            liveness: Liveness::new(matches!(peer, Peer::Network(_)), mode.suspect, Arc::downgrade(group)),
            data_age: DataAge::default(),
            moved: AtomicU64::new(0),
            holding: Holding::default(),
            way,
            this: this.clone(),
        });
        // Registered under the lock: an event that comes at once finds the registration in place.
        let mut registration = lock(&connection.registration);
        *registration =
            Some(group.register_shared(connection.socket.clone(), connection.interest(false), connection.clone())?);
        drop(registration);
        aside.into_iter().for_each(|frame| connection.endpoint.frame(&connection, frame));
        if let Some(way) = &connection.way {
            let this = Arc::downgrade(&connection);
            let tell = move |end| this.upgrade().into_iter().for_each(|this| this.endpoint.stopping(&this, end));
            way.begin(group, mode.shared, mode.suspect, Arc::new(tell));
        }
        Ok(connection)
    }

    /// The router by which it leads.
    pub fn router(&self) -> Option<Arc<dyn Router>> {
        self.way.clone().map(|way| way as Arc<dyn Router>)
    }

    /// The router by which it leads, and when it ends there, if that has been said.
    pub fn gateway(&self) -> Option<(SocketAddr, Option<Instant>)> {
        self.way.as_ref().map(|way| (way.gateway, way.end()))
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Says what the connection carries from now on; see [`Mode::bulk`].
    pub fn set_bulk(&self, bulk: bool) {
        self.bulk.store(bulk, Ordering::Relaxed);
    }

    /// A proof has been looked at. From now on each frame has its tag, what is sent, beginning
    /// with the next, and what comes; or none has, without keys.
    pub fn set_keys(&self, keys: Option<FrameKeys>) {
        let (receive, send) = keys.map(|keys| (keys.receive, keys.send)).unzip();
        lock(&self.receiver).set_opener(Opener::new(receive));
        send.into_iter().for_each(|key| lock(&self.sender).sealer().set_key(key));
    }

    /// From now on each frame has this version: what is sent, beginning with the next, and what
    /// comes.
    pub fn set_version(&self, version: u16) {
        lock(&self.receiver).set_version(version);
        lock(&self.sender).sealer().set_version(version);
    }

    /// From now on each frame that is sent has the checksum of its body and payload. Those that come are checked if they have one.
    pub fn add_checksums(&self) {
        let mut sender = lock(&self.sender);
        // Before the sealer, so that nobody sends what he does not read where it gets a checksum.
        self.checksums.store(true, Ordering::SeqCst);
        sender.sealer().add_checksums();
    }

    fn read_size(&self) -> usize {
        // On a bulk connection: a header with its body, or a trailer and the next header. The same where what is read might have to wait.
        let is_tight = self.pool.budget().is_some_and(|budget| budget.is_tight());
        if is_tight || self.bulk.load(Ordering::Relaxed) { 512 } else { 64 << 10 }
    }

    /// Queues a frame; it is sent at the end of the turn.
    pub fn send(&self, head: &[u8], payload: Option<Bytes>) {
        let mut sender = lock(&self.sender);
        sender.queue(head, payload);
        self.note_unsent(&sender);
        drop(sender);
        if let Some(this) = self.this.upgrade() {
            Group::flush_later(this);
        }
    }

    /// Sends a frame at once, unless somebody else is sending, perhaps to a peer that does not read.
    pub fn send_unless_busy(&self, head: &[u8]) {
        if let Ok(mut sender) = self.sender.try_lock() {
            sender.queue(head, None);
            // It is a courtesy: a connection that fails now is about to be closed.
            let _ = self.send_queued(&mut sender);
        }
    }

    /// Sends a frame whose payload is a range of a file, with a trailer. `header` holds everything
    /// but the lengths and what `body` adds, which is asked when the data are there, or the first
    /// of them. Returns the bytes that were good, fewer than `length` if the file ended.
    /// An error of the file before anything was sent is returned; one of the connection closes it.
    pub fn send_file(
        &self,
        (mut header, body): (Header, Body<'_>),
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<usize> {
        header.flags |= Flags::TRAILER;
        if length <= COPY_MAX {
            let mut scratch = Scratch::take(length);
            let valid = aqueduct_fs::data::read_full(file, scratch.bytes(), offset)?;
            self.send_bytes((header, body), &scratch.bytes()[..valid]);
            return Ok(valid);
        }
        if self.checksums.load(Ordering::SeqCst) {
            return self.send_checked((header, body), file, offset, length);
        }
        // An error of the file's first byte has to be told as one: once the header is sent, only the length can.
        aqueduct_fs::data::read_full(file, &mut [0], offset)?;
        header.payload_length = length as u32;
        let body = body(&mut header);
        let mut sender = lock(&self.sender);
        let result = sender.send_file(self.socket.as_fd(), &head(&header, &body), file, offset, length);
        self.after_data(sender, result)
    }

    /// As [`send_file`](Connection::send_file), with a checksum: the data have to pass through memory.
    fn send_checked(
        &self,
        (header, body): (Header, Body<'_>),
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<usize> {
        let mut buffer = self.pool.take(length);
        let valid = aqueduct_fs::data::read_full(file, buffer.memory(), offset)?;
        let data = buffer.into_bytes().slice(..valid);
        let mut header = Header { payload_length: valid as u32, flags: header.flags - Flags::TRAILER, ..header };
        let body = body(&mut header);
        let mut sender = lock(&self.sender);
        let result = sender.send_whole(self.socket.as_fd(), &head(&header, &body), data);
        self.after_data(sender, result.map(|()| valid))
    }

    /// After data were sent at once, perhaps not all of them.
    fn after_data(&self, mut sender: MutexGuard<'_, Sender>, result: io::Result<usize>) -> io::Result<usize> {
        self.count_sent(&mut sender);
        let paused = self.may_pause();
        self.note_unsent(&sender);
        let left = self.wants_room(&sender);
        drop(sender);
        match &result {
            Ok(_) => self.liveness.sent(&self.this, Connection::look),
            Err(error) => self.send_failed("sending data", error),
        }
        if paused {
            self.arm(true);
        }
        if let Some(this) = self.this.upgrade().filter(|_| left) {
            Group::flush_later(this);
        }
        result
    }

    /// Sends a frame whose payload is these bytes, with a trailer if the header's flags ask for one.
    pub fn send_bytes(&self, (mut header, body): (Header, Body<'_>), data: &[u8]) {
        header.payload_length = data.len() as u32;
        let body = body(&mut header);
        let mut sender = lock(&self.sender);
        sender.head(&head(&header, &body), data);
        if data.len() <= COPY_MAX {
            sender.gather(data);
        } else {
            sender.append(Bytes::copy_from_slice(data));
        }
        if header.flags.contains(Flags::TRAILER) {
            let trailer = sender.sealer().trailer(data.len() as u32, &body, data);
            sender.gather(&trailer.encode());
        }
        self.note_unsent(&sender);
        drop(sender);
        if let Some(this) = self.this.upgrade() {
            Group::flush_later(this);
        }
    }

    /// Ends the connection; the endpoint is told.
    pub fn close(&self, reason: String) {
        self.end(Closed { reason, orderly: false, vanished: false });
    }

    /// Ends the connection of a peer of which nothing is heard. It is reset, since an orderly end
    /// would say that this side has gone.
    pub fn vanish(&self, reason: String) {
        self.end(Closed { reason, orderly: false, vanished: true });
    }

    /// A number that changes while anything comes from the peer.
    pub fn heard(&self) -> u32 {
        self.data_age.looks()
    }

    /// A number that changes, from look to look, while the peer takes what is on its way to it:
    /// then the path is slow, and not dead.
    pub fn moved(&self) -> u64 {
        let info = tcp_info(self.socket.as_fd()).ok();
        if let Some(info) = info.filter(|info| info.unacknowledged > 0 || info.unsent > 0) {
            self.moved.store(info.acknowledged, Ordering::Relaxed);
        }
        self.moved.load(Ordering::Relaxed)
    }

    /// Whether the peer's machine, or the Unix socket, has all that was sent. Locks no sender: who
    /// finds it locked leaves it to whoever has it to watch for room (see `arm`).
    pub fn is_taken(&self) -> bool {
        let is_on_its_way =
            || tcp_info(self.socket.as_fd()).is_ok_and(|info| info.unacknowledged > 0 || info.unsent > 0);
        self.holding.unsent() == 0 && !is_on_its_way()
    }

    /// Whether something has come that this side has not taken yet.
    pub fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&*self.socket).is_ok_and(|bytes| bytes > 0)
    }

    /// For how long the data of a frame that was whole when it `came` have waited in the kernel at
    /// least, to a few milliseconds. 0 where the kernel does not say.
    pub fn data_age(&self, came: Instant) -> Duration {
        let ask = || tcp_info(self.socket.as_fd()).map_or(0, |info| info.data_age);
        self.data_age.of(came, || Duration::from_millis(ask().into()))
    }

    /// The round trip as the kernel measures it; `None` where there is none.
    pub fn round_trip(&self) -> Option<Duration> {
        let info = tcp_info(self.socket.as_fd()).ok()?;
        (info.round_trip > 0).then(|| Duration::from_micros(info.round_trip.into()))
    }

    /// How the way to the peer fares, as the kernel counts it; `None`: there is none.
    pub fn way(&self) -> Option<WayStatus> {
        let info = tcp_info(self.socket.as_fd()).ok()?;
        Some(WayStatus {
            path: String::new(),
            connections: 1,
            round_trip_us: info.round_trip.into(),
            // Before anything was measured it is the greatest number.
            round_trip_min_us: info.round_trip_min.min(info.round_trip).into(),
            segments: info.segments.into(),
            resent: info.resent.into(),
            busy_us: info.busy,
            window_limited_us: info.window_limited,
            buffer_limited_us: info.buffer_limited,
        })
    }

    /// Sending has failed. Of a peer that has gone, what it had sent before is received all the
    /// same, as its goodbye may be the last of it; the end of that ends the connection.
    fn send_failed(&self, what: &str, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            let vanished = ReceiveError::is_silence_of(error);
            return self.end(Closed { reason: format!("{what}: {error}"), orderly: false, vanished });
        }
        let mut sender = lock(&self.sender);
        sender.break_off();
        self.note_unsent(&sender);
        drop(sender);
        self.arm(true);
    }

    /// Whether what ended the receiving says that the peer does not hear this side any more.
    fn is_cut(&self, error: &ReceiveError) -> bool {
        let is_reset = match error {
            ReceiveError::Socket(error) => error.kind() == io::ErrorKind::ConnectionReset,
            ReceiveError::End => lock(&self.sender).is_broken(), // which was told of the reset
            _ => false,
        };
        is_reset && tcp_info(self.socket.as_fd()).is_ok_and(|info| was_cut(&info, self.mode.suspect))
    }

    /// Ends the connection of a peer that does not read: what waits for it goes nowhere.
    pub fn give_up(&self, reason: &str) {
        discard_unsent(&self.socket);
        self.close(reason.to_owned());
    }

    /// Sees whether the peer is there; when to look again, as long as anything is on its way.
    fn look(&self) -> Option<Duration> {
        let info = || tcp_info(self.socket.as_fd()).ok().filter(|_| !self.is_closed());
        self.liveness.look(info, |reason| self.vanish(reason))
    }

    fn end(&self, closed: Closed) {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if closed.vanished {
            reset(&self.socket);
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let registration = lock(&self.registration).take();
        let mut receiver = lock(&self.receiver);
        let (unfinished, room) = (receiver.abandon(), receiver.take_room());
        drop(receiver);
        drop(room); // others may go on, which takes locks of theirs
        if let Some((header, sink)) = unfinished {
            self.endpoint.put_back(&header, sink);
        }
        let now = match self.endpoint.takes_last() {
            true => self.holding.ended(closed),
            false => Some(closed),
        };
        now.into_iter().for_each(|closed| self.tell_closed(closed));
        drop(self.holding.take_deferred());
        if let Ok(mut sender) = self.sender.try_lock() {
            sender.discard();
            self.note_unsent(&sender);
        }
        drop(registration);
    }

    fn tell_closed(&self, closed: Closed) {
        if let Some(this) = self.this.upgrade().filter(|_| self.holding.is_told_now()) {
            self.endpoint.closed(&this, closed);
        }
    }

    fn interest(&self, write: bool) -> Interest {
        let read = !self.pauses() && !self.holding.starved.load(Ordering::SeqCst);
        Interest { read, write, once: self.mode.shared }
    }

    /// Whether something waits for room to send: bytes, or frames that are looked at when there is.
    fn wants_room(&self, sender: &Sender) -> bool {
        sender.backlog() > 0 || self.holding.has_deferred()
    }

    /// Whether so much waits to be sent that nothing more is received. Only a server pauses: were both to, each would wait for the other to
    /// receive.
    fn pauses(&self) -> bool {
        let unsent = self.holding.unsent();
        let is_full = || self.pool.budget().is_some_and(|budget| budget.is_unsent_full());
        self.mode.shared && (unsent >= BACKLOG_PAUSES || unsent >= UNSENT_PAUSES && is_full())
    }

    /// Whether, until this thread has sent, another may have found that the connection pauses, and watches for nothing. Then it is armed afterwards, also
    /// when nothing is left; call it with the sender locked.
    fn may_pause(&self) -> bool {
        self.mode.shared && self.holding.unsent() >= UNSENT_PAUSES
    }

    fn note_unsent(&self, sender: &Sender) {
        self.holding.note_unsent(sender.backlog(), self.pool.budget());
    }

    /// Until it has finished a frame that takes room it leaves half of the room to those that
    /// have: many connections that begin frames and finish none do not hold up who is at work.
    pub fn set_unproven(&self) {
        self.holding.set_unproven();
    }

    /// Another connection of its session has finished a frame that takes room.
    pub fn set_proven(&self) {
        if self.holding.set_proven() {
            self.resume();
        }
    }

    /// Whether it has finished a frame that takes room, and is not known to hold any in vain.
    pub fn is_proven(&self) -> bool {
        !self.holding.leaves_half()
    }

    /// Whether its peer has held room in vain lately: then it gets less of it.
    pub fn set_hoards(&self, hoards: bool) {
        if self.holding.set_hoards(hoards) && !hoards {
            self.resume(); // if it waits, among the others from now on
        }
    }

    /// How long a frame that has room has been coming, and how long nothing of it has; `None`:
    /// there is none.
    pub fn unfinished(&self) -> Option<(Duration, Duration)> {
        self.holding.unfinished()
    }

    /// How many bytes of replies wait to be read, and for how long none of them was; `None`: few
    /// or none.
    pub fn unread(&self) -> Option<(usize, Duration)> {
        self.holding.unread()
    }

    /// Receives what is there, what was read with earlier frames included, and watches for more.
    fn receive_and_watch(self: &Arc<Self>) {
        if self.receive() && !self.is_closed() {
            self.arm(true);
        }
    }

    /// Says again what to watch for: always in a shared group, which reports once; else only when `changed`. What can be sent is sent
    /// first: waiting for room that is there would only wake another thread.
    fn arm(&self, changed: bool) {
        if !self.mode.shared && !changed {
            return;
        }
        // The registration stays locked from the look at the backlog to the arming: a look that is old must not undo a newer one.
        let registration = lock(&self.registration);
        let Some(armed) = &*registration else { return };
        let result = match self.sender.try_lock() {
            Ok(mut sender) => {
                self.send_queued(&mut sender).and_then(|()| armed.arm(self.interest(self.wants_room(&sender))))
            }
            // Somebody sends, perhaps a file and for long, and arms afterwards if anything is left.
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => armed.arm(self.interest(false)),
        };
        drop(registration);
        if let Err(error) = result {
            self.send_failed("sending", &error);
        }
    }

    /// Sends what the socket takes.
    fn send_queued(&self, sender: &mut Sender) -> io::Result<()> {
        let sent = sender.send(self.socket.as_fd(), rustix::net::SendFlags::empty(), false);
        self.count_sent(sender);
        let is_empty = sent?;
        self.note_unsent(sender);
        if !is_empty
            && sender.backlog() > UNSENT_FREE
            && self.pool.budget().is_some_and(|budget| budget.is_unsent_over())
        {
            return Err(io::Error::other(
                "the peer does not read its replies, and too many are kept for others already",
            ));
        }
        Ok(())
    }

    fn count_sent(&self, sender: &mut Sender) {
        let tally = sender.take_tally();
        if let Some(counters) = self.endpoint.counters() {
            counters.sent(tally);
        }
    }

    /// Receives and has handled what is there. Returns whether watching goes on here, and not where frames were handed to.
    fn receive(self: &Arc<Self>) -> bool {
        if self.holding.has_deferred() {
            if self.pauses() {
                return true;
            }
            let handing = Handing::begin(self); // before: without it they look as if handed on
            if !self.handle(self.holding.take_deferred(), handing) {
                return false;
            }
        }
        let (mut frames, mut batches) = (Vec::new(), 0);
        loop {
            if self.holding.has_deferred() {
                return true;
            }
            let endpoint = &self.endpoint;
            let mut place = |header: &Header| endpoint.place(header);
            let takes = |header: &Header| endpoint.takes(header);
            let (pool, read_size, hoards) = (&self.pool, self.read_size(), self.holding.leaves_half());
            let mut plan = Plan { pool, read_size, takes: &takes, hoards, starved: false, place: &mut place };
            let mut receiver = lock(&self.receiver);
            let result = receiver.receive(self.socket.as_fd(), &mut plan, &mut frames);
            self.holding.note_received(receiver.holds_room(), !frames.is_empty());
            self.holding.note_finished(&frames);
            let tally = receiver.take_tally();
            self.data_age.looked(receiver.heard(), matches!(result, Ok(true)));
            let handing = Handing::begin(self);
            drop(receiver);
            if let Some(counters) = endpoint.counters() {
                counters.received(tally);
            }
            let starved = plan.starved;
            let drained = match result {
                Ok(drained) => drained,
                Err(error) => {
                    self.handle(std::mem::take(&mut frames), handing);
                    let orderly = matches!(error, ReceiveError::End);
                    if let ReceiveError::Frame(_) | ReceiveError::Refused(_) = &error {
                        self.endpoint.damaged(self, &error.to_string());
                    }
                    let vanished = error.is_silence() || self.is_cut(&error);
                    let last = Handing::begin(self);
                    self.holding.end_after_frames(Closed { reason: error.to_string(), orderly, vanished });
                    drop(last);
                    return false;
                }
            };
            // Where it pauses, what else has been read is deferred next: no event would tell of it.
            let done = drained || self.is_closed();
            let watches = self.handle(std::mem::take(&mut frames), handing);
            if let Some(budget) = pool.budget().filter(|_| starved) {
                // Not watched for more until there is room for what has begun.
                if !self.holding.starved.swap(true, Ordering::SeqCst) {
                    budget.wait(self.this.clone(), hoards);
                }
            }
            if !watches {
                return false;
            }
            if done {
                return true;
            }
            batches += 1;
            if batches >= BATCHES_PER_TURN && self.receive_later() {
                return false;
            }
        }
    }

    /// Goes on after others have had their turn: what has been read already, of which no event
    /// tells, is not left behind.
    fn receive_later(self: &Arc<Self>) -> bool {
        let Some(group) = self.group.upgrade() else { return false };
        let this = self.clone();
        group.spawn(async move { this.receive_and_watch() });
        true
    }

    /// Hands frames to the endpoint. Before a slow one, the frames behind it, or if there are none the watching of the connection, go to
    /// other threads. Returns false when the watching has gone with the frames.
    fn handle(self: &Arc<Self>, frames: Vec<Frame>, handing: Handing) -> bool {
        let mut frames = frames.into_iter();
        while let Some(frame) = frames.next() {
            if self.is_closed() && !self.endpoint.takes_last() {
                return false; // what a session asked for must not be done after it was fenced
            }
            if self.pauses() && !self.holding.is_ending() {
                self.holding.defer([frame].into_iter().chain(frames));
                return true;
            }
            let group = Group::current().filter(|_| self.mode.shared && self.endpoint.is_slow(&frame.header));
            let Some(group) = group else {
                self.endpoint.frame(self, frame);
                continue;
            };
            let rest: Vec<Frame> = frames.collect();
            // Of what has been read with these frames no event tells: whoever goes on here begins with it.
            let alone = rest.is_empty() && !lock(&self.receiver).has_leftover();
            if alone {
                drop(handing);
                self.arm(true);
            } else {
                let this = self.clone();
                group.spawn(async move {
                    if this.handle(rest, handing) {
                        this.receive_and_watch();
                    }
                });
            }
            group.before_blocking();
            self.endpoint.frame(self, frame);
            return alone;
        }
        true
    }
}

/// Frames that one thread has received are handed to the endpoint until this is dropped. Another
/// one may find meanwhile that nothing more comes: the connection ends after the last frame, which
/// may be a goodbye.
struct Handing(Arc<Connection>);

impl Handing {
    fn begin(connection: &Arc<Connection>) -> Handing {
        connection.holding.begin_handing();
        Handing(connection.clone())
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        match self.0.holding.handed() {
            Handed::More => {}
            Handed::Deferred(frames) => _ = self.0.handle(frames, Handing(self.0.clone())),
            // Whoever has ended it has left to this what is told last.
            Handed::End(closed) if self.0.is_closed() && self.0.endpoint.takes_last() => self.0.tell_closed(closed),
            Handed::End(closed) => self.0.end(closed),
        }
    }
}

/// A frame's header, with the length of its body, and its body.
/// Makes the body of a frame with data, and adds its flags to the header.
pub type Body<'a> = &'a dyn Fn(&mut Header) -> Vec<u8>;

fn head(header: &Header, body: &[u8]) -> Vec<u8> {
    let header = Header { body_length: body.len() as u32, ..*header };
    let mut head = Vec::with_capacity(HEADER_SIZE + body.len());
    head.extend_from_slice(&header.encode());
    head.extend_from_slice(body);
    head
}

impl Waiter for Connection {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// There is room for the frame that waits for it. A task looks: of what has been received
    /// already no event tells, and whoever gives room back may hold locks of this or another
    /// connection.
    fn resume(&self) {
        if !self.holding.starved.swap(false, Ordering::SeqCst) {
            return;
        }
        let (Some(this), Some(group)) = (self.this.upgrade(), self.group.upgrade()) else { return };
        group.spawn(async move { this.receive_and_watch() });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.holding.note_unsent(0, self.pool.budget());
    }
}

impl Ready for Connection {
    fn ready(&self, readiness: Readiness) {
        let Some(this) = self.this.upgrade() else { return };
        if readiness.gone && self.holding.starved.load(Ordering::SeqCst) {
            return this.close("it broke while a frame waited for memory".into());
        }
        // Room to send may be what frames that are already here have waited for.
        let watches = !(readiness.read || self.mode.shared) || this.receive();
        if watches && !this.is_closed() {
            this.arm(readiness.write);
        }
    }
}

impl Flush for Connection {
    fn flush(&self) {
        let mut sender = lock(&self.sender);
        let paused = self.may_pause();
        let result = self.send_queued(&mut sender);
        let left = self.wants_room(&sender);
        drop(sender);
        match result {
            Ok(()) if left || paused => self.arm(true),
            Ok(()) => {}
            Err(error) => return self.send_failed("sending", &error),
        }
        self.liveness.sent(&self.this, Connection::look);
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
