//! Whoever looks at a file sees all that was written before, by size, time and content, also while its writer goes on.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, SeekFrom as Sought, copy_file_range, fallocate, seek};

use super::{Content, create, open, read, records};
use crate::agent::Agent;
use crate::common::{One, Pair, directory, test, within};
use crate::sys;

/// Longer than a client holds anything back.
const LONGER_THAN_HELD: Duration = Duration::from_millis(1300);

/// The clock of file systems goes by ticks of up to 10 ms.
const TICK: Duration = Duration::from_millis(20);

fn link(path: &Path) -> PathBuf {
    path.with_extension("link")
}

fn listed(path: &Path) -> Metadata {
    let wanted = |entry: &fs::DirEntry| Some(entry.file_name().as_os_str()) == path.file_name();
    let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap);
    entries.into_iter().find(wanted).unwrap().metadata().unwrap()
}

/// Where data and the hole behind it are, from the last byte on: both go by the size.
fn end(file: &File, bytes: &[u8]) -> bool {
    let last = bytes.len() as u64 - 1;
    seek(file, Sought::Data(last)) == Ok(last) && seek(file, Sought::Hole(last)) == Ok(last + 1)
}

fn copied(from: &File, to: &Path) -> Vec<u8> {
    let target = create(to);
    while copy_file_range(from, None, &target, None, 1 << 20).unwrap() > 0 {}
    let bytes = read(&target);
    fs::remove_file(to).unwrap();
    bytes
}

/// Through a descriptor: whether it shows these bytes.
type Look = (&'static str, fn(&File, &[u8]) -> bool);

const LOOKS: [Look; 7] = [
    ("fstat", |file, bytes| file.metadata().unwrap().len() == bytes.len() as u64),
    ("pread", |file, bytes| read(file) == bytes),
    ("read to the end", |mut file, bytes| {
        let mut found = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut found).unwrap();
        found == bytes
    }),
    ("read of the last byte", |file, bytes| {
        let mut found = [0; 2];
        file.read_at(&mut found, bytes.len() as u64 - 1).unwrap() == 1 && found[0] == bytes[bytes.len() - 1]
    }),
    ("SEEK_END", |mut file, bytes| file.seek(SeekFrom::End(0)).unwrap() == bytes.len() as u64),
    ("SEEK_DATA", end),
    ("fstat and pread", |file, bytes| file.metadata().unwrap().len() == bytes.len() as u64 && read(file) == bytes),
];

/// By path; there is a link beside.
type LookUp = (&'static str, fn(&Path, &[u8]) -> bool);

const LOOK_UPS: [LookUp; 9] = [
    ("stat", |path, bytes| fs::metadata(path).unwrap().len() == bytes.len() as u64),
    ("read", |path, bytes| fs::read(path).unwrap() == bytes),
    ("stat of another name", |path, bytes| fs::metadata(link(path)).unwrap().len() == bytes.len() as u64),
    ("read of another name", |path, bytes| fs::read(link(path)).unwrap() == bytes),
    ("listing", |path, bytes| listed(path).len() == bytes.len() as u64),
    ("listing of another name", |path, bytes| listed(&link(path)).len() == bytes.len() as u64),
    ("O_PATH", |path, bytes| {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).unwrap();
        file.metadata().unwrap().len() == bytes.len() as u64
    }),
    ("mapping", |path, bytes| {
        // Who touches what lies behind the end is killed.
        let file = File::open(path).unwrap();
        let is_whole = file.metadata().unwrap().len() == bytes.len() as u64;
        is_whole && sys::load_private(file.as_fd(), bytes.len()).unwrap() == bytes
    }),
    ("copy", |path, bytes| copied(&File::open(path).unwrap(), &path.with_extension("copy")) == bytes),
];

fn times(metadata: &Metadata) -> [i64; 4] {
    [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()]
}

/// It is of the time when it was written, or sent, and nothing moves it once it was shown.
fn shows_time(metadata: &Metadata, began: SystemTime) -> [i64; 4] {
    let modified = metadata.modified().unwrap();
    assert!(modified >= began - TICK && modified <= SystemTime::now() + TICK, "{modified:?}, written at {began:?}");
    times(metadata)
}

