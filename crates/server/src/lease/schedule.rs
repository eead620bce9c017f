//! The machine under a virtual clock: clients, their kernels and the network do what they like, in any order, from a seed; nobody may ever see what is old.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::hold::Hold;
use super::*;

const CLIENTS: usize = 4;
const INODES: usize = 2;

/// Messages take up to this long.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// Some recalls take up to this long.
const RECALL_DELAY_MAX: Duration = Duration::from_secs(15);

/// A step of a request at the server takes up to this long: to look, to change.
const STEP_MAX: Duration = Duration::from_millis(50);

/// A kernel takes so long to handle a reply, on a machine with much to do.
const KERNEL_DELAY_MAX: Duration = Duration::from_secs(1);

/// Clocks run apart by up to so many parts in a thousand.
const DRIFT_PER_MILLE: u32 = 10;

const KINDS: [Aspects; 3] = [Aspects::ATTRIBUTES, Aspects::DATA, Aspects::NAMES];

/// Mistakes that a client or a server could make; the check has to find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A client returns a lease and goes on using it.
    UsesAfterReturn,
    /// It uses what it has although it has renewed nothing for the lease time.
    IgnoresExpiry,
    /// It counts the time of a lease from the reply instead of from the request.
    CountsFromReply,
    /// It believes a reply whose lease was recalled before the reply came.
    BelievesLateReply,
    /// The server grants leases on what it looked at before a change that has ended.
    IgnoresStamps,
    /// It grants leases while a change is being made.
    GrantsDuringChanges,
    /// It makes a change although leases are out.
    DoesNotWait,
    /// It believes silent clients to hold nothing as soon as their lease is over, without the time of their kernels.
    ForgetsKernels,
    /// It renews clients that have not returned what others have changed meanwhile.
    RenewsDebtors,
    /// It believes a client to hold nothing as soon as it has ended its session.
    ForgetsTheEnded,
    /// It does not wait, after a restart, for those who have leases of before.
    ForgetsRestart,
    /// Nor for those whose sessions had ended before.
    ForgetsTheLapsing,
}

struct Random(u64);

