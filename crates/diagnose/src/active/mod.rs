//! The legs of a copy, apart and together: read and drop, write what was made up, and both;
//! interleaved, repeated, and once more with twice as much under way.
//!
//! Nothing is slowed unless that is asked for, and what is written is removed. It ends in time
//! whatever hangs.

mod bench;
mod conduct;
mod ends;
mod judge;
mod leg;
mod measured;
mod more;
mod page;
mod way;

use aqueduct_node::Failure;

pub use judge::judge;
pub use leg::{Leg, STATES, Slice, State};
pub use measured::{
    LegReport, Measured, Probe, ProbeReport, Question, Report, Sample, Setting, Side, Slowing, Swept, SweptReport,
};
pub use page::page;
pub use way::Way;

/// Measures and judges.
pub fn run(question: &Question) -> Result<Report, Failure> {
    let began = std::time::Instant::now();
    let measured = conduct::conduct(question)?;
    let verdict = judge(&measured);
    let (predicted, whole) = judge::predicted(&measured);
    let seconds = (began.elapsed().as_secs_f64() * 100.0).round() / 100.0;
    Ok(Report {
        verdict,
        legs: judge::legs(&measured),
        predicted,
        measured: whole,
        sweep: judge::swept(&measured),
        probes: judge::probes(&measured),
        seconds,
        samples: measured,
    })
}
