//! A server that dies between executing a request and answering it: the repeat finds it executed exactly once, and has the first try's answer.

mod common;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_server::Moment;
use aqueduct_wire::*;
use common::*;

const MOMENTS: [Moment; 3] = [Moment::Intended, Moment::Executed, Moment::Remembered];
const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// What requests are about: an empty directory `directory`, and a file `file` with the content `0123`, which is open.
struct State {
    fixture: Fixture,
    session: HelloReply,
    peer: Peer,
    root: Handle,
    file: Handle,
    open: Opened,
}

impl State {
    fn new() -> State {
        let fixture = Fixture::surviving();
        let (mut peer, session, root) = fixture.attached();
        peer.ask((0, 1), &make_directory(&root, "directory")).unwrap();
        let (entry, open) = peer.create((0, 2), &root, "file", READ_WRITE).unwrap();
        peer.write((0, 3), &WriteAt { open: open.id, offset: 0, append: false, stable: false }, b"0123").unwrap();
        State { fixture, session, peer, root, file: entry.handle, open }
    }

    fn path(&self) -> &Path {
        self.fixture.directory.path()
    }

    /// Has the server die when a request comes to `moment`.
    fn die(&mut self, moment: Moment, send: impl FnOnce(&mut Peer)) {
        let (died, deaths) = mpsc::channel();
        let dead = AtomicBool::new(false);
        self.fixture.server.set_failpoint(move |now| {
            if now == moment && !dead.swap(true, Ordering::SeqCst) {
                let _ = died.send(());
            }
            dead.load(Ordering::SeqCst)
        });
        send(&mut self.peer);
        deaths.recv_timeout(Duration::from_secs(5)).expect("the request comes to that moment");
        self.fixture.restart();
    }

    fn recover(&mut self) {
        self.peer = self.fixture.recovered(&self.session, &[&self.open]);
    }
}

type Build = for<'a> fn(&'a State) -> Request<'a>;
type Answer = Result<Reply, Errno>;

/// Sends a request in its slot, has the server die at each of the moments, repeats it, and looks at the directory and the answer.
fn repeat(prepare: fn(&mut State), build: Build, meanwhile: fn(&Path), check: fn(&Path, Answer)) {
    for moment in MOMENTS {
        let mut state = State::new();
        let path = state.fixture.directory.path().to_owned();
        prepare(&mut state);
        let mut body = Vec::new();
        let op = encode_request(&context(), &build(&state), &mut body);
        state.die(moment, |peer| _ = peer.request(op, (1, 1), &body));
        state.recover();
        if moment != Moment::Intended {
            meanwhile(&path);
        }
        let answer = state.peer.call(op, (1, 1), &body);
        println!("{moment:?}: {:?}", answer.0.status);
        check(&path, result(op, answer));
    }
}

fn nothing(_: &Path) {}

fn as_it_is(_: &mut State) {}

fn is_entry(path: &Path, answer: Answer) {
    let entry = answer.unwrap().entry().unwrap();
    assert_eq!(entry.attr.ino, std::fs::symlink_metadata(path).unwrap().ino());
}

#[test]
fn make_directory_once() {
    let build: Build = |state| make_directory(&state.root, "new");
    repeat(as_it_is, build, nothing, |path, answer| is_entry(&path.join("new"), answer));
    repeat(
        |state| {
            std::fs::create_dir(state.path().join("new")).unwrap();
        },
        build,
        nothing,
        |_, answer| assert_eq!(answer, Err(Errno::EEXIST), "as the first try"),
    );
}

#[test]
fn make_node_once() {
    let build: Build =
        |state| Request::MakeNode { parent: state.root.bytes(), name: b"new", mode: 0o010_644, umask: 0, rdev: 0 };
    repeat(as_it_is, build, nothing, |path, answer| {
        assert!(std::fs::metadata(path.join("new")).unwrap().file_type().is_fifo());
        is_entry(&path.join("new"), answer);
    });
}

