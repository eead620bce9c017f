//! The mounts of this machine, as the kernel lists them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    pub target: PathBuf,
    pub kind: String,
    pub source: String,
    pub read_only: bool,
}

impl Mount {
    /// Whether it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.aqueduct"
    }
}

/// All mounts that this process sees, in the order in which they were made.
pub fn all() -> std::io::Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let target = PathBuf::from(unescape(fields.nth(4)?));
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field| unescape(field).to_string_lossy().into_owned();
    let kind = text(rest.next()?);
    let source = text(rest.next()?);
    let superblock = rest.next().unwrap_or_default();
    let mut options = options.split(|byte| *byte == b',').chain(superblock.split(|byte| *byte == b','));
    Some(Mount { target, kind, source, read_only: options.any(|option| option == b"ro") })
}

/// Undoes the kernel's `\ooo` for space, tab, newline and backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

/// The path by which the kernel lists a mount point: absolute, links resolved, but without asking what is mounted there, which may never answer.
pub fn mount_point(target: &Path, mounts: &[Mount]) -> PathBuf {
    let target = Path::new(trim_slashes(target));
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = target.file_name() else { return std::fs::canonicalize(target).unwrap_or_else(|_| target.into()) };
    let Ok(direct) = std::fs::canonicalize(parent).map(|parent| parent.join(name)) else { return target.into() };
    if mounts.iter().any(|mount| mount.target == direct) {
        return direct;
    }
    std::fs::canonicalize(&direct).unwrap_or(direct)
}

fn trim_slashes(path: &Path) -> &std::ffi::OsStr {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    std::ffi::OsStr::from_bytes(&bytes[..end.min(bytes.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = br"36 35 0:50 / /mnt/a\040b rw,relatime shared:1 - fuse.aqueduct host:/ex\040port ro,user_id=0";
        let expected = Mount {
            target: "/mnt/a b".into(),
            kind: "fuse.aqueduct".into(),
            source: "host:/ex port".into(),
            read_only: true,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b""), None);
        assert!(all().unwrap().iter().any(|mount| mount.target == Path::new("/proc")));
    }

    #[test]
    fn mount_points_are_found_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let point = root.join("point");
        std::fs::create_dir(&point).unwrap();
        std::os::unix::fs::symlink(&point, root.join("link")).unwrap();
        assert_eq!(mount_point(&root.join("link"), &[]), point);
        assert_eq!(mount_point(&root.join("point/"), &[]), point);
        assert_eq!(mount_point(Path::new("/proc/"), &[]), Path::new("/proc"));
        assert_eq!(mount_point(Path::new("/"), &[]), Path::new("/"));
        assert_eq!(mount_point(Path::new("nonsense"), &[]).file_name().unwrap(), "nonsense");
    }
}
