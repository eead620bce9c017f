//! What programs do with files.

use super::*;

fn volumes(test: impl Fn(&Volume)) {
    for (stores, width) in [(1, 1), (2, 0), (3, 0), (3, 1)] {
        test(&Volume::new(stores, width));
    }
}

#[test]
fn small_files_are_ordinary_and_large_ones_lie_in_objects() {
    volumes(|volume| {
        let process = volume.start(usize::MAX);
        let (small, large) = (content(1, INLINE_MAX as usize), content(2, 300_000));
        process.put("small", &small).unwrap();
        assert_eq!(volume.objects(), 0);
        process.put("large", &large).unwrap();
        let width = if volume.width == 0 { volume.names.len() } else { volume.width };
        assert_eq!(volume.objects(), width);
        assert_eq!((process.get("small").unwrap(), process.get("large").unwrap()), (small.clone(), large.clone()));
        assert_eq!(std::fs::read(volume.tree().join("small")).unwrap(), small);
        let attr = process.look_up("large").unwrap().attr;
        assert!((586..700).contains(&attr.blocks), "{attr:?}");
        drop(process);
        let process = volume.start(usize::MAX);
        assert_eq!(process.get("large").unwrap(), large);
        assert_eq!(process.look_up("large").unwrap().attr.blocks, attr.blocks, "as it was settled");
        assert_eq!(process.all().into_keys().collect::<Vec<_>>(), ["large", "small"], "and no folder of ours");
        process.unlink("large").unwrap();
        assert_eq!((volume.objects(), volume.gone()), (0, 0));
    });
}

#[test]
fn a_file_does_what_a_file_in_memory_does() {
    volumes(|volume| {
        let process = volume.start(usize::MAX);
        let (_, open) = process.create("file", OpenFlags::empty()).unwrap();
        let mut expected: Vec<u8> = Vec::new();
        let mut random = content(5, 4000).into_iter();
        let mut number = |limit: usize| {
            let bytes = [random.next().unwrap(), random.next().unwrap(), random.next().unwrap()];
            (usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2])) % limit
        };
        for step in 0..250u64 {
            let (at, length) = (number(120_000), number(60_000));
            match number(8) {
                0..=2 => {
                    let data = content(step, length);
                    expected.resize(expected.len().max(at + length), 0);
                    expected[at..at + length].copy_from_slice(&data);
                    assert_eq!(process.write(open, at as u64, &data), Ok(length));
                    if length == 0 {
                        expected.truncate(process.look_up("file").unwrap().attr.size as usize);
                    }
                }
                3 => {
                    let data = content(step, length % 5000);
                    expected.extend(&data);
                    assert_eq!(process.write(open, u64::MAX, &data), Ok(data.len()));
                }
                4 => {
                    let size = if length % 3 == 0 { length % 5000 } else { at };
                    expected.resize(size, 0);
                    process.set_size("file", size as u64).unwrap();
                }
                5 => {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    process.allocate(open, (at as u64, length as u64 + 1), flags).unwrap();
                    let end = expected.len().min(at + length + 1);
                    expected[at.min(end)..end].fill(0);
                }
                6 => {
                    process.allocate(open, (at as u64, length as u64 + 1), FallocateFlags::empty()).unwrap();
                    expected.resize(expected.len().max(at + length + 1), 0);
                }
                _ => {
                    let read = process.read(open, at as u64, length).unwrap();
                    let end = expected.len().min(at + length);
                    assert!(read == expected[at.min(end)..end], "step {step}");
                }
            }
            assert_eq!(process.look_up("file").unwrap().attr.size, expected.len() as u64, "step {step}");
        }
        assert!(process.get("file").unwrap() == expected);
        process.close(open).unwrap();
        drop(process);
        assert!(volume.start(usize::MAX).get("file").unwrap() == expected);
    });
}

#[test]
fn a_file_that_is_removed_while_open_lives_on_and_its_objects_go_with_it() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    let data = content(3, 100_000);
    process.put("file", &data).unwrap();
    process.put("other", &data[..50_000]).unwrap();
    let open = process.open("file", READ_WRITE).unwrap();
    let handle = process.look_up("file").unwrap().handle;
    process.rename("other", "file").unwrap();
    let attr = process.ask(Request::GetAttr { handle: handle.bytes(), open: Some(open) }).unwrap().attr().unwrap();
    assert_eq!((attr.nlink, attr.size), (0, 100_000));
    assert_eq!(process.read(open, 90_000, 20_000).unwrap(), data[90_000..]);
    let root = process.root();
    let again = Request::Link { handle: handle.bytes(), parent: root.bytes(), name: b"again" };
    assert_eq!(process.ask(again), Err(Errno::ENOENT));
    assert_eq!((volume.objects(), volume.gone()), (4, 1));
    process.close(open).unwrap();
    assert_eq!((volume.objects(), volume.gone()), (2, 0));
    assert_eq!(process.get("file").unwrap(), data[..50_000]);
}

