//! The clients of the schedules: what they ask for, keep, use, and give back.

use super::exclusive;
use super::*;

impl World {
    /// Something that a client does by itself.
    pub(super) fn act(&mut self, index: usize) {
        let pause = self.random.duration(Duration::from_millis(1500));
        self.at(pause, Event::Act(index));
        let (what, inode, kind) = (self.random.below(56), self.random.below(INODES), self.random.below(3));
        // In some histories each client has a file that is mostly its own.
        let inode = if self.has_own && self.random.below(5) > 0 { index % INODES } else { inode };
        if self.random.below(100) == 0 {
            self.end_session(self.clients[index].session);
            if self.random.below(2) == 0 {
                self.step(Event::Restart);
            }
        }
        if self.random.below(self.rare(Bug::GrantsDuringHold, 400)) == 0 {
            self.restart();
        }
        match what {
            0 => self.clients[index].is_stopped = true,
            1..=3 => self.clients[index].is_stopped = false,
            4 => self.clients[index].is_cut = true,
            5..=7 => self.mend(index),
            _ => {}
        }
        self.look(index);
        let client = &self.clients[index];
        if client.is_stopped || client.is_recovering {
            return;
        }
        if (8..=30).contains(&what) && !client.gathered[inode].is_empty() {
            return self.flush(index, inode); // before the client itself looks at it or changes it
        }
        let (session, sent, changes) = (client.session, self.now, client.changes);
        match what {
            8..=22 => self.send(Event::ToServer(index, Message::Read { session, inode, sent, changes })),
            23..=30 if !client.changing => {
                let client = &mut self.clients[index];
                client.changing = true;
                KINDS.iter().enumerate().for_each(|(other, _)| _ = client.kept.remove(&(inode, other)));
                self.send(Event::ToServer(index, Message::Change { session, inode, kind, sent }));
            }
            31..=33 => {
                let kept = client.kept.values().next().map(|kept| kept.lease);
                kept.or(client.gathered[inode].lease).into_iter().for_each(|lease| self.give_back(index, lease));
            }
            40..=50 => self.hold_back(index, inode),
            51..=53 => self.flush(index, inode),
            54..=55 => self.share(index, inode),
            _ => {}
        }
    }

    pub(super) fn mend(&mut self, index: usize) {
        self.clients[index].is_cut = false;
        let session = self.clients[index].session;
        if self.sessions.contains_key(&session) {
            // The new connection is news of the client, and what was recalled is recalled again.
            for lease in self.leases.recalled(session) {
                self.send(Event::ToClient(index, Message::Recall { session, lease }));
            }
        }
    }

    /// The client's programs use what they can: none of it may be old.
    pub(super) fn look(&mut self, index: usize) {
        for inode in 0..INODES {
            for kind in 0..KINDS.len() {
                self.check(index, inode, kind);
            }
        }
    }

    pub(super) fn check(&mut self, index: usize, inode: usize, kind: usize) {
        let client = &self.clients[index];
        let Some(kept) = client.kept.get(&(inode, kind)) else { return };
        let by_daemon = !client.is_stopped && (self.now < client.valid_until || self.bug == Bug::IgnoresExpiry);
        if !client.changing && (by_daemon || self.now < kept.kernel_until) {
            self.used += 1;
            if KINDS[kind] != Aspects::NAMES {
                exclusive::miss(&mut self.writes[inode], |_| true);
            }
            let current = self.versions[inode][kind];
            assert!(
                kept.version == current,
                "client {index} uses version {} of {current} at {:?}",
                kept.version,
                self.now
            );
        }
    }

