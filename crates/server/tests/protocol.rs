//! A server against hand-made frames: what a client may send, and what it had better not.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;
use common::*;

#[test]
fn a_repeated_request_is_executed_once() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let (first, first_body) = peer.file((0, 1), &make_directory(&root, "d"));
    assert_eq!(first.status, 0);
    let (again, again_body) = peer.file((0, 1), &make_directory(&root, "d"));
    assert_eq!((again.status, again_body), (0, first_body));
    let (new, _) = peer.file((0, 2), &make_directory(&root, "d"));
    assert_eq!(new.status as i32, Errno::EEXIST.raw());
}

#[test]
fn a_session_goes_on_over_a_new_connection() {
    let fixture = Fixture::new();
    let (mut peer, session, root) = fixture.attached();
    let (first, _) = peer.file((0, 1), &make_directory(&root, "d"));
    assert_eq!(first.status, 0);
    drop(peer);
    let mut peer = fixture.connect();
    peer.hello(session.session, session.secret).unwrap();
    let (again, _) = peer.file((0, 1), &make_directory(&root, "d"));
    assert_eq!(again.status, 0);
}

#[test]
fn a_session_needs_its_secret_and_ends_after_the_grace() {
    let fixture = Fixture::new();
    let (peer, session, _) = fixture.attached();
    let mut wrong = session.secret;
    wrong[3] ^= 1;
    assert_eq!(fixture.connect().hello(session.session, wrong), Err(Errno::ESTALE.raw() as u32));
    drop(peer);
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(fixture.connect().hello(session.session, session.secret), Err(Errno::ESTALE.raw() as u32));
}

#[test]
fn slots_and_sequences_that_make_no_sense_are_refused() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    for place in [(4, 1), (u32::MAX, 1), (0, 0), (1, u32::MAX)] {
        let (header, _) = peer.file(place, &make_directory(&root, "x"));
        assert_eq!(header.status as i32, Errno::EPROTO.raw(), "{place:?}");
    }
    assert_eq!(peer.file((0, 5), &make_directory(&root, "x")).0.status, 0);
    assert_eq!(peer.file((0, 4), &make_directory(&root, "y")).0.status as i32, Errno::EPROTO.raw());
}

#[test]
fn what_is_no_frame_is_refused_with_a_reason() {
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    peer.stream.write_all(&[b'G'; 64]).unwrap();
    assert!(peer.goodbye().contains("not frames"));

    let mut peer = fixture.connect();
    peer.send(Header::new(Kind::Ping), &[]);
    assert!(peer.goodbye().contains("HELLO"));

    let (mut peer, ..) = fixture.attached();
    peer.send(Header::new(Kind::HelloReply), &[]);
    assert!(peer.goodbye().contains("HelloReply"));

    let mut damaged = Header::new(Kind::Hello).encode();
    damaged[30] ^= 1;
    let mut peer = fixture.connect();
    peer.stream.write_all(&damaged).unwrap();
    assert!(peer.goodbye().contains("checksum"));
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    let start = Instant::now();
    assert!(peer.receive().is_none());
    assert!(start.elapsed() < Duration::from_secs(8));
}

#[test]
fn requests_in_the_wrong_place_get_an_errno() {
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    peer.hello(0, [0; 16]).unwrap();
    assert_eq!(peer.file((0, 1), &Request::Root).0.status as i32, Errno::ENOTCONN.raw());
    let (mut peer, _, root) = fixture.attached();
    let mut header = Header::new(Kind::Request);
    header.op = 9999;
    peer.send(header, &[]);
    assert_eq!(peer.receive().unwrap().0.status as i32, Errno::ENOSYS.raw());
    assert_eq!(peer.call(Op::Lookup, (0, 0), b"garbage").0.status as i32, Errno::EPROTO.raw());
    let mut forged = root.bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let stat = Request::GetAttr { handle: &forged, open: None };
    assert_eq!(peer.file((0, 0), &stat).0.status as i32, Errno::ESTALE.raw());
}

#[test]
fn a_compound_uses_what_it_has_made() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let requests = [
        make_directory(&root, "d"),
        Request::Create { parent: &[], name: b"f", mode: 0o644, umask: 0, flags: OpenFlags::WRITE },
        Request::Release { open: OPEN_LATEST },
        Request::Lookup { parent: root.bytes(), name: b"absent" },
        Request::Unlink { parent: root.bytes(), name: b"never reached" },
    ];
    let mut body = Vec::new();
    encode_compound(&context(), &requests, &mut body);
    let (header, body) = peer.call(Op::Compound, (0, 1), &body);
    assert_eq!(header.status, 0);
    let ops: Vec<Op> = requests.iter().map(Op::of).collect();
    let results = decode_compound_reply(&ops, &body).unwrap();
    assert_eq!(results.len(), 4);
    assert!(results[..3].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results[3], Err(Errno::ENOENT));
    assert!(fixture.directory.path().join("d/f").exists());
}

