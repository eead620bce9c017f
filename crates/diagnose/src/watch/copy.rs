//! A copy that runs on this machine, from what it tells, and from what its servers do.

use std::path::Path;
use std::thread;
use std::time::Instant;

use aqueduct_metrics::activity::{LEVELS, Station, level, middle};
use aqueduct_node::Failure;
use aqueduct_transfer::{OperationRecord, Running, Stage as Step, StageRecord};

use super::servers::{self, Told};
use super::watched::{LOOK_INTERVAL, Names, Question, Watched, wait};
use crate::host::Look as Host;
use crate::passive::{RailCounts, Shape, StageCounts, State, Window};
use crate::verdict::Stage;

/// Threads that carry the requests of a session.
const CARRIERS: f64 = 2.0;

/// All that is known of it on this machine at one moment.
struct Look {
    told: Running,
    host: Host,
}

/// For each step of a copy at a server: the parts of its time at the server, and on the way.
type Splits = Vec<(Step, [f64; 2])>;

/// Watches it until `end`, or until it is over.
pub(super) fn watch(path: &Path, question: &Question, end: Instant) -> Result<Watched, Failure> {
    let gone = || {
        let hint = "name one that runs: aqueduct transfers list";
        Failure::new(format!("cannot watch the copy {}", path.display()), "it is over, or was none", hint)
    };
    let first = Look { told: Running::read(path).ok_or_else(gone)?, host: Host::now() };
    let servers: Vec<String> = first.told.servers.iter().flatten().cloned().collect();
    let (mut looks, mut has_ended) = (vec![first], false);
    // They are asked while it is looked at: one that hangs takes time.
    let (of, key) = (servers.clone(), question.key.clone());
    let asked = thread::spawn(move || servers::ask(&of, key.as_ref()));
    let mut next = Instant::now();
    while wait(next, end) {
        next += LOOK_INTERVAL;
        let Some(told) = Running::read(path) else {
            has_ended = true;
            break;
        };
        // It tells once a second, on its own time.
        if looks.last().is_none_or(|last| told.seconds > last.told.seconds) {
            looks.push(Look { told, host: Host::now() });
        }
    }
    let unknown = || servers.iter().map(|_| Err("it cannot be asked".to_owned())).collect();
    let at_first: Vec<Told> = asked.join().unwrap_or_else(|_| unknown());
    // Who was silent at first is not waited for again.
    let at_last = match at_first.iter().all(Result::is_ok) {
        true => servers::ask(&servers, question.key.as_ref()),
        false => at_first.clone(),
    };
    let (first, last) = (&looks[0], &looks[looks.len() - 1]);
    let splits = splits(first, last, &servers, [&at_first, &at_last]);
    let windows = looks.windows(2).map(|pair| between(&pair[0], &pair[1], &splits)).collect();
    let bytes = last.told.bytes.saturating_sub(first.told.bytes) as f64;
    let silent = servers.iter().zip(&at_last);
    let silent = silent.filter_map(|(server, told)| Some((server.clone(), told.as_ref().err()?.clone()))).collect();
    Ok(Watched { windows, names: Names { silent, ..names(first) }, bytes, has_ended })
}

/// The splits of all steps over the whole time: in a part of it little may end.
fn splits(first: &Look, last: &Look, servers: &[String], [before, now]: [&[Told]; 2]) -> Splits {
    let told = |server: &String| {
        let at = servers.iter().position(|other| other == server)?;
        Some((before[at].as_ref().ok()?, now[at].as_ref().ok()?))
    };
    let split = |record: &StageRecord| {
        let (_, side) = place_of(record.stage)?;
        let server = last.told.servers[side].as_ref()?;
        let is_here = matches!(record.stage, Step::Hash | Step::Own);
        let served = told(server)
            .map(|(before, now)| servers::served(before, now, |name| kind_of(name) == kind_of_step(record.stage)));
        (!is_here).then(|| (record.stage, split(first, last, &since(first, record), (server, served))))
    };
    last.told.stages.iter().filter_map(split).collect()
}

fn names(look: &Look) -> Names {
    let told = &look.told;
    let source = told.sources.first().cloned().unwrap_or_default();
    let places = [source, told.destination.clone()];
    let devices = places.each_ref().map(|place| crate::host::device_of(Path::new(place)));
    Names { places, servers: told.servers.clone(), devices, silent: Vec::new() }
}

