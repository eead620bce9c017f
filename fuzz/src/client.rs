//! A client, and a server that answers it what it likes. Whatever that is, the client's operations end, and once it has said goodbye nothing of it is
//! left.
//!
//! Input: how (1: headers are left as they are, else they get their checksums; 2: the client has a
//! key, which the server has not; 4: it keeps what it has leases on), the number of operations, so
//! many bytes which say what they are (128: cancelled from the start): those that are about
//! something open are about what was opened last. Then for each connection that the client makes a
//! length (u16) and so many bytes: frames, one for each that the client sends, or when it has sent
//! none for a moment. A frame about the request `LATEST` is about the client's latest. When it
//! sends another one behind the last, the connection ends.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::{Cached, Client, ClientConfig, SessionConfig};
use aqueduct_fs::{
    Aspects, Context, Errno, FileSystem, MemorySink, Observer, OpenId, ReadAt, Reply, Request, Source, WriteAt,
};
use aqueduct_wire::{
    AttachReply, CancelOutcome, CancelReply, Capabilities, Challenge, Checksums, Flags, Grant, Granted, HEADER_SIZE,
    Header, HelloReply, Key, Kind, LeaseId, NONCE_LENGTH, Op, Sealer, Subject, TRAILER_SIZE, Trailer, encode_grants,
    encode_leases, encode_reply,
};
use aqueduct_worker::wait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::turner::Turner;
use crate::{receive, samples};

const RAW_HEADERS: u8 = 1;
const KEYED: u8 = 2;
const LEASES: u8 = 4;
const CANCELLED: u8 = 128;
/// Smaller than what is written, so that it is full at times.
const REPLAY_WINDOW: usize = 64 << 10;
/// Operations of one input.
const OPERATIONS_MAX: usize = 12;
/// Connections that are answered: later ones are refused.
const CONNECTIONS_MAX: usize = 8;
/// The request number that stands for the latest.
const LATEST: u64 = u64::MAX;
/// For most inputs both sides wait in vain.
const HASTE: Pace = Pace { patience: Duration::from_millis(10), soft: Duration::from_millis(40) };
/// How often the server waits for a frame behind its last one, and how often it looks then whether there is more to come.
const LAST_WAITS: u32 = 3;
const LAST_STEPS: u32 = 10;
/// What ends later does not end: a cancelled operation waits for a second.
const END_MAX: Duration = Duration::from_secs(8);

/// How long the sides wait for each other.
#[derive(Clone, Copy)]
struct Pace {
    /// The server, for a frame before it sends the next.
    patience: Duration,
    /// The client, as a soft mount, for an answer.
    soft: Duration,
}

/// What is done, and what is answered.
struct Input<'a> {
    keyed: bool,
    leases: bool,
    operations: &'a [u8],
    scripts: Vec<Vec<u8>>,
}

/// Whether something has happened, and who waits for that.
#[derive(Default)]
struct Event(Mutex<(bool, Option<Waker>)>);

/// How far the server is.
#[derive(Default)]
struct Over {
    /// It has nothing left to say.
    silent: Event,
    /// Nobody listens any more.
    stop: AtomicBool,
    /// Connections that have frames left, or have not come yet.
    unfinished: AtomicUsize,
}

