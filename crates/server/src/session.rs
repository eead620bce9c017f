//! Sessions: what a client has at this server, whatever its connections do.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_fs::{ClientId, Errno};
use aqueduct_net::{Connection, Silence};
use aqueduct_wire::{Class, Header, Kind, Op};
use aqueduct_worker::lock;

use crate::attached::Attached;
use crate::jobs::Jobs;
use crate::journal::{Answered, Folder, Journal, Left, Outcome, Record, Whose};
use crate::lease::holder::{Holder, Noted};
use crate::links::{Asker, Link};
use crate::metrics::{Counters, Metrics};
use crate::origin::Origin;
use crate::outbox::Outbox;
use crate::slots::{Granted, Kept, ReplyMemory, Row};
use crate::waits::Waits;

/// One client.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) secret: [u8; 16],
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) attached: OnceLock<Attached>,
    /// The epoch of the volume's map that its client was told in a HELLO REPLY.
    pub(crate) map_told: AtomicU64,
    pub(crate) counters: Arc<Counters>,
    /// Where it is written down, from its Attach on, if it is to outlive the process.
    pub(crate) journal: OnceLock<Journal>,
    recovering: AtomicBool,
    /// From its first request that asks for leases on.
    pub(crate) holder: OnceLock<Arc<Holder>>,
    /// Its client has said that it goes.
    pub(crate) said_goodbye: AtomicBool,
    /// It is a server of data's, which attaches to nothing and has beaten since that was looked at.
    pub(crate) has_beaten: AtomicBool,
    /// Nobody may join any more, and no request of it is begun.
    ended: AtomicBool,
    /// What it held is being given back, or has been.
    is_freed: AtomicBool,
    /// The next process goes on with it.
    is_handed_over: AtomicBool,
    /// Requests of it that are being executed or wait for a lock.
    executing: AtomicUsize,
    /// Looks of it that wait for who holds writes back.
    pub(crate) looking: AtomicUsize,
    /// It was restored on a machine that may have lost what it had done.
    pub(crate) has_lost: bool,
    /// Of what is recorded since.
    era: u8,
    connections: Mutex<Connections>,
    links: Mutex<Vec<Weak<Link>>>,
    /// Those for which it says that it asks.
    pub(crate) jobs: Jobs,
    /// What the server sends by itself, and the client has not acknowledged.
    pub(crate) outbox: Mutex<Outbox>,
    /// Of all its connections together.
    pub(crate) silence: Mutex<Silence>,
    slots: [Row<Slot>; 2],
    granted: Granted,
    /// Requests that were answered PENDING.
    pub(crate) waits: Waits,
}

/// The connections of a session.
#[derive(Default)]
struct Connections {
    present: Vec<(u32, Weak<Connection>)>,
    /// Those of them for control that have been greeted.
    control: Vec<Weak<Connection>>,
    /// How many have come, so that the grace time of a break that was mended ends nothing.
    joins: u64,
    /// One was cut off since the last one came: then the client has not left, although others of
    /// them ended as if it had.
    is_cut: bool,
}

/// The last connection of a session has gone.
pub(crate) struct Forsaken {
    /// How many had come by then, for [`end_if_forsaken`](Session::end_if_forsaken).
    pub(crate) joins: u64,
    /// The client was cut off, and has not left.
    pub(crate) is_cut: bool,
}

/// Later requests of one slot that wait for the end of an earlier one, on connections that are
/// there: a client that loses one again and again sends each time what it had under way.
const BEHIND_MAX: usize = 16;

/// Repeats of one request that wait for its end: a client sends one for each connection that it lost meanwhile.
const REPEATS_MAX: usize = 16;

/// The memory of one slot: its last request and how that ended.
#[derive(Default)]
struct Slot {
    sequence: u32,
    state: SlotState,
    /// Later requests, which wait for the end of this one.
    behind: Vec<Behind>,
}

/// A request that waits for the end of an earlier one.
struct Behind {
    waker: Waker,
    link: Arc<Link>,
}

impl Slot {
    /// Whether a request of this sequence is later than the slot's.
    fn is_before(&self, sequence: u32) -> bool {
        let ahead = sequence.wrapping_sub(self.sequence);
        ahead != 0 && ahead < u32::MAX / 2
    }

    fn is_executing(&self) -> bool {
        matches!(self.state, SlotState::Executing { .. })
    }

