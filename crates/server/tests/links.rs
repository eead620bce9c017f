//! Links that end without their session: given up by a client that cannot use them any more, or
//! retired by one that does not want to.

mod common;

use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::gate::*;
use common::*;

/// Longer than an answer takes.
const SHORT: Duration = Duration::from_millis(300);

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A server, a session with two links, and the root.
struct State {
    fixture: Fixture,
    gate: Handles,
    links: [Peer; 2],
    root: Handle,
}

impl State {
    fn new() -> State {
        let (fixture, gate) = gated();
        let (first, session, root) = fixture.attached();
        let (second, _) = fixture.joined(&session);
        State { fixture, gate, links: [first, second], root }
    }
}

fn give_up(peer: &mut Peer, give_up: &GiveUp) -> u64 {
    let mut body = Vec::new();
    give_up.encode(&mut body);
    peer.request(Op::GiveUp, (0, 0), &body)
}

/// What comes within a short time.
fn soon(peer: &mut Peer) -> Option<Header> {
    peer.stream.set_read_timeout(Some(SHORT)).unwrap();
    let came = peer.receive();
    peer.stream.set_read_timeout(Some(LONG)).unwrap();
    came.map(|(header, _)| header)
}

/// What gives the link of a peer up.
fn of(peer: &Peer) -> GiveUp {
    GiveUp { link: peer.link, ..GiveUp::default() }
}

#[test]
fn a_lock_that_waits_on_a_link_that_is_given_up_is_nobodys() {
    let State { fixture, links: [mut first, mut second], root, .. } = State::new();
    let (mut holder, _, _) = fixture.attached();
    let of_holder = locked_file(&mut holder, &root);
    holder.ask((0, 2), &set_lock(of_holder, 1, LockKind::Write, false)).unwrap();
    let open = locked_file(&mut first, &root);
    assert_eq!(first.file((0, 2), &set_lock(open, 1, LockKind::Write, true)).0.kind, Kind::Pending);
    let id = give_up(&mut second, &of(&first));
    let answered = second.receive().unwrap().0;
    assert_eq!((answered.kind, answered.request, answered.status), (Kind::Reply, id, 0));
    assert!(first.receive().is_none(), "it is closed");
    // Whoever waited does not get it behind everybody's back.
    holder.ask((0, 3), &set_lock(of_holder, 1, LockKind::Unlock, false)).unwrap();
    let (mut other, _, _) = fixture.attached();
    let of_other = locked_file(&mut other, &root);
    other.ask((0, 2), &set_lock(of_other, 1, LockKind::Write, false)).unwrap();
    // The session goes on.
    assert_eq!(second.ask((0, 3), &set_lock(open, 1, LockKind::Write, false)), Err(Errno::EAGAIN));
}

#[test]
fn an_answer_waits_for_changes_without_a_slot_that_are_executed() {
    let State { fixture: _fixture, gate, links: [mut first, mut second], root } = State::new();
    let (_, opened) = first.create((0, 1), &root, "f", READ_WRITE).unwrap();
    let mut body = Vec::new();
    let write = WriteAt { open: opened.id, offset: SLOW_OFFSET, append: false, stable: false };
    encode_write(&context(), &write, &mut body);
    first.send_with(Op::Write, (0, 0), &body, b"late");
    gate.begun.recv_timeout(LONG).unwrap();
    let id = give_up(&mut second, &of(&first));
    assert!(soon(&mut second).is_none(), "its write may still land");
    gate.end.send(()).unwrap();
    let answered = second.receive().unwrap().0;
    assert_eq!((answered.request, answered.status), (id, 0));
}

