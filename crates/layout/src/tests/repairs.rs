//! What a repair mends, what it leaves, and that it touches nothing else.

use std::os::unix::fs::FileExt;
use std::process::Command;

use super::*;
use crate::attribute::{self, object_name};
use crate::{Act, Done, Job, LOST, Repair};

fn repair_as(process: &Process, dry_run: bool) -> Vec<Act> {
    let mut acts = Vec::new();
    process
        .wait(process.plain.repair(Repair { dry_run, ..Repair::default() }, &Job::new(None), |act| acts.push(act)))
        .unwrap();
    acts
}

fn repair(process: &Process) -> Vec<Act> {
    repair_as(process, false)
}

fn check(process: &Process) -> crate::Report {
    process.wait(process.plain.check()).unwrap()
}

fn lost(volume: &Volume) -> usize {
    let of = |number| std::fs::read_dir(volume.store(number).join(LOST)).map_or(0, |entries| entries.count());
    (0..volume.names.len()).map(of).sum()
}

fn objects(volume: &Volume, store: usize) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(volume.store(store).join(marker::OBJECTS)).unwrap();
    let objects = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    objects.map(|object| object.unwrap().path()).collect()
}

fn run(volume: &Volume, program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).current_dir(volume.tree()).status();
    assert!(status.unwrap().success(), "{program} {arguments:?}");
}

/// A volume with files of all kinds, each of them closed.
fn volume() -> Volume {
    let volume = Volume::new(2, 0);
    std::fs::write(volume.tree().join("old"), content(7, 300_000)).unwrap();
    let process = volume.start(usize::MAX);
    for number in 0..3 {
        process.put(&format!("file-{number}"), &content(number, 60_000)).unwrap();
        process.put(&format!("small-{number}"), &content(number, 5_000)).unwrap();
    }
    process.put("short", &content(9, 60_000)).unwrap();
    process.set_size("short", 100).unwrap();
    let (_, open) = process.create("sparse", READ_WRITE).unwrap();
    process.write(open, 200_000, &content(8, 3000)).unwrap();
    process.close(open).unwrap();
    volume
}

/// What all files have, and what is in the stores and at the stubs, with the times of all.
fn print_of(volume: &Volume) -> String {
    let list = "find . -path ./tree/.aqueduct-volume -prune -o -type f ! -name store -printf '%P %s %T@ %C@ %b ' -exec sha256sum {} \\;";
    let output = Command::new("bash").args(["-c", list]).current_dir(volume.home.path()).output().unwrap();
    assert!(output.status.success());
    let mut all: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    for entry in std::fs::read_dir(volume.tree()).unwrap() {
        let path = entry.unwrap().path();
        let mut value = [0; 1000];
        if let Ok(length) = rustix::fs::getxattr(&path, attribute::NAME, &mut value) {
            all.push(format!("{}: {:?}", path.display(), &value[..length]));
        }
    }
    all.sort();
    all.join("\n")
}

fn strip(volume: &Volume, name: &str) {
    rustix::fs::removexattr(volume.tree().join(name), attribute::NAME).unwrap();
}

#[test]
fn nothing_of_a_healthy_volume_is_touched() {
    let volume = volume();
    let before = print_of(&volume);
    assert!(before.contains("tree/short: [") && before.lines().count() > 20, "{before}");
    let process = volume.start(usize::MAX);
    assert_eq!((repair_as(&process, true), repair(&process)), (vec![], vec![]));
    drop(process);
    assert_eq!(print_of(&volume), before);
}