    /// Whether another request may wait for the end of this one. For that those end whose
    /// connection has gone: they are sent again, or nobody wants them.
    fn room_behind(&mut self) -> bool {
        if self.behind.len() >= BEHIND_MAX {
            let (here, gone): (Vec<_>, _) =
                std::mem::take(&mut self.behind).into_iter().partition(|behind| behind.link.is_usable());
            self.behind = here;
            gone.into_iter().for_each(|behind| behind.waker.wake());
        }
        self.behind.len() < BEHIND_MAX
    }

    /// The request that is executed has ended like this. Returns who else waits for its reply.
    fn end(&mut self, state: SlotState) -> Vec<Asker> {
        self.behind.drain(..).for_each(|behind| behind.waker.wake());
        match std::mem::replace(&mut self.state, state) {
            SlotState::Executing { waiting } => waiting,
            _ => Vec::new(),
        }
    }
}

#[derive(Default)]
enum SlotState {
    #[default]
    Unused,
    /// Runs; repeats of it wait here for the reply.
    Executing { waiting: Vec<Asker> },
    /// Ended: the header and body of the reply.
    Remembered { header: Header, body: Kept },
    /// Was answered, or about to be executed, by an earlier process; or answered, and its reply was too long to remember.
    Restored(Record),
}

/// What to do with a request that came in a slot.
pub(crate) enum Admission {
    /// Execute it. `may_be_old`: nothing was recorded in its slot since the machine may have lost
    /// what was, so that an earlier process may have been sent it too.
    New { may_be_old: bool },
    /// It has been executed: this is the reply.
    Remembered(Header, Vec<u8>),
    /// This is what an earlier process left of it: answer accordingly.
    Restored(Record),
    /// It is being executed: the reply goes to this connection as well.
    Attached,
    /// It was answered PENDING, and waits: its end is told on this connection as well.
    Waits,
    /// An earlier request of the slot is being executed, and may change what this one is about: it
    /// is to be admitted again when that has ended, see [`Session::slot_ended`].
    Behind,
    /// The slot or its sequence makes no sense.
    Refused(String),
}

impl Session {
    pub(crate) fn new(id: u64, secret: [u8; 16], name: String, origin: Origin, granted: Granted) -> Session {
        Session {
            id,
            secret,
            name,
            origin,
            attached: OnceLock::new(),
            map_told: AtomicU64::new(0),
            counters: Arc::default(),
            journal: OnceLock::new(),
            recovering: AtomicBool::new(false),
            holder: OnceLock::new(),
            said_goodbye: AtomicBool::new(false),
            has_beaten: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_freed: AtomicBool::new(false),
            is_handed_over: AtomicBool::new(false),
            executing: AtomicUsize::new(0),
            looking: AtomicUsize::new(0),
            has_lost: false,
            era: 0,
            connections: Mutex::default(),
            links: Mutex::default(),
            jobs: Jobs::default(),
            outbox: Mutex::default(),
            silence: Mutex::default(),
            slots: [Row::new(granted.count), Row::new(granted.count)],
            granted,
            waits: Waits::default(),
        }
    }

    /// A session that an earlier process left, of a client that still has to have again what it had.
    pub(crate) fn restored(left: Left, attached: Attached, has_lost: bool, memory: &Arc<ReplyMemory>) -> Session {
        let Left { head, journal, slots } = left;
        let mut session =
            Session::new(head.session, head.secret, head.client, head.origin.into(), memory.take(head.slots));
        for (class, number, record) in slots {
            let row = &session.slots[usize::from(class == Class::Releasing)];
            if let Some(slot) = row.get(number) {
                let (sequence, state) = (record.sequence, SlotState::Restored(record));
                *lock(slot) = Slot { sequence, state, behind: Vec::new() };
            }
        }
        session.attached = attached.into();
        session.journal = journal.into();
        session.recovering = true.into();
        session.has_lost = has_lost;
        session.era = head.era;
        session
    }

    /// Whether it outlives the process.
    pub(crate) fn survives(&self) -> bool {
        self.journal.get().is_some_and(Journal::survives)
    }

    /// Whether what it changes of names and attributes is on the disk before it is answered.
    pub(crate) fn is_durable(&self) -> bool {
        self.attached.get().is_some_and(|attached| attached.export.durable)
    }

    /// Its client may hold back what it writes from now on.
    pub(crate) fn note_writes(&self) {
        self.journal.get().into_iter().for_each(Journal::note_writes);
    }

    /// What of it is written down.
    pub(crate) fn whose(&self) -> Whose {
        let (session, secret, slots) = (self.id, self.secret, self.slots());
        Whose { session, secret, client: self.name.clone(), origin: (&self.origin).into(), slots }
    }

    /// What it asks for belongs to its client and its export, from now on.
    pub(crate) fn count_in(&self, metrics: &Metrics) {
        if let Some(attached) = self.attached.get() {
            metrics.attached(&self.counters, &self.name, &attached.export.name);
        }
    }

