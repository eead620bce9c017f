//! From what the legs did to what limits: pure.

use aqueduct_transfer::STEP;

use super::leg::{Leg, State};
use super::measured::{LegReport, Measured, ProbeReport, Sample, Setting, Side, SweptReport};
use crate::host::lacks_processors;
use crate::verdict::{Kind, Stage, TIE, Verdict};

/// With twice as much under way a stage that is not saturated moves more than this times as much.
const MORE_HELPS: f64 = 1.25;

/// What a part carries alone that has room to spare, and what one carries that has none, in parts
/// of what a leg moves over both.
const HAS_ROOM: f64 = 1.5;
const HAS_NONE: f64 = 1.2;

/// Below this share of the time of requests the server is not where they are.
const AT_SERVER: f64 = 0.5;

/// From this share on files are opened and made more than read and written.
const METADATA: f64 = 0.5;

/// A way on which packets take so many seconds is far: less is a machine room.
const FAR: f64 = 1e-3;

/// On a way that is full, packets take so many times as long as on one that is idle.
const QUEUES: f64 = 1.5;

/// A share of segments that are sent again from which on a wire loses some.
const LOSES: f64 = 1e-3;

/// The share of processors from which on there is none left.
const BUSY: f64 = 0.9;

/// Of the processors: what this process wants from which on it is what uses them.
const OWN: f64 = 0.5;

/// Of the processors: what this process has to have of them to be what holds up a way that carries
/// no more alone.
const HAD: f64 = 0.25;

/// The most that is stated: what was not measured may matter.
const CONFIDENCE_MAX: f64 = 0.98;

/// With a side slowed by a quarter, what the whole does in parts of what it did: what limits takes
/// it to 0.75 or 0.8, what does not leaves it at 1. Between these two it is not told.
const FOLLOWS: f64 = 0.88;
const FOLLOWS_NOT: f64 = 0.94;

/// The fewest pairs of slices that say whether the whole follows.
const PAIRS_MIN: usize = 3;

/// What a probe leaves of the doubt, where it says the same as the legs.
const DOUBT_LEFT: f64 = 0.4;

/// A whole that is less than this part of what its parts let expect shares something that these
/// have alone.
const SHARED: f64 = 0.88;

/// A setting is advised that moves more than this times as much.
const SETTING_HELPS: f64 = 1.15;

/// A part of the pipeline that could limit: its rate is the greatest that it would let through.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    stage: Stage,
    /// 0: at the source, 1: at the target.
    side: usize,
    rate: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

fn of(measured: &Measured, leg: Leg, threads: usize) -> impl Iterator<Item = &Sample> {
    measured.samples.iter().filter(move |sample| sample.leg == leg && sample.threads == threads)
}

/// The median rate of a leg with so many threads, in bytes per second; 0: it never ran.
pub(crate) fn rate(measured: &Measured, leg: Leg, threads: usize) -> f64 {
    median(of(measured, leg, threads).map(|sample| sample.slice.rate()).collect())
}

/// What the parts let expect of the whole, and what it was: each thread reads and writes in turn.
pub(crate) fn predicted(measured: &Measured) -> (f64, f64) {
    let [read, write, whole] = [Leg::Read, Leg::Write, Leg::All].map(|leg| rate(measured, leg, measured.threads));
    (read.min(write), whole)
}

/// What a leg is called, by what it goes over.
pub(crate) fn called(measured: &Measured, leg: Leg) -> &'static str {
    let is_far = [0, 1].map(|side: usize| measured.sides[side].server.is_some());
    match leg {
        Leg::Read if is_far[0] => "read+network",
        Leg::Read | Leg::There => "read",
        Leg::From => "network from source",
        Leg::To => "network to destination",
        Leg::Write if is_far[1] => "network+write",
        Leg::Write => "write",
        Leg::All => "all",
    }
}

