//! The lock table against a naive model, and its rules one by one.

use proptest::prelude::*;

use super::*;

const FILE: Inode = Inode { device: 1, number: 2 };
const OTHER_FILE: Inode = Inode { device: 1, number: 3 };
const READ: LockKind = LockKind::Read;
const WRITE: LockKind = LockKind::Write;
const UNLOCK: LockKind = LockKind::Unlock;

fn owner(owner: u64) -> Owner {
    Owner { client: ClientId(owner % 2), owner }
}

fn posix(by: u64, kind: LockKind, start: u64, end: u64) -> Ask {
    let lock = Lock { start, end, kind, pid: by as u32 };
    Ask { inode: FILE, space: LockSpace::Posix, owner: owner(by), open: OpenId(by), lock }
}

fn flock(by: u64, kind: LockKind) -> Ask {
    Ask { space: LockSpace::Flock, ..posix(by, kind, 0, 0) }
}

fn on(inode: Inode, ask: Ask) -> Ask {
    Ask { inode, ..ask }
}

fn waits(answer: Result<Answer, Errno>) -> WaitId {
    match answer {
        Ok(Answer::Waits(wait)) => wait,
        other => panic!("{other:?} instead of a wait"),
    }
}

const GRANTED: Result<Answer, Errno> = Ok(Answer::Granted);

#[test]
fn a_list_says_who_has_and_who_waits_since_when() {
    let second = Duration::from_secs;
    let mut locks = Locks::default();
    for other in 0..10 {
        let inode = Inode { device: 1, number: 100 + other };
        locks.set(&on(inode, posix(2, READ, 0, 9)), false).unwrap();
    }
    locks.set_time(second(5));
    locks.set(&posix(1, WRITE, 0, 9), false).unwrap();
    locks.set_time(second(6));
    locks.set(&posix(1, WRITE, 10, 19), false).unwrap();
    locks.set_time(second(7));
    waits(locks.set(&posix(3, WRITE, 5, 5), true));
    let listed = locks.list(2, |_| true);
    let seen =
        |listed: &Listed| (listed.owner, listed.open, listed.lock.start, listed.lock.end, listed.waits, listed.since);
    assert_eq!(
        seen(&listed[0]),
        (owner(1), OpenId(1), 0, 19, false, second(5)),
        "joined, and first since somebody waits"
    );
    assert_eq!(seen(&listed[1]), (owner(3), OpenId(3), 5, 5, true, second(7)));
    assert_eq!((listed.len(), locks.list(99, |_| true).len(), locks.list(0, |_| true).len()), (2, 12, 0));
    locks.set_time(second(8));
    locks.set(&posix(1, UNLOCK, 0, 9), false).unwrap();
    let listed: Vec<_> = locks.list(99, |_| true).into_iter().filter(|listed| listed.lock.kind == WRITE).collect();
    assert!(listed.iter().any(|listed| seen(listed) == (owner(3), OpenId(3), 5, 5, false, second(8))), "granted now");
    assert!(
        listed.iter().any(|listed| seen(listed) == (owner(1), OpenId(1), 10, 19, false, second(5))),
        "what is left"
    );
    assert!(locks.waits_since.is_empty());
}

#[test]
fn ranges_split_and_merge() {
    let mut locks = Locks::default();
    locks.set(&posix(1, WRITE, 0, u64::MAX), false).unwrap();
    locks.set(&posix(1, UNLOCK, 10, 19), false).unwrap();
    assert_eq!(locks.counts(|_| true).0, 2);
    locks.set(&posix(1, READ, 30, 39), false).unwrap();
    assert_eq!(locks.counts(|_| true).0, 4);
    assert_eq!(locks.set(&posix(2, WRITE, 10, 19), false), GRANTED);
    assert_eq!(locks.set(&posix(2, READ, 30, 39), false), GRANTED);
    assert_eq!(locks.set(&posix(2, READ, 30, 40), false), Err(Errno::EAGAIN));
    let seen = locks.test(&posix(2, WRITE, 15, 25)).unwrap();
    assert_eq!(seen, Lock { start: 20, end: 29, kind: WRITE, pid: 1 });
    let own = locks.test(&posix(1, UNLOCK, 15, 35)).unwrap();
    assert_eq!(own, Lock { start: 20, end: 29, kind: WRITE, pid: 1 }, "asked for its own");
    assert_eq!(locks.test(&posix(3, UNLOCK, 15, 35)).unwrap().kind, UNLOCK);
    locks.set(&posix(2, UNLOCK, 0, u64::MAX), false).unwrap();
    locks.set(&posix(1, WRITE, 10, 39), false).unwrap();
    assert_eq!(locks.counts(|_| true).0, 1);
    assert_eq!(locks.set(&posix(1, READ, 5, 4), false), Err(Errno::EINVAL));
    locks.set(&posix(1, UNLOCK, 0, u64::MAX), false).unwrap();
    assert!(locks.files.is_empty() && locks.counts.is_empty(), "nothing stays behind");
}

