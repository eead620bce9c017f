//! Exclusive leases in the schedules: clients hold writes back, and flush them before they give a lease back. Whoever looks after a write has been acknowledged
//! sees it, or it is never applied; and that happens only to who was silent for so long that nobody had to wait for him.

use super::*;

/// What is held back changes this.
pub(super) const FLUSH: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES).union(Aspects::WRITES);

/// Something that a client wrote and held back.
#[derive(Debug)]
pub(super) struct Write {
    acknowledged: Now,
    is_applied: bool,
    /// Somebody who asked after it had been acknowledged did not see it.
    is_missed: bool,
}

/// Notes that somebody does not see what is held back.
pub(super) fn miss(writes: &mut [Write], is_missed: impl Fn(usize) -> bool) {
    for (at, write) in writes.iter_mut().enumerate() {
        write.is_missed |= !write.is_applied && is_missed(at);
    }
}

/// Sessions that were not back in time after a restart have lost what they held back; as the next process has to know.
pub(super) fn lose(known: &Known, excused: &mut HashSet<ClientId>, missing: &HashSet<u64>) {
    known.1.borrow_mut().extend(missing.iter().map(|session| ClientId(*session)));
    excused.extend(missing.iter().map(|session| ClientId(*session)));
}

/// What a client holds back of an inode.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// It may, under this lease.
    pub(super) lease: Option<LeaseId>,
    held: Vec<usize>,
    /// On its way.
    sent: Vec<usize>,
    /// The lease goes back once all has been written.
    pub(super) returns: Option<LeaseId>,
    /// What was asked for until then makes no lease exclusive: the server may have granted it before it heard that the lease is shared.
    pub(super) shared_at: Now,
}

impl Gathered {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.sent.is_empty()
    }

    /// It is asked for, maybe once more, by returning this lease.
    pub(super) fn is_under(&self, lease: LeaseId) -> bool {
        self.lease.or(self.returns).is_some_and(|held| lease.covers(held))
    }
}

impl World {
    pub(super) fn stamp(&self) -> u64 {
        if self.bug == Bug::IgnoresStamps { u64::MAX } else { self.leases.stamps.take() }
    }

    /// A program writes, and goes on at once.
    pub(super) fn hold_back(&mut self, index: usize, inode: usize) {
        let client = &mut self.clients[index];
        if client.gathered[inode].lease.is_none() || client.changing || self.now >= client.valid_until {
            return;
        }
        client.gathered[inode].held.push(self.writes[inode].len());
        client.kept.retain(|(of, _), _| *of != inode);
        client.changes += 1;
        self.writes[inode].push(Write { acknowledged: self.now, is_applied: false, is_missed: false });
    }

    /// A client sends what it held back.
    pub(super) fn flush(&mut self, index: usize, inode: usize) {
        let client = &mut self.clients[index];
        let (session, recovers, gathered) = (client.session, client.is_recovering, &mut client.gathered[inode]);
        let writes = std::mem::take(&mut gathered.held);
        if !writes.is_empty() {
            gathered.sent.extend(&writes);
            self.send(Event::ToServer(index, Message::Flush { session, inode, writes, recovers }));
        }
    }

    /// A client gives an exclusive lease back once nothing is held back any more.
    pub(super) fn give_back_exclusive(&mut self, index: usize, inode: usize, lease: LeaseId) {
        self.flush(index, inode);
        let gathered = &mut self.clients[index].gathered[inode];
        gathered.lease = None;
        gathered.returns = Some(lease);
        self.return_flushed(index, inode);
    }

    /// The last program that writes has closed, and a client lets others look at what it had for itself.
    pub(super) fn share(&mut self, index: usize, inode: usize) {
        let client = &mut self.clients[index];
        let gathered = &mut client.gathered[inode];
        if !gathered.is_empty() || gathered.lease.take().is_none() {
            return;
        }
        gathered.shared_at = Now::MAX;
        let (session, changes, sent) = (client.session, client.changes, self.now);
        self.shared += 1;
        // Another may just have opened it.
        if self.random.below(4) == 0 {
            self.send(Event::ToServer(index, Message::Read { session, inode, sent, changes }));
        }
        self.send(Event::ToServer(index, Message::Share { session, inode }));
    }

    /// At the server.
    pub(super) fn shares(&mut self, index: usize, session: ClientId, inode: usize) {
        let mut actions = Vec::new();
        self.leases.share(session, key(inode), &mut actions);
        self.perform(actions);
        self.send(Event::ToClient(index, Message::Shared { session, inode }));
    }

