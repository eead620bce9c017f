//! What clients get of a store, and by what.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use super::*;
use crate::served::Served;
use crate::token::{GOOD_FOR, Token};
use crate::{Goal, Job};

/// A store as its server serves it to clients.
fn served(volume: &Volume, number: usize) -> Served {
    let layouts = LayoutKey::of_volume(&KEY);
    let store = Store::new(&format!("d{number}"), layouts.clone(), true);
    let options = Options { key: KEY, keep_unlinked: false, ..Options::default() };
    store.reached(Arc::new(Posix::open(&volume.store(number), options).unwrap()), None);
    Served::new(store, layouts, Some(0))
}

fn read(process: &Process, served: &Served, open: u64, length: u32) -> Result<Vec<u8>, Errno> {
    let (sink, read) = (MemorySink::default(), ReadAt { open: OpenId(open), offset: 0, length });
    process.wait(async { served.read(&context(), read, Box::new(sink.clone())).await })?;
    Ok(sink.take().unwrap())
}

#[test]
fn a_layout_says_where_the_bytes_are_and_its_tokens_read_them() {
    let volume = Volume::new(3, 0);
    let process = volume.start(usize::MAX);
    let data = content(5, 100_000);
    process.put("file", &data).unwrap();
    process.put("small", &content(6, 100)).unwrap();
    let layout = |name: &str| {
        let handle = process.look_up(name).unwrap().handle;
        let open = process.open(name, OpenFlags::READ).unwrap();
        process.wait(process.plain.call(&context(), Request::Layout { handle: handle.bytes(), open })).unwrap().layout()
    };
    assert_eq!(layout("small").unwrap(), Layout::default(), "the server of the names has it");
    let layout = layout("file").unwrap();
    assert_eq!((layout.size, layout.parts.len()), (100_000, 3));
    let mut found = vec![0; 100_000];
    for piece in layout.stripe().unwrap().pieces(0, layout.size) {
        let Part::At { place, token } = &layout.parts[piece.part] else { panic!("there is no hole") };
        let served = served(&volume, (*place).into());
        let reopen = Request::Reopen { open: OpenId(7), token };
        process.wait(served.call(&context(), reopen.clone())).unwrap();
        process.wait(served.call(&context(), reopen)).unwrap(); // once more does no harm
        let part = read(&process, &served, 7, 1 << 20).unwrap();
        let range = piece.offset as usize..(piece.offset + piece.length) as usize;
        found[range].copy_from_slice(&part[piece.at as usize..(piece.at + piece.length) as usize]);
        // And nothing else is to be had by it.
        let write = WriteAt { open: OpenId(7), offset: 0, append: false, stable: false };
        let written = process.wait(served.write(&context(), write, Source::Memory(vec![1].into())));
        assert_eq!(written.unwrap_err(), Errno::EREMOTE);
        let root = process.wait(served.call(&context(), Request::Root)).unwrap().entry().unwrap().handle;
        for request in [
            Request::Lookup { parent: root.bytes(), name: b"objects" },
            Request::OpenDirectory { handle: root.bytes() },
            Request::SetAttr { handle: root.bytes(), open: None, set: SetAttr::default() },
            Request::Unlink { parent: root.bytes(), name: marker::NAME.as_bytes() },
        ] {
            assert_eq!(process.wait(served.call(&context(), request)), Err(Errno::EREMOTE));
        }
        let other = Context::new(ClientId(2), Credential::root());
        let (sink, at) = (MemorySink::default(), ReadAt { open: OpenId(7), offset: 0, length: 1 });
        let by_another = process.wait(async { served.read(&other, at, Box::new(sink.clone())).await });
        assert_eq!(by_another, Err(Errno::EBADF), "another client's");
        process.wait(served.call(&context(), Request::Release { open: OpenId(7) })).unwrap();
        assert_eq!(read(&process, &served, 7, 1).unwrap_err(), Errno::EBADF);
    }
    assert!(found == data);
}

