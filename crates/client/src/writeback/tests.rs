//! What is held back of one file goes in the order in which it was written, and nothing of it is lost or written twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{Credential, OpenId, SetAttr, SetTime, TRANSFER_SIZE_MAX, Time};
use aqueduct_session::Slots;
use bytes::Bytes;
use proptest::prelude::*;

use super::file::{Content, FLYING_MAX, File, Piece, Place};
use super::table::{Covers, Gather, Which};

fn place(open: u64, offset: u64) -> Place {
    Place { open: OpenId(open), credential: Credential::root(), offset }
}

/// Of the file.
const SIZE: usize = 350_000;

#[derive(Clone, Debug)]
enum Step {
    Write {
        open: u64,
        offset: u64,
        length: usize,
    },
    /// Writes at the end, in a slot if the latest does not take it.
    Append {
        open: u64,
        length: usize,
    },
    /// Gives the file a time, by which a program would know it.
    Set {
        open: u64,
        time: i64,
    },
    Seal,
    TakeOff,
    Land(usize),
    /// The session begins anew.
    Ground,
    /// What a recovery does then.
    Recover,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2u64, 0..60u64, 1..30usize).prop_map(|(open, offset, length)| Step::Write { open, offset, length }),
        1 => (0..2u64, 0..3u64).prop_map(|(open, at)| Step::Write { open, offset: at * 100_000, length: 150_000 }),
        4 => (0..2u64, 1..30usize).prop_map(|(open, length)| Step::Append { open, length }),
        1 => Just(Step::Append { open: 0, length: 150_000 }),
        2 => (0..2u64, 0..1000i64).prop_map(|(open, time)| Step::Set { open, time }),
        1 => Just(Step::Seal),
        4 => Just(Step::TakeOff),
        4 => any::<usize>().prop_map(Step::Land),
        1 => Just(Step::Ground),
        1 => Just(Step::Recover),
    ]
}

/// A file, what its writer wrote, and what the server has of it.
struct World {
    file: File,
    next: u64,
    written: Vec<u8>,
    at_server: Vec<u8>,
    /// Appends that the server has executed, which it does not once more.
    appended: HashSet<u64>,
    /// The time that was given to the file, if nothing was written since: by its writer, and at the server.
    times: [Option<i64>; 2],
    flying: Vec<Piece>,
}

fn times(seconds: i64) -> SetAttr {
    SetAttr { mtime: Some(SetTime::At(Time { seconds, nanos: 0 })), ..SetAttr::default() }
}

