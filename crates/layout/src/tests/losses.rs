//! Ends that objects lose past the volume, however little that is: never zeros, nor a hole.

use super::*;
use crate::attribute::Attribute;
use crate::{Goal, Job};

/// Of the only file.
fn object(volume: &Volume, store: usize) -> PathBuf {
    let folders = std::fs::read_dir(volume.store(store).join(marker::OBJECTS)).unwrap();
    let mut objects = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    objects.next().unwrap().unwrap().path()
}

fn cut(object: &Path, length: u64) {
    std::fs::File::options().write(true).open(object).unwrap().set_len(length).unwrap();
}

fn damaged(process: &Process) -> Vec<(String, String)> {
    let report = process.wait(process.plain.check()).unwrap();
    assert!(report.sizes.is_empty() && report.orphans.is_empty(), "{report:?}");
    report.damaged
}

/// A volume with a file of 100,000 bytes in one object of one store.
fn whole() -> (Volume, Process, Vec<u8>) {
    let (volume, data) = (Volume::new(1, 1), content(1, 100_000));
    let process = volume.start(usize::MAX);
    process.put("file", &data).unwrap();
    (volume, process, data)
}

#[test]
fn what_an_object_has_lost_at_its_end_is_no_hole() {
    let (volume, process, data) = whole();
    assert!(damaged(&process).is_empty());
    cut(&object(&volume, 0), 98_000);
    for process in [process, volume.start(usize::MAX)] {
        assert_eq!(process.get("file"), Err(Errno::EIO));
        let open = process.open("file", READ_WRITE).unwrap();
        assert!(process.read(open, 0, 98_000).unwrap() == data[..98_000], "what there is can be read");
        assert_eq!(process.read(open, 97_000, 1001), Err(Errno::EIO));
        // What is written behind it would make a hole of it.
        assert_eq!(process.write(open, 99_000, b"more"), Err(Errno::EIO));
        assert_eq!(process.write(open, u64::MAX, b"more"), Err(Errno::EIO));
        assert!(process.allocate(open, (200_000, 1000), FallocateFlags::KEEP_SIZE).is_ok());
        assert_eq!(process.read(open, 99_000, 10), Err(Errno::EIO));
        process.close(open).unwrap();
        let found = damaged(&process);
        assert!(matches!(&found[..], [(path, why)] if path == "/file" && why.contains("lost 2000 bytes")), "{found:?}");
    }
}

#[test]
fn what_was_lost_may_be_written_again_and_cut_away() {
    let (volume, process, data) = whole();
    let object = object(&volume, 0);
    cut(&object, 98_000);
    let open = process.open("file", READ_WRITE).unwrap();
    process.write(open, 97_500, &data[97_500..99_000]).unwrap();
    assert_eq!(process.read(open, 99_000, 10), Err(Errno::EIO), "1000 bytes are missing still");
    process.write(open, 99_000, &data[99_000..]).unwrap();
    process.close(open).unwrap();
    assert!(process.get("file").unwrap() == data && damaged(&process).is_empty());
    cut(&object, 98_000);
    process.set_size("file", 98_000).unwrap();
    process.set_size("file", 99_000).unwrap();
    assert!(process.get("file").unwrap() == [&data[..98_000], &[0; 1000]].concat(), "zeros that somebody wants");
    assert!(damaged(&process).is_empty());
    // Its server has it again, as one that was started anew is given what it had lost.
    cut(&object, 90_000);
    let open = process.open("file", READ_WRITE).unwrap();
    assert_eq!(process.write(open, 95_000, b"more"), Err(Errno::EIO));
    cut(&object, 98_000);
    process.write(open, 95_000, b"more").unwrap();
    process.close(open).unwrap();
    cut(&object, 0);
    assert_eq!(process.get("file"), Err(Errno::EIO));
    process.put("file", &data).unwrap();
    assert!(process.get("file").unwrap() == data && damaged(&process).is_empty());
}