#[test]
fn who_may_not_read_a_file_is_given_no_token() {
    let volume = Volume::new(1, 0);
    let process = volume.start(usize::MAX);
    process.put("file", &content(5, 100_000)).unwrap();
    process.put("other", &content(5, 100_000)).unwrap();
    let [file, other] = ["file", "other"].map(|name| process.look_up(name).unwrap().handle);
    let ask = |handle: &Handle, open| {
        process.wait(process.plain.call(&context(), Request::Layout { handle: handle.bytes(), open }))
    };
    let open = process.open("file", OpenFlags::WRITE).unwrap();
    let Ok(Reply::Layout(layout)) = ask(&file, open) else { panic!("who writes is told where") };
    assert_eq!(layout.parts, [Part::Untold { place: 0 }], "it is open for writing alone");
    let open = process.open("file", OpenFlags::READ).unwrap();
    assert_eq!(ask(&other, open), Err(Errno::EINVAL), "another file is open");
    assert!(ask(&file, open).is_ok());
    assert_eq!(ask(&file, OpenId(u64::MAX - 7)), Err(Errno::EBADF));
}

#[test]
fn tokens_that_are_forged_or_old_or_of_what_is_gone_open_nothing() {
    let volume = Volume::new(2, 1);
    let process = volume.start(usize::MAX);
    process.put("file", &content(5, 100_000)).unwrap();
    let (handle, open) = (process.look_up("file").unwrap().handle, process.open("file", OpenFlags::READ).unwrap());
    let request = Request::Layout { handle: handle.bytes(), open };
    let layout = process.wait(process.plain.call(&context(), request)).unwrap().layout().unwrap();
    let Part::At { place, token } = &layout.parts[0] else { panic!("there is no hole") };
    let (right, wrong) = (served(&volume, (*place).into()), served(&volume, 1 - usize::from(*place)));
    let reopen = |served: &Served, token: &[u8]| {
        process.wait(served.call(&context(), Request::Reopen { open: OpenId(1), token })).map(drop)
    };
    let server = server_key(&format!("d{place}"));
    let (key, now) = (LayoutKey::of_volume(&KEY), SystemTime::now());
    let good = Token { id: layout.id, part: 0, server, generation: 1, least: 50_000 };
    let old = good.encode(&key, now - GOOD_FOR - Duration::from_secs(1));
    let forged = good.encode(&LayoutKey::of_volume(&[1; 32]), now);
    let absent = Token { part: 1, ..good }.encode(&key, now);
    // Its file had more bytes there once.
    let longer = Token { least: 100_001, ..good }.encode(&key, now);
    assert_eq!(reopen(&wrong, token), Err(Errno::ESTALE), "it is another server's");
    for (why, token) in [("old", old), ("forged", forged), ("absent", absent), ("longer", longer), ("empty", [].into())]
    {
        assert_eq!(reopen(&right, &token), Err(Errno::ESTALE), "{why}");
    }
    reopen(&right, token).unwrap();
    let other = Token { id: [1; 16], ..good }.encode(&key, now);
    assert_eq!(reopen(&right, &other), Err(Errno::EBUSY), "the number is another object's");
    // What is removed stays readable for who has it open, and for nobody else.
    process.unlink("file").unwrap();
    process.wait(process.plain.call(&context(), Request::Release { open })).unwrap();
    assert!(read(&process, &right, 1, 10).unwrap() == content(5, 100_000)[..10]);
    process.wait(right.depart(ClientId(1))).unwrap();
    assert_eq!(reopen(&right, token), Err(Errno::ESTALE), "the object is gone");
}

/// What a file's layout has a client read of its first object, and where that lies.
fn token_of(process: &Process, name: &str) -> (usize, Box<[u8]>) {
    let (handle, open) = (process.look_up(name).unwrap().handle, process.open(name, OpenFlags::READ).unwrap());
    let request = Request::Layout { handle: handle.bytes(), open };
    let layout = process.wait(process.plain.call(&context(), request)).unwrap().layout().unwrap();
    process.close(open).unwrap();
    let Part::At { place, token } = &layout.parts[0] else { panic!("there is no hole") };
    ((*place).into(), token.clone())
}

