//! What is asked, and what was seen: plain data.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_node::Reach;
use aqueduct_node::mounts::Mount;
use serde::Serialize;

use crate::passive::Window;
use crate::verdict::Stage;

/// Between two looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A copy of this user on this machine, by what it tells there.
    Copy(PathBuf),
    /// A mount of this machine.
    Mount(Mount),
    /// A server, or those of a volume: what they are called together, and their addresses.
    Servers(String, Vec<String>),
}

/// What is asked.
pub struct Question {
    /// What is watched.
    pub subject: Subject,
    /// How servers are reached: the key that they want, and routes to networks that have a name.
    pub reach: Reach,
    /// How long it may take.
    pub limit: Duration,
}

/// Where a part of the time went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spent {
    /// The stage.
    pub stage: String,
    /// Where that is.
    pub place: String,
    /// The part.
    pub share: f64,
}

/// What was seen of a subject: windows one after the other, and what to call things.
pub(super) struct Watched {
    pub(super) windows: Vec<Window>,
    pub(super) names: Names,
    /// Bytes that moved.
    pub(super) bytes: f64,
    /// Whether it ended before the time was over.
    pub(super) has_ended: bool,
    /// It would do more if it could: that nothing is asked of it is no reason.
    pub(super) wants_more: bool,
}

/// What things are called.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Names {
    /// Source and destination.
    pub(super) places: [String; 2],
    /// Their servers, of those that are at one.
    pub(super) servers: [Option<String>; 2],
    /// What lies below those that are here.
    pub(super) devices: [Option<String>; 2],
    /// Who does not answer, and why.
    pub(super) silent: Vec<(String, String)>,
    /// The rates to which exports are held, at source and destination, if they are what requests
    /// wait for.
    pub(super) held: [Option<Held>; 2],
    /// It is a mount: its programs choose how much is under way.
    pub(super) is_mount: bool,
}

/// An export is held to a rate, for which most of one's requests wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// Bytes in a second.
    pub(super) rate: u64,
    /// The part of the requests, 0 to 1.
    pub(super) waits: f64,
}

/// The name of the machine that this is.
pub(super) const HERE: &str = "this machine";

impl Names {
    /// The rate that holds a stage, if one does.
    pub(super) fn held_at(&self, stage: Stage, side: usize) -> Option<Held> {
        self.held[side.min(1)].filter(|_| matches!(stage, Stage::Read | Stage::Write))
    }

    /// Where a stage is.
    pub(super) fn of(&self, stage: Stage, side: usize) -> String {
        let side = side.min(1);
        match (stage, &self.servers[side]) {
            (Stage::Hash | Stage::Send, _) => HERE.to_owned(),
            (Stage::Network, Some(server)) => server.clone(),
            _ => self.places[side].clone(),
        }
    }
}

/// What this machine calls itself to servers.
pub(super) fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Waits for the time of the next look; `false`: it is the last.
pub(super) fn wait(next: Instant, end: Instant) -> bool {
    thread::sleep(next.min(end).saturating_duration_since(Instant::now()));
    next < end
}
