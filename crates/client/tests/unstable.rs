//! A client whose writes are not stable yet, at a server that cannot make them so, or does not say when.

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::layer::Layer;
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Server, ServerConfig};
use aqueduct_worker::Group;
use common::*;

/// A directory on a disk that fails, as soon as the test says so, when data are to be made stable.
struct Failing {
    below: Posix,
    asked: Sender<()>,
    go_on: Mutex<Receiver<()>>,
    /// The next write waits for this.
    holds: Mutex<Option<Receiver<()>>>,
}

impl Layer for Failing {
    type Below = Posix;

    fn below(&self) -> &Posix {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        if let Request::Commit { .. } = request {
            let _ = self.asked.send(()); // nobody listens when the test has ended
            let _ = self.go_on.lock().unwrap().recv_timeout(LONG); // an end of the sender says so for ever
            return Call::ready(Err(Errno::EIO));
        }
        self.below.ask(context, request)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        let holds = self.holds.lock().unwrap().take();
        if let Some(go_on) = holds {
            let _ = self.asked.send(());
            let _ = go_on.recv_timeout(LONG);
        }
        match self.below.write(context, write, source) {
            // Also where the directory lies in memory.
            Call::Ready(Some(Ok(written))) => Call::ready(Ok(Written { verifier: 7, ..written })),
            other => other,
        }
    }
}

/// A server over such a directory.
struct Fixture {
    server: Arc<Server>,
    filesystem: Arc<Failing>,
    group: Arc<Group>,
    asked: Receiver<()>,
    go_on: Sender<()>,
    _directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let ((asked, asks), (go_on, goes_on)) = (channel(), channel());
        let below = Posix::open(directory.path(), Options { key: [5; 32], ..Options::default() }).unwrap();
        let holds = Mutex::default();
        let filesystem = Arc::new(Failing { below, asked, go_on: Mutex::new(goes_on), holds });
        let config = ServerConfig { verifier: 7, ..server_config("/e", filesystem.clone()) };
        let group = group(2);
        let server = Server::start(config, group.clone()).unwrap();
        Fixture { server, filesystem, group, asked: asks, go_on, _directory: directory }
    }

    fn node(&self) -> Node {
        Node::new(self.server.addresses()[0], "/e")
    }

    fn end(self) {
        drop(self.go_on);
        self.server.shutdown(LONG);
        self.group.stop();
        self.group.join();
    }
}

fn write(node: &Node, open: OpenId) -> Result<Written, Errno> {
    node.write(open, false, b"unstable")
}

/// Ends a client; what still waited in it has been woken by then, and lets others run.
fn end(node: Node) {
    node.client.disconnect();
    let (turn, turns) = channel();
    node.group.spawn(async move { turn.send(()).unwrap_or_default() });
    turns.recv_timeout(LONG).expect("the client's thread is free");
}

/// What frees others is done also when what was written under the lock cannot be made stable: else they would wait for ever.
#[test]
fn a_lock_is_given_up_also_when_data_cannot_be_made_stable() {
    let mut fixture = Fixture::new();
    fixture.go_on = channel().0; // it fails at once
    let (holder, other) = (fixture.node(), fixture.node());
    for closes in [false, true] {
        let (held, wanted) = (holder.create("file"), other.create("file"));
        holder.lock(held, 1, LockKind::Write, false).unwrap();
        write(&holder, held).unwrap();
        assert_eq!(other.lock(wanted, 1, LockKind::Write, false), Err(Errno::EAGAIN));
        if closes {
            assert_eq!(holder.ask(&Request::Flush { open: held, owner: 1 }), Err(Errno::EIO));
        } else {
            holder.lock(held, 1, LockKind::Unlock, false).unwrap();
            assert_eq!(write(&holder, held), Err(Errno::EIO), "whoever goes on hears of it");
        }
        other.lock(wanted, 1, LockKind::Write, false).expect("the lock is free");
        holder.ask(&Request::Release { open: held }).unwrap();
        other.ask(&Request::Release { open: wanted }).unwrap();
    }
    end(holder);
    end(other);
    fixture.end();
}

