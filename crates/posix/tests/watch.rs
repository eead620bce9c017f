//! Changes that other processes make to what is served, as the kernel tells of them: which inodes, in what, and not our own.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_posix::{CannotWatch, HandleSource, Options, Origin, Posix, Watch, Watcher};
use common::*;

/// Longer than any machine is held up.
const SOON: Duration = Duration::from_secs(20);

const MEMORY: &str = "/dev/shm";

/// Whoever starts a program reads. Until it runs it has what this process has open, and should it be the last to close a file that was written, then that is
/// told as a change of its own.
static STARTS: RwLock<()> = RwLock::new(());

fn output(command: &mut Command) -> Output {
    let _starts = STARTS.read().unwrap_or_else(|poison| poison.into_inner());
    command.output().unwrap()
}

/// What was told of an export.
#[derive(Default)]
struct Record {
    told: Mutex<Told>,
    more: Condvar,
}

#[derive(Default)]
struct Told {
    changes: Vec<(Handle, Aspects)>,
    everything: usize,
}

impl Outside for Record {
    fn changed(&self, handle: &Handle, aspects: Aspects) {
        self.told.lock().unwrap().changes.push((handle.clone(), aspects));
        self.more.notify_all();
    }

    fn everything(&self) {
        self.told.lock().unwrap().everything += 1;
        self.more.notify_all();
    }
}

impl Record {
    /// Waits until what was told is enough.
    fn wait(&self, what: &str, enough: impl Fn(&Told) -> bool) {
        let (told, waited) =
            self.more.wait_timeout_while(self.told.lock().unwrap(), SOON, |told| !enough(told)).unwrap();
        assert!(!waited.timed_out(), "never told: {what}; but {} changes", told.changes.len());
    }

    /// Waits until just these aspects of the inode were told, in one part or several.
    fn wait_for(&self, what: &str, handle: &Handle, aspects: Aspects) {
        self.wait(what, |told| told.of(handle).contains(aspects));
        assert_eq!(self.told.lock().unwrap().of(handle), aspects, "{what}");
    }

    fn forget(&self) {
        *self.told.lock().unwrap() = Told::default();
    }
}

impl Told {
    fn of(&self, handle: &Handle) -> Aspects {
        let all = self.changes.iter().filter(|(changed, _)| changed == handle);
        all.fold(Aspects::empty(), |sum, (_, aspects)| sum | *aspects)
    }
}

/// A directory that is watched.
struct Watched {
    served: Served,
    record: Arc<Record>,
    _watcher: Watcher,
}

impl Watched {
    fn below(parent: &Path) -> Watched {
        Watched::serving(serve(parent, HandleSource::Kernel))
    }

    fn serving(served: Served) -> Watched {
        let (mut watch, record) = (Watch::default(), Arc::new(Record::default()));
        watch.add(&served.posix).unwrap();
        let watcher = watch.start(vec![record.clone()]).unwrap();
        Watched { served, record, _watcher: watcher }
    }

    fn handle(&self, name: &str) -> Handle {
        self.served.lookup(&self.served.root, name.as_bytes()).unwrap().handle
    }

    fn root(&self) -> Handle {
        Handle::new(&self.served.root).unwrap()
    }

    /// Another process does something here, and just this is told.
    fn outside(&self, script: &str, expected: &[(&Handle, Aspects)]) {
        // What came before has been told once what comes now is.
        self.settle();
        self.record.forget();
        shell(&self.served.path, script);
        for (handle, aspects) in expected {
            self.record.wait_for(script, handle, *aspects);
        }
    }

    /// Waits until all that has happened was told. What the kernel hands over at once is told in any order, so it takes two new files, the second made when
    /// the first was told of: before it is, all is that was handed over with the first.
    fn settle(&self) {
        let fences = self.served.path.join("fences");
        shell(&self.served.path, "mkdir -p fences");
        let directory = self.handle("fences");
        for _ in 0..2 {
            let name = std::fs::read_dir(&fences).unwrap().count().to_string();
            shell(&fences, &format!("echo > {name}"));
            let fence = self.served.lookup(directory.bytes(), name.as_bytes()).unwrap().handle;
            self.record.wait("the fence", |told| !told.of(&fence).is_empty());
        }
    }
}

fn shell(directory: &Path, script: &str) {
    aqueduct_posix::restore();
    let output = output(Command::new("sh").args(["-ec", script]).current_dir(directory));
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Where changes can be watched on this machine: its disk and memory, or nowhere.
fn parents() -> Vec<PathBuf> {
    let may_watch = |parent: &PathBuf| {
        let served = serve(parent, HandleSource::Kernel);
        match Watch::default().add(&served.posix) {
            Ok(_) => true,
            Err(error) => {
                skip(&format!("{}: {error}", parent.display()));
                false
            }
        }
    };
    [std::env::temp_dir(), MEMORY.into()].into_iter().filter(may_watch).collect()
}

const ATTRIBUTES: Aspects = Aspects::ATTRIBUTES;
const CONTENT: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES);
const NAMES: Aspects = Aspects::NAMES.union(Aspects::ATTRIBUTES);

