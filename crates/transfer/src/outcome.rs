//! What came of a copy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aqueduct_fs::Errno;
use aqueduct_worker::lock;
use serde::{Deserialize, Serialize};

use crate::ledger::{STAGES, Sides, limit, spent};

/// The most troubles, and losses, that are told one by one: the others are counted.
const TOLD_MAX: usize = 1000;

/// Something that was not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The path below the root of the copy, as far as it is text.
    pub path: String,
    /// What was tried.
    pub what: String,
    /// Why it failed.
    pub why: String,
}

/// Something that was copied, without what the destination cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The path below the root of the copy.
    pub path: String,
    /// What is lost.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Why one item could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Fault {
    /// What was tried.
    pub what: &'static str,
    /// Why it failed.
    pub why: String,
    /// The source changed meanwhile, or the flush failed: it may be tried again.
    pub is_passing: bool,
}

impl Fault {
    /// A fault of what was tried.
    pub fn new(what: &'static str, why: impl ToString) -> Fault {
        Fault { what, why: why.to_string(), is_passing: false }
    }

    /// The source changed while it was read.
    pub fn changed() -> Fault {
        Fault { is_passing: true, ..Fault::new("reading it", "it changed while it was copied") }
    }
}

/// Says what was tried, of an operation that failed.
pub trait Trying<T> {
    /// Says what was tried.
    fn trying(self, what: &'static str) -> Result<T, Fault>;
}

impl<T> Trying<T> for Result<T, Errno> {
    fn trying(self, what: &'static str) -> Result<T, Fault> {
        self.map_err(|error| Fault::new(what, error))
    }
}

/// What was done, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Regular files that were copied.
    pub files: u64,
    /// Their bytes, holes included.
    pub bytes: u64,
    /// Bytes of data that were read and written, holes left out.
    pub moved: u64,
    /// Directories that were made in the destination.
    pub directories: u64,
    /// Further names of files that were made.
    pub links: u64,
    /// Symbolic links, devices, fifos and sockets.
    pub others: u64,
    /// Names that were there already as they should be.
    pub unchanged: u64,
    /// Files that had their content already, and directories that were there, and got other
    /// attributes.
    pub attributes: u64,
    /// Names that were left as they are since they were there, or directories without -r.
    pub skipped: u64,
    /// Temporary names at the source of copies into it that have not ended: they are left out.
    pub unfinished: u64,
    /// Names that were removed.
    pub deleted: u64,
    /// Names of another type that made way for what was copied.
    pub replaced: u64,
    /// Files that an earlier run of this copy had done.
    pub resumed: u64,
}

/// The same while it grows.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "see Counts")]
pub struct Counting {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
    pub moved: AtomicU64,
    pub directories: AtomicU64,
    pub links: AtomicU64,
    pub others: AtomicU64,
    pub unchanged: AtomicU64,
    pub attributes: AtomicU64,
    pub skipped: AtomicU64,
    pub unfinished: AtomicU64,
    pub deleted: AtomicU64,
    pub replaced: AtomicU64,
    pub resumed: AtomicU64,
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counting {
    /// As it is now.
    pub fn now(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            files: read(&self.files),
            bytes: read(&self.bytes),
            moved: read(&self.moved),
            directories: read(&self.directories),
            links: read(&self.links),
            others: read(&self.others),
            unchanged: read(&self.unchanged),
            attributes: read(&self.attributes),
            skipped: read(&self.skipped),
            unfinished: read(&self.unfinished),
            deleted: read(&self.deleted),
            replaced: read(&self.replaced),
            resumed: read(&self.resumed),
        }
    }
}

/// Troubles and losses as they come.
#[derive(Debug, Default)]
pub struct Told {
    troubles: Mutex<Vec<Trouble>>,
    trouble_count: AtomicU64,
    lost: Mutex<Vec<Lost>>,
    lost_count: AtomicU64,
    checks: Mutex<BTreeMap<Cow<'static, str>, u64>>,
}

/// What was told in all.
#[allow(missing_docs, reason = "see Summary")]
#[derive(Debug, Default)]
pub struct AllTold {
    pub troubles: Vec<Trouble>,
    pub trouble_count: u64,
    pub lost: Vec<Lost>,
    pub lost_count: u64,
    pub checks: BTreeMap<Cow<'static, str>, u64>,
}

fn inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(|poison| poison.into_inner())
}