/// Something planted, which is found by a check and mended, so that the next check finds nothing
/// and all files are what they were, but for `expected`, which is done by hand.
fn mends(harm: impl Fn(&Volume), found: &str, expected: impl Fn(&mut BTreeMap<String, Result<Vec<u8>, Errno>>)) {
    let volume = volume();
    let mut all = volume.start(usize::MAX).all();
    harm(&volume);
    let planted = print_of(&volume);
    let process = volume.start(usize::MAX);
    let report = check(&process);
    assert!(!report.is_clean(), "{found}");
    let would = repair_as(&process, true);
    assert_eq!(print_of(&volume), planted, "nothing was to be done");
    let acts = repair(&process);
    assert!(!acts.is_empty() && acts.len() == would.len(), "{would:?}\n{acts:?}");
    for (would, act) in would.iter().zip(&acts) {
        assert!(act.found.contains(found), "{act:?}");
        assert_eq!((&would.done, &act.done), (&Done::Would, &Done::Done), "{act:?}");
        assert_eq!((&would.at, &would.mend), (&act.at, &act.mend));
    }
    assert_eq!(repair(&process), vec![]);
    let report = check(&process);
    assert!(report.is_clean(), "{found}: {report:?}");
    drop(process);
    expected(&mut all);
    let process = volume.start(usize::MAX);
    assert!(process.all() == all, "{found}");
}

#[test]
fn each_planted_damage_is_mended() {
    let name = object_name(&[0xab; 16], 1).1;
    let plant = |volume: &Volume| {
        std::fs::write(volume.store(0).join(marker::OBJECTS).join("a").join(&name), b"x").unwrap();
        std::fs::write(volume.store(1).join(marker::OBJECTS).join("3/no object"), b"x").unwrap();
    };
    mends(plant, "no file names it", |_| {});
    let removed = |volume: &Volume| std::fs::remove_file(volume.tree().join("file-0")).unwrap();
    mends(removed, "no file names it", |all| _ = all.remove("file-0"));
    for file in ["file-1", "short"] {
        mends(|volume| strip(volume, file), "without its attribute", |_| {});
    }
    mends(|volume| run(volume, "truncate", &["-s", "10", "file-1"]), "made shorter", |_| {});
    mends(|volume| run(volume, "truncate", &["-s", "0", "short"]), "made shorter", |_| {});
    let more = |volume: &Volume| {
        // Not longer, but with much more behind it than is written down.
        let object = objects(volume, 0).pop().unwrap();
        let object = object.to_str().unwrap();
        run(volume, "fallocate", &["-n", "-o", "1MiB", "-l", "8MiB", object]);
    };
    mends(more, "are written down", |_| {});
}

/// Its server does not run, and clients go on with what they have open when it does.
#[test]
fn what_is_open_and_has_no_name_outlives_a_repair_without_servers() {
    let volume = volume();
    let process = volume.start(usize::MAX);
    let open = process.open("file-1", READ_WRITE).unwrap();
    process.unlink("file-1").unwrap();
    process.left.store(0, Ordering::SeqCst);
    let _ = process.close(open);
    drop(process);
    let (objects, gone) = (volume.objects(), std::fs::read_dir(volume.tree().join(FOLDER).join("gone")).unwrap());
    let stub = gone.map(|entry| entry.unwrap().path()).next().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&stub).unwrap();
    // What its objects take is not what is written down, and a name that has flaws is looked at.
    file.set_len(100).unwrap();
    for is_named in [false, true] {
        if is_named {
            std::fs::hard_link(&stub, volume.tree().join("again")).unwrap();
        }
        let process = volume.start(usize::MAX);
        process.plain.is_swept.store(false, Ordering::SeqCst);
        assert_eq!(repair(&process).len(), usize::from(is_named));
        if is_named {
            std::fs::remove_file(volume.tree().join("again")).unwrap();
        }
        // Nor does it go with whoever looks at it.
        let handle = process.wait(process.plain.survey(&process.plain.moves.watch().unwrap(), &Job::new(None)));
        let (_, handle, _) = handle.unwrap().stubs.into_values().find(|(path, ..)| path.contains("gone")).unwrap();
        let file = process.plain.table.pin(&handle);
        process.wait(process.plain.alone(&file)).map(drop).unwrap_or(());
        process.wait(process.plain.unpin(file));
        assert_eq!((volume.objects(), volume.gone()), (objects, 1));
        if is_named {
            process.sweep();
            assert_eq!((volume.objects(), volume.gone()), (objects - 2, 0));
        }
    }
}

