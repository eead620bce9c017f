//! Each object of a history, checked; what is wrong, told.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use super::closes;
use super::linear::{Found, Object, Timed, minimise, search};
use super::locks::Lock;
use super::names::{Directory, Entry, Names};
use super::objects::{Block, Objects, Part, word_at};
use super::registers::{KnownLog, Log, Register, Size, Word, towards_the_end};
use crate::history::{BLOCK, History, MODE, PAGE, WORD};

/// What a mount's mode of caching promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every object is linearizable.
    Linearizable,
    /// Locks are, and who opens sees what was closed before.
    CloseToOpen,
}

/// How much is looked at, in configurations.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub search: usize,
    /// To leave out what does not matter.
    pub minimise: usize,
}

impl Default for Limits {
    /// Seconds at most.
    fn default() -> Limits {
        Limits { search: 300_000, minimise: 200_000 }
    }
}

/// What could not have happened.
#[derive(Clone, Debug)]
pub struct Violation {
    pub what: String,
    /// The operations that show it.
    pub operations: Vec<usize>,
    lines: Vec<String>,
    notes: Vec<String>,
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(f, "     begin us       end us")?;
        self.lines.iter().try_for_each(|line| writeln!(f, " {line}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "   {note}"))
    }
}

/// Everything in a history that could not have happened.
pub fn check(history: &History, promise: Promise, limits: Limits) -> Vec<Violation> {
    let objects = Objects::of(history);
    let mut check = Check { history, limits, found: Vec::new() };
    for (number, what) in &objects.faults {
        check.tell(what, &[*number], Vec::new());
    }
    check.object::<Lock>("the lock", &None, &objects.lock);
    match promise {
        Promise::Linearizable => check.linearizable(&objects),
        Promise::CloseToOpen => check.close_to_open(&objects),
    }
    check.found
}

struct Check<'a> {
    history: &'a History,
    limits: Limits,
    found: Vec<Violation>,
}