    fn return_flushed(&mut self, index: usize, inode: usize) {
        let gathered = &mut self.clients[index].gathered[inode];
        if gathered.is_empty() || self.bug == Bug::ReturnsUnflushed {
            let returns = gathered.returns.take();
            returns.into_iter().for_each(|lease| self.send_return(index, lease));
        }
    }

    /// What a client sent has been written, or is lost.
    pub(super) fn flushed(&mut self, index: usize, inode: usize, writes: &[usize]) {
        let client = &mut self.clients[index];
        client.gathered[inode].sent.retain(|write| !writes.contains(write));
        client.changes += 1;
        self.return_flushed(index, inode);
        self.recovered(index);
    }

    /// Another process runs at the server, which waits for what was held back; or the session has ended, and it is lost.
    pub(super) fn recover(&mut self, index: usize) {
        for inode in 0..INODES {
            let gathered = &mut self.clients[index].gathered[inode];
            let sent = std::mem::take(&mut gathered.sent);
            gathered.held.extend(sent);
            (gathered.lease, gathered.returns, gathered.shared_at) = (None, None, Now::ZERO);
            self.flush(index, inode);
        }
        self.recovered(index);
    }

    /// A client that recovers says so when all has been written.
    fn recovered(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.is_recovering && client.gathered.iter().all(Gathered::is_empty) {
            client.is_recovering = false;
            let session = client.session;
            self.send(Event::ToServer(index, Message::Forgotten { session }));
            self.begin_session(index);
        }
    }

    /// At a server that was started again.
    pub(super) fn flush_again(&mut self, index: usize, session: ClientId, inode: usize, writes: Vec<usize>) {
        is_on(&[&self.hold_of_looks], (self.now, &self.known), &mut self.excused); // it may be over
        let is_broken = self.known.1.borrow().contains(&session);
        let may = !is_broken && self.hold_of_looks.flush(session.0, self.now);
        if may {
            let aspects = FLUSH.difference(Aspects::WRITES);
            let since = self.now;
            return self.begin_change(Change { session, inode, aspects, sent: None, since, writes, recovers: true });
        }
        if self.hold_of_looks.awaits(session.0).is_some_and(|until| self.now >= until) {
            self.excused.insert(session); // it was waited for; should it still be writing what came in time, that is awaited
        }
        self.refuse(session, inode, &writes);
        self.send(Event::ToClient(index, Message::Flushed { session, inode, writes }));
    }

    /// Its program is told that it is lost, unless it was written before.
    fn refuse(&self, session: ClientId, inode: usize, writes: &[usize]) {
        let is_lost = writes.iter().any(|at| !self.writes[inode][*at].is_applied);
        assert!(!is_lost || self.excused.contains(&session), "writes of {inode} are lost at {:?}", self.now);
    }

    /// The lease of what was held back is gone.
    pub(super) fn late(&mut self, waiter: Waiter) {
        let Some(change) = self.changes.remove(&waiter) else { return };
        if self.bug == Bug::AcceptsLateFlush {
            return self.begin_change(Change { aspects: FLUSH.difference(Aspects::WRITES), ..change });
        }
        let Change { session, inode, writes, .. } = change;
        self.refuse(session, inode, &writes);
        let Some(index) = self.sessions.get(&session).copied() else { return };
        self.send(Event::ToClient(index, Message::Flushed { session, inode, writes }));
    }

    /// What was held back can be seen.
    pub(super) fn apply(&mut self, change: &Change) {
        for at in &change.writes {
            let write = &mut self.writes[change.inode][*at];
            assert!(
                !write.is_missed,
                "write {at} of {} appears at {:?}, and was not seen before",
                change.inode, self.now
            );
            write.is_applied = true;
            self.flushed += 1;
        }
    }

    pub(super) fn broken(&mut self, client: ClientId) {
        let silent_at = self.known.renewed(client).unwrap_or_default() + limits(self.bug).silence_max();
        assert!(
            self.now >= silent_at,
            "{client:?} lost its lease at {:?}, and may use it until {silent_at:?}",
            self.now
        );
        self.known.1.borrow_mut().insert(client);
        self.excused.insert(client);
    }

    /// A read has come: by the inode, or by a name, which is looked up before it is known whether the inode may be looked at.
    pub(super) fn begin_look(&mut self, look: Look) {
        if self.random.below(2) == 0 {
            return self.await_look(look);
        }
        if is_on(&[&self.hold_of_looks], (self.now, &self.known), &mut self.excused)
            && self.bug != Bug::LooksAfterRestart
        {
            return self.await_look(look);
        }
        self.step(Event::Look(look));
    }