#[test]
fn another_mount_sees_what_was_written_and_not_closed() {
    test(|| {
        let pair = Pair::new();
        let mut held = Vec::new();
        for round in 0..3 {
            for (number, (what, look)) in LOOK_UPS.iter().enumerate() {
                let name = format!("{number}-{round}");
                let (here, there) = (pair.left.join(&name), pair.right.join(&name));
                let (file, mut content) = (create(&here), Content::new(number as u64));
                fs::hard_link(&here, link(&here)).unwrap();
                let began = SystemTime::now();
                for again in 0..=round {
                    content.write(&file, 1 + 10 * again);
                    assert!(look(&there, &content.bytes), "{what}, {round} {again}");
                }
                let shown = shows_time(&fs::metadata(&there).unwrap(), began);
                assert_eq!(shown, times(&file.metadata().unwrap()), "the same everywhere: {what}");
                held.push((name, file, content, shown));
            }
        }
        thread::sleep(LONGER_THAN_HELD);
        for (name, file, content, shown) in held {
            for root in [pair.export.path(), pair.right.path(), pair.left.path()] {
                let metadata = fs::metadata(root.join(&name)).unwrap();
                assert_eq!(times(&metadata), shown, "nothing was written since: {name}");
                assert!(fs::read(root.join(&name)).unwrap() == content.bytes, "{name}");
            }
            assert_eq!(times(&file.metadata().unwrap()), shown);
        }
    });
}

#[test]
fn descriptors_of_another_mount_see_what_was_written_and_not_closed() {
    test(|| {
        let pair = Pair::new();
        let prepare = |number: usize| {
            let (name, mut content) = (format!("{number}"), Content::new(number as u64));
            let file = create(&pair.left.join(&name));
            content.write(&file, 5);
            drop(file);
            let held = File::open(pair.right.join(&name)).unwrap();
            assert!(read(&held) == content.bytes);
            // Takes back what the other keeps of it.
            content.write(&open(&pair.left.join(&name)), 1);
            (pair.left.join(&name), held, content)
        };
        let prepared: Vec<_> = (0..LOOKS.len()).map(prepare).collect();
        // What was in contention is granted again.
        thread::sleep(LONGER_THAN_HELD);
        for ((name, look), (path, held, mut content)) in LOOKS.iter().zip(prepared) {
            let file = open(&path);
            for round in 0..5 {
                content.write(&file, 1 + 3 * round);
                assert!(look(&held, &content.bytes), "{name}, round {round}");
            }
        }
    });
}

#[test]
fn a_mount_sees_its_own_writes_in_size_time_and_content() {
    test(|| {
        let pair = Pair::new();
        let (path, mut content) = (pair.left.join("file"), Content::new(1));
        let file = create(&path);
        fs::hard_link(&path, link(&path)).unwrap();
        let held = File::open(link(&path)).unwrap();
        let looks: [fn(&Path, &File) -> Metadata; 4] = [
            |path, _| fs::metadata(path).unwrap(),
            |_, held| held.metadata().unwrap(),
            |path, _| fs::metadata(link(path)).unwrap(),
            |path, _| listed(path),
        ];
        let mut last = [0; 4];
        for number in 0..600 {
            if number % 200 == 199 {
                // As after an open, with nobody else about.
                thread::sleep(LONGER_THAN_HELD);
                assert_eq!(times(&fs::metadata(&path).unwrap()), last, "it moved by itself");
            }
            let began = SystemTime::now();
            content.write(&file, 1 + number % 4);
            let shown = looks[number % 4](&path, &held);
            assert_eq!(shown.len(), content.bytes.len() as u64, "write {number}");
            let now = shows_time(&shown, began);
            assert!(now[..2] >= last[..2] && now[2..] >= last[2..], "write {number}: {now:?} after {last:?}");
            assert_eq!(now, times(&looks[(number + 1) % 4](&path, &held)), "nothing was written between");
            last = now;
            let (name, look) = LOOKS[number % LOOKS.len()];
            assert!(look(&held, &content.bytes), "write {number}: {name}");
            let (name, look) = LOOK_UPS[number / 3 % LOOK_UPS.len()];
            // Others come by so seldom that it stays ours mostly.
            let root = if number % 50 == 49 { &pair.right } else { &pair.left };
            assert!(look(&root.join("file"), &content.bytes), "write {number}: {name}");
        }
    });
}

/// Attributes come with names, from a server that does not know of the latest writes yet.
#[test]
fn names_that_are_new_to_a_mount_show_what_it_wrote() {
    const NAMES: usize = 40;
    test(|| {
        let one = One::new();
        drop(create(&one.export.path().join("file")));
        let name = |root: &Path, number: usize| root.join(format!("{number}/name"));
        for number in 0..NAMES {
            fs::create_dir(one.export.path().join(format!("{number}"))).unwrap();
            fs::hard_link(one.export.path().join("file"), name(one.export.path(), number)).unwrap();
        }
        // News of what was just made on the server may still come.
        thread::sleep(LONGER_THAN_HELD);
        let (file, mut content) = (open(&one.path("file")), Content::new(1));
        for number in 0..NAMES {
            content.write(&file, 1 + number % 5);
            let path = name(one.mount.path(), number);
            let found = if number % 2 == 0 { listed(&path) } else { fs::metadata(&path).unwrap() };
            assert_eq!(found.len(), content.bytes.len() as u64, "name {number}");
        }
    });
}

