//! Which of several targets of a stage holds it back.

use aqueduct_metrics::activity::{LEVELS, Station};

use super::counters::Window;
use super::student;
use crate::verdict::Stage;

/// So many times as many operations as it did its peers would have done in its place.
const FACTOR_MIN: f64 = 1.25;

/// The least lower bound of the logarithm of that.
const BOUND_MIN: f64 = 0.12;

/// With this probability or less a target is named where all are alike: whichever of them it is,
/// so that each has its part of it (Bonferroni). Of many one is always the slowest.
const FALSE_MAX: f64 = 0.05;

/// Fewer windows say nothing of how much they differ.
const WINDOWS_MIN: usize = 3;

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
    if logs.len() < WINDOWS_MIN {
        return None;
    }
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let errors = student::quantile(FALSE_MAX / all.len() as f64, logs.len() - 1);
    let bound = mean - errors * (variance / count).sqrt();
    (bound > BOUND_MIN).then(|| (name.clone(), most))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::passive::{STATES, StageCounts};

    /// Five windows of so many targets, alike but for noise, of which the first takes so many times
    /// as long.
    fn windows(targets: usize, (times, spread): (f64, f64), seed: u64) -> (Window, Vec<Window>) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut window = || {
            let mut window = Window { seconds: 1.0, ..Window::default() };
            for number in 0..targets {
                // About normal.
                let noise: f64 = (0..12).map(|_| random.random_range(-0.5..0.5)).sum();
                let slower = if number == 0 { times } else { 1.0 };
                let mut station = Station { target: format!("s{number}"), spent: 1.0, ..Station::default() };
                (station.time[1], station.done[1]) = (1.0, 100.0 * (spread * noise).exp() / slower);
                let states = [0.0; STATES];
                window.put(StageCounts { stage: Stage::Write, side: 1, workers: 1.0, states, stations: vec![station] });
            }
            window
        };
        let parts: Vec<Window> = (0..5).map(|_| window()).collect();
        let mut whole = Window::default();
        parts.iter().for_each(|part| whole.add(part));
        (whole, parts)
    }

    /// How often one is named in 200 runs, and how often the first.
    fn named(targets: usize, slow_one: (f64, f64)) -> [usize; 2] {
        let runs = (0..200).map(|seed| windows(targets, slow_one, seed));
        let names: Vec<String> =
            runs.filter_map(|(whole, parts)| slow(&whole, &parts, Stage::Write, 1)).map(|(name, _)| name).collect();
        [names.len(), names.iter().filter(|name| *name == "s0").count()]
    }

    #[test]
    fn one_of_many_that_are_alike_is_no_slow_one() {
        for targets in [2, 8, 64, 256] {
            let [all, _] = named(targets, (1.0, 0.3));
            assert!(all <= 10, "{targets} targets: {all} of 200 runs");
            let [all, first] = named(targets, (3.0, 0.1));
            assert!(first >= 190 && all == first, "{targets} targets: {first} of 200 runs, and {} others", all - first);
        }
    }
}
