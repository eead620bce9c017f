//! The rules one by one.

use std::cell::RefCell;

use super::*;

pub(super) const ONE: ClientId = ClientId(1);
pub(super) const TWO: ClientId = ClientId(2);
pub(super) const FILE: InodeKey = InodeKey(7);
pub(super) const DATA: Aspects = Aspects::DATA;
pub(super) const ATTRIBUTES: Aspects = Aspects::ATTRIBUTES;

pub(super) fn seconds(seconds: f64) -> Now {
    Duration::from_secs_f64(seconds)
}

/// When clients were renewed, and how many shards have suspended them.
#[derive(Default)]
pub(super) struct Known(RefCell<HashMap<ClientId, (Now, usize)>>);

impl Clients for Known {
    fn renewed(&self, client: ClientId) -> Option<Now> {
        self.0.borrow().get(&client).map(|(renewed, _)| *renewed)
    }

    fn is_suspended(&self, client: ClientId) -> bool {
        self.0.borrow().get(&client).is_some_and(|(_, suspended)| *suspended > 0)
    }

    fn suspend(&self, client: ClientId) {
        self.0.borrow_mut().get_mut(&client).unwrap().1 += 1;
    }

    fn resume(&self, client: ClientId) {
        self.0.borrow_mut().get_mut(&client).unwrap().1 -= 1;
    }
}

/// A machine, and what it has asked for.
pub(super) struct Machine {
    pub(super) leases: Leases,
    pub(super) actions: Vec<Action>,
    pub(super) now: Now,
    pub(super) known: Known,
}

impl Machine {
    pub(super) fn new(limits: Limits) -> Machine {
        let known = Known::default();
        known.0.borrow_mut().extend([ONE, TWO].map(|client| (client, (Duration::ZERO, 0))));
        let leases = Leases::new(limits, 3, Arc::default());
        Machine { leases, actions: Vec::new(), now: Duration::ZERO, known }
    }

    pub(super) fn stamp(&self) -> u64 {
        self.leases.stamps.take()
    }

    pub(super) fn grant(&mut self, client: ClientId, inode: InodeKey, aspects: Aspects) -> Option<LeaseId> {
        self.grant_of(client, (inode, aspects), self.stamp(), Aspects::empty()).map(|(lease, _)| lease)
    }

    pub(super) fn grant_of(
        &mut self,
        client: ClientId,
        what: (InodeKey, Aspects),
        stamp: u64,
        own: Aspects,
    ) -> Option<(LeaseId, Aspects)> {
        self.leases.grant(client, what, Looked { stamp, own }, self.now, &mut self.actions)
    }

    pub(super) fn begin(&mut self, by: ClientId, aspects: Aspects, waiter: u64) -> Verdict {
        let wanted = Wanted { inode: FILE, aspects, by, waiter: Waiter(waiter) };
        self.leases.begin(&wanted, self.now, &mut self.actions)
    }

    pub(super) fn end(&mut self, aspects: Aspects) {
        self.leases.end(FILE, aspects, self.now, &mut self.actions);
    }

    pub(super) fn change(&mut self, by: ClientId) {
        assert_eq!(self.begin(by, DATA, 0), Verdict::Go);
        self.end(DATA);
    }

    pub(super) fn give_back(&mut self, client: ClientId, lease: LeaseId) {
        self.leases.returned(client, lease, &self.known, &mut self.actions);
    }

    pub(super) fn renews(&self, client: ClientId) -> bool {
        self.known.0.borrow()[&client].1 == 0
    }

    pub(super) fn tick(&mut self) -> Option<Now> {
        self.leases.tick((self.now, &self.known), &mut self.actions)
    }

    pub(super) fn asked(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}

#[test]
fn a_change_waits_for_everybody_but_its_maker() {
    let mut machine = Machine::new(Limits::default());
    let own = machine.grant(ONE, FILE, DATA).unwrap();
    machine.change(ONE);
    let other = machine.grant(TWO, FILE, DATA | ATTRIBUTES).unwrap();
    assert_eq!(machine.asked(), []);
    assert_eq!(machine.begin(ONE, DATA, 5), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Recall { client: TWO, lease: other }]);
    assert_eq!(machine.begin(ONE, DATA, 5), Verdict::Wait, "asked once only");
    assert_eq!(machine.asked(), []);
    machine.give_back(TWO, other);
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(5) }]);
    assert_eq!(machine.begin(ONE, DATA, 5), Verdict::Go);
    machine.end(DATA);
    machine.give_back(ONE, own);
    assert_eq!((machine.leases.len(), machine.asked()), (0, vec![]));
}