/// What is somebody's again, or may be, is not removed for good.
#[test]
fn what_files_name_is_never_purged() {
    let volume = volume();
    let away = volume.home.path().join("away");
    std::fs::rename(volume.tree().join("file-1"), &away).unwrap();
    let process = volume.start(usize::MAX);
    assert_eq!((repair(&process).len(), lost(&volume)), (2, 2));
    let purge = |why: &str| {
        let mut acts = Vec::new();
        process.wait(process.plain.purge(Repair::default(), &Job::new(None), |act| acts.push(act))).unwrap();
        let is_left = |act: &Act| matches!(&act.done, Done::Left(text) if text.contains(why));
        assert!(acts.len() == 2 && acts.iter().all(is_left) && lost(&volume) == 2, "{acts:?}");
    };
    std::fs::rename(&away, volume.tree().join("file-1")).unwrap();
    purge("a file has this id");
    strip(&volume, "file-1");
    purge("a file has this id");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(volume.tree().join("file-1"), attribute::NAME, b"of another volume", flags).unwrap();
    std::fs::OpenOptions::new().write(true).open(volume.tree().join("file-1")).unwrap().set_len(0).unwrap();
    purge("cannot be read");
    for entry in std::fs::read_dir(volume.tree()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    purge("mounted");
}

/// A copy that a move left behind, at another server, or at the one that has it now, goes never to
/// its file.
#[test]
fn only_what_fits_a_file_comes_back_to_it() {
    let volume = volume();
    let process = volume.start(usize::MAX);
    let lengths = |at: usize| objects(&volume, at).into_iter().map(|path| (path.metadata().unwrap().len(), path));
    let (_, object) = lengths(0).find(|(length, _)| *length > 20_000).unwrap();
    let name = object.file_name().unwrap().to_owned();
    let (folder, lost_to) = (object.parent().unwrap().file_name().unwrap(), volume.store(1).join(LOST));
    std::fs::write(volume.store(1).join(marker::OBJECTS).join(folder).join(&name), b"half a copy").unwrap();
    let acts = repair(&process);
    assert!(acts.len() == 1 && acts[0].done == Done::Done, "{acts:?}");
    assert!(!lost_to.join(&name).exists() && lost_to.join(format!("{}~stray", name.to_str().unwrap())).exists());
    // One that was lost by another release.
    std::fs::create_dir(volume.store(0).join(LOST)).unwrap();
    let lost_object = volume.store(0).join(LOST).join(&name);
    std::fs::rename(&object, &lost_object).unwrap();
    let length = lost_object.metadata().unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&lost_object).unwrap();
    file.set_len(length - 1).unwrap();
    let acts = repair(&process);
    let says = |act: &Act| matches!(&act.done, Done::Left(why) if why.contains("has to have"));
    assert!(acts.len() == 1 && says(&acts[0]) && !object.exists(), "{acts:?}");
    file.set_len(length).unwrap();
    assert!(repair(&process)[0].done == Done::Done && object.exists());
}

/// An error of the machine says nothing of a file: nobody is told to remove it.
#[test]
fn what_could_not_be_read_is_no_copy() {
    let volume = volume();
    let process = volume.start(usize::MAX);
    process.unlink("file-2").unwrap();
    process.is_sick.store(true, Ordering::SeqCst);
    let acts = repair(&process);
    let says = |act: &Act| act.at.starts_with("object") || act.found.contains("could not be read");
    assert!(!acts.is_empty() && acts.iter().all(says), "{acts:?}");
    assert!(acts.iter().all(|act| matches!(act.done, Done::Left(_))) && lost(&volume) == 0, "{acts:?}");
    process.is_sick.store(false, Ordering::SeqCst);
    assert_eq!(repair(&process), vec![]);
}

