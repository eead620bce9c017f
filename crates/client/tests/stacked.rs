//! A server over a client of another server: its clients are one client there, and yet not each
//! other.

mod common;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::multiplexed::Multiplexed;
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Server, ServerConfig};
use aqueduct_worker::{Group, wait};
use common::*;

/// Two servers, one above the other. The lower one stands over a directory.
struct Stack {
    upper: Arc<Server>,
    upper_group: Arc<Group>,
    /// The client of the lower server that the upper one stands over; none of it is used directly.
    _between: Node,
    lower: Arc<Server>,
    lower_group: Arc<Group>,
    directory: tempfile::TempDir,
    _sessions: tempfile::TempDir,
}

impl Stack {
    /// `keeps_sessions`: so the upper server looks before each change, and writes down what it
    /// intends.
    fn new(keeps_sessions: bool) -> Stack {
        let (directory, sessions) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let posix = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
        let lower_group = group(2);
        let lower = Server::start(server_config("/lower", Arc::new(posix)), lower_group.clone()).unwrap();
        let between = Node::new(lower.addresses()[0], "/lower");
        let filesystem = Arc::new(Multiplexed::new(between.client.clone()));
        let config = ServerConfig {
            sessions: keeps_sessions.then(|| sessions.path().into()),
            ..server_config("/upper", filesystem)
        };
        let upper_group = group(2);
        let upper = Server::start(config, upper_group.clone()).unwrap();
        Stack { upper, upper_group, _between: between, lower, lower_group, directory, _sessions: sessions }
    }

    fn client(&self) -> Node {
        Node::new(self.upper.addresses()[0], "/upper")
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for (server, group) in [(&self.upper, &self.upper_group), (&self.lower, &self.lower_group)] {
            server.shutdown(Duration::from_secs(5));
            group.stop();
            group.join();
        }
    }
}

fn stacks(test: impl Fn(&Stack)) {
    [false, true].into_iter().for_each(|keeps_sessions| test(&Stack::new(keeps_sessions)));
}

/// The owner of every lock here, whoever has it.
const OWNER: u64 = 7;

fn take(node: &Node, open: OpenId) -> Result<Reply, Errno> {
    node.lock(open, OWNER, LockKind::Write, false)
}

#[test]
fn what_is_done_above_is_done_below() {
    stacks(|stack| {
        let (one, other) = (stack.client(), stack.client());
        let open = one.create("file");
        assert_eq!(one.write(open, false, b"text").unwrap().count, 4);
        assert_eq!(one.write(open, true, b" and more").unwrap().count, 9);
        assert_eq!(std::fs::read(stack.directory.path().join("file")).unwrap(), b"text and more");
        let found = other.ask(&Request::Lookup { parent: other.root.bytes(), name: b"file" }).unwrap();
        assert_eq!(found.entry().unwrap().attr.size, 13);
        let (parent, new_parent) = (one.root.bytes(), one.root.bytes());
        let flags = RenameFlags::empty();
        one.ask(&Request::Rename { parent, name: b"file", new_parent, new_name: b"new", flags }).unwrap();
        one.ask(&Request::MakeDirectory { parent, name: b"d", mode: 0o755, umask: 0 }).unwrap();
        let again =
            other.ask(&Request::MakeDirectory { parent: other.root.bytes(), name: b"d", mode: 0o755, umask: 0 });
        assert_eq!(again, Err(Errno::EEXIST));
        one.ask(&Request::RemoveDirectory { parent, name: b"d" }).unwrap();
        one.ask(&Request::Unlink { parent, name: b"new" }).unwrap();
        assert!(!std::fs::exists(stack.directory.path().join("new")).unwrap());
        one.ask(&Request::Release { open }).unwrap();
    });
}

#[test]
fn equal_owners_of_two_clients_exclude_each_other() {
    stacks(|stack| {
        let (one, other) = (stack.client(), stack.client());
        let (of_one, of_other) = (one.create("file"), other.create("file"));
        take(&one, of_one).unwrap();
        assert_eq!(take(&other, of_other), Err(Errno::EAGAIN));
        let lock = Lock { start: 0, end: 9, kind: LockKind::Write, pid: 1 };
        let test = Request::GetLock { open: of_other, owner: OWNER, space: LockSpace::Posix, lock };
        assert_eq!(other.ask(&test).unwrap().lock().unwrap().kind, LockKind::Write, "it stands in the way");
        // What the other gives up is its own.
        other.lock(of_other, OWNER, LockKind::Unlock, false).unwrap();
        other.ask(&Request::Flush { open: of_other, owner: OWNER }).unwrap();
        assert_eq!(take(&other, of_other), Err(Errno::EAGAIN), "an unlock and a close of the other");
        take(&one, of_one).expect("it is its own");
        one.lock(of_one, OWNER, LockKind::Unlock, false).unwrap();
        take(&other, of_other).expect("it is free");
        assert_eq!(take(&one, of_one), Err(Errno::EAGAIN));
        other.ask(&Request::Flush { open: of_other, owner: OWNER }).unwrap();
        take(&one, of_one).expect("a close of who had it");
        let third = one.create("file");
        one.ask(&Request::Release { open: third }).unwrap();
        assert_eq!(take(&other, of_other), Err(Errno::EAGAIN));
        one.ask(&Request::Release { open: of_one }).unwrap();
        take(&other, of_other).expect("the open through which it was taken has ended");
    });
}