#[test]
fn symlink_once() {
    let build: Build = |state| Request::Symlink { parent: state.root.bytes(), name: b"new", text: b"where" };
    repeat(as_it_is, build, nothing, |path, answer| is_entry(&path.join("new"), answer));
}

#[test]
fn link_once() {
    let build: Build = |state| Request::Link { handle: state.file.bytes(), parent: state.root.bytes(), name: b"new" };
    repeat(as_it_is, build, nothing, |path, answer| {
        is_entry(&path.join("new"), answer);
        assert_eq!(std::fs::metadata(path.join("file")).unwrap().nlink(), 2);
    });
    let taken = |state: &mut State| std::fs::write(state.path().join("new"), b"another's").unwrap();
    repeat(taken, build, nothing, |_, answer| assert_eq!(answer, Err(Errno::EEXIST)));
}

#[test]
fn create_exclusively_once() {
    const MODE: u32 = 0o200;
    let build: Build = |state| Request::Create {
        parent: state.root.bytes(),
        name: b"new",
        mode: MODE,
        umask: 0,
        flags: READ_WRITE | OpenFlags::EXCLUSIVE,
    };
    repeat(as_it_is, build, nothing, |path, answer| {
        let (entry, _) = answer.unwrap().created().unwrap();
        let stat = std::fs::metadata(path.join("new")).unwrap();
        assert_eq!((entry.attr.ino, entry.attr.mode & 0o7777), (stat.ino(), MODE));
    });
    repeat(
        |state| {
            std::fs::write(state.path().join("new"), b"").unwrap();
        },
        build,
        nothing,
        |_, answer| assert_eq!(answer, Err(Errno::EEXIST)),
    );
}

#[test]
fn a_user_has_open_what_he_created_whatever_its_mode() {
    for (moment, exclusive) in MOMENTS.into_iter().flat_map(|moment| [(moment, true), (moment, false)]) {
        let mut state = State::new();
        let path = state.fixture.directory.path().to_owned();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let credential = Credential { uid: 1000, gid: 1000, groups: Groups::Known([].into()) };
        let user = Context::new(ClientId(0), credential);
        let mut flags = READ_WRITE;
        flags.set(OpenFlags::EXCLUSIVE, exclusive);
        let create = Request::Create { parent: state.root.bytes(), name: b"new", mode: 0o400, umask: 0, flags };
        let mut body = Vec::new();
        encode_request(&user, &create, &mut body);
        state.die(moment, |peer| _ = peer.request(Op::Create, (1, 1), &body));
        state.recover();
        let answer = state.peer.call(Op::Create, (1, 1), &body);
        let opened = result(Op::Create, answer).unwrap().created().unwrap().1;
        let mut body = Vec::new();
        let write = WriteAt { open: opened.id, offset: 0, append: false, stable: false };
        encode_write(&user, &write, &mut body);
        let written = state.peer.call_with(Op::Write, (1, 2), &body, b"mine");
        assert_eq!(result(Op::Write, written).unwrap().written().unwrap().count, 4);
        // And after one more restart: his own file, whoever had opened it for him.
        state.fixture.restart();
        let (mut peer, _) = state.fixture.joined(&state.session);
        let mut again = Vec::new();
        encode_request(&user, &Request::Reopen { open: opened.id, token: &opened.token }, &mut again);
        result(Op::Reopen, peer.call(Op::Reopen, (0, 0), &again)).unwrap();
        let written = peer.call_with(Op::Write, (1, 3), &body, b"mine");
        assert_eq!(result(Op::Write, written).unwrap().written().unwrap().count, 4);
        assert_eq!(std::fs::metadata(path.join("new")).unwrap().uid(), 1000);
    }
}

