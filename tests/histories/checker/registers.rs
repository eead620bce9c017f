//! What a file holds: words, its size, and records that are appended.

use super::linear::{Next, Object, Timed};

/// A word that is read and written.
pub struct Register;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    Write(u64),
    /// One that may have been lost, then and for ever.
    MayWrite(u64),
    Read(u64),
}

impl Object for Register {
    type State = u64;
    type Step = Word;

    fn next(state: &u64, step: &Word) -> Next<u64> {
        match step {
            Word::Write(value) => Next::To(vec![*value]),
            Word::MayWrite(value) => Next::To(vec![*value, *state]),
            Word::Read(value) => Next::same_if(value == state),
        }
    }

    /// What nobody saw may never have been written.
    fn is_needless(step: &Word, others: &[Timed<Word>]) -> bool {
        match step {
            Word::Read(_) => true,
            Word::Write(value) | Word::MayWrite(value) => others.iter().all(|other| other.step != Word::Read(*value)),
        }
    }
}

/// The size of a file, in bytes.
pub struct Size;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// A write that ends here.
    ReachesTo(u64),
    /// One that may have been lost.
    MayReachTo(u64),
    Becomes(u64),
    Is(u64),
    IsAtLeast(u64),
    IsAtMost(u64),
}

impl Object for Size {
    type State = u64;
    type Step = Length;

    fn next(state: &u64, step: &Length) -> Next<u64> {
        match *step {
            Length::ReachesTo(end) => Next::To(vec![end.max(*state)]),
            Length::MayReachTo(end) => Next::To(vec![end.max(*state), *state]),
            Length::Becomes(size) => Next::To(vec![size]),
            Length::Is(size) => Next::same_if(*state == size),
            Length::IsAtLeast(size) => Next::same_if(*state >= size),
            Length::IsAtMost(size) => Next::same_if(*state <= size),
        }
    }

    fn is_needless(step: &Length, _: &[Timed<Length>]) -> bool {
        matches!(step, Length::Is(_) | Length::IsAtLeast(_) | Length::IsAtMost(_))
    }
}

/// A file to which records are appended, each once. Its state is what was appended since the history's begin.
pub struct Log;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Append(u64),
    Read(Vec<u64>),
    /// How many there are.
    Count(usize),
}

impl Object for Log {
    type State = Vec<u64>;
    type Step = Record;

    fn next(state: &Vec<u64>, step: &Record) -> Next<Vec<u64>> {
        match step {
            Record::Append(token) => Next::To(vec![[state.as_slice(), &[*token]].concat()]),
            Record::Read(content) => Next::same_if(content == state),
            Record::Count(count) => Next::same_if(state.len() == *count),
        }
    }

    fn is_needless(step: &Record, _: &[Timed<Record>]) -> bool {
        matches!(step, Record::Read(_) | Record::Count(_))
    }
}

/// [`Log`] when all that was appended is known from the end, so that there is one order of it. Its state is how much was appended.
pub struct KnownLog;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// What stands in that place was appended.
    Append(usize),
    /// There was so much.
    Count(usize),
}

impl Reached {
    /// What a step means for a log that is so in the end. `None`: it stands against that.
    fn of(step: &Record, end: &[u64]) -> Option<Reached> {
        match step {
            Record::Append(token) => end.iter().position(|appended| appended == token).map(Reached::Append),
            Record::Read(content) => end.starts_with(content).then_some(Reached::Count(content.len())),
            Record::Count(count) => Some(Reached::Count(*count)),
        }
    }
}

impl Object for KnownLog {
    type State = usize;
    type Step = Reached;

    fn next(state: &usize, step: &Reached) -> Next<usize> {
        match step {
            Reached::Append(place) if place == state => Next::To(vec![state + 1]),
            Reached::Append(_) => Next::Refused,
            Reached::Count(count) => Next::same_if(state == count),
        }
    }

    fn is_needless(step: &Reached, _: &[Timed<Reached>]) -> bool {
        matches!(step, Reached::Count(_))
    }
}

/// The steps on a log that was read when all was over, as steps towards that. `None`: nobody read it then, or some stand against it.
pub fn towards_the_end(steps: &[Timed<Record>]) -> Option<Vec<Timed<Reached>>> {
    let last = steps.iter().max_by_key(|timed| timed.begin)?;
    let Record::Read(end) = &last.step else { return None };
    let needed = steps.iter().filter(|timed| timed.required || Reached::of(&timed.step, end).is_some());
    let towards = |timed: &Timed<Record>| {
        let Timed { begin, end: until, required, origin, .. } = *timed;
        Some(Timed { begin, end: until, required, origin, step: Reached::of(&timed.step, end)? })
    };
    needed.map(towards).collect()
}
