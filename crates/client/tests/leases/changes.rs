//! What one client changes another sees at once; and what it changes itself it sees as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_fs::*;

use crate::common::*;
use crate::fixture::*;

/// Two mounts that both have looked at everything.
fn pair(process: &Process) -> (Mount, Mount) {
    std::fs::write(process.path("file"), "text").unwrap();
    std::fs::write(process.path("other"), "other").unwrap();
    std::fs::create_dir(process.path("directory")).unwrap();
    (process.mount(), process.mount())
}

type Change<'a> = Box<dyn Fn() -> Result<Reply, Errno> + 'a>;

/// Everything that is shown of the root and its files.
fn seen(mount: &Mount) -> Vec<(String, u64, u32, u32)> {
    let mut all: Vec<_> = mount
        .list(&mount.root, 4096, true)
        .into_iter()
        .filter(|(name, _)| !name.starts_with('.'))
        .map(|(name, _)| {
            let entry = mount.look_up(&name).unwrap();
            let attr = mount.stat(&entry.handle);
            (name, attr.size, attr.mode & 0o7777, attr.nlink)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn each_kind_of_change_is_seen_at_once() {
    let process = Process::new();
    let (one, other) = pair(&process);
    let file = one.look_up("file").unwrap().handle;
    let open = one.open(&file, READ_WRITE).unwrap();
    let root = one.root.clone();
    let changes: Vec<(&str, Change)> = vec![
        ("write", Box::new(|| one.write(open, b"longer than before").map(Reply::Written))),
        (
            "chmod",
            Box::new(|| {
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                one.ask(Request::SetAttr { handle: file.bytes(), open: None, set })
            }),
        ),
        (
            "truncate",
            Box::new(|| {
                let set = SetAttr { size: Some(2), ..SetAttr::default() };
                one.ask(Request::SetAttr { handle: file.bytes(), open: None, set })
            }),
        ),
        (
            "fallocate",
            Box::new(|| one.ask(Request::Fallocate { open, offset: 0, length: 9000, flags: FallocateFlags::empty() })),
        ),
        (
            "create",
            Box::new(|| {
                one.ask(Request::Create {
                    parent: root.bytes(),
                    name: b"new",
                    mode: 0o644,
                    umask: 0,
                    flags: READ_WRITE,
                })
            }),
        ),
        (
            "mkdir",
            Box::new(|| one.ask(Request::MakeDirectory { parent: root.bytes(), name: b"made", mode: 0o755, umask: 0 })),
        ),
        ("link", Box::new(|| one.ask(Request::Link { handle: file.bytes(), parent: root.bytes(), name: b"linked" }))),
        ("rename", Box::new(|| one.rename("new", "newer"))),
        ("rename over", Box::new(|| one.rename("newer", "other"))),
        ("unlink", Box::new(|| one.unlink("linked"))),
        ("rmdir", Box::new(|| one.ask(Request::RemoveDirectory { parent: root.bytes(), name: b"made" }))),
        (
            "truncating open",
            Box::new(|| one.ask(Request::Open { handle: file.bytes(), flags: READ_WRITE | OpenFlags::TRUNCATE })),
        ),
    ];
    for (what, change) in changes {
        let before = seen(&other);
        assert_eq!(seen(&one), before, "before {what}");
        change().unwrap();
        let after = seen(&other);
        assert_ne!(after, before, "{what} is seen");
        assert_eq!(seen(&one), after, "{what} is seen by whoever made it");
        other.warm(|| assert_eq!(seen(&other), after, "{what}"));
    }
}

#[test]
fn names_that_are_not_there_come() {
    let process = Process::new();
    let (one, other) = pair(&process);
    assert_eq!(other.look_up("new"), Err(Errno::ENOENT));
    other.warm(|| assert_eq!(other.look_up("new"), Err(Errno::ENOENT)));
    one.create("new");
    assert!(other.look_up("new").is_ok());
    assert!(other.told.of(&other.root).contains(Aspects::NAMES), "the kernel has been made to forget");
}

#[test]
fn extended_attributes_are_forgotten_with_the_others() {
    let process = Process::new();
    let (one, other) = pair(&process);
    let file = one.look_up("file").unwrap().handle;
    let name = b"system.posix_acl_access";
    let get = |mount: &Mount| mount.ask(Request::GetXattr { handle: file.bytes(), name, size: 1000 });
    let before = get(&other);
    assert_eq!(other.warm(|| get(&other)), before);
    let entry =
        |tag: u16, bits: u16, id: u32| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
    let acl = [
        &2u32.to_le_bytes()[..],
        &entry(1, 6, !0),
        &entry(2, 4, 1234),
        &entry(4, 4, !0),
        &entry(16, 4, !0),
        &entry(32, 4, !0),
    ]
    .concat();
    let set = Request::SetXattr { handle: file.bytes(), name, value: &acl, mode: XattrMode::Any };
    match one.ask(set) {
        Ok(_) => assert_ne!(get(&other), before),
        Err(error) => assert_eq!(error, Errno::EOPNOTSUPP, "where the file system has none"),
    }
    assert_eq!(get(&one), get(&other));
}

/// The change of another waits for the answer that the kernel is being told, and so does one of its own.
#[test]
fn what_is_on_its_way_to_the_kernel_is_waited_for() {
    let process = Process::new();
    let (one, other) = pair(&process);
    waits_for_answer(&one, &other);
    waits_for_answer(&other, &other);
}

fn waits_for_answer(one: &Mount, other: &Mount) {
    other.told.forgotten.lock().unwrap().clear();
    let file = other.look_up("file").unwrap().handle;
    let answer = other.answer(&context(), Request::GetAttr { handle: file.bytes(), open: None });
    assert!(answer.keep.hold.is_some());
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            one.set_mode(&file, 0o600);
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!done.load(Ordering::SeqCst), "the kernel has not been told yet");
        assert_eq!(other.told.of(&file), Aspects::empty(), "what is not told yet cannot be forgotten");
        drop(answer);
    });
    assert_eq!(other.told.of(&file), Aspects::ATTRIBUTES);
    assert_eq!(other.stat(&file).mode & 0o777, 0o600);
}

