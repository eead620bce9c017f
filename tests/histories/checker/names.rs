//! Names that lead to files, in the directories of a history together: a rename moves between them, and a file's links are counted over all.

use super::linear::{Next, Object, Timed};
use crate::history::NAMES;

pub struct Names;

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Absent,
    Node(u64),
    /// What an operation made whose outcome is not known; it has a number all the same, which the first look tells.
    Made(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory {
    pub entries: [Entry; NAMES],
    /// Where a name led when an operation looked: some take two looks at two times, on every file system.
    pub looked: Vec<(usize, Entry)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The name leads there, or nowhere.
    Leads(usize, Option<u64>),
    /// The name leads somewhere.
    IsThere(usize),
    /// The file has so many links.
    Links(u64, u64),
    /// The name is made, for a new file.
    Make(usize, Entry),
    /// Opens what is there, or makes it.
    OpenOrMake(usize, u64),
    Remove(usize),
    /// The operation, the old name and the new.
    Rename(usize, usize, usize),
    /// An operation looks where a name leads; whether it leads anywhere it has to find out.
    Look(usize, usize),
    /// A new name for what the operation saw.
    Link(usize, usize),
    /// What the operation saw is no file any more, or never was.
    IsGone(usize),
}

impl Directory {
    pub fn new(entries: [Entry; NAMES]) -> Directory {
        Directory { entries, looked: Vec::new() }
    }

    fn links(&self, entry: Entry) -> u64 {
        self.entries.iter().filter(|other| **other == entry).count() as u64
    }

    fn looked(&self, operation: usize) -> Option<Entry> {
        self.looked.iter().find(|(other, _)| *other == operation).map(|(_, entry)| *entry)
    }

    fn with(&self, name: usize, entry: Entry) -> Directory {
        let mut after = self.clone();
        after.entries[name] = entry;
        after
    }

    /// Forgets what an operation saw.
    fn settled(mut self, operation: usize) -> Directory {
        self.looked.retain(|(other, _)| *other != operation);
        self
    }

    /// What somebody made has this number.
    fn numbered(&self, made: usize, node: u64) -> Directory {
        let renamed = |entry: Entry| if entry == Entry::Made(made) { Entry::Node(node) } else { entry };
        Directory {
            entries: self.entries.map(renamed),
            looked: self.looked.iter().map(|(operation, entry)| (*operation, renamed(*entry))).collect(),
        }
    }

    fn leads(&self, name: usize, node: Option<u64>) -> Next<Directory> {
        match (self.entries[name], node) {
            (Entry::Absent, None) => Next::Same,
            (Entry::Node(there), Some(node)) if there == node => Next::Same,
            (Entry::Made(made), Some(node)) if self.links(Entry::Node(node)) == 0 => {
                Next::To(vec![self.numbered(made, node)])
            }
            _ => Next::Refused,
        }
    }

    fn rename(&self, operation: usize, from: usize, to: usize) -> Next<Directory> {
        let mut after = Vec::new();
        let moved = self.entries[from];
        if moved != Entry::Absent {
            after.push(self.with(from, Entry::Absent).with(to, moved).settled(operation));
        }
        // Two names of one file: nothing is done. The client's kernel looks at one after the other.
        if self.looked(operation).is_some_and(|entry| entry == self.entries[to]) {
            after.push(self.clone().settled(operation));
        }
        if after.is_empty() { Next::Refused } else { Next::To(after) }
    }
}

impl Object for Names {
    type State = Directory;
    type Step = Step;

    fn next(state: &Directory, step: &Step) -> Next<Directory> {
        let is_absent = |name: usize| state.entries[name] == Entry::Absent;
        match *step {
            Step::Leads(name, node) => state.leads(name, node),
            Step::IsThere(name) => Next::same_if(!is_absent(name)),
            // One that was made may be the file.
            Step::Links(node, count) => {
                let made = state.entries.iter().filter(|entry| matches!(entry, Entry::Made(_))).count() as u64;
                let links = state.links(Entry::Node(node));
                Next::same_if((links..=links + made).contains(&count))
            }
            Step::Make(name, entry) if is_absent(name) => Next::To(vec![state.with(name, entry)]),
            Step::OpenOrMake(name, node) if is_absent(name) => match state.links(Entry::Node(node)) {
                0 => Next::To(vec![state.with(name, Entry::Node(node))]),
                _ => Next::Refused,
            },
            Step::OpenOrMake(name, node) => state.leads(name, Some(node)),
            Step::Remove(name) if !is_absent(name) => Next::To(vec![state.with(name, Entry::Absent)]),
            Step::Rename(operation, from, to) => state.rename(operation, from, to),
            Step::Look(operation, name) if state.looked(operation).is_none() => {
                let mut after = state.clone();
                after.looked.push((operation, state.entries[name]));
                after.looked.sort_unstable_by_key(|(operation, _)| *operation);
                Next::To(vec![after])
            }
            Step::Link(operation, to) if is_absent(to) => match state.looked(operation) {
                Some(entry) if entry != Entry::Absent && state.links(entry) > 0 => {
                    Next::To(vec![state.with(to, entry).settled(operation)])
                }
                _ => Next::Refused,
            },
            Step::IsGone(operation) => match state.looked(operation) {
                Some(entry) if entry == Entry::Absent || state.links(entry) == 0 => {
                    Next::To(vec![state.clone().settled(operation)])
                }
                _ => Next::Refused,
            },
            Step::Make(..) | Step::Remove(_) | Step::Look(..) | Step::Link(..) => Next::Refused,
        }
    }

    fn is_needless(step: &Step, _: &[Timed<Step>]) -> bool {
        matches!(step, Step::Leads(..) | Step::IsThere(_) | Step::Links(..))
    }
}
