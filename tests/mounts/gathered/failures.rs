//! Small writes for which there is no room: who wrote is told.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::{create, open};
use crate::common::{FileSystem, Pair, Server, directory, have, mount_point, run, shell, skip, test, within};
use crate::sys;

/// A file that leaves no room.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("ballast");
    let (file, mut at) = (File::create(&path).unwrap(), 0);
    for size in [1 << 20, 4096] {
        while let Ok(count) = file.write_at(&vec![1; size], at) {
            at += count as u64;
        }
    }
    path
}

/// Two mounts of a small export, which keeps its file system.
fn small() -> (Pair, FileSystem) {
    let small = FileSystem::tmpfs("size=4m");
    let export = small.directory();
    let server = Server::start(&[export.path()]);
    let [left, right] = [(); 2].map(|()| server.mount(export.path()));
    (Pair { left, right, server, export }, small)
}

#[track_caller]
fn is_full(result: io::Result<()>) -> bool {
    let error = result.err().map(|error| error.raw_os_error().unwrap());
    assert!([None, Some(libc::ENOSPC)].contains(&error), "{error:?}");
    error.is_some()
}

/// What has a client send what it may hold back, between the writes and the close. The last look at the file goes through another descriptor.
type Between = (&'static str, fn(&Pair, &Path, &File));

const BETWEEN: [Between; 9] = [
    ("nothing", |_, _, _| {}),
    ("some time", |_, _, _| thread::sleep(Duration::from_millis(1300))),
    ("a look", |_, path, _| assert!(fs::metadata(path).unwrap().len() <= 1000)),
    ("a read", |_, path, _| assert!(fs::read(path).unwrap().len() <= 1000)),
    ("a look from elsewhere", |pair, path, _| {
        assert!(fs::metadata(pair.right.join(path.file_name().unwrap())).unwrap().len() <= 1000);
    }),
    ("a read from elsewhere", |pair, path, _| {
        assert!(fs::read(pair.right.join(path.file_name().unwrap())).unwrap().len() <= 1000);
    }),
    ("a rename", |_, path, _| fs::rename(path, path.with_extension("renamed")).unwrap()),
    ("an fsync of who wrote nothing", |_, _, other| {
        is_full(other.sync_all());
    }),
    ("its removal elsewhere", |pair, path, _| fs::remove_file(pair.right.join(path.file_name().unwrap())).unwrap()),
];

#[test]
fn who_wrote_is_told_that_there_was_no_room() {
    test(|| {
        let (pair, _small) = small();
        fill(pair.export.path());
        for (number, (name, between)) in BETWEEN.iter().enumerate() {
            for synced in [false, true] {
                let path = pair.left.join(format!("{number}-{synced}"));
                // Nobody else is told who wrote nothing.
                let (file, other, reader) = (create(&path), open(&path), File::open(&path).unwrap());
                let told = (0..10).any(|at| is_full(file.write_all_at(&[7; 100], at * 100)));
                between(&pair, &path, &other);
                for (who, closed) in [("wrote nothing", sys::close(other)), ("only reads", sys::close(reader))] {
                    assert!(closed.is_ok(), "{name}: close of one that {who}: {closed:?}");
                }
                let told = synced && is_full(file.sync_all()) || told;
                let told = is_full(sys::close(file)) || told;
                assert!(told, "{name}, then {}: nobody is told", if synced { "fsync and close" } else { "close" });
            }
        }
    });
}

#[test]
fn a_descriptor_that_met_no_room_goes_on_when_there_is_some() {
    test(|| {
        for (number, by_fsync) in [(0, false), (1, true)] {
            let (pair, _small) = small();
            let (path, there) = (pair.left.join("file"), pair.export.path().join("file"));
            let file = create(&path);
            file.write_all_at(b"before", 0).unwrap();
            file.sync_all().unwrap();
            let ballast = fill(pair.export.path());
            let mut told = false;
            for at in 2..1000 {
                told |= is_full(file.write_all_at(&[number; 100], at * 4096));
                told |= by_fsync && is_full(file.sync_all());
                if told {
                    break;
                }
            }
            // What is held back still may not fit either.
            told |= is_full(file.sync_all());
            assert!(told);
            fs::remove_file(ballast).unwrap();
            let _ = file.sync_all();
            for at in 0..50 {
                file.write_all_at(&[8; 100], 6 + at * 100).unwrap();
            }
            file.sync_all().unwrap();
            let bytes = fs::read(&there).unwrap();
            assert!(bytes[..6] == *b"before" && bytes[6..5006] == [8; 5000], "by_fsync: {by_fsync}");
            file.write_all_at(b"after", 0).unwrap();
            sys::close(file).unwrap();
            assert_eq!(&fs::read(there).unwrap()[..6], b"aftere");
        }
    });
}

/// Of a large file without a name the room is there with the close, of which the kernel tells only
/// after it has let the program go on.
#[test]
fn what_is_closed_is_room_for_who_writes_next() {
    test(|| {
        let (pair, _small) = small();
        let (first, second) = (pair.left.join("first"), pair.left.join("second"));
        // Of four MiB.
        let megabyte = vec![7; 1 << 20];
        for (size, rounds) in [(1 << 20, 40), (64 << 10, 40), (4096, 10)] {
            for round in 0..rounds {
                let [large, next] = [&first, &second].map(|path| create(path));
                (0..3).for_each(|at| large.write_all_at(&megabyte, at << 20).unwrap());
                large.sync_all().unwrap();
                fs::remove_file(&first).unwrap();
                drop(large);
                let write = |at: usize| next.write_all_at(&megabyte[..size], at as u64);
                let wrote = (0..2 << 20).step_by(size).try_for_each(write).and_then(|()| next.sync_all());
                wrote.unwrap_or_else(|error| panic!("round {round}, {size} bytes at once: {error}"));
                fs::remove_file(&second).unwrap();
            }
        }
    });
}

#[test]
fn what_was_reported_as_written_is_there_when_the_room_ends() {
    test(|| {
        for synced_every in [1, 64, usize::MAX] {
            let (pair, _small) = small();
            let file = create(&pair.left.join("file"));
            let byte = |at: usize| (at / 7 % 251) as u8;
            let (mut written, mut synced, mut told) = (0, 0, false);
            for number in 1..20_000 {
                let data: Vec<u8> = (written..written + 1 + number * 37 % 3000).map(byte).collect();
                told = is_full(file.write_all_at(&data, written as u64));
                if !told {
                    written += data.len();
                }
                if !told && number % synced_every == 0 {
                    told = is_full(file.sync_all());
                    synced = if told { synced } else { written };
                }
                if told {
                    break;
                }
            }
            assert!(told && written > 3 << 20, "{written}");
            let _ = sys::close(file);
            let bytes = fs::read(pair.export.path().join("file")).unwrap();
            assert!(bytes.len() >= synced.max(3 << 20), "{} of {synced}", bytes.len());
            assert!(bytes.iter().enumerate().all(|(at, found)| *found == byte(at)), "synced every {synced_every}");
        }
    });
}

/// A file system that lets user 1000 have less than 2 MB, in this directory: by a quota, and by what is kept for root, which any kernel knows.
const BOUNDS: [(&str, &str); 2] = [
    (
        "truncate -s 400M image
if mkfs.ext4 -q -F -O quota -E quotatype=usrquota image && mount -o loop,usrquota image $point 2> /dev/null; then
    mkdir -m 777 $point/export; setquota -u 1000 1000 1000 0 0 $point
else
    mkfs.btrfs -q -f image; mount -o loop image $point; btrfs quota enable $point
    btrfs -q subvolume create $point/export; chmod 777 $point/export; btrfs qgroup limit 1000K 0/256 $point
fi",
        "quota",
    ),
    (
        "truncate -s 4M image; mkfs.ext4 -q -F -O ^has_journal -m 50 image; mount -o loop image $point; mkdir -m 777 $point/export",
        "No space left",
    ),
];

/// As the user, whoever sends it in the end.
#[test]
fn who_wrote_is_told_of_a_quota() {
    within(Duration::from_secs(60), || {
        if have(&["mkfs.ext4", "mkfs.btrfs", "btrfs", "losetup", "setquota", "setpriv", "dd"]) {
            BOUNDS.iter().for_each(|(make, told)| is_bounded(make, told));
        }
    });
}

fn is_bounded(make: &str, told: &str) {
    let (home, point) = (directory(), mount_point());
    let output = shell(home.path(), &format!("point={}\n{make}", point.display()));
    let disk = FileSystem(point.clone());
    if !output.status.success() {
        return skip(&format!("no file system with {told} here: {}", output.text));
    }
    let server = Server::start(&[&point.join("export")]);
    let mount = server.mount(&point.join("export"));
    let as_user = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-euc", script]);
        run(command.current_dir(mount.path()))
    };
    let text = as_user("dd if=/dev/zero of=a bs=1000 count=3000").failed();
    assert!(text.contains(told), "{text}");
    let size = fs::metadata(mount.join("a")).unwrap().len();
    assert!((400_000..2_000_000).contains(&size), "{size}");
    // And where there is none left, whatever is the first to say it.
    let text = as_user("for i in 1 2 3 4; do dd if=/dev/zero of=b$i bs=500 count=200; done").failed();
    assert!(text.contains(told), "{text}");
    drop((mount, server, disk));
}
