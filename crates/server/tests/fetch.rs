//! FETCH: the attributes and first bytes of several files in one round trip.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use aqueduct_fs::{ClientId, Context, Credential, Errno, Groups, Handle, Request};
use aqueduct_wire::{FETCH_LENGTH_MAX, FETCH_MAX, Op, decode_fetched, encode_fetch};
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

/// Who fetches has not read: the owner's files keep their time of access.
#[test]
fn nothing_stays_behind() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    let path = fixture.directory.path().join("f");
    fs::write(&path, "data").unwrap();
    let accessed = || fs::metadata(&path).map(|stat| (stat.atime(), stat.atime_nsec())).unwrap();
    let opened = || {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path))
            .count()
    };
    let before = accessed();
    let handle = find(&mut peer, &root, "f");
    assert_eq!(fetch(&mut peer, &user(0), &[handle.bytes()], 4096), [Ok((4, b"data".to_vec()))]);
    assert_eq!((accessed(), opened()), (before, 0));
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
