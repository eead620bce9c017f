//! One look at all counters.

/// Readings of one look at most: 500 targets of Lustre with all their histograms are half of it.
pub const READINGS_MAX: usize = 200_000;

/// Bytes of a target's or a counter's name at most: a path is the longest of them.
pub const NAME_MAX: usize = 4096;

/// One counter of one target at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Where it comes from: `disk`, `xfs`, `ext4`, `lustre`, `nfs`, `net`, `tcp`, `pressure`,
    /// `cpu` ...
    pub source: &'static str,
    /// Of which disk, mount, interface, processor; `all` where the source does not tell them
    /// apart.
    pub target: String,
    /// What is counted, with its unit at the end.
    pub counter: String,
    /// How much so far.
    pub value: u64,
}

/// Readings, up to [`READINGS_MAX`].
#[derive(Debug, Default)]
pub struct Readings {
    all: Vec<Reading>,
    dropped: u64,
}

impl Readings {
    /// Adds one; what finds no room, or has a name that nobody gives, is counted and dropped.
    pub fn add(&mut self, source: &'static str, target: &str, counter: impl Into<String>, value: u64) {
        let counter = counter.into();
        if self.all.len() >= READINGS_MAX || target.len() > NAME_MAX || counter.len() > NAME_MAX {
            self.dropped += 1;
            return;
        }
        self.all.push(Reading { source, target: target.to_owned(), counter, value });
    }

    /// All of them, in the order in which they were read.
    pub fn all(&self) -> &[Reading] {
        &self.all
    }

    /// How many found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The value of a counter; `None` where nothing counts it.
    pub fn value(&self, source: &str, target: &str, counter: &str) -> Option<u64> {
        let is = |one: &&Reading| one.source == source && one.target == target && one.counter == counter;
        self.all.iter().find(is).map(|one| one.value)
    }
}

/// The number at a place of a line.
pub(super) fn number(words: &[&str], at: usize) -> Option<u64> {
    words.get(at)?.parse().ok()
}