    pub(super) fn give_back(&mut self, index: usize, lease: LeaseId) {
        let client = &mut self.clients[index];
        let exclusive = client.gathered.iter().position(|gathered| gathered.is_under(lease));
        let is_known = exclusive.is_some() || client.kept.values().any(|kept| lease.covers(kept.lease));
        if self.bug != Bug::UsesAfterReturn {
            client.kept.retain(|_, kept| !lease.covers(kept.lease));
        }
        // An answer to what was asked before is not kept any more; if the lease is one that has not come yet, that answer is known by its name.
        if is_known {
            client.changes += 1;
        }
        match exclusive {
            Some(inode) => self.give_back_exclusive(index, inode, lease),
            None => self.send_return(index, lease),
        }
    }

    pub(super) fn send_return(&mut self, index: usize, lease: LeaseId) {
        let session = self.clients[index].session;
        self.send(Event::ToServer(index, Message::Return { session, lease }));
    }

    pub(super) fn at_client(&mut self, index: usize, message: Message) {
        let client = &self.clients[index];
        if client.is_cut || client.is_stopped {
            return self.at(Duration::from_millis(300), Event::ToClient(index, message));
        }
        match message {
            Message::Answer { session, inode, lease, versions, asked, sent, changes } if session == client.session => {
                self.renew(index, sent);
                let client = &self.clients[index];
                if let Some(lease) = lease.filter(|_| client.changes == changes && !client.changing) {
                    self.keep((index, inode), lease, versions, asked);
                }
                self.look(index);
            }
            Message::Changed { session, sent } if session == client.session => {
                self.renew(index, sent);
                self.clients[index].changing = false;
                self.clients[index].changes += 1;
            }
            Message::Recall { session, lease } if session == client.session => {
                if self.bug != Bug::BelievesLateReply {
                    self.clients[index].early.push(lease);
                }
                self.give_back(index, lease);
            }
            Message::Flushed { session, inode, writes } if session == client.session => {
                self.flushed(index, inode, &writes);
            }
            Message::Shared { session, inode } if session == client.session => {
                self.clients[index].gathered[inode].shared_at = self.now;
            }
            Message::Ended { session } if session == client.session => {
                let client = &mut self.clients[index];
                client.kept.clear();
                client.early.clear();
                client.changing = false;
                client.changes += 1;
                client.valid_until = Duration::ZERO;
                client.is_recovering = true;
                self.recover(index);
            }
            _ => {}
        }
    }

    /// An answer has come to what was sent then. The client counts by its own clock, which may run slow.
    pub(super) fn renew(&mut self, index: usize, sent: Option<Now>) {
        let Some(sent) = sent else { return };
        let lease = limits(self.bug).lease;
        let from = if self.bug == Bug::CountsFromReply { self.now } else { sent };
        let client = &mut self.clients[index];
        let until = from + lease * 1000 / client.rate;
        client.valid_until = client.valid_until.max(until);
    }

    fn keep(
        &mut self,
        (index, inode): (usize, usize),
        (lease, aspects): (LeaseId, Aspects),
        versions: [u64; 3],
        asked: Now,
    ) {
        let client = &mut self.clients[index];
        if client.kept.iter().any(|((of, _), kept)| *of == inode && kept.lease > lease) {
            return; // a later answer came first
        }
        if client.early.iter().any(|early| early.covers(lease)) {
            return;
        }
        // The kernel counts a timeout from when the program that asked runs again.
        if self.now >= self.clients[index].valid_until {
            return;
        }
        let handled = self.random.duration(KERNEL_DELAY_MAX);
        let client = &mut self.clients[index];
        let is_new = asked > client.gathered[inode].shared_at || self.bug == Bug::HoldsBackWhatItShared;
        if aspects.contains(Aspects::WRITES) && client.gathered[inode].returns.is_none() && is_new {
            client.gathered[inode].lease = Some(lease);
        }
        let left = client.valid_until.saturating_sub(self.now);
        for (kind, _) in KINDS.iter().enumerate().filter(|(_, aspect)| aspects.contains(**aspect)) {
            let kernel_until = self.now + handled + left;
            client.kept.insert((inode, kind), Kept { lease, version: versions[kind], kernel_until });
        }
    }
}
