//! What meets in the middle: looks, grants and changes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use aqueduct_fs::layer::Layer;
use aqueduct_fs::*;
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

/// Where requests are held up.
#[derive(Clone, Copy, PartialEq)]
pub enum At {
    /// When one has looked at attributes, before it is answered.
    Looked,
    /// When one is about to change attributes.
    Changing,
    /// When one has looked up the name `gated`, before it is answered.
    LookedUp,
}

/// Holds up requests that come to a place, each until it is let go.
struct Gate {
    below: Lower,
    at: At,
    came: Mutex<Sender<()>>,
    goes: Mutex<Receiver<()>>,
}

impl Gate {
    fn hold(&self) {
        self.came.lock().unwrap().send(()).unwrap();
        self.goes.lock().unwrap().recv().unwrap();
    }
}

impl Layer for Gate {
    type Below = Lower;

    fn below(&self) -> &Lower {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let (looks, changes) = (matches!(request, Request::GetAttr { .. }), matches!(request, Request::SetAttr { .. }));
        let looks_up = matches!(request, Request::Lookup { name: b"gated", .. });
        let holds_after = self.at == At::Looked && looks || self.at == At::LookedUp && looks_up;
        Call::waiting(async move {
            if self.at == At::Changing && changes {
                self.hold();
            }
            let answer = self.below.ask(context, request).await;
            if holds_after {
                self.hold();
            }
            answer
        })
    }
}

/// Two clients and a file, with a gate.
pub struct State {
    pub came: Receiver<()>,
    /// Dropped before the server ends, so that nobody is held up any more.
    pub goes: Sender<()>,
    pub fixture: Fixture,
    pub looker: Client,
    changer: Client,
    pub file: Handle,
}

impl State {
    pub fn new(at: At) -> State {
        let ((sent, came), (goes, go)) = (channel(), channel());
        let layer = |below| -> Lower { Arc::new(Gate { below, at, came: Mutex::new(sent), goes: Mutex::new(go) }) };
        let fixture = Fixture::limited_over(quick(), layer);
        std::fs::write(fixture.directory.path().join("file"), "").unwrap();
        let (looker, mut changer) = (Client::new(&fixture), Client::plain(&fixture));
        let file = changer.ask(&look_up(&changer.root.clone(), "file")).unwrap().entry().unwrap().handle;
        State { came, goes, fixture, looker, changer, file }
    }
}

#[test]
fn what_was_looked_at_before_a_change_is_not_granted() {
    let mut state = State::new(At::Looked);
    let look = state.looker.send(&get_attr(&state.file));
    state.came.recv().unwrap();
    state.changer.ask(&chmod(&state.file, 0o600)).unwrap();
    state.goes.send(()).unwrap();
    state.looker.take(look).unwrap();
    assert_eq!(state.looker.granted(Subject::Inode), None, "it is older than the change");
    // The same where somebody changes it who does not ask.
    let look = state.looker.send(&get_attr(&state.file));
    state.came.recv().unwrap();
    state.fixture.server.changed_outside(state.file.bytes(), ATTRIBUTES);
    state.goes.send(()).unwrap();
    state.looker.take(look).unwrap();
    assert_eq!(state.looker.granted(Subject::Inode), None);
    let look = state.looker.send(&get_attr(&state.file));
    state.came.recv().unwrap();
    state.goes.send(()).unwrap();
    state.looker.take(look).unwrap();
    assert!(state.looker.granted(Subject::Inode).is_some());
}

#[test]
fn nothing_is_granted_while_it_changes() {
    let mut state = State::new(At::Changing);
    let change = state.changer.send(&chmod(&state.file, 0o600));
    state.came.recv().unwrap();
    state.looker.ask(&get_attr(&state.file)).unwrap();
    assert_eq!(state.looker.granted(Subject::Inode), None);
    state.goes.send(()).unwrap();
    state.changer.take(change).unwrap();
    state.looker.ask(&get_attr(&state.file)).unwrap();
    assert!(state.looker.granted(Subject::Inode).is_some());
}

#[test]
fn who_changes_is_granted_what_came_of_it_unless_others_change_it_as_well() {
    let mut state = State::new(At::Changing);
    state.changer.flags = Flags::LEASES;
    let one = state.changer.send(&chmod(&state.file, 0o600));
    state.came.recv().unwrap();
    let mut third = Client::new(&state.fixture);
    let other = third.send(&chmod(&state.file, 0o640));
    state.came.recv().unwrap();
    for _ in 0..2 {
        state.goes.send(()).unwrap();
    }
    state.changer.take(one).unwrap();
    third.take(other).unwrap();
    let granted = [&state.changer, &third].map(|client| client.granted(Subject::Inode).is_some());
    assert_eq!(granted.iter().filter(|granted| **granted).count(), 0, "nobody knows which came last");
}

#[test]
fn changes_from_outside_recall_without_waiting() {
    let mut state = State::new(At::Changing);
    let lease = state.looker.lease(&get_attr(&state.file));
    state.fixture.server.changed_outside(state.file.bytes(), DATA);
    assert_eq!(state.looker.recalled(), [lease]);
    state.looker.give_back(&[lease]);
    let lease = state.looker.lease(&get_attr(&state.file));
    let root = state.looker.root.clone();
    state.fixture.server.changed_outside(root.bytes(), NAMES);
    assert!(state.looker.is_left_alone());
    state.fixture.server.changed_everything();
    assert_eq!(state.looker.recalled(), [lease]);
}

#[test]
fn files_that_are_fetched_are_granted() {
    let mut state = State::new(At::Changing);
    let root = state.looker.root.clone();
    let mut body = Vec::new();
    encode_fetch(&context(), &[state.file.bytes(), root.bytes()], 10, &mut body);
    let header = Header { op: Op::Fetch as u16, request: 7, flags: Flags::LEASES, ..Header::new(Kind::Request) };
    state.looker.peer.send(header, &body);
    let fetched = state.looker.take(7).unwrap();
    let fetched = decode_fetched(&fetched).unwrap();
    assert!(fetched[0].is_ok() && fetched[1].is_err());
    assert_eq!(state.looker.granted(Subject::Entry(0)).unwrap().0, ATTRIBUTES | DATA);
    assert_eq!(state.looker.grants.len(), 1);
}
