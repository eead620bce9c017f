//! Copies as spans, for a collector of OpenTelemetry: one for each copy, and for each unit of an
//! agent, with the stages of its threads below it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aqueduct_node::tool_spans;
use aqueduct_observe::{Otlp, Said, Work};

use crate::Failure;
use crate::outcome::Summary;
use crate::run::Plan;
use crate::store::random;

/// Where spans go, if anybody wants them.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Otlp>>);

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spans").field(&self.0.is_some()).finish()
    }
}

/// What is said of a copy before it begins.
#[derive(Clone, Debug)]
pub struct Described {
    name: &'static str,
    trace: String,
    source: String,
    destination: String,
}

impl Described {
    /// A copy that this process makes, or has made.
    pub fn of(plan: &Plan) -> Described {
        let sources: Vec<String> = plan.sources.iter().map(ToString::to_string).collect();
        Described {
            name: if plan.is_sync { "sync" } else { "cp" },
            trace: format!("copy {:016x}", random()),
            source: sources.join(" "),
            destination: plan.target.to_string(),
        }
    }

    /// The job of a store that it has become.
    pub fn as_job(self, name: u64) -> Described {
        Described { trace: trace_of(name), ..self }
    }
}

/// What the units of a job, and who waits for it, call its trace.
pub(crate) fn trace_of(job: u64) -> String {
    format!("job {job:016x}")
}

impl Spans {
    /// To the collector at this address.
    pub fn to(collector: Option<&str>) -> Result<Spans, Failure> {
        Ok(Spans(collector.map(tool_spans).transpose()?.map(Arc::new)))
    }

    /// Makes a copy, and tells of it.
    pub fn around<T, E: fmt::Display>(
        &self,
        described: &Described,
        work: impl FnOnce() -> Result<T, E>,
        summary: impl FnOnce(&T) -> &Summary,
    ) -> Result<T, E> {
        let (began, started) = (SystemTime::now(), Instant::now());
        let result = work();
        if let Some(otlp) = &self.0 {
            let told = result.as_ref().map(summary).map_err(ToString::to_string);
            otlp.send(of_copy(described, (began, started.elapsed()), told));
        }
        result
    }

    /// Sends a work, if anybody wants it.
    pub(crate) fn send(&self, work: impl FnOnce() -> Work) {
        if let Some(otlp) = &self.0 {
            otlp.send(work());
        }
    }
}

/// When something began, and how long it took.
pub(crate) type Began = (SystemTime, Duration);

fn of_copy(described: &Described, (began, took): Began, result: Result<&Summary, String>) -> Work {
    let text = |key, value: &str| (key, Said::Text(value.to_owned()));
    let mut attributes =
        vec![text("aqueduct.source", &described.source), text("aqueduct.destination", &described.destination)];
    let mut parts = Vec::new();
    let failed = match result {
        Ok(summary) => {
            let counts = &summary.counts;
            let numbers = [
                ("aqueduct.files", counts.files),
                ("aqueduct.directories", counts.directories),
                ("aqueduct.unchanged", counts.unchanged),
                ("aqueduct.bytes", counts.moved),
                ("aqueduct.troubles", summary.trouble_count),
                ("aqueduct.lost", summary.lost_count),
                ("aqueduct.streams", summary.streams.unwrap_or_default() as u64),
            ];
            attributes.extend(numbers.map(|(key, count)| (key, Said::Number(count))));
            attributes.extend(summary.limit.iter().map(|limit| text("aqueduct.limit", limit)));
            parts = summary.ledger.iter().map(|(stage, share)| (stage.to_string(), *share)).collect();
            let first = summary.troubles.first();
            first.map(|trouble| format!("{}: {}: {}", trouble.path, trouble.what, trouble.why))
        }
        Err(why) => Some(why),
    };
    parts.retain(|(_, share)| *share > 0.0);
    let (name, trace) = (described.name.to_owned(), described.trace.clone());
    Work { name, trace, is_root: true, began, took, failed, attributes, parts }
}
