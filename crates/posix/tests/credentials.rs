//! As whom: the kernel decides with the caller's identity, not with the server's.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use aqueduct_fs::*;
use common::*;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

/// Runs `test` everywhere, if the server can be everybody.
fn as_root(test: impl Fn(&Served)) {
    if is_root() { everywhere(test) } else { skip("taking on identities takes root") }
}

fn alice() -> Context {
    context(1, user(ALICE, ALICE, &[]))
}

#[test]
fn a_user_reads_only_what_the_user_may() {
    as_root(|served| {
        let path = served.path.join("secret");
        std::fs::write(&path, b"secret").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let file = served.lookup(&served.root, b"secret").unwrap();
        assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::READ), Err(Errno::EACCES));
        assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::WRITE), Err(Errno::EACCES));
        let access = Request::Access { handle: file.handle.bytes(), mask: AccessMask::READ };
        assert_eq!(served.call(&alice(), access.clone()), Err(Errno::EACCES));
        assert_eq!(served.root_call(access), Ok(Reply::Done));
        for set in [
            SetAttr { mode: Some(0o666), ..SetAttr::default() },
            SetAttr { uid: Some(ALICE), ..SetAttr::default() },
            SetAttr { mtime: Some(SetTime::At(Time::default())), ..SetAttr::default() },
        ] {
            assert_eq!(served.set(&alice(), &file.handle, set), Err(Errno::EPERM));
        }
        let size = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(served.set(&alice(), &file.handle, size), Err(Errno::EACCES));
        // And back: root is root again.
        assert!(served.open(&file.handle, OpenFlags::READ).is_ok());
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        // Nothing of root's stays with the next.
        assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::READ), Err(Errno::EACCES));
        aqueduct_posix::restore();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    });
}

#[test]
fn groups_open_what_is_the_groups() {
    as_root(|served| {
        let path = served.path.join("shared");
        std::fs::write(&path, b"shared").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        chown(&path, Some(0), Some(4711)).unwrap();
        let file = served.lookup(&served.root, b"shared").unwrap();
        let open = |credential| served.open_as(&context(1, credential), &file.handle, OpenFlags::READ);
        assert!(open(user(ALICE, ALICE, &[7, 4711])).is_ok());
        assert!(open(user(BOB, 4711, &[])).is_ok());
        assert_eq!(open(user(ALICE, ALICE, &[7])), Err(Errno::EACCES), "the groups of before are gone");
        let unknown = Credential { uid: 54_321, gid: 54_321, groups: Groups::Resolve };
        assert_eq!(open(unknown), Err(Errno::EACCES), "a user that this machine does not know has no groups");
        let many: Vec<u32> = (10_000..10_000 + GROUPS_MAX as u32 - 1).chain([4711]).collect();
        assert!(open(user(ALICE, ALICE, &many)).is_ok());
    });
}

#[test]
fn new_files_belong_to_the_caller_and_setgid_folders_give_their_group() {
    as_root(|served| {
        let (file, _) = served.create_as(&alice(), b"file", 0o640).unwrap();
        assert_eq!((file.attr.uid, file.attr.gid, file.attr.mode & 0o7777), (ALICE, ALICE, 0o640));
        let folder = served.mkdir(&served.root, b"setgid", 0o2777);
        served
            .set(
                &context(1, own()),
                &folder.handle,
                SetAttr { gid: Some(4711), mode: Some(0o2777), ..SetAttr::default() },
            )
            .unwrap();
        let parent = folder.handle.bytes();
        let request = Request::MakeDirectory { parent, name: b"dir", mode: 0o755, umask: 0o022 };
        let made = served.call(&alice(), request).unwrap().entry().unwrap();
        assert_eq!((made.attr.gid, made.attr.mode & 0o7777), (4711, 0o2755));
        // A setgid file of a group that the caller is not in: the kernel takes the bit away, as root has lost CAP_FSETID.
        let request = Request::Create { parent, name: b"f", mode: 0o2775, umask: 0, flags: READ_WRITE };
        let (made, _) = served.call(&alice(), request).unwrap().created().unwrap();
        assert_eq!((made.attr.gid, made.attr.mode & 0o7777), (4711, 0o775));
    });
}