/// What was counted between two looks.
fn between(before: &Look, now: &Look, splits: &Splits) -> Window {
    let seconds = now.told.seconds - before.told.seconds;
    let mut window = Window {
        seconds,
        shape: Shape::Pool,
        is_walking: now.told.is_walking,
        processors: [now.host.processors_since(&before.host); 2],
        ..Window::default()
    };
    let workers: f64 = now.told.stages.iter().map(|stage| since(before, stage).seconds).sum();
    // What computes beside the threads that copy carries their requests.
    let share_max =
        (carried(before, now) / (CARRIERS * seconds * now.told.sessions.len().max(1) as f64)).clamp(0.0, 1.0);
    let busy_carriers = ((share_max - 0.5) / 0.4).clamp(0.0, 1.0);
    for record in &now.told.stages {
        let counted = since(before, record);
        match place_of(record.stage) {
            None if record.stage == Step::Idle => window.idle += counted.seconds,
            None => window.throttled += counted.seconds,
            Some((stage, side)) => match splits.iter().find(|at| at.0 == record.stage).map(|at| at.1) {
                None => window.put(counts(stage, side, workers, &counted)),
                Some([there, way]) => {
                    let way_of_carriers = (1.0 - there - way).max(0.0) + way * busy_carriers;
                    window.put(part(stage, side, workers, &counted, there));
                    window.put(part(Stage::Network, side, workers, &counted, way * (1.0 - busy_carriers)));
                    let mut sends = part(Stage::Send, side, workers, &counted, way_of_carriers);
                    sends.states = by_state(sends.states.iter().sum(), State::Cpu);
                    window.put(sends);
                }
            },
        }
    }
    window.rails = rails(&now.told);
    window
}

fn since(before: &Look, record: &StageRecord) -> StageRecord {
    let Some(earlier) = before.told.stages.iter().find(|earlier| earlier.stage == record.stage) else {
        return record.clone();
    };
    StageRecord {
        stage: record.stage,
        seconds: (record.seconds - earlier.seconds).max(0.0),
        sampled: std::array::from_fn(|at| (record.sampled[at] - earlier.sampled[at]).max(0.0)),
        station: record.station.since(&earlier.station),
    }
}

/// Seconds that the process has computed or waited for a processor, without the threads that copy.
fn carried(before: &Look, now: &Look) -> f64 {
    let all: f64 = (0..2).map(|at: usize| (now.told.processors[at] - before.told.processors[at]).max(0.0)).sum();
    let of_workers = |record: &StageRecord| {
        let counted = since(before, record);
        counted.seconds * (computes(&counted) + waits(&counted))
    };
    (all - now.told.stages.iter().map(of_workers).sum::<f64>()).max(0.0)
}

/// The stage that a step of a copy is, and at which side; `None`: nothing is done there.
fn place_of(step: Step) -> Option<(Stage, usize)> {
    match step {
        Step::Walk => Some((Stage::Metadata, 0)),
        Step::Read => Some((Stage::Read, 0)),
        Step::Hash | Step::Own => Some((Stage::Hash, 0)),
        Step::Write => Some((Stage::Write, 1)),
        Step::Attributes => Some((Stage::Metadata, 1)),
        Step::Flush => Some((Stage::Flush, 1)),
        Step::Verify => Some((Stage::Verify, 1)),
        Step::Throttle | Step::Idle => None,
    }
}

/// The part of a stage's time in which its threads compute, of what was sampled.
fn computes(record: &StageRecord) -> f64 {
    match record.stage {
        Step::Hash | Step::Own => 1.0,
        Step::Throttle | Step::Idle => 0.0,
        _ => share(record.sampled[1], record.sampled[0]),
    }
}