#[test]
fn who_waits_for_a_lock_gets_it_when_the_other_gives_it_up_or_goes() {
    stacks(|stack| {
        let (one, other) = (stack.client(), stack.client());
        let (of_one, of_other) = (one.create("file"), other.create("file"));
        take(&one, of_one).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.lock(of_other, OWNER, LockKind::Write, true));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waits.is_finished());
            one.lock(of_one, OWNER, LockKind::Unlock, false).unwrap();
            waits.join().unwrap().expect("it was given up");
        });
        other.lock(of_other, OWNER, LockKind::Unlock, false).unwrap();
        take(&one, of_one).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.lock(of_other, OWNER, LockKind::Write, true));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waits.is_finished());
            drop(one); // with a goodbye: what it had open ends below as well
            waits.join().unwrap().expect("who had it has gone");
        });
    });
}

#[test]
fn what_a_client_has_open_means_nothing_to_another() {
    let directory = tempfile::tempdir().unwrap();
    let posix = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
    // As one client of the directory all would have it.
    let group = common::group(0);
    let lower = Server::start(server_config("/lower", Arc::new(posix)), common::group(2)).unwrap();
    let between = Node::new(lower.addresses()[0], "/lower");
    let layer = Multiplexed::new(between.client.clone());
    let [one, other] = [1, 2].map(|client| Context::new(ClientId(client), Credential::root()));
    let root = wait(&group, layer.call(&one, Request::Root)).unwrap().entry().unwrap().handle;
    let create = Request::Create { parent: root.bytes(), name: b"file", mode: 0o644, umask: 0, flags: READ_WRITE };
    let (entry, opened) = wait(&group, layer.call(&one, create)).unwrap().created().unwrap();
    let open = opened.id;
    let list = wait(&group, layer.call(&one, Request::OpenDirectory { handle: root.bytes() })).unwrap();
    let list = list.opened().unwrap().id;
    let lock = Lock { start: 0, end: 9, kind: LockKind::Write, pid: 1 };
    for request in [
        Request::GetAttr { handle: entry.handle.bytes(), open: Some(open) },
        Request::Sync { open, data_only: false },
        Request::Flush { open, owner: OWNER },
        Request::SetLock { open, owner: OWNER, space: LockSpace::Posix, lock, wait: false },
        Request::CopyRange { from: open, from_offset: 0, to: open, to_offset: 9, length: 1 },
        Request::ReadDirectory { open: list, cookie: 0, size: 4096, plus: false },
        Request::ReleaseDirectory { open: list },
        Request::Release { open },
    ] {
        assert_eq!(wait(&group, layer.call(&other, request.clone())), Err(Errno::EBADF), "{request:?}");
    }
    let read = ReadAt { open, offset: 0, length: 9 };
    assert_eq!(wait(&group, layer.read(&other, read, Box::new(MemorySink::default()))), Err(Errno::EBADF));
    let write = WriteAt { open, offset: 0, append: false, stable: false };
    let text = || Source::Memory(bytes::Bytes::from_static(b"text"));
    assert_eq!(wait(&group, layer.write(&other, write, text())), Err(Errno::EBADF));
    assert_eq!(wait(&group, layer.inode(ClientId(2), open)), Err(Errno::EBADF));
    assert_eq!(wait(&group, layer.inode(ClientId(1), open)), Ok(entry.handle));
    let token = &opened.token;
    assert_eq!(wait(&group, layer.call(&other, Request::Reopen { open, token })), Err(Errno::EBUSY));
    // The departure of another leaves it.
    wait(&group, layer.depart(ClientId(2))).unwrap();
    assert_eq!(wait(&group, layer.write(&one, write, text())).unwrap().count, 4);
    wait(&group, layer.depart(ClientId(1))).unwrap();
    assert_eq!(wait(&group, layer.write(&one, write, text())), Err(Errno::EBADF));
    lower.shutdown(Duration::from_secs(5));
}
