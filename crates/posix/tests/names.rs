//! Names: made, found, moved and removed, and never a way out of the tree.

mod common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_posix::HandleSource;
use common::*;

const REFUSED: [(&[u8], Errno); 6] = [
    (b"", Errno::ENOENT),
    (b".", Errno::EINVAL),
    (b"..", Errno::EINVAL),
    (b"a/b", Errno::EINVAL),
    (b"/etc", Errno::EINVAL),
    (b"a\0b", Errno::EINVAL),
];

#[test]
fn names_that_would_lead_elsewhere_are_refused_by_every_operation() {
    everywhere(|served| {
        let root = &served.root[..];
        let (file, _) = served.create(b"file");
        let too_long = [b'x'; 256];
        let flags = READ_WRITE;
        for (name, error) in REFUSED.into_iter().chain([(&too_long[..], Errno::ENAMETOOLONG)]) {
            let requests = [
                Request::Lookup { parent: root, name },
                Request::Symlink { parent: root, name, text: b"x" },
                Request::MakeNode { parent: root, name, mode: libc::S_IFREG | 0o600, umask: 0, rdev: 0 },
                Request::MakeDirectory { parent: root, name, mode: 0o700, umask: 0 },
                Request::Unlink { parent: root, name },
                Request::RemoveDirectory { parent: root, name },
                Request::Rename { parent: root, name, new_parent: root, new_name: b"n", flags: RenameFlags::empty() },
                Request::Rename {
                    parent: root,
                    name: b"file",
                    new_parent: root,
                    new_name: name,
                    flags: RenameFlags::empty(),
                },
                Request::Link { handle: file.handle.bytes(), parent: root, name },
                Request::Create { parent: root, name, mode: 0o600, umask: 0, flags },
            ];
            for request in requests {
                assert_eq!(served.root_call(request.clone()), Err(error), "{request:?}");
            }
        }
        assert_eq!(std::fs::read_dir(&served.path).unwrap().count(), 1);
    });
}

#[test]
fn links_are_never_followed() {
    everywhere(|served| {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), b"secret").unwrap();
        symlink(outside.path(), served.path.join("dir")).unwrap();
        symlink(outside.path().join("secret"), served.path.join("file")).unwrap();
        symlink("/proc/self/root", served.path.join("magic")).unwrap();
        for name in [&b"dir"[..], b"file", b"magic"] {
            let entry = served.lookup(&served.root, name).unwrap();
            assert_eq!(entry.attr.kind(), libc::S_IFLNK);
            assert_eq!(served.lookup(entry.handle.bytes(), b"secret"), Err(Errno::ENOTDIR));
            assert_eq!(served.open(&entry.handle, OpenFlags::READ), Err(Errno::ELOOP));
            assert_eq!(served.root_call(Request::OpenDirectory { handle: entry.handle.bytes() }), Err(Errno::ENOTDIR));
            let flags = READ_WRITE;
            let create = Request::Create { parent: &served.root, name, mode: 0o600, umask: 0, flags };
            assert_eq!(served.root_call(create), Err(Errno::ELOOP));
            let flags = READ_WRITE | OpenFlags::EXCLUSIVE;
            let create = Request::Create { parent: &served.root, name, mode: 0o600, umask: 0, flags };
            assert_eq!(served.root_call(create), Err(Errno::EEXIST));
            let size = SetAttr { size: Some(0), ..SetAttr::default() };
            assert!(served.set(&context(1, own()), &entry.handle, size).is_err());
        }
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
    });
}

#[test]
fn names_of_any_bytes_are_kept() {
    everywhere(|served| {
        let names: [&[u8]; 5] = [b"\xff\xfe", b" blank ", b"new\nline", b"back\\slash", &[0xc3; 255]];
        for name in names {
            let (entry, open) = served.create(name);
            served.release(open);
            assert_eq!(served.lookup(&served.root, name).unwrap().handle, entry.handle);
            assert!(served.path.join(std::ffi::OsStr::from_bytes(name)).exists());
            served.root_call(Request::Unlink { parent: &served.root, name }).unwrap();
            assert_eq!(served.lookup(&served.root, name), Err(Errno::ENOENT));
        }
    });
}

