//! Whether enough was measured.

use serde::{Deserialize, Serialize};

use super::summary::{MEDIAN_INTERVAL_MIN, Summary, mean_half_width};

/// More repetitions than so are never asked for.
pub const MORE_MAX: usize = 1_000_000;

/// Which figure of a [`Summary`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// [`Summary::median`].
    #[default]
    Median,
    /// [`Summary::mean`].
    Mean,
    /// [`Summary::min`].
    Min,
    /// [`Summary::max`].
    Max,
    /// [`Summary::stdev`].
    Stdev,
    /// [`Summary::cv`].
    Cv,
}

impl Statistic {
    /// This figure of a sample, where it has one.
    pub fn of(self, summary: &Summary) -> Option<f64> {
        match self {
            Statistic::Median => Some(summary.median),
            Statistic::Mean => Some(summary.mean),
            Statistic::Min => Some(summary.min),
            Statistic::Max => Some(summary.max),
            Statistic::Stdev => summary.stdev,
            Statistic::Cv => summary.cv,
        }
    }
}

/// How narrow the 95 % interval of the mean or median shall be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Of the mean; of the median otherwise.
    pub of_mean: bool,
    /// The interval from end to end, as a share of the mean or median.
    pub width: f64,
}

impl Goal {
    /// How many more repetitions it is likely to take; 0 when the interval is narrow enough. That is a guess: further values may spread more or less than those so far.
    pub fn more(self, summary: &Summary) -> usize {
        if self.of_mean { self.more_for_mean(summary) } else { self.more_for_median(summary) }
    }

    fn more_for_mean(self, summary: &Summary) -> usize {
        let Some(stdev) = summary.stdev else { return 1 };
        let wanted = self.width * summary.mean.abs();
        let is_enough = |more: usize| 2.0 * mean_half_width(stdev, summary.n + more) <= wanted;
        if is_enough(0) {
            return 0;
        }
        if !is_enough(MORE_MAX) {
            return MORE_MAX;
        }
        let (mut too_few, mut enough) = (0, MORE_MAX);
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            *(if is_enough(middle) { &mut enough } else { &mut too_few }) = middle;
        }
        enough
    }

    fn more_for_median(self, summary: &Summary) -> usize {
        let Some(interval) = summary.median_interval else { return MEDIAN_INTERVAL_MIN.saturating_sub(summary.n) };
        let wanted = self.width * summary.median.abs();
        if interval.width() <= wanted {
            return 0;
        }
        // The interval narrows with the root of how many there are.
        let needed = (summary.n as f64 * (interval.width() / wanted).powi(2)).ceil();
        // A float beyond the range of integers ends at their end.
        (needed as usize).saturating_sub(summary.n).clamp(1, MORE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn more(of_mean: bool, width: f64, values: &[f64]) -> usize {
        Goal { of_mean, width }.more(&Summary::of(values).unwrap())
    }

    #[test]
    fn what_is_certain_needs_no_more() {
        assert_eq!(more(true, 0.01, &[5.0; 2]), 0);
        assert_eq!(more(false, 0.01, &[5.0; 6]), 0);
        assert_eq!(more(true, 0.0, &[5.0; 3]), 0);
    }

    #[test]
    fn an_interval_takes_a_least_number() {
        assert_eq!(more(true, 0.5, &[5.0]), 1);
        assert_eq!(more(false, 0.5, &[5.0]), 5);
        assert_eq!(more(false, 0.5, &[5.0; 5]), 1);
    }

    #[test]
    fn a_narrower_interval_needs_more() {
        let values = [98.0, 103.0, 100.0, 97.0, 101.0, 104.0, 99.0];
        for of_mean in [true, false] {
            assert_eq!(more(of_mean, 0.5, &values), 0);
            let (wide, narrow) = (more(of_mean, 0.03, &values), more(of_mean, 0.01, &values));
            assert!(0 < wide && wide < narrow && narrow < 1000, "{of_mean}: {wide} {narrow}");
        }
        assert_eq!(more(true, 0.0, &values), MORE_MAX);
        assert_eq!(more(false, 0.0, &values), MORE_MAX);
    }

    #[test]
    fn the_mean_needs_exactly_so_many() {
        // stdev 2.581989, mean 100: 2 t s / sqrt(n) <= 2 for n = 29 (t = 2.0484), not for 28 (t = 2.0518).
        let values = [98.0, 103.0, 100.0, 97.0, 101.0, 104.0, 97.0];
        let summary = Summary::of(&values).unwrap();
        let n = summary.n + more(true, 0.02, &values);
        assert!(2.0 * mean_half_width(summary.stdev.unwrap(), n) <= 2.0);
        assert!(2.0 * mean_half_width(summary.stdev.unwrap(), n - 1) > 2.0);
    }
}