impl Check<'_> {
    fn tell(&mut self, what: &str, operations: &[usize], notes: Vec<String>) {
        let mut operations = operations.to_vec();
        operations.sort_by_key(|number| self.history.events.get(*number).map_or(u64::MAX, |event| event.begin));
        operations.dedup();
        let lines = operations.iter().map(|number| self.history.line(*number)).collect();
        self.found.push(Violation { what: what.to_owned(), operations, lines, notes });
    }

    fn object<O: Object>(&mut self, what: &str, initial: &O::State, steps: &[Timed<O::Step>]) {
        match search::<O>(initial, steps, self.limits.search) {
            Found::Order => {}
            Found::Undecided => {
                let notes = vec![format!("more than {} configurations", self.limits.search)];
                self.tell(&format!("{what}: undecided"), &[], notes);
            }
            Found::None { .. } => {
                let minimal = minimise::<O>(initial, steps, self.limits.minimise);
                let all = [minimal.needed.as_slice(), &minimal.loose].concat();
                let mut notes = vec![format!("at first: {initial:?}")];
                if let Found::None { state, refused } = search::<O>(initial, &all, self.limits.search) {
                    let stuck: Vec<_> = all.iter().filter(|timed| refused.contains(&timed.origin)).collect();
                    let stuck: BTreeSet<_> = stuck.iter().map(|timed| format!("{:?}", timed.step)).collect();
                    notes.push(format!("at the furthest: {state}, where none of these can be next: {stuck:?}"));
                }
                let shown = |origin: usize| minimal.needed.iter().any(|needed| needed.origin == origin);
                for timed in minimal.loose.iter().filter(|timed| !shown(timed.origin)) {
                    notes.push(format!("at any time, or not at all: {}", self.history.line(timed.origin).trim()));
                }
                let operations: Vec<_> = minimal.needed.iter().map(|timed| timed.origin).collect();
                self.tell(&format!("{what}: there is no order in which this could have happened"), &operations, notes);
            }
        }
    }

    fn linearizable(&mut self, objects: &Objects) {
        let before = &self.history.before;
        let entries = before.names.map(|node| node.map_or(Entry::Absent, Entry::Node));
        self.object::<Names>("names", &Directory::new(entries), &objects.names);
        for (node, steps) in &objects.sizes {
            let size = before.files.get(node).map_or(0, |content| content.len() as u64);
            self.object::<Size>(&format!("size of inode {node}"), &size, steps);
        }
        for (node, steps) in &objects.modes {
            let mode = before.modes.get(node).copied().unwrap_or(MODE);
            self.object::<Register>(&format!("mode of inode {node}"), &u64::from(mode), steps);
        }
        for (part, steps) in &objects.parts {
            for place in places(steps) {
                let at_place = |timed: &Timed<Block>| Timed {
                    begin: timed.begin,
                    end: timed.end,
                    required: timed.required,
                    origin: timed.origin,
                    step: match &timed.step {
                        Block::Write(token) => Word::Write(*token),
                        Block::MayWrite(token) => Word::MayWrite(*token),
                        Block::Read(runs) => Word::Read(word_at(runs, place)),
                    },
                };
                let words: Vec<_> = steps.iter().map(at_place).collect();
                let initial = self.initial(*part, place);
                self.object::<Register>(&shown(*part, place), &initial, &words);
            }
        }
        // Appends at the same time have more orders than can be looked at, unless the end is.
        let known = towards_the_end(&objects.log);
        if known.is_none_or(|known| search::<KnownLog>(&0, &known, self.limits.search) != Found::Order) {
            self.object::<Log>("the log", &Vec::new(), &objects.log);
        }
    }

    fn close_to_open(&mut self, objects: &Objects) {
        for (part, steps) in &objects.parts {
            for place in places(steps) {
                let initial = self.initial(*part, place);
                if let Some((write, read)) = closes::block(self.history, objects, steps, initial, place) {
                    let what = format!("{}: who opened after a close reads what was before", shown(*part, place));
                    self.tell(&what, &self.session(&[write, read]), Vec::new());
                }
            }
        }
        if let Some((append, read)) = closes::log(self.history, objects) {
            let what = "the log: who opened after a close does not see what was appended, or sees it twice";
            self.tell(what, &self.session(&[append, read]), Vec::new());
        }
    }

    /// Operations, with the opens and closes of their descriptors.
    fn session(&self, operations: &[usize]) -> Vec<usize> {
        let same = |number: &usize, other: &usize| {
            let (one, two) = (&self.history.events[*number], &self.history.events[*other]);
            one.worker == two.worker && one.call.handle() == two.call.handle() && one.call.handle().is_some()
        };
        let frame = |number: &usize| {
            let call = &self.history.events[*number].call;
            matches!(call, crate::history::Call::Open { .. } | crate::history::Call::Close { .. })
        };
        let all = 0..self.history.events.len();
        let of = |number: &usize| {
            operations.contains(number) || frame(number) && operations.iter().any(|other| same(number, other))
        };
        all.filter(of).collect()
    }

    fn initial(&self, part: Part, place: usize) -> u64 {
        match part {
            Part::Page(number) => self.history.before.pages.get(number).copied().unwrap_or_default(),
            Part::Block(node, number) => {
                let at = number * BLOCK + place * WORD;
                let content = self.history.before.files.get(&node);
                let word = content.and_then(|content| content.get(at..at + WORD));
                word.map_or(0, |word| u64::from_le_bytes(word.try_into().expect("a word")))
            }
        }
    }
}

fn shown(part: Part, place: usize) -> String {
    match part {
        Part::Block(node, number) => {
            format!("block {number} of inode {node} at byte {}", number * BLOCK + place * WORD)
        }
        Part::Page(number) => format!("page {number} of the mapped file at byte {}", number * PAGE + place * WORD),
    }
}

/// Where any read of a block saw a new word begin: one place unless something was torn.
fn places(steps: &[Timed<Block>]) -> BTreeSet<usize> {
    let runs = steps.iter().filter_map(|timed| match &timed.step {
        Block::Read(runs) => Some(runs.iter().map(|(at, _)| *at)),
        Block::Write(_) | Block::MayWrite(_) => None,
    });
    runs.flatten().collect()
}
