//! What changes recall, and who waits.

use aqueduct_fs::*;
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

/// Two directories, with files and directories in them.
#[derive(Clone)]
struct Places {
    root: Handle,
    one: Handle,
    other: Handle,
    file: Handle,
    victim: Handle,
    directory: Handle,
    empty: Handle,
    /// The file, opened by the changer.
    open: OpenId,
}

/// One client that holds leases, and one that changes what they cover.
struct Tree {
    fixture: Fixture,
    holder: Client,
    changer: Client,
    places: Places,
}

impl Tree {
    fn new() -> Tree {
        let fixture = Fixture::limited(quick());
        let path = fixture.directory.path();
        for directory in ["one", "other", "one/directory", "other/empty"] {
            std::fs::create_dir(path.join(directory)).unwrap();
        }
        std::fs::write(path.join("one/file"), "content").unwrap();
        std::fs::write(path.join("other/victim"), "victim").unwrap();
        let (holder, mut changer) = (Client::new(&fixture), Client::plain(&fixture));
        let root = changer.root.clone();
        let mut look = |parent: &Handle, name| changer.ask(&look_up(parent, name)).unwrap().entry().unwrap().handle;
        let (one, other) = (look(&root, "one"), look(&root, "other"));
        let (file, victim) = (look(&one, "file"), look(&other, "victim"));
        let (directory, empty) = (look(&one, "directory"), look(&other, "empty"));
        let open = Request::Open { handle: file.bytes(), flags: READ_WRITE };
        let open = changer.ask(&open).unwrap().opened().unwrap().id;
        let places = Places { root, one, other, file, victim, directory, empty, open };
        Tree { fixture, holder, changer, places }
    }

    /// Has the holder take a lease that covers this aspect, and no more than it must.
    fn hold(&mut self, handle: &Handle, aspect: Aspects) -> LeaseId {
        if aspect == NAMES {
            self.holder.ask(&look_up(handle, "absent")).unwrap_err();
            return self.holder.granted(Subject::Parent).expect("a lease").1;
        }
        if aspect == DATA {
            return self.holder.lease(&Request::Open { handle: handle.bytes(), flags: OpenFlags::READ });
        }
        self.holder.lease(&Request::ListXattr { handle: handle.bytes(), size: 100 })
    }
}

type Picks = fn(&Places) -> Vec<(&Handle, Aspects)>;
type Send = fn(&mut Client, &Places) -> u64;

/// In a new tree: `send` changes something that waits for each of the first leases, and is made as soon as they are given back; the others are left alone.
fn check(what: &str, recalled: Picks, left: Picks, send: Send) {
    let mut tree = Tree::new();
    let places = tree.places.clone();
    let mut expected: Vec<LeaseId> = recalled(&places).into_iter().map(|(at, aspect)| tree.hold(at, aspect)).collect();
    let mut kept: Vec<LeaseId> = left(&places).into_iter().map(|(at, aspect)| tree.hold(at, aspect)).collect();
    let id = send(&mut tree.changer, &places);
    let mut asked = Vec::new();
    while asked.len() < expected.len() {
        asked.extend(tree.holder.recalled());
    }
    asked.sort();
    expected.sort();
    assert_eq!(asked, expected, "{what}");
    for lease in &asked {
        assert!(tree.changer.waits(), "{what}: it waits for all");
        tree.holder.give_back(&[*lease]);
    }
    tree.changer.take(id).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(tree.holder.is_left_alone(), "{what}");
    // What was left alone is still there to be asked for.
    tree.fixture.server.changed_everything();
    let mut still = Vec::new();
    while still.len() < kept.len() {
        still.extend(tree.holder.recalled());
    }
    still.sort();
    kept.sort();
    assert_eq!(still, kept, "{what}");
}

const EMPTY: SetAttr = SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

