//! New files where a store refuses what is asked of it.

use super::*;
use crate::Job;
use crate::attribute::Attribute;
use crate::pinned::Kind;

fn objects(volume: &Volume, store: usize) -> usize {
    let folders = std::fs::read_dir(volume.store(store).join(marker::OBJECTS)).unwrap();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

/// Files until each store has one; returns the first that lies in the first store.
fn fill(volume: &Volume, process: &Process) -> String {
    let mut first = None;
    for number in 0.. {
        let name = format!("old-{number}");
        process.put(&name, &content(number, 60_000)).unwrap();
        first = first.or_else(|| (objects(volume, 0) > 0).then_some(name));
        if objects(volume, 1) > 0 && first.is_some() {
            break;
        }
    }
    first.unwrap()
}

#[test]
fn new_files_avoid_a_store_that_is_not_what_it_has_to_be_until_it_is() {
    let volume = Volume::new(2, 1);
    let process = volume.start(usize::MAX);
    let old = fill(&volume, &process);
    let (marker, away) = (volume.store(0).join(marker::NAME), volume.home.path().join("away"));
    std::fs::rename(&marker, &away).unwrap();
    process.starts.fetch_add(1, Ordering::SeqCst);
    let before = objects(&volume, 0);
    for number in 0..20 {
        process.put(&format!("new-{number}"), &content(number, 60_000)).unwrap();
    }
    assert_eq!((objects(&volume, 0), process.get(&old)), (before, Err(Errno::EIO)));
    std::fs::rename(&away, &marker).unwrap();
    process.get(&old).unwrap();
    for number in 0..20 {
        process.put(&format!("newer-{number}"), &content(number, 60_000)).unwrap();
    }
    assert!(objects(&volume, 0) > before, "it is used again");
    assert!(process.wait(process.plain.check()).unwrap().is_clean());
}

#[test]
fn new_files_avoid_a_store_that_is_read_only() {
    for width in [1, 0] {
        let volume = Volume::new(2, width);
        let process = volume.start(usize::MAX);
        let old = fill(&volume, &process);
        *process.disk.read_only.lock().unwrap() = Some(0);
        let before = objects(&volume, 0);
        if width == 0 {
            // Nobody knows of it before.
            let _ = process.put("first", &content(0, 60_000));
            process.unlink("first").unwrap();
        }
        for number in 0..20 {
            process.put(&format!("new-{number}"), &content(number, 60_000)).unwrap();
        }
        assert_eq!(objects(&volume, 0), before);
        assert!(process.get(&old).is_ok(), "what is there is read");
        *process.disk.read_only.lock().unwrap() = None;
        for store in &process.plain.stores {
            process.wait(store.look(None));
        }
        for number in 0..20 {
            process.put(&format!("newer-{number}"), &content(number, 60_000)).unwrap();
        }
        assert!(objects(&volume, 0) > before, "it is used again");
        assert!(process.wait(process.plain.check()).unwrap().is_clean());
    }
}

/// What was begun where it cannot be ended is begun elsewhere, also by the next process.
#[test]
fn a_promotion_is_not_bound_to_a_store_that_is_avoided() {
    let volume = Volume::new(2, 1);
    let process = volume.start(usize::MAX);
    fill(&volume, &process);
    let before = objects(&volume, 0);
    for number in 0..20 {
        process.put(&format!("new-{number}"), &content(number, 5_000)).unwrap();
    }
    *process.disk.refuses.lock().unwrap() = Some(Errno::EIO);
    for number in 0..20 {
        let open = process.open(&format!("new-{number}"), READ_WRITE).unwrap();
        assert_eq!(process.write(open, 0, &content(number, 60_000)), Err(Errno::EIO));
        process.close(open).unwrap();
    }
    assert!(objects(&volume, 0) > before);
    drop(process);
    let process = volume.start(usize::MAX);
    *process.disk.read_only.lock().unwrap() = Some(0);
    for number in 0..20 {
        let name = format!("new-{number}");
        let open = process.open(&name, READ_WRITE).unwrap();
        process.write(open, 0, &content(number, 60_000)).unwrap();
        process.close(open).unwrap();
        assert!(process.get(&name).unwrap() == content(number, 60_000));
    }
}

/// What lay at another place of a file is being removed: it does not come to lie there meanwhile.
#[test]
fn a_file_is_placed_nowhere_from_where_something_of_it_is_removed() {
    let volume = Volume::new(2, 1);
    let process = volume.start(usize::MAX);
    let (entry, open) = process.create("file", OpenFlags::empty()).unwrap();
    process.set_size("file", 100_000).unwrap();
    let file = process.plain.table.pin(&entry.handle);
    let (_, kind) = process.wait(process.plain.shared(&file)).unwrap();
    let Kind::Spread(spread) = kind else { panic!("it is too long for an ordinary one") };
    let keys: Vec<_> = process.plain.stores.iter().map(|store| store.key()).collect();
    let at = keys.iter().position(|key| *key == spread.server(0)).unwrap();
    // As a move that had nothing to copy leaves it.
    let moved = Attribute { other: vec![keys[1 - at]], ..spread.now().attribute.clone() };
    process.wait(process.plain.store(&entry.handle, &moved, true)).unwrap();
    spread.now().attribute = moved;
    *process.disk.read_only.lock().unwrap() = Some(at);
    process.disk.holds_removals.store(true, Ordering::SeqCst);
    let job = Job::new(None);
    let mut tidied = std::pin::pin!(process.plain.tidy(&file, &job));
    assert!(poll(&mut tidied).is_none());
    let written = process.write(open, 0, b"written");
    process.disk.holds_removals.store(false, Ordering::SeqCst);
    let _ = poll(&mut tidied);
    *process.disk.read_only.lock().unwrap() = None;
    process.wait(process.plain.unpin(file.clone()));
    process.close(open).unwrap();
    let expected = if written.is_ok() { &b"written"[..] } else { &[0; 7] };
    assert_eq!(process.get("file").unwrap()[..7], *expected, "{written:?}");
    assert_eq!(written, Err(Errno::EROFS));
}
