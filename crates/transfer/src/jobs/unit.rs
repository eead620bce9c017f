//! What of a job is claimed, and what comes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_fs::{Attr, Handle, Time};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::job::below;
use crate::manifest::Text;
use crate::outcome::{Lost, Trouble};
use crate::side::Seen;
use crate::store::{Chunk, Entry};

/// Larger files are copied in parts, by whichever agents are free.
pub const SHARED_MIN: u64 = 64 << 20;

/// What of a job is claimed. Paths are below the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Unit {
    /// Goes through a directory: makes it, and hands on what is in it.
    Directory { base: usize, path: Text },
    /// Copies names of one directory.
    Files { base: usize, directory: Text, is_new: bool, names: Vec<Text> },
    /// Begins a file that is copied in parts.
    Large { base: usize, path: Text, tries: u32 },
    /// Copies chunks of it, of this try.
    Chunks {
        path: Text,
        first: u64,
        count: u64,
        #[serde(default)]
        tries: u32,
    },
    /// Gives it its attributes and its name.
    Finish { path: Text, tries: u32 },
    /// Copies all names of some inodes.
    Links { names: Vec<(usize, Text)> },
    /// Gives directories their attributes.
    Attributes { paths: Vec<Text> },
    /// Removes what the source does not have.
    Delete,
    /// Removes what a cancelled job has left.
    Sweep,
}

impl Unit {
    /// The path that it is about, or that of the first of several.
    pub fn path(&self) -> Vec<u8> {
        let bytes = |text: &Text| text.bytes().unwrap_or_default();
        match self {
            Unit::Directory { path, .. }
            | Unit::Large { path, .. }
            | Unit::Chunks { path, .. }
            | Unit::Finish { path, .. } => bytes(path),
            Unit::Files { directory, names, .. } => {
                names.first().map_or_else(|| bytes(directory), |name| below(&bytes(directory), &bytes(name)))
            }
            Unit::Links { names } => names.first().map(|(_, path)| bytes(path)).unwrap_or_default(),
            Unit::Attributes { paths } => paths.first().map(bytes).unwrap_or_default(),
            Unit::Delete | Unit::Sweep => Vec::new(),
        }
    }
}

/// A unit that an agent has.
pub struct Claimed {
    /// Its number.
    pub id: i64,
    /// Of which job.
    pub job: i64,
    /// How often it was claimed.
    pub fence: i32,
    /// Whose it is.
    pub agent: i64,
    /// What is to be done.
    pub unit: Unit,
    /// As long as which it is claimed.
    pub lease: Arc<crate::claim::Lease>,
}

impl Claimed {
    /// Somebody else may have done a part of it.
    pub fn redoes(&self) -> bool {
        self.fence > 1
    }
}

/// A directory that was gone through.
pub struct Gone {
    pub base: usize,
    pub path: Vec<u8>,
    pub seen: Seen,
}

/// A large file under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Large {
    /// Under which base it is, and which try this is.
    pub base: usize,
    pub tries: u32,
    /// Its temporary name.
    pub part: Text,
    /// What has it.
    pub target: Kept,
    /// The source as it was when it was begun.
    pub source: Kept,
    /// What had its name at the destination.
    pub present: Option<Kept>,
    /// The length of its chunks, and how many there are.
    pub chunk: u64,
    pub count: u64,
}

impl Large {
    /// As the store keeps it, which differs from that of any other try.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a file under way has only what JSON can hold")
    }
}

/// What becomes of a large file.
pub enum Step {
    /// It is begun.
    Begun(Box<Large>),
    /// These chunks of it are stable.
    Written { of: Box<Large>, chunks: Vec<Chunk> },
    /// It is done, or not wanted any more.
    Ended,
    /// It is begun anew, or not.
    Failed { of: Box<Large>, again: Option<Unit> },
}

/// What came of a unit.
#[derive(Default)]
pub struct Outcome {
    /// What is to be done next.
    pub next: Vec<Unit>,
    /// The unit is tried again after so many seconds, as this.
    pub again: Option<(Unit, f64)>,
    /// Lines of the manifest.
    pub entries: Vec<Entry>,
    /// Names of inodes with several: the inode, the base, the path.
    pub links: Vec<(Vec<u8>, usize, Vec<u8>)>,
    /// A directory that was gone through.
    pub directory: Option<Gone>,
    /// What became of a large file, by its path.
    pub large: Option<(Vec<u8>, Step)>,
    /// What was done.
    pub tally: BTreeMap<String, i64>,
    /// What was not.
    pub troubles: Vec<Trouble>,
    /// What the destination cannot hold.
    pub lost: Vec<Lost>,
    /// Why nothing was deleted.
    pub not_deleted: Option<String>,
    /// What was copied and removed, if that is to be told of each path.
    pub said: Vec<String>,
    /// Temporary files may be left, which are removed in the end.
    pub leaves_parts: bool,
}

/// An inode as it was seen, kept as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    numbers: [u64; 10],
    times: [(i64, u32); 4],
    handle: Option<String>,
}

impl Kept {
    /// Keeps it.
    pub fn new(seen: &Seen) -> Kept {
        let Attr { ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, atime, mtime, ctime, btime } = seen.attr;
        let [mode, nlink, uid, gid, blksize] = [mode, nlink, uid, gid, blksize].map(u64::from);
        Kept {
            numbers: [ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, seen.device],
            times: [atime, mtime, ctime, btime].map(|time| (time.seconds, time.nanos)),
            handle: seen.handle.as_ref().map(|handle| STANDARD.encode(handle.bytes())),
        }
    }

    /// As it was seen; `None`: the text is none of ours.
    pub fn seen(&self) -> Option<Seen> {
        let [ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, device] = self.numbers;
        let small = |number: u64| u32::try_from(number).ok();
        let [atime, mtime, ctime, btime] = self.times.map(|(seconds, nanos)| Time { seconds, nanos });
        let (mode, nlink, blksize) = (small(mode)?, small(nlink)?, small(blksize)?);
        let (uid, gid) = (small(uid)?, small(gid)?);
        let attr = Attr { ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, atime, mtime, ctime, btime };
        let handle = match &self.handle {
            Some(text) => Some(Handle::new(&STANDARD.decode(text).ok()?)?),
            None => None,
        };
        Some(Seen { attr, device, handle })
    }
}

impl Claimed {
    /// The claim, for what is done under it.
    pub fn claim(&self, is_ended: Arc<std::sync::atomic::AtomicBool>) -> Claim {
        Claim { lease: self.lease.clone(), is_ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_seen() {
        let time = |seconds| Time { seconds, nanos: 999_999_999 };
        let attr = Attr { ino: u64::MAX, mode: 0o100_644, atime: time(-1), mtime: time(2), ..Attr::default() };
        for handle in [None, Handle::new(&[0, 255, 7])] {
            let seen = Seen { attr, device: 77, handle };
            let text = serde_json::to_string(&Kept::new(&seen)).unwrap();
            assert_eq!(serde_json::from_str::<Kept>(&text).unwrap().seen(), Some(seen));
        }
    }

    #[test]
    fn units_are_read_as_they_were_written() {
        let unit = Unit::Links { names: vec![(1, Text::new(b"\xff")), (0, Text::new(b"a/b"))] };
        let text = serde_json::to_string(&unit).unwrap();
        assert_eq!(serde_json::from_str::<Unit>(&text).unwrap(), unit);
    }
}
