//! What is made stable by those who share a file, while others do so and write.

use std::pin::pin;

use super::*;

/// A file in one object, and two who have it open.
fn shared() -> (Volume, Process, [OpenId; 2]) {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    process.put("file", &content(1, 100_000)).unwrap();
    let opens = [(); 2].map(|()| process.open("file", READ_WRITE).unwrap());
    opens.iter().for_each(|open| drop(process.ask(Request::Sync { open: *open, data_only: false }).unwrap()));
    (volume, process, opens)
}

fn sync(open: OpenId) -> Request<'static> {
    Request::Sync { open, data_only: false }
}

fn write(open: OpenId) -> (WriteAt, Source) {
    let write = WriteAt { open, offset: 50_000, append: false, stable: false };
    (write, Source::Memory(bytes::Bytes::from_static(b"new")))
}

#[test]
fn who_comes_while_others_make_a_file_stable_is_answered_when_it_is() {
    let (_volume, process, [one, other]) = shared();
    assert_eq!(process.write(other, 0, b"new"), Ok(3));
    process.disk.holds_syncs.store(true, Ordering::SeqCst);
    let context = context();
    let mut first = pin!(process.plain.call(&context, sync(one)));
    let mut second = pin!(process.plain.call(&context, sync(other)));
    assert!(poll(&mut first).is_none() && poll(&mut second).is_none(), "it is on no disk yet");
    process.disk.holds_syncs.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut first), Some(Ok(Reply::Done)));
    assert_eq!(poll(&mut second), Some(Ok(Reply::Done)));
}

#[test]
fn what_reaches_an_object_after_it_was_made_stable_is_made_stable_again() {
    let (_volume, process, [one, other]) = shared();
    let (context, syncs) = (context(), || process.disk.syncs.load(Ordering::SeqCst));
    process.disk.holds_writes.store(true, Ordering::SeqCst);
    let (at, data) = write(other);
    let mut written = pin!(process.plain.write(&context, at, data));
    assert!(poll(&mut written).is_none());
    assert_eq!(process.ask(sync(one)), Ok(Reply::Done));
    let before = syncs();
    process.disk.holds_writes.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut written).unwrap().unwrap().count, 3);
    assert_eq!(process.ask(sync(other)), Ok(Reply::Done));
    assert!(syncs() > before, "it was never made stable");
}

/// Nobody is told that something is stable which was to be by an attempt that somebody gave up.
#[test]
fn what_was_not_made_stable_is_so_the_next_time() {
    let (_volume, process, [one, other]) = shared();
    let (context, syncs) = (context(), || process.disk.syncs.load(Ordering::SeqCst));
    assert_eq!(process.write(one, 0, b"new"), Ok(3));
    process.disk.holds_syncs.store(true, Ordering::SeqCst);
    {
        let mut given_up = pin!(process.plain.call(&context, sync(one)));
        assert!(poll(&mut given_up).is_none());
    }
    process.disk.holds_syncs.store(false, Ordering::SeqCst);
    let before = syncs();
    assert_eq!(process.ask(sync(other)), Ok(Reply::Done));
    assert!(syncs() > before);
    // A disk says once that it failed.
    assert_eq!(process.write(one, 0, b"new"), Ok(3));
    process.disk.fails.store(true, Ordering::SeqCst);
    assert_eq!([one, other].map(|open| process.ask(sync(open)).err()), [Some(Errno::EIO); 2]);
}

/// A write that fails leaves something behind the end of its object, which others may be writing
/// behind: it is cut when they have come to their end.
#[test]
fn what_a_failed_write_leaves_is_cut_without_what_others_write_behind_it() {
    let (_volume, process, [one, other]) = shared();
    let context = context();
    assert_eq!(process.write(one, 100_000, b"new"), Ok(3)); // nothing is behind the end from here on
    let at = |open, offset| {
        let write = WriteAt { open, offset, append: false, stable: false };
        process.plain.write(&context, write, Source::Memory(bytes::Bytes::from_static(b"data")))
    };
    process.tree_disk.holds_writes.store(true, Ordering::SeqCst);
    let mut late = pin!(at(one, 200_000));
    let mut written = pin!(at(other, 300_000));
    assert!(poll(&mut late).is_none() && poll(&mut written).is_none());
    process.tree_disk.holds_writes.store(false, Ordering::SeqCst);
    process.disk.holds_answers.store(true, Ordering::SeqCst);
    assert!(poll(&mut written).is_none(), "its data are in the object, and the file is no longer yet");
    *process.disk.refuses.lock().unwrap() = Some(Errno::ENOSPC);
    let mut failed = pin!(at(one, 110_000));
    assert_eq!(poll(&mut failed).unwrap().unwrap_err(), Errno::ENOSPC);
    *process.disk.refuses.lock().unwrap() = None;
    assert!(poll(&mut late).is_none(), "it waits for who writes behind the end");
    process.disk.holds_answers.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut written).unwrap().unwrap().count, 4);
    assert_eq!(poll(&mut late).unwrap().unwrap().count, 4);
    for offset in [200_000, 300_000] {
        assert_eq!(process.read(one, offset, 4).unwrap(), b"data", "at {offset}");
    }
}

