//! The units of an agent as spans.

use std::collections::BTreeMap;

use aqueduct_observe::{Said, Work};

use super::unit::{Claimed, Outcome, Unit};
use crate::ledger::STAGES;
use crate::spans::{Began, trace_of};

/// What a unit does, and of which class of files.
fn kind_of(unit: &Unit) -> &'static str {
    match unit {
        Unit::Directory { .. } => "directory",
        Unit::Files { .. } => "files",
        Unit::Large { .. } => "large file: begin",
        Unit::Chunks { .. } => "large file: chunks",
        Unit::Finish { .. } => "large file: finish",
        Unit::Links { .. } => "links",
        Unit::Attributes { .. } => "attributes of directories",
        Unit::Delete => "delete",
        Unit::Sweep => "sweep",
    }
}

pub(super) fn of_unit((job, agent): (u64, &str), claimed: &Claimed, (began, took): Began, outcome: &Outcome) -> Work {
    let count = |what: &str| outcome.tally.get(what).copied().unwrap_or_default().max(0) as u64;
    let stages: BTreeMap<&str, u64> = STAGES.iter().map(|(_, name)| (*name, count(&format!("stage:{name}")))).collect();
    let whole = stages.values().sum::<u64>().max(1) as f64;
    let parts = stages.iter().filter(|(_, nanos)| **nanos > 0);
    let first = outcome.troubles.first();
    Work {
        name: kind_of(&claimed.unit).to_owned(),
        trace: trace_of(job),
        is_root: false,
        began,
        took,
        failed: first.map(|trouble| format!("{}: {}: {}", trouble.path, trouble.what, trouble.why)),
        attributes: vec![
            ("aqueduct.agent", Said::Text(agent.to_owned())),
            ("aqueduct.transfer", Said::Number(claimed.job.max(0) as u64)),
            ("aqueduct.unit", Said::Number(claimed.id.max(0) as u64)),
            ("aqueduct.files", Said::Number(count("count:files"))),
            ("aqueduct.bytes", Said::Number(count("count:moved"))),
        ],
        parts: parts.map(|(name, nanos)| ((*name).to_owned(), *nanos as f64 / whole)).collect(),
    }
}
