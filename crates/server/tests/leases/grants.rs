//! What replies grant.

use aqueduct_fs::*;
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

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
        (make_directory(&root, "made"), [Some(ATTRIBUTES | NAMES), None]),
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

/// What a directory has made in it has a list where the directory has one for that.
#[test]
fn what_is_made_is_said_to_be_bare_where_it_is() {
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    const ACCESS: &[u8] = b"system.posix_acl_access";
    // Read and write for the owner, nothing for others, and read for user 7 beneath a mask.
    let entries = [(1u16, 6u16, u32::MAX), (2, 4, 7), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let list = [vec![2, 0, 0, 0], entries.map(entry).concat()].concat();
    let mut state = State::new();
    let (root, directory) = (state.root.clone(), state.handle("d"));
    let client = &mut state.client;
    let mode = XattrMode::Any;
    let set = |handle, name| Request::SetXattr { handle, name, value: &list, mode };
    client.ask(&set(directory.bytes(), DEFAULT)).unwrap();
    let create = |parent, name| Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
    let made = |client: &mut Client, request: &Request<'_>| {
        let entry = match client.ask(request).unwrap() {
            Reply::Created(entry, _) => entry,
            reply => reply.entry().unwrap(),
        };
        let [known, bare] = [Subject::Inode, Subject::Bare].map(|subject| client.granted(subject).is_some());
        assert!(known != bare, "{request:?}");
        (bare, entry.handle)
    };
    assert!(!made(client, &create(root.bytes(), b"unasked")).0);
    client.flags |= Flags::BARE;
    let (bare, file) = made(client, &create(root.bytes(), b"file"));
    assert!(bare && made(client, &make_directory(&root, "directory")).0);
    assert!(made(client, &create(root.bytes(), b"file")).0, "it is there already");
    let unnamed = Request::CreateUnnamed { parent: root.bytes(), mode: 0o644, umask: 0, flags: READ_WRITE };
    assert!(made(client, &unnamed).0);
    for (what, request) in [
        ("a file", create(directory.bytes(), b"file")),
        ("a directory", make_directory(&directory, "directory")),
        ("a fifo", Request::MakeNode { parent: directory.bytes(), name: b"n", mode: libc_fifo(), umask: 0, rdev: 0 }),
    ] {
        assert!(!made(client, &request).0, "{what}");
    }
    client.ask(&set(file.bytes(), ACCESS)).unwrap();
    assert!(!made(client, &create(root.bytes(), b"file")).0);
    client.ask(&Request::RemoveXattr { handle: file.bytes(), name: ACCESS }).unwrap();
    assert!(made(client, &create(root.bytes(), b"file")).0);
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = b"security.capability";
    client.ask(&Request::SetXattr { handle: file.bytes(), name, value: &capability, mode }).unwrap();
    assert!(!made(client, &create(root.bytes(), b"file")).0);
}

#[test]
fn who_changes_a_name_is_told_of_its_directory() {
    let mut state = State::new();
    let (root, file) = (state.root.clone(), state.handle("f"));
    let parent = root.bytes();
    let changes = [
        Request::Create { parent, name: b"new", mode: 0o600, umask: 0, flags: READ_WRITE },
        make_directory(&root, "made"),
        Request::MakeNode { parent, name: b"node", mode: libc_fifo(), umask: 0, rdev: 0 },
        Request::Symlink { parent, name: b"symlink", text: b"f" },
        Request::Link { handle: file.bytes(), parent, name: b"link" },
        Request::Unlink { parent, name: b"new" },
        Request::RemoveDirectory { parent, name: b"made" },
    ];
    for change in &changes {
        state.client.ask(change).unwrap();
        let (granted, told) = (state.client.granted(Subject::Changed), state.client.changed);
        assert_eq!(granted.unwrap().0 & ATTRIBUTES, ATTRIBUTES, "{change:?}");
        assert_eq!(state.client.ask(&get_attr(&root)).unwrap().attr().unwrap(), told.unwrap(), "{change:?}");
    }
    assert_eq!(state.client.ask(&changes[6]), Err(Errno::ENOENT));
    assert_eq!(state.client.changed, None, "nothing has changed");
    Client::plain(&state.fixture).ask(&changes[0]).unwrap();
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
