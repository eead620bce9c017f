//! The operations of a client: each is one exchange with the server.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_fs::{
    Call, ClientId, Context, DirPage, Errno, FileSystem, LockKind, OpenFlags, ReadAt, Reply, Request, Sink, Source,
    WriteAt, Written,
};
use aqueduct_net::Frame;
use aqueduct_wire::{Class, Flags, HEADER_SIZE, Header, Kind, Op};
use bytes::Bytes;

use crate::cache::{self, Brought};
use crate::client::Client;
use crate::lane::{Answer, Lane, Ticket, delivered};
use crate::opens::used;
use crate::replay::Done;
use crate::slots::SlotGuard;

/// Data up to this size travel with control messages: their copy costs less than the wait behind bulk data would.
pub(crate) const SMALL: usize = 8 << 10;

/// How long a request that its caller gave up waits for the server to say what became of it. A server that does not answer must not keep
/// a program from being killed; what it still executes then has nobody who is told.
const CANCEL_SETTLED_MAX: Duration = Duration::from_secs(1);

/// One request on its way: what is needed to send it again.
pub(crate) struct Exchange {
    pub(crate) op: Op,
    pub(crate) class: Class,
    pub(crate) bulk: bool,
    pub(crate) changes: bool,
    /// Once more does no harm, also when another session asks.
    pub(crate) repeatable: bool,
    /// It was held back.
    pub(crate) held: bool,
    /// It makes sense on connections of this epoch only; EIO when there are none any more.
    pub(crate) only_in: Option<u64>,
    /// Room for the header, then the body.
    pub(crate) frame: Vec<u8>,
    pub(crate) payload: Option<Bytes>,
    pub(crate) sink: Option<Box<dyn Sink>>,
}

impl Exchange {
    pub(crate) fn new(op: Op, frame: Vec<u8>) -> Exchange {
        Exchange {
            op,
            class: Class::Ordinary,
            bulk: false,
            changes: false,
            repeatable: false,
            held: false,
            only_in: None,
            frame,
            payload: None,
            sink: None,
        }
    }

    fn header(&self, slot: Option<&SlotGuard<'_>>) -> Header {
        let mut header = Header::new(Kind::Request);
        header.op = self.op as u16;
        header.class = self.class;
        header.flags.set(Flags::HELD, self.held);
        header.body_length = (self.frame.len() - HEADER_SIZE) as u32;
        header.payload_length = self.payload.as_ref().map_or(0, |payload| payload.len() as u32);
        if let Some(slot) = slot {
            header.slot = slot.slot;
            header.sequence = slot.sequence;
        }
        header
    }

    /// `None`: there is no connection on which it may be sent.
    fn send_on<'a>(&mut self, lane: &'a Lane, header: &mut Header) -> Option<Ticket<'a>> {
        let place = (header, self.only_in);
        match lane.send(place, &mut self.frame, self.payload.clone(), self.sink.take()) {
            Ok(ticket) => Some(ticket),
            Err(sink) => {
                self.sink = sink;
                None
            }
        }
    }
}

impl Client {
    fn lane(&self, bulk: bool) -> &Arc<Lane> {
        let worker = self.groups.iter().position(|group| group.is_current()).unwrap_or(0);
        self.lane_of(worker, bulk)
    }

    /// Whether a request cannot be answered any more.
    fn is_in_vain(&self, exchange: &Exchange) -> bool {
        self.closing.load(Ordering::SeqCst) || exchange.only_in.is_some_and(|epoch| self.opens.epoch() != epoch)
    }