/// An object that is not written down yet is made anew by the next who needs it, empty: nobody
/// writes to it before.
#[test]
fn nobody_writes_to_an_object_before_it_is_written_down() {
    let volume = Volume::new(2, 2);
    let process = volume.start(usize::MAX);
    // Both servers are known from then on, and nothing else is written down below.
    process.put("both", &content(2, 2 * BLOCK as usize)).unwrap();
    process.put("file", &content(1, 10_000)).unwrap();
    assert_eq!(volume.objects(), 3);
    let (one, other) = (process.open("file", READ_WRITE).unwrap(), process.open("file", READ_WRITE).unwrap());
    process.set_size("file", 1 << 20).unwrap();
    process.write(one, 0, b"unsettled").unwrap();
    let (context, second) = (context(), u64::from(process.plain.config.block));
    let at = |open, offset| {
        let write = WriteAt { open, offset, append: false, stable: false };
        process.plain.write(&context, write, Source::Memory(bytes::Bytes::from_static(b"data")))
    };
    process.tree_disk.holds_layouts.store(true, Ordering::SeqCst);
    let (mut first, mut beside) = (pin!(at(one, second)), pin!(at(other, second + 100)));
    assert!(poll(&mut first).is_none());
    assert!(poll(&mut beside).is_none(), "the object has no name on the disk yet");
    process.tree_disk.fails_layouts.store(true, Ordering::SeqCst);
    process.tree_disk.holds_layouts.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut first).unwrap().unwrap_err(), Errno::EIO);
    process.tree_disk.fails_layouts.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut beside).unwrap().unwrap().count, 4);
    assert_eq!(process.write(one, second + 200, b"more"), Ok(4));
    assert_eq!(process.read(one, second + 100, 4).unwrap(), b"data");
}

/// What is written down of a small file is its size: one that could not be is none.
#[test]
fn a_size_that_could_not_be_written_down_is_none() {
    let volume = Volume::new(1, 1);
    let process = volume.start(usize::MAX);
    // Nothing is written down of its objects yet that would change too.
    let (_, open) = process.create("file", OpenFlags::empty()).unwrap();
    process.write(open, 0, &content(1, 40_000)).unwrap();
    process.set_size("file", 3000).unwrap();
    let (context, handle) = (context(), process.look_up("file").unwrap().handle);
    let set = SetAttr { size: Some(100), ..SetAttr::default() };
    let cut = Request::SetAttr { handle: handle.bytes(), open: None, set };
    process.tree_disk.holds_layouts.store(true, Ordering::SeqCst);
    let mut refused = pin!(process.plain.call(&context, cut));
    assert!(poll(&mut refused).is_none());
    process.tree_disk.fails_layouts.store(true, Ordering::SeqCst);
    process.tree_disk.holds_layouts.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut refused), Some(Err(Errno::EIO)));
    process.tree_disk.fails_layouts.store(false, Ordering::SeqCst);
    process.close(open).unwrap();
    let next = volume.start(usize::MAX);
    for process in [&process, &next] {
        assert!(process.get("file").unwrap() == content(1, 40_000)[..3000]);
    }
}

/// A file lies on as many servers as its layout can name, and is read again by the next process.
#[test]
fn a_volume_of_more_servers_than_a_file_can_lie_on_is_used() {
    let volume = Volume::new(crate::attribute::SERVERS_MAX + 1, 0);
    let data = content(3, 66 * BLOCK as usize);
    volume.start(usize::MAX).put("file", &data).unwrap();
    assert_eq!(volume.objects(), crate::attribute::SERVERS_MAX);
    assert_eq!(volume.start(usize::MAX).get("file").unwrap(), data);
}