#[test]
fn holes_at_the_end_stay_holes() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    let data = content(2, 100_000);
    process.put("file", &data).unwrap();
    process.set_size("file", 300_000).unwrap();
    let open = process.open("file", READ_WRITE).unwrap();
    process.write(open, 299_000, b"end").unwrap();
    process.set_size("file", 200_000).unwrap();
    process.close(open).unwrap();
    for process in [process, volume.start(usize::MAX)] {
        assert!(process.get("file").unwrap() == [&data[..], &[0; 100_000]].concat());
        process.set_size("file", 50_000).unwrap();
        process.set_size("file", 200_000).unwrap();
        assert!(process.get("file").unwrap() == [&data[..50_000], &[0; 150_000]].concat());
        assert!(damaged(&process).is_empty());
        process.put("file", &data).unwrap();
        process.set_size("file", 200_000).unwrap();
    }
}

#[test]
fn a_file_in_use_that_was_cut_and_is_longer_again_lacks_nothing() {
    let (volume, process, data) = whole();
    let _open = process.open("file", READ_WRITE).unwrap();
    process.set_size("file", 40_000).unwrap();
    process.set_size("file", 90_000).unwrap();
    assert!(damaged(&process).is_empty(), "{:?}", damaged(&process));
    drop(process);
    let process = volume.start(usize::MAX);
    assert!(process.get("file").unwrap() == [&data[..40_000], &[0; 50_000]].concat());
    assert!(damaged(&process).is_empty());
}

/// The process ends before what was cut is, and before what is written down of it is.
#[test]
fn a_file_that_was_cut_lacks_nothing_wherever_that_ends() {
    for steps in 0..12 {
        let (volume, process, data) = whole();
        drop(process);
        let process = volume.start(steps);
        let _ = process.set_size("file", 30_000);
        drop(process);
        let process = volume.start(usize::MAX);
        let found = process.get("file").unwrap();
        assert!(found == data || found == data[..30_000], "{steps}: {}", found.len());
        process.set_size("file", 100_000).unwrap();
        let expected = if found.len() < 100_000 { [&data[..30_000], &[0; 70_000]].concat() } else { data };
        assert!(process.get("file").unwrap() == expected, "{steps}");
        assert!(damaged(&process).is_empty(), "{steps}");
    }
}

/// Zeros are left out of copies, which are as long as they have to be all the same.
#[test]
fn what_moves_is_as_long_as_it_was_and_a_loss_does_not_move() {
    let (volume, data) = (Volume::new(2, 1), [content(3, 1 << 20), vec![0; 3 << 20]].concat());
    let process = volume.start(usize::MAX);
    process.put("file", &data).unwrap();
    let (from, to) = places(&process);
    assert_eq!(drain(&process, from, true), Ok(vec![true]));
    assert!(damaged(&process).is_empty(), "{:?}", damaged(&process));
    assert!(process.get("file").unwrap() == data);
    assert_eq!(object(&volume, to).metadata().unwrap().len(), 4 << 20);
    drain(&process, from, false).unwrap();
    cut(&object(&volume, to), (4 << 20) - 100);
    assert_eq!(drain(&process, to, true), Err(Errno::EIO));
    assert_eq!(places(&process), (to, from), "it stays");
    assert_eq!(damaged(&process).len(), 1);
}

/// Moves a file away from a server, or lets it have files again. Returns what became of each.
fn drain(process: &Process, number: usize, drains: bool) -> Result<Vec<bool>, Errno> {
    process.wait(process.plain.set_draining(&format!("d{number}"), drains)).unwrap();
    let found = process.wait(process.plain.misplaced(Goal::Drain)).unwrap();
    found.iter().map(|found| process.wait(process.plain.relocate(found, Goal::Drain, &Job::new(None)))).collect()
}

/// The server of the only file of two servers with one object, and the other.
fn places(process: &Process) -> (usize, usize) {
    let has = |id: &str| process.wait(process.plain.objects_at(id)).unwrap();
    if has("d0") == 1 { (0, 1) } else { (1, 0) }
}

/// What was written of a file that moves is written down of it, though nobody has closed it yet.
#[test]
fn what_a_moved_file_loses_is_no_hole() {
    let (volume, data) = (Volume::new(2, 1), content(3, 1 << 20));
    let process = volume.start(usize::MAX);
    let (_, open) = process.create("file", OpenFlags::empty()).unwrap();
    process.write(open, 0, &data).unwrap();
    let (from, to) = places(&process);
    assert_eq!(drain(&process, from, true), Ok(vec![true]));
    assert!(process.read(open, 0, data.len()).unwrap() == data && damaged(&process).is_empty());
    cut(&object(&volume, to), (1 << 20) - 100);
    assert_eq!(process.read(open, (1 << 20) - 200, 200), Err(Errno::EIO));
    assert_eq!(process.write(open, 1 << 20, b"more"), Err(Errno::EIO));
    let found = damaged(&process);
    assert!(matches!(&found[..], [(_, why)] if why.contains("lost 100 bytes")), "{found:?}");
}

