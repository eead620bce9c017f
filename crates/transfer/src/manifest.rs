//! What was copied, as lines of JSON in one order, whatever order it was copied in.
//!
//! The body has a line for each name, sorted by the bytes of the path, with a slash behind a
//! directory's. Two copies of one tree have the same body. The last line is the provenance: which
//! program, which checks, and the hash of the body.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use aqueduct_fs::Time;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::hash::Hash;
use crate::side::{Seen, Xattrs};

/// The longest line of a manifest: a path, a link's text and extended attributes, as text.
const LINE_MAX: u64 = 16 << 20;

/// Bytes: as text where they are that, else in base64.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// They are UTF-8.
    Plain(String),
    /// They are not.
    Coded {
        /// The bytes in base64.
        base64: String,
    },
}

impl Text {
    /// For these bytes.
    pub fn new(bytes: &[u8]) -> Text {
        match std::str::from_utf8(bytes) {
            Ok(text) => Text::Plain(text.to_owned()),
            Err(_) => Text::Coded { base64: STANDARD.encode(bytes) },
        }
    }

    /// The bytes again; `None`: what was written is no base64.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Text::Plain(text) => Some(text.clone().into_bytes()),
            Text::Coded { base64 } => STANDARD.decode(base64).ok(),
        }
    }
}

/// A name, as the body has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The path below the root of the copy; the root's own is empty.
    pub path: Text,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `character device`, `block device`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Permissions, octal; none for symbolic links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the data: seconds, a point, nine digits.
    pub mtime: String,
    /// Bytes of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// BLAKE3 of a file, as `b3sum` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b3: Option<String>,
    /// Where a symbolic link points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Text>,
    /// Device number, `major:minor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Extended attributes, ACLs among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, Text>,
    /// The first path that names the same inode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Text>,
}

/// The last line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of the format: 1.
    pub aqueduct_manifest: u32,
    /// BLAKE3 of all lines before, with their ends.
    pub body_b3: String,
    /// Lines before.
    pub lines: u64,
    /// What wrote it.
    pub tool: String,
    /// From where it was copied.
    pub sources: Vec<String>,
    /// And where to.
    pub destination: String,
    /// How many files were checked in which way.
    pub checks: BTreeMap<String, u64>,
    /// Names that were not copied: they are not in the body.
    pub troubles: u64,
    /// What the destination could not hold.
    pub lost: u64,
    /// Where the time went, in percent.
    #[serde(default)]
    pub spent: BTreeMap<String, u32>,
}

/// The name of a type.
pub fn kind_name(kind: u32) -> &'static str {
    match kind {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "character device",
        libc::S_IFBLK => "block device",
        _ => "unknown",
    }
}

fn time(time: Time) -> String {
    format!("{}.{:09}", time.seconds, time.nanos)
}

impl Line {
    /// What was seen of an inode, with what only reading it tells.
    pub fn new(path: &[u8], seen: &Seen, xattrs: &Xattrs, hash: Option<&Hash>, text: Option<&[u8]>) -> Line {
        let attr = &seen.attr;
        let is = |kind: u32| attr.kind() == kind;
        let is_device = is(libc::S_IFCHR) || is(libc::S_IFBLK);
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        Line {
            path: Text::new(path),
            kind: kind_name(attr.kind()).to_owned(),
            mode: (!is(libc::S_IFLNK)).then(|| format!("{:04o}", attr.mode & 0o7777)),
            uid: attr.uid,
            gid: attr.gid,
            mtime: time(attr.mtime),
            size: attr.is_regular().then_some(attr.size),
            b3: hash.map(|hash| hash.to_hex().to_string()),
            target: text.map(Text::new),
            device: is_device.then(|| format!("{}:{}", attr.rdev >> 32, attr.rdev as u32)),
            xattrs: xattrs.iter().map(|(key, value)| (name(key), Text::new(value))).collect(),
            link: None,
        }
    }

    /// As it is written, without its end.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a line has only what JSON can hold")
    }
}

/// Writes lines, and hashes them on the way.
pub struct Writer<W: Write> {
    out: W,
    hasher: blake3::Hasher,
    lines: u64,
}

impl<W: Write> Writer<W> {
    /// Writes there.
    pub fn new(out: W) -> Writer<W> {
        Writer { out, hasher: blake3::Hasher::new(), lines: 0 }
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        for part in [line.as_bytes(), b"\n"] {
            self.hasher.update(part);
            self.out.write_all(part)?;
        }
        self.lines += 1;
        Ok(())
    }

