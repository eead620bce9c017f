//! Handles and tokens: they outlive the server, and nobody makes one up.

mod common;

use std::path::Path;

use aqueduct_fs::*;
use aqueduct_posix::{HandleSource, OpenError, Options, Posix};
use common::*;

fn get(posix: &Posix, handle: &[u8]) -> Result<Attr, Errno> {
    block_on(posix.call(&context(1, own()), Request::GetAttr { handle, open: None }))?.attr()
}

#[test]
fn forged_and_foreign_handles_are_stale() {
    everywhere(|served| {
        let (file, open) = served.create(b"file");
        served.release(open);
        let bytes = file.handle.bytes();
        for at in 0..bytes.len() {
            let mut forged = bytes.to_vec();
            forged[at] ^= 1;
            assert_eq!(get(&served.posix, &forged), Err(Errno::ESTALE), "byte {at}");
        }
        for forged in [&b""[..], b"x", &[1; 16], &[0; 160], &[255; 161]] {
            assert_eq!(get(&served.posix, forged), Err(Errno::ESTALE));
            assert_eq!(served.lookup(forged, b"file"), Err(Errno::ESTALE));
            assert_eq!(served.root_call(Request::Reopen { open: OpenId(1), token: forged }), Err(Errno::ESTALE));
        }
        let other = serve(&std::env::temp_dir(), HandleSource::Kernel);
        assert_eq!(get(&other.posix, bytes), Err(Errno::ESTALE), "of another key");
        assert!(get(&served.posix, bytes).is_ok());
    });
}

#[test]
fn an_inode_has_one_name_in_all_exports() {
    everywhere(|served| {
        let (file, open) = served.create(b"file");
        served.release(open);
        let other = Posix::open(&served.path, Options { export: 8, ..served.options() }).unwrap();
        let ask = |request| block_on(other.call(&context(1, own()), request)).unwrap().entry().unwrap().handle;
        let root = ask(Request::Root);
        let there = ask(Request::Lookup { parent: root.bytes(), name: b"file" });
        assert_ne!(there, file.handle);
        let name = served.posix.inode_name(file.handle.bytes());
        assert!(name.is_some());
        assert_eq!(other.inode_name(there.bytes()), name);
        assert_ne!(other.inode_name(root.bytes()), name);
        assert_eq!(other.inode_name(file.handle.bytes()), None, "a handle of another export");
    });
}

#[test]
fn forged_and_foreign_tokens_are_stale() {
    everywhere(|served| {
        let (file, opened) = served.create_as(&context(1, own()), b"file", 0o644).unwrap();
        let directory = served.root_call(Request::OpenDirectory { handle: &served.root }).unwrap().opened().unwrap();
        let reopen = |token: &[u8]| served.root_call(Request::Reopen { open: OpenId(7), token });
        for token in [&opened.token, &directory.token] {
            for at in 0..token.len() {
                for change in [1, 0x80] {
                    let mut forged = token.to_vec();
                    forged[at] ^= change;
                    assert_eq!(reopen(&forged), Err(Errno::ESTALE), "byte {at}");
                }
                assert_eq!(reopen(&token[..at]), Err(Errno::ESTALE), "its first {at} bytes");
            }
            assert_eq!(reopen(&[token, &[0][..]].concat()), Err(Errno::ESTALE));
            assert_eq!(get(&served.posix, token), Err(Errno::ESTALE), "no handle");
        }
        assert_eq!(reopen(file.handle.bytes()), Err(Errno::ESTALE), "no token");
        for options in [Options { key: [9; 32], ..Options::default() }, Options { export: 8, ..served.options() }] {
            let other = Posix::open(&served.path, options).unwrap();
            let request = Request::Reopen { open: OpenId(7), token: &opened.token };
            assert_eq!(
                block_on(other.call(&context(1, own()), request)),
                Err(Errno::ESTALE),
                "of another key or export"
            );
            assert_eq!(get(&other, file.handle.bytes()), Err(Errno::ESTALE));
        }
        served.release(opened.id);
        assert!(reopen(&opened.token).is_ok());
    });
}

