//! Watches what runs, slows nothing, and says what limits it from what it counts anyway.
//!
//! Whatever hangs, the end comes in time: servers and mounts are asked on threads of their own,
//! and what did not answer is said.

mod copy;
mod judge;
mod mount;
mod own;
mod server;
mod servers;
mod split;
mod watched;

pub use server::of_volume;
pub use watched::{Question, Spent, Subject};

use std::time::Instant;

use aqueduct_node::Failure;
use serde::Serialize;

use self::watched::Watched;
use crate::Verdict;
use crate::passive::{Window, name};

/// Parts in which targets are compared.
const PARTS: usize = 5;

/// The most that is stated: the confidence was fitted on a simulator, and of the last 85 verdicts
/// on planted faults that named something 76 were right (docs/diagnose.md).
const CONFIDENCE_MAX: f64 = 0.9;

/// What moves nothing for so many seconds, and for half of the time, stands still.
const STILL_MIN: f64 = 2.0;

/// What is told.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What limits.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Bytes per second that moved meanwhile.
    pub rate: f64,
    /// Where the time went meanwhile, in parts of 1.
    pub spent: Vec<Spent>,
    /// How long it was watched, in seconds.
    pub seconds: f64,
}

/// Watches and judges.
pub fn run(question: &Question) -> Result<Report, Failure> {
    let began = Instant::now();
    let watched = match &question.subject {
        Subject::Copy(path) => copy::watch(path, question, began + question.limit)?,
        Subject::Mount(mount) => mount::watch(mount, question, began + question.limit),
        Subject::Servers(name, servers) => server::watch(name, servers, question, began + question.limit),
    };
    let whole = sum(&watched.windows);
    let verdict = match &question.subject {
        Subject::Servers(_, servers) => server::judge(&whole, &parts(&watched.windows), servers.len(), &watched.names),
        _ => of_pipeline(&whole, &watched),
    };
    let verdict = Verdict { confidence: verdict.confidence.min(CONFIDENCE_MAX), ..verdict };
    let spent = judge::spent(&whole, &watched.names);
    let rate = watched.bytes / whole.seconds.max(1e-3);
    let seconds = (began.elapsed().as_secs_f64() * 100.0).round() / 100.0;
    Ok(Report { verdict, rate: rate.round(), spent, seconds })
}

/// What limits a copy or a mount.
fn of_pipeline(whole: &Window, watched: &Watched) -> Verdict {
    // Threads of a copy that have no work are too many, or wait for names.
    let counts_idle = |window: &Window| window.is_walking || !watched.wants_more;
    let wanted = |window: Window| Window { idle: if counts_idle(&window) { window.idle } else { 0.0 }, ..window };
    let parts: Vec<Window> = parts(&watched.windows).into_iter().map(wanted).collect();
    let still = still(&watched.windows);
    match name(&wanted(whole.clone()), &parts) {
        _ if still.seconds >= STILL_MIN.max(whole.seconds / 2.0) => judge::stands_still(&still, watched),
        named => judge::judge(whole, named.as_ref(), watched),
    }
}

fn sum(windows: &[Window]) -> Window {
    let mut whole = Window::default();
    windows.iter().for_each(|window| whole.add(window));
    whole
}

/// The time at the end in which nothing moved.
fn still(windows: &[Window]) -> Window {
    let moved = windows.iter().rposition(judge::moves).map_or(0, |last| last + 1);
    sum(&windows[moved..])
}

/// A few windows of those that there are.
fn parts(windows: &[Window]) -> Vec<Window> {
    let size = windows.len().div_ceil(PARTS).max(1);
    windows.chunks(size).map(sum).collect()
}
