//! The jobs of batch systems that a session's requests say they are made for, and what each has
//! asked for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_metrics::{Family, Series};
use aqueduct_worker::lock;

use crate::metrics::Traffic;

/// Jobs of one session that are counted under their names, about 300 bytes each: a node runs few
/// at a time. The one that was silent longest gives way.
const JOBS_OF_SESSION_MAX: usize = 32;

/// A job that has asked for nothing for so long makes room for others.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// A job at a server.
#[derive(Debug)]
pub(crate) struct JobTraffic {
    pub(crate) name: Arc<str>,
    pub(crate) traffic: Series<Traffic>,
}

/// Those of a session, the one that asked last in front.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<VecDeque<(Arc<JobTraffic>, Instant)>>);

impl Jobs {
    /// It asks something for a job.
    pub(crate) fn note(&self, name: &str, all: &Family<Traffic>) -> Arc<JobTraffic> {
        let now = Instant::now();
        let mut known = lock(&self.0);
        match known.iter().position(|(job, _)| &*job.name == name) {
            Some(0) => {}
            Some(at) => known.swap(0, at),
            None => {
                known.retain(|(_, since)| now.duration_since(*since) < FORGOTTEN_AFTER);
                if known.len() >= JOBS_OF_SESSION_MAX {
                    let oldest = known.iter().enumerate().min_by_key(|(_, (_, since))| *since);
                    let oldest = oldest.map_or(0, |(at, _)| at);
                    known.remove(oldest);
                }
                known.push_front((Arc::new(JobTraffic { name: name.into(), traffic: all.series(name) }), now));
            }
        }
        let (job, since) = &mut known[0];
        *since = now;
        job.clone()
    }

    /// The job for which it asked something last.
    pub(crate) fn last(&self) -> Option<Arc<str>> {
        lock(&self.0).front().map(|(job, _)| job.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_counted_by_name_and_bounded() {
        let (jobs, all) = (Jobs::default(), Family::new(1000, Traffic::default));
        for _ in 0..3 {
            jobs.note("a", &all).traffic.count(10, 0);
            jobs.note("b", &all).traffic.count(0, 1);
        }
        assert_eq!(jobs.last().as_deref(), Some("b"));
        let mut found = Vec::new();
        all.for_each(|name, of| found.push((name.to_owned(), of.operations.get(), of.bytes_read.get())));
        assert_eq!(found, [("a".into(), 3, 30), ("b".into(), 3, 0), ("other".into(), 0, 0)]);
        (0..1000).for_each(|at| _ = jobs.note(&format!("j{at}"), &all));
        assert_eq!(lock(&jobs.0).len(), JOBS_OF_SESSION_MAX);
        found.clear();
        all.for_each(|name, of| found.push((name.to_owned(), of.operations.get(), of.bytes_read.get())));
        assert_eq!(found.last(), Some(&("other".into(), 6, 30)), "what has gone stays counted");
    }
}
