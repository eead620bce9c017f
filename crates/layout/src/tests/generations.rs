//! Stores that are restored from older copies, or are others.

use std::time::SystemTime;

use super::*;
use crate::marker::Marker;
use crate::served::Served;
use crate::token::Token;

fn marker(volume: &Volume, number: usize) -> Marker {
    marker::read(&volume.store(number), &LayoutKey::of_volume(&KEY)).unwrap()
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

fn volume() -> Volume {
    let volume = Volume::new(1, 0);
    volume.start(usize::MAX).put("file", &content(1, 60_000)).unwrap();
    volume
}

#[test]
fn each_start_raises_the_generation_of_the_stores_it_uses() {
    let volume = volume();
    let identity = marker(&volume, 0).identity;
    for generation in 1..5 {
        assert_eq!(marker(&volume, 0), Marker { server: server_key("d0"), identity, generation });
        assert!(volume.start(usize::MAX).get("file").unwrap() == content(1, 60_000));
    }
    // And each of its server, as long as a process of the names uses it.
    let process = volume.start(usize::MAX);
    for generation in 6..9 {
        assert!(process.get("file").unwrap() == content(1, 60_000));
        assert_eq!(marker(&volume, 0).generation, generation);
        process.starts.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_store_that_was_restored_from_an_older_copy_is_not_used() {
    let volume = volume();
    let (store, old, present) = (volume.store(0), volume.home.path().join("old"), volume.home.path().join("present"));
    copy(&store, &old);
    let process = volume.start(usize::MAX);
    process.put("file", &content(2, 60_000)).unwrap();
    let open = process.open("file", READ_WRITE).unwrap();
    assert!(process.read(open, 0, 60_000).unwrap() == content(2, 60_000));
    // In the place of the one that is used, while its server does not run.
    let swap = |from: &Path| {
        for entry in std::fs::read_dir(&store).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
        }
        let all = from.join(".");
        assert!(std::process::Command::new("cp").arg("-a").args([&all, &store]).status().unwrap().success());
        process.starts.fetch_add(1, Ordering::SeqCst);
    };
    copy(&store, &present);
    swap(&old);
    assert_eq!(process.read(open, 0, 60_000), Err(Errno::EIO), "also of what is open");
    assert_eq!((process.get("file"), process.write(open, 0, b"new")), (Err(Errno::EIO), Err(Errno::EIO)));
    assert_eq!(volume.start(usize::MAX).get("file"), Err(Errno::EIO), "nor by the next process");
    swap(&present);
    assert!(process.get("file").unwrap() == content(2, 60_000));
    // Unless somebody says that it is the one.
    swap(&old);
    assert_eq!(process.get("file"), Err(Errno::EIO));
    assert_eq!(process.wait(process.plain.accept("d9")), Err(Errno::ENOENT));
    process.wait(process.plain.accept("d0")).unwrap();
    assert!(process.get("file").unwrap() == content(1, 60_000), "which is old, as he knows");
    // A store that was made anew is another one, whatever its server's name.
    std::fs::remove_file(store.join(marker::NAME)).unwrap();
    marker::initialise(&store, &LayoutKey::of_volume(&KEY), server_key("d0")).unwrap();
    process.starts.fetch_add(1, Ordering::SeqCst);
    assert_eq!(process.get("file"), Err(Errno::EIO));
}

/// The tree is an older copy than its stores: its stubs are old.
#[test]
fn a_tree_that_knows_of_an_older_store_uses_none() {
    let volume = volume();
    let note = |value: Option<Vec<u8>>| {
        let (path, name) = (volume.tree().join(FOLDER), "trusted.aqueduct.servers");
        if let Some(value) = &value {
            rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
        }
        let mut value = vec![0; 1000];
        let length = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    let old = note(None);
    (0..2).for_each(|_| _ = volume.start(usize::MAX).get("file").unwrap());
    let present = note(None);
    note(Some(old));
    assert_eq!(volume.start(usize::MAX).get("file"), Err(Errno::EIO));
    note(Some(present));
    assert!(volume.start(usize::MAX).get("file").unwrap() == content(1, 60_000));
}

/// One that is not mounted, or was made anew.
#[test]
fn a_tree_that_knows_nothing_of_stores_uses_none_that_were_used() {
    let mut volume = volume();
    std::fs::rename(volume.tree(), volume.home.path().join("away")).unwrap();
    std::fs::create_dir(volume.tree()).unwrap();
    // In its first use, it may be that nobody could remember it.
    assert_eq!(marker(&volume, 0).generation, 1);
    let tree = || {
        std::fs::remove_dir_all(volume.tree()).unwrap();
        std::fs::create_dir(volume.tree()).unwrap();
    };
    volume.start(usize::MAX).put("new", &content(1, 60_000)).unwrap();
    assert_eq!(marker(&volume, 0).generation, 2);
    tree();
    let process = volume.start(usize::MAX);
    let report = process.wait(process.plain.check()).unwrap();
    assert_eq!((report.unseen.len(), report.orphans.len()), (1, 0), "{report:?}");
    assert!(process.put("new", &content(1, 60_000)).is_err());
    process.wait(process.plain.accept("d0")).unwrap();
    process.put("newer", &content(1, 60_000)).unwrap();
    drop(process);
    volume.add();
    let process = volume.start(usize::MAX);
    assert!(process.get("newer").unwrap() == content(1, 60_000));
    assert!(process.wait(process.plain.check()).unwrap().unseen.is_empty());
}

#[test]
fn the_raise_of_a_generation_may_end_at_each_step() {
    for changes in 0..20 {
        let volume = volume();
        let process = volume.start(changes);
        let read = process.get("file");
        let was_dead = process.is_dead();
        drop(process);
        let before = marker(&volume, 0).generation;
        assert!(volume.start(usize::MAX).get("file").unwrap() == content(1, 60_000), "after {changes} changes");
        assert!(marker(&volume, 0).generation > before);
        if !was_dead {
            assert!(read.is_ok() && changes > 2);
            return;
        }
    }
    panic!("it never ends");
}

/// A store of an earlier release gets an identity when it is used.
#[test]
fn a_marker_of_an_earlier_release_is_made_a_present_one() {
    let volume = Volume::new(1, 0);
    let key = LayoutKey::of_volume(&KEY);
    let mut older = b"Aqueduct store1\n".to_vec();
    older.extend(server_key("d0").to_le_bytes());
    older.extend(key.mac(marker::NAME.as_bytes(), &older));
    std::fs::write(volume.store(0).join(marker::NAME), &older).unwrap();
    volume.start(usize::MAX).put("file", &content(1, 60_000)).unwrap();
    assert!(marker(&volume, 0).generation == 1 && marker(&volume, 0).identity != [0; 16]);
    assert!(volume.start(usize::MAX).get("file").unwrap() == content(1, 60_000));
    std::fs::write(volume.store(0).join(marker::NAME), &older).unwrap();
    assert_eq!(volume.start(usize::MAX).get("file"), Err(Errno::EIO), "it had one already");
}

/// Who has a token of before its server's start reads nothing by it, since that may be an older
/// copy.
#[test]
fn a_server_takes_tokens_that_were_given_since_its_start() {
    let volume = volume();
    let process = volume.start(usize::MAX);
    assert!(process.get("file").is_ok());
    let (key, server, now) = (LayoutKey::of_volume(&KEY), server_key("d0"), marker(&volume, 0).generation);
    let handle = process.look_up("file").unwrap().handle;
    let id = process.wait(process.plain.attribute_of(&handle)).unwrap().unwrap().id;
    let serve = |start| {
        let store = Store::new("d0", key.clone(), true);
        let options = Options { key: KEY, keep_unlinked: false, ..Options::default() };
        store.reached(Arc::new(Posix::open(&volume.store(0), options).unwrap()), None);
        Served::new(store, key.clone(), start)
    };
    let mut opens = 0;
    let mut opened = |served: &Served, generation| {
        opens += 1;
        let token = Token { id, part: 0, server, generation, least: 0 }.encode(&key, SystemTime::now());
        let open = OpenId(opens);
        process.wait(served.call(&context(), Request::Reopen { open, token: &token })).is_ok()
    };
    let before = serve(Some(now - 1));
    assert!(opened(&before, now) && !opened(&before, now - 1) && !opened(&before, now + 1));
    let started = serve(Some(now));
    assert!(!opened(&started, now), "nobody has looked at the store since");
    process.starts.fetch_add(1, Ordering::SeqCst);
    assert!(process.get("file").is_ok());
    assert!(opened(&started, now + 1) && opened(&before, now + 1) && opened(&before, now));
    assert!(!opened(&started, now) && !opened(&serve(None), now + 1));
}
