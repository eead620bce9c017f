//! A request that takes long, and what comes meanwhile: its repeat, and the end of its session.

mod common;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::layer::Layer;
use aqueduct_fs::throttled::Clock;
use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;
use common::gate::*;
use common::*;

#[test]
fn a_repeat_gets_the_answer_of_the_try_that_runs() {
    let (fixture, gate) = gated();
    let (mut first, session, root) = fixture.attached();
    let first_id = send(&mut first, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    let (mut second, _) = fixture.joined(&session);
    let second_id = send(&mut second, (0, 1), &make_directory(&root, SLOW));
    // Its answer says that the repeat, which came before on the same connection, has been looked at.
    second.call(Op::Status, (0, 0), &[]);
    gate.end.send(()).unwrap();
    for (peer, id) in [(&mut first, first_id), (&mut second, second_id)] {
        let (header, _) = peer.receive().unwrap();
        assert_eq!((header.kind, header.request, header.status), (Kind::Reply, id, 0));
    }
    assert!(gate.begun.try_recv().is_err(), "it was executed once");
}

#[test]
fn nobody_makes_a_name_through_another_export_meanwhile() {
    let mut gates = Vec::new();
    let fixture = Fixture::twofold(|below| {
        let (layer, handles) = gate(below);
        gates.push(handles);
        layer
    });
    let (mut one, _, root) = fixture.connect().attach_to("/e");
    let (mut other, _, same) = fixture.connect().attach_to("/f");
    assert_ne!(root, same, "handles tell nothing of another export");
    send(&mut one, (0, 1), &make_directory(&root, SLOW));
    gates[0].begun.recv_timeout(LONG).unwrap();
    send(&mut other, (0, 1), &make_directory(&same, SLOW));
    let begun = gates[1].begun.recv_timeout(Duration::from_millis(500));
    gates.iter().for_each(|gate| gate.end.send(()).unwrap());
    assert!(begun.is_err(), "both were under way");
    let statuses = [&mut one, &mut other].map(|peer| peer.receive().unwrap().0.status);
    assert_eq!(statuses, [0, Errno::EEXIST.raw() as u32]);
}

#[test]
fn nothing_of_a_session_is_executed_after_it_was_ended() {
    let (fixture, gate) = gated();
    let (mut peer, session, root) = fixture.attached();
    let (mut other, _) = fixture.joined(&session);
    let frames: Vec<u8> = [(0, SLOW), (1, "late")]
        .iter()
        .flat_map(|(slot, name)| {
            let mut body = Vec::new();
            let op = encode_request(&context(), &make_directory(&root, name), &mut body);
            let (request, body_length) = (u64::from(*slot) + 1, body.len() as u32);
            let header =
                Header { op: op as u16, slot: *slot, sequence: 1, request, body_length, ..Header::new(Kind::Request) };
            [&header.encode()[..], &body].concat()
        })
        .collect();
    std::io::Write::write_all(&mut peer.stream, &frames).unwrap();
    gate.begun.recv_timeout(LONG).unwrap();
    other.send(Header::new(Kind::Goodbye), &[]);
    assert!(other.receive().is_none(), "the session has ended");
    gate.end.send(()).unwrap();
    assert!(peer.receive().is_none());
    let end = std::time::Instant::now() + LONG;
    while !fixture.directory.path().join(SLOW).exists() {
        assert!(std::time::Instant::now() < end, "what is under way is finished");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The thread that was held up ends when it has nothing more to do. A server that is shut down
    // before would not look at what else it has.
    fixture.group.stop();
    fixture.group.join();
    assert!(!fixture.directory.path().join("late").exists());
}

/// A client gives a request up whose connection is lost, and goes on in its slot: a write that is
/// late would land on what others wrote since.
#[test]
fn a_later_request_of_a_slot_waits_for_the_end_of_an_earlier_one() {
    let (fixture, gate) = gated();
    let (mut first, session, root) = fixture.attached();
    send(&mut first, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    drop(first);
    let (mut second, _) = fixture.joined(&session);
    let next = send(&mut second, (0, 2), &make_directory(&root, "next"));
    let (mut third, _) = fixture.joined(&session);
    let after = send(&mut third, (0, 3), &make_directory(&root, "after"));
    // Neither other slots nor other requests wait.
    assert_eq!(second.call(Op::Status, (0, 0), &[]).0.status, 0);
    assert_eq!(third.file((1, 1), &make_directory(&root, "other")).0.status, 0);
    assert!(!fixture.directory.path().join("next").exists() && !fixture.directory.path().join("after").exists());
    gate.end.send(()).unwrap();
    let [(one, _), (other, _)] = [&mut second, &mut third].map(|peer| peer.receive().unwrap());
    assert_eq!((one.request, other.request, other.status), (next, after, 0));
    // Whether the one between was given up before it began is as it happens; it is never executed
    // after the later one.
    let is_skipped = one.status as i32 == Errno::EPROTO.raw();
    assert!(is_skipped || one.status == 0, "{}", one.status);
    assert_eq!(fixture.directory.path().join("next").exists(), !is_skipped);
    assert!(fixture.directory.path().join("after").exists() && fixture.directory.path().join(SLOW).exists());
}

#[test]
fn no_more_than_a_few_requests_wait_for_one_slot() {
    let (fixture, gate) = gated();
    let (mut peer, session, root) = fixture.attached();
    send(&mut peer, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    let (mut other, _) = fixture.joined(&session);
    for sequence in 2..40 {
        send(&mut other, (0, sequence), &make_directory(&root, "x"));
    }
    let refused: Vec<_> = (0..22).map(|_| other.receive().unwrap().0).collect();
    assert!(refused.iter().all(|header| header.status as i32 == Errno::EPROTO.raw()), "{refused:?}");
    gate.end.send(()).unwrap();
    assert!((0..16).all(|_| other.receive().is_some()), "those that wait are answered");
}

/// A client loses its connections again and again, and sends each time what it had under way.
#[test]
fn copies_of_a_request_that_waits_do_not_count_when_their_connections_have_gone() {
    let (fixture, gate) = gated();
    let (mut first, session, root) = fixture.attached();
    send(&mut first, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    for _ in 0..20 {
        let (mut lost, _) = fixture.joined(&session);
        send(&mut lost, (0, 2), &make_directory(&root, "next"));
        assert_ne!(lost.call(Op::Status, (0, 0), &[]).0.kind, Kind::Goodbye, "it has been looked at");
    }
    let connections = || {
        let status: serde_json::Value = serde_json::from_str(&fixture.server.status_of_all()).unwrap();
        status["connections"].as_u64().unwrap()
    };
    let end = std::time::Instant::now() + LONG;
    while connections() > 1 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut last, _) = fixture.joined(&session);
    let id = send(&mut last, (0, 2), &make_directory(&root, "next"));
    assert_eq!(last.call(Op::Status, (0, 0), &[]).0.status, 0, "it is not refused");
    gate.end.send(()).unwrap();
    let (header, _) = last.receive().unwrap();
    assert_eq!((header.request, header.status), (id, 0));
    assert!(fixture.directory.path().join("next").exists());
}

/// A file system that asks another machine: what it is asked for waits until a test says so.
struct Away {
    below: Lower,
    is_back: Cancel,
}

impl Layer for Away {
    type Below = Lower;

    fn below(&self) -> &Lower {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        if !matches!(request, Request::Statfs { .. }) {
            return self.below.ask(context, request);
        }
        // Each waits by itself: a flag has room for one who waits.
        Call::waiting(async move {
            while !self.is_back.is_raised() {
                timers::Timers.sleep(Duration::from_millis(20)).await;
            }
            self.below.ask(context, request).await
        })
    }
}

#[test]
fn as_many_requests_wait_for_a_file_system_as_there_is_room_for() {
    const MOST: usize = 20;
    let is_back = Cancel::default();
    let limits = Limits { requests_of_client_max: MOST, requests_max: 2 * MOST - 5, ..limits() };
    let fixture = Fixture::limited_over(limits, |below| Arc::new(Away { below, is_back: is_back.clone() }));
    let (mut one, _, root) = fixture.attached();
    let (mut two, ..) = fixture.attached();
    let ask = |peer: &mut Peer| send(peer, (0, 0), &Request::Statfs { handle: root.bytes() });
    let sent: Vec<u64> = (0..MOST).map(|_| ask(&mut one)).collect();
    let refused = |peer: &mut Peer, id| {
        let (header, _) = peer.receive().unwrap();
        assert_eq!((header.request, header.status), (id, Errno::EAGAIN.raw() as u32));
    };
    // A number of a slot makes it nothing else.
    for sequence in 0..3 {
        let id = send(&mut one, (0, sequence), &Request::Statfs { handle: root.bytes() });
        refused(&mut one, id);
    }
    // Others have what is left.
    let others: Vec<u64> = (0..MOST - 5).map(|_| ask(&mut two)).collect();
    let id = ask(&mut two);
    refused(&mut two, id);
    is_back.raise();
    for (peer, mut ids) in [(&mut one, sent), (&mut two, others)] {
        while !ids.is_empty() {
            let (header, _) = peer.receive().unwrap();
            assert_eq!(header.status, 0);
            ids.retain(|id| *id != header.request);
        }
        let id = ask(peer);
        assert_eq!(peer.receive().map(|(header, _)| (header.request, header.status)), Some((id, 0)), "there is room");
    }
}
