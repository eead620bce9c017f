//! Trees with everything that a file system holds, and what of two of them differs.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use serde_json::Value;

use crate::common::{Output, TEST_MAX, aqueduct, run_within};

/// Bytes that repeat nowhere soon, another sequence for each seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    // Word by word: a build without optimisation took a third of these tests' processor time for it.
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// A tree with all kinds of names, attributes and contents. Device files need a place where they
/// work.
pub fn plant(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("d/e/f")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    (0..100).for_each(|number| fs::write(at(&format!("d/{number}")), format!("file {number}")).unwrap());
    fs::write(at("big"), noise(20_000_003, 1)).unwrap();
    fs::write(at("d/mid"), noise(3_000_000, 2)).unwrap();
    fs::write(at("zero"), "").unwrap();
    fs::write(root.join(std::ffi::OsString::from_vec(b"not\xfftext\n".to_vec())), "x").unwrap();
    fs::hard_link(at("big"), at("d/e/big")).unwrap();
    fs::hard_link(at("d/1"), at("d/e/f/one")).unwrap();
    fs::hard_link(at("d/1"), at("first")).unwrap();
    symlink("../nowhere", at("d/link")).unwrap();
    chown(at("d/2"), Some(1234), Some(4321)).unwrap();
    std::os::unix::fs::lchown(at("d/link"), Some(1234), Some(1)).unwrap();
    fs::set_permissions(at("d/3"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("d/e"), Permissions::from_mode(0o1700)).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket), ("null", FileType::CharacterDevice)] {
        let device = if kind == FileType::CharacterDevice { rustix::fs::makedev(1, 3) } else { 0 };
        rustix::fs::mknodat(CWD, at(&format!("d/{name}")), kind, Mode::from_raw_mode(0o640), device).unwrap();
    }
    let sparse = File::create(at("sparse")).unwrap();
    sparse.set_len(30 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 12 << 20).unwrap();
    let sparse = File::create(at("d/sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all_at(b"near the end", 1_000_000).unwrap();
    for (name, value) in [("user.one", b"1".as_slice()), ("user.two", &[0, 255, 10])] {
        // Not every file system has them.
        let _ = rustix::fs::setxattr(at("d/4"), name, value, XattrFlags::empty());
        let _ = rustix::fs::setxattr(at("d"), name, value, XattrFlags::empty());
    }
    acl(&at("d/5"), "system.posix_acl_access");
    acl(&at("empty"), "system.posix_acl_default");
    for (name, seconds, nanos) in [("d/6", 981_173_106, 123_456_789), ("d/7", -5, 1), ("d/e/f", 1_000_000_000, 7)] {
        set_time(&at(name), seconds, nanos);
    }
}

/// An access control list with a named user.
pub fn acl(path: &Path, name: &str) {
    let entry =
        |tag: u16, bits: u16, id: u32| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
    let nobody = u32::MAX;
    let entries = [(1, 6, nobody), (2, 4, 1000), (4, 4, nobody), (16, 6, nobody), (32, 0, nobody)];
    let list: Vec<u8> = entries.into_iter().flat_map(|(tag, bits, id)| entry(tag, bits, id)).collect();
    let _ = rustix::fs::setxattr(path, name, &[&2u32.to_le_bytes()[..], &list].concat(), XattrFlags::empty());
}

pub fn set_time(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// What of a name has to be the same in a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    what: String,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Option<blake3::Hash>,
    /// The first name of the same inode.
    first: Option<PathBuf>,
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = [0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let value = |name: &[u8]| {
        let mut value = [0; 4096];
        let length = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value).unwrap();
        value[..length].to_vec()
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// Everything below a directory.
pub fn names(root: &Path) -> BTreeMap<PathBuf, Name> {
    let mut found = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let whole = root.join(&path);
        let stat = fs::symlink_metadata(&whole).unwrap();
        if stat.is_dir() {
            waiting.extend(fs::read_dir(&whole).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        let is_device = stat.file_type().is_char_device() || stat.file_type().is_block_device();
        let what = format!(
            "{:o} {}:{} {}.{:09} {} {:?}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            if is_device { stat.rdev() } else { 0 },
            fs::read_link(&whole).ok(),
        );
        let content = stat.is_file().then(|| blake3::hash(&fs::read(&whole).unwrap()));
        found.insert(path.clone(), Name { what, xattrs: xattrs(&whole), content, first: None });
        if !stat.is_dir() && stat.nlink() > 1 {
            firsts.entry(stat.ino()).or_insert_with(Vec::new).push(path);
        }
    }
    for paths in firsts.values_mut() {
        paths.sort();
        paths.iter().for_each(|path| found.get_mut(path).unwrap().first = Some(paths[0].clone()));
    }
    found
}

#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (names(one), names(other));
    for (path, name) in &one {
        assert_eq!(Some(name), other.get(path), "{}", path.display());
    }
    let more: Vec<_> = other.keys().filter(|path| !one.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?}");
}

/// Runs the program; each test's journals are its own.
pub fn transfer(journals: &Path, arguments: &[&str]) -> Output {
    run_within(TEST_MAX, command(journals, arguments))
}

pub fn command<'a>(journals: &Path, arguments: &[&str]) -> &'a mut Command {
    let mut command = aqueduct();
    command.args(arguments);
    if arguments[0] != "verify" {
        command.arg("--journal").arg(journals);
    }
    Box::leak(Box::new(command))
}

/// Runs it with --json; what it says.
pub fn told(journals: &Path, arguments: &[&str]) -> (i32, Value) {
    let output = transfer(journals, &[arguments, &["--json"]].concat());
    let text = serde_json::from_str(&output.text).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code().unwrap(), text)
}

/// All lines of a manifest but the last, which says how it was made.
pub fn body(manifest: &Path) -> String {
    let text = fs::read_to_string(manifest).unwrap();
    let (body, last) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(last.starts_with("{\"aqueduct_manifest\":1"), "{last}");
    body.to_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