#[test]
fn a_blocked_lock_is_pending_until_it_is_granted() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let open = locked_file(&mut peer, &root);
    assert_eq!(peer.file((0, 2), &set_lock(open, 1, LockKind::Write, true)).0.kind, Kind::Reply);
    let (pending, _) = peer.file((0, 3), &set_lock(open, 2, LockKind::Write, true));
    assert_eq!(pending.kind, Kind::Pending);
    let mut body = Vec::new();
    let op = encode_request(&context(), &set_lock(open, 1, LockKind::Unlock, false), &mut body);
    let unlock = peer.request(op, (0, 4), &body);
    let mut seen = [peer.receive().unwrap().0, peer.receive().unwrap().0];
    seen.sort_by_key(|header| header.request);
    assert_eq!((seen[0].kind, seen[0].request, seen[0].status), (Kind::Completion, pending.request, 0));
    assert_eq!((seen[1].kind, seen[1].request, seen[1].status), (Kind::Reply, unlock, 0));
}

#[test]
fn a_pending_lock_can_be_cancelled() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let open = locked_file(&mut peer, &root);
    peer.file((0, 2), &set_lock(open, 1, LockKind::Write, true));
    let (pending, _) = peer.file((0, 3), &set_lock(open, 2, LockKind::Read, true));
    assert_eq!(pending.kind, Kind::Pending);
    let mut body = Vec::new();
    encode_cancel(pending.request, &mut body);
    peer.send(Header::new(Kind::Cancel), &body);
    let mut seen = [peer.receive().unwrap(), peer.receive().unwrap()];
    seen.sort_by_key(|(header, _)| header.kind as u8);
    assert_eq!(seen[0].0.kind, Kind::Completion);
    assert_eq!(seen[0].0.status as i32, Errno::EINTR.raw());
    assert_eq!(seen[1].0.kind, Kind::CancelReply);
    assert_eq!(CancelReply::decode(&seen[1].1).unwrap().outcome, CancelOutcome::Never);
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_still_gives_a_whole_frame() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let open = locked_file(&mut peer, &root);
    let path = fixture.directory.path().join("l");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (own_stop, own_path) = (stop.clone(), path.clone());
    let shrinker = std::thread::spawn(move || {
        let file = std::fs::OpenOptions::new().write(true).open(own_path).unwrap();
        while !own_stop.load(std::sync::atomic::Ordering::Relaxed) {
            file.set_len(1000).unwrap();
            file.set_len(1 << 20).unwrap();
        }
    });
    for _ in 0..200 {
        let mut body = Vec::new();
        encode_read(&context(), &ReadAt { open, offset: 0, length: 1 << 20 }, &mut body);
        let (header, data) = peer.call(Op::Read, (0, 0), &body);
        assert_eq!(header.status, 0);
        if header.flags.contains(Flags::TRAILER) {
            let mut bytes = [0; TRAILER_SIZE];
            peer.stream.read_exact(&mut bytes).unwrap();
            assert!(Trailer::decode(&bytes).unwrap().valid as usize <= data.len());
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    shrinker.join().unwrap();
}

#[test]
fn a_client_that_says_goodbye_frees_its_locks_at_once() {
    let fixture = Fixture::new();
    let (mut first, _, root) = fixture.attached();
    let open = locked_file(&mut first, &root);
    first.file((0, 2), &set_lock(open, 1, LockKind::Write, false));
    let (mut second, ..) = fixture.attached();
    let open = locked_file(&mut second, &root);
    assert_eq!(second.file((0, 2), &set_lock(open, 1, LockKind::Write, false)).0.status as i32, Errno::EAGAIN.raw());
    let (pending, _) = second.file((0, 3), &set_lock(open, 1, LockKind::Write, true));
    assert_eq!(pending.kind, Kind::Pending);
    first.send(Header::new(Kind::Goodbye), &[]);
    let (completion, _) = second.receive().unwrap();
    assert_eq!((completion.kind, completion.status), (Kind::Completion, 0));
}

/// The room of a frame is for those that come and are executed: what waits for a lock must not keep it from others, however long its frame was.
#[test]
fn what_waits_keeps_no_room_from_others() {
    const WAITS: u32 = 400;
    let mut fixture = Fixture::surviving();
    fixture.kill();
    // Room for one frame of any length, 1.2 MiB.
    fixture.start_again(Limits { frame_memory: 0, ..limits() });
    let (mut holder, _, root) = fixture.attached();
    let open = locked_file(&mut holder, &root);
    holder.ask((0, 2), &set_lock(open, 1, LockKind::Write, false)).unwrap();
    let (mut others, _, _) = fixture.attached();
    let (_, opened) = others.create((0, 1), &root, "l", OpenFlags::READ | OpenFlags::WRITE).unwrap();
    let groups = Groups::Known((0..GROUPS_MAX as u32).collect());
    let many = Context::new(ClientId(0), Credential { uid: 0, gid: 0, groups });
    for owner in 0..WAITS {
        let mut body = Vec::new();
        let op = encode_request(&many, &set_lock(opened.id, u64::from(owner), LockKind::Write, true), &mut body);
        assert!(body.len() > 4096);
        assert_eq!(others.call(op, (1, 1 + owner), &body).0.kind, Kind::Pending);
    }
    let write = WriteAt { open, offset: 0, append: false, stable: false };
    assert_eq!(holder.write((0, 3), &write, &vec![7; TRANSFER_SIZE_MAX]).unwrap().count as usize, TRANSFER_SIZE_MAX);
}
