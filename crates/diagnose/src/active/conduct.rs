//! Runs the legs in turn, and writes down what they did.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::server_status;
use aqueduct_metrics::status::ServerStatus;
use aqueduct_node::Failure;
use aqueduct_transfer::{Access, Place, STEP};
use aqueduct_wire::ClientKey;

use super::ends::{Source, Target};
use super::judge;
use super::leg::{Leg, Outcome, Running, STATES, Slice, State};
use super::measured::{Measured, Question, Sample, Side};
use super::way::{self, Watch};

use crate::host::Look;

/// Threads of a leg: as many as a copy over a network has.
const THREADS: usize = 8;

/// Threads that carry the requests of an export.
const CARRIERS: usize = 2;

/// How often each leg runs. Medians of five bear two that were disturbed.
const ROUNDS: usize = 5;

/// A slice takes so long at least and at most, and as long as each thread takes for some pieces.
const SLICE_MIN: Duration = Duration::from_millis(500);
const SLICE_MAX: Duration = Duration::from_secs(2);

/// Pieces of each thread in a slice.
const PIECES: f64 = 4.0;

/// What does not count at the beginning of a slice: queues fill.
const WARM_UP: Duration = Duration::from_millis(150);

/// How long a server may take to tell.
const TOLD_MAX: Duration = Duration::from_secs(2);

/// How long both ends may take to be found.
const FIND_MAX: Duration = Duration::from_secs(15);

/// What all legs share.
struct Bench {
    source: Arc<Source>,
    target: Arc<Target>,
    /// What this client is called at the servers of source and target.
    names: [String; 2],
    servers: [Option<String>; 2],
    key: Option<ClientKey>,
    watches: [Option<Watch>; 2],
    end: Instant,
}

/// Finds both ends, and runs the legs.
pub(crate) fn conduct(question: &Question) -> Result<Measured, Failure> {
    let end = Instant::now() + question.limit;
    let mut random = [0; 8];
    let _ = getrandom::fill(&mut random); // another name is as good
    let number = u64::from_le_bytes(random);
    let names = ["source", "target"].map(|side| format!("diagnose-{number:016x}-{side}"));
    let mut sides = [side(&question.source), side(&question.target)];
    for side in &mut sides {
        let Some(server) = &side.server else { continue };
        match way::idle(server, question.key.as_ref()) {
            Ok(way) => side.way = Some(way),
            Err(error) => {
                let trouble = Some((State::Own, format!("{server} does not answer: {error}")));
                return Ok(Measured { sides, trouble, ..Measured::default() });
            }
        }
    }
    let Some((source, target)) = find(question, &names)? else {
        let what = format!("{} or {} did not answer within {FIND_MAX:?}", question.source, question.target);
        return Ok(Measured { sides, trouble: Some((State::Open, what)), ..Measured::default() });
    };
    sides[1].is_memory = target.is_volatile;
    let servers = sides.each_ref().map(|side| side.server.clone());
    let watches = servers.each_ref().map(|server| Some(Watch::start(server.clone()?, question.key.clone())));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let bench = Bench { source, target, names, servers, key: question.key.clone(), watches, end };
    let mut measured =
        Measured { sides, threads: THREADS, processors, mean_size: bench.source.mean_size(), ..Measured::default() };
    if let Err(trouble) = bench.run(&mut measured) {
        measured.trouble = Some(trouble);
        // What hangs would hold this up as well.
        return Ok(measured);
    }
    bench.target.remove();
    Ok(measured)
}

fn side(place: &Place) -> Side {
    Side {
        place: place.to_string(),
        server: place.server().map(str::to_owned),
        device: place.local().and_then(crate::host::device_of),
        ..Side::default()
    }
}

type Ends = (Arc<Source>, Arc<Target>);

