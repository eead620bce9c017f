//! The rules of exclusive leases one by one.

use aqueduct_wire::Right;

use super::tests::*;
use super::*;
use crate::right::Drawn;

const EXCLUSIVE: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES).union(Aspects::WRITES);
const OTHER: InodeKey = InodeKey(23);

const DRAWN: Drawn = Drawn { right: Right { names: 1, place: 0, data: 5, grant: 7, tenure: 0 }, map: 1, floor: 0 };

impl Machine {
    fn look(&mut self, by: ClientId, inode: InodeKey, waiter: u64) -> Verdict {
        let wanted = Wanted { inode, aspects: Aspects::WRITES, by, waiter: Waiter(waiter) };
        self.leases.look(&wanted, self.now, &mut self.actions)
    }

    fn flush(&mut self, by: ClientId) -> Verdict {
        self.begin(by, EXCLUSIVE, 1000)
    }

    /// `TWO` has an exclusive lease, was asked for it because `ONE` wants to look, and is fenced.
    fn with_fenced_holder() -> (Machine, LeaseId) {
        let mut machine = Machine::new(Limits::default());
        let lease = machine.grant(TWO, FILE, EXCLUSIVE).unwrap();
        assert_eq!(machine.look(ONE, FILE, 1), Verdict::Wait);
        for at in [1.0, 8.9] {
            machine.now = seconds(at);
            machine.tick();
        }
        assert_eq!(machine.asked(), [Action::Recall { client: TWO, lease }]);
        assert_eq!(machine.look(ONE, FILE, 1), Verdict::Wait);
        (machine, lease)
    }
}

#[test]
fn an_exclusive_lease_is_for_who_is_alone() {
    let mut machine = Machine::new(Limits { holdoff_first: Duration::ZERO, ..Limits::default() });
    let shared = machine.grant(ONE, FILE, ATTRIBUTES).unwrap();
    assert_eq!(machine.grant(TWO, FILE, EXCLUSIVE), None);
    assert_eq!(machine.asked(), [], "nobody loses anything for it");
    let later = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    assert!(later.covers(shared));
    for aspects in [ATTRIBUTES, DATA, EXCLUSIVE] {
        assert_eq!(machine.grant(TWO, FILE, aspects), None);
    }
    assert!(machine.grant(TWO, OTHER, EXCLUSIVE).is_some(), "another file");
    machine.give_back(ONE, later);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Go);
    assert_eq!(machine.grant(TWO, FILE, EXCLUSIVE), None, "a change is under way");
    machine.end(DATA);
    let before = machine.stamp();
    machine.change(ONE);
    assert_eq!(machine.grant_of(TWO, (FILE, EXCLUSIVE), before, Aspects::empty()), None, "it has seen what was before");
    assert!(machine.grant(TWO, FILE, EXCLUSIVE).is_some());
}

#[test]
fn who_shares_what_was_its_own_lets_others_in() {
    let mut machine = Machine::new(Limits { holdoff_first: Duration::ZERO, ..Limits::default() });
    let lease = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    machine.leases.share(TWO, FILE, &mut machine.actions);
    assert_eq!(machine.look(TWO, FILE, 1), Verdict::Wait, "it is for its holder to say");
    assert_eq!(machine.asked(), [Action::Recall { client: ONE, lease }]);
    machine.leases.share(ONE, FILE, &mut machine.actions);
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(1) }]);
    assert_eq!(machine.look(TWO, FILE, 1), Verdict::Go);
    assert_eq!(machine.flush(ONE), Verdict::Late);
    machine.give_back(ONE, lease);
    machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    machine.leases.share(ONE, FILE, &mut machine.actions);
    assert!(machine.grant(TWO, FILE, DATA).is_some());
    assert_eq!(machine.grant(ONE, FILE, EXCLUSIVE), None, "it is not alone any more");
    assert_eq!(machine.begin(TWO, DATA, 2), Verdict::Wait, "it shares it still");
}