#[test]
fn unlink_once() {
    let build: Build = |state| Request::Unlink { parent: state.root.bytes(), name: b"file" };
    repeat(as_it_is, build, nothing, |path, answer| {
        assert_eq!(answer, Ok(Reply::Done));
        assert!(!path.join("file").exists());
    });
    // Somebody else makes the name anew before the repeat comes.
    let again = |path: &Path| std::fs::write(path.join("file"), b"another").unwrap();
    repeat(as_it_is, build, again, |path, answer| {
        assert_eq!(answer, Ok(Reply::Done));
        assert!(std::fs::read(path.join("file")).map_or(true, |data| data == b"another"));
    });
}

#[test]
fn remove_directory_once() {
    let build: Build = |state| Request::RemoveDirectory { parent: state.root.bytes(), name: b"directory" };
    repeat(as_it_is, build, nothing, |path, answer| {
        assert_eq!(answer, Ok(Reply::Done));
        assert!(!path.join("directory").exists());
    });
    let full = |state: &mut State| std::fs::write(state.path().join("directory/x"), b"").unwrap();
    repeat(full, build, nothing, |_, answer| assert_eq!(answer, Err(Errno::ENOTEMPTY)));
}

fn rename<'a>(state: &'a State, flags: RenameFlags) -> Request<'a> {
    let root = state.root.bytes();
    Request::Rename { parent: root, name: b"file", new_parent: root, new_name: b"other", flags }
}

fn other(state: &mut State) {
    std::fs::write(state.path().join("other"), b"other").unwrap();
}

#[test]
fn rename_once() {
    let moved = |path: &Path, answer: Answer| {
        assert_eq!(answer, Ok(Reply::Done));
        assert!(!path.join("file").exists());
        assert_eq!(std::fs::read(path.join("other")).unwrap(), b"0123");
    };
    repeat(as_it_is, |state| rename(state, RenameFlags::empty()), nothing, moved);
    repeat(other, |state| rename(state, RenameFlags::empty()), nothing, moved);
    repeat(as_it_is, |state| rename(state, RenameFlags::NOREPLACE), nothing, moved);
    repeat(
        other,
        |state| rename(state, RenameFlags::NOREPLACE),
        nothing,
        |_, answer| {
            assert_eq!(answer, Err(Errno::EEXIST));
        },
    );
    // Somebody else makes the old name anew before the repeat comes.
    let again = |path: &Path| std::fs::write(path.join("file"), b"new").unwrap();
    repeat(
        as_it_is,
        |state| rename(state, RenameFlags::empty()),
        again,
        |path, answer| {
            assert_eq!(answer, Ok(Reply::Done));
            assert_eq!(std::fs::read(path.join("other")).unwrap(), b"0123");
        },
    );
}

#[test]
fn exchange_once() {
    repeat(
        other,
        |state| rename(state, RenameFlags::EXCHANGE),
        nothing,
        |path, answer| {
            assert_eq!(answer, Ok(Reply::Done));
            assert_eq!(std::fs::read(path.join("file")).unwrap(), b"other");
            assert_eq!(std::fs::read(path.join("other")).unwrap(), b"0123");
        },
    );
}

#[test]
fn set_and_remove_xattr_once() {
    let set: Build = |state| Request::SetXattr {
        handle: state.file.bytes(),
        name: b"user.x",
        value: b"value",
        mode: XattrMode::Create,
    };
    repeat(as_it_is, set, nothing, |_, answer| assert_eq!(answer, Ok(Reply::Done)));
    let there = |state: &mut State| {
        let (handle, mode) = (state.file.clone(), XattrMode::Any);
        let set = Request::SetXattr { handle: handle.bytes(), name: b"user.x", value: b"value", mode };
        state.peer.ask((0, 4), &set).unwrap();
    };
    repeat(there, set, nothing, |_, answer| assert_eq!(answer, Err(Errno::EEXIST)));
    let remove: Build = |state| Request::RemoveXattr { handle: state.file.bytes(), name: b"user.x" };
    repeat(there, remove, nothing, |_, answer| assert_eq!(answer, Ok(Reply::Done)));
    repeat(as_it_is, remove, nothing, |_, answer| assert_eq!(answer, Err(Errno::ENODATA)));
}

