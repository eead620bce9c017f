//! What the server sends by itself, to a client that does not read one of its connections: it
//! comes over another.

mod common;

use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;
use common::*;

/// Sooner than this nothing is sent again.
const SOON: Duration = Duration::from_millis(150);

/// It is sent again within this, on a busy machine too.
const AGAIN: Duration = Duration::from_secs(2);

fn fixture() -> Fixture {
    Fixture::limited(Limits { lease_holdoff: Duration::ZERO, hello_timeout: Duration::from_secs(10), ..limits() })
}

fn acknowledge(peer: &mut Peer, message: &Header) {
    let (class, sequence) = (Class::Callback, message.sequence);
    peer.send(Header { class, sequence, ..Header::new(Kind::Acknowledge) }, &[]);
}

/// What comes within a time.
fn within(peer: &mut Peer, time: Duration) -> Option<(Header, Vec<u8>)> {
    peer.stream.set_read_timeout(Some(time)).unwrap();
    let came = peer.receive();
    peer.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    came
}

/// Looks at a file, and gets a lease on its attributes.
fn look(peer: &mut Peer, handle: &Handle) -> LeaseId {
    let mut body = Vec::new();
    let op = encode_request(&context(), &Request::GetAttr { handle: handle.bytes(), open: None }, &mut body);
    peer.send(Header { op: op as u16, flags: Flags::LEASES, request: 77, ..Header::new(Kind::Request) }, &body);
    let (header, body) = peer.receive().unwrap();
    assert!(header.flags.contains(Flags::GRANTS), "{header:?}");
    take_grants(&body).unwrap().0.grants[0].lease
}

/// Another client changes the mode of a file; it is answered when all leases on it have been given
/// back.
fn change(peer: &mut Peer, place: (u32, u32), handle: &Handle) -> u64 {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let mut body = Vec::new();
    let op = encode_request(&context(), &Request::SetAttr { handle: handle.bytes(), open: None, set }, &mut body);
    peer.request(op, place, &body)
}

#[test]
fn a_recall_that_nobody_reads_comes_over_another_connection() {
    let fixture = fixture();
    let (mut first, session, root) = fixture.attached();
    let (mut second, _) = fixture.joined(&session);
    let (mut other, _, _) = fixture.attached();
    let (entry, _) = other.create((0, 1), &root, "f", OpenFlags::WRITE).unwrap();
    let lease = look(&mut first, &entry.handle);
    let asked = Instant::now();
    change(&mut other, (0, 2), &entry.handle);
    // It lies on the first connection, of which nothing is read.
    assert!(within(&mut second, SOON).is_none(), "after {:?}", asked.elapsed());
    let (recall, body) = within(&mut second, AGAIN).expect("it comes here");
    assert_eq!((recall.kind, recall.class), (Kind::Callback, Class::Callback));
    assert!(recall.sequence != 0 && asked.elapsed() > SOON);
    assert_eq!(decode_leases(&body).unwrap(), [lease]);
    acknowledge(&mut second, &recall);
    let mut body = Vec::new();
    encode_leases(&[lease], &mut body);
    second.send(Header { class: Class::Callback, ..Header::new(Kind::CallbackReply) }, &body);
    assert_eq!(other.receive().unwrap().0.status, 0, "the change is made");
    assert!(asked.elapsed() < AGAIN);
    assert!(within(&mut second, Duration::from_secs(1)).is_none(), "what was acknowledged comes once");
    // The next recall takes the connection that is read.
    let lease = look(&mut second, &entry.handle);
    change(&mut other, (0, 3), &entry.handle);
    let (recall, body) = within(&mut second, SOON).expect("at once");
    assert_eq!((recall.kind, decode_leases(&body).unwrap()), (Kind::Callback, vec![lease]));
    // The first one had them too, when somebody looks; the number tells that they are the same.
    let (late, _) = first.receive().unwrap();
    assert_eq!((late.kind, late.sequence), (Kind::Callback, 1));
}

