//! The legs of a copy, apart and together: read and drop, write what was made up, and both;
//! interleaved, repeated, and once more with twice as much under way.
//!
//! Nothing is slowed, and what is written is removed. It ends in time whatever hangs.

mod conduct;
mod ends;
mod judge;
mod leg;
mod measured;
mod way;

use aqueduct_node::Failure;
use serde::Serialize;

pub use judge::judge;
pub use leg::{Leg, STATES, Slice, State};
pub use measured::{LegReport, Measured, Question, Sample, Side};
pub use way::Way;

use crate::Verdict;

/// What is told: the verdict, and the figures of the legs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What limits.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Median rates of the legs in bytes per second.
    pub legs: Vec<LegReport>,
    /// Bytes per second of the whole, as the parts predict it, and as it was.
    pub predicted: f64,
    /// See `predicted`.
    pub measured: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Measures and judges.
pub fn run(question: &Question) -> Result<Report, Failure> {
    let began = std::time::Instant::now();
    let measured = conduct::conduct(question)?;
    let verdict = judge(&measured);
    let (predicted, whole) = judge::predicted(&measured);
    let seconds = (began.elapsed().as_secs_f64() * 100.0).round() / 100.0;
    Ok(Report { verdict, legs: judge::legs(&measured), predicted, measured: whole, seconds })
}
