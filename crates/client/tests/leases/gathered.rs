//! Writes that are held back: nobody sees the difference, neither others nor their own client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_client::ClientConfig;
use aqueduct_fs::*;
use aqueduct_server::{Limits, Moment};
use aqueduct_worker::wait;

use crate::common::*;
use crate::endings::{Between, short};
use crate::fixture::*;

const SMALL: &[u8] = b"0123456789";

/// Offsets up to here are what a program may ask for; no file system of these tests has files that large.
const FAR: u64 = 1 << 62;

fn write_at(mount: &Mount, open: OpenId, offset: u64, data: &'static [u8]) -> Result<Written, Errno> {
    let write = WriteAt { open, offset, append: false, stable: false };
    wait(&mount.group, mount.cached.write(&context(), write, Source::Memory(data.into())))
}

/// Writes that cost no round trip.
#[track_caller]
fn hold(mount: &Mount, open: OpenId, count: u64) {
    for at in 0..count {
        let written = mount.warm(|| write_at(mount, open, at * SMALL.len() as u64, SMALL)).unwrap();
        assert_eq!((written.count as usize, written.offset), (SMALL.len(), at * SMALL.len() as u64));
    }
}

/// A file of this client's, with so many small writes that the server does not have.
fn held(process: &Process, mount: &Mount, name: &str, count: u64) -> (Entry, OpenId) {
    let (entry, open) = mount.create(name);
    hold(mount, open, count);
    assert_eq!(size_there(process, name), 0, "it is held back");
    (entry, open)
}

fn size_there(process: &Process, name: &str) -> u64 {
    process.path(name).metadata().unwrap().len()
}

fn flush(mount: &Mount, open: OpenId) -> Result<Reply, Errno> {
    mount.ask(Request::Flush { open, owner: 1 })
}

fn sync(mount: &Mount, open: OpenId) -> Result<Reply, Errno> {
    mount.ask(Request::Sync { open, data_only: true })
}

/// A server of files that cannot be as long as FAR: those of tmpfs can, which /tmp is on many
/// machines.
fn with_an_end() -> Option<Process> {
    let process = Process::on_disk();
    let file = std::fs::File::create(process.path("probe")).unwrap();
    let has_end = file.set_len(FAR).is_err();
    std::fs::remove_file(process.path("probe")).unwrap();
    if !has_end {
        eprintln!("skipped: files in /var/tmp have no greatest length, as on tmpfs: mount a disk there");
    }
    has_end.then_some(process)
}

#[test]
fn small_writes_go_together_when_the_file_is_closed() {
    let process = Process::new();
    let mount = process.mount();
    let (_, open) = held(&process, &mount, "file", 100);
    let (round_trips, closed) = mount.round_trips(|| flush(&mount, open));
    closed.unwrap();
    assert_eq!((round_trips, size_there(&process, "file")), (1, 1000));
    mount.release(open);
    assert_eq!(std::fs::read(process.path("file")).unwrap(), SMALL.repeat(100));
}

/// What is the largest that may be is too large for a wire that may be slow.
#[test]
fn large_writes_are_held_back_once_one_has_come_there_fast() {
    static LARGE: [u8; TRANSFER_SIZE_MAX] = [7; TRANSFER_SIZE_MAX];
    let process = Process::new();
    let mount = process.mount();
    let (_, open) = mount.create("file");
    let mut at = 0;
    let mut write = || {
        write_at(&mount, open, at, &LARGE).unwrap();
        at += LARGE.len() as u64;
        mount.status()["gathered"]["writes"].as_u64().unwrap()
    };
    assert_eq!(write(), 0, "held back");
    until("one is held back", || write() > 0);
    sync(&mount, open).unwrap();
}

/// A kernel that knows of no such name asks to create it: by that the file is emptied.
#[test]
fn what_was_held_back_before_a_file_is_emptied_does_not_come_back() {
    let process = Process::new();
    let mount = process.mount();
    let (_, open) = held(&process, &mount, "file", 10);
    let (parent, flags) = (mount.root.bytes(), READ_WRITE | OpenFlags::TRUNCATE);
    let create = Request::Create { parent, name: b"file", mode: 0o644, umask: 0, flags };
    let (_, emptied) = mount.ask(create).unwrap().created().unwrap();
    write_at(&mount, emptied.id, 0, b"new").unwrap();
    for open in [open, emptied.id] {
        sync(&mount, open).unwrap();
    }
    assert_eq!(std::fs::read(process.path("file")).unwrap(), b"new");
}

