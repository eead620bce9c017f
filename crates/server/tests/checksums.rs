//! A server against frames whose bodies and payloads were damaged on the way.

mod common;

use std::io::{Read, Write};

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::*;

/// What a client says of checksums, and what the server answers: whether both add them, or why it refuses.
fn agreed(fixture: &Fixture, checksums: Checksums) -> Result<bool, String> {
    let mut peer = fixture.connect();
    let mut body = Vec::new();
    Hello { capabilities: checksums.offered(), ..hello() }.encode(&mut body);
    peer.send(Header::new(Kind::Hello), &body);
    let (header, body) = peer.receive().unwrap();
    match header.kind {
        Kind::HelloReply => Ok(HelloReply::decode(&body).unwrap().capabilities.contains(Capabilities::CHECKSUM)),
        _ => Err(String::from_utf8(body).unwrap()),
    }
}

#[test]
fn both_sides_have_a_say() {
    let auto = Fixture::new();
    assert_eq!(agreed(&auto, Checksums::Auto), Ok(false), "on one machine");
    assert_eq!(agreed(&auto, Checksums::On), Ok(true));
    let on = Fixture::checking(Checksums::On);
    assert_eq!(agreed(&on, Checksums::Auto), Ok(true));
    assert!(agreed(&on, Checksums::Off).unwrap_err().contains("set one of the two to auto"));
    let off = Fixture::checking(Checksums::Off);
    assert_eq!(agreed(&off, Checksums::Auto), Ok(false));
    assert!(agreed(&off, Checksums::On).unwrap_err().contains("set one of the two to auto"));
}

/// An attached peer with a file, whose frames have checksums.
fn checked(fixture: &Fixture) -> (Peer, HelloReply, Handle, OpenId) {
    let (mut peer, session, root) = fixture.attached();
    assert!(session.capabilities.contains(Capabilities::CHECKSUM));
    peer.sealer = Sealer::new(None, true);
    let open = locked_file(&mut peer, &root);
    (peer, session, root, open)
}

/// The first request of a slot: header, body and payload in one.
fn frame(peer: &mut Peer, (op, slot): (Op, u32), body: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header { op: op as u16, slot, sequence: 1, request: 50, ..Header::new(Kind::Request) };
    let header = Header { body_length: body.len() as u32, payload_length: payload.len() as u32, ..header };
    let mut head = [&header.encode()[..], body].concat();
    peer.sealer.seal(&mut head, payload);
    [&head, payload].concat()
}

#[test]
fn a_damaged_request_is_not_executed_and_its_repeat_is_once() {
    let fixture = Fixture::checking(Checksums::On);
    let (_peer, session, root, open) = checked(&fixture);
    let mut make = Vec::new();
    let op = encode_request(&context(), &make_directory(&root, "made"), &mut make);
    let mut write = Vec::new();
    encode_write(&context(), &WriteAt { open, offset: 0, append: true, stable: false }, &mut write);
    let content = || std::fs::read(fixture.directory.path().join("l")).unwrap();
    let made = || fixture.directory.path().join("made").exists();
    let requests = [((Op::Write, 1), &write, vec![5; 100_000]), ((op, 2), &make, Vec::new())];
    for (place, body, payload) in requests {
        let before = (content().len(), made());
        let length = HEADER_SIZE + body.len() + payload.len();
        for at in [HEADER_SIZE, HEADER_SIZE + body.len() - 1, length - 1] {
            let (mut peer, _) = fixture.joined(&session);
            peer.sealer = Sealer::new(None, true);
            let mut bytes = frame(&mut peer, place, body, &payload);
            bytes[at] ^= 0x10;
            peer.stream.write_all(&bytes).unwrap();
            assert!(peer.goodbye().contains("damaged"));
            assert_eq!((content().len(), made()), before);
        }
        let (mut peer, _) = fixture.joined(&session);
        peer.sealer = Sealer::new(None, true);
        for _ in 0..2 {
            let whole = frame(&mut peer, place, body, &payload);
            peer.stream.write_all(&whole).unwrap();
            assert_eq!(peer.receive().unwrap().0.status, 0);
        }
    }
    assert_eq!((content(), made()), (vec![5; 100_000], true), "appended and made once");
}

/// Small replies have a trailer and large ones not; each has the checksum of what it brings, and the next frame comes right behind it.
#[test]
fn replies_have_checksums() {
    let fixture = Fixture::checking(Checksums::On);
    let (mut peer, _, _, open) = checked(&fixture);
    let data: Vec<u8> = (0..700_000u32).map(|n| (n / 3) as u8).collect();
    std::fs::write(fixture.directory.path().join("l"), &data).unwrap();
    for (offset, length) in [(0, 0), (5, 1), (1, 16 << 10), (2, 100_000), (650_000, 1 << 20), (800_000, 100_000)] {
        let mut body = Vec::new();
        encode_read(&context(), &ReadAt { open, offset, length }, &mut body);
        let (header, payload) = peer.call(Op::Read, (0, 0), &body);
        assert_eq!((header.status, header.body_length), (0, 0));
        assert!(header.flags.contains(Flags::CHECKSUM), "{header:?}");
        let expected = &data[data.len().min(offset as usize)..data.len().min(offset as usize + length as usize)];
        assert!(payload == expected, "{length} bytes from {offset}");
        if header.flags.contains(Flags::TRAILER) {
            let mut bytes = [0; TRAILER_SIZE];
            peer.stream.read_exact(&mut bytes).unwrap();
            let trailer = Trailer::decode(&bytes).unwrap();
            assert_eq!(trailer.valid as usize, payload.len());
            trailer.check_content(&header, &[], &payload).unwrap();
        } else {
            header.check_content(&[], &payload).unwrap();
        }
    }
    let (header, body) = peer.call(Op::Status, (0, 0), &[]);
    assert!(header.flags.contains(Flags::CHECKSUM));
    header.check_content(&body, &[]).unwrap();
}

/// A greeting has them whatever is agreed on: a damaged session id would be one that is not known.
#[test]
fn greetings_always_have_checksums() {
    let fixture = Fixture::checking(Checksums::Off);
    let mut peer = fixture.connect();
    let mut body = Vec::new();
    hello().encode(&mut body);
    peer.send(Header::new(Kind::Hello), &body);
    let (header, body) = peer.receive().unwrap();
    assert!(header.flags.contains(Flags::CHECKSUM));
    header.check_content(&body, &[]).unwrap();
    let (header, _) = peer.call(Op::Status, (0, 0), &[]);
    assert!(!header.flags.contains(Flags::CHECKSUM), "and nothing else has");

    let mut peer = fixture.connect();
    let mut body = Vec::new();
    hello().encode(&mut body);
    peer.sealer = Sealer::new(None, true);
    let mut bytes = peer.sealed(Header::new(Kind::Hello), &body);
    bytes[HEADER_SIZE + 14] ^= 1;
    peer.stream.write_all(&bytes).unwrap();
    assert!(peer.goodbye().contains("damaged"));
}
