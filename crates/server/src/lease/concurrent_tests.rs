//! The rules of leases to write beside others, one by one.

use aqueduct_wire::Right;

use super::tenure::BREAKS_FREE;
use super::tests::*;
use super::*;
use crate::right::Drawn;

const EXCLUSIVE: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES).union(Aspects::WRITES);
const CONCURRENT: Aspects = Aspects::CONCURRENT;
const TOGETHER: Aspects = Aspects::DATA.union(Aspects::CONCURRENT);

fn drawn(grant: u64, (data, floor): (u64, u64)) -> Drawn {
    Drawn { right: Right { names: 1, place: 0, data, grant, tenure: 0 }, map: 1, floor }
}

impl Machine {
    /// The client asks to write beside others, when nothing is in the way.
    fn share(&mut self, client: ClientId) -> Option<LeaseId> {
        assert_eq!(self.begin(client, CONCURRENT, 900 + client.0), Verdict::Go);
        let granted = self.leases.grant_concurrent(client, FILE, self.now, &mut self.actions);
        self.end(CONCURRENT);
        granted.map(|(lease, _)| lease)
    }

    fn looks(&mut self, by: ClientId) -> Verdict {
        let wanted = Wanted { inode: FILE, aspects: Aspects::WRITES, by, waiter: Waiter(77) };
        self.leases.look(&wanted, self.now, &mut self.actions)
    }

    fn right(&mut self, client: ClientId, drawn: Drawn) -> bool {
        self.leases.give_right(client, FILE, &drawn).is_some()
    }
}

fn machine() -> Machine {
    Machine::new(Limits { holdoff_first: Duration::ZERO, ..Limits::default() })
}

#[test]
fn nobody_keeps_anything_of_what_several_write() {
    let mut machine = machine();
    let kept = machine.grant(TWO, FILE, DATA).unwrap();
    assert_eq!(machine.begin(ONE, CONCURRENT, 1), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Recall { client: TWO, lease: kept }]);
    assert_eq!(machine.grant(ONE, FILE, DATA), None, "while somebody waits for it");
    machine.give_back(TWO, kept);
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(1) }]);
    assert_eq!(machine.begin(ONE, CONCURRENT, 1), Verdict::Go);
    machine.end(CONCURRENT);
    let (first, second) = (machine.share(ONE).unwrap(), machine.share(TWO).unwrap());
    for client in [ONE, TWO] {
        for aspects in [ATTRIBUTES, DATA, EXCLUSIVE] {
            assert_eq!(machine.grant(client, FILE, aspects), None);
        }
        assert_eq!(machine.looks(client), Verdict::Go, "looks wait for nobody");
        assert_eq!(machine.begin(client, TOGETHER, 2), Verdict::Go, "nor does what is written so");
        machine.end(TOGETHER);
    }
    assert_eq!(machine.asked(), []);
    machine.give_back(ONE, first);
    assert_eq!(machine.grant(ONE, FILE, DATA), None, "there is one still");
    machine.give_back(TWO, second);
    assert!(machine.grant(ONE, FILE, EXCLUSIVE).is_some());
    assert_eq!(machine.begin(ONE, CONCURRENT, 3), Verdict::Go);
    let own = machine.leases.grant_concurrent(ONE, FILE, machine.now, &mut machine.actions);
    assert_eq!(own, None, "it may hold something back");
}

#[test]
fn who_looked_while_several_wrote_keeps_nothing_of_it() {
    let mut machine = machine();
    let lease = machine.share(ONE).unwrap();
    assert!(machine.right(ONE, drawn(7, (5, 0))));
    let stamp = machine.stamp();
    machine.give_back(ONE, lease);
    assert_eq!(machine.grant_of(TWO, (FILE, DATA), stamp, Aspects::empty()), None, "it was written meanwhile");
    assert!(machine.grant(TWO, FILE, DATA).is_some(), "what is looked at now may be kept");
}

#[test]
fn what_a_client_kept_itself_goes_as_well() {
    let mut machine = machine();
    let kept = machine.grant(ONE, FILE, DATA).unwrap();
    let shared = machine.share(ONE).unwrap();
    assert!(shared.covers(kept) && machine.leases.shares(ONE, FILE) && !machine.leases.shares(TWO, FILE));
    assert_eq!(machine.begin(TWO, ATTRIBUTES, 1), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Recall { client: ONE, lease: shared }]);
    assert_eq!(machine.begin(TWO, TOGETHER, 2), Verdict::Late);
    machine.give_back(ONE, shared);
    assert_eq!(machine.begin(ONE, TOGETHER, 3), Verdict::Late);
    assert_eq!(machine.begin(TWO, ATTRIBUTES, 1), Verdict::Go);
}