/// Who comes to a file while it is written down what its objects are goes on with that: a move
/// leaves zeros at their ends out, and makes them as long as they were.
#[test]
fn what_moves_after_it_was_written_down_and_not_forgotten_is_as_long_as_it_was() {
    let (volume, data) = (Volume::new(2, 1), [content(3, 1 << 20), vec![0; 3 << 20]].concat());
    let process = volume.start(usize::MAX);
    let (entry, open) = process.create("file", OpenFlags::empty()).unwrap();
    for (part, at) in data.chunks(1 << 20).zip(0..) {
        assert_eq!(process.write(open, at << 20, part), Ok(1 << 20));
    }
    drop(process);
    // Nobody knows what a process that ended has left: by its handle nobody looks either.
    let process = volume.start(usize::MAX);
    let open = || {
        let request = Request::Open { handle: entry.handle.bytes(), flags: READ_WRITE };
        process.ask(request).unwrap().opened().unwrap().id
    };
    let first = open();
    process.write(first, 0, &data[..1]).unwrap();
    process.disk.holds_looks.store(true, Ordering::SeqCst);
    let context = context();
    let mut closed = std::pin::pin!(process.plain.call(&context, Request::Release { open: first }));
    assert!(poll(&mut closed).is_none(), "the server is asked how long it is");
    let second = open();
    process.disk.holds_looks.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut closed), Some(Ok(Reply::Done)));
    let (from, to) = places(&process);
    assert_eq!(drain(&process, from, true), Ok(vec![true]));
    assert!(damaged(&process).is_empty(), "{:?}", damaged(&process));
    assert_eq!(object(&volume, to).metadata().unwrap().len(), 4 << 20);
    assert!(process.read(second, 2 << 20, 1 << 20).unwrap() == data[2 << 20..3 << 20]);
    process.close(second).unwrap();
    assert!(process.get("file").unwrap() == data);
}

#[test]
fn an_older_copy_of_an_object_is_told_of() {
    let (volume, process, data) = whole();
    let (object, old) = (object(&volume, 0), volume.store(0).join("old"));
    let copy = |from: &Path, to: &Path| {
        assert!(std::process::Command::new("cp").arg("-p").args([from, to]).status().unwrap().success());
    };
    copy(&object, &old);
    let set = std::fs::FileTimes::new().set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60));
    std::fs::File::options().write(true).open(&old).unwrap().set_times(set).unwrap();
    let open = process.open("file", READ_WRITE).unwrap();
    process.write(open, 0, b"newer").unwrap();
    copy(&old, &object);
    assert!(damaged(&process).is_empty(), "nobody has closed it yet");
    process.write(open, 0, b"newer").unwrap();
    process.close(open).unwrap();
    assert!(damaged(&process).is_empty());
    copy(&old, &object);
    let found = damaged(&process);
    assert!(matches!(&found[..], [(_, why)] if why.contains("may be an older copy")), "{found:?}");
    process.put("file", &data).unwrap();
    assert!(damaged(&process).is_empty());
}

/// What older releases have written down says nothing of objects.
#[test]
fn a_file_of_an_older_release_is_known_once_it_was_written_to() {
    let (volume, process, data) = whole();
    let (entry, key) = (process.look_up("file").unwrap(), LayoutKey::of_volume(&KEY));
    let attribute = process.wait(process.plain.attribute_of(&entry.handle)).unwrap().unwrap();
    assert_eq!(attribute.were.len(), 1);
    let older = Attribute { were: Vec::new(), ..attribute };
    assert_eq!(older.encode(&key)[0], 2);
    process.wait(process.plain.store(&entry.handle, &older, true)).unwrap();
    drop(process);
    let process = volume.start(usize::MAX);
    assert!(process.get("file").unwrap() == data && damaged(&process).is_empty());
    let open = process.open("file", READ_WRITE).unwrap();
    process.write(open, 0, &data[..10]).unwrap();
    process.close(open).unwrap();
    cut(&object(&volume, 0), 99_999);
    assert_eq!((process.get("file"), damaged(&process).len()), (Err(Errno::EIO), 1));
}
