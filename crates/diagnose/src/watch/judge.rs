//! From what was named to what is said: pure.

use super::watched::{HERE, Names, Spent, Watched};
use crate::passive::{Named, RailCounts, StageCounts, State, Window};
use crate::verdict::{Kind, Stage, TIE, Verdict};

/// Less than this share of the time is not told.
const TOLD_MIN: f64 = 0.005;

/// What a stage is called beside others.
fn called(stage: Stage, side: usize) -> String {
    match stage {
        Stage::Metadata => format!("metadata of the {}", ["source", "destination"][side.min(1)]),
        other => other.to_string(),
    }
}

/// Says what limits.
pub(super) fn judge(whole: &Window, named: Option<&Named>, watched: &Watched) -> Verdict {
    let names = &watched.names;
    let verdict = match named {
        _ if whole.seconds <= 0.0 => match names.silent.first() {
            Some((who, _)) => {
                let why = "it does not answer, so that nothing is known of it";
                Verdict { target: who.clone(), ..Verdict::unknown(why) }
            }
            None if watched.has_ended => Verdict::unknown("it ended before anything of it could be watched"),
            None => Verdict::unknown("it told nothing new while it was watched, and goes on")
                .advising("watch it for longer (--seconds)"),
        },
        None => Verdict::unknown("too little was done to say what limits it"),
        Some(named) => of_named(whole, named, names),
    };
    let verdict = names
        .silent
        .iter()
        .fold(verdict, |verdict, (server, why)| verdict.because(format!("{server} does not tell what it does: {why}")));
    match watched.has_ended {
        true => verdict.because(format!("it ended after {:.0} s", whole.seconds)),
        false => verdict,
    }
}

fn of_named(whole: &Window, named: &Named, names: &Names) -> Verdict {
    if named.stage == Stage::Idle {
        let verdict = Verdict::nothing(named.confidence);
        return evidence(whole, named, names, verdict.because("it is held to a rate, or has nothing to do"));
    }
    // An export that is held to a rate moves no more, however much is under way.
    let held = names.held_at(named.stage, named.side);
    let kind = named.kind.filter(|_| held.is_none()).unwrap_or(Kind::Saturated);
    let second = named.order.iter().skip(1).find(|at| at.0 != named.stage).copied();
    let first = named.order.first().map_or(0.0, |at| at.2);
    let is_tie = |second: &(Stage, usize, f64)| first > 0.0 && second.2 > (1.0 - TIE) * first;
    let verdict = match second.filter(is_tie).filter(|_| held.is_none()) {
        Some(second) => Verdict::between(&[named.stage, second.0], named.confidence),
        None => Verdict::of((named.stage, kind), target(named, kind, names), named.confidence),
    };
    let verdict = match second {
        Some((stage, side, _)) => verdict.then(called(stage, side), named.gain.unwrap_or(1.0)),
        None => verdict,
    };
    let verdict = match held {
        Some(held) => verdict.because(format!(
            "{:.0} % of its requests wait for the rate to which the export is held, {}",
            held.waits * 100.0,
            shown(held.rate)
        )),
        None => verdict,
    };
    evidence(whole, named, names, verdict).advising(advice(named, kind, names))
}

fn target(named: &Named, kind: Kind, names: &Names) -> String {
    let side = named.side.min(1);
    match (&named.target, kind, &names.servers[side]) {
        (Some((target, _)), ..) => target.clone(),
        (None, Kind::Cpu, Some(server)) if !matches!(named.stage, Stage::Hash | Stage::Send) => server.clone(),
        (None, Kind::Cpu, _) => HERE.to_owned(),
        _ => names.of(named.stage, side),
    }
}

/// Whether anything has ended that is not of this machine's processors.
pub(super) fn moves(whole: &Window) -> bool {
    let others = whole.stages.iter().filter(|counts| !matches!(counts.stage, Stage::Hash | Stage::Send));
    others.map(StageCounts::completions).sum::<f64>() > 0.0 || whole.throttled > 0.0
}

fn silent(verdict: Verdict, names: &Names) -> Verdict {
    names
        .silent
        .iter()
        .fold(verdict, |verdict, (server, why)| verdict.because(format!("{server} does not tell what it does: {why}")))
}

/// Nothing has ended in all of a time: who it waits for.
pub(super) fn stands_still(whole: &Window, watched: &Watched) -> Verdict {
    let names = &watched.names;
    let busy = |counts: &&StageCounts| counts.busy() + counts.of(State::Window);
    let waits = whole.stages.iter().filter(|counts| !matches!(counts.stage, Stage::Hash | Stage::Send));
    let Some(most) = waits.max_by(|one, two| busy(one).total_cmp(&busy(two))).filter(|most| busy(most) > 0.0) else {
        return Verdict::unknown("nothing moved, and nothing was asked for");
    };
    let place = names.of(most.stage, most.side);
    let threads = busy(&most) / whole.seconds;
    let sentence =
        format!("{place} does not answer: {threads:.0} threads wait in {} for {:.0} s", most.stage, whole.seconds);
    let verdict = Verdict { target: place.clone(), ..Verdict::between(&[most.stage], 0.6) };
    silent(verdict.because(sentence), names)
        .advising(format!("see whether {place} works at all: a shell there, 'df', 'dmesg', 'aqueduct net path'"))
}

