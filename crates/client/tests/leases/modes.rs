//! Modes, times and owners that are held back with what is written: nobody sees the difference.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use aqueduct_client::ClientConfig;
use aqueduct_fs::*;
use aqueduct_server::{Limits, Squash};
use aqueduct_worker::wait;

use crate::common::*;
use crate::endings::{Between, short};
use crate::fixture::*;

const TEXT: &[u8] = b"0123456789";

/// What a program sets, which the clock of no server does.
const LONG_AGO: Time = Time { seconds: 1_000_000_000, nanos: 123_456_789 };

/// The thread of a program that opens files and changes them.
const THREAD: u32 = 77;

fn by(thread: u32, uid: u32) -> Context {
    let context = if uid == 0 { context() } else { user(uid) };
    Context { pid: thread, ..context }
}

fn program() -> Context {
    by(THREAD, 0)
}

fn times() -> SetAttr {
    let at = Some(SetTime::At(LONG_AGO));
    SetAttr { atime: at, mtime: at, ..SetAttr::default() }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: u32, gid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() }
}

/// As tar makes files.
fn create_as(mount: &Mount, context: &Context, name: &str, flags: OpenFlags) -> (Entry, OpenId) {
    let (parent, name) = (mount.root.bytes(), name.as_bytes());
    let flags = READ_WRITE | OpenFlags::EXCLUSIVE | flags;
    let create = Request::Create { parent, name, mode: 0o600, umask: 0, flags };
    let (entry, opened) = mount.answer(context, create).result.unwrap().created().unwrap();
    // What comes with it is not kept where it shares its gate with the directory, one of 2048.
    let handle = entry.handle.bytes();
    mount.stat(&entry.handle);
    for name in [&b"system.posix_acl_access"[..], b"security.capability"] {
        assert_eq!(mount.ask(Request::GetXattr { handle, name, size: 100 }), Err(Errno::ENODATA));
    }
    (entry, opened.id)
}

fn create(mount: &Mount, name: &str) -> (Entry, OpenId) {
    create_as(mount, &program(), name, OpenFlags::empty())
}

fn write(mount: &Mount, open: OpenId, offset: u64) -> Result<Written, Errno> {
    let write = WriteAt { open, offset, append: false, stable: false };
    wait(&mount.group, mount.cached.write(&program(), write, Source::Memory(TEXT.into())))
}

fn set_as(mount: &Mount, context: &Context, file: &Entry, set: SetAttr) -> Result<Attr, Errno> {
    let request = Request::SetAttr { handle: file.handle.bytes(), open: None, set };
    mount.answer(context, request).result?.attr()
}

fn set(mount: &Mount, file: &Entry, set: SetAttr) -> Result<Attr, Errno> {
    set_as(mount, &program(), file, set)
}

/// What the server has.
fn there(process: &Process, name: &str) -> (u64, u32, Time) {
    let found = process.path(name).metadata().unwrap();
    let mtime = Time { seconds: found.mtime(), nanos: found.mtime_nsec() as u32 };
    (found.size(), found.mode() & 0o7777, mtime)
}

fn flush(mount: &Mount, open: OpenId) -> Result<Reply, Errno> {
    mount.answer(&program(), Request::Flush { open, owner: 1 }).result
}

/// A file that was written and given times, owner and mode without the server, in the order of tar.
fn held(process: &Process, mount: &Mount, name: &str) -> (Entry, OpenId) {
    let (file, open) = create(mount, name);
    mount.warm(|| write(mount, open, 0)).unwrap();
    for what in [times(), owner(0, 0), mode(0o640)] {
        let attr = mount.warm(|| set(mount, &file, what)).unwrap();
        let expected = if what.mode.is_some() { 0o640 } else { 0o600 };
        assert_eq!((attr.size, attr.mtime, attr.mode & 0o7777), (10, LONG_AGO, expected), "as it will be");
    }
    let (size, mode, mtime) = there(process, name);
    assert!(size == 0 && mode == 0o600 && mtime != LONG_AGO, "it is held back");
    (file, open)
}

const DONE: (u64, u32, Time) = (10, 0o640, LONG_AGO);

