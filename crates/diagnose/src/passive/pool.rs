//! What limits workers of whom each takes a piece through all stages.
//!
//! Where such workers are is not what limits: of two disks the one in front of which most of them
//! queue may not be the slower. So each stage's rate is taken from the numbers in flight that were
//! seen there, the whole is computed from these as a closed network of queues (Gordon and Newell
//! 1967; Buzen's convolution 1973), and once more with a stage a tenth faster.

use aqueduct_metrics::activity::{LEVELS, Station, middle};

use super::counters::{StageCounts, State, Window};

/// What is tried: so many times as fast.
const FASTER: f64 = 1.1;

/// The most workers that are computed with.
const WORKERS_MAX: usize = 256;

/// Of a class of numbers in flight: the least share of the time, and the fewest operations, that
/// say something.
const SHARE_MIN: f64 = 0.01;
const DONE_MIN: f64 = 5.0;

/// A target of a stage: what it lets through by the number that is there.
struct Centre {
    stage: usize,
    /// How often a piece comes there.
    visits: f64,
    /// Operations in a second with 1, 2, 3 ... in flight.
    rates: Vec<f64>,
}

/// What a pool would do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// For each stage: by what part more would move, of each part by which it were faster, 0 to 1.
    pub limits: Vec<f64>,
    /// For each stage: how many times as much would move if it took no time.
    pub without: Vec<f64>,
    /// How many times as much would move with half as many workers more.
    pub with_more: f64,
}

/// Points of a curve: numbers in flight, and operations in a second.
fn points(station: &Station, seconds: f64) -> Vec<(f64, f64)> {
    (1..LEVELS)
        .filter(|level| station.time[*level] >= SHARE_MIN * seconds && station.done[*level] >= DONE_MIN)
        .map(|level| (middle(level), station.done[level] / station.time[level]))
        .collect()
}

/// By what power of the number in flight the rate grows: 1 where none waits for another, 0 where
/// more only wait longer. By what was seen at different numbers, if it was.
pub(crate) fn slope(station: &Station, seconds: f64) -> Option<f64> {
    let points = points(station, seconds);
    let weight = |level: f64| (1..LEVELS).find(|at| middle(*at) == level).map_or(0.0, |at| station.done[at].sqrt());
    let all: f64 = points.iter().map(|(x, _)| weight(*x)).sum();
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(|at| weight(at.0) * of(at)).sum::<f64>() / all;
    let (x, y) = (mean(&|at| at.0.ln()), mean(&|at| at.1.ln()));
    let spread = mean(&|at| (at.0.ln() - x).powi(2));
    let shared = mean(&|at| (at.0.ln() - x) * (at.1.ln() - y));
    (points.len() >= 2 && spread > 0.02).then(|| (shared / spread).clamp(0.0, 1.2))
}

/// The same where it was not: by how operations follow each other.
fn guess(station: &Station) -> f64 {
    1.0 - (station.autocorrelation().unwrap_or(0.0) / 0.6).clamp(0.0, 1.0)
}

fn rates(station: &Station, seconds: f64, workers: usize) -> Vec<f64> {
    let mut points = points(station, seconds);
    if points.is_empty() {
        // So rarely there that it matters little: as if none waited for another.
        let mean = station.spent.max(1e-9) / station.completions().max(1.0);
        points.push((1.0, 1.0 / mean));
    }
    let (first, last) = (points[0], points[points.len() - 1]);
    let beyond = match points.len() {
        1 => guess(station),
        count => {
            let before = points[count - 2];
            let seen = (last.1 / before.1).ln() / (last.0 / before.0).ln();
            f64::midpoint(seen.clamp(0.0, 1.0), guess(station))
        }
    };
    let rate = |number: f64| {
        if number <= first.0 {
            return first.1 * number / first.0;
        }
        let Some(above) = points.iter().position(|(at, _)| *at >= number) else {
            return last.1 * (number / last.0).powf(beyond);
        };
        let ((x0, y0), (x1, y1)) = (points[above - 1], points[above]);
        let share = (number / x0).ln() / (x1 / x0).ln();
        (y0.ln() * (1.0 - share) + y1.ln() * share).exp()
    };
    // More never let less through, but for noise.
    let mut rates: Vec<f64> = (1..=workers).map(|number| rate(number as f64)).collect();
    for at in 1..rates.len() {
        rates[at] = rates[at].max(rates[at - 1]);
    }
    rates
}

fn centres(window: &Window, workers: usize, pieces: f64) -> Vec<Centre> {
    let mut centres = Vec::new();
    for (stage, counts) in window.stages.iter().enumerate() {
        for station in counts.stations.iter().filter(|station| station.completions() > 0.0) {
            let rates = rates(station, window.seconds, workers);
            centres.push(Centre { stage, visits: station.completions() / pieces, rates });
        }
    }
    centres
}

/// Pieces in a second, with stages so many times as fast.
fn throughput(centres: &[Centre], workers: usize, scale: f64, speed: impl Fn(usize) -> f64) -> f64 {
    let mut whole = vec![0.0; workers + 1];
    whole[0] = 1.0;
    for centre in centres {
        let faster = speed(centre.stage);
        let mut of = vec![1.0; workers + 1];
        for number in 1..=workers {
            of[number] = of[number - 1] * centre.visits * scale / (centre.rates[number - 1] * faster);
        }
        // From the greatest on, so that what is still needed is not overwritten.
        for number in (0..=workers).rev() {
            whole[number] = (0..=number).map(|here| of[here] * whole[number - here]).sum();
        }
        let most = whole.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        whole.iter_mut().for_each(|part| *part /= most);
    }
    scale * whole[workers.saturating_sub(1)] / whole[workers].max(f64::MIN_POSITIVE)
}

/// What a pool would do; `None`: it did too little to tell.
pub(crate) fn forecast(window: &Window) -> Option<Forecast> {
    let busy: f64 = window.stages.iter().map(|stage| stage.busy() + stage.states[State::Window as usize]).sum();
    let pieces = window.stages.iter().map(StageCounts::completions).fold(0.0, f64::max);
    if busy <= 0.0 || pieces < DONE_MIN || window.seconds <= 0.0 {
        return None;
    }
    let workers = ((busy / window.seconds).round() as usize).clamp(1, WORKERS_MAX);
    let more = workers + workers.div_ceil(2);
    let centres = centres(window, more, pieces);
    let scale = pieces / window.seconds;
    let now = throughput(&centres, workers, scale, |_| 1.0);
    let with = |stage: usize, faster: f64| {
        let speed = |at: usize| if at == stage { faster } else { 1.0 };
        throughput(&centres, workers, scale, speed) / now
    };
    let stages = 0..window.stages.len();
    let limit = |stage: usize| ((with(stage, FASTER) - 1.0) / (FASTER - 1.0)).clamp(0.0, 1.0);
    Some(Forecast {
        limits: stages.clone().map(limit).collect(),
        without: stages.map(|stage| with(stage, 1e3)).collect(),
        with_more: throughput(&centres, more, scale, |_| 1.0) / now,
    })
}