#[test]
fn every_kind_is_made_and_special_files_are_never_opened() {
    everywhere(|served| {
        let root = &served.root[..];
        let kinds =
            [(libc::S_IFIFO, "fifo"), (libc::S_IFSOCK, "socket"), (libc::S_IFCHR, "char"), (libc::S_IFREG, "reg")];
        for (kind, name) in kinds {
            if kind == libc::S_IFCHR && !is_root() {
                skip("making a device takes root");
                continue;
            }
            let rdev = (10 << 32) | 229;
            let request =
                Request::MakeNode { parent: root, name: name.as_bytes(), mode: kind | 0o4755, umask: 0o022, rdev };
            let entry = served.root_call(request).unwrap().entry().unwrap();
            assert_eq!(entry.attr.mode, kind | 0o4755, "{name}");
            assert_eq!(entry.attr.rdev, if kind == libc::S_IFCHR { rdev } else { 0 });
            let opened = served.open(&entry.handle, OpenFlags::READ);
            assert_eq!(opened.err(), (kind != libc::S_IFREG).then_some(Errno::ENXIO), "{name}");
            let create =
                Request::Create { parent: root, name: name.as_bytes(), mode: 0o600, umask: 0, flags: READ_WRITE };
            assert_eq!(served.root_call(create).err(), (kind != libc::S_IFREG).then_some(Errno::ENXIO), "{name}");
            let mode = SetAttr { mode: Some(0o600), mtime: Some(SetTime::Now), ..SetAttr::default() };
            assert_eq!(served.set(&context(1, own()), &entry.handle, mode).unwrap().mode, kind | 0o600);
        }
        let meta = std::fs::metadata(served.path.join("fifo")).unwrap();
        assert!(meta.file_type().is_fifo());
        let directory = Request::MakeNode { parent: root, name: b"d", mode: libc::S_IFDIR | 0o700, umask: 0, rdev: 0 };
        assert_eq!(served.root_call(directory), Err(Errno::EPERM));
        let entry = served.mkdir(root, b"dir", 0o755);
        assert!(entry.attr.is_directory());
        assert_eq!(served.open(&entry.handle, OpenFlags::READ), Err(Errno::EISDIR));
        assert_eq!(served.root_call(Request::RemoveDirectory { parent: root, name: b"dir" }), Ok(Reply::Done));
        assert_eq!(served.root_call(Request::RemoveDirectory { parent: root, name: b"fifo" }), Err(Errno::ENOTDIR));
    });
}

