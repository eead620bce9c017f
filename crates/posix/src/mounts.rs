//! What is mounted below a directory, from /proc/thread-self/mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use aqueduct_fs::Errno;

/// The mount points strictly below `root`.
pub(crate) fn below(root: &Path) -> Result<Vec<PathBuf>, Errno> {
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    Ok(parse(&table).filter(|path| path != root && path.starts_with(root)).collect())
}

/// The fifth field of each line, in which blanks and backslashes stand as three octal digits.
fn parse(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescape(field))))
    })
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                plain.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_blanks_are_read() {
        let table =
            b"26 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n30 26 0:25 / /srv/a\\040b\\134 rw - tmpfs none rw\n";
        let paths: Vec<_> = parse(table).collect();
        assert_eq!(paths, [PathBuf::from("/"), PathBuf::from("/srv/a b\\")]);
    }
}