#[test]
fn modes_and_times_go_behind_what_was_written_in_one_request() {
    let process = Process::new();
    let mount = process.mount();
    let (_, open) = held(&process, &mount, "file");
    let (round_trips, closed) = mount.round_trips(|| flush(&mount, open));
    closed.unwrap();
    assert_eq!((round_trips, there(&process, "file")), (2, DONE));
    assert_eq!(mount.status()["gathered"]["attributes"], 3);
    mount.release(open);
    assert_eq!(there(&process, "file"), DONE);
    // What is written later moves the times, also while both are held back.
    let (file, open) = held(&process, &mount, "later");
    mount.warm(|| write(&mount, open, 10)).unwrap();
    flush(&mount, open).unwrap();
    assert!(there(&process, "later").2 != LONG_AGO);
    set(&mount, &file, times()).unwrap();
    assert_eq!(mount.stat(&file.handle).mtime, LONG_AGO);
    // An empty file as well.
    let (file, open) = create(&mount, "empty");
    mount.warm(|| set(&mount, &file, times())).unwrap();
    flush(&mount, open).unwrap();
    assert_eq!(there(&process, "empty"), (0, 0o600, LONG_AGO));
}

#[test]
fn they_are_there_after_a_second_and_when_the_client_has_left() {
    let process = Process::new();
    let mount = process.mount();
    let (file, _open) = held(&process, &mount, "file");
    until("the server has it", || there(&process, "file") == DONE);
    until("that is known", || mount.status()["gathered"]["files"] == 0);
    // What was only thought of before is shown to nobody.
    let (found, attr) = (process.path("file").metadata().unwrap(), mount.stat(&file.handle));
    assert_eq!((attr.ctime.seconds, i64::from(attr.ctime.nanos)), (found.ctime(), found.ctime_nsec()));
    held(&process, &mount, "left");
    drop(mount);
    assert_eq!(there(&process, "left"), DONE);
}

