//! A request that takes long, and what comes meanwhile: its repeat, and the end of its session.

mod common;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_posix::Posix;
use aqueduct_wire::*;
use common::*;

/// The name of a directory that takes long to make.
const SLOW: &str = "slow";

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(10);

/// Making the directory [`SLOW`] takes until a test says so.
struct Gate {
    below: Posix,
    begun: Mutex<Sender<()>>,
    end: Mutex<Receiver<()>>,
}

/// What a test has of a gate.
struct Handles {
    begun: Receiver<()>,
    end: Sender<()>,
}

impl FileSystem for Gate {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        if matches!(request, Request::MakeDirectory { name, .. } if name == SLOW.as_bytes()) {
            self.begun.lock().unwrap().send(()).unwrap();
            self.end.lock().unwrap().recv_timeout(LONG).unwrap();
        }
        self.below.call(context, request)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.below.read(context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        self.below.write(context, write, source)
    }

    fn depart(&self, client: ClientId) {
        self.below.depart(client);
    }

    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        self.below.inode_name(handle)
    }
}

fn gate(below: Posix) -> (Arc<Gate>, Handles) {
    let ((begins, begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
    (Arc::new(Gate { below, begun: Mutex::new(begins), end: Mutex::new(ends) }), Handles { begun, end })
}

fn gated() -> (Fixture, Handles) {
    let mut handles = None;
    let fixture = Fixture::layered(|below| {
        let (layer, of_it) = gate(below);
        handles = Some(of_it);
        layer
    });
    (fixture, handles.unwrap())
}

fn send(peer: &mut Peer, place: (u32, u32), request: &Request<'_>) -> u64 {
    let mut body = Vec::new();
    let op = encode_request(&context(), request, &mut body);
    peer.request(op, place, &body)
}

#[test]
fn a_repeat_gets_the_answer_of_the_try_that_runs() {
    let (fixture, gate) = gated();
    let (mut first, session, root) = fixture.attached();
    let first_id = send(&mut first, (0, 1), &make_directory(&root, SLOW));
    gate.begun.recv_timeout(LONG).unwrap();
    let (mut second, _) = fixture.joined(&session);
    let second_id = send(&mut second, (0, 1), &make_directory(&root, SLOW));
    // Its answer says that the repeat, which came before on the same connection, has been looked at.
    second.call(Op::Status, (0, 0), &[]);
    gate.end.send(()).unwrap();
    for (peer, id) in [(&mut first, first_id), (&mut second, second_id)] {
        let (header, _) = peer.receive().unwrap();
        assert_eq!((header.kind, header.request, header.status), (Kind::Reply, id, 0));
    }
    assert!(gate.begun.try_recv().is_err(), "it was executed once");
}

#[test]
fn nobody_makes_a_name_through_another_export_meanwhile() {
    let mut gates = Vec::new();
    let fixture = Fixture::twofold(|below| {
        let (layer, handles) = gate(below);
        gates.push(handles);
        layer
    });
    let (mut one, _, root) = fixture.connect().attach_to("/e");
    let (mut other, _, same) = fixture.connect().attach_to("/f");
    assert_ne!(root, same, "handles tell nothing of another export");
    send(&mut one, (0, 1), &make_directory(&root, SLOW));
    gates[0].begun.recv_timeout(LONG).unwrap();
    send(&mut other, (0, 1), &make_directory(&same, SLOW));
    let begun = gates[1].begun.recv_timeout(Duration::from_millis(500));
    gates.iter().for_each(|gate| gate.end.send(()).unwrap());
    assert!(begun.is_err(), "both were under way");
    let statuses = [&mut one, &mut other].map(|peer| peer.receive().unwrap().0.status);
    assert_eq!(statuses, [0, Errno::EEXIST.raw() as u32]);
}

#[test]
fn nothing_of_a_session_is_executed_after_it_was_ended() {
    let (fixture, gate) = gated();
    let (mut peer, session, root) = fixture.attached();
    let (mut other, _) = fixture.joined(&session);
    let frames: Vec<u8> = [(0, SLOW), (1, "late")]
        .iter()
        .flat_map(|(slot, name)| {
            let mut body = Vec::new();
            let op = encode_request(&context(), &make_directory(&root, name), &mut body);
            let (request, body_length) = (u64::from(*slot) + 1, body.len() as u32);
            let header =
                Header { op: op as u16, slot: *slot, sequence: 1, request, body_length, ..Header::new(Kind::Request) };
            [&header.encode()[..], &body].concat()
        })
        .collect();
    std::io::Write::write_all(&mut peer.stream, &frames).unwrap();
    gate.begun.recv_timeout(LONG).unwrap();
    other.send(Header::new(Kind::Goodbye), &[]);
    assert!(other.receive().is_none(), "the session has ended");
    gate.end.send(()).unwrap();
    assert!(peer.receive().is_none());
    // The thread that was held up ends when it has nothing more to do.
    fixture.group.stop();
    fixture.group.join();
    assert!(fixture.directory.path().join(SLOW).exists(), "it was under way");
    assert!(!fixture.directory.path().join("late").exists());
}