/// Each change of another process is told, of the inodes that it touches, by the handles that clients have of them.
fn every_change_is_told(watched: &Watched) {
    let none = Aspects::empty();
    shell(&watched.served.path, "echo > file; echo > other; mkdir dir dir/empty; ln -s file link");
    let [root, file, other, dir] =
        [watched.root(), watched.handle("file"), watched.handle("other"), watched.handle("dir")];
    let empty = watched.served.lookup(dir.bytes(), b"empty").unwrap().handle;
    watched.outside("echo more >> file", &[(&file, CONTENT), (&root, none)]);
    watched.outside("truncate -s 100 file", &[(&file, CONTENT)]);
    watched.outside("chmod 600 file", &[(&file, ATTRIBUTES), (&root, none)]);
    watched.outside("touch -d 2001-01-01 dir", &[(&dir, ATTRIBUTES)]);
    watched.outside("chown -h 7 link", &[(&watched.handle("link"), ATTRIBUTES)]);
    watched.outside("echo > dir/new", &[(&dir, NAMES), (&root, none)]);
    watched.outside("ln file dir/second", &[(&dir, NAMES), (&file, ATTRIBUTES)]);
    watched.outside("rm dir/second", &[(&dir, NAMES), (&file, ATTRIBUTES)]);
    watched.outside("mv file dir/file", &[(&root, NAMES), (&dir, NAMES), (&file, ATTRIBUTES)]);
    watched.outside("mv other dir/file", &[(&root, NAMES), (&dir, NAMES), (&other, ATTRIBUTES), (&file, ATTRIBUTES)]);
    watched.outside("mkdir made", &[(&root, NAMES)]);
    watched.outside("rmdir dir/empty", &[(&dir, NAMES), (&empty, ATTRIBUTES)]);
    watched.outside("mv dir moved", &[(&root, NAMES), (&dir, ATTRIBUTES)]);
    watched.outside("rm moved/file", &[(&dir, NAMES), (&other, ATTRIBUTES)]);
}

#[test]
fn changes_from_outside_are_told() {
    for parent in parents() {
        every_change_is_told(&Watched::below(&parent));
    }
}

/// A file system in a file, on a loop device.
struct Loop {
    folder: tempfile::TempDir,
}

