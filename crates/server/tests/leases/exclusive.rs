//! Exclusive leases: one client holds back what it writes, and others see it all the same.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_metrics::{Sample, Snapshot, table};
use aqueduct_server::Limits;
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

const LEASE: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_millis(300);
const ANSWER: Duration = Duration::from_millis(100);

/// What comes much later than it should, on a machine with much to do.
const LATE: Duration = Duration::from_secs(5);

/// What the holder holds back.
const HELD: &[u8] = b"held back";

fn short() -> Limits {
    Limits { lease: LEASE, lease_patience: PATIENCE, lease_answer: ANSWER, ..quick() }
}

/// A file that one client made and holds back writes to, and another client that has it open.
struct State {
    fixture: Fixture,
    holder: Client,
    looker: Client,
    root: Handle,
    file: Handle,
    /// The holder's.
    opened: Opened,
    lease: LeaseId,
    /// The looker's.
    open: OpenId,
}

fn create<'a>(root: &'a Handle, name: &'a str, flags: OpenFlags) -> Request<'a> {
    Request::Create { parent: root.bytes(), name: name.as_bytes(), mode: 0o644, umask: 0, flags }
}

fn open(handle: &Handle, flags: OpenFlags) -> Request<'_> {
    Request::Open { handle: handle.bytes(), flags }
}

/// Makes a file, and expects an exclusive lease on it.
fn make(client: &mut Client, name: &str) -> (Handle, Opened, LeaseId) {
    let root = client.root.clone();
    let (entry, opened) = client.ask(&create(&root, name, READ_WRITE)).unwrap().created().unwrap();
    let (aspects, lease) = client.granted(Subject::Inode).expect("a lease");
    assert_eq!(aspects, EXCLUSIVE);
    // That on the directory is none of these tests' business.
    let (_, of_directory) = client.granted(Subject::Changed).expect("a lease");
    client.give_back(&[of_directory]);
    (entry.handle, opened, lease)
}

impl State {
    fn new(limits: Limits) -> State {
        let fixture = Fixture::limited(limits);
        let (mut holder, mut looker) = (Client::exclusive(&fixture), Client::plain(&fixture));
        let root = holder.root.clone();
        let (made, of_looker) = looker.ask(&create(&root, "file", READ_WRITE)).unwrap().created().unwrap();
        let file = made.handle;
        let opened = holder.ask(&open(&file, READ_WRITE)).unwrap().opened().unwrap();
        let (aspects, lease) = holder.granted(Subject::Inode).expect("a lease");
        assert_eq!(aspects, EXCLUSIVE, "who has it open has seen nothing yet");
        State { fixture, holder, looker, root, file, opened, lease, open: of_looker.id }
    }

    fn send_held(&mut self) -> u64 {
        self.holder.send_held(self.opened.id, HELD)
    }

    fn mode(&self) -> u32 {
        let permissions = self.fixture.directory.path().join("file").metadata().unwrap().permissions();
        permissions.mode() & 0o7777
    }

    fn size(&self) -> u64 {
        self.fixture.directory.path().join("file").metadata().unwrap().len()
    }
}

/// In a new state: what `send` asks waits until the holder has written and has given its lease back.
fn check(what: &str, send: impl Fn(&mut Client, &State) -> u64) -> (State, Result<Vec<u8>, Errno>) {
    let mut state = State::new(quick());
    let mut looker = std::mem::replace(&mut state.looker, Client::plain(&state.fixture));
    let look = send(&mut looker, &state);
    assert_eq!(state.holder.recalled(), [state.lease], "{what}");
    assert!(looker.waits(), "{what}");
    let write = state.send_held();
    state.holder.take(write).unwrap();
    assert!(looker.waits(), "{what}: there may be more");
    state.holder.give_back(&[state.lease]);
    let result = looker.take(look);
    state.looker = looker;
    (state, result)
}

