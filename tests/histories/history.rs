//! What was done and seen.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// Bytes of a block: two share a page.
pub const BLOCK: usize = 2048;

/// Blocks of a file, at most.
pub const BLOCKS: usize = 5;

/// Bytes of a word. A block is written full of one word.
pub const WORD: usize = 8;

/// A page of memory. The blocks of the mapped file have one each: msync writes whole pages.
pub const PAGE: usize = 4096;

/// Bytes of an appended record, full of one word. No record crosses a page.
pub const RECORD: usize = 32;

/// Names that are made, renamed and removed.
pub const NAMES: usize = 7;

/// The names; those after the [`FILES`] are only linked and removed: a rename between two names of one file does nothing.
pub const PATHS: [&str; NAMES] = ["one/a", "one/b", "two/a", "two/b", "one/c", "one/link", "two/link"];

/// The first names, by which files are made, opened and renamed.
pub const FILES: usize = 5;

pub const DIRECTORIES: [&str; 2] = ["one", "two"];

/// Files that are always there.
pub const LOG: &str = "log";
pub const PAGES: &str = "pages";
pub const LOCK: &str = "lock";

/// What is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    Name(usize),
    Log,
    Pages,
    Lock,
}

impl Place {
    pub fn path(self) -> &'static str {
        match self {
            Place::Name(name) => PATHS[name],
            Place::Log => LOG,
            Place::Pages => PAGES,
            Place::Lock => LOCK,
        }
    }
}

/// How it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Read,
    Write,
    Truncate,
    /// Made if it is not there.
    Make,
    /// Made, or EEXIST.
    MakeNew,
    Append,
}

/// A system call, or a few that no other program could tell apart from one. Handles are a worker's own numbers, new with each open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    Open {
        handle: u32,
        place: Place,
        how: How,
    },
    Close {
        handle: u32,
    },
    /// So many blocks from this one on.
    Read {
        handle: u32,
        block: usize,
        count: usize,
    },
    Write {
        handle: u32,
        block: usize,
        count: usize,
        token: u64,
    },
    Sync {
        handle: u32,
    },
    Resize {
        handle: u32,
        blocks: usize,
    },
    /// The permissions, and before them times that nobody looks at.
    SetMode {
        handle: u32,
        mode: u32,
    },
    Append {
        handle: u32,
        token: u64,
    },
    ReadLog {
        handle: u32,
    },
    /// Maps the mapped file, stores a block and waits for msync.
    Store {
        handle: u32,
        block: usize,
        token: u64,
    },
    /// Maps the mapped file afresh and reads a block of it.
    Load {
        handle: u32,
        block: usize,
    },
    LookAt {
        handle: u32,
    },
    Stat {
        name: usize,
    },
    Remove {
        name: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
    List {
        directory: usize,
    },
    Lock {
        handle: u32,
        wait: bool,
    },
    Unlock {
        handle: u32,
    },
}

impl Call {
    pub fn handle(&self) -> Option<u32> {
        match *self {
            Call::Open { handle, .. }
            | Call::Close { handle }
            | Call::Read { handle, .. }
            | Call::Write { handle, .. }
            | Call::Sync { handle }
            | Call::Resize { handle, .. }
            | Call::SetMode { handle, .. }
            | Call::Append { handle, .. }
            | Call::ReadLog { handle }
            | Call::Store { handle, .. }
            | Call::Load { handle, .. }
            | Call::LookAt { handle }
            | Call::Lock { handle, .. }
            | Call::Unlock { handle } => Some(handle),
            _ => None,
        }
    }
}

/// What a call gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    Done,
    /// The inode that was opened.
    Node(u64),
    /// Bytes, and at which word a new value begins.
    Words {
        bytes: usize,
        runs: Vec<(usize, u64)>,
    },
    Records(Vec<u64>),
    Attributes {
        node: u64,
        size: u64,
        links: u64,
        mode: u32,
    },
    Names(Vec<(String, u64)>),
}

/// An operation, from before it was called until after it returned, on the clock of the machine in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub worker: usize,
    pub mount: usize,
    pub begin: u64,
    /// `u64::MAX` when nobody saw it return.
    pub end: u64,
    pub call: Call,
    /// None when nobody saw what it gave.
    pub result: Option<Result<Value, i32>>,
}

/// What the server has while nobody works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// Where each name leads.
    pub names: [Option<u64>; NAMES],
    /// The files' content.
    pub files: BTreeMap<u64, Vec<u8>>,
    /// Their permissions.
    pub modes: BTreeMap<u64, u32>,
    pub log: Vec<u64>,
    /// The first word of each page.
    pub pages: Vec<u64>,
}

/// Everything about one history.
#[derive(Clone, Debug)]
pub struct History {
    pub before: Truth,
    pub events: Vec<Event>,
    pub after: Truth,
    /// When `after` was looked at.
    pub ended: u64,
    /// Whether something happened that takes descriptors and outcomes from programs.
    pub may_fail: bool,
    /// What happened when.
    pub troubles: Vec<(u64, String)>,
}