impl Loop {
    fn new(kind: &str) -> Option<Loop> {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().join("mounted");
        std::fs::create_dir(&point).unwrap();
        // The smallest that mkfs.xfs makes.
        let script = format!("truncate -s 320M image; mkfs.{kind} -q image; mount -o loop image mounted");
        let output = output(Command::new("sh").args(["-ec", &script]).current_dir(folder.path()));
        if !output.status.success() {
            skip(&format!("no {kind}: {}", String::from_utf8_lossy(&output.stderr)));
            return None;
        }
        Some(Loop { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        aqueduct_posix::restore();
        output(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

#[test]
fn every_local_file_system_is_watched() {
    if parents().is_empty() {
        return;
    }
    for kind in ["ext4", "xfs", "btrfs"] {
        let Some(disk) = Loop::new(kind) else { continue };
        eprintln!("on {kind}");
        every_change_is_told(&Watched::below(&disk.path()));
        if kind == "btrfs" {
            shell(&disk.path(), "btrfs subvolume create volume");
            every_change_is_told(&Watched::below(&disk.path().join("volume")));
        }
    }
}

#[test]
fn a_mapping_is_told_when_it_ends() {
    for parent in parents() {
        let watched = Watched::below(&parent);
        shell(&watched.served.path, "echo 0123456789 > file");
        let file = watched.handle("file");
        let script = "import mmap, os\nfd = os.open('file', os.O_RDWR)\nmapping = mmap.mmap(fd, 4)\nos.close(fd)\nmapping[0] = 65\nmapping.close()";
        watched.outside(&format!("python3 -c \"{script}\""), &[(&file, CONTENT)]);
    }
}

#[test]
fn own_changes_are_not_told() {
    for parent in parents() {
        let watched = Watched::below(&parent);
        watched.settle();
        let (root, served) = (watched.root(), &watched.served);
        watched.record.forget();
        let nobody_starts = STARTS.write().unwrap_or_else(|poison| poison.into_inner());
        let (file, open) = served.create(b"file");
        served.write(open, 0, b"data").unwrap();
        let dir = served.mkdir(&served.root, b"dir", 0o755);
        served.set(&context(1, own()), &file.handle, SetAttr { size: Some(2), ..SetAttr::default() }).unwrap();
        let rename = Request::Rename {
            parent: &served.root,
            name: b"file",
            new_parent: dir.handle.bytes(),
            new_name: b"moved",
            flags: RenameFlags::empty(),
        };
        served.root_call(rename).unwrap();
        served.root_call(Request::Unlink { parent: dir.handle.bytes(), name: b"moved" }).unwrap();
        served.release(open);
        drop(nobody_starts);
        watched.settle();
        let told = std::mem::take(&mut *watched.record.told.lock().unwrap());
        for handle in [&root, &file.handle, &dir.handle] {
            assert!(told.of(handle).is_empty(), "{:?}", told.of(handle));
        }
    }
}

#[test]
fn each_export_is_told_by_its_own_handles() {
    for parent in parents() {
        let exports: Vec<_> = [1, 2]
            .map(|export| serve_with(&parent, Options { export, ..Options::default() }))
            .into_iter()
            .chain([serve(Path::new(MEMORY), HandleSource::Kernel)])
            .collect();
        let mut watch = Watch::default();
        let numbers: Vec<_> = exports.iter().map(|served| watch.add(&served.posix)).collect();
        assert_eq!(numbers, [Ok(0), Ok(1), Ok(2)]);
        let records: Vec<_> = exports.iter().map(|_| Arc::new(Record::default())).collect();
        let told = records.iter().map(|record| record.clone() as Arc<dyn Outside>).collect();
        let _watcher = watch.start(told).unwrap();
        for (served, record) in exports.iter().zip(&records) {
            shell(&served.path, "echo > file");
            record.wait_for("a new name", &Handle::new(&served.root).unwrap(), NAMES);
        }
    }
}

/// More than the queue takes while nobody reads it: then all may have changed, and after that each change is told again.
#[test]
fn more_than_can_be_told_is_everything() {
    let limit = std::fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap_or_default();
    let Ok(limit @ 1..100_000) = limit.trim().parse::<usize>() else { return skip("there is no bound to reach") };
    if !parents().contains(&PathBuf::from(MEMORY)) {
        return;
    }
    let served = serve(Path::new(MEMORY), HandleSource::Kernel);
    let (mut watch, record) = (Watch::default(), Arc::new(Record::default()));
    watch.add(&served.posix).unwrap();
    shell(&served.path, &format!("seq {} | xargs touch", limit + 1000));
    let watcher = watch.start(vec![record.clone()]).unwrap();
    record.wait("that there was too much", |told| told.everything > 0);
    let watched = Watched { served, record, _watcher: watcher };
    watched.outside("echo more >> 1", &[(&watched.handle("1"), CONTENT)]);
}

#[test]
fn what_cannot_be_watched_says_why() {
    let table = serve(Path::new(MEMORY), HandleSource::Table);
    let crossing = serve_with(Path::new(MEMORY), Options { cross_mounts: true, ..Options::default() });
    let expected = if is_root() { CannotWatch::Handles } else { CannotWatch::Permission };
    if !matches!(Watch::default().add(&table.posix), Err(CannotWatch::Kernel)) {
        assert_eq!(Watch::default().add(&table.posix), Err(expected));
    }
    assert_eq!(Watch::default().add(&crossing.posix), Err(CannotWatch::Several));
    assert_eq!(table.posix.origin(), Origin::Local);
    // No other machine changes it, but who knows what does.
    let strange = Posix::open(Path::new("/proc"), Options::default()).unwrap();
    assert_eq!(strange.origin(), Origin::Unknown);
}

/// A user's own server, in its own process.
#[test]
fn a_plain_user_cannot_watch() {
    use std::os::unix::process::CommandExt;
    if is_root() {
        let folder = tempfile::tempdir_in(MEMORY).unwrap();
        std::os::unix::fs::chown(folder.path(), Some(4242), Some(4242)).unwrap();
        let program = folder.path().join("test");
        // By a process of its own: what another test starts would inherit a descriptor that still writes it.
        let copied = output(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program));
        assert!(copied.status.success());
        let mut command = Command::new(&program);
        command.args(["--exact", "a_plain_user_cannot_watch", "--nocapture"]).env("TMPDIR", folder.path());
        let output = output(command.uid(4242).gid(4242).current_dir("/"));
        let text = String::from_utf8_lossy(&output.stderr);
        return assert!(output.status.success() && text.contains("tried by a plain user"), "{text}");
    }
    eprintln!("tried by a plain user");
    let served = serve(&std::env::temp_dir(), HandleSource::Kernel);
    assert_eq!(Watch::default().add(&served.posix), Err(CannotWatch::Permission));
}
