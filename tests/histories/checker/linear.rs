//! The search for an order (Wing and Gong 1993, with Lowe's memory of configurations, 2017).
//!
//! A history of one object is linearizable when its steps can be put in an order that keeps every step that ended before another began in front of it, and
//! that the object allows. A step whose outcome is not known may have happened at any time after its begin, or not at all.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// No try to leave something out takes more than such a share of all.
const SHARES: usize = 20;

/// In so many orders is looked with such a part of what the search may take in all.
const TURNS: u64 = 16;
const PARTS: usize = 64;

/// What one kind of object does.
pub trait Object {
    type State: Clone + Debug + Eq + Hash;
    type Step: Clone + Debug;

    /// What a step does in a state. `Same` is for steps that only look, and are taken as soon as they are true: a change that changes nothing here might
    /// have to come later.
    fn next(state: &Self::State, step: &Self::Step) -> Next<Self::State>;

    /// Whether a history with an order surely has one without this step too, when these are the others. Steps that only look are needless.
    fn is_needless(step: &Self::Step, others: &[Timed<Self::Step>]) -> bool;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<S> {
    /// It cannot have happened here.
    Refused,
    /// It can, and changes nothing.
    Same,
    /// What may be afterwards.
    To(Vec<S>),
}

impl<S> Next<S> {
    /// For steps that only look.
    pub fn same_if(seen: bool) -> Next<S> {
        if seen { Next::Same } else { Next::Refused }
    }
}

/// A step with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed<T> {
    pub begin: u64,
    pub end: u64,
    /// Whether it surely happened.
    pub required: bool,
    /// The operation that it is a part of.
    pub origin: usize,
    pub step: T,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is an order.
    Order,
    /// There is none; how far the best attempt came, what was so then, and the steps that could not be next.
    None { state: String, refused: Vec<usize> },
    /// There were more configurations than the limit.
    Undecided,
}

/// Which steps are behind us.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Done {
    bits: Vec<u64>,
    /// All steps before this one are done.
    from: usize,
}

impl Done {
    fn new(steps: usize) -> Done {
        Done { bits: vec![0; steps.div_ceil(64)], from: 0 }
    }

    fn has(&self, step: usize) -> bool {
        self.bits[step / 64] & 1 << (step % 64) != 0
    }

    fn set(&mut self, step: usize) {
        self.bits[step / 64] |= 1 << (step % 64);
        while self.from < self.bits.len() * 64 && self.has(self.from) {
            self.from += 1;
        }
    }

    fn count(&self) -> u32 {
        self.bits.iter().map(|bits| bits.count_ones()).sum()
    }
}

/// Looks for an order, in at most `limit` configurations.
///
/// Some histories with many orders have few that a search which takes what ended first comes by soon: before the whole limit is used for that one, small parts
/// of it are used for others.
pub fn search<O: Object>(initial: &O::State, steps: &[Timed<O::Step>], limit: usize) -> Found {
    let mut left = limit;
    for turn in 0..TURNS {
        let mut part = limit / PARTS;
        let found = search_within::<O>(initial, steps, turn, &mut part);
        left -= limit / PARTS - part;
        if found != Found::Undecided {
            return found;
        }
    }
    search_within::<O>(initial, steps, 0, &mut left)
}

/// As [`search`], in one of many orders of what may be next; takes what it used off `left`.
fn search_within<O: Object>(initial: &O::State, steps: &[Timed<O::Step>], turn: u64, left: &mut usize) -> Found {
    let mut sorted: Vec<_> = steps.iter().collect();
    sorted.sort_by_key(|timed| timed.begin);
    let mut seen = HashSet::new();
    let mut best: Option<(u32, O::State, Vec<usize>)> = None;
    let mut open = vec![(Done::new(sorted.len()), initial.clone())];
    while let Some((mut done, state)) = open.pop() {
        // A look that is true now may as well be now: it stands in nobody's way.
        let next = loop {
            let next = possible(&sorted, &done, turn);
            let looks = |number: &usize| O::next(&state, &sorted[*number].step) == Next::Same;
            let looks: Vec<_> = next.iter().copied().filter(looks).collect();
            if looks.is_empty() {
                break next;
            }
            looks.into_iter().for_each(|number| done.set(number));
        };
        if sorted.iter().enumerate().skip(done.from).all(|(number, timed)| !timed.required || done.has(number)) {
            return Found::Order;
        }
        if best.as_ref().is_none_or(|best| done.count() > best.0) {
            let required = next.iter().filter(|number| sorted[**number].required);
            best = Some((done.count(), state.clone(), required.map(|number| sorted[*number].origin).collect()));
        }
        if !seen.insert((done.clone(), state.clone())) {
            continue;
        }
        if *left == 0 {
            return Found::Undecided;
        }
        *left -= 1;
        for number in next.into_iter().rev() {
            if let Next::To(states) = O::next(&state, &sorted[number].step) {
                let mut done = done.clone();
                done.set(number);
                open.extend(states.into_iter().map(|state| (done.clone(), state)));
            }
        }
    }
    let (_, state, refused) = best.expect("the first configuration is the best at first");
    Found::None { state: format!("{state:?}"), refused }
}