#[test]
fn waits_are_granted_in_the_order_in_which_they_came() {
    let mut locks = Locks::default();
    locks.set(&posix(1, WRITE, 0, 99), true).unwrap();
    let first = waits(locks.set(&posix(2, WRITE, 0, 9), true));
    let second = waits(locks.set(&posix(3, READ, 0, 9), true));
    let third = waits(locks.set(&posix(4, READ, 5, 9), true));
    let apart = waits(locks.set(&posix(5, WRITE, 50, 59), true));
    assert_eq!(locks.take_decided(), []);
    locks.set(&posix(1, UNLOCK, 0, 99), false).unwrap();
    assert_eq!(locks.take_decided(), [(first, Ok(())), (apart, Ok(()))]);
    locks.set(&posix(2, READ, 0, 9), false).unwrap();
    assert_eq!(locks.take_decided(), [(second, Ok(())), (third, Ok(()))], "a downgrade lets readers in");
    assert!(!locks.cancel(second), "decided already");
}

#[test]
fn circles_of_waits_are_refused() {
    let mut locks = Locks::default();
    for by in 1..=3 {
        locks.set(&posix(by, WRITE, by, by), false).unwrap();
    }
    waits(locks.set(&posix(1, READ, 2, 2), true));
    waits(locks.set(&posix(2, READ, 3, 3), true));
    assert_eq!(locks.set(&posix(3, READ, 1, 1), true), Err(Errno::EDEADLK));
    assert_eq!(locks.set(&posix(3, READ, 1, 1), false), Err(Errno::EAGAIN));
    // Across files, and of two readers who both want to write.
    let mut locks = Locks::default();
    locks.set(&posix(1, READ, 0, 0), false).unwrap();
    locks.set(&posix(2, READ, 0, 0), false).unwrap();
    waits(locks.set(&posix(1, WRITE, 0, 0), true));
    assert_eq!(locks.set(&posix(2, WRITE, 0, 0), true), Err(Errno::EDEADLK));
    let mut locks = Locks::default();
    locks.set(&posix(1, WRITE, 0, 0), false).unwrap();
    locks.set(&on(OTHER_FILE, posix(2, WRITE, 0, 0)), false).unwrap();
    waits(locks.set(&on(OTHER_FILE, posix(1, WRITE, 0, 0)), true));
    assert_eq!(locks.set(&posix(2, WRITE, 0, 0), true), Err(Errno::EDEADLK));
    // A flock's wait is no reason.
    let mut locks = Locks::default();
    locks.set(&flock(1, WRITE), false).unwrap();
    locks.set(&on(OTHER_FILE, flock(2, WRITE)), false).unwrap();
    waits(locks.set(&on(OTHER_FILE, flock(1, WRITE)), true));
    waits(locks.set(&flock(2, WRITE), true));
}

#[test]
fn a_flock_is_of_the_whole_file_and_given_up_before_it_changes() {
    let mut locks = Locks::default();
    locks.set(&flock(1, READ), false).unwrap();
    locks.set(&flock(2, READ), false).unwrap();
    assert_eq!(locks.set(&flock(1, WRITE), false), Err(Errno::EAGAIN));
    assert_eq!(locks.set(&flock(2, WRITE), false), GRANTED, "the reader's own lock is lost");
    assert_eq!(locks.set(&flock(2, WRITE), false), GRANTED);
    let wait = waits(locks.set(&flock(1, READ), true));
    assert_eq!(locks.set(&posix(3, WRITE, 0, 9), false), GRANTED, "the families know nothing of each other");
    locks.set(&flock(2, UNLOCK), false).unwrap();
    assert_eq!(locks.take_decided(), [(wait, Ok(()))]);
}

