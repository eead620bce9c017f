//! Sessions: what a client has at this server, whatever its connections do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use aqueduct_fs::{Cancel, ClientId, Errno};
use aqueduct_net::Connection;
use aqueduct_wire::{Class, Header, Kind, LEASES_TOLD_MAX, LeaseId, Op};

use crate::access::Attached;
use crate::endpoint::send;
use crate::journal::{Journal, Left, Outcome, Record};
use crate::lease::keeper::Holder;
use crate::slots::{Granted, Kept, ReplyMemory, Row};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Counters of one session, all since it began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// One client.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) secret: [u8; 16],
    pub(crate) name: String,
    pub(crate) peer: SocketAddr,
    pub(crate) attached: OnceLock<Attached>,
    pub(crate) counters: Counters,
    /// Where it is written down, from its Attach on, if it is to outlive the process.
    pub(crate) journal: OnceLock<Journal>,
    recovering: AtomicBool,
    /// From its first request that asks for leases on.
    pub(crate) holder: OnceLock<Arc<Holder>>,
    /// Its client has said that it goes.
    pub(crate) said_goodbye: AtomicBool,
    /// Nobody may join any more, and no request of it is begun.
    ended: AtomicBool,
    /// Requests of it that are being executed or wait for a lock.
    executing: AtomicUsize,
    /// Looks of it that wait for who holds writes back.
    pub(crate) looking: AtomicUsize,
    /// It was restored on a machine that may have lost what it had done.
    pub(crate) has_lost: bool,
    connections: Mutex<Connections>,
    slots: [Row<Slot>; 2],
    granted: Granted,
    /// Requests that were answered PENDING, by their id, with the connection on which they are completed.
    pending: Mutex<HashMap<u64, (Cancel, Weak<Connection>)>>,
}

/// The connections of a session.
#[derive(Default)]
struct Connections {
    present: Vec<Weak<Connection>>,
    /// Those of them for control that have been greeted.
    control: Vec<Weak<Connection>>,
    /// How many have come, so that the grace time of a break that was mended ends nothing.
    joins: u64,
}

/// When so many bytes wait on a connection, nothing is asked there any more, and it is closed: the next one is asked for all at 8 bytes a lease.
const UNREAD_MAX: usize = 4 << 20;

/// Repeats of one request that wait for its end: a client sends one for each connection that it lost meanwhile.
const REPEATS_MAX: usize = 16;

/// The memory of one slot: its last request and how that ended.
#[derive(Default)]
struct Slot {
    sequence: u32,
    state: SlotState,
}

#[derive(Default)]
enum SlotState {
    #[default]
    Unused,
    /// Runs; repeats of it wait here for the reply.
    Executing { waiting: Vec<(Weak<Connection>, u64)> },
    /// Ended: the header and body of the reply.
    Remembered { header: Header, body: Kept },
    /// Was answered, or about to be executed, by an earlier process; or answered, and its reply was too long to remember.
    Restored(Record),
}

/// What to do with a request that came in a slot.
pub(crate) enum Admission {
    /// Execute it. `may_be_old`: it is the first in its slot since the restart, so that an earlier process may have been sent it too.
    New { may_be_old: bool },
    /// It has been executed: this is the reply.
    Remembered(Header, Vec<u8>),
    /// This is what an earlier process left of it: answer accordingly.
    Restored(Record),
    /// It is being executed: the reply goes to this connection as well.
    Attached,
    /// The slot or its sequence makes no sense.
    Refused(String),
}

impl Session {
    pub(crate) fn new(id: u64, secret: [u8; 16], name: String, peer: SocketAddr, granted: Granted) -> Session {
        Session {
            id,
            secret,
            name,
            peer,
            attached: OnceLock::new(),
            counters: Counters::default(),
            journal: OnceLock::new(),
            recovering: AtomicBool::new(false),
            holder: OnceLock::new(),
            said_goodbye: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            executing: AtomicUsize::new(0),
            looking: AtomicUsize::new(0),
            has_lost: false,
            connections: Mutex::default(),
            slots: [Row::new(granted.count), Row::new(granted.count)],
            granted,
            pending: Mutex::default(),
        }
    }