#[test]
fn a_write_clears_the_setuid_bit_unless_root_writes() {
    as_root(|served| {
        for (writer, mode) in [(own(), 0o4777), (user(ALICE, ALICE, &[]), 0o777)] {
            let (file, open) = served.create(b"file");
            let set = SetAttr { mode: Some(0o4777), ..SetAttr::default() };
            served.set(&context(1, own()), &file.handle, set).unwrap();
            let write = WriteAt { open, offset: 0, append: false, stable: false };
            served.write_as(&context(1, writer), write, b"x").unwrap();
            assert_eq!(served.attr(&file.handle).unwrap().mode & 0o7777, mode);
            served.release(open);
        }
    });
}

#[test]
fn the_umask_is_the_callers_and_yields_to_a_default_acl() {
    as_root(|served| {
        let root = &served.root[..];
        let request = Request::MakeDirectory { parent: root, name: b"dir", mode: 0o777, umask: 0o027 };
        let folder = served.root_call(request).unwrap().entry().unwrap();
        assert_eq!(folder.attr.mode & 0o777, 0o750);
        // user::rwx group::rwx other::r-x, as the kernel packs it.
        let entry =
            |tag: u16, permission: u16| [tag.to_le_bytes(), permission.to_le_bytes(), [255; 2], [255; 2]].concat();
        let acl = [2u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 7), entry(32, 5)].concat();
        let name = b"system.posix_acl_default";
        let set = Request::SetXattr { handle: folder.handle.bytes(), name, value: &acl, mode: XattrMode::Any };
        if served.root_call(set) == Err(Errno::EOPNOTSUPP) {
            return skip("no ACLs here");
        }
        let parent = folder.handle.bytes();
        let flags = READ_WRITE;
        let request = Request::Create { parent, name: b"file", mode: 0o666, umask: 0o077, flags };
        let (file, _) = served.root_call(request).unwrap().created().unwrap();
        assert_eq!(file.attr.mode & 0o777, 0o664, "the ACL, not the umask");
        let request = Request::CreateUnnamed { parent, mode: 0o666, umask: 0o077, flags };
        assert_eq!(served.root_call(request).unwrap().created().unwrap().0.attr.mode & 0o777, 0o664);
        let get = Request::GetXattr { handle: folder.handle.bytes(), name, size: 100 };
        assert_eq!(served.root_call(get), Ok(Reply::Bytes(acl)));
        let request = Request::Create { parent: root, name: b"file", mode: 0o666, umask: 0o077, flags };
        assert_eq!(served.root_call(request).unwrap().created().unwrap().0.attr.mode & 0o777, 0o600);
    });
}

#[test]
fn an_acl_opens_and_closes_files() {
    as_root(|served| {
        let (file, open) = served.create(b"file");
        served.release(open);
        served.set(&context(1, own()), &file.handle, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::READ), Err(Errno::EACCES));
        let entry = |tag: u16, permission: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permission.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let nobody = u32::MAX;
        let entries =
            [entry(1, 6, nobody), entry(2, 4, ALICE), entry(4, 0, nobody), entry(16, 4, nobody), entry(32, 0, nobody)];
        let acl = [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
        let name = b"system.posix_acl_access";
        let set = Request::SetXattr { handle: file.handle.bytes(), name, value: &acl, mode: XattrMode::Any };
        if served.root_call(set) == Err(Errno::EOPNOTSUPP) {
            return skip("no ACLs here");
        }
        assert!(served.open_as(&alice(), &file.handle, OpenFlags::READ).is_ok());
        assert_eq!(served.open_as(&alice(), &file.handle, READ_WRITE), Err(Errno::EACCES));
        let bob = context(1, user(BOB, BOB, &[]));
        assert_eq!(served.open_as(&bob, &file.handle, OpenFlags::READ), Err(Errno::EACCES));
    });
}

#[test]
fn sticky_folders_protect_the_files_of_others() {
    as_root(|served| {
        let folder = served.mkdir(&served.root, b"tmp", 0o1777);
        let parent = folder.handle.bytes();
        let request = Request::Create { parent, name: b"file", mode: 0o666, umask: 0, flags: READ_WRITE };
        served.call(&alice(), request).unwrap();
        let bob = context(1, user(BOB, BOB, &[]));
        let unlink = Request::Unlink { parent, name: b"file" };
        assert_eq!(served.call(&bob, unlink.clone()), Err(Errno::EPERM));
        let (new_parent, new_name, flags) = (parent, &b"mine"[..], RenameFlags::empty());
        let rename = Request::Rename { parent, name: b"file", new_parent, new_name, flags };
        assert_eq!(served.call(&bob, rename), Err(Errno::EPERM));
        assert_eq!(served.call(&alice(), unlink), Ok(Reply::Done));
    });
}