#[test]
fn renames_replace_exchange_and_refuse() {
    everywhere(|served| {
        let root = &served.root[..];
        let rename = |name: &[u8], new_name: &[u8], flags| {
            served.root_call(Request::Rename { parent: root, name, new_parent: root, new_name, flags })
        };
        let (a, _) = served.create(b"a");
        let (b, _) = served.create(b"b");
        assert_eq!(rename(b"a", b"b", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
        assert_eq!(rename(b"a", b"b", RenameFlags::EXCHANGE), Ok(Reply::Done));
        assert_eq!(served.lookup(root, b"b").unwrap().handle, a.handle);
        assert_eq!(served.lookup(root, b"a").unwrap().handle, b.handle);
        assert_eq!(rename(b"b", b"a", RenameFlags::empty()), Ok(Reply::Done));
        assert_eq!(served.lookup(root, b"a").unwrap().handle, a.handle);
        assert_eq!(served.lookup(root, b"b"), Err(Errno::ENOENT));
        assert_eq!(rename(b"none", b"a", RenameFlags::empty()), Err(Errno::ENOENT));
        let directory = served.mkdir(root, b"dir", 0o755);
        let inner = served.mkdir(directory.handle.bytes(), b"inner", 0o755);
        let into_itself = Request::Rename {
            parent: root,
            name: b"dir",
            new_parent: inner.handle.bytes(),
            new_name: b"x",
            flags: RenameFlags::empty(),
        };
        assert_eq!(served.root_call(into_itself), Err(Errno::EINVAL));
        assert_eq!(rename(b"a", b"dir", RenameFlags::empty()), Err(Errno::EISDIR));
        assert_eq!(rename(b"dir", b"moved", RenameFlags::empty()), Ok(Reply::Done));
        assert_eq!(served.lookup(directory.handle.bytes(), b"inner").unwrap().handle, inner.handle, "by its handle");
        assert_eq!(served.root_call(Request::RemoveDirectory { parent: root, name: b"moved" }), Err(Errno::ENOTEMPTY));
    });
}

#[test]
fn hard_links_name_the_same_inode_and_a_link_to_a_symlink_is_a_symlink() {
    everywhere(|served| {
        let root = &served.root[..];
        let (file, open) = served.create(b"file");
        let link = |handle: &Handle, name| {
            served.root_call(Request::Link { handle: handle.bytes(), parent: root, name })?.entry()
        };
        let second = link(&file.handle, b"second").unwrap();
        assert_eq!((second.handle, second.attr.nlink), (file.handle.clone(), 2));
        served.release(open);
        assert_eq!(link(&file.handle, b"third").unwrap().attr.nlink, 3);
        assert_eq!(link(&file.handle, b"third").err(), Some(Errno::EEXIST));
        let text = b"../nowhere \xff";
        let symlink = served.root_call(Request::Symlink { parent: root, name: b"sym", text }).unwrap().entry().unwrap();
        let again = link(&symlink.handle, b"sym2").unwrap();
        assert_eq!(again.attr.kind(), libc::S_IFLNK);
        assert_eq!((again.handle.clone(), again.attr.nlink), (symlink.handle, 2));
        let read = Request::ReadLink { handle: again.handle.bytes() };
        assert_eq!(served.root_call(read).unwrap(), Reply::Bytes(text.to_vec()));
        let read = Request::ReadLink { handle: file.handle.bytes() };
        assert_eq!(served.root_call(read), Err(Errno::EINVAL));
        let directory = served.mkdir(root, b"dir", 0o755);
        assert_eq!(link(&directory.handle, b"dir2").err(), Some(Errno::EPERM));
        let long = vec![b'x'; 4096];
        let request = Request::Symlink { parent: root, name: b"long", text: &long };
        assert_eq!(served.root_call(request), Err(Errno::ENAMETOOLONG));
    });
}

#[test]
fn a_mount_point_ends_the_tree_unless_it_is_asked_to_go_on() {
    if !is_root() {
        return skip("mounting takes root");
    }
    // A mount namespace of this thread's own.
    let tested = std::thread::spawn(|| {
        // SAFETY: the thread does nothing that depends on sharing its root or mounts.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return skip("no mount namespaces here");
        }
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        for cross_mounts in [false, true] {
            let options = aqueduct_posix::Options { cross_mounts, ..Default::default() };
            let served = serve_with(&std::env::temp_dir(), options);
            served.mkdir(&served.root, b"mnt", 0o755);
            let point = served.path.join("mnt");
            mount("none", &point, "tmpfs", MountFlags::empty(), None).unwrap();
            std::fs::create_dir(point.join("dir")).unwrap();
            std::fs::write(point.join("dir/file"), b"below").unwrap();
            let found = served.lookup(&served.root, b"mnt");
            if cross_mounts {
                let inner = served.lookup(found.unwrap().handle.bytes(), b"dir").unwrap();
                let file = served.lookup(inner.handle.bytes(), b"file").unwrap();
                let open = served.open(&file.handle, OpenFlags::READ).unwrap();
                assert_eq!(served.read(open, 0, 10).unwrap(), b"below");
                let again = served.restarted();
                let context = context(1, own());
                let request = Request::Lookup { parent: inner.handle.bytes(), name: b"file" };
                let again = block_on(again.call(&context, request)).unwrap().entry().unwrap();
                assert_eq!(again.handle, file.handle, "found through the table of mounts");
            } else {
                assert_eq!(found, Err(Errno::EXDEV));
            }
            rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    });
    tested.join().unwrap();
}

#[test]
fn a_special_file_made_outside_keeps_its_attributes() {
    everywhere(|served| {
        let entry = served.mkdir(&served.root, b"dir", 0o2750);
        let meta = std::fs::metadata(served.path.join("dir")).unwrap();
        assert_eq!((entry.attr.ino, entry.attr.mode, entry.attr.nlink), (meta.ino(), meta.mode(), meta.nlink() as u32));
        assert_eq!((entry.attr.mtime.seconds, entry.attr.mtime.nanos), (meta.mtime(), meta.mtime_nsec() as u32));
        assert_ne!(entry.attr.btime, Time::default());
    });
}

#[test]
fn what_was_found_is_opened_a_moment_after_its_name_went() {
    everywhere(|served| {
        let (first, open) = served.create(b"name");
        served.release(open);
        put_another(served, b"name");
        // Whoever comes with a handle of what is gone looks its name up once more, and is not to
        // be late again.
        assert_eq!(served.open(&first.handle, READ_WRITE), Err(Errno::ESTALE));
        for unlinks in [false, true] {
            let found = served.lookup(&served.root, b"name").unwrap().handle;
            if unlinks {
                served.root_call(Request::Unlink { parent: &served.root, name: b"name" }).unwrap();
            } else {
                put_another(served, b"name");
            }
            let open = served.open(&found, READ_WRITE).unwrap();
            assert_eq!(served.read(open, 0, 100).unwrap(), b"content");
            served.release(open);
            let attr = served.attr(&found).unwrap();
            assert_eq!((attr.nlink, attr.size), (0, 7));
            let shorter = SetAttr { size: Some(3), mode: Some(0o600), ..SetAttr::default() };
            assert_eq!(served.set(&context(1, own()), &found, shorter).unwrap().size, 3);
            // Not for ever, and not where somebody looks for room.
            if unlinks {
                served.root_call(Request::Statfs { handle: &served.root }).unwrap();
            }
            let began = Instant::now();
            while served.attr(&found).is_ok() {
                assert!(!unlinks && began.elapsed() < Duration::from_secs(20), "it is let go of");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
}

/// What one client removes through one export is found by who comes late through another.
#[test]
fn what_was_found_through_one_export_is_opened_after_its_name_went_through_another() {
    let served = serve(&std::env::temp_dir(), aqueduct_posix::HandleSource::Kernel);
    let other = served.beside(Path::new("."));
    let (_, open) = served.create(b"name");
    served.release(open);
    let first = other.lookup(&other.root, b"name").unwrap().handle;
    put_another(&served, b"name");
    assert_eq!(other.open(&first, READ_WRITE), Err(Errno::ESTALE));
    let found = other.lookup(&other.root, b"name").unwrap().handle;
    put_another(&served, b"name");
    let open = other.open(&found, READ_WRITE).unwrap();
    assert_eq!(other.read(open, 0, 100).unwrap(), b"content");
    other.release(open);
    // Who looks for room through either of them has what is held.
    served.root_call(Request::Statfs { handle: &served.root }).unwrap();
    assert_eq!(other.attr(&found).map(drop), Err(Errno::ESTALE));
}

/// Makes a file and renames it over another.
fn put_another(served: &Served, name: &[u8]) {
    let (_, open) = served.create(b"new");
    served.write(open, 0, b"content").unwrap();
    served.release(open);
    let flags = RenameFlags::empty();
    let rename =
        Request::Rename { parent: &served.root, name: b"new", new_parent: &served.root, new_name: name, flags };
    served.root_call(rename).unwrap();
}

#[test]
fn what_others_removed_is_room_for_who_writes() {
    if !is_root() {
        return skip("mounting takes root");
    }
    let home = tempfile::tempdir().unwrap();
    let mounted = rustix::mount::mount("none", home.path(), "tmpfs", rustix::mount::MountFlags::empty(), c"size=1m");
    if mounted.is_err() {
        return skip("a tmpfs cannot be mounted");
    }
    {
        let served = serve(home.path(), HandleSource::Kernel);
        let (stale, open) = served.create(b"name");
        served.release(open);
        served.root_call(Request::Unlink { parent: &served.root, name: b"name" }).unwrap();
        assert_eq!(served.attr(&stale.handle), Err(Errno::ESTALE));
        for round in 0..3 {
            let (found, open) = served.create(b"name");
            let written = served.write(open, 0, &vec![round; 700 << 10]);
            assert_eq!(written, Ok(700 << 10), "what was removed before is room again");
            served.release(open);
            served.root_call(Request::Unlink { parent: &served.root, name: b"name" }).unwrap();
            assert!(served.attr(&found.handle).is_ok(), "it is held");
        }
    }
    rustix::mount::unmount(home.path(), rustix::mount::UnmountFlags::empty()).unwrap();
}
