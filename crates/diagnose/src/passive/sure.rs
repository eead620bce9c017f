//! How sure that is: logistic regression on what tells right verdicts from wrong ones.

use super::counters::{Shape, Window};
use crate::verdict::Stage;

/// How many there are.
pub const FEATURES: usize = 6;

/// Fitted on the simulator of the tests (`fit_all`), tested there on other seeds.
const WEIGHTS: [f64; FEATURES] = [0.63, 3.97, 1.08, 0.32, 0.00, 3.20];

/// The most that is stated: what was not counted may matter.
const CONFIDENCE_MAX: f64 = 0.99;

/// What goes into the confidence: a constant, how much the first limits, the logarithm of its
/// distance to the second, how much the second limits, the logarithm of the time that was
/// watched, and whether the workers are a pool.
pub fn features(window: &Window, order: &[(Stage, usize, f64)]) -> [f64; FEATURES] {
    let first = order.first().map_or(0.0, |at| at.2);
    let second = order.get(1).map_or(0.0, |at| at.2);
    [
        1.0,
        first,
        (first - second).max(0.01).ln(),
        second,
        (window.seconds.max(0.1) / 15.0).ln(),
        f64::from(u8::from(window.shape == Shape::Pool)),
    ]
}

pub(crate) fn of(window: &Window, order: &[(Stage, usize, f64)]) -> f64 {
    let score: f64 = features(window, order).iter().zip(WEIGHTS).map(|(value, weight)| value * weight).sum();
    (1.0 / (1.0 + (-score).exp())).min(CONFIDENCE_MAX)
}

/// That nothing limits: the surer the more of the time nothing was asked for.
pub(crate) fn of_idle(idle: f64) -> f64 {
    (0.6 + 2.5 * (idle - 0.08)).clamp(0.6, CONFIDENCE_MAX)
}