/// The figures of all legs.
pub(crate) fn legs(measured: &Measured) -> Vec<LegReport> {
    const ALL: [Leg; 6] = [Leg::There, Leg::From, Leg::Read, Leg::To, Leg::Write, Leg::All];
    let report = |leg: Leg, threads: usize| {
        let rates: Vec<f64> = of(measured, leg, threads).map(|sample| sample.slice.rate().round()).collect();
        let more = if threads > measured.threads { " more" } else { "" };
        let leg = format!("{}{more}", called(measured, leg));
        (!rates.is_empty()).then(|| LegReport { leg, rate: median(rates.clone()), rates })
    };
    let usual = ALL.into_iter().filter_map(|leg| report(leg, measured.threads));
    usual.chain([Leg::Read, Leg::Write].into_iter().filter_map(|leg| report(leg, 2 * measured.threads))).collect()
}

/// The figures of all settings, in their order.
pub(crate) fn swept(measured: &Measured) -> Vec<SweptReport> {
    let mut settings: Vec<(Setting, u64)> = Vec::new();
    for swept in &measured.swept {
        if !settings.contains(&(swept.setting, swept.value)) {
            settings.push((swept.setting, swept.value));
        }
    }
    settings.sort_by_key(|(setting, value)| (*setting as u8, *value));
    let report = |(setting, value): (Setting, u64)| {
        let same = measured.swept.iter().filter(|swept| (swept.setting, swept.value) == (setting, value));
        let rates: Vec<f64> = same.map(|swept| swept.rate.round()).collect();
        SweptReport { setting, value, rate: median(rates.clone()), rates }
    };
    settings.into_iter().map(report).collect()
}

/// What came of slowing each side.
pub(crate) fn probes(measured: &Measured) -> Vec<ProbeReport> {
    let report = |side: usize| {
        let of_side: Vec<_> = measured.probes.iter().filter(|probe| probe.side == side).collect();
        let first = of_side.first()?;
        let ratios = of_side.iter().map(|probe| probe.rates[1] / probe.rates[0].max(1.0));
        let followed = (median(ratios.collect()) * 1000.0).round() / 1000.0;
        let stage = [Stage::Read, Stage::Write][side].to_string();
        Some(ProbeReport { stage, how: first.how, slowed: first.slowed, followed, pairs: of_side.len() })
    };
    [0, 1].into_iter().filter_map(report).collect()
}

/// Whether the whole followed when a side was slowed; `None`: that was not tried often enough, or
/// what came of it lies between.
fn follows(measured: &Measured, side: usize) -> Option<bool> {
    let stage = [Stage::Read, Stage::Write][side].to_string();
    let probe = probes(measured).into_iter().find(|probe| probe.stage == stage && probe.pairs >= PAIRS_MIN)?;
    match probe.followed {
        followed if followed < FOLLOWS => Some(true),
        followed if followed > FOLLOWS_NOT => Some(false),
        _ => None,
    }
}

/// Whether more under way would only wait longer at a side, as far as is known.
pub(crate) fn is_saturated(measured: &Measured, side: usize) -> bool {
    parts_of(measured, side).first().is_none_or(|part| kind_of(measured, part) != Kind::Latency)
}

fn mean(sample: &Sample, states: &[State]) -> f64 {
    states.iter().map(|state| sample.slice.states[*state as usize]).sum()
}

const OF_SIDE: [&[State]; 2] = [&[State::Open, State::Read], &[State::Create, State::Write, State::Flush]];

/// The share of a leg's time at a side that its server had the requests; 1 where there is none.
fn at_server(measured: &Measured, side: usize) -> f64 {
    let leg = [Leg::Read, Leg::Write][side];
    if measured.sides[side].server.is_none() {
        return 1.0;
    }
    let share = |sample: &Sample| Some(sample.served[side]? / mean(sample, OF_SIDE[side]).max(1e-9));
    let shares: Vec<f64> = of(measured, leg, measured.threads).filter_map(share).collect();
    // A server that does not tell is believed to be no slower than the way to it.
    if shares.is_empty() { AT_SERVER } else { median(shares).clamp(0.0, 1.0) }
}

/// The share of a leg's time in names and attributes.
fn in_names(measured: &Measured, side: usize) -> f64 {
    let leg = [Leg::Read, Leg::Write][side];
    let names = [State::Open, State::Create][side];
    let share = |sample: &Sample| mean(sample, &[names]) / mean(sample, OF_SIDE[side]).max(1e-9);
    median(of(measured, leg, measured.threads).map(share).collect())
}

