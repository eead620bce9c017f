//! What is answered without a round trip.

use std::time::{Duration, SystemTime};

use aqueduct_fs::*;

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
        let Answer { result, keep } = mount.answer(&crate::common::context(), lookup.clone());
        assert!(result.is_ok());
        for left in [keep.attributes, keep.names] {
            assert!(left.as_secs() >= 3 && left.as_secs() < 7, "round {round}: {left:?}");
        }
        assert!(keep.hold.is_some() && !keep.data);
    }
    let absent = Request::Lookup { parent: mount.root.bytes(), name: b"absent" };
    let first = mount.answer(&crate::common::context(), absent.clone());
    assert!(first.result == Err(Errno::ENOENT) && first.keep.names.is_zero(), "whoever makes a file looks once");
    let Answer { result, keep } = mount.answer(&crate::common::context(), absent);
    assert!(result == Err(Errno::ENOENT) && keep.names.as_secs() >= 3 && keep.hold.is_some());
    let file = mount.look_up("file").unwrap().handle;
    let opened = mount.answer(&crate::common::context(), Request::Open { handle: file.bytes(), flags: READ });
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
