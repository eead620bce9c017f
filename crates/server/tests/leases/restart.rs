//! What a server does that is started after one that granted leases.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

const LEASE: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_millis(300);
const LATE: Duration = Duration::from_secs(5);

fn short() -> Limits {
    let answer = Duration::from_millis(100);
    Limits { lease: LEASE, lease_patience: PATIENCE, lease_answer: answer, ..quick() }
}

/// A new client of a new server changes something; after how long, counted from `since`.
fn changes_after(fixture: &Fixture, since: Instant) -> Duration {
    let mut client = Client::plain(fixture);
    let root = client.root.clone();
    let mode = fixture.directory.path().metadata().unwrap().mode();
    client.ask(&chmod(&root, mode & 0o777)).unwrap();
    let after = since.elapsed();
    client.leave();
    after
}

fn start(limits: Limits, flags: Flags) -> (Fixture, Client) {
    let fixture = Fixture::limited(limits);
    let mut client = Client::new(&fixture);
    client.flags = flags;
    let root = client.root.clone();
    client.ask(&get_attr(&root)).unwrap();
    assert_eq!(client.grants.is_empty(), flags.is_empty());
    (fixture, client)
}

#[test]
fn changes_wait_until_who_had_leases_has_recovered() {
    let long = Limits { lease: Duration::from_secs(60), ..quick() };
    let (mut fixture, mut client) = start(long.clone(), Flags::LEASES);
    fixture.kill();
    fixture.start_again(long);
    let mut changer = Client::plain(&fixture);
    let root = changer.root.clone();
    let change = changer.send(&chmod(&root, 0o700));
    assert!(changer.waits());
    // What changes nothing does not wait.
    changer.ask(&get_attr(&root)).unwrap();
    let (peer, reply) = fixture.joined(&client.session);
    assert!(reply.recovering && changer.waits(), "it may still use what it has");
    drop(peer);
    client.recover(&fixture);
    changer.take(change).unwrap();
}

#[test]
fn changes_wait_no_longer_than_leases_last() {
    let (mut fixture, client) = start(short(), Flags::LEASES);
    fixture.kill();
    let started = Instant::now();
    fixture.start_again(short());
    let after = changes_after(&fixture, started);
    assert!(after >= LEASE + PATIENCE && after < LEASE + PATIENCE + LATE, "{after:?}");
    drop(client);
}

#[test]
fn who_never_asked_for_leases_is_not_waited_for() {
    let long = Limits { lease: Duration::from_secs(60), ..quick() };
    let (mut fixture, client) = start(long.clone(), Flags::empty());
    fixture.kill();
    fixture.start_again(long);
    assert!(changes_after(&fixture, Instant::now()) < LATE);
    drop(client);
}

#[test]
fn who_has_gone_is_not_waited_for() {
    let long = Limits { lease: Duration::from_secs(60), ..quick() };
    let (mut fixture, client) = start(long.clone(), Flags::LEASES);
    client.leave();
    await_no_files(&fixture);
    fixture.kill();
    fixture.start_again(long);
    assert!(changes_after(&fixture, Instant::now()) < LATE);
}

/// Its session's file is gone, and its leases are not.
#[test]
fn what_ended_sessions_had_lapses_also_over_restarts() {
    let limits = Limits { session_grace: Duration::from_millis(20), ..short() };
    let before = Instant::now();
    let (mut fixture, client) = start(limits.clone(), Flags::LEASES);
    let renewed = Instant::now();
    drop(client);
    let sessions = |fixture: &Fixture| {
        fixture
            .files()
            .iter()
            .filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with("leases-"))
            .count()
    };
    while sessions(&fixture) > 0 {
        assert!(renewed.elapsed() < LEASE, "the session ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..2 {
        fixture.kill();
        fixture.start_again(limits.clone());
    }
    let (least, most) = (renewed - before, changes_after(&fixture, before));
    assert!(most >= LEASE + PATIENCE && most - least < LEASE + PATIENCE + LATE, "{most:?} {least:?}");
    // And then nothing is left to wait for.
    await_no_files(&fixture);
}

fn await_no_files(fixture: &Fixture) {
    let start = Instant::now();
    while !fixture.files().is_empty() {
        assert!(start.elapsed() < LATE, "{:?}", fixture.files());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Each would wait for the other.
#[test]
fn who_sends_again_what_was_lost_does_not_wait_for_others_who_do() {
    let long = Limits { lease: Duration::from_secs(60), ..quick() };
    let (mut fixture, mut client) = start(long.clone(), Flags::LEASES);
    let (root, mut other) = (client.root.clone(), Client::new(&fixture));
    let (_, opened) = client.peer.create((50, 1), &root, "file", READ_WRITE).unwrap();
    other.ask(&get_attr(&root)).unwrap();
    fixture.kill();
    fixture.start_again(long);
    let (peer, reply) = fixture.joined(&client.session);
    assert!(reply.recovering);
    client.peer = peer;
    client.ask(&Request::Reopen { open: opened.id, token: &opened.token }).unwrap();
    assert!(!client.renews, "before it has recovered it is granted nothing");
    let write = client.send_write_again(opened.id, b"lost");
    client.take(write).unwrap();
    assert_eq!(client.peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
    other.recover(&fixture);
    client.ask(&chmod(&root, 0o755)).unwrap();
}
