//! What a client counts of what it asks, beside what its server counts.

mod common;

use std::sync::Arc;

use aqueduct_client::SessionConfig;
use aqueduct_fs::*;
use aqueduct_metrics::{Snapshot, table};
use aqueduct_posix::{Options, Posix};
use aqueduct_server::Server;
use common::*;

fn of(snapshot: &Snapshot, name: &str, label: &str, value: &str) -> u64 {
    let samples = snapshot.samples(name).iter();
    samples.filter(|sample| sample.label(label) == value).map(|sample| sample.number()).sum()
}

#[test]
fn requests_slots_and_bytes_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let posix = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
    let server_group = group(2);
    let server = Server::start(server_config("/e", Arc::new(posix)), server_group.clone()).unwrap();
    let node = Node::new(server.addresses()[0], "/e");
    let open = node.create("f");
    assert_eq!(node.write(open, false, b"text").unwrap().count, 4);
    let absent = Request::Lookup { parent: node.root.bytes(), name: b"absent" };
    assert_eq!(node.ask(&absent), Err(Errno::ENOENT));
    node.lock(open, 1, LockKind::Write, false).unwrap();
    assert_eq!(node.lock(open, 2, LockKind::Write, false), Err(Errno::EAGAIN));

    let snapshot = Snapshot::of(&*node.client);
    let (seconds, errors) = (table::SESSION_REQUEST_SECONDS.definition.name, table::SESSION_ERRORS.definition.name);
    let counts = ["Create", "Write", "Lookup", "SetLock"].map(|op| of(&snapshot, seconds, "operation", op));
    assert_eq!(counts, [1, 1, 1, 2]);
    assert_eq!(["Create", "Lookup", "SetLock"].map(|op| of(&snapshot, errors, "operation", op)), [0, 1, 1]);
    assert_eq!(snapshot.number(&table::SESSION_OPERATIONS), 5);
    assert_eq!(snapshot.number(&table::SESSION_BYTES_WRITTEN), 4);
    assert_eq!(snapshot.number(&table::SESSION_CONNECTIONS), 2);
    assert_eq!((snapshot.number(&table::SESSION_SLOTS_LENT), snapshot.number(&table::SESSION_REPEATED)), (0, 0));
    // Each request is a frame and each answer one, on the connection for control.
    let carried = [&table::NET_FRAMES_SENT, &table::NET_FRAMES_RECEIVED].map(|metric| {
        let name = metric.definition.name;
        (of(&snapshot, name, "connection", "control"), of(&snapshot, name, "connection", "bulk"))
    });
    assert_eq!(carried, [(5, 0), (5, 0)]);
    // What the server saw of it took no longer than what the client saw.
    let ours = snapshot.samples(seconds).iter().filter_map(|sample| sample.histogram()).map(|taken| taken.sum);
    let server = Snapshot::of(&*server);
    let theirs = server.samples(table::SERVER_OPERATION_SECONDS.definition.name).iter();
    let theirs = theirs.filter(|sample| sample.label("operation") == "Create");
    assert!(theirs.filter_map(|sample| sample.histogram()).map(|taken| taken.sum).sum::<u64>() < ours.sum());
    drop(node);
    server_group.stop();
}

#[test]
fn how_long_requests_were_queued_is_asked_where_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let posix = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
    let server_group = group(2);
    let server = Server::start(server_config("/e", Arc::new(posix)), server_group.clone()).unwrap();
    let told = |asks_queue_time| {
        let config = in_session(client_config(server.addresses()[0], "/e"), |session| SessionConfig {
            asks_queue_time,
            ..session
        });
        let node = Node::with(config);
        let open = node.create(if asks_queue_time { "a" } else { "b" });
        // Small and large ones, with data and without, also those that are refused.
        for data in [&b"text"[..], &[7; 100_000]] {
            assert_eq!(node.write(open, false, data).unwrap().count as usize, data.len());
        }
        let absent = Request::Lookup { parent: node.root.bytes(), name: b"absent" };
        assert_eq!(node.ask(&absent), Err(Errno::ENOENT));
        let snapshot = Snapshot::of(&*node.client);
        [snapshot.number(&table::SESSION_OPERATIONS), snapshot.number(&table::SESSION_QUEUE_SECONDS)]
    };
    assert_eq!((told(false), told(true)), ([4, 0], [4, 4]));
    server_group.stop();
}