    /// A session that an earlier process left, of a client that still has to have again what it had.
    pub(crate) fn restored(left: Left, attached: Attached, has_lost: bool, memory: &Arc<ReplyMemory>) -> Session {
        let Left { head, journal, slots } = left;
        let mut session = Session::new(head.session, head.secret, head.client, head.peer, memory.take(head.slots));
        for (class, number, record) in slots {
            let row = &session.slots[usize::from(class == Class::Releasing)];
            if let Some(slot) = row.get(number) {
                *lock(slot) = Slot { sequence: record.sequence, state: SlotState::Restored(record) };
            }
        }
        session.attached = attached.into();
        session.journal = journal.into();
        session.recovering = true.into();
        session.has_lost = has_lost;
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

    /// Whether what its client held back so far is lost.
    pub(crate) fn note_broken(&self, is_broken: bool) {
        self.journal.get().into_iter().for_each(|journal| journal.note_broken(is_broken));
    }

    /// Before a request is executed: writes down what will tell whether it was.
    pub(crate) fn intend(&self, request: &Header, intent: &[u8]) {
        let Some(slot) = self.slot(request) else { return };
        let slot = lock(slot);
        if let Some(journal) = self.journal.get().filter(|_| slot.sequence == request.sequence) {
            journal.intend(request, intent, request.op == Op::Write as u16);
        }
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
    pub(crate) fn recovered(&self) {
        self.note_broken(false); // it has been told of what is lost
        self.recovering.store(false, Ordering::SeqCst);
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
    pub(crate) fn admit(&self, header: &Header, connection: &Arc<Connection>) -> Admission {
        let Some(slot) = self.slot(header) else {
            return Admission::Refused(format!("slot {} of class {:?} does not exist", header.slot, header.class));
        };
        let mut slot = lock(slot);
        // A client that gave a request up goes on with the next number: what was skipped, or still runs, is of no interest any more.
        let ahead = header.sequence.wrapping_sub(slot.sequence);
        if ahead != 0 && ahead < u32::MAX / 2 {
            let may_be_old = matches!(slot.state, SlotState::Unused | SlotState::Restored(_));
            *slot = Slot { sequence: header.sequence, state: SlotState::Executing { waiting: Vec::new() } };
            return Admission::New { may_be_old };
        }
        if header.sequence != slot.sequence {
            return Admission::Refused(format!(
                "slot {} is at sequence {}, not {}",
                header.slot, slot.sequence, header.sequence
            ));
        }
        if matches!(&slot.state, SlotState::Remembered { header, .. } if header.kind == Kind::Pending) {
            // The connection on which it would have been completed has gone, and its wait with it: it waits anew, for this one.
            slot.state = SlotState::Executing { waiting: Vec::new() };
            return Admission::New { may_be_old: false };
        }
        match &mut slot.state {
            SlotState::Unused => {
                Admission::Refused(format!("slot {} has had no request {}", header.slot, header.sequence))
            }
            SlotState::Executing { waiting } => {
                waiting.retain(|(connection, _)| connection.strong_count() > 0);
                if waiting.len() >= REPEATS_MAX {
                    return Admission::Refused(format!("slot {} has {REPEATS_MAX} repeats waiting", header.slot));
                }
                waiting.push((Arc::downgrade(connection), header.request));
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
    pub(crate) fn remember(&self, request: &Header, reply: &Header, body: &[u8]) -> Vec<(Weak<Connection>, u64)> {
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
                SlotState::Restored(Record { sequence, op, outcome: Outcome::Forgotten })
            }
        };
        match std::mem::replace(&mut slot.state, state) {
            SlotState::Executing { waiting } => waiting,
            _ => Vec::new(),
        }
    }

    /// A request was answered PENDING and can be cancelled until it completes. False when the client has too many of them.
    pub(crate) fn add_pending(&self, request: u64, wait: (Cancel, Weak<Connection>), pending_max: usize) -> bool {
        let mut pending = lock(&self.pending);
        let room = pending.len() < pending_max;
        if room {
            pending.insert(request, wait);
        }
        room
    }

    /// Ends the waits that would be completed on a connection that has gone: granted to nobody, they would keep everybody else out.
    pub(crate) fn cancel_waits_of(&self, connection: &Arc<Connection>) {
        let is_its = |of: &Weak<Connection>| std::ptr::eq(of.as_ptr(), Arc::as_ptr(connection));
        let waits = lock(&self.pending);
        let cancels: Vec<Cancel> =
            waits.values().filter(|(_, of)| is_its(of)).map(|(cancel, _)| cancel.clone()).collect();
        drop(waits);
        cancels.iter().for_each(Cancel::raise);
    }

    pub(crate) fn remove_pending(&self, request: u64) {
        lock(&self.pending).remove(&request);
    }

    /// Asks a pending request to end; false when there is none of this id.
    pub(crate) fn cancel(&self, request: u64) -> bool {
        let wait = lock(&self.pending).get(&request).cloned();
        wait.inspect(|(cancel, _)| cancel.raise()).is_some()
    }

    /// Whether a further connection may come from there: EACCES, the export is closed to that host; ESTALE, its rights would be others, or nobody knows
    /// yet, so that the client has to begin a session from there.
    pub(crate) fn admits(&self, peer: SocketAddr) -> Result<(), Errno> {
        let suits = match self.attached.get() {
            Some(attached) => attached.suits(peer.ip()).ok_or(Errno::EACCES)?,
            None => peer.ip() == self.peer.ip(),
        };
        if suits { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// A connection joins; false when the session has ended.
    pub(crate) fn add_connection(&self, connection: &Arc<Connection>) -> bool {
        let mut connections = lock(&self.connections);
        if self.has_ended() {
            return false;
        }
        connections.joins += 1;
        connections.present.push(Arc::downgrade(connection));
        true
    }

    /// A connection for control that has joined is greeted: what the client is asked for may go there.
    pub(crate) fn add_control(&self, connection: &Arc<Connection>) {
        lock(&self.connections).control.push(Arc::downgrade(connection));
    }

    /// A connection on which the client can be asked for what it has.
    pub(crate) fn control(&self) -> Option<Arc<Connection>> {
        let control = lock(&self.connections).control.clone();
        control.iter().filter_map(Weak::upgrade).find(|connection| !connection.is_closed())
    }

    /// Asks for leases. Without a connection nobody is asked: whichever comes next is.
    pub(crate) fn recall(&self, leases: &[LeaseId]) {
        if let Some(connection) = self.control() {
            Session::recall_on(&connection, leases);
        }
    }

    /// Asks for leases on one of its connections.
    pub(crate) fn recall_on(connection: &Connection, leases: &[LeaseId]) {
        if connection.unread().is_some_and(|(bytes, _)| bytes > UNREAD_MAX) {
            return connection.give_up("what it is asked for is not read");
        }
        for leases in leases.chunks(LEASES_TOLD_MAX) {
            let mut body = Vec::new();
            aqueduct_wire::encode_leases(leases, &mut body);
            send(connection, Header { class: Class::Callback, ..Header::new(Kind::Callback) }, &body);
        }
    }

    /// Forgets a connection. If it was the last, returns how many had come by then, for [`end_if_forsaken`](Session::end_if_forsaken).
    pub(crate) fn remove_connection(&self, connection: &Arc<Connection>) -> Option<u64> {
        let mut connections = lock(&self.connections);
        let is_other = |known: &Weak<Connection>| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(connection));
        connections.present.retain(|known| known.strong_count() > 0 && is_other(known));
        connections.control.retain(|known| known.strong_count() > 0 && is_other(known));
        connections.present.is_empty().then_some(connections.joins)
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

    /// A request of it begins. Looks come after this: whoever sees afterwards that the session has ended does not execute it.
    pub(crate) fn enter(&self) {
        self.executing.fetch_add(1, Ordering::SeqCst);
    }

    /// A request of it is over; whether it was the last of a session that has ended.
    pub(crate) fn leave(&self) -> bool {
        self.executing.fetch_sub(1, Ordering::SeqCst) == 1 && self.has_ended()
    }

    /// Whether nothing of it is being executed.
    pub(crate) fn is_drained(&self) -> bool {
        self.executing.load(Ordering::SeqCst) == 0
    }

    /// Its connections.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.connections).present.iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends the session: closes its connections, and lets no other join.
    pub(crate) fn end(&self, reason: &str) {
        let mut connections = lock(&self.connections);
        self.ended.store(true, Ordering::SeqCst);
        let present = std::mem::take(&mut connections.present);
        connections.control.clear();
        drop(connections);
        for connection in present.iter().filter_map(Weak::upgrade) {
            connection.close(reason.to_owned());
        }
    }

    pub(crate) fn count(&self, bytes_read: usize, bytes_written: usize) {
        self.counters.operations.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_read.fetch_add(bytes_read as u64, Ordering::Relaxed);
        self.counters.bytes_written.fetch_add(bytes_written as u64, Ordering::Relaxed);
    }
}
