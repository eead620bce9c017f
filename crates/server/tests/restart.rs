//! What clients find when the server process has died and another has taken its place.

mod common;

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::task::Waker;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;
use common::*;

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn a_session_goes_on_with_its_opens_and_locks() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    assert!(!session.recovering);
    let (_, file) = peer.create((0, 1), &root, "f", READ_WRITE).unwrap();
    let directory = peer.ask((1, 1), &Request::OpenDirectory { handle: root.bytes() }).unwrap().opened().unwrap();
    peer.ask((0, 2), &set_lock(file.id, 1, LockKind::Write, false)).unwrap();
    fixture.restart();
    let (mut peer, reply) = fixture.joined(&session);
    assert!(reply.recovering && reply.slots == session.slots);
    for open in [&file, &directory, &file] {
        let reopen = Request::Reopen { open: open.id, token: &open.token };
        assert_eq!(peer.ask((0, 0), &reopen).unwrap().opened().unwrap().id, open.id);
    }
    peer.ask((0, 0), &set_lock(file.id, 1, LockKind::Write, false)).unwrap();
    assert_eq!(peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
    assert!(!fixture.joined(&session).1.recovering);
    // From now on locks need slots again.
    assert_eq!(peer.ask((0, 0), &set_lock(file.id, 1, LockKind::Write, false)), Err(Errno::EPROTO));
    let written = WriteAt { open: file.id, offset: 0, append: false, stable: false };
    assert_eq!(peer.write((0, 3), &written, b"after").unwrap().count, 5);
    assert_eq!(std::fs::read(fixture.directory.path().join("f")).unwrap(), b"after");
}

#[test]
fn others_wait_for_locks_until_all_have_recovered() {
    let mut fixture = Fixture::surviving();
    let (mut holder, session, root) = fixture.attached();
    let (_, file) = holder.create((0, 1), &root, "l", READ_WRITE).unwrap();
    holder.ask((0, 2), &set_lock(file.id, 1, LockKind::Write, false)).unwrap();
    fixture.restart();
    let (mut other, _, root) = fixture.attached();
    let (_, others) = other.create((0, 1), &root, "l", READ_WRITE).unwrap();
    let asked = [set_lock(others.id, 1, LockKind::Write, false), set_lock(others.id, 1, LockKind::Write, true)];
    let waiting: Vec<u64> = asked
        .iter()
        .zip(0..)
        .map(|(lock, slot)| {
            let (pending, _) = other.file((slot, 2), lock);
            assert_eq!(pending.kind, Kind::Pending);
            pending.request
        })
        .collect();
    let (mut holder, _) = fixture.joined(&session);
    holder.ask((0, 0), &Request::Reopen { open: file.id, token: &file.token }).unwrap();
    holder.ask((0, 0), &set_lock(file.id, 1, LockKind::Write, false)).unwrap();
    holder.call(Op::Recovered, (0, 0), &[]);
    let (refused, _) = other.receive().unwrap();
    assert_eq!(
        (refused.kind, refused.request, refused.status as i32),
        (Kind::Completion, waiting[0], Errno::EAGAIN.raw())
    );
    holder.ask((0, 3), &Request::Release { open: file.id }).unwrap();
    let (granted, _) = other.receive().unwrap();
    assert_eq!((granted.kind, granted.request, granted.status), (Kind::Completion, waiting[1], 0));
}

/// Whether the server does not wait for clients of before the restart any more.
fn is_over(fixture: &Fixture) -> bool {
    let recovered = std::pin::pin!(fixture.server.recovered());
    let is_over = recovered.poll(&mut std::task::Context::from_waker(Waker::noop())).is_ready();
    assert_eq!(is_over, !fixture.server.is_recovering());
    is_over
}