/// The words of some bytes, as runs.
pub fn runs(bytes: &[u8]) -> Vec<(usize, u64)> {
    let mut runs: Vec<(usize, u64)> = Vec::new();
    for (number, word) in bytes.chunks_exact(WORD).enumerate() {
        let word = u64::from_le_bytes(word.try_into().expect("a word"));
        if runs.last().is_none_or(|(_, last)| *last != word) {
            runs.push((number, word));
        }
    }
    runs
}

/// The permissions of files that are made.
pub const MODE: u32 = 0o644;

/// A value that nobody else writes: which history, which worker, which of its writes.
pub fn token(history: u64, worker: usize, number: usize) -> u64 {
    (history + 1) << 24 | (worker as u64 & 0xff) << 16 | (number as u64 & 0xffff)
}

/// As it is shown.
pub fn shown_token(token: u64) -> String {
    match token {
        0 => "0".to_owned(),
        _ => format!("h{}w{}n{}", (token >> 24).wrapping_sub(1), token >> 16 & 0xff, token & 0xffff),
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = |name: &usize| PATHS[*name];
        match self {
            Call::Open { handle, place, how } => write!(f, "#{handle} = open {} {how:?}", place.path()),
            Call::Close { handle } => write!(f, "close #{handle}"),
            Call::Read { handle, block, count } => write!(f, "read #{handle} blocks {block}..{}", block + count),
            Call::Write { handle, block, count, token } => {
                write!(f, "write #{handle} blocks {block}..{} {}", block + count, shown_token(*token))
            }
            Call::Sync { handle } => write!(f, "fsync #{handle}"),
            Call::Resize { handle, blocks } => write!(f, "ftruncate #{handle} to {blocks} blocks"),
            Call::SetMode { handle, mode } => write!(f, "fchmod #{handle} {mode:o}"),
            Call::Append { handle, token } => write!(f, "append #{handle} {}", shown_token(*token)),
            Call::ReadLog { handle } => write!(f, "read #{handle}, the log"),
            Call::Store { handle, block, token } => {
                write!(f, "mmap #{handle}, store page {block} {}, msync", shown_token(*token))
            }
            Call::Load { handle, block } => write!(f, "mmap #{handle}, load page {block}"),
            Call::LookAt { handle } => write!(f, "fstat #{handle}"),
            Call::Stat { name: path } => write!(f, "stat {}", name(path)),
            Call::Remove { name: path } => write!(f, "unlink {}", name(path)),
            Call::Rename { from, to } => write!(f, "rename {} {}", name(from), name(to)),
            Call::Link { from, to } => write!(f, "link {} {}", name(from), name(to)),
            Call::List { directory } => write!(f, "readdir {}", DIRECTORIES[*directory]),
            Call::Lock { handle, wait: true } => write!(f, "lock #{handle}, waiting"),
            Call::Lock { handle, wait: false } => write!(f, "lock #{handle}"),
            Call::Unlock { handle } => write!(f, "unlock #{handle}"),
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Done => write!(f, "done"),
            Value::Node(node) => write!(f, "inode {node}"),
            Value::Words { bytes, runs } => {
                let runs: Vec<_> =
                    runs.iter().map(|(at, word)| format!("{}@{}", shown_token(*word), at * WORD)).collect();
                write!(f, "{bytes} bytes [{}]", runs.join(" "))
            }
            Value::Records(tokens) => {
                let last: Vec<_> = tokens.iter().rev().take(12).rev().map(|token| shown_token(*token)).collect();
                write!(f, "{} records, the last [{}]", tokens.len(), last.join(" "))
            }
            Value::Attributes { node, size, links, mode } => {
                write!(f, "inode {node}, size {size}, {links} links, mode {mode:o}")
            }
            Value::Names(names) => {
                let names: Vec<_> = names.iter().map(|(name, node)| format!("{name}={node}")).collect();
                write!(f, "[{}]", names.join(" "))
            }
        }
    }
}

impl History {
    fn start(&self) -> u64 {
        self.events.iter().map(|event| event.begin).min().unwrap_or_default()
    }

    /// What happened, with its time as in [`line`](History::line).
    pub fn trouble_line(&self, (time, what): &(u64, String)) -> String {
        format!("{:>12.1}  {what}", (*time as f64 - self.start() as f64) / 1000.0)
    }

    /// An operation as a line, its times in microseconds since the history's begin.
    pub fn line(&self, number: usize) -> String {
        let start = self.start();
        let micros = |time: u64| match time {
            u64::MAX => "-".to_owned(),
            _ => format!("{:.1}", (time.saturating_sub(start)) as f64 / 1000.0),
        };
        let Some(event) = self.events.get(number) else {
            return format!("{:>12} {:>12}  the server, in the end", micros(self.ended), micros(self.ended));
        };
        let result = match &event.result {
            None => "?".to_owned(),
            Some(Ok(value)) => value.to_string(),
            Some(Err(errno)) => std::io::Error::from_raw_os_error(*errno).to_string(),
        };
        let times = format!("{:>12} {:>12}", micros(event.begin), micros(event.end));
        format!("{times}  worker {} mount {}: {} -> {result}", event.worker, event.mount, event.call)
    }
}
