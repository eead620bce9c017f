//! What is in doubt is not destroyed, and not certified: failures of other movers, replayed.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{FileSystem, directory, disk_directory, program_for_all, run_within, test};
use crate::tree::{assert_same, body, command, noise, set_time, text, told, transfer};

/// rclone #6206: the size and the time are right, and the content is not.
#[test]
fn size_and_time_certify_nothing() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let [from, to] = [&source, &target].map(|folder| folder.path().join("f"));
        fs::write(&from, noise(100_000, 1)).unwrap();
        fs::write(&to, noise(100_000, 2)).unwrap();
        [&from, &to].iter().for_each(|path| set_time(path, 1_000_000_000, 5));
        let [one, other] = [&source, &target].map(|folder| format!("{}/", folder.path().display()));
        let (code, said) = told(home.path(), &["sync", &one, &other]);
        assert_eq!((code, &said["unchanged"]), (0, &1.into()), "by size and time it is left out: {said}");
        let manifest = home.path().join("manifest");
        // A manifest certifies, so that both sides are read for it.
        let (code, said) = told(home.path(), &["sync", "--manifest", text(&manifest), &one, &other]);
        assert_eq!((code, &said["files"]), (0, &1.into()), "{said}");
        transfer(home.path(), &["verify", text(&manifest), text(target.path())]).succeeded();
        fs::write(&to, noise(100_000, 2)).unwrap();
        set_time(&to, 1_000_000_000, 5);
        let (_, said) = told(home.path(), &["sync", "--checksum", &one, &other]);
        assert_eq!(said["files"], 1, "{said}");
        assert_same(source.path(), target.path());
    });
}

/// rclone's silent truncation, xrootd #1404: a file that shrinks, grows or changes while it is
/// read is told, and nothing of it gets its name.
#[test]
fn a_source_that_changes_meanwhile_is_told() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let from = source.path().join("f");
        fs::write(&from, noise(12 << 20, 1)).unwrap();
        fs::write(source.path().join("g"), "still").unwrap();
        let (ends, file) = (AtomicBool::new(false), File::options().append(true).open(&from).unwrap());
        let (code, said) = thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    (&file).write_all(b"more").unwrap();
                    thread::sleep(Duration::from_millis(2));
                }
            });
            let arguments =
                ["cp", "-r", "--bwlimit", "30MB/s", &format!("{}/", text(source.path())), text(target.path())];
            let said = told(home.path(), &arguments);
            ends.store(true, Ordering::Relaxed);
            said
        });
        assert_eq!((code, &said["trouble_count"]), (1, &1.into()), "{said}");
        assert_eq!(said["troubles"][0]["why"], "it changed while it was copied");
        let names: Vec<_> = fs::read_dir(target.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["g"], "one bad file stops no other, and leaves nothing");
    });
}

/// A file has its name only when it is whole: who looks meanwhile sees the old one or the new one.
#[test]
fn nobody_sees_a_file_that_is_not_whole() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let [from, to] = [&source, &target].map(|folder| folder.path().join("f"));
        fs::write(&from, noise(3 << 20, 1)).unwrap();
        fs::write(&to, "old").unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let length = fs::read(&to).unwrap().len();
                    assert!(length == 3 || length == 3 << 20, "{length} bytes");
                }
            });
            (0..10).for_each(|_| drop(transfer(home.path(), &["cp", text(&from), text(&to)]).succeeded()));
            ends.store(true, Ordering::Relaxed);
        });
    });
}

/// rsync's races of 2026: a directory of the destination is exchanged for a link that leads out
/// while the copy runs. Nothing ends up outside.
#[test]
fn a_link_in_the_way_leads_nobody_out() {
    test(|| {
        let (home, source, target, outside) = (directory(), directory(), directory(), directory());
        for number in 0..200 {
            let folder = source.path().join(format!("d/{}", number % 10));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(number.to_string()), "inside").unwrap();
        }
        let (copy, aside) = (target.path().join("copy"), target.path().join("aside"));
        fs::create_dir_all(copy.join("d")).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    if fs::rename(copy.join("d"), &aside).is_ok() {
                        let _ = symlink(outside.path(), copy.join("d"));
                        thread::yield_now();
                        let _ = fs::remove_file(copy.join("d"));
                        let _ = fs::rename(&aside, copy.join("d"));
                    }
                }
            });
            for _ in 0..10 {
                let from = format!("{}/", source.path().display());
                // It may fail: what it must not do is leave.
                let _ = transfer(home.path(), &["cp", "-r", &from, text(&copy)]);
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "something was written outside");
        // At rest, a link where a directory should be is told, and not followed.
        let _ = fs::remove_dir_all(copy.join("d"));
        symlink(outside.path(), copy.join("d")).unwrap();
        let from = format!("{}/", source.path().display());
        let said = transfer(home.path(), &["cp", "-r", &from, text(&copy)]).failed();
        assert!(said.contains("its name is that of something else"), "{said}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    });
}

