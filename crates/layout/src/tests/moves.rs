//! Objects that come to lie elsewhere, and large files that get objects, while they are used.

use std::sync::atomic::AtomicBool;

use super::crashes::{Plan, files, play_after};
use super::*;
use crate::{Goal, Job};

/// Puts all objects where they are to lie. Returns how many files that were.
fn relocate(process: &Process, goal: Goal) -> Result<usize, Errno> {
    let found = process.wait(process.plain.misplaced(goal))?;
    for found in &found {
        process.wait(process.plain.relocate(found, goal, &Job::new(None)))?;
    }
    Ok(found.len())
}

fn adopt(process: &Process, path: &str) -> Result<usize, Errno> {
    let found = process.wait(process.plain.ordinary(path))?;
    for found in &found {
        process.wait(process.plain.adopt(found, &Job::new(None)))?;
    }
    Ok(found.len())
}

fn drain(process: &Process, id: &str) -> Result<usize, Errno> {
    process.wait(process.plain.set_draining(id, true))?;
    relocate(process, Goal::Drain)
}

fn objects_at(process: &Process, id: &str) -> usize {
    process.wait(process.plain.objects_at(id)).unwrap()
}

#[test]
fn a_drain_may_end_at_each_step() {
    play_after(
        |_| {},
        &Plan {
            before: |process| process.put("file", &content(1, 100_000)).unwrap(),
            operation: |process| drain(process, "d1").map(drop),
            states: || [files(&[("file", content(1, 100_000))]), files(&[("file", content(1, 100_000))])],
            may_be_partial: false,
        },
    );
}

#[test]
fn a_large_file_may_get_its_objects_and_the_process_end_at_each_step() {
    play_after(
        |volume| std::fs::write(volume.tree().join("old"), content(1, 100_000)).unwrap(),
        &Plan {
            before: |_| {},
            operation: |process| adopt(process, "/").map(drop),
            states: || [files(&[("old", content(1, 100_000))]), files(&[("old", content(1, 100_000))])],
            may_be_partial: false,
        },
    );
}

#[test]
fn what_was_begun_is_gone_on_with_and_nothing_is_left_behind() {
    for changes in 0.. {
        assert!(changes < 100, "it never ends");
        let volume = Volume::new(3, 2);
        let process = volume.start(usize::MAX);
        for number in 0..2 {
            process.put(&format!("file-{number}"), &content(number, 70_000)).unwrap();
        }
        drop(process);
        let process = volume.start(changes);
        let done = drain(&process, "d1");
        drop(process);
        let process = volume.start(usize::MAX);
        drain(&process, "d1").unwrap();
        assert_eq!((objects_at(&process, "d1"), volume.objects()), (0, 4), "after {changes} changes");
        for number in 0..2 {
            assert!(process.get(&format!("file-{number}")).unwrap() == content(number, 70_000));
        }
        process.put("new", &content(7, 70_000)).unwrap();
        assert_eq!(objects_at(&process, "d1"), 0, "new files avoid it");
        if done.is_ok() {
            return;
        }
    }
}

#[test]
fn a_server_that_comes_gets_its_share_when_it_is_told_and_not_before() {
    let mut volume = Volume::new(2, 1);
    let process = volume.start(usize::MAX);
    for number in 0..30 {
        process.put(&format!("file-{number}"), &content(number, 20_000)).unwrap();
    }
    drop(process);
    volume.add();
    let process = volume.start(usize::MAX);
    for number in 0..30 {
        assert!(process.get(&format!("file-{number}")).unwrap() == content(number, 20_000));
    }
    assert_eq!(objects_at(&process, "d2"), 0);
    let moved = relocate(&process, Goal::Balance).unwrap();
    assert!((2..22).contains(&moved), "{moved} of 30 are a third");
    assert_eq!((objects_at(&process, "d2"), volume.objects()), (moved, 30));
    assert_eq!(relocate(&process, Goal::Balance), Ok(0));
    for number in 0..30 {
        assert!(process.get(&format!("file-{number}")).unwrap() == content(number, 20_000));
    }
    // And back.
    assert_eq!(drain(&process, "d2"), Ok(moved));
    assert_eq!((objects_at(&process, "d2"), volume.objects()), (0, 30));
    process.wait(process.plain.set_draining("d2", false)).unwrap();
    assert_eq!(process.wait(process.plain.set_draining("d9", false)), Err(Errno::ENOENT));
    assert_eq!(relocate(&process, Goal::Balance), Ok(moved));
}

