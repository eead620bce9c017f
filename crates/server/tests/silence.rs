//! Clients that go without a word, are cut off, or stand still: for how long what they hold stays
//! theirs.

mod common;

use std::io::Read;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;
use common::*;

/// One who left is waited for in vain for so long, and one who was cut off for so long.
const LEFT: Duration = Duration::from_millis(300);
const CUT: Duration = Duration::from_secs(4);

/// After this the one is gone, and the other is not.
const BETWEEN: Duration = Duration::from_millis(1500);

fn fixture() -> Fixture {
    let suspect = Duration::from_secs(2);
    Fixture::limited(Limits { session_grace: LEFT, vanished_grace: CUT, suspect, ..limits() })
}

/// Whether the session still is.
fn lives(fixture: &Fixture, session: &HelloReply) -> bool {
    // Closed without a word: it has joined, and then the session has ended.
    fixture.connect().hello(session.session, session.secret).is_ok()
}

/// Ends a connection without an orderly end.
fn reset(peer: Peer) {
    socket2::SockRef::from(&peer.stream).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn who_ends_a_connection_in_order_has_left() {
    let fixture = fixture();
    let (peer, session, _) = fixture.attached();
    std::thread::sleep(BETWEEN); // idle for long
    drop(peer);
    std::thread::sleep(BETWEEN);
    assert!(!lives(&fixture, &session));
}

/// A process that is killed before it has read all.
#[test]
fn who_resets_a_busy_connection_has_left() {
    let fixture = fixture();
    let (mut peer, session, root) = fixture.attached();
    std::thread::sleep(BETWEEN);
    let mut body = Vec::new();
    let op = encode_request(&context(), &Request::GetAttr { handle: root.bytes(), open: None }, &mut body);
    peer.request(op, (0, 0), &body);
    peer.stream.read_exact(&mut [0]).unwrap();
    drop(peer); // with the rest of the answer unread
    std::thread::sleep(BETWEEN);
    assert!(!lives(&fixture, &session));
}

/// A client to which nothing comes through any more resets its connections, or its kernel does.
#[test]
fn who_resets_an_idle_connection_was_cut_off() {
    let fixture = fixture();
    let (peer, session, _) = fixture.attached();
    std::thread::sleep(BETWEEN);
    reset(peer);
    std::thread::sleep(BETWEEN);
    assert!(lives(&fixture, &session));
}

#[test]
fn who_says_that_nothing_is_heard_was_cut_off() {
    let fixture = fixture();
    let (mut peer, session, _) = fixture.attached();
    let status = Errno::ETIMEDOUT.raw() as u32;
    peer.send(Header { status, ..Header::new(Kind::Goodbye) }, &[]);
    reset(peer);
    std::thread::sleep(BETWEEN);
    assert!(lives(&fixture, &session));
}

/// Of several connections the last one decides nothing: one that was cut off is enough.
#[test]
fn who_was_cut_off_on_one_connection_has_not_left_on_another() {
    let fixture = fixture();
    let (mut peer, session, _) = fixture.attached();
    let (other, _) = fixture.joined(&session);
    let status = Errno::ETIMEDOUT.raw() as u32;
    peer.send(Header { status, ..Header::new(Kind::Goodbye) }, &[]);
    reset(peer);
    std::thread::sleep(Duration::from_millis(200));
    drop(other);
    std::thread::sleep(BETWEEN);
    assert!(lives(&fixture, &session));
}

/// A client that says goodbye and goes at once, with answers on the way to it.
#[test]
fn a_goodbye_is_heard_whatever_is_unread() {
    let fixture = Fixture::limited(Limits { session_grace: Duration::from_secs(60), ..limits() });
    for round in 0..300 {
        let (mut peer, session, root) = fixture.attached();
        peer.stream.set_nodelay(true).unwrap();
        let mut body = Vec::new();
        let op = encode_request(&context(), &Request::GetAttr { handle: root.bytes(), open: None }, &mut body);
        for _ in 0..4 {
            peer.request(op, (0, 0), &body);
        }
        peer.stream.read_exact(&mut [0]).unwrap();
        peer.send(Header::new(Kind::Goodbye), &[]);
        drop(peer);
        let gone = Instant::now();
        while lives(&fixture, &session) {
            assert!(gone.elapsed() < Duration::from_secs(5), "in round {round} a session outlived its goodbye");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Its machine acknowledges all that is sent to it, as that of a router does: only its answers
/// tell.
#[test]
fn a_client_that_answers_nothing_loses_its_lock_and_one_that_does_keeps_it() {
    let fixture = fixture();
    let (mut silent, _, root) = fixture.attached();
    let (mut idle, _, _) = fixture.attached();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let locked = |peer: &mut Peer, name: &str| {
        let (_, opened) = peer.create((0, 1), &root, name, flags).unwrap();
        peer.ask((0, 2), &set_lock(opened.id, 1, LockKind::Write, false)).unwrap();
    };
    locked(&mut silent, "silent");
    locked(&mut idle, "idle");
    let (mut other, _, _) = fixture.attached();
    let (_, of_silent) = other.create((0, 1), &root, "silent", flags).unwrap();
    let (_, of_idle) = other.create((0, 2), &root, "idle", flags).unwrap();
    let (began, mut freed, mut slot) = (Instant::now(), None, 3);
    while began.elapsed() < Duration::from_secs(22) {
        let answer = other.file((0, slot), &set_lock(of_silent.id, 1, LockKind::Write, false)).0;
        assert_eq!(other.ask((1, slot), &set_lock(of_idle.id, 1, LockKind::Write, false)), Err(Errno::EAGAIN));
        slot += 1;
        if answer.status == 0 {
            freed = freed.or(Some(began.elapsed()));
        }
        // The other one says nothing by itself either.
        idle.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        if let Some((header, _)) = idle.receive() {
            assert_eq!(header.kind, Kind::Ping);
            idle.send(Header::new(Kind::Pong), &[]);
        }
    }
    let freed = freed.expect("the lock of a silent client is freed");
    // Four to five looks of 2 s, and the time for one that was cut off.
    assert!((Duration::from_secs(11)..Duration::from_secs(18)).contains(&freed), "{freed:?}");
}