/// What a client has open that has no name any more is given up when nobody is waited for.
#[test]
fn a_client_that_is_back_is_waited_for_beyond_the_grace() {
    let mut fixture = Fixture::surviving();
    let (mut holder, session, root) = fixture.attached();
    let (_, file) = holder.create((0, 1), &root, "l", READ_WRITE).unwrap();
    let (gone, _, _) = fixture.attached();
    assert!(is_over(&fixture), "it was not restarted");
    fixture.kill();
    drop(gone);
    fixture.start_again(Limits { recovery_grace: Duration::from_millis(300), ..limits() });
    let (mut holder, _) = fixture.joined(&session);
    await_files(&fixture, 1); // the other's session has ended with the grace
    let (mut other, _, root) = fixture.attached();
    let (_, others) = other.create((0, 1), &root, "l", READ_WRITE).unwrap();
    assert_eq!(other.file((0, 2), &set_lock(others.id, 1, LockKind::Write, false)).0.kind, Kind::Pending);
    assert!(!is_over(&fixture));
    holder.ask((0, 0), &Request::Reopen { open: file.id, token: &file.token }).unwrap();
    holder.ask((0, 0), &set_lock(file.id, 1, LockKind::Write, false)).unwrap();
    assert_eq!(holder.call(Op::Recovered, (0, 0), &[]).0.status, 0);
    assert!(is_over(&fixture));
    assert_eq!(other.receive().unwrap().0.status as i32, Errno::EAGAIN.raw(), "it was the holder's all the time");
}

#[test]
fn a_client_that_is_back_and_does_not_recover_holds_up_others_no_longer_than_to_the_bound() {
    let mut fixture = Fixture::surviving();
    let (_holder, session, _) = fixture.attached();
    fixture.kill();
    let (recovery_grace, recovery_max) = (Duration::from_millis(100), Duration::from_secs(1));
    fixture.start_again(Limits { recovery_grace, recovery_max, ..limits() });
    let (_holder, _) = fixture.joined(&session);
    let (mut other, _, root) = fixture.attached();
    let (_, others) = other.create((0, 1), &root, "l", READ_WRITE).unwrap();
    assert_eq!(other.file((0, 2), &set_lock(others.id, 1, LockKind::Write, false)).0.kind, Kind::Pending);
    assert_eq!(other.receive().unwrap().0.status, 0);
    assert!(is_over(&fixture));
}

#[test]
fn a_wait_for_the_grace_can_be_cancelled_and_ends_with_it() {
    let mut fixture = Fixture::surviving();
    let (_holder, session, _) = fixture.attached();
    fixture.kill();
    fixture.start_again(Limits { recovery_grace: Duration::from_secs(1), ..limits() });
    let (mut other, _, root) = fixture.attached();
    let (_, file) = other.create((0, 1), &root, "l", READ_WRITE).unwrap();
    let (pending, _) = other.file((0, 2), &set_lock(file.id, 1, LockKind::Write, false));
    let mut body = Vec::new();
    encode_cancel(pending.request, &mut body);
    other.send(Header::new(Kind::Cancel), &body);
    let answers = [other.receive().unwrap().0, other.receive().unwrap().0];
    let completion = answers.iter().find(|header| header.kind == Kind::Completion).unwrap();
    assert_eq!(completion.status as i32, Errno::EINTR.raw());
    assert_eq!(other.file((0, 3), &set_lock(file.id, 1, LockKind::Write, false)).0.kind, Kind::Pending);
    assert_eq!(other.receive().unwrap().0.status, 0, "nobody came back");
    assert_eq!(fixture.connect().hello(session.session, session.secret), Err(Errno::ESTALE.raw() as u32));
}

