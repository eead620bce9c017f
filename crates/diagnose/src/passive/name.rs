//! Which stage limits.

use super::counters::{Shape, StageCounts, State, Window};
use super::pool::{self, Forecast};
use super::{kind, sure, target};
use crate::verdict::{Kind, Stage};

/// A reader that has nothing to do, or is held to a rate, for this share of its time does what is
/// asked of it.
const IDLE_MIN: f64 = 0.08;

/// Waiting for the window from which on the network can be what limits.
const WINDOW_MIN: f64 = 0.1;

/// What fills a rail for more than half of the time has it limit at least that much.
const FULL_MIN: f64 = 0.5;

/// With data waiting at the receiver for this share it is not the rail that is full.
const BACKLOG_MAX: f64 = 0.3;

/// A walker that is as busy as this is what those behind it wait for.
const WALKER_BUSY: f64 = 0.85;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Stages by how much they limit, 0 to 1, the first first; with the side that each is at.
    pub order: Vec<(Stage, usize, f64)>,
    /// What limits; [`Stage::Idle`]: nothing, it does what is asked of it.
    pub stage: Stage,
    /// 0: at the source, 1: at the destination.
    pub side: usize,
    /// How, unless nothing limits.
    pub kind: Option<Kind>,
    /// The logarithm of the odds that the kind is right.
    pub kind_score: f64,
    /// The target that is slower than its peers, and how many times.
    pub target: Option<(String, f64)>,
    /// How many times as fast it would be if that took no time, as far as can be computed.
    pub gain: Option<f64>,
    /// The probability that the stage is right.
    pub confidence: f64,
}

/// Names what limits. `parts`: all that was counted, in windows one after the other, at least 3 of
/// them where targets are to be told apart. `None`: nothing was done.
pub fn name(whole: &Window, parts: &[Window]) -> Option<Named> {
    let forecast = pool::forecast(whole);
    let (order, idle) = match whole.shape {
        Shape::Pipeline => pipeline(whole),
        Shape::Pool => pooled(whole, forecast.as_ref()?),
    };
    let (stage, side, _) = *order.first()?;
    let mut named =
        Named { order, stage, side, kind: None, kind_score: 0.0, target: None, gain: None, confidence: 0.0 };
    if idle >= IDLE_MIN && stage != Stage::Metadata {
        named.stage = Stage::Idle;
        named.confidence = sure::of_idle(idle);
        return Some(named);
    }
    let at = whole.stages.iter().position(|counts| counts.stage == stage && counts.side == side)?;
    let (kind, score) = kind::of(whole, &whole.stages[at]);
    (named.kind, named.kind_score) = (Some(kind), score);
    // What is slow to answer has no target that is slower than others, and a rail that loses
    // segments is known by them.
    named.target = match stage {
        Stage::Network => lossy(whole).or_else(|| target::slow(whole, parts, stage, side)),
        _ if matches!(kind, Kind::Cpu | Kind::Metadata) => None,
        _ => target::slow(whole, parts, stage, side),
    };
    if named.target.is_some() && kind == Kind::Latency {
        named.kind = Some(Kind::Saturated);
    }
    if whole.shape == Shape::Pool {
        named.gain = forecast.map(|forecast| forecast.without[at]);
    }
    named.confidence = sure::of(whole, &named.order);
    Some(named)
}

type Order = Vec<(Stage, usize, f64)>;

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

fn sorted(mut order: Order) -> Order {
    order.sort_by(|one, two| two.2.total_cmp(&one.2));
    order
}