/// Nobody has told the server to serve the directory that was moved away.
#[test]
fn handles_and_tokens_are_stale_below_another_root() {
    everywhere(|served| {
        let (file, opened) = served.create_as(&context(1, own()), b"file", 0o644).unwrap();
        let moved = served.path.with_extension("moved");
        std::fs::rename(&served.path, &moved).unwrap();
        std::fs::create_dir(&served.path).unwrap();
        let replaced = served.restarted();
        let reopen = |posix: &Posix| {
            let request = Request::Reopen { open: opened.id, token: &opened.token };
            block_on(posix.call(&context(1, own()), request))
        };
        for handle in [file.handle.bytes(), &served.root] {
            assert_eq!(get(&replaced, handle), Err(Errno::ESTALE));
        }
        assert_eq!(reopen(&replaced), Err(Errno::ESTALE));
        // The process that has served it so far goes on.
        assert!(get(&served.posix, file.handle.bytes()).is_ok());
        aqueduct_posix::restore();
        std::fs::remove_dir(&served.path).unwrap();
        std::fs::rename(&moved, &served.path).unwrap();
        let back = served.restarted();
        if served.posix.statistics().kernel_handles {
            assert!(get(&back, file.handle.bytes()).is_ok() && get(&back, &served.root).is_ok());
            assert!(reopen(&back).is_ok());
        }
    });
}

/// A client may try again on another connection while the first request still runs.
#[test]
fn what_is_opened_again_twice_at_once_is_open() {
    let served = serve(Path::new("/dev/shm"), HandleSource::Kernel);
    let (_, opened) = served.create_as(&context(1, own()), b"file", 0o644).unwrap();
    served.release(opened.id);
    let start = std::sync::Barrier::new(2);
    for round in 0..2000 {
        let reopen = || {
            start.wait();
            served.root_call(Request::Reopen { open: opened.id, token: &opened.token })
        };
        let both =
            std::thread::scope(|scope| [scope.spawn(reopen), scope.spawn(reopen)].map(|one| one.join().unwrap()));
        both.into_iter().for_each(|one| assert_eq!(one.unwrap().opened().unwrap().id, opened.id, "round {round}"));
        served.release(opened.id);
    }
}

/// Who comes with a token is another than he was when the server now squashes him, or maps him elsewhere.
#[test]
fn a_token_is_worth_what_who_brings_it_is_allowed() {
    for parent in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        let served = serve(parent, HandleSource::Kernel);
        if !is_root() {
            return skip("the server is not root");
        }
        let root = context(1, own());
        let nobody = context(1, user(65_534, 65_534, &[]));
        let alice = context(1, user(1000, 1000, &[]));
        let (secret, secret_open) = served.create_as(&root, b"secret", 0o600).unwrap();
        let (_, public_open) = served.create_as(&root, b"public", 0o644).unwrap();
        let (alices, alices_open) = served.create_as(&root, b"alices", 0o600).unwrap();
        let owner = SetAttr { uid: Some(1000), mode: Some(0), ..SetAttr::default() };
        served.set(&root, &alices.handle, owner).unwrap();
        let open = Request::Open { handle: secret.handle.bytes(), flags: OpenFlags::READ };
        let reader = served.call(&root, open).unwrap().opened().unwrap();
        let folder = served.mkdir(&served.root, b"folder", 0o700);
        let listing =
            served.root_call(Request::OpenDirectory { handle: folder.handle.bytes() }).unwrap().opened().unwrap();
        for (who, context, token, expected) in [
            ("root", &root, &secret_open, None),
            ("nobody", &nobody, &secret_open, Some(Errno::EACCES)),
            ("nobody, to read", &nobody, &reader, Some(Errno::EACCES)),
            ("nobody, to write what all may read", &nobody, &public_open, Some(Errno::EACCES)),
            ("nobody, to list", &nobody, &listing, Some(Errno::EACCES)),
            ("root, to list", &root, &listing, None),
            ("root by another group", &context_of_root_in(7), &secret_open, None),
            ("the owner, whatever the mode", &alice, &alices_open, None),
            ("another user", &alice, &secret_open, Some(Errno::EACCES)),
        ] {
            let again = served.restarted();
            let answer = block_on(again.call(context, Request::Reopen { open: token.id, token: &token.token }));
            assert_eq!(answer.map(drop).err(), expected, "{who}");
        }
    }
}

