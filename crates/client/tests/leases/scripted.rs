//! A server that grants and recalls as the test says, however little sense that makes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_client::ClientConfig;
use aqueduct_fs::*;
use aqueduct_wire::*;

use crate::common::*;
use crate::fixture::*;

/// One connection's end at the server. Control lanes come to the test, which answers.
struct Line {
    stream: Mutex<TcpStream>,
    /// The server's end of the connection for bulk data, when there is one.
    bulk: Arc<Mutex<Option<TcpStream>>>,
    frames: Receiver<(Header, Vec<u8>)>,
}

/// Of what the server sends by itself.
const NUMBER: u32 = 41;

fn receive(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let mut bytes = [0; HEADER_SIZE];
    stream.read_exact(&mut bytes).ok()?;
    let header = Header::decode(&bytes).unwrap();
    let mut body = vec![0; (header.body_length + header.payload_length) as usize];
    stream.read_exact(&mut body).ok()?;
    Some((header, body))
}

fn send(stream: &mut TcpStream, header: Header, body: &[u8]) {
    let header = Header { body_length: body.len() as u32, ..header };
    stream.write_all(&[&header.encode()[..], body].concat()).unwrap();
}

fn reply_to(to: &Header) -> Header {
    Header { op: to.op, request: to.request, slot: to.slot, sequence: to.sequence, ..Header::new(Kind::Reply) }
}

fn root() -> Entry {
    Entry { handle: Handle::new(b"root").unwrap(), attr: Attr { mode: 0o040755, ..Attr::default() } }
}

fn greet(stream: &mut TcpStream) -> Lane {
    let mut lane = Lane::Control;
    loop {
        let (header, body) = receive(stream).unwrap();
        let mut reply = Vec::new();
        match header.kind {
            Kind::Hello => {
                lane = Hello::decode(&body).unwrap().lane;
                let joins = Hello::decode(&body).unwrap().session != 0;
                let hello = HelloReply {
                    version: VERSION,
                    capabilities: Capabilities::all() - Capabilities::CHECKSUM,
                    session: 5,
                    secret: [6; 16],
                    verifier: 8,
                    slots: 4,
                    payload_max: 1 << 20,
                    lease_seconds: 7,
                    server_name: "server".into(),
                    ..HelloReply::default()
                };
                hello.encode(&mut reply);
                send(stream, Header::new(Kind::HelloReply), &reply);
                if joins {
                    return lane;
                }
            }
            _ => {
                AttachReply { root: root(), export_id: 1, read_only: false, age_max: 0, one_user: false }
                    .encode(&mut reply);
                send(stream, reply_to(&header), &reply);
                return lane;
            }
        }
    }
}

/// A server whose control lanes the test answers.
fn scripted() -> (SocketAddr, Receiver<Line>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (lines, taken) = channel();
    let bulk: Arc<Mutex<Option<TcpStream>>> = Arc::default();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (lines, bulk): (Sender<Line>, _) = (lines.clone(), bulk.clone());
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let lane = greet(&mut stream);
                let (frames, received) = channel();
                match lane {
                    Lane::Bulk => *bulk.lock().unwrap() = stream.try_clone().ok(),
                    Lane::Control => {
                        let stream = Mutex::new(stream.try_clone().unwrap());
                        let _ = lines.send(Line { stream, bulk, frames: received });
                    }
                }
                while let Some(frame) = receive(&mut stream) {
                    if frames.send(frame).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, taken)
}

impl Line {
    fn next(&self, kind: Kind) -> (Header, Vec<u8>) {
        loop {
            let frame = self.frames.recv_timeout(LONG).expect("a frame comes");
            if frame.0.kind == kind {
                return frame;
            }
        }
    }

