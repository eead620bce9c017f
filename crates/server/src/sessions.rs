//! How sessions begin and end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_wire::{Flags, Header};
use aqueduct_worker::lock;

use crate::complaints::Complaint;
use crate::export::Export;
use crate::journal::Journal;
use crate::lease::clock::now;
use crate::origin::Origin;
use crate::session::{Forsaken, Session};
use crate::state::Server;

impl Server {
    /// A new session, unless there are too many. Without a secret it gets one of its own.
    pub(crate) fn new_session(&self, name: String, origin: Origin, secret: Option<[u8; 16]>) -> Option<Arc<Session>> {
        let mut random = [0; 24];
        getrandom::fill(&mut random).ok()?;
        let mut sessions = lock(&self.sessions);
        let id = u64::from_le_bytes(random[..8].try_into().ok()?);
        if sessions.len() >= self.config.limits.sessions_max || id == 0 || sessions.contains_key(&id) {
            return None;
        }
        let own = random[8..].try_into().ok()?;
        let slots = self.replies.grant(self.config.limits.slots);
        let session = Arc::new(Session::new(id, secret.unwrap_or(own), name, origin, slots));
        sessions.insert(id, session.clone());
        self.metrics.sessions.increment();
        drop(sessions);
        self.listen_for_silence();
        Some(session)
    }

    /// The last connection of a session has gone: it ends after the grace unless one comes back.
    pub(crate) fn expire_later(&self, session: &Arc<Session>, Forsaken { joins, is_cut }: Forsaken) {
        let Some(server) = self.this.upgrade() else { return };
        let session = session.clone();
        let limits = &self.config.limits;
        let grace = self.group.sleep(if is_cut { limits.vanished_grace } else { limits.session_grace });
        self.group.spawn(async move {
            grace.await;
            if session.end_if_forsaken(joins) {
                server.metrics.forsaken.increment();
                let what = format_args!("{} did not come back: its locks and opens are freed", session.name);
                server.complaints.tell(&session.origin, Complaint::Forsaken, what);
                server.end_session(&session);
            }
        });
    }

    /// Ends a session: fences it, then frees what it holds. Nobody else gets its locks while
    /// requests of it are executed: the last of these frees them.
    pub(crate) fn end_session(&self, session: &Arc<Session>) {
        session.end("the session has ended");
        session.waits.end();
        self.leases.wake_all_of(session.client());
        if lock(&self.sessions).remove(&session.id).is_some() && session.is_drained() {
            self.free(session);
        }
    }

    /// Frees what an ended session holds, of which nothing is executed any more. A file system
    /// that has to ask others for that is waited for by a task.
    pub(crate) fn free(&self, session: &Arc<Session>) {
        let Some(server) = self.this.upgrade().filter(|_| session.is_freed_now()) else { return };
        let session = session.clone();
        self.freeing.fetch_add(1, Ordering::SeqCst);
        self.group.run_now(async move {
            if let Some(attached) = session.attached.get()
                && let Err(error) = attached.filesystem.depart(session.client()).await
            {
                tracing::error!(client = %session.name, %error, "what a client that has gone had open and locked could not be given back");
            }
            server.freed(&session);
            server.freeing.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// The file system has nothing of a session any more.
    fn freed(&self, session: &Session) {
        let is_done = session.said_goodbye.load(Ordering::SeqCst);
        if let (Some(until), Some(folder)) = (self.leases.ended(session, is_done), self.folder.get()) {
            folder.note_lapse(until, now()); // before its own file goes
        }
        if let Some(journal) = session.journal.get() {
            journal.remove();
        }
        self.staging.forget(session.id);
        self.recovery.settle(session.id);
        if is_done {
            self.leases.settle(session.id);
        }
    }

    /// A request has come. Whether its reply renews the session's leases.
    pub(crate) fn renews(&self, session: &Arc<Session>, request: &Header) -> bool {
        if !self.leases.is_on() {
            return false;
        }
        if request.flags.contains(Flags::LEASES) && session.holder.get().is_none() && !session.is_recovering() {
            let Some(journal) = session.journal.get() else { return false };
            journal.note_leases(self.leases.silence_max());
            self.leases.admit(session);
        }
        self.leases.renew(session)
    }

    /// Writes a session down anew, should it be one that could not be any more, while nothing of it
    /// is executed.
    pub(crate) fn keep_again(&self, session: &Session) {
        let lost = session.journal.get().filter(|journal| journal.is_lost() && !session.is_recovering());
        if let (Some(_), Some(folder)) = (lost, self.folder.get())
            && let Err(error) = session.write_down_anew(folder)
        {
            tracing::debug!(client = %session.name, %error, "a session cannot be written down yet");
        }
    }

    /// Writes a session down from now on, which has its export.
    pub(crate) fn keep(&self, session: &Session, export: &Export, asks_leases: bool) {
        let Some(folder) = self.folder.get() else { return };
        session.journal.get_or_init(|| {
            let believes = if asks_leases { self.leases.silence_max() } else { Duration::ZERO };
            let head = folder.head(session.whose(), (&export.name, export.durable), believes);
            folder.create(&head).unwrap_or_else(|error| {
                tracing::error!(client = %session.name, %error, "a session cannot be written down: it will not survive a restart");
                Journal::none(head)
            })
        });
    }
}