impl Event {
    fn set(&self) {
        let mut state = self.0.lock().expect("nobody panics with it");
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    fn poll(&self, task: &mut TaskContext<'_>) -> Poll<()> {
        let mut state = self.0.lock().expect("nobody panics with it");
        state.1 = Some(task.waker().clone());
        if state.0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// What came of waiting for the client.
#[derive(PartialEq, Eq)]
enum Wait {
    Frame,
    Nothing,
    Gone,
}

/// What the client sends, as far as it matters here.
#[derive(Default)]
struct Asked {
    bytes: Vec<u8>,
    latest: u64,
}

impl Asked {
    /// Waits for a frame, not for long.
    fn wait(&mut self, stream: &mut TcpStream) -> Wait {
        let mut buffer = [0; 64 << 10];
        loop {
            if self.take() {
                return Wait::Frame;
            }
            match stream.read(&mut buffer) {
                Ok(0) => return Wait::Gone,
                Ok(length) => self.bytes.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Wait::Nothing,
                Err(_) => return Wait::Gone,
            }
        }
    }

    fn take(&mut self) -> bool {
        let Some(bytes) = self.bytes.first_chunk::<HEADER_SIZE>() else { return false };
        let header = Header::decode(bytes).expect("a client sends whole frames");
        let length = HEADER_SIZE + header.body_length as usize + header.payload_length as usize;
        if self.bytes.len() < length {
            return false;
        }
        self.bytes.drain(..length);
        if matches!(header.kind, Kind::CallbackReply | Kind::Acknowledge) {
            return self.take(); // which asks for nothing
        }
        self.latest = header.request;
        true
    }
}

/// Takes the first frame off a script, if it begins with one; else all of it.
fn next<'a>(script: &mut &'a [u8]) -> &'a [u8] {
    let header = script.first_chunk::<HEADER_SIZE>().and_then(|bytes| Header::decode(bytes).ok());
    let length = header.map_or(script.len(), |header| receive::follows(&header) + HEADER_SIZE);
    let (frame, rest) = script.split_at(length.min(script.len()));
    *script = rest;
    frame
}

/// Answers one connection.
fn play(stream: &mut TcpStream, mut script: &[u8], patience: Duration) -> std::io::Result<Asked> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    // Else each of some thousand connections a second would keep its port for a minute.
    SockRef::from(&*stream).set_linger(Some(Duration::ZERO))?;
    let mut asked = Asked::default();
    while !script.is_empty() && asked.wait(stream) != Wait::Gone {
        let mut frame = next(&mut script).to_vec();
        if let Some(bytes) = frame.first_chunk_mut::<HEADER_SIZE>()
            && let Ok(header) = Header::decode(bytes)
            && header.request == LATEST
        {
            *bytes = Header { request: asked.latest, ..header }.encode();
        }
        stream.write_all(&frame)?;
    }
    Ok(asked)
}

/// Ends a connection: not before the client wants something of it again, or there is no more to come on any.
fn end(stream: &mut TcpStream, asked: &mut Asked, patience: Duration, over: &Over) -> std::io::Result<()> {
    stream.set_read_timeout(Some(patience / LAST_STEPS))?;
    for _ in 0..LAST_WAITS * LAST_STEPS {
        if asked.wait(stream) != Wait::Nothing || over.unfinished.load(Ordering::SeqCst) == 0 {
            break;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // What is reset while it is on its way would not arrive.
    let mut rest = [0; 4096];
    while stream.read(&mut rest)? > 0 {}
    Ok(())
}

fn answer(mut stream: TcpStream, script: &[u8], patience: Duration, over: &Over) {
    let played = play(&mut stream, script, patience);
    over.unfinished.fetch_sub(1, Ordering::SeqCst);
    // A client that ends the connection first is in its right.
    let _ = played.and_then(|mut asked| end(&mut stream, &mut asked, patience, over));
}

fn accept(listener: &TcpListener, over: &Over) -> Option<TcpStream> {
    let step = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    while !over.stop.load(Ordering::SeqCst) {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&step)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Some(listener.accept().expect("somebody connects").0),
            Err(error) => panic!("poll: {error}"),
        }
    }
    None
}

fn serve(listener: TcpListener, scripts: &[Vec<u8>], patience: Duration, over: &Over) {
    thread::scope(|scope| {
        for script in scripts {
            let Some(stream) = accept(&listener, over) else { break };
            scope.spawn(move || answer(stream, script, patience, over));
        }
        drop(listener);
    });
    over.silent.set();
}

/// A kernel that has kept nothing.
struct Forgetful;

impl Observer for Forgetful {
    fn forget(&self, _handle: &[u8], _aspects: Aspects) {}

    fn forget_names_of(&self, _handle: &[u8]) {}

    fn forget_everything(&self) {}
}

/// What the client has open, under its own numbers, which nobody else can know before.
#[derive(Default)]
struct Opened {
    files: Vec<OpenId>,
    directories: Vec<OpenId>,
}

