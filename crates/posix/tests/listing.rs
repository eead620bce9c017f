//! Listings: in pages of any size, nothing is lost and nothing comes twice.

mod common;

use std::collections::HashSet;
use std::path::Path;

use aqueduct_fs::*;
use aqueduct_posix::HandleSource;
use common::*;

fn open_directory(served: &Served, handle: &[u8]) -> OpenId {
    served.root_call(Request::OpenDirectory { handle }).unwrap().opened().unwrap().id
}

fn page(served: &Served, open: OpenId, cookie: u64, size: u32, plus: bool) -> Result<DirPage, Errno> {
    served.root_call(Request::ReadDirectory { open, cookie, size, plus })?.directory()
}

#[test]
fn fifty_thousand_entries_come_once_each() {
    const COUNT: usize = 50_000;
    let disk = std::env::temp_dir();
    for (parent, handles) in [(disk.as_path(), HandleSource::Kernel), (Path::new("/dev/shm"), HandleSource::Table)] {
        let served = &serve(parent, handles);
        for number in 0..COUNT {
            std::os::unix::fs::symlink("x", served.path.join(format!("entry-{number}"))).unwrap();
        }
        for (size, plus) in [(4096, false), (65_536, true), (1 << 20, false)] {
            let open = open_directory(served, &served.root);
            let mut names = HashSet::new();
            let (mut cookie, mut end) = (0, false);
            while !end {
                let found = page(served, open, cookie, size, plus).unwrap();
                assert!(found.packed().len() <= size as usize);
                assert!(found.end || found.entries().next().is_some(), "no progress at {cookie}");
                for entry in found.entries() {
                    assert!(names.insert(entry.name.to_vec()), "twice: {:?}", String::from_utf8_lossy(entry.name));
                    let is_dot = matches!(entry.name, b"." | b"..");
                    assert_eq!(entry.inode.is_some(), plus && !is_dot);
                    if let Some((_, attr)) = entry.inode {
                        assert_eq!((attr.ino, attr.kind()), (entry.ino, libc::S_IFLNK));
                    }
                    cookie = entry.cookie;
                }
                end = found.end;
            }
            assert_eq!(names.len(), COUNT + 2);
            served.root_call(Request::ReleaseDirectory { open }).unwrap();
        }
    }
}

#[test]
fn a_listing_goes_on_after_any_entry_also_in_another_open() {
    everywhere(|served| {
        for number in 0..1000 {
            std::fs::write(served.path.join(format!("{number}")), b"").unwrap();
        }
        let open = open_directory(served, &served.root);
        let all = page(served, open, 0, 1 << 20, false).unwrap();
        let all: Vec<_> = all.entries().map(|entry| (entry.cookie, entry.name.to_vec())).collect();
        assert_eq!(all.len(), 1002);
        let other = open_directory(served, &served.root);
        for at in [0, 1, 500, 999, 1000, 17] {
            for open in [open, other] {
                let rest = page(served, open, all[at].0, 1 << 20, false).unwrap();
                let rest: Vec<_> = rest.entries().map(|entry| entry.name.to_vec()).collect();
                assert!(rest.iter().eq(all[at + 1..].iter().map(|(_, name)| name)), "after entry {at}");
            }
        }
        let last = page(served, open, all[1001].0, 4096, false).unwrap();
        assert!(last.end && last.packed().is_empty());
        let small = page(served, open, 0, 10, false).unwrap();
        assert!(!small.end && small.packed().is_empty(), "not even one entry fits");
    });
}

#[test]
fn each_page_tells_what_changed_and_the_root_hides_what_lies_above() {
    everywhere(|served| {
        let open = open_directory(served, &served.root);
        let names = |page: DirPage| page.entries().map(|entry| entry.name.to_vec()).collect::<HashSet<_>>();
        assert_eq!(names(page(served, open, 0, 4096, true).unwrap()).len(), 2);
        served.create(b"new");
        let listed = page(served, open, 0, 4096, true).unwrap();
        let root = served.root_call(Request::Root).unwrap().entry().unwrap();
        for entry in listed.entries().filter(|entry| entry.name.starts_with(b".")) {
            assert_eq!(entry.ino, root.attr.ino);
        }
        assert!(names(listed).contains(&b"new"[..]), "from the start everything is read afresh");
        let (_, file) = served.create(b"file");
        assert_eq!(page(served, file, 0, 4096, false), Err(Errno::ENOTDIR));
        assert_eq!(page(served, OpenId(999), 0, 4096, false), Err(Errno::EBADF));
        assert_eq!(served.root_call(Request::SyncDirectory { open, data_only: false }), Ok(Reply::Done));
    });
}

#[test]
fn very_many_listings_at_once_go_on_without_their_buffers() {
    let served = serve(Path::new("/dev/shm"), HandleSource::Kernel);
    for number in 0..300 {
        std::fs::write(served.path.join(format!("{number}")), b"").unwrap();
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit, maximum: limit },
    )
    .unwrap();
    if limit.is_some_and(|limit| limit < 3000) {
        return skip("too few descriptors here");
    }
    let opens: Vec<_> = (0..1100).map(|_| open_directory(&served, &served.root)).collect();
    let mut names = HashSet::new();
    let mut cookie = 0;
    loop {
        let found = page(&served, opens[7], cookie, 500, false).unwrap();
        for entry in found.entries() {
            assert!(names.insert(entry.name.to_vec()));
            cookie = entry.cookie;
        }
        if found.end {
            break;
        }
    }
    assert_eq!(names.len(), 302);
}
