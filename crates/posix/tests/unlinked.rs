//! Files that were removed while open: they outlive the server, nobody sees where, and nothing of them stays behind.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aqueduct_fs::*;
use aqueduct_posix::{OpenError, Options};
use common::*;

const FOLDER: &[u8] = b".aqueduct-unlinked";

/// Runs `test` on disk and in memory, or, for a server whose handles end with it, not at all.
fn everywhere(settled: bool, test: impl Fn(&mut Served)) {
    for parent in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        let mut served = serve_with(parent, Options { keep_unlinked: true, ..Options::default() });
        if !served.posix.statistics().kernel_handles {
            return skip("decoding handles takes CAP_DAC_READ_SEARCH");
        }
        if settled {
            served.posix.sweep_unlinked();
        }
        eprintln!("on {}", served.name);
        test(&mut served);
    }
}

fn folder(served: &Served) -> PathBuf {
    aqueduct_posix::restore();
    served.path.join(std::str::from_utf8(FOLDER).unwrap())
}

/// The files in the hidden folder.
fn hidden(served: &Served) -> usize {
    std::fs::read_dir(folder(served)).map_or(0, Iterator::count)
}

fn root_context() -> Context {
    context(1, own())
}

fn unlink(served: &Served, name: &[u8]) -> Result<Reply, Errno> {
    served.root_call(Request::Unlink { parent: &served.root, name })
}

fn rename(served: &Served, name: &[u8], new_name: &[u8], flags: RenameFlags) -> Result<Reply, Errno> {
    served.root_call(Request::Rename { parent: &served.root, name, new_parent: &served.root, new_name, flags })
}

fn create(served: &Served, name: &[u8]) -> (Entry, Opened) {
    served.create_as(&root_context(), name, 0o644).unwrap()
}

fn links(served: &Served, entry: &Entry) -> u32 {
    served.attr(&entry.handle).unwrap().nlink
}

fn reopen(served: &Served, opened: &Opened) {
    let request = Request::Reopen { open: opened.id, token: &opened.token };
    assert_eq!(served.root_call(request).unwrap().opened().as_ref(), Ok(opened));
}

/// What a client does with a removed file after a restart: all of it works, and the last close ends it.
fn lives_on(served: &mut Served, entry: &Entry, opened: &Opened) {
    served.restart();
    assert_eq!(links(served, entry), 0, "known before it is reopened");
    reopen(served, opened);
    served.posix.sweep_unlinked();
    let attr = served.attr(&entry.handle).unwrap();
    assert_eq!((attr.nlink, attr.ino), (0, entry.attr.ino));
    assert_eq!(served.read(opened.id, 0, 100).unwrap(), b"before");
    served.write(opened.id, 6, b" after").unwrap();
    assert_eq!(served.read(opened.id, 0, 100).unwrap(), b"before after");
    assert_eq!(hidden(served), 1);
    served.release(opened.id);
    assert_eq!(hidden(served), 0, "nothing is left behind");
    assert_eq!((served.attr(&entry.handle), served.posix.statistics().unlinked), (Err(Errno::ESTALE), 0));
}

#[test]
fn an_unlinked_file_lives_on_after_a_restart() {
    everywhere(true, |served| {
        let (entry, opened) = create(served, b"file");
        served.write(opened.id, 0, b"before").unwrap();
        assert_eq!(links(served, &entry), 1);
        unlink(served, b"file").unwrap();
        assert_eq!((links(served, &entry), hidden(served)), (0, 1));
        assert_eq!(served.lookup(&served.root, b"file"), Err(Errno::ENOENT));
        lives_on(served, &entry, &opened);
    });
}

#[test]
fn a_file_renamed_over_lives_on_after_a_restart() {
    everywhere(true, |served| {
        let (entry, opened) = create(served, b"file");
        served.write(opened.id, 0, b"before").unwrap();
        let (other, other_open) = create(served, b"other");
        rename(served, b"other", b"file", RenameFlags::empty()).unwrap();
        assert_eq!((links(served, &entry), links(served, &other), hidden(served)), (0, 1, 1));
        served.release(other_open.id);
        lives_on(served, &entry, &opened);
    });
}

