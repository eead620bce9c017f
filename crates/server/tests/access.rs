//! What an export allows to whom: who may attach, what that one may do, and as whom; before and after a restart with another configuration.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use aqueduct_fs::idmap::{IdMap, IdMaps, IdRange};
use aqueduct_fs::*;
use aqueduct_server::{Access, Host, Squash};
use aqueduct_wire::*;
use common::*;
use serde_json::Value;

/// Addresses of this machine that the tests take for other machines.
const HOST: &str = "127.0.0.1";
const STRANGER: &str = "127.0.0.2";
const READER: &str = "127.0.0.3";
const NEIGHBOUR: &str = "127.0.0.4";

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// For two hosts, and one that may only read.
fn some_hosts() -> Access {
    let nets = |texts: &[&str]| texts.iter().map(|text| Host::parse(text).unwrap()).collect();
    Access {
        hosts: Some(nets(&["127.0.0.1/32", "127.0.0.4/32"])),
        read_only_hosts: nets(&["127.0.0.3/32"]),
        ..trusting()
    }
}

fn map(client: u32, server: u32, count: u32) -> IdMap {
    IdMap::new(&[IdRange { client, server, count }], None).unwrap()
}

fn attach(peer: &mut Peer, export: &str) -> (Result<AttachReply, Errno>, String) {
    let mut body = Vec::new();
    Attach { export, read_only: false }.encode(&mut body);
    let (header, body) = peer.call(Op::Attach, (0, 0), &body);
    match header.status {
        0 => (Ok(AttachReply::decode(&body).unwrap()), String::new()),
        number => (Err(Errno::from_raw(number as i32)), String::from_utf8(body).unwrap()),
    }
}

fn attached_from(fixture: &Fixture, host: &str) -> (Peer, HelloReply, AttachReply) {
    let mut peer = fixture.connect_from(host);
    let hello = peer.hello(0, [0; 16]).unwrap();
    let reply = attach(&mut peer, "/e").0.unwrap();
    (peer, hello, reply)
}

fn join(fixture: &Fixture, host: &str, session: &HelloReply) -> Result<HelloReply, Errno> {
    fixture.connect_from(host).hello(session.session, session.secret).map_err(|number| Errno::from_raw(number as i32))
}

fn user(uid: u32, gid: u32) -> Context {
    Context::new(ClientId(0), Credential { uid, gid, groups: Groups::Known([].into()) })
}

fn ask_as(peer: &mut Peer, who: &Context, place: (u32, u32), request: &Request<'_>) -> Result<Reply, Errno> {
    let mut body = Vec::new();
    let op = encode_request(who, request, &mut body);
    result(op, peer.call(op, place, &body))
}