/// It is executed once, whoever asks for it again: two clients whose links are dead could else
/// wait for each other.
#[test]
fn an_answer_does_not_wait_for_what_has_a_slot() {
    let State { fixture, gate, links: [mut first, mut second], root } = State::new();
    send(&mut first, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    let id = give_up(&mut second, &of(&first));
    let answered = second.receive().unwrap().0;
    assert_eq!((answered.request, answered.status), (id, 0));
    let again = send(&mut second, (0, 1), &make_directory(&root, SLOW));
    assert!(soon(&mut second).is_none(), "it is executed");
    gate.end.send(()).unwrap();
    let answered = second.receive().unwrap().0;
    assert_eq!((answered.request, answered.status), (again, 0));
    assert!(gate.begun.try_recv().is_err() && fixture.directory.path().join(SLOW).exists(), "once");
}

#[test]
fn links_below_the_floor_end_but_for_those_that_survive() {
    let State { fixture, links: [mut first, second], .. } = State::new();
    drop(second);
    let (mut other, session, _) = fixture.attached();
    let mut links = [fixture.joined(&session).0, fixture.joined(&session).0];
    let below = GiveUp { link: 0, floor: links[1].link, surviving: vec![other.link] };
    give_up(&mut links[1], &below);
    assert_eq!(links[1].receive().unwrap().0.status, 0);
    assert!(links[0].receive().is_none(), "the second of that session");
    assert_eq!(other.call(Op::Status, (0, 0), &[]).0.status, 0, "its first");
    assert_eq!(first.call(Op::Status, (0, 0), &[]).0.status, 0, "that of another session");
}

#[test]
fn a_link_does_not_give_itself_up() {
    let State { fixture: _fixture, links: [mut first, _second], .. } = State::new();
    let below = GiveUp { floor: u32::MAX, ..GiveUp::default() };
    for (wrong, error) in [(of(&first), Errno::EINVAL), (below, Errno::EINVAL)] {
        give_up(&mut first, &wrong);
        assert_eq!(first.receive().unwrap().0.status as i32, error.raw());
    }
    assert_eq!(first.call(Op::GiveUp, (0, 0), b"garbage").0.status as i32, Errno::EPROTO.raw());
    // One that nobody knows has ended.
    give_up(&mut first, &GiveUp { link: u32::MAX, ..GiveUp::default() });
    assert_eq!(first.receive().unwrap().0.status, 0);
}

#[test]
fn a_retired_link_answers_what_it_has_and_hands_over_what_waits() {
    let State { fixture: _fixture, gate, links: [mut first, mut second], root } = State::new();
    let open = locked_file(&mut first, &root);
    first.ask((0, 2), &set_lock(open, 1, LockKind::Write, false)).unwrap();
    let (waits, _) = first.file((0, 3), &set_lock(open, 2, LockKind::Write, true));
    assert_eq!(waits.kind, Kind::Pending);
    let slow = send(&mut first, (1, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    let mut body = Vec::new();
    encode_retire(first.link, &mut body);
    second.send(Header::new(Kind::Retire), &body);
    assert!(soon(&mut first).is_none(), "something is executed there");
    gate.end.send(()).unwrap();
    let (answered, _) = first.receive().unwrap();
    assert_eq!((answered.kind, answered.request, answered.status), (Kind::Reply, slow, 0));
    let (retired, body) = first.receive().unwrap();
    assert_eq!((retired.kind, decode_retire(&body)), (Kind::Retire, Ok(first.link)));
    assert!(first.receive().is_none(), "that was the last frame");
    second.ask((1, 2), &set_lock(open, 1, LockKind::Unlock, false)).unwrap();
    let completed = second.receive().unwrap().0;
    assert_eq!((completed.kind, completed.request, completed.status), (Kind::Completion, waits.request, 0));
}

/// However slowly its client reads.
#[test]
fn what_was_answered_on_a_retired_link_arrives() {
    const LENGTH: u32 = 1 << 20;
    let State { fixture: _fixture, links: [mut first, mut second], root, .. } = State::new();
    let (_, opened) = first.create((0, 1), &root, "f", READ_WRITE).unwrap();
    let write = WriteAt { open: opened.id, offset: 0, append: false, stable: false };
    first.write((0, 2), &write, &[7; LENGTH as usize]).unwrap();
    for _ in 0..24 {
        let mut body = Vec::new();
        encode_read(&context(), &ReadAt { open: opened.id, offset: 0, length: LENGTH }, &mut body);
        first.request(Op::Read, (0, 0), &body);
    }
    std::thread::sleep(SHORT); // some are executed, and nobody reads what they came to
    let mut body = Vec::new();
    encode_retire(first.link, &mut body);
    second.send(Header::new(Kind::Retire), &body);
    std::thread::sleep(SHORT);
    let mut answered = 0;
    let last = loop {
        let (header, body) = first.receive_unchecked().expect("it ends with a last frame");
        match header.kind {
            Kind::Reply => answered += usize::from(body[header.body_length as usize..] == [7; LENGTH as usize]),
            _ => break header.kind,
        }
        if header.flags.contains(Flags::TRAILER) {
            std::io::Read::read_exact(&mut first.stream, &mut [0; TRAILER_SIZE]).unwrap();
        }
    };
    assert_eq!(last, Kind::Retire);
    assert!(answered > 0 && first.receive_unchecked().is_none(), "{answered}");
}

#[test]
fn what_makes_no_sense_of_a_retirement_does_no_harm() {
    let State { fixture: _fixture, links: [mut first, mut second], .. } = State::new();
    let mut body = Vec::new();
    encode_retire(u32::MAX, &mut body);
    first.send(Header::new(Kind::Retire), &body);
    assert_eq!(first.call(Op::Status, (0, 0), &[]).0.status, 0);
    first.send(Header::new(Kind::Retire), b"garbage");
    assert!(first.goodbye().contains("RETIRE"));
    assert_eq!(second.call(Op::Status, (0, 0), &[]).0.status, 0);
}
