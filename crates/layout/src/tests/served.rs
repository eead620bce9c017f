//! What clients get of a store, and by what.

use std::time::{Duration, SystemTime};

use super::*;
use crate::served::Served;
use crate::token::{GOOD_FOR, Token};

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
fn who_may_not_read_a_file_is_not_told_where_it_lies() {
    let volume = Volume::new(1, 0);
    let process = volume.start(usize::MAX);
    process.put("file", &content(5, 100_000)).unwrap();
    process.put("other", &content(5, 100_000)).unwrap();
    let [file, other] = ["file", "other"].map(|name| process.look_up(name).unwrap().handle);
    let ask = |handle: &Handle, open| {
        process.wait(process.plain.call(&context(), Request::Layout { handle: handle.bytes(), open }))
    };
    let open = process.open("file", OpenFlags::WRITE).unwrap();
    assert_eq!(ask(&file, open), Err(Errno::EBADF), "it is open for writing alone");
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
    let old =
        Token { id: layout.id, part: 0, server, generation: 1 }.encode(&key, now - GOOD_FOR - Duration::from_secs(1));
    let forged = Token { id: layout.id, part: 0, server, generation: 1 }.encode(&LayoutKey::of_volume(&[1; 32]), now);
    let absent = Token { id: layout.id, part: 1, server, generation: 1 }.encode(&key, now);
    assert_eq!(reopen(&wrong, token), Err(Errno::ESTALE), "it is another server's");
    for (why, token) in [("old", old), ("forged", forged), ("absent", absent), ("empty", [].into())] {
        assert_eq!(reopen(&right, &token), Err(Errno::ESTALE), "{why}");
    }
    reopen(&right, token).unwrap();
    let other = Token { id: [1; 16], part: 0, server, generation: 1 }.encode(&key, now);
    assert_eq!(reopen(&right, &other), Err(Errno::EBUSY), "the number is another object's");
    // What is removed stays readable for who has it open, and for nobody else.
    process.unlink("file").unwrap();
    process.wait(process.plain.call(&context(), Request::Release { open })).unwrap();
    assert!(read(&process, &right, 1, 10).unwrap() == content(5, 100_000)[..10]);
    process.wait(right.depart(ClientId(1))).unwrap();
    assert_eq!(reopen(&right, token), Err(Errno::ESTALE), "the object is gone");
}
