//! One request and its reply: sent on a link of its worker, in a slot where it changes something,
//! and sent again when its connection breaks.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_fs::steps::{Sent, Served, What};
use aqueduct_fs::{Cancel, Context, Errno, Reply, Request, Sink, Staged};
use aqueduct_net::Frame;
use aqueduct_wire::{Class, Extensions, Flags, GiveUp, HEADER_SIZE, Header, Kind, Op, STATUS_MOVED, Times};
use aqueduct_worker::{Earlier, Moment};
use bytes::Bytes;

use crate::counters::UnderWay;
use crate::holder::{Brought, now};
use crate::lane::{Lane, Wish};
use crate::link::{Answer, Link, Owner, Ticket};
use crate::rails::Direction;
use crate::requests::{class_of, is_repeatable};
use crate::session::Session;
use crate::slots::{KeptSlot, SlotGuard};

/// Data up to this size travel with control messages: their copy costs less than the wait behind bulk data would.
pub(crate) const SMALL: usize = 8 << 10;

/// How long a request that its caller gave up waits for the server to say what became of it. A server that does not answer must not keep
/// a program from being killed; what it still executes then has nobody who is told.
const CANCEL_SETTLED_MAX: Duration = Duration::from_secs(1);

/// How long a write that the server has no room for waits for closes that may give some: many times
/// what a close takes, and far less than a lease lasts. A close that hangs at the server holds up
/// nobody for longer.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// The kernel is asked for the round trip of a connection on which a request took so long: that
/// costs a system call.
const ROUND_TRIP_ASKED_MIN: Duration = Duration::from_millis(1);

/// How long a request took at the server, as its reply says.
fn served(said: &Extensions) -> Option<Served> {
    let (queue, Times { lease_us, served_us }) = (said.queue_time?, said.times?);
    let [queue, lease, file_system] = [queue, lease_us, served_us].map(|time| Duration::from_micros(time.into()));
    Some(Served { queue, lease, file_system })
}

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
    /// Its body begins with extensions.
    pub(crate) extended: bool,
    /// Its answer is waited for however long it takes, also where others are given up.
    pub(crate) patient: bool,
    /// Its slot, which is kept beyond this exchange, and its number there.
    pub(crate) kept: Option<(Arc<KeptSlot>, u32)>,
    /// The epoch of the map by which a server was chosen; 0: it does not depend on that.
    pub(crate) map: u32,
    /// It makes sense on connections of this epoch only; EIO when there are none any more.
    pub(crate) only_in: Option<u64>,
    /// Room for the header, then the body.
    pub(crate) frame: Vec<u8>,
    pub(crate) payload: Option<Bytes>,
    pub(crate) sink: Option<Box<dyn Sink>>,
    /// Bulk data that come, in bytes.
    pub(crate) comes: u64,
    /// The rail that it was cut for.
    pub(crate) rail: Option<usize>,
    /// What it writes, in the place of a payload.
    pub(crate) staged: Option<Staged>,
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
            extended: false,
            patient: false,
            kept: None,
            map: 0,
            only_in: None,
            frame,
            payload: None,
            sink: None,
            comes: 0,
            rail: None,
            staged: None,
        }
    }

    /// Puts a prefix before the fields: the job, the trace, whether the queue time is asked for,
    /// and what was staged. A request that has a prefix already stays as it is.
    fn extend(&mut self, context: &Context, asks_queue_time: bool) {
        let job = context.job.as_ref().map(|job| (**job).into());
        let trace = context.steps().trace();
        let extensions = Extensions { job, trace, asks_queue_time, staged: self.staged, ..Extensions::default() };
        if self.extended || extensions.is_empty() {
            return;
        }
        let mut prefix = Vec::new();
        extensions.encode(&mut prefix);
        self.frame.splice(HEADER_SIZE..HEADER_SIZE, prefix);
        self.extended = true;
    }

    fn data(&self) -> Option<(Direction, u64)> {
        match &self.payload {
            _ if !self.bulk => None,
            Some(payload) => Some((Direction::Out, payload.len() as u64)),
            None => (self.comes > 0).then_some((Direction::In, self.comes)),
        }
    }

    /// Whether it may have been begun where it was lost, and must have ended there before it is
    /// asked for anew: it changes something, and no slot says that it is the same.
    fn is_fenced(&self, slot: Option<&SlotGuard<'_>>) -> bool {
        slot.is_none() && matches!(self.op, Op::Write | Op::SetAttr | Op::Reopen | Op::SetLock)
    }

    fn header(&self, slot: Option<&SlotGuard<'_>>) -> Header {
        let mut header = Header::new(Kind::Request);
        header.op = self.op as u16;
        header.class = self.class;
        header.epoch = self.map;
        header.flags.set(Flags::HELD, self.held);
        header.flags.set(Flags::EXTENDED, self.extended);
        header.body_length = (self.frame.len() - HEADER_SIZE) as u32;
        header.payload_length = self.payload.as_ref().map_or(0, |payload| payload.len() as u32);
        if let Some(slot) = slot {
            header.slot = slot.slot;
            header.sequence = slot.sequence;
        }
        header
    }

    /// `None`: there is no connection on which it may be sent.
    fn send_on<'a>(
        &mut self,
        link: &'a Link,
        (header, slot): (&mut Header, &mut Option<SlotGuard<'_>>),
        load: Option<(Direction, u64)>,
    ) -> Option<Ticket<'a>> {
        let place = (header, self.only_in, self.patient);
        let begins = || slot.iter_mut().for_each(SlotGuard::sending);
        match link.send(place, &mut self.frame, self.payload.clone(), (self.sink.take(), load), begins) {
            Ok(ticket) => Some(ticket),
            Err(sink) => {
                self.sink = sink;
                None
            }
        }
    }
}

