//! A mount of this machine, from what it tells, and from what its servers do.

use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_metrics::activity::Station;
use aqueduct_metrics::status::{ActivityStatus, BackingStatus, ClientStatus, MountStatus, WayStatus};
use aqueduct_node::mounts::{self, Mount};

use super::own::{self, Mine, Own};
use super::servers::{self, Told};
use super::split::{Split, backlog, by_state, least_on_way, lose, rails, scaled, share};
use super::watched::{Held, LOOK_INTERVAL, Names, Question, Watched, machine, wait};
use crate::host::Look as Host;
use crate::passive::{Shape, StageCounts, State, Window};
use crate::verdict::Stage;

/// A mount that says nothing for so long does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a mount told, and when.
struct Look {
    at: Instant,
    told: MountStatus,
    host: Host,
}

fn look(mount: &Mount) -> Result<Look, String> {
    let told = mounts::ask(slice::from_ref(mount), PATIENCE).pop().unwrap_or_else(|| Err("nothing".to_owned()))?;
    Ok(Look { at: Instant::now(), told, host: Host::now() })
}

fn client(told: &MountStatus) -> Option<&ClientStatus> {
    match &told.backing {
        BackingStatus::Client(client) => Some(client),
        BackingStatus::Local(_) | BackingStatus::Gone {} => None,
    }
}

/// Watches it until `end`.
pub(super) fn watch(mount: &Mount, question: &Question, end: Instant) -> Watched {
    let place = mount.target.display().to_string();
    let names = Names { places: [place.clone(), place.clone()], is_mount: true, ..Names::default() };
    let nothing = |silent: Vec<(String, String)>| Watched {
        windows: Vec::new(),
        names: Names { silent, ..names.clone() },
        bytes: 0.0,
        has_ended: false,
        wants_more: false,
    };
    let first = match look(mount) {
        Ok(first) => first,
        Err(why) => return nothing(vec![(place.clone(), why)]),
    };
    let servers = servers_of(&first);
    let (of, reach) = (servers.clone(), question.reach.clone());
    let asked = thread::spawn(move || servers::ask(&of, &reach));
    let (mut looks, mut silent) = (vec![first], Vec::new());
    let mut next = Instant::now();
    loop {
        next = (next + LOOK_INTERVAL).max(Instant::now()); // a look may take longer
        let is_over = !wait(next, end);
        match look(mount) {
            Ok(seen) => looks.push(seen),
            Err(why) => {
                silent.push((place.clone(), why));
                break;
            }
        }
        if is_over {
            break;
        }
    }
    let unknown = || servers.iter().map(|_| Err("it cannot be asked".to_owned())).collect();
    let at_first: Vec<Told> = asked.join().unwrap_or_else(|_| unknown());
    let at_last = match at_first.iter().all(Result::is_ok) {
        true => servers::ask(&servers, &question.reach),
        false => at_first.clone(),
    };
    let told = servers.iter().zip(&at_last);
    silent.extend(told.filter_map(|(server, told)| Some((server.clone(), told.as_ref().err()?.clone()))));
    let mine: Vec<Mine> = servers
        .iter()
        .zip(at_first.iter().zip(&at_last))
        .map(|(server, told)| own::mine((server, &machine()), &[own(&looks, server)], told, is_class))
        .collect();
    let splits = splits(&looks, &servers, ([&at_first, &at_last], &mine));
    let ended = ended_waits(&looks[0], &looks[looks.len() - 1]);
    let window = |pair: &[Look]| between(&pair[0], &pair[1], &splits, &ended);
    let mut windows: Vec<Window> = looks.windows(2).map(window).collect();
    if let Some(window) = windows.last_mut() {
        let (before, now) = own::ways(&mine);
        rails(&before, &now, end.duration_since(looks[0].at).as_secs_f64())
            .into_iter()
            .for_each(|rail| window.put_rail(rail));
    }
    let moved = |look: &Look| client(&look.told).map_or(0, |client| client.bytes_read + client.bytes_written);
    let bytes = moved(&looks[looks.len() - 1]).saturating_sub(moved(&looks[0])) as f64;
    let server = match servers.len() {
        1 => Some(servers[0].clone()),
        _ => None,
    };
    let place = client(&looks[0].told).map_or(place, |client| format!("{}:{}", client.server, client.export));
    let held = held(&looks, (&servers, [&at_first, &at_last]));
    let names = Names { places: [place.clone(), place], servers: [server.clone(), server], silent, held, ..names };
    Watched { windows, names, bytes, has_ended: false, wants_more: false }
}