#[test]
fn a_repeat_after_the_restart_gets_the_remembered_reply() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
    let (entry, file) = peer.create((0, 1), &root, "f", flags).unwrap();
    let append = WriteAt { open: file.id, offset: 0, append: true, stable: false };
    peer.write((1, 1), &append, b"once").unwrap();
    assert_eq!(peer.ask((2, 1), &make_directory(&root, "f")), Err(Errno::EEXIST));
    peer.ask((3, 1), &Request::Unlink { parent: root.bytes(), name: b"absent" }).unwrap_err();
    fixture.restart();
    let mut peer = fixture.recovered(&session, &[&file]);
    assert_eq!(peer.write((1, 1), &append, b"once").unwrap().count, 4);
    assert_eq!(std::fs::read(fixture.directory.path().join("f")).unwrap(), b"once");
    std::fs::remove_file(fixture.directory.path().join("f")).unwrap();
    assert_eq!(peer.ask((2, 1), &make_directory(&root, "f")), Err(Errno::EEXIST), "as the first try");
    let absent = Request::Unlink { parent: root.bytes(), name: b"absent" };
    assert_eq!(peer.ask((3, 1), &absent), Err(Errno::ENOENT));
    assert_eq!(peer.create((0, 1), &root, "f", flags).unwrap(), (entry, file));
    assert_eq!(peer.ask((2, 0), &make_directory(&root, "g")), Err(Errno::EPROTO), "an old sequence");
    // And once more, over the next restart.
    fixture.restart();
    let mut peer = fixture.recovered(&session, &[]);
    assert_eq!(peer.write((1, 1), &append, b"once").unwrap().count, 4);
}

#[test]
fn an_open_that_the_client_never_heard_of_is_opened_again() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let (entry, created) = peer.create((0, 1), &root, "f", READ_WRITE).unwrap();
    let open = Request::Open { handle: entry.handle.bytes(), flags: OpenFlags::READ };
    let opened = peer.ask((1, 1), &open).unwrap().opened().unwrap();
    let list = Request::OpenDirectory { handle: root.bytes() };
    let listing = peer.ask((2, 1), &list).unwrap().opened().unwrap();
    let flags = READ_WRITE;
    let unnamed = Request::CreateUnnamed { parent: root.bytes(), mode: 0o600, umask: 0, flags };
    peer.ask((3, 1), &unnamed).unwrap();
    fixture.restart();
    let mut peer = fixture.recovered(&session, &[]);
    assert_eq!(peer.create((0, 1), &root, "f", READ_WRITE).unwrap().1.id, created.id);
    assert_eq!(peer.ask((1, 1), &open).unwrap().opened().unwrap().id, opened.id);
    assert_eq!(peer.ask((2, 1), &list).unwrap().opened().unwrap().id, listing.id);
    // The file without a name is gone with the process, and another takes its place.
    let another = peer.ask((3, 1), &unnamed).unwrap().created().unwrap().1;
    for (slot, open) in [created.id, opened.id, another.id].into_iter().zip(0..) {
        let sync = Request::Sync { open: slot, data_only: false };
        peer.ask((open, 0), &sync).unwrap();
    }
    let page = Request::ReadDirectory { open: listing.id, cookie: 0, size: 4096, plus: false };
    peer.ask((0, 0), &page).unwrap();
}

#[test]
fn what_ended_an_open_or_a_lock_is_done_once_more() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let (_, first) = peer.create((0, 1), &root, "f", READ_WRITE).unwrap();
    let (_, second) = peer.create((0, 2), &root, "f", READ_WRITE).unwrap();
    peer.ask((1, 1), &set_lock(first.id, 1, LockKind::Write, false)).unwrap();
    peer.ask((2, 1), &Request::Release { open: second.id }).unwrap();
    peer.ask((3, 1), &Request::Flush { open: second.id, owner: 9 }).unwrap_err();
    fixture.restart();
    // The client had heard of neither the lock nor the release.
    let mut peer = fixture.recovered(&session, &[&first, &second]);
    peer.ask((1, 1), &set_lock(first.id, 1, LockKind::Write, false)).unwrap();
    let test = Request::GetLock {
        open: first.id,
        owner: 2,
        space: LockSpace::Posix,
        lock: Lock { start: 0, end: 9, kind: LockKind::Read, pid: 1 },
    };
    assert_eq!(peer.ask((0, 0), &test).unwrap().lock().unwrap().kind, LockKind::Write);
    peer.ask((2, 1), &Request::Release { open: second.id }).unwrap();
    let sync = Request::Sync { open: second.id, data_only: false };
    assert_eq!(peer.ask((0, 0), &sync), Err(Errno::EBADF), "it was released");
    assert_eq!(peer.ask((3, 1), &Request::Flush { open: second.id, owner: 9 }), Err(Errno::EBADF), "as the first try");
    fixture.restart();
    let mut peer = fixture.recovered(&session, &[&first]);
    peer.ask((2, 1), &Request::Release { open: second.id }).unwrap();
}

