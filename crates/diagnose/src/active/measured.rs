//! What is asked, and what was measured: plain data.

use std::time::Duration;

use aqueduct_transfer::Place;
use aqueduct_wire::{Checksums, ClientKey};
use serde::Serialize;

use super::leg::{Leg, Slice, State};
use super::way::Way;

/// What is asked.
pub struct Question {
    /// From where.
    pub source: Place,
    /// To where.
    pub target: Place,
    /// The key of the servers, if they want one.
    pub key: Option<ClientKey>,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// How long it may take.
    pub limit: Duration,
}

/// One side of the copy, as it is judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// As it was named.
    pub place: String,
    /// The server's addresses, of one at a server.
    pub server: Option<String>,
    /// The way there.
    pub way: Option<Way>,
    /// The disk or file system below, of a local one, where that is known.
    pub device: Option<String>,
    /// Nothing outlives a restart there: memory.
    pub is_memory: bool,
}

/// A leg in one slice, with what servers and this machine counted meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Which leg.
    pub leg: Leg,
    /// With how many threads.
    pub threads: usize,
    /// What it did.
    pub slice: Slice,
    /// The time of requests at the servers of source and target, in seconds; `None`: not told.
    pub served: [Option<f64>; 2],
    /// The share of this machine's processors that was busy or stolen.
    pub busy: f64,
    /// What this process had of processors, and for how long its threads waited for one, in
    /// seconds of each second.
    pub own: [f64; 2],
    /// The share of segments that this machine has sent again.
    pub resent: f64,
    /// The round trip to the server of source and target meanwhile, in seconds.
    pub round_trips: [Option<f64>; 2],
}

/// All that was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Source and target.
    pub sides: [Side; 2],
    /// Slices, in their order.
    pub samples: Vec<Sample>,
    /// Threads of a leg as a copy has them.
    pub threads: usize,
    /// Processors that this process may use.
    pub processors: usize,
    /// Bytes of a file in the mean.
    pub mean_size: u64,
    /// What went wrong: in which state, and what, for people. A leg that hung or failed.
    pub trouble: Option<(State, String)>,
}

/// The figures of a leg.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LegReport {
    /// `read`, `write`, `all`, with `more` where twice as much was under way.
    pub leg: String,
    /// Bytes per second: the median of its slices.
    pub rate: f64,
    /// Of each slice.
    pub rates: Vec<f64>,
}