#[test]
fn aspects_that_are_not_touched_stay() {
    let mut machine = Machine::new(Limits::default());
    machine.grant(TWO, FILE, ATTRIBUTES).unwrap();
    machine.change(ONE);
    assert_eq!(machine.begin(ONE, ATTRIBUTES | DATA, 1), Verdict::Wait);
}

#[test]
fn nobody_gets_a_lease_while_a_change_waits_or_is_made() {
    let mut machine = Machine::new(Limits { holdoff_first: Duration::ZERO, ..Limits::default() });
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Go);
    assert_eq!(machine.grant(TWO, FILE, DATA), None);
    assert!(machine.grant(TWO, InodeKey(8), DATA).is_some(), "another file");
    let attributes = machine.grant(TWO, FILE, ATTRIBUTES).unwrap();
    machine.end(DATA);
    assert!(machine.grant(TWO, FILE, DATA).is_some());
    assert_eq!(machine.begin(ONE, DATA, 2), Verdict::Wait);
    assert_eq!(machine.grant(ONE, FILE, DATA), None);
    assert_eq!(machine.grant(TWO, FILE, ATTRIBUTES), None, "it is asked for, under whatever name");
    machine.leases.give_up(FILE, Waiter(2), machine.now, &mut machine.actions);
    assert!(machine.grant(ONE, FILE, DATA).is_some(), "nobody waits any more");
    machine.give_back(TWO, attributes);
}

#[test]
fn what_was_looked_at_before_a_change_ended_is_not_granted() {
    let mut machine = Machine::new(Limits::default());
    let before = machine.stamp();
    machine.change(ONE);
    assert_eq!(machine.grant_of(TWO, (FILE, DATA), before, Aspects::empty()), None);
    assert!(machine.grant_of(TWO, (InodeKey(80), DATA), before, Aspects::empty()).is_some(), "another file");
    assert!(machine.grant(TWO, FILE, DATA).is_some(), "looked at after");
    let before = machine.stamp();
    machine.leases.changed(FILE, DATA, machine.now, &mut machine.actions);
    machine.leases.changed_everything(machine.now, &mut machine.actions);
    for inode in [FILE, InodeKey(80)] {
        assert_eq!(machine.grant_of(ONE, (inode, DATA), before, Aspects::empty()), None, "{inode:?}");
    }
}

#[test]
fn who_changes_is_granted_what_came_of_it_unless_others_change_it_too() {
    let mut machine = Machine::new(Limits::default());
    assert_eq!(machine.begin(ONE, DATA | ATTRIBUTES, 1), Verdict::Go);
    let stamp = machine.stamp();
    assert_eq!(machine.begin(TWO, ATTRIBUTES, 2), Verdict::Go);
    let own = DATA | ATTRIBUTES;
    assert_eq!(machine.grant_of(ONE, (FILE, ATTRIBUTES), stamp, own), None);
    machine.end(ATTRIBUTES);
    assert_eq!(machine.grant_of(ONE, (FILE, ATTRIBUTES), stamp, own), None, "its change may have come after the look");
    let stamp = machine.stamp();
    assert_eq!(machine.grant_of(ONE, (FILE, ATTRIBUTES), stamp, Aspects::empty()), None);
    let (first, _) = machine.grant_of(ONE, (FILE, ATTRIBUTES), stamp, own).unwrap();
    machine.end(own);
    let (later, aspects) = machine.grant_of(ONE, (FILE, DATA), machine.stamp(), Aspects::empty()).unwrap();
    assert_eq!((later > first, later.0 as u32, aspects), (true, first.0 as u32, own));
}

