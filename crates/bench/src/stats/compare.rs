//! Two samples compared.

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::summary::{CONFIDENCE, Interval, quantile};
use super::{StatsError, sorted};

/// How often samples are drawn again from themselves.
pub const RESAMPLES: usize = 10_000;

/// So many values of each it takes for a verdict. With three or four the interval leaves out the truth in 7 to 10 % of cases rather than 5 (simulated, normal and skewed); from five on in 3 to 4 %.
pub const COMPARED_MIN: usize = 5;

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times.
    Lower,
}

impl Better {
    /// The unit decides. A time is better when it is shorter, also a time per amount (`s/GB`).
    /// Anything else is better when it is greater.
    pub fn of_unit(unit: &str) -> Better {
        let unit = unit.split('/').next().unwrap_or_default();
        if matches!(unit, "ns" | "us" | "µs" | "ms" | "s" | "min") { Better::Lower } else { Better::Higher }
    }
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The interval of the ratio lies wholly on the better side of one.
    Faster,
    /// Wholly on the worse side.
    Slower,
    /// One is in the interval, or there are too few values to tell.
    NoDifferenceShown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifferenceShown => "no difference shown",
        })
    }
}

/// The median of one sample as a share of another's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median of the new values divided by the base's.
    pub ratio: f64,
    /// Its 95 % interval: percentiles of the ratio between samples drawn from both again.
    pub interval: Interval,
    /// How many values the smaller of the samples has.
    pub n: usize,
}

impl Ratio {
    /// Of `new` to `base`. The same seed gives the same interval, in whatever order the values are given.
    pub fn of_medians(new: &[f64], base: &[f64], seed: u64) -> Result<Ratio, StatsError> {
        let (new, base) = (positive(new)?, positive(base)?);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut room = Vec::with_capacity(new.len().max(base.len()));
        let mut ratios: Vec<f64> = (0..RESAMPLES)
            .map(|_| drawn_median(&new, &mut random, &mut room) / drawn_median(&base, &mut random, &mut room))
            .collect();
        ratios.sort_by(f64::total_cmp);
        let tail = (1.0 - CONFIDENCE) / 2.0;
        Ok(Ratio {
            ratio: quantile(&new, 0.5) / quantile(&base, 0.5),
            interval: Interval { low: quantile(&ratios, tail), high: quantile(&ratios, 1.0 - tail) },
            n: new.len().min(base.len()),
        })
    }

    /// What that means for a figure that is better this way.
    pub fn verdict(&self, better: Better) -> Verdict {
        if self.n < COMPARED_MIN || self.interval.contains(1.0) {
            return Verdict::NoDifferenceShown;
        }
        let is_higher = self.interval.low > 1.0;
        if is_higher == (better == Better::Higher) { Verdict::Faster } else { Verdict::Slower }
    }
}

fn positive(values: &[f64]) -> Result<Vec<f64>, StatsError> {
    let sorted = sorted(values)?;
    match values.iter().position(|&value| value <= 0.0) {
        Some(index) => Err(StatsError::NotPositive { index }),
        None => Ok(sorted),
    }
}

/// The median of as many values as there are, drawn with replacement.
fn drawn_median(values: &[f64], random: &mut ChaCha8Rng, room: &mut Vec<f64>) -> f64 {
    room.clear();
    room.extend((0..values.len()).map(|_| values[random.random_range(0..values.len())]));
    let middle = room.len() / 2;
    let (below, &mut upper, _) = room.select_nth_unstable_by(middle, f64::total_cmp);
    if values.len() % 2 == 1 {
        return upper;
    }
    let lower = below.iter().copied().fold(f64::MIN, f64::max);
    lower + (upper - lower) / 2.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOW: [f64; 6] = [100.0, 101.0, 99.0, 100.5, 98.0, 102.0];

    fn times(factor: f64) -> Vec<f64> {
        SLOW.iter().map(|value| value * factor).collect()
    }

    #[test]
    fn a_difference_is_seen_either_way() {
        let ratio = Ratio::of_medians(&times(1.2), &SLOW, 1).unwrap();
        assert!((ratio.ratio - 1.2).abs() < 1e-12 && ratio.interval.contains(1.2));
        assert_eq!(ratio.verdict(Better::Higher), Verdict::Faster);
        assert_eq!(ratio.verdict(Better::Lower), Verdict::Slower);
        let ratio = Ratio::of_medians(&times(0.8), &SLOW, 1).unwrap();
        assert_eq!(ratio.verdict(Better::Higher), Verdict::Slower);
        assert_eq!(ratio.verdict(Better::Lower), Verdict::Faster);
    }

    #[test]
    fn no_difference_is_shown_where_none_is() {
        let ratio = Ratio::of_medians(&SLOW, &times(1.005), 1).unwrap();
        assert_eq!(ratio.verdict(Better::Higher), Verdict::NoDifferenceShown);
        assert_eq!(Ratio::of_medians(&SLOW, &SLOW, 1).unwrap().verdict(Better::Lower), Verdict::NoDifferenceShown);
    }

    #[test]
    fn few_values_show_nothing() {
        let ratio = Ratio::of_medians(&[200.0], &[100.0], 1).unwrap();
        assert_eq!((ratio.ratio, ratio.interval), (2.0, Interval { low: 2.0, high: 2.0 }));
        assert_eq!(ratio.verdict(Better::Higher), Verdict::NoDifferenceShown);
        assert_eq!(
            Ratio::of_medians(&times(2.0)[..4], &SLOW, 1).unwrap().verdict(Better::Higher),
            Verdict::NoDifferenceShown
        );
    }

    #[test]
    fn equal_values_differ_for_sure() {
        let ratio = Ratio::of_medians(&[3.0; 5], &[2.0; 5], 9).unwrap();
        assert_eq!(ratio.interval, Interval { low: 1.5, high: 1.5 });
        assert_eq!(ratio.verdict(Better::Higher), Verdict::Faster);
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        assert_eq!(Ratio::of_medians(&[], &SLOW, 1), Err(StatsError::Empty));
        assert_eq!(Ratio::of_medians(&SLOW, &[1.0, f64::NAN], 1), Err(StatsError::NotFinite { index: 1 }));
        assert_eq!(Ratio::of_medians(&[1.0, 0.0], &SLOW, 1), Err(StatsError::NotPositive { index: 1 }));
    }

    #[test]
    fn units_say_what_is_better() {
        use Better::{Higher, Lower};
        assert_eq!(["us", "s", "s/GB", "us/file"].map(Better::of_unit), [Lower; 4]);
        assert_eq!(["MiB/s", "op/s", "of 1"].map(Better::of_unit), [Higher; 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn the_same_seed_gives_the_same(values in prop::collection::vec(1.0..1e6f64, 1..20), seed: u64) {
            let mut turned = values.clone();
            turned.reverse();
            let first = Ratio::of_medians(&values, &SLOW, seed).unwrap();
            prop_assert_eq!(first, Ratio::of_medians(&turned, &SLOW, seed).unwrap());
            prop_assert!(first.interval.contains(first.ratio) || values.len() < COMPARED_MIN);
        }
    }
}