#[test]
fn who_looks_waits_for_the_holder_and_for_nobody_else() {
    let mut machine = Machine::new(Limits { holdoff_first: Duration::ZERO, ..Limits::default() });
    let shared = machine.grant(ONE, FILE, DATA).unwrap();
    assert_eq!(machine.look(TWO, FILE, 1), Verdict::Go);
    machine.give_back(ONE, shared);
    let lease = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    assert_eq!(machine.look(ONE, FILE, 2), Verdict::Go, "its own");
    assert_eq!(machine.look(TWO, FILE, 3), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Recall { client: ONE, lease }]);
    assert_eq!((machine.look(TWO, FILE, 4), machine.look(TWO, FILE, 3)), (Verdict::Wait, Verdict::Wait));
    assert_eq!(machine.asked(), [], "asked once only");
    assert_eq!(machine.flush(ONE), Verdict::Go, "what it held back waits for nobody");
    machine.end(EXCLUSIVE);
    machine.give_back(ONE, lease);
    assert_eq!(machine.asked(), [3, 4].map(|waiter| Action::Wake { waiter: Waiter(waiter) }));
    assert_eq!(machine.look(TWO, FILE, 4), Verdict::Go);
    assert_eq!(machine.grant(ONE, FILE, EXCLUSIVE), None, "somebody has still to look");
    let shared = machine.grant(ONE, FILE, DATA).unwrap();
    assert_eq!(machine.look(TWO, FILE, 3), Verdict::Go);
    assert!(machine.grant(ONE, FILE, EXCLUSIVE).unwrap().covers(shared));
    assert_eq!(machine.look(TWO, FILE, 5), Verdict::Wait);
    machine.asked();
    machine.leases.give_up(FILE, Waiter(5), machine.now, &mut machine.actions);
    machine.leases.depart(ONE, &machine.known, &mut machine.actions);
    assert_eq!(machine.asked(), [], "nobody waits any more");
    assert!(machine.grant(TWO, FILE, EXCLUSIVE).is_some());
}

#[test]
fn what_was_looked_at_by_a_name_may_lack_what_was_held_back() {
    let mut machine = Machine::new(Limits::default());
    let before = machine.stamp();
    assert!(!machine.leases.hides(TWO, FILE, before));
    let lease = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    assert!(machine.leases.hides(TWO, FILE, before) && !machine.leases.hides(ONE, FILE, before));
    machine.flush(ONE);
    machine.end(EXCLUSIVE);
    machine.give_back(ONE, lease);
    assert!(machine.leases.hides(TWO, FILE, before), "it was held back when the look began");
    assert!(!machine.leases.hides(TWO, FILE, machine.stamp()));
}

#[test]
fn two_holders_that_look_at_each_others_file_both_go_on() {
    let mut machine = Machine::new(Limits::default());
    let one = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    let two = machine.grant(TWO, OTHER, EXCLUSIVE).unwrap();
    assert_eq!((machine.look(ONE, OTHER, 1), machine.look(TWO, FILE, 2)), (Verdict::Wait, Verdict::Wait));
    assert_eq!(machine.flush(ONE), Verdict::Go);
    machine.end(EXCLUSIVE);
    machine.asked();
    machine.give_back(ONE, one);
    machine.give_back(TWO, two);
    assert_eq!(machine.asked(), [2, 1].map(|waiter| Action::Wake { waiter: Waiter(waiter) }));
    assert_eq!((machine.look(ONE, OTHER, 1), machine.look(TWO, FILE, 2)), (Verdict::Go, Verdict::Go));
}

#[test]
fn changes_wait_for_the_holder_too() {
    let mut machine = Machine::new(Limits::default());
    let lease = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    machine.change(ONE);
    assert_eq!(machine.begin(TWO, ATTRIBUTES, 1), Verdict::Wait);
    assert_eq!(machine.flush(ONE), Verdict::Go);
    machine.give_back(ONE, lease);
    assert_eq!(machine.begin(TWO, ATTRIBUTES, 1), Verdict::Wait, "what was held back is still being written");
    machine.asked();
    machine.end(EXCLUSIVE);
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(1) }]);
    assert_eq!(machine.begin(TWO, ATTRIBUTES, 1), Verdict::Go);
    assert_eq!(machine.flush(ONE), Verdict::Late);
}