/// Those that it uses.
fn servers_of(look: &Look) -> Vec<String> {
    let Some(client) = client(&look.told) else { return Vec::new() };
    let mut servers: Vec<String> = client.activity.iter().map(|of| of.station.target.clone()).collect();
    servers.push(client.server.clone());
    servers.sort();
    servers.dedup();
    servers
}

/// By class of requests and server.
type Splits = Vec<(String, String, Split)>;

fn splits(looks: &[Look], servers: &[String], ([before, now], mine): ([&[Told]; 2], &[Mine])) -> Splits {
    let (first, last) = (&looks[0], &looks[looks.len() - 1]);
    let own = [0, 1].map(|at: usize| (last.told.processor_seconds[at] - first.told.processor_seconds[at]).max(0.0));
    let split = |of: &ActivityStatus| {
        let station = since(first, of);
        let at = servers.iter().position(|server| *server == of.station.target);
        let told = at.map(|at| (&before[at], &now[at]));
        let ended = [station.completions(), station.spent];
        let mine = at.map(|at| &mine[at]);
        let scale = mine.map_or(1.0, |mine| mine.scale);
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        let split = Split::of(ended, ended, told, |name| is_class(name, &of.class), (scale, seconds));
        let ways = |look: &Look| ways_to(look, &of.station.target);
        let split = match (of.class.as_str(), mine) {
            ("read", Some(mine)) => split.with_way_back(mine.busy_back(), seconds),
            ("write", _) => split.with_backlog(&of.station.target, backlog(&ways(first), &ways(last))),
            _ => split,
        };
        let least = least_on_way(&ways(last), &station);
        let loses = lose(&ways(first), &ways(last));
        let split = split.with_starved(told, seconds, (loses, least), own).over(&ways(last));
        (of.class.clone(), of.station.target.clone(), split)
    };
    client(&last.told).map(|client| client.activity.iter().map(split).collect()).unwrap_or_default()
}

/// What the mount has asked of a server.
fn own(looks: &[Look], server: &str) -> Own {
    let (first, last) = (&looks[0], &looks[looks.len() - 1]);
    let Some(client) = client(&last.told) else { return Own::default() };
    let at_server = client.activity.iter().filter(|of| of.station.target == server);
    let requests = at_server.map(|of| (of.class.clone(), since(first, of).completions())).collect();
    // What is attached at the servers of data of a volume is not told.
    let export = if client.server == server { client.export.clone() } else { String::new() };
    Own { export, requests }
}

/// The rate to which the export is held, for reading and for writing, if it is.
fn held(looks: &[Look], (servers, [before, now]): (&[String], [&[Told]; 2])) -> [Option<Held>; 2] {
    let of = || {
        let server = &client(&looks[0].told)?.server;
        let at = servers.iter().position(|known| known == server)?;
        let own = own(looks, server);
        let is_data = |kind: &str| matches!(kind, "read" | "write");
        let requests = own.requests.iter().filter(|(kind, _)| is_data(kind)).map(|(_, count)| count).sum();
        servers::held((&before[at], &now[at]), &own.export, requests)
    };
    [of(); 2]
}

/// The ways to a server.
fn ways_to(look: &Look, server: &str) -> Vec<WayStatus> {
    let is_to = |way: &&WayStatus| way.path.split(' ').next() == Some(server);
    client(&look.told).map(|client| client.ways.iter().filter(is_to).cloned().collect()).unwrap_or_default()
}

fn is_class(name: &str, class: &str) -> bool {
    class_of(name) == class
}

/// The class that a kind of requests belongs to.
fn class_of(name: &str) -> &'static str {
    match name {
        "Read" => "read",
        "Write" => "write",
        "Sync" | "SyncDirectory" | "Commit" => "sync",
        "SetLock" => "locks",
        "Attach" | "Status" | "Beat" | "Transfer" | "Right" => "",
        _ => "names",
    }
}

fn since(before: &Look, of: &ActivityStatus) -> Station {
    let earlier = client(&before.told).map(|client| &client.activity[..]).unwrap_or_default();
    let same = |other: &&ActivityStatus| other.class == of.class && other.station.target == of.station.target;
    earlier.iter().find(same).map_or_else(|| of.station.clone(), |earlier| of.station.since(&earlier.station))
}

fn place_of(class: &str) -> (Stage, usize) {
    match class {
        "read" => (Stage::Read, 0),
        "write" => (Stage::Write, 1),
        "sync" => (Stage::Flush, 1),
        _ => (Stage::Metadata, 1),
    }
}