impl Session {
    pub(crate) fn lane(&self, bulk: bool) -> &Lane {
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
        self.counters.operations.increment();
        exchange.extend(context, self.config.asks_queue_time);
        let _closes = (exchange.op == Op::Release).then(|| self.releases.enter());
        let (class, kept) = (exchange.class, exchange.kept.take());
        let mut slot = self.first_slot(context, (exchange.changes, class), kept.as_ref()).await?;
        let (first, mut session) = (self.first_flags(context), self.session_number.load(Ordering::SeqCst));
        let mut flags = first;
        let is_soft = self.config.soft && !exchange.patient;
        let mut asked = is_soft.then(Instant::now);
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
                flags = first;
            }
            let lane = self.lane(exchange.bulk);
            let data = exchange.data().filter(|_| self.rails.are_many());
            let link = lane.choose(&self.rails, Wish { data, rail: exchange.rail.take() });
            let mut header = self.flagged(exchange.header(slot.as_ref()), flags);
            if self.holder.as_ref().is_some_and(|holder| holder.asks()) {
                header.flags |= Flags::LEASES | brought.asks;
                brought.sent = now();
            }
            match exchange.send_on(link, (&mut header, &mut slot), data) {
                None => self.wait_for_connection((context, is_soft), lane).await?,
                Some(mut ticket) => {
                    brought.is_open = true;
                    let under_way = (self.sent(exchange.op, &ticket), flags);
                    match self.answer(context, (exchange.op, &ticket), &mut slot).await? {
                        Answered::Frame(frame) => {
                            (brought.epoch, brought.is_open) = (ticket.epoch, false);
                            let frame = self.noted(context, (&exchange, frame), (&mut ticket, &mut slot), under_way)?;
                            return Ok((self.open_answer(frame, brought)?, ticket.epoch));
                        }
                        Answered::Lost(sink) => exchange.sink = sink,
                    }
                    flags |= self.lost(context, &ticket);
                    if exchange.is_fenced(slot.as_ref()) {
                        self.fence(context, ticket.number).await?;
                    }
                    if exchange.changes && slot.is_none() {
                        // A lock that was pending: ask anew. Should the first wait still be granted, it is the same owner's lock.
                        flags = first;
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

    /// Sends a write. Where the server has no room for it, once more when what was being closed by
    /// then has been: a local file system gives room back at close.
    pub(crate) async fn exchange_write(
        &self,
        context: &Context,
        make: impl Fn() -> Exchange,
        brought: &mut Brought,
    ) -> Result<(Frame, u64), Errno> {
        let sent = self.releases.moment();
        let first = self.exchange(context, make(), brought).await;
        match first {
            Err(error) if self.gets_room(context, error, sent).await => self.exchange(context, make(), brought).await,
            first => first,
        }
    }

    /// Whether a write that was sent then, and refused by the server, is worth another try, now.
    pub(crate) async fn gets_room(&self, context: &Context, error: Errno, sent: Moment) -> bool {
        if !matches!(error, Errno::ENOSPC | Errno::EDQUOT) {
            return false;
        }
        let (began, limit) = (Instant::now(), self.groups[0].sleep(ROOM_WAIT_MAX));
        let has_ended = closes_end(&self.releases, sent, (&context.cancel, limit)).await;
        context.steps().queued(began, "closes that may give room");
        has_ended
    }

    /// With these flags, as far as the server that is there now knows them.
    fn flagged(&self, mut header: Header, flags: Flags) -> Header {
        header.flags |= flags;
        if !self.tells_times.load(Ordering::Relaxed) {
            header.flags -= Flags::TIMED;
        }
        header
    }

    /// A request was sent: it is watched, and under way.
    fn sent(&self, op: Op, ticket: &Ticket<'_>) -> UnderWay<'_> {
        self.watch();
        self.counters.sent(op, ticket.sent)
    }

    /// The flags of a first try. Where steps are kept, the server is asked how long the request
    /// takes.
    fn first_flags(&self, context: &Context) -> Flags {
        let is_timed = context.steps().is_on() && self.tells_times.load(Ordering::Relaxed);
        if is_timed { Flags::TIMED } else { Flags::empty() }
    }

    /// The connection broke with a request on it, which is to be sent again so.
    fn lost(&self, context: &Context, ticket: &Ticket<'_>) -> Flags {
        context.steps().note(ticket.sent, Instant::now(), || What::Away(self.named.clone()));
        self.counters.repeated.increment();
        Flags::RETRY
    }

    /// A request was answered: that is counted and noted, and what was added off the start of the
    /// answer is taken.
    fn noted(
        &self,
        context: &Context,
        (exchange, frame): (&Exchange, Frame),
        (ticket, slot): (&mut Ticket<'_>, &mut Option<SlotGuard<'_>>),
        (under_way, flags): (UnderWay<'_>, Flags),
    ) -> Result<Frame, Errno> {
        ticket.is_answered();
        let waited = exchange.changes && slot.is_none(); // for a lock
        let now = Instant::now();
        let took = now.saturating_duration_since(ticket.sent);
        under_way.ends(took, now);
        self.counters.answered(exchange.op, frame.header.status, (!waited).then_some(took));
        slot.iter_mut().for_each(|slot| slot.settled = true);
        let (frame, said) = self.take_extensions(frame)?;
        self.note(context, (exchange, ticket), now, (flags, said));
        Ok(frame)
    }

    /// Notes that a request was answered now.
    fn note(
        &self,
        context: &Context,
        (exchange, ticket): (&Exchange, &Ticket<'_>),
        now: Instant,
        (flags, said): (Flags, Extensions),
    ) {
        let sent = || {
            if exchange.op == Op::SetLock {
                return What::Queue("a lock that others have");
            }
            let connection = ticket.link.connection();
            let asks = now.saturating_duration_since(ticket.sent) >= ROUND_TRIP_ASKED_MIN;
            What::Request(Sent {
                op: exchange.op.name(),
                server: self.named.clone(),
                router: connection.as_ref().and_then(|connection| connection.router()),
                round_trip: connection.filter(|_| asks).and_then(|connection| connection.round_trip()),
                is_repeat: flags.contains(Flags::RETRY),
                is_timed: flags.contains(Flags::TIMED),
                served: served(&said),
            })
        };
        context.steps().note(ticket.sent, now, sent);
    }

    /// The slot in which a request is sent first, if it changes something.
    async fn first_slot<'a>(
        &'a self,
        context: &Context,
        (changes, class): (bool, Class),
        kept: Option<&'a (Arc<KeptSlot>, u32)>,
    ) -> Result<Option<SlotGuard<'a>>, Errno> {
        match kept {
            Some((kept, sequence)) => Ok(Some(kept.guard(*sequence))),
            None if changes => self.slot(context, class).await.map(Some),
            None => Ok(None),
        }
    }

    /// A slot for a request.
    async fn slot(&self, context: &Context, class: Class) -> Result<SlotGuard<'_>, Errno> {
        if let Some(slot) = self.slots(class).take_free() {
            return Ok(slot);
        }
        let began = Instant::now();
        let slot = self.slots(class).take(&context.cancel).await;
        self.counters.slot_wait.record_duration(began.elapsed());
        context.steps().queued(began, "a slot of the session");
        slot
    }

    /// The result in an answer's frame, after what it says of leases.
    fn open_answer(&self, mut frame: Frame, brought: &mut Brought) -> Result<Frame, Errno> {
        if let Some(holder) = self.holder.as_ref().filter(|_| frame.header.flags.contains(Flags::RENEWS)) {
            holder.renewed(brought.epoch, brought.sent);
        }
        if frame.header.flags.contains(Flags::GRANTS) {
            self.take_grants(&mut frame, brought)?;
        }
        match frame.header.status {
            0 => Ok(frame),
            STATUS_MOVED => {
                // Whoever chose by an older map finds another way.
                self.mapped(aqueduct_wire::Map::decode(&frame.body).map_err(|_| Errno::EPROTO)?);
                Err(Errno::ESTALE)
            }
            number if number < STATUS_MOVED => Err(Errno::from_raw(number as i32)),
            // No errno: a status of a later release.
            _ => Err(Errno::EPROTO),
        }
    }

    /// Takes what was added off the start of a reply's body.
    fn take_extensions(&self, mut frame: Frame) -> Result<(Frame, Extensions), Errno> {
        if !frame.header.flags.contains(Flags::EXTENDED) {
            return Ok((frame, Extensions::default()));
        }
        let (said, rest) = aqueduct_wire::Extensions::take(&frame.body).map_err(|error| {
            tracing::error!(%error, server = %self.config.server, "the server sent extensions that make no sense");
            Errno::EPROTO
        })?;
        if let Some(queued) = said.queue_time.filter(|_| self.config.asks_queue_time) {
            self.counters.queue_time.record_duration(Duration::from_micros(queued.into()));
        }
        let length = frame.body.len() - rest.len();
        frame.body.drain(..length);
        Ok((frame, said))
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

    async fn answer<'a>(
        &self,
        context: &Context,
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
                    ticket.link.send_frame(&cancel_frame(ticket.id));
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
                    ticket.link.close("the server has something wait that does not");
                }
                Answer::Pending => {
                    pending = true;
                    slot.iter_mut().for_each(|slot| slot.settled = true);
                    *slot = None;
                    if cancelled.is_some() {
                        // The first CANCEL may have come before the server knew the request to wait.
                        ticket.link.send_frame(&cancel_frame(ticket.id));
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

    /// Has the server end what came by a link that is lost, and waits until it has: what is asked
    /// for anew must not be executed beside it.
    pub(crate) fn fence<'a>(
        &'a self,
        context: &'a Context,
        link: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), Errno>> + Send + 'a>> {
        Box::pin(async move {
            let mut frame = vec![0; HEADER_SIZE];
            GiveUp { link, floor: 0, surviving: Vec::new() }.encode(&mut frame);
            let exchange = Exchange::new(Op::GiveUp, frame);
            match self.exchange(context, exchange, &mut Brought::default()).await {
                // Of a link that it does not know it says that it has ended.
                Ok(_) => Ok(()),
                Err(error) => {
                    tracing::debug!(link, %error, server = %self.config.server, "a link could not be given up");
                    Err(error)
                }
            }
        })
    }

    /// Waits for the lane to be connected again: for ever, or for the time of a soft mount; EINTR when cancelled.
    async fn wait_for_connection(&self, (context, is_soft): (&Context, bool), lane: &Lane) -> Result<(), Errno> {
        let mut limit = is_soft.then(|| Box::pin(self.groups[0].sleep(self.config.timeout)));
        let began = Instant::now();
        let connected = poll_fn(|task| {
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
        .await;
        context.steps().note(began, Instant::now(), || What::Away(self.named.clone()));
        connected
    }

    /// Something is under way: what has to look after it does.
    fn watch(&self) {
        if self.config.soft {
            self.watch_times();
        }
        if self.rails.are_many() {
            self.watch_rails();
        }
    }

    /// Runs a task that gives up requests after the time of a soft mount, as long as there are
    /// any.
    fn watch_times(&self) {
        if self.watching.swap(true, Ordering::SeqCst) {
            return;
        }
        let (links, timeout, group) = (self.links.clone(), self.config.timeout, self.groups[0].clone());
        let this = self.this.clone();
        self.groups[0].spawn(async move {
            loop {
                group.sleep(timeout / 4).await;
                links.iter().for_each(|link| link.time_out(timeout));
                let Some(client) = this.upgrade() else { return };
                client.watching.store(false, Ordering::SeqCst);
                // Looked at after the flag fell: whoever sends later starts a watcher of its own.
                if !links.iter().any(|link| link.is_busy()) || client.watching.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    /// Sends a request. Returns its reply and the epoch in which it came.
    pub(crate) async fn send_call(&self, context: &Context, request: &Request<'_>) -> Result<(Reply, u64), Errno> {
        self.send_call_for(context, (class_of(request), request), &mut Brought::default()).await
    }

    /// The same in a slot of a class, with what is asked for beside.
    pub(crate) async fn send_call_for(
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

/// Whether anything was being closed since that moment that may have given room, and all of it has
/// ended. Waits for what is being closed now, no longer than to the limit.
async fn closes_end(releases: &Earlier, since: Moment, (cancel, limit): (&Cancel, impl Future<Output = ()>)) -> bool {
    if !releases.was_any_since(since) {
        return false;
    }
    let (begun, mut limit) = (releases.begun(), pin!(limit));
    poll_fn(|task| match releases.poll_ended(begun, task) {
        _ if cancel.poll(task).is_ready() => Poll::Ready(false),
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => limit.as_mut().poll(task).map(|()| false),
    })
    .await
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Waker;

    use super::*;

    /// What comes of it at once; `None`: it waits.
    fn looks(releases: &Earlier, since: Moment, limit: impl Future<Output = ()>) -> Option<bool> {
        let cancel = Cancel::default();
        let looks = pin!(closes_end(releases, since, (&cancel, limit)));
        match looks.poll(&mut std::task::Context::from_waker(Waker::noop())) {
            Poll::Ready(is_worth) => Some(is_worth),
            Poll::Pending => None,
        }
    }

    /// The close may be answered on one connection before the refusal comes on another.
    #[test]
    fn a_close_that_ended_before_the_refusal_came_may_have_given_room() {
        let releases = Arc::<Earlier>::default();
        let quiet = releases.moment();
        assert_eq!(looks(&releases, quiet, pending()), Some(false), "nothing was closed");
        let close = releases.enter();
        let busy = releases.moment();
        drop(close);
        assert_eq!(looks(&releases, quiet, pending()), Some(true), "it was closed meanwhile");
        assert_eq!(looks(&releases, busy, pending()), Some(true), "it was being closed already");
    }

    #[test]
    fn a_close_that_hangs_is_waited_for_no_longer_than_to_the_limit() {
        let releases = Arc::<Earlier>::default();
        let _hangs = releases.enter();
        assert_eq!(looks(&releases, releases.moment(), pending()), None);
        assert_eq!(looks(&releases, releases.moment(), ready(())), Some(false));
    }
}