#[test]
fn a_session_that_ends_leaves_no_file() {
    let fixture = Fixture::surviving();
    let (mut peer, ..) = fixture.attached();
    let (other, ..) = fixture.attached();
    let files = fixture.files();
    assert_eq!(files.len(), 2);
    for file in &files {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    peer.send(Header::new(Kind::Goodbye), &[]);
    drop(other);
    await_files(&fixture, 0);
}

#[test]
fn a_session_whose_client_does_not_come_back_ends_with_its_file() {
    let mut fixture = Fixture::surviving();
    let (peer, session, _) = fixture.attached();
    fixture.kill();
    drop(peer);
    assert_eq!(fixture.files().len(), 1);
    fixture.start_again(Limits { recovery_grace: Duration::from_millis(200), ..limits() });
    let mut wrong = session.secret;
    wrong[0] ^= 1;
    assert_eq!(fixture.connect().hello(session.session, wrong), Err(Errno::ESTALE.raw() as u32));
    await_files(&fixture, 0);
    assert_eq!(fixture.connect().hello(session.session, session.secret), Err(Errno::ESTALE.raw() as u32));
}

/// Restarts after `change` was made to the file of a session that had a directory made; whether the session and the file are still there.
fn after(change: impl Fn(&std::path::Path, Vec<u8>)) -> (bool, bool) {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    peer.ask((0, 1), &make_directory(&root, "d")).unwrap();
    fixture.kill();
    let path = fixture.files().remove(0);
    change(&path, std::fs::read(&path).unwrap());
    fixture.start_again(limits());
    (fixture.connect().hello(session.session, session.secret).is_ok(), path.exists())
}

/// Whoever starts another release is told, before what clients have is lost.
#[test]
fn a_session_of_another_release_is_not_given_up_without_a_word() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    peer.ask((0, 1), &make_directory(&root, "d")).unwrap();
    fixture.kill();
    let path = fixture.files().remove(0);
    let original = std::fs::read(&path).unwrap();
    rewrite(&path, original.clone(), |head| (head["format"], head["origin"]) = (2.into(), "as it was then".into()));
    let refused = fixture.try_start_again().unwrap_err().to_string();
    assert!(refused.contains("the session of peer") && refused.contains("layout 2"), "{refused}");
    assert!(refused.contains("start that release again") && refused.contains(path.to_str().unwrap()), "{refused}");
    // That release finds all as it was.
    std::fs::write(&path, original).unwrap();
    fixture.start_again(limits());
    fixture.recovered(&session, &[]);
    // Another server's, and one that is lost anyway, keep nobody from starting.
    fixture.kill();
    rewrite(&path, std::fs::read(&path).unwrap(), |head| (head["format"], head["boot"]) = (2.into(), "another".into()));
    fixture.start_again(limits());
    assert!(!path.exists());
}

/// A record that made the file longer came back cut off after a power failure.
#[test]
fn a_sessions_file_never_grows() {
    let fixture = Fixture::surviving();
    let (mut peer, _, root) = fixture.attached();
    let path = fixture.files().remove(0);
    let length = || std::fs::metadata(&path).unwrap().len();
    let first = length();
    peer.ask((3, 1), &make_directory(&root, "d")).unwrap();
    assert_eq!((length(), first), (first, (16 << 10) + 4 * 2 * 4096));
}