/// What the source's server reads alone, and what the way from it carries alone; 0: not measured.
fn alone(measured: &Measured) -> [f64; 2] {
    [Leg::There, Leg::From].map(|leg| rate(measured, leg, measured.threads))
}

/// Whether the way from the source has no room to spare, and reading there has (`Some(true)`), or
/// the other way round, by what each carries alone. A server that waits until the way takes its
/// answers has the requests meanwhile, so that the time that it has them tells less than this.
fn way_is_full(measured: &Measured) -> Option<bool> {
    // Neither opens as many files as a copy does.
    if in_names(measured, 0) > METADATA {
        return None;
    }
    let whole = rate(measured, Leg::Read, measured.threads);
    let has_room = |rate: f64| rate > HAS_ROOM * whole;
    let has_none = |rate: f64| rate > 0.0 && rate < HAS_NONE * whole;
    match alone(measured) {
        [there, way] if has_room(there) && has_none(way) => Some(true),
        [there, way] if has_none(there) && has_room(way) => Some(false),
        _ => None,
    }
}

/// The parts of one side: where most of the time is lets through what was measured, and what has
/// less of the time so much more.
fn parts_of(measured: &Measured, side: usize) -> Vec<Part> {
    let leg = [Leg::Read, Leg::Write][side];
    let rate = rate(measured, leg, measured.threads);
    let (there, names) = (at_server(measured, side), in_names(measured, side));
    let own = if names > METADATA { Stage::Metadata } else { [Stage::Read, Stage::Write][side] };
    // What was measured of a part alone is the least that it lets through: a server that is held
    // to a rate is so also with what it has in memory.
    let [of_own, of_way] = match side {
        0 => alone(measured),
        _ => [0.0, self::rate(measured, Leg::To, measured.threads)],
    };
    let told = if side == 0 { way_is_full(measured) } else { None };
    let (main, other) = if let Some(is_full) = told {
        let parts = (Part { stage: Stage::Network, side, rate }, Part { stage: own, side, rate: of_own });
        if is_full {
            parts
        } else {
            (Part { stage: own, ..parts.0 }, Part { stage: Stage::Network, side, rate: of_way })
        }
    } else if there >= AT_SERVER {
        let rate_of_way = (rate * there / (1.0 - there).max(1e-3)).max(of_way);
        (Part { stage: own, side, rate }, Part { stage: Stage::Network, side, rate: rate_of_way })
    } else {
        let rate_of_own = (rate * (1.0 - there) / there.max(1e-3)).max(of_own);
        (Part { stage: Stage::Network, side, rate }, Part { stage: own, side, rate: rate_of_own })
    };
    if measured.sides[side].server.is_some() { vec![main, other] } else { vec![main] }
}

/// How many times as much a leg moved with twice as much under way.
fn with_more(measured: &Measured, leg: Leg) -> Option<f64> {
    let more = rate(measured, leg, 2 * measured.threads);
    // Of the same minutes: the last slices of either.
    let last: Vec<f64> = of(measured, leg, measured.threads).map(|sample| sample.slice.rate()).collect();
    let last = median(last[last.len().saturating_sub(3)..].to_vec());
    (more > 0.0 && last > 0.0).then(|| more / last)
}

/// How many times as long a round trip takes while the leg of a side runs.
fn queues(measured: &Measured, side: usize) -> Option<(f64, f64)> {
    let least = measured.sides[side].way?.median;
    let leg = [Leg::Read, Leg::Write][side];
    let loaded: Vec<f64> = of(measured, leg, measured.threads).filter_map(|sample| sample.round_trips[side]).collect();
    (!loaded.is_empty()).then(|| (least, median(loaded)))
}

