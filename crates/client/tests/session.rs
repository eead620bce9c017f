//! A client and a server in one process, over loopback, with a synthetic file system behind.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_client::{Client, ClientConfig, ConnectError, KeyProblem, SessionConfig, server_status};
use aqueduct_fs::synthetic::Synthetic;
use aqueduct_fs::*;
use aqueduct_server::{Limits, Server, ServerConfig};
use aqueduct_wire::{
    Capabilities, Challenge, Flags, HEADER_SIZE, Header, HelloReply, Key, Kind, NONCE_LENGTH, VERSION,
};
use aqueduct_worker::{Group, wait};
use common::*;

const FILE_SIZE: u64 = 3 << 20;

struct Pair {
    server: Arc<Server>,
    server_group: Arc<Group>,
    client: Arc<Client>,
    groups: Vec<Arc<Group>>,
}

fn server(filesystem: Arc<dyn FileSystem>) -> (Arc<Server>, Arc<Group>) {
    server_with(filesystem, Vec::new())
}

fn server_with(filesystem: Arc<dyn FileSystem>, keys: Vec<Key>) -> (Arc<Server>, Arc<Group>) {
    let limits = Limits { session_grace: Duration::from_millis(300), ..Limits::default() };
    server_within(limits, filesystem, keys)
}

fn server_within(limits: Limits, filesystem: Arc<dyn FileSystem>, keys: Vec<Key>) -> (Arc<Server>, Arc<Group>) {
    let group = group(2);
    let config = ServerConfig { limits, keys, ..server_config("/zero", filesystem) };
    (Server::start(config, group.clone()).unwrap(), group)
}

fn config(server: &Server, export: &str) -> ClientConfig {
    let patient = |session| SessionConfig { timeout: Duration::from_secs(5), ..session };
    in_session(client_config(server.addresses()[0], export), patient)
}

/// `workers`: 1 for threads of the client's own, 0 to turn its groups in the test's thread.
fn pair(workers: usize) -> Pair {
    pair_with(workers, None)
}

/// A pair that has a key.
fn pair_with(workers: usize, key: Option<Key>) -> Pair {
    let (server, server_group) = server_with(Arc::new(Synthetic { size: FILE_SIZE }), key.iter().cloned().collect());
    let groups = vec![group(workers)];
    let client = Client::connect(
        in_session(config(&server, "/zero"), |session| SessionConfig { key: key.map(Into::into), ..session }),
        &groups,
    )
    .unwrap();
    Pair { server, server_group, client, groups }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.client.disconnect();
        self.server.shutdown(Duration::from_secs(5));
        for group in self.groups.iter().chain([&self.server_group]) {
            group.stop();
            group.join();
        }
    }
}

fn open_file(pair: &Pair) -> OpenId {
    let context = context();
    let root = wait(&pair.groups[0], pair.client.call(&context, Request::Root)).unwrap().entry().unwrap();
    let lookup = Request::Lookup { parent: root.handle.bytes(), name: b"zero" };
    let file = wait(&pair.groups[0], pair.client.call(&context, lookup)).unwrap().entry().unwrap();
    assert_eq!(file.attr.size, FILE_SIZE);
    let open = Request::Open { handle: file.handle.bytes(), flags: OpenFlags::READ | OpenFlags::WRITE };
    wait(&pair.groups[0], pair.client.call(&context, open)).unwrap().opened().unwrap().id
}

fn read(pair: &Pair, open: OpenId, offset: u64, length: u32) -> Vec<u8> {
    let sink = MemorySink::default();
    let count =
        wait(&pair.groups[0], pair.client.read(&context(), ReadAt { open, offset, length }, Box::new(sink.clone())))
            .unwrap();
    let data = sink.take().unwrap();
    assert_eq!(data.len(), count);
    data
}

#[test]
fn a_file_is_found_opened_and_read() {
    let pair = pair(0);
    let open = open_file(&pair);
    for length in [0, 1, 4096, 8192, 8193, 65_536, 1 << 20] {
        assert_eq!(read(&pair, open, 0, length).len(), length as usize);
    }
    assert_eq!(read(&pair, open, FILE_SIZE - 10, 1 << 20).len(), 10);
    assert!(read(&pair, open, FILE_SIZE, 4096).is_empty());
}

#[test]
fn writes_of_all_sizes_arrive_whole() {
    let pair = pair(0);
    let open = open_file(&pair);
    for length in [1, 4096, 8193, 1 << 20] {
        let source = Source::Memory(vec![7; length].into());
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        let written = wait(&pair.groups[0], pair.client.write(&context(), write, source)).unwrap();
        assert_eq!(written.count as usize, length);
    }
}

