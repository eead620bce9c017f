//! Modes, owners and times that are set through a file that is being written, as tar, cp -p and git do: whoever looks sees them, and no write overtakes them.

use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::{Content, HELD_MAX, create};
use crate::agent::Agent;
use crate::common::{One, Pair, directory, shell, test, wait_until, within};
use crate::sys;

/// Mode, owner, size, and time of modification to the nanosecond.
type Shown = (u32, u32, u64, i64, i64);

fn shown(metadata: &Metadata) -> Shown {
    (metadata.mode() & 0o7777, metadata.uid(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// Writes a little and sets all, in an order of tar's, cp's or git's. What has to be seen from then on.
fn write_and_set(file: &File, number: usize) -> (Vec<u8>, Shown) {
    let mut content = Content::new(number as u64);
    let seconds = 1_000_000_000 + number as u64;
    let time = UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let mode = [0o640, 0o444, 0o755][number % 3];
    let times = || file.set_times(FileTimes::new().set_accessed(time).set_modified(time)).unwrap();
    let owner = || fchown(file, Some(0), Some(0)).unwrap();
    let permissions = || file.set_permissions(Permissions::from_mode(mode)).unwrap();
    content.write(file, 1 + number % 20);
    let orders: [[&dyn Fn(); 3]; 3] =
        [[&times, &owner, &permissions], [&permissions, &times, &owner], [&owner, &permissions, &times]];
    orders[number / 3 % 3].iter().for_each(|set| set());
    if number % 4 == 3 {
        // Once more, so that what is set last stays.
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        content.write(file, 2);
        times();
    }
    let mode = if number % 4 == 3 { 0o600 } else { mode };
    let length = content.bytes.len() as u64;
    (content.bytes, (mode, 0, length, seconds as i64, 123_456_789))
}

type Look = (&'static str, fn(&File, &Path) -> Metadata);

const LOOKS: [Look; 4] = [
    ("fstat", |file, _| file.metadata().unwrap()),
    ("stat", |_, path| fs::metadata(path).unwrap()),
    ("listing", |_, path| {
        let wanted = |entry: &fs::DirEntry| Some(entry.file_name().as_os_str()) == path.file_name();
        let mut entries = fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap);
        entries.find(wanted).unwrap().metadata().unwrap()
    }),
    ("open", |_, path| File::open(path).unwrap().metadata().unwrap()),
];

#[test]
fn modes_and_times_are_seen_as_soon_as_they_are_set() {
    test(|| {
        let pair = Pair::new();
        for number in 0..72usize {
            let name = format!("file-{number}");
            let (path, there) = (pair.left.join(&name), pair.right.join(&name));
            let file = create(&path);
            let (bytes, expected) = write_and_set(&file, number);
            let (what, look) = LOOKS[number / 2 % LOOKS.len()];
            let seen = match number % 2 {
                0 => look(&file, &path),
                _ => look(&file, &there),
            };
            let is_of_descriptor = number % 2 == 1 && what == "fstat";
            assert_eq!(shown(&seen), expected, "{what}, {number}{}", if is_of_descriptor { ", own" } else { "" });
            // They do not move any more.
            for path in [&path, &there] {
                assert_eq!(shown(&fs::metadata(path).unwrap()), expected, "{number}");
            }
            sys::close(file).unwrap();
            let on_server = pair.export.path().join(&name);
            assert_eq!(shown(&fs::metadata(&on_server).unwrap()), expected, "{number}");
            assert!(fs::read(on_server).unwrap() == bytes && fs::read(there).unwrap() == bytes);
        }
    });
}

#[test]
fn modes_and_times_are_on_the_server_with_the_close_and_within_a_second() {
    test(|| {
        let one = One::new();
        let there = |name: &str| shown(&fs::metadata(one.export.path().join(name)).unwrap());
        for number in 0..36 {
            let name = format!("closed-{number}");
            let file = create(&one.path(&name));
            let (_, expected) = write_and_set(&file, number);
            sys::close(file).unwrap();
            assert_eq!(there(&name), expected, "{number}");
            // What is written later moves the time, as anywhere.
            let file = File::options().write(true).open(one.path(&name)).unwrap();
            write_and_set(&file, number);
            Content::new(1).write(&file, 1);
            sys::close(file).unwrap();
            assert!(there(&name).3 > expected.3 + 1_000_000, "{number}");
        }
        let file = create(&one.path("open"));
        let (_, expected) = write_and_set(&file, 0);
        wait_until("it is set", HELD_MAX, || there("open") == expected);
    });
}

/// What archives and copies bring along.
#[test]
fn what_tar_cp_and_rsync_make_is_as_it_was() {
    within(Duration::from_secs(90), || {
        let (pair, home) = (Pair::new(), directory());
        let source = home.path().join("tree");
        fs::create_dir(&source).unwrap();
        for number in 0..60 {
            let directory = source.join(format!("{}", number % 4));
            fs::create_dir_all(&directory).unwrap();
            let file = create(&directory.join(format!("{number}")));
            if number % 5 > 0 {
                write_and_set(&file, number);
            }
            if number % 7 == 0 {
                fchown(&file, Some(1000), Some(1000)).unwrap();
                file.set_permissions(Permissions::from_mode(0o4755)).unwrap();
            }
        }
        let script = |command: &str| {
            let (tree, left) = (source.display(), pair.left.path().display());
            command.replace("TREE", &tree.to_string()).replace("MOUNT", &left.to_string())
        };
        for (name, command) in [
            ("tar", "mkdir MOUNT/tar && tar --format=posix -cf - -C TREE . | tar xpf - -C MOUNT/tar"),
            ("cp", "cp -rp TREE MOUNT/cp"),
            ("rsync", "rsync -a TREE/ MOUNT/rsync/"),
        ] {
            shell(home.path(), &script(command)).succeeded();
            for number in 0..60 {
                let file = format!("{}/{number}", number % 4);
                let expected = fs::metadata(source.join(&file)).unwrap();
                for root in [pair.left.path(), pair.right.path(), pair.export.path()] {
                    let path = root.join(name).join(&file);
                    assert_eq!(shown(&fs::metadata(&path).unwrap()), shown(&expected), "{name}: {file}");
                    assert!(fs::read(&path).unwrap() == fs::read(source.join(&file)).unwrap(), "{name}: {file}");
                }
            }
        }
    });
}

/// As an agent is told to.
pub fn set(file: &File, mode: u32, seconds: u64) -> io::Result<()> {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time))?;
    file.set_permissions(Permissions::from_mode(mode))
}

#[test]
fn a_killed_server_loses_nothing_of_modes_and_times() {
    const FILES: usize = 6;
    test(|| {
        let One { mount, mut server, export } = One::new();
        // This process starts servers, and must not hold what waits for one.
        let mut agent = Agent::start();
        for round in 0..4 {
            for slot in 0..FILES {
                let path = mount.join(format!("{round}-{slot}"));
                agent.ask(&format!("open {slot} {} rwc", path.display())).unwrap();
                agent.ask(&format!("writeat {slot} 0 {}", "text".repeat(slot))).unwrap();
                agent.ask(&format!("set {slot} {} {}", 0o640 + slot, 1_000_000_000 + round)).unwrap();
            }
            server = server.restart(&[export.path()]);
            for slot in 0..FILES {
                agent.ask(&format!("end {slot}")).unwrap();
                let found = fs::metadata(export.path().join(format!("{round}-{slot}"))).unwrap();
                let expected = (0o640 + slot as u32, 0, 4 * slot as u64, 1_000_000_000 + round, 0);
                assert_eq!(shown(&found), expected, "round {round}, file {slot}");
            }
        }
        drop((agent, mount, server));
    });
}