/// What this client changes itself its kernel forgets before the server is asked: others may see the change before its answer comes.
#[test]
fn a_kernel_forgets_before_its_own_change_is_made() {
    let process = Process::new();
    let (one, _) = pair(&process);
    let file = one.look_up("file").unwrap();
    assert_eq!(one.stat(&file.handle), file.attr);
    one.set_mode(&file.handle, 0o600);
    assert_eq!(one.told.of(&file.handle), Aspects::ATTRIBUTES);
    assert!((0..2).all(|_| one.look_up("new") == Err(Errno::ENOENT)));
    one.create("new");
    assert!(one.told.of(&one.root).contains(Aspects::NAMES));
    let opened = one.answer(&context(), Request::Open { handle: file.handle.bytes(), flags: READ });
    assert!(opened.keep.data);
    drop(opened);
    let open = one.open(&file.handle, OpenFlags::WRITE).unwrap();
    assert!(one.told.of(&file.handle).contains(Aspects::DATA));
    assert!(one.cached.hold_data(file.handle.bytes()).is_none(), "it is open for writing");
    one.release(open);
    assert!(one.cached.hold_data(file.handle.bytes()).is_some());
}

/// What the kernel is being told it cannot forget yet: a change waits until it has been told.
#[test]
fn a_kernel_is_told_before_it_forgets_for_an_own_change() {
    let process = Process::new();
    let (one, _) = pair(&process);
    let file = one.look_up("file").unwrap().handle;
    let answer = one.answer(&context(), Request::GetAttr { handle: file.bytes(), open: None });
    assert!(!answer.keep.attributes.is_zero());
    std::thread::scope(|scope| {
        let change = scope.spawn(|| one.set_mode(&file, 0o600));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!change.is_finished() && one.told.of(&file).is_empty());
        drop(answer);
    });
    assert_eq!(one.told.of(&file), Aspects::ATTRIBUTES);
}

/// When the client has gone nobody makes a kernel forget any more, and nobody waits for that.
#[test]
fn a_change_ends_when_its_client_does() {
    let process = Process::new();
    let (one, _) = pair(&process);
    let file = one.look_up("file").unwrap().handle;
    assert!(one.answer(&context(), Request::Open { handle: file.bytes(), flags: READ }).keep.data);
    one.client.disconnect();
    std::thread::sleep(Duration::from_millis(50)); // its threads end
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let _ = done.send(one.ask(Request::SetAttr { handle: file.bytes(), open: None, set })); // nobody waits after the test
    });
    assert_eq!(ends.recv_timeout(LONG), Ok(Err(Errno::EIO)));
}