#[test]
fn files_that_are_damaged_are_discarded() {
    assert_eq!(after(|_, _| {}), (true, true));
    for length in [0, 1, 7, 8, 100, 16 << 10 | 20] {
        let cut = |path: &std::path::Path, mut bytes: Vec<u8>| {
            bytes.truncate(length);
            std::fs::write(path, bytes).unwrap();
        };
        assert_eq!(after(cut), (false, false), "{length}");
    }
    for at in [0, 5, 40, 16 << 10, (16 << 10) + 5, (16 << 10) + 9, (16 << 10) + 100] {
        let flip = |path: &std::path::Path, mut bytes: Vec<u8>| {
            bytes[at] ^= 0x40;
            std::fs::write(path, bytes).unwrap();
        };
        assert_eq!(after(flip), (false, false), "{at}");
    }
    let lengthen = |path: &std::path::Path, mut bytes: Vec<u8>| {
        bytes.resize((16 << 10) + 4 * 2 * 4096 + 1, 0);
        std::fs::write(path, bytes).unwrap();
    };
    assert_eq!(after(lengthen), (false, false));
}

/// Writes another value for a field of the head.
fn rewrite(path: &std::path::Path, mut bytes: Vec<u8>, change: impl Fn(&mut serde_json::Value)) {
    let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let mut head: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut head);
    let head = serde_json::to_vec(&head).unwrap();
    bytes[4..8].copy_from_slice(&(head.len() as u32).to_le_bytes());
    bytes[8..8 + head.len()].copy_from_slice(&head);
    let checksum = crc32c::crc32c(&bytes[4..8 + head.len()]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn files_of_another_boot_and_of_exports_that_are_gone_are_discarded() {
    assert_eq!(after(|path, bytes| rewrite(path, bytes, |_| {})), (true, true));
    for (field, value) in [("boot", "another".into()), ("export", "/gone".into()), ("slots", serde_json::json!(0))] {
        let change = |path: &std::path::Path, bytes| rewrite(path, bytes, |head| head[field] = value.clone());
        assert_eq!(after(change), (false, false), "{field}");
    }
}

/// An export that was durable when the machine was booted, and is so no more.
#[test]
fn a_session_that_ends_with_the_machine_outlives_every_process_of_this_boot() {
    let mut fixture = Fixture::surviving();
    let (_, session, _) = fixture.attached();
    fixture.kill();
    let path = fixture.files().remove(0);
    let change = |head: &mut serde_json::Value| (head["boot"], head["durable"]) = ("another".into(), true.into());
    rewrite(&path, std::fs::read(&path).unwrap(), change);
    for _ in 0..3 {
        fixture.start_again(limits());
        fixture.recovered(&session, &[]);
        fixture.kill();
    }
    fixture.start_again(limits());
}

#[test]
fn files_of_others_are_left_alone() {
    let change = |path: &std::path::Path, bytes| rewrite(path, bytes, |head| head["server"] = "ab".repeat(16).into());
    assert_eq!(after(change), (false, true));
    // A process of this server that lives, as where another container has the same addresses.
    let lock = |path: &std::path::Path, _: Vec<u8>| {
        let owner = path.extension().unwrap().to_str().unwrap();
        let file = std::fs::File::open(path.with_file_name(format!("server-{owner}"))).unwrap();
        file.lock().unwrap();
        std::mem::forget(file);
    };
    assert_eq!(after(lock), (false, true));
}

#[test]
fn a_session_that_cannot_be_written_down_goes_on_without() {
    let mut fixture = Fixture::surviving();
    let folder = fixture.sessions.as_ref().unwrap().path().to_owned();
    std::fs::remove_dir_all(&folder).unwrap();
    let (mut peer, session, root) = fixture.attached();
    peer.ask((0, 1), &make_directory(&root, "d")).unwrap();
    fixture.restart();
    assert_eq!(fixture.connect().hello(session.session, session.secret), Err(Errno::ESTALE.raw() as u32));
}

/// The threads that execute requests act as whoever asked last; the folder of the sessions is root's alone.
#[test]
fn a_session_is_written_down_whoever_was_served_before() {
    let fixture = Fixture::surviving();
    let (mut peer, _, root) = fixture.attached();
    let user = Context::new(ClientId(0), Credential { uid: 1000, gid: 1000, groups: Groups::Known([].into()) });
    let mut body = Vec::new();
    let op = encode_request(&user, &Request::Access { handle: root.bytes(), mask: AccessMask::EXECUTE }, &mut body);
    for _ in 0..100 {
        peer.call(op, (0, 0), &body);
    }
    let mut others: Vec<_> = (0..4).map(|_| fixture.attached()).collect();
    assert_eq!(fixture.files().len(), 5);
    for (other, ..) in &mut others {
        other.call(op, (0, 0), &body);
        other.send(Header::new(Kind::Goodbye), &[]);
    }
    await_files(&fixture, 1);
}

/// Another process, on a machine that has lost what was not stable.
fn restart_after_loss(fixture: &mut Fixture, limits: Limits) {
    fixture.kill();
    for path in fixture.files() {
        rewrite(&path, std::fs::read(&path).unwrap(), |head| head["verifier"] = 8.into());
    }
    fixture.start_again(limits);
}

/// As a client does that does not know whether it was executed.
fn write_again(peer: &mut Peer, (slot, sequence): (u32, u32), write: &WriteAt, data: &[u8]) -> Written {
    let mut body = Vec::new();
    encode_write(&context(), write, &mut body);
    let (flags, payload_length) = (Flags::RETRY, data.len() as u32);
    let header = Header { op: Op::Write as u16, slot, sequence, flags, payload_length, ..Header::new(Kind::Request) };
    peer.send(header, &body);
    std::io::Write::write_all(&mut peer.stream, data).unwrap();
    let answer = peer.receive().unwrap();
    result(Op::Write, answer).unwrap().written().unwrap()
}

/// What was sent to this process only is not there unless this process has done it, whatever stands in the file.
#[test]
fn an_append_that_no_earlier_process_was_sent_is_not_looked_for() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let (_, log) = peer.create((0, 1), &root, "log", READ_WRITE).unwrap();
    restart_after_loss(&mut fixture, limits());
    let mut peer = fixture.recovered(&session, &[&log]);
    let append = WriteAt { open: log.id, offset: 0, append: true, stable: false };
    peer.write((1, 1), &append, b"tick ").unwrap();
    // The next in that slot, of the same words, was lost with a connection.
    assert_eq!(write_again(&mut peer, (1, 2), &append, b"tick ").count, 5);
    assert_eq!(std::fs::read(fixture.directory.path().join("log")).unwrap(), b"tick tick ");
}