/// The stub may be the one that is wrong.
#[test]
fn bytes_behind_an_end_stay_until_their_file_grows() {
    let volume = volume();
    let process = volume.start(usize::MAX);
    let data = process.get("file-1").unwrap();
    // As what a restore of an older tree leaves.
    run(&volume, "truncate", &["-s", "40000", "file-1"]);
    drop(process);
    let process = volume.start(usize::MAX);
    let acts = repair(&process);
    assert!(matches!(acts[..], [Act { done: Done::Left(_), .. }]), "{acts:?}");
    assert!(acts[0].at == "/file-1" && acts[0].found.contains("20000 bytes behind its end"), "{acts:?}");
    assert!(process.get("file-1").unwrap() == data[..40_000]);
    drop(process);
    run(&volume, "truncate", &["-s", "60000", "file-1"]);
    assert!(volume.start(usize::MAX).get("file-1").unwrap() == data, "all is there still");
    run(&volume, "truncate", &["-s", "40000", "file-1"]);
    let process = volume.start(usize::MAX);
    process.set_size("file-1", 60_000).unwrap();
    assert!(process.get("file-1").unwrap() == [&data[..40_000], &[0; 20_000]].concat(), "they never show");
    assert!(check(&process).is_clean());
}

/// What is written down of it is all that tells of a loss.
#[test]
fn space_that_went_is_told_of_and_not_written_down() {
    let volume = volume();
    let (data, process) = (content(4, 6 << 20), volume.start(usize::MAX));
    let before = [objects(&volume, 0), objects(&volume, 1)].concat();
    process.put("large", &data).unwrap();
    let is_new = |object: &PathBuf| !before.contains(object);
    let object = objects(&volume, 1).into_iter().find(is_new).unwrap();
    let cut = |length: u64| std::fs::File::options().write(true).open(&object).unwrap().set_len(length).unwrap();
    cut(1000);
    let report = check(&process);
    let damaged = |report: &crate::Report, what: &str| {
        assert!(report.sizes.is_empty(), "{report:?}");
        matches!(&report.damaged[..], [(path, why)] if path == "/large" && why.contains(what))
    };
    assert!(damaged(&report, "bytes at its end"), "{report:?}");
    for dry_run in [true, false, false] {
        let acts = repair_as(&process, dry_run);
        assert!(matches!(&acts[..], [Act { at, done: Done::Left(_), .. }] if at == "/large"), "{acts:?}");
    }
    cut(3 << 20); // as long as it was: a hole is as much of a loss
    let report = check(&process);
    assert!(damaged(&report, "may be lost"), "{report:?}");
    assert!(matches!(repair(&process)[..], [Act { done: Done::Left(_), .. }]));
    process.put("large", &data).unwrap();
    assert!(check(&process).is_clean() && process.get("large").unwrap() == data);
    // What was allocated ahead and goes is no loss.
    let open = process.open("large", READ_WRITE).unwrap();
    process.allocate(open, (6 << 20, 8 << 20), FallocateFlags::KEEP_SIZE).unwrap();
    process.close(open).unwrap();
    assert!(check(&process).is_clean());
    for object in [objects(&volume, 0), objects(&volume, 1)].concat().iter().filter(|object| is_new(object)) {
        let file = std::fs::File::options().write(true).open(object).unwrap();
        file.set_len(3 << 20).unwrap();
    }
    let acts = repair(&process);
    assert!(matches!(&acts[..], [Act { done: Done::Done, .. }]), "{acts:?}");
    assert!(check(&process).is_clean() && process.get("large").unwrap() == data);
}

/// What was taken for nobody's, and is somebody's all the same: its name was moved past the volume.
#[test]
fn what_was_lost_comes_back_to_a_file_that_names_it() {
    let volume = volume();
    let all = volume.start(usize::MAX).all();
    let away = volume.home.path().join("away");
    std::fs::rename(volume.tree().join("file-1"), &away).unwrap();
    let process = volume.start(usize::MAX);
    assert_eq!((repair(&process).len(), lost(&volume)), (2, 2));
    std::fs::rename(&away, volume.tree().join("file-1")).unwrap();
    assert_eq!(process.get("file-1"), Err(Errno::EIO), "never zeros");
    let acts = repair(&process);
    assert!(acts.len() == 1 && acts[0].done == Done::Done && acts[0].at == "/file-1", "{acts:?}");
    assert!(process.all() == all && check(&process).is_clean() && lost(&volume) == 0);
    // And what nobody names goes when somebody says so.
    std::fs::remove_file(volume.tree().join("file-1")).unwrap();
    assert_eq!((repair(&process).len(), lost(&volume)), (2, 2));
    for (dry_run, left) in [(true, 2), (false, 0)] {
        let mut acts = Vec::new();
        process
            .wait(process.plain.purge(Repair { dry_run, ..Repair::default() }, &Job::new(None), |act| acts.push(act)))
            .unwrap();
        assert_eq!((acts.len(), lost(&volume)), (2, left), "{acts:?}");
    }
}

