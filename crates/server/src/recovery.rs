//! After a restart: sessions that an earlier process left, and the grace in which nobody takes the locks that their clients held.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Errno, LockKind, Request};

use crate::journal::{Folder, Left};
use crate::server::Server;
use crate::session::{Session, lock};

/// The sessions that have not recovered yet, and the requests that wait for them: at most as many as the clients have slots.
#[derive(Default)]
pub(crate) struct Recovery(Mutex<State>);

#[derive(Default)]
struct State {
    missing: HashSet<u64>,
    waiting: Vec<Waker>,
}

impl Recovery {
    fn begin(&self, sessions: impl Iterator<Item = u64>) {
        lock(&self.0).missing.extend(sessions);
    }

    /// A session has recovered or ended.
    pub(crate) fn settle(&self, session: u64) {
        let mut state = lock(&self.0);
        if state.missing.remove(&session) && state.missing.is_empty() {
            tracing::info!("all clients of before the restart have recovered, or have gone");
            state.end();
        }
    }

    /// The grace is over for those who are still missing.
    fn end(&self) {
        lock(&self.0).end();
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.0).missing.is_empty()
    }

    /// Waits for the end; EINTR when cancelled before.
    pub(crate) async fn over(&self, cancel: &Cancel) -> Result<(), Errno> {
        std::future::poll_fn(|task| {
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            let mut state = lock(&self.0);
            if state.missing.is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.waiting.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl State {
    fn end(&mut self) {
        self.missing.clear();
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

/// Whether a request takes a lock.
pub(crate) fn takes_lock(request: &Request<'_>) -> bool {
    matches!(request, Request::SetLock { lock, .. } if lock.kind != LockKind::Unlock)
}

impl Server {
    /// Puts the sessions of earlier processes into the table, and has those end whose clients do not come in time.
    pub(crate) fn restore(&self, folder: &Folder) -> io::Result<()> {
        let mut sessions = lock(&self.sessions);
        for left in folder.left(self.config.limits.sessions_max)? {
            let Some(export) = self.export(&left.head.export) else {
                let Left { head, journal, .. } = left;
                tracing::warn!(client = %head.client, export = %head.export, "its session is given up: the export is not served any more");
                journal.remove();
                continue;
            };
            let session = Session::restored(left, export.clone());
            sessions.insert(session.id, Arc::new(session));
        }
        self.recovery.begin(sessions.keys().copied());
        let count = sessions.len();
        drop(sessions);
        if count > 0 {
            tracing::info!(sessions = count, grace = ?self.config.limits.recovery_grace, "waiting for the clients of before the restart");
            self.end_recovery_later();
        }
        Ok(())
    }

    /// Whether clients of before the restart have not recovered yet.
    pub fn is_recovering(&self) -> bool {
        !self.recovery.is_over()
    }

    fn end_recovery_later(&self) {
        let (server, grace) = (self.weak(), self.group.sleep(self.config.limits.recovery_grace));
        self.group.spawn(async move {
            grace.await;
            let Some(server) = server.upgrade() else { return };
            let sessions: Vec<_> = lock(&server.sessions).values().cloned().collect();
            // Those that have come and gone end as any other.
            for session in sessions.iter().filter(|session| session.is_recovering() && session.end_if_forsaken(0)) {
                tracing::info!(client = %session.name, peer = %session.peer, "the client did not come back after the restart");
                server.end_session(session);
            }
            server.recovery.end();
        });
    }
}
