//! A server with keys against hand-made handshakes and frames: who is let in, and what is taken from them.

mod common;

use std::io::Write;

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::*;

fn key(number: u8) -> Key {
    Key::new([number; KEY_LENGTH])
}

fn greeting() -> Hello {
    Hello { nonce: Some([3; NONCE_LENGTH]), ..hello() }
}

/// A peer that was asked for its proof.
struct Asked {
    peer: Peer,
    transcript: Transcript,
}

/// Greets with `sent`, which arrives as `arrived`.
fn greet(fixture: &Fixture, sent: &Hello, arrived: &Hello) -> Asked {
    let mut peer = fixture.connect();
    let [sent, arrived] = [sent, arrived].map(|hello| {
        let mut body = Vec::new();
        hello.encode(&mut body);
        body
    });
    peer.send(Header::new(Kind::Hello), &arrived);
    let (challenge, body) = peer.receive().unwrap();
    assert_eq!(challenge.kind, Kind::Challenge);
    Challenge::decode(&body).unwrap();
    let header = Header { body_length: sent.len() as u32, ..Header::new(Kind::Hello) };
    Asked { transcript: Transcript::new((&header, &sent), (&challenge, &body)), peer }
}

impl Asked {
    /// The reason for which this proof is not taken, which the status says too.
    fn rejected(mut self, proof: [u8; PROOF_LENGTH]) -> String {
        self.peer.send(Header::new(Kind::Proof), &proof);
        let (header, body) = self.peer.receive().unwrap();
        assert_eq!((header.kind, header.status as i32), (Kind::HelloReply, Errno::EKEYREJECTED.raw()));
        assert!(body.is_empty());
        self.peer.goodbye()
    }

    fn prove(&mut self, key: &Key) {
        self.peer.send(Header::new(Kind::Proof), &key.proof(&self.transcript));
        let keys = key.of_client(&self.transcript);
        self.peer.sealer = Sealer::new(Some(keys.send), false);
        self.peer.opener = Opener::new(Some(keys.receive));
    }

    /// The peer and its session.
    fn let_in(mut self, key: &Key) -> (Peer, HelloReply) {
        self.prove(key);
        let (header, body) = self.peer.receive().unwrap();
        assert_eq!((header.kind, header.status), (Kind::HelloReply, 0));
        (self.peer, HelloReply::decode(&body).unwrap())
    }
}

/// A peer of a server with key 1 that was let in.
fn member(fixture: &Fixture) -> (Peer, HelloReply) {
    greet(fixture, &greeting(), &greeting()).let_in(&key(1))
}

fn sessions(fixture: &Fixture) -> usize {
    let (mut peer, _) = member(fixture);
    let (header, body) = peer.call(Op::Status, (0, 0), &[]);
    assert_eq!(header.status, 0);
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
    status["sessions"].as_array().unwrap().len()
}

#[test]
fn who_has_a_key_is_let_in() {
    let fixture = Fixture::keyed(&[key(1), key(2)]);
    let (mut peer, session) = member(&fixture);
    assert_eq!(peer.call(Op::Status, (0, 0), &[]).0.status, 0);
    // To the same session, with another of the keys.
    let joining = Hello { session: session.session, secret: session.secret, ..greeting() };
    let (mut peer, joined) = greet(&fixture, &joining, &joining).let_in(&key(2));
    assert_eq!(joined.session, session.session);
    assert_eq!(peer.call(Op::Status, (0, 0), &[]).0.status, 0);
}

#[test]
fn who_has_no_key_or_another_is_told() {
    let fixture = Fixture::keyed(&[key(1), key(2)]);
    let asked = greet(&fixture, &greeting(), &greeting());
    let proof = key(3).proof(&asked.transcript);
    assert!(asked.rejected(proof).contains("none of this server's"));
    let mut peer = fixture.connect();
    assert_eq!(peer.hello(0, [0; 16]), Err(Errno::ENOKEY.raw() as u32));
    assert!(peer.goodbye().contains("-o key=FILE"));
    assert_eq!(sessions(&fixture), 1, "only who asks has a session");
}

