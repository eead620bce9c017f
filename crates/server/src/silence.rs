//! Clients that are silent: a machine or router that stands still acknowledges for ever, and what
//! such a client holds would be its own for as long.
//!
//! One task looks at each session, as long as there are any, once in the time after which a client
//! is suspected (5 s). A client that has sent anything since the last look costs a load and a
//! comparison. One that is idle is asked with a PING, over one connection, at every second or
//! third look; so 10,000 idle clients cost 700 to 1000 questions and answers a second, and no
//! timer each.

use std::sync::atomic::Ordering;

use aqueduct_net::{Connection, Hush, Silence};
use aqueduct_wire::{Header, Kind};
use aqueduct_worker::lock;

use crate::frames::send;
use crate::session::Session;
use crate::state::Server;

/// A session belongs to one of so many parts, which are looked at in turn: so that idle clients
/// are not asked all at once.
const PARTS: u64 = 8;

impl Server {
    /// Begins to look for clients that are silent, unless that is under way.
    pub(crate) fn listen_for_silence(&self) {
        if self.listening.swap(true, Ordering::SeqCst) {
            return;
        }
        let (server, interval) = (self.weak(), Silence::interval(self.config.limits.suspect) / PARTS as u32);
        self.group.spawn(async move {
            for part in (0..PARTS).cycle() {
                let Some(pause) = server.upgrade().map(|server| server.group.sleep(interval)) else { return };
                pause.await;
                if !server.upgrade().is_some_and(|server| server.look_for_silence(part)) {
                    return;
                }
            }
        });
    }

    /// One look at a part of the sessions; whether there is to be another.
    fn look_for_silence(&self, part: u64) -> bool {
        let sessions = lock(&self.sessions);
        let (any, of_part) = (!sessions.is_empty(), sessions.values().filter(|session| session.id % PARTS == part));
        let of_part: Vec<_> = of_part.cloned().collect();
        drop(sessions);
        for session in &of_part {
            session.look_for_silence();
            self.keep_again(session);
        }
        if any {
            return true;
        }
        self.listening.store(false, Ordering::SeqCst);
        // Looked at after the flag fell: a session that begins later begins anew.
        !lock(&self.sessions).is_empty() && !self.listening.swap(true, Ordering::SeqCst)
    }
}

impl Session {
    fn look_for_silence(&self) {
        let links = self.connections();
        let mut silence = lock(&self.silence);
        if links.is_empty() {
            return silence.excuse(); // its grace runs
        }
        let heard = links.iter().fold(0, |sum: u64, link| sum.wrapping_add(link.heard().into()));
        let moved = || links.iter().fold(0, |sum: u64, link| sum.wrapping_add(link.moved()));
        let hush = silence.look(heard, moved);
        drop(silence);
        let ask = |link: &Connection| send(link, Header::new(Kind::Ping), &[]);
        match hush {
            Hush::Heard => {}
            Hush::Ask => links.iter().take(1).for_each(|link| ask(link)),
            Hush::AskAgain => links.iter().for_each(|link| ask(link)),
            Hush::Gone => links.iter().for_each(|link| link.vanish("the client answers no question any more".into())),
        }
    }
}
