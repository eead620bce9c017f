//! The kernel's table of mounts, /proc/self/mountinfo (proc_pid_mountinfo(5)). The mounts themselves are not asked: they may not answer.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// What of ours is mounted right at `target`; anything else may be covered, as mount(8) would.
pub(crate) fn mounted_at(target: &Path) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    table.split(|byte| *byte == b'\n').find_map(|line| holder(line, target))
}

/// The line of mountinfo about what is mounted at `target`: the last, which covers those before.
fn line_of<'a>(table: &'a [u8], target: &Path) -> Option<&'a [u8]> {
    let point = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescape);
    table.split(|byte| *byte == b'\n').rfind(|line| point(line).is_some_and(|point| Path::new(&point) == target))
}

/// `major:minor` of what is mounted at `target`.
pub(crate) fn device_number(target: &Path) -> io::Result<String> {
    let table = fs::read("/proc/self/mountinfo")?;
    let line = line_of(&table, target).ok_or(io::ErrorKind::NotFound)?;
    let number = line.split(|byte| *byte == b' ').nth(2).unwrap_or_default();
    Ok(String::from_utf8_lossy(number).into_owned())
}

/// The source in one line of mountinfo, if it is a mount of ours at `target`.
fn holder(line: &[u8], target: &Path) -> Option<String> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescape(fields.nth(4)?);
    let mut after = fields.skip_while(|field| *field != b"-");
    let (kind, source) = (after.nth(1)?, after.next()?);
    let ours = kind == b"fuse.aqueduct" && Path::new(&point) == target;
    ours.then(|| unescape(source).to_string_lossy().into_owned())
}

/// Undoes the kernel's `\ooo` for space, tab, newline and backslash.
fn unescape(field: &[u8]) -> OsString {
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
    fn mounts_have_device_numbers() {
        assert_eq!(device_number(Path::new("/no/such/mount")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let number = device_number(Path::new("/proc")).unwrap();
        assert!(number.split_once(':').is_some_and(|(major, minor)| major == "0" && minor.parse::<u32>().is_ok()));
    }
}