/// A tree that is not mounted, or is another one, makes all objects nobody's: they stay.
#[test]
fn most_objects_are_not_taken_for_nobodys_unless_somebody_says_so() {
    for kept in 0..=3 {
        let volume = Volume::new(2, 0);
        let process = volume.start(usize::MAX);
        for number in 0..8 {
            process.put(&format!("file-{number}"), &content(number, 60_000)).unwrap();
        }
        drop(process);
        // 3 of 8 and less are less than half.
        let kept = if kept == 3 { 4 } else { kept };
        (kept..8).for_each(|number| std::fs::remove_file(volume.tree().join(format!("file-{number}"))).unwrap());
        let process = volume.start(usize::MAX);
        let acts = repair(&process);
        let (left, is_half) = (acts.iter().filter(|act| matches!(act.done, Done::Left(_))).count(), kept == 4);
        assert_eq!((acts.len(), left), (16 - 2 * kept as usize, if is_half { 0 } else { acts.len() }), "{acts:?}");
        assert_eq!(lost(&volume), if is_half { 8 } else { 0 });
        let how = Repair { accept_orphans: true, ..Repair::default() };
        process.wait(process.plain.repair(how, &Job::new(None), |act| assert_eq!(act.done, Done::Done))).unwrap();
        assert_eq!(lost(&volume), 16 - 2 * kept as usize);
    }
    // Few, and still all.
    let volume = Volume::new(2, 0);
    volume.start(usize::MAX).put("file", &content(1, 60_000)).unwrap();
    std::fs::remove_file(volume.tree().join("file")).unwrap();
    let acts = repair(&volume.start(usize::MAX));
    let says = |act: &Act| matches!(&act.done, Done::Left(why) if why.contains("mounted"));
    assert!(acts.len() == 2 && acts.iter().all(says) && lost(&volume) == 0, "{acts:?}");
}

/// What cannot be mended is told, and left as it is: it gives EIO still.
#[test]
fn what_nobody_knows_is_left_alone() {
    let left = |harm: &dyn Fn(&Volume), why: &str, path: &str| {
        let volume = volume();
        harm(&volume);
        let before = print_of(&volume);
        let process = volume.start(usize::MAX);
        for _ in 0..2 {
            let acts = repair(&process);
            let act = acts.iter().find(|act| act.at == path).unwrap_or_else(|| panic!("{why}: {acts:?}"));
            assert!(matches!(&act.done, Done::Left(text) if text.contains(why)), "{act:?}");
            assert!(acts.iter().all(|act| matches!(act.done, Done::Left(_))), "{acts:?}");
        }
        assert_eq!((process.get(&path[1..]), print_of(&volume)), (Err(Errno::EIO), before), "{why}");
    };
    let missing = |volume: &Volume| objects(volume, 1).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    left(&missing, "cannot be made again", "/file-1");
    let naked = |volume: &Volume| {
        missing(volume);
        strip(volume, "file-1");
    };
    left(&naked, "is missing", "/file-1");
    // The same object twice, as after a move that did not end.
    let twice = |volume: &Volume| {
        let object = objects(volume, 0).into_iter().next().unwrap();
        let folder = object.parent().unwrap().file_name().unwrap();
        let to = volume.store(1).join(marker::OBJECTS).join(folder).join(object.file_name().unwrap());
        std::fs::copy(&object, to).unwrap();
        let names: Vec<_> = (0..3).map(|n| format!("file-{n}")).chain(["short".into(), "sparse".into()]).collect();
        names.iter().for_each(|name| strip(volume, name));
    };
    let volume = volume();
    twice(&volume);
    let acts = repair(&volume.start(usize::MAX));
    let is_left = |act: &&Act| matches!(&act.done, Done::Left(why) if why.contains("two servers"));
    assert_eq!((acts.iter().filter(is_left).count(), lost(&volume)), (1, 0), "{acts:?}");
    for arguments in [&["--sparse=never"][..], &["-a", "--preserve=xattr"]] {
        let copy = |volume: &Volume| run(volume, "cp", &[arguments, &["file-1", "copy"]].concat());
        left(&copy, "copy the file itself", "/copy");
        // Its objects are not nobody's when the copy alone names them.
        let moved = |volume: &Volume| {
            copy(volume);
            std::fs::remove_file(volume.tree().join("file-1")).unwrap();
        };
        left(&moved, "copy the file itself", "/copy");
    }
    // A layout of which nobody knows what it names: nothing is taken for nobody's.
    let foreign = |volume: &Volume| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(volume.tree().join("file-1"), attribute::NAME, b"of another volume", flags).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(volume.tree().join("file-1")).unwrap();
        file.write_all_at(b"nothing", 0).unwrap();
        std::fs::remove_file(volume.tree().join("file-2")).unwrap();
    };
    left(&foreign, "from a copy", "/file-1");
}