/// Of the time that programs waited for locks of each server, the part of those waits that ended: a
/// wait is longer than the time between two looks, and only its end tells that it was no waiter who
/// is there for ever, as of a service.
fn ended_waits(first: &Look, last: &Look) -> Vec<(String, f64)> {
    let activity = client(&last.told).map(|client| &client.activity[..]).unwrap_or_default();
    let locks = activity.iter().filter(|of| of.class == "locks").map(|of| since(first, of));
    locks
        .map(|station| (station.target.clone(), share(station.spent.min(station.under_way), station.under_way)))
        .collect()
}

/// How long programs waited for locks that they got, and in how much of the time any did.
fn waited(station: &Station, ended: f64, seconds: f64) -> (f64, f64) {
    let waited = station.under_way * ended;
    (waited, share(station.busy().min(waited), seconds))
}

/// What was counted between two looks.
fn between(before: &Look, now: &Look, splits: &Splits, ended: &[(String, f64)]) -> Window {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let mut window = Window {
        seconds,
        shape: Shape::Pool,
        processors: [now.host.processors_since(&before.host); 2],
        ..Window::default()
    };
    let kernel = now.told.kernel.since(&before.told.kernel);
    let (mut at_servers, mut in_locks) = (0.0, 0.0f64);
    for of in client(&now.told).map(|client| &client.activity[..]).unwrap_or_default() {
        let station = Station { kind: of.class.clone(), ..since(before, of) };
        if of.class == "locks" {
            // A lock that nobody gives back holds a program up, and no stage could be faster.
            let ended = ended.iter().find(|(target, _)| *target == station.target).map_or(0.0, |(_, ended)| *ended);
            let (waited, of_time) = waited(&station, ended, seconds);
            in_locks = of_time.max(in_locks);
            let states = by_state(waited, State::Io);
            window.put(StageCounts {
                stage: Stage::Waiting,
                side: 1,
                workers: seconds,
                states,
                stations: vec![station],
            });
            continue; // the kernel's are counted without them
        }
        let split = splits.iter().find(|(class, server, _)| *class == of.class && *server == of.station.target);
        at_servers += station.under_way;
        if let Some((_, _, split)) = split {
            let of_all = (seconds, station.under_way);
            split.put(&mut window, place_of(&of.class), of_all, &station, 0.0);
        }
    }
    // What the kernel waits for and no server is asked for meanwhile.
    let own = (kernel.under_way - at_servers).max(0.0);
    let used = |at: usize| (now.told.processor_seconds[at] - before.told.processor_seconds[at]).max(0.0);
    let computes = (used(0) + used(1)).min(own);
    let mut states = by_state(computes, State::Cpu);
    states[State::Io as usize] = own - computes;
    let station = scaled(&kernel, share(own, kernel.under_way));
    window.put(StageCounts { stage: Stage::Send, side: 0, workers: seconds, states, stations: vec![station] });
    // In so much of the time nothing was asked for.
    let idle = (share(kernel.time[0], seconds) - in_locks).clamp(0.0, 0.999);
    let busy: f64 = window.stages.iter().map(|counts| counts.busy() + counts.of(State::Window)).sum();
    window.idle = if busy > 0.0 { busy * idle / (1.0 - idle) } else { seconds * idle };
    let ways = |look: &Look| client(&look.told).map(|client| client.ways.clone()).unwrap_or_default();
    window.rails = rails(&ways(before), &ways(now), seconds);
    window
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One waiter in each of so many seconds, of which waits of so many ended.
    fn locks(under_way: f64, spent: f64, busy: f64) -> Station {
        let mut station = Station { under_way, spent, ..Station::default() };
        station.time[1] = busy;
        station
    }

    #[test]
    fn a_wait_that_is_longer_than_a_look_counts_for_all_of_its_time() {
        // Five seconds, of which the last look alone sees the end.
        let ended = share(5.0, 5.0);
        for spent in [0.0, 0.0, 0.0, 0.0, 5.0] {
            assert_eq!(waited(&locks(1.0, spent, 1.0), ended, 1.0), (1.0, 1.0));
        }
        // Somebody waits for ever, and another for a tenth of each second.
        let ended = share(0.5, 5.5);
        let (both, of_time) = waited(&locks(1.1, 0.1, 1.0), ended, 1.0);
        assert!((both - 0.1).abs() < 1e-9 && (of_time - 0.1).abs() < 1e-9, "{both} {of_time}");
        assert_eq!(waited(&locks(1.0, 0.0, 1.0), 0.0, 1.0), (0.0, 0.0));
    }
}