#[test]
fn folders_without_search_permission_hide_their_names_but_not_a_handle() {
    as_root(|served| {
        let folder = served.mkdir(&served.root, b"closed", 0o700);
        let inner = served.mkdir(folder.handle.bytes(), b"inner", 0o777);
        let look = |parent, name| served.call(&alice(), Request::Lookup { parent, name }).and_then(Reply::entry);
        assert_eq!(look(folder.handle.bytes(), b"inner"), Err(Errno::EACCES));
        let list = Request::OpenDirectory { handle: folder.handle.bytes() };
        assert_eq!(served.call(&alice(), list), Err(Errno::EACCES));
        // As with a descriptor that was passed on, and as NFS has it: whoever has the handle has come by it rightly.
        let parent = inner.handle.bytes();
        let request = Request::MakeDirectory { parent, name: b"mine", mode: 0o755, umask: 0 };
        assert_eq!(served.call(&alice(), request).unwrap().entry().unwrap().attr.uid, ALICE);
    });
}

#[test]
fn what_may_only_be_executed_is_opened_for_that_alone() {
    as_root(|served| {
        let (file, open) = served.create(b"program");
        served.write(open, 0, b"#!/bin/true").unwrap();
        served.release(open);
        served.set(&context(1, own()), &file.handle, SetAttr { mode: Some(0o711), ..SetAttr::default() }).unwrap();
        assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::READ), Err(Errno::EACCES));
        let open = served.open_as(&alice(), &file.handle, OpenFlags::EXECUTE).unwrap();
        assert_eq!(served.read_as(&alice(), open, 0, 100).unwrap(), b"#!/bin/true");
        let write = OpenFlags::EXECUTE | OpenFlags::WRITE;
        assert_eq!(served.open_as(&alice(), &file.handle, write), Err(Errno::EACCES));
        served.set(&context(1, own()), &file.handle, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::EXECUTE), Err(Errno::EACCES));
        assert_eq!(served.open(&file.handle, OpenFlags::EXECUTE), Err(Errno::EACCES), "nor by root");
    });
}

#[test]
fn trusted_attributes_and_devices_are_roots() {
    as_root(|served| {
        let (file, _) = served.create_as(&alice(), b"file", 0o666).unwrap();
        let (handle, name) = (file.handle.bytes(), &b"trusted.note"[..]);
        let set = Request::SetXattr { handle, name, value: b"x", mode: XattrMode::Any };
        assert_eq!(served.call(&alice(), set.clone()), Err(Errno::EPERM));
        assert_eq!(served.root_call(set), Ok(Reply::Done));
        let get = Request::GetXattr { handle, name, size: 10 };
        assert_eq!(served.call(&alice(), get.clone()), Err(Errno::ENODATA));
        assert_eq!(served.root_call(get), Ok(Reply::Bytes(b"x".to_vec())));
        let parent = &served.root[..];
        let device =
            Request::MakeNode { parent, name: b"null", mode: libc::S_IFCHR | 0o666, umask: 0, rdev: (1 << 32) | 3 };
        assert_eq!(served.call(&alice(), device), Err(Errno::EPERM));
    });
}

#[test]
fn threads_keep_their_callers_apart() {
    as_root(|served| {
        std::thread::scope(|scope| {
            for uid in 2000..2004 {
                scope.spawn(move || {
                    let me = context(uid.into(), user(uid, uid, &[]));
                    for round in 0..200 {
                        let name = format!("{uid}-{round}");
                        let request = Request::MakeDirectory {
                            parent: &served.root,
                            name: name.as_bytes(),
                            mode: 0o777,
                            umask: uid & 0o77,
                        };
                        let made = served.call(&me, request).unwrap().entry().unwrap();
                        assert_eq!((made.attr.uid, made.attr.mode & 0o777), (uid, 0o777 & !(uid & 0o77)));
                        let other = served.root_call(Request::Root).unwrap();
                        assert!(matches!(other, Reply::Entry(_)));
                    }
                    // A thread that is born with somebody's identity does not keep it.
                    let child = std::thread::spawn(aqueduct_posix::restore);
                    child.join().unwrap();
                });
            }
        });
    });
}

