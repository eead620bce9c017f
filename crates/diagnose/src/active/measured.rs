//! What is asked, and what was measured: plain data.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use aqueduct_node::Reach;
use aqueduct_transfer::Place;
use aqueduct_wire::Checksums;
use serde::Serialize;

use super::leg::{Leg, Slice, State};
use super::way::Way;
use crate::Verdict;

/// What is asked.
pub struct Question {
    /// From where.
    pub source: Place,
    /// To where.
    pub target: Place,
    /// How servers are reached: the key that they want, and routes to networks that have a name.
    pub reach: Reach,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// How long it may take.
    pub limit: Duration,
    /// Whether other numbers of streams and sizes of buffers are tried as well.
    pub sweeps: bool,
    /// Whether what is suspected is slowed, to see whether the whole follows.
    pub probes: bool,
    /// Set from elsewhere: it is to end now, and to remove what it has written.
    pub stop: Arc<AtomicBool>,
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
    /// What the processes of these servers had of processors, and for how long their threads
    /// waited for one, in seconds of each second; `None`: not told.
    pub at_server: [Option<[f64; 2]>; 2],
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
    /// The whole with other settings.
    pub swept: Vec<Swept>,
    /// What came of slowing a side.
    pub probes: Vec<Probe>,
    /// What was written and could not be removed.
    pub left: Option<String>,
    /// What went wrong: in which state, and what, for people. A leg that hung or failed.
    pub trouble: Option<(State, String)>,
}

/// What is tried at other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Setting {
    /// Threads that copy.
    Streams,
    /// Bytes of an operation.
    Buffer,
}

/// The whole with a setting, in one slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swept {
    /// What was set.
    pub setting: Setting,
    /// To what.
    pub value: u64,
    /// Bytes per second.
    pub rate: f64,
}

/// The whole with and without a side being slowed, in two slices one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// 0: the source was slowed, 1: the destination.
    pub side: usize,
    /// How.
    pub how: Slowing,
    /// The share by which it was slowed: of the whole's rate as load beside it, or of the time of
    /// operations.
    pub slowed: f64,
    /// Bytes per second without, and with.
    pub rates: [f64; 2],
}

/// How a side is slowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Slowing {
    /// Others use it as well: what is saturated.
    Load,
    /// Threads wait after each operation: what is slow to answer.
    Sleep,
}

/// The figures of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweptReport {
    /// What was set.
    pub setting: Setting,
    /// To what.
    pub value: u64,
    /// Bytes per second: the median of its slices.
    pub rate: f64,
    /// Of each slice.
    pub rates: Vec<f64>,
}

/// What came of slowing a side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeReport {
    /// `read` or `write`.
    pub stage: String,
    /// How it was slowed.
    pub how: Slowing,
    /// By which share.
    pub slowed: f64,
    /// What the whole did then, in parts of what it did without: the median of all pairs.
    pub followed: f64,
    /// How many pairs of slices.
    pub pairs: usize,
}

/// The figures of a leg.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LegReport {
    /// `read`, `network`, `write`, `read+network`, `network+write`, `all`, with `more` where twice
    /// as much was under way.
    pub leg: String,
    /// Bytes per second: the median of its slices.
    pub rate: f64,
    /// Of each slice.
    pub rates: Vec<f64>,
}

/// What is told: the verdict, and the figures of the legs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What limits.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Median rates of the legs in bytes per second.
    pub legs: Vec<LegReport>,
    /// Bytes per second of the whole, as the parts predict it, and as it was.
    pub predicted: f64,
    /// See `predicted`.
    pub measured: f64,
    /// What the whole moves with other settings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sweep: Vec<SweptReport>,
    /// What it did while a side was slowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeReport>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// All that was measured, for a page.
    #[serde(skip)]
    pub samples: Measured,
}