    /// Writes the last line, which `complete` finishes with the hash and the number of those
    /// before.
    pub fn finish(mut self, complete: impl FnOnce(String, u64) -> Provenance) -> io::Result<W> {
        let provenance = complete(self.hasher.finalize().to_hex().to_string(), self.lines);
        serde_json::to_writer(&mut self.out, &provenance)?;
        self.out.write_all(b"\n")?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Why a manifest cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line is none of a manifest.
    #[error("line {0} is none of a manifest: {1}")]
    Line(u64, serde_json::Error),
    /// A line is longer than any that is written.
    #[error("line {0} is longer than {LINE_MAX} bytes")]
    Long(u64),
    /// The last line is missing.
    #[error("its last line is missing: it was cut off")]
    Cut,
    /// The lines are not those that were written.
    #[error("its lines are not those that were written: their hash is another")]
    Hash,
    /// There is more than was written.
    #[error("its lines are not those that were written: there are more behind its last")]
    Behind,
    /// It was written by another version.
    #[error("it has the format {0}, and this release knows 1")]
    Version(u32),
}

/// Reads a manifest up to its last line. `each` is given the lines one by one: what it learns
/// counts only if the whole is good.
pub fn read(
    input: &mut impl BufRead,
    mut each: impl FnMut(Line) -> Result<(), io::Error>,
) -> Result<Provenance, ManifestError> {
    let (mut hasher, mut number) = (blake3::Hasher::new(), 0);
    let mut text = String::new();
    loop {
        text.clear();
        number += 1;
        let length = io::Read::take(&mut *input, LINE_MAX).read_line(&mut text)?;
        if length == 0 {
            return Err(ManifestError::Cut);
        }
        if !text.ends_with('\n') && length as u64 == LINE_MAX {
            return Err(ManifestError::Long(number));
        }
        if text.starts_with("{\"aqueduct_manifest\":") {
            let provenance: Provenance =
                serde_json::from_str(&text).map_err(|error| ManifestError::Line(number, error))?;
            return match () {
                () if provenance.aqueduct_manifest != 1 => Err(ManifestError::Version(provenance.aqueduct_manifest)),
                () if provenance.body_b3 != hasher.finalize().to_hex().as_str() => Err(ManifestError::Hash),
                () => Ok(provenance),
            };
        }
        hasher.update(text.as_bytes());
        each(serde_json::from_str(&text).map_err(|error| ManifestError::Line(number, error))?)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn provenance(body_b3: String, lines: u64) -> Provenance {
        let (sources, destination) = (vec!["a".to_owned()], "b".to_owned());
        let (checks, spent, tool) = (BTreeMap::new(), BTreeMap::new(), "test".to_owned());
        Provenance {
            aqueduct_manifest: 1,
            body_b3,
            lines,
            tool,
            sources,
            destination,
            checks,
            troubles: 0,
            lost: 0,
            spent,
        }
    }

    fn line(path: &[u8]) -> Line {
        let seen = Seen { attr: aqueduct_fs::Attr { mode: 0o100_644, ..Default::default() }, device: 0, handle: None };
        Line::new(path, &seen, &vec![(b"user.a".to_vec(), vec![0xff])], None, None)
    }

    fn written(lines: &[Line]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        lines.iter().for_each(|line| writer.line(&line.text()).unwrap());
        writer.finish(provenance).unwrap()
    }

    fn lines_of(mut text: &[u8]) -> Result<Vec<Line>, ManifestError> {
        let mut lines = Vec::new();
        read(&mut text, |line| {
            lines.push(line);
            Ok(())
        })
        .map(|_| lines)
    }

    #[test]
    fn what_was_changed_or_cut_is_noticed() {
        let lines = [line(b"a"), line(b"\xff\xfe")];
        let text = written(&lines);
        assert_eq!(lines_of(&text).unwrap(), lines);
        assert_eq!(lines[1].path.bytes().unwrap(), b"\xff\xfe");
        let whole = String::from_utf8(text).unwrap();
        let changed = whole.replacen("0644", "0645", 1);
        assert!(matches!(lines_of(changed.as_bytes()), Err(ManifestError::Hash)));
        let cut = &whole[..whole.find("\n{\"aqueduct").unwrap() + 1];
        assert!(matches!(lines_of(cut.as_bytes()), Err(ManifestError::Cut)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..400) {
            let _ = lines_of(&bytes);
            let mut text = written(&[line(b"a")]);
            let at = at % text.len();
            text.splice(at..at, bytes);
            let _ = lines_of(&text);
        }
    }
}