/// The part in which they wait for a processor.
fn waits(record: &StageRecord) -> f64 {
    share(record.sampled[2], record.sampled[0])
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

fn by_state(seconds: f64, state: State) -> [f64; crate::passive::STATES] {
    let mut states = [0.0; crate::passive::STATES];
    states[state as usize] = seconds;
    states
}

/// A stage on this machine.
fn counts(stage: Stage, side: usize, workers: f64, record: &StageRecord) -> StageCounts {
    let (cpu, runnable) = (computes(record), waits(record));
    let mut states = by_state(0.0, State::Io);
    let rest = if stage == Stage::Metadata { State::Metadata } else { State::Io };
    states[State::Cpu as usize] = record.seconds * cpu;
    states[State::Runnable as usize] = record.seconds * runnable.min(1.0 - cpu);
    states[rest as usize] = record.seconds * (1.0 - cpu - runnable).max(0.0);
    let station = if record.stage == Step::Own { between_others(record) } else { record.station.clone() };
    StageCounts { stage, side, workers, states, stations: vec![station] }
}

/// What threads do between stages, as if it were operations of a hundredth of a second: there is
/// always a thread for each.
fn between_others(record: &StageRecord) -> Station {
    const LENGTH: f64 = 0.01;
    let mut station = Station { target: "own".to_owned(), ..Station::default() };
    (station.time[1], station.done[1]) = (record.seconds, record.seconds / LENGTH);
    (station.spent, station.under_way) = (record.seconds, record.seconds);
    station
}

/// A part of a stage of which the rest is elsewhere.
fn part(stage: Stage, side: usize, workers: f64, record: &StageRecord, share: f64) -> StageCounts {
    let rest = if stage == Stage::Metadata { State::Metadata } else { State::Io };
    let state = if stage == Stage::Network { State::Window } else { rest };
    let states = by_state(record.seconds * share, state);
    StageCounts { stage, side, workers, states, stations: vec![scaled(&record.station, share)] }
}

/// A station of which each operation is there for a part of its time: by Little's law so many
/// fewer are there at a time, and as many end.
fn scaled(station: &Station, share: f64) -> Station {
    let mut scaled = Station { time: [0.0; LEVELS], done: [0.0; LEVELS], ..station.clone() };
    for at in 1..LEVELS {
        let there = middle(at) * share;
        let to = level((there.round() as usize).max(1));
        scaled.time[to] += station.time[at] * there.min(1.0);
        scaled.done[to] += station.done[at];
    }
    (scaled.spent, scaled.under_way) = (station.spent * share, station.under_way * share);
    scaled
}

/// Of a step at a server: the parts of its time at the server, and on the way; the rest is spent
/// on this machine. `served`: how many such requests the server has answered, of whomever, and how
/// long they took there.
fn split(before: &Look, now: &Look, record: &StageRecord, (server, served): (&str, Option<[f64; 2]>)) -> [f64; 2] {
    let asked = |look: &Look| {
        let sessions = look.told.sessions.iter().filter(|session| session.server == server);
        let kinds = sessions.flat_map(|session| &session.operations);
        let kinds = kinds.filter(|at| kind_of(&at.operation) == kind_of_step(record.stage));
        kinds.fold([0.0; 2], |sum, OperationRecord { count, seconds, .. }| [sum[0] + count, sum[1] + seconds])
    };
    let (earlier, later) = (asked(before), asked(now));
    let [count, took] = [0, 1].map(|at: usize| (later[at] - earlier[at]).max(0.0));
    let (steps, spent) = (record.station.completions(), record.station.spent);
    // Nothing was answered meanwhile: it waits for the server or the way to it, nobody knows which.
    if count == 0.0 || took == 0.0 || steps == 0.0 {
        return [0.5, 0.5];
    }
    // Of those that ended.
    let sent = share(took, spent.max(took));
    let there = match served {
        Some([served, seconds]) if served > 0.0 => share(seconds / served, took / count),
        _ => 0.5,
    };
    [sent * there, sent * (1.0 - there)]
}

/// Classes of requests: data that are read, data that are written, what makes stable, all else.
fn kind_of(name: &str) -> u8 {
    match name {
        "Read" => 0,
        "Write" => 1,
        "Sync" | "SyncDirectory" => 2,
        "Status" | "Attach" => 4,
        _ => 3,
    }
}

fn kind_of_step(step: Step) -> u8 {
    match step {
        Step::Read | Step::Verify => 0,
        Step::Write => 1,
        Step::Flush => 2,
        _ => 3,
    }
}

fn rails(told: &Running) -> Vec<RailCounts> {
    let rails = told.sessions.iter().flat_map(|session| session.rails.iter().map(move |rail| (session, rail)));
    let counts = |(session, rail): (&aqueduct_transfer::SessionRecord, &aqueduct_metrics::status::RailStatus)| {
        let seconds = rail.round_trip_us as f64 / 1e6;
        RailCounts {
            name: format!("{} {}", session.server, rail.path),
            round_trips: [seconds, 1.0],
            round_trip_min: seconds,
            ..RailCounts::default()
        }
    };
    rails.map(counts).collect()
}