/// A server that is gone from the volume: what it has nothing of is mended.
#[test]
fn layouts_of_servers_that_are_gone_are_mended_where_nothing_is_lost() {
    let mut volume = Volume::new(3, 0);
    let process = volume.start(usize::MAX);
    let mut names = Vec::new();
    // Files of one block of data: the other two objects were never made.
    for number in 0..12 {
        process.put(&format!("file-{number}"), &content(number, 9_000)).unwrap();
        names.push(format!("file-{number}"));
    }
    drop(process);
    let lies: Vec<String> = objects(&volume, 2).iter().map(|path| path.display().to_string()).collect();
    assert!(!lies.is_empty() && lies.len() < 12, "{lies:?}");
    volume.names.pop();
    let process = volume.start(usize::MAX);
    assert_eq!(check(&process).damaged.len(), 12);
    let acts = repair(&process);
    let done = acts.iter().filter(|act| act.done == Done::Done).count();
    assert_eq!((acts.len(), done), (12, 12 - lies.len()), "{acts:?}");
    assert_eq!(check(&process).damaged.len(), lies.len());
    let mut readable = 0;
    for (number, name) in names.iter().enumerate() {
        if let Ok(data) = process.get(name) {
            assert!(data == content(number as u64, 9_000));
            readable += 1;
            let open = process.open(name, READ_WRITE).unwrap();
            process.write(open, 0, &content(90, 60_000)).unwrap();
            process.close(open).unwrap();
            assert!(process.get(name).unwrap() == content(90, 60_000));
        }
    }
    assert_eq!(readable, done);
}

/// A repair that ends at each step leaves what the next one mends.
#[test]
fn a_repair_may_end_at_each_step() {
    for changes in 0.. {
        assert!(changes < 100, "it never ends");
        let volume = volume();
        let mut all = volume.start(usize::MAX).all();
        let away = volume.home.path().join("away");
        std::fs::rename(volume.tree().join("file-2"), &away).unwrap();
        repair(&volume.start(usize::MAX));
        std::fs::rename(&away, volume.tree().join("file-2")).unwrap();
        strip(&volume, "file-1");
        run(&volume, "truncate", &["-s", "10", "short"]);
        std::fs::remove_file(volume.tree().join("file-0")).unwrap();
        all.remove("file-0");
        let process = volume.start(changes);
        let result = process.wait(process.plain.repair(Repair::default(), &Job::new(None), |_| {}));
        let was_dead = process.is_dead();
        drop(process);
        let process = volume.start(usize::MAX);
        let acts = repair(&process);
        assert!(acts.iter().all(|act| act.done == Done::Done), "after {changes} changes: {acts:?}");
        assert!(check(&process).is_clean(), "after {changes} changes");
        assert!(process.all() == all, "after {changes} changes");
        assert_eq!(lost(&volume), 2, "after {changes} changes");
        if !was_dead {
            assert!(result.is_ok() && acts.is_empty() && changes > 5, "after {changes} changes");
            return;
        }
    }
}

