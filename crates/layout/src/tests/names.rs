//! Names and attributes of files whose servers of data do not answer, or have no room, and of files
//! that are going.

use std::pin::pin;

use super::*;

/// Asks, of a file that is held up, what has to be answered at once.
fn at_once(process: &Process, request: Request<'_>) -> Result<Reply, Errno> {
    let context = context();
    let mut asked = pin!(process.plain.call(&context, request));
    poll(&mut asked).expect("it waits for a server of data")
}

#[test]
fn names_and_attributes_wait_for_no_server_of_data() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    for name in ["file", "other", "third"] {
        process.put(name, &content(1, 100_000)).unwrap();
    }
    let (handle, root) = (process.look_up("file").unwrap().handle, process.root());
    let (handle, parent) = (handle.bytes(), root.bytes());
    let (context, open) = (context(), process.open("file", READ_WRITE).unwrap());
    process.disk.holds_writes.store(true, Ordering::SeqCst);
    let write = WriteAt { open, offset: 0, append: false, stable: false };
    let mut written = pin!(process.plain.write(&context, write, Source::Memory(vec![1; 9].into())));
    // And one who wants it alone, behind whom all wait who share it.
    let set = SetAttr { size: Some(5), ..SetAttr::default() };
    let mut cut = pin!(process.plain.call(&context, Request::SetAttr { handle, open: None, set }));
    assert!(poll(&mut written).is_none() && poll(&mut cut).is_none());

    let opened = at_once(&process, Request::Open { handle, flags: OpenFlags::READ }).unwrap().opened().unwrap();
    at_once(&process, Request::Release { open: opened.id }).unwrap();
    let (name, flags) = (&b"file"[..], OpenFlags::READ);
    let created = at_once(&process, Request::Create { parent, name, mode: 0o600, umask: 0, flags }).unwrap();
    at_once(&process, Request::Release { open: created.created().unwrap().1.id }).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(
        at_once(&process, Request::SetAttr { handle, open: None, set }).unwrap().attr().unwrap().mode & 0o777,
        0o600
    );
    at_once(&process, Request::Link { handle, parent, name: b"link" }).unwrap();
    let flags = RenameFlags::empty();
    let rename = |name, new_name| Request::Rename { parent, name, new_parent: parent, new_name, flags };
    at_once(&process, rename(b"file", b"moved")).unwrap();
    at_once(&process, rename(b"other", b"moved")).unwrap();
    at_once(&process, Request::Unlink { parent, name: b"link" }).unwrap();
    assert_eq!((at_once(&process, Request::Lookup { parent, name: b"link" }), volume.gone()), (Err(Errno::ENOENT), 1));

    process.disk.holds_writes.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut written).unwrap().unwrap().count, 9);
    assert_eq!(poll(&mut cut).unwrap().unwrap().attr().unwrap().size, 5);
    assert_eq!(process.read(open, 0, 9).unwrap(), [1; 5]);
    process.close(open).unwrap();
    assert_eq!((volume.objects(), volume.gone()), (2, 0), "it went with its last open");
}

/// A file that is promoted while its server of data does not answer, and loses its name meanwhile.
#[test]
fn a_file_may_be_removed_while_its_objects_are_made() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    process.put("large", &content(1, 100_000)).unwrap(); // the store was looked at
    process.put("file", &content(2, 5000)).unwrap();
    let (context, open) = (context(), process.open("file", READ_WRITE).unwrap());
    process.disk.holds_writes.store(true, Ordering::SeqCst);
    let write = WriteAt { open, offset: 5000, append: false, stable: false };
    let mut written = pin!(process.plain.write(&context, write, Source::Memory(content(3, 60_000).into())));
    assert!(poll(&mut written).is_none());
    at_once(&process, Request::Unlink { parent: process.root().bytes(), name: b"file" }).unwrap();
    process.disk.holds_writes.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut written).unwrap().unwrap().count, 60_000);
    assert_eq!(process.read(open, 0, 100_000).unwrap(), [content(2, 5000), content(3, 60_000)].concat());
    process.close(open).unwrap();
    assert_eq!((volume.objects(), volume.gone()), (1, 0));
}

/// What is emptied by a create is what the name leads to, by who may write it.
#[test]
fn a_create_that_empties_a_file_asks_who_may_and_tells_what_it_has_become() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    for (name, size) in [("small", 100), ("large", 100_000), ("empty", 0)] {
        process.put(name, &content(1, size)).unwrap();
        let root = process.root();
        let (parent, flags) = (root.bytes(), OpenFlags::READ | OpenFlags::TRUNCATE);
        let create = Request::Create { parent, name: name.as_bytes(), mode: 0o600, umask: 0, flags };
        let other = Context::new(ClientId(2), Credential { uid: 1, gid: 1, groups: Groups::Known(Arc::new([])) });
        let handle = process.look_up(name).unwrap().handle;
        let old = SetAttr { mtime: Some(SetTime::At(Time::default())), ..SetAttr::default() };
        process.ask(Request::SetAttr { handle: handle.bytes(), open: None, set: old }).unwrap();
        assert_eq!(process.wait(process.plain.call(&other, create.clone())), Err(Errno::EACCES), "{name}");
        assert!(process.get(name).unwrap() == content(1, size), "{name}");
        let (entry, opened) = process.ask(create).unwrap().created().unwrap();
        assert_eq!((entry.attr.size, entry.handle), (0, handle), "{name}");
        assert!(entry.attr.mtime > Time::default(), "{name}");
        process.close(opened.id).unwrap();
        assert_eq!(process.get(name).unwrap(), b"");
    }
}

