//! What an operation gave, without what two file systems may differ in.

use std::fmt;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::op::Path;

/// Modification times before this (2020-01-01) were set by the test; later ones are "now" and are not compared any closer.
const SET_BY_TEST_BEFORE: i64 = 1_577_836_800;

/// The attributes that must agree: no inode number, block count, change or access time; no size or link count of directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Not of directories.
    pub links: Option<u64>,
    /// Of files and symbolic links.
    pub size: Option<i64>,
    /// Of devices.
    pub device: Option<u64>,
    /// Exact when the test set it.
    pub modified: Option<(i64, i64)>,
}

impl Attributes {
    /// What is compared of `stat`.
    pub fn new(stat: &Stat) -> Self {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        Self {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: (kind != FileType::Directory).then_some(stat.st_nlink),
            size: matches!(kind, FileType::RegularFile | FileType::Symlink).then_some(stat.st_size),
            device: device.then_some(stat.st_rdev),
            modified: (stat.st_mtime < SET_BY_TEST_BEFORE).then_some((stat.st_mtime, stat.st_mtime_nsec as i64)),
        }
    }
}

/// The result of an operation, in the form that is compared.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded, and there is nothing more to say.
    Done,
    /// It failed.
    Failed(Errno),
    /// A number of bytes, or a position.
    Count(u64),
    /// Data, a link's text, an attribute's value.
    Bytes(Vec<u8>),
    /// What stat(2) said.
    Attributes(Attributes),
    /// Names, sorted.
    Names(Vec<(Path, FileType)>),
    /// Yes or no.
    Flag(bool),
    /// Nothing was done, for this reason.
    Skipped(&'static str),
    /// The file system contradicted itself.
    Illegal(String),
}

impl From<Errno> for Outcome {
    fn from(errno: Errno) -> Self {
        Outcome::Failed(errno)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => write!(f, "done"),
            Outcome::Failed(errno) => write!(f, "{errno}"),
            Outcome::Count(count) => write!(f, "{count}"),
            Outcome::Bytes(bytes) => {
                write!(f, "{} bytes", bytes.len())?;
                let nonzero = bytes.iter().position(|&b| b != 0);
                match nonzero {
                    _ if bytes.len() <= 48 => write!(f, " {:02x?}", bytes),
                    Some(at) => write!(f, ", zero until {at}, then {:02x?}", &bytes[at..bytes.len().min(at + 16)]),
                    None => write!(f, ", all zero"),
                }
            }
            Outcome::Attributes(a) => {
                write!(f, "mode {:o} uid {} gid {}", a.mode, a.uid, a.gid)?;
                write!(f, " links {:?} size {:?} device {:?} modified {:?}", a.links, a.size, a.device, a.modified)
            }
            Outcome::Names(names) => write!(f, "{names:?}"),
            Outcome::Flag(flag) => write!(f, "{flag}"),
            Outcome::Skipped(why) => write!(f, "skipped: {why}"),
            Outcome::Illegal(what) => write!(f, "illegal: {what}"),
        }
    }
}

/// Where two outcomes first differ, when that is not plain from their text.
pub fn first_difference(reference: &Outcome, subject: &Outcome) -> Option<String> {
    let (Outcome::Bytes(a), Outcome::Bytes(b)) = (reference, subject) else { return None };
    let at = a.iter().zip(b).position(|(a, b)| a != b)?;
    let last = a.iter().zip(b).rposition(|(a, b)| a != b)?;
    Some(format!("bytes {at} to {last} differ: reference {:02x} there, subject {:02x}", a[at], b[at]))
}
