//! Small files that are fetched with the one that is opened: how many round trips a scan takes, and that nobody reads what is old, or what he may not.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use aqueduct_client::{Cached, Client, ClientConfig};
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Server, ServerConfig};
use aqueduct_worker::{Group, wait};
use common::*;

const FILES: usize = 200;

struct Fixture {
    server: Arc<Server>,
    group: Arc<Group>,
    directory: tempfile::TempDir,
    _sessions: tempfile::TempDir,
}

impl Fixture {
    /// A server of a directory with many small files.
    fn new() -> Fixture {
        let (directory, sessions) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        for at in 0..FILES {
            let path = directory.path().join(format!("f{at}"));
            fs::write(&path, content(at)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let filesystem = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
        let sessions_path = Some(sessions.path().to_owned());
        let config = ServerConfig { sessions: sessions_path, ..server_config("/e", Arc::new(filesystem)) };
        let group = group(2);
        let server = Server::start(config, group.clone()).unwrap();
        Fixture { server, group, directory, _sessions: sessions }
    }

    fn mount(&self) -> Mount {
        let group = group(1);
        let config = ClientConfig { leases: true, ..client_config(self.server.addresses()[0], "/e") };
        let client = Client::connect(config, std::slice::from_ref(&group)).unwrap();
        let cached = Cached::new(client.clone());
        let root = wait(&group, cached.call(&user(0), Request::Root)).unwrap().entry().unwrap().handle;
        Mount { client, cached, group, root }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server.shutdown(LONG);
        self.group.stop();
        self.group.join();
    }
}

struct Mount {
    client: Arc<Client>,
    cached: Arc<Cached>,
    group: Arc<Group>,
    root: Handle,
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.client.disconnect();
        self.group.stop();
        self.group.join();
    }
}

fn content(at: usize) -> Vec<u8> {
    format!("file {at} ").repeat(1 + at % 50).into_bytes()
}

fn user(uid: u32) -> Context {
    Context::new(ClientId(0), Credential { uid, gid: uid, groups: Groups::Known([].into()) })
}

impl Mount {
    fn ask(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        wait(&self.group, self.cached.call(context, request))
    }

    /// The regular files of the root, in the order of the listing.
    fn list(&self) -> Vec<(String, Handle)> {
        let context = user(0);
        let open =
            self.ask(&context, Request::OpenDirectory { handle: self.root.bytes() }).unwrap().opened().unwrap().id;
        let (mut files, mut cookie) = (Vec::new(), 0);
        loop {
            let request = Request::ReadDirectory { open, cookie, size: 32 << 10, plus: true };
            let page = self.ask(&context, request).unwrap().directory().unwrap();
            for entry in page.entries() {
                cookie = entry.cookie;
                if let Some((handle, _)) = entry.inode {
                    files.push((String::from_utf8(entry.name.to_vec()).unwrap(), Handle::new(handle).unwrap()));
                }
            }
            if page.end {
                break;
            }
        }
        self.ask(&context, Request::ReleaseDirectory { open }).unwrap();
        assert_eq!(files.len(), FILES);
        files
    }

    fn open(&self, context: &Context, handle: &Handle) -> Result<OpenId, Errno> {
        let request = Request::Open { handle: handle.bytes(), flags: OpenFlags::READ };
        Ok(self.ask(context, request)?.opened()?.id)
    }

    /// Reads a file to its end, and once more, as programs do.
    fn read(&self, context: &Context, handle: &Handle) -> Result<Vec<u8>, Errno> {
        let open = self.open(context, handle)?;
        let mut data = Vec::new();
        loop {
            let sink = MemorySink::default();
            let read = ReadAt { open, offset: data.len() as u64, length: 128 << 10 };
            wait(&self.group, self.cached.read(context, read, Box::new(sink.clone())))?;
            let more = sink.take().unwrap();
            if more.is_empty() {
                break;
            }
            data.extend(more);
        }
        self.ask(context, Request::Release { open })?;
        Ok(data)
    }

    /// Requests sent to the server so far.
    fn requests(&self) -> u64 {
        self.client.status().operations
    }
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}

#[test]
fn a_scan_takes_few_round_trips() {
    let fixture = Fixture::new();
    let mount = fixture.mount();
    let files = mount.list();
    let before = mount.requests();
    for (name, handle) in &files {
        assert_eq!(mount.read(&user(1234), handle), Ok(content(number(name))), "{name}");
    }
    let requests = mount.requests() - before;
    assert!(requests < FILES as u64 / 10, "{requests} requests for {FILES} files");
}

#[test]
fn a_small_directory_takes_one_round_trip() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.directory.path().join("d")).unwrap();
    fs::write(fixture.directory.path().join("d/one"), "1").unwrap();
    let mount = fixture.mount();
    let context = user(0);
    let parent = mount.root.bytes();
    let directory = mount.ask(&context, Request::Lookup { parent, name: b"d" }).unwrap().entry().unwrap().handle;
    let before = mount.requests();
    let open = mount.ask(&context, Request::OpenDirectory { handle: directory.bytes() }).unwrap().opened().unwrap().id;
    let request = Request::ReadDirectory { open, cookie: 0, size: 4096, plus: true };
    let page = mount.ask(&context, request).unwrap().directory().unwrap();
    assert!(page.end && page.entries().any(|entry| entry.name == b"one"));
    mount.ask(&context, Request::ReleaseDirectory { open }).unwrap();
    let found = mount.ask(&context, Request::Lookup { parent: directory.bytes(), name: b"one" });
    assert_eq!(found.unwrap().entry().unwrap().attr.size, 1);
    assert_eq!(mount.requests() - before, 1);
}

