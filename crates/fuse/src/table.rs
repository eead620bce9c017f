//! The kernel's table of mounts, /proc/self/mountinfo (proc_pid_mountinfo(5)). The mounts
//! themselves are not asked: they may not answer.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of a table of mounts.
pub(crate) struct Mounted<'a> {
    /// The mount's, and that of the one that it is mounted on.
    pub(crate) id: u32,
    pub(crate) parent: u32,
    /// The minor number of its device, if behind that is no disk: of major 0.
    pub(crate) number: Option<u32>,
    /// The directory that is mounted on.
    pub(crate) point: PathBuf,
    pub(crate) kind: &'a [u8],
    source: &'a [u8],
    /// The file system's, as the kernel escapes them.
    pub(crate) options: &'a [u8],
}

/// The lines of a table, in the kernel's order.
pub(crate) fn mounts(table: &[u8]) -> impl Iterator<Item = Mounted<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(parse)
}

fn parse(line: &[u8]) -> Option<Mounted<'_>> {
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let mut fields = line.split(|byte| *byte == b' ');
    let (id, parent, device) = (number(fields.next()?)?, number(fields.next()?)?, fields.next()?);
    let point = unescape(fields.nth(1)?).into();
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (rest.next()?, rest.next()?);
    let options = rest.next().unwrap_or_default();
    Some(Mounted { id, parent, number: device.strip_prefix(b"0:").and_then(number), point, kind, source, options })
}

/// What of ours is mounted right at `target`; anything else may be covered, as mount(8) would.
pub(crate) fn mounted_at(target: &Path) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    holder(&table, target)
}

/// The numbers of the devices of what is mounted at `target`, in the order in which the kernel
/// lists them: usually each covers those before.
fn numbers(table: &[u8], target: &Path) -> Vec<u32> {
    mounts(table).filter(|mounted| mounted.point == target).filter_map(|mounted| mounted.number).collect()
}

/// The number of the device of what is mounted at `target`, of several the last.
pub(crate) fn number_at(target: &Path) -> io::Result<u32> {
    let table = fs::read("/proc/self/mountinfo")?;
    numbers(&table, target).pop().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The same, where nothing else is mounted there.
pub(crate) fn number_of_only(target: &Path) -> io::Result<u32> {
    match numbers(&fs::read("/proc/self/mountinfo")?, target)[..] {
        [number] => Ok(number),
        [] => Err(io::ErrorKind::NotFound.into()),
        _ => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

/// The source of a mount of ours at `target`.
fn holder(table: &[u8], target: &Path) -> Option<String> {
    let ours = mounts(table).find(|mounted| mounted.kind == b"fuse.aqueduct" && mounted.point == target)?;
    Some(unescape(ours.source).to_string_lossy().into_owned())
}

/// Undoes the kernel's `\ooo` for space, tab, newline and backslash.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let number = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line = br"36 35 0:50 / /mnt/a\040b rw,relatime shared:1 - fuse.aqueduct host:/ex\040port rw,user_id=0";
        assert_eq!(holder(line, Path::new("/mnt/a b")).as_deref(), Some("host:/ex port"));
        assert_eq!(holder(line, Path::new("/mnt/a")), None);
        assert_eq!(holder(b"36 35 0:50 / /mnt rw - tmpfs tmpfs rw", Path::new("/mnt")), None);
        assert_eq!(holder(b"", Path::new("/")), None);
    }

    #[test]
    fn mounts_have_numbers() {
        let table = b"36 35 0:50 / /mnt rw - tmpfs tmpfs rw\n37 35 8:1 / /mnt rw - ext4 /dev/sda1 rw\n38 35 0:52 / /mnt rw - a b\n";
        assert_eq!(numbers(table, Path::new("/mnt")), [50, 52]);
        assert!(numbers(table, Path::new("/")).is_empty());
        assert_eq!(number_at(Path::new("/no/such/mount")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(number_at(Path::new("/proc")).unwrap(), number_of_only(Path::new("/proc")).unwrap());
    }
}
