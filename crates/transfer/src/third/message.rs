//! What is asked of an agent, and what it answers: the text of TRANSFER, as JSON.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ledger::{STAGES, Watch};
use crate::options::Options;
use crate::outcome::Summary;

/// Letters of a copy's name at most.
pub const NAME_MAX: usize = 64;

/// Sources of one copy at most.
pub const SOURCES_MAX: usize = 256;

/// Bytes of a manifest in one answer: with base64 they are a third more, and fit one frame.
pub const PIECE: u64 = 64 << 10;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Make this copy, unless it was made or is under way.
    Begin(Box<Begin>),
    /// How far is it?
    Look {
        /// Which.
        name: String,
    },
    /// Bytes of its manifest.
    Manifest {
        /// Which.
        name: String,
        /// From where on.
        offset: u64,
    },
    /// End it: what is whole stays.
    Stop {
        /// Which.
        name: String,
    },
}

/// A copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// Follows from what is copied where, and distinguishes it from others of this user.
    pub name: String,
    /// Another for each time that a person asks.
    pub number: String,
    /// From where.
    pub sources: Vec<End>,
    /// Where to.
    pub target: End,
    /// As `Plan::is_sync`.
    pub is_sync: bool,
    /// What is wanted.
    pub options: Options,
    /// What of the options is not kept in stores of jobs.
    pub run: Run,
}

impl Begin {
    /// What is wanted, but for how fast: who wants the same may wait for what comes of another's.
    pub fn wants(&self) -> blake3::Hash {
        let options = Options { rate: None, is_verbose: false, ..self.options.clone() };
        let run = Run { resume: false, tune: false, streams: None, ..self.run.clone() };
        let text = serde_json::to_vec(&(self.is_sync, options, run));
        blake3::hash(&text.expect("what is asked has only what JSON can hold"))
    }
}

/// One side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    /// Its server; `None`: the agent that is asked.
    pub server: Option<String>,
    /// The path there.
    pub path: String,
    /// As `Place::is_content`.
    pub is_content: bool,
    /// As a person wrote it, for the manifest.
    pub written: String,
}

/// How it is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is a field of Options")]
pub struct Run {
    pub resume: bool,
    pub dry_run: bool,
    pub tune: bool,
    pub streams: Option<usize>,
    /// A journal is kept.
    pub journal: bool,
    /// A manifest is wanted.
    pub manifest: bool,
}

/// What the agent says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It is under way.
    Going(Progress),
    /// It was made.
    Ended(Box<Summary>),
    /// It could not be made, or not be begun.
    Failed {
        /// What was tried.
        what: String,
        /// Why it failed.
        why: String,
        /// What to do.
        hint: String,
        /// The other server cannot be had from here.
        is_away: bool,
    },
    /// Nothing is known of it: the agent was started anew.
    Unknown,
    /// Bytes of a manifest in base64; none: it ends there.
    Piece {
        /// They.
        base64: String,
    },
}

/// How far a copy is.
#[derive(Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is a field of Watch")]
pub struct Progress {
    pub bytes: u64,
    pub names: u64,
    pub bytes_found: u64,
    pub names_found: u64,
    pub names_sized: u64,
    pub directories: u64,
    /// Nanoseconds in each stage.
    pub stages: Vec<u64>,
}

impl Progress {
    /// As it is now.
    pub fn of(watch: &Watch) -> Progress {
        Progress {
            bytes: watch.bytes.load(Ordering::Relaxed),
            names: watch.names.load(Ordering::Relaxed),
            bytes_found: watch.bytes_found.load(Ordering::Relaxed),
            names_found: watch.names_found.load(Ordering::Relaxed),
            names_sized: watch.names_sized.load(Ordering::Relaxed),
            directories: watch.directories.load(Ordering::Relaxed),
            stages: watch.stages().iter().map(|time| time.as_nanos() as u64).collect(),
        }
    }

    /// Puts it where somebody looks at it.
    pub fn show(&self, watch: &Watch) {
        watch.bytes.store(self.bytes, Ordering::Relaxed);
        watch.names.store(self.names, Ordering::Relaxed);
        watch.bytes_found.store(self.bytes_found, Ordering::Relaxed);
        watch.names_found.store(self.names_found, Ordering::Relaxed);
        watch.names_sized.store(self.names_sized, Ordering::Relaxed);
        watch.directories.store(self.directories, Ordering::Relaxed);
        let stage = |at: usize| Duration::from_nanos(self.stages.get(at).copied().unwrap_or_default());
        watch.set(std::array::from_fn::<_, { STAGES.len() }, _>(stage));
    }
}
