//! The machine under a virtual clock: clients, their kernels and the network do what they like, in any order, from a seed; nobody may ever see what is old.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

mod client;
mod exclusive;

use super::hold::Hold;
use super::*;
use exclusive::{Gathered, Write};

const CLIENTS: usize = 4;
const INODES: usize = 3;

/// Messages take up to this long.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// Some recalls take up to this long.
const RECALL_DELAY_MAX: Duration = Duration::from_secs(15);

/// A step of a request at the server takes up to this long: to look, to change.
const STEP_MAX: Duration = Duration::from_millis(50);

/// Some writes take up to this long.
const SLOW_MAX: Duration = Duration::from_secs(2);

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
    /// It lets clients look at what another holds exclusively.
    LooksDoNotWait,
    /// It answers what it looked at before it knew the inode, although that was held exclusively then.
    IgnoresHidden,
    /// It grants an exclusive lease beside a shared one.
    GrantsBesideShared,
    /// It grants an exclusive lease while somebody waits to look.
    GrantsWhileLookWaits,
    /// It grants one although, after a restart, others may still believe what they had before.
    GrantsDuringHold,
    /// A client returns an exclusive lease before what it held back has been written.
    ReturnsUnflushed,
    /// The server accepts what was held back under a lease that is gone.
    AcceptsLateFlush,
    /// It does not wait for the end of what a client writes whose lease it breaks.
    BreaksUnderFlush,
    /// It lets clients look, after a restart, although others may have held something back.
    LooksAfterRestart,
    /// It forgets at a restart whose exclusive leases were broken.
    ForgetsTheBroken,
    /// A client that shares what it had for itself takes an answer to what it asked before for a new exclusive lease.
    HoldsBackWhatItShared,
}

/// The numbers of a schedule, from its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// splitmix64 (Steele, Lea, Flood 2014).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn duration(&mut self, max: Duration) -> Duration {
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
    kept: BTreeMap<(usize, usize), Kept>,
    /// Leases that were recalled before the reply that grants them came.
    early: Vec<LeaseId>,
    /// How many changes of its own have ended: what was asked for before one is not kept.
    changes: u64,
    changing: bool,
    /// What it holds back.
    gathered: [Gathered; INODES],
    /// It sends what it held back before the server was started again.
    is_recovering: bool,
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
        /// When it was asked.
        asked: Now,
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
    /// What was held back. `recovers`: under a lease of before a restart.
    Flush {
        session: ClientId,
        inode: usize,
        writes: Vec<usize>,
        recovers: bool,
    },
    Flushed {
        session: ClientId,
        inode: usize,
        writes: Vec<usize>,
    },
    /// It holds nothing back of an inode, nor will it.
    Share {
        session: ClientId,
        inode: usize,
    },
    Shared {
        session: ClientId,
        inode: usize,
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
    asked: Now,
    sent: Option<Now>,
    changes: u64,
    /// Since when it waits.
    since: Now,
    waits: bool,
    /// It knows what inode it looks at.
    is_known: bool,
    /// What others had written that it did not see.
    lacks: Vec<usize>,
}

/// A change, before, while and after it waits.
#[derive(Clone, Debug)]
struct Change {
    session: ClientId,
    inode: usize,
    aspects: Aspects,
    sent: Option<Now>,
    since: Now,
    /// What was held back.
    writes: Vec<usize>,
    recovers: bool,
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
    /// Somebody is about to look.
    TryLook(Waiter),
    /// What a session had that has ended without its client's word has lapsed.
    Lapsed(ClientId),
}

/// When clients were renewed, and which are not any more.
#[derive(Default)]
struct Known(RefCell<HashMap<ClientId, (Now, usize)>>, RefCell<HashSet<ClientId>>);

impl Clients for Known {
    fn renewed(&self, client: ClientId) -> Option<Now> {
        self.0.borrow().get(&client).map(|(renewed, _)| *renewed)
    }

