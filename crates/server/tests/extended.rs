//! What may stand before the bodies of requests, and what replies say of it.

mod common;

use std::io::Read;
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::gate::*;
use common::*;

/// Sends a request with these bytes before its fields, and returns the answer.
fn ask(peer: &mut Peer, op: Op, place: (u32, u32), (prefix, fields): (&[u8], &[u8])) -> (Header, Vec<u8>) {
    let (slot, sequence) = place;
    let flags = Flags::EXTENDED | Flags::LEASES;
    let header = Header { op: op as u16, flags, slot, sequence, request: 900, ..Header::new(Kind::Request) };
    peer.send(header, &[prefix, fields].concat());
    peer.receive().unwrap()
}

fn encoded(extensions: &Extensions) -> Vec<u8> {
    let mut out = Vec::new();
    extensions.encode(&mut out);
    out
}

fn asks_queue_time() -> Vec<u8> {
    encoded(&Extensions { asks_queue_time: true, ..Extensions::default() })
}

/// The entry of a type without a value.
fn entry(kind: u16) -> Vec<u8> {
    [&4u16.to_le_bytes()[..], &kind.to_le_bytes(), &[0, 0]].concat()
}

fn fields(request: &Request<'_>) -> (Op, Vec<u8>) {
    let mut body = Vec::new();
    (encode_request(&context(), request, &mut body), body)
}

#[test]
fn a_reply_says_how_long_its_request_was_queued_when_asked() {
    let fixture = Fixture::surviving();
    let (mut peer, _, root) = fixture.attached();
    let (op, get) = fields(&Request::GetAttr { handle: root.bytes(), open: None });
    let (header, body) = ask(&mut peer, op, (0, 0), (&asks_queue_time(), &get));
    assert_eq!(header.status, 0);
    assert!(header.flags.contains(Flags::EXTENDED | Flags::GRANTS), "{header:?}");
    let (said, rest) = Extensions::take(&body).unwrap();
    assert!(said.queue_time.is_some_and(|time| time < 10_000_000), "{said:?}");
    assert_eq!(said, Extensions { queue_time: said.queue_time, ..Extensions::default() });
    let (granted, reply) = take_grants(rest).unwrap();
    assert!(!granted.grants.is_empty());
    assert!(decode_reply(op, reply).unwrap().attr().unwrap().is_directory());
    // An error says so too, and what is executed once.
    let (op, make) = fields(&make_directory(&root, "d"));
    for status in [0, 0, Errno::EEXIST.raw() as u32] {
        let place = (0, 1 + u32::from(status != 0));
        let (header, body) = ask(&mut peer, op, place, (&asks_queue_time(), &make));
        assert_eq!(header.status, status);
        assert!(Extensions::take(&body).unwrap().0.queue_time.is_some());
    }
    // Who does not ask is not told.
    let (op, get) = fields(&Request::GetAttr { handle: root.bytes(), open: None });
    let (header, _) = ask(&mut peer, op, (0, 0), (&encoded(&Extensions::default()), &get));
    assert!(!header.flags.contains(Flags::EXTENDED) && header.status == 0);
}

/// While all threads are at work requests wait where nobody has read them.
#[test]
fn what_waits_unread_is_queued_too() {
    /// As many as the server has.
    const THREADS: usize = 8;
    const WAITS: Duration = Duration::from_millis(100);
    let (fixture, gate) = gated();
    let (mut waits, _, root) = fixture.attached();
    let held: Vec<Peer> = (0..THREADS)
        .map(|_| {
            let (mut peer, _, root) = fixture.attached();
            send(&mut peer, (0, 1), &make_directory(&root, SLOW));
            peer
        })
        .collect();
    // The first holds the lock of the gate, and all others wait for it.
    gate.begun.recv_timeout(LONG).unwrap();
    let (op, get) = fields(&Request::GetAttr { handle: root.bytes(), open: None });
    let header = Header { op: op as u16, flags: Flags::EXTENDED, request: 900, ..Header::new(Kind::Request) };
    std::thread::sleep(WAITS); // until the server has started all threads that it may
    waits.send(header, &[asks_queue_time(), get].concat());
    std::thread::sleep(WAITS);
    (0..THREADS).for_each(|_| gate.end.send(()).unwrap());
    let (header, body) = waits.receive().unwrap();
    assert_eq!((header.request, header.status), (900, 0));
    let queued = Extensions::take(&body).unwrap().0.queue_time.unwrap();
    assert!(u128::from(queued) >= WAITS.as_micros() / 2, "{queued} us");
    drop(held);
}