#[test]
fn data() {
    let recalled: Picks = |at| vec![(&at.file, DATA)];
    let left: Picks = |at| vec![(&at.one, ATTRIBUTES), (&at.other, NAMES), (&at.victim, DATA)];
    check("a write", recalled, left, |client, at| client.send_write(at.open, b"new"));
    check("a write that was lost", recalled, left, |client, at| client.send_write_again(at.open, b"new"));
    check("fallocate", recalled, left, |client, at| {
        let flags = FallocateFlags::empty();
        client.send(&Request::Fallocate { open: at.open, offset: 0, length: 4096, flags })
    });
    check("a copy", recalled, left, |client, at| {
        let open = Request::Open { handle: at.victim.bytes(), flags: OpenFlags::READ };
        let from = client.ask(&open).unwrap().opened().unwrap().id;
        client.send(&Request::CopyRange { from, from_offset: 0, to: at.open, to_offset: 0, length: 6 })
    });
    check("an open that empties", recalled, left, |client, at| {
        client.send(&Request::Open { handle: at.file.bytes(), flags: OpenFlags::WRITE | OpenFlags::TRUNCATE })
    });
    check("a create that empties", recalled, left, |client, at| {
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        client.send(&Request::Create { parent: at.one.bytes(), name: b"file", mode: 0o600, umask: 0, flags })
    });
    check("truncate", recalled, left, |client, at| {
        let set = SetAttr { size: Some(1), ..EMPTY };
        client.send(&Request::SetAttr { handle: at.file.bytes(), open: None, set })
    });
    check("a compound", recalled, left, |client, at| {
        let set = SetAttr { size: Some(1), ..EMPTY };
        let look = Request::Lookup { parent: at.one.bytes(), name: b"file" };
        client.send_compound(&[look, Request::SetAttr { handle: b"", open: None, set }])
    });
}

#[test]
fn attributes() {
    let recalled: Picks = |at| vec![(&at.file, ATTRIBUTES)];
    let left: Picks = |at| vec![(&at.one, ATTRIBUTES), (&at.other, NAMES), (&at.victim, DATA)];
    check("chmod", recalled, left, |client, at| client.send(&chmod(&at.file, 0o600)));
    check("setxattr", recalled, left, |client, at| {
        let mode = XattrMode::Any;
        client.send(&Request::SetXattr { handle: at.file.bytes(), name: b"user.a", value: b"1", mode })
    });
}

#[test]
fn names() {
    let recalled: Picks = |at| vec![(&at.one, NAMES)];
    let left: Picks = |at| vec![(&at.other, NAMES), (&at.file, DATA), (&at.root, NAMES)];
    check("create", recalled, left, |client, at| {
        let flags = OpenFlags::WRITE;
        client.send(&Request::Create { parent: at.one.bytes(), name: b"new", mode: 0o600, umask: 0, flags })
    });
    check("mkdir", recalled, left, |client, at| client.send(&make_directory(&at.one, "new")));
    check("mknod", recalled, left, |client, at| {
        let (mode, umask, rdev) = (0o100_600, 0, 0);
        client.send(&Request::MakeNode { parent: at.one.bytes(), name: b"new", mode, umask, rdev })
    });
    check("symlink", recalled, left, |client, at| {
        client.send(&Request::Symlink { parent: at.one.bytes(), name: b"new", text: b"text" })
    });
    let attributes: Picks = |at| vec![(&at.one, ATTRIBUTES)];
    check("its times", attributes, left, |client, at| client.send(&make_directory(&at.one, "new")));
    let linked: Picks = |at| vec![(&at.other, NAMES), (&at.file, ATTRIBUTES)];
    let left: Picks = |at| vec![(&at.one, NAMES), (&at.victim, DATA)];
    check("link", linked, left, |client, at| {
        client.send(&Request::Link { handle: at.file.bytes(), parent: at.other.bytes(), name: b"new" })
    });
    let unlinked: Picks = |at| vec![(&at.other, NAMES), (&at.victim, ATTRIBUTES)];
    let left: Picks = |at| vec![(&at.one, NAMES), (&at.file, DATA), (&at.empty, NAMES)];
    check("unlink", unlinked, left, |client, at| {
        client.send(&Request::Unlink { parent: at.other.bytes(), name: b"victim" })
    });
    let removed: Picks = |at| vec![(&at.other, NAMES), (&at.empty, ATTRIBUTES)];
    let left: Picks = |at| vec![(&at.one, NAMES), (&at.file, DATA), (&at.victim, DATA)];
    check("rmdir", removed, left, |client, at| {
        client.send(&Request::RemoveDirectory { parent: at.other.bytes(), name: b"empty" })
    });
}