    fn answer(&self, to: &Header, grants: &[(Subject, Aspects, u64)], reply: &Reply) {
        let grants: Vec<Grant> = grants
            .iter()
            .map(|(subject, aspects, id)| Grant { subject: *subject, aspects: *aspects, lease: LeaseId(*id) })
            .collect();
        let (mut body, mut flags) = (Vec::new(), Flags::RENEWS);
        if !grants.is_empty() {
            encode_grants(&Granted { grants, changed: None }, &mut body);
            flags |= Flags::GRANTS;
        }
        encode_reply(reply, &mut body);
        send(&mut self.stream.lock().unwrap(), Header { flags, ..reply_to(to) }, &body);
    }

    fn recall(&self, leases: &[u64]) {
        let mut body = Vec::new();
        encode_leases(&leases.iter().map(|id| LeaseId(*id)).collect::<Vec<_>>(), &mut body);
        let header = Header { class: Class::Callback, sequence: NUMBER, ..Header::new(Kind::Callback) };
        send(&mut self.stream.lock().unwrap(), header, &body);
    }

    fn returned(&self) -> Vec<u64> {
        decode_leases(&self.next(Kind::CallbackReply).1).unwrap().into_iter().map(|lease| lease.0).collect()
    }
}

fn mount() -> (Arc<Mount>, Line, Receiver<Line>) {
    let (address, lines) = scripted();
    let mount = Arc::new(Mount::with(ClientConfig { leases: true, ..client_config(address, "/e") }));
    let line = lines.recv_timeout(LONG).unwrap();
    (mount, line, lines)
}

fn attr(size: u64) -> Reply {
    Reply::Attr(Attr { size, ..Attr::default() })
}

const ATTRIBUTES: Aspects = Aspects::ATTRIBUTES;

/// Asks on another thread, since the test answers.
fn asking(mount: &Arc<Mount>) -> std::thread::JoinHandle<u64> {
    let mount = mount.clone();
    std::thread::spawn(move || mount.stat(&Handle::new(b"file").unwrap()).size)
}

/// Whether a stat is answered from memory, and what by.
fn remembered(mount: &Mount) -> Option<u64> {
    match mount.cached.call(&context(), Request::GetAttr { handle: b"file", open: None }) {
        Call::Ready(Some(Ok(reply))) => Some(reply.attr().unwrap().size),
        _ => None,
    }
}

