//! A server with keys against hand-made handshakes and frames: who is let in, and what is taken from them.

mod common;

use std::io::Write;
use std::time::Duration;

use aqueduct_fs::idmap::{IdMap, IdMaps, IdRange};
use aqueduct_fs::*;
use aqueduct_server::{Access, Host, HostMaps};
use aqueduct_wire::*;
use common::*;

fn key(number: u8) -> Key {
    Key::new([number; KEY_LENGTH])
}

fn greeting() -> Hello {
    Hello { keyed: true, ..hello() }
}

/// A peer that was asked for its proof.
struct Asked {
    peer: Peer,
    transcript: Transcript,
    /// Of the session that it joins.
    secret: Option<[u8; 16]>,
}

/// The body of a proof of a key.
fn by_key(proof: [u8; PROOF_LENGTH]) -> Vec<u8> {
    let mut body = Vec::new();
    Proof { key: Some(proof), session: None }.encode(&mut body);
    body
}

/// Greets with `sent`, which arrives as `arrived`.
fn greet(fixture: &Fixture, sent: &Hello, arrived: &Hello) -> Asked {
    greet_on(fixture.connect(), sent, arrived)
}

fn greet_on(mut peer: Peer, sent: &Hello, arrived: &Hello) -> Asked {
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
    Asked { transcript: Transcript::new((&header, &sent), (&challenge, &body)), peer, secret: None }
}

impl Asked {
    /// The reason for which this proof is not taken, which the status says too.
    fn rejected(mut self, proof: [u8; PROOF_LENGTH]) -> String {
        self.peer.send(Header::new(Kind::Proof), &by_key(proof));
        let (header, body) = self.peer.receive().unwrap();
        assert_eq!((header.kind, header.status as i32), (Kind::HelloReply, Errno::EKEYREJECTED.raw()));
        assert!(body.is_empty());
        self.peer.goodbye()
    }

    fn prove(&mut self, key: &Key) {
        let mut body = Vec::new();
        let session = self.secret.map(|secret| session_proof(&secret, &self.transcript));
        Proof { key: Some(key.proof(&self.transcript)), session }.encode(&mut body);
        self.peer.send(Header::new(Kind::Proof), &body);
        let keys = key.of_client(&self.transcript);
        self.peer.sealer = Sealer::new(Some(keys.send), false);
        self.peer.opener = Opener::new(Some(keys.receive));
    }

    /// The peer and its session.
    fn let_in(mut self, key: &Key) -> (Peer, HelloReply) {
        self.prove(key);
        let (header, body) = self.peer.receive().unwrap();
        assert_eq!((header.kind, header.status), (Kind::HelloReply, 0));
        let reply = HelloReply::decode(&body).unwrap();
        assert_eq!(reply.secret, [0; 16], "it does not travel");
        let secret = self.secret.unwrap_or_else(|| key.session_secret(&self.transcript));
        (self.peer, HelloReply { secret, ..reply })
    }

    /// Why the peer is not let in, although its key is.
    fn refused(mut self, key: &Key) -> Errno {
        self.prove(key);
        let (header, _) = self.peer.receive().unwrap(); // which checks the tag
        assert_eq!(header.kind, Kind::HelloReply);
        Errno::from_raw(header.status as i32)
    }

