//! What replies grant.

use aqueduct_fs::*;
use aqueduct_wire::*;

use crate::client::*;
use crate::common::*;

/// A file `f` with content, a link `l` to it, an empty directory `d`, and a client that has made nothing of it.
struct State {
    fixture: Fixture,
    client: Client,
    root: Handle,
}

impl State {
    fn new() -> State {
        let fixture = Fixture::limited(quick());
        std::fs::write(fixture.directory.path().join("f"), "content").unwrap();
        std::os::unix::fs::symlink("f", fixture.directory.path().join("l")).unwrap();
        std::fs::create_dir(fixture.directory.path().join("d")).unwrap();
        let client = Client::new(&fixture);
        let root = client.root.clone();
        State { fixture, client, root }
    }

    fn handle(&mut self, name: &str) -> Handle {
        self.client.ask(&look_up(&self.root, name)).unwrap().entry().unwrap().handle
    }

    /// What a request is granted by a client that has nothing yet: on the inode, and on the parent.
    fn grants(&mut self, request: &Request<'_>) -> [Option<Aspects>; 2] {
        let mut client = Client::new(&self.fixture);
        let _ = client.ask(request);
        assert!(client.renews);
        let grants =
            [Subject::Inode, Subject::Parent].map(|subject| client.granted(subject).map(|(aspects, _)| aspects));
        client.leave();
        grants
    }
}

#[test]
fn replies_grant_what_they_say() {
    let mut state = State::new();
    let root = state.root.clone();
    let (file, link, directory) = (state.handle("f"), state.handle("l"), state.handle("d"));
    let (bytes, parent) = (file.bytes(), root.bytes());
    let open = |flags| Request::Open { handle: bytes, flags };
    let create = |name| Request::Create { parent, name, mode: 0o600, umask: 0, flags: READ_WRITE };
    let truncate = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    let both = ATTRIBUTES | DATA;
    let table: Vec<(Request<'_>, [Option<Aspects>; 2])> = vec![
        (look_up(&root, "f"), [Some(ATTRIBUTES), Some(NAMES)]),
        (look_up(&root, "absent"), [None, Some(NAMES)]),
        (get_attr(&file), [Some(both), None]),
        (get_attr(&link), [Some(ATTRIBUTES), None]),
        (get_attr(&directory), [Some(ATTRIBUTES), None]),
        (open(OpenFlags::READ), [Some(both), None]),
        (open(READ_WRITE), [Some(both), None]),
        (open(OpenFlags::WRITE), [None, None]),
        (open(truncate), [None, None]),
        (create(b"new"), [Some(both), None]),
        (create(b"new"), [Some(both), None]),
        (Request::CreateUnnamed { parent, mode: 0o600, umask: 0, flags: READ_WRITE }, [Some(both), None]),
        (make_directory(&root, "made"), [Some(ATTRIBUTES), None]),
        (make_directory(&root, "made"), [None, None]),
        (Request::MakeNode { parent, name: b"node", mode: libc_fifo(), umask: 0, rdev: 0 }, [Some(ATTRIBUTES), None]),
        (Request::Symlink { parent, name: b"symlink", text: b"f" }, [Some(ATTRIBUTES), None]),
        (Request::Link { handle: bytes, parent, name: b"link" }, [Some(ATTRIBUTES), None]),
        (chmod(&file, 0o600), [Some(ATTRIBUTES), None]),
        (Request::SetAttr { handle: bytes, open: None, set: size }, [Some(ATTRIBUTES), None]),
        (Request::ReadLink { handle: link.bytes() }, [Some(DATA), None]),
        (Request::GetXattr { handle: bytes, name: b"user.none", size: 10 }, [Some(ATTRIBUTES), None]),
        (Request::ListXattr { handle: bytes, size: 100 }, [Some(ATTRIBUTES), None]),
        (Request::Unlink { parent, name: b"link" }, [None, None]),
        (Request::Statfs { handle: bytes }, [None, None]),
        (Request::Access { handle: bytes, mask: AccessMask::READ }, [None, None]),
    ];
    // Who set it all up holds nothing that would be in the way.
    std::mem::replace(&mut state.client, Client::plain(&state.fixture)).leave();
    for (request, grants) in table {
        assert_eq!(state.grants(&request), grants, "{request:?}");
    }
}