#[test]
fn large_files_get_objects_where_they_are_asked_for_and_keep_their_times() {
    let volume = Volume::new(2, 0);
    std::fs::create_dir(volume.tree().join("dir")).unwrap();
    let mut sparse = content(2, 3 << 20);
    sparse[1 << 20..2 << 20].fill(0);
    for (name, data) in [("a", &content(1, 50_000)), ("dir/b", &sparse), ("dir/c", &content(3, 100))] {
        std::fs::write(volume.tree().join(name), data).unwrap();
    }
    let before = std::fs::metadata(volume.tree().join("dir/b")).unwrap().modified().unwrap();
    let process = volume.start(usize::MAX);
    assert_eq!(adopt(&process, "/nothing"), Err(Errno::ENOENT));
    assert_eq!(adopt(&process, &format!("/{FOLDER}")), Err(Errno::ENOENT));
    assert_eq!((adopt(&process, "/dir"), volume.objects()), (Ok(1), 2));
    assert_eq!((adopt(&process, "/a"), volume.objects()), (Ok(1), 4));
    assert_eq!(adopt(&process, "/"), Ok(0));
    let stub = std::fs::metadata(volume.tree().join("dir/b")).unwrap();
    assert_eq!((stub.modified().unwrap(), stub.len()), (before, 3 << 20));
    assert!(std::os::unix::fs::MetadataExt::blocks(&stub) < 64);
    assert!(process.get("a").unwrap() == content(1, 50_000));
    process.rename("dir/b", "b").unwrap_err();
    std::fs::rename(volume.tree().join("dir/b"), volume.tree().join("b")).unwrap();
    assert!(process.get("b").unwrap() == sparse);
    process.unlink("a").unwrap();
    assert_eq!(volume.objects(), 2);
}

/// Writers that check what they have written, beside somebody who has the file move all the time.
#[test]
fn files_move_while_they_are_read_and_written() {
    let volume = Volume::new(3, 2);
    std::fs::write(volume.tree().join("old"), vec![0; 3 << 20]).unwrap();
    let process = volume.start(usize::MAX);
    process.put("file", &vec![0; 2 << 20]).unwrap();
    let ends = AtomicBool::new(false);
    let group = || {
        let (name, spin_max) = ("test".into(), std::time::Duration::ZERO);
        Group::new(Settings { name, threads_min: 0, threads_max: 0, spin_max }).unwrap()
    };
    let (plain, ends) = (&process.plain, &ends);
    let write = |name: &str, seed: u64| {
        let open = process.open(name, READ_WRITE).unwrap();
        move || {
            let (group, mut expected) = (group(), vec![0; 2 << 20]);
            let mut random = content(seed, 9000).into_iter();
            let mut round = 0u64;
            while !ends.load(Ordering::SeqCst) && round < 2500 {
                let mut byte = || usize::from(random.next().unwrap());
                let at = ((byte() << 16 | byte() << 8 | byte()) % (2 << 20)).min((2 << 20) - 3000);
                let data = content(round, 3000);
                expected[at..at + 3000].copy_from_slice(&data);
                let write = WriteAt { open, offset: at as u64, append: false, stable: false };
                let written = wait(&group, plain.write(&context(), write, Source::Memory(data.into()))).unwrap();
                assert_eq!(written.count, 3000);
                let sink = MemorySink::default();
                let read = ReadAt { open, offset: at as u64, length: 3000 };
                wait(&group, plain.read(&context(), read, Box::new(sink.clone()))).unwrap();
                assert!(sink.take().unwrap() == expected[at..at + 3000], "round {round}");
                round += 1;
            }
            (expected, round)
        }
    };
    let (one, other) = (write("file", 1), write("old", 2));
    std::thread::scope(|scope| {
        let writers = [scope.spawn(one), scope.spawn(other)];
        for round in 0..12 {
            for number in 0..3 {
                process.wait(plain.set_draining(&format!("d{number}"), number == round % 3)).unwrap();
            }
            relocate(&process, Goal::Drain).unwrap();
            assert_eq!(objects_at(&process, &format!("d{}", round % 3)), 0);
            if round == 2 {
                assert_eq!(adopt(&process, "/old"), Ok(1));
            }
        }
        ends.store(true, Ordering::SeqCst);
        for (writer, name) in writers.into_iter().zip(["file", "old"]) {
            let (expected, rounds) = writer.join().unwrap();
            assert!(rounds > 0);
            assert!(process.get(name).unwrap()[..2 << 20] == expected, "{name}");
        }
    });
    assert_eq!(volume.objects(), 4);
}