#[test]
fn what_a_fenced_client_held_back_is_lost_once_others_look() {
    let (mut machine, lease) = Machine::with_fenced_holder();
    machine.now = seconds(9.0);
    machine.tick();
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(1) }]);
    assert_eq!(machine.flush(TWO), Verdict::Go, "nobody has looked yet");
    machine.end(EXCLUSIVE);
    machine.asked();
    assert_eq!(machine.look(ONE, FILE, 1), Verdict::Go);
    assert_eq!(machine.asked(), [Action::Broken { client: TWO, lease }]);
    assert_eq!(machine.flush(TWO), Verdict::Late);
    assert_eq!(machine.asked(), []);
    assert_eq!(machine.grant(ONE, FILE, EXCLUSIVE), None, "it believes that it may keep what it has seen");
    machine.give_back(TWO, lease);
    assert!(machine.renews(TWO));
    assert_eq!(machine.flush(TWO), Verdict::Late);
}

#[test]
fn what_a_fenced_client_is_writing_is_awaited() {
    let (mut machine, lease) = Machine::with_fenced_holder();
    assert_eq!(machine.flush(TWO), Verdict::Go);
    machine.now = seconds(9.0);
    machine.tick();
    assert_eq!(machine.asked(), [], "nothing would come of trying again");
    assert_eq!(machine.look(ONE, FILE, 1), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Broken { client: TWO, lease }]);
    assert_eq!(machine.flush(TWO), Verdict::Late, "no more of it");
    assert_eq!(machine.look(ONE, FILE, 2), Verdict::Wait);
    assert!(machine.leases.hides(ONE, FILE, machine.stamp()), "nor does who comes by a name go past it");
    machine.end(EXCLUSIVE);
    assert_eq!(machine.asked(), [1, 2].map(|waiter| Action::Wake { waiter: Waiter(waiter) }));
    assert_eq!(machine.look(ONE, FILE, 1), Verdict::Go);
}

#[test]
fn a_fenced_client_keeps_what_nobody_else_uses() {
    let (mut machine, lease) = Machine::with_fenced_holder();
    machine.leases.overdue.remove(&TWO); // for the grant
    let unused = machine.grant(TWO, OTHER, EXCLUSIVE).unwrap();
    machine.leases.overdue.insert(TWO);
    machine.now = seconds(9.0);
    machine.tick();
    assert_eq!(machine.look(ONE, FILE, 1), Verdict::Go);
    machine.asked();
    let wanted = Wanted { inode: OTHER, aspects: EXCLUSIVE, by: TWO, waiter: Waiter(7) };
    assert_eq!(machine.leases.begin(&wanted, machine.now, &mut machine.actions), Verdict::Go);
    machine.leases.end(OTHER, EXCLUSIVE, machine.now, &mut machine.actions);
    machine.leases.changed(OTHER, DATA, machine.now, &mut machine.actions);
    assert_eq!(
        machine.asked(),
        [Action::Recall { client: TWO, lease: unused }],
        "it may still write what it held back"
    );
    assert_eq!(machine.leases.begin(&wanted, machine.now, &mut machine.actions), Verdict::Go);
    machine.leases.end(OTHER, EXCLUSIVE, machine.now, &mut machine.actions);
    machine.give_back(TWO, lease);
    machine.give_back(TWO, unused);
    assert!(machine.renews(TWO));
}

/// One writes a file and another looks at it, every 10 ms; then the writer is alone again.
#[test]
fn a_file_used_in_turn_is_soon_written_straight_through() {
    let mut machine = Machine::new(Limits::default());
    let (mut recalls, mut alone) = (0, 0);
    for round in 0..6000 {
        machine.now += Duration::from_millis(10);
        machine.tick();
        let lease = machine.grant(ONE, FILE, EXCLUSIVE);
        if round >= 3000 {
            alone += usize::from(lease.is_some());
            continue;
        }
        machine.change(ONE);
        if machine.look(TWO, FILE, round) == Verdict::Wait {
            recalls += 1;
            machine.give_back(ONE, lease.expect("it is what has to be waited for"));
            assert_eq!(machine.look(TWO, FILE, round), Verdict::Go);
        }
    }
    // 0.1, 0.2, 0.4 … 6.4 and 10 s apart.
    assert!((5..=10).contains(&recalls), "{recalls} recalls in 30 s");
    assert!(alone > 1900, "it is granted again after 10 s at most: {alone}");
}

