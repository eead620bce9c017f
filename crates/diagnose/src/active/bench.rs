//! What all legs share, and one slice of a leg with what servers and this machine counted
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::server_status;
use aqueduct_metrics::status::ServerStatus;
use aqueduct_node::Reach;

use super::ends::{Source, Target};
use super::leg::{Load, Outcome, Running, STATES, Slice, State};
use super::measured::Sample;
use super::way::Watch;
use crate::host::Look;

/// Threads of a leg: as many as a copy over a network has.
pub(super) const THREADS: usize = 8;

/// A slice takes so long at least and at most, and as long as each thread takes for some pieces.
pub(super) const SLICE_MIN: Duration = Duration::from_millis(500);
pub(super) const SLICE_MAX: Duration = Duration::from_secs(2);

/// What does not count at the beginning of a slice: queues fill.
pub(super) const WARM_UP: Duration = Duration::from_millis(150);

/// How long a server may take to tell.
const TOLD_MAX: Duration = Duration::from_secs(2);

/// A slice ends when it has moved so many bytes: what a way of 100 Gbit/s carries in a third of a
/// second says enough.
const SLICE_BYTES_MAX: u64 = 4 << 30;

/// In which state, and what, for people.
pub(super) type Trouble = (State, String);

/// What all legs share.
pub(super) struct Bench {
    pub(super) source: Arc<Source>,
    pub(super) target: Arc<Target>,
    /// What this client is called at the servers of source and target.
    pub(super) names: [String; 2],
    pub(super) servers: [Option<String>; 2],
    pub(super) reach: Reach,
    pub(super) watches: [Option<Watch>; 2],
    pub(super) began: Instant,
    pub(super) limit: Duration,
    pub(super) stop: Arc<AtomicBool>,
}

impl Bench {
    /// Whether a slice would end after this share of the time.
    pub(super) fn is_over(&self, share: f64, next: Duration) -> bool {
        self.is_stopped() || self.began.elapsed() + next + WARM_UP > self.limit.mul_f64(share)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a leg for a while.
    pub(super) fn slice(&self, load: Load, length: Duration) -> Result<Sample, Trouble> {
        self.slice_of(load, &self.source, length)
    }

    /// Runs a leg for a while, with the source in other pieces.
    pub(super) fn slice_of(&self, load: Load, source: &Arc<Source>, length: Duration) -> Result<Sample, Trouble> {
        let (leg, threads) = (load.leg, load.threads);
        let running = Running::start(load, source, &self.target);
        thread::sleep(WARM_UP);
        self.watches.iter().flatten().for_each(Watch::forget);
        let (served, host, own) = (self.served(), Look::now(), aqueduct_worker::own_processors());
        let (before, since) = (running.so_far(), Instant::now());
        let is_enough = || running.so_far().bytes - before.bytes > SLICE_BYTES_MAX;
        while since.elapsed() < length && !running.has_failed() && !self.is_stopped() && !is_enough() {
            thread::sleep(Duration::from_millis(5).min(length));
        }
        let (seconds, now) = (since.elapsed().as_secs_f64(), running.so_far());
        let own_now = aqueduct_worker::own_processors();
        let (host_now, served_now) = (Look::now(), self.served());
        let round_trips = self.watches.each_ref().map(|watch| watch.as_ref()?.look());
        let states: [f64; STATES] = std::array::from_fn(|state| now.states[state] - before.states[state]);
        let slice = Slice {
            bytes: now.bytes - before.bytes,
            files: now.files - before.files,
            operations: now.operations - before.operations,
            seconds,
            states,
        };
        match running.end() {
            Outcome::Done => {}
            Outcome::Hangs(state) => return Err((state, format!("{} did not come back", name(state)))),
            Outcome::Failed(state, error) => return Err((state, format!("{} failed: {error}", name(state)))),
        }
        // The server is asked a little before and after: as if it had been in the same time.
        let since_told = |of: fn(&Served) -> f64, side: usize| {
            let (before, now) = (served[side]?, served_now[side]?);
            let apart = now.at.duration_since(before.at).as_secs_f64().max(1e-6);
            Some((of(&now) - of(&before)).max(0.0) / apart)
        };
        let served = [0, 1].map(|side: usize| Some(since_told(|told| told.seconds, side)? * seconds));
        let at_server = [0, 1].map(|side: usize| {
            Some([since_told(|told| told.processors[0], side)?, since_told(|told| told.processors[1], side)?])
        });
        let (busy, resent) = (host_now.busy_since(&host), host_now.resent_since(&host));
        let own = [0, 1].map(|at: usize| (own_now[at] - own[at]).max(0.0) / seconds);
        Ok(Sample { leg, threads, slice, served, at_server, busy, own, resent, round_trips })
    }

    /// What each server has told so far.
    fn served(&self) -> [Option<Served>; 2] {
        [0, 1].map(|side: usize| {
            let text = server_status(self.servers[side].as_ref()?, self.reach.clone(), TOLD_MAX).ok()?;
            let status: ServerStatus = serde_json::from_str(&text).ok()?;
            let ours = status.sessions.iter().filter(|session| session.client == self.names[side]);
            let micros: Vec<u64> = ours.map(|session| session.served_us + session.lease_wait_us).collect();
            let seconds = micros.iter().sum::<u64>() as f64 / 1e6;
            let told = Served { seconds, processors: status.processor_seconds, at: Instant::now() };
            (!micros.is_empty()).then_some(told)
        })
    }
}

/// What a server has told.
#[derive(Clone, Copy)]
struct Served {
    /// How long requests of ours have taken there, in seconds.
    seconds: f64,
    /// What its process had of processors, and waited for them, in seconds.
    processors: [f64; 2],
    /// When it said so.
    at: Instant,
}

fn name(state: State) -> &'static str {
    match state {
        State::Open => "opening files of the source",
        State::Read => "reading",
        State::Create => "making files",
        State::Write => "writing",
        State::Flush => "making stable what was written",
        State::Own => "a thread",
    }
}
