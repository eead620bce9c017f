//! What the server sends by itself, told and told again: see the module `outbox`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aqueduct_net::Connection;
use aqueduct_wire::{Header, Kind, LEASES_TOLD_MAX, LeaseId};
use aqueduct_worker::lock;

use crate::frames::send;
use crate::session::Session;
use crate::state::Server;

/// Looks while anything is not acknowledged.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// When so many bytes wait on a connection, nothing is asked there any more, and it is closed: the
/// next one is asked for all at 8 bytes a lease.
const UNREAD_MAX: usize = 4 << 20;

impl Server {
    /// Sends a message over this connection of a session, and again over others until it is
    /// acknowledged. `None`: over any, and also those that come later.
    pub(crate) fn tell(&self, session: &Arc<Session>, link: Option<&Arc<Connection>>, header: Header, body: &[u8]) {
        let by = link.cloned().or_else(|| session.control());
        let mut outbox = lock(&session.outbox);
        let header = outbox.add((header, link.is_none()), body, by.as_ref(), Instant::now());
        let begins = !std::mem::replace(&mut outbox.watched, true);
        drop(outbox);
        by.iter().for_each(|by| send(by, header, body));
        if begins {
            self.watch(session);
        }
    }

    /// Asks for leases. Without a connection nobody is asked: whichever comes next is.
    pub(crate) fn recall(&self, session: &Arc<Session>, leases: &[LeaseId]) {
        if let Some(link) = session.control() {
            self.recall_on(session, &link, leases);
        }
    }

    /// Asks for all that a session was asked for, on this connection, instead of what was not
    /// acknowledged.
    pub(crate) fn recall_again(&self, session: &Arc<Session>, link: &Arc<Connection>) {
        // Forgotten first: what is recalled from here on is among those below, or is asked for by
        // itself.
        lock(&session.outbox).forget_recalls();
        let recalled = self.leases.recalled(session);
        self.recall_on(session, link, &recalled);
    }

    fn recall_on(&self, session: &Arc<Session>, link: &Arc<Connection>, leases: &[LeaseId]) {
        if link.unread().is_some_and(|(bytes, _)| bytes > UNREAD_MAX) {
            return link.give_up("what it is asked for is not read");
        }
        for leases in leases.chunks(LEASES_TOLD_MAX) {
            let mut body = Vec::new();
            aqueduct_wire::encode_leases(leases, &mut body);
            self.tell(session, Some(link), Header::new(Kind::Callback), &body);
        }
    }

    /// Looks after the messages of a session from now on, as long as any are not acknowledged.
    fn watch(&self, session: &Arc<Session>) {
        let mut watched = lock(&self.outboxes);
        watched.push(Arc::downgrade(session));
        if watched.len() > 1 {
            return; // somebody looks
        }
        drop(watched);
        let server = self.weak();
        self.group.spawn(async move {
            while let Some(pause) = server.upgrade().map(|server| server.group.sleep(LOOK_EVERY)) {
                pause.await;
                if !server.upgrade().is_some_and(|server| server.look_at_outboxes()) {
                    return;
                }
            }
        });
    }

    /// One look; whether there is to be another.
    fn look_at_outboxes(&self) -> bool {
        let sessions: Vec<_> = lock(&self.outboxes).iter().filter_map(Weak::upgrade).collect();
        for session in &sessions {
            let links = session.controls();
            let due = lock(&session.outbox).due(&links, Instant::now());
            for (link, header, body) in due.again {
                send(&link, header, &body);
            }
            if let Some(link) = due.recall_all {
                self.recall_again(session, &link);
            }
        }
        let is_watched = |session: &Weak<Session>| {
            session.upgrade().is_some_and(|session| {
                let mut outbox = lock(&session.outbox);
                outbox.watched = outbox.waits() && !session.has_ended();
                outbox.watched
            })
        };
        let mut watched = lock(&self.outboxes);
        watched.retain(is_watched);
        !watched.is_empty() && !self.draining.load(Ordering::SeqCst)
    }
}