/// Kernels name the owner of a flock by where the file lies in memory, which another may have as
/// soon as it is closed; its release comes later.
#[test]
fn the_release_of_a_closed_file_leaves_the_flock_of_its_successor() {
    let mut locks = Locks::default();
    locks.set(&flock(1, WRITE), false).unwrap();
    let successor = Ask { open: OpenId(77), ..flock(1, WRITE) };
    assert_eq!(locks.set(&successor, false), GRANTED);
    locks.release(FILE, flock(1, WRITE).owner.client, flock(1, WRITE).open);
    assert_eq!(locks.set(&flock(2, WRITE), false), Err(Errno::EAGAIN), "the successor has it still");
    locks.release(FILE, successor.owner.client, successor.open);
    assert_eq!(locks.set(&flock(2, WRITE), false), GRANTED);
}

#[test]
fn flush_release_and_depart_end_what_they_should() {
    let mut locks = Locks::default();
    locks.set(&posix(1, WRITE, 0, 9), false).unwrap();
    locks.set(&on(OTHER_FILE, posix(1, WRITE, 0, 9)), false).unwrap();
    locks.set(&flock(1, WRITE), false).unwrap();
    let second = waits(locks.set(&posix(2, WRITE, 0, 9), true));
    let third = waits(locks.set(&posix(4, WRITE, 0, 9), true));
    locks.flush(FILE, owner(2));
    assert_eq!(locks.take_decided(), [(second, Err(Errno::EINTR))]);
    locks.flush(FILE, owner(1));
    assert_eq!(locks.take_decided(), [(third, Ok(()))]);
    assert_eq!(locks.set(&on(OTHER_FILE, posix(3, READ, 0, 0)), false), Err(Errno::EAGAIN), "the other file's stay");
    assert_eq!(locks.set(&flock(3, READ), false), Err(Errno::EAGAIN), "flocks stay");
    let fourth = waits(locks.set(&flock(2, READ), true));
    locks.release(FILE, ClientId(1), OpenId(1));
    assert_eq!(locks.take_decided(), [(fourth, Ok(()))]);
    // Through another open of the same owner.
    locks.set(&Ask { open: OpenId(77), ..posix(4, WRITE, 20, 29) }, false).unwrap();
    locks.release(FILE, ClientId(0), OpenId(77));
    assert_eq!(locks.set(&posix(3, WRITE, 20, 29), false), GRANTED);
    assert_eq!(locks.set(&posix(3, WRITE, 0, 9), false), Err(Errno::EAGAIN), "taken through the first open");
    let fifth = waits(locks.set(&posix(3, WRITE, 0, 9), true));
    let sixth = waits(locks.set(&posix(2, WRITE, 0, 9), true));
    locks.depart(ClientId(0));
    let mut decided = locks.take_decided();
    decided.sort_by_key(|(wait, _)| *wait);
    assert_eq!(decided, [(fifth, Ok(())), (sixth, Err(Errno::EINTR))]);
    locks.depart(ClientId(1));
    assert_eq!(locks.counts(|_| true), (0, 0));
    assert!(locks.files.is_empty() && locks.counts.is_empty() && locks.waiting.is_empty());
}

#[test]
fn a_client_has_only_so_many() {
    let mut locks = Locks::new(Limits { locks: 4, waits: 1, ..Limits::default() });
    for at in 0..3 {
        locks.set(&posix(1, WRITE, at * 10, at * 10), false).unwrap();
    }
    assert_eq!(locks.set(&posix(1, WRITE, 30, 30), false), Err(Errno::ENOLCK));
    assert_eq!(locks.set(&posix(2, WRITE, 30, 39), false), GRANTED, "another client's");
    assert_eq!(locks.set(&posix(2, UNLOCK, 35, 35), false), GRANTED, "unlocking always succeeds");
    let wait = waits(locks.set(&posix(3, WRITE, 30, 30), true));
    assert_eq!(locks.set(&posix(5, WRITE, 30, 30), true), Err(Errno::ENOLCK));
    assert!(locks.cancel(wait));
    waits(locks.set(&posix(5, WRITE, 30, 30), true));
}

#[test]
fn all_clients_have_only_so_many() {
    let mut locks = Locks::new(Limits { locks_total: 4, waits_total: 1, ..Limits::default() });
    for client in 0..3 {
        locks.set(&posix(client, WRITE, client * 10, client * 10), false).unwrap();
    }
    assert_eq!(locks.set(&posix(9, WRITE, 90, 90), false), Err(Errno::ENOLCK));
    let wait = waits(locks.set(&posix(8, WRITE, 0, 0), true));
    assert_eq!(locks.set(&posix(9, WRITE, 0, 0), true), Err(Errno::ENOLCK));
    assert!(locks.cancel(wait));
    locks.set(&posix(0, UNLOCK, 0, 0), false).unwrap();
    assert_eq!(locks.counts(|_| true).0, 2);
    assert_eq!(locks.set(&posix(9, WRITE, 90, 90), false), GRANTED);
}