fn context_of_root_in(gid: u32) -> Context {
    context(1, user(0, gid, &[]))
}

#[test]
fn one_inode_has_one_handle() {
    everywhere(|served| {
        let (file, open) = served.create(b"file");
        assert_eq!(served.lookup(&served.root, b"file").unwrap().handle, file.handle);
        assert_eq!(served.posix.inode(ClientId(1), open).now(), Some(Ok(file.handle.clone())));
        assert_eq!(served.posix.inode(ClientId(2), open).now(), Some(Err(Errno::EBADF)), "another client's open");
        served.release(open);
        assert_eq!(served.lookup(&served.root, b"file").unwrap().handle, file.handle);
        served.root_call(Request::Unlink { parent: &served.root, name: b"file" }).unwrap();
        assert_eq!(served.attr(&file.handle), Err(Errno::ESTALE), "removed");
        let (again, _) = served.create(b"file");
        assert_ne!(again.handle, file.handle, "a new inode, perhaps with the old number");
        assert_eq!(served.attr(&file.handle), Err(Errno::ESTALE));
    });
}

#[test]
fn the_kernels_handles_outlive_the_server() {
    for parent in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        let served = serve(parent, HandleSource::Kernel);
        if !served.posix.statistics().kernel_handles {
            return skip("decoding handles takes CAP_DAC_READ_SEARCH");
        }
        let directory = served.mkdir(&served.root, b"dir", 0o755);
        let inner = served.mkdir(directory.handle.bytes(), b"inner", 0o755);
        std::fs::rename(served.path.join("dir"), served.path.join("moved")).unwrap();
        let again = served.restarted();
        assert_eq!(get(&again, inner.handle.bytes()).unwrap().ino, inner.attr.ino);
        let root = block_on(again.call(&context(1, own()), Request::Root)).unwrap().entry().unwrap();
        assert_eq!(root.handle.bytes(), served.root);
    }
}

#[test]
fn the_table_finds_inodes_again_below_what_was_renamed_through_it() {
    let served = serve(&std::env::temp_dir(), HandleSource::Table);
    assert!(!served.posix.statistics().kernel_handles);
    let mut parent = served.root.clone();
    let mut deepest = None;
    for depth in 0..50 {
        let entry = served.mkdir(&parent, format!("d{depth}").as_bytes(), 0o755);
        parent = entry.handle.bytes().to_vec();
        deepest = Some(entry);
    }
    let deepest = deepest.unwrap();
    let rename = Request::Rename {
        parent: &served.root,
        name: b"d0",
        new_parent: &served.root,
        new_name: b"moved",
        flags: RenameFlags::empty(),
    };
    served.root_call(rename).unwrap();
    assert_eq!(served.attr(&deepest.handle).unwrap().ino, deepest.attr.ino);
    // Behind its back: a file put in the place of another is not taken for it.
    let (file, open) = served.create(b"file");
    served.release(open);
    std::fs::rename(served.path.join("file"), served.path.join("elsewhere")).unwrap();
    std::fs::write(served.path.join("file"), b"other").unwrap();
    assert_eq!(served.attr(&file.handle), Err(Errno::ESTALE));
    assert_eq!(served.lookup(&served.root, b"elsewhere").unwrap().handle, file.handle);
    assert!(served.attr(&file.handle).is_ok(), "found again once looked up");
    let again = served.restarted();
    assert_eq!(get(&again, file.handle.bytes()), Err(Errno::ESTALE), "another process has another table");
}