#[test]
fn who_looks_waits_for_what_is_held_back() {
    let length = HELD.len() as u64;
    let attr = |op, body: &[u8]| decode_reply(op, body).unwrap().attr().unwrap();
    let (_, reply) = check("getattr", |client, at| client.send(&get_attr(&at.file)));
    assert_eq!(attr(Op::GetAttr, &reply.unwrap()).size, length);
    let (_, reply) = check("lookup", |client, at| client.send(&look_up(&at.root, "file")));
    assert_eq!(decode_reply(Op::Lookup, &reply.unwrap()).unwrap().entry().unwrap().attr.size, length);
    let (_, reply) = check("read", |client, at| client.send_read(at.open));
    assert_eq!(reply.unwrap(), HELD);
    let (_, reply) = check("create of what is there", |client, at| client.send(&create(&at.root, "file", READ_WRITE)));
    assert_eq!(decode_reply(Op::Create, &reply.unwrap()).unwrap().created().unwrap().0.attr.size, length);
    let (_, reply) =
        check("seek", |client, at| client.send(&Request::Seek { open: at.open, offset: 0, to: SeekTo::Hole }));
    assert_eq!(decode_reply(Op::Seek, &reply.unwrap()).unwrap().size().unwrap(), length);
    let (state, reply) = check("a copy", |client, at| {
        let to = client.ask(&create(&at.root, "copy", READ_WRITE)).unwrap().created().unwrap().1.id;
        client.send(&Request::CopyRange { from: at.open, from_offset: 0, to, to_offset: 0, length: 100 })
    });
    reply.unwrap();
    assert_eq!(std::fs::read(state.fixture.directory.path().join("copy")).unwrap(), HELD);
    let (_, reply) = check("a compound", |client, at| {
        client.send_compound(&[look_up(&at.root, "file"), Request::GetAttr { handle: b"", open: None }])
    });
    reply.unwrap();
    let _ = check("getattr of what is open", |client, at| {
        client.send(&Request::GetAttr { handle: at.root.bytes(), open: Some(at.open) })
    });
    let (_, reply) = check("getxattr", |client, at| {
        client.send(&Request::GetXattr { handle: at.file.bytes(), name: b"user.a", size: 10 })
    });
    reply.unwrap_err();
    check("listxattr", |client, at| client.send(&Request::ListXattr { handle: at.file.bytes(), size: 100 })).1.unwrap();
    check("open", |client, at| client.send(&open(&at.file, OpenFlags::READ))).1.unwrap();
    for mask in [AccessMask::READ, AccessMask::WRITE] {
        check("access", |client, at| client.send(&Request::Access { handle: at.file.bytes(), mask })).1.unwrap();
    }
    check("fsync", |client, at| client.send(&Request::Sync { open: at.open, data_only: true })).1.unwrap();
    check("commit", |client, at| client.send(&Request::Commit { open: at.open, offset: 0, length: 0 })).1.unwrap();
}