/// Once its client has recovered, what a machine has lost is over for the processes that follow.
#[test]
fn a_loss_is_over_when_the_client_has_recovered() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let (file, log) = peer.create((0, 1), &root, "log", READ_WRITE).unwrap();
    restart_after_loss(&mut fixture, limits());
    let mut peer = fixture.recovered(&session, &[&log]);
    let append = WriteAt { open: log.id, offset: 0, append: true, stable: false };
    peer.write((1, 1), &append, b"tick ").unwrap();
    let set = SetAttr { size: Some(5), ..SetAttr::default() };
    let cut = Request::SetAttr { handle: file.handle.bytes(), open: None, set };
    peer.ask((2, 1), &cut).unwrap();
    fixture.kill();
    fixture.start_again(limits());
    // Nobody waits for what is sent again already.
    fixture.attached();
    let mut peer = fixture.recovered(&session, &[&log]);
    assert_eq!(write_again(&mut peer, (1, 2), &append, b"tick ").count, 5);
    peer.ask((2, 1), &cut).unwrap();
    assert_eq!(std::fs::read(fixture.directory.path().join("log")).unwrap(), b"tick tick ");
}

/// What was cut off before a loss, unknown to the client, is so again, whichever process he asks.
#[test]
fn what_is_of_before_a_loss_is_known_to_later_processes() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let (file, log) = peer.create((0, 1), &root, "log", READ_WRITE).unwrap();
    let set = SetAttr { size: Some(2), ..SetAttr::default() };
    let cut = Request::SetAttr { handle: file.handle.bytes(), open: None, set };
    peer.ask((2, 1), &cut).unwrap();
    restart_after_loss(&mut fixture, limits());
    let mut peer = fixture.recovered(&session, &[&log]);
    peer.write((1, 1), &WriteAt { open: log.id, offset: 0, append: false, stable: false }, b"longer").unwrap();
    fixture.kill();
    fixture.start_again(limits());
    let mut peer = fixture.recovered(&session, &[&log]);
    peer.ask((2, 1), &cut).unwrap();
    assert_eq!(std::fs::read(fixture.directory.path().join("log")).unwrap(), b"lo");
    // Once: what it came to is of after the loss.
    peer.write((1, 2), &WriteAt { open: log.id, offset: 0, append: false, stable: false }, b"longer").unwrap();
    fixture.kill();
    fixture.start_again(limits());
    let mut peer = fixture.recovered(&session, &[&log]);
    peer.ask((2, 1), &cut).unwrap();
    assert_eq!(std::fs::read(fixture.directory.path().join("log")).unwrap(), b"longer");
}

