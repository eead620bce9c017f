//! How a stage limits: it is saturated, or waits for what more under way would hide, or for
//! processors, or has names to do.

use super::counters::{RailCounts, StageCounts, State, Window};
use super::pool::slope;
use crate::verdict::{Kind, Stage};

/// The share of segments that are sent again from which on the network limits by losing.
const LOSES: f64 = 5e-4;

/// On rails that are full, round trips take so many times the least: on a busy machine they take
/// 1.2 times as long on a way that is empty.
const QUEUES: f64 = 1.4;

/// The share of a host's processors that leaves none.
const PROCESSORS_FULL: f64 = 0.93;

/// The share of a stage's time that waits for a processor, on a host that has none left.
const RUNNABLE_MIN: f64 = 0.10;

/// Of the time that threads want a processor for: the part for which they wait, from which on they
/// have too little of them. On a machine that others keep busy they wait for half.
const WAITS_MIN: f64 = 0.75;

/// The kind, and the logarithm of the odds that it is right.
pub(crate) fn of(window: &Window, counts: &StageCounts) -> (Kind, f64) {
    let busy = counts.busy().max(1e-9);
    let (cpu, runnable) = (counts.of(State::Cpu), counts.of(State::Runnable));
    let [used, all] = window.processors[counts.side.min(1)];
    match counts.stage {
        Stage::Hash | Stage::Send | Stage::Verify => return (Kind::Cpu, 3.0),
        Stage::Network => return network(&window.rails),
        // One has it, and the others wait: faster is only who has it for less long.
        Stage::Waiting => return (Kind::Saturated, 3.0),
        // To look names up and to make them is to compute: a processor is missing only where they
        // wait for one.
        Stage::Metadata if runnable < WAITS_MIN * (cpu + runnable) => return (Kind::Metadata, 3.0),
        _ if (cpu + runnable) / busy > 0.5 => return (Kind::Cpu, 3.0),
        _ if used > PROCESSORS_FULL * all && runnable / busy > RUNNABLE_MIN => return (Kind::Cpu, 2.0),
        Stage::Metadata => return (Kind::Metadata, 3.0),
        _ if counts.of(State::Metadata) > counts.of(State::Io) => return (Kind::Metadata, 3.0),
        _ => {}
    }
    let score = saturation(counts, window.seconds);
    (if score > 0.0 { Kind::Saturated } else { Kind::Latency }, score.abs())
}

/// What tells a saturated stage from one that is slow to answer, at its busiest target: a
/// constant; how its times follow one another; by what power its rate grows with the number in
/// flight; and whether that was seen.
pub fn evidence(counts: &StageCounts, seconds: f64) -> [f64; 4] {
    /// Of few operations nothing is known.
    const FOLLOWS_UNKNOWN: f64 = 0.3;
    let busiest = counts.stations.iter().max_by(|one, two| one.spent.total_cmp(&two.spent));
    let Some(station) = busiest else { return [1.0, FOLLOWS_UNKNOWN, 0.0, 0.0] };
    let slope = slope(station, seconds);
    let follows = station.autocorrelation().unwrap_or(FOLLOWS_UNKNOWN);
    [1.0, follows, slope.unwrap_or(0.0), f64::from(u8::from(slope.is_some()))]
}

/// The logarithm of the odds that a stage is saturated. Operations of a saturated target share
/// its queue, so that their times follow one another, and more in flight move no more.
fn saturation(counts: &StageCounts, seconds: f64) -> f64 {
    /// Fitted on the simulator of the tests (`fit_all`), for each piece of [`evidence`].
    const WEIGHTS: [f64; 4] = [0.77, 5.70, 0.47, -1.49];
    evidence(counts, seconds).iter().zip(WEIGHTS).map(|(value, weight)| value * weight).sum()
}

fn network(rails: &[RailCounts]) -> (Kind, f64) {
    let loses = rails.iter().any(|rail| rail.segments[1] > LOSES * rail.segments[0].max(1.0));
    let queues = |rail: &RailCounts| {
        let [sum, count] = rail.round_trips;
        if count > 0.0 && rail.round_trip_min > 0.0 { sum / count / rail.round_trip_min } else { 1.0 }
    };
    let most = rails.iter().map(queues).fold(1.0, f64::max);
    match most > QUEUES || loses {
        true => (Kind::Saturated, 1.0 + 4.0 * (most / QUEUES - 1.0).clamp(0.0, 0.5)),
        false => (Kind::Latency, 1.0 + 4.0 * (QUEUES - most)),
    }
}