    /// Says that it joins the session with this secret.
    fn of(self, secret: [u8; 16]) -> Asked {
        Asked { secret: Some(secret), ..self }
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
    let joining = Hello { session: session.session, link: link(), ..greeting() };
    let (mut peer, joined) = greet(&fixture, &joining, &joining).of(session.secret).let_in(&key(2));
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
    assert_eq!(greet(&fixture, &joining, &joining).of([1; 16]).refused(&key(1)), Errno::ESTALE);
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
    let changes: [fn(&mut Hello); 7] = [
        |hello| hello.session = 9,
        |hello| hello.capabilities = Capabilities::empty(),
        |hello| hello.lane = Lane::Bulk,
        |hello| hello.client_name = "another".into(),
        |hello| hello.nonce = [4; NONCE_LENGTH],
        |hello| hello.link += 1,
        |hello| hello.server = Some(SERVER.id),
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
    peer.send(Header::new(Kind::Proof), &by_key([0; PROOF_LENGTH]));
    assert!(peer.goodbye().contains("HELLO"));
}

/// Somebody on the way adds a frame of his own to the client's proof, so that both are looked at together.
#[test]
fn nobody_is_let_in_together_with_a_client() {
    let fixture = Fixture::keyed(&[key(1)]);
    let (mut watcher, _) = member(&fixture);
    for _ in 0..20 {
        let mut asked = greet(&fixture, &greeting(), &greeting());
        let mut bytes = asked.peer.sealed(Header::new(Kind::Proof), &by_key(key(1).proof(&asked.transcript)));
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
    fixture.server.shutdown(Duration::from_secs(5)); // what is under way is finished
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
    let joining = Hello { session: session.session, link: link(), ..greeting() };
    let (mut second, _) = greet(&fixture, &joining, &joining).of(session.secret).let_in(&key(1));
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
        let prefixed = |session: u64| {
            let mut body = Vec::new();
            Extensions { job: Some("night".into()), ..Extensions::default() }.encode(&mut body);
            body.extend(session.to_le_bytes());
            let header = Header {
                op: Op::ReleaseLocks as u16,
                flags: Flags::EXTENDED,
                request: 900,
                ..Header::new(Kind::Request)
            };
            (header, body)
        };
        let (header, body) = prefixed(77);
        peer.send(header, &body);
        assert_eq!(peer.receive().unwrap().0.status as i32, Errno::ENOENT.raw(), "a job before it is no part of it");
        // A member's key is not enough, to whichever session the connection belongs.
        let asked = greet(&fixture, &administering(), &administering());
        let proof = key(1).proof(&asked.transcript);
        assert!(asked.rejected(proof).contains("none of this server's"));
        let joining = Hello { session: session.session, link: link(), ..greeting() };
        let mut member = match keys.is_empty() {
            true => {
                let mut peer = fixture.connect();
                peer.hello(session.session, session.secret).unwrap();
                peer
            }
            false => greet(&fixture, &joining, &joining).of(session.secret).let_in(&key(1)).0,
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
    // Who says that it has no key is not asked, nor let in.
    let fixture = Fixture::administered(&[], key(ADMINISTRATOR));
    let mut peer = fixture.connect();
    let mut body = Vec::new();
    Hello { keyed: false, ..administering() }.encode(&mut body);
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

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// A greeting of who says that it is a node.
fn of_node(name: &str) -> Hello {
    Hello { node: Some(node(name)), link: link(), ..greeting() }
}

fn session_of(peer: &mut Peer, session: u64) -> serde_json::Value {
    let (header, body) = peer.call(Op::Status, (0, 0), &[]);
    assert_eq!(header.status, 0);
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert!(session != 0);
    status["sessions"].as_array().unwrap()[0].clone()
}

#[test]
fn a_node_proves_its_name_with_a_key_of_its_own() {
    let fixture = Fixture::keyed(&[key(1), key(2)]);
    for cluster in [key(1), key(2)] {
        let hello = of_node("gpu7");
        let (mut peer, session) = greet(&fixture, &hello, &hello).let_in(&cluster.of_node(&node("gpu7")));
        assert_eq!(session_of(&mut peer, session.session)["node"], "gpu7");
    }
    // With another node's key, the cluster's, or under another name nobody is that node.
    for (name, wrong) in
        [("gpu7", key(1).of_node(&node("gpu8"))), ("gpu7", key(1)), ("gpu8", key(1).of_node(&node("gpu7")))]
    {
        let hello = of_node(name);
        let asked = greet(&fixture, &hello, &hello);
        let proof = wrong.proof(&asked.transcript);
        assert!(asked.rejected(proof).contains(&format!("node {name}")));
    }
    // Nor is a node's key the cluster's.
    let asked = greet(&fixture, &greeting(), &greeting());
    let proof = key(1).of_node(&node("gpu7")).proof(&asked.transcript);
    asked.rejected(proof);
    // A server without keys believes no name.
    let open = Fixture::new();
    let mut peer = open.connect();
    let session = peer.greet(&Hello { keyed: false, ..of_node("gpu7") }, [0; 16]).unwrap();
    assert!(session_of(&mut peer, session.session)["node"].is_null());
}

#[test]
fn only_who_made_a_session_joins_it() {
    let fixture = Fixture::keyed(&[key(1)]);
    let hello = of_node("gpu7");
    let gpu7 = key(1).of_node(&node("gpu7"));
    let (mut peer, session) = greet(&fixture, &hello, &hello).let_in(&gpu7);
    // Of an export whose rights are the same for all of them.
    let mut attach = Vec::new();
    Attach { export: "/e", read_only: false }.encode(&mut attach);
    assert_eq!(peer.call(Op::Attach, (0, 0), &attach).0.status, 0);
    let join = |hello: Hello| Hello { session: session.session, link: link(), ..hello };
    let refused = |hello: Hello, key: &Key, secret| greet(&fixture, &hello, &hello).of(secret).refused(key);
    // Not even with its secret.
    assert_eq!(refused(join(of_node("gpu8")), &key(1).of_node(&node("gpu8")), session.secret), Errno::EACCES);
    assert_eq!(refused(join(greeting()), &key(1), session.secret), Errno::EACCES);
    // And not that node without it.
    assert_eq!(refused(join(of_node("gpu7")), &gpu7, [9; 16]), Errno::ESTALE);
    let unproved = join(of_node("gpu7"));
    let mut asked = greet(&fixture, &unproved, &unproved);
    asked.prove(&gpu7);
    assert_eq!(asked.peer.receive().unwrap().0.status as i32, Errno::ESTALE.raw());
    let again = join(of_node("gpu7"));
    let (_second, joined) = greet(&fixture, &again, &again).of(session.secret).let_in(&gpu7);
    assert_eq!(joined.session, session.session);
    // A number that one of its connections has is no other's.
    assert_eq!(refused(again, &gpu7, session.secret), Errno::EEXIST);
}

#[test]
fn who_means_another_server_is_told() {
    let other = Some(ServerId([8; 16]));
    for fixture in [Fixture::keyed(&[key(1)]), Fixture::new()] {
        for session in [0, 7] {
            let mut peer = fixture.connect();
            let hello = Hello { server: other, session, ..greeting() };
            assert_eq!(peer.greet(&hello, [0; 16]), Err(Errno::EREMCHG.raw() as u32));
            assert!(peer.goodbye().contains("another server"));
        }
    }
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    let reply = peer.greet(&Hello { server: Some(SERVER.id), ..hello() }, [0; 16]).unwrap();
    assert_eq!((reply.server, reply.secret == [0; 16]), (SERVER, false));
    let addresses: Vec<_> = fixture.server.addresses().iter().map(ToString::to_string).collect();
    assert_eq!(reply.addresses, addresses);
}

/// It is known by its name, and others by where they come from.
#[test]
fn a_node_has_maps_of_its_own() {
    let maps = |server| IdMaps {
        users: IdMap::new(&[IdRange { client: 0, server, count: 1000 }], None).unwrap(),
        ..IdMaps::default()
    };
    let of = |host: &str, server| HostMaps { hosts: vec![Host::parse(host).unwrap()], maps: Some(maps(server)) };
    let fixture = Fixture::keyed_with(
        &[key(1)],
        Access {
            maps: Some(maps(1000)),
            host_maps: vec![of("node:gpu*", 2000), of("127.0.0.2/32", 3000)],
            ..trusting()
        },
    );
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(fixture.directory.path(), open).unwrap();
    let owner = |mut peer: Peer, name: &str| {
        let mut body = Vec::new();
        Attach { export: "/e", read_only: false }.encode(&mut body);
        let attached = AttachReply::decode(&peer.call(Op::Attach, (0, 0), &body).1).unwrap();
        assert!(attached.one_user, "its kernel cannot judge");
        let made = peer.ask((0, 1), &make_directory(&attached.root.handle, name)).unwrap().entry().unwrap();
        assert_eq!(made.attr.uid, 0, "it is his");
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(fixture.directory.path().join(name)).unwrap())
    };
    let node_greets = |name: &str| {
        let hello = of_node(name);
        greet(&fixture, &hello, &hello).let_in(&key(1).of_node(&node(name)))
    };
    let (gpu7, session) = node_greets("gpu7");
    assert_eq!((owner(gpu7, "a"), owner(node_greets("cpu1").0, "b")), (2000, 1000));
    let anonymous = greet(&fixture, &greeting(), &greeting()).let_in(&key(1)).0;
    assert_eq!(owner(anonymous, "c"), 1000);
    // Who says that he is the node, and is not, has neither its maps nor its session.
    let joining = Hello { session: session.session, link: link(), ..greeting() };
    assert_eq!(greet(&fixture, &joining, &joining).of(session.secret).refused(&key(1)), Errno::EACCES);
}

/// Without a key the secret travels once, with the answer that begins the session, and is proved
/// from then on.
#[test]
fn a_session_without_a_key_is_joined_by_its_secret() {
    let fixture = Fixture::new();
    let (_peer, session, _) = fixture.attached();
    let (mut joined, reply) = fixture.joined(&session);
    assert_eq!(reply.session, session.session);
    assert_eq!(joined.call(Op::Status, (0, 0), &[]).0.status, 0);
    let mut wrong = session.secret;
    wrong[3] ^= 1;
    assert_eq!(fixture.connect().hello(session.session, wrong), Err(Errno::ESTALE.raw() as u32));
    assert_eq!(fixture.connect().hello(session.session, [0; 16]), Err(Errno::ESTALE.raw() as u32));
}

/// Asks as the last router on a way does; the answer.
fn come_by_router(peer: &mut Peer, target: Target) -> RouteReply {
    let mut body = Vec::new();
    let (hops_left, time_left_ms, lane) = (1, 1000, Lane::Control);
    Route { target, hops_left, time_left_ms, lane, initiator: [1; 16], flow: 1 }.encode(&mut body);
    peer.send(Header::new(Kind::Route).checked(&body), &body);
    let (header, body) = peer.receive().unwrap();
    assert_eq!(header.kind, Kind::RouteReply);
    RouteReply::decode(&body).unwrap()
}

/// It may be of one that is mapped, and nobody knows of which.
#[test]
fn who_comes_by_a_router_to_maps_of_networks_is_nobody() {
    let users = IdMap::new(&[IdRange { client: 0, server: 3000, count: 1000 }], None).unwrap();
    let maps = Some(IdMaps { users, ..IdMaps::default() });
    let host_maps = vec![HostMaps { hosts: vec![Host::parse("127.0.0.0/8").unwrap()], maps }];
    let fixture = Fixture::keyed_with(&[key(1)], Access { host_maps, ..trusting() });
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(fixture.directory.path(), open).unwrap();
    let owner = |is_routed: bool, name: &str| {
        let mut peer = fixture.connect();
        if is_routed {
            assert_eq!(come_by_router(&mut peer, Target::Server(SERVER.id)).status, RouteStatus::Open);
        }
        let mut peer = greet_on(peer, &greeting(), &greeting()).let_in(&key(1)).0;
        let mut body = Vec::new();
        Attach { export: "/e", read_only: false }.encode(&mut body);
        let attached = AttachReply::decode(&peer.call(Op::Attach, (0, 0), &body).1).unwrap();
        assert!(attached.one_user, "its kernel cannot judge");
        peer.ask((0, 1), &make_directory(&attached.root.handle, name)).unwrap();
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(fixture.directory.path().join(name)).unwrap())
    };
    assert_eq!((owner(false, "mapped"), owner(true, "nobodys")), (3000, 65_534));
}

/// Its address would not help it if it were listed.
#[test]
fn who_comes_by_a_router_and_is_not_listed_is_told_what_counts_there() {
    let hosts = Some(vec![Host::parse("127.0.0.0/8").unwrap()]);
    let fixture = Fixture::keyed_with(&[key(1)], Access { hosts, ..trusting() });
    let mut peer = fixture.connect();
    assert_eq!(come_by_router(&mut peer, Target::Server(SERVER.id)).status, RouteStatus::Open);
    let mut peer = greet_on(peer, &greeting(), &greeting()).let_in(&key(1)).0;
    let mut body = Vec::new();
    Attach { export: "/e", read_only: false }.encode(&mut body);
    let (header, why) = peer.call(Op::Attach, (0, 0), &body);
    let why = String::from_utf8(why).unwrap();
    assert_eq!(header.status as i32, Errno::EACCES.raw());
    assert!(why.contains("known by a node's key alone"), "{why}");
}

#[test]
fn a_server_answers_a_preamble_for_itself() {
    let fixture = Fixture::keyed(&[key(1)]);
    let network = NetworkName::new("net1").unwrap();
    let here = Target::Address { network, address: ([10, 0, 0, 1], 1).into() };
    for target in [here.clone(), Target::Server(SERVER.id)] {
        let mut peer = fixture.connect();
        assert_eq!(come_by_router(&mut peer, target).status, RouteStatus::Open);
        let mut body = Vec::new();
        greeting().encode(&mut body);
        peer.send(Header::new(Kind::Hello), &body);
        assert_eq!(peer.receive().unwrap().0.kind, Kind::Challenge, "what follows is a handshake like any other");
    }
    let hop = Target::Hop { network: NetworkName::new("net1").unwrap(), behind: 0 };
    for target in [Target::Router, Target::Server(ServerId([9; 16])), hop] {
        let mut peer = fixture.connect();
        let reply = come_by_router(&mut peer, target);
        assert_eq!((reply.status, reply.hop), (RouteStatus::Refused, 0));
        peer.goodbye();
    }
    let mut twice = fixture.connect();
    come_by_router(&mut twice, here.clone());
    let mut body = Vec::new();
    Route { target: here, hops_left: 0, time_left_ms: 0, lane: Lane::Bulk, initiator: [1; 16], flow: 1 }
        .encode(&mut body);
    twice.send(Header::new(Kind::Route), &body);
    assert!(twice.goodbye().contains("once"));
}

#[test]
fn a_server_on_loopback_without_a_key_takes_nothing_from_routers() {
    let fixture = Fixture::new();
    let mut peer = fixture.connect();
    let reply = come_by_router(&mut peer, Target::Server(SERVER.id));
    assert_eq!(reply.status, RouteStatus::Refused);
    assert!(reply.text.contains("give it a key"), "{}", reply.text);
    peer.goodbye();
}
