//! Servers by themselves, one or all of a volume: what is under way at each, for how long, and
//! which of them is slower than its peers, from what they tell of requests of whomever.

use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::volume_map;
use aqueduct_metrics::activity::{Station, level};
use aqueduct_node::{Failure, Reach};

use super::servers::{self, Told};
use super::split::{by_state, share};
use super::watched::{LOOK_INTERVAL, Names, Question, Watched, wait};
use crate::Verdict;
use crate::host::lacks_processors;
use crate::passive::{Shape, StageCounts, State, Window, slope, slow};
use crate::verdict::{Kind, Stage};

/// A server that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Fewer requests at a time than this, of a server in the mean, are next to none.
const IDLE: f64 = 0.05;

/// By this power of the number under way, or less, the rate of a target grows that is saturated.
const SLOPE_SATURATED: f64 = 0.5;

/// How sure a verdict is: of a server that is slower than its peers in all parts of the time; of
/// others, which was not fitted on anything yet.
const SURE_OF_TARGET: f64 = 0.85;
const SURE: f64 = 0.75;

/// The servers of a volume, as the first of these addresses that answers tells them.
pub fn of_volume(volume: &str, server: &str, reach: &Reach) -> Result<Vec<String>, Failure> {
    let map = volume_map(server, volume, reach.clone(), PATIENCE)
        .map_err(|error| Failure::new(format!("cannot ask {server} for the volume {volume}"), &error, error.hint()))?;
    let mut servers: Vec<String> = Vec::new();
    let data = map.data.iter().map(|server| server.addresses.join(","));
    for server in [map.names.join(",")].into_iter().chain(data) {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    Ok(servers)
}

/// The class that a kind of requests belongs to; `None`: what only waits for others, or asks.
fn class_of(name: &str) -> Option<(Stage, usize)> {
    match name {
        "Read" | "Checksum" => Some((Stage::Read, 0)),
        "Write" => Some((Stage::Write, 1)),
        "Sync" | "SyncDirectory" | "Commit" => Some((Stage::Flush, 1)),
        "SetLock" | "Attach" | "Status" | "Beat" | "Transfer" | "Right" | "Map" => None,
        _ => Some((Stage::Metadata, 1)),
    }
}

const STAGES: [(Stage, usize); 4] = [(Stage::Read, 0), (Stage::Write, 1), (Stage::Flush, 1), (Stage::Metadata, 1)];

/// Watches them until `end`.
pub(super) fn watch(place: &str, of: &[String], question: &Question, end: Instant) -> Watched {
    let ask = || (Instant::now(), servers::ask(of, &question.reach));
    let mut looks = vec![ask()];
    let mut next = Instant::now() + LOOK_INTERVAL;
    while wait(next, end) {
        next = (next + LOOK_INTERVAL).max(Instant::now()); // a look may take longer
        looks.push(ask());
        // Who is silent is not waited for again and again.
        if looks.last().is_some_and(|look| look.1.iter().all(Result::is_err)) {
            break;
        }
    }
    if looks.len() == 1 {
        thread::sleep(end.saturating_duration_since(Instant::now()));
        looks.push(ask());
    }
    let windows = looks.windows(2).map(|pair| between(of, &pair[0], &pair[1])).collect();
    let silent = of.iter().zip(&looks[looks.len() - 1].1);
    let silent = silent.filter_map(|(server, told)| Some((server.clone(), told.as_ref().err()?.clone()))).collect();
    let places = [place.to_owned(), place.to_owned()];
    let bytes = moved(&looks[0].1, &looks[looks.len() - 1].1);
    let names = Names { places, silent, ..Names::default() };
    Watched { windows, names, bytes, has_ended: false, wants_more: false }
}

/// Bytes that sessions have moved between two looks; those that ended meanwhile are not known.
fn moved(before: &[Told], now: &[Told]) -> f64 {
    let sum = |told: &[Told]| {
        let sessions = told.iter().flatten().flat_map(|status| &status.sessions);
        sessions.map(|session| session.bytes_read + session.bytes_written).sum::<u64>()
    };
    sum(now).saturating_sub(sum(before)) as f64
}

/// What was counted between two looks: a station for each server, as if what was under way in the
/// mean had been so for all of the time in which there was anything.
fn between(of: &[String], (since, before): &(Instant, Vec<Told>), (until, now): &(Instant, Vec<Told>)) -> Window {
    let seconds = until.duration_since(*since).as_secs_f64();
    let mut window = Window { seconds, shape: Shape::Pool, ..Window::default() };
    for (at, server) in of.iter().enumerate() {
        let (Ok(before), Ok(now)) = (&before[at], &now[at]) else { continue };
        let [ran, waited] = [0, 1].map(|at: usize| (now.processor_seconds[at] - before.processor_seconds[at]).max(0.0));
        window.put(processors(server, [ran, waited]));
        for (stage, side) in STAGES {
            let [count, spent] = servers::served(before, now, |name| class_of(name) == Some((stage, side)));
            if count == 0.0 {
                continue;
            }
            let mut station = Station { target: server.clone(), ..Station::default() };
            let at_a_time = spent / seconds.max(1e-9);
            let class = level((at_a_time.round() as usize).max(1));
            (station.time[class], station.done[class]) = (seconds * at_a_time.min(1.0), count);
            (station.spent, station.under_way) = (spent, spent);
            let states = by_state(spent, if stage == Stage::Metadata { State::Metadata } else { State::Io });
            window.put(StageCounts { stage, side, workers: seconds, states, stations: vec![station] });
        }
    }
    window
}

/// What a server's process had of processors, and waited for them, in a place of its own: it is
/// not known for which requests.
fn processors(server: &str, [ran, waited]: [f64; 2]) -> StageCounts {
    let mut states = by_state(ran, State::Cpu);
    states[State::Runnable as usize] = waited;
    let station = Station { target: server.to_owned(), spent: ran, under_way: ran + waited, ..Station::default() };
    StageCounts { stage: Stage::Send, side: 0, workers: 0.0, states, stations: vec![station] }
}

/// The server that has too little of processors, with what it had and waited for.
fn starved(whole: &Window) -> Option<(String, [f64; 2])> {
    let all = &whole.stages.iter().find(|counts| counts.stage == Stage::Send)?.stations;
    let of = |station: &Station| [station.spent, station.under_way - station.spent];
    let lacks = all.iter().filter(|station| lacks_processors(of(station), whole.seconds));
    let most = lacks.max_by(|one, two| one.under_way.total_cmp(&two.under_way))?;
    Some((most.target.clone(), of(most).map(|seconds| seconds / whole.seconds)))
}

/// Says what limits, of all that was counted and of its parts, one after the other: pure.
pub(super) fn judge(whole: &Window, parts: &[Window], servers: usize, names: &Names) -> Verdict {
    let requests = || whole.stages.iter().filter(|counts| counts.stage != Stage::Send);
    let under_way = |counts: &StageCounts| counts.stations.iter().map(|station| station.under_way).sum::<f64>();
    let all: f64 = requests().map(under_way).sum::<f64>() / whole.seconds.max(1e-9);
    let most = requests().max_by(|one, two| under_way(one).total_cmp(&under_way(two)));
    let place = &names.places[0];
    let verdict = match (names.silent.first(), most) {
        (Some((server, _)), _) => Verdict { target: server.clone(), ..Verdict::between(&[], 0.6) }
            .advising("see whether it works at all: a shell there, 'dmesg', 'aqueduct net path'"),
        (None, Some(most)) if all >= IDLE * servers as f64 => of_busy(whole, parts, most, place),
        _ => Verdict::nothing(SURE).because("next to nothing is asked of it"),
    };
    let verdict = names
        .silent
        .iter()
        .fold(verdict, |verdict, (server, why)| verdict.because(format!("{server} does not tell what it does: {why}")));
    evidence(whole, verdict)
}

fn of_busy(whole: &Window, parts: &[Window], most: &StageCounts, place: &str) -> Verdict {
    if let Some((server, [ran, waited])) = starved(whole) {
        let told = format!("{server} has {ran:.1} of a processor, and its threads wait for one {waited:.1} s a second");
        return Verdict::of((most.stage, Kind::Cpu), server, SURE)
            .because(told)
            .advising("use more or faster processors there, or fewer other programs on them");
    }
    if let Some((server, times)) = slow(whole, parts, most.stage, most.side) {
        let told = format!("{server} takes {times:.1} times as long as its peers");
        let advice = format!("look at the disks of {server} and at who else uses them");
        return Verdict::of((most.stage, Kind::Saturated), server, SURE_OF_TARGET).because(told).advising(advice);
    }
    if most.stage == Stage::Metadata {
        return Verdict::of((Stage::Metadata, Kind::Metadata), place, SURE)
            .because("names and attributes take most of the time")
            .advising("put small files together, as with tar");
    }
    let busiest = most.stations.iter().max_by(|one, two| one.under_way.total_cmp(&two.under_way));
    match busiest.and_then(|station| slope(station, whole.seconds)) {
        Some(grows) => {
            let kind = if grows < SLOPE_SATURATED { Kind::Saturated } else { Kind::Latency };
            let told = format!("its rate grows by the power {grows:.2} of what is under way (0: saturated)");
            Verdict::of((most.stage, kind), place, SURE).because(told)
        }
        None => Verdict::between(&[most.stage], 0.6)
            .because("about as much was under way all the time, so that it is not known what more would bring"),
    }
}

/// What goes on at each server, a sentence each, the busiest first.
fn evidence(whole: &Window, verdict: Verdict) -> Verdict {
    let seconds = whole.seconds.max(1e-9);
    let mut told: Vec<(f64, String)> = Vec::new();
    for counts in whole.stages.iter().filter(|counts| counts.stage != Stage::Send) {
        for station in &counts.stations {
            let (count, each) = (station.completions(), station.spent / station.completions().max(1.0));
            let sentence = format!(
                "{}, {}: {:.1} under way at a time, busy for {:.0} % of the time, {:.0} a second, {:.2} ms each",
                station.target,
                counts.stage,
                station.under_way / seconds,
                share(station.busy(), seconds) * 100.0,
                count / seconds,
                each * 1e3
            );
            told.push((station.under_way, sentence));
        }
    }
    told.sort_by(|one, two| two.0.total_cmp(&one.0));
    told.into_iter().take(16).fold(verdict, |verdict, (_, sentence)| verdict.because(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Cause;

    /// A second in which each of several servers had so many requests under way, of so many
    /// seconds each.
    fn second(servers: &[(f64, f64)], at: usize) -> Window {
        let mut window = Window { seconds: 1.0, ..Window::default() };
        for (number, (under_way, each)) in servers.iter().enumerate() {
            // A little more and less, so that it is no constant.
            let under_way = under_way * (1.0 + 0.1 * ((at + number) % 3) as f64);
            let mut station = Station { target: format!("s{number}:7170"), ..Station::default() };
            let class = level((under_way.round() as usize).max(1));
            (station.time[class], station.done[class]) = (under_way.min(1.0), under_way / each);
            (station.spent, station.under_way) = (under_way, under_way);
            let states = by_state(under_way, State::Io);
            window.put(StageCounts { stage: Stage::Write, side: 1, workers: 1.0, states, stations: vec![station] });
        }
        window
    }

    fn said(servers: &[(f64, f64)], silent: &[&str]) -> Verdict {
        let parts: Vec<Window> = (0..6).map(|at| second(servers, at)).collect();
        let mut whole = Window::default();
        parts.iter().for_each(|part| whole.add(part));
        let silent = silent.iter().map(|server| ((*server).to_owned(), "no answer".to_owned())).collect();
        let places = ["volume".to_owned(), "volume".to_owned()];
        judge(&whole, &parts, servers.len(), &Names { places, silent, ..Names::default() })
    }

    #[test]
    fn one_slow_server_of_eight_is_named() {
        let mut servers = [(0.4, 0.01); 8];
        // With stripes as many end at each.
        servers[5] = (6.0, 0.15);
        let verdict = said(&servers, &[]);
        assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Write, "s5:7170"), "{verdict:?}");
        assert_ne!(said(&[(0.4, 0.01); 8], &[]).target, "s5:7170", "none is slower than its peers");
    }

    #[test]
    fn servers_of_which_nothing_is_asked_limit_nothing() {
        assert_eq!(said(&[(0.01, 0.01); 4], &[]).verdict, Cause::None);
    }

    #[test]
    fn one_that_is_silent_is_told() {
        let verdict = said(&[(0.4, 0.01); 4], &["s3:7170"]);
        assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Undetermined, "s3:7170"));
    }

    #[test]
    fn a_server_without_processors_is_named() {
        let mut parts: Vec<Window> = (0..6).map(|at| second(&[(3.0, 0.01); 2], at)).collect();
        parts.iter_mut().for_each(|part| part.put(processors("s1:7170", [0.1, 1.5])));
        let mut whole = Window::default();
        parts.iter().for_each(|part| whole.add(part));
        let verdict = judge(&whole, &parts, 2, &Names::default());
        assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Cpu, "s1:7170"), "{verdict:?}");
    }
}