impl Opened {
    /// The latest file; one that never was, if there is none.
    fn file(&self) -> OpenId {
        *self.files.last().unwrap_or(&samples::OPEN)
    }

    /// A request of each operation, about the latest of what is open.
    fn requests(&self) -> Vec<Request<'static>> {
        samples::requests_of(self.file(), *self.directories.last().unwrap_or(&samples::OPEN))
    }

    /// After a request has ended.
    fn note(&mut self, request: &Request<'_>, reply: Option<&Reply>) {
        match (request, reply) {
            (Request::Open { .. }, Some(Reply::Opened(opened)))
            | (Request::Create { .. } | Request::CreateUnnamed { .. }, Some(Reply::Created(_, opened))) => {
                self.files.push(opened.id);
            }
            (Request::OpenDirectory { .. }, Some(Reply::Opened(opened))) => self.directories.push(opened.id),
            (Request::Release { .. }, _) => drop(self.files.pop()),
            (Request::ReleaseDirectory { .. }, _) => drop(self.directories.pop()),
            _ => {}
        }
    }
}

/// An operation of the client, on this file if it is one that moves data.
fn operate<'a>(
    client: &'a dyn FileSystem,
    context: &'a Context,
    (requests, open): (&[Request<'a>], OpenId),
    which: usize,
) -> Pin<Box<dyn Future<Output = Result<Option<Reply>, Errno>> + 'a>> {
    let read = move |length| client.read(context, ReadAt { open, offset: 0, length }, Box::<MemorySink>::default());
    let write = move |length| {
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        client.write(context, write, Source::Memory(vec![7; length].into()))
    };
    match which.checked_sub(requests.len()) {
        None => {
            let call = client.call(context, requests[which].clone());
            Box::pin(async move { call.await.map(Some) })
        }
        Some(0) => Box::pin(async move { read(100).await.map(|_| None) }),
        Some(1) => Box::pin(async move { read(100_000).await.map(|_| None) }),
        Some(2) => Box::pin(async move { write(100).await.map(|_| None) }),
        Some(_) => Box::pin(async move { write(100_000).await.map(|_| None) }),
    }
}

/// Has the client say goodbye, on another thread: it waits for the end of its connections, which
/// it learns of only while this one turns the group.
fn disconnect(turner: &Turner, client: &Client) {
    let left = Event::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            client.disconnect();
            left.set();
        });
        wait(&turner.group, std::future::poll_fn(|task| left.poll(task)));
    });
}

/// Has the client do these one after another. Returns how many succeeded.
fn use_client(turner: &Turner, client: &Arc<Client>, operations: &[u8], over: &Over) -> usize {
    let mut opened = Opened::default();
    let cached = Cached::new(client.clone());
    cached.set_observer(Arc::new(Forgetful));
    let mut succeeded = 0;
    let mut said_goodbye = false;
    for byte in operations {
        let context = samples::context();
        if byte & CANCELLED != 0 {
            context.cancel.raise();
        }
        let requests = opened.requests();
        let which = usize::from(byte & !CANCELLED) % (requests.len() + 4);
        let mut operation = operate(&*cached, &context, (&requests, opened.file()), which);
        let mut limit = pin!(turner.group.sleep(END_MAX));
        let result = loop {
            let result = wait(
                &turner.group,
                std::future::poll_fn(|task| {
                    if let Poll::Ready(result) = operation.as_mut().poll(task) {
                        return Poll::Ready(Some(result));
                    }
                    assert!(limit.as_mut().poll(task).is_pending(), "operation {byte} does not end");
                    if said_goodbye { Poll::Pending } else { over.silent.poll(task).map(|()| None) }
                }),
            );
            match result {
                Some(result) => break result,
                None => disconnect(turner, client), // nobody answers any more
            }
            said_goodbye = true;
        };
        if let Some(request) = requests.get(which) {
            opened.note(request, result.as_ref().ok().and_then(Option::as_ref));
        }
        succeeded += usize::from(result.is_ok());
    }
    succeeded
}