#[test]
fn requests_say_that_leases_are_wanted_and_answers_are_kept() {
    let (mount, line, _lines) = mount();
    assert!(!mount.client.one_user());
    let asked = asking(&mount);
    let (header, _) = line.next(Kind::Request);
    assert!(header.flags.contains(Flags::LEASES));
    line.answer(&header, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    assert_eq!(asked.join().unwrap(), 1);
    assert_eq!(remembered(&mount), Some(1));
    line.recall(&[7]);
    assert_eq!(line.returned(), [7]);
    assert_eq!(remembered(&mount), None);
}

#[test]
fn what_the_server_sends_by_itself_is_acknowledged_each_time() {
    let (_mount, line, _lines) = mount();
    for _ in 0..2 {
        line.recall(&[7]);
        let (acknowledged, body) = line.next(Kind::Acknowledge);
        assert_eq!((acknowledged.class, acknowledged.sequence, body.len()), (Class::Callback, NUMBER, 0));
        assert_eq!(line.returned(), [7]);
    }
}

/// A server sends it over another connection, when the one on which somebody waits is not read.
#[test]
fn a_wait_ends_on_whichever_connection_its_completion_comes() {
    let (mount, line, _lines) = mount();
    let waits = std::thread::spawn(move || {
        let open = mount.open(&Handle::new(b"file").unwrap(), READ_WRITE).unwrap();
        let lock = Lock { start: 0, end: 9, kind: LockKind::Write, pid: 1 };
        mount.ask(Request::SetLock { open, owner: 1, space: LockSpace::Posix, lock, wait: true })
    });
    let opened = Reply::Opened(Opened { id: OpenId(3), token: Box::default(), width: 0 });
    line.answer(&line.next(Kind::Request).0, &[], &opened);
    let (asked, _) = line.next(Kind::Request);
    let kind = |kind| Header { kind, ..reply_to(&asked) };
    send(&mut line.stream.lock().unwrap(), kind(Kind::Pending), &[]);
    let end = std::time::Instant::now() + LONG;
    while line.bulk.lock().unwrap().is_none() && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let completion = Header { class: Class::Callback, slot: 0, sequence: NUMBER, ..kind(Kind::Completion) };
    send(line.bulk.lock().unwrap().as_mut().unwrap(), completion, &[]);
    assert_eq!(waits.join().unwrap(), Ok(Reply::Done));
}

#[test]
fn a_recall_that_overtakes_its_grant_is_believed() {
    let (mount, line, _lines) = mount();
    let asked = asking(&mount);
    let (header, _) = line.next(Kind::Request);
    line.recall(&[7]);
    assert_eq!(line.returned(), [7]);
    line.answer(&header, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    assert_eq!(asked.join().unwrap(), 1, "the answer is used");
    assert_eq!(remembered(&mount), None, "and not kept");
    // Also by a later name of a lease that is there.
    let asked = asking(&mount);
    line.answer(&line.next(Kind::Request).0, &[(Subject::Inode, ATTRIBUTES, 8)], &attr(2));
    assert_eq!((asked.join().unwrap(), remembered(&mount)), (2, Some(2)));
    line.recall(&[1 << 32 | 8]);
    assert_eq!(line.returned(), [1 << 32 | 8]);
    assert_eq!(remembered(&mount), None);
}

#[test]
fn what_was_asked_before_an_own_change_has_ended_is_not_kept() {
    let (mount, line, _lines) = mount();
    let asked = asking(&mount);
    let (early, _) = line.next(Kind::Request);
    let changing = mount.clone();
    let change = std::thread::spawn(move || changing.set_mode(&Handle::new(b"file").unwrap(), 0o600));
    let (set, _) = line.next(Kind::Request);
    line.answer(&set, &[(Subject::Inode, ATTRIBUTES, 1 << 32 | 7)], &attr(2));
    change.join().unwrap();
    line.answer(&early, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    assert_eq!(asked.join().unwrap(), 1);
    assert_ne!(remembered(&mount), Some(1));
}

/// While its own change is under way, a client uses nothing of the inode.
#[test]
fn an_own_change_is_seen_by_nobody_before_it_has_ended() {
    let (mount, line, _lines) = mount();
    let asked = asking(&mount);
    line.answer(&line.next(Kind::Request).0, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    asked.join().unwrap();
    assert_eq!(remembered(&mount), Some(1));
    let changing = mount.clone();
    let change = std::thread::spawn(move || changing.set_mode(&Handle::new(b"file").unwrap(), 0o600));
    let (set, _) = line.next(Kind::Request);
    assert_eq!(remembered(&mount), None);
    // Nobody knows whether the server looked before or after the change.
    let asked = asking(&mount);
    line.answer(&line.next(Kind::Request).0, &[(Subject::Inode, ATTRIBUTES, 1 << 32 | 7)], &attr(1));
    asked.join().unwrap();
    assert_eq!(remembered(&mount), None);
    line.answer(&set, &[(Subject::Inode, ATTRIBUTES, 2 << 32 | 7)], &attr(2));
    change.join().unwrap();
    assert_eq!(remembered(&mount), Some(2));
}

/// Another client may give a name to another inode while this one removes it without a lease on the name: what is fetched meanwhile is not kept.
#[test]
fn nothing_is_kept_while_nobody_knows_what_is_removed() {
    let (mount, line, _lines) = mount();
    let removing = mount.clone();
    let remove = std::thread::spawn(move || removing.unlink("name").is_ok());
    let (lookup, _) = line.next(Kind::Request);
    assert_eq!(lookup.op, Op::Lookup as u16, "whom it concerns is looked up");
    let victim = Entry { handle: Handle::new(b"victim").unwrap(), attr: Attr::default() };
    line.answer(&lookup, &[], &Reply::Entry(victim));
    let (unlink, _) = line.next(Kind::Request);
    assert_eq!(unlink.op, Op::Unlink as u16);
    let asked = asking(&mount);
    let (stat, _) = line.next(Kind::Request);
    line.answer(&stat, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    asked.join().unwrap();
    assert_eq!(remembered(&mount), None, "it might be what the name stands for by now");
    line.answer(&unlink, &[], &Reply::Done);
    assert!(remove.join().unwrap());
    let asked = asking(&mount);
    line.answer(&line.next(Kind::Request).0, &[(Subject::Inode, ATTRIBUTES, 1 << 32 | 7)], &attr(2));
    asked.join().unwrap();
    assert_eq!(remembered(&mount), Some(2));
}

/// The server has said that nothing more will come of it.
#[test]
fn a_removal_that_the_server_could_not_make_is_over() {
    let (mount, line, _lines) = mount();
    let removing = mount.clone();
    let remove = std::thread::spawn(move || removing.unlink("name"));
    let (lookup, _) = line.next(Kind::Request);
    let victim = Entry { handle: Handle::new(b"victim").unwrap(), attr: Attr::default() };
    line.answer(&lookup, &[], &Reply::Entry(victim));
    let (unlink, _) = line.next(Kind::Request);
    assert_eq!(unlink.op, Op::Unlink as u16);
    let failed = Header { status: Errno::EIO.raw() as u32, flags: Flags::RENEWS, ..reply_to(&unlink) };
    send(&mut line.stream.lock().unwrap(), failed, &[]);
    assert_eq!(remove.join().unwrap(), Err(Errno::EIO));
    let asked = asking(&mount);
    line.answer(&line.next(Kind::Request).0, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    asked.join().unwrap();
    assert_eq!(remembered(&mount), Some(1));
}

#[test]
fn an_answer_that_does_not_renew_makes_nothing_good() {
    let (mount, line, _lines) = mount();
    let asked = asking(&mount);
    let (header, _) = line.next(Kind::Request);
    let mut body = Vec::new();
    let grants = vec![Grant { subject: Subject::Inode, aspects: ATTRIBUTES, lease: LeaseId(7) }];
    encode_grants(&Granted { grants, changed: None }, &mut body);
    encode_reply(&attr(1), &mut body);
    send(&mut line.stream.lock().unwrap(), Header { flags: Flags::GRANTS, ..reply_to(&header) }, &body);
    assert_eq!((asked.join().unwrap(), remembered(&mount)), (1, None));
}

/// Grants for what the reply does not have, of all aspects, under any name.
#[test]
fn grants_that_make_no_sense_do_no_harm() {
    let (mount, line, _lines) = mount();
    let strange = [
        (Subject::Parent, Aspects::all(), 0),
        (Subject::Entry(3), Aspects::NAMES, u64::MAX),
        (Subject::Inode, Aspects::NAMES, 7),
        (Subject::Inode, Aspects::all(), 7),
    ];
    for size in 0..50 {
        let asked = asking(&mount);
        let Some((header, _)) = line.frames.recv_timeout(Duration::from_millis(200)).ok().or_else(|| {
            assert!(remembered(&mount).is_some());
            None
        }) else {
            asked.join().unwrap();
            continue;
        };
        line.answer(&header, &strange, &attr(size));
        asked.join().unwrap();
    }
    let asked = std::thread::spawn({
        let mount = mount.clone();
        move || mount.ask(Request::GetAttr { handle: b"other", open: None })
    });
    let (header, _) = line.next(Kind::Request);
    let mut body = (1000u16).to_le_bytes().to_vec();
    encode_reply(&attr(1), &mut body);
    send(&mut line.stream.lock().unwrap(), Header { flags: Flags::GRANTS, ..reply_to(&header) }, &body);
    assert_eq!(asked.join().unwrap(), Err(Errno::EPROTO));
}

#[test]
fn recalls_of_what_was_never_granted_are_answered_and_take_no_room() {
    let (_mount, line, _lines) = mount();
    let ids: Vec<u64> = (0..LEASES_TOLD_MAX as u64).collect();
    let mut returned = 0;
    for round in 0..100u64 {
        line.recall(&ids.iter().map(|id| id + round * 5000).collect::<Vec<_>>());
        while round >= 8 && returned < (round - 8) as usize * LEASES_TOLD_MAX {
            returned += line.returned().len();
        }
    }
    while returned < 100 * LEASES_TOLD_MAX {
        returned += line.returned().len();
    }
    assert_eq!(returned, 100 * LEASES_TOLD_MAX);
}

/// What an earlier session was answered tells the present one nothing.
#[test]
fn a_late_answer_of_an_earlier_connection_is_not_kept() {
    let (mount, line, lines) = mount();
    let asked = asking(&mount);
    line.next(Kind::Request);
    line.stream.lock().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
    let line = lines.recv_timeout(LONG).unwrap();
    let (again, _) = line.next(Kind::Request);
    line.answer(&again, &[(Subject::Inode, ATTRIBUTES, 7)], &attr(1));
    assert_eq!((asked.join().unwrap(), remembered(&mount)), (1, Some(1)), "it was asked again");
}

const FILE: &[u8] = b"file";

/// A file that is open without the server's knowledge, under lease 7.
fn open_locally(mount: &Arc<Mount>, line: &Line) -> OpenId {
    let (file, opening) = (Handle::new(FILE).unwrap(), mount.clone());
    let first = std::thread::spawn(move || {
        let file = Handle::new(FILE).unwrap();
        opening.release(opening.open(&file, READ).unwrap());
    });
    opened(line, &line.next(Kind::Request).0, 1);
    line.answer(&line.next(Kind::Request).0, &[], &Reply::Done);
    first.join().unwrap();
    mount.open(&file, READ).unwrap()
}

fn opened(line: &Line, to: &Header, id: u64) {
    assert_eq!(to.op, Op::Open as u16);
    let grant = (Subject::Inode, Aspects::ATTRIBUTES | Aspects::DATA, 7);
    line.answer(to, &[grant], &Reply::Opened(Opened { id: OpenId(id), token: Box::default(), width: 0 }));
}

/// Requests of programs may have all slots and wait, at the server, for the very lease that is recalled.
#[test]
fn a_recall_whose_opens_the_server_is_asked_for_waits_for_no_slot() {
    let (mount, line, _lines) = mount();
    let open = open_locally(&mount, &line);
    let changes: Vec<_> = (0..4u8)
        .map(|number| {
            let mount = mount.clone();
            std::thread::spawn(move || mount.set_mode(&Handle::new(&[number]).unwrap(), 0o600))
        })
        .collect();
    let (mut waiting, mut asked) = (Vec::new(), false);
    while waiting.len() < 4 {
        let (header, _) = line.next(Kind::Request);
        if header.op == Op::SetAttr as u16 {
            waiting.push(header);
        } else {
            asked = true; // it stayed open for long enough
            assert_eq!(header.class, Class::Releasing);
            opened(&line, &header, 2);
        }
    }
    line.recall(&[7]);
    if !asked {
        let (header, _) = line.next(Kind::Request);
        assert_eq!(header.class, Class::Releasing);
        opened(&line, &header, 2);
    }
    assert_eq!(line.returned(), [7]);
    waiting.iter().for_each(|header| line.answer(header, &[], &attr(1)));
    changes.into_iter().for_each(|change| change.join().unwrap());
    let release = std::thread::spawn(move || mount.release(open));
    line.answer(&line.next(Kind::Request).0, &[], &Reply::Done);
    release.join().unwrap();
}

/// What stays open may be more than the server takes. A descriptor that memory serves is none the worse.
#[test]
fn an_open_that_is_refused_when_nobody_needs_it_is_asked_for_when_somebody_does() {
    let (mount, line, _lines) = mount();
    let open = open_locally(&mount, &line);
    let (refused, _) = line.next(Kind::Request);
    let status = Errno::EMFILE.raw() as u32;
    send(&mut line.stream.lock().unwrap(), Header { status, flags: Flags::RENEWS, ..reply_to(&refused) }, &[]);
    // Whoever changes the file needs it.
    let changing = mount.clone();
    let change = std::thread::spawn(move || changing.set_mode(&Handle::new(FILE).unwrap(), 0o600));
    opened(&line, &line.next(Kind::Request).0, 2);
    let (set, _) = line.next(Kind::Request);
    assert_eq!(set.op, Op::SetAttr as u16);
    line.answer(&set, &[], &attr(1));
    change.join().unwrap();
    let released = std::thread::spawn(move || mount.release(open));
    let (release, body) = line.next(Kind::Request);
    assert_eq!((release.op, body.ends_with(&2u64.to_le_bytes())), (Op::Release as u16, true));
    line.answer(&release, &[], &Reply::Done);
    released.join().unwrap();
}

#[test]
fn who_waits_for_an_open_that_is_closed_waits_no_more() {
    let (mount, line, _lines) = mount();
    let open = open_locally(&mount, &line);
    let (asked, _) = line.next(Kind::Request);
    let changing = mount.clone();
    let change = std::thread::spawn(move || changing.set_mode(&Handle::new(FILE).unwrap(), 0o600));
    std::thread::sleep(Duration::from_millis(20)); // it waits for the open by now
    mount.release(open);
    let (set, _) = line.next(Kind::Request);
    assert_eq!(set.op, Op::SetAttr as u16);
    line.answer(&set, &[], &attr(1));
    change.join().unwrap();
    opened(&line, &asked, 2);
    let (release, _) = line.next(Kind::Request);
    assert_eq!(release.op, Op::Release as u16, "nobody has it open any more");
    line.answer(&release, &[], &Reply::Done);
}

/// A server that has no room now, or is away, takes nobody's descriptor for good.
#[test]
fn an_open_that_cannot_be_had_now_is_asked_for_again() {
    let (mount, line, _lines) = mount();
    let open = open_locally(&mount, &line);
    let refuse = |request: &Header| {
        assert_eq!(request.op, Op::Open as u16);
        let status = Errno::ENFILE.raw() as u32;
        send(&mut line.stream.lock().unwrap(), Header { status, flags: Flags::RENEWS, ..reply_to(request) }, &[]);
    };
    refuse(&line.next(Kind::Request).0); // nobody needs it yet
    for _ in 0..2 {
        let reading = mount.clone();
        let read = std::thread::spawn(move || reading.read(open));
        refuse(&line.next(Kind::Request).0);
        assert_eq!(read.join().unwrap(), Err(Errno::EIO));
    }
    // Meanwhile nobody is told that there is room.
    let opening = mount.clone();
    let another = std::thread::spawn(move || opening.open(&Handle::new(FILE).unwrap(), READ));
    refuse(&line.next(Kind::Request).0);
    assert_eq!(another.join().unwrap(), Err(Errno::ENFILE));
    let changing = mount.clone();
    let change = std::thread::spawn(move || changing.set_mode(&Handle::new(FILE).unwrap(), 0o600));
    opened(&line, &line.next(Kind::Request).0, 2);
    let (set, _) = line.next(Kind::Request);
    assert_eq!(set.op, Op::SetAttr as u16);
    line.answer(&set, &[], &attr(1));
    change.join().unwrap();
}