#[test]
fn a_new_thread_does_not_act_as_its_parent() {
    as_root(|served| {
        let root = served.call(&context(1, own()), Request::Root).unwrap().entry().unwrap();
        served.call(&alice(), Request::Access { handle: root.handle.bytes(), mask: AccessMask::READ }).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (file, _) = served.create_as(&context(1, own()), b"roots", 0o600).unwrap();
                assert_eq!(file.attr.uid, 0);
            });
        });
    });
}

/// A line of this thread's status.
fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line[field.len() + 1..].trim().to_string()
}

#[test]
fn a_user_has_no_capability_and_root_has_all() {
    as_root(|served| {
        aqueduct_posix::restore();
        let all = status("CapEff");
        let (file, open) = served.create(b"file");
        served.release(open);
        assert_eq!(served.open_as(&alice(), &file.handle, READ_WRITE), Err(Errno::EACCES));
        assert_eq!(status("CapEff"), "0".repeat(16));
        assert_eq!(status("Uid").split_whitespace().last(), Some("1000"));
        assert_eq!(status("Gid").split_whitespace().last(), Some("1000"));
        // Looking takes one right more, which ends with the next operation.
        served.call(&alice(), Request::GetAttr { handle: file.handle.bytes(), open: None }).unwrap();
        assert!(["0000000000000004", "0000000000000002"].contains(&status("CapEff").as_str()));
        assert_eq!(served.open_as(&alice(), &file.handle, READ_WRITE), Err(Errno::EACCES));
        assert_eq!(status("CapEff"), "0".repeat(16));
        let ask =
            |of: &Context| served.call(of, Request::Access { handle: file.handle.bytes(), mask: AccessMask::READ });
        ask(&context(1, user(ALICE, 7, &[9, 8]))).unwrap();
        assert_eq!(status("Groups"), "8 9");
        ask(&context(1, own())).unwrap();
        assert_eq!((status("CapEff"), status("Groups")), (all.clone(), String::new()));
        ask(&alice()).unwrap();
        aqueduct_posix::restore();
        assert_eq!(status("CapEff"), all);
    });
}

#[test]
fn groups_that_the_callers_host_cannot_tell_are_looked_up_here() {
    let Ok(users) = std::fs::read_to_string("/etc/group") else { return skip("no /etc/group") };
    // Any supplementary member of any group that this machine knows.
    let member = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (gid, members) = (fields.nth(2)?.parse::<u32>().ok()?, fields.next()?);
        let name = members.split(',').next().filter(|name| !name.is_empty())?.to_string();
        let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
        let entry = passwd.lines().find(|line| line.split(':').next() == Some(&name))?.to_string();
        Some((entry.split(':').nth(2)?.parse::<u32>().ok()?, gid))
    });
    let Some((uid, gid)) = member.filter(|(uid, _)| *uid != 0) else { return skip("nobody is in a second group here") };
    as_root(|served| {
        let path = served.path.join("shared");
        std::fs::write(&path, b"shared").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        chown(&path, Some(0), Some(gid)).unwrap();
        let file = served.lookup(&served.root, b"shared").unwrap();
        let resolved = Credential { uid, gid: 54_321, groups: Groups::Resolve };
        for _ in 0..2 {
            assert!(served.open_as(&context(1, resolved.clone()), &file.handle, OpenFlags::READ).is_ok());
            assert_eq!(served.open_as(&alice(), &file.handle, OpenFlags::READ), Err(Errno::EACCES));
        }
    });
}

#[test]
fn the_servers_groups_of_a_user_are_squashed_too() {
    const ANONYMOUS: u32 = 4711;
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut uids = passwd.lines().filter_map(|line| line.split(':').nth(2)?.parse::<u32>().ok());
    let Some(uid) = uids.find(|uid| *uid != 0) else { return skip("there is no user but root here") };
    as_root(|served| {
        let path = served.path.join("shared");
        std::fs::write(&path, b"shared").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        chown(&path, Some(0), Some(ANONYMOUS)).unwrap();
        let file = served.lookup(&served.root, b"shared").unwrap();
        // The user database counts the first group, here root's, among a user's groups.
        for (groups, expected) in [(Groups::Resolve, Some(Errno::EACCES)), (Groups::ResolveSquashed(ANONYMOUS), None)] {
            let caller = context(1, Credential { uid, gid: 0, groups });
            assert_eq!(served.open_as(&caller, &file.handle, OpenFlags::READ).map(drop).err(), expected);
        }
    });
}