    /// Before a request is executed: writes down what will tell whether it was.
    pub(crate) fn intend(&self, request: &Header, intent: &[u8]) {
        let Some(slot) = self.slot(request) else { return };
        let slot = lock(slot);
        if let Some(journal) = self.journal.get().filter(|_| slot.sequence == request.sequence) {
            journal.intend(request, intent, request.op == Op::Write as u16);
        }
    }

    /// Writes it down anew, unless something of it is being executed: whether that was done nobody
    /// could tell afterwards.
    pub(crate) fn write_down_anew(&self, folder: &Folder) -> io::Result<()> {
        let Some(journal) = self.journal.get() else { return Ok(()) };
        let numbers = || (0..2 * self.slots()).filter_map(|at| Some((at, self.slots[at as usize % 2].get(at / 2)?)));
        // Held until all is written: no request begins meanwhile.
        let slots: Vec<_> = numbers().map(|(at, slot)| (at, lock(slot))).collect();
        let busy = || io::Error::from(io::ErrorKind::ResourceBusy);
        if self.has_ended() || self.is_handed_over.load(Ordering::SeqCst) {
            return Err(busy());
        }
        let mut answered = Vec::new();
        for (at, slot) in &slots {
            let class = if at % 2 == 0 { Class::Ordinary } else { Class::Releasing };
            let place = Header { class, slot: at / 2, sequence: slot.sequence, ..Header::new(Kind::Request) };
            answered.push(match &slot.state {
                SlotState::Unused => continue,
                SlotState::Executing { .. } => return Err(busy()),
                // A wait ends with the process: its request is then a new one.
                SlotState::Remembered { header, .. } if header.kind == Kind::Pending => continue,
                SlotState::Remembered { header, body } => Answered {
                    request: Header { op: header.op, ..place },
                    era: self.era,
                    answer: Some((header, &body.body)),
                },
                SlotState::Restored(record) => {
                    let answer = match &record.outcome {
                        Outcome::Intended(_) => return Err(busy()),
                        Outcome::Replied { header, body } => Some((header, &body[..])),
                        Outcome::Forgotten => None,
                    };
                    Answered { request: Header { op: record.op, ..place }, era: record.era, answer }
                }
            });
        }
        journal.begin_anew(folder, &answered)
    }

    /// Slots in each class.
    pub(crate) fn slots(&self) -> u32 {
        self.granted.count
    }

