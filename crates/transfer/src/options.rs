//! What is wanted of a copy.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::filter::Filter;

/// How it is checked that data arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// What travels over a network has checksums, which the destination compares before it writes.
    #[default]
    Wire,
    /// What was written is read back after the flush, past what is kept of it where that can be,
    /// and its hash compared with that of what was read.
    Stable,
    /// Not at all.
    Off,
}

/// What is wanted of a copy. What is skipped when it is written matters to one process only.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Directories are copied with what is in them.
    pub recursive: bool,
    /// What has the size and time of its source is left as it is.
    pub update: bool,
    /// What has the size of its source is compared by content.
    pub checksum: bool,
    /// What is there is left as it is.
    pub no_clobber: bool,
    /// What has no source is removed, after everything was copied.
    pub delete: bool,
    /// More than so many are not removed, and then none.
    pub delete_max: Option<u64>,
    /// Nothing is changed.
    #[serde(skip)]
    pub dry_run: bool,
    /// How it is checked that data arrived.
    pub verify: Verify,
    /// Files that are in an archive alone are recalled.
    pub recall: bool,
    /// Nothing is made stable before it has its name.
    pub no_flush: bool,
    /// The hash of each file is kept, for a manifest.
    pub hashes: bool,
    /// Where the manifest is written.
    #[serde(skip)]
    pub manifest: Option<PathBuf>,
    /// Threads that copy; `None`: as many as suit the sides.
    #[serde(skip)]
    pub streams: Option<usize>,
    /// The number of threads is found while they copy, unless it is given.
    #[serde(skip)]
    pub tune: bool,
    /// Bytes in a second, at most.
    pub rate: Option<u64>,
    /// What of the source is meant.
    pub filter: Filter,
    /// What an earlier run of the same copy did is not done again.
    #[serde(skip)]
    pub resume: bool,
    /// Where journals are kept; `None`: none is.
    #[serde(skip)]
    pub journals: Option<PathBuf>,
    /// Somebody may end it by this.
    #[serde(skip)]
    pub stop: Option<Arc<AtomicBool>>,
    /// Where it is told, to those of this user, how the copy goes; `None`: nowhere.
    #[serde(skip)]
    pub told_in: Option<PathBuf>,
    /// Each path that is copied or removed is told.
    pub is_verbose: bool,
}

impl Options {
    /// Whether the hash of each file is needed.
    pub fn hashes(&self) -> bool {
        self.hashes || self.manifest.is_some()
    }
}