/// A program is killed while its server makes stable what it wrote: nobody is let in before that
/// is known, and what gives its lock up is asked for again.
#[test]
fn a_lock_is_not_given_up_while_nobody_knows_whether_data_are_stable() {
    let fixture = Fixture::new();
    let (holder, other) = (fixture.node(), fixture.node());
    let (held, wanted) = (holder.create("file"), other.create("file"));
    holder.lock(held, 1, LockKind::Write, false).unwrap();
    write(&holder, held).unwrap();
    let (context, flush) = (context(), Request::Flush { open: held, owner: 1 });
    std::thread::scope(|scope| {
        let flushed = scope.spawn(|| holder.ask_as(&context, &flush));
        fixture.asked.recv_timeout(LONG).expect("what was written is to become stable");
        context.cancel.raise();
        assert_eq!(flushed.join().unwrap(), Err(Errno::EINTR));
    });
    assert_eq!(other.lock(wanted, 1, LockKind::Write, false), Err(Errno::EAGAIN));
    (0..2).for_each(|_| fixture.go_on.send(()).unwrap());
    assert_eq!(holder.ask(&flush), Err(Errno::EIO));
    other.lock(wanted, 1, LockKind::Write, false).expect("the lock is free");
    end(holder);
    end(other);
    fixture.end();
}

/// A program is killed while the server executes its write, which others may not overtake.
#[test]
fn a_lock_is_not_given_up_while_what_was_written_under_it_is_under_way() {
    for space in [LockSpace::Posix, LockSpace::Turn] {
        no_lock_is_given_up_while_what_was_written_under_it_is_under_way(space);
    }
}

fn no_lock_is_given_up_while_what_was_written_under_it_is_under_way(space: LockSpace) {
    let mut fixture = Fixture::new();
    fixture.go_on = channel().0;
    let (holder, other) = (fixture.node(), fixture.node());
    let (held, wanted) = (holder.create("file"), other.create("file"));
    let lock_as = |kind| {
        let lock = Lock { start: 0, end: 9, kind, pid: 1 };
        move |open| Request::SetLock { open, owner: 1, space, lock, wait: false }
    };
    let take = lock_as(LockKind::Write);
    holder.ask(&take(held)).unwrap();
    let (go_on, holds) = channel();
    *fixture.filesystem.holds.lock().unwrap() = Some(holds);
    let context = context();
    std::thread::scope(|scope| {
        let written = scope.spawn(|| holder.write_as(&context, held, b"late"));
        fixture.asked.recv_timeout(LONG).expect("it is being executed");
        context.cancel.raise();
        assert_eq!(written.join().unwrap(), Err(Errno::EINTR));
        let given_up = scope.spawn(|| holder.ask(&lock_as(LockKind::Unlock)(held)));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(other.ask(&take(wanted)), Err(Errno::EAGAIN));
        go_on.send(()).unwrap();
        given_up.join().unwrap().unwrap();
    });
    other.ask(&take(wanted)).expect("the lock is free");
    end(holder);
    end(other);
    fixture.end();
}

/// Its program need not wait for it, and is told where its time went all the same.
#[test]
fn a_write_under_a_lock_tells_what_it_waited_for() {
    let mut fixture = Fixture::new();
    fixture.go_on = channel().0;
    let node = fixture.node();
    let held = node.create("file");
    node.lock(held, 1, LockKind::Write, false).unwrap();
    let context = Context { cancel: Cancel::traced(None), ..context() };
    node.write_as(&context, held, b"text").unwrap();
    let taken = context.steps().take();
    assert!(taken.steps.len() as u32 + taken.brief.0 > 0, "{taken:?}");
    end(node);
    fixture.end();
}

/// A client that leaves while its server dies ends, whatever it still keeps.
#[test]
fn a_client_that_leaves_a_dying_server_ends() {
    let fixture = Fixture::new();
    let node = fixture.node();
    write(&node, node.create("file")).unwrap();
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        end(node);
        let _ = ended.send(());
    });
    fixture.asked.recv_timeout(LONG).expect("what was written is to become stable");
    fixture.server.shutdown(Duration::ZERO);
    ends.recv_timeout(LONG).expect("the client ends");
    fixture.end();
}