/// rsync #450, rclone's partial names: no room, and the last bytes of a file that fills it.
#[test]
fn a_destination_without_room_is_told() {
    test(|| {
        let (home, source) = (directory(), directory());
        let full = FileSystem::tmpfs("size=4m");
        let target = full.directory();
        for number in 0..6 {
            fs::write(source.path().join(number.to_string()), noise(1_000_000 + number, number as u64)).unwrap();
        }
        fs::write(source.path().join("big"), noise(9 << 20, 9)).unwrap();
        let from = format!("{}/", source.path().display());
        let (code, said) = told(home.path(), &["cp", "-r", &from, text(target.path())]);
        assert_eq!(code, 1, "{said}");
        assert!(said["troubles"][0]["why"].as_str().unwrap().contains("ENOSPC"), "{said}");
        let mut whole = 0;
        for entry in fs::read_dir(target.path()).unwrap() {
            let path = entry.unwrap().path();
            let of_source = fs::read(source.path().join(path.file_name().unwrap())).unwrap();
            assert!(fs::read(&path).unwrap() == of_source, "{} is not whole", path.display());
            whole += 1;
        }
        assert_eq!(said["files"], whole, "counts never exceed what there is (juicefs #4831)");
    });
}

/// A user who may not give files away, or lacks a right, is told what is lost.
#[test]
fn what_cannot_be_held_is_told() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let file = source.path().join("f");
        fs::write(&file, "x").unwrap();
        chown(&file, Some(1234), Some(1234)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o4755)).unwrap();
        fs::write(source.path().join("closed"), "x").unwrap();
        fs::set_permissions(source.path().join("closed"), Permissions::from_mode(0o600)).unwrap();
        chown(target.path(), Some(4000), Some(4000)).unwrap();
        let program = program_for_all(home.path());
        let mut user = std::process::Command::new("setpriv");
        user.args(["--reuid=4000", "--regid=4000", "--clear-groups"]).arg(&program).args([
            "cp",
            "-r",
            "--no-journal",
            "--json",
        ]);
        user.arg(format!("{}/", source.path().display())).arg(target.path().join("copy"));
        let output = run_within(Duration::from_secs(20), &mut user);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said: serde_json::Value = serde_json::from_str(&output.text).unwrap();
        assert_eq!((&said["trouble_count"], &said["files"]), (&1.into(), &1.into()), "{said}");
        let lost = said["lost"].to_string();
        for expected in ["owner 1234", "group 1234", "set-id bits"] {
            assert!(lost.contains(expected), "{expected}: {lost}");
        }
        let copy = fs::metadata(target.path().join("copy/f")).unwrap();
        assert_eq!((copy.uid(), copy.mode() & 0o7777), (4000, 0o755), "another owner's set-id bit is none");
    });
}

/// OpenZFS #15526: holes are believed only of what has been written out. Whatever lies in memory,
/// all of it arrives.
#[test]
fn what_is_only_in_memory_is_no_hole() {
    test(|| {
        let home = directory();
        let (source, target) = (disk_directory(), disk_directory());
        let from = source.path().join("f");
        for round in 0..5 {
            let file = File::create(&from).unwrap();
            file.set_len(20 << 20).unwrap();
            file.write_all_at(&noise(100_000, round), (round + 1) << 20).unwrap();
            let to = target.path().join(round.to_string());
            transfer(home.path(), &["cp", text(&from), text(&to)]).succeeded();
            assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "round {round}");
        }
    });
}

/// copy_file_range's cap of 0x7ffff000 bytes, and results of 32 bits: more than 4 GiB, mostly
/// holes.
#[test]
fn a_file_of_more_than_four_gib_arrives() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let [from, to] = [&source, &target].map(|folder| folder.path().join("f"));
        let file = File::create(&from).unwrap();
        file.set_len((5 << 30) + 3).unwrap();
        for at in [0, (2 << 30) - 4096, 0x7fff_f000, 1 << 32, (5 << 30) - 1] {
            file.write_all_at(b"data", at).unwrap();
        }
        transfer(home.path(), &["cp", "--no-flush", text(&from), text(&to)]).succeeded();
        let copy = File::open(&to).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), (5 << 30) + 3);
        for at in [0, (2 << 30) - 4096, 0x7fff_f000, 1 << 32, (5 << 30) - 1] {
            let mut data = [0; 4];
            copy.read_exact_at(&mut data, at).unwrap();
            assert_eq!(&data, b"data", "at {at}");
        }
        assert!(copy.metadata().unwrap().blocks() < 1 << 12, "holes stay holes");
    });
}