#[test]
fn what_is_acknowledged_is_not_sent_again() {
    let fixture = fixture();
    let (mut first, session, root) = fixture.attached();
    let (mut second, _) = fixture.joined(&session);
    let (mut other, _, _) = fixture.attached();
    let (entry, _) = other.create((0, 1), &root, "f", OpenFlags::WRITE).unwrap();
    look(&mut first, &entry.handle);
    change(&mut other, (0, 2), &entry.handle);
    let (recall, _) = first.receive().unwrap();
    acknowledge(&mut first, &recall);
    assert!(within(&mut second, Duration::from_secs(1)).is_none(), "though the lease is not given back yet");
}

/// A client that acknowledged it, and lost all connections before it gave the lease back, may have
/// had no time to see to it.
#[test]
fn what_was_acknowledged_is_asked_for_again_when_the_client_comes_back() {
    let fixture = fixture();
    let (mut first, session, root) = fixture.attached();
    let (mut other, _, _) = fixture.attached();
    let (mut watcher, _, _) = fixture.attached();
    let mut connections = || -> Vec<u64> {
        let (_, body) = watcher.call(Op::Status, (0, 0), &[]);
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        status["sessions"].as_array().unwrap().iter().map(|session| session["connections"].as_u64().unwrap()).collect()
    };
    let (entry, _) = other.create((0, 1), &root, "f", OpenFlags::WRITE).unwrap();
    let lease = look(&mut first, &entry.handle);
    change(&mut other, (0, 2), &entry.handle);
    let (recall, _) = first.receive().unwrap();
    acknowledge(&mut first, &recall);
    assert_eq!(first.call(Op::Status, (0, 0), &[]).0.status, 0, "what was sent before has come there");
    drop(first);
    // While there is another connection it is asked for over that one.
    while !connections().contains(&0) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (mut second, _) = fixture.joined(&session);
    let (recall, body) = within(&mut second, AGAIN).expect("it is asked for here");
    assert_eq!((recall.kind, decode_leases(&body).unwrap()), (Kind::Callback, vec![lease]));
}

#[test]
fn a_completion_that_nobody_reads_comes_over_another_connection() {
    let fixture = fixture();
    let (mut first, session, root) = fixture.attached();
    let (mut second, _) = fixture.joined(&session);
    let open = locked_file(&mut first, &root);
    first.ask((0, 2), &set_lock(open, 1, LockKind::Write, false)).unwrap();
    let (pending, _) = first.file((0, 3), &set_lock(open, 2, LockKind::Write, true));
    assert_eq!(pending.kind, Kind::Pending);
    second.ask((1, 1), &set_lock(open, 1, LockKind::Unlock, false)).unwrap();
    let (completion, _) = within(&mut second, AGAIN).expect("it comes here");
    assert_eq!((completion.kind, completion.request, completion.status), (Kind::Completion, pending.request, 0));
    acknowledge(&mut second, &completion);
    let (late, _) = first.receive().unwrap();
    assert_eq!((late.kind, late.sequence), (Kind::Completion, completion.sequence));
    assert!(within(&mut first, Duration::from_secs(1)).is_none());
}

