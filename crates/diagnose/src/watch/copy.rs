//! A copy that runs on this machine, from what it tells, and from what its servers do.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_metrics::activity::Station;
use aqueduct_metrics::status::WayStatus;
use aqueduct_node::Failure;
use aqueduct_transfer::{OperationRecord, Running, SessionRecord, Stage as Step, StageRecord};

use super::own::{self, Mine, Own};
use super::servers::{self, Told};
use super::split::{Split, backlog, by_state, least_on_way, lose, rails, share};
use super::watched::{Held, LOOK_INTERVAL, Names, Question, Watched, machine, wait};
use crate::host::Look as Host;
use crate::passive::{Shape, StageCounts, State, Window};
use crate::verdict::Stage;

/// Bytes of a write, or of a file, in the mean below which its bytes do not matter.
const SMALL: f64 = 32768.0;

/// How much longer than asked it is watched where it has told nothing more until then: it tells
/// once a second.
const TOLD_MAX: Duration = Duration::from_secs(2);

/// Between two looks then.
const AGAIN: Duration = Duration::from_millis(100);

/// Threads that carry the requests of a session.
const CARRIERS: f64 = 2.0;

/// All that is known of it on this machine at one moment.
struct Look {
    told: Running,
    host: Host,
}

/// How each step at a server is divided.
type Splits = Vec<(Step, Split)>;

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
    let (of, reach) = (servers.clone(), question.reach.clone());
    let asked = thread::spawn(move || servers::ask(&of, &reach));
    let mut next = Instant::now();
    loop {
        next = (next + LOOK_INTERVAL).max(Instant::now()); // a look may take longer
        let is_over = !wait(next, end);
        let Some(told) = Running::read(path) else {
            has_ended = true;
            break;
        };
        // It tells once a second, on its own time.
        if looks.last().is_none_or(|last| told.seconds > last.told.seconds) {
            looks.push(Look { told, host: Host::now() });
        }
        // Of one look nothing follows: a little longer, so that there are two.
        if is_over && (looks.len() > 1 || Instant::now() > end + TOLD_MAX) {
            break;
        }
        if is_over {
            thread::sleep(AGAIN);
        }
    }
    let unknown = || servers.iter().map(|_| Err("it cannot be asked".to_owned())).collect();
    let at_first: Vec<Told> = asked.join().unwrap_or_else(|_| unknown());
    // Who was silent at first is not waited for again.
    let at_last = match at_first.iter().all(Result::is_ok) {
        true => servers::ask(&servers, &question.reach),
        false => at_first.clone(),
    };
    let (first, last) = (&looks[0], &looks[looks.len() - 1]);
    let mine: Vec<Mine> = servers
        .iter()
        .zip(at_first.iter().zip(&at_last))
        .map(|(server, told)| {
            own::mine((server, &machine()), &own(first, last, server), told, |name, kind| name == kind)
        })
        .collect();
    let splits = splits(first, last, &servers, ([&at_first, &at_last], &mine));
    let mut windows: Vec<Window> = looks.windows(2).map(|pair| between(&pair[0], &pair[1], &splits)).collect();
    if let Some(window) = windows.last_mut() {
        let (before, now) = own::ways(&mine);
        rails(&before, &now, last.told.seconds - first.told.seconds).into_iter().for_each(|rail| window.put_rail(rail));
    }
    let bytes = last.told.bytes.saturating_sub(first.told.bytes) as f64;
    let silent = servers.iter().zip(&at_last);
    let silent = silent.filter_map(|(server, told)| Some((server.clone(), told.as_ref().err()?.clone()))).collect();
    let held = [0, 1].map(|side: usize| held((first, last), (&servers, [&at_first, &at_last]), side));
    let names = Names { silent, held, ..names(first) };
    Ok(Watched { windows, names, bytes, has_ended, wants_more: true })
}

/// The splits of all steps over the whole time: in a part of it little may end.
fn splits(first: &Look, last: &Look, servers: &[String], ([before, now], mine): ([&[Told]; 2], &[Mine])) -> Splits {
    let at = |server: &String| servers.iter().position(|other| other == server);
    let told = |server: &String| at(server).map(|at| (&before[at], &now[at]));
    let own = [0, 1].map(|at: usize| (last.told.processors[at] - first.told.processors[at]).max(0.0));
    let split = |record: &StageRecord| {
        let (_, side) = place_of(record.stage)?;
        let server = last.told.servers[side].as_ref()?;
        let is_here = matches!(record.stage, Step::Hash | Step::Own);
        let is_kind = |name: &str| kind_of(name) == kind_of_step(record.stage);
        let station = since(first, record).station;
        let requests = requests(first, last, server, is_kind);
        let mine = at(server).map(|at| &mine[at]);
        let scale = mine.map_or(1.0, |mine| mine.scale);
        let seconds = last.told.seconds - first.told.seconds;
        let steps = [station.completions(), station.spent];
        let split = Split::of(steps, requests, told(server), is_kind, (scale, seconds));
        let split = match (record.stage, mine) {
            (Step::Read | Step::Verify, Some(mine)) => split.with_way_back(mine.busy_back(), seconds),
            (Step::Write, _) => split.with_backlog(server, backlog(&ways(first, server), &ways(last, server))),
            _ => split,
        };
        let least = least_on_way(&ways(last, server), &station);
        let split = split
            .with_starved(told(server), seconds, (lose(&ways(first, server), &ways(last, server)), least), own)
            .over(&ways(last, server));
        (!is_here).then_some((record.stage, split))
    };
    last.told.stages.iter().filter_map(split).collect()
}