#[test]
fn a_session_is_refused_under_the_key() {
    let fixture = Fixture::keyed(&[key(1)]);
    let joining = Hello { session: 7, ..greeting() };
    let mut asked = greet(&fixture, &joining, &joining);
    asked.prove(&key(1));
    let (header, _) = asked.peer.receive().unwrap(); // which checks the tag
    assert_eq!((header.kind, header.status as i32), (Kind::HelloReply, Errno::ESTALE.raw()));
}

#[test]
fn a_recorded_handshake_lets_nobody_in() {
    let fixture = Fixture::keyed(&[key(1)]);
    let asked = greet(&fixture, &greeting(), &greeting());
    let recorded = key(1).proof(&asked.transcript);
    let first = asked.transcript.clone();
    asked.let_in(&key(1));
    // The same HELLO, byte for byte, is asked for another proof.
    let again = greet(&fixture, &greeting(), &greeting());
    assert_ne!(again.transcript, first);
    again.rejected(recorded);
}

#[test]
fn a_greeting_that_was_changed_lets_nobody_in() {
    let fixture = Fixture::keyed(&[key(1)]);
    let changes: [fn(&mut Hello); 5] = [
        |hello| hello.session = 9,
        |hello| hello.capabilities = Capabilities::empty(),
        |hello| hello.lane = Lane::Bulk,
        |hello| hello.client_name = "another".into(),
        |hello| hello.nonce = Some([4; NONCE_LENGTH]),
    ];
    for change in changes {
        let mut arrived = greeting();
        change(&mut arrived);
        let asked = greet(&fixture, &greeting(), &arrived);
        let proof = key(1).proof(&asked.transcript);
        asked.rejected(proof);
    }
}

#[test]
fn only_a_proof_follows_a_challenge() {
    let fixture = Fixture::keyed(&[key(1)]);
    let mut hello = Vec::new();
    greeting().encode(&mut hello);
    for (kind, body) in [(Kind::Request, &[][..]), (Kind::Hello, &hello), (Kind::Proof, b"short"), (Kind::Ping, &[])] {
        let mut asked = greet(&fixture, &greeting(), &greeting());
        asked.peer.send(Header::new(kind), body);
        asked.peer.goodbye();
    }
    let mut peer = fixture.connect();
    peer.send(Header::new(Kind::Proof), &[0; PROOF_LENGTH]);
    assert!(peer.goodbye().contains("HELLO"));
}

/// Somebody on the way adds a frame of his own to the client's proof, so that both are looked at together.
#[test]
fn nobody_is_let_in_together_with_a_client() {
    let fixture = Fixture::keyed(&[key(1)]);
    let (mut watcher, _) = member(&fixture);
    for _ in 0..20 {
        let mut asked = greet(&fixture, &greeting(), &greeting());
        let mut bytes = asked.peer.sealed(Header::new(Kind::Proof), &key(1).proof(&asked.transcript));
        let status = Header { op: Op::Status as u16, request: 99, ..Header::new(Kind::Request) };
        bytes.extend(asked.peer.sealed(status, &[]));
        asked.peer.stream.write_all(&bytes).unwrap();
        while let Some((header, _)) = asked.peer.receive_unchecked() {
            assert_ne!((header.kind, header.request), (Kind::Reply, 99));
        }
    }
    assert_eq!(watcher.call(Op::Status, (0, 0), &[]).0.status, 0);
}

/// Frames of a member as they leave it: mkdir for each name.
fn frames(peer: &mut Peer, names: &[&str]) -> Vec<Vec<u8>> {
    let mut attach = Vec::new();
    Attach { export: "/e", read_only: false }.encode(&mut attach);
    let (_, body) = peer.call(Op::Attach, (0, 0), &attach);
    let root = AttachReply::decode(&body).unwrap().root.handle;
    let make = |(at, name): (usize, &&str)| {
        let mut body = Vec::new();
        let op = encode_request(&context(), &make_directory(&root, name), &mut body) as u16;
        let request = 100 + at as u64;
        let header = Header { op, sequence: 1 + at as u32, request, ..Header::new(Kind::Request) };
        peer.sealed(header, &body)
    };
    names.iter().enumerate().map(make).collect()
}