    /// Sends a request, again if its connection breaks, and waits for its reply.
    /// Returns the reply and the epoch in which it was given; `brought` is what it says of leases, also with an error.
    pub(crate) async fn exchange(
        &self,
        context: &Context,
        mut exchange: Exchange,
        brought: &mut Brought,
    ) -> Result<(Frame, u64), Errno> {
        self.counters.operations.fetch_add(1, Ordering::Relaxed);
        let class = exchange.class;
        let mut slot = if exchange.changes { Some(self.slots(class).take(&context.cancel).await?) } else { None };
        let mut session = self.session_number.load(Ordering::SeqCst);
        let mut flags = Flags::empty();
        let mut asked = self.config.soft.then(Instant::now);
        loop {
            if self.is_in_vain(&exchange) {
                return Err(Errno::EIO);
            }
            if exchange.changes && self.session_number.load(Ordering::SeqCst) != session && flags.contains(Flags::RETRY)
            {
                if !exchange.repeatable {
                    brought.is_open = false; // the session of before executes nothing any more
                    return Err(Errno::EIO); // executed or not, and nobody knows: say so rather than do it twice
                }
                session = self.session_number.load(Ordering::SeqCst);
                flags = Flags::empty();
            }
            let lane = self.lane(exchange.bulk);
            let mut header = exchange.header(slot.as_ref());
            header.flags |= flags;
            if self.leases.as_ref().is_some_and(|leases| leases.is_on()) {
                header.flags |= Flags::LEASES | brought.asks;
                brought.sent = cache::now();
            }
            match exchange.send_on(lane, &mut header) {
                None => self.wait_for_connection(context, lane).await?,
                Some(ticket) => {
                    brought.is_open = true;
                    slot.iter_mut().for_each(|slot| slot.sent = true);
                    if self.config.soft {
                        self.watch();
                    }
                    match self.answer(context, lane, (exchange.op, &ticket), &mut slot).await? {
                        Answered::Frame(frame) => {
                            (brought.epoch, brought.is_open) = (ticket.epoch, false);
                            return Ok((self.open_answer(frame, brought)?, ticket.epoch));
                        }
                        Answered::Lost(sink) => exchange.sink = sink,
                    }
                    flags |= Flags::RETRY;
                    if exchange.changes && slot.is_none() {
                        // A lock that was pending: ask anew. Should the first wait still be granted, it is the same owner's lock.
                        flags = Flags::empty();
                        asked = asked.map(|_| Instant::now());
                        slot = Some(self.slots(class).take(&context.cancel).await?);
                    }
                    // Also of a server that lets us in each time, and ends the connection instead of answering.
                    let has_tried_enough = asked.is_some_and(|asked| asked.elapsed() > self.config.timeout);
                    if has_tried_enough || exchange.op == Op::Read && exchange.sink.is_none() {
                        return Err(Errno::EIO);
                    }
                }
            }
        }
    }

    /// The result in an answer's frame, after what it says of leases.
    fn open_answer(&self, mut frame: Frame, brought: &mut Brought) -> Result<Frame, Errno> {
        if let Some(leases) = self.leases.as_ref().filter(|_| frame.header.flags.contains(Flags::RENEWS)) {
            leases.renew(brought.epoch, brought.sent);
        }
        if frame.header.flags.contains(Flags::GRANTS) {
            self.take_grants(&mut frame, brought)?;
        }
        if frame.header.status == 0 { Ok(frame) } else { Err(Errno::from_raw(frame.header.status as i32)) }
    }

    /// Takes the leases off the start of a reply's body.
    fn take_grants(&self, frame: &mut Frame, brought: &mut Brought) -> Result<(), Errno> {
        let (granted, rest) = aqueduct_wire::take_grants(&frame.body).map_err(|error| {
            tracing::error!(%error, server = %self.config.server, "the server sent grants that make no sense");
            Errno::EPROTO
        })?;
        let length = frame.body.len() - rest.len();
        frame.body.drain(..length);
        (brought.grants, brought.changed) = (granted.grants, granted.changed);
        Ok(())
    }

    fn slots(&self, class: Class) -> &crate::slots::Slots {
        if class == Class::Releasing { &self.slots_releasing } else { &self.slots }
    }

    async fn answer<'a>(
        &self,
        context: &Context,
        lane: &Lane,
        (op, ticket): (Op, &Ticket<'_>),
        slot: &mut Option<SlotGuard<'a>>,
    ) -> Result<Answered, Errno> {
        let mut cancelled = None;
        let mut pending = false;
        loop {
            let answer = poll_fn(|task| {
                if let Poll::Ready(answer) = ticket.poll(task, pending) {
                    return Poll::Ready(answer);
                }
                if cancelled.is_none() && context.cancel.poll(task).is_ready() {
                    lane.send_frame(&cancel_frame(ticket.id));
                    cancelled = Some(Box::pin(self.groups[0].sleep(CANCEL_SETTLED_MAX)));
                }
                match &mut cancelled {
                    Some(limit) => limit.as_mut().poll(task).map(|()| Answer::Unsettled),
                    None => Poll::Pending,
                }
            })
            .await;
            match answer {
                Answer::Pending if op != Op::SetLock => {
                    // It would never be looked at again, and is what no timeout ends.
                    pending = true;
                    lane.close("the server has something wait that does not");
                }
                Answer::Pending => {
                    pending = true;
                    *slot = None;
                    if cancelled.is_some() {
                        // The first CANCEL may have come before the server knew the request to wait.
                        lane.send_frame(&cancel_frame(ticket.id));
                    }
                }
                Answer::Frame(frame) => return Ok(Answered::Frame(frame)),
                Answer::Lost(_) if cancelled.is_some() => return Err(Errno::EINTR),
                Answer::Unsettled => return Err(Errno::EINTR),
                Answer::Lost(sink) => return Ok(Answered::Lost(sink)),
                Answer::TimedOut => return Err(Errno::EIO),
            }
        }
    }