fn is_gone(client: &Weak<Client>) -> bool {
    let start = Instant::now();
    while client.strong_count() > 0 && start.elapsed() < END_MAX {
        thread::sleep(Duration::from_micros(100));
    }
    client.strong_count() == 0
}

thread_local! {
    static TURNER: RefCell<Option<Turner>> = const { RefCell::new(None) };
}

/// Returns how many operations succeeded; `None`: the client did not connect.
fn exchange(input: &Input<'_>, pace: Pace) -> Option<usize> {
    TURNER.with_borrow_mut(|turner| {
        let turner = turner.get_or_insert_with(Turner::new);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a port");
        let server = listener.local_addr().expect("it is bound").to_string();
        let over = Over { unfinished: input.scripts.len().into(), ..Over::default() };
        thread::scope(|scope| {
            let over = &over;
            scope.spawn(move || serve(listener, &input.scripts, pace.patience, over));
            let session = SessionConfig {
                server,
                export: "/e".into(),
                name: "client.example".into(),
                read_only: false,
                soft: true,
                timeout: pace.soft,
                key: input.keyed.then(|| Key::new([7; 32]).into()),
                checksums: Checksums::Auto,
                bulk_lanes: true,
                asks_queue_time: false,
                routes: None,
                rails: Default::default(),
                replay_window: REPLAY_WINDOW,
                suspect: END_MAX,
            };
            let config = ClientConfig { session, leases: input.leases, gathers: true, is_atomic: false };
            let client = Client::connect(config, std::slice::from_ref(&turner.group));
            assert!(!input.keyed || client.is_err(), "a server without the key was believed");
            let succeeded = client.ok().map(|client| {
                let succeeded = use_client(turner, &client, input.operations, over);
                disconnect(turner, &client);
                over.stop.store(true, Ordering::SeqCst);
                let left = Arc::downgrade(&client);
                drop(client);
                assert!(is_gone(&left), "something keeps the client");
                succeeded
            });
            over.stop.store(true, Ordering::SeqCst);
            succeeded
        })
    })
}

/// The operations and the connections of an input.
fn parse(data: &[u8]) -> Option<Input<'_>> {
    let ([how, count], rest) = data.split_first_chunk()?;
    let (operations, mut rest) = rest.split_at_checked(usize::from(*count) % (OPERATIONS_MAX + 1))?;
    let mut scripts = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<2>()
        && scripts.len() < CONNECTIONS_MAX
    {
        let (script, after) = after.split_at(after.len().min(u16::from_le_bytes(*length).into()));
        let mut script = script.to_vec();
        if how & RAW_HEADERS == 0 {
            receive::seal_headers(&mut script, &mut Sealer::default());
        }
        scripts.push(script);
        rest = after;
    }
    Some(Input { keyed: how & KEYED != 0, leases: how & LEASES != 0, operations, scripts })
}

/// See the module.
pub fn run(data: &[u8]) {
    if let Some(input) = parse(data) {
        exchange(&input, HASTE);
    }
}

/// The frames of one connection.
#[derive(Clone, Default)]
struct Script(Vec<u8>);

impl Script {
    fn frame(mut self, header: Header, body: &[u8], payload: &[u8]) -> Script {
        let header = Header { body_length: body.len() as u32, payload_length: payload.len() as u32, ..header };
        self.0.extend_from_slice(&header.encode());
        self.0.extend_from_slice(body);
        self.0.extend_from_slice(payload);
        self
    }

    fn answer(self, kind: Kind, op: Op, status: u32, body: &[u8]) -> Script {
        self.frame(Header { op: op as u16, status, request: LATEST, ..Header::new(kind) }, body, &[])
    }

    fn hello(self, recovering: bool) -> Script {
        let reply = HelloReply {
            version: 1,
            capabilities: Capabilities::all(),
            session: 5,
            secret: [6; 16],
            verifier: 8,
            slots: 4,
            payload_max: 1 << 20,
            lease_seconds: 7,
            server_name: "server.example".into(),
            recovering,
            ..HelloReply::default()
        };
        let mut body = Vec::new();
        reply.encode(&mut body);
        self.frame(Header::new(Kind::HelloReply), &body, &[])
    }