#[test]
fn the_oldest_lease_is_given_back_also_when_it_is_exclusive() {
    let mut machine = Machine::new(Limits { leases_of_client_max: 1, ..Limits::default() });
    let oldest = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    assert_eq!(machine.grant(ONE, OTHER, EXCLUSIVE), None);
    assert_eq!(machine.asked(), [Action::Recall { client: ONE, lease: oldest }]);
    assert_eq!(machine.flush(ONE), Verdict::Go);
    machine.end(EXCLUSIVE);
    machine.give_back(ONE, oldest);
    assert!(machine.grant(ONE, OTHER, EXCLUSIVE).is_some());
}

#[test]
fn the_end_of_the_rights_of_who_lost_an_inode_is_awaited() {
    let (mut machine, lease) = Machine::with_fenced_holder();
    assert!(machine.leases.give_right(ONE, FILE, &DRAWN).is_none(), "another client has it");
    assert!(machine.leases.give_right(TWO, FILE, &DRAWN).is_none(), "it is to be given back");
    machine.leases.rights.insert((TWO, FILE)); // of before
    machine.now = seconds(9.0);
    machine.tick();
    machine.asked();
    assert_eq!(machine.look(ONE, FILE, 1), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Broken { client: TWO, lease }, Action::Revoke { inode: FILE }]);
    assert_eq!((machine.look(ONE, FILE, 2), machine.flush(TWO)), (Verdict::Wait, Verdict::Late));
    assert!(machine.leases.hides(ONE, FILE, machine.stamp()));
    machine.give_back(TWO, lease);
    assert_eq!(machine.look(TWO, FILE, 3), Verdict::Wait, "nor does who lost it see half of it");
    machine.asked();
    machine.leases.revoked(FILE, machine.now, &mut machine.actions);
    assert_eq!(machine.asked(), [1, 2, 3].map(|waiter| Action::Wake { waiter: Waiter(waiter) }));
    assert_eq!(machine.look(ONE, FILE, 1), Verdict::Go);
}

#[test]
fn rights_end_with_their_lease() {
    let mut machine = Machine::new(Limits::default());
    let lease = machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    assert!(
        machine.leases.give_right(ONE, FILE, &DRAWN).is_some()
            && machine.leases.give_right(ONE, OTHER, &DRAWN).is_none()
    );
    machine.give_back(ONE, lease);
    assert_eq!((machine.asked(), machine.look(TWO, FILE, 1)), (vec![], Verdict::Go), "it has seen to the end");
    // Who looked before may keep nothing of what he saw.
    let before = machine.stamp();
    machine.grant(ONE, FILE, EXCLUSIVE).unwrap();
    assert!(machine.leases.give_right(ONE, FILE, &DRAWN).is_some());
    machine.leases.share(ONE, FILE, &mut machine.actions);
    assert!(machine.leases.hides(TWO, FILE, before));
    assert_eq!(machine.grant_of(TWO, (FILE, DATA), before, Aspects::empty()), None);
    assert_eq!((machine.asked(), machine.look(TWO, FILE, 1)), (vec![], Verdict::Go));
    machine.grant(ONE, OTHER, EXCLUSIVE).unwrap();
    assert!(machine.leases.give_right(ONE, OTHER, &DRAWN).is_some());
    machine.leases.depart(ONE, &machine.known, &mut machine.actions);
    assert_eq!(machine.asked(), [Action::Revoke { inode: OTHER }], "it has gone without a word");
    assert_eq!(machine.look(TWO, OTHER, 1), Verdict::Wait);
    assert_eq!(machine.grant(TWO, OTHER, EXCLUSIVE), None);
    machine.leases.revoked(OTHER, machine.now, &mut machine.actions);
    assert_eq!(machine.look(TWO, OTHER, 1), Verdict::Go);
}