fn kind_of(measured: &Measured, part: &Part) -> Kind {
    let leg = [Leg::Read, Leg::Write][part.side];
    let helps = with_more(measured, leg).is_some_and(|more| more > MORE_HELPS);
    let wants: Vec<f64> = of(measured, leg, measured.threads).map(|sample| sample.own[0] + sample.own[1]).collect();
    let starves: Vec<f64> = of(measured, leg, measured.threads).map(|sample| sample.own[1] - sample.own[0]).collect();
    let busy = median(of(measured, leg, measured.threads).map(|sample| sample.busy).collect());
    let all = measured.processors.max(1) as f64;
    let wants = median(wants) / all;
    // Beside others that keep all busy its threads wait long for the little that they compute.
    let had = median(of(measured, leg, measured.threads).map(|sample| sample.own[0]).collect()) / all;
    let is_full = part.side == 0 && part.stage == Stage::Network && way_is_full(measured) == Some(true);
    // While requests are at a server, nothing here holds them up.
    let is_there = measured.sides[part.side].server.is_some() && part.stage != Stage::Network;
    if is_there && starves_there(measured, part.side) {
        return Kind::Cpu;
    }
    if !is_there && wants >= OWN && (had >= HAD || !is_full) && (busy >= BUSY || median(starves) > 0.0) {
        return Kind::Cpu;
    }
    match part.stage {
        Stage::Metadata => Kind::Metadata,
        Stage::Network => match queues(measured, part.side) {
            _ if loses(measured, part.side) => Kind::Saturated,
            Some((idle, loaded)) if idle >= FAR && loaded < QUEUES * idle => Kind::Latency,
            Some((idle, _)) if idle < FAR && helps => Kind::Latency,
            _ => Kind::Saturated,
        },
        _ if helps => Kind::Latency,
        _ => Kind::Saturated,
    }
}

/// Whether the process of a side's server has too little of processors, as far as it tells.
fn starves_there(measured: &Measured, side: usize) -> bool {
    let leg = [Leg::Read, Leg::Write][side];
    let told = |at: usize| {
        let of_leg = of(measured, leg, measured.threads);
        median(of_leg.filter_map(|sample| Some(sample.at_server[side]?[at])).collect())
    };
    lacks_processors([told(0), told(1)], 1.0)
}

fn loses(measured: &Measured, side: usize) -> bool {
    let leg = [Leg::Read, Leg::Write][side];
    median(of(measured, leg, measured.threads).map(|sample| sample.resent).collect()) > LOSES
}

fn target(measured: &Measured, part: &Part, kind: Kind) -> String {
    let side = &measured.sides[part.side];
    match (kind, part.stage, &side.server) {
        (Kind::Cpu, Stage::Read | Stage::Write | Stage::Metadata, Some(server)) => server.clone(),
        (Kind::Cpu, ..) => "this machine".to_owned(),
        (_, Stage::Network, Some(server)) => server.clone(),
        _ => side.place.clone(),
    }
}

fn advice(part: &Part, kind: Kind, side: &Side) -> String {
    let place = &side.place;
    match (kind, part.stage) {
        (Kind::Cpu, _) => "use more or faster processors, or fewer other programs on them".into(),
        (Kind::Metadata, _) => "put small files together, as with tar, or copy with more streams".into(),
        (Kind::Latency, Stage::Network) => {
            "use more streams or connections (--streams, workers=): the way is long, not full".into()
        }
        (Kind::Latency, _) => format!("have more under way at {place} (--streams): it is slow to answer, not busy"),
        (_, Stage::Network) => {
            "look at the way: 'aqueduct net path SERVER'; more rails carry more (docs/rails.md)".into()
        }
        (_, Stage::Read) => {
            format!("look at the disks of {place} and at who else uses them; spread files over more of them")
        }
        _ => format!("look at the disks of {place} and at who else writes to them; spread files over more of them"),
    }
}