#[test]
fn what_may_be_executed_again_is() {
    let set: Build = |state| Request::SetAttr {
        handle: state.file.bytes(),
        open: None,
        set: SetAttr { size: Some(2), ..SetAttr::default() },
    };
    repeat(as_it_is, set, nothing, |path, answer| {
        assert_eq!(answer.unwrap().attr().unwrap().size, 2);
        assert_eq!(std::fs::read(path.join("file")).unwrap(), b"01");
    });
    let create: Build =
        |state| Request::Create { parent: state.root.bytes(), name: b"new", mode: 0o644, umask: 0, flags: READ_WRITE };
    repeat(as_it_is, create, nothing, |_, answer| drop(answer.unwrap()));
    repeat(
        as_it_is,
        |state| set_lock(state.open.id, 1, LockKind::Write, false),
        nothing,
        |_, answer| {
            assert_eq!(answer, Ok(Reply::Done));
        },
    );
    repeat(
        as_it_is,
        |state| Request::Release { open: state.open.id },
        nothing,
        |_, answer| {
            assert_eq!(answer, Ok(Reply::Done));
        },
    );
}

#[test]
fn append_once() {
    for moment in MOMENTS {
        let mut state = State::new();
        let path = state.fixture.directory.path().join("file");
        let append = WriteAt { open: state.open.id, offset: 0, append: true, stable: false };
        let mut body = Vec::new();
        encode_write(&context(), &append, &mut body);
        state.die(moment, |peer| peer.send_with(Op::Write, (1, 1), &body, b"once"));
        state.recover();
        // Another client appends the same before the repeat comes.
        let (mut other, _, root) = state.fixture.attached();
        let (_, others) = other.create((0, 1), &root, "file", READ_WRITE).unwrap();
        other.write((0, 2), &WriteAt { open: others.id, ..append }, b"once").unwrap();
        let written = state.peer.write((1, 1), &append, b"once").unwrap();
        assert_eq!((written.count, &std::fs::read(&path).unwrap()[..]), (4, &b"0123onceonce"[..]), "{moment:?}");
        assert_eq!(state.peer.write((1, 2), &append, b"4").unwrap().count, 1);
    }
}

/// Another client makes the file longer or shorter between what is written down of an append and
/// the append, unless it has to wait; then the server dies.
fn append_while(others: impl Fn(&mut Peer, &State, OpenId)) {
    let mut state = State::new();
    let path = state.fixture.directory.path().join("file");
    let (mut other, _, root) = state.fixture.attached();
    let (_, open) = other.create((0, 1), &root, "file", READ_WRITE).unwrap();
    let ((intends, intended), (died, deaths)) = (mpsc::channel(), mpsc::channel());
    let (dead, begun) = (AtomicBool::new(false), Mutex::new(None));
    state.fixture.server.set_failpoint(move |moment| {
        let is_dead = || dead.load(Ordering::SeqCst);
        match moment {
            Moment::Intended if begun.lock().unwrap().is_none() => {
                *begun.lock().unwrap() = Some(0u32);
                intends.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100)); // time for the other, if nothing holds it
            }
            Moment::Intended if !is_dead() => *begun.lock().unwrap().as_mut().unwrap() += 1,
            Moment::Executed if !is_dead() => match begun.lock().unwrap().as_mut().unwrap() {
                0 => {
                    dead.store(true, Ordering::SeqCst);
                    died.send(()).unwrap();
                }
                others => *others -= 1,
            },
            _ => {}
        }
        is_dead()
    });
    let append = WriteAt { open: state.open.id, offset: 0, append: true, stable: false };
    let mut body = Vec::new();
    encode_write(&context(), &append, &mut body);
    state.peer.send_with(Op::Write, (1, 1), &body, b"once");
    intended.recv_timeout(Duration::from_secs(5)).unwrap();
    others(&mut other, &state, open.id);
    deaths.recv_timeout(Duration::from_secs(5)).expect("the append is executed");
    state.fixture.restart();
    state.recover();
    assert_eq!(state.peer.write((1, 1), &append, b"once").unwrap().count, 4);
    let content = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(content, "0123once");
}