fn push<T>(list: &Mutex<Vec<T>>, count: &AtomicU64, item: T) {
    add(count, 1);
    let mut list = lock(list);
    if list.len() < TOLD_MAX {
        list.push(item);
    }
}

impl Told {
    /// Something was not copied.
    pub fn trouble(&self, path: &[u8], fault: &Fault) {
        let trouble = Trouble { path: shown(path), what: fault.what.to_owned(), why: fault.why.clone() };
        tracing::debug!("{}: {fault}", trouble.path);
        push(&self.troubles, &self.trouble_count, trouble);
    }

    /// Something could not be held.
    pub fn lost(&self, path: &[u8], what: String, why: Errno) {
        push(&self.lost, &self.lost_count, Lost { path: shown(path), what, why: why.to_string() });
    }

    /// A file's data were checked in this way.
    pub fn checked(&self, check: &'static str) {
        *lock(&self.checks).entry(check.into()).or_default() += 1;
    }

    /// The troubles alone, and how many there were.
    pub fn into_troubles(self) -> (Vec<Trouble>, u64) {
        (inner(self.troubles), self.trouble_count.into_inner())
    }

    /// The troubles, what was lost, and how much of both; and the checks.
    pub fn into_all(self) -> AllTold {
        let (troubles, lost) = (inner(self.troubles), inner(self.lost));
        let [trouble_count, lost_count] = [self.trouble_count, self.lost_count].map(AtomicU64::into_inner);
        AllTold { troubles, trouble_count, lost, lost_count, checks: inner(self.checks) }
    }

    /// So many troubles so far.
    pub fn troubles(&self) -> u64 {
        self.trouble_count.load(Ordering::Relaxed)
    }
}

/// A path as text: names are anybody's, and may hold what changes a terminal.
pub fn shown(path: &[u8]) -> String {
    let text = if path.is_empty() { ".".into() } else { String::from_utf8_lossy(path) };
    text.chars().map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// What came of a copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// What was done.
    #[serde(flatten)]
    pub counts: Counts,
    /// Whether it was only looked at what would be done.
    pub dry_run: bool,
    /// Threads that copied in the end; `None`: agents did.
    pub streams: Option<usize>,
    /// Bytes that each of them read and wrote at a time in the end; `None`: agents did.
    #[serde(default)]
    pub step: Option<usize>,
    /// From the first look to the end.
    pub seconds: f64,
    /// How many files were checked in which way.
    pub checks: BTreeMap<Cow<'static, str>, u64>,
    /// What was not copied: the first of it.
    pub troubles: Vec<Trouble>,
    /// How much was not copied.
    pub trouble_count: u64,
    /// What the destination could not hold: the first of it.
    pub lost: Vec<Lost>,
    /// How much it could not hold.
    pub lost_count: u64,
    /// The threads' time by stages, in parts of 1.
    pub ledger: BTreeMap<Cow<'static, str>, f64>,
    /// Where that time went, in percent that add up to 100.
    pub spent: BTreeMap<Cow<'static, str>, u32>,
    /// The stage in which most of the time went, but for waiting.
    pub limit: Option<Cow<'static, str>>,
    /// Why nothing was deleted, or not all, though it was asked for.
    pub not_deleted: Option<String>,
}

/// What a summary counts by kinds, as a manifest has it.
pub fn by_kind<T: Copy>(counts: &BTreeMap<Cow<'static, str>, T>) -> BTreeMap<String, T> {
    counts.iter().map(|(kind, count)| (kind.to_string(), *count)).collect()
}

impl Summary {
    /// From what was told and counted.
    pub fn new(told: AllTold, counts: Counts, seconds: f64, stages: [Duration; STAGES.len()], sides: Sides) -> Summary {
        let (spent, limit) = (spent(stages, sides), limit(stages));
        let stages = stages.map(|time| time.as_secs_f64());
        let whole: f64 = stages.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let ledger = STAGES.iter().zip(stages).map(|((_, name), time)| ((*name).into(), time / whole)).collect();
        Summary {
            counts,
            dry_run: false,
            streams: None,
            step: None,
            seconds,
            checks: told.checks,
            troubles: told.troubles,
            trouble_count: told.trouble_count,
            lost: told.lost,
            lost_count: told.lost_count,
            ledger,
            spent: spent.into_iter().map(|(what, percent)| (what.into(), percent)).collect(),
            limit: limit.map(Cow::Borrowed),
            not_deleted: None,
        }
    }
}