/// Has all objects come to lie at one of two servers.
fn move_to(process: &Process, place: usize) -> Result<(), Errno> {
    for number in 0..2 {
        process.wait(process.plain.set_draining(&format!("d{number}"), number != place))?;
    }
    for found in process.wait(process.plain.misplaced(Goal::Drain))? {
        process.wait(process.plain.relocate(&found, Goal::Drain, &Job::new(None)))?;
    }
    Ok(())
}

/// Opens an object by a token, and reads all of it. `None`: the token is refused.
fn all_of(process: &Process, served: &Served, token: &[u8]) -> Option<Vec<u8>> {
    match process.wait(served.call(&context(), Request::Reopen { open: OpenId(1), token })) {
        Err(error) => {
            assert_eq!(error, Errno::ESTALE);
            None
        }
        Ok(_) => {
            let data = read(process, served, 1, 1 << 20).unwrap();
            process.wait(served.call(&context(), Request::Release { open: OpenId(1) })).unwrap();
            Some(data)
        }
    }
}

/// A client that has not opened an object yet, with a token of when the file lay there before.
/// A file, and a token for its object of when that was empty, so that it says nothing of its
/// length: and the server that has it.
fn token_of_empty(process: &Process, data: &[u8]) -> (usize, Box<[u8]>) {
    process.put("file", data).unwrap();
    process.set_size("file", 0).unwrap();
    let found = token_of(process, "file");
    process.put("file", data).unwrap();
    found
}

#[test]
fn a_token_of_before_opens_no_object_that_is_still_copied_back() {
    let volume = Volume::new(2, 1);
    let process = volume.start(usize::MAX);
    let data = content(5, 100_000);
    let (home, token) = token_of_empty(&process, &data);
    let served = served(&volume, home);
    move_to(&process, 1 - home).unwrap();
    assert_eq!(all_of(&process, &served, &token), None, "it lies elsewhere");
    for number in 0..2 {
        process.wait(process.plain.set_draining(&format!("d{number}"), number != home)).unwrap();
    }
    let found = process.wait(process.plain.misplaced(Goal::Drain)).unwrap().remove(0);
    let job = Job::new(None);
    process.disk.holds_writes.store(true, Ordering::SeqCst);
    let mut moving = pin!(process.plain.relocate(&found, Goal::Drain, &job));
    assert!(poll(&mut moving).is_none());
    assert_eq!(volume.objects(), 2, "it is being copied");
    assert_eq!(all_of(&process, &served, &token), None, "it would read zeros");
    process.disk.holds_writes.store(false, Ordering::SeqCst);
    assert_eq!(poll(&mut moving), Some(Ok(true)));
    assert!(all_of(&process, &served, &token).unwrap() == data);
}

#[test]
fn a_move_back_may_end_at_each_step_and_no_token_of_before_reads_half_of_it() {
    let data = content(5, 100_000);
    for changes in 0.. {
        assert!(changes < 100, "it never ends");
        let volume = Volume::new(2, 1);
        let process = volume.start(usize::MAX);
        let (home, token) = token_of_empty(&process, &data);
        move_to(&process, 1 - home).unwrap();
        drop(process);
        let process = volume.start(changes);
        let done = move_to(&process, home);
        drop(process);
        let (process, served) = (volume.start(usize::MAX), served(&volume, home));
        let found = all_of(&process, &served, &token);
        assert!(found.is_none_or(|found| found == data), "after {changes} changes");
        assert!(process.get("file").unwrap() == data, "after {changes} changes");
        move_to(&process, home).unwrap();
        assert!(all_of(&process, &served, &token).unwrap() == data, "after {changes} changes");
        assert_eq!(volume.objects(), 1, "after {changes} changes");
        if done.is_ok() {
            return;
        }
    }
}