struct Names<'a>(&'a Process);

impl Names<'_> {
    fn folder(&self, path: &str) -> Handle {
        let mut at = self.0.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let request = Request::Lookup { parent: at.bytes(), name: name.as_bytes() };
            at = self.0.ask(request).unwrap().entry().unwrap().handle;
        }
        at
    }

    fn make(&self, path: &str, name: &str) {
        let parent = self.folder(path);
        let (parent, name) = (parent.bytes(), name.as_bytes());
        self.0.ask(Request::MakeDirectory { parent, name, mode: 0o755, umask: 0 }).unwrap();
    }
}

fn group() -> Arc<Group> {
    let (name, spin_max) = ("test".into(), std::time::Duration::ZERO);
    Group::new(Settings { name, threads_min: 0, threads_max: 0, spin_max }).unwrap()
}

fn rename(plain: &Plain, from: (&Handle, &str), to: (&Handle, &str), flags: RenameFlags) -> Result<(), Errno> {
    let (parent, name) = (from.0.bytes(), from.1.as_bytes());
    let (new_parent, new_name) = (to.0.bytes(), to.1.as_bytes());
    let request = Request::Rename { parent, name, new_parent, new_name, flags };
    wait(&group(), plain.call(&context(), request)).map(drop)
}

/// A stub, or a directory with one, is moved from each place to each other when a look has come to
/// each directory.
#[test]
fn what_is_moved_during_a_look_is_seen() {
    let volume = Volume::new(1, 0);
    let process = volume.start(usize::MAX);
    let names = Names(&process);
    ["a", "b", "c"].into_iter().for_each(|name| names.make("", name));
    names.make("a", "sub");
    for (from, to) in [("file", ("a", "file")), ("deep", ("a/sub", "deep"))] {
        process.put(from, &content(1, 60_000)).unwrap();
        let to = (&names.folder(to.0), to.1);
        rename(&process.plain, (&process.root(), from), to, RenameFlags::empty()).unwrap();
    }
    let folders = ["a", "b", "c"].map(|name| names.folder(name));
    let has = |folder: &Handle, name: &str| {
        process.ask(Request::Lookup { parent: folder.bytes(), name: name.as_bytes() }).is_ok()
    };
    // Moves it to where it is to begin, and has it moved on when so many directories were opened.
    let prepare = |name: &'static str, (from, to): (usize, usize), at: usize| {
        let now = folders.iter().position(|folder| has(folder, name)).unwrap();
        if now != from {
            let (now, from) = ((&folders[now], name), (&folders[from], name));
            rename(&process.plain, now, from, RenameFlags::empty()).unwrap();
        }
        let (plain, from, to) = (process.plain.clone(), folders[from].clone(), folders[to].clone());
        let moves = move || rename(&plain, (&from, name), (&to, name), RenameFlags::empty()).unwrap();
        *process.meddler.lock().unwrap() = Some((at, Box::new(moves)));
    };
    let (watching, mut missed) = (process.plain.moves.watch().unwrap(), 0);
    let pairs = (0..9).map(|pair| (pair / 3, pair % 3)).filter(|(from, to)| from != to);
    for (name, pair) in pairs.flat_map(|pair| [("file", pair), ("sub", pair)]) {
        for at in 1..7 {
            prepare(name, pair, at);
            let walk = process.wait(process.plain.walk(String::new(), process.root())).unwrap();
            missed += usize::from(walk.stubs.len() < 2);
            prepare(name, pair, at);
            let walk = process.wait(process.plain.survey(&watching, &Job::new(None))).unwrap();
            assert_eq!(walk.stubs.len(), 2, "{name} from {pair:?} at {at}");
            *process.meddler.lock().unwrap() = None;
        }
    }
    assert!(missed > 0, "a walk that takes no notes misses some");
}