/// Both ends, on a thread that may hang; `None`: it does.
fn find(question: &Question, names: &[String; 2]) -> Result<Option<Ends>, Failure> {
    let (sender, found) = mpsc::channel();
    let access = names.clone().map(|name| {
        let mut access = Access::new(question.key.clone(), question.checksums, CARRIERS);
        access.name = Some(name);
        access
    });
    let (from, to) = (question.source.clone(), question.target.clone());
    let work = move || {
        let [of_source, of_target] = access;
        let find = || -> Result<_, Failure> {
            let source = Source::find(&from, &of_source, STEP as u64)?;
            Ok((Arc::new(source), Arc::new(Target::make(&to, &of_target, 2 * THREADS)?)))
        };
        let _ = sender.send(find()); // nobody waits any more
    };
    thread::Builder::new()
        .name("find".into())
        .spawn(work)
        .map_err(|error| Failure::new("cannot start a thread", error, "check the limit on processes"))?;
    found.recv_timeout(FIND_MAX).ok().transpose()
}

type Trouble = (State, String);

impl Bench {
    fn run(&self, measured: &mut Measured) -> Result<(), Trouble> {
        let mut lengths = Vec::new();
        for leg in [Leg::Read, Leg::Write, Leg::All] {
            // Does not count, and says how long slices have to be.
            let first = self.slice(leg, THREADS, SLICE_MIN)?;
            lengths.push((leg, length(&first.slice, THREADS)));
        }
        for round in 0..ROUNDS {
            // In another order each time, so that what drifts does not favour one.
            for at in 0..lengths.len() {
                let (leg, length) = lengths[(at + round) % lengths.len()];
                if self.is_over(length) {
                    return Ok(());
                }
                measured.samples.push(self.slice(leg, THREADS, length)?);
            }
        }
        let [read, write] = [Leg::Read, Leg::Write].map(|leg| judge::rate(measured, leg, THREADS));
        let suspect = if read <= write { Leg::Read } else { Leg::Write };
        let length = lengths.iter().find(|(leg, _)| *leg == suspect).map_or(SLICE_MIN, |(_, length)| *length);
        for _ in 0..3 {
            for threads in [2 * THREADS, THREADS] {
                if self.is_over(length) {
                    return Ok(());
                }
                measured.samples.push(self.slice(suspect, threads, length)?);
            }
        }
        Ok(())
    }

    fn is_over(&self, next: Duration) -> bool {
        Instant::now() + next + WARM_UP > self.end
    }

    /// Runs a leg for a while.
    fn slice(&self, leg: Leg, threads: usize, length: Duration) -> Result<Sample, Trouble> {
        let running = Running::start(leg, threads, &self.source, &self.target);
        thread::sleep(WARM_UP);
        self.watches.iter().flatten().for_each(Watch::forget);
        let (served, host, own) = (self.served(), Look::now(), aqueduct_worker::own_processors());
        let (before, since) = (running.so_far(), Instant::now());
        while since.elapsed() < length && !running.has_failed() {
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
        let served = [0, 1].map(|side: usize| {
            let ((before, asked), (now, told)) = (served[side]?, served_now[side]?);
            let apart = told.duration_since(asked).as_secs_f64().max(1e-6);
            Some((now - before).max(0.0) * seconds / apart)
        });
        let (busy, resent) = (host_now.busy_since(&host), host_now.resent_since(&host));
        let own = [0, 1].map(|at: usize| (own_now[at] - own[at]).max(0.0) / seconds);
        Ok(Sample { leg, threads, slice, served, busy, own, resent, round_trips })
    }

    /// How long requests of ours have taken at each server so far, in seconds, and when it said
    /// so.
    fn served(&self) -> [Option<(f64, Instant)>; 2] {
        [0, 1].map(|side: usize| {
            let text = server_status(self.servers[side].as_ref()?, (self.key.clone(), None), TOLD_MAX).ok()?;
            let status: ServerStatus = serde_json::from_str(&text).ok()?;
            let ours = status.sessions.iter().filter(|session| session.client == self.names[side]);
            let micros: Vec<u64> = ours.map(|session| session.served_us + session.lease_wait_us).collect();
            (!micros.is_empty()).then(|| (micros.iter().sum::<u64>() as f64 / 1e6, Instant::now()))
        })
    }
}

/// A slice in which each thread does some pieces.
fn length(first: &Slice, threads: usize) -> Duration {
    let each = first.seconds * threads as f64 / first.operations.max(1) as f64;
    Duration::from_secs_f64((each * PIECES).clamp(SLICE_MIN.as_secs_f64(), SLICE_MAX.as_secs_f64()))
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