fn libc_fifo() -> u32 {
    0o010_600
}

#[test]
fn listings_grant_names_and_attributes() {
    let mut state = State::new();
    let client = &mut state.client;
    let listing = client.ask(&Request::OpenDirectory { handle: state.root.bytes() }).unwrap().opened().unwrap().id;
    assert_eq!(client.granted(Subject::Inode).unwrap().0, ATTRIBUTES, "who may list it is one of them");
    for plus in [true, false] {
        let page = Request::ReadDirectory { open: listing, cookie: 0, size: 4096, plus };
        let page = client.ask(&page).unwrap().directory().unwrap();
        assert_eq!(client.granted(Subject::Inode).unwrap().0, NAMES | ATTRIBUTES);
        for (at, entry) in page.entries().enumerate() {
            let granted = client.granted(Subject::Entry(at as u16)).map(|(aspects, _)| aspects);
            assert_eq!(granted, entry.inode.map(|_| ATTRIBUTES), "{at} {:?}", entry.name);
            assert_eq!(entry.inode.is_some(), plus && !entry.name.starts_with(b"."));
        }
    }
}

#[test]
fn a_lease_grows_under_a_later_name() {
    let mut state = State::new();
    let file = state.handle("f");
    let (aspects, first) = state.client.granted(Subject::Inode).unwrap();
    let (_, parent) = state.client.granted(Subject::Parent).unwrap();
    assert_eq!(aspects, ATTRIBUTES);
    state.client.ask(&get_attr(&file)).unwrap();
    let (aspects, later) = state.client.granted(Subject::Inode).unwrap();
    assert_eq!((aspects, later.0 as u32, later > first), (ATTRIBUTES | DATA, first.0 as u32, true));
    assert_ne!(parent.0 as u32, first.0 as u32);
}

#[test]
fn who_does_not_ask_is_granted_nothing() {
    let state = State::new();
    let mut plain = Client::plain(&state.fixture);
    assert_eq!(plain.session.lease_seconds, 7);
    plain.ask(&look_up(&state.root, "f")).unwrap();
    assert!(!plain.renews && plain.grants.is_empty());
    let none = Fixture::new();
    let mut client = Client::new(&none);
    let root = client.root.clone();
    assert_eq!(client.session.lease_seconds, 0, "sessions end with the server, and nobody would know of leases");
    client.ask(&get_attr(&root)).unwrap();
    assert!(!client.renews && client.grants.is_empty());
}

#[test]
fn a_repeated_reply_grants_nothing() {
    let mut state = State::new();
    let mut body = Vec::new();
    let op = encode_request(&context(), &make_directory(&state.root, "made"), &mut body);
    let peer = &mut state.client.peer;
    let (slot, sequence, flags) = (9, 1, Flags::LEASES);
    let header = Header { op: op as u16, slot, sequence, request: 7, flags, ..Header::new(Kind::Request) };
    peer.send(header, &body);
    let (first, granting) = peer.receive().unwrap();
    assert!(first.flags.contains(Flags::GRANTS | Flags::RENEWS));
    peer.send(Header { request: 8, flags: Flags::LEASES | Flags::RETRY, ..header }, &body);
    let (again, plain) = peer.receive().unwrap();
    assert_eq!((again.request, again.status, again.flags), (8, 0, Flags::RENEWS));
    assert_eq!(take_grants(&granting).unwrap().1, plain);
}

/// Each kind of request may be sent at a time when somebody changes what it is about.
#[test]
fn reads_renew_as_well() {
    let mut state = State::new();
    let file = state.handle("f");
    let flags = OpenFlags::READ;
    let open = state.client.ask(&Request::Open { handle: file.bytes(), flags }).unwrap().opened().unwrap().id;
    let mut body = Vec::new();
    encode_read(&context(), &ReadAt { open, offset: 0, length: 100 }, &mut body);
    let header = Header { op: Op::Read as u16, request: 5, flags: Flags::LEASES, ..Header::new(Kind::Request) };
    state.client.peer.send(header, &body);
    let (reply, _) = state.client.peer.receive_unchecked().unwrap();
    assert!(reply.flags.contains(Flags::RENEWS) && !reply.flags.contains(Flags::GRANTS));
}