/// A rate as people write it.
fn shown(rate: u64) -> String {
    format!("{} MB/s", rate as f64 / 1e6)
}

fn advice(named: &Named, kind: Kind, names: &Names) -> String {
    let place = names.of(named.stage, named.side);
    if let Some(held) = names.held_at(named.stage, named.side) {
        let rate = shown(held.rate);
        return format!(
            "the export is held to {rate}: raise its rate (rate=, or --rate of 'aqueduct serve'), or take another export"
        );
    }
    match (kind, named.stage) {
        (Kind::Cpu, Stage::Verify) => "check less (--verify), or use more or faster processors".into(),
        (Kind::Cpu, _) => "use more or faster processors, or fewer other programs on them".into(),
        (_, Stage::Waiting) => {
            "have programs keep locks for less long, or lock less ('aqueduct status --locks' says who has which)".into()
        }
        (Kind::Metadata, _) => "put small files together, as with tar, or copy with more streams".into(),
        (Kind::Latency, Stage::Network) if names.is_mount => {
            "ask for more at a time: more programs, threads or bytes in a request; the way is long, not full".into()
        }
        (Kind::Latency, _) if names.is_mount => format!(
            "ask {place} for more at a time: more programs, threads or bytes in a request; it is slow to answer, not busy"
        ),
        (Kind::Latency, Stage::Network) => "use more streams (--streams): the way is long, not full".into(),
        (Kind::Latency, _) => format!("have more under way at {place} (--streams): it is slow to answer, not busy"),
        (_, Stage::Network) => {
            "look at the way: 'aqueduct net path SERVER'; more rails carry more (docs/rails.md)".into()
        }
        (_, Stage::Flush) => format!("look at the disks of {place}; --no-flush gives files their names before"),
        _ => format!("look at the disks of {place} and at who else uses them; spread files over more of them"),
    }
}

/// The figures behind a verdict, a sentence each.
fn evidence(whole: &Window, named: &Named, names: &Names, verdict: Verdict) -> Verdict {
    let told: Vec<String> = spent(whole, names)
        .iter()
        .filter(|spent| spent.share >= 0.02)
        .map(|spent| format!("{} {:.0} %", spent.stage, spent.share * 100.0))
        .collect();
    let verdict = verdict.because(format!("in {:.0} s its threads were in: {}", whole.seconds, told.join(", ")));
    let counts = whole.stages.iter().find(|counts| counts.stage == named.stage && counts.side == named.side);
    let station = counts.and_then(|counts| {
        counts.stations.iter().max_by(|one, two| one.under_way.total_cmp(&two.under_way)).filter(|at| at.count > 0.0)
    });
    let verdict = match station {
        Some(station) => verdict.because(format!(
            "{}: {:.1} under way at a time, {:.0} ended a second, {:.2} ms each",
            called(named.stage, named.side),
            station.under_way / whole.seconds,
            station.completions() / whole.seconds,
            station.spent / station.completions().max(1.0) * 1e3
        )),
        None => verdict,
    };
    let verdict = match station.and_then(|station| station.autocorrelation()) {
        Some(follows) => verdict.because(format!(
            "their times follow one another by {follows:.2} (1: they share a queue, 0: none waits for another)"
        )),
        None => verdict,
    };
    let verdict = match &named.target {
        Some((target, times)) => verdict.because(format!("{target} takes {times:.1} times as long as its peers")),
        None => verdict,
    };
    let is_measured = |rail: &&RailCounts| named.stage == Stage::Network && rail.round_trips[1] > 0.0;
    let verdict = whole.rails.iter().filter(is_measured).fold(verdict, |verdict, rail| {
        let mean = rail.round_trips[0] / rail.round_trips[1] * 1e3;
        let [sent, again] = rail.segments;
        verdict.because(format!(
            "{}: a round trip takes {mean:.2} ms, {:.2} ms at least; {:.2} % of segments were sent again",
            rail.name,
            rail.round_trip_min * 1e3,
            100.0 * again / sent.max(1.0)
        ))
    });
    let [busy, all] = whole.processors[0];
    match all > 0.0 {
        true => verdict.because(format!("this machine's processors are {:.0} % busy", 100.0 * busy / all)),
        false => verdict,
    }
}

/// Where the time of the threads went, the most first.
pub(super) fn spent(whole: &Window, names: &Names) -> Vec<Spent> {
    let mut parts: Vec<(String, String, f64)> = Vec::new();
    for counts in &whole.stages {
        let seconds: f64 = counts.states.iter().sum();
        parts.push((called(counts.stage, counts.side), names.of(counts.stage, counts.side), seconds));
    }
    parts.push(("held to a rate".to_owned(), String::new(), whole.throttled));
    parts.push(("nothing to do".to_owned(), String::new(), whole.idle));
    let all: f64 = parts.iter().map(|part| part.2).sum::<f64>().max(f64::MIN_POSITIVE);
    parts.sort_by(|one, two| two.2.total_cmp(&one.2));
    let told = parts.into_iter().map(|(stage, place, seconds)| Spent {
        stage,
        place,
        share: (seconds / all * 1000.0).round() / 1000.0,
    });
    told.filter(|spent| spent.share >= TOLD_MIN).collect()
}
