//! Copies that are killed go on, and end as if they had not been.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Process, SOON, Server, TEST_MAX, aqueduct, directory, directory_for_devices, test, wait_until};
use crate::tree::{assert_same, body, command, noise, plant, set_time, text, told, transfer};

/// Large files of several chunks, which take a second or two at the rate of [`RATE`].
fn plant_large(root: &Path) {
    plant(root);
    (0..2).for_each(|number| fs::write(root.join(format!("large{number}")), noise(24 << 20, 10 + number)).unwrap());
}

const RATE: &str = "40MB/s";

/// Starts a copy, and kills it after a while unless it has ended.
fn killed(home: &Path, arguments: &[&str], after: Duration) -> bool {
    let mut process = Process::start(command(home, arguments), &home.join("log"));
    let started = Instant::now();
    while started.elapsed() < after && process.has_ended().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::KILL);
    let status = process.ends_within(Duration::from_secs(20));
    !status.success()
}

/// Temporary files below a directory.
pub fn parts(root: &Path) -> Vec<std::path::PathBuf> {
    let is_part = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with(".aqueduct-part-");
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            } else if is_part(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    found
}

fn is_killed_and_goes_on(target: &str, seen_at: &Path, source: &Path, seed: u64) {
    let home = directory();
    let [manifest, whole] = ["manifest", "whole"].map(|name| home.path().join(name));
    let from = format!("{}/", source.display());
    let arguments = ["cp", "-r", "--resume", "--bwlimit", RATE, "--manifest", text(&manifest), &from, target];
    let mut kills = 0;
    for byte in noise(8, seed) {
        let after = Duration::from_millis(100 + 4 * u64::from(byte));
        kills += u32::from(killed(home.path(), &arguments, after));
    }
    let (code, said) = told(home.path(), &arguments);
    assert_eq!(code, 0, "{said}");
    assert!(kills > 0, "nothing was killed");
    assert_same(source, seen_at);
    assert_eq!(parts(seen_at), Vec::<std::path::PathBuf>::new(), "after {kills} kills");
    let other = directory_for_devices();
    let copy = other.path().join("copy");
    transfer(home.path(), &["cp", "-r", "--manifest", text(&whole), &from, text(&copy)]).succeeded();
    assert_eq!(body(&manifest), body(&whole), "a copy that was killed ends with the same manifest");
}

/// The destination is there the second time, and means what it did the first.
#[test]
fn a_directory_that_became_the_destination_goes_on_there() {
    test(|| {
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        plant_large(source.path());
        let copy = target.path().join("copy");
        let arguments = ["cp", "-r", "--bwlimit", RATE, text(source.path()), text(&copy)];
        assert!(killed(home.path(), &arguments, Duration::from_millis(700)), "it was killed");
        assert!(copy.is_dir());
        let resumed = [&arguments[..], &["--resume"]].concat();
        let other = transfer(home.path(), &[&resumed[..], &["--exclude", "large*"]].concat()).failed();
        assert!(other.contains("did not have patterns or a list"), "{other}");
        let (code, said) = told(home.path(), &resumed);
        assert_eq!(code, 0, "{said}");
        assert_same(source.path(), &copy);
        assert_eq!(parts(target.path()), Vec::<std::path::PathBuf>::new());
        // What has ended is copied into it, as cp(1) has it.
        transfer(home.path(), &resumed).succeeded();
        assert_same(source.path(), &copy.join(source.path().file_name().unwrap()));
    });
}

