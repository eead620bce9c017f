//! One metric for several values of a label.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::instrument::Absorb;

/// The value of a label that stands for all that have no series of their own.
pub const OTHER: &str = "other";

/// One instrument for each of a fixed list of names, as those of the operations: found by index,
/// without a look-up.
#[derive(Debug)]
pub struct Indexed<I> {
    names: &'static [&'static str],
    series: Box<[I]>,
}

impl<I> Indexed<I> {
    /// An instrument for each name, and one for what has none.
    pub fn new(names: &'static [&'static str], mut instrument: impl FnMut() -> I) -> Indexed<I> {
        Indexed { names, series: (0..=names.len()).map(|_| instrument()).collect() }
    }

    /// The instrument of the name with this index; beyond the names that of [`OTHER`].
    pub fn at(&self, index: usize) -> &I {
        &self.series[index.min(self.names.len())]
    }

    /// Each instrument with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &I)> {
        self.names.iter().copied().chain([OTHER]).zip(&self.series)
    }
}

/// One instrument for each value of a label that is known only as the program runs: an export, a
/// client. It has at most `limit` of them; what comes then is recorded in [`OTHER`]. When the last
/// who holds a [`Series`] lets go of it, what it has counted moves to [`OTHER`], so that what has
/// gone makes room and the sum over all never falls.
#[derive(Debug)]
pub struct Family<I> {
    limit: usize,
    make: fn() -> I,
    series: Arc<Mutex<Table<I>>>,
}

#[derive(Debug)]
struct Table<I> {
    of: BTreeMap<String, (Arc<I>, usize)>,
    other: Arc<I>,
}

/// An instrument of a [`Family`], to be kept by whoever records into it.
#[derive(Debug)]
pub struct Series<I: Absorb> {
    instrument: Arc<I>,
    /// `None`: of [`OTHER`].
    name: Option<String>,
    table: Arc<Mutex<Table<I>>>,
}

impl<I: Absorb> Family<I> {
    /// With at most `limit` series, made by `make`, and [`OTHER`].
    pub fn new(limit: usize, make: fn() -> I) -> Family<I> {
        let table = Table { of: BTreeMap::new(), other: Arc::new(make()) };
        Family { limit, make, series: Arc::new(Mutex::new(table)) }
    }

    /// The series of a value, or [`OTHER`] where there are too many. Takes a lock and memory: to
    /// be done once for an export or a client, not for each request.
    pub fn series(&self, name: &str) -> Series<I> {
        let mut table = lock(&self.series);
        let shared = self.series.clone();
        if let Some((instrument, holders)) = table.of.get_mut(name) {
            *holders += 1;
            return Series { instrument: instrument.clone(), name: Some(name.into()), table: shared };
        }
        if table.of.len() >= self.limit || name == OTHER {
            return Series { instrument: table.other.clone(), name: None, table: shared };
        }
        let instrument = Arc::new((self.make)());
        table.of.insert(name.to_owned(), (instrument.clone(), 1));
        Series { instrument, name: Some(name.into()), table: shared }
    }

    /// Calls `each` for every series with its value, [`OTHER`] last.
    pub fn for_each(&self, mut each: impl FnMut(&str, &I)) {
        let table = lock(&self.series);
        table.of.iter().for_each(|(name, (instrument, _))| each(name, instrument));
        each(OTHER, &table.other);
    }
}

impl<I: Absorb> Series<I> {
    /// The value of the label: what was asked for, or [`OTHER`].
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(OTHER)
    }
}

impl<I: Absorb> Deref for Series<I> {
    type Target = I;
    fn deref(&self) -> &I {
        &self.instrument
    }
}

impl<I: Absorb> Drop for Series<I> {
    fn drop(&mut self) {
        let Some(name) = &self.name else { return };
        let mut table = lock(&self.table);
        let Some((instrument, holders)) = table.of.get_mut(name) else { return };
        *holders -= 1;
        if *holders == 0 {
            let gone = instrument.clone();
            table.other.absorb(&gone);
            table.of.remove(name);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    fn counts(family: &Family<Counter>) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        family.for_each(|name, counter| found.push((name.to_owned(), counter.get())));
        found
    }

    #[test]
    fn a_family_does_not_grow_beyond_its_limit() {
        let family = Family::new(2, Counter::default);
        let all: Vec<_> = (0..100).map(|client| family.series(&format!("c{client:03}"))).collect();
        all.iter().for_each(|series| series.add(1));
        let expected = [("c000", 1), ("c001", 1), (OTHER, 98)];
        assert_eq!(counts(&family), expected.map(|(name, count)| (name.to_owned(), count)));
    }

    #[test]
    fn what_has_gone_makes_room_and_stays_counted() {
        let family = Family::new(1, Counter::default);
        let (first, again) = (family.series("a"), family.series("a"));
        first.add(5);
        drop(first);
        again.add(1);
        assert_eq!(counts(&family)[0], ("a".into(), 6));
        drop(again);
        let second = family.series("b");
        second.add(2);
        assert_eq!(counts(&family), [("b".into(), 2), (OTHER.into(), 6)]);
        family.series(OTHER).add(1);
        assert_eq!(counts(&family)[1], (OTHER.into(), 7));
    }

    #[test]
    fn what_has_no_name_is_other() {
        let indexed = Indexed::new(&["read", "write"], Counter::default);
        indexed.at(1).add(4);
        indexed.at(2).add(1);
        indexed.at(usize::MAX).add(1);
        let found: Vec<_> = indexed.iter().map(|(name, counter)| (name, counter.get())).collect();
        assert_eq!(found, [("read", 0), ("write", 4), (OTHER, 2)]);
    }
}
