//! Leases: what clients may keep of inodes, and when they have to give it back. One pure state machine decides: no sockets, no clock. Time comes with each
//! call, what there is to do goes back as [`Action`]s, so that a test replays any schedule. The module `keeper` connects it with the server.
//!
//! # The rules
//!
//! - A lease is **shared**, of one client, on some [`Aspects`] of one inode. It is granted inside an ordinary reply, after what the reply says was looked at,
//!   with a **stamp** that was taken before: it is refused if a change of the inode is under way, waits, or has ended since the stamp.
//! - A lease on [`Aspects::WRITES`] is **exclusive**: nobody else has any on the inode, and the client may hold back what it writes. It is granted to who is alone
//!   with the inode, and never takes another lease away.
//! - A lease on [`Aspects::CONCURRENT`] is for who writes a file beside **others** that have one
//!   as well: nobody has any other on what the file is then. It is granted in a change of its own,
//!   which takes all others away; from then on looks wait for nobody, and any other change waits
//!   for the return of all. So long is one **tenure**: see the rules of [`right`](crate::right).
//! - Whoever **changes** an aspect waits until every *other* client has returned its lease on it, or lost it. From the first look to the end of the change nobody
//!   gets a new one, so what a lease covers is never older than the lease. Requests that change nothing wait for nobody but the
//!   holder of an exclusive lease.
//! - Whoever **looks** at what another client holds exclusively waits until it has written what it held back, and has returned its lease. Those who look wait together,
//!   and not for each other; while one waits nobody is granted an exclusive lease. What the holder writes meanwhile never waits.
//! - A client keeps its leases as long as its requests are answered, which **renews** them all. Who does not return in time what it was asked for is not renewed
//!   any more until it has. When it was renewed last longer ago than the lease, its kernel's timeouts and a margin, it has stopped using them by itself: it is
//!   **fenced** off from them. Nobody waits for it any more, and before it is renewed again it has to return whatever was changed meanwhile. Its session, with its
//!   opens and locks, goes on.
//! - An exclusive lease of a fenced client is **broken** as soon as somebody else uses the inode: what was held back under it is not written any more, or who has
//!   looked would have missed it. The server waits until what was being written just then has
//!   ended, and until the **rights** of the holder at servers of data have, where it may be
//!   writing as well.
//! - An inode whose leases are recalled again and again is granted to nobody for a while, the longer the more often (**contention**), and recovers.
//! - Every table has a limit. A client that has as many leases as it may gives back its least recently granted one.

pub(crate) mod clock;
pub(crate) mod hold;
pub(crate) mod holder;
pub(crate) mod keeper;
mod table;
mod tenure;
mod terms;
pub(crate) mod touch;
pub(crate) mod touched;
mod writers;

#[cfg(test)]
mod concurrent_tests;
#[cfg(test)]
mod exclusive_tests;
#[cfg(test)]
pub(crate) mod schedule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::LeaseId;
use hashbrown::{HashMap, HashSet};

use table::Table;
use tenure::{KEPT, Tenure, Tenured, WRITERS, is_plain, meets};
pub(crate) use terms::{
    Action, Clients, InodeKey, Limits, Looked, Now, SHARDS, Stamps, Verdict, Waiter, Wanted, shard_of,
};
use terms::{ENDS, REMEMBERED_FOR};

/// The leases of one shard.
pub(crate) struct Leases {
    limits: Limits,
    table: Table,
    stamps: Arc<Stamps>,
    /// The stamp of the latest end of a change, by inode, not exactly.
    ends: Box<[u64]>,
    /// Inodes with a change under way, a change or a look that waits, or contention. Others cost nothing here.
    busy: HashMap<InodeKey, Busy>,
    /// What was asked for less than the answer's time ago, in order.
    asked: VecDeque<(Now, ClientId, LeaseId)>,
    /// Clients that have not returned in time what they were asked for. Suspended.
    overdue: BTreeSet<ClientId>,
    /// Those of them that use nothing any more.
    fenced: BTreeSet<ClientId>,
    /// When to look again for contention of long ago.
    sweep_at: Option<Now>,
    /// Whose leases have rights at servers of data.
    rights: HashSet<(ClientId, InodeKey)>,
    /// Of each inode that several write: the first right that was given at each place.
    tenures: HashMap<InodeKey, Tenured>,
}

