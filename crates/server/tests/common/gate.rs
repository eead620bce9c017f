//! A file system some of whose changes take until a test says so.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::layer::Layer;
use aqueduct_fs::*;
use aqueduct_wire::encode_request;

use super::{Fixture, Lower, Peer, context};

/// Making a directory of this name takes until a test says so.
pub const SLOW: &str = "slow";

/// So does a write to this offset.
pub const SLOW_OFFSET: u64 = 4096;

/// Longer than anything here takes on a busy machine, and shorter than what is never done.
pub const LONG: Duration = Duration::from_secs(10);

pub struct Gate {
    below: Lower,
    begun: Mutex<Sender<()>>,
    end: Mutex<Receiver<()>>,
}

/// What a test has of a gate.
pub struct Handles {
    pub begun: Receiver<()>,
    pub end: Sender<()>,
}

impl Gate {
    fn wait(&self) {
        self.begun.lock().unwrap().send(()).unwrap();
        self.end.lock().unwrap().recv_timeout(LONG).unwrap();
    }
}

impl Layer for Gate {
    type Below = Lower;

    fn below(&self) -> &Lower {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        if matches!(request, Request::MakeDirectory { name, .. } if name == SLOW.as_bytes()) {
            self.wait();
        }
        self.below.ask(context, request)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        if write.offset == SLOW_OFFSET {
            self.wait();
        }
        self.below.write(context, write, source)
    }
}

pub fn gate(below: Lower) -> (Arc<Gate>, Handles) {
    let ((begins, begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
    (Arc::new(Gate { below, begun: Mutex::new(begins), end: Mutex::new(ends) }), Handles { begun, end })
}

/// A server over a gate.
pub fn gated() -> (Fixture, Handles) {
    let mut handles = None;
    let fixture = Fixture::layered(|below| {
        let (layer, of_it) = gate(below);
        handles = Some(of_it);
        layer
    });
    (fixture, handles.unwrap())
}

/// Sends a request whose answer a test looks for later; its number.
pub fn send(peer: &mut Peer, place: (u32, u32), request: &Request<'_>) -> u64 {
    let mut body = Vec::new();
    let op = encode_request(&context(), request, &mut body);
    peer.request(op, place, &body)
}
