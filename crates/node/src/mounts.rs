//! The mounts of this machine, as the kernel lists them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_fuse::{STATUS_XATTR, TRACE_XATTR, UNCHECKED};
use aqueduct_metrics::status::{BackingStatus, MountStatus};
use aqueduct_metrics::trace::TraceReport;
use rustix::fs::XattrFlags;
use serde::de::DeserializeOwned;

use crate::asking;
use crate::pages::{self, PAGES_MAX};

/// Threads that ask one mount at once, which may hang: who looks again and again, as 'aqueduct
/// status --watch' does, would else have more of them each second.
const ASKING_MAX: usize = 8;

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// The directory that is mounted on.
    pub target: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// What is mounted, as the file system says it.
    pub source: String,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Its options, those of the mount point first, then the file system's.
    pub options: Vec<String>,
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
    let both = options.split(|byte| *byte == b',').chain(superblock.split(|byte| *byte == b','));
    let options: Vec<String> = both.map(text).collect();
    Some(Mount { target, kind, source, read_only: options.iter().any(|option| option == "ro"), options })
}

/// A thread that asks what is mounted on a directory.
struct Asking(PathBuf);

/// How many such threads there are now, by their directories.
static ASKING: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

impl Asking {
    /// `None`: so many wait there already that another one would only wait, too.
    fn begin(target: &Path) -> Option<Asking> {
        let mut asking = ASKING.lock().unwrap_or_else(|poison| poison.into_inner());
        let count = asking.entry(target.to_owned()).or_default();
        (*count < ASKING_MAX).then(|| {
            *count += 1;
            Asking(target.to_owned())
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut asking = ASKING.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(count) = asking.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                asking.remove(&self.0);
            }
        }
    }
}

/// A look at mounts, each on a thread that may never come back: what they tell of themselves, or
/// why they do not. One that says nothing for `patience` does not answer.
pub fn ask(mounts: &[Mount], patience: Duration) -> Vec<Result<MountStatus, String>> {
    let (sender, answers) = mpsc::channel();
    for (index, mount) in mounts.iter().enumerate() {
        let (sender, target) = (sender.clone(), mount.target.clone());
        let Some(asking) = Asking::begin(&target) else { continue };
        let ask = move || {
            let answer = ask_one(&target);
            drop(asking);
            drop(sender.send((index, answer))); // whoever asked may have lost patience
        };
        if let Err(error) = thread::Builder::new().spawn(ask) {
            tracing::warn!(%error, "cannot ask {}", mount.target.display());
        }
    }
    drop(sender);
    let mut found: Vec<_> = mounts.iter().map(|_| Err("does not answer".to_owned())).collect();
    let end = Instant::now() + patience;
    while let Ok((index, answer)) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found[index] = answer;
    }
    found
}

fn ask_one(target: &Path) -> Result<MountStatus, String> {
    let mut told: MountStatus = answer(target, STATUS_XATTR)?;
    let BackingStatus::Client(client) = &mut told.backing else { return Ok(told) };
    for _ in 1..PAGES_MAX {
        let Some(from) = client.rest_from else { break };
        // It may have fewer servers by now than it had.
        if !pages::add(client, answer(target, &format!("{STATUS_XATTR}.{from}"))?) {
            break;
        }
    }
    Ok(told)
}

/// What a mount tells under this name.
fn answer<T: DeserializeOwned>(target: &Path, name: &str) -> Result<T, String> {
    let number = |error: &io::Error| error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    let text = match asking::attribute(target, &format!("{UNCHECKED}{name}")) {
        // Who is neither root nor the mount's user, and what mounts of earlier releases tell.
        Err(error) if number(&error).is_some_and(is_no_answer) => asking::attribute(target, name),
        answer => answer,
    };
    let text = text.map_err(|error| number(&error).map_or_else(|| error.to_string(), refusal))?;
    serde_json::from_slice(&text).map_err(|error| format!("its answer cannot be read: {error}"))
}

/// Whether a mount may still tell it under the name that everybody may ask for.
fn is_no_answer(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::PERM | Errno::ACCESS | Errno::NODATA | Errno::OPNOTSUPP)
}