/// What is going on with an inode.
#[derive(Default)]
struct Busy {
    /// How many changes that have begun and not ended touch each aspect.
    changing: Counts,
    waiting: Vec<Wait>,
    /// Nobody is granted anything until then.
    cool_at: Now,
    holdoff: Duration,
    /// The same of leases to write beside others.
    tenure: Tenure,
}

/// For each aspect a number.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts([u32; 5]);

impl Counts {
    fn of(aspects: Aspects) -> impl Iterator<Item = usize> {
        (0..5).filter(move |bit| aspects.bits() & 1 << bit != 0)
    }

    fn add(&mut self, aspects: Aspects) {
        Counts::of(aspects).for_each(|at| self.0[at] += 1);
    }

    fn remove(&mut self, aspects: Aspects) {
        Counts::of(aspects).for_each(|at| self.0[at] = self.0[at].saturating_sub(1));
    }

    /// Whether others than one of these aspects `own` touch `aspects`.
    fn touch(self, aspects: Aspects, own: Aspects) -> bool {
        let mut others = self;
        others.remove(own);
        Counts::of(aspects).any(|at| others.0[at] > 0)
    }
}

struct Wait {
    waiter: Waiter,
    by: ClientId,
    aspects: Aspects,
}

impl Busy {
    fn touches(&self, aspects: Aspects, own: Aspects) -> bool {
        let beside = if aspects.intersects(KEPT) { Aspects::CONCURRENT } else { Aspects::empty() };
        let aspects = aspects | beside;
        self.changing.touch(aspects, own) || self.waiting.iter().any(|wait| wait.aspects.intersects(aspects))
    }

    /// When the contention of before is forgotten.
    fn forgotten_at(&self) -> Now {
        if self.holdoff.is_zero() { Duration::ZERO } else { self.cool_at + REMEMBERED_FOR }
    }

    /// Leases are recalled once more.
    fn contend(&mut self, now: Now, limits: &Limits) {
        if now < self.cool_at {
            return; // what is recalled was granted before, and is part of the same dispute
        }
        let again = !self.holdoff.is_zero() && now < self.forgotten_at();
        self.holdoff = if again { (self.holdoff * 2).min(limits.holdoff_last) } else { limits.holdoff_first };
        self.cool_at = now + self.holdoff;
    }

    fn is_over(&self, now: Now) -> bool {
        let is_idle = self.changing == Counts::default() && self.waiting.is_empty();
        is_idle && now >= self.forgotten_at() && self.tenure.is_forgotten(now)
    }

    fn is_contended(&self) -> bool {
        !self.holdoff.is_zero() || self.tenure.breaks > 0
    }
}

impl Leases {
    pub(crate) fn new(limits: Limits, shard: usize, stamps: Arc<Stamps>) -> Leases {
        Leases {
            limits,
            table: Table::new(shard, stamps.exclusive.clone()),
            stamps,
            ends: vec![0; ENDS].into(),
            busy: HashMap::new(),
            asked: VecDeque::new(),
            overdue: BTreeSet::new(),
            fenced: BTreeSet::new(),
            sweep_at: None,
            rights: HashSet::new(),
            tenures: HashMap::new(),
        }
    }

