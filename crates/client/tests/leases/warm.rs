//! What is answered without a round trip.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use aqueduct_fs::*;

use crate::common::*;
use crate::fixture::*;

#[test]
fn what_only_looks_asks_once() {
    let process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    std::os::unix::fs::symlink("file", process.path("link")).unwrap();
    let mount = process.mount();
    let look = || {
        let file = mount.look_up("file").unwrap();
        assert_eq!(mount.stat(&file.handle).size, 4);
        let link = mount.look_up("link").unwrap();
        let text = mount.ask(Request::ReadLink { handle: link.handle.bytes() }).unwrap().bytes().unwrap();
        assert_eq!(text, b"file");
        assert_eq!(mount.look_up("absent"), Err(Errno::ENOENT));
        let get = |name: &'static [u8]| mount.ask(Request::GetXattr { handle: file.handle.bytes(), name, size: 100 });
        get(b"security.capability")
    };
    let first = look();
    assert_eq!(mount.warm(look), first);
    let status = mount.status();
    assert!(status["leases"]["hits"].as_u64().unwrap() >= 5, "{status}");
    assert!(status["leases"]["inodes"].as_u64().unwrap() >= 3, "{status}");
    assert!(status["leases"]["bytes"].as_u64().unwrap() > 1000, "{status}");
}

#[test]
fn answers_say_for_how_long_a_kernel_may_keep_them() {
    let process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    let mount = process.mount();
    let lookup = Request::Lookup { parent: mount.root.bytes(), name: b"file" };
    for round in 0..2 {
        let Answer { result, keep } = mount.answer(&context(), lookup.clone());
        assert!(result.is_ok());
        for left in [keep.attributes, keep.names] {
            assert!(left.as_secs() >= 3 && left.as_secs() < 7, "round {round}: {left:?}");
        }
        assert!(keep.hold.is_some() && !keep.data);
    }
    let absent = Request::Lookup { parent: mount.root.bytes(), name: b"absent" };
    let first = mount.answer(&context(), absent.clone());
    assert!(first.result == Err(Errno::ENOENT) && first.keep.names.is_zero(), "whoever makes a file looks once");
    let Answer { result, keep } = mount.answer(&context(), absent);
    assert!(result == Err(Errno::ENOENT) && keep.names.as_secs() >= 3 && keep.hold.is_some());
    let file = mount.look_up("file").unwrap().handle;
    let opened = mount.answer(&context(), Request::Open { handle: file.bytes(), flags: READ });
    assert!(opened.keep.data && opened.keep.hold.is_some());
    assert!(mount.cached.hold_data(file.bytes()).is_some());
}

#[test]
fn a_client_that_asks_for_no_leases_gets_none() {
    let process = Process::new();
    std::fs::write(process.path("file"), "text").unwrap();
    let config = crate::common::client_config(process.server.addresses()[0], "/e");
    let mount = Mount::with(config);
    for _ in 0..2 {
        let (count, entry) = mount.round_trips(|| mount.look_up("file"));
        assert_eq!((count, entry.unwrap().attr.size), (1, 4));
    }
    assert!(mount.status()["leases"].is_null());
}