#[test]
fn who_looks_up_names_one_after_another_is_told_of_all() {
    let fixture = Fixture::new();
    let mount = fixture.mount();
    let before = mount.requests();
    let look_up =
        |name: &str| mount.ask(&user(1234), Request::Lookup { parent: mount.root.bytes(), name: name.as_bytes() });
    for at in 0..FILES {
        assert_eq!(look_up(&format!("f{at}")).unwrap().entry().unwrap().attr.size, content(at).len() as u64);
    }
    assert_eq!(look_up("absent"), Err(Errno::ENOENT));
    assert!(mount.requests() - before <= 4, "{}", mount.requests() - before);
}

#[test]
fn nobody_lists_what_he_may_not() {
    let fixture = Fixture::new();
    let secret = fixture.directory.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("f"), "1").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o711)).unwrap();
    let mount = fixture.mount();
    let parent = mount.root.bytes();
    let directory = mount.ask(&user(0), Request::Lookup { parent, name: b"secret" }).unwrap().entry().unwrap().handle;
    let open =
        |uid| mount.ask(&user(uid), Request::OpenDirectory { handle: directory.bytes() }).and_then(Reply::opened);
    assert_eq!(open(1234).map(drop), Err(Errno::EACCES));
    let opened = open(0).unwrap();
    assert_eq!(open(1234).map(drop), Err(Errno::EACCES), "though root has listed it");
    mount.ask(&user(0), Request::ReleaseDirectory { open: opened.id }).unwrap();
    // To pass through is another right than to list.
    let found = mount.ask(&user(1234), Request::Lookup { parent: directory.bytes(), name: b"f" });
    assert_eq!(found.unwrap().entry().unwrap().attr.size, 1);
}

#[test]
fn without_a_scan_only_what_is_opened_is_asked_for() {
    let fixture = Fixture::new();
    let mount = fixture.mount();
    let files = mount.list();
    let before = mount.requests();
    assert_eq!(mount.read(&user(1234), &files[100].1), Ok(content(number(&files[100].0))));
    // Open, read, and the read that finds the end; the close is one more.
    assert!(mount.requests() - before <= 4);
}

#[test]
fn what_another_has_changed_meanwhile_is_read_as_it_is() {
    let fixture = Fixture::new();
    let (mount, other) = (fixture.mount(), fixture.mount());
    let files = mount.list();
    files[..3].iter().for_each(|(_, handle)| drop(mount.read(&user(1234), handle)));
    // By now those behind are here, and leased.
    for (name, handle) in &files[3..20] {
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let open = other.ask(&user(0), Request::Open { handle: handle.bytes(), flags }).unwrap().opened().unwrap().id;
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        wait(&other.group, other.cached.write(&user(0), write, Source::Memory("new".into()))).unwrap();
        assert_eq!(mount.read(&user(1234), handle), Ok(b"new".to_vec()), "{name}");
    }
}

/// Each file is fetched as whoever opened the first.
#[test]
fn nobody_reads_what_he_may_not() {
    let fixture = Fixture::new();
    let mount = fixture.mount();
    let files = mount.list();
    for (name, _) in &files[5..10] {
        fs::set_permissions(fixture.directory.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    for (at, (name, handle)) in files[..15].iter().enumerate() {
        let expected = if (5..10).contains(&at) { Err(Errno::EACCES) } else { Ok(content(number(name))) };
        assert_eq!(mount.read(&user(1234), handle), expected, "{name}");
    }
    // What root has fetched is root's.
    let mount = fixture.mount();
    let files = mount.list();
    files[..4].iter().for_each(|(_, handle)| drop(mount.read(&user(0), handle)));
    for (name, handle) in files.iter().filter(|(name, _)| {
        fs::metadata(fixture.directory.path().join(name)).unwrap().permissions().mode() & 0o777 == 0o600
    }) {
        assert_eq!(mount.open(&user(1234), handle), Err(Errno::EACCES), "{name}");
        assert_eq!(mount.read(&user(0), handle), Ok(content(number(name))), "{name}");
    }
}

/// An open that the server never heard of keeps its file.
#[test]
fn a_file_that_was_fetched_stays_open_when_it_is_removed() {
    let fixture = Fixture::new();
    let (mount, other) = (fixture.mount(), fixture.mount());
    let files = mount.list();
    files[..3].iter().for_each(|(_, handle)| drop(mount.read(&user(1234), handle)));
    let (name, handle) = &files[5];
    let open = mount.open(&user(1234), handle).unwrap();
    let unlink = Request::Unlink { parent: other.root.bytes(), name: name.as_bytes() };
    other.ask(&user(0), unlink).unwrap();
    let sink = MemorySink::default();
    let read = ReadAt { open, offset: 0, length: 128 << 10 };
    wait(&mount.group, mount.cached.read(&user(1234), read, Box::new(sink.clone()))).unwrap();
    assert_eq!(sink.take(), Some(content(number(name))));
    mount.ask(&user(1234), Request::Release { open }).unwrap();
}
