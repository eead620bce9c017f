//! Which of several targets of a stage holds it back.

use aqueduct_metrics::activity::{LEVELS, Station};

use super::counters::Window;
use crate::verdict::Stage;

/// So many times as many operations as it did its peers would have done in its place.
const FACTOR_MIN: f64 = 1.25;

/// The least lower bound of the logarithm of that.
const BOUND_MIN: f64 = 0.12;

/// Errors of the mean that the bound is below it: 95 % of five windows, one-sided (Student, 4
/// degrees of freedom, 2.13).
const ERRORS: f64 = 2.1;

/// What it would have done at its peers' rate, with its own history of numbers in flight, by what
/// it did.
fn factor(stations: &[Station], at: usize) -> Option<f64> {
    let one = &stations[at];
    let (mut time, mut done) = (0.0, 0.0);
    let mut expected = 0.0;
    for level in 1..LEVELS {
        // Peers count with no more in flight, and only while they have something: that a slow one
        // leaves them idle is not their doing.
        let peers = stations.iter().enumerate().filter(|(other, _)| *other != at);
        for (_, peer) in peers {
            time += peer.time[level];
            done += peer.done[level];
        }
        if time > 0.0 {
            expected += one.time[level] * done / time;
        }
    }
    let own = one.completions();
    (own > 0.0 && expected > 0.0).then_some(expected / own)
}

/// Those of the kind of operation that takes most of the time.
fn stations(window: &Window, stage: Stage, side: usize) -> Vec<Station> {
    let found = window.stages.iter().find(|counts| counts.stage == stage && counts.side == side);
    let all = found.map_or(&[][..], |counts| &counts.stations);
    let Some(most) = all.iter().max_by(|one, two| one.spent.total_cmp(&two.spent)) else { return Vec::new() };
    all.iter().filter(|station| station.kind == most.kind).cloned().collect()
}

/// The target that is slower than its peers, and how many times, if one is: `whole` is all that
/// was counted, `parts` the same in windows one after the other.
pub(crate) fn slow(whole: &Window, parts: &[Window], stage: Stage, side: usize) -> Option<(String, f64)> {
    let all = stations(whole, stage, side);
    if all.len() < 2 {
        return None;
    }
    let factors = (0..all.len()).filter_map(|at| Some((at, factor(&all, at)?)));
    let (at, most) = factors.max_by(|one, two| one.1.total_cmp(&two.1))?;
    if most <= FACTOR_MIN {
        return None;
    }
    let name = &all[at].target;
    let logs: Vec<f64> = parts
        .iter()
        .filter_map(|part| {
            let all = stations(part, stage, side);
            let at = all.iter().position(|station| station.target == *name)?;
            Some(factor(&all, at)?.ln())
        })
        .collect();
    let count = logs.len() as f64;
    if logs.len() < 3 {
        return None;
    }
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let bound = mean - ERRORS * (variance / count).sqrt();
    (bound > BOUND_MIN).then(|| (name.clone(), most))
}