#[test]
fn unlocking_makes_only_so_many_as_well() {
    let mut locks = Locks::new(Limits { locks: 4, ..Limits::default() });
    locks.set(&posix(1, WRITE, 0, u64::MAX), false).unwrap();
    for hole in [10, 20, 30] {
        assert_eq!(locks.set(&posix(1, UNLOCK, hole, hole), false), GRANTED);
    }
    assert_eq!(locks.set(&posix(1, UNLOCK, 40, 40), false), Err(Errno::ENOLCK));
    assert_eq!(locks.set(&posix(3, UNLOCK, 40, 40), false), GRANTED, "it has nothing there");
    for free in [(5, 10), (20, 25), (15, 35)] {
        assert_eq!(locks.set(&posix(1, UNLOCK, free.0, free.1), false), GRANTED);
    }
    assert_eq!(locks.counts(|_| true).0, 3);
    assert_eq!(locks.set(&posix(1, UNLOCK, 0, u64::MAX), false), GRANTED);
    assert_eq!(locks.counts(|_| true).0, 0);
}

/// For each of the bytes 0..SPAN, and for all beyond as one more, who holds what.
const SPAN: usize = 12;

type Bytes = [HashMap<u64, LockKind>; SPAN + 1];

fn covered(start: u64, end: u64) -> std::ops::RangeInclusive<usize> {
    (start.min(SPAN as u64) as usize)..=(end.min(SPAN as u64) as usize)
}

fn model_conflict(bytes: &Bytes, ask: &Ask) -> bool {
    covered(ask.lock.start, ask.lock.end)
        .any(|at| bytes[at].iter().any(|(by, kind)| *by != ask.owner.owner && conflicts(*kind, ask.lock.kind)))
}

fn model_set(bytes: &mut Bytes, ask: &Ask) {
    for at in covered(ask.lock.start, ask.lock.end) {
        match ask.lock.kind {
            UNLOCK => bytes[at].remove(&ask.owner.owner),
            kind => bytes[at].insert(ask.owner.owner, kind),
        };
    }
}