/// While a program writes, what it had written before the look began is seen.
#[test]
fn another_mount_is_never_behind() {
    test(|| {
        let (pair, home) = (Pair::new(), directory());
        let (mut agent, progress) = (Agent::start(), home.path().join("progress"));
        agent.tell(&format!("records {} {} 5000", pair.left.join("file").display(), progress.display()));
        let there = pair.right.join("file");
        let mut looks = 0;
        let count = loop {
            // Mostly long enough for whoever writes to have the file for himself again.
            let pause = [0, 0, 1, 150, 400][looks % 5];
            if let Some(answer) = agent.answer_within(Duration::from_millis(pause)) {
                break answer.unwrap().parse().unwrap();
            }
            looks += 1;
            let before = records::written(&progress);
            if before > 0 && looks % 2 == 0 {
                assert!(fs::metadata(&there).unwrap().len() >= (before + 1) * 16, "look {looks}");
            } else if before > 0 {
                records::check(&File::open(&there).unwrap(), before, false).unwrap();
            }
        };
        println!("{looks} looks, {count} records");
        assert!(looks > 10 && count > 100, "{looks} looks, {count} records");
        assert_eq!(records::check(&File::open(&there).unwrap(), count, true), Ok(count));
    });
}

/// Through another mount, and what is in the file then.
type Change = (&'static str, fn(&Path, &mut Content));

const CHANGES: [Change; 8] = [
    ("truncate", |path, content| {
        open(path).set_len(3).unwrap();
        content.bytes.truncate(3);
    }),
    ("O_TRUNC", |path, content| {
        drop(File::create(path).unwrap());
        content.bytes.clear();
    }),
    ("grow", |path, content| {
        content.bytes.resize(content.bytes.len() + 9000, 0);
        open(path).set_len(content.bytes.len() as u64).unwrap();
    }),
    ("write", |path, content| {
        open(path).write_all_at(b"others", 1).unwrap();
        content.put(1, b"others");
    }),
    ("append", |path, content| {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, b"others").unwrap();
        content.put(content.bytes.len(), b"others");
    }),
    ("punch a hole", |path, content| {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(open(path), mode, 0, 20).unwrap();
        content.bytes[..20].fill(0);
    }),
    ("store", |path, content| {
        sys::store_shared(open(path).as_fd(), content.bytes.len(), 10, 7).unwrap();
        content.put(10, &[7]);
    }),
    ("utimes", |path, _| {
        let times = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::new(77, 88));
        open(path).set_times(times).unwrap();
    }),
];

/// What was written before somebody else's change does not come after it.
#[test]
fn what_others_change_comes_after_what_was_written() {
    within(Duration::from_secs(60), || {
        let pair = Pair::new();
        let mut held = Vec::new();
        for (number, (name, change)) in CHANGES.iter().enumerate() {
            let (file, mut content) = (create(&pair.left.join(name)), Content::new(number as u64));
            content.write(&file, 30);
            let there = pair.right.join(name);
            change(&there, &mut content);
            let shown = fs::metadata(&there).unwrap();
            assert!(shown.mtime() != 77 || *name == "utimes");
            assert!(read(&file) == content.bytes && fs::read(&there).unwrap() == content.bytes, "{name}");
            held.push((name, file, content, shown));
        }
        // What is no longer there under its name is written all the same.
        let (file, mut content) = (create(&pair.left.join("gone")), Content::new(100));
        content.write(&file, 30);
        fs::write(pair.right.join("new"), "new").unwrap();
        fs::rename(pair.right.join("new"), pair.right.join("gone")).unwrap();
        content.write(&file, 30);
        thread::sleep(LONGER_THAN_HELD);
        for (name, file, content, shown) in held {
            let there = pair.export.path().join(name);
            assert!(fs::read(&there).unwrap() == content.bytes && read(&file) == content.bytes, "{name}");
            assert_eq!(times(&fs::metadata(&there).unwrap()), times(&shown), "{name}");
        }
        assert!(read(&file) == content.bytes);
        assert_eq!(fs::read(pair.export.path().join("gone")).unwrap(), b"new");
    });
}