/// Who has found a name before it led to another file opens that one, or is sent to look again.
#[test]
fn nobody_opens_a_file_whose_objects_are_gone() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    let open = |handle: &Handle| process.ask(Request::Open { handle: handle.bytes(), flags: OpenFlags::READ });
    process.put("file", &content(1, 100)).unwrap();
    let handle = process.look_up("file").unwrap().handle;
    process.unlink("file").unwrap();
    // From now on, at the latest, the tree answers for a moment for what has lost its last name.
    let _ = open(&handle);
    for round in 0..3 {
        process.put("file", &content(round, 100_000)).unwrap();
        process.put("new", &content(round + 1, 100_000)).unwrap();
        let handle = process.look_up("file").unwrap().handle;
        process.rename("new", "file").unwrap();
        assert_eq!(open(&handle), Err(Errno::ESTALE));
        assert!(process.get("file").unwrap() == content(round + 1, 100_000));
        process.unlink("file").unwrap();
    }
    assert_eq!((volume.objects(), volume.gone()), (0, 0));
}

/// A tree without room: the file stays ordinary, or gets its objects; it is never in between.
#[test]
fn a_promotion_without_room_leaves_a_file_that_is_used_and_removed() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    process.put("large", &content(1, 100_000)).unwrap(); // the store was looked at
    for size in [0, 100, 6000] {
        process.put("file", &content(2, size)).unwrap();
        process.tree_disk.is_full.store(true, Ordering::SeqCst);
        assert_eq!(process.set_size("file", 50_000).map(|attr| attr.size), Ok(50_000));
        assert_eq!(volume.objects(), 1, "there is no room for a stub");
        process.tree_disk.is_full.store(false, Ordering::SeqCst);
        let mut expected = content(2, size);
        expected.resize(50_000, 0);
        assert!(process.get("file").unwrap() == expected);
        process.unlink("file").unwrap();
        // What there was room for is gone when it is wanted.
        process.put("file", &content(2, size)).unwrap();
        *process.tree_disk.refuses.lock().unwrap() = Some(Errno::EDQUOT);
        assert_eq!(process.set_size("file", 50_000).map(|attr| attr.size), Ok(50_000));
        *process.tree_disk.refuses.lock().unwrap() = None;
        assert!(process.get("file").unwrap() == expected);
        drop(volume.start(usize::MAX).get("file").unwrap());
        process.unlink("file").unwrap();
        assert_eq!((volume.objects(), volume.gone()), (1, 0));
    }
}

/// One whose promotion could not be brought to an end: its layout says all that has to be known.
#[test]
fn a_file_whose_stub_cannot_be_made_is_looked_at_and_removed() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    process.put("file", &content(2, 6000)).unwrap();
    let mut objects = 0;
    for changes in 1.. {
        // Until the file's bytes are its objects, and it is no stub yet.
        let process = volume.start(changes);
        let _ = process.set_size("file", 50_000);
        objects = volume.objects();
        if objects > 0 && std::fs::metadata(volume.tree().join("file")).unwrap().len() == 6000 && is_moved(&volume) {
            break;
        }
        assert!(changes < 100 && process.is_dead());
    }
    assert_eq!(objects, 1);
    let process = volume.start(usize::MAX);
    process.tree_disk.fails_attributes.store(true, Ordering::SeqCst);
    assert_eq!(process.look_up("file").unwrap().attr.size, 6000);
    assert_eq!(process.open("file", READ_WRITE), Err(Errno::ENOSPC));
    process.unlink("file").unwrap();
    process.tree_disk.fails_attributes.store(false, Ordering::SeqCst);
    drop(process);
    let process = volume.start(usize::MAX);
    process.sweep();
    assert_eq!((volume.objects(), volume.gone()), (0, 0));
}

/// Whether the layout of the file says that its bytes are in objects and its stub is not made yet.
fn is_moved(volume: &Volume) -> bool {
    let process = volume.start(usize::MAX);
    let handle = process.look_up("file").unwrap().handle;
    let attribute = process.wait(process.plain.attribute_of(&handle)).unwrap();
    attribute.is_some_and(|attribute| attribute.state == crate::attribute::State::Moved)
}
