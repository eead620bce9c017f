//! One sample in figures.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{StatsError, sorted};

/// How sure intervals are.
pub const CONFIDENCE: f64 = 0.95;

/// So many values it takes until an interval of the median can be given: with five, the whole range holds it in 93.75 % of cases only.
pub const MEDIAN_INTERVAL_MIN: usize = 6;

/// Tukey's fences stand so many interquartile ranges beyond the quartiles.
const FENCE: f64 = 1.5;

/// Outliers are not looked for among fewer: the quartiles of three values are made of the value in question.
const OUTLIERS_MIN: usize = 4;

/// From here to there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// From end to end.
    pub fn width(self) -> f64 {
        self.high - self.low
    }

    /// Whether it has this value in it.
    pub fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// What can be said of one sample. Outliers count in every figure: they are pointed out, never dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many values.
    pub n: usize,
    /// Their arithmetic mean.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
    /// The least.
    pub min: f64,
    /// The sample's standard deviation (n - 1); of one value there is none.
    pub stdev: Option<f64>,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The lower quartile, by linear interpolation (type 7, as numpy's and R's default).
    pub q1: f64,
    /// The upper quartile.
    pub q3: f64,
    /// The coefficient of variation: the standard deviation as a share of the mean, where that is not zero.
    pub cv: Option<f64>,
    /// The 95 % interval of the mean, by Student's t; of one value there is none.
    pub mean_interval: Option<Interval>,
    /// The 95 % interval of the median, by order statistics, which suppose nothing about the distribution; from [`MEDIAN_INTERVAL_MIN`] values on.
    pub median_interval: Option<Interval>,
    /// Which values lie beyond Tukey's fences: their indices as given.
    pub outliers: Vec<usize>,
}

impl Summary {
    /// Of these values, in any order.
    pub fn of(values: &[f64]) -> Result<Summary, StatsError> {
        let sorted = sorted(values)?;
        let n = sorted.len();
        let (min, max) = (sorted[0], sorted[n - 1]);
        // Rounding must not carry the mean of equal values away from them.
        let mean = (sorted.iter().sum::<f64>() / n as f64).clamp(min, max);
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let stdev = (n > 1).then(|| (squares / (n - 1) as f64).sqrt());
        let (q1, q3) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
        Ok(Summary {
            n,
            mean,
            max,
            min,
            stdev,
            median: quantile(&sorted, 0.5),
            q1,
            q3,
            cv: stdev.filter(|_| mean != 0.0).map(|stdev| stdev / mean.abs()),
            mean_interval: stdev.map(|stdev| {
                let half = mean_half_width(stdev, n);
                Interval { low: mean - half, high: mean + half }
            }),
            median_interval: median_interval(&sorted),
            outliers: outliers(values, q1, q3),
        })
    }
}

/// The value below which a share of the values lies, by linear interpolation (type 7). They are sorted, and at least one.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = sorted[place as usize];
    let above = sorted[(place as usize + 1).min(sorted.len() - 1)];
    below + (above - below) * place.fract()
}

/// Half of the 95 % interval of a mean of `n` values (two at least).
pub(super) fn mean_half_width(stdev: f64, n: usize) -> f64 {
    // Student's t with one degree of freedom or more always exists.
    let t = StudentsT::new(0.0, 1.0, (n - 1) as f64).map_or(f64::INFINITY, |t| t.inverse_cdf((1.0 + CONFIDENCE) / 2.0));
    if stdev == 0.0 { 0.0 } else { t * stdev / (n as f64).sqrt() }
}

/// The narrowest symmetric pair of order statistics that holds the median in 95 % of cases or more.
fn median_interval(sorted: &[f64]) -> Option<Interval> {
    let place = median_interval_place(sorted.len())?;
    Some(Interval { low: sorted[place], high: sorted[sorted.len() - 1 - place] })
}

/// The greatest `k` for which values `k` and `n - 1 - k` are such a pair: how many of `n` lie below the median is binomial, and k or fewer do with a probability under 2.5 %.
fn median_interval_place(n: usize) -> Option<usize> {
    let tail = (1.0 - CONFIDENCE) / 2.0;
    // In logarithms: 0.5^n is nothing from n = 1075 on.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for k in 0..n {
        below += log_term.exp();
        if below >= tail {
            return k.checked_sub(1);
        }
        log_term += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    None
}

