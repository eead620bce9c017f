//! Connections that watch for nothing while they wait for memory, or for a peer that does not read: that they go on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver as Events, Sender as EventSender, channel};

use aqueduct_wire::Kind;
use aqueduct_worker::{Settings, lock};

use super::*;
use crate::Budget;

const PATIENCE: Duration = Duration::from_secs(20);

/// The least that a budget has room for: one frame of any length.
const ROOM: usize = (1 << 20) + aqueduct_wire::BODY_LENGTH_MAX;

/// A payload from this length on has a buffer of the pool, of 1 MiB.
const POOLED: usize = 1 << 16;

/// The slot of a request that takes as long as its test holds the lock of what is slow.
const SLOW: u32 = 7;

/// The slot of a request in which its thread finds that nothing more comes.
const LAST: u32 = 8;

/// The slot of a frame at which somebody ends the connection.
const ENDS: u32 = 9;

/// What is told of a goodbye that comes after the end.
const LATE: usize = usize::MAX;

struct Listener {
    events: Mutex<EventSender<usize>>,
    slow: Mutex<()>,
    closed: AtomicBool,
    takes_last: AtomicBool,
}

impl Endpoint for Listener {
    fn place(&self, _header: &Header) -> Option<Box<dyn Sink>> {
        None
    }

    fn is_slow(&self, header: &Header) -> bool {
        header.slot == SLOW
    }

    fn frame(&self, connection: &Arc<Connection>, frame: Frame) {
        if frame.header.kind == Kind::Ping {
            connection.send(&Header::new(Kind::Pong).encode(), None);
        }
        if self.is_slow(&frame.header) {
            drop(lock(&self.slow));
        }
        if frame.header.slot == LAST {
            let end = connection.socket.peek(&mut [std::mem::MaybeUninit::uninit()]);
            assert_eq!(end.unwrap(), 0, "both frames were received");
            connection.receive(); // as another thread does that was woken by an answer that failed
        }
        if frame.header.slot == ENDS {
            let other = connection.clone();
            std::thread::spawn(move || other.close("another thread ends it".into())).join().unwrap();
        }
        let is_late = frame.header.kind == Kind::Goodbye && self.closed.load(Ordering::SeqCst);
        let told = if is_late { LATE } else { frame.header.payload_length as usize };
        let _ = lock(&self.events).send(told); // at the end nobody listens
    }

    fn takes_last(&self) -> bool {
        self.takes_last.load(Ordering::SeqCst)
    }

    fn closed(&self, _connection: &Arc<Connection>, _closed: Closed) {
        let was_told = self.closed.swap(true, Ordering::SeqCst);
        assert!(!(was_told && self.takes_last()), "it is told once");
    }
}

struct World {
    group: Arc<Group>,
    pool: BufferPool,
    events: Events<usize>,
    endpoint: Arc<Listener>,
}

impl World {
    fn new(frames_max: usize, unsent_max: usize) -> (World, Arc<Budget>) {
        World::with((1, 2), frames_max, unsent_max)
    }

    /// With so many threads, at least and at most.
    fn with(threads: (usize, usize), frames_max: usize, unsent_max: usize) -> (World, Arc<Budget>) {
        let (threads_min, threads_max) = threads;
        let settings = Settings { name: "test".into(), threads_min, threads_max, spin_max: Duration::ZERO };
        let budget = Budget::new(frames_max, unsent_max, || {});
        let pool = BufferPool::new(1 << 20, 1).with_budget(budget.clone());
        let (sender, events) = channel();
        let [closed, takes_last] = [(); 2].map(|()| AtomicBool::default());
        let endpoint = Arc::new(Listener { events: Mutex::new(sender), slow: Mutex::default(), closed, takes_last });
        (World { group: Group::new(settings).unwrap(), pool, events, endpoint }, budget)
    }

    /// A connection of a server, and its other end.
    fn connect(&self) -> (TcpStream, Arc<Connection>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::from(listener.accept().unwrap().0);
        socket.set_send_buffer_size(1 << 20).unwrap();
        let mode = Mode { bulk: true, shared: true, suspect: PATIENCE };
        (peer, Connection::start(&self.group, socket, mode, self.pool.clone(), self.endpoint.clone()).unwrap())
    }

