//! Student's distribution, for few degrees of freedom.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// Beyond it nothing is looked for: so far out a probability is rounded to nothing.
const FAR: f64 = 1e6;

/// The probability to be above `t`, which is not negative: the finite series of Abramowitz and
/// Stegun, 26.7.3 and 26.7.4.
fn above(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, square) = (angle.sin(), angle.cos().powi(2));
    let is_odd = freedom % 2 == 1;
    // Of powers of the cosine: 1, 3, 5 ... or 0, 2, 4 ..., below the degrees of freedom.
    let (mut term, mut sum) = (if is_odd { angle.cos() } else { 1.0 }, 0.0);
    let mut power = usize::from(is_odd);
    while power + 2 <= freedom {
        sum += term;
        term *= square * (power + 1) as f64 / (power + 2) as f64;
        power += 2;
    }
    let within = if is_odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum };
    (1.0 - within) / 2.0
}

/// What is exceeded with this probability, of less than a half.
pub(super) fn quantile(probability: f64, freedom: usize) -> f64 {
    let freedom = freedom.max(1);
    if freedom == 1 {
        return (FRAC_PI_2 * (1.0 - 2.0 * probability)).tan();
    }
    let (mut low, mut high) = (0.0, FAR);
    while high - low > 1e-6 * (1.0 + low) {
        let middle = f64::midpoint(low, high);
        if above(middle, freedom) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (probability, freedom, expected) in [
            (0.05, 1, 6.314),
            (0.05, 2, 2.920),
            (0.05, 3, 2.353),
            (0.05, 4, 2.132),
            (0.005, 3, 5.841),
            (0.005, 4, 4.604),
            (0.0005, 4, 8.610),
            (0.005, 5, 4.032),
            (0.005, 6, 3.707),
            (0.025, 30, 2.042),
        ] {
            let found = quantile(probability, freedom);
            assert!((found - expected).abs() < 2e-3, "{probability}, {freedom}: {found}, not {expected}");
        }
        assert!(quantile(1e-12, 2).is_finite() && quantile(0.05, 0) > 6.0);
    }
}