#[test]
fn an_append_is_made_once_whatever_else_changes_the_size_meanwhile() {
    append_while(|other, _, open| {
        let mut body = Vec::new();
        encode_write(&context(), &WriteAt { open, offset: 4, append: false, stable: false }, &mut body);
        other.send_with(Op::Write, (0, 2), &body, b"longer");
    });
    let ask = |other: &mut Peer, request: &Request<'_>| _ = gate::send(other, (0, 2), request);
    append_while(|other, state, _| {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        ask(other, &Request::SetAttr { handle: state.file.bytes(), open: None, set });
    });
    let flags = READ_WRITE | OpenFlags::TRUNCATE;
    append_while(|other, state, _| ask(other, &Request::Open { handle: state.file.bytes(), flags }));
    append_while(|other, state, _| {
        ask(other, &Request::Create { parent: state.root.bytes(), name: b"file", mode: 0o644, umask: 0, flags });
    });
    append_while(|other, _, open| {
        ask(other, &Request::Fallocate { open, offset: 0, length: 100, flags: FallocateFlags::empty() });
    });
}

/// Files whose bytes lie at a server that does not answer.
struct Silent(Lower);

impl layer::Layer for Silent {
    type Below = dyn FileSystem;

    fn below(&self) -> &(dyn FileSystem + 'static) {
        &*self.0
    }

    fn read<'a>(&'a self, _: &'a Context, _: ReadAt, _: Box<dyn Sink>) -> Call<'a, usize> {
        Call::waiting(std::future::pending())
    }
}

/// The server starts, and the append of which nobody can tell is not made twice.
#[test]
fn a_start_waits_for_no_file_that_does_not_answer() {
    let mut state = State::new();
    let path = state.path().join("file");
    let append = WriteAt { open: state.open.id, offset: 0, append: true, stable: false };
    let mut body = Vec::new();
    encode_write(&context(), &append, &mut body);
    let (died, deaths) = mpsc::channel();
    state.fixture.server.set_failpoint(move |now| now == Moment::Executed && died.send(()).is_ok());
    state.peer.send_with(Op::Write, (1, 1), &body, b"once");
    deaths.recv_timeout(Duration::from_secs(5)).expect("the request comes to that moment");
    state.fixture.kill();
    state.fixture.start_again_over(limits(), |lower| std::sync::Arc::new(Silent(lower)));
    state.recover();
    assert_eq!(state.peer.write((1, 1), &append, b"once"), Err(Errno::EIO));
    assert_eq!(state.peer.write((1, 2), &append, b"4").unwrap().count, 1);
    assert_eq!(std::fs::read(&path).unwrap(), b"0123once4");
}

/// A signal that kills ends a long write in the middle.
#[test]
fn an_append_that_was_cut_short_says_so() {
    let mut state = State::new();
    let path = state.fixture.directory.path().join("file");
    let append = WriteAt { open: state.open.id, offset: 0, append: true, stable: false };
    let mut body = Vec::new();
    encode_write(&context(), &append, &mut body);
    let cut = path.clone();
    state.fixture.server.set_failpoint(move |moment| {
        if moment == Moment::Executed {
            std::fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(7).unwrap();
        }
        moment == Moment::Executed
    });
    state.peer.send_with(Op::Write, (1, 1), &body, b"abcdef");
    while std::fs::metadata(&path).unwrap().len() != 7 {
        std::thread::sleep(Duration::from_millis(5));
    }
    state.fixture.restart();
    state.recover();
    assert_eq!(state.peer.write((1, 1), &append, b"abcdef").unwrap().count, 3);
    assert_eq!(std::fs::read(&path).unwrap(), b"0123abc");
}

