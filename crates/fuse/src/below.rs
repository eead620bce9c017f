//! Whether anything lies on the directories of a mount: what is mounted on one, in whatever mount
//! namespace, and overlays that have layers there.
//!
//! The kernel detaches what is mounted on a directory whose name it is made to forget, in all
//! namespaces (d_invalidate), and an overlay that has looked up such a directory gives ESTALE for
//! good. Containers have namespaces of their own, so that the tables of all threads are looked at,
//! one for each namespace: 3 us for each thread. A namespace that no thread is in, but somebody
//! has open or has bound to a file, is not found.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::table::unescape;

/// One line of a table of mounts.
struct Line {
    id: u32,
    parent: u32,
    is_ours: bool,
    point: PathBuf,
    /// Of an overlay, the directories of which it is made.
    layers: Vec<PathBuf>,
}

/// Whether anything lies below the mount whose device has this number. Of namespaces into which
/// this process may not look it is not known.
pub(crate) fn any(number: u32) -> bool {
    let own = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let own = lines(&own, number);
    if lies_on(&own, &own) {
        return true;
    }
    let mut seen: HashSet<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    // Each of a process's threads may have a namespace of its own.
    numbered(Path::new("/proc")).flat_map(|process| numbered(&process.join("task"))).any(|thread| {
        let is_new = fs::read_link(thread.join("ns/mnt")).is_ok_and(|namespace| seen.insert(namespace));
        is_new && fs::read(thread.join("mountinfo")).is_ok_and(|table| lies_on(&lines(&table, number), &own))
    })
}

/// The entries of a directory of /proc that are called by numbers.
fn numbered(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_number = |name: &OsString| name.as_bytes().iter().all(u8::is_ascii_digit);
    entries.filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path())
}

/// Whether one of these lies on ours. `own`: this process's, since an overlay names its layers as
/// they were called where it was made.
fn lies_on(lines: &[Line], own: &[Line]) -> bool {
    let ours = |lines: &'_ [Line], is_it: &dyn Fn(&Line) -> bool| lines.iter().any(|line| line.is_ours && is_it(line));
    lines.iter().any(|line| {
        // What covers the whole of it is mounted on its root, which has no name.
        let is_on = ours(lines, &|below| below.id == line.parent && below.point != line.point && below.id != line.id);
        // A layer that was named from another directory may be anywhere.
        let is_of = |layer: &PathBuf, lines: &[Line]| {
            !layer.is_absolute() || ours(lines, &|below| layer.starts_with(&below.point))
        };
        is_on || line.layers.iter().any(|layer| is_of(layer, lines) || is_of(layer, own))
    })
}

fn lines(table: &[u8], number: u32) -> Vec<Line> {
    table.split(|byte| *byte == b'\n').filter_map(|line| parse(line, number)).collect()
}

fn parse(line: &[u8], number: u32) -> Option<Line> {
    let text = |field: &[u8]| std::str::from_utf8(field).ok().map(str::to_owned);
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?)?.parse().ok()?;
    let parent = text(fields.next()?)?.parse().ok()?;
    let is_ours = fields.next()? == format!("0:{number}").as_bytes();
    let point = unescape(fields.nth(1)?).into();
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = rest.next()?;
    let options = rest.nth(1).unwrap_or_default();
    let layers = if kind == b"overlay" { layers(&unescape(options)) } else { Vec::new() };
    Some(Line { id, parent, is_ours, point, layers })
}

/// The directories of an overlay, as its options name them: `lowerdir=A:B,upperdir=C,workdir=D`,
/// or `lowerdir+=A` one by one.
fn layers(options: &OsString) -> Vec<PathBuf> {
    let of = |option: &[u8]| -> Vec<PathBuf> {
        let mut parts = option.splitn(2, |byte| *byte == b'=');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let is_layer = matches!(name, b"lowerdir" | b"lowerdir+" | b"datadir+" | b"upperdir");
        let paths = value.split(|byte| *byte == b':').filter(|path| is_layer && !path.is_empty());
        paths.map(|path| Path::new(std::ffi::OsStr::from_bytes(path)).to_owned()).collect()
    };
    options.as_bytes().split(|byte| *byte == b',').flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "36 30 0:50 / /mnt/a rw shared:1 - fuse.aqueduct host:/ex rw,user_id=0\n";

    fn lies(rest: &str) -> bool {
        let table = format!("30 1 8:1 / / rw - ext4 /dev/sda1 rw\n{OURS}{rest}");
        let lines = lines(table.as_bytes(), 50);
        lies_on(&lines, &lines)
    }

    #[test]
    fn what_is_mounted_on_a_directory_lies_on_it() {
        assert!(!lies("") && !lies("40 30 0:51 / /mnt/b rw - tmpfs tmpfs rw\n"));
        assert!(lies("40 36 0:51 / /mnt/a/b rw - tmpfs tmpfs rw\n"));
        assert!(!lies("40 36 0:51 / /mnt/a rw - tmpfs tmpfs rw\n"), "it covers the whole");
        let bound = "40 30 0:50 /root /mnt/c rw - fuse.aqueduct host:/ex rw\n";
        assert!(!lies(bound), "a directory of it is mounted elsewhere");
        assert!(lies(&format!("{bound}41 40 0:5 / /mnt/c/proc rw - proc proc rw\n")));
    }

    #[test]
    fn an_overlay_lies_on_its_layers() {
        let overlay = |options: &str| format!("40 30 0:51 / /o rw - overlay overlay rw,{options}\n");
        assert!(lies(&overlay("lowerdir=/x:/mnt/a/low,upperdir=/up,workdir=/work")));
        assert!(lies(&overlay("lowerdir+=/x,lowerdir+=/mnt/a/low")) && lies(&overlay("lowerdir=/x,upperdir=/mnt/a")));
        assert!(lies(&overlay("lowerdir=l/ABC")), "who knows where that is");
        assert!(!lies(&overlay("lowerdir=/x:/mnt/ab,upperdir=/up,workdir=/work")));
    }

    #[test]
    fn the_mounts_of_this_machine_can_be_looked_at() {
        assert!(!any(u32::MAX), "no mount has this device");
    }
}