#[test]
fn hard_links_share_one_file_and_the_last_one_takes_the_objects() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    let data = content(3, 70_000);
    process.put("a", &data).unwrap();
    let (root, handle) = (process.root(), process.look_up("a").unwrap().handle);
    let link = Request::Link { handle: handle.bytes(), parent: root.bytes(), name: b"b" };
    let linked = process.ask(link).unwrap().entry().unwrap();
    assert_eq!((linked.attr.nlink, linked.attr.size), (2, 70_000));
    process.unlink("a").unwrap();
    assert_eq!((process.look_up("b").unwrap().attr.nlink, volume.gone()), (1, 0));
    assert_eq!(process.get("b").unwrap(), data);
    process.rename("b", "b").unwrap();
    process.unlink("b").unwrap();
    assert_eq!((volume.objects(), volume.gone()), (0, 0));
}

#[test]
fn files_that_were_large_before_are_served_until_they_are_rewritten() {
    let volume = Volume::new(2, 0);
    let data = content(4, 50_000);
    std::fs::write(volume.tree().join("old"), &data).unwrap();
    let process = volume.start(usize::MAX);
    let open = process.open("old", READ_WRITE).unwrap();
    process.write(open, 50_000, b"more").unwrap();
    assert_eq!((process.get("old").unwrap().len(), volume.objects()), (50_004, 0));
    process.close(open).unwrap();
    process.put("old", &data).unwrap();
    assert_eq!((process.get("old").unwrap(), volume.objects()), (data, 2));
}

#[test]
fn two_truncates_and_sizes_below_a_block_are_true() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    let data = content(4, 50_000);
    process.put("file", &data).unwrap();
    for size in [0u64, 0, 100, 4096, 5000, 4095, 4096, 4097, 1, 0, 20_000, 0] {
        let attr = process.set_size("file", size).unwrap();
        assert_eq!((attr.size, process.get("file").unwrap().len() as u64), (size, size));
        drop(volume.start(usize::MAX).get("file").unwrap());
        assert_eq!(volume.start(usize::MAX).look_up("file").unwrap().attr.size, size);
    }
    assert_eq!(process.get("file").unwrap(), b"");
}

/// Who is told that his file is shorter has no bytes of it left in a store.
#[test]
fn what_a_store_refuses_to_cut_stays_as_it_was_and_is_told() {
    for size in [50_000, 4096, 100, 0] {
        let volume = Volume::new(2, 0);
        let (data, process) = (content(4, 100_000), volume.start(usize::MAX));
        process.put("file", &data).unwrap();
        process.disk.fails_attributes.store(true, Ordering::SeqCst);
        assert_eq!(process.set_size("file", size).map(drop), Err(Errno::ENOSPC), "{size}");
        assert_eq!(process.create("file", OpenFlags::TRUNCATE).map(drop), Err(Errno::ENOSPC));
        assert!(process.get("file").unwrap() == data, "{size}");
        process.disk.fails_attributes.store(false, Ordering::SeqCst);
        assert!(process.wait(process.plain.check()).unwrap().is_clean(), "{size}");
        process.set_size("file", size).unwrap();
        assert!(process.get("file").unwrap() == data[..size as usize], "{size}");
        drop(process);
        assert!(volume.start(usize::MAX).get("file").unwrap() == data[..size as usize], "{size}");
    }
}

/// Nothing of a file goes while a part of it is missing: what is there can be saved still.
#[test]
fn a_file_that_lacks_an_object_is_not_emptied() {
    let volume = Volume::new(2, 0);
    let (data, process) = (content(4, 100_000), volume.start(usize::MAX));
    process.put("file", &data).unwrap();
    let folders = std::fs::read_dir(volume.store(1).join(marker::OBJECTS)).unwrap();
    let object = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap()).next().unwrap();
    let (object, away) = (object.unwrap().path(), volume.home.path().join("away"));
    std::fs::rename(&object, &away).unwrap();
    assert_eq!(process.create("file", OpenFlags::TRUNCATE).map(drop), Err(Errno::EIO));
    assert_eq!(process.open("file", READ_WRITE | OpenFlags::TRUNCATE).map(drop), Err(Errno::EIO));
    assert_eq!(process.set_size("file", 0).map(drop), Err(Errno::EIO));
    std::fs::rename(&away, &object).unwrap();
    assert!(process.get("file").unwrap() == data);
    // It can be removed, and made anew.
    std::fs::remove_file(&object).unwrap();
    process.unlink("file").unwrap();
    process.put("file", &data[..50_000]).unwrap();
    assert!(process.get("file").unwrap() == data[..50_000]);
    assert!(process.wait(process.plain.check()).unwrap().is_clean());
}