/// Whoever ends a job waits for no server that stands still.
#[test]
fn a_signal_ends_a_copy_whose_server_does_not_answer() {
    test(|| {
        let (home, source, export) = (directory(), directory(), directory());
        fs::write(source.path().join("large"), noise(60 << 20, 3)).unwrap();
        let server = Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0"], &[export.path()]);
        let mut copy = aqueduct();
        copy.args(["cp", "--no-journal", "--bwlimit", "5MB/s", text(&source.path().join("large"))]);
        copy.arg(format!("{}/copy", server.source(export.path())));
        let mut copy = Process::start(&mut copy, &home.path().join("log"));
        wait_until("it is under way", SOON, || !parts(export.path()).is_empty());
        server.process.stop();
        copy.signal(Signal::TERM);
        let status = copy.ends_within(TEST_MAX);
        server.process.signal(Signal::CONT);
        assert_eq!(status.code(), Some(128 + 15), "{}", copy.output());
        assert!(copy.output().contains("did not end within 20 s"), "{}", copy.output());
        assert!(copy.output().contains(".aqueduct-part-*) stays"), "{}", copy.output());
    });
}

#[test]
fn a_copy_that_is_killed_goes_on() {
    test(|| {
        let (source, target) = (directory_for_devices(), directory_for_devices());
        plant_large(source.path());
        for seed in 1..3 {
            let copy = target.path().join(seed.to_string());
            is_killed_and_goes_on(text(&copy), &copy, source.path(), seed);
        }
    });
}

#[test]
fn a_copy_to_a_server_that_is_killed_goes_on() {
    test(|| {
        let (source, export) = (directory_for_devices(), directory_for_devices());
        plant_large(source.path());
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        let there = format!("{}/copy", server.source(export.path()));
        is_killed_and_goes_on(&there, &export.path().join("copy"), source.path(), 3);
    });
}

/// A copy of one large file that was stopped about in its middle.
struct Half {
    home: tempfile::TempDir,
    source: tempfile::TempDir,
    target: tempfile::TempDir,
    file: String,
    copy: String,
}

impl Half {
    /// `None`: the machine was so slow, or so fast, that there is nothing to go on with.
    fn new() -> Option<Half> {
        let [home, source, target] = [directory(), directory(), directory()];
        let [file, copy] = [&source, &target].map(|folder| text(&folder.path().join("file")).to_owned());
        fs::write(&file, noise(64 << 20, 5)).unwrap();
        let half = Half { home, source, target, file, copy };
        let mut process = Process::start(half.command(&["--bwlimit", "20MB/s"]), &half.home.path().join("log"));
        // Its chunks are in the journal some time after they were written.
        thread::sleep(Duration::from_millis(1800));
        process.signal(Signal::KILL);
        process.ends_within(Duration::from_secs(20));
        (parts(half.target.path()).len() == 1).then_some(half)
    }

    fn command(&self, more: &[&str]) -> &'static mut std::process::Command {
        command(self.home.path(), &[&["cp", "--resume", &self.file, &self.copy], more].concat())
    }

    /// Goes on; returns the bytes that moved.
    fn goes_on(&self) -> u64 {
        let (code, said) = told(self.home.path(), &["cp", "--resume", &self.file, &self.copy]);
        assert_eq!(code, 0, "{said}");
        assert!(fs::read(&self.file).unwrap() == fs::read(&self.copy).unwrap(), "the copy is another");
        assert_eq!(parts(self.target.path()), Vec::<std::path::PathBuf>::new());
        said["moved"].as_u64().unwrap()
    }
}

#[test]
fn only_chunks_that_were_not_written_move_again() {
    test(|| {
        let Some(half) = Half::new() else { return };
        let moved = half.goes_on();
        assert!(moved < 64 << 20, "{moved}");
        assert!(half.source.path().exists());
    });
}

/// Without --resume it begins anew, and nothing of the earlier run stays beside the copy.
#[test]
fn a_copy_that_begins_anew_leaves_nothing_of_the_one_before() {
    test(|| {
        let Some(half) = Half::new() else { return };
        let (code, said) = told(half.home.path(), &["cp", &half.file, &half.copy]);
        assert_eq!((code, &said["moved"]), (0, &(64 << 20).into()), "{said}");
        assert_eq!(parts(half.target.path()), Vec::<std::path::PathBuf>::new());
    });
}