impl World {
    fn arrive(&mut self, piece: &Piece) {
        let at = piece.place.offset as usize;
        let data = match &piece.content {
            Content::Data(data) => data,
            Content::Attributes(set) => {
                assert!(self.flying.iter().all(|other| other.number == piece.number), "nothing is under way beside it");
                self.times[1] = (0..1000).find(|time| *set == times(*time));
                return;
            }
        };
        self.times[1] = None;
        if piece.end.is_some() {
            assert!(self.flying.iter().all(|other| other.number == piece.number), "nothing is under way beside it");
            if self.appended.insert(piece.number) {
                self.at_server.extend_from_slice(data);
            }
            return;
        }
        self.at_server[at..at + data.len()].copy_from_slice(data);
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Write { open, offset, length } => {
                let data = Bytes::from(vec![self.next as u8 + 1; length]);
                if self.file.has_room(length) {
                    self.times[0] = None;
                    self.file.add(&place(open, offset), &data, self.next);
                    self.written[offset as usize..offset as usize + length].copy_from_slice(&data);
                    self.next += 1;
                }
            }
            Step::Append { open, length } => {
                let data = Bytes::from(vec![self.next as u8 + 1; length]);
                if self.file.has_room(length) {
                    self.times[0] = None;
                    let slot = match self.file.takes_append(&place(open, 0), length) {
                        true => None,
                        false => Some(Arc::new(Slots::new(2)).keep().unwrap()),
                    };
                    self.file.append(&place(open, 0), &data, (self.next, slot));
                    self.written.extend_from_slice(&data);
                    self.next += 1;
                }
            }
            Step::Set { open, time } => {
                if self.file.has_room(0) {
                    self.file.set(&place(open, 0), &times(time), self.next);
                    self.times[0] = Some(time);
                    self.next += 1;
                }
            }
            Step::Seal => {
                self.file.seal(self.next);
            }
            Step::TakeOff => {
                if let Some(piece) = self.file.take_off(FLYING_MAX) {
                    prop_assert!(piece.length() <= TRANSFER_SIZE_MAX);
                    self.flying.push(piece);
                }
            }
            Step::Land(which) if !self.flying.is_empty() => {
                // Those that are under way arrive in any order.
                let piece = self.flying.swap_remove(which % self.flying.len());
                self.arrive(&piece);
                self.file.land(piece.number);
            }
            Step::Land(_) => {}
            Step::Ground => {
                // Any of them may have arrived, and none is answered.
                for piece in std::mem::take(&mut self.flying) {
                    if piece.number % 2 == 0 {
                        self.arrive(&piece);
                    }
                }
                self.file.ground();
            }
            Step::Recover if self.flying.is_empty() => {
                while let Some(piece) = self.file.first() {
                    self.arrive(&piece);
                    self.file.drop_first();
                }
                prop_assert!(self.file.is_empty());
            }
            Step::Recover => {}
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn what_is_written_comes_there_in_its_order(steps in prop::collection::vec(step(), 1..200)) {
        let (written, at_server) = (vec![0; SIZE], vec![0; SIZE]);
        let (file, times, flying) = (File::new(), [None; 2], Vec::new());
        let mut world = World { file, next: 0, written, at_server, appended: HashSet::new(), times, flying };
        for step in &steps {
            world.take(step)?;
            let is_all_there = world.file.is_empty();
            prop_assert_eq!(world.file.cost() == 0, is_all_there);
            if is_all_there {
                prop_assert!(world.written == world.at_server, "nothing is held back, and something is not there");
                prop_assert_eq!(world.times[0], world.times[1]);
                prop_assert_eq!(world.file.sets(), 0);
            }
        }
        let mark = world.file.seal(world.next);
        while let Some(piece) = world.file.take_off(FLYING_MAX) {
            prop_assert!(world.file.has_below(mark));
            world.arrive(&piece);
            world.file.land(piece.number);
            for piece in std::mem::take(&mut world.flying) {
                // Those of before, which none that is new lies over.
                world.arrive(&piece);
                world.file.land(piece.number);
            }
        }
        for piece in std::mem::take(&mut world.flying) {
            world.arrive(&piece);
            world.file.land(piece.number);
        }
        while let Some(piece) = world.file.take_off(FLYING_MAX) {
            world.arrive(&piece);
            world.file.land(piece.number);
        }
        prop_assert!(world.file.is_empty() && !world.file.has_below(mark));
        prop_assert!(world.written == world.at_server);
        prop_assert_eq!(world.times[0], world.times[1]);
    }
}

#[test]
fn small_writes_that_follow_each_other_go_as_one() {
    let mut file = File::new();
    for size in [4096, 5000] {
        let mut at = 0;
        let piece = loop {
            file.add(&place(1, at * size), &Bytes::from(vec![at as u8; size as usize]), at);
            at += 1;
            if let Some(piece) = file.take_off(FLYING_MAX) {
                break piece;
            }
        };
        assert_eq!(piece.length(), TRANSFER_SIZE_MAX - TRANSFER_SIZE_MAX % size as usize, "as large as it may be");
        file.seal(at);
        assert_eq!(
            file.take_off(FLYING_MAX).map(|rest| rest.place.offset),
            (size == 5000).then_some(piece.length() as u64)
        );
        file = File::new();
    }
}

/// As many as fit go as one, and none is cut in two: a record is whole for whoever reads there.
#[test]
fn small_appends_go_as_one_and_none_is_cut() {
    let (mut file, slots) = (File::new(), Arc::new(Slots::new(8)));
    let record = Bytes::from_static(&[7; 30_000]);
    let mut number = 0;
    let mut append = |file: &mut File, open| {
        let slot = (!file.takes_append(&place(open, 0), record.len())).then(|| slots.keep().unwrap());
        file.append(&place(open, 0), &record, (number, slot));
        number += 1;
    };
    (0..40).for_each(|_| append(&mut file, 1));
    append(&mut file, 2);
    file.add(&place(2, 0), &record, 50);
    append(&mut file, 2);
    file.seal(60);
    let mut lengths = Vec::new();
    while let Some(piece) = file.take_off(FLYING_MAX) {
        assert!(file.take_off(FLYING_MAX).is_none(), "one after another");
        lengths.push((piece.length(), piece.end.is_some()));
        file.land(piece.number);
    }
    let whole = TRANSFER_SIZE_MAX / record.len() * record.len();
    assert_eq!(lengths[..2], [(whole, true), (40 * record.len() - whole, true)]);
    assert_eq!(lengths[2..], [(30_000, true), (30_000, false), (30_000, true)]);
    assert_eq!((file.cost(), file.is_empty()), (0, true));
}

#[test]
fn what_is_set_one_after_another_goes_as_one_in_its_place() {
    let (mut file, small) = (File::new(), Bytes::from_static(b"small"));
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    file.add(&place(1, 0), &small, 0);
    for (number, set) in [(1, mode(0o600)), (2, times(5)), (3, mode(0o640)), (4, times(7))] {
        file.set(&place(1, 0), &set, number);
    }
    file.add(&place(1, 5), &small, 5);
    file.set(&place(2, 0), &mode(0o644), 6);
    let other = Place { credential: Credential { uid: 7, ..Credential::root() }, ..place(2, 0) };
    file.set(&other, &mode(0o604), 7);
    assert!(file.take_off(FLYING_MAX).is_none(), "more may come");
    assert_eq!((file.sets(), file.end()), (3, 10));
    file.seal(8);
    let mut sent = Vec::new();
    while let Some(piece) = file.take_off(FLYING_MAX) {
        assert!(file.take_off(FLYING_MAX).is_none(), "one after another");
        sent.push(match &piece.content {
            Content::Data(data) => Err(data.len()),
            Content::Attributes(set) => Ok(*set),
        });
        file.land(piece.number);
    }
    let first = SetAttr { mode: Some(0o640), ..times(7) };
    assert_eq!(sent, [Err(5), Ok(first), Err(5), Ok(mode(0o644)), Ok(mode(0o604))]);
    assert_eq!((file.sets(), file.cost(), file.is_empty()), (0, 0, true));
}

#[test]
fn large_writes_go_at_once_and_small_ones_of_before_first() {
    let mut file = File::new();
    file.add(&place(1, 0), &Bytes::from_static(b"small"), 0);
    file.add(&place(1, 5), &Bytes::from(vec![1; TRANSFER_SIZE_MAX]), 1);
    let lengths: Vec<usize> = std::iter::from_fn(|| file.take_off(FLYING_MAX)).map(|piece| piece.length()).collect();
    assert_eq!(lengths, [5, TRANSFER_SIZE_MAX]);
}

#[test]
fn what_lies_over_another_that_is_under_way_waits_for_it() {
    let mut file = File::new();
    let large = |byte| Bytes::from(vec![byte; 200 << 10]);
    file.add(&place(1, 0), &large(1), 0);
    file.add(&place(1, 100), &large(2), 1);
    file.add(&place(1, 1 << 20), &large(3), 2);
    let first = file.take_off(FLYING_MAX).unwrap();
    assert!(file.take_off(FLYING_MAX).is_none(), "nor does a later one go before an earlier one");
    file.land(first.number);
    assert_eq!(
        [file.take_off(FLYING_MAX).unwrap().place.offset, file.take_off(FLYING_MAX).unwrap().place.offset],
        [100, 1 << 20]
    );
}

#[test]
fn what_others_write_or_write_elsewhere_is_a_piece_of_its_own() {
    let mut file = File::new();
    let small = Bytes::from_static(b"0123456789");
    file.add(&place(1, 100), &small, 0);
    file.add(&place(1, 105), &small, 1); // over it
    file.add(&place(2, 115), &small, 2); // through another open
    file.add(&place(2, 126), &small, 3); // behind a hole
    let other = Place { credential: Credential { uid: 7, ..Credential::root() }, ..place(2, 136) };
    file.add(&other, &small, 4);
    file.seal(5);
    let mut ranges = Vec::new();
    while let Some(piece) = file.take_off(FLYING_MAX) {
        ranges.push((piece.place.offset, piece.length()));
        file.land(piece.number);
    }
    assert_eq!(ranges, [(100, 15), (115, 10), (126, 10), (136, 10)]);
}

/// A client that has every file for itself.
struct Alone;

impl Covers for Alone {
    fn end(&self, _: &[u8], _: u64) -> u64 {
        0
    }