#[test]
fn a_token_opens_the_file_as_it_was() {
    for parent in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        let served = serve(parent, HandleSource::Kernel);
        if !is_root() {
            return skip("the server is not root");
        }
        let alice = context(1, user(1000, 1000, &[]));
        let (entry, opened) = served.create_as(&alice, b"file", 0o444).unwrap();
        let write = WriteAt { open: opened.id, offset: 0, append: false, stable: false };
        served.write_as(&alice, write, b"one").unwrap();
        assert_eq!(served.open_as(&alice, &entry.handle, READ_WRITE), Err(Errno::EACCES), "mode 0444");
        let again = served.restarted();
        let reopen = |open, token| block_on(again.call(&alice, Request::Reopen { open, token }))?.opened();
        let mut forged = opened.token.to_vec();
        forged[1] ^= 1;
        assert_eq!(reopen(opened.id, &forged), Err(Errno::ESTALE));
        let reopened = reopen(opened.id, &opened.token).unwrap();
        assert_eq!((reopened.id, reopen(opened.id, &opened.token)), (opened.id, Ok(reopened.clone())), "once more");
        let bob = Request::Reopen { open: opened.id, token: &opened.token };
        assert_eq!(
            block_on(again.call(&context(2, user(1000, 1000, &[])), bob)),
            Err(Errno::EBUSY),
            "of another client"
        );
        let write = WriteAt { open: reopened.id, offset: 3, append: false, stable: false };
        let written = block_on(again.write(&alice, write, Source::Memory(bytes::Bytes::from_static(b" two"))));
        assert_eq!(written.unwrap().count, 4);
        assert_eq!(reopened.token, opened.token);
        aqueduct_posix::restore();
        assert_eq!(std::fs::read(served.path.join("file")).unwrap(), b"one two");
        // What was open for reading is not open for writing.
        let reader = served.call(&alice, Request::Open { handle: entry.handle.bytes(), flags: OpenFlags::READ });
        let reader = reader.unwrap().opened().unwrap();
        let reader = reopen(reader.id, &reader.token).unwrap();
        let write = WriteAt { open: reader.id, ..write };
        let written = block_on(again.write(&alice, write, Source::Memory(bytes::Bytes::from_static(b"x"))));
        assert_eq!(written, Err(Errno::EBADF));
    }
}

#[test]
fn a_listing_goes_on_after_a_restart() {
    for parent in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        let served = serve(parent, HandleSource::Kernel);
        if !is_root() {
            return skip("the server is not root");
        }
        let alice = context(1, user(1000, 1000, &[]));
        let root = served.root_call(Request::Root).unwrap().entry().unwrap();
        for number in 0..1000 {
            std::fs::write(served.path.join(format!("file{number}")), b"").unwrap();
        }
        let open = Request::OpenDirectory { handle: root.handle.bytes() };
        let opened = served.call(&alice, open).unwrap().opened().unwrap();
        let mut names = std::collections::BTreeSet::new();
        let mut list = |posix: &Posix, cookie| {
            let request = Request::ReadDirectory { open: opened.id, cookie, size: 4096, plus: false };
            let page = block_on(posix.call(&alice, request)).unwrap().directory().unwrap();
            page.entries().fold(None, |_, entry| {
                assert!(names.insert(entry.name.to_vec()), "twice: {:?}", entry.name);
                Some(entry.cookie)
            })
        };
        let mut cookie = list(&served.posix, 0);
        let again = served.restarted();
        let reopen = Request::Reopen { open: opened.id, token: &opened.token };
        assert_eq!(block_on(again.call(&alice, reopen)).unwrap().opened().unwrap().id, opened.id);
        while let Some(from) = cookie {
            cookie = list(&again, from);
        }
        aqueduct_posix::restore();
        assert!((0..1000).all(|number| names.contains(format!("file{number}").as_bytes())), "{}", names.len());
    }
}

#[test]
fn what_cannot_be_served_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Posix::open(&folder.path().join("none"), Options::default());
    assert!(matches!(missing, Err(OpenError::Missing(_))));
    std::fs::write(folder.path().join("file"), b"").unwrap();
    let file = Posix::open(&folder.path().join("file"), Options::default()).err().unwrap();
    assert!(matches!(file, OpenError::NotDirectory(_)));
    assert!(file.to_string().contains("not a directory"), "{file}");
}
