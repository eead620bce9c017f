//! A client behind a router that ends and comes back, in one process.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_client::SessionConfig;
use aqueduct_fs::*;
use aqueduct_net::routes::{Network, Routes, Table, Way};
use aqueduct_net::{Initiator, Relay, RelayConfig, RelayLimits};
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Limits, Server, ServerConfig};
use aqueduct_wire::{Key, NetworkName};
use aqueduct_worker::Group;
use common::*;

/// A session outlives a client that has left for so long.
const LEFT: Duration = Duration::from_millis(300);

const OWNER: u64 = 7;

/// A server takes who comes by a router if it has a key.
fn key() -> Key {
    Key::new([1; 32])
}

fn name() -> NetworkName {
    NetworkName::new("net").unwrap()
}

fn relay(listen: SocketAddr, groups: &[Arc<Group>]) -> Relay {
    let network = Network { name: name(), nets: vec!["127.0.0.0/8".parse().unwrap()], ports: Vec::new() };
    let table = Table { networks: vec![network], ..Table::default() };
    let config = RelayConfig { name: "r".into(), limits: RelayLimits::default(), suspect: Duration::from_secs(5) };
    Relay::start(config, &[listen], Arc::new(Routes::new(table)), groups).unwrap()
}

/// A client of the server; by this router, or by none.
fn node(server: &Server, gateway: Option<SocketAddr>) -> Node {
    let address = server.addresses()[0];
    let way = |gateway| Way { network: name(), gateway, hops: 1, priority: 0 };
    let table = Table { ways: gateway.into_iter().map(way).collect(), ..Table::default() };
    Node::with(in_session(client_config(address, "/e"), |session| SessionConfig {
        server: if gateway.is_some() { format!("{address}@net") } else { address.to_string() },
        routes: Some(Initiator::new(Arc::new(Routes::new(table))).unwrap()),
        key: Some(key().into()),
        ..session
    }))
}

/// To the server that looks as if all its clients had left.
#[test]
fn a_lock_outlives_the_only_router_on_its_way() {
    let (directory, groups, server_group) = (tempfile::tempdir().unwrap(), [group(1), group(1)], group(2));
    let posix = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
    let limits = Limits { session_grace: LEFT, vanished_grace: LONG, ..Limits::default() };
    let config = ServerConfig { limits, keys: vec![key()], ..server_config("/e", Arc::new(posix)) };
    let server = Server::start(config, server_group.clone()).unwrap();
    let first = relay("127.0.0.1:0".parse().unwrap(), &groups);
    let gateway = first.addresses()[0];

    let (routed, direct) = (node(&server, Some(gateway)), node(&server, None));
    let (held, wanted) = (routed.create("file"), direct.create("file"));
    routed.lock(held, OWNER, LockKind::Write, false).unwrap();
    let wants = || direct.lock(wanted, OWNER, LockKind::Write, false);
    drop(first);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(wants(), Err(Errno::EAGAIN), "its client may come back");
    let second = relay(gateway, &groups);
    routed.write(held, false, b"text").expect("what held the lock goes on");
    assert_eq!(wants(), Err(Errno::EAGAIN), "it is held");

    // A goodbye is heard as ever.
    drop(routed);
    let gone = Instant::now();
    while wants().is_err() {
        assert!(gone.elapsed() < LONG / 3, "a session outlived its goodbye");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((direct, second));
    server.shutdown(Duration::from_secs(5));
    groups.iter().chain([&server_group]).for_each(|group| group.stop());
    groups.iter().chain([&server_group]).for_each(|group| group.join());
}