    fn challenge(self) -> Script {
        let mut body = Vec::new();
        Challenge { nonce: [3; NONCE_LENGTH] }.encode(&mut body);
        self.frame(Header::new(Kind::Challenge), &body, &[])
    }

    /// The greeting of a connection that joins a session: it has to prove that the session is its
    /// own.
    fn joined(self, recovering: bool) -> Script {
        self.challenge().hello(recovering)
    }

    /// The same when there is no such session any more.
    fn unknown(self) -> Script {
        let status = Errno::ESTALE.raw() as u32;
        self.challenge().frame(Header { status, ..Header::new(Kind::HelloReply) }, &[], &[])
    }

    /// The connection on which a session begins.
    fn first() -> Script {
        Script::default().hello(false).attached()
    }

    /// The connection for bulk data.
    fn bulk() -> Script {
        Script::default().joined(false)
    }

    /// What was open and locked is so again.
    fn recovered(self) -> Script {
        self.answer(Kind::Reply, Op::Recovered, 0, &[]).attached()
    }

    fn attached(self) -> Script {
        let mut body = Vec::new();
        AttachReply { root: samples::entry(), export_id: 7, read_only: false, age_max: 0, one_user: false }
            .encode(&mut body);
        self.answer(Kind::Reply, Op::Attach, 0, &body)
    }

    fn reply(self, op: Op) -> Script {
        let (_, reply) = samples::replies().into_iter().find(|(of, _)| *of == op).expect("it has one");
        let mut body = Vec::new();
        encode_reply(&reply, &mut body);
        self.answer(Kind::Reply, op, 0, &body)
    }

    /// A reply that renews, and grants leases of these names on what it is about.
    fn granting(self, op: Op, status: u32, leases: &[(Subject, u64)]) -> Script {
        let grant = |(subject, lease): &(Subject, u64)| Grant {
            subject: *subject,
            aspects: Aspects::all(),
            lease: LeaseId(*lease),
        };
        let mut body = Vec::new();
        let grants = leases.iter().map(grant).collect();
        encode_grants(&Granted { grants, changed: None }, &mut body);
        if let Some((_, reply)) = samples::replies().into_iter().find(|(of, _)| *of == op && status == 0) {
            encode_reply(&reply, &mut body);
        }
        let flags = Flags::GRANTS | Flags::RENEWS;
        self.frame(Header { op: op as u16, status, request: LATEST, flags, ..Header::new(Kind::Reply) }, &body, &[])
    }

    fn recall(self, leases: &[u64]) -> Script {
        let mut body = Vec::new();
        encode_leases(&leases.iter().map(|lease| LeaseId(*lease)).collect::<Vec<_>>(), &mut body);
        self.frame(Header::new(Kind::Callback), &body, &[])
    }

    fn data(self, length: usize) -> Script {
        let header = Header { op: Op::Read as u16, request: LATEST, flags: Flags::TRAILER, ..Header::new(Kind::Reply) };
        let mut script = self.frame(header, &[], &vec![9; length]);
        script.0.extend_from_slice(&Trailer { valid: length as u32, checksum: 0 }.encode()[..TRAILER_SIZE]);
        script
    }
}

fn seed(operations: &[u8], scripts: &[Script]) -> Vec<u8> {
    let mut seed = vec![0, operations.len() as u8];
    seed.extend_from_slice(operations);
    for Script(bytes) in scripts {
        seed.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        seed.extend_from_slice(bytes);
    }
    seed
}

/// The byte that asks for an operation.
fn byte(op: Op) -> u8 {
    samples::requests().iter().position(|request| Op::of(request) == op).expect("it has a sample") as u8
}

/// The byte that asks for a read or write: of few or many bytes.
fn byte_of_data(number: usize) -> u8 {
    (samples::requests().len() + number) as u8
}

