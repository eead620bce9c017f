//! FETCH and LIST: the attributes and first bytes of several files, and what several directories have, in one round trip.

mod common;

use std::fs::{self, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::time::{Duration, UNIX_EPOCH};

use aqueduct_fs::{ClientId, Context, Credential, Errno, Groups, Handle, Request};
use aqueduct_wire::{
    FETCH_LENGTH_MAX, FETCH_MAX, LIST_MAX, Op, decode_fetched, decode_listed, encode_fetch, encode_list,
};
use common::{Fixture, Peer};

fn find(peer: &mut Peer, root: &Handle, name: &str) -> Handle {
    let request = Request::Lookup { parent: root.bytes(), name: name.as_bytes() };
    peer.ask((0, 0), &request).unwrap().entry().unwrap().handle
}

fn user(uid: u32) -> Context {
    Context::new(ClientId(0), Credential { uid, gid: uid, groups: Groups::Known([].into()) })
}

/// Size and bytes of each file, or why not.
fn fetch(peer: &mut Peer, context: &Context, handles: &[&[u8]], length: u32) -> Vec<Result<(u64, Vec<u8>), Errno>> {
    let mut body = Vec::new();
    encode_fetch(context, handles, length, &mut body);
    let (header, body) = peer.call(Op::Fetch, (0, 0), &body);
    assert_eq!(header.status, 0);
    let files = decode_fetched(&body).unwrap().into_iter();
    files.map(|file| file.map(|(attr, data)| (attr.size, data.to_vec()))).collect()
}

#[test]
fn each_file_is_answered_for_itself() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let path = |name: &str| fixture.directory.path().join(name);
    fs::set_permissions(fixture.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(path("own"), "of the user").unwrap();
    chown(path("own"), Some(1234), Some(1234)).unwrap();
    fs::write(path("all"), vec![7; 10_000]).unwrap();
    fs::set_permissions(path("all"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(path("secret"), "of root").unwrap();
    fs::set_permissions(path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path("empty"), "").unwrap();
    fs::set_permissions(path("empty"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink("all", path("link")).unwrap();

    let names = ["own", "all", "secret", "empty", "directory", "link"];
    let handles: Vec<Handle> = names.iter().map(|name| find(&mut peer, &root, name)).collect();
    let mut handles: Vec<&[u8]> = handles.iter().map(Handle::bytes).collect();
    handles.push(b"no handle");
    let expected = [
        Ok((11, b"of the user".to_vec())),
        Ok((10_000, vec![7; 4096])),
        Err(Errno::EACCES),
        Ok((0, Vec::new())),
        Err(Errno::EINVAL),
        Err(Errno::EINVAL),
        Err(Errno::ESTALE),
    ];
    assert_eq!(fetch(&mut peer, &user(1234), &handles, 4096), expected);
    assert_eq!(fetch(&mut peer, &user(0), &handles[2..3], 4096), [Ok((7, b"of root".to_vec()))]);
    assert_eq!(fetch(&mut peer, &user(1234), &handles[1..2], 0), [Ok((10_000, Vec::new()))]);
    assert_eq!(fetch(&mut peer, &user(1234), &[], 4096), []);
}

/// Who fetches reads the first file, but has not read the others: if they are the caller's, they keep their time of access.
#[test]
fn nothing_stays_behind() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let path = |name: &str| fixture.directory.path().join(name);
    let accessed = |name| fs::metadata(path(name)).map(|stat| (stat.atime(), stat.atime_nsec())).unwrap();
    let opened = |name| {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path(name)))
            .count()
    };
    let old = (1_000_000_000, 0);
    let times = FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    for name in ["f", "g", "other"] {
        fs::write(path(name), "data").unwrap();
        fs::File::options().write(true).open(path(name)).unwrap().set_times(times).unwrap();
    }
    fs::read(path("other")).unwrap();
    let handles = ["f", "g"].map(|name| find(&mut peer, &root, name));
    let handles = [handles[0].bytes(), handles[1].bytes()];
    assert_eq!(fetch(&mut peer, &user(0), &handles, 4096), [Ok((4, b"data".to_vec())), Ok((4, b"data".to_vec()))]);
    // On some file systems no read moves it.
    assert_eq!(accessed("f") != old, accessed("other") != old, "as any other read");
    assert_eq!((accessed("g"), opened("f"), opened("g")), (old, 0, 0));
}

#[test]
fn a_reply_has_as_many_files_as_fit() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    fs::write(fixture.directory.path().join("f"), vec![1; 100 << 10]).unwrap();
    let handle = find(&mut peer, &root, "f");
    let handles = [handle.bytes(); FETCH_MAX];
    let whole = fetch(&mut peer, &user(0), &handles, FETCH_LENGTH_MAX);
    assert!(whole.iter().all(|file| *file == Ok((100 << 10, vec![1; 64 << 10]))));
    assert_eq!(whole.len(), 1);
    assert_eq!(fetch(&mut peer, &user(0), &handles, 1024).len(), FETCH_MAX);
}

/// The names in each directory, with whether these are all, or why not.
fn listings(peer: &mut Peer, context: &Context, handles: &[&[u8]]) -> Vec<Result<(Vec<String>, bool), Errno>> {
    let mut body = Vec::new();
    encode_list(context, handles, &mut body);
    let (header, body) = peer.call(Op::List, (0, 0), &body);
    assert_eq!(header.status, 0);
    let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let pages = decode_listed(&body).unwrap().into_iter();
    let names = pages.map(|page| {
        page.map(|page| {
            let entries = page.entries().filter(|entry| entry.inode.is_some());
            let mut names: Vec<_> = entries.map(|entry| name(entry.name)).collect();
            names.sort();
            (names, page.end)
        })
    });
    names.collect()
}

#[test]
fn each_directory_is_answered_for_itself() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let path = |name: &str| fixture.directory.path().join(name);
    fs::set_permissions(fixture.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("open", 0o755), ("secret", 0o700), ("empty", 0o755)] {
        fs::create_dir(path(name)).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(path("file"), "").unwrap();
    fs::write(path("open/a"), "").unwrap();
    fs::create_dir(path("open/b")).unwrap();

    let names = ["open", "secret", "file", "empty"];
    let handles: Vec<Handle> = names.iter().map(|name| find(&mut peer, &root, name)).collect();
    let mut handles: Vec<&[u8]> = handles.iter().map(Handle::bytes).collect();
    handles.push(b"no handle");
    let open = || Ok((vec!["a".to_owned(), "b".to_owned()], true));
    let empty = || Ok((Vec::new(), true));
    let expected = [open(), Err(Errno::EACCES), Err(Errno::ENOTDIR), empty(), Err(Errno::ESTALE)];
    assert_eq!(listings(&mut peer, &user(1234), &handles), expected);
    assert_eq!(listings(&mut peer, &user(0), &handles[1..2]), [empty()]);
    assert_eq!(listings(&mut peer, &user(0), &[]), []);
}

/// What the file system says of its names comes with a listing: the temporary folder of tests lies on one that finds each by its very bytes.
#[test]
fn a_listing_says_that_what_it_does_not_have_is_not_there() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let mut body = Vec::new();
    encode_list(&user(0), &[root.bytes()], &mut body);
    let (_, body) = peer.call(Op::List, (0, 0), &body);
    assert!(matches!(&decode_listed(&body).unwrap()[..], [Ok(page)] if page.end && page.exact));
    let open = peer.ask((0, 1), &Request::OpenDirectory { handle: root.bytes() }).unwrap().opened().unwrap().id;
    for plus in [true, false] {
        let request = Request::ReadDirectory { open, cookie: 0, size: 4096, plus };
        assert_eq!(peer.ask((0, 0), &request).unwrap().directory().unwrap().exact, plus);
    }
}

/// Of the first as much as fits into a page, and of the others only what fits as a whole.
#[test]
fn a_reply_has_as_many_directories_as_fit() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    for (name, count) in [("large", 1000), ("small", 100)] {
        let folder = fixture.directory.path().join(name);
        fs::create_dir(&folder).unwrap();
        (0..count).for_each(|at| fs::write(folder.join(format!("{at}")), "").unwrap());
    }
    let [large, small] = ["large", "small"].map(|name| find(&mut peer, &root, name));
    let mut of = |handles: &[&[u8]]| -> Vec<(usize, bool)> {
        let listings = listings(&mut peer, &user(0), handles).into_iter();
        listings.map(|listing| listing.map(|(names, end)| (names.len(), end)).unwrap()).collect()
    };
    let [(first, false)] = of(&[large.bytes(), small.bytes()])[..] else {
        panic!("the page of the first fills the reply")
    };
    assert!((200..1000).contains(&first), "{first}");
    assert_eq!(of(&[small.bytes(), large.bytes(), small.bytes()]), [(100, true)]);
    let many = of(&[small.bytes(); LIST_MAX]);
    assert!((3..10).contains(&many.len()) && many.iter().all(|listing| *listing == (100, true)), "{many:?}");
}