impl Random {
    /// splitmix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn duration(&mut self, max: Duration) -> Duration {
        max.mul_f64((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// What a client has of an aspect of an inode.
#[derive(Clone, Copy, Debug)]
struct Kept {
    lease: LeaseId,
    version: u64,
    /// In its kernel: until this time of the world, daemon or no daemon.
    kernel_until: Now,
}

struct Client {
    session: ClientId,
    /// Its daemon stands still: nothing is received or sent.
    is_stopped: bool,
    /// Nothing goes through; what was sent waits.
    is_cut: bool,
    /// Its clock's rate, in thousandths.
    rate: u32,
    /// By its own reckoning: until this time of the world it may use what it has.
    valid_until: Now,
    kept: HashMap<(usize, usize), Kept>,
    /// Leases that were recalled before the reply that grants them came.
    early: Vec<LeaseId>,
    /// How many changes of its own have ended: what was asked for before one is not kept.
    changes: u64,
    changing: bool,
}

#[derive(Clone, Debug)]
enum Message {
    Read {
        session: ClientId,
        inode: usize,
        sent: Now,
        changes: u64,
    },
    Answer {
        session: ClientId,
        inode: usize,
        lease: Option<(LeaseId, Aspects)>,
        versions: [u64; 3],
        sent: Option<Now>,
        changes: u64,
    },
    Change {
        session: ClientId,
        inode: usize,
        kind: usize,
        sent: Now,
    },
    Changed {
        session: ClientId,
        sent: Option<Now>,
    },
    Recall {
        session: ClientId,
        lease: LeaseId,
    },
    Return {
        session: ClientId,
        lease: LeaseId,
    },
    /// The server has ended the session, or another server has taken its place.
    Ended {
        session: ClientId,
    },
    /// The client has forgotten what it had in a session.
    Forgotten {
        session: ClientId,
    },
}

/// A read under way at the server.
#[derive(Clone, Debug)]
struct Look {
    index: usize,
    session: ClientId,
    inode: usize,
    stamp: u64,
    sent: Option<Now>,
    changes: u64,
}

/// A change, before, while and after it waits.
#[derive(Clone, Copy, Debug)]
struct Change {
    session: ClientId,
    inode: usize,
    kind: usize,
    sent: Option<Now>,
    since: Now,
}

#[derive(Clone, Debug)]
enum Event {
    ToServer(usize, Message),
    ToClient(usize, Message),
    Act(usize),
    Tick,
    Restart,
    /// The server looks what there is.
    Look(Look),
    /// It has looked, and grants.
    Grant(Look, [u64; 3]),
    /// It changes.
    Effect(Waiter),
    /// It has changed.
    End(Waiter),
    /// What waited for the end of a hold.
    Retry(Waiter),
    /// What a session had that has ended without its client's word has lapsed.
    Lapsed(ClientId),
}

/// When clients were renewed, and which are not any more.
#[derive(Default)]
struct Known(RefCell<HashMap<ClientId, (Now, usize)>>);

impl Clients for Known {
    fn renewed(&self, client: ClientId) -> Option<Now> {
        self.0.borrow().get(&client).map(|(renewed, _)| *renewed)
    }

    fn suspend(&self, client: ClientId) {
        self.0.borrow_mut().entry(client).or_default().1 += 1;
    }

    fn resume(&self, client: ClientId) {
        self.0.borrow_mut().entry(client).or_default().1 -= 1;
    }
}

struct World {
    bug: Bug,
    random: Random,
    now: Now,
    events: BTreeMap<(Now, u64), Event>,
    count: u64,
    clients: Vec<Client>,
    leases: Leases,
    hold: Hold,
    known: Known,
    sessions: HashMap<ClientId, usize>,
    /// Until when clients may believe what they had whose sessions have ended.
    lapses: HashMap<ClientId, Now>,
    versions: [[u64; 3]; INODES],
    /// Changes that wait, or are being made.
    changes: HashMap<Waiter, Change>,
    /// Of earlier holds.
    held_until: Now,
    longest: Duration,
    used: usize,
}

fn limits(bug: Bug) -> Limits {
    let usual = Limits::default();
    match bug {
        Bug::ForgetsKernels => Limits { patience: Duration::from_millis(100), ..usual },
        _ => Limits { leases_of_client_max: 2, ..usual },
    }
}

fn machine(bug: Bug) -> Leases {
    Leases::new(limits(bug), 0, Arc::default())
}

fn key(inode: usize) -> InodeKey {
    InodeKey((inode * SHARDS) as u128)
}

impl World {
    fn new(seed: u64, bug: Bug) -> World {
        let mut world = World {
            bug,
            random: Random(seed),
            now: Duration::ZERO,
            events: BTreeMap::new(),
            count: 0,
            clients: Vec::new(),
            leases: machine(bug),
            hold: Hold::default(),
            known: Known::default(),
            sessions: HashMap::new(),
            lapses: HashMap::new(),
            versions: [[0; 3]; INODES],
            changes: HashMap::new(),
            held_until: Duration::ZERO,
            longest: Duration::ZERO,
            used: 0,
        };
        for index in 0..CLIENTS {
            let rate = 1000 - DRIFT_PER_MILLE + world.random.below(2 * DRIFT_PER_MILLE as usize + 1) as u32;
            world.clients.push(Client {
                session: ClientId(0),
                is_stopped: false,
                is_cut: false,
                rate,
                valid_until: Duration::ZERO,
                kept: HashMap::new(),
                early: Vec::new(),
                changes: 0,
                changing: false,
            });
            world.begin_session(index);
            world.at(Duration::ZERO, Event::Act(index));
        }
        world
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + after, self.count), event);
    }

    fn begin_session(&mut self, index: usize) {
        self.count += 1;
        let session = ClientId(self.count);
        self.clients[index].session = session;
        self.sessions.insert(session, index);
        self.known.0.borrow_mut().insert(session, (self.now, 0));
    }

    fn send(&mut self, event: Event) {
        let delay = self.random.duration(DELAY_MAX);
        self.at(delay, event);
    }

    fn run(&mut self, until: Duration) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > until {
                return;
            }
            self.now = at;
            match event {
                Event::Act(index) => self.act(index),
                Event::ToServer(index, message) => self.at_server(index, message),
                Event::ToClient(index, message) => self.at_client(index, message),
                Event::Tick => self.tick(),
                Event::Restart => self.restart(),
                Event::Look(look) => {
                    let versions = self.versions[look.inode];
                    self.step(Event::Grant(look, versions));
                }
                Event::Grant(look, versions) => self.grant(look, versions),
                Event::Effect(waiter) => self.effect(waiter),
                Event::End(waiter) => self.end(waiter),
                Event::Retry(waiter) => self.try_change(waiter),
                Event::Lapsed(session) => self.depart(session),
            }
        }
    }

    /// A step at the server takes a while.
    fn step(&mut self, event: Event) {
        let takes = self.random.duration(STEP_MAX);
        self.at(takes, event);
    }

    fn tick(&mut self) {
        let mut actions = Vec::new();
        let next = self.leases.tick((self.now, &self.known), &mut actions);
        self.perform(actions);
        if let Some(next) = next {
            let after = next.saturating_sub(self.now).max(Duration::from_millis(1));
            self.at(after, Event::Tick);
        }
    }

    fn depart(&mut self, session: ClientId) {
        if self.lapses.remove(&session).is_some() {
            let mut actions = Vec::new();
            self.leases.depart(session, &self.known, &mut actions);
            self.known.0.borrow_mut().remove(&session);
            self.perform(actions);
        }
    }

    /// The server ends a session, as it does when nothing is heard of a client for long.
    fn end_session(&mut self, session: ClientId) {
        let Some(index) = self.sessions.remove(&session) else { return };
        let renewed = self.known.renewed(session).unwrap_or_default();
        // What it has under way is awaited.
        let until = (renewed + limits(self.bug).silence_max()).max(self.now + 3 * STEP_MAX);
        let until = if self.bug == Bug::ForgetsTheEnded { self.now } else { until };
        self.lapses.insert(session, until);
        self.at(until - self.now, Event::Lapsed(session));
        self.send(Event::ToClient(index, Message::Ended { session }));
    }

    /// Another server takes its place, that knows who had a session and until when what ended sessions had lapses.
    fn restart(&mut self) {
        self.leases = machine(self.bug);
        self.changes.clear();
        self.events.retain(|_, event| !matches!(event, Event::Look(_) | Event::Grant(..) | Event::Tick));
        let sessions = std::mem::take(&mut self.sessions);
        self.known = Known::default();
        let lapsed_at = self.lapses.drain().map(|(_, until)| until).max().unwrap_or_default();
        let lapsed_at = if self.bug == Bug::ForgetsTheLapsing { Duration::ZERO } else { lapsed_at };
        let missing = sessions.keys().map(|session| session.0).collect();
        let until = self.now + limits(self.bug).silence_max();
        if self.bug != Bug::ForgetsRestart {
            // Who was still missing before is missing now, as its file is still there.
            self.hold.begin(missing, until, lapsed_at.max(self.held_until), self.now);
            self.held_until = until.max(lapsed_at);
        }
        for (session, index) in sessions {
            self.send(Event::ToClient(index, Message::Ended { session }));
        }
    }

    /// Something that a client does by itself.
    fn act(&mut self, index: usize) {
        let pause = self.random.duration(Duration::from_millis(1500));
        self.at(pause, Event::Act(index));
        let (what, inode, kind) = (self.random.below(40), self.random.below(INODES), self.random.below(3));
        if self.random.below(100) == 0 {
            self.end_session(self.clients[index].session);
            if self.random.below(2) == 0 {
                self.step(Event::Restart);
            }
        }
        if self.random.below(400) == 0 {
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
        if client.is_stopped {
            return;
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
                let Some(kept) = client.kept.values().next().copied() else { return };
                self.give_back(index, kept.lease);
            }
            _ => {}
        }
    }

    fn mend(&mut self, index: usize) {
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
    fn look(&mut self, index: usize) {
        for inode in 0..INODES {
            for kind in 0..KINDS.len() {
                self.check(index, inode, kind);
            }
        }
    }

    fn check(&mut self, index: usize, inode: usize, kind: usize) {
        let client = &self.clients[index];
        let Some(kept) = client.kept.get(&(inode, kind)) else { return };
        let by_daemon = !client.is_stopped && (self.now < client.valid_until || self.bug == Bug::IgnoresExpiry);
        if !client.changing && (by_daemon || self.now < kept.kernel_until) {
            self.used += 1;
            let current = self.versions[inode][kind];
            assert!(
                kept.version == current,
                "client {index} uses version {} of {current} at {:?}",
                kept.version,
                self.now
            );
        }
    }

    fn give_back(&mut self, index: usize, lease: LeaseId) {
        let client = &mut self.clients[index];
        let is_known = client.kept.values().any(|kept| lease.covers(kept.lease));
        if self.bug != Bug::UsesAfterReturn {
            client.kept.retain(|_, kept| !lease.covers(kept.lease));
        }
        // An answer to what was asked before is not kept any more; if the lease is one that has not come yet, that answer is known by its name.
        if is_known {
            client.changes += 1;
        }
        let session = client.session;
        self.send(Event::ToServer(index, Message::Return { session, lease }));
    }

    fn at_server(&mut self, index: usize, message: Message) {
        if self.clients[index].is_cut {
            return self.at(Duration::from_millis(300), Event::ToServer(index, message));
        }
        let session = match &message {
            Message::Read { session, .. } | Message::Change { session, .. } | Message::Return { session, .. } => {
                *session
            }
            Message::Forgotten { session } => {
                self.hold.settle(session.0, self.now);
                return;
            }
            _ => return,
        };
        if !self.sessions.contains_key(&session) {
            return self.send(Event::ToClient(index, Message::Ended { session }));
        }
        let renews = match self.known.0.borrow_mut().get_mut(&session) {
            Some((renewed, suspended)) if *suspended == 0 || self.bug == Bug::RenewsDebtors => {
                *renewed = self.now;
                true
            }
            _ => false,
        };
        match message {
            Message::Read { inode, sent, changes, .. } => {
                let sent = renews.then_some(sent);
                let stamp = if self.bug == Bug::IgnoresStamps { u64::MAX } else { self.leases.stamps.take() };
                self.step(Event::Look(Look { index, session, inode, stamp, sent, changes }));
            }
            Message::Change { inode, kind, sent, .. } => {
                self.count += 1;
                let waiter = Waiter(self.count);
                let sent = renews.then_some(sent);
                self.changes.insert(waiter, Change { session, inode, kind, sent, since: self.now });
                self.try_change(waiter);
            }
            Message::Return { lease, .. } => {
                let mut actions = Vec::new();
                self.leases.returned(session, lease, &self.known, &mut actions);
                self.perform(actions);
            }
            _ => {}
        }
    }

    fn grant(&mut self, look: Look, versions: [u64; 3]) {
        let Look { index, session, inode, stamp, sent, changes } = look;
        let aspects = Aspects::from_bits_truncate(1 + self.random.below(7) as u8);
        let own = if self.bug == Bug::GrantsDuringChanges { Aspects::all() } else { Aspects::empty() };
        let mut actions = Vec::new();
        let looked = Looked { stamp, own };
        let may = sent.is_some();
        let lease = may.then(|| self.leases.grant(session, (key(inode), aspects), looked, self.now, &mut actions));
        self.perform(actions);
        let lease = lease.flatten();
        self.send(Event::ToClient(index, Message::Answer { session, inode, lease, versions, sent, changes }));
    }

    fn try_change(&mut self, waiter: Waiter) {
        let Some(change) = self.changes.get(&waiter).copied() else { return };
        let Change { session, inode, kind, .. } = change;
        if !self.sessions.contains_key(&session) {
            self.changes.remove(&waiter);
            return self.leases.give_up(key(inode), waiter, self.now);
        }
        self.hold.look(self.now);
        if self.hold.is_on() {
            self.changes.insert(waiter, Change { since: self.now, ..change });
            return self.at(STEP_MAX, Event::Retry(waiter));
        }
        let wanted = Wanted { inode: key(inode), aspects: KINDS[kind], by: session, waiter };
        let mut actions = Vec::new();
        let verdict = self.leases.begin(&wanted, self.now, &mut actions);
        self.perform(actions);
        if verdict == Verdict::Go || self.bug == Bug::DoesNotWait {
            self.longest = self.longest.max(self.now - change.since);
            self.step(Event::Effect(waiter));
        } else {
            self.at(Duration::ZERO, Event::Tick);
        }
    }

    fn effect(&mut self, waiter: Waiter) {
        let Some(change) = self.changes.get(&waiter).copied() else { return };
        self.versions[change.inode][change.kind] += 1;
        for index in 0..CLIENTS {
            self.check(index, change.inode, change.kind);
        }
        self.step(Event::End(waiter));
    }

    fn end(&mut self, waiter: Waiter) {
        let Some(Change { session, inode, kind, sent, .. }) = self.changes.remove(&waiter) else { return };
        if self.bug == Bug::DoesNotWait {
            self.leases.give_up(key(inode), waiter, self.now);
        }
        self.leases.end(key(inode), KINDS[kind], self.now);
        if let Some(index) = self.sessions.get(&session).copied() {
            self.send(Event::ToClient(index, Message::Changed { session, sent }));
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Recall { client, lease } => {
                    let Some(&index) = self.sessions.get(&client) else { continue };
                    // What handles recalls may hang while the rest of the client works.
                    let slowest = if self.random.below(10) == 0 { RECALL_DELAY_MAX } else { DELAY_MAX };
                    let delay = self.random.duration(slowest);
                    self.at(delay, Event::ToClient(index, Message::Recall { session: client, lease }));
                }
                Action::Wake { waiter } => self.try_change(waiter),
            }
        }
    }

    fn at_client(&mut self, index: usize, message: Message) {
        let client = &self.clients[index];
        if client.is_cut || client.is_stopped {
            return self.at(Duration::from_millis(300), Event::ToClient(index, message));
        }
        match message {
            Message::Answer { session, inode, lease, versions, sent, changes } if session == client.session => {
                self.renew(index, sent);
                let client = &self.clients[index];
                if let Some(lease) = lease.filter(|_| client.changes == changes && !client.changing) {
                    self.keep(index, inode, lease, versions);
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
            Message::Ended { session } if session == client.session => {
                let client = &mut self.clients[index];
                client.kept.clear();
                client.early.clear();
                client.changing = false;
                client.changes += 1;
                client.valid_until = Duration::ZERO;
                self.send(Event::ToServer(index, Message::Forgotten { session }));
                self.begin_session(index);
            }
            _ => {}
        }
    }

    /// An answer has come to what was sent then. The client counts by its own clock, which may run slow.
    fn renew(&mut self, index: usize, sent: Option<Now>) {
        let Some(sent) = sent else { return };
        let lease = limits(self.bug).lease;
        let from = if self.bug == Bug::CountsFromReply { self.now } else { sent };
        let client = &mut self.clients[index];
        let until = from + lease * 1000 / client.rate;
        client.valid_until = client.valid_until.max(until);
    }

    fn keep(&mut self, index: usize, inode: usize, (lease, aspects): (LeaseId, Aspects), versions: [u64; 3]) {
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
        let left = client.valid_until.saturating_sub(self.now);
        for (kind, _) in KINDS.iter().enumerate().filter(|(_, aspect)| aspects.contains(**aspect)) {
            let kernel_until = self.now + handled + left;
            client.kept.insert((inode, kind), Kept { lease, version: versions[kind], kernel_until });
        }
    }
}

/// Runs schedules; returns how often something kept was used.
fn histories(seeds: std::ops::Range<u64>, bug: Bug) -> usize {
    let mut used = 0;
    for seed in seeds {
        let mut world = World::new(seed, bug);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(Duration::from_secs(60))));
        if let Err(panic) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
        let limit = Limits::default();
        let most = limit.answer + limit.lease + limit.patience + 2 * DELAY_MAX;
        // What is to be found of a planted mistake is what somebody sees.
        assert!(bug != Bug::None || world.longest <= most, "seed {seed}: a change waited {:?}", world.longest);
        used += world.used;
    }
    used
}

#[test]
fn nobody_sees_what_is_old() {
    let count = std::env::var("LEASE_HISTORIES").map_or(500, |count| count.parse().expect("a number"));
    let used = histories(0..count, Bug::None);
    assert!(used > count as usize * 50, "what is kept is used: {used}");
    println!("{count} histories, {used} uses of what was kept");
}

#[test]
fn planted_bugs_are_found() {
    for bug in [
        Bug::UsesAfterReturn,
        Bug::IgnoresExpiry,
        Bug::CountsFromReply,
        Bug::BelievesLateReply,
        Bug::IgnoresStamps,
        Bug::GrantsDuringChanges,
        Bug::DoesNotWait,
        Bug::ForgetsKernels,
        Bug::RenewsDebtors,
        Bug::ForgetsTheEnded,
        Bug::ForgetsRestart,
        Bug::ForgetsTheLapsing,
    ] {
        let found = std::panic::catch_unwind(|| histories(0..2000, bug));
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