/// What has to be open for all operations to make sense.
const OPENING: [Op; 2] = [Op::OpenDirectory, Op::Open];
/// Further operations of one session.
const OTHERS_MAX: usize = OPERATIONS_MAX - OPENING.len();

/// See the module. First sessions in which each operation is answered, then the others.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = samples::requests().chunks(OTHERS_MAX).map(whole).collect();
    seeds.push(moves_data());
    seeds.extend(broken());
    seeds.extend(waiting());
    seeds.extend(leases());
    seeds.extend(no_answers());
    seeds.extend(refused());
    seeds
}

/// A session in which some operations are answered.
fn whole(some: &[Request<'_>]) -> Vec<u8> {
    // What is closed is asked for nothing more.
    let (last, others): (Vec<Op>, Vec<Op>) =
        some.iter().map(Op::of).partition(|op| matches!(op, Op::Release | Op::ReleaseDirectory));
    let ops: Vec<Op> = OPENING.into_iter().chain(others).chain(last).collect();
    let operations: Vec<u8> = ops.iter().copied().map(byte).collect();
    // The client answers Root by itself.
    let asked = ops.into_iter().filter(|op| *op != Op::Root);
    seed(&operations, &[asked.fold(Script::first(), Script::reply), Script::bulk()])
}

fn moves_data() -> Vec<u8> {
    let operations = [byte(Op::Open), byte_of_data(0), byte_of_data(1), byte_of_data(2), byte_of_data(3)];
    let control = Script::first().reply(Op::Open).data(100).reply(Op::Write);
    seed(&operations, &[control, Script::bulk().data(2000).reply(Op::Write)])
}

/// A connection breaks; the server was restarted; it has lost the session.
fn broken() -> [Vec<u8>; 3] {
    let (new, bulk) = (Script::default, Script::bulk);
    let (open, stat) = (byte(Op::Open), byte(Op::GetAttr));
    let broken = || Script::first().reply(Op::Open);
    let joined = new().joined(false).reply(Op::GetAttr);
    let recovery = new().joined(true).reply(Op::Reopen).recovered().reply(Op::GetAttr);
    // The client asks again when it has seen that its other connection does not live either.
    // Meanwhile it gives up an operation if it is in haste.
    let begun = Script::first().reply(Op::Reopen).reply(Op::GetAttr).reply(Op::GetAttr);
    [
        seed(&[open, stat, stat], &[broken(), bulk(), joined]),
        seed(&[open, stat], &[broken(), bulk(), recovery, bulk()]),
        seed(&[open, stat, stat], &[broken(), bulk(), new().unknown(), new().unknown(), begun, bulk()]),
    ]
}

/// A lock that waits is granted, or given up.
fn waiting() -> [Vec<u8>; 2] {
    let (open, lock, stat) = (byte(Op::Open), byte(Op::SetLock), byte(Op::GetAttr));
    let pending = || Script::first().reply(Op::Open).answer(Kind::Pending, Op::SetLock, 0, &[]);
    let granted = pending().answer(Kind::Completion, Op::SetLock, 0, &[]);
    let mut outcome = Vec::new();
    CancelReply { outcome: CancelOutcome::Never }.encode(&mut outcome);
    let interrupted = Errno::EINTR.raw() as u32;
    let cancelled = pending().frame(Header::new(Kind::CancelReply), &outcome, &[]);
    let cancelled = cancelled.answer(Kind::Completion, Op::SetLock, interrupted, &[]).reply(Op::GetAttr);
    [
        seed(&[open, lock], &[granted, Script::bulk()]),
        seed(&[open, lock | CANCELLED, stat], &[cancelled, Script::bulk()]),
    ]
}

/// What is kept and changed, what is recalled, a listing, and what is kept no more when the
/// session begins anew.
fn leases() -> [Vec<u8>; 4] {
    let (first, bulk) = (Script::first, Script::bulk);
    let name = |generation: u64| generation << 32 | 7;
    let (inode, again) = ((Subject::Inode, name(0)), (Subject::Inode, name(2)));
    let kept = first().granting(Op::Lookup, 0, &[inode, (Subject::Parent, name(1))]);
    let kept = kept.granting(Op::SetAttr, 0, &[again]);
    let keeps = [Op::Lookup, Op::GetAttr, Op::Lookup, Op::SetAttr, Op::GetAttr].map(byte);
    // The last is answered in its turn, so the second GetAttr was not answered from memory.
    let asks_again = [Op::GetAttr, Op::Statfs, Op::GetAttr, Op::ReadLink].map(byte);
    let recalled = first().granting(Op::GetAttr, 0, &[inode]).recall(&[name(0), name(1), 9]);
    let recalled = recalled.reply(Op::Statfs).granting(Op::GetAttr, 0, &[again]).reply(Op::ReadLink);
    let listing = first().reply(Op::OpenDirectory).granting(
        Op::ReadDirectory,
        0,
        &[(Subject::Inode, 5), (Subject::Entry(1), 6), (Subject::Entry(400), 7)],
    );
    let lists = [Op::OpenDirectory, Op::ReadDirectory].map(byte);
    let anew = Script::default().joined(true).recovered().reply(Op::Statfs);
    let anew = anew.granting(Op::GetAttr, 0, &[inode]).reply(Op::ReadLink);
    let ends = first().granting(Op::GetAttr, 0, &[inode]);
    let leased = |operations: &[u8], scripts: &[Script]| {
        let mut seed = seed(operations, scripts);
        seed[0] |= LEASES;
        seed
    };
    [
        leased(&keeps, &[kept, bulk()]),
        leased(&asks_again, &[recalled, bulk()]),
        leased(&lists, &[listing, bulk()]),
        leased(&asks_again, &[ends, bulk(), anew, bulk()]),
    ]
}

/// What is no answer.
fn no_answers() -> [Vec<u8>; 5] {
    [Kind::Goodbye, Kind::Callback, Kind::Ping, Kind::Hello, Kind::Pending].map(|kind| {
        let script = Script::first().answer(kind, Op::GetAttr, 0, b"text");
        seed(&[byte(Op::GetAttr)], &[script, Script::bulk()])
    })
}

/// No session begins: there is no such export, the server says no, it does not have the client's
/// key.
fn refused() -> [Vec<u8>; 4] {
    let new = Script::default;
    let export = new().hello(false).answer(Kind::Reply, Op::Attach, Errno::ENOENT.raw() as u32, b"/one\n/other\n");
    let keyed = |script: Script| {
        let mut seed = seed(&[byte(Op::GetAttr)], &[script, Script::bulk()]);
        seed[0] |= KEYED;
        seed
    };
    [
        seed(&[], &[export]),
        seed(&[], &[new().frame(Header::new(Kind::Goodbye), b"no", &[])]),
        keyed(new().challenge().hello(false).attached()),
        keyed(Script::first()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy machine too.
    const LEISURE: Pace = Pace { patience: Duration::from_secs(1), soft: Duration::from_secs(5) };

    #[test]
    fn the_seeds_are_understood() {
        let seeds = seeds();
        let answered: Vec<Option<usize>> = seeds.iter().map(|seed| exchange(&parse(seed).unwrap(), LEISURE)).collect();
        // All operations of the sessions that are answered, which are of each sample one.
        let whole = samples::requests().len().div_ceil(OTHERS_MAX);
        let asked: Vec<Option<usize>> = seeds[..whole].iter().map(|seed| Some(seed[1].into())).collect();
        assert_eq!(answered[..whole], asked, "{answered:?}");
        let others: usize = asked.iter().flatten().map(|count| count - OPENING.len()).sum();
        assert_eq!(others, samples::requests().len());
        // Data after an open, a broken connection, a restart, a lost session, a lock that is
        // granted, one that is cancelled.
        assert_eq!(answered[whole..whole + 6], [5, 2, 2, 3, 2, 2].map(Some), "{answered:?}");
        // What is kept and changed, recalled, listed, and forgotten.
        assert_eq!(answered[whole + 6..whole + 10], [5, 4, 2, 4].map(Some), "{answered:?}");
        assert_eq!(answered[answered.len() - 4..], [None; 4]);
    }
}