#[test]
fn filters_choose_what_is_copied() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        for name in ["a.o", "keep.o", "a.c", "d/b.o", "d/b.c", "build/x", "d/build/y"] {
            let path = source.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let from = format!("{}/", source.path().display());
        let to = |name: &str| text(&target.path().join(name)).to_owned();
        let manifest = home.path().join("manifest");
        let names = |target: &str, more: &[&str]| {
            let arguments = [&["cp", "-r", "--manifest", text(&manifest), &from, target], more].concat();
            transfer(home.path(), &arguments).succeeded();
            let body = body(&manifest);
            let lines = body.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            let files =
                lines.filter(|line| line["type"] == "file").map(|line| line["path"].as_str().unwrap().to_owned());
            files.collect::<Vec<_>>()
        };
        let more = ["--exclude", "*.o", "--exclude", "/build/", "--include", "keep.o"];
        assert_eq!(names(&to("1"), &more), ["a.c", "d/b.c", "d/build/y", "keep.o"]);
        let list = home.path().join("list");
        fs::write(&list, "d/b.c\nbuild\n").unwrap();
        assert_eq!(names(&to("2"), &["--files-from", text(&list)]), ["build/x", "d/b.c"]);
    });
}

#[test]
fn a_dry_run_changes_nothing() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        fs::create_dir(source.path().join("d")).unwrap();
        fs::write(source.path().join("d/f"), noise(1000, 1)).unwrap();
        let from = format!("{}/", source.path().display());
        let copy = target.path().join("copy");
        let (code, said) = told(home.path(), &["sync", "-n", &from, text(&copy)]);
        assert_eq!((code, &said["files"], &said["bytes"]), (0, &1.into(), &1000.into()), "{said}");
        assert!(!copy.exists() && said["dry_run"] == true);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "not even a journal");
    });
}

#[test]
fn a_dry_run_counts_what_the_copy_does() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let at = |name: &str| source.path().join(name);
        fs::create_dir_all(at("d/e")).unwrap();
        (0..5).for_each(|number| fs::write(at(&format!("d/{number}")), noise(100 + number, number as u64)).unwrap());
        fs::hard_link(at("d/1"), at("d/e/one")).unwrap();
        symlink("nowhere", at("d/link")).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("d/fifo"), kind, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
        let copy = target.path().join("copy");
        let from = format!("{}/", source.path().display());
        let counts = |more: &[&str]| {
            let (code, said) = told(home.path(), &[more, &[&from, text(&copy)]].concat());
            assert_eq!(code, 0, "{said}");
            ["files", "bytes", "directories", "links", "others", "unchanged"].map(|what| said[what].as_u64().unwrap())
        };
        for (command, expected) in [
            (&["sync"][..], [5, 510, 2, 1, 2, 0]),
            (&["sync"], [0, 0, 0, 0, 0, 8]),
            (&["cp", "-r"], [5, 510, 0, 1, 0, 2]),
        ] {
            assert_eq!(counts(&[command, &["-n"]].concat()), expected, "{command:?}");
            assert_eq!(counts(command), expected, "{command:?}");
        }
        fs::write(copy.join("d/2"), "changed").unwrap();
        fs::remove_file(copy.join("d/link")).unwrap();
        // Alike, and no link: whichever name comes first is left, and the other becomes one.
        let one = copy.join("d/e/one");
        let times = fs::metadata(&one).unwrap();
        fs::remove_file(&one).unwrap();
        fs::copy(copy.join("d/1"), &one).unwrap();
        set_time(&one, times.mtime(), times.mtime_nsec());
        let expected = [1, 102, 0, 1, 1, 5];
        assert_eq!(counts(&["sync", "-n"]), expected);
        assert_eq!(counts(&["sync"]), expected);
    });
}

/// All data together are held to a rate.
#[test]
fn a_rate_is_kept() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let started = Instant::now();
        let from = source.path().join("f");
        fs::write(&from, noise(10_000_000, 1)).unwrap();
        let arguments = ["cp", "--bwlimit", "10MB/s", text(&from), text(target.path())];
        transfer(home.path(), &arguments).succeeded();
        assert!(started.elapsed() > Duration::from_millis(800), "{:?}", started.elapsed());
    });
}

/// A name that appears while a file is copied belongs to somebody else.
#[test]
fn a_name_that_appears_meanwhile_is_not_taken() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let [from, to] = [&source, &target].map(|folder| folder.path().join("f"));
        fs::write(&from, noise(8 << 20, 1)).unwrap();
        let mut copying = command(home.path(), &["cp", "--bwlimit", "10MB/s", text(&from), text(&to)]).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        let was_first = is_free(&to);
        if was_first {
            fs::write(&to, "somebody else's").unwrap();
        }
        let code = copying.wait().unwrap().code();
        if was_first {
            assert_eq!((code, fs::read(&to).unwrap()), (Some(1), b"somebody else's".to_vec()));
        }
    });
}

fn is_free(path: &Path) -> bool {
    !path.exists()
}