/// The ways to a server.
fn ways(look: &Look, server: &str) -> Vec<WayStatus> {
    let sessions = look.told.sessions.iter().filter(|session| session.server == server);
    sessions.flat_map(|session| session.ways.clone()).collect()
}

fn all_ways(look: &Look) -> Vec<WayStatus> {
    look.told.sessions.iter().flat_map(|session| session.ways.clone()).collect()
}

/// Requests of a kind to a server that were answered between two looks, and how long they took.
fn requests(before: &Look, now: &Look, server: &str, is_kind: impl Fn(&str) -> bool) -> [f64; 2] {
    let asked = |look: &Look| {
        let sessions = look.told.sessions.iter().filter(|session| session.server == server);
        let kinds = sessions.flat_map(|session| &session.operations).filter(|at| is_kind(&at.operation));
        kinds.fold([0.0; 2], |sum, OperationRecord { count, seconds, .. }| [sum[0] + count, sum[1] + seconds])
    };
    let (before, now) = (asked(before), asked(now));
    [0, 1].map(|at: usize| (now[at] - before[at]).max(0.0))
}

/// The sessions with a server, and what was answered between two looks.
fn own(first: &Look, last: &Look, server: &str) -> Vec<Own> {
    let of_server = |look: &'_ Look| {
        let sessions = look.told.sessions.iter().filter(|session| session.server == server);
        sessions.cloned().collect::<Vec<_>>()
    };
    let (before, now) = (of_server(first), of_server(last));
    let session = |(at, session): (usize, &SessionRecord)| {
        let earlier = before.get(at).map(|earlier| &earlier.operations[..]).unwrap_or_default();
        let since = |record: &OperationRecord| {
            let same = earlier.iter().find(|earlier| earlier.operation == record.operation);
            (record.operation.clone(), (record.count - same.map_or(0.0, |same| same.count)).max(0.0))
        };
        Own { export: session.export.clone(), requests: session.operations.iter().map(since).collect() }
    };
    now.iter().enumerate().map(session).collect()
}

/// The rate to which the export at a side is held, if it is.
fn held(
    (first, last): (&Look, &Look),
    (servers, [before, now]): (&[String], [&[Told]; 2]),
    side: usize,
) -> Option<Held> {
    let server = last.told.servers[side].as_ref()?;
    let at = servers.iter().position(|known| known == server)?;
    let kind = ["Read", "Write"][side];
    own(first, last, server).iter().find_map(|own| {
        let requests = own.requests.iter().filter(|(name, _)| name == kind).map(|(_, count)| count).sum();
        servers::held((&before[at], &now[at]), &own.export, requests)
    })
}

fn names(look: &Look) -> Names {
    let told = &look.told;
    let source = told.sources.first().cloned().unwrap_or_default();
    let places = [source, told.destination.clone()];
    let devices = places.each_ref().map(|place| crate::host::device_of(Path::new(place)));
    Names { places, servers: told.servers.clone(), devices, ..Names::default() }
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
    let moved = now.told.bytes.saturating_sub(before.told.bytes) as f64;
    let names = now.told.names.saturating_sub(before.told.names) as f64;
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
                Some(split) => {
                    // Files of so few bytes are names, also where many go in one request.
                    let is_small = moved < SMALL * counted.station.completions().max(names);
                    let stage = if is_small && side == 1 { Stage::Metadata } else { stage };
                    let of = (workers, counted.seconds);
                    split.put(&mut window, (stage, side), of, &counted.station, busy_carriers);
                }
            },
        }
    }
    window.rails = rails(&all_ways(before), &all_ways(now), seconds);
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
    let mut station = Station { kind: "own".to_owned(), ..Station::default() };
    (station.time[1], station.done[1]) = (record.seconds, record.seconds / LENGTH);
    (station.spent, station.under_way) = (record.seconds, record.seconds);
    station
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