    fn is_suspended(&self, client: ClientId) -> bool {
        self.0.borrow().get(&client).is_some_and(|(_, suspended)| *suspended > 0)
    }

    fn suspend(&self, client: ClientId) {
        self.0.borrow_mut().entry(client).or_default().1 += 1;
    }

    fn resume(&self, client: ClientId) {
        self.0.borrow_mut().entry(client).or_default().1 -= 1;
        self.1.borrow_mut().remove(&client);
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
    cools: bool,
    has_own: bool,
    /// How many of the clients hold anything back.
    writing: usize,
    hold: Hold,
    known: Known,
    sessions: BTreeMap<ClientId, usize>,
    /// Until when clients may believe what they had whose sessions have ended.
    lapses: BTreeMap<ClientId, Now>,
    versions: [[u64; 3]; INODES],
    /// Changes that wait, or are being made.
    changes: HashMap<Waiter, Change>,
    /// Looks that wait, or are about to.
    looks: HashMap<Waiter, Look>,
    /// Sessions of before a restart that have not said that they have forgotten what they had.
    unsettled: BTreeMap<ClientId, usize>,
    /// As `hold`, for those who may have held something back.
    hold_of_looks: Hold,
    writers: HashSet<ClientId>,
    /// All that was ever held back.
    writes: [Vec<Write>; INODES],
    /// Sessions that may lose what they held back.
    excused: HashSet<ClientId>,
    /// The longest that a change or a look has waited.
    longest: Duration,
    used: usize,
    flushed: usize,
    shared: usize,
}

fn limits(bug: Bug) -> Limits {
    let usual = Limits::default();
    match bug {
        Bug::ForgetsKernels => Limits { patience: Duration::from_millis(100), ..usual },
        _ => Limits { leases_of_client_max: 2, ..usual },
    }
}

/// With contention, or as if nobody minded it: then leases are out more often.
fn machine(bug: Bug, cools: bool) -> Leases {
    let usual = limits(bug);
    let limits = if cools { usual } else { Limits { holdoff_first: Duration::ZERO, ..usual } };
    Leases::new(limits, 0, Arc::default())
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
            leases: machine(bug, seed.is_multiple_of(2)),
            cools: seed.is_multiple_of(2),
            has_own: seed % 4 >= 2,
            writing: if seed % 8 >= 4 { CLIENTS } else { CLIENTS / 2 },
            hold: Hold::default(),
            known: Known::default(),
            sessions: BTreeMap::new(),
            lapses: BTreeMap::new(),
            versions: [[0; 3]; INODES],
            changes: HashMap::new(),
            looks: HashMap::new(),
            unsettled: BTreeMap::new(),
            hold_of_looks: Hold::default(),
            writers: HashSet::new(),
            writes: Default::default(),
            excused: HashSet::new(),
            longest: Duration::ZERO,
            used: 0,
            flushed: 0,
            shared: 0,
        };
        for index in 0..CLIENTS {
            let rate = 1000 - DRIFT_PER_MILLE + world.random.below(2 * DRIFT_PER_MILLE as usize + 1) as u32;
            world.clients.push(Client {
                session: ClientId(0),
                is_stopped: false,
                is_cut: false,
                rate,
                valid_until: Duration::ZERO,
                kept: BTreeMap::new(),
                early: Vec::new(),
                changes: 0,
                changing: false,
                gathered: Default::default(),
                is_recovering: false,
            });
            world.begin_session(index);
            world.at(Duration::ZERO, Event::Act(index));
        }
        world
    }

    /// One in how many times something happens, or more often, where it takes that to find a mistake.
    fn rare(&self, bug: Bug, usual: usize) -> usize {
        if self.bug == bug { usual.div_ceil(4) } else { usual }
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
                Event::Look(look) => self.look_at(look),
                Event::Grant(look, versions) => self.grant(look, versions),
                Event::Effect(waiter) => self.effect(waiter),
                Event::End(waiter) => self.end(waiter),
                Event::Retry(waiter) => self.try_change(waiter),
                Event::TryLook(waiter) => self.try_look(waiter),
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
        let until = (renewed + limits(self.bug).silence_max()).max(self.now + 2 * STEP_MAX + SLOW_MAX);
        let until = if self.bug == Bug::ForgetsTheEnded { self.now } else { until };
        self.excused.insert(session);
        self.lapses.insert(session, until);
        self.at(until - self.now, Event::Lapsed(session));
        self.send(Event::ToClient(index, Message::Ended { session }));
    }

    /// Another server takes its place, that knows who had a session and until when what ended sessions had lapses.
    fn restart(&mut self) {
        self.leases = machine(self.bug, self.cools);
        self.changes.clear();
        self.looks.clear();
        self.events.retain(|_, event| !matches!(event, Event::Look(_) | Event::Grant(..) | Event::Tick));
        self.unsettled.append(&mut self.sessions);
        let broken =
            if self.bug == Bug::ForgetsTheBroken { RefCell::default() } else { std::mem::take(&mut self.known.1) };
        self.known = Known(RefCell::default(), broken);
        let is_writer = |session: &ClientId| self.writers.contains(session);
        let lapsed_at = |only_writers: bool| {
            let counts = |(session, _): &(&ClientId, &Now)| {
                self.bug != Bug::ForgetsTheLapsing && (!only_writers || is_writer(session))
            };
            self.lapses.iter().filter(counts).map(|(_, until)| *until).max().unwrap_or_default()
        };
        let until = self.now + limits(self.bug).silence_max();
        if self.bug != Bug::ForgetsRestart {
            let missing = self.unsettled.keys().map(|session| session.0).collect();
            self.hold.begin(missing, until, lapsed_at(false), self.now);
            let missing = self.unsettled.keys().filter(|session| is_writer(session)).map(|session| session.0).collect();
            self.hold_of_looks.begin(missing, until, lapsed_at(true), self.now);
        }
        for (session, index) in self.unsettled.clone() {
            self.send(Event::ToClient(index, Message::Ended { session }));
        }
    }

    fn at_server(&mut self, index: usize, message: Message) {
        if self.clients[index].is_cut {
            return self.at(Duration::from_millis(300), Event::ToServer(index, message));
        }
        let session = match &message {
            Message::Flush { session, inode, writes, recovers: true } => {
                return self.flush_again(index, *session, *inode, writes.clone());
            }
            Message::Read { session, .. }
            | Message::Change { session, .. }
            | Message::Flush { session, .. }
            | Message::Share { session, .. }
            | Message::Return { session, .. } => *session,
            Message::Forgotten { session } => {
                self.unsettled.remove(session);
                self.hold.settle(session.0, self.now, |_| {});
                self.hold_of_looks
                    .settle(session.0, self.now, |missing| exclusive::lose(&self.known, &mut self.excused, missing));
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
                let (stamp, asked, sent, since) = (self.stamp(), sent, renews.then_some(sent), self.now);
                let look = Look {
                    index,
                    session,
                    inode,
                    stamp,
                    asked,
                    sent,
                    changes,
                    since,
                    waits: false,
                    is_known: false,
                    lacks: vec![],
                };
                self.begin_look(look);
            }
            Message::Change { inode, kind, sent, .. } => {
                let (sent, aspects, since) = (renews.then_some(sent), KINDS[kind], self.now);
                let change = Change { session, inode, aspects, sent, since, writes: vec![], recovers: false };
                self.begin_change(change);
            }
            Message::Flush { inode, writes, .. } => {
                let (sent, since) = (renews.then_some(self.now), self.now);
                let change = Change { session, inode, aspects: exclusive::FLUSH, sent, since, writes, recovers: false };
                self.begin_change(change);
            }
            Message::Share { inode, .. } => self.shares(index, session, inode),
            Message::Return { lease, .. } => {
                let mut actions = Vec::new();
                self.leases.returned(session, lease, &self.known, &mut actions);
                self.perform(actions);
            }
            _ => {}
        }
    }

    fn grant(&mut self, look: Look, versions: [u64; 3]) {
        if self.hides(&look) {
            return;
        }
        let Look { index, session, inode, stamp, asked, sent, changes, .. } = look;
        let aspects = match self.random.below(2) {
            0 if index < self.writing => self.wants_exclusive(session, inode),
            _ => Aspects::from_bits_truncate(1 + self.random.below(7) as u8),
        };
        let own = if self.bug == Bug::GrantsDuringChanges { Aspects::all() } else { Aspects::empty() };
        let mut actions = Vec::new();
        let looked = Looked { stamp, own };
        let may = sent.is_some();
        let waiting = self.forget_looks(inode);
        let lease = may.then(|| self.leases.grant(session, (key(inode), aspects), looked, self.now, &mut actions));
        self.remember_looks(inode, waiting);
        self.perform(actions);
        let lease = lease.flatten();
        if lease.is_some_and(|(_, aspects)| aspects.contains(Aspects::WRITES)) {
            self.writers.insert(session);
            let waits = |look: &Look| look.waits && look.inode == inode;
            assert!(
                !self.looks.values().any(waits),
                "{session:?} is granted what somebody waits to see at {:?}",
                self.now
            );
        }
        self.send(Event::ToClient(index, Message::Answer { session, inode, lease, versions, asked, sent, changes }));
    }

    fn begin_change(&mut self, change: Change) {
        self.count += 1;
        let waiter = Waiter(self.count);
        self.changes.insert(waiter, change);
        self.try_change(waiter);
    }

    fn try_change(&mut self, waiter: Waiter) {
        let Some(change) = self.changes.get_mut(&waiter) else { return };
        let (session, inode, aspects, recovers) = (change.session, change.inode, change.aspects, change.recovers);
        if !recovers && !self.sessions.contains_key(&session) {
            self.changes.remove(&waiter);
            return self.leases.give_up(key(inode), waiter, self.now, &mut Vec::new());
        }
        if !recovers && is_on(&[&self.hold, &self.hold_of_looks], (self.now, &self.known), &mut self.excused) {
            change.since = self.now;
            return self.at(STEP_MAX, Event::Retry(waiter));
        }
        let wanted = Wanted { inode: key(inode), aspects, by: session, waiter };
        let mut actions = Vec::new();
        let verdict = self.leases.begin(&wanted, self.now, &mut actions);
        self.perform(actions);
        match verdict {
            Verdict::Late => self.late(waiter),
            Verdict::Wait if self.bug != Bug::DoesNotWait => {
                let is_flush = !self.changes[&waiter].writes.is_empty();
                assert!(!is_flush || self.bug != Bug::None, "what was held back waits for others");
                self.at(Duration::ZERO, Event::Tick);
            }
            _ => {
                let change = &self.changes[&waiter];
                self.longest = self.longest.max(self.now - change.since);
                let is_slow = !change.writes.is_empty() && self.random.below(self.rare(Bug::BreaksUnderFlush, 3)) == 0;
                let takes = self.random.duration(if is_slow { SLOW_MAX } else { STEP_MAX });
                self.at(takes, Event::Effect(waiter));
            }
        }
    }

    fn effect(&mut self, waiter: Waiter) {
        let Some(change) = self.changes.get(&waiter).cloned() else { return };
        self.apply(&change);
        for (kind, _) in KINDS.iter().enumerate().filter(|(_, aspect)| change.aspects.contains(**aspect)) {
            self.versions[change.inode][kind] += 1;
            for index in 0..CLIENTS {
                self.check(index, change.inode, kind);
            }
        }
        self.step(Event::End(waiter));
    }

    fn end(&mut self, waiter: Waiter) {
        let Some(change) = self.changes.remove(&waiter) else { return };
        let (session, inode, mut actions) = (change.session, change.inode, Vec::new());
        if self.bug == Bug::DoesNotWait {
            self.leases.give_up(key(inode), waiter, self.now, &mut Vec::new());
        }
        self.leases.end(key(inode), change.aspects, self.now, &mut actions);
        self.perform(actions);
        if change.recovers {
            self.hold_of_looks.flushed();
        }
        let client = self.sessions.get(&session).or(self.unsettled.get(&session)).copied();
        let Some(index) = client else { return };
        let message = match change.writes.is_empty() {
            true => Message::Changed { session, sent: change.sent },
            false => Message::Flushed { session, inode, writes: change.writes },
        };
        self.send(Event::ToClient(index, message));
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Recall { client, lease } => {
                    let Some(&index) = self.sessions.get(&client) else { continue };
                    // What handles recalls may hang while the rest of the client works.
                    let slowest = if self.random.below(self.rare(Bug::BreaksUnderFlush, 10)) == 0 {
                        RECALL_DELAY_MAX
                    } else {
                        DELAY_MAX
                    };
                    let delay = self.random.duration(slowest);
                    self.at(delay, Event::ToClient(index, Message::Recall { session: client, lease }));
                }
                Action::Wake { waiter } if self.looks.contains_key(&waiter) => self.step(Event::TryLook(waiter)),
                Action::Wake { waiter } => self.try_change(waiter),
                Action::Broken { client, .. } => self.broken(client),
                Action::Revoke { .. } => unreachable!("no rights were given"),
            }
        }
    }
}