/// Says what limits.
pub fn judge(measured: &Measured) -> Verdict {
    if let Some(trouble) = &measured.trouble {
        return troubled(measured, trouble);
    }
    let mut parts: Vec<Part> = [0, 1].into_iter().flat_map(|side| parts_of(measured, side)).collect();
    parts.retain(|part| part.rate > 0.0);
    parts.sort_by(|one, two| one.rate.total_cmp(&two.rate));
    let Some(first) = parts.first().copied().filter(|_| of(measured, Leg::All, measured.threads).next().is_some())
    else {
        return evidence(measured, Verdict::unknown("no leg was done in the time that there was"));
    };
    let second = parts.iter().find(|part| part.stage != first.stage).copied();
    let apart = second.map_or(f64::INFINITY, |second| second.rate / first.rate);
    let kind = kind_of(measured, &first);
    let (_, whole) = predicted(measured);
    let verdict = match second {
        Some(second) if apart < 1.0 + TIE && kind != Kind::Cpu => told_apart(measured, [first, second]),
        _ => {
            let sure = 1.0 - 0.35 * (-3.0 * (apart.min(10.0) - 1.0)).exp();
            let sure = if agrees(measured, first.side) { sure } else { sure * 0.9 };
            let sure = match [first.side, 1 - first.side].map(|side| follows(measured, side)) {
                [Some(true), Some(false)] => 1.0 - (1.0 - sure) * DOUBT_LEFT,
                [Some(false), Some(true)] => sure.min(0.5),
                _ => sure,
            };
            Verdict::of((first.stage, kind), target(measured, &first, kind), sure.min(CONFIDENCE_MAX))
        }
    };
    let side = &measured.sides[first.side];
    let verdict = match second {
        Some(second) => verdict.then(second.stage.to_string(), second.rate / whole.max(1.0)),
        None => verdict,
    };
    evidence(measured, verdict.advising(advice(&first, kind, side)))
}

/// Two that are too near to each other: the one of which a probe says that the whole follows it,
/// and not the other, or both.
fn told_apart(measured: &Measured, both: [Part; 2]) -> Verdict {
    let sides = both.map(|part| follows(measured, part.side));
    let one = match sides {
        [Some(true), Some(false)] => both[0],
        [Some(false), Some(true)] => both[1],
        _ => return Verdict::between(&both.map(|part| part.stage), CONFIDENCE_MAX - TIE),
    };
    let kind = kind_of(measured, &one);
    Verdict::of((one.stage, kind), target(measured, &one, kind), CONFIDENCE_MAX - TIE)
}

/// Whether the threads of the whole were mostly at the side that limits by itself.
fn agrees(measured: &Measured, side: usize) -> bool {
    let share = |sample: &Sample| mean(sample, OF_SIDE[side]) - mean(sample, OF_SIDE[1 - side]);
    median(of(measured, Leg::All, measured.threads).map(share).collect()) >= 0.0
}

fn troubled(measured: &Measured, (state, what): &(State, String)) -> Verdict {
    let of_source = matches!(state, State::Open | State::Read);
    let side = &measured.sides[usize::from(!of_source)];
    let verdict = match (state, &side.server, side.way) {
        // Nothing is known but that it is silent.
        (State::Own, ..) => {
            let silent = measured.sides.iter().find(|side| side.server.is_some() && side.way.is_none());
            let place = silent.and_then(|side| side.server.clone()).unwrap_or_default();
            Verdict { target: place, ..Verdict::between(&[Stage::Network], 0.6) }
        }
        _ => {
            let stage = if of_source { Stage::Read } else { Stage::Write };
            Verdict::of((stage, Kind::Saturated), side.place.clone(), 0.9)
        }
    };
    let left =
        measured.left.iter().map(|left| format!("{left} could not be removed: remove it when that answers again"));
    left.fold(verdict.because(what.clone()), Verdict::because)
        .advising("see whether it works at all: a shell there, 'df', 'dmesg', 'aqueduct net path SERVER'")
}

fn shown(rate: f64) -> String {
    format!("{:.1} MB/s", rate / 1e6)
}