    /// Waits for the lane to be connected again: for ever, or for the time of a soft mount; EINTR when cancelled.
    async fn wait_for_connection(&self, context: &Context, lane: &Lane) -> Result<(), Errno> {
        let mut limit = self.config.soft.then(|| Box::pin(self.groups[0].sleep(self.config.timeout)));
        poll_fn(|task| {
            if lane.poll_connected(task).is_ready() || self.closing.load(Ordering::SeqCst) {
                return Poll::Ready(Ok(()));
            }
            if context.cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            match &mut limit {
                Some(limit) => limit.as_mut().poll(task).map(|()| Err(Errno::EIO)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Runs a task that gives up requests after the time of a soft mount, as long as there are any.
    fn watch(&self) {
        if self.watching.swap(true, Ordering::SeqCst) {
            return;
        }
        let (lanes, timeout, group) = (self.lanes.clone(), self.config.timeout, self.groups[0].clone());
        let this = self.this.clone();
        self.groups[0].spawn(async move {
            loop {
                group.sleep(timeout / 4).await;
                lanes.iter().for_each(|lane| lane.time_out(timeout));
                let Some(client) = this.upgrade() else { return };
                client.watching.store(false, Ordering::SeqCst);
                // Looked at after the flag fell: whoever sends later starts a watcher of its own.
                if !lanes.iter().any(|lane| lane.is_busy()) || client.watching.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    pub(crate) async fn answer_call(
        &self,
        context: &Context,
        request: Request<'_>,
        brought: &mut Brought,
    ) -> Result<Reply, Errno> {
        self.answer_call_in(class_of(&request), context, request, brought).await
    }

    /// The same, in a slot of this class.
    pub(crate) async fn answer_call_in(
        &self,
        class: Class,
        context: &Context,
        request: Request<'_>,
        brought: &mut Brought,
    ) -> Result<Reply, Errno> {
        if request == Request::Root {
            return Ok(Reply::Entry(self.root())); // as it was attached: whoever asks wants the handle
        }
        if let Request::Release { open } | Request::ReleaseDirectory { open } = request
            && self.opens.end(open)
        {
            self.window.close(open);
            return Ok(Reply::Done);
        }
        self.opens.check(used(&request).into_iter().flatten())?;
        let kept = self.before(context, &request).await?;
        let answer = self.send_call_for(context, (class, &request), brought).await;
        if let Request::Release { open } = request {
            self.window.close(open);
        }
        let (reply, mut epoch) = match answer {
            // Its session ended while it was under way.
            Err(Errno::EBADF) => return self.answer_lost(&request),
            answer => answer?,
        };
        if let Some(mark) = kept {
            self.settle_kept((context, mark), &request, &reply, epoch).await?;
        }
        while !self.opens.note(epoch, context, &request, &reply) {
            // The server was restarted since it answered, and the recovery could not know of this.
            let again = again(&request, &reply);
            epoch = self.send_call_for(context, (class, &again), &mut Brought::default()).await?.1;
        }
        match request {
            Request::Sync { open, .. } => self.opens.error(open)?,
            Request::Flush { open, .. } => self.opens.error_at_close(open)?,
            _ => {}
        }
        Ok(reply)
    }

    /// Writes, and asks for what `brought` says.
    pub(crate) async fn write_asking(
        &self,
        context: &Context,
        (write, data): (WriteAt, Bytes),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        self.opens.check([write.open])?;
        self.opens.error(write.open)?;
        if self.window.is_full() {
            self.window.room(&context.cancel).await?;
        }
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_write(context, &write, &mut frame);
        let bulk = data.len() > SMALL;
        let payload = Some(data.clone());
        let exchange = Exchange { bulk, changes: true, payload, ..Exchange::new(Op::Write, frame) };
        let sent = self.exchange(context, exchange, brought).await;
        let (reply, epoch) = sent.map_err(|error| self.opens.explain(error, [write.open]))?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        self.counters.bytes_written.fetch_add(u64::from(written.count), Ordering::Relaxed);
        if written.verifier != 0 && self.window.is_on() {
            self.keep(context, Done { write, written, epoch }, data).await?;
        }
        Ok(written)
    }

    /// Asks for the first bytes of files. The answer's body is for [`aqueduct_wire::decode_fetched`].
    pub(crate) async fn fetch_files(
        &self,
        context: &Context,
        handles: &[&[u8]],
        brought: &mut Brought,
    ) -> Result<Vec<u8>, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_fetch(context, handles, aqueduct_wire::FETCH_LENGTH_MAX, &mut frame);
        let exchange = Exchange { bulk: true, ..Exchange::new(Op::Fetch, frame) };
        Ok(self.exchange(context, exchange, brought).await?.0.body)
    }

    /// Asks for the first pages of directories, with inodes.
    pub(crate) async fn list(
        &self,
        context: &Context,
        handles: &[&[u8]],
        brought: &mut Brought,
    ) -> Result<Vec<Result<DirPage, Errno>>, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_list(context, handles, &mut frame);
        let (reply, _) = self.exchange(context, Exchange::new(Op::List, frame), brought).await?;
        aqueduct_wire::decode_listed(&reply.body).map_err(|_| Errno::EPROTO)
    }

    /// The answer about an open that the server does not know: it may be lost since we looked.
    fn answer_lost(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        if let Request::Release { open } | Request::ReleaseDirectory { open } = *request {
            self.opens.lose(open); // which forgets it, as it is ending
            return Ok(Reply::Done);
        }
        Err(self.opens.explain(Errno::EBADF, used(request).into_iter().flatten()))
    }

    pub(crate) async fn send_call(&self, context: &Context, request: &Request<'_>) -> Result<(Reply, u64), Errno> {
        self.send_call_for(context, (class_of(request), request), &mut Brought::default()).await
    }

    async fn send_call_for(
        &self,
        context: &Context,
        (class, request): (Class, &Request<'_>),
        brought: &mut Brought,
    ) -> Result<(Reply, u64), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        let op = aqueduct_wire::encode_request(context, request, &mut frame);
        let (changes, repeatable) = (request.changes_state(), is_repeatable(request));
        let exchange = Exchange { class, changes, repeatable, ..Exchange::new(op, frame) };
        let (reply, epoch) = self.exchange(context, exchange, brought).await?;
        let reply = aqueduct_wire::decode_reply(op, &reply.body).map_err(|error| {
            tracing::error!(op = op.name(), %error, server = %self.config.server, "the server sent a reply that makes no sense");
            Errno::EPROTO
        })?;
        Ok((reply, epoch))
    }
}

/// What has the effect of an answered request on the opens and locks of a server that has forgotten it.
fn again<'a>(request: &Request<'a>, reply: &'a Reply) -> Request<'a> {
    match reply {
        Reply::Opened(opened) | Reply::Created(_, opened) => Request::Reopen { open: opened.id, token: &opened.token },
        _ => request.clone(),
    }
}

/// Whether a request that was perhaps executed in a session that is over may be sent in the next one: it only concerns what ended with the session.
fn is_repeatable(request: &Request<'_>) -> bool {
    match request {
        Request::Open { flags, .. } => !flags.contains(OpenFlags::TRUNCATE),
        Request::OpenDirectory { .. } | Request::Access { .. } => true,
        request => frees_others(request),
    }
}

/// Whether others may wait for what this request gives up.
pub(crate) fn frees_others(request: &Request<'_>) -> bool {
    match request {
        Request::Flush { .. } | Request::Release { .. } | Request::ReleaseDirectory { .. } => true,
        Request::SetLock { lock, .. } => lock.kind == LockKind::Unlock,
        _ => false,
    }
}

fn class_of(request: &Request<'_>) -> Class {
    if frees_others(request) { Class::Releasing } else { Class::Ordinary }
}

enum Answered {
    Frame(Frame),
    Lost(Option<Box<dyn Sink>>),
}

fn cancel_frame(request: u64) -> Vec<u8> {
    let mut frame = vec![0; HEADER_SIZE];
    aqueduct_wire::encode_cancel(request, &mut frame);
    let mut header = Header::new(Kind::Cancel);
    header.request = request;
    header.body_length = (frame.len() - HEADER_SIZE) as u32;
    frame[..HEADER_SIZE].copy_from_slice(&header.encode());
    frame
}

impl FileSystem for Client {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        Call::waiting(async move { self.answer_call(context, request, &mut Brought::default()).await })
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        Call::waiting(async move {
            self.opens.check([read.open])?;
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_read(context, &read, &mut frame);
            let bulk = read.length as usize > SMALL;
            let exchange = Exchange { bulk, sink: Some(sink), ..Exchange::new(Op::Read, frame) };
            let read = self
                .exchange(context, exchange, &mut Brought::default())
                .await
                .map_err(|error| self.opens.explain(error, [read.open]))?;
            let count = delivered(read.0.payload)?;
            self.counters.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
            Ok(count)
        })
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        let Source::Memory(data) = source;
        Call::waiting(async move { self.write_asking(context, (write, data), &mut Brought::default()).await })
    }

    /// The server frees what a session held when it ends; within a session the front end is the only client.
    fn depart(&self, _client: ClientId) {}
}