/// A latency says how long the server takes, and another metric how long others held it up.
#[test]
fn the_wait_for_what_is_held_back_is_no_latency() {
    let name = table::SERVER_OPERATION_SECONDS.definition.name;
    let (state, reply) = check("read", |client, at| client.send_read(at.open));
    reply.unwrap();
    // Counted behind the reply, so perhaps a moment after it is here.
    let end = Instant::now() + LATE;
    let (read, waited) = loop {
        let snapshot = Snapshot::of(&*state.fixture.server);
        let read = snapshot.samples(name).iter().find(|sample| sample.label("operation") == "Read");
        if let Some(read) = read.and_then(Sample::histogram) {
            let waits = snapshot.samples(table::SERVER_LEASE_WAIT_SECONDS.definition.name);
            break (read.mean(), waits[0].histogram().unwrap().mean());
        }
        assert!(Instant::now() < end, "the read is counted: {snapshot:#?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(read < waited, "{read} ns, of a read that waited for {waited} ns");
}

#[test]
fn who_closes_a_file_lets_others_look_at_once() {
    let mut state = State::new(quick());
    let second = state.holder.ask(&open(&state.file, READ_WRITE)).unwrap().opened().unwrap().id;
    let flags = std::mem::replace(&mut state.holder.flags, Flags::LEASES);
    state.holder.ask(&Request::Release { open: state.opened.id }).unwrap();
    let look = state.looker.send(&get_attr(&state.file));
    let asked = state.holder.recalled();
    assert!(state.looker.waits(), "it did not say that it holds nothing back");
    state.holder.give_back(&asked);
    state.looker.take(look).unwrap();
    state.holder.flags = flags;
    let (file, opened, _) = make(&mut state.holder, "another");
    state.holder.ask(&Request::Release { open: opened.id }).unwrap();
    state.looker.ask(&get_attr(&file)).unwrap();
    assert!(state.holder.is_left_alone());
    let write = state.holder.send_held(second, HELD);
    assert_eq!(state.holder.take(write), Err(Errno::ESTALE));
}

#[test]
fn who_changes_waits_for_what_is_held_back() {
    let (state, reply) = check("a write", |client, at| client.send_write(at.open, b"new"));
    reply.unwrap();
    assert_eq!(std::fs::read(state.fixture.directory.path().join("file")).unwrap(), b"newd back");
    check("chmod", |client, at| client.send(&chmod(&at.file, 0o600))).1.unwrap();
    let (state, reply) =
        check("truncate", |client, at| client.send(&open(&at.file, OpenFlags::WRITE | OpenFlags::TRUNCATE)));
    reply.unwrap();
    assert_eq!(state.size(), 0);
    let unlink =
        |client: &mut Client, at: &State| client.send(&Request::Unlink { parent: at.root.bytes(), name: b"file" });
    check("unlink", unlink).1.unwrap();
}

#[test]
fn listings_leave_out_what_is_held_back_and_wait_for_nobody() {
    let mut state = State::new(quick());
    std::fs::write(state.fixture.directory.path().join("other"), "other").unwrap();
    let root = state.root.clone();
    let list = |client: &mut Client| {
        let listing = client.ask(&Request::OpenDirectory { handle: root.bytes() }).unwrap().opened().unwrap().id;
        let page = Request::ReadDirectory { open: listing, cookie: 0, size: 4096, plus: true };
        told(&client.ask(&page).unwrap().directory().unwrap())
    };
    let expected = |is_told| vec![(b"file".to_vec(), is_told), (b"other".to_vec(), true)];
    state.holder.flags = Flags::empty(); // its lease keeps its name
    assert_eq!(list(&mut state.holder), expected(true), "its own");
    for is_told in [false, true] {
        assert_eq!(list(&mut state.looker), expected(is_told));
        let listed = state.looker.send_fetch(Op::List, &root);
        let listed = state.looker.take(listed).unwrap();
        assert_eq!(told(decode_listed(&listed).unwrap()[0].as_ref().unwrap()), expected(is_told));
        let fetched = state.looker.send_fetch(Op::Fetch, &state.file);
        let fetched = state.looker.take(fetched).unwrap();
        match &decode_fetched(&fetched).unwrap()[0] {
            Ok((_, data)) => assert!(is_told && *data == HELD),
            Err(error) => assert!(!is_told && *error == Errno::EAGAIN),
        }
        if !is_told {
            assert!(state.holder.is_left_alone(), "nobody waits");
            let write = state.send_held();
            state.holder.take(write).unwrap();
            state.holder.give_back(&[state.lease]);
            state.holder.ask(&get_attr(&root)).unwrap(); // it has been understood
        }
    }
}

/// The names of a page, and whether their inodes are told.
fn told(page: &DirPage) -> Vec<(Vec<u8>, bool)> {
    let entries = page.entries().filter(|entry| !entry.name.starts_with(b"."));
    let mut told: Vec<_> = entries.map(|entry| (entry.name.to_vec(), entry.inode.is_some())).collect();
    told.sort();
    told
}

#[test]
fn who_is_not_concerned_does_not_wait() {
    let mut state = State::new(quick());
    std::fs::write(state.fixture.directory.path().join("other"), "other").unwrap();
    let (root, file) = (state.root.clone(), state.file.clone());
    let look = state.looker.send(&get_attr(&file));
    assert_eq!(state.holder.recalled(), [state.lease]);
    let mut third = Client::new(&state.fixture);
    let other = third.ask(&look_up(&root, "other")).unwrap().entry().unwrap().handle;
    for request in [get_attr(&other), get_attr(&root), look_up(&root, "absent")] {
        let _ = third.ask(&request);
    }
    let other = third.ask(&open(&other, READ_WRITE)).unwrap().opened().unwrap().id;
    let (read, write) = (third.send_read(other), third.send_write(other, b"new"));
    third.take(read).unwrap();
    third.take(write).unwrap();
    third.ask(&set_lock(state.open, 1, LockKind::Write, false)).unwrap_err();
    // Nor does the holder, of whom it is recalled.
    state.holder.ask(&get_attr(&file)).unwrap();
    state.holder.ask(&look_up(&root, "file")).unwrap();
    let of_holder = state.opened.id;
    let (read, held, write) =
        (state.holder.send_read(of_holder), state.send_held(), state.holder.send_write(of_holder, b"straight"));
    for request in [read, held, write] {
        state.holder.take(request).unwrap();
    }
    state.holder.ask(&Request::Sync { open: of_holder, data_only: false }).unwrap();
    assert!(state.looker.waits());
    state.holder.give_back(&[state.lease]);
    state.looker.take(look).unwrap();
}

#[test]
fn two_who_look_at_each_others_files_both_go_on() {
    let mut state = State::new(quick());
    state.looker.flags = Flags::LEASES | Flags::EXCLUSIVE;
    let (other, opened, lease) = make(&mut state.looker, "other");
    let (one, two) = (state.holder.send(&get_attr(&other)), state.looker.send(&get_attr(&state.file)));
    assert_eq!((state.holder.recalled(), state.looker.recalled()), (vec![state.lease], vec![lease]));
    let writes = (state.send_held(), state.looker.send_held(opened.id, HELD));
    state.holder.take(writes.0).unwrap();
    state.looker.take(writes.1).unwrap();
    state.holder.give_back(&[state.lease]);
    state.looker.give_back(&[lease]);
    state.holder.take(one).unwrap();
    state.looker.take(two).unwrap();
}

#[test]
fn who_is_alone_and_asks_is_granted_it() {
    let fixture = Fixture::limited(quick());
    let mut client = Client::exclusive(&fixture);
    let root = client.root.clone();
    let (file, ..) = make(&mut client, "file");
    client.let_go();
    let both = ATTRIBUTES | DATA;
    let (read, write) = (OpenFlags::READ, OpenFlags::WRITE);
    let unnamed = |flags| Request::CreateUnnamed { parent: root.bytes(), mode: 0o600, umask: 0, flags };
    let asks = |request: &Request<'_>, flags| {
        let mut client = Client::new(&fixture);
        client.flags = flags;
        client.ask(request).unwrap();
        let granted = client.granted(Subject::Inode).map(|(aspects, _)| aspects);
        client.let_go();
        granted
    };
    let table = [
        (open(&file, READ_WRITE), Some(EXCLUSIVE), Some(both)),
        (open(&file, write), Some(EXCLUSIVE), None),
        (open(&file, write | OpenFlags::TRUNCATE), Some(EXCLUSIVE), None),
        (open(&file, read), Some(both), Some(both)),
        (create(&root, "file", write), Some(EXCLUSIVE), Some(both)),
        (create(&root, "file", read), Some(both), Some(both)),
        (get_attr(&file), Some(both), Some(both)),
        (unnamed(READ_WRITE), Some(EXCLUSIVE), Some(EXCLUSIVE)),
    ];
    for (request, alone, beside) in table {
        assert_eq!(asks(&request, Flags::LEASES | Flags::EXCLUSIVE), alone, "{request:?}");
        let shared = alone.map(|aspects| aspects - Aspects::WRITES).filter(|_| beside.is_some());
        assert_eq!(asks(&request, Flags::LEASES), shared, "{request:?}: who does not ask");
        let mut reader = Client::new(&fixture);
        // Whoever empties it takes this away first.
        if !matches!(request, Request::Open { flags, .. } if flags.contains(OpenFlags::TRUNCATE)) {
            reader.lease(&get_attr(&file));
            assert_eq!(asks(&request, Flags::LEASES | Flags::EXCLUSIVE), beside, "{request:?}: beside another");
            assert!(reader.is_left_alone(), "{request:?}");
        }
        reader.let_go();
    }
}

/// Else who has a file open for long would never have it again once somebody else has looked at it.
#[test]
fn who_writes_is_granted_it_when_others_are_done() {
    let mut state = State::new(quick());
    let look = state.looker.send(&get_attr(&state.file));
    let lease = state.holder.recalled();
    state.holder.give_back(&lease);
    state.looker.take(look).unwrap();
    let open = state.opened.id;
    let mut granted = |flags| {
        state.holder.flags = flags;
        let write = state.holder.send_write(open, b"new");
        state.holder.take(write).unwrap();
        state.holder.granted(Subject::Inode)
    };
    assert_eq!(granted(Flags::LEASES), None, "who does not ask");
    let (aspects, _) = granted(Flags::LEASES | Flags::EXCLUSIVE).expect("a lease");
    assert_eq!(aspects, EXCLUSIVE);
    let write = state.send_held();
    state.holder.take(write).unwrap();
    // What was not written grants nothing.
    let open = state.looker.ask(&self::open(&state.file, OpenFlags::READ)).unwrap().opened().unwrap().id;
    state.looker.flags = Flags::LEASES | Flags::EXCLUSIVE;
    let write = state.looker.send_write(open, b"new");
    let lease = state.holder.recalled();
    state.holder.give_back(&lease);
    assert_eq!(state.looker.take(write), Err(Errno::EBADF));
    assert!(state.looker.grants.is_empty());
}

/// It is waited for once, and what it sends then is not written any more.
#[test]
fn a_dead_holder_delays_others_once_and_is_refused_after_that() {
    let mut state = State::new(short());
    let before = Instant::now();
    let (_, second, _) = make(&mut state.holder, "second");
    let (looked, renewed) = (state.looker.send(&get_attr(&state.file)), Instant::now());
    state.looker.take(looked).unwrap();
    assert!(before.elapsed() >= LEASE + PATIENCE, "{:?}", before.elapsed());
    assert!(renewed.elapsed() < LEASE + PATIENCE + ANSWER + LATE, "{:?}", renewed.elapsed());
    let since = Instant::now();
    state.looker.ask(&look_up(&state.root, "file")).unwrap();
    let read = state.looker.send_read(state.open);
    assert_eq!(state.looker.take(read).unwrap(), b"");
    assert!(since.elapsed() < LEASE, "{:?}", since.elapsed());
    for _ in 0..2 {
        let write = state.send_held();
        assert_eq!(state.holder.take(write), Err(Errno::ESTALE));
    }
    // Where nobody has looked nothing is lost.
    let write = state.holder.send_held(second.id, HELD);
    state.holder.take(write).unwrap();
    assert_eq!(state.holder.recalled(), [state.lease]);
    state.holder.give_back(&[state.lease]);
    let write = state.send_held();
    assert_eq!(state.holder.take(write), Err(Errno::ESTALE));
    assert_eq!(state.size(), 0);
    // And it goes on as any other.
    let write = state.holder.send_write(state.opened.id, b"new");
    state.holder.take(write).unwrap();
}

/// A reply that was on its way when the holder wrote may not say what was before.
#[test]
fn a_flush_that_a_look_by_a_name_overtook_is_looked_at() {
    let mut gated = super::races::State::new(super::races::At::LookedUp);
    let mut holder = Client::exclusive(&gated.fixture);
    let opened = holder.ask(&open(&gated.file, READ_WRITE)).unwrap().opened().unwrap();
    let (aspects, lease) = holder.granted(Subject::Inode).unwrap();
    assert_eq!(aspects, EXCLUSIVE);
    std::fs::hard_link(gated.fixture.directory.path().join("file"), gated.fixture.directory.path().join("gated"))
        .unwrap();
    let root = gated.looker.root.clone();
    let look = gated.looker.send(&look_up(&root, "gated"));
    gated.came.recv().unwrap();
    let write = holder.send_held(opened.id, HELD);
    holder.take(write).unwrap();
    holder.give_back(&[lease]);
    holder.ask(&get_attr(&root)).unwrap();
    gated.goes.send(()).unwrap();
    gated.came.recv_timeout(LATE).expect("it looks again");
    gated.goes.send(()).unwrap();
    let entry = gated.looker.take(look).unwrap();
    assert_eq!(decode_reply(Op::Lookup, &entry).unwrap().entry().unwrap().attr.size, HELD.len() as u64);
}

#[test]
fn what_was_never_granted_cannot_be_held_back() {
    let mut state = State::new(quick());
    let (file, looker) = (state.file.clone(), &mut state.looker);
    let write = looker.send_held(state.open, b"hostile");
    assert_eq!(looker.take(write), Err(Errno::ESTALE));
    let write = looker.send_held_again(state.open, b"hostile");
    assert_eq!(looker.take(write), Err(Errno::ESTALE));
    let write = state.holder.send_held_append(state.opened.id, HELD, false);
    assert_eq!(state.holder.take(write), Err(Errno::EINVAL), "without a slot once more would do harm");
    assert!(state.holder.is_left_alone(), "nobody is asked for anything by that");
    state.holder.give_back(&[state.lease]);
    state.holder.ask(&get_attr(&state.root)).unwrap();
    looker.flags = Flags::LEASES;
    let shared = looker.lease(&get_attr(&file));
    let write = looker.send_held(state.open, b"hostile");
    assert_eq!(looker.take(write), Err(Errno::ESTALE), "{shared:?} does not do");
    let write = state.holder.send_held(state.opened.id, HELD);
    assert_eq!(state.holder.take(write), Err(Errno::ESTALE), "it has been given back");
    assert_eq!(state.size(), 0);
    // Where there are no leases neither.
    let none = Fixture::new();
    let mut client = Client::exclusive(&none);
    let root = client.root.clone();
    let (_, opened) = client.ask(&create(&root, "file", READ_WRITE)).unwrap().created().unwrap();
    assert!(client.grants.is_empty());
    let write = client.send_held(opened.id, b"hostile");
    assert_eq!(client.take(write), Err(Errno::ESTALE));
}

#[test]
fn looks_that_wait_are_few() {
    const MOST: usize = 3;
    let mut state = State::new(Limits { looks_of_client_max: MOST, looks_max: MOST + 1, ..quick() });
    let looks: Vec<_> = (0..MOST).map(|_| state.looker.send(&get_attr(&state.file))).collect();
    assert_eq!(state.holder.recalled(), [state.lease]);
    assert!(state.looker.waits());
    assert_eq!(state.looker.ask(&get_attr(&state.file)), Err(Errno::EAGAIN));
    let mut other = Client::plain(&state.fixture);
    let of_other = other.send(&get_attr(&state.file));
    assert!(other.waits());
    assert_eq!(other.ask(&get_attr(&state.file)), Err(Errno::EAGAIN), "they are of all clients");
    state.holder.give_back(&[state.lease]);
    for look in looks {
        state.looker.take(look).unwrap();
    }
    other.take(of_other).unwrap();
    state.looker.ask(&get_attr(&state.file)).unwrap();
}

/// Who may open a file is held back with its mode.
#[test]
fn modes_that_are_held_back_are_set_before_others_look() {
    let mut state = State::new(quick());
    let (file, root) = (state.file.clone(), state.root.clone());
    let look = state.looker.send(&open(&file, OpenFlags::READ));
    assert_eq!(state.holder.recalled(), [state.lease]);
    let (write, set) = (state.send_held(), state.holder.send_held_set(&chmod(&file, 0o640), false));
    state.holder.take(write).unwrap();
    let attr = decode_reply(Op::SetAttr, &state.holder.take(set).unwrap()).unwrap().attr().unwrap();
    assert_eq!((attr.mode & 0o7777, state.mode()), (0o640, 0o640));
    assert!(state.looker.waits());
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let none_such = [
        Request::SetAttr { handle: file.bytes(), open: None, set: size },
        Request::SetAttr { handle: root.bytes(), open: Some(state.opened.id), set: mode },
        Request::Unlink { parent: root.bytes(), name: b"file" },
    ];
    for (request, again) in none_such.iter().flat_map(|request| [(request, false), (request, true)]) {
        let set = state.holder.send_held_set(request, again);
        assert_eq!(state.holder.take(set), Err(Errno::EINVAL), "{request:?}");
    }
    state.holder.give_back(&[state.lease]);
    state.looker.take(look).unwrap();
    for again in [false, true] {
        let set = state.holder.send_held_set(&chmod(&file, 0o666), again);
        assert_eq!(state.holder.take(set), Err(Errno::ESTALE), "the lease has been given back");
        let set = state.looker.send_held_set(&chmod(&file, 0o666), again);
        assert_eq!(state.looker.take(set), Err(Errno::ESTALE), "nor has this one any");
    }
    assert_eq!((state.mode(), state.size()), (0o640, HELD.len() as u64));
}

#[test]
fn a_mode_that_was_held_back_is_set_once() {
    let mut state = State::new(quick());
    let mut body = Vec::new();
    let op = encode_request(&context(), &chmod(&state.file, 0o640), &mut body);
    let (slot, sequence, flags) = (9, 1000, Flags::HELD);
    let header = Header { op: op as u16, slot, sequence, request: 7, flags, ..Header::new(Kind::Request) };
    let peer = &mut state.holder.peer;
    peer.send(header, &body);
    let (first, reply) = peer.receive().unwrap();
    let path = state.fixture.directory.path().join("file");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    peer.send(Header { request: 8, flags: Flags::HELD | Flags::RETRY, ..header }, &body);
    let (again, same) = peer.receive().unwrap();
    assert_eq!((first.status, again.status, reply == same), (0, 0, true));
    assert_eq!(state.mode(), 0o600, "it is not executed again");
}

/// Another process takes the server's place; the holder has its connection to it, and what it had open, and has not recovered.
fn restarted(state: &mut State, limits: Limits) {
    state.fixture.kill();
    state.fixture.start_again(limits);
    reopen(state);
}

fn reopen(state: &mut State) {
    let (peer, reply) = state.fixture.joined(&state.holder.session);
    assert!(reply.recovering);
    state.holder.peer = peer;
    state.holder.ask(&Request::Reopen { open: state.opened.id, token: &state.opened.token }).unwrap();
}

fn recovered(client: &mut Client) {
    assert_eq!(client.peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
}

fn long() -> Limits {
    Limits { lease: Duration::from_secs(60), ..quick() }
}

#[test]
fn after_a_restart_who_looks_waits_for_what_was_held_back_before() {
    let mut state = State::new(long());
    restarted(&mut state, long());
    let (root, file) = (state.root.clone(), state.file.clone());
    let mut looker = Client::new(&state.fixture);
    let handle = root.bytes();
    let listing = looker.ask(&Request::OpenDirectory { handle }).unwrap().opened().unwrap().id;
    let page = Request::ReadDirectory { open: listing, cookie: 0, size: 4096, plus: true };
    let looks = [looker.send(&get_attr(&file)), looker.send(&look_up(&root, "file")), looker.send(&page)];
    let fetches = [looker.send_fetch(Op::Fetch, &file), looker.send_fetch(Op::List, &root)];
    let change = looker.send(&chmod(&file, 0o600));
    assert!(looker.waits());
    let write = state.holder.send_held_again(state.opened.id, HELD);
    state.holder.take(write).unwrap();
    let set = state.holder.send_held_set(&chmod(&file, 0o640), true);
    state.holder.take(set).unwrap();
    assert!(looker.waits(), "there may be more");
    recovered(&mut state.holder);
    let attr = decode_reply(Op::GetAttr, &looker.take(looks[0]).unwrap()).unwrap().attr().unwrap();
    assert_eq!(attr.size, HELD.len() as u64);
    assert!([0o640, 0o600].contains(&(attr.mode & 0o7777)), "as it was held back, or as it is changed now");
    for request in looks[1..].iter().chain(&fetches).chain([&change]) {
        looker.take(*request).unwrap();
    }
    let write = state.holder.send_held_again(state.opened.id, b"too late");
    assert_eq!(state.holder.take(write), Err(Errno::ESTALE));
}

#[test]
fn who_never_asked_to_hold_anything_back_is_not_waited_for_by_looks() {
    let fixture = Fixture::limited(long());
    let mut client = Client::new(&fixture);
    let root = client.root.clone();
    let (entry, opened) = client.ask(&create(&root, "file", READ_WRITE)).unwrap().created().unwrap();
    let mut state = State {
        looker: Client::plain(&fixture),
        lease: LeaseId(0),
        open: opened.id,
        file: entry.handle,
        holder: client,
        fixture,
        root,
        opened,
    };
    restarted(&mut state, long());
    let mut looker = Client::plain(&state.fixture);
    looker.ask(&get_attr(&state.file)).unwrap();
    let write = state.holder.send_held_again(state.opened.id, b"hostile");
    assert_eq!(state.holder.take(write), Err(Errno::ESTALE), "nor may it write so");
}

#[test]
fn while_anybody_may_believe_what_was_before_a_restart_nothing_exclusive_is_granted() {
    let mut state = State::new(long());
    restarted(&mut state, long());
    let mut other = Client::exclusive(&state.fixture);
    let root = other.root.clone();
    let made = Request::CreateUnnamed { parent: root.bytes(), mode: 0o600, umask: 0, flags: READ_WRITE };
    other.ask(&made).unwrap();
    assert_eq!(other.granted(Subject::Inode).unwrap().0, ATTRIBUTES | DATA);
    recovered(&mut state.holder);
    other.ask(&made).unwrap();
    assert_eq!(other.granted(Subject::Inode).unwrap().0, EXCLUSIVE);
}

/// Wherever the end is then; a repeat is known by its slot, and by nothing that stands in the file.
#[test]
fn an_append_that_was_held_back_is_executed_once() {
    let mut state = State::new(long());
    let path = state.fixture.directory.path().join("file");
    let theirs = || {
        let file = std::fs::OpenOptions::new().append(true).open(&path);
        std::io::Write::write_all(&mut file.unwrap(), b"tick").unwrap();
    };
    // How many records there are behind it.
    let append = |state: &mut State| {
        let write = state.holder.send_held_append(state.opened.id, b"tick", true);
        state.holder.take(write)?;
        Ok(std::fs::read(&path).unwrap().len() / 4)
    };
    theirs();
    assert_eq!(append(&mut state), Ok(2));
    state.holder.repeats();
    assert_eq!(append(&mut state), Ok(2));
    theirs();
    restarted(&mut state, long());
    (0..2).for_each(|_| state.holder.repeats()); // Reopen was the latest
    assert_eq!(append(&mut state), Ok(3), "the process before has executed it");
    assert_eq!(append(&mut state), Ok(4), "and this one it was not sent");
    assert_eq!(std::fs::read(&path).unwrap(), b"tick".repeat(4));
    recovered(&mut state.holder);
    assert_eq!(append(&mut state), Err(Errno::ESTALE), "it has no lease any more");
    state.holder.repeats();
    assert_eq!(append(&mut state), Err(Errno::ESTALE), "and that is so for ever");
}

/// An append of before the restart, that comes when others go on.
#[test]
fn an_append_that_was_held_back_and_comes_too_late_is_refused() {
    let mut state = State::new(short());
    state.fixture.kill();
    state.fixture.start_again(short());
    Client::plain(&state.fixture).ask(&get_attr(&state.file)).unwrap();
    reopen(&mut state);
    let write = state.holder.send_held_append(state.opened.id, HELD, true);
    assert_eq!(state.holder.take(write), Err(Errno::ESTALE));
    assert_eq!(state.size(), 0);
    recovered(&mut state.holder);
}

/// Also by the process after the one that did not wait any longer.
#[test]
fn who_recovers_too_late_after_a_restart_is_refused() {
    for restarts_again in [false, true] {
        let mut state = State::new(short());
        state.fixture.kill();
        let start = Instant::now();
        state.fixture.start_again(short());
        let mut looker = Client::plain(&state.fixture);
        looker.ask(&get_attr(&state.file)).unwrap();
        let took = start.elapsed();
        assert!(took >= LEASE + PATIENCE && took < LEASE + PATIENCE + LATE, "{took:?}");
        if restarts_again {
            restarted(&mut state, long());
        } else {
            reopen(&mut state);
        }
        let write = state.holder.send_held_again(state.opened.id, HELD);
        assert_eq!(state.holder.take(write), Err(Errno::ESTALE));
        assert_eq!(state.size(), 0);
        recovered(&mut state.holder);
    }
}

/// A lease that was broken stays so over a restart; until its client has understood.
#[test]
fn a_restart_does_not_mend_what_was_broken() {
    for understands in [false, true] {
        let limits = Limits { lease: 3 * LEASE, ..short() };
        let mut state = State::new(limits.clone());
        state.looker.ask(&get_attr(&state.file)).unwrap();
        if understands {
            assert_eq!(state.holder.recalled(), [state.lease]);
            state.holder.give_back(&[state.lease]);
            (state.file, state.opened, _) = make(&mut state.holder, "new");
        }
        restarted(&mut state, limits);
        let write = state.holder.send_held_again(state.opened.id, HELD);
        let refused = if understands { None } else { Some(Errno::ESTALE) };
        assert_eq!(state.holder.take(write).err(), refused);
        recovered(&mut state.holder);
    }
}