    /// Connections with frames of which only the header has come.
    fn hoard(&self, lengths: &[usize]) -> Vec<(TcpStream, Arc<Connection>)> {
        let hoard = |length: &usize| {
            let (mut peer, connection) = self.connect();
            peer.write_all(&head(*length)).unwrap();
            wait_until(|| connection.unfinished().is_some());
            (peer, connection)
        };
        lengths.iter().map(hoard).collect()
    }

    fn frame(&self) -> usize {
        self.events.recv_timeout(PATIENCE).expect("the frame is handed on")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.group.stop();
        self.group.join();
    }
}

/// The header of a frame with so much payload.
fn head(payload: usize) -> [u8; aqueduct_wire::HEADER_SIZE] {
    Header { payload_length: payload as u32, ..Header::new(Kind::Request) }.encode()
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_frame_that_has_come_whole_is_handed_on_when_there_is_room() {
    let (world, budget) = World::new(ROOM, 1 << 20);
    let hoarders = world.hoard(&[1 << 20, POOLED, POOLED]);
    let others: Vec<_> = (1..=3)
        .map(|length| {
            let (mut peer, connection) = world.connect();
            // One segment: the kernel has nothing more of it afterwards.
            peer.write_all(&[&head(length)[..], &vec![0; length]].concat()).unwrap();
            (peer, connection)
        })
        .collect();
    wait_until(|| budget.waiters() == others.len());
    drop(hoarders);
    let mut handed_on: Vec<_> = others.iter().map(|_| world.frame()).collect();
    handed_on.sort_unstable();
    assert_eq!((handed_on, budget.waiters()), (vec![1, 2, 3], 0));
}

#[test]
fn each_frame_of_a_stream_has_its_own_time() {
    const TAIL: usize = 100;
    let (world, _budget) = World::new(4 << 20, 1 << 20);
    let (mut peer, connection) = world.connect();
    peer.write_all(&[&head(1 << 20)[..], &vec![0; (1 << 20) - TAIL]].concat()).unwrap();
    let began = || connection.unfinished().map(|(began, _)| began);
    wait_until(|| began() >= Some(Duration::from_millis(100)));
    let sent = std::time::Instant::now();
    // One segment: the next frame has begun when the one before is handed on.
    peer.write_all(&[&[0; TAIL][..], &head(1 << 20)].concat()).unwrap();
    assert_eq!(world.frame(), 1 << 20);
    let began = began().expect("the next one has room");
    assert!(began <= sent.elapsed() + Duration::from_millis(1), "{began:?}");
}

#[test]
fn who_hoards_no_more_gets_as_much_as_others() {
    let (world, budget) = World::new(4 << 20, 1 << 20);
    let _half = world.hoard(&[1 << 20, 1 << 20]);
    let (mut peer, connection) = world.connect();
    connection.set_hoards(true);
    peer.write_all(&[&head(7)[..], &[0; 7]].concat()).unwrap();
    wait_until(|| budget.waiters() == 1);
    connection.set_hoards(false);
    assert_eq!(world.frame(), 7);
}

#[test]
fn who_has_finished_no_frame_leaves_half_to_who_has() {
    let (world, budget) = World::new(4 << 20, 1 << 20);
    let (mut worker, _worker) = world.connect();
    worker.write_all(&[&head(7)[..], &[0; 7]].concat()).unwrap();
    assert_eq!(world.frame(), 7);
    let mut beginners: Vec<_> = (0..4)
        .map(|_| {
            let (mut peer, connection) = world.connect();
            connection.set_unproven();
            peer.write_all(&head(1 << 20)).unwrap();
            (peer, connection)
        })
        .collect();
    wait_until(|| budget.waiters() == 2);
    worker.write_all(&[&head(1 << 20)[..], &vec![0; 1 << 20]].concat()).unwrap();
    assert_eq!(world.frame(), 1 << 20, "there is room for it");
    // A beginner that finishes its frame is as good.
    let (first, connection) = &mut beginners[0];
    assert!(!connection.is_proven());
    first.write_all(&vec![0; 1 << 20]).unwrap();
    assert_eq!(world.frame(), 1 << 20);
    assert!(connection.is_proven());
}

#[test]
fn what_was_read_with_a_slow_frame_is_handed_on_before_that_is_done() {
    const FRAMES: usize = 200;
    let slow = Header { slot: SLOW, ..Header::new(Kind::Request) }.encode();
    // Frames are handed out 64 at a time.
    for place in [0, 63, 64, FRAMES - 1] {
        let (world, _budget) = World::new(ROOM, 1 << 20);
        let (mut peer, connection) = world.connect();
        connection.set_bulk(false);
        let held = lock(&world.endpoint.slow);
        let frames: Vec<u8> = (0..FRAMES).flat_map(|at| if at == place { slow } else { head(0) }).collect();
        // One segment: the kernel has nothing more of it afterwards.
        peer.write_all(&frames).unwrap();
        (1..FRAMES).for_each(|_| assert_eq!(world.frame(), 0));
        drop(held);
        assert_eq!(world.frame(), 0);
        drop(connection);
    }
}

#[test]
fn who_paused_while_another_sent_all_is_listened_to_again() {
    let (world, _budget) = World::new(ROOM, 0);
    let (mut peer, connection) = world.connect();
    let mut sender = lock(&connection.sender);
    sender.queue(&vec![0; UNSENT_PAUSES], None);
    connection.note_unsent(&sender);
    // Somebody else has received, and finds that there is too much to be sent already.
    assert!(connection.pauses());
    connection.arm(true);
    drop(sender);
    connection.flush();
    assert_eq!(connection.holding.unsent(), 0, "all of it goes at once");
    peer.read_exact(&mut vec![0; UNSENT_PAUSES]).unwrap();
    peer.write_all(&head(0)).unwrap();
    assert_eq!(world.frame(), 0);
}

/// Who asks whether all is taken does not keep others from going on with what is left.
#[test]
fn what_waits_for_room_goes_on_while_somebody_asks_whether_it_is_taken() {
    const UNSENT: usize = 64 << 20;
    let (world, _budget) = World::new(ROOM, 2 * UNSENT);
    let (mut peer, connection) = world.connect();
    connection.send(&[], Some(vec![0; UNSENT].into()));
    let (asked, is_done) = (connection.clone(), Arc::new(AtomicBool::new(false)));
    let ends = is_done.clone();
    let asker = std::thread::spawn(move || while !asked.is_taken() && !ends.load(Ordering::SeqCst) {});
    connection.flush();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let result = peer.read_exact(&mut vec![0; UNSENT]);
    wait_until(|| connection.is_taken() || result.is_err());
    is_done.store(true, Ordering::SeqCst);
    asker.join().unwrap();
    result.expect("all of it comes");
}

/// A peer's last words count, also when it does not read what is sent to it any more.
#[test]
fn what_a_peer_said_before_it_left_is_heard_although_nothing_reaches_it() {
    for round in 0..50 {
        let (world, _) = World::new(1 << 20, 1 << 20);
        let (mut peer, connection) = world.connect();
        // What is unread when it closes has its kernel reset the connection: the next thing that
        // is sent fails.
        connection.send(&[Header::new(Kind::Pong).encode(); 4].concat(), None);
        peer.read_exact(&mut [0]).unwrap();
        let slow = world.endpoint.slow.lock().unwrap();
        let ask = Header { slot: SLOW, ..Header::new(Kind::Ping) };
        peer.write_all(&ask.encode()).unwrap();
        std::thread::sleep(Duration::from_millis(5)); // its frames come one by one
        peer.write_all(&Header { payload_length: 3, ..Header::new(Kind::Request) }.encode()).unwrap();
        peer.write_all(b"bye").unwrap();
        drop(peer);
        drop(slow);
        // The answer to the first frame fails, perhaps before the second one is read.
        for _ in 0..100 {
            connection.send(&Header::new(Kind::Pong).encode(), None);
        }
        let mut heard = [world.frame(), world.frame()];
        heard.sort_unstable(); // two threads may say so, each of one
        assert_eq!(heard, [0, 3], "in round {round}");
    }
}

/// Threads that send wake others to receive: one of them may find the end while another one still
/// has what came before it.
#[test]
fn the_end_is_told_after_what_came_before_it() {
    let (world, _) = World::new(1 << 20, 1 << 20);
    let (mut peer, connection) = world.connect();
    connection.set_bulk(false);
    let first = Header { slot: LAST, ..Header::new(Kind::Request) };
    // One segment: both are received at once.
    peer.write_all(&[first.encode(), Header::new(Kind::Goodbye).encode()].concat()).unwrap();
    drop(peer);
    assert_eq!([world.frame(), world.frame()], [0, 0]);
    wait_until(|| world.endpoint.closed.load(Ordering::SeqCst));
}

/// Nobody reads replies any more at the end, for which frames had waited.
#[test]
fn the_end_is_told_after_what_was_deferred() {
    let (world, _) = World::new(1 << 20, 1 << 20);
    let (_peer, connection) = world.connect();
    let mut sender = lock(&connection.sender);
    sender.queue(&vec![0; BACKLOG_PAUSES], None);
    connection.note_unsent(&sender);
    assert!(connection.pauses());
    let frame = |kind| Frame::of_handshake(Header::new(kind), Vec::new());
    let (first, last) = (Handing::begin(&connection), Handing::begin(&connection));
    connection.handle(vec![frame(Kind::Request), frame(Kind::Goodbye)], first);
    assert!(connection.holding.has_deferred());
    connection.holding.end_after_frames(Closed { reason: "test".into(), orderly: true, vanished: false });
    drop(last);
    assert_eq!([world.frame(), world.frame()], [0, 0]);
    assert!(world.endpoint.closed.load(Ordering::SeqCst));
}

#[test]
fn who_sends_without_end_leaves_the_thread_to_others() {
    /// More than are received in one turn, and no more than the socket takes.
    const FRAMES: usize = 500;
    // One thread, this one, and not yet.
    let (world, _) = World::with((0, 1), ROOM, ROOM);
    let [(mut busy, first), (mut other, second)] = [world.connect(), world.connect()];
    let frame = Header::new(Kind::Pong).encode();
    let writer = std::thread::spawn(move || {
        busy.write_all(&frame.repeat(2 * FRAMES)).unwrap();
        busy
    });
    let unread = |connection: &Connection| rustix::io::ioctl_fionread(&*connection.socket).unwrap() as usize;
    wait_until(|| unread(&first) >= FRAMES * HEADER_SIZE);
    other.write_all(&[&head(1)[..], &[7]].concat()).unwrap();
    wait_until(|| unread(&second) > 0);
    let mut told = Vec::new();
    let mut turn_until = |holds: &dyn Fn(&[usize]) -> bool| {
        aqueduct_worker::wait(&world.group, async {
            while !holds(&told) {
                world.group.sleep(Duration::from_millis(1)).await;
                told.extend(world.events.try_iter());
            }
        });
        told.clone()
    };
    let told = turn_until(&|told| told.contains(&1));
    let before = told.iter().take_while(|length| **length == 0).count();
    assert!(before < FRAMES, "{before} frames of the other were first");
    turn_until(&|told| told.len() == 2 * FRAMES + 1); // and nothing is left behind
    drop(writer.join().unwrap());
}

/// Its data are where they belong already, and cannot be asked for again.
#[test]
fn an_answer_that_was_whole_when_another_thread_ended_the_connection_is_handed_on() {
    for takes_last in [true, false] {
        let (world, _) = World::new(1 << 20, 1 << 20);
        world.endpoint.takes_last.store(takes_last, Ordering::SeqCst);
        let (mut peer, connection) = world.connect();
        connection.set_bulk(false);
        let first = Header { slot: ENDS, ..Header::new(Kind::Request) };
        // One segment: both are received at once.
        peer.write_all(&[first.encode(), Header::new(Kind::Goodbye).encode()].concat()).unwrap();
        assert_eq!(world.frame(), 0);
        match takes_last {
            true => assert_eq!(world.frame(), 0, "and it is told before the end"),
            false => assert!(world.events.recv_timeout(Duration::from_millis(100)).is_err(), "nobody wants it"),
        }
        wait_until(|| world.endpoint.closed.load(Ordering::SeqCst));
    }
}