    fn forget_own(&self, _: &[u8]) {}

    fn landed(&self) {}
}

/// Holds back a write, if there is room.
fn add(gather: &Gather, place: &Place, data: &Bytes) -> bool {
    let mut entered = gather.enter(WHICH).unwrap();
    let has_room = gather.may_take(data.len()) && entered.has_room(data.len());
    let takes = has_room && (!entered.is_first() || entered.count());
    if takes {
        entered.add(place, data);
    }
    takes
}

const WHICH: Which<'static> = Which { handle: b"file", hash: 7 };

/// Writes bytes far from each other until there is no room. Returns how many.
fn fill(gather: &Gather, data: &Bytes) -> u64 {
    (0..).find(|at| !add(gather, &place(1, at << 20), data)).unwrap()
}

/// All of it comes to the server, each piece after so long.
fn drain(gather: &Gather, took: Duration) {
    gather.seal(WHICH);
    while let Some((piece, _)) = gather.take_off(WHICH) {
        gather.land(WHICH, piece.number, took, &Alone);
    }
    assert!(gather.is_empty() && gather.held() == (0, 0));
}

/// Each takes a request of its own, for which others wait, and room beside its data.
#[test]
fn of_small_writes_to_many_places_few_are_held_back() {
    let gather = Gather::default();
    let byte = Bytes::from_static(b"1");
    for _ in 0..100 {
        let count = fill(&gather, &byte);
        assert!((50..2000).contains(&count), "{count}");
        drain(&gather, Duration::ZERO);
    }
}

/// Who looks at a file waits until it has come to the server, and not for long: else it is lost.
#[test]
fn no_more_is_held_back_than_comes_to_the_server_soon() {
    let gather = Gather::default();
    let large = Bytes::from(vec![1; 200 << 10]);
    let fast = || {
        for _ in 0..50 {
            if !gather.may_take(large.len()) {
                gather.went_straight(large.len(), Duration::from_millis(1));
            }
            fill(&gather, &large);
            drain(&gather, Duration::from_millis(1));
        }
    };
    fast();
    assert!(fill(&gather, &large) >= 20, "as much of one file as may be");
    drain(&gather, Duration::from_millis(700));
    for _ in 0..500 {
        if fill(&gather, &large) == 0 {
            break;
        }
        drain(&gather, Duration::from_millis(1500));
    }
    assert!(!gather.may_take(large.len()), "it goes straight through");
    assert!(add(&gather, &place(1, 0), &Bytes::from_static(b"small")));
    drain(&gather, Duration::from_millis(1));
    fast();
    assert!(fill(&gather, &large) >= 20, "once it is fast again");
}