#[test]
fn any_other_change_waits_for_all_who_write() {
    let mut machine = machine();
    let leases = [ONE, TWO].map(|client| machine.share(client).unwrap());
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait, "also that of one of them");
    assert_eq!(machine.asked(), [Action::Recall { client: TWO, lease: leases[1] }]);
    assert_eq!(machine.begin(TWO, CONCURRENT, 2), Verdict::Wait, "somebody goes first");
    assert!(!machine.right(TWO, drawn(1, (5, 0))), "it is to be given back");
    assert_eq!(machine.begin(TWO, TOGETHER, 3), Verdict::Go, "it may come to its end");
    machine.give_back(TWO, leases[1]);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait, "that is being written");
    machine.asked();
    machine.end(TOGETHER);
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(1) }]);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Go);
    assert_eq!(machine.asked(), [Action::Wake { waiter: Waiter(2) }]);
    machine.end(DATA);
    assert_eq!(machine.grant(TWO, FILE, EXCLUSIVE), None, "they are many");
    assert!(machine.begin(TWO, CONCURRENT, 2) == Verdict::Go);
    machine.end(CONCURRENT);
    assert!(machine.share(TWO).is_some());
}

#[test]
fn who_breaks_in_again_and_again_is_left_alone_for_a_while() {
    let mut machine = Machine::new(Limits::default());
    for round in 0.. {
        let Some(lease) = machine.share(ONE) else {
            assert_eq!(round, BREAKS_FREE + 1);
            break;
        };
        assert_eq!(machine.begin(TWO, DATA, 1), Verdict::Wait);
        machine.give_back(ONE, lease);
        assert_eq!(machine.begin(TWO, DATA, 1), Verdict::Go);
        machine.end(DATA);
    }
    machine.now += Duration::from_millis(100);
    assert!(machine.share(ONE).is_some());
}

/// Whoever lost sight of a write has its rights ended before it repeats it: nobody else may have
/// written there in between.
#[test]
fn a_tenure_has_rights_of_one_kind_at_each_place() {
    for later in [(6, 0), (5, 10)] {
        let mut machine = machine();
        let leases = [ONE, TWO].map(|client| machine.share(client).unwrap());
        assert!(machine.right(ONE, drawn(10, (5, 0))) && machine.right(TWO, drawn(11, (5, 0))));
        assert!(machine.right(TWO, drawn(12, (5, 9))), "what was ended was not of theirs");
        let elsewhere = Drawn { right: Right { place: 1, ..drawn(13, (9, 0)).right }, map: 1, floor: 12 };
        assert!(machine.right(TWO, elsewhere));
        assert!(!machine.right(TWO, drawn(14, later)) && !machine.right(ONE, drawn(15, later)));
        machine.give_back(ONE, leases[0]);
        assert!(!machine.right(TWO, drawn(16, later)), "it goes on");
        machine.give_back(TWO, leases[1]);
        machine.share(TWO).unwrap();
        assert!(machine.right(TWO, drawn(17, later)), "this is another one");
    }
}

/// By another map a block may have another server, which would not know what the first one let
/// somebody write.
#[test]
fn the_rights_of_a_tenure_are_of_one_map() {
    let mut machine = machine();
    let leases = [ONE, TWO].map(|client| machine.share(client).unwrap());
    let by_next = |grant, place| {
        let of_first = drawn(grant, (5, 0));
        Drawn { right: Right { place, ..of_first.right }, map: 2, ..of_first }
    };
    assert!(machine.right(ONE, drawn(10, (5, 0))));
    assert!(!machine.right(TWO, by_next(11, 0)) && !machine.right(ONE, by_next(12, 1)));
    machine.give_back(ONE, leases[0]);
    assert!(!machine.right(TWO, by_next(13, 1)), "it goes on");
    machine.give_back(TWO, leases[1]);
    machine.share(TWO).unwrap();
    assert!(machine.right(TWO, by_next(14, 1)), "this is another one");
    assert!(!machine.right(TWO, drawn(15, (5, 0))), "the one before is over");
}

#[test]
fn who_does_not_answer_loses_its_rights_first() {
    let mut machine = machine();
    let lease = machine.share(TWO).unwrap();
    assert!(machine.right(TWO, drawn(1, (5, 0))));
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait);
    for at in [1.0, 9.0] {
        machine.now = seconds(at);
        machine.tick();
    }
    machine.asked();
    assert_eq!(machine.looks(ONE), Verdict::Go, "who looks finds what there is");
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Wait);
    assert_eq!(machine.asked(), [Action::Broken { client: TWO, lease }, Action::Revoke { inode: FILE }]);
    assert_eq!(machine.begin(TWO, TOGETHER, 2), Verdict::Late);
    machine.leases.revoked(FILE, machine.now, &mut machine.actions);
    assert_eq!(machine.begin(ONE, DATA, 1), Verdict::Go);
    machine.end(DATA);
    machine.give_back(TWO, lease);
    assert_eq!(machine.leases.len(), 0);
    machine.share(TWO).unwrap();
    assert!(machine.right(TWO, drawn(2, (5, 0))));
    machine.asked();
    machine.leases.depart(TWO, &machine.known, &mut machine.actions);
    assert_eq!(machine.asked(), [Action::Revoke { inode: FILE }]);
}
