//! A request under way, and its end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::Staged;
use aqueduct_net::Connection;
use aqueduct_wire::{Header, Op, Ordinal};

use crate::jobs::JobTraffic;
use crate::links::Running;
use crate::room::Room;
use crate::session::Session;
use crate::state::Server;
use crate::timing::Timing;

/// One request under way.
pub(super) struct Job {
    pub(super) server: Arc<Server>,
    pub(super) session: Arc<Session>,
    pub(super) connection: Arc<Connection>,
    pub(super) running: Running,
    pub(super) header: Header,
    pub(super) op: Op,
    /// For how long the server had not run by then.
    pub(super) stopped: Duration,
    /// Nanoseconds of that it waited for others' leases.
    pub(super) waited: AtomicU64,
    /// Its reply renews the session's leases.
    pub(super) renews: bool,
    /// It is executed in its slot, and nothing is remembered of it yet.
    pub(super) in_slot: AtomicBool,
    pub(super) asked: Asked,
    /// Bytes of data that it read or wrote.
    pub(super) bytes: AtomicU64,
    /// Of its reply.
    pub(super) status: AtomicU32,
    /// Where its frame is counted.
    pub(super) room: Mutex<Room>,
}

/// What of a request's extensions is needed until its end.
pub(crate) struct Asked {
    /// What its reply is to say of times.
    pub(crate) timing: Timing,
    /// The job for which it is made.
    pub(crate) job: Option<Arc<JobTraffic>>,
    /// The token of the right under which it is made.
    pub(crate) right: Option<Box<[u8]>>,
    /// Which of its client's writes beside others it is.
    pub(crate) ordinal: Option<Ordinal>,
    /// What it writes was brought here, or elsewhere.
    pub(crate) staged: Option<Staged>,
    /// The trace that it belongs to.
    pub(crate) trace: Option<[u8; 16]>,
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.in_slot.load(Ordering::Relaxed) {
            self.session.abandon(&self.header);
        }
        self.server.executing.fetch_sub(1, Ordering::SeqCst);
        if self.session.leave() && !self.server.draining.load(Ordering::SeqCst) {
            self.server.free(&self.session);
        }
    }
}