#[test]
fn a_timed_request_is_told_where_its_time_went() {
    const HELD: Duration = Duration::from_millis(20);
    let (fixture, gate) = gated();
    let (mut peer, hello, root) = fixture.attached();
    assert!(hello.capabilities.contains(Capabilities::TIMES));
    for (sequence, flags) in [(1, Flags::TIMED), (2, Flags::empty())] {
        let (op, make) = fields(&make_directory(&root, SLOW));
        let header = Header { op: op as u16, flags, sequence, request: 900, ..Header::new(Kind::Request) };
        peer.send(header, &make);
        gate.begun.recv_timeout(LONG).unwrap();
        std::thread::sleep(HELD);
        gate.end.send(()).unwrap();
        let (header, body) = peer.receive().unwrap();
        assert_eq!(header.flags.contains(Flags::EXTENDED), flags.contains(Flags::TIMED), "{header:?}");
        if flags.contains(Flags::TIMED) {
            let (said, rest) = Extensions::take(&body).unwrap();
            let Times { lease_us, served_us } = said.times.unwrap();
            assert!(
                said.queue_time.is_some() && lease_us == 0 && u128::from(served_us) >= HELD.as_micros(),
                "{said:?}"
            );
            assert!(header.status == 0 && decode_reply(op, rest).is_ok(), "{header:?}");
        }
    }
}