#[test]
fn a_nameless_file_lives_on_after_a_restart_and_is_given_a_name() {
    everywhere(true, |served| {
        let make = |served: &Served, flags| {
            let request = Request::CreateUnnamed { parent: &served.root, mode: 0o600, umask: 0, flags };
            served.root_call(request).unwrap().created().unwrap()
        };
        let link = |served: &Served, entry: &Entry, name| {
            let request = Request::Link { handle: entry.handle.bytes(), parent: &served.root, name };
            served.root_call(request)?.entry()
        };
        let (exclusive, opened) = make(served, READ_WRITE | OpenFlags::EXCLUSIVE);
        served.write(opened.id, 0, b"before").unwrap();
        assert_eq!((exclusive.attr.nlink, links(served, &exclusive)), (0, 0));
        assert_eq!(link(served, &exclusive, b"never"), Err(Errno::ENOENT));
        lives_on(served, &exclusive, &opened);

        let (entry, opened) = make(served, READ_WRITE);
        assert_eq!((links(served, &entry), hidden(served)), (0, 1));
        served.restart();
        reopen(served, &opened);
        served.posix.sweep_unlinked();
        assert_eq!(link(served, &entry, b"named").unwrap().attr.nlink, 1);
        assert_eq!(hidden(served), 0, "a file with a name needs no hidden one");
        assert_eq!(link(served, &entry, b"second").unwrap().attr.nlink, 2);
        for name in [&b"named"[..], b"second"] {
            unlink(served, name).unwrap();
        }
        assert_eq!(link(served, &entry, b"never"), Err(Errno::ENOENT), "it had a name");
        assert_eq!(hidden(served), 1);
        served.release(opened.id);
        assert_eq!(hidden(served), 0);
    });
}

#[test]
fn the_last_of_two_opens_ends_it() {
    everywhere(true, |served| {
        let (entry, first) = create(served, b"file");
        let second = served.open_as(&context(2, own()), &entry.handle, READ_WRITE).unwrap();
        unlink(served, b"file").unwrap();
        served.release(first.id);
        assert_eq!((links(served, &entry), hidden(served)), (0, 1));
        // Opened once more through one that is open.
        let third = served.open(&entry.handle, OpenFlags::READ).unwrap();
        served.call(&context(2, own()), Request::Release { open: second }).unwrap();
        assert_eq!(hidden(served), 1);
        served.posix.depart(ClientId(1));
        assert_eq!(hidden(served), 0);
        assert_eq!(served.read(third, 0, 1), Err(Errno::EBADF));
        assert_eq!(served.attr(&entry.handle), Err(Errno::ESTALE));
    });
}

