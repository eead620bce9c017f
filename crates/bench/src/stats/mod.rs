//! What can be said of repeated measurements. Pure: the same values give the same figures, always.
//!
//! - [`Summary`]: one sample in figures, with intervals and outliers.
//! - [`Ratio`]: two samples compared, with an interval and a [`Verdict`].
//! - [`Goal`]: whether an interval is narrow enough, and how many repetitions more that may take.
//!
//! Definitions are numpy's and scipy's, against which `tests/stats.rs` checks them.

mod compare;
mod goal;
mod summary;

pub use compare::{Better, COMPARED_MIN, RESAMPLES, Ratio, Verdict};
pub use goal::{Goal, MORE_MAX, Statistic};
pub use summary::{CONFIDENCE, Interval, MEDIAN_INTERVAL_MIN, Summary, quantile};

/// Why nothing can be said of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatsError {
    /// It has no values.
    #[error("there are no values")]
    Empty,
    /// A value is NaN or infinite.
    #[error("value {index} is not a finite number")]
    NotFinite {
        /// Which, from 0.
        index: usize,
    },
    /// A ratio was asked for, and a value is zero or less.
    #[error("value {index} is not positive: a ratio says nothing of it")]
    NotPositive {
        /// Which, from 0.
        index: usize,
    },
}

/// The values in ascending order, if all of them are numbers.
fn sorted(values: &[f64]) -> Result<Vec<f64>, StatsError> {
    if values.is_empty() {
        return Err(StatsError::Empty);
    }
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(StatsError::NotFinite { index });
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Ok(sorted)
}