#[test]
fn the_answers_to_own_changes_are_kept() {
    let process = Process::new();
    let (one, _) = pair(&process);
    let file = one.look_up("file").unwrap();
    one.set_mode(&file.handle, 0o600);
    one.warm(|| assert_eq!(one.stat(&file.handle).mode & 0o777, 0o600));
    let (made, _) = one.create("new");
    one.warm(|| assert_eq!(one.look_up("new").unwrap().handle, made.handle));
    assert_eq!(one.look_up("newer"), Err(Errno::ENOENT)); // as a kernel does before it renames
    assert_eq!(one.round_trips(|| one.rename("new", "newer")), (1, Ok(Reply::Done)));
    one.warm(|| assert_eq!(one.look_up("new"), Err(Errno::ENOENT)));
    assert_eq!(one.look_up("newer").unwrap().handle, made.handle);
    one.unlink("newer").unwrap();
    one.warm(|| assert_eq!(one.look_up("newer"), Err(Errno::ENOENT)));
}

/// Two names of one inode, renamed over each other, are both left.
#[test]
fn a_rename_of_two_names_of_one_inode_changes_nothing() {
    let process = Process::new();
    let (one, _) = pair(&process);
    let file = one.look_up("file").unwrap().handle;
    one.ask(Request::Link { handle: file.bytes(), parent: one.root.bytes(), name: b"linked" }).unwrap();
    assert_eq!(
        (one.look_up("file").unwrap().handle, one.look_up("linked").unwrap().handle),
        (file.clone(), file.clone())
    );
    one.rename("file", "linked").unwrap();
    assert_eq!((one.look_up("file").unwrap().handle, one.look_up("linked").unwrap().handle), (file.clone(), file));
}

/// A hard link's other name shows what was removed, whoever did it and whether it knew what it removed.
#[test]
fn the_other_name_of_what_is_removed_has_one_link_less() {
    let process = Process::new();
    let (one, other) = pair(&process);
    for who in [&one, &other] {
        std::fs::hard_link(process.path("file"), process.path("linked")).unwrap();
        let file = one.look_up("file").unwrap().handle;
        one.set_mode(&file, 0o644); // which all look at again
        for mount in [&one, &other] {
            assert_eq!(mount.stat(&file).nlink, 2);
        }
        who.unlink("linked").unwrap();
        for mount in [&one, &other] {
            assert_eq!(mount.stat(&file).nlink, 1);
        }
    }
}

/// Many threads of two clients change and look: each sees its own changes, and none goes back.
#[test]
fn counters_never_go_back() {
    let process = Process::new();
    let (one, other) = pair(&process);
    let file = one.look_up("file").unwrap().handle;
    let opens = [one.open(&file, READ_WRITE).unwrap(), other.open(&file, READ_WRITE).unwrap()];
    let size = |mount: &Mount| mount.stat(&file).size;
    let latest = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (mount, open) in [(&one, opens[0]), (&other, opens[1])] {
            let latest = &latest;
            let file = &file;
            scope.spawn(move || {
                for _ in 0..150 {
                    let write = WriteAt { open, offset: 0, append: true, stable: false };
                    let source = Source::Memory(b"x"[..].into());
                    aqueduct_worker::wait(&mount.group, mount.cached.write(&context(), write, source)).unwrap();
                    latest.fetch_max(size(mount), Ordering::SeqCst);
                }
                let _ = file;
            });
            scope.spawn(move || {
                for _ in 0..1500 {
                    let before = latest.load(Ordering::SeqCst);
                    let seen = size(mount);
                    assert!(seen >= before, "{seen} after {before}");
                    latest.fetch_max(seen, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!((size(&one), size(&other)), (304, 304));
}

/// A process on the server has replaced a file, and nobody has been told yet: the kernel looks its name up again once it is said to be gone.
#[test]
fn what_is_gone_at_the_server_is_looked_up_anew() {
    let process = Process::new();
    std::fs::write(process.path("file"), "old").unwrap();
    let mount = process.mount();
    let old = mount.look_up("file").unwrap().handle;
    mount.warm(|| mount.look_up("file").unwrap());
    std::fs::write(process.path("new"), "new").unwrap();
    std::fs::rename(process.path("new"), process.path("file")).unwrap();
    assert_eq!(mount.open(&old, READ).unwrap_err(), Errno::ESTALE);
    let new = mount.look_up("file").unwrap().handle;
    assert_eq!(mount.read(mount.open(&new, READ).unwrap()).unwrap(), "new");
}