/// The steps that may be next: no other has ended before they began. Those that end first come first, in turns above 0 any.
fn possible<T>(sorted: &[&Timed<T>], done: &Done, turn: u64) -> Vec<usize> {
    let mut first_end = u64::MAX;
    let mut found = Vec::new();
    for (number, timed) in sorted.iter().enumerate().skip(done.from) {
        if timed.begin > first_end {
            break;
        }
        if !done.has(number) {
            if timed.required {
                first_end = first_end.min(timed.end);
            }
            found.push(number);
        }
    }
    found.retain(|number| sorted[*number].begin <= first_end);
    let place = |number: usize| match turn {
        0 => sorted[number].end,
        // Another permutation for each turn: the finaliser of MurmurHash3 (Appleby 2008).
        _ => {
            let mixed = (number as u64 ^ turn << 32).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
        }
    };
    found.sort_by_key(|number| (!sorted[*number].required, place(*number)));
    found
}

/// What is left of a history without an order: what it takes, and what may have happened at any time or never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minimal<T> {
    pub needed: Vec<Timed<T>>,
    pub loose: Vec<Timed<T>>,
}

/// Leaves out of a history without an order all that it does not take. What changes something others saw cannot be left out; it is made to be possible at
/// any time or never. In at most `limit` configurations; what is left over when they are used up is kept.
pub fn minimise<O: Object>(initial: &O::State, steps: &[Timed<O::Step>], limit: usize) -> Minimal<O::Step> {
    let left = Cell::new(limit);
    let fails = |steps: &[Timed<O::Step>]| {
        let share = left.get().min(limit.div_ceil(SHARES));
        let mut rest = share;
        let found = search_within::<O>(initial, steps, 0, &mut rest);
        left.set(left.get() - (share - rest));
        matches!(found, Found::None { .. })
    };
    let mut needed = shortest_prefix(steps, fails);
    let mut loose: Vec<Timed<O::Step>> = Vec::new();
    // From the last to the first, until nothing changes: once a look is gone, what it saw may go.
    loop {
        let before = (needed.len(), loose.len());
        for number in (0..needed.len()).rev() {
            let step = needed.remove(number);
            let others = [needed.as_slice(), &loose].concat();
            if O::is_needless(&step.step, &others) && fails(&others) {
                continue;
            }
            loose.push(Timed { begin: 0, end: u64::MAX, required: false, ..step.clone() });
            if !fails(&[needed.as_slice(), &loose].concat()) {
                loose.pop();
                needed.insert(number, step);
            }
        }
        for number in (0..loose.len()).rev() {
            let step = loose.remove(number);
            if !O::is_needless(&step.step, &[needed.as_slice(), &loose].concat()) {
                loose.insert(number, step);
            }
        }
        if (needed.len(), loose.len()) == before {
            return Minimal { needed, loose };
        }
    }
}

/// The history until the time at which it went wrong: what had not ended by then may or may not have happened.
fn shortest_prefix<T: Clone>(steps: &[Timed<T>], fails: impl Fn(&[Timed<T>]) -> bool) -> Vec<Timed<T>> {
    let mut ends: Vec<u64> = steps.iter().filter(|timed| timed.required).map(|timed| timed.end).collect();
    ends.sort_unstable();
    let prefix = |end: u64| -> Vec<Timed<T>> {
        let begun = steps.iter().filter(|timed| timed.begin <= end).cloned();
        begun.map(|timed| Timed { required: timed.required && timed.end <= end, ..timed }).collect()
    };
    let first = ends.partition_point(|end| !fails(&prefix(*end)));
    ends.get(first).map_or_else(|| steps.to_vec(), |end| prefix(*end))
}
