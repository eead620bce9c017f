//! All that a view holds, to be compared as a whole.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::{self, Errno};

use super::{attributes, names};
use crate::generate::{HIGH, WINDOW, XATTRS};
use crate::op::Path;
use crate::outcome::Attributes;

/// What the sweep saw of one name.
#[derive(Clone, PartialEq, Eq)]
pub struct Found {
    pub path: Path,
    attributes: Attributes,
    content: u64,
    xattrs: Vec<(String, Vec<u8>)>,
}

/// Everything, in the order of the names; or what could not be looked at.
pub type Swept = Result<Vec<Found>, (Path, Errno)>;

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = crate::Outcome::Attributes(self.attributes.clone());
        write!(f, "{:?}: {outcome:?}, content {:016x}, xattrs {:?}", self.path, self.content, self.xattrs)
    }
}

/// Everything below the root, in the order of the names.
pub fn sweep() -> Swept {
    let mut found = Vec::new();
    let mut pending = vec![Path(b".".to_vec())];
    while let Some(directory) = pending.pop() {
        let failed = |errno| (directory.clone(), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::openat(CWD, directory.0.as_slice(), flags, Mode::empty()).map_err(failed)?;
        for (name, kind) in names::list(std::os::fd::AsFd::as_fd(&fd)).map_err(failed)? {
            let path = Path([directory.0.as_slice(), b"/", name.0.as_slice()].concat());
            found.push(look(&path, kind).map_err(|errno| (path.clone(), errno))?);
            if kind == FileType::Directory {
                pending.push(path);
            }
        }
    }
    found.sort_by(|a, b| a.path.0.cmp(&b.path.0));
    Ok(found)
}

fn look(path: &Path, kind: FileType) -> Result<Found, Errno> {
    let stat = fs::statat(CWD, path.0.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
    let mut hasher = DefaultHasher::new();
    match kind {
        FileType::RegularFile => hash_windows(path, &mut hasher)?,
        FileType::Symlink => fs::readlinkat(CWD, path.0.as_slice(), Vec::new())?.as_bytes().hash(&mut hasher),
        _ => {}
    }
    let xattrs = attributes::xattr_values(&path.0, &XATTRS)?;
    Ok(Found { path: path.clone(), attributes: Attributes::new(&stat), content: hasher.finish(), xattrs })
}

/// The windows that sequences write to; reading all of a sparse file of 4 TiB would never end.
fn hash_windows(path: &Path, hasher: &mut DefaultHasher) -> Result<(), Errno> {
    let fd = fs::openat(CWD, path.0.as_slice(), OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let mut buffer = vec![0; 1 << 20];
    for start in [0, HIGH] {
        let mut at = start;
        while at < start + WINDOW {
            let count = io::pread(&fd, &mut buffer, at)?;
            if count == 0 {
                break;
            }
            buffer[..count].hash(hasher);
            at += count as u64;
        }
    }
    Ok(())
}