fn outliers(values: &[f64], q1: f64, q3: f64) -> Vec<usize> {
    if values.len() < OUTLIERS_MIN {
        return Vec::new();
    }
    let reach = FENCE * (q3 - q1);
    let is_far = |value: f64| value < q1 - reach || value > q3 + reach;
    (0..values.len()).filter(|&index| is_far(values[index])).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(Summary::of(&[]), Err(StatsError::Empty));
        assert_eq!(Summary::of(&[1.0, f64::NAN]), Err(StatsError::NotFinite { index: 1 }));
        assert_eq!(Summary::of(&[f64::INFINITY]), Err(StatsError::NotFinite { index: 0 }));
    }

    #[test]
    fn one_value_has_no_spread() {
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.n, one.mean, one.max, one.min, one.median, one.q1, one.q3), (1, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0));
        assert_eq!((one.stdev, one.cv, one.mean_interval, one.median_interval), (None, None, None, None));
        assert!(one.outliers.is_empty());
    }

    #[test]
    fn two_values_have_a_wide_interval() {
        let two = Summary::of(&[1.0, 3.0]).unwrap();
        assert_eq!((two.mean, two.median, two.q1, two.q3), (2.0, 2.0, 1.5, 2.5));
        assert!((two.stdev.unwrap() - 2f64.sqrt()).abs() < 1e-12);
        // t of one degree of freedom is 12.706.
        assert!((two.mean_interval.unwrap().width() - 2.0 * 12.706_204_736).abs() < 1e-8);
    }

    #[test]
    fn equal_values_are_certain() {
        let equal = Summary::of(&[0.1; 9]).unwrap();
        assert_eq!((equal.mean, equal.stdev, equal.cv), (0.1, Some(0.0), Some(0.0)));
        let point = Some(Interval { low: 0.1, high: 0.1 });
        assert_eq!((equal.mean_interval, equal.median_interval), (point, point));
        assert!(equal.outliers.is_empty());
        assert_eq!(Summary::of(&[0.0, 0.0]).unwrap().cv, None, "a share of zero");
    }

    #[test]
    fn an_outlier_is_pointed_out_and_counts() {
        let values = [10.0, 11.0, 2.0, 10.5, 10.2, 10.8];
        let summary = Summary::of(&values).unwrap();
        assert_eq!(summary.outliers, [2], "its index as given");
        assert_eq!((summary.n, summary.min), (6, 2.0));
        assert!(summary.mean < 10.0);
    }

    #[test]
    fn the_median_is_between_values_only_when_enough_are_known() {
        assert_eq!(median_interval_place(5), None);
        assert_eq!(median_interval_place(6), Some(0));
        assert_eq!(median_interval_place(9), Some(1));
        // A table of Conover's: ranks 6 and 15 of 20, 40 and 61 of 100.
        assert_eq!(median_interval_place(20), Some(5));
        assert_eq!(median_interval_place(100), Some(39));
        assert!(median_interval_place(5000).is_some_and(|place| (2420..2440).contains(&place)));
    }

    proptest! {
        #[test]
        fn figures_keep_their_order(values in prop::collection::vec(-1e6..1e6f64, 1..60)) {
            let s = Summary::of(&values).unwrap();
            prop_assert!(s.min <= s.q1 && s.q1 <= s.median && s.median <= s.q3 && s.q3 <= s.max);
            prop_assert!(s.min <= s.mean && s.mean <= s.max);
            prop_assert!(s.mean_interval.is_none_or(|interval| interval.contains(s.mean)));
            prop_assert!(s.median_interval.is_none_or(|interval| interval.contains(s.median)));
            prop_assert!(s.outliers.len() <= s.n / 2);
            let mut turned = values.clone();
            turned.reverse();
            let t = Summary::of(&turned).unwrap();
            prop_assert_eq!((s.mean, s.median, s.stdev, s.outliers.len()), (t.mean, t.median, t.stdev, t.outliers.len()));
        }
    }
}
