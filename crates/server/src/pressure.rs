//! When memory for what peers send, or do not read, is short: those who hold it and make nothing of it are closed. While there is enough, nothing runs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aqueduct_net::{Budget, Connection};
use aqueduct_worker::lock;

use crate::complaints::Complaint;
use crate::origin::Identity;
use crate::session::Session;
use crate::state::Server;

/// Looks while it is short.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A frame of which nothing comes for so long, while others wait for its room, is not waited for; a lost packet is sent again sooner.
const SILENT_MAX: Duration = Duration::from_secs(2);

/// As long may a frame take in all while others wait: 1 MiB at 35 KiB/s.
const FRAME_TIME_MAX: Duration = Duration::from_secs(30);

/// A peer that reads nothing of its replies for so long, while there are too many for others already, is not waited for.
const UNREAD_MAX: Duration = Duration::from_secs(1);

/// The memory that connections share, with the one who takes it back.
pub(crate) fn budget(server: &Weak<Server>, frames_max: usize, unsent_max: usize) -> Arc<Budget> {
    let server = server.clone();
    Budget::new(frames_max, unsent_max, move || {
        if let Some(server) = server.upgrade() {
            server.relieve();
        }
    })
}

impl Server {
    /// Begins to look for who holds memory in vain, unless that is under way.
    fn relieve(&self) {
        if self.relieving.swap(true, Ordering::SeqCst) {
            return;
        }
        let server = self.weak();
        self.group.spawn(async move {
            loop {
                let Some(pause) = server.upgrade().map(|server| server.group.sleep(LOOK_EVERY)) else { return };
                pause.await;
                let Some(server) = server.upgrade() else { return };
                server.relieve_once();
                if server.is_short() {
                    continue;
                }
                server.relieving.store(false, Ordering::SeqCst);
                // Looked at after the flag fell: who finds it short later begins anew.
                if !server.is_short() || server.relieving.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    fn is_short(&self) -> bool {
        self.budget.waiters() > 0 || self.budget.is_unsent_full()
    }

    fn relieve_once(&self) {
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let of = |session: &Arc<Session>| {
            let who = session.origin.identity();
            session.connections().into_iter().map(move |connection| (connection, who.clone())).collect::<Vec<_>>()
        };
        let connections: Vec<_> = sessions.iter().flat_map(of).collect();
        if self.budget.waiters() > 0 {
            for (connection, who) in &connections {
                let held = connection.unfinished();
                if held.is_some_and(|(began, came)| came > SILENT_MAX || began > FRAME_TIME_MAX) {
                    self.hoarders.add(who.clone());
                    self.give_up(
                        (connection, who),
                        "the rest of a frame does not come, while others wait for its memory",
                    );
                }
            }
            // A mount whose writes went over some of its connections so far is at work as a whole.
            for session in sessions.iter().map(|session| session.connections()) {
                if session.iter().any(|connection| connection.is_proven()) {
                    session.iter().for_each(|connection| connection.set_proven());
                }
            }
            // Of those that an honest client had before somebody else came under its name, or from
            // its address.
            let doubtful = connections.iter().filter(|(connection, _)| !connection.is_proven());
            doubtful.for_each(|(one, who)| one.set_hoards(self.hoarders.has(who)));
            self.budget.wake_one();
        }
        if self.budget.is_unsent_full() {
            let unread = |(connection, who): &(Arc<Connection>, Identity)| {
                Some((connection.unread()?, connection.clone(), who.clone()))
            };
            let mut unread: Vec<_> = connections.iter().filter_map(unread).collect();
            unread.sort_by_key(|((bytes, since), ..)| (std::cmp::Reverse(*since), std::cmp::Reverse(*bytes)));
            let mut long = unread.iter().filter(|((_, since), ..)| *since > UNREAD_MAX);
            while self.budget.is_unsent_full() {
                let Some((_, connection, who)) = long.next() else { return };
                self.give_up((connection, who), "replies are not read, while there are too many for others already");
            }
        }
    }

    fn give_up(&self, (connection, who): (&Arc<Connection>, &Identity), reason: &str) {
        self.complaints.tell(who.clone(), Complaint::Hoards, format_args!("closed a connection: {reason}"));
        connection.give_up(reason);
    }
}