/// What outlives the connection on which it was asked for is kept until it is acknowledged: who
/// never does that has no room to wait for more.
#[test]
fn completions_that_are_not_acknowledged_take_the_room_of_what_waits() {
    const MOST: usize = 3;
    let fixture = Fixture::limited(Limits { pending_max: MOST, hello_timeout: Duration::from_secs(10), ..limits() });
    let (mut stays, session, root) = fixture.attached();
    let open = locked_file(&mut stays, &root);
    let lock = |owner, kind, wait| set_lock(open, owner, kind, wait);
    let mut sequence = 2;
    let mut ask = |stays: &mut Peer, owner, kind| {
        let id = gate::send(stays, (0, sequence), &lock(owner, kind, false));
        sequence += 1;
        let mut completions = Vec::new();
        loop {
            let (header, _) = stays.receive().unwrap();
            if header.request == id && header.kind == Kind::Reply {
                assert_eq!(header.status, 0);
                return completions;
            }
            completions.push(header);
        }
    };
    let mut unacknowledged = Vec::new();
    for at in 0..MOST {
        ask(&mut stays, 1, LockKind::Write);
        let (mut retires, _) = fixture.joined(&session);
        let owner = 2 + at as u64;
        assert_eq!(retires.file((1, 1 + at as u32), &lock(owner, LockKind::Write, true)).0.kind, Kind::Pending);
        let mut body = Vec::new();
        encode_retire(retires.link, &mut body);
        stays.send(Header::new(Kind::Retire), &body);
        assert_eq!(retires.receive().unwrap().0.kind, Kind::Retire);
        drop(retires);
        let mut came = ask(&mut stays, 1, LockKind::Unlock);
        while !came.iter().any(|header| header.kind == Kind::Completion) {
            came.push(stays.receive().unwrap().0);
        }
        unacknowledged.extend(came);
        ask(&mut stays, owner, LockKind::Unlock);
    }
    ask(&mut stays, 1, LockKind::Write);
    let wait = |stays: &mut Peer, slot| stays.file((slot, 10), &lock(9, LockKind::Write, true)).0;
    assert_eq!(wait(&mut stays, 2).status, Errno::ENOLCK.raw() as u32, "there is no room");
    acknowledge(&mut stays, &unacknowledged[0]);
    acknowledge(&mut stays, &unacknowledged[0]); // which is one
    assert_eq!(wait(&mut stays, 3).kind, Kind::Pending);
    let (mut other, _) = fixture.joined(&session);
    assert_eq!(other.file((1, 10), &lock(8, LockKind::Write, true)).0.status, Errno::ENOLCK.raw() as u32);
}

/// Of which completions leave no room to be numbered.
#[test]
fn a_recall_beyond_what_is_numbered_is_asked_for_again() {
    const WAITING: u64 = 1024;
    let fixture = fixture();
    let (mut first, session, root) = fixture.attached();
    let (mut other, _, _) = fixture.attached();
    let (entry, _) = other.create((0, 1), &root, "f", OpenFlags::WRITE).unwrap();
    let open = locked_file(&mut first, &root);
    first.ask((0, 2), &set_lock(open, 1, LockKind::Write, false)).unwrap();
    for owner in 0..WAITING {
        let waits = set_lock(open, 2 + owner, LockKind::Read, true);
        let (header, _) = first.file((0, 3 + owner as u32), &waits);
        assert_eq!(header.kind, Kind::Pending, "{owner}: {}", header.status);
    }
    look(&mut first, &entry.handle);
    first.request(Op::SetLock, (1, 1), &{
        let mut body = Vec::new();
        encode_request(&context(), &set_lock(open, 1, LockKind::Unlock, false), &mut body);
        body
    });
    let mut completions = 0;
    while completions < WAITING {
        completions += u64::from(first.receive().unwrap().0.kind == Kind::Completion);
    }
    let (mut second, _) = fixture.joined(&session);
    change(&mut other, (0, 2), &entry.handle);
    // None of it is acknowledged, and the recall comes on both all the same.
    let (mut seen, end) = ([false; 2], Instant::now() + Duration::from_secs(10));
    while seen != [true; 2] && Instant::now() < end {
        for (seen, peer) in seen.iter_mut().zip([&mut first, &mut second]) {
            while let Some((header, _)) = within(peer, Duration::from_millis(20)) {
                *seen |= header.kind == Kind::Callback;
            }
        }
    }
    assert_eq!(seen, [true; 2]);
}

/// A number that nobody has sent, or that was acknowledged before, means nothing.
#[test]
fn acknowledgements_of_nothing_do_no_harm() {
    let fixture = fixture();
    let (mut peer, _, _) = fixture.attached();
    for sequence in [0, 1, 7, u32::MAX, 7] {
        peer.send(Header { class: Class::Callback, sequence, ..Header::new(Kind::Acknowledge) }, &[]);
    }
    assert_eq!(peer.call(Op::Status, (0, 0), &[]).0.status, 0);
}