    /// Grants a lease on what was looked at, or more aspects of the one that the client has; with all that it covers. `None`: it may use the reply and keep
    /// nothing.
    pub(crate) fn grant(
        &mut self,
        client: ClientId,
        (inode, aspects): (InodeKey, Aspects),
        looked: Looked,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Option<(LeaseId, Aspects)> {
        if self.ends[inode.end()] > looked.stamp || self.overdue.contains(&client) || aspects.is_empty() {
            return None;
        }
        if let Some(busy) = self.busy.get(&inode) {
            let is_cool = now >= busy.cool_at && (!aspects.contains(Aspects::WRITES) || busy.tenure.is_forgotten(now));
            if !is_cool || busy.touches(aspects, looked.own) {
                return None;
            }
            self.forget_if_over(inode, now);
        }
        if self.excludes(client, inode, aspects) {
            return None;
        }
        self.enter(client, (inode, aspects), now, actions)
    }

    /// Notes a lease that nothing is in the way of, if there is room for it.
    fn enter(
        &mut self,
        client: ClientId,
        (inode, aspects): (InodeKey, Aspects),
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Option<(LeaseId, Aspects)> {
        if let Some(at) = self.table.find(client, inode) {
            let worn = self.table.recall_if_worn(at);
            worn.into_iter().for_each(|lease| self.ask(client, lease, now, actions));
            return match aspects.contains(Aspects::CONCURRENT) {
                true => self.table.turn(at, aspects),
                false => self.table.extend(at, aspects),
            };
        }
        if self.table.len() >= self.limits.leases_max.min(table::PLACES_MAX)
            || self.table.count_of(client) >= self.limits.leases_of_client_max
        {
            // Asked for, and not waited for; until it is back the client gets no other.
            let oldest = self.table.recall_oldest(client);
            oldest.into_iter().for_each(|lease| self.ask(client, lease, now, actions));
            return None;
        }
        Some((self.table.insert(client, inode, aspects), aspects))
    }

    /// Somebody is about to change something: whether it may now; if not, the waiter is told when to ask again. What was held back under a lease that its
    /// writer has goes on at once.
    pub(crate) fn begin(&mut self, wanted: &Wanted, now: Now, actions: &mut Vec<Action>) -> Verdict {
        if wanted.aspects.contains(Aspects::WRITES) && !self.holds_writes(wanted.by, wanted.inode) {
            return Verdict::Late;
        }
        if wanted.aspects.contains(Aspects::CONCURRENT | Aspects::DATA) && !self.shares(wanted.by, wanted.inode) {
            return Verdict::Late;
        }
        if self.clear(wanted, now, actions) {
            self.stamps.exclusive.count(Aspects::empty(), wanted.aspects);
            self.busy.entry(wanted.inode).or_default().changing.add(wanted.aspects);
            return Verdict::Go;
        }
        Verdict::Wait
    }

    /// Somebody is about to look at the attributes or the content of an inode: as [`begin`](Leases::begin), but nothing follows.
    pub(crate) fn look(&mut self, wanted: &Wanted, now: Now, actions: &mut Vec<Action>) -> Verdict {
        let is_held = self.holder(wanted.inode).is_some_and(|(_, held)| held.client != wanted.by);
        if !is_held && !self.busy.contains_key(&wanted.inode) {
            return Verdict::Go;
        }
        if self.clear(wanted, now, actions) { Verdict::Go } else { Verdict::Wait }
    }

    /// Whether what was looked at may lack what another client held back then: it may do so now, it is being written, or a change has ended since the stamp.
    pub(crate) fn hides(&self, by: ClientId, inode: InodeKey, stamp: u64) -> bool {
        let is_held = self.holder(inode).is_some_and(|(_, held)| held.client != by);
        is_held || self.is_written(by, inode, Aspects::WRITES) || self.ends[inode.end()] > stamp
    }

    /// A change that had begun has been made, or has failed, or is not made now.
    pub(crate) fn end(&mut self, inode: InodeKey, aspects: Aspects, now: Now, actions: &mut Vec<Action>) {
        self.ends[inode.end()] = self.stamps.next();
        self.stamps.exclusive.count(aspects, Aspects::empty());
        let Some(busy) = self.busy.get_mut(&inode) else { return };
        busy.changing.remove(aspects);
        if aspects.intersects(WRITERS) || busy.waiting.iter().any(|wait| wait.aspects == Aspects::CONCURRENT) {
            self.wake(inode, actions);
        }
        self.forget_if_over(inode, now);
    }

    /// A change or look that waited is not wanted any more.
    pub(crate) fn give_up(&mut self, inode: InodeKey, waiter: Waiter, now: Now, actions: &mut Vec<Action>) {
        self.waits_no_more(inode, waiter, actions);
        self.forget_if_over(inode, now);
    }

    /// Something has been changed by somebody who did not wait. What was looked at before is granted no more, and leases are recalled.
    pub(crate) fn changed(&mut self, inode: InodeKey, aspects: Aspects, now: Now, actions: &mut Vec<Action>) {
        self.ends[inode.end()] = self.stamps.next();
        if self.recall(None, inode, aspects, now, actions) {
            self.busy.entry(inode).or_default().contend(now, &self.limits);
        }
    }

    /// Anything may have been changed by somebody who did not wait.
    pub(crate) fn changed_everything(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.ends.fill(self.stamps.next());
        for (client, lease) in self.table.recall_everything() {
            self.ask(client, lease, now, actions);
        }
    }

    /// The client uses the lease no more, whether it was asked for or not. An id that it does not hold (it was returned, or is made up) is no harm.
    pub(crate) fn returned(
        &mut self,
        client: ClientId,
        lease: LeaseId,
        clients: &dyn Clients,
        actions: &mut Vec<Action>,
    ) {
        let Some(inode) = self.table.remove(client, lease) else { return };
        self.ends_straight(client, inode);
        self.rights.remove(&(client, inode));
        self.end_tenure(inode);
        if !self.table.owes(client) && self.overdue.remove(&client) {
            self.fenced.remove(&client);
            clients.resume(client);
        }
        self.wake(inode, actions);
    }

    /// What was written at servers of data ends with who may write there: who looked before may
    /// keep nothing of what he saw.
    fn ends_straight(&mut self, client: ClientId, inode: InodeKey) {
        if self.rights.contains(&(client, inode)) || self.tenures.contains_key(&inode) {
            self.ends[inode.end()] = self.stamps.next();
        }
    }

    /// The client holds nothing back of an inode any more, nor will it under the lease that it has: others may have theirs beside it.
    pub(crate) fn share(&mut self, client: ClientId, inode: InodeKey, actions: &mut Vec<Action>) {
        let exclusive = self.holder(inode).filter(|(_, held)| held.client == client);
        if let Some((at, _)) = exclusive {
            self.table.take_writes(at);
            self.ends_straight(client, inode);
            self.rights.remove(&(client, inode));
            self.wake(inode, actions);
        }
    }

    /// Nothing is executed any more of the rights that were to end.
    pub(crate) fn revoked(&mut self, inode: InodeKey, now: Now, actions: &mut Vec<Action>) {
        self.end(inode, Aspects::WRITES, now, actions);
    }

    /// A client has lost an inode that it wrote. Its rights on the inode must end first: until
    /// then the inode counts as being written.
    fn end_rights(&mut self, client: ClientId, inode: InodeKey, actions: &mut Vec<Action>) {
        if self.rights.remove(&(client, inode)) {
            self.stamps.exclusive.count(Aspects::empty(), Aspects::WRITES);
            self.busy.entry(inode).or_default().changing.add(Aspects::WRITES);
            actions.push(Action::Revoke { inode });
        }
    }

    /// The client has gone, and uses nothing any more. If it left without a goodbye, a server of
    /// data may still execute what it sent.
    pub(crate) fn depart(&mut self, client: ClientId, clients: &dyn Clients, actions: &mut Vec<Action>) {
        self.fenced.remove(&client);
        if self.overdue.remove(&client) {
            clients.resume(client);
        }
        for inode in self.table.remove_all(client) {
            self.ends_straight(client, inode);
            self.end_rights(client, inode, actions);
            self.end_tenure(inode);
            self.wake(inode, actions);
        }
    }

    /// Renews those no more who owe something for too long, and fences those of them who are silent. Returns when to look again, if there is anything to look
    /// after.
    pub(crate) fn tick(&mut self, (now, clients): (Now, &dyn Clients), actions: &mut Vec<Action>) -> Option<Now> {
        let answer = self.limits.answer;
        // Of whom another shard knows that it does not answer, and who is silent for long enough, nobody waits for an answer here as well.
        let is_away = |client| {
            let is_silent = |renewed: Now| now >= renewed + self.limits.silence_max();
            clients.is_suspended(client) && clients.renewed(client).is_none_or(is_silent)
        };
        let is_due = |(asked, client, _): &(Now, ClientId, LeaseId)| now >= *asked + answer || is_away(*client);
        while let Some((_, client, lease)) = self.asked.front().copied().filter(is_due) {
            self.asked.pop_front();
            if self.table.is_recalled(client, lease) && self.overdue.insert(client) {
                clients.suspend(client);
            }
        }
        self.asked.shrink_to(self.asked.len() * 2);
        let mut next = self.asked.front().map(|(asked, ..)| *asked + answer);
        for client in self.overdue.difference(&self.fenced).copied().collect::<Vec<_>>() {
            let silent_at = clients.renewed(client).map(|renewed| renewed + self.limits.silence_max());
            match silent_at.filter(|at| now < *at) {
                Some(at) => next = earlier(next, at),
                None => self.fence(client, actions),
            }
        }
        if self.sweep_at.is_none_or(|at| now >= at) {
            self.busy.retain(|_, busy| !busy.is_over(now));
            let is_contended = self.busy.values().any(Busy::is_contended);
            self.sweep_at = is_contended.then_some(now + REMEMBERED_FOR);
        }
        match self.sweep_at {
            Some(at) => earlier(next, at),
            None => next,
        }
    }

    /// What the client has been asked for and has not returned: to be asked for again on a new connection.
    pub(crate) fn recalled(&self, client: ClientId) -> Vec<LeaseId> {
        self.table.recalled(client).into_iter().map(|(lease, _)| lease).collect()
    }

    /// How many leases there are.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Recalls what a change touches of others; whether it has to wait for any of them.
    fn recall(
        &mut self,
        by: Option<ClientId>,
        inode: InodeKey,
        aspects: Aspects,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> bool {
        let touched: Vec<_> = self.touched(by, inode, aspects).collect();
        for (at, held) in touched.iter().filter(|(_, held)| !held.recalled) {
            let lease = self.table.recall(*at);
            self.ask(held.client, lease, now, actions);
        }
        touched.iter().any(|(_, held)| !self.fenced.contains(&held.client))
    }

    /// Recalls what is in the way. Whether nothing is any more; if not, the waiter waits.
    fn clear(&mut self, wanted: &Wanted, now: Now, actions: &mut Vec<Action>) -> bool {
        let Wanted { inode, aspects, by, waiter } = *wanted;
        let mut must_wait = self.recall(Some(by), inode, aspects, now, actions);
        let in_the_way: Vec<_> = self.touched(Some(by), inode, aspects).collect();
        let breaks_tenure = in_the_way.iter().any(|(_, held)| held.aspects.contains(Aspects::CONCURRENT));
        let is_lost = |held: &table::Held| held.aspects.intersects(WRITERS) && self.fenced.contains(&held.client);
        let lost: Vec<_> = in_the_way.into_iter().filter(|(_, held)| is_lost(held)).collect();
        for (at, held) in lost {
            actions.push(Action::Broken { client: held.client, lease: self.table.take_writes(at) });
            self.end_rights(held.client, inode, actions);
            self.end_tenure(inode);
        }
        must_wait |= self.is_written(by, inode, aspects) || self.goes_last(inode, aspects);
        if !must_wait {
            self.waits_no_more(inode, waiter, actions);
            return true;
        }
        let busy = self.busy.entry(inode).or_default();
        if !busy.waiting.iter().any(|wait| wait.waiter == waiter) {
            match breaks_tenure {
                true => busy.tenure.breaks(now, &self.limits),
                false => busy.contend(now, &self.limits),
            }
            busy.waiting.push(Wait { waiter, by, aspects });
        }
        false
    }

    /// The only lease of an inode, if it is exclusive: there is none beside it.
    fn holder(&self, inode: InodeKey) -> Option<(u32, table::Held)> {
        self.table.of(inode).next().filter(|(_, held)| held.aspects.contains(Aspects::WRITES))
    }

    /// Whether another client's lease and these aspects exclude each other.
    fn excludes(&self, client: ClientId, inode: InodeKey, aspects: Aspects) -> bool {
        let is_shared = || self.table.of(inode).any(|(_, held)| held.aspects.contains(Aspects::CONCURRENT));
        if aspects.intersects(KEPT) && is_shared() {
            return true;
        }
        let mut others = self.table.of(inode).filter(|(_, held)| held.client != client);
        others.next().is_some_and(|(_, held)| (aspects | held.aspects).contains(Aspects::WRITES))
    }

    fn holds_writes(&self, client: ClientId, inode: InodeKey) -> bool {
        self.holder(inode).is_some_and(|(_, held)| held.client == client)
    }

    /// Whether what another client held back is being written, or what one of several writers
    /// writes, which has to end first: it may have lost its lease in the meantime.
    fn is_written(&self, by: ClientId, inode: InodeKey, wanted: Aspects) -> bool {
        let Some(busy) = self.busy.get(&inode) else { return false };
        let is_changed = |aspects| busy.changing.touch(aspects, Aspects::empty());
        is_changed(Aspects::WRITES) && !self.holds_writes(by, inode)
            || is_plain(wanted) && is_changed(Aspects::CONCURRENT)
            // Any but those of several writers: it may be made once more if this process ends.
            || wanted == Aspects::CONCURRENT && is_changed(Aspects::ATTRIBUTES)
    }

    fn ask(&mut self, client: ClientId, lease: LeaseId, now: Now, actions: &mut Vec<Action>) {
        self.asked.push_back((now, client, lease));
        actions.push(Action::Recall { client, lease });
    }

    /// The leases of others on what a change touches.
    fn touched(
        &self,
        by: Option<ClientId>,
        inode: InodeKey,
        aspects: Aspects,
    ) -> impl Iterator<Item = (u32, table::Held)> + '_ {
        self.table.of(inode).filter(move |(_, held)| Some(held.client) != by && meets(held.aspects, aspects))
    }

    /// Nobody waits for a client any more that uses nothing.
    fn fence(&mut self, client: ClientId, actions: &mut Vec<Action>) {
        self.fenced.insert(client);
        for (_, inode) in self.table.recalled(client) {
            self.wake(inode, actions);
        }
    }

    /// Has those ask again who wait for nobody any more.
    fn wake(&self, inode: InodeKey, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy.get(&inode) else { return };
        let is_free = |wait: &&Wait| {
            let mut touched = self.touched(Some(wait.by), inode, wait.aspects);
            touched.all(|(_, held)| self.fenced.contains(&held.client))
                && !self.is_written(wait.by, inode, wait.aspects)
                && !self.goes_last(inode, wait.aspects)
        };
        actions.extend(busy.waiting.iter().filter(is_free).map(|wait| Action::Wake { waiter: wait.waiter }));
    }

    fn forget_if_over(&mut self, inode: InodeKey, now: Now) {
        if self.busy.get(&inode).is_some_and(|busy| busy.is_over(now)) {
            self.busy.remove(&inode);
        }
    }
}

fn earlier(one: Option<Now>, other: Now) -> Option<Now> {
    Some(one.map_or(other, |one| one.min(other)))
}