#[test]
fn only_the_last_name_is_kept_and_only_of_what_is_open() {
    everywhere(true, |served| {
        let (entry, opened) = create(served, b"file");
        let link = Request::Link { handle: entry.handle.bytes(), parent: &served.root, name: b"second" };
        served.root_call(link).unwrap();
        unlink(served, b"file").unwrap();
        assert_eq!((links(served, &entry), hidden(served)), (1, 0));
        let (other, other_open) = create(served, b"other");
        rename(served, b"other", b"second", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(rename(served, b"other", b"second", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
        assert_eq!((links(served, &entry), links(served, &other), hidden(served)), (1, 1, 0));
        served.release(opened.id);
        unlink(served, b"other").unwrap();
        assert_eq!(hidden(served), 0, "nobody had it open");
        // Renamed to itself it keeps its name.
        rename(served, b"second", b"second", RenameFlags::empty()).unwrap();
        assert_eq!(links(served, &other), 1);
        unlink(served, b"second").unwrap();
        assert_eq!((links(served, &other), hidden(served)), (0, 1));
        served.release(other_open.id);
        assert_eq!((hidden(served), served.posix.statistics().unlinked), (0, 0));
    });
}

#[test]
fn a_removal_that_fails_leaves_no_trace() {
    everywhere(true, |served| {
        if !is_root() {
            return skip("the server is not root");
        }
        let alice = context(1, user(1000, 1000, &[]));
        let bob = context(2, user(1001, 1001, &[]));
        let (entry, opened) = served.create_as(&alice, b"file", 0o666).unwrap();
        served.create_as(&bob, b"bobs", 0o666).unwrap();
        let remove = || served.call(&bob, Request::Unlink { parent: &served.root, name: b"file" });
        let replace = |name| {
            let (parent, new_parent) = (&served.root, &served.root);
            served.call(
                &bob,
                Request::Rename { parent, name, new_parent, new_name: b"file", flags: RenameFlags::empty() },
            )
        };
        let mode = |mode| {
            aqueduct_posix::restore();
            std::fs::set_permissions(&served.path, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(0o755);
        let before = served.attr(&entry.handle).unwrap();
        assert_eq!((remove(), replace(b"bobs")), (Err(Errno::EACCES), Err(Errno::EACCES)));
        assert_eq!(served.attr(&entry.handle).unwrap(), before, "not even touched");
        mode(0o1777);
        assert_eq!((remove(), replace(b"bobs")), (Err(Errno::EPERM), Err(Errno::EPERM)), "the sticky bit");
        served.mkdir(&served.root, b"dir", 0o777);
        mode(0o777);
        assert_eq!((replace(b"dir"), replace(b"absent")), (Err(Errno::ENOTDIR), Err(Errno::ENOENT)));
        assert_eq!((links(served, &entry), hidden(served), served.posix.statistics().unlinked), (1, 0, 0));
        assert_eq!(std::fs::metadata(served.path.join("file")).unwrap().nlink(), 1);
        // The one who may does it, with rights in the folder that are not theirs.
        served.call(&alice, Request::Unlink { parent: &served.root, name: b"file" }).unwrap();
        assert_eq!((links(served, &entry), hidden(served)), (0, 1));
        let other = served.create_as(&alice, b"as alice", 0o600).unwrap().0;
        assert_eq!(other.attr.uid, 1000, "the identity is the caller's again");
        let release = Request::Release { open: opened.id };
        served.call(&alice, release).unwrap();
        assert_eq!(hidden(served), 0);
    });
}

#[test]
fn the_folder_does_not_exist_for_clients() {
    everywhere(true, |served| {
        let root = || served.root_call(Request::Root).unwrap().entry().unwrap();
        let before = root().attr.nlink;
        let (_, opened) = create(served, b"file");
        unlink(served, b"file").unwrap();
        assert_eq!(std::fs::metadata(folder(served)).unwrap().mode() & 0o7777, 0o700);
        let (parent, name) = (&served.root[..], FOLDER);
        let again = root();
        assert_eq!(again.attr.nlink, before);
        assert_eq!(served.attr(&again.handle).unwrap().nlink, before);
        let open = Request::OpenDirectory { handle: parent };
        let open = served.root_call(open).unwrap().opened().unwrap().id;
        for plus in [false, true] {
            let list = Request::ReadDirectory { open, cookie: 0, size: 4096, plus };
            let page = served.root_call(list).unwrap().directory().unwrap();
            assert_eq!(page.entries().filter(|entry| !matches!(entry.name, b"." | b"..")).count(), 0);
        }
        let (file, _) = create(served, b"file");
        let (handle, mode, umask, flags) = (file.handle.bytes(), 0o755, 0, READ_WRITE);
        let there = RenameFlags::empty();
        let sought = [
            Request::Lookup { parent, name },
            Request::Unlink { parent, name },
            Request::RemoveDirectory { parent, name },
            Request::Rename { parent, name, new_parent: parent, new_name: b"mine", flags: there },
        ];
        for request in sought {
            assert_eq!(served.root_call(request.clone()), Err(Errno::ENOENT), "{request:?}");
        }
        let made = [
            Request::Create { parent, name, mode, umask, flags },
            Request::MakeDirectory { parent, name, mode, umask },
            Request::MakeNode { parent, name, mode, umask, rdev: 0 },
            Request::Symlink { parent, name, text: b"to" },
            Request::Link { handle, parent, name },
            Request::Rename { parent, name: b"file", new_parent: parent, new_name: name, flags: there },
            Request::Rename { parent, name: b"file", new_parent: parent, new_name: name, flags: RenameFlags::EXCHANGE },
        ];
        for request in made {
            assert_eq!(served.root_call(request.clone()), Err(Errno::EPERM), "{request:?}");
        }
        let below = served.mkdir(parent, b"dir", 0o755);
        served.mkdir(below.handle.bytes(), name, 0o755);
        assert_eq!(hidden(served), 1);
        served.release(opened.id);
    });
}

#[test]
fn a_server_that_ends_before_the_removal_has_removed_nothing() {
    everywhere(true, |served| {
        let (entry, opened) = create(served, b"file");
        served.write(opened.id, 0, b"before").unwrap();
        // Leaves the file with its name and a hidden link.
        rename(served, b"file", b"file", RenameFlags::empty()).unwrap();
        served.restart();
        assert_eq!((links(served, &entry), hidden(served)), (1, 1));
        reopen(served, &opened);
        unlink(served, b"file").unwrap();
        lives_on(served, &entry, &opened);

        let (entry, _) = create(served, b"file");
        rename(served, b"file", b"file", RenameFlags::empty()).unwrap();
        served.restart();
        served.posix.sweep_unlinked();
        assert_eq!((links(served, &entry), hidden(served)), (1, 0));
        assert_eq!(served.lookup(&served.root, b"file").unwrap().handle, entry.handle);
    });
}

#[test]
fn many_at_once_leave_nothing() {
    everywhere(true, |served| {
        let served = &*served;
        let steps = |client: u64| {
            let context = context(client, own());
            let names = [&b"a"[..], b"b", b"c"];
            let parent = &served.root[..];
            for step in 0..300 {
                let (name, new_name) = (names[step % 3], names[(step + client as usize) % 3]);
                let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
                let (entry, opened) = served.call(&context, create).unwrap().created().unwrap();
                // Somebody else may have been faster.
                let _ = if step % 2 == 0 {
                    served.call(&context, Request::Unlink { parent, name })
                } else {
                    let flags = RenameFlags::empty();
                    served.call(&context, Request::Rename { parent, name, new_parent: parent, new_name, flags })
                };
                let get = Request::GetAttr { handle: entry.handle.bytes(), open: Some(opened.id) };
                assert!(served.call(&context, get).unwrap().attr().unwrap().nlink <= 1);
                served.call(&context, Request::Release { open: opened.id }).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for client in 1..=4 {
                scope.spawn(move || steps(client));
            }
        });
        assert_eq!((hidden(served), served.posix.statistics().unlinked, served.posix.statistics().opens), (0, 0, 0));
        for name in [&b"a"[..], b"b", b"c"] {
            let found = served.lookup(&served.root, name);
            assert!(found.is_err() || found.unwrap().attr.nlink == 1);
        }
    });
}

#[test]
fn what_nobody_reopens_is_swept() {
    everywhere(true, |served| {
        let (lost, _) = create(served, b"lost");
        let (kept, opened) = create(served, b"kept");
        unlink(served, b"lost").unwrap();
        unlink(served, b"kept").unwrap();
        served.restart();
        assert_eq!((served.posix.statistics().unlinked, hidden(served)), (2, 2));
        reopen(served, &opened);
        served.posix.sweep_unlinked();
        assert_eq!((served.posix.statistics().unlinked, hidden(served)), (1, 1));
        assert_eq!((links(served, &kept), served.attr(&lost.handle)), (0, Err(Errno::ESTALE)));
        served.release(opened.id);
        assert_eq!(hidden(served), 0);
    });
}

#[test]
fn what_others_remove_before_it_is_reopened_is_kept() {
    everywhere(false, |served| {
        let (_, opened) = create(served, b"file");
        served.write(opened.id, 0, b"before").unwrap();
        let (_, over) = create(served, b"over");
        create(served, b"new");
        create(served, b"closed");
        served.restart();
        unlink(served, b"file").unwrap();
        unlink(served, b"closed").unwrap();
        rename(served, b"new", b"over", RenameFlags::empty()).unwrap();
        assert_eq!(hidden(served), 3);
        reopen(served, &opened);
        reopen(served, &over);
        served.posix.sweep_unlinked();
        assert_eq!((served.read(opened.id, 0, 100).unwrap(), hidden(served)), (b"before".to_vec(), 2));
        served.release(opened.id);
        served.release(over.id);
        assert_eq!(hidden(served), 0);
    });
}

/// The folder that is used where others have taken the usual one.
fn other_folder(served: &Served) -> PathBuf {
    let name = served.posix.other_folder().expect("the usual one is taken");
    assert!(name.len() > FOLDER.len() && name.as_bytes().starts_with(FOLDER), "{name}");
    served.path.join(name)
}

/// Who may write to the root takes the folder's name, by one means or another, before the server
/// needs it.
#[test]
fn files_are_kept_in_another_folder_when_others_have_taken_the_usual_one() {
    type Take = fn(&Path);
    let takes: [Take; 4] = [
        |path| {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        },
        |path| {
            std::fs::create_dir(path).unwrap();
            std::os::unix::fs::chown(path, Some(1000), None).unwrap();
        },
        |path| std::fs::write(path, "").unwrap(),
        |path| std::os::unix::fs::symlink("/tmp", path).unwrap(),
    ];
    for take in takes {
        for before_the_start in [false, true] {
            everywhere(true, |served| {
                assert_eq!(served.posix.other_folder(), None);
                let before = served.root_call(Request::Root).unwrap().entry().unwrap().attr.nlink;
                take(&folder(served));
                if before_the_start {
                    served.restart();
                    served.posix.sweep_unlinked();
                }
                let (entry, opened) = create(served, b"file");
                served.write(opened.id, 0, b"before").unwrap();
                unlink(served, b"file").unwrap();
                let other = other_folder(served);
                let count = || std::fs::read_dir(&other).unwrap().count();
                assert_eq!((links(served, &entry), count()), (0, 1));
                assert_eq!(served.root_call(Request::Root).unwrap().entry().unwrap().attr.nlink, before);
                let name = other.file_name().unwrap().as_encoded_bytes();
                assert_eq!(served.lookup(&served.root, name), Err(Errno::ENOENT));
                served.restart();
                reopen(served, &opened);
                served.posix.sweep_unlinked();
                assert_eq!(served.read(opened.id, 0, 100).unwrap(), b"before");
                served.release(opened.id);
                aqueduct_posix::restore();
                assert_eq!(count(), 0);
            });
        }
    }
}

#[test]
fn a_server_does_not_start_where_others_have_taken_both_folders() {
    everywhere(true, |served| {
        std::fs::write(folder(served), "").unwrap();
        std::fs::write(other_folder(served), "").unwrap();
        match served.try_restarted().err() {
            Some(OpenError::Taken { path, names }) => {
                assert_eq!(path, served.path);
                assert!(names.iter().all(|name| served.path.join(name).exists()), "{names:?}");
            }
            other => panic!("{other:?}"),
        }
        let read_only = Options { keep_unlinked: false, ..served.options() };
        assert!(aqueduct_posix::Posix::open(&served.path, read_only).is_ok(), "what keeps nothing needs no folder");
    });
}

/// A second export below the first one, or of the same directory.
fn with_another_export(test: impl Fn(&mut Served, &mut Served, &[u8])) {
    everywhere(true, |outer| {
        for inner in ["inner", ""] {
            std::fs::create_dir_all(outer.path.join(inner)).unwrap();
            let mut other = outer.beside(Path::new(inner));
            other.posix.sweep_unlinked();
            let there = match inner {
                "" => outer.root.clone(),
                name => outer.lookup(&outer.root, name.as_bytes()).unwrap().handle.bytes().to_vec(),
            };
            test(outer, &mut other, &there);
        }
    });
}

#[test]
fn the_folder_of_one_export_does_not_exist_through_another() {
    with_another_export(|outer, inner, there| {
        let before = outer.attr(&Handle::new(there).unwrap()).unwrap().nlink;
        let (_, opened) = create(inner, b"file");
        unlink(inner, b"file").unwrap();
        assert_eq!(hidden(inner), 1);
        assert_eq!(outer.attr(&Handle::new(there).unwrap()).unwrap().nlink, before);
        let open = Request::OpenDirectory { handle: there };
        let open = outer.root_call(open).unwrap().opened().unwrap().id;
        for plus in [false, true] {
            let list = Request::ReadDirectory { open, cookie: 0, size: 4096, plus };
            let page = outer.root_call(list).unwrap().directory().unwrap();
            assert!(!page.entries().any(|entry| entry.name == FOLDER));
        }
        assert_eq!(outer.lookup(there, FOLDER), Err(Errno::ENOENT));
        let (parent, name) = (there, FOLDER);
        let make = Request::MakeDirectory { parent, name, mode: 0o755, umask: 0 };
        assert_eq!(outer.root_call(make), Err(Errno::EPERM));
        let away = Request::Rename { parent, name, new_parent: parent, new_name: b"x", flags: RenameFlags::empty() };
        assert_eq!(outer.root_call(away), Err(Errno::ENOENT));
        inner.release(opened.id);
        assert_eq!(hidden(inner), 0);
    });
}

/// Which export the last name goes through does not matter.
#[test]
fn a_file_that_is_open_through_another_export_is_kept() {
    with_another_export(|outer, inner, there| {
        let (entry, opened) = create(inner, b"file");
        inner.write(opened.id, 0, b"before").unwrap();
        outer.root_call(Request::Unlink { parent: there, name: b"file" }).unwrap();
        assert_eq!((links(inner, &entry), hidden(outer)), (0, 1));
        Served::restart_together(&mut [outer, inner]);
        assert_eq!(links(inner, &entry), 0, "known before it is reopened");
        reopen(inner, &opened);
        outer.posix.sweep_unlinked();
        inner.posix.sweep_unlinked();
        assert_eq!((inner.read(opened.id, 0, 100).unwrap(), hidden(outer)), (b"before".to_vec(), 1));
        inner.release(opened.id);
        assert_eq!((hidden(outer), hidden(inner)), (0, 0));
        assert_eq!(inner.attr(&entry.handle), Err(Errno::ESTALE));
    });
}

#[test]
fn files_of_others_in_the_folder_are_left_alone() {
    everywhere(true, |served| {
        let wide = |mode| std::fs::set_permissions(folder(served), PermissionsExt::from_mode(mode)).unwrap();
        std::fs::create_dir(folder(served)).unwrap();
        wide(0o700);
        std::fs::write(folder(served).join("0123456789abcdef.1"), b"").unwrap();
        served.restart();
        served.posix.sweep_unlinked();
        assert_eq!(hidden(served), 1);
    });
}

#[test]
fn the_files_kept_are_limited() {
    let served = serve_with(Path::new("/dev/shm"), Options { keep_unlinked: true, opens_max: 3, ..Options::default() });
    if !served.posix.statistics().kernel_handles {
        return skip("decoding handles takes CAP_DAC_READ_SEARCH");
    }
    for number in 0..5 {
        std::fs::write(served.path.join(format!("file{number}")), b"").unwrap();
        unlink(&served, format!("file{number}").as_bytes()).unwrap();
    }
    assert_eq!((hidden(&served), served.posix.statistics().unlinked), (3, 3), "before the sweep");
    served.posix.sweep_unlinked();
    assert_eq!(hidden(&served), 0);
}