fn assert_equal(locks: &Locks, bytes: &Bytes) {
    for (at, holders) in bytes.iter().enumerate() {
        let at = at as u64;
        for by in 0..4 {
            let held = locks.files.get(&(FILE, LockSpace::Posix)).and_then(|file| file.held.get(&owner(by)));
            let kind = held.and_then(|held| overlapping(held, at, at).next()).map(|(_, range)| range.kind);
            assert_eq!(kind, holders.get(&by).copied(), "byte {at} of owner {by}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set { by: u64, kind: LockKind, start: u64, end: u64, wait: bool },
    Flush(u64),
    Cancel(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(READ), Just(WRITE), Just(UNLOCK)];
    let end = prop_oneof![4 => 0..SPAN as u64, 1 => Just(u64::MAX)];
    prop_oneof![
        12 => (0..4u64, kind, 0..SPAN as u64, end, any::<bool>()).prop_map(|(by, kind, start, end, wait)| Step::Set {
            by, kind, start: start.min(end), end: end.max(start), wait
        }),
        1 => (0..4u64).prop_map(Step::Flush),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
    ]
}

/// Whether somebody waits, through others, for himself; each owner waits at most once here.
fn has_circle(waiting: &[(WaitId, Ask)], bytes: &Bytes) -> bool {
    let waits_for = |ask: &Ask| -> Vec<u64> {
        let holds = |by: &u64| {
            *by != ask.owner.owner
                && covered(ask.lock.start, ask.lock.end)
                    .any(|at| bytes[at].get(by).is_some_and(|kind| conflicts(*kind, ask.lock.kind)))
        };
        (0..4).filter(holds).collect()
    };
    let mut reach = [[false; 4]; 4];
    for (_, ask) in waiting {
        waits_for(ask).into_iter().for_each(|by| reach[ask.owner.owner as usize][by as usize] = true);
    }
    for via in 0..4 {
        for from in 0..4 {
            for to in 0..4 {
                reach[from][to] |= reach[from][via] && reach[via][to];
            }
        }
    }
    (0..4).any(|by| reach[by][by])
}

/// The model grants waits as the table must: the first that can be, again and again.
fn settle(waiting: &mut Vec<(WaitId, Ask)>, bytes: &mut Bytes) -> Vec<(WaitId, Result<(), Errno>)> {
    let mut decided = Vec::new();
    while let Some(at) = waiting.iter().position(|(_, ask)| !model_conflict(bytes, ask)) {
        let (wait, ask) = waiting.remove(at);
        model_set(bytes, &ask);
        decided.push((wait, Ok(())));
    }
    decided
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_a_map_of_bytes_does(steps in prop::collection::vec(step(), 1..60)) {
        let mut locks = Locks::default();
        let mut bytes = Bytes::default();
        let mut waiting: Vec<(WaitId, Ask)> = Vec::new();
        for step in steps {
            let mut expected = Vec::new();
            match step {
                Step::Set { by, .. } if waiting.iter().any(|(_, ask)| ask.owner.owner == by) => {}
                Step::Set { by, kind, start, end, wait } => {
                    let ask = posix(by, kind, start, end);
                    let conflict = kind != UNLOCK && model_conflict(&bytes, &ask);
                    let seen = locks.test(&ask).unwrap();
                    let own = covered(start, end).any(|at| bytes[at].contains_key(&by));
                    prop_assert_eq!(seen.kind != UNLOCK, if kind == UNLOCK { own } else { conflict });
                    match locks.set(&ask, wait) {
                        Ok(Answer::Granted) => {
                            prop_assert!(!conflict);
                            model_set(&mut bytes, &ask);
                        }
                        Ok(Answer::Waits(id)) => {
                            prop_assert!(conflict && wait);
                            waiting.push((id, ask));
                            prop_assert!(!has_circle(&waiting, &bytes));
                        }
                        Err(Errno::EAGAIN) => prop_assert!(conflict && !wait),
                        Err(Errno::EDEADLK) => {
                            prop_assert!(conflict && wait);
                            let mut with = waiting.clone();
                            with.push((WaitId(0), ask));
                            prop_assert!(has_circle(&with, &bytes));
                        }
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Step::Flush(by) => {
                    locks.flush(FILE, owner(by));
                    model_set(&mut bytes, &posix(by, UNLOCK, 0, u64::MAX));
                    let ended = waiting.iter().position(|(_, ask)| ask.owner.owner == by);
                    expected.extend(ended.map(|at| (waiting.remove(at).0, Err(Errno::EINTR))));
                }
                Step::Cancel(index) if !waiting.is_empty() => {
                    let (wait, _) = waiting.remove(index.index(waiting.len()));
                    prop_assert!(locks.cancel(wait));
                }
                Step::Cancel(_) => {}
            }
            expected.extend(settle(&mut waiting, &mut bytes));
            prop_assert_eq!(locks.take_decided(), expected);
            assert_equal(&locks, &bytes);
            let ranges: usize = locks.files.values().flat_map(|file| file.held.values()).map(Ranges::len).sum();
            prop_assert_eq!(locks.counts(|_| true), (ranges, waiting.len()));
        }
    }
}

#[test]
fn turns_are_taken_in_the_order_in_which_they_are_asked_for() {
    let turn = |by: u64, kind: LockKind| Ask { space: LockSpace::Turn, ..posix(by, kind, 3, 5) };
    let mut locks = Locks::default();
    assert_eq!(locks.set(&flock(9, WRITE), false), GRANTED, "which is another family");
    assert_eq!(locks.set(&turn(1, READ), true), GRANTED);
    assert_eq!(locks.set(&turn(2, READ), true), GRANTED);
    let writer = waits(locks.set(&turn(3, WRITE), true));
    assert_eq!(locks.set(&turn(4, READ), false), Err(Errno::EAGAIN), "it would pass who waits to write");
    let reader = waits(locks.set(&turn(4, READ), true));
    locks.set(&turn(1, UNLOCK), false).unwrap();
    assert!(locks.take_decided().is_empty());
    locks.set(&turn(2, UNLOCK), false).unwrap();
    assert_eq!(locks.take_decided(), [(writer, Ok(()))]);
    locks.release(FILE, ClientId(1), OpenId(3));
    assert_eq!(locks.take_decided(), [(reader, Ok(()))]);
}