#[test]
fn what_is_held_back_is_there_once_it_is_synced_or_a_second_has_passed() {
    let process = Process::new();
    let mount = process.mount();
    let (_, open) = held(&process, &mount, "file", 10);
    sync(&mount, open).unwrap();
    assert_eq!(size_there(&process, "file"), 100);
    hold(&mount, open, 20);
    until("the server has it", || size_there(&process, "file") == 200);
}

/// Nobody else uses the file: its kernel keeps pages of it, which it keeps true itself while this
/// client writes, and drops them when the lease goes.
#[test]
fn a_kernel_keeps_pages_of_what_is_written_here_until_others_use_it() {
    let process = Process::new();
    let (one, other) = (process.mount(), process.mount());
    let (_, made) = held(&process, &one, "file", 10);
    one.release(made);
    let file = one.look_up("file").unwrap().handle;
    let opened = |flags| {
        let answer = one.answer(&context(), Request::Open { handle: file.bytes(), flags });
        (answer.result.unwrap().opened().unwrap().id, answer.keep.data)
    };
    for flags in [OpenFlags::WRITE, READ_WRITE | OpenFlags::APPEND, READ_WRITE | OpenFlags::SYNC] {
        let (open, may_keep) = opened(flags);
        assert!(!may_keep && one.cached.hold_data(file.bytes()).is_none(), "{flags:?}");
        one.release(open);
        one.stat(&file);
    }
    let (open, may_keep) = opened(READ_WRITE);
    assert!(may_keep && one.cached.hold_data(file.bytes()).is_some());
    one.told.forgotten.lock().unwrap().clear();
    hold(&one, open, 20);
    assert!(!one.told.of(&file).contains(Aspects::DATA), "its own writes leave them");
    assert!(one.cached.hold_data(file.bytes()).is_some());
    let theirs = other.open(&other.look_up("file").unwrap().handle, READ_WRITE).unwrap();
    assert!(one.told.of(&file).contains(Aspects::DATA), "they were dropped");
    assert!(one.cached.hold_data(file.bytes()).is_none());
    other.write(theirs, b"theirs").unwrap();
    assert!(!opened(READ_WRITE).1, "others use it");
}

#[test]
fn others_see_it_at_once() {
    let process = Process::new();
    let (mount, other) = (process.mount(), process.mount());
    type Look<'a> = &'a dyn Fn(&Mount, &str, &Handle) -> u64;
    let looks: [(&str, Look<'_>); 4] = [
        ("stat", &|other, _, handle| other.stat(handle).size),
        ("lookup", &|other, name, _| other.look_up(name).unwrap().attr.size),
        ("read", &|other, _, handle| other.read(other.open(handle, READ).unwrap()).unwrap().len() as u64),
        ("seek", &|other, _, handle| {
            let open = other.open(handle, READ).unwrap();
            other.ask(Request::Seek { open, offset: 0, to: SeekTo::Hole }).unwrap().size().unwrap()
        }),
    ];
    for (what, look) in looks {
        let (entry, open) = held(&process, &mount, what, 3);
        assert_eq!(look(&other, what, &entry.handle), 30, "{what}");
        write_at(&mount, open, 30, SMALL).unwrap();
        assert_eq!(other.stat(&entry.handle).size, 40, "{what}, when it is shared");
    }
    let (entry, _open) = held(&process, &mount, "listed", 3);
    for (name, attr) in other.list(&other.root, 4096, true) {
        assert!(
            name != "listed" || attr.is_none_or(|attr| attr.size == 30),
            "a listing waits for nobody, and shows nothing old"
        );
    }
    other.unlink("listed").unwrap();
    assert_eq!(mount.stat(&entry.handle).size, 30);
}

#[test]
fn its_own_client_sees_it_whichever_way_it_looks() {
    let process = Process::new();
    let mount = process.mount();
    let (entry, open) = held(&process, &mount, "file", 3);
    let handle = entry.handle.bytes();
    let mut size = 30;
    let mut check = |what: &str, look: &dyn Fn() -> u64| {
        assert_eq!(look(), size, "{what}");
        write_at(&mount, open, size, SMALL).unwrap();
        size += 10;
    };
    std::fs::hard_link(process.path("file"), process.path("link")).unwrap();
    check("stat", &|| mount.stat(&entry.handle).size);
    check("a name that was not known", &|| mount.look_up("link").unwrap().attr.size);
    check("a name", &|| mount.look_up("file").unwrap().attr.size);
    check("read", &|| mount.read(open).unwrap().len() as u64);
    let reader = mount.open(&entry.handle, READ).unwrap();
    check("read by another", &|| mount.read(reader).unwrap().len() as u64);
    check("seek", &|| mount.ask(Request::Seek { open, offset: 0, to: SeekTo::Hole }).unwrap().size().unwrap());
    check("chmod", &|| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        mount.ask(Request::SetAttr { handle, open: None, set }).unwrap().attr().unwrap().size
    });
    check("create of what is there", &|| {
        let (parent, name) = (mount.root.bytes(), b"file");
        let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
        mount.ask(create).unwrap().created().unwrap().0.attr.size
    });
    check("link", &|| {
        let link = Request::Link { handle, parent: mount.root.bytes(), name: b"another" };
        mount.ask(link).unwrap().entry().unwrap().attr.size
    });
    let list = || {
        let listed = mount.list(&mount.root, 4096, true);
        let sizes = listed.iter().filter(|(name, _)| name == "file").filter_map(|(_, attr)| attr.map(|attr| attr.size));
        let sizes: Vec<u64> = sizes.collect();
        sizes.first().copied().unwrap_or_else(|| mount.stat(&entry.handle).size)
    };
    check("a listing", &list);
    let set = SetAttr { size: Some(5), ..SetAttr::default() };
    mount.ask(Request::SetAttr { handle, open: None, set }).unwrap();
    assert_eq!(mount.stat(&entry.handle).size, 5, "what was written before is cut off");
    write_at(&mount, open, 5, SMALL).unwrap();
    mount.rename("file", "new").unwrap();
    assert_eq!(size_there(&process, "new"), 15, "before a name stands for it");
}