    /// Whether the client still has to say what it had open and locked before a restart.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.load(Ordering::SeqCst)
    }

    /// The client has again what it had.
    pub(crate) fn recovered(&self, verifier: u64) {
        self.note_broken(false); // it has been told of what is lost
        self.journal.get().into_iter().for_each(|journal| journal.note_recovered(verifier, self.era));
        self.recovering.store(false, Ordering::SeqCst);
    }

    /// Whether a request was recorded before the machine may have lost what clients had written.
    pub(crate) fn is_of_before(&self, record: &Record) -> bool {
        record.era != self.era
    }

    pub(crate) fn client(&self) -> ClientId {
        ClientId(self.id)
    }

    fn slot(&self, header: &Header) -> Option<&Mutex<Slot>> {
        let row = match header.class {
            Class::Ordinary => &self.slots[0],
            Class::Releasing => &self.slots[1],
            Class::Callback => return None,
        };
        row.get(header.slot)
    }

    /// Decides about a request that changes something: exactly one of its tries is executed.
    pub(crate) fn admit(&self, header: &Header, asker: impl FnOnce() -> Asker) -> Admission {
        let Some(slot) = self.slot(header) else {
            return Admission::Refused(format!("slot {} of class {:?} does not exist", header.slot, header.class));
        };
        let mut slot = lock(slot);
        // A client that gave a request up goes on with the next number. What was skipped is never
        // begun; what has begun is waited for, since its end may come late: a write would land on
        // those of whoever was given its file meanwhile.
        if slot.is_before(header.sequence) {
            if slot.is_executing() {
                return match slot.room_behind() {
                    true => Admission::Behind,
                    false => Admission::Refused(format!("slot {} has {BEHIND_MAX} requests waiting", header.slot)),
                };
            }
            let may_be_old = match &slot.state {
                SlotState::Unused => self.era > 0,
                SlotState::Restored(record) => self.is_of_before(record),
                SlotState::Executing { .. } | SlotState::Remembered { .. } => false,
            };
            (slot.sequence, slot.state) = (header.sequence, SlotState::Executing { waiting: Vec::new() });
            return Admission::New { may_be_old };
        }
        if header.sequence != slot.sequence {
            return Admission::Refused(format!(
                "slot {} is at sequence {}, not {}",
                header.slot, slot.sequence, header.sequence
            ));
        }
        if matches!(&slot.state, SlotState::Remembered { header, .. } if header.kind == Kind::Pending) {
            if self.waits.join(header, asker(), REPEATS_MAX) {
                return Admission::Waits;
            }
            // The connection on which it would have been completed has gone, and its wait with it: it waits anew, for this one.
            slot.state = SlotState::Executing { waiting: Vec::new() };
            return Admission::New { may_be_old: false };
        }
        match &mut slot.state {
            SlotState::Unused => {
                Admission::Refused(format!("slot {} has had no request {}", header.slot, header.sequence))
            }
            SlotState::Executing { waiting } => {
                waiting.retain(|asker| asker.link.is_usable());
                if waiting.len() >= REPEATS_MAX {
                    return Admission::Refused(format!("slot {} has {REPEATS_MAX} repeats waiting", header.slot));
                }
                waiting.push(asker());
                Admission::Attached
            }
            SlotState::Remembered { header, body } => Admission::Remembered(*header, body.body.to_vec()),
            SlotState::Restored(record) => {
                let record = record.clone();
                slot.state = SlotState::Executing { waiting: Vec::new() };
                Admission::Restored(record)
            }
        }
    }

    /// Remembers a reply, before it is sent; returns who else waits for it.
    pub(crate) fn remember(&self, request: &Header, reply: &Header, body: &[u8]) -> Vec<Asker> {
        let Some(slot) = self.slot(request) else { return Vec::new() };
        let mut slot = lock(slot);
        if slot.sequence != request.sequence {
            return Vec::new();
        }
        // A wait ends with the process: its request is then a new one.
        if let Some(journal) = self.journal.get().filter(|_| reply.kind != Kind::Pending) {
            journal.reply(request, reply, body);
        }
        let state = match self.granted.memory.keep(body) {
            Some(body) => SlotState::Remembered { header: *reply, body },
            None => {
                let (sequence, op) = (request.sequence, request.op);
                SlotState::Restored(Record { sequence, op, era: self.era, outcome: Outcome::Forgotten })
            }
        };
        slot.end(state)
    }

    /// Ready when no earlier request of the slot is being executed any more.
    pub(crate) fn slot_ended(&self, header: &Header, link: &Arc<Link>, task: &mut Context<'_>) -> Poll<()> {
        let Some(slot) = self.slot(header) else { return Poll::Ready(()) };
        let mut slot = lock(slot);
        if !slot.is_before(header.sequence) || !slot.is_executing() {
            return Poll::Ready(());
        }
        if !slot.behind.iter().any(|behind| behind.waker.will_wake(task.waker())) {
            slot.behind.push(Behind { waker: task.waker().clone(), link: link.clone() });
        }
        Poll::Pending
    }

    /// A request that was admitted is over, and nothing was remembered of it: those behind it go
    /// on, and nobody knows what came of it.
    pub(crate) fn abandon(&self, request: &Header) {
        let Some(slot) = self.slot(request) else { return };
        let mut slot = lock(slot);
        if slot.sequence == request.sequence && slot.is_executing() {
            let (sequence, op) = (request.sequence, request.op);
            slot.end(SlotState::Restored(Record { sequence, op, era: self.era, outcome: Outcome::Forgotten }));
        }
    }

    /// Whether a further connection may come from there; else EACCES. Only the node that made a
    /// session joins it. One that has proved no name has to have the session's rights where it
    /// comes from now; before there is an export nobody knows those of another place.
    pub(crate) fn admits(&self, origin: &Origin) -> Result<(), Errno> {
        let suits = match self.attached.get() {
            _ if (&origin.node, origin.is_member) != (&self.origin.node, self.origin.is_member) => false,
            Some(attached) => attached.suits(origin),
            None => origin.identity() == self.origin.identity(),
        };
        if suits { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// A connection joins, by the number that its client has given it: ESTALE when the session has
    /// ended, EEXIST where one with this number is there.
    pub(crate) fn add_connection(&self, connection: &Arc<Connection>, link: u32) -> Result<(), Errno> {
        let mut connections = lock(&self.connections);
        if self.has_ended() {
            return Err(Errno::ESTALE);
        }
        let lives = |known: &Weak<Connection>| known.upgrade().is_some_and(|connection| !connection.is_closed());
        if connections.present.iter().any(|(number, known)| *number == link && lives(known)) {
            return Err(Errno::EEXIST);
        }
        connections.joins += 1;
        connections.is_cut = false;
        connections.present.push((link, Arc::downgrade(connection)));
        Ok(())
    }

    /// The link that a connection is from now on.
    pub(crate) fn add_link(&self, number: u32, connection: &Arc<Connection>) -> Arc<Link> {
        let link = Arc::new(Link::new(number, connection));
        let mut links = lock(&self.links);
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        link
    }

    /// Those of its links that are used, or on which something is under way, with such numbers.
    pub(crate) fn links(&self, which: impl Fn(u32) -> bool) -> Vec<Arc<Link>> {
        lock(&self.links).iter().filter_map(Weak::upgrade).filter(|link| which(link.number)).collect()
    }

    /// A connection for control that has joined is greeted: what the client is asked for may go there.
    pub(crate) fn add_control(&self, connection: &Arc<Connection>) {
        lock(&self.connections).control.push(Arc::downgrade(connection));
    }

    /// A connection on which the client can be asked for what it has.
    pub(crate) fn control(&self) -> Option<Arc<Connection>> {
        lock(&self.outbox).choose(&self.controls())
    }

    /// All those.
    pub(crate) fn controls(&self) -> Vec<Arc<Connection>> {
        let control = lock(&self.connections).control.clone();
        control.iter().filter_map(Weak::upgrade).filter(|connection| !connection.is_closed()).collect()
    }

    /// Forgets a connection, which was cut off or not; says so if it was the last.
    pub(crate) fn remove_connection(&self, connection: &Arc<Connection>, is_cut: bool) -> Option<Forsaken> {
        let mut connections = lock(&self.connections);
        connections.is_cut |= is_cut;
        let is_other = |known: &Weak<Connection>| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(connection));
        connections.present.retain(|(_, known)| known.strong_count() > 0 && is_other(known));
        connections.control.retain(|known| known.strong_count() > 0 && is_other(known));
        let (joins, is_cut) = (connections.joins, connections.is_cut);
        connections.present.is_empty().then_some(Forsaken { joins, is_cut })
    }

    /// Ends the session unless a connection has come since; whether it did.
    pub(crate) fn end_if_forsaken(&self, joins: u64) -> bool {
        let connections = lock(&self.connections);
        let forsaken = connections.present.is_empty() && connections.joins == joins && !self.has_ended();
        self.ended.fetch_or(forsaken, Ordering::SeqCst);
        forsaken
    }

    /// Whether it is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Leaves it to the next process. A request that has not been written down by now is not
    /// executed any more: the next process could not tell that it was, and would do it once more.
    pub(crate) fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::SeqCst);
        self.journal.get().into_iter().for_each(Journal::close);
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::SeqCst)
    }

    /// A request of it begins. Looks come after this: whoever sees afterwards that the session has ended does not execute it.
    pub(crate) fn enter(&self) {
        self.executing.fetch_add(1, Ordering::SeqCst);
    }

    /// Its requests that are under way or wait for anything.
    pub(crate) fn requests(&self) -> usize {
        self.executing.load(Ordering::Relaxed)
    }

    /// A request of it is over; whether it was the last of a session that has ended.
    pub(crate) fn leave(&self) -> bool {
        // Looked at again once the end was seen: what has come in between, and saw no end, is
        // executed.
        self.executing.fetch_sub(1, Ordering::SeqCst) == 1 && self.has_ended() && self.is_drained()
    }

    /// Whether what it held is to be given back, which is done once.
    pub(crate) fn is_freed_now(&self) -> bool {
        !self.is_freed.swap(true, Ordering::SeqCst)
    }

    /// Whether nothing of it is being executed.
    pub(crate) fn is_drained(&self) -> bool {
        self.executing.load(Ordering::SeqCst) == 0
    }

    /// Its connections.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.connections).present.iter().filter_map(|(_, known)| known.upgrade()).collect()
    }

    /// Ends the session: closes its connections, and lets no other join.
    pub(crate) fn end(&self, reason: &str) {
        let mut connections = lock(&self.connections);
        self.ended.store(true, Ordering::SeqCst);
        let present = std::mem::take(&mut connections.present);
        connections.control.clear();
        drop(connections);
        for connection in present.iter().filter_map(|(_, known)| known.upgrade()) {
            connection.close(reason.to_owned());
        }
    }

    /// A request was answered that took so long.
    pub(crate) fn served(&self, took: Duration) {
        self.counters.own.served.add(took.as_nanos() as u64);
    }
}

impl Noted for Session {
    fn note_broken(&self, is_broken: bool) {
        self.journal.get().into_iter().for_each(|journal| journal.note_broken(is_broken));
    }
}