fn rename<'a>(at: &'a Places, name: &'a str, new_name: &'a str, flags: RenameFlags) -> Request<'a> {
    let (parent, new_parent) = (at.one.bytes(), at.other.bytes());
    Request::Rename { parent, name: name.as_bytes(), new_parent, new_name: new_name.as_bytes(), flags }
}

#[test]
fn renames() {
    let all: Picks = |at| vec![(&at.one, NAMES), (&at.other, NAMES), (&at.file, ATTRIBUTES), (&at.victim, ATTRIBUTES)];
    let left: Picks = |at| vec![(&at.root, NAMES), (&at.directory, NAMES), (&at.empty, ATTRIBUTES)];
    check("rename over another", all, left, |client, at| {
        client.send(&rename(at, "file", "victim", RenameFlags::empty()))
    });
    check("exchange", all, left, |client, at| client.send(&rename(at, "file", "victim", RenameFlags::EXCHANGE)));
    let moved: Picks = |at| vec![(&at.one, NAMES), (&at.other, NAMES), (&at.directory, NAMES)];
    let left: Picks = |at| vec![(&at.root, NAMES), (&at.file, DATA), (&at.empty, ATTRIBUTES), (&at.victim, DATA)];
    check("a directory that moves", moved, left, |client, at| {
        client.send(&rename(at, "directory", "new", RenameFlags::empty()))
    });
    let replaced: Picks = |at| vec![(&at.other, NAMES), (&at.empty, NAMES), (&at.one, ATTRIBUTES)];
    let left: Picks = |at| vec![(&at.root, NAMES), (&at.file, DATA), (&at.victim, DATA)];
    check("a directory that is replaced", replaced, left, |client, at| {
        client.send(&rename(at, "directory", "empty", RenameFlags::empty()))
    });
}

#[test]
fn nobody_waits_for_himself() {
    let mut tree = Tree::new();
    let places = tree.places.clone();
    for (at, aspect) in [(&places.one, NAMES), (&places.file, DATA), (&places.other, NAMES)] {
        tree.hold(at, aspect);
    }
    tree.holder.ask(&make_directory(&places.one, "new")).unwrap();
    tree.holder.ask(&chmod(&places.file, 0o600)).unwrap();
    tree.holder.ask(&rename(&places, "file", "victim", RenameFlags::empty())).unwrap();
    assert!(tree.holder.is_left_alone());
}

/// Neither is what frees others: a lock, an open.
#[test]
fn requests_that_change_nothing_wait_for_nobody() {
    let mut tree = Tree::new();
    let places = tree.places.clone();
    let lease = tree.hold(&places.file, DATA);
    let write = tree.changer.send_write(places.open, b"new");
    assert_eq!(tree.holder.recalled(), [lease]);
    let mut third = Client::new(&tree.fixture);
    third.ask(&get_attr(&places.file)).unwrap();
    assert_eq!(third.granted(Subject::Inode), None, "a change waits");
    tree.holder.ask(&get_attr(&places.file)).unwrap();
    tree.changer.ask(&set_lock(places.open, 1, LockKind::Write, false)).unwrap();
    tree.changer.ask(&Request::Flush { open: places.open, owner: 1 }).unwrap();
    tree.changer.ask(&Request::Open { handle: places.file.bytes(), flags: READ_WRITE }).unwrap();
    assert!(tree.changer.waits());
    tree.holder.give_back(&[lease]);
    tree.changer.take(write).unwrap();
}

/// Each would wait for the other for ever if what changes one thing kept others from what it holds.
#[test]
fn two_who_change_what_both_hold_both_go_on() {
    let mut tree = Tree::new();
    let places = tree.places.clone();
    let lease = tree.hold(&places.one, NAMES);
    tree.changer.flags = Flags::LEASES;
    tree.changer.ask(&look_up(&places.one, "absent")).unwrap_err();
    let other = tree.changer.granted(Subject::Parent).unwrap().1;
    let (first, second) = (make_directory(&places.one, "first"), make_directory(&places.one, "second"));
    let (first, second) = (tree.holder.send(&first), tree.changer.send(&second));
    assert_eq!((tree.holder.recalled(), tree.changer.recalled()), (vec![lease], vec![other]));
    tree.changer.give_back(&[other]);
    tree.holder.give_back(&[lease]);
    tree.holder.take(first).unwrap();
    tree.changer.take(second).unwrap();
}