    fn await_look(&mut self, look: Look) {
        self.count += 1;
        let waiter = Waiter(self.count);
        self.looks.insert(waiter, Look { is_known: true, ..look });
        self.try_look(waiter);
    }

    pub(super) fn try_look(&mut self, waiter: Waiter) {
        let Some(look) = self.looks.get_mut(&waiter) else { return };
        let (session, inode) = (look.session, key(look.inode));
        if !self.sessions.contains_key(&session) {
            self.looks.remove(&waiter);
            return self.leases.give_up(inode, waiter, self.now, &mut Vec::new());
        }
        let is_held = is_on(&[&self.hold_of_looks], (self.now, &self.known), &mut self.excused);
        if is_held && self.bug != Bug::LooksAfterRestart {
            look.since = self.now;
            return self.at(STEP_MAX, Event::TryLook(waiter));
        }
        let wanted = Wanted { inode, aspects: Aspects::WRITES, by: session, waiter };
        let mut actions = Vec::new();
        let verdict = self.leases.look(&wanted, self.now, &mut actions);
        self.perform(actions);
        let is_broken_under = self.bug == Bug::BreaksUnderFlush && self.leases.holder(inode).is_none();
        if verdict == Verdict::Wait && self.bug != Bug::LooksDoNotWait && !is_broken_under {
            self.looks.get_mut(&waiter).into_iter().for_each(|look| look.waits = true);
            return self.at(Duration::ZERO, Event::Tick);
        }
        self.leases.give_up(inode, waiter, self.now, &mut Vec::new());
        let Some(look) = self.looks.remove(&waiter) else { return };
        self.longest = self.longest.max(self.now - look.since);
        let stamp = self.stamp();
        self.step(Event::Look(Look { stamp, ..look }));
    }

    /// The server looks what there is.
    pub(super) fn look_at(&mut self, mut look: Look) {
        let lacks = |(at, write): (usize, &Write)| (!write.is_applied && write.acknowledged < look.asked).then_some(at);
        look.lacks = self.writes[look.inode].iter().enumerate().filter_map(lacks).collect();
        let versions = self.versions[look.inode];
        self.step(Event::Grant(look, versions));
    }

    /// Whether what was looked at may not be told. If it may, all that it lacks has been missed.
    pub(super) fn hides(&mut self, look: &Look) -> bool {
        let is_hidden = self.leases.hides(look.session, key(look.inode), look.stamp);
        if !look.is_known && is_hidden && self.bug != Bug::IgnoresHidden {
            self.await_look(look.clone());
            return true;
        }
        // It may have been written since; then it is too late to be seen by others first.
        for at in &look.lacks {
            let write = &mut self.writes[look.inode][*at];
            assert!(!write.is_applied, "write {at} of {} was not seen at {:?}", look.inode, self.now);
            write.is_missed = true;
        }
        false
    }

    /// What a client may have that is to write. Who has not recovered may still believe a shared lease of before a restart; else it is the machine's to refuse.
    pub(super) fn wants_exclusive(&mut self, client: ClientId, inode: usize) -> Aspects {
        let is_held = is_on(&[&self.hold, &self.hold_of_looks], (self.now, &self.known), &mut self.excused);
        if is_held && self.bug != Bug::GrantsDuringHold {
            return FLUSH.difference(Aspects::WRITES);
        }
        if self.bug == Bug::GrantsBesideShared {
            let others: Vec<_> = self.leases.table.of(key(inode)).filter(|(_, held)| held.client != client).collect();
            for (at, held) in others {
                let lease = self.leases.table.recall(at);
                self.leases.table.remove(held.client, lease);
            }
        }
        FLUSH
    }

    /// For a server that does not heed who waits to look.
    pub(super) fn forget_looks(&mut self, inode: usize) -> Vec<Wait> {
        match self.leases.busy.get_mut(&key(inode)) {
            Some(busy) if self.bug == Bug::GrantsWhileLookWaits => {
                let waiting = std::mem::take(&mut busy.waiting);
                let (looks, changes) = waiting.into_iter().partition(|wait| wait.aspects == Aspects::WRITES);
                busy.waiting = changes;
                looks
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn remember_looks(&mut self, inode: usize, looks: Vec<Wait>) {
        if !looks.is_empty() {
            self.leases.busy.entry(key(inode)).or_default().waiting.extend(looks);
        }
    }
}