/// Of a client that is one of thousands.
#[test]
fn bulk_data_go_by_the_one_connection_that_there_is() {
    let (server, server_group) = server(Arc::new(Synthetic { size: FILE_SIZE }));
    let groups = vec![group(1), group(1)];
    let config = in_session(config(&server, "/zero"), |session| SessionConfig { bulk_lanes: false, ..session });
    let pair = Pair { client: Client::connect(config, &groups).unwrap(), server, server_group, groups };
    assert_eq!(pair.client.status().connections, 2);
    let open = open_file(&pair);
    for length in [4096, 8193, 1 << 20] {
        assert_eq!(read(&pair, open, 0, length).len(), length as usize);
        let source = Source::Memory(vec![7; length as usize].into());
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        let written = wait(&pair.groups[0], pair.client.write(&context(), write, source)).unwrap();
        assert_eq!(written.count, length);
    }
}

#[test]
fn many_requests_are_under_way_at_once() {
    let pair = pair(1);
    let open = open_file(&pair);
    let (sender, receiver) = std::sync::mpsc::channel();
    for number in 0..500u64 {
        let (client, sender) = (pair.client.clone(), sender.clone());
        pair.groups[0].spawn(async move {
            let context = context();
            let length = if number % 5 == 0 { 1 << 20 } else { 4096 };
            let write = WriteAt { open, offset: 0, append: false, stable: false };
            let written = client.write(&context, write, Source::Memory(vec![1; length].into())).await.unwrap();
            let sink = MemorySink::default();
            let count =
                client.read(&context, ReadAt { open, offset: 0, length: length as u32 }, Box::new(sink)).await.unwrap();
            sender.send(written.count as usize == length && count == length).unwrap();
        });
    }
    for _ in 0..500 {
        assert!(receiver.recv_timeout(Duration::from_secs(30)).unwrap());
    }
}

#[test]
fn errors_of_the_file_system_come_back() {
    let pair = pair(0);
    let lookup = Request::Lookup { parent: b"root", name: b"absent" };
    assert_eq!(wait(&pair.groups[0], pair.client.call(&context(), lookup)), Err(Errno::ENOENT));
    let stat = Request::GetAttr { handle: b"forged", open: None };
    assert_eq!(wait(&pair.groups[0], pair.client.call(&context(), stat)), Err(Errno::ESTALE));
}

#[test]
fn an_unknown_export_is_told_with_those_there_are() {
    let (server, server_group) = server(Arc::new(Synthetic { size: 0 }));
    let groups = [group(0)];
    match Client::connect(config(&server, "/nothing"), &groups).map(|_| ()) {
        Err(ConnectError::UnknownExport { known, .. }) => assert_eq!(known, ["/zero"]),
        other => panic!("{other:?}"),
    }
    server.shutdown(Duration::from_secs(5));
    server_group.stop();
    server_group.join();
}

#[test]
fn the_status_counts_clients() {
    let pair = pair(0);
    let text = server_status(&pair.server.addresses()[0].to_string(), (None, None), Duration::from_secs(5)).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["exports"][0]["clients"], 1);
    assert_eq!(status["exports"][0]["name"], "/zero");
}

fn key(number: u8) -> Key {
    Key::new([number; 32])
}

#[test]
fn a_client_with_the_key_reads_and_writes() {
    let pair = pair_with(0, Some(key(1)));
    let open = open_file(&pair);
    for length in [0, 1, 8193, 65_536, 1 << 20] {
        assert_eq!(read(&pair, open, 0, length).len(), length as usize);
        let source = Source::Memory(vec![7; length as usize].into());
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        let written = wait(&pair.groups[0], pair.client.write(&context(), write, source)).unwrap();
        assert_eq!(written.count, length);
    }
    let address = pair.server.addresses()[0].to_string();
    assert!(server_status(&address, (Some(key(1).into()), None), Duration::from_secs(5)).is_ok());
    assert!(server_status(&address, (None, None), Duration::from_secs(5)).is_err());
}