/// What was copied before the interruption was not there before: it is in the manifest.
#[test]
fn what_is_there_already_is_told_from_what_was_copied() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        (0..20).for_each(|number| fs::write(source.path().join(number.to_string()), noise(1000, number)).unwrap());
        let (copy, manifest) = (target.path().join("copy"), home.path().join("manifest"));
        fs::create_dir(source.path().join("bad")).unwrap();
        fs::create_dir(&copy).unwrap();
        fs::write(copy.join("bad"), "in the way").unwrap();
        fs::write(copy.join("7"), "older").unwrap();
        let from = format!("{}/", source.path().display());
        let arguments = ["cp", "-r", "--resume", "--no-clobber", "--manifest", text(&manifest), &from, text(&copy)];
        assert_eq!(told(home.path(), &arguments).0, 1);
        fs::remove_file(copy.join("bad")).unwrap();
        let (code, said) = told(home.path(), &arguments);
        assert_eq!((code, &said["resumed"], &said["skipped"]), (0, &19.into(), &1.into()), "{said}");
        // All but the one that was there, and two directories.
        assert_eq!(body(&manifest).lines().count(), 21);
        assert_eq!(fs::read(copy.join("7")).unwrap(), b"older");
    });
}

/// What a journal says of a chunk counts only if the chunk is what it says.
#[test]
fn a_chunk_that_was_changed_is_copied_again() {
    test(|| {
        let Some(half) = Half::new() else { return };
        let part = File::options().write(true).open(&parts(half.target.path())[0]).unwrap();
        (0..16).for_each(|chunk| part.write_all_at(b"other", (chunk << 22) + 12_345).unwrap());
        assert_eq!(half.goes_on(), 64 << 20);
    });
}

#[test]
fn a_source_that_was_changed_is_copied_anew() {
    test(|| {
        let Some(half) = Half::new() else { return };
        let stat = fs::metadata(&half.file).unwrap();
        let source = File::options().write(true).open(&half.file).unwrap();
        source.write_all_at(b"other", 1).unwrap();
        // As a program that hides what it changed: only ctime tells.
        set_time(Path::new(&half.file), stat.mtime(), stat.mtime_nsec());
        assert_eq!(half.goes_on(), 64 << 20);
    });
}

/// pftool #21: what a journal calls done may have gone from the destination, or be another file.
#[test]
fn a_journal_of_what_is_not_there_any_more_is_not_believed() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        for number in 0..20 {
            fs::write(source.path().join(number.to_string()), noise(1000, number)).unwrap();
        }
        // One name cannot be copied, so that the journal stays.
        fs::create_dir(source.path().join("bad")).unwrap();
        fs::create_dir(target.path().join("copy")).unwrap();
        let copy = target.path().join("copy");
        fs::write(copy.join("bad"), "in the way").unwrap();
        let from = format!("{}/", source.path().display());
        let arguments = ["cp", "-r", "--resume", &from, text(&copy)];
        assert_eq!(told(home.path(), &arguments).0, 1);
        fs::remove_file(copy.join("3")).unwrap();
        let stat = fs::metadata(copy.join("4")).unwrap();
        fs::write(copy.join("4"), noise(1000, 99)).unwrap();
        set_time(&copy.join("4"), stat.mtime(), stat.mtime_nsec());
        fs::remove_file(copy.join("bad")).unwrap();
        let (code, said) = told(home.path(), &arguments);
        assert_eq!((code, &said["files"], &said["resumed"]), (0, &2.into(), &18.into()), "{said}");
        assert_same(source.path(), &copy);
        // Other options are another copy.
        fs::write(copy.join("5"), "other").unwrap();
        fs::remove_dir(copy.join("bad")).unwrap();
        fs::write(copy.join("bad"), "in the way").unwrap();
        assert_eq!(told(home.path(), &arguments).0, 1);
        let said = transfer(home.path(), &["cp", "-r", "--no-clobber", "--resume", &from, text(&copy)]).failed();
        assert!(said.contains("did not have --no-clobber"), "{said}");
    });
}
