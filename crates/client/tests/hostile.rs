//! A server that lets a client in and then does as it likes. What it sends byte by byte is the business of `fuzz`; this is about what takes time.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::{Client, SessionConfig};
use aqueduct_fs::*;
use aqueduct_wire::*;
use bytes::Bytes;
use common::*;

/// The time of the soft mount: longer than the longest pause between two tries to connect again.
const SOFT: Duration = Duration::from_millis(800);

/// What never ends is known by then.
const NEVER: Duration = Duration::from_secs(10);

fn receive(stream: &mut TcpStream) -> Option<Header> {
    let mut bytes = [0; HEADER_SIZE];
    stream.read_exact(&mut bytes).ok()?;
    let header = Header::decode(&bytes).unwrap();
    let mut rest = vec![0; (header.body_length + header.payload_length) as usize];
    stream.read_exact(&mut rest).ok()?;
    Some(header)
}

fn answer(stream: &mut TcpStream, to: &Header, kind: Kind, encode: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    encode(&mut body);
    let header = Header { op: to.op, request: to.request, body_length: body.len() as u32, ..Header::new(kind) };
    let _ = stream.write_all(&[&header.encode()[..], &body].concat()); // a client that has gone is none
}

fn hello() -> HelloReply {
    HelloReply {
        version: VERSION,
        capabilities: Capabilities::all(),
        session: 5,
        secret: [6; 16],
        verifier: 8,
        slots: 4,
        payload_max: 1 << 20,
        lease_seconds: 0,
        server_name: "server".into(),
        ..HelloReply::default()
    }
}

/// Lets everybody in, and answers each request by `reply`, for ever; false ends the connection.
fn hostile_server(reply: fn(&mut TcpStream, &Header) -> bool) -> SocketAddr {
    hostile_server_that(|_| {}, reply)
}

/// The same, which does something `first` before it says which export there is.
fn hostile_server_that(
    first: impl Fn(&mut TcpStream) + Clone + Send + 'static,
    reply: fn(&mut TcpStream, &Header) -> bool,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move |mut stream: TcpStream| {
        while let Some(header) = receive(&mut stream) {
            match (header.kind, Op::from_code(header.op)) {
                (Kind::Hello, _) => answer(&mut stream, &header, Kind::HelloReply, |body| hello().encode(body)),
                (_, Some(Op::Attach)) => {
                    first(&mut stream);
                    answer(&mut stream, &header, Kind::Reply, |body| {
                        let root = Entry { handle: Handle::new(b"root").unwrap(), attr: Attr::default() };
                        AttachReply { root, export_id: 1, read_only: false, age_max: 0, one_user: false }.encode(body);
                    });
                }
                (Kind::Request | Kind::Acknowledge, _) if !reply(&mut stream, &header) => return,
                _ => {}
            }
        }
    };
    let serve = move |stream| {
        drop(thread::spawn({
            let serve = serve.clone();
            move || serve(stream)
        }))
    };
    thread::spawn(move || listener.incoming().for_each(|stream| serve(stream.unwrap())));
    address
}

/// How an operation of a soft mount ends, and after how long.
fn stat(server: SocketAddr) -> (Result<Reply, Errno>, Duration) {
    let group = group(1);
    let config = in_session(client_config(server, "/e"), |session| SessionConfig {
        soft: true,
        timeout: SOFT,
        suspect: NEVER,
        ..session
    });
    let client = Client::connect(config, std::slice::from_ref(&group)).unwrap();
    let (sender, receiver) = channel();
    let (asker, start) = (client.clone(), Instant::now());
    group.spawn(async move {
        let context = context();
        let result = asker.call(&context, Request::GetAttr { handle: b"root", open: None }).await;
        let _ = sender.send(result);
    });
    let result = receiver.recv_timeout(NEVER).expect("the operation of a soft mount ends");
    let took = start.elapsed();
    client.disconnect();
    group.stop();
    group.join();
    (result, took)
}

/// What was not sent cannot have been written; who goes on behind it reads past its own memory.
#[test]
fn a_server_that_says_that_more_was_written_than_was_sent_is_not_believed() {
    let server = hostile_server(|stream, header| {
        answer(stream, header, Kind::Reply, |body| {
            let written = Written { count: 5, verifier: 8, offset: 0 };
            encode_reply(&Reply::Written(written), body);
        });
        true
    });
    let group = group(1);
    let config = client_config(server, "/e").session;
    let session = aqueduct_session::Session::connect(config, std::slice::from_ref(&group), None).unwrap();
    let (sender, receiver) = channel();
    let (asker, epoch) = (session.clone(), session.opens().epoch());
    group.spawn(async move {
        let (context, data) = (context(), Bytes::from_static(b"four"));
        let write = |append| WriteAt { open: OpenId(1), offset: 0, append, stable: false };
        let slot = asker.slots_of_held().keep().unwrap();
        let appended = asker.append_held(&context, (write(true), &slot), &data, epoch).await;
        let written = asker.write_held(&context, (write(false), None), data, epoch).await;
        let _ = sender.send((appended, written));
    });
    let (appended, written) = receiver.recv_timeout(NEVER).expect("a client that does not believe it goes on");
    assert_eq!((appended, written), (Err(Errno::EPROTO), Err(Errno::EPROTO)));
    session.disconnect();
    group.stop();
    group.join();
}

#[test]
fn a_soft_mount_gives_up_a_server_that_ends_each_connection() {
    let (result, took) = stat(hostile_server(|_, _| false));
    assert_eq!(result, Err(Errno::EIO));
    assert!(took >= SOFT, "{took:?}");
}

/// Only a lock may wait: what no time limit ends must not be at the server's will.
#[test]
fn a_soft_mount_gives_up_a_server_that_has_everything_wait() {
    let server = hostile_server(|stream, header| {
        answer(stream, header, Kind::Pending, |_| {});
        true
    });
    assert_eq!(stat(server).0, Err(Errno::EIO));
}

/// Whether its client is there it may ask at any time, and tell it something: a recovery that
/// takes that for its answer would begin anew.
#[test]
fn a_server_may_ask_and_tell_before_it_answers() {
    const NUMBER: u32 = 5;
    let server = hostile_server_that(
        |stream| {
            let notice = Header { class: Class::Callback, sequence: NUMBER, ..Header::new(Kind::Notice) };
            let ping = Header { request: 77, ..Header::new(Kind::Ping) };
            stream.write_all(&[notice.encode(), ping.encode()].concat()).unwrap();
            let pong = receive(stream).unwrap();
            assert_eq!((pong.kind, pong.request), (Kind::Pong, 77));
        },
        |stream, header| {
            let is_heard = header.kind == Kind::Acknowledge && header.sequence == NUMBER;
            if is_heard {
                HEARD.store(true, Ordering::SeqCst);
            } else if header.kind == Kind::Request {
                answer(stream, header, Kind::Reply, |_| {});
            }
            true
        },
    );
    static HEARD: AtomicBool = AtomicBool::new(false);
    let _answered = stat(server);
    assert!(HEARD.load(Ordering::SeqCst), "what was told is acknowledged");
}