/// A file that a listing has told of is had by FETCH, with others: that is a read of it, as it is without a listing, but of the others it is none.
#[test]
fn the_first_read_of_a_file_moves_its_time_of_access_and_of_no_other() {
    let moved = |is_listed: bool| {
        let process = Process::new();
        let (files, old) = (["f0", "f1", "f2", "f3"], SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        for file in files {
            std::fs::write(process.path(file), "text").unwrap();
            let times = std::fs::FileTimes::new().set_accessed(old);
            std::fs::File::options().write(true).open(process.path(file)).unwrap().set_times(times).unwrap();
        }
        let mount = process.mount();
        if is_listed {
            mount.list(&mount.root, 65536, true);
        }
        let read = |file: &str| {
            let open = mount.open(&mount.look_up(file).unwrap().handle, READ).unwrap();
            assert_eq!(mount.read(open).unwrap(), "text");
            mount.release(open);
        };
        read("f0");
        read("f1"); // the second in a directory has others fetched with it
        files.map(|file| std::fs::metadata(process.path(file)).unwrap().accessed().unwrap() != old)
    };
    assert_eq!(moved(true), moved(false));
}

#[test]
fn a_small_file_in_contention_costs_no_more_than_without_leases() {
    let holdoff = Duration::from_secs(3600); // no lease on it comes again here
    let process = Process::within(aqueduct_server::Limits { lease_holdoff: holdoff, ..limits() });
    for file in ["f0", "f1", "f2"] {
        std::fs::write(process.path(file), "text").unwrap();
    }
    let (mount, other) = (process.mount(), process.mount());
    mount.list(&mount.root, 65536, true);
    let file = mount.look_up("f1").unwrap().handle;
    let read = || {
        let open = mount.open(&file, READ).unwrap();
        assert_eq!(mount.read(open).unwrap(), "text");
        mount.release(open);
    };
    read();
    other.set_mode(&file, 0o600);
    read(); // finds out
    for round in 0..8 {
        assert_eq!(mount.round_trips(read).0, 3, "open, read and close, round {round}");
    }
}

/// `cp -r` looks for each file that it is about to make, and at the directory that it has just made another in.
#[test]
fn who_fills_a_new_directory_asks_for_nothing_but_what_it_makes() {
    let process = Process::new();
    std::fs::write(process.path("old"), "").unwrap();
    let (mount, other) = (process.mount(), process.mount());
    mount.list(&mount.root, 4096, true); // that what is not listed is not there
    let make = |parent: &Handle, name: &str| {
        let request = Request::MakeDirectory { parent: parent.bytes(), name: name.as_bytes(), mode: 0o755, umask: 0 };
        mount.ask(request).unwrap().entry().unwrap().handle
    };
    let create = |parent: &Handle, name: &str| {
        let (parent, name) = (parent.bytes(), name.as_bytes());
        mount.ask(Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE }).unwrap();
    };
    let changed = |path: &str| {
        let stat = process.path(path).metadata().unwrap();
        Time { seconds: stat.mtime(), nanos: stat.mtime_nsec() as u32 }
    };
    let is_told = |parent: &Handle, path: &str| {
        assert_eq!(mount.warm(|| mount.stat(parent)).mtime, changed(path), "{path}");
    };
    for directory in [&make(&mount.root, "new"), &make(&make(&mount.root, "outer"), "inner")] {
        let path = if directory == &mount.look_up("new").unwrap().handle { "new" } else { "outer/inner" };
        for number in 0..20 {
            let name = format!("file{number}");
            assert_eq!(mount.warm(|| mount.look_up_in(directory, &name)), Err(Errno::ENOENT));
            assert_eq!(mount.round_trips(|| create(directory, &name)).0, 1);
            mount.warm(|| mount.look_up_in(directory, &name)).unwrap();
            is_told(directory, path);
        }
        let unlink = Request::Unlink { parent: directory.bytes(), name: b"file7" };
        assert_eq!(mount.round_trips(|| mount.ask(unlink).unwrap()).0, 1);
        is_told(directory, path);
        assert_eq!(mount.warm(|| mount.look_up_in(directory, "file7")), Err(Errno::ENOENT));
        // What becomes of names that change places is not told.
        let (parent, new_parent, flags) = (directory.bytes(), directory.bytes(), RenameFlags::EXCHANGE);
        let exchange = Request::Rename { parent, name: b"file1", new_parent, new_name: b"file2", flags };
        mount.ask(exchange).unwrap();
        mount.look_up_in(directory, "file1").unwrap();
        assert_eq!(mount.look_up_in(directory, "file7"), Err(Errno::ENOENT));
    }
    // Others are seen there as anywhere.
    let new = mount.look_up("new").unwrap().handle;
    let (parent, name) = (new.bytes(), b"by another");
    other.ask(Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE }).unwrap();
    mount.look_up_in(&new, "by another").unwrap();
    assert_eq!(mount.stat(&new).mtime, changed("new"));
}

/// A listing of everything says what is not there, also when something has been made since.
#[test]
fn who_adds_to_a_directory_that_it_has_listed_asks_for_nothing_but_what_it_makes() {
    let process = Process::new();
    std::fs::write(process.path("old"), "").unwrap();
    let mount = process.mount();
    mount.list(&mount.root, 4096, true);
    for number in 0..20 {
        let name = format!("file{number}");
        assert_eq!(mount.warm(|| mount.look_up(&name)), Err(Errno::ENOENT));
        mount.create(&name);
    }
    mount.warm(|| mount.look_up("old")).unwrap();
}

/// Kernels ask for it by themselves, on the way to something else.
#[test]
fn what_was_just_made_is_known_to_have_no_access_control_list() {
    const LIST: &[u8] = b"system.posix_acl_access";
    let process = Process::on_disk();
    let (mount, other) = (process.mount(), process.mount());
    let get = |mount: &Mount, handle: &[u8], name| mount.ask(Request::GetXattr { handle, name, size: 100 });
    // What comes with one is not kept where it shares its gate with the directory, one of 2048.
    let is_known = |handle: &Handle, name| mount.round_trips(|| get(&mount, handle.bytes(), name)).0 == 0;
    let mut files = (0..4).map(|number| mount.create(&format!("file-{number}")));
    let (file, open) = files.find(|(file, _)| is_known(&file.handle, LIST)).expect("one is known to have none");
    let handle = file.handle.bytes();
    let list = |mount: &Mount| get(mount, handle, LIST);
    let lacks = || assert_eq!(mount.warm(|| list(&mount)), Err(Errno::ENODATA));
    lacks();
    mount.write(open, b"held back").unwrap();
    lacks();
    mount.set_mode(&file.handle, 0o600);
    lacks();
    let parent = mount.root.bytes();
    let directories: Vec<Handle> = (0..4)
        .map(|number| {
            let name = format!("directory-{number}");
            let make = Request::MakeDirectory { parent, name: name.as_bytes(), mode: 0o755, umask: 0 };
            mount.ask(make).unwrap().entry().unwrap().handle
        })
        .collect();
    let names = [LIST, b"system.posix_acl_default"];
    assert!(directories.iter().any(|directory| names.iter().all(|name| is_known(directory, name))));
    // Read and write for the owner, and read for user 7 beneath a mask.
    let entries = [(1u16, 6u16, u32::MAX), (2, 4, 7), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let value = [vec![2, 0, 0, 0], entries.map(entry).concat()].concat();
    for setter in [&other, &mount] {
        let set = Request::SetXattr { handle, name: LIST, value: &value, mode: XattrMode::Any };
        setter.ask(set).unwrap();
        assert!(list(&mount).is_ok() && list(&other).is_ok());
        setter.ask(Request::RemoveXattr { handle, name: LIST }).unwrap();
        assert_eq!(list(&mount), Err(Errno::ENODATA));
    }
}