fn refusal(error: rustix::io::Errno) -> String {
    match error {
        rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => {
            "dead: clear it with 'aqueduct umount'".to_owned()
        }
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => "another user's".to_owned(),
        rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => "does not tell".to_owned(),
        error => error.to_string(),
    }
}

/// The slow operations of a mount from this number on, on a thread that may never come back; or
/// why it does not tell them within `patience`.
pub fn slow_operations(mount: &Mount, from: u64, patience: Duration) -> Result<TraceReport, String> {
    let target = mount.target.clone();
    within(patience, move || answer(&target, &format!("{TRACE_XATTR}.{from}")))
}

/// From now on operations of the mount are slow that take so many milliseconds or more; `off`:
/// none.
pub fn set_slow(mount: &Mount, threshold: &str, patience: Duration) -> Result<(), String> {
    let (target, value) = (mount.target.clone(), threshold.to_owned());
    within(patience, move || {
        rustix::fs::setxattr(&target, TRACE_XATTR, value.as_bytes(), XattrFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::ROFS => "it is mounted read-only: mount it with -o trace=MILLISECONDS".to_owned(),
            error => refusal(error),
        })
    })
}

/// The mount of ours on a directory, by any path to it: one that leads through what does not answer
/// is followed for so long.
pub fn on(target: &Path, patience: Duration) -> Result<Option<Mount>, String> {
    let mounts = all().map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    let target = target.to_owned();
    within(patience, move || {
        let point = mount_point(&target, &mounts);
        Ok(mounts.into_iter().rfind(|mount| mount.is_ours() && mount.target == point))
    })
}

/// A path without links, or that of what is nearest above it and there; `None`: there is none that
/// answers in time.
pub fn nearest(path: &Path, patience: Duration) -> Option<PathBuf> {
    let path = path.to_owned();
    let follow = move || path.ancestors().find_map(|path| asking::path(path).ok()).ok_or_else(String::new);
    within(patience, follow).ok()
}

fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (sender, answer) = mpsc::channel();
    let ask = move || drop(sender.send(ask()));
    thread::Builder::new().spawn(ask).map_err(|error| error.to_string())?;
    answer.recv_timeout(patience).unwrap_or_else(|_| Err("does not answer".to_owned()))
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

/// The path by which the kernel lists a mount point: absolute, links resolved. What is mounted
/// there is not asked, which may never answer; nor is anybody where the path is the kernel's own.
pub fn mount_point(target: &Path, mounts: &[Mount]) -> PathBuf {
    let target = Path::new(trim_slashes(target));
    let is_listed = |path: &Path| mounts.iter().any(|mount| mount.target == path);
    if is_listed(target) {
        return target.into();
    }
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = target.file_name() else { return asking::path(target).unwrap_or_else(|_| target.into()) };
    let Ok(direct) = asking::path(parent).map(|parent| parent.join(name)) else { return target.into() };
    if is_listed(&direct) {
        return direct;
    }
    asking::path(&direct).unwrap_or(direct)
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
            options: ["rw", "relatime", "ro", "user_id=0"].map(str::to_owned).into(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b""), None);
        assert!(all().unwrap().iter().any(|mount| mount.target == Path::new("/proc")));
    }

    #[test]
    fn who_is_no_mount_of_ours_tells_nothing() {
        let mount = Mount { target: "/nonexistent".into(), ..Mount::default() };
        let answers = ask(&[mount], Duration::from_secs(20));
        assert!(matches!(&answers[..], [Err(why)] if why.contains("No such file")), "{answers:?}");
    }

    #[test]
    fn a_mount_that_hangs_is_asked_by_few_threads_at_once() {
        let (hung, other) = (Path::new("/hung"), Path::new("/other"));
        let mut waiting: Vec<Asking> = (0..ASKING_MAX).map(|_| Asking::begin(hung).unwrap()).collect();
        assert!(Asking::begin(hung).is_none() && Asking::begin(other).is_some());
        let mount = Mount { target: hung.to_owned(), ..Mount::default() };
        let told = ask(&[mount], Duration::from_secs(20));
        assert!(matches!(&told[..], [Err(why)] if why == "does not answer"), "{told:?}");
        waiting.pop();
        assert!(Asking::begin(hung).is_some());
        drop(waiting);
        assert!(!ASKING.lock().unwrap().contains_key(hung));
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