#[test]
fn a_compound_that_was_begun_is_not_repeated() {
    for moment in MOMENTS {
        let mut state = State::new();
        let mut body = Vec::new();
        encode_compound(&context(), &[make_directory(&state.root, "new")], &mut body);
        state.die(moment, |peer| _ = peer.request(Op::Compound, (1, 1), &body));
        state.recover();
        assert_eq!(state.peer.call(Op::Compound, (1, 1), &body).0.status as i32, Errno::EIO.raw());
    }
}

/// Two ask for the same thing, of which one can have it, and neither hears of it before the server dies: then one is told that he has it.
fn race(build: Build, loser: Errno) {
    for _ in 0..2 {
        let mut state = State::new();
        let (mut other, others, _) = state.fixture.attached();
        let mut body = Vec::new();
        let op = encode_request(&context(), &build(&state), &mut body);
        let (died, deaths) = mpsc::channel();
        state.fixture.server.set_failpoint(move |moment| {
            if moment == Moment::Intended {
                std::thread::sleep(Duration::from_millis(50)); // time for the other to come as far, if nothing holds it
            }
            moment == Moment::Executed && died.send(()).is_ok()
        });
        state.peer.request(op, (1, 1), &body);
        other.request(op, (1, 1), &body);
        for _ in 0..2 {
            deaths.recv_timeout(Duration::from_secs(5)).expect("both are executed");
        }
        state.fixture.restart();
        state.recover();
        let mut other = state.fixture.recovered(&others, &[]);
        let answers = [state.peer.call(op, (1, 1), &body), other.call(op, (1, 1), &body)];
        let mut statuses = answers.map(|(header, _)| header.status as i32);
        statuses.sort_unstable();
        assert_eq!(statuses, [0, loser.raw()], "{op:?}");
    }
}

#[test]
fn of_two_who_race_one_wins() {
    race(|state| make_directory(&state.root, "new"), Errno::EEXIST);
    race(|state| Request::Unlink { parent: state.root.bytes(), name: b"file" }, Errno::ENOENT);
    race(|state| rename(state, RenameFlags::NOREPLACE), Errno::ENOENT);
    let link: Build = |state| Request::Link { handle: state.file.bytes(), parent: state.root.bytes(), name: b"new" };
    race(link, Errno::EEXIST);
}

/// Between a rename and its reply somebody renames back: were he told so, and the server died, the
/// first rename would look as if it had not been executed, and its repeat would undo his.
#[test]
fn names_are_kept_from_others_until_the_reply_is_remembered() {
    let mut state = State::new();
    let (mut other, ..) = state.fixture.attached();
    let ((executes, executed), (goes_on, ends)) = (mpsc::channel(), mpsc::channel());
    let first = Mutex::new(Some(ends));
    state.fixture.server.set_failpoint(move |moment| {
        let first = (moment == Moment::Executed).then(|| first.lock().unwrap().take()).flatten();
        if let Some(ends) = first {
            executes.send(()).unwrap();
            ends.recv_timeout(gate::LONG).unwrap();
        }
        false
    });
    let mut body = Vec::new();
    let op = encode_request(&context(), &rename(&state, RenameFlags::empty()), &mut body);
    state.peer.request(op, (1, 1), &body);
    executed.recv_timeout(gate::LONG).unwrap();
    let root = state.root.bytes();
    let flags = RenameFlags::empty();
    let back = Request::Rename { parent: root, name: b"other", new_parent: root, new_name: b"file", flags };
    gate::send(&mut other, (1, 1), &back);
    other.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(other.receive().is_none(), "it is answered before the first");
    goes_on.send(()).unwrap();
    other.stream.set_read_timeout(Some(gate::LONG)).unwrap();
    let answers = [state.peer.receive().unwrap(), other.receive().unwrap()];
    assert_eq!(answers.map(|(header, _)| header.status), [0, 0]);
    assert!(state.path().join("file").exists() && !state.path().join("other").exists());
}