/// Comparing it at every place took minutes.
#[test]
fn an_append_is_looked_for_in_time() {
    const TAIL: u64 = 16 << 20;
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let (_, log) = peer.create((0, 1), &root, "log", READ_WRITE).unwrap();
    std::fs::File::options().write(true).open(fixture.directory.path().join("log")).unwrap().set_len(TAIL).unwrap();
    restart_after_loss(&mut fixture, limits());
    let mut peer = fixture.recovered(&session, &[&log]);
    let append = WriteAt { open: log.id, offset: 0, append: true, stable: false };
    let mut data = vec![0; 1 << 20];
    *data.last_mut().unwrap() = 1;
    let start = Instant::now();
    assert_eq!(write_again(&mut peer, (1, 1), &append, &data).count, 1 << 20);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(std::fs::metadata(fixture.directory.path().join("log")).unwrap().len(), TAIL + (1 << 20));
}

fn await_files(fixture: &Fixture, count: usize) {
    let start = Instant::now();
    while fixture.files().len() != count && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fixture.files().len(), count);
}

/// What is written down is the server's, whose identity is in its state folder: its addresses come
/// and go.
#[test]
fn locks_outlive_a_restart_with_another_address() {
    let mut fixture = Fixture::surviving();
    let (mut peer, session, root) = fixture.attached();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (_, open) = peer.create((0, 1), &root, "l", flags).unwrap();
    peer.ask((0, 2), &set_lock(open.id, 1, LockKind::Write, false)).unwrap();
    fixture.kill();
    fixture.guard.listens_too = Some("127.0.0.9:0".parse().unwrap());
    fixture.start_again(limits());
    assert_eq!(fixture.server.addresses().len(), 2);
    let (mut peer, reply) = fixture.joined(&session);
    assert!(reply.recovering && reply.server == SERVER && reply.addresses.len() == 2, "{reply:?}");
    peer.ask((0, 0), &Request::Reopen { open: open.id, token: &open.token }).unwrap();
    peer.ask((0, 0), &set_lock(open.id, 1, LockKind::Write, false)).unwrap();
    assert_eq!(peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
    let (mut other, _, root) = fixture.attached();
    let handle = other.ask((0, 0), &Request::Lookup { parent: root.bytes(), name: b"l" }).unwrap().entry().unwrap();
    let theirs = other.ask((0, 1), &Request::Open { handle: handle.handle.bytes(), flags }).unwrap().opened().unwrap();
    assert_eq!(other.ask((0, 2), &set_lock(theirs.id, 1, LockKind::Write, false)), Err(Errno::EAGAIN));
}