/// The figures behind a verdict, a sentence each.
fn evidence(measured: &Measured, verdict: Verdict) -> Verdict {
    let [read, write, whole] = [Leg::Read, Leg::Write, Leg::All].map(|leg| rate(measured, leg, measured.threads));
    let mut sentences = vec![format!(
        "reading alone moves {}, writing alone {}, both together {}",
        shown(read),
        shown(write),
        shown(whole)
    )];
    sentences.extend(together(measured));
    for (leg, what) in [
        (Leg::There, "reading where the source lies"),
        (Leg::From, "the way from the source"),
        (Leg::To, "the way to the destination"),
    ] {
        let alone = rate(measured, leg, measured.threads);
        if alone > 0.0 {
            sentences.push(format!("{what} alone carries at least {}", shown(alone)));
        }
    }
    for side in [0, 1] {
        let Side { place, server: Some(server), .. } = &measured.sides[side] else { continue };
        let waits = side == 0 && way_is_full(measured) == Some(true);
        let what = if waits { ", which waits meanwhile until the way takes its answers" } else { "" };
        sentences.push(format!(
            "of the time that requests to {place} take, {:.0} % are at its server{what}, the rest on the way",
            at_server(measured, side) * 100.0
        ));
        if let Some((idle, loaded)) = queues(measured, side) {
            let (idle, loaded) = (idle * 1e3, loaded * 1e3);
            sentences.push(format!("a round trip to {server} takes {idle:.2} ms, and {loaded:.2} ms while data move"));
        }
        if loses(measured, side) {
            sentences.push(format!("segments to {server} have to be sent again: the way loses some"));
        }
    }
    for (side, what) in [(0, "opening"), (1, "making")] {
        let share = in_names(measured, side);
        if share > 0.25 {
            sentences.push(format!("{what} files takes {:.0} % of the time there", share * 100.0));
        }
    }
    for (leg, name) in [(Leg::Read, "reading"), (Leg::Write, "writing")] {
        if let Some(more) = with_more(measured, leg) {
            sentences.push(format!("with twice as much under way {name} moves {more:.2} times as much"));
        }
    }
    sentences.extend(probes(measured).iter().map(|probe| {
        let (slowed, followed) = (probe.slowed * 100.0, probe.followed * 100.0);
        format!("with {} slowed by {slowed:.0} % the whole moves {followed:.0} % of what it did", probe.stage)
    }));
    sentences.extend(helps(measured));
    let busy = median(of(measured, Leg::All, measured.threads).map(|sample| sample.busy).collect());
    sentences.push(format!("this machine's processors are {:.0} % busy meanwhile", busy * 100.0));
    for side in measured.sides.iter().filter(|side| side.is_memory) {
        sentences.push(format!("{} lies in memory", side.place));
    }
    if let Some(left) = &measured.left {
        sentences.push(format!("{left} could not be removed: remove it when that answers again"));
    }
    sentences.into_iter().fold(verdict, Verdict::because)
}

/// How the whole differs from what its parts let expect, and why that may be.
fn together(measured: &Measured) -> Option<String> {
    let [read, write] = [Leg::Read, Leg::Write].map(|leg| rate(measured, leg, measured.threads));
    let (expected, whole) = predicted(measured);
    if whole <= 0.0 || expected <= 0.0 || whole >= SHARED * expected {
        return None;
    }
    // Threads that do one after the other, neither of which is saturated.
    let in_turn = read * write / (read + write);
    let why = match whole >= SHARED * in_turn {
        true => "each thread reads and writes in turn",
        false => "reading and writing share something: processors, a wire or a disk",
    };
    let less = (1.0 - whole / expected) * 100.0;
    Some(format!("the whole is {less:.0} % less than the least of its parts: {why}"))
}

/// The setting that moves clearly more than a copy's own, if one does.
fn helps(measured: &Measured) -> Vec<String> {
    let all = swept(measured);
    let of = |setting: Setting, usual: u64, unit: &str| {
        let same = || all.iter().filter(|swept| swept.setting == setting);
        let now = same().find(|swept| swept.value == usual)?.rate;
        let best = same().max_by(|one, two| one.rate.total_cmp(&two.rate))?;
        let times = best.rate / now.max(1.0);
        let value = best.value / if setting == Setting::Buffer { 1024 } else { 1 };
        (times > SETTING_HELPS).then(|| format!("with {value} {unit} the whole moves {times:.2} times as much"))
    };
    let streams = of(Setting::Streams, measured.threads as u64, "streams");
    streams.into_iter().chain(of(Setting::Buffer, STEP as u64, "KiB at a time")).collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