fn open_up(fixture: &Fixture) {
    std::fs::set_permissions(fixture.directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
}

#[test]
fn a_host_that_is_not_listed_is_told_why_and_nothing_else() {
    let fixture = Fixture::allowing(some_hosts());
    let mut stranger = fixture.connect_from(STRANGER);
    stranger.hello(0, [0; 16]).unwrap();
    let (refused, why) = attach(&mut stranger, "/e");
    assert_eq!((refused, why.as_str()), (Err(Errno::EACCES), "127.0.0.2 is not among its hosts"));
    assert_eq!(attach(&mut stranger, "/none"), (Err(Errno::ENOENT), String::new()), "no name is told");
    assert_eq!(stranger.file((0, 0), &Request::Root).0.status as i32, Errno::ENOTCONN.raw());
    for host in [HOST, READER, NEIGHBOUR] {
        let mut peer = fixture.connect_from(host);
        peer.hello(0, [0; 16]).unwrap();
        assert_eq!(attach(&mut peer, "/none"), (Err(Errno::ENOENT), "/e\n".to_owned()));
        assert_eq!(attach(&mut peer, "/e").0.unwrap().read_only, host == READER);
    }
}

#[test]
fn a_read_only_host_changes_nothing() {
    let fixture = Fixture::allowing(some_hosts());
    let (mut writer, _, attached) = attached_from(&fixture, HOST);
    let root = attached.root.handle;
    let (file, open) = writer.create((0, 1), &root, "file", READ_WRITE).unwrap();
    let (mut reader, ..) = attached_from(&fixture, READER);
    assert_eq!(reader.ask((0, 1), &make_directory(&root, "d")), Err(Errno::EROFS));
    let handle = file.handle.bytes();
    assert_eq!(reader.ask((0, 2), &Request::Open { handle, flags: READ_WRITE }), Err(Errno::EROFS));
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(reader.ask((0, 3), &Request::SetAttr { handle, open: None, set }), Err(Errno::EROFS));
    assert!(reader.ask((0, 4), &Request::Open { handle, flags: OpenFlags::READ }).is_ok());
    // Not even with the token of somebody who could.
    writer.ask((0, 2), &Request::Release { open: open.id }).unwrap();
    reader.ask((0, 0), &Request::Reopen { open: open.id, token: &open.token }).unwrap();
    let write = WriteAt { open: open.id, offset: 0, append: false, stable: false };
    assert_eq!(reader.write((0, 5), &write, b"x"), Err(Errno::EROFS));
    assert_eq!(std::fs::read(fixture.directory.path().join("file")).unwrap(), b"");
}

#[test]
fn a_further_connection_comes_from_a_host_with_the_same_rights() {
    let fixture = Fixture::allowing(some_hosts());
    let (_peer, session, _) = attached_from(&fixture, HOST);
    for (host, expected) in
        [(HOST, None), (NEIGHBOUR, None), (STRANGER, Some(Errno::EACCES)), (READER, Some(Errno::EACCES))]
    {
        assert_eq!(join(&fixture, host, &session).map(drop).err(), expected, "{host}");
    }
    // Before it has an export, nobody knows what another host may.
    let mut unattached = fixture.connect_from(NEIGHBOUR);
    let session = unattached.hello(0, [0; 16]).unwrap();
    assert_eq!(join(&fixture, STRANGER, &session).map(drop), Err(Errno::EACCES));
    assert_eq!(join(&fixture, HOST, &session).map(drop), Err(Errno::EACCES));
    assert!(join(&fixture, NEIGHBOUR, &session).is_ok());
}

#[test]
fn everybody_is_squashed_where_the_export_says_so() {
    let access = Access { squash: Some(Squash::All), anonymous_uid: 71, anonymous_gid: 72, ..Access::default() };
    let fixture = Fixture::allowing(access);
    open_up(&fixture);
    let (mut peer, _, attached) = attached_from(&fixture, HOST);
    let root = attached.root.handle;
    for (number, who) in [user(0, 0), user(1000, 1000)].iter().enumerate() {
        let name = format!("d{number}");
        let made =
            ask_as(&mut peer, who, (0, number as u32 + 1), &make_directory(&root, &name)).unwrap().entry().unwrap();
        assert_eq!((made.attr.uid, made.attr.gid), (71, 72));
        let stat = std::fs::metadata(fixture.directory.path().join(name)).unwrap();
        assert_eq!((stat.uid(), stat.gid()), (71, 72));
    }
    let secret = fixture.directory.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let handle =
        peer.ask((0, 0), &Request::Lookup { parent: root.bytes(), name: b"secret" }).unwrap().entry().unwrap().handle;
    let open = Request::Open { handle: handle.bytes(), flags: OpenFlags::READ };
    assert_eq!(peer.ask((0, 3), &open), Err(Errno::EACCES), "root is nobody");
}

#[test]
fn ids_are_translated_on_the_way_in_and_out() {
    let maps = IdMaps { users: map(1000, 5000, 10), groups: map(1000, 6000, 10) };
    let fixture = Fixture::allowing(Access { maps: Some(maps), ..trusting() });
    open_up(&fixture);
    let (mut peer, _, attached) = attached_from(&fixture, HOST);
    let root = attached.root.handle;
    let made = ask_as(&mut peer, &user(1001, 1002), (0, 1), &make_directory(&root, "d")).unwrap().entry().unwrap();
    let path = fixture.directory.path().join("d");
    let owners = || std::fs::metadata(&path).map(|stat| (stat.uid(), stat.gid())).unwrap();
    assert_eq!(((made.attr.uid, made.attr.gid), owners()), ((1001, 1002), (5001, 6002)));
    let set = SetAttr { uid: Some(1009), gid: Some(7), ..SetAttr::default() };
    let attr =
        peer.ask((0, 2), &Request::SetAttr { handle: made.handle.bytes(), open: None, set }).unwrap().attr().unwrap();
    assert_eq!(((attr.uid, attr.gid), owners()), ((1009, 7), (5009, 7)));
    chown(&path, Some(5005), Some(6005)).unwrap();
    let open = peer.ask((0, 3), &Request::OpenDirectory { handle: root.bytes() }).unwrap().opened().unwrap().id;
    let list = Request::ReadDirectory { open, cookie: 0, size: 4096, plus: true };
    let page = peer.ask((0, 0), &list).unwrap().directory().unwrap();
    let listed = page.entries().find(|entry| entry.name == b"d").unwrap().inode.unwrap().1;
    assert_eq!((listed.uid, listed.gid), (1005, 1005));
}

#[test]
fn what_was_executed_is_known_again_whatever_its_owner_is_called() {
    let maps = IdMaps { users: map(1000, 5000, 10), groups: map(1000, 6000, 10) };
    let mut fixture = Fixture::allowing(Access { maps: Some(maps), ..trusting() });
    open_up(&fixture);
    let (mut peer, session, attached) = attached_from(&fixture, HOST);
    let root = attached.root.handle;
    let dead = std::sync::atomic::AtomicBool::new(false);
    let (died, deaths) = std::sync::mpsc::channel();
    fixture.server.set_failpoint(move |now| {
        if now == aqueduct_server::Moment::Executed && !dead.swap(true, std::sync::atomic::Ordering::SeqCst) {
            let _ = died.send(());
        }
        dead.load(std::sync::atomic::Ordering::SeqCst)
    });
    let mut body = Vec::new();
    let op = encode_request(&user(1001, 1001), &make_directory(&root, "d"), &mut body);
    peer.request(op, (0, 1), &body);
    deaths.recv_timeout(std::time::Duration::from_secs(5)).expect("it is executed");
    fixture.restart();
    let mut peer = fixture.recovered(&session, &[]);
    let made = result(op, peer.call(op, (0, 1), &body)).unwrap().entry().unwrap();
    assert_eq!((made.attr.uid, made.attr.gid), (1001, 1001));
}

#[test]
fn a_session_has_after_a_restart_what_its_host_is_allowed_then() {
    let mut fixture = Fixture::allowing(some_hosts());
    let (mut reader, reader_session, attached) = attached_from(&fixture, READER);
    let root = attached.root.handle;
    let (mut writer, session, _) = attached_from(&fixture, HOST);
    let (_, open) = writer.create((0, 1), &root, "file", READ_WRITE).unwrap();
    assert_eq!(reader.ask((0, 1), &make_directory(&root, "d")), Err(Errno::EROFS));
    fixture.restart();
    let mut reader = fixture.connect_from(READER);
    reader.hello(reader_session.session, reader_session.secret).unwrap();
    assert_eq!(reader.ask((0, 2), &make_directory(&root, "d")), Err(Errno::EROFS));
    let write = WriteAt { open: open.id, offset: 0, append: false, stable: false };
    let mut writer = fixture.recovered(&session, &[&open]);
    writer.write((0, 2), &write, b"x").unwrap();

    // The host that could write may only read from now on.
    fixture.guard.access.read_only_hosts.push(Host::parse("127.0.0.1/32").unwrap());
    fixture.restart();
    let mut writer = fixture.recovered(&session, &[&open]);
    assert_eq!(writer.write((0, 3), &write, b"y"), Err(Errno::EROFS));
    assert_eq!(writer.ask((0, 4), &make_directory(&root, "d")), Err(Errno::EROFS));

    // And then not even that: the session is gone, and there is no other.
    fixture.guard.access = Access { hosts: Some(vec![Host::parse("127.0.0.4/32").unwrap()]), ..Access::default() };
    fixture.restart();
    assert_eq!(join(&fixture, HOST, &session).map(drop), Err(Errno::ESTALE));
    let mut again = fixture.connect_from(HOST);
    again.hello(0, [0; 16]).unwrap();
    assert_eq!(attach(&mut again, "/e").0.map(drop), Err(Errno::EACCES));
    assert!(fixture.files().is_empty(), "nobody keeps what nobody may have");
}

#[test]
fn squashing_reaches_what_was_open_before_it() {
    let mut fixture = Fixture::surviving();
    open_up(&fixture);
    let (mut peer, session, attached) = attached_from(&fixture, HOST);
    let root = attached.root.handle;
    let mut create = |place, name: &[u8], mode| {
        let create = Request::Create { parent: root.bytes(), name, mode, umask: 0, flags: READ_WRITE };
        peer.ask(place, &create).unwrap().created().unwrap().1
    };
    let (secret, public) = (create((0, 1), b"secret", 0o600), create((0, 2), b"public", 0o666));
    fixture.guard.access.squash = Some(Squash::Root);
    fixture.restart();
    let (mut peer, _) = fixture.joined(&session);
    let mut reopen = |open: &Opened| peer.ask((0, 0), &Request::Reopen { open: open.id, token: &open.token }).map(drop);
    assert_eq!((reopen(&secret), reopen(&public)), (Err(Errno::EACCES), Ok(())));
    let made = peer.ask((0, 3), &make_directory(&root, "d")).unwrap().entry().unwrap();
    assert_eq!((made.attr.uid, made.attr.gid), (65_534, 65_534));
}

#[test]
fn the_status_shows_what_exports_allow() {
    let maps = IdMaps { users: map(0, 1, 1), groups: IdMap::default() };
    let access = Access { squash: Some(Squash::All), maps: Some(maps), ..some_hosts() };
    let fixture = Fixture::allowing(access);
    let (mut reader, _, root) = attached_from(&fixture, READER);
    let (_, body) = reader.call(Op::Status, (0, 0), &[]);
    let status: Value = serde_json::from_slice(&body).unwrap();
    let shown = &status["exports"][0]["access"];
    assert_eq!(shown["hosts"], serde_json::json!(["127.0.0.1/32", "127.0.0.4/32"]));
    assert_eq!(shown["read_only_hosts"], serde_json::json!(["127.0.0.3/32"]));
    assert_eq!((&shown["squash"], &shown["maps_ids"]), (&"all".into(), &true.into()));
    let session = &status["sessions"][0];
    assert_eq!((&session["read_only"], &session["squash"]), (&true.into(), &"all".into()));
    // Of metrics, what is not about other exports and clients.
    reader.ask((0, 0), &Request::Statfs { handle: root.root.handle.bytes() }).unwrap();
    let status_from =
        |peer: &mut Peer| -> Value { serde_json::from_slice(&peer.call(Op::Status, (0, 0), &[]).1).unwrap() };
    let metrics = &status_from(&mut reader)["metrics"];
    assert_eq!(metrics["aqueduct_export_operations_total"]["samples"][0]["labels"]["export"], "/e");
    assert!(metrics["aqueduct_server_operation_seconds"]["samples"][0]["value"]["buckets"].is_array());
    assert!(metrics["aqueduct_server_client_operations_total"].is_null());
    let mut stranger = fixture.connect_from("127.0.0.99");
    stranger.hello(0, [0; 16]).unwrap();
    let status = status_from(&mut stranger);
    assert_eq!(
        (&status["exports"], &status["metrics"]["aqueduct_export_operations_total"]),
        (&serde_json::json!([]), &Value::Null)
    );
    assert!(status["metrics"]["aqueduct_server_operation_seconds"].is_object());
    let usual = Fixture::allowing(Access::default());
    let mut peer = usual.attached().0;
    let status: Value = serde_json::from_slice(&peer.call(Op::Status, (0, 0), &[]).1).unwrap();
    assert!(status["exports"][0]["access"]["hosts"].is_null() && status["exports"][0]["access"]["squash"].is_null());
}