#[test]
fn changes_from_outside_recall_and_do_not_wait() {
    let mut machine = Machine::new(Limits::default());
    let own = machine.grant(ONE, FILE, DATA).unwrap();
    let other = machine.grant(TWO, FILE, ATTRIBUTES).unwrap();
    machine.leases.changed(FILE, DATA, machine.now, &mut machine.actions);
    assert_eq!(machine.asked(), [Action::Recall { client: ONE, lease: own }]);
    machine.leases.changed_everything(machine.now, &mut machine.actions);
    assert_eq!(machine.asked(), [Action::Recall { client: TWO, lease: other }]);
    machine.now = seconds(1.0);
    machine.tick();
    assert!(!machine.renews(ONE) && !machine.renews(TWO), "nobody waits for them, but they have to return it");
    machine.give_back(ONE, own);
    assert!(machine.renews(ONE) && !machine.renews(TWO));
}

#[test]
fn nobody_waits_for_who_is_silent() {
    let mut machine = Machine::new(Limits::default());
    let lease = machine.grant(TWO, FILE, DATA).unwrap();
    let skipped = machine.grant(TWO, InodeKey(23), DATA).unwrap();
    let untouched = machine.grant(TWO, InodeKey(39), DATA).unwrap();
    machine.now = seconds(8.5);
    assert_eq!(machine.tick(), None);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait);
    machine.asked();
    // Asked at 8.5, and heard of last at 0: overdue at 9.5 by the one measure, silent at 9 by the other.
    machine.now = seconds(9.4);
    assert!(machine.tick().is_some() && machine.renews(TWO));
    assert_eq!(machine.asked(), []);
    machine.now = seconds(9.5);
    machine.tick();
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(1) }]);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Go);
    machine.end(DATA);
    assert_eq!(machine.grant(TWO, InodeKey(55), DATA), None, "a fenced client gets nothing");
    // Others do not wait for it either, but it has to return that as well before it is renewed.
    let wanted = Wanted { inode: InodeKey(23), aspects: DATA, by: ONE, waiter: Waiter(2) };
    assert_eq!(machine.leases.begin(&wanted, machine.now, &mut machine.actions), Verdict::Go);
    assert_eq!(machine.asked(), [Action::Recall { client: TWO, lease: skipped }]);
    machine.give_back(TWO, lease);
    assert!(!machine.renews(TWO));
    machine.give_back(TWO, skipped);
    assert!(machine.renews(TWO));
    let wanted = Wanted { inode: InodeKey(39), waiter: Waiter(3), ..wanted };
    assert_eq!(machine.leases.begin(&wanted, machine.now, &mut machine.actions), Verdict::Wait, "as any other");
    machine.give_back(TWO, untouched);
}

/// It has been idle, which is nothing to hold against it.
#[test]
fn who_was_silent_before_it_was_asked_may_still_answer() {
    let mut machine = Machine::new(Limits::default());
    let lease = machine.grant(TWO, FILE, DATA).unwrap();
    machine.now = seconds(3600.0);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait);
    machine.tick();
    assert!(machine.renews(TWO));
    machine.give_back(TWO, lease);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Go);
}

#[test]
fn who_returns_nothing_is_not_renewed() {
    let mut machine = Machine::new(Limits::default());
    let lease = machine.grant(TWO, FILE, DATA).unwrap();
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait);
    assert_eq!(machine.tick(), Some(seconds(1.0)));
    assert!(machine.renews(TWO));
    machine.now = seconds(1.0);
    machine.known.0.borrow_mut().get_mut(&TWO).unwrap().0 = machine.now;
    machine.tick();
    assert!(!machine.renews(TWO) && machine.renews(ONE));
    machine.now = seconds(9.9);
    machine.tick();
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait, "it may still believe what it has");
    machine.give_back(TWO, lease);
    assert!(machine.renews(TWO));
}

#[test]
fn of_whom_another_shard_knows_that_it_is_away_nobody_waits_for_an_answer() {
    for is_away in [false, true] {
        let mut machine = Machine::new(Limits::default());
        machine.grant(TWO, FILE, DATA).unwrap();
        machine.now = Duration::from_secs(20);
        if is_away {
            machine.known.suspend(TWO);
        }
        assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait);
        machine.tick();
        assert_eq!(machine.begin(ONE, DATA, 1) == Verdict::Go, is_away);
    }
}

#[test]
fn who_departs_is_not_waited_for() {
    let mut machine = Machine::new(Limits::default());
    machine.grant(TWO, FILE, DATA).unwrap();
    machine.begin(ONE, DATA, 1);
    machine.asked();
    machine.leases.depart(TWO, &machine.known, &mut machine.actions);
    assert_eq!((machine.asked(), machine.leases.len()), (vec![Action::Wake { waiter: Waiter(1) }], 0));
}