/// What a server did of frames that arrived: the names made, and why it took no more.
fn arrive(on_the_way: impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>>) -> (Vec<String>, String) {
    let fixture = Fixture::keyed(&[key(1)]);
    let (mut peer, _) = member(&fixture);
    let arriving = on_the_way(frames(&mut peer, &["a", "b", "c"]));
    peer.stream.write_all(&arriving.concat()).unwrap();
    let mut reason = String::new();
    while let Some((header, body)) = peer.receive() {
        if header.kind == Kind::Goodbye {
            reason = String::from_utf8(body).unwrap();
        }
    }
    let entries = std::fs::read_dir(fixture.directory.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    (names, reason)
}

/// Each frame is executed as it was sent and in its turn, or it and what follows are not.
#[test]
fn frames_that_were_tampered_with_are_refused() {
    let refused = |frames: (Vec<String>, String), names: &[&str], reason: &str| {
        assert_eq!(frames.0, names);
        assert!(frames.1.contains(reason), "{reason}: {}", frames.1);
    };
    let reseal = |frame: &mut [u8]| {
        let checksum = crc32c::crc32c(&frame[..60]);
        frame[60..64].copy_from_slice(&checksum.to_le_bytes());
    };
    refused(arrive(|f| vec![f[0].clone(), f[2].clone()]), &["a"], "left out");
    refused(arrive(|f| vec![f[0].clone(), f[0].clone(), f[1].clone()]), &["a"], "repeated");
    refused(arrive(|f| vec![f[1].clone(), f[0].clone()]), &[], "moved");
    let changed = |at: usize| {
        move |mut f: Vec<Vec<u8>>| {
            let at = if at == usize::MAX { f[1].len() - 1 } else { at };
            f[1][at] ^= 1;
            reseal(&mut f[1]);
            f
        }
    };
    refused(arrive(changed(25)), &["a"], "changed"); // the header's request id
    refused(arrive(changed(50)), &["a"], "changed"); // its tag
    refused(arrive(changed(usize::MAX)), &["a"], "changed"); // the body's last byte
    let without = |mut f: Vec<Vec<u8>>| {
        f[1][8] = 0;
        f[1][48..56].fill(0);
        reseal(&mut f[1]);
        f
    };
    refused(arrive(without), &["a"], "not keyed");
    refused(arrive(|f| vec![f[0].clone(), Header::new(Kind::Goodbye).encode().to_vec()]), &["a"], "not keyed");
}

/// A frame of one connection means nothing on another of the same session.
#[test]
fn frames_of_another_connection_are_refused() {
    let fixture = Fixture::keyed(&[key(1)]);
    let (mut first, session) = member(&fixture);
    let frame = frames(&mut first, &["a"]).remove(0);
    let joining = Hello { session: session.session, secret: session.secret, ..greeting() };
    let (mut second, _) = greet(&fixture, &joining, &joining).let_in(&key(1));
    second.call(Op::Status, (0, 0), &[]); // so that both have sent as many
    second.stream.write_all(&frame).unwrap();
    assert!(second.goodbye().contains("tag"));
    assert!(!fixture.directory.path().join("a").exists());
}

#[test]
fn a_server_without_keys_takes_no_keyed_frames() {
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    peer.send(Header { flags: Flags::KEYED, ..Header::new(Kind::Hello) }, &[]);
    assert!(peer.goodbye().contains("no key"));
}

/// A greeting of who says that it has the administrator's key.
fn administering() -> Hello {
    let hello = greeting();
    Hello { capabilities: hello.capabilities | Capabilities::ADMINISTRATOR, ..hello }
}

const ADMINISTRATOR: u8 = 9;

#[test]
fn only_who_has_the_administrators_key_sees_and_releases_locks() {
    for keys in [vec![], vec![key(1)]] {
        let fixture = Fixture::administered(&keys, key(ADMINISTRATOR));
        let (mut peer, session) = greet(&fixture, &administering(), &administering()).let_in(&key(ADMINISTRATOR));
        let (header, body) = peer.call(Op::Locks, (0, 0), &[]);
        let locks: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((header.status, &locks["locks_total"]), (0, &serde_json::json!(0)));
        let release =
            |peer: &mut Peer, session: u64| peer.call(Op::ReleaseLocks, (0, 0), &session.to_le_bytes()).0.status as i32;
        assert_eq!(release(&mut peer, 77), Errno::ENOENT.raw());
        assert_eq!(release(&mut peer, session.session), Errno::ENOENT.raw(), "it has no export, and so no locks");
        assert_eq!(peer.call(Op::ReleaseLocks, (0, 0), &[1]).0.status as i32, Errno::EPROTO.raw());
        // A member's key is not enough, to whichever session the connection belongs.
        let asked = greet(&fixture, &administering(), &administering());
        let proof = key(1).proof(&asked.transcript);
        assert!(asked.rejected(proof).contains("none of this server's"));
        let joining = Hello { session: session.session, secret: session.secret, ..greeting() };
        let mut member = match keys.is_empty() {
            true => {
                let mut peer = fixture.connect();
                peer.hello(session.session, session.secret).unwrap();
                peer
            }
            false => greet(&fixture, &joining, &joining).let_in(&key(1)).0,
        };
        assert_eq!(member.call(Op::Locks, (0, 0), &[]).0.status as i32, Errno::EPERM.raw());
        assert_eq!(release(&mut member, session.session), Errno::EPERM.raw());
    }
}

#[test]
fn the_administrators_key_is_no_members_and_needs_a_proof() {
    let fixture = Fixture::administered(&[key(1)], key(ADMINISTRATOR));
    let asked = greet(&fixture, &greeting(), &greeting());
    let proof = key(ADMINISTRATOR).proof(&asked.transcript);
    asked.rejected(proof);
    // Whoever adds the word to another's greeting has another transcript.
    let asked = greet(&fixture, &greeting(), &administering());
    let proof = key(ADMINISTRATOR).proof(&asked.transcript);
    asked.rejected(proof);
    for administrator in [Fixture::keyed(&[key(1)]), Fixture::new()] {
        let asked = greet(&administrator, &administering(), &administering());
        let proof = key(1).proof(&asked.transcript);
        asked.rejected(proof);
    }
    // Without a nonce nobody is asked, nor let in.
    let fixture = Fixture::administered(&[], key(ADMINISTRATOR));
    let mut peer = fixture.connect();
    let mut body = Vec::new();
    Hello { nonce: None, ..administering() }.encode(&mut body);
    peer.send(Header::new(Kind::Hello), &body);
    assert_eq!(peer.receive().unwrap().0.status as i32, Errno::ENOKEY.raw());
}

#[test]
fn a_list_of_locks_is_bounded_and_says_how_many_there_are() {
    const LOCKS: u64 = 3000;
    let fixture = Fixture::administered(&[], key(ADMINISTRATOR));
    let (mut peer, session, root) = fixture.attached();
    let open = locked_file(&mut peer, &root);
    for at in 0..LOCKS {
        let lock = Lock { start: 2 * at, end: 2 * at, kind: LockKind::Read, pid: 1 };
        let request = Request::SetLock { open, owner: 1, space: LockSpace::Posix, lock, wait: false };
        peer.ask((1, 1 + at as u32), &request).unwrap();
    }
    let (mut other, _, root) = fixture.attached();
    let (_, opened) = other.create((0, 1), &root, "wanted", OpenFlags::READ | OpenFlags::WRITE).unwrap();
    other.ask((0, 2), &set_lock(opened.id, 1, LockKind::Write, false)).unwrap();
    let waits = other.file((0, 3), &set_lock(opened.id, 2, LockKind::Write, true));
    assert_eq!(waits.0.kind, Kind::Pending);

    let (mut administrator, _) = greet(&fixture, &administering(), &administering()).let_in(&key(ADMINISTRATOR));
    let (header, body) = administrator.call(Op::Locks, (0, 0), &[]);
    assert_eq!((header.status, body.len() <= BODY_LENGTH_MAX), (0, true));
    let locks: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(locks["locks_total"], LOCKS + 2);
    let listed = locks["locks"].as_array().unwrap();
    assert!((100..=1024).contains(&listed.len()), "{}", listed.len());
    let wanted = |lock: &serde_json::Value| lock["path"].as_str().unwrap().ends_with("/wanted");
    assert!(listed[..2].iter().all(wanted) && !listed[2..].iter().any(wanted), "what somebody waits for comes first");
    let release = session.session.to_le_bytes();
    assert_eq!(administrator.call(Op::ReleaseLocks, (0, 0), &release).0.status, 0);
    assert!(peer.receive().is_none(), "its connections are closed");
    let (_, body) = administrator.call(Op::Locks, (0, 0), &[]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["locks_total"], 2);
}