/// Nobody looks, by whatever way, and sees what was before.
#[test]
fn whoever_looks_sees_them() {
    let process = Process::new();
    let (mount, other) = (process.mount(), process.mount());
    type Look<'a> = &'a dyn Fn(&Mount, &str, &Handle) -> (u64, u32, Time);
    let of = |attr: Attr| (attr.size, attr.mode & 0o7777, attr.mtime);
    let looks: [(&str, Look<'_>); 3] = [
        ("stat", &|mount, _, handle| of(mount.stat(handle))),
        ("lookup", &|mount, name, _| of(mount.look_up(name).unwrap().attr)),
        ("list", &|mount, name, handle| {
            let listed = mount.list(&mount.root, 4096, true);
            let found = listed.iter().find(|(found, _)| found == name).unwrap().1;
            of(found.unwrap_or_else(|| mount.stat(handle)))
        }),
    ];
    for (who, looker) in [("its own", &mount), ("other", &other)] {
        for (what, look) in looks {
            let name = format!("{who} {what}");
            let (file, _open) = held(&process, &mount, &name);
            assert_eq!(look(looker, &name, &file.handle), DONE, "{name}");
        }
    }
    let (file, open) = held(&process, &mount, "fsync");
    mount.ask(Request::Sync { open, data_only: false }).unwrap();
    assert_eq!(there(&process, "fsync"), DONE);
    mount.warm(|| set(&mount, &file, mode(0o600))).unwrap();
    mount.rename("fsync", "renamed").unwrap();
    assert_eq!(there(&process, "renamed").1, 0o600, "before a name stands for it");
}

/// A mode that is held back says at once who may open the file.
#[test]
fn who_may_open_a_file_is_said_by_what_is_held_back() {
    let process = Process::new();
    let (mount, other) = (process.mount(), process.mount());
    let stranger = by(5, 1234);
    for (who, opener) in [("its own", &mount), ("other", &other)] {
        let (file, _open) = held(&process, &mount, who);
        let handle = file.handle.bytes();
        let opens = || opener.open_as(&stranger, &file.handle, READ).map(drop);
        let accesses = || opener.answer(&stranger, Request::Access { handle, mask: AccessMask::READ }).result.map(drop);
        assert_eq!(opens(), Err(Errno::EACCES), "{who}");
        let again = |bits| {
            assert_eq!(set(&mount, &file, mode(bits)).unwrap().mode & 0o7777, bits);
        };
        again(0o644);
        assert_eq!(opens(), Ok(()), "{who}");
        again(0o600);
        assert_eq!(accesses(), Err(Errno::EACCES), "{who}");
        again(0o644);
        assert_eq!(accesses(), Ok(()), "{who}");
        again(0o600);
        let (parent, flags) = (opener.root.bytes(), READ);
        let create = Request::Create { parent, name: who.as_bytes(), mode: 0o600, umask: 0, flags };
        assert_eq!(opener.answer(&stranger, create).result.map(drop), Err(Errno::EACCES), "{who}");
    }
}

/// What may be refused, or has effects beside, the server is asked for, after what is held back.
#[test]
fn what_is_not_certain_goes_straight_through() {
    let process = Process::new();
    let mount = process.mount();
    let (file, open) = held(&process, &mount, "file");
    let (user_file, _) = {
        std::fs::set_permissions(process.directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        create_as(&mount, &by(THREAD, 1000), "of a user", OpenFlags::empty())
    };
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    let as_user = |thread| by(thread, 1000);
    let straight = |what: &str, context: Context, file: &Entry, change: SetAttr, expected: Result<(), Errno>| {
        let (round_trips, result) = mount.round_trips(|| set_as(&mount, &context, file, change));
        assert_eq!((result.map(drop), round_trips > 0), (expected, true), "{what}");
    };
    straight("another thread", by(78, 0), &file, mode(0o600), Ok(()));
    straight("an unknown thread", by(0, 0), &file, mode(0o600), Ok(()));
    straight("who is not the owner", by(THREAD, 1000), &file, mode(0o600), Err(Errno::EPERM));
    straight("now", program(), &file, now, Ok(()));
    straight("a size", program(), &file, size, Ok(()));
    straight("another owner", program(), &file, owner(5, 5), Ok(()));
    straight("set-gid", program(), &file, mode(0o2640), Ok(()));
    straight("what was set-gid", program(), &file, mode(0o640), Ok(()));
    straight("another group", as_user(THREAD), &user_file, owner(1000, 7), Err(Errno::EPERM));
    mount.stat(&user_file.handle); // what it is like now nobody has said
    mount.warm(|| set_as(&mount, &as_user(THREAD), &user_file, mode(0o604))).unwrap();
    mount.warm(|| set_as(&mount, &as_user(THREAD), &user_file, owner(1000, 1000))).unwrap();
    assert_eq!(mount.stat(&user_file.handle).mode & 0o7777, 0o604);
    mount.stat(&file.handle);
    mount.release(mount.open(&file.handle, READ).unwrap());
    let reader = mount.warm(|| mount.open(&file.handle, READ)).unwrap();
    straight("with an open of which the server does not know", program(), &file, mode(0o600), Ok(()));
    mount.release(reader);
    let attr = mount.stat(&file.handle);
    assert_eq!((attr.size, attr.mode & 0o7777, attr.uid), (3, 0o600, 5));
    flush(&mount, open).unwrap();
    straight("by who has closed it", program(), &file, times(), Ok(()));
    let (stable, _) = create_as(&mount, &program(), "stable", OpenFlags::SYNC);
    straight("a file that is written at once", program(), &stable, times(), Ok(()));
    let (locked, open) = create(&mount, "locked");
    let lock = Lock { start: 0, end: 5, kind: LockKind::Write, pid: 1 };
    mount.ask(Request::SetLock { open, owner: 7, space: LockSpace::Posix, lock, wait: false }).unwrap();
    straight("a file that is locked", program(), &locked, times(), Ok(()));
    let address = process.server.addresses()[0];
    let through = Mount::with(ClientConfig { leases: true, gathers: false, ..client_config(address, "/e") });
    let (file, _open) = create(&through, "through");
    assert!(through.round_trips(|| set(&through, &file, times()).unwrap()).0 > 0, "where nothing is held back");
}

/// Root of a client is nobody at some servers, and may change only what is everybody's.
#[test]
fn root_is_not_taken_for_root_where_it_is_not() {
    let mut process = Process::new();
    process.kill();
    process.export.squash = Some(Squash::Root);
    process.start();
    std::fs::set_permissions(process.directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(process.path("root's"), "").unwrap();
    std::fs::set_permissions(process.path("root's"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let mount = process.mount();
    let file = mount.look_up("root's").unwrap();
    mount.open_as(&program(), &file.handle, READ_WRITE).unwrap();
    assert_eq!(file.attr.uid, 0);
    assert_eq!(set(&mount, &file, mode(0o600)), Err(Errno::EPERM));
    let (own, _open) = create(&mount, "own");
    assert_ne!(own.attr.uid, 0);
    assert!(mount.round_trips(|| set(&mount, &own, mode(0o604)).unwrap()).0 > 0);
    assert_eq!(set(&mount, &file, mode(0o600)), Err(Errno::EPERM));
}

/// A list is changed by a chmod, and grants rights beside.
#[test]
fn a_file_that_may_have_an_access_control_list_is_asked_about() {
    let process = Process::on_disk();
    let mount = process.mount();
    let (file, _open) = create(&mount, "file");
    mount.warm(|| set(&mount, &file, mode(0o640))).unwrap();
    let (handle, name) = (file.handle.bytes(), b"system.posix_acl_access");
    let value =
        [2u8, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255];
    mount.ask(Request::SetXattr { handle, name, value: &value, mode: XattrMode::Any }).unwrap();
    mount.stat(&file.handle);
    assert!(mount.round_trips(|| set(&mount, &file, mode(0o600)).unwrap()).0 > 0);
    mount.stat(&file.handle);
    mount.warm(|| set(&mount, &file, times())).unwrap();
    // Once it is known that there is none.
    assert_eq!(mount.ask(Request::GetXattr { handle, name, size: 100 }), Err(Errno::ENODATA));
    mount.stat(&file.handle);
    mount.warm(|| set(&mount, &file, mode(0o644))).unwrap();
    assert_eq!(mount.stat(&file.handle).mode & 0o7777, 0o644);
}

#[test]
fn nothing_of_it_is_lost_when_the_server_is_killed() {
    let mut process = Process::new();
    let mount = process.mount();
    let (file, open) = held(&process, &mount, "file");
    let (_, second) = held(&process, &mount, "second");
    process.kill();
    mount.warm(|| set(&mount, &file, mode(0o604))).unwrap();
    process.start();
    assert_eq!(mount.stat(&file.handle).mode & 0o7777, 0o604);
    assert_eq!(mount.stat(&file.handle).mtime, LONG_AGO);
    flush(&mount, second).unwrap();
    assert_eq!(there(&process, "second"), DONE);
    flush(&mount, open).unwrap();
    assert_eq!(there(&process, "file"), (10, 0o604, LONG_AGO));
}

#[test]
fn what_is_lost_is_told_to_be() {
    let process = Process::within(short());
    let between = Between::new(process.server.addresses()[0]);
    let (mount, other) = (between.mount(), process.mount());
    let (file, open) = create(&mount, "file");
    mount.warm(|| set(&mount, &file, mode(0o640))).unwrap();
    between.stop(true);
    assert_eq!(other.stat(&file.handle).mode & 0o7777, 0o600, "it was not set, and will not be");
    between.stop(false);
    assert_eq!(flush(&mount, open), Err(Errno::EIO));
    assert_eq!((mount.stat(&file.handle).mode & 0o7777, there(&process, "file").1), (0o600, 0o600));
}

#[test]
fn what_is_lost_with_the_session_is_told_to_be() {
    let mut process = Process::within(Limits { session_grace: Duration::from_millis(100), ..limits() });
    let mount = process.mount();
    let (file, open) = create(&mount, "file");
    mount.warm(|| set(&mount, &file, mode(0o640))).unwrap();
    process.kill();
    std::fs::remove_dir_all(process.sessions_path()).unwrap();
    process.start();
    mount.stat(&file.handle);
    assert_eq!(mount.ask(Request::Sync { open, data_only: true }), Err(Errno::EIO));
    assert_eq!(mount.ask(Request::Sync { open, data_only: true }), Ok(Reply::Done));
    assert_eq!(mount.stat(&file.handle).mode & 0o7777, 0o600);
}

/// A process on the server may make a change fail that was answered.
#[test]
fn an_error_is_told_by_close_and_what_is_shown_is_true() {
    let process = Process::on_disk();
    let mount = process.mount();
    let (file, open) = create_as(&mount, &by(THREAD, 0), "file", OpenFlags::empty());
    mount.warm(|| set(&mount, &file, mode(0o640))).unwrap();
    let path = process.path("file");
    let immutable = |on: &str| {
        let done = std::process::Command::new("chattr").arg(on).arg(&path).status();
        done.is_ok_and(|status| status.success())
    };
    if !immutable("+i") {
        eprintln!("skipped: the file system has no immutable files");
        return;
    }
    let closed = flush(&mount, open);
    let shown = mount.stat(&file.handle).mode & 0o7777;
    assert!(immutable("-i"));
    assert_eq!((closed, shown), (Err(Errno::EPERM), 0o600));
}