/// Renames of files and directories, links, writes, promotions and removals, so many of them,
/// beside repairs: what nobody names goes, and nothing else.
#[test]
fn a_repair_in_a_storm_touches_nothing_that_is_in_order() {
    const ROUNDS: u64 = 120;
    let volume = Volume::new(3, 2);
    let process = volume.start(usize::MAX);
    // A tree that names nothing is refused.
    process.put("kept", &content(1, 40_000)).unwrap();
    let names = Names(&process);
    for thread in 0..3 {
        names.make("", &format!("t{thread}"));
        ["one", "two"].into_iter().for_each(|name| names.make(&format!("t{thread}"), name));
        names.make(&format!("t{thread}/one"), "moves");
    }
    let (plain, ends) = (&process.plain, AtomicBool::new(false));
    let ends = &ends;
    let storm = |thread: u64| {
        let top = names.folder(&format!("t{thread}"));
        let folders = ["one", "two", "one/moves"].map(|path| names.folder(&format!("t{thread}/{path}")));
        move || {
            let group = group();
            let ask = |request: Request<'_>| wait(&group, plain.call(&context(), request));
            let none = RenameFlags::empty();
            let mut last = BTreeMap::new();
            for round in 0..ROUNDS {
                let (file, data) = (format!("f{}", round % 7), content(thread * 1000 + round, 40_000));
                let (parent, name) = (top.bytes(), file.as_bytes());
                let flags = READ_WRITE | OpenFlags::TRUNCATE;
                let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags };
                let (entry, opened) = ask(create).unwrap().created().unwrap();
                let write = WriteAt { open: opened.id, offset: 0, append: false, stable: false };
                wait(&group, plain.write(&context(), write, Source::Memory(data.clone().into()))).unwrap();
                let to = &folders[round as usize % 3];
                rename(plain, (&top, &file), (to, &file), none).unwrap();
                let link = Request::Link { handle: entry.handle.bytes(), parent: folders[1].bytes(), name: b"link" };
                let _ = ask(Request::Unlink { parent: folders[1].bytes(), name: b"link" });
                ask(link).unwrap();
                let (from, at) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
                rename(plain, (&folders[from], "moves"), (&folders[at], "moves"), none).unwrap();
                ask(Request::Release { open: opened.id }).unwrap();
                if round % 11 == 10 {
                    ask(Request::Unlink { parent: to.bytes(), name }).unwrap();
                    last.remove(&(round as usize % 3, file));
                } else {
                    last.insert((round as usize % 3, file), data);
                }
            }
            (folders, last)
        }
    };
    let storms: Vec<_> = (0..3).map(storm).collect();
    let mut planted = 0;
    std::thread::scope(|scope| {
        let storms: Vec<_> = storms.into_iter().map(|storm| scope.spawn(storm)).collect();
        let watch = scope.spawn(|| {
            let mut rounds = 0;
            while !ends.load(Ordering::SeqCst) {
                let name = object_name(&(rounds as u128 + 1).to_be_bytes(), 0).1;
                std::fs::write(volume.store(0).join(marker::OBJECTS).join("0").join(name), b"x").unwrap();
                let mut acts = Vec::new();
                // At first there may be nothing but what was planted, which is most of it then.
                let how = Repair { accept_orphans: true, ..Repair::default() };
                wait(&group(), plain.repair(how, &Job::new(None), |act| acts.push(act))).unwrap();
                assert!(acts.len() == 1 && acts[0].done == Done::Done, "{acts:?}");
                rounds += 1;
            }
            rounds
        });
        let kept: Vec<_> = storms.into_iter().map(|storm| storm.join().unwrap()).collect();
        ends.store(true, Ordering::SeqCst);
        planted += watch.join().unwrap();
        for (folders, last) in kept {
            for ((at, file), data) in last {
                let request = Request::Lookup { parent: folders[at].bytes(), name: file.as_bytes() };
                let handle = process.ask(request).unwrap().entry().unwrap().handle;
                let open = Request::Open { handle: handle.bytes(), flags: OpenFlags::READ };
                let open = process.ask(open).unwrap().opened().unwrap().id;
                assert!(process.read(open, 0, 50_000).unwrap() == data, "{file}");
                process.close(open).unwrap();
            }
        }
    });
    assert!(planted > 3, "{planted}");
    assert_eq!(lost(&volume), planted);
    let report = check(&process);
    assert!(report.is_clean(), "{report:?}");
}