#[test]
fn nobody_sees_the_layout() {
    let volume = Volume::new(1, 0);
    let process = volume.start(usize::MAX);
    process.put("file", &content(4, 50_000)).unwrap();
    let (root, handle) = (process.root(), process.look_up("file").unwrap().handle);
    let name = crate::attribute::NAME;
    assert_eq!(process.ask(Request::ListXattr { handle: handle.bytes(), size: 0 }), Ok(Reply::Size(0)));
    assert_eq!(process.ask(Request::GetXattr { handle: handle.bytes(), name, size: 0 }), Err(Errno::ENODATA));
    let set = Request::SetXattr { handle: handle.bytes(), name, value: b"x", mode: XattrMode::Any };
    assert_eq!(process.ask(set), Err(Errno::EPERM));
    assert_eq!(process.look_up(FOLDER).map(drop), Err(Errno::ENOENT));
    let make = Request::MakeDirectory { parent: root.bytes(), name: FOLDER.as_bytes(), mode: 0o777, umask: 0 };
    assert_eq!(process.ask(make), Err(Errno::EPERM));
}

/// What a directory of a volume is found with that nobody wants.
fn damage(harm: impl Fn(&Volume), then: impl Fn(&Process)) {
    let volume = Volume::new(2, 0);
    let data = content(6, 100_000);
    volume.start(usize::MAX).put("file", &data).unwrap();
    harm(&volume);
    then(&volume.start(usize::MAX));
}

#[test]
fn a_store_that_is_absent_empty_or_anothers_gives_an_error_and_never_zeros() {
    let fails = |process: &Process| assert_eq!(process.get("file"), Err(Errno::EIO));
    damage(|volume| std::fs::remove_file(volume.store(0).join(marker::NAME)).unwrap(), fails);
    damage(
        |volume| {
            std::fs::rename(volume.store(0), volume.home.path().join("away")).unwrap();
            std::fs::create_dir(volume.store(0)).unwrap();
        },
        fails,
    );
    damage(
        |volume| {
            let away = volume.home.path().join("away");
            std::fs::rename(volume.store(0), &away).unwrap();
            std::fs::rename(volume.store(1), volume.store(0)).unwrap();
            std::fs::rename(&away, volume.store(1)).unwrap();
        },
        fails,
    );
    damage(
        |volume| {
            let objects = volume.store(1).join(marker::OBJECTS);
            for folder in std::fs::read_dir(&objects).unwrap() {
                for object in std::fs::read_dir(folder.unwrap().path()).unwrap() {
                    std::fs::remove_file(object.unwrap().path()).unwrap();
                }
            }
        },
        fails,
    );
}

#[test]
fn a_stub_that_was_copied_gives_an_error() {
    let copy = |arguments: &'static [&'static str]| {
        move |volume: &Volume| {
            let mut command = std::process::Command::new("cp");
            let done = command.args(arguments).args(["file", "copy"]).current_dir(volume.tree()).status().unwrap();
            assert!(done.success());
        }
    };
    let fails = |process: &Process| {
        assert_eq!(process.get("copy"), Err(Errno::EIO));
        assert_eq!(process.get("file").unwrap(), content(6, 100_000));
        process.unlink("copy").unwrap();
        assert_eq!(process.get("file").unwrap(), content(6, 100_000));
    };
    damage(copy(&["--sparse=never"]), fails);
    damage(copy(&["--sparse=always"]), fails);
    damage(copy(&["-a", "--preserve=xattr"]), fails);
}

/// Files of the volume that this process has open.
fn open_files(volume: &Volume) -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|path| path.starts_with(volume.home.path()) && path.is_file()).count()
}

/// Programs go on for hours when the stores have no room.
#[test]
fn a_file_that_finds_no_room_for_objects_leaves_none_open() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    // The stores are looked at, which writes.
    process.put("large", &content(4, 100_000)).unwrap();
    *process.disk.refuses.lock().unwrap() = Some(Errno::ENOSPC);
    let stays_ordinary = |number: usize| {
        let name = format!("file-{number}");
        process.put(&name, &content(2, 100)).unwrap();
        let open = process.open(&name, READ_WRITE).unwrap();
        process.write(open, 100, &content(3, 100_000)).unwrap();
        process.close(open).unwrap();
    };
    stays_ordinary(0);
    let (before, objects) = (open_files(&volume), volume.objects());
    (1..20).for_each(stays_ordinary);
    assert_eq!(open_files(&volume), before);
    assert!(volume.objects() > objects, "objects were made, and found no room for what is in them");
    *process.disk.refuses.lock().unwrap() = None;
    assert_eq!(process.get("file-7").unwrap(), [content(2, 100), content(3, 100_000)].concat());
}

/// A store that is sick is used again and again, and the file may stay open for weeks.
#[test]
fn what_fails_on_an_object_leaves_none_open() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    process.put("large", &content(4, 100_000)).unwrap();
    let open = process.open("large", READ_WRITE).unwrap();
    let fails = || {
        *process.disk.refuses.lock().unwrap() = Some(Errno::EIO);
        assert_eq!(process.write(open, 0, &content(5, 100_000)), Err(Errno::EIO));
        *process.disk.refuses.lock().unwrap() = None;
        assert_eq!(process.read(open, 0, 100_000).map(|data| data.len()), Ok(100_000));
    };
    fails();
    let before = open_files(&volume);
    (0..20).for_each(|_| fails());
    assert!(open_files(&volume) <= before + 2, "{} are open, of {before}", open_files(&volume));
    process.close(open).unwrap();
    assert_eq!(process.get("large").unwrap(), content(4, 100_000));
}