/// Whether any of these is still on; who is missing when it ends has lost what it held back.
fn is_on(holds: &[&Hold], (now, known): (Now, &Known), excused: &mut HashSet<ClientId>) -> bool {
    holds.iter().for_each(|hold| _ = hold.look(now, |missing| exclusive::lose(known, excused, missing)));
    holds.iter().any(|hold| hold.is_on())
}

/// Runs schedules; returns how often something kept was used, something that was held back was written, and an exclusive lease was shared.
fn histories(seeds: std::ops::Range<u64>, bug: Bug) -> (usize, usize, usize) {
    let mut used = (0, 0, 0);
    for seed in seeds {
        let mut world = World::new(seed, bug);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(Duration::from_secs(60))));
        if let Err(panic) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
        let limit = Limits::default();
        let most = limit.answer + limit.lease + limit.patience + 2 * DELAY_MAX + SLOW_MAX;
        // What is to be found of a planted mistake is what somebody sees.
        assert!(bug != Bug::None || world.longest <= most, "seed {seed}: a change waited {:?}", world.longest);
        used.0 += world.used;
        used.1 += world.flushed;
        used.2 += world.shared;
    }
    used
}

#[test]
fn nobody_sees_what_is_old() {
    let count = std::env::var("LEASE_HISTORIES").map_or(500, |count| count.parse().expect("a number"));
    let (used, flushed, shared) = histories(0..count, Bug::None);
    assert!(used > count as usize * 50, "what is kept is used: {used}");
    assert!(flushed > count as usize / 2, "writes are held back: {flushed}");
    assert!(shared > count as usize / 10, "exclusive leases are shared: {shared}");
    println!("{count} histories, {used} uses of what was kept, {flushed} writes held back, {shared} leases shared");
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
        Bug::LooksDoNotWait,
        Bug::IgnoresHidden,
        Bug::GrantsBesideShared,
        Bug::GrantsWhileLookWaits,
        Bug::GrantsDuringHold,
        Bug::ReturnsUnflushed,
        Bug::AcceptsLateFlush,
        Bug::BreaksUnderFlush,
        Bug::LooksAfterRestart,
        Bug::ForgetsTheBroken,
        Bug::HoldsBackWhatItShared,
    ] {
        let found = std::panic::catch_unwind(|| histories(0..2000, bug));
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
