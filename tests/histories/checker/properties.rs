//! The search against one that tries every order, and histories that a real object made.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::linear::{Found, Next, Object, Timed, minimise, search};
use super::registers::{KnownLog, Log, Record, Register, Word, towards_the_end};

const LIMIT: usize = 100_000;

/// Tries every order.
fn by_force<O: Object>(state: &O::State, steps: &[Timed<O::Step>]) -> bool {
    if steps.iter().all(|timed| !timed.required) {
        return true;
    }
    (0..steps.len()).any(|first| {
        let mut rest = steps.to_vec();
        let step = rest.remove(first);
        let in_time = rest.iter().all(|other| !other.required || other.end >= step.begin);
        in_time
            && match O::next(state, &step.step) {
                Next::Refused => false,
                Next::Same => by_force::<O>(state, &rest),
                Next::To(states) => states.iter().any(|state| by_force::<O>(state, &rest)),
            }
    })
}

fn times() -> impl Strategy<Value = (u64, u64, bool)> {
    (0..20u64, 0..12u64, prop::bool::weighted(0.85))
        .prop_map(|(begin, length, required)| (begin, if required { begin + length } else { u64::MAX }, required))
}

fn timed<T: Clone + std::fmt::Debug>(step: impl Strategy<Value = T>) -> impl Strategy<Value = Timed<T>> {
    (times(), step).prop_map(|((begin, end, required), step)| Timed { begin, end, required, origin: 0, step })
}

fn words() -> impl Strategy<Value = Vec<Timed<Word>>> {
    let word = prop_oneof![(1..4u64).prop_map(Word::Write), (0..4u64).prop_map(Word::Read)];
    prop::collection::vec(timed(word), 0..7)
}

fn records() -> impl Strategy<Value = Vec<Timed<Record>>> {
    let contents = prop::collection::vec(1..4u64, 0..3);
    let record = prop_oneof![(1..4u64).prop_map(Record::Append), contents.prop_map(Record::Read)];
    prop::collection::vec(timed(record), 0..7)
}

/// What a real register gives when each step happens at one moment of its time: the moments decide.
fn real() -> impl Strategy<Value = Vec<Timed<Word>>> {
    let step = (0..200u64, 0..10u64, 0..10u64, prop::option::of(1..1000u64));
    prop::collection::vec(step, 0..60).prop_map(|steps| {
        let mut at: BTreeMap<u64, _> = BTreeMap::new();
        for (moment, before, after, write) in steps {
            at.insert(moment * 16, (before * 20, after * 20, write));
        }
        let mut value = 0;
        let step = |(moment, (before, after, write)): (u64, (u64, u64, Option<u64>))| {
            value = write.unwrap_or(value);
            let step = write.map_or(Word::Read(value), Word::Write);
            Timed { begin: moment.saturating_sub(before), end: moment + after, required: true, origin: 0, step }
        };
        at.into_iter().map(step).collect()
    })
}

proptest! {
    #[test]
    fn the_search_finds_what_force_finds(words in words(), records in records()) {
        prop_assert_eq!(search::<Register>(&0, &words, LIMIT) == Found::Order, by_force::<Register>(&0, &words));
        prop_assert_eq!(search::<Log>(&Vec::new(), &records, LIMIT) == Found::Order, by_force::<Log>(&Vec::new(), &records));
    }

    #[test]
    fn a_log_whose_end_is_known_is_as_any(mut records in records(), end in prop::collection::vec(1..4u64, 0..4)) {
        records.push(Timed { begin: 100, end: 100, required: true, origin: 0, step: Record::Read(end) });
        let known = towards_the_end(&records).is_some_and(|known| search::<KnownLog>(&0, &known, LIMIT) == Found::Order);
        let appended: Vec<_> = records.iter().filter(|timed| matches!(timed.step, Record::Append(_))).collect();
        let once = |timed: &&Timed<Record>| appended.iter().filter(|other| other.step == timed.step).count() == 1;
        let by_force = by_force::<Log>(&Vec::new(), &records);
        let is_as_any = if appended.iter().all(once) { known == by_force } else { by_force || !known };
        prop_assert!(is_as_any);
    }

    #[test]
    fn what_is_left_of_a_bad_history_is_bad(words in words()) {
        if !by_force::<Register>(&0, &words) {
            let minimal = minimise::<Register>(&0, &words, 100 * LIMIT);
            let all = [minimal.needed.as_slice(), &minimal.loose].concat();
            prop_assert!(!by_force::<Register>(&0, &all));
            // And each step of it is needed at its time.
            for number in 0..minimal.needed.len() {
                let mut all = all.clone();
                all[number] = Timed { begin: 0, end: u64::MAX, required: false, ..all[number].clone() };
                prop_assert!(by_force::<Register>(&0, &all), "without {number}: {minimal:?}");
            }
        }
    }

    #[test]
    fn what_really_happened_has_an_order(steps in real()) {
        prop_assert_eq!(search::<Register>(&0, &steps, LIMIT), Found::Order);
    }
}