#[test]
fn later_writes_lie_over_earlier_ones() {
    let process = Process::new();
    let mount = process.mount();
    let (_, open) = mount.create("file");
    let large: &'static [u8] = vec![b'l'; 300 << 10].leak();
    for (offset, data) in [(0, SMALL), (100, &b"elsewhere"[..]), (5, b"abc"), (0, large), (3, b"z"), (200 << 10, large)]
    {
        write_at(&mount, open, offset, data).unwrap();
    }
    flush(&mount, open).unwrap();
    let mut expected = vec![b'l'; 500 << 10];
    expected[3] = b'z';
    assert!(std::fs::read(process.path("file")).unwrap() == expected);
}

#[test]
fn an_error_is_told_to_each_who_writes() {
    let Some(process) = with_an_end() else { return };
    let mount = process.mount();
    let (entry, open) = held(&process, &mount, "file", 1);
    let [writer, reader] = [READ_WRITE, READ].map(|flags| mount.open(&entry.handle, flags).unwrap());
    let spoil = || {
        // The first write of a file that was looked at may go straight through.
        while mount.round_trips(|| write_at(&mount, open, 0, SMALL).unwrap()).0 > 0 {}
        mount.warm(|| write_at(&mount, open, FAR, SMALL)).unwrap();
    };
    type Told<'a> = &'a dyn Fn(OpenId) -> Result<(), Errno>;
    let ways: [(&str, Told<'_>); 3] = [
        ("close", &|open| flush(&mount, open).map(drop)),
        ("fsync", &|open| sync(&mount, open).map(drop)),
        ("write", &|open| {
            mount.stat(&entry.handle);
            write_at(&mount, open, 0, SMALL).map(drop)
        }),
    ];
    for (what, told) in ways {
        spoil();
        assert_eq!(told(open), Err(Errno::EFBIG), "{what}");
        // A close tells it again, to whoever has the descriptor too.
        assert_eq!(told(open).is_ok(), what != "close", "{what}");
        assert_eq!(sync(&mount, open).is_ok(), what != "close", "{what}");
        assert_eq!(flush(&mount, open), Ok(Reply::Done));
        assert_eq!(flush(&mount, reader), Ok(Reply::Done), "who only reads has lost nothing");
        assert_eq!(flush(&mount, writer), Ok(Reply::Done), "nor has who has written nothing");
        assert_eq!(sync(&mount, writer), Err(Errno::EFBIG), "but he asked whether all is there");
        assert_eq!(sync(&mount, writer), Ok(Reply::Done));
    }
    write_at(&mount, writer, 0, SMALL).unwrap();
    spoil();
    assert_eq!([flush(&mount, open), flush(&mount, writer)], [Err(Errno::EFBIG), Err(Errno::EFBIG)]);
    assert_eq!(mount.stat(&entry.handle).size, 10, "what could be written is there");
}

#[test]
fn nothing_is_lost_when_the_server_is_killed() {
    let mut process = Process::new();
    let mount = process.mount();
    let (entry, open) = held(&process, &mount, "file", 10);
    let (_, second) = held(&process, &mount, "second", 1);
    process.kill();
    hold(&mount, open, 20); // what is leased stays so for its time
    process.start();
    assert_eq!(mount.stat(&entry.handle).size, 200);
    flush(&mount, second).unwrap();
    assert_eq!([size_there(&process, "file"), size_there(&process, "second")], [200, 10]);
    let other = process.mount();
    hold_back(&mount, open, 290);
    assert_eq!(other.stat(&entry.handle).size, 300, "and it goes on as before");
}

/// Writes until writes are held back.
fn hold_back(mount: &Mount, open: OpenId, offset: u64) {
    until("writes are held back", || mount.round_trips(|| write_at(mount, open, offset, SMALL).unwrap()).0 == 0);
}

/// Somebody else may have looked in between, and nobody knows.
#[test]
fn what_is_held_back_when_the_session_is_lost_is_told_to_be() {
    let process = Process::within(Limits { session_grace: Duration::from_millis(100), ..limits() });
    let mount = process.mount();
    let (entry, open) = held(&process, &mount, "file", 10);
    let mut process = process;
    process.kill();
    std::fs::remove_dir_all(process.sessions_path()).unwrap();
    process.start();
    // It has the file for itself again: what was held back under the lease of before does not come under this one.
    mount.open(&entry.handle, READ_WRITE).unwrap();
    assert_eq!(flush(&mount, open), Err(Errno::EIO));
    assert_eq!(sync(&mount, open), Err(Errno::EIO));
    assert_eq!(flush(&mount, open), Ok(Reply::Done));
    assert_eq!(mount.stat(&entry.handle).size, 0);
    write_at(&mount, open, 0, SMALL).unwrap();
    flush(&mount, open).unwrap();
    assert_eq!(size_there(&process, "file"), 10);
}

/// Others wait for it no longer than for any lease; then it is too late, and that is told.
#[test]
fn what_is_held_back_by_who_is_cut_off_for_too_long_is_told_to_be_lost() {
    let process = Process::within(short());
    let between = Between::new(process.server.addresses()[0]);
    let (mount, other) = (between.mount(), process.mount());
    let (entry, open) = mount.create("file");
    hold_back(&mount, open, 0);
    between.stop(true);
    assert_eq!(other.stat(&entry.handle).size, 0, "it was not there, and will not be");
    between.stop(false);
    assert_eq!(sync(&mount, open), Err(Errno::EIO));
    assert_eq!(size_there(&process, "file"), 0);
    hold_back(&mount, open, 0);
    assert_eq!(other.stat(&entry.handle).size, 10, "and it goes on as before");
}

/// Whoever is cut off and missed by nobody loses nothing.
#[test]
fn what_nobody_has_looked_at_meanwhile_is_not_lost() {
    let process = Process::within(short());
    let between = Between::new(process.server.addresses()[0]);
    let mount = between.mount();
    let (_, open) = mount.create("file");
    hold_back(&mount, open, 0);
    between.stop(true);
    std::thread::sleep(Duration::from_millis(1500)); // longer than lease and patience
    between.stop(false);
    flush(&mount, open).unwrap();
    assert_eq!(size_there(&process, "file"), 10);
}

#[test]
fn who_has_closed_a_file_shares_it_at_once() {
    let process = Process::new();
    let (mount, other) = (process.mount(), process.mount());
    let (entry, open) = held(&process, &mount, "file", 3);
    let second = mount.open(&entry.handle, READ_WRITE).unwrap();
    mount.release(open);
    mount.warm(|| write_at(&mount, second, 30, SMALL)).unwrap();
    mount.release(second);
    assert_eq!(other.look_up("file").unwrap().attr.size, 40);
    assert!(other.list(&other.root, 4096, true).iter().any(|(name, attr)| name == "file" && attr.is_some()));
    mount.look_up("file").unwrap();
    mount.warm(|| mount.stat(&entry.handle));
    assert_eq!(mount.status()["leases"]["recalls"], 0);
    let open = mount.open(&entry.handle, READ_WRITE).unwrap();
    assert_eq!(write_at(&mount, open, 40, SMALL).unwrap().count, 10);
    assert_eq!(other.stat(&entry.handle).size, 50, "whoever writes again has others told");
    // It goes on as before when nobody else uses it.
    mount.release(open);
    other.client.disconnect();
    let open = mount.open(&entry.handle, READ_WRITE).unwrap();
    hold_back(&mount, open, 50);
}

#[test]
fn two_that_write_in_turn_see_each_others_writes() {
    let process = Process::within(Limits { lease_holdoff: Limits::default().lease_holdoff, ..limits() });
    let mounts = [process.mount(), process.mount()];
    let (entry, first) = mounts[0].create("file");
    let opens = [first, mounts[1].open(&entry.handle, READ_WRITE).unwrap()];
    for turn in 0..200u64 {
        let (mount, open) = (&mounts[turn as usize % 2], opens[turn as usize % 2]);
        assert_eq!(mount.stat(&entry.handle).size, turn * 10);
        write_at(mount, open, turn * 10, SMALL).unwrap();
    }
}

#[test]
fn where_it_is_not_wanted_each_write_goes_at_once() {
    let process = Process::new();
    let address = process.server.addresses()[0];
    let mount = Mount::with(ClientConfig { leases: true, gathers: false, ..client_config(address, "/e") });
    let (_, open) = mount.create("file");
    write_at(&mount, open, 0, SMALL).unwrap();
    assert_eq!(size_there(&process, "file"), 10);
    let mount = process.mount();
    for (name, flags) in [("stable", OpenFlags::SYNC), ("direct", OpenFlags::DIRECT)] {
        let create = Request::Create {
            parent: mount.root.bytes(),
            name: name.as_bytes(),
            mode: 0o644,
            umask: 0,
            flags: READ_WRITE | flags,
        };
        let open = mount.ask(create).unwrap().created().unwrap().1.id;
        write_at(&mount, open, 0, SMALL).unwrap();
        assert_eq!(size_there(&process, name), 10, "{name}");
    }
}

#[test]
fn what_is_written_under_a_lock_is_written_at_once() {
    let Some(process) = with_an_end() else { return };
    let mount = process.mount();
    for (name, space) in [("posix", LockSpace::Posix), ("flock", LockSpace::Flock)] {
        let (_, open) = held(&process, &mount, name, 1);
        let set = |kind| {
            let lock = Lock { start: 0, end: u64::MAX, kind, pid: 1 };
            mount.ask(Request::SetLock { open, owner: 7, space, lock, wait: false }).unwrap();
        };
        set(LockKind::Write);
        assert_eq!(size_there(&process, name), 10);
        assert_eq!(write_at(&mount, open, FAR, SMALL), Err(Errno::EFBIG), "{name}: and its error is told at once");
        write_at(&mount, open, 10, SMALL).unwrap();
        assert_eq!(size_there(&process, name), 20, "{name}");
        set(LockKind::Unlock);
        hold_back(&mount, open, 20);
    }
}

#[test]
fn what_is_held_back_is_there_when_the_client_has_left() {
    let process = Process::new();
    let mount = process.mount();
    held(&process, &mount, "file", 5);
    drop(mount);
    assert_eq!(size_there(&process, "file"), 50);
}

/// The server has heard that its client has all again, and the client does not hear of that.
#[test]
fn writes_are_held_back_again_after_a_recovery_whose_last_answer_was_lost() {
    let mut process = Process::new();
    let mount = process.mount();
    let (_, open) = held(&process, &mount, "file", 10);
    let is_lost = Arc::<AtomicBool>::default();
    while !is_lost.load(Ordering::SeqCst) {
        process.kill();
        process.start();
        let is_first = is_lost.clone();
        // Unless the client was faster than this.
        process.server.set_failpoint(move |at| at == Moment::Recovered && !is_first.swap(true, Ordering::SeqCst));
        sync(&mount, open).unwrap();
    }
    sync(&mount, open).unwrap();
    assert_eq!(size_there(&process, "file"), 100);
    let (_, second) = mount.create("second");
    hold(&mount, second, 10);
    sync(&mount, second).unwrap();
    assert_eq!(size_there(&process, "second"), 100);
}