/// The problem that a client with this key has.
#[track_caller]
fn problem(address: String, key: Option<Key>) -> KeyProblem {
    match server_status(&address, (key.map(Into::into), None), Duration::from_secs(5)) {
        Err(error @ ConnectError::Key { problem, .. }) => {
            assert!(error.hint().contains("key=FILE") || error.hint().contains("--key"), "{}", error.hint());
            problem
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_lacks_the_key_is_told() {
    let keyed = pair_with(0, Some(key(1)));
    let address = |pair: &Pair| pair.server.addresses()[0].to_string();
    assert_eq!(problem(address(&keyed), None), KeyProblem::Missing);
    assert_eq!(problem(address(&keyed), Some(key(2))), KeyProblem::Wrong);
    assert_eq!(problem(address(&pair(0)), Some(key(1))), KeyProblem::Unproved);
}

/// Somebody who asks for a proof and then answers, without having the key.
fn impostor(answer: Header) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let receive = |stream: &mut TcpStream| {
            let mut bytes = [0; HEADER_SIZE];
            stream.read_exact(&mut bytes).unwrap();
            let header = Header::decode(&bytes).unwrap();
            stream.read_exact(&mut vec![0; header.body_length as usize]).unwrap();
            header.kind
        };
        assert_eq!(receive(&mut stream), Kind::Hello);
        let challenge = Header { body_length: NONCE_LENGTH as u32, ..Header::new(Kind::Challenge) };
        let mut body = Vec::new();
        Challenge { nonce: [7; NONCE_LENGTH] }.encode(&mut body);
        stream.write_all(&[&challenge.encode()[..], &body].concat()).unwrap();
        assert_eq!(receive(&mut stream), Kind::Proof);
        let reply = HelloReply {
            version: VERSION,
            capabilities: Capabilities::empty(),
            session: 1,
            secret: [0; 16],
            verifier: 0,
            slots: 4,
            payload_max: 1 << 20,
            lease_seconds: 0,
            server_name: "impostor".into(),
            ..HelloReply::default()
        };
        let mut body = Vec::new();
        if answer.status == 0 {
            reply.encode(&mut body);
        }
        let answer = Header { body_length: body.len() as u32, ..answer };
        stream.write_all(&[&answer.encode()[..], &body].concat()).unwrap();
        let _ = stream.read(&mut [0; 64]); // until the client has heard it
    });
    address.to_string()
}

#[test]
fn a_server_that_does_not_prove_its_key_is_left() {
    let plain = Header::new(Kind::HelloReply);
    let keyed = Header { flags: Flags::KEYED, tag: [9; 8], ..plain };
    // That our session is unknown, who does not have the key must not make us believe either.
    let unknown = Header { status: Errno::ESTALE.raw() as u32, ..plain };
    for answer in [plain, keyed, unknown] {
        assert_eq!(problem(impostor(answer), Some(key(1))), KeyProblem::Unproved, "{answer:?}");
    }
}

/// Stands between a client and its server without having the key, and cuts connections. To the next greeting it says that the session is unknown, once.
fn between(server: SocketAddr) -> (String, Arc<AtomicBool>, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (lies, streams) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
    let (shared_lies, shared_streams) = (lies.clone(), streams.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if lies.swap(false, Ordering::SeqCst) {
                let reason = b"the session is not known any more";
                let goodbye = Header { body_length: reason.len() as u32, ..Header::new(Kind::Goodbye) };
                let _ = stream.read(&mut [0; 1024]).unwrap();
                stream.write_all(&[&goodbye.encode()[..], reason].concat()).unwrap();
                continue;
            }
            let onward = TcpStream::connect(server).unwrap();
            for (from, to) in [(&stream, &onward), (&onward, &stream)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
            streams.lock().unwrap().push(stream);
        }
    });
    (address, shared_lies, shared_streams)
}

#[test]
fn who_has_no_key_makes_nobody_give_up_a_session() {
    let filesystem = Arc::new(Synthetic { size: FILE_SIZE });
    let (server, server_group) = server_within(Limits::default(), filesystem, vec![key(1)]);
    let (address, lies, streams) = between(server.addresses()[0]);
    let groups = [group(1)];
    let config = in_session(config(&server, "/zero"), |session| SessionConfig {
        server: address,
        key: Some(key(1).into()),
        ..session
    });
    let client = Client::connect(config, &groups).unwrap();
    lies.store(true, Ordering::SeqCst);
    streams.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    let end = Instant::now() + Duration::from_secs(20);
    while lies.load(Ordering::SeqCst) || client.status().connections != 2 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    let status =
        server_status(&server.addresses()[0].to_string(), (Some(key(1).into()), None), Duration::from_secs(5)).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["exports"][0]["clients"], 1, "it has no other session than before: {status}");
    client.disconnect();
    server.shutdown(Duration::from_secs(5));
    for group in [&groups[0], &server_group] {
        group.stop();
        group.join();
    }
}
