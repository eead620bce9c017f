//! Runs the legs in turn, and writes down what they did.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_node::Failure;
use aqueduct_transfer::{Access, Place, STEP};

use super::bench::{Bench, SLICE_MAX, SLICE_MIN, THREADS, Trouble, WARM_UP};
use super::ends::{Source, Target};
use super::leg::{Leg, Load, Slice, State};
use super::measured::{Measured, Question, Side};
use super::way::{self, Watch};
use super::{judge, more};

/// Threads that carry the requests of an export.
const CARRIERS: usize = 2;

/// How often each leg runs. Medians of five bear two that were disturbed.
const ROUNDS: usize = 5;

/// Pieces of each thread in a slice.
const PIECES: f64 = 4.0;

/// How long both ends may take to be found.
const FIND_MAX: Duration = Duration::from_secs(15);

/// How long what was written may take to be removed.
const REMOVE_MAX: Duration = Duration::from_secs(5);

/// The shares of the time until which legs are run, and one of them with more under way: alone,
/// and where more comes after them.
const ALONE: [f64; 2] = [0.75, 1.0];
const FIRST: [f64; 2] = [0.3, 0.4];

/// Until when sides are slowed where settings are tried after that.
const PROBED: f64 = 0.8;

/// Finds both ends, and runs the legs.
pub(crate) fn conduct(question: &Question) -> Result<Measured, Failure> {
    let began = Instant::now();
    let mut random = [0; 8];
    let _ = getrandom::fill(&mut random); // another name is as good
    let number = u64::from_le_bytes(random);
    let names = ["source", "target"].map(|side| format!("diagnose-{number:016x}-{side}"));
    let mut sides = [side(&question.source), side(&question.target)];
    for side in &mut sides {
        let Some(server) = &side.server else { continue };
        match way::idle(server, &question.reach) {
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
    let watches = servers.each_ref().map(|server| Some(Watch::start(server.clone()?, question.reach.clone())));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let (reach, stop) = (question.reach.clone(), question.stop.clone());
    let bench = Bench { source, target, names, servers, reach, watches, began, limit: question.limit, stop };
    let mut measured =
        Measured { sides, threads: THREADS, processors, mean_size: bench.source.mean_size(), ..Measured::default() };
    measured.trouble = run(&bench, &mut measured, question).err();
    measured.left = remove(&bench.target, &question.target);
    Ok(measured)
}

/// Removes what was written, on a thread that may hang: what stays behind then, if anything.
fn remove(target: &Arc<Target>, place: &Place) -> Option<String> {
    let (sender, removed) = mpsc::channel();
    let of = target.clone();
    let work = move || {
        let _ = sender.send(of.remove()); // nobody waits any more
    };
    let begun = thread::Builder::new().name("remove".into()).spawn(work).is_ok();
    let is_removed = begun && removed.recv_timeout(REMOVE_MAX) == Ok(true);
    (!is_removed).then(|| format!("{} below {place}", target.name()))
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
        let (key, routes) = question.reach.clone();
        let mut access = Access::new(key, question.checksums, CARRIERS).by(routes);
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

/// Runs them, and what is asked for beyond them.
fn run(bench: &Bench, measured: &mut Measured, question: &Question) -> Result<(), Trouble> {
    let mut lengths = Vec::new();
    for leg in [Leg::Read, Leg::Write, Leg::All] {
        // Does not count, and says how long slices have to be.
        let first = bench.slice(Load::usual(leg, THREADS), SLICE_MIN)?;
        lengths.push((leg, length(&first.slice, THREADS)));
    }
    let each: Duration = lengths.iter().map(|(_, length)| *length + WARM_UP).sum();
    let shares = if question.sweeps || question.probes { FIRST } else { ALONE };
    for round in 0..ROUNDS {
        if round > 0 && bench.is_over(shares[0], each) {
            break;
        }
        // In another order each time, so that what drifts does not favour one.
        for at in 0..lengths.len() {
            let (leg, length) = lengths[(at + round) % lengths.len()];
            if bench.is_over(1.0, length) {
                return Ok(());
            }
            measured.samples.push(bench.slice(Load::usual(leg, THREADS), length)?);
        }
        if round % 2 == 0 {
            parts(bench, measured);
        }
    }
    let [read, write] = [Leg::Read, Leg::Write].map(|leg| judge::rate(measured, leg, THREADS));
    let suspect = if read <= write { Leg::Read } else { Leg::Write };
    let of = |leg: Leg| lengths.iter().find(|at| at.0 == leg).map_or(SLICE_MIN, |at| at.1);
    for _ in 0..3 {
        if bench.is_over(shares[1], 2 * of(suspect)) {
            break;
        }
        for threads in [2 * THREADS, THREADS] {
            measured.samples.push(bench.slice(Load::usual(suspect, threads), of(suspect))?);
        }
    }
    if question.probes {
        let until = if question.sweeps { PROBED } else { 1.0 };
        more::probe(bench, measured, of(Leg::All), until)?;
    }
    if question.sweeps {
        more::sweep(bench, measured, (of(Leg::All) / 2).max(SLICE_MIN))?;
    }
    Ok(())
}

/// Reading at the source's server and the ways alone, as far as that can be done: these say
/// more, and nothing hangs on them.
fn parts(bench: &Bench, measured: &mut Measured) {
    let of_side = [&[Leg::There, Leg::From][..], &[Leg::To][..]];
    for (side, legs) in of_side.into_iter().enumerate().filter(|(side, _)| bench.servers[*side].is_some()) {
        for leg in legs {
            if bench.is_over(1.0, SLICE_MIN) {
                return;
            }
            match bench.slice(Load::usual(*leg, THREADS), SLICE_MIN) {
                Ok(sample) if sample.slice.bytes > 0 => measured.samples.push(sample),
                Ok(_) => {}
                Err((_, why)) => tracing::debug!(side, ?leg, why, "a part was not measured"),
            }
        }
    }
}

/// A slice in which each thread does some pieces.
fn length(first: &Slice, threads: usize) -> Duration {
    let each = first.seconds * threads as f64 / first.operations.max(1) as f64;
    Duration::from_secs_f64((each * PIECES).clamp(SLICE_MIN.as_secs_f64(), SLICE_MAX.as_secs_f64()))
}