#[test]
fn a_repeat_is_told_what_it_asks_though_the_first_try_did_not() {
    let (fixture, gate) = gated();
    let (mut first, session, root) = fixture.attached();
    let first_id = send(&mut first, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    let (mut second, _) = fixture.joined(&session);
    let (op, make) = fields(&make_directory(&root, SLOW));
    let (flags, sequence) = (Flags::EXTENDED, 1);
    let header = Header { op: op as u16, flags, sequence, request: 900, ..Header::new(Kind::Request) };
    second.send(header, &[asks_queue_time(), make].concat());
    second.call(Op::Status, (0, 0), &[]);
    gate.end.send(()).unwrap();
    let (header, body) = second.receive().unwrap();
    assert_eq!((header.request, header.status), (900, 0));
    assert!(header.flags.contains(Flags::EXTENDED), "{header:?}");
    let (said, rest) = Extensions::take(&body).unwrap();
    assert!(said.queue_time.is_some() && decode_reply(op, rest).is_ok());
    let (header, body) = first.receive().unwrap();
    assert_eq!((header.request, header.flags.contains(Flags::EXTENDED)), (first_id, false));
    assert_eq!(body, rest);
}

#[test]
fn what_an_administrator_asks_may_have_them_too() {
    let fixture = Fixture::new();
    let (mut peer, ..) = fixture.attached();
    for op in [Op::Locks, Op::ReleaseLocks] {
        let (header, body) = ask(&mut peer, op, (0, 0), (&asks_queue_time(), &7u64.to_le_bytes()));
        assert_eq!(header.status, Errno::EPERM.raw() as u32);
        assert!(Extensions::take(&body).unwrap().0.queue_time.is_some());
    }
}

#[test]
fn data_come_with_it_as_well() {
    for checksums in [Checksums::Off, Checksums::On] {
        let fixture = Fixture::checking(checksums);
        let content: Vec<u8> = (0..200_000u32).map(|n| (n / 3) as u8).collect();
        std::fs::write(fixture.directory.path().join("f"), &content).unwrap();
        let (mut peer, _, root) = match checksums {
            Checksums::On => fixture.attached(),
            _ => {
                let mut peer = fixture.connect();
                let mut body = Vec::new();
                let capabilities = Capabilities::COMPOUND | Capabilities::PENDING;
                Hello { capabilities, ..hello() }.encode(&mut body);
                peer.send(Header::new(Kind::Hello), &body);
                let reply = HelloReply::decode(&peer.receive().unwrap().1).unwrap();
                let mut body = Vec::new();
                Attach { export: "/e", read_only: false }.encode(&mut body);
                let root = AttachReply::decode(&peer.call(Op::Attach, (0, 0), &body).1).unwrap().root.handle;
                (peer, reply, root)
            }
        };
        let found = peer.ask((0, 0), &Request::Lookup { parent: root.bytes(), name: b"f" }).unwrap().entry().unwrap();
        let open = Request::Open { handle: found.handle.bytes(), flags: OpenFlags::READ };
        let open = peer.ask((0, 1), &open).unwrap().opened().unwrap().id;
        // Copied, and by sendfile or with a checksum.
        for length in [5000, 200_000] {
            let mut read = Vec::new();
            encode_read(&context(), &ReadAt { open, offset: 0, length }, &mut read);
            let (header, mut body) = ask(&mut peer, Op::Read, (0, 0), (&asks_queue_time(), &read));
            let data = body.split_off(header.body_length as usize);
            let (said, rest) = Extensions::take(&body).unwrap();
            assert!(header.flags.contains(Flags::EXTENDED) && said.queue_time.is_some() && rest.is_empty());
            assert!(data == content[..length as usize], "{length} bytes, {checksums:?}");
            if header.flags.contains(Flags::TRAILER) {
                let mut bytes = [0; TRAILER_SIZE];
                peer.stream.read_exact(&mut bytes).unwrap();
                let trailer = Trailer::decode(&bytes).unwrap();
                assert_eq!(trailer.valid, length);
                assert_eq!(trailer.check_content(&header, &body, &data), Ok(()));
            } else {
                assert_eq!(header.check_content(&body, &data), Ok(()));
            }
        }
    }
}

#[test]
fn the_job_that_asks_is_shown() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let (op, get) = fields(&Request::GetAttr { handle: root.bytes(), open: None });
    let job = encoded(&Extensions { job: Some("slurm-4711".into()), trace: Some([1; 16]), ..Extensions::default() });
    assert_eq!(ask(&mut peer, op, (0, 0), (&job, &get)).0.status, 0);
    let (_, status) = peer.call(Op::Status, (0, 0), &[]);
    let status = String::from_utf8(status).unwrap();
    assert!(status.contains(r#""job":"slurm-4711""#), "{status}");
    let counted = aqueduct_metrics::Snapshot::of(&*fixture.server);
    let samples = counted.samples("aqueduct_server_job_operations_total");
    let found: Vec<_> = samples.iter().map(|sample| (sample.label("job_id"), sample.number())).collect();
    assert_eq!(found, [("slurm-4711", 1)]);
}

#[test]
fn what_has_to_be_understood_and_is_not_keeps_a_request_from_being_executed() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let (op, make) = fields(&make_directory(&root, "d"));
    let right = encoded(&Extensions { right: Some([5; 16].into()), ..Extensions::default() });
    for (prefix, error) in [
        (entry(0x8000 | 99), Errno::EOPNOTSUPP),
        (right, Errno::EOPNOTSUPP),
        (entry(1), Errno::EPROTO), // a job without a name
        (vec![255, 255], Errno::EPROTO),
        (vec![7], Errno::EPROTO),
    ] {
        let (header, _) = ask(&mut peer, op, (0, 1), (&prefix, if prefix.len() == 1 { &[] } else { &make }));
        assert_eq!((header.status as i32, header.request), (error.raw(), 900), "{prefix:?}");
    }
    assert!(!fixture.directory.path().join("d").exists());
    // What may be skipped is.
    assert_eq!(ask(&mut peer, op, (0, 1), (&entry(99), &make)).0.status, 0);
    assert!(fixture.directory.path().join("d").exists());
}

#[test]
fn a_server_that_stands_alone_is_a_volume_of_its_own() {
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    peer.hello(0, [0; 16]).unwrap();
    let (header, body) = peer.call(Op::Map, (0, 0), &[]);
    assert_eq!(header.status, 0);
    let names = vec![fixture.server.addresses()[0].to_string()];
    assert_eq!(Map::decode(&body), Ok(Map { names, ..Map::default() }));
    assert_eq!(peer.call(Op::Map, (0, 0), b"x").0.status as i32, Errno::EPROTO.raw());
}

/// Who was greeted with a map, and attaches under another, hears of nothing else than of that.
#[test]
fn a_map_that_comes_before_a_client_attaches_is_told_when_it_does() {
    let fixture = Fixture::new();
    let [mut early, mut late] = [(); 2].map(|()| fixture.connect());
    assert_eq!(early.hello(0, [0; 16]).unwrap().epoch, 0);
    let map = Map { volume: [3; 16], epoch: 2, names: vec!["10.0.0.1:7170".into()], ..Map::default() };
    fixture.server.set_map(map.clone(), true);
    assert_eq!(late.hello(0, [0; 16]).unwrap().epoch, 2);
    let mut body = Vec::new();
    Attach { export: "/e", read_only: false }.encode(&mut body);
    for (peer, is_told) in [(&mut early, true), (&mut late, false)] {
        let asked = peer.request(Op::Attach, (0, 0), &body);
        let first = peer.receive().unwrap();
        if is_told {
            assert_eq!((first.0.kind, Notice::decode(&first.1)), (Kind::Notice, Ok(Notice::Map(map.clone()))));
            assert_eq!(peer.receive().unwrap().0.request, asked);
        } else {
            assert_eq!((first.0.kind, first.0.request), (Kind::Reply, asked));
        }
    }
}
