//! The model's random operations (crates/model): every result and errno is that of a local directory.

use std::time::Duration;

use aqueduct_model::{Profile, Settings, Tally, check_seed};

use super::{Outcome, Stop, Work};

const OPERATIONS: usize = 300;

/// An operation that takes longer hangs: several faults in a row, and the grace in which locks wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sequence after sequence, on a mount that is never killed and a disk that is never full.
pub fn work(work: &mut Work) -> Outcome<()> {
    let trouble = |error: std::io::Error| Stop::Finding(format!("the model's own trouble: {error}"));
    let reference = work.part.export.with_extension("reference");
    let settings = Settings {
        reference: reference.clone(),
        subjects: vec![work.point().to_owned()],
        operations: OPERATIONS,
        patience: PATIENCE,
        restarts: true,
    };
    let profile = Profile::probe(&reference, &settings.subjects).map_err(trouble)?;
    let first = work.part.seed.wrapping_mul(1000);
    let mut tally = Tally::default();
    for seed in first.. {
        if work.is_over() {
            break;
        }
        work.tell(&format!("{} {} the sequence {seed}", work.report.operations, super::now()));
        if let Err(divergence) = check_seed(&settings, &profile, seed, &mut tally).map_err(trouble)? {
            return Err(Stop::Finding(format!("sequence {seed}: {divergence}")));
        }
        work.report.operations += OPERATIONS as u64;
    }
    Ok(())
}