#[test]
fn what_is_disputed_is_granted_to_nobody_for_a_while() {
    let mut machine = Machine::new(Limits::default());
    let first = Limits::default().holdoff_first;
    for round in 0..4 {
        let lease = machine.grant(TWO, FILE, DATA).expect("it has cooled down");
        assert_eq!(machine.begin(ONE, DATA, round), Verdict::Wait);
        machine.give_back(TWO, lease);
        assert_eq!(machine.begin(ONE, DATA, round), Verdict::Go);
        machine.end(DATA);
        let cool_at = machine.now + first * 2u32.pow(round as u32);
        machine.now = cool_at - seconds(0.001);
        assert_eq!(machine.grant(TWO, FILE, DATA), None, "round {round}");
        machine.now = cool_at;
    }
    machine.now += seconds(1.1);
    machine.tick();
    let lease = machine.grant(TWO, FILE, DATA).unwrap();
    assert_eq!(machine.begin(ONE, DATA, 9), Verdict::Wait);
    machine.give_back(TWO, lease);
    machine.now += first;
    machine.leases.give_up(FILE, Waiter(9), machine.now, &mut machine.actions);
    assert!(machine.grant(TWO, FILE, DATA).is_some(), "the quarrel is forgotten");
}

#[test]
fn a_client_that_has_all_it_may_is_asked_for_its_oldest() {
    let mut machine = Machine::new(Limits { leases_of_client_max: 2, ..Limits::default() });
    let oldest = machine.grant(ONE, InodeKey(1), DATA).unwrap();
    machine.grant(ONE, InodeKey(2), DATA).unwrap();
    assert_eq!(machine.grant(ONE, InodeKey(3), DATA), None);
    assert_eq!(machine.grant(ONE, InodeKey(3), DATA), None);
    assert_eq!(machine.asked(), [Action::Recall { client: ONE, lease: oldest }]);
    assert!(machine.grant(TWO, InodeKey(3), DATA).is_some(), "others are not concerned");
    machine.give_back(ONE, oldest);
    assert!(machine.grant(ONE, InodeKey(3), DATA).is_some());
    let mut full = Machine::new(Limits { leases_max: 1, ..Limits::default() });
    assert!(full.grant(ONE, InodeKey(1), DATA).is_some());
    assert_eq!(full.grant(TWO, InodeKey(2), DATA), None);
    assert_eq!(full.asked(), [], "it has none to give back");
}

#[test]
fn only_its_holder_returns_a_lease_and_only_under_its_latest_name() {
    let mut machine = Machine::new(Limits::default());
    let first = machine.grant(ONE, FILE, DATA).unwrap();
    let later = machine.grant(ONE, FILE, ATTRIBUTES).unwrap();
    assert!(later > first);
    for (client, lease) in [(TWO, later), (ONE, first), (ONE, LeaseId(99)), (ONE, LeaseId(u64::MAX))] {
        machine.give_back(client, lease);
        assert_eq!(machine.leases.len(), 1, "{client:?} {lease:?}");
    }
    assert_eq!(machine.begin(TWO, DATA, 1), Verdict::Wait);
    assert_eq!(machine.leases.recalled(ONE), [later]);
    machine.give_back(ONE, later);
    assert_eq!((machine.leases.len(), machine.leases.recalled(ONE).len()), (0, 0));
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_million_leases_of_a_thousand_clients_fit() {
    let mut machine = Machine::new(Limits { leases_max: 1 << 20, ..Limits::default() });
    let before = resident();
    for client in 0..1000 {
        for inode in 0..1000u128 {
            // Each file is read by ten clients, as libraries and inputs are.
            let inode = InodeKey((u128::from(client) / 10 * 1000 + inode) << 64);
            machine.grant(ClientId(client + 10), inode, DATA | ATTRIBUTES).unwrap();
        }
    }
    let each = resident().saturating_sub(before) / 1_000_000;
    assert_eq!(machine.leases.len(), 1_000_000);
    println!("{each} bytes a lease");
    assert!((40..=256).contains(&each), "{each} bytes a lease");
}