/// A writer that cuts its file, leaves holes behind the end and writes it anew, beside somebody
/// who has it move all the time, or promotes it: what it reads is what it wrote, and zeros
/// elsewhere.
#[test]
fn files_are_cut_and_grow_while_they_move() {
    const SIZE: usize = 24 << 20; // more than is copied while others wait
    const PIECE: usize = 200_000;
    let volume = Volume::new(3, 2);
    std::fs::write(volume.tree().join("old"), content(2, SIZE)).unwrap();
    let process = volume.start(usize::MAX);
    process.put("file", &content(1, SIZE)).unwrap();
    let ends = AtomicBool::new(false);
    let (plain, ends) = (&process.plain, &ends);
    let write = |name: &'static str, seed: u64| {
        let open = process.open(name, READ_WRITE).unwrap();
        let handle = process.look_up(name).unwrap().handle;
        let mut expected = content(seed, SIZE);
        move || {
            let (name, spin_max) = ("test".into(), std::time::Duration::ZERO);
            let group = Group::new(Settings { name, threads_min: 0, threads_max: 0, spin_max }).unwrap();
            let mut random = content(seed + 10, 1 << 16).into_iter();
            let mut byte = || usize::from(random.next().unwrap());
            let mut round = 0u64;
            while !ends.load(Ordering::SeqCst) && round < 4000 {
                round += 1;
                let at = (byte() << 16 | byte() << 8 | byte()) % (SIZE - PIECE);
                if round.is_multiple_of(5) {
                    // Else the file is always left to who writes to it.
                    std::thread::sleep(std::time::Duration::from_millis(byte() as u64 / 4));
                    let set = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                    let request = Request::SetAttr { handle: handle.bytes(), open: Some(open), set };
                    wait(&group, plain.call(&context(), request)).unwrap();
                    expected.resize(at, 0);
                }
                let (append, data) = (round.is_multiple_of(3), content(round, PIECE));
                let from = if append { expected.len() } else { at };
                if from + PIECE <= SIZE {
                    expected.resize(expected.len().max(from + PIECE), 0);
                    expected[from..from + PIECE].copy_from_slice(&data);
                    let write = WriteAt { open, offset: at as u64, append, stable: false };
                    let written = wait(&group, plain.write(&context(), write, Source::Memory(data.into()))).unwrap();
                    assert_eq!(written.count as usize, PIECE);
                }
                let sink = MemorySink::default();
                let read = ReadAt { open, offset: at as u64, length: 1 << 20 };
                wait(&group, plain.read(&context(), read, Box::new(sink.clone()))).unwrap();
                let end = expected.len().min(at + (1 << 20)).max(at.min(expected.len()));
                assert!(sink.take().unwrap() == expected[at.min(expected.len())..end], "round {round}");
            }
            (expected, round)
        }
    };
    let (one, other) = (write("file", 1), write("old", 2));
    std::thread::scope(|scope| {
        let writers = [scope.spawn(one), scope.spawn(other)];
        let mut moved = 0;
        for round in 0..30 {
            for number in 0..3 {
                process.wait(plain.set_draining(&format!("d{number}"), number == round % 3)).unwrap();
            }
            for found in process.wait(plain.misplaced(Goal::Drain)).unwrap() {
                match process.wait(plain.relocate(&found, Goal::Drain, &Job::new(None))) {
                    Ok(is_moved) => moved += usize::from(is_moved),
                    Err(error) => assert_eq!(error, Errno::EBUSY),
                }
            }
            for found in process.wait(plain.ordinary("/")).unwrap() {
                assert!(matches!(process.wait(plain.adopt(&found, &Job::new(None))), Ok(_) | Err(Errno::EBUSY)));
            }
        }
        ends.store(true, Ordering::SeqCst);
        assert!(moved > 5, "{moved}");
        for (writer, name) in writers.into_iter().zip(["file", "old"]) {
            let (expected, rounds) = writer.join().unwrap();
            assert!(rounds > 10, "{rounds}");
            assert!(process.get(name).unwrap() == expected, "{name}");
        }
    });
}

/// Whoever copies an ordinary file writes objects of its id: nobody else may make them meanwhile.
#[test]
fn a_file_that_is_copied_gets_no_objects_from_who_writes_to_it() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    let (entry, open) = process.create("file", READ_WRITE).unwrap();
    let file = process.plain.table.pin(&entry.handle);
    let taking = file.changed.begin().unwrap();
    assert_eq!(process.write(open, 0, &content(1, 100_000)), Ok(100_000));
    assert_eq!(volume.objects(), 0);
    drop(taking);
    process.wait(process.plain.unpin(file));
    assert!(process.get("file").unwrap() == content(1, 100_000));
}