/// By how busy the workers of each stage are; and the share of the reader's time in which nothing
/// was asked of it.
fn pipeline(window: &Window) -> (Order, f64) {
    let of = |stage: Stage| window.stages.iter().find(|counts| counts.stage == stage);
    let sender = of(Stage::Send).map_or(0.0, |counts| share(counts.busy(), counts.workers));
    let waits = of(Stage::Network).map_or(0.0, |counts| waits(window, counts));
    let mut order: Order = window
        .stages
        .iter()
        .map(|counts| {
            let limits = match counts.stage {
                Stage::Network => network(window, waits, sender),
                // A sender does one or the other: what takes more of its time has it all.
                Stage::Send if waits >= WINDOW_MIN && sender > waits => (waits + sender).min(1.0),
                _ => share(counts.busy(), counts.workers),
            };
            (counts.stage, counts.side, limits)
        })
        .collect();
    let reader = of(Stage::Read);
    let throttled =
        window.stages.iter().map(|counts| share(counts.of(State::Throttled), counts.workers)).fold(0.0, f64::max);
    let starved = reader.map_or(0.0, |counts| share(counts.of(State::Starved), counts.workers));
    let walker = of(Stage::Metadata).map_or(0.0, |counts| share(counts.busy(), counts.workers));
    if starved >= IDLE_MIN && walker >= WALKER_BUSY && throttled < IDLE_MIN {
        order.iter_mut().filter(|at| at.0 == Stage::Metadata).for_each(|at| at.2 = 1.0);
    } else if walker > 0.0 {
        // What is found ahead of the reader does not hold it up.
        order.iter_mut().filter(|at| at.0 == Stage::Metadata).for_each(|at| at.2 *= starved);
    }
    (sorted(order), starved.max(throttled))
}

/// The share of time in which senders wait for their window, and not since the receiver does not
/// take what came.
fn waits(window: &Window, counts: &StageCounts) -> f64 {
    (share(counts.of(State::Window), counts.workers) - backlog(window)).max(0.0)
}

fn backlog(window: &Window) -> f64 {
    window.rails.iter().map(|rail| share(rail.backlog, window.seconds)).fold(0.0, f64::max)
}

/// How much the network limits.
fn network(window: &Window, waits: f64, sender: f64) -> f64 {
    let mut limits = if waits >= WINDOW_MIN && sender <= waits { (waits + sender).min(1.0) } else { waits };
    if backlog(window) < BACKLOG_MAX {
        let full = window.rails.iter().map(|rail| share(rail.full, window.seconds)).fold(0.0, f64::max);
        limits = if full > FULL_MIN { limits.max(full) } else { limits };
    }
    limits
}

/// By how much more would move; and the share of time in which nothing was asked for.
fn pooled(window: &Window, forecast: &Forecast) -> (Order, f64) {
    let busy: f64 = window.stages.iter().map(|counts| counts.busy() + counts.of(State::Window)).sum();
    let whole = busy + window.idle + window.throttled;
    let idle = share(window.idle, whole);
    let mut order: Order = Vec::new();
    for (counts, limits) in window.stages.iter().zip(&forecast.limits) {
        // Those that have nothing to do wait for names, as long as names are looked for.
        let limits = match counts.stage {
            Stage::Metadata if counts.side == 0 && window.is_walking => limits.max(idle),
            _ => limits * (1.0 - idle),
        };
        order.push((counts.stage, counts.side, limits));
    }
    let asked = if window.is_walking { 0.0 } else { idle };
    (sorted(order), share(window.throttled, whole).max(asked))
}

/// The rail that loses segments, if its peers do not.
fn lossy(window: &Window) -> Option<(String, f64)> {
    /// So many times as many as its peers in the mean.
    const TIMES: f64 = 4.0;
    let rates: Vec<f64> = window.rails.iter().map(|rail| share(rail.segments[1], rail.segments[0])).collect();
    let (at, most) = rates.iter().copied().enumerate().max_by(|one, two| one.1.total_cmp(&two.1))?;
    let others = (rates.iter().sum::<f64>() - most) / (rates.len().max(2) - 1) as f64;
    (rates.len() > 1 && most > 5e-4 && most > TIMES * others)
        .then(|| (window.rails[at].name.clone(), most / others.max(1e-9)))
}
