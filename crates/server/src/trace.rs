//! Slow requests: where the time of each went at this server, and the last of them, for whoever
//! administers it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_metrics::trace::{Record, Ring, SlowOperation};
use aqueduct_worker::lock;

/// Bytes of one report: what a frame's body carries, with room for what stands around it.
const REPORT_LENGTH_MAX: usize = aqueduct_wire::BODY_LENGTH_MAX / 2;

/// Which requests are slow, and who else wants to know of requests.
#[derive(Clone, Default)]
pub struct TraceConfig {
    /// Requests are slow that take so long or longer, from when they are whole; `None`: nobody
    /// looks.
    pub threshold: Option<Duration>,
    /// A log of requests, for example.
    pub records: Vec<Arc<dyn Record>>,
}

/// Looks for slow requests.
pub(crate) struct Tracer {
    config: TraceConfig,
    ring: Mutex<Ring>,
}

impl Tracer {
    pub(crate) fn new(config: TraceConfig) -> Tracer {
        Tracer { config, ring: Mutex::default() }
    }

    /// A request was answered after so long. What it was is asked only where somebody wants it.
    pub(crate) fn ended(&self, took: Duration, request: impl FnOnce() -> SlowOperation) {
        let is_slow = self.config.threshold.is_some_and(|threshold| took >= threshold);
        let mut request = Some(request);
        let mut operation = None;
        if is_slow {
            operation = request.take().map(|request| lock(&self.ring).push(request()));
        }
        for record in self.config.records.iter().filter(|record| record.wants(took.as_micros() as u64)) {
            operation = operation.or_else(|| request.take().map(|request| Arc::new(request())));
            operation.iter().for_each(|operation| record.record(operation));
        }
    }

    /// Those from this number on, as JSON, as many as fit one frame.
    pub(crate) fn report(&self, from: u64) -> String {
        let since = lock(&self.ring).since(from);
        let size = |operation: &SlowOperation| serde_json::to_vec(operation).map_or(0, |text| text.len());
        let mut report = since.report(REPORT_LENGTH_MAX, size);
        report.threshold_ms = self.config.threshold.map(|threshold| threshold.as_secs_f64() * 1e3);
        serde_json::to_string(&report).unwrap_or_default() // its keys are strings
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Wants every second.
    #[derive(Default)]
    struct Second(AtomicU64, Mutex<Vec<u64>>);

    impl Record for Second {
        fn wants(&self, _took_us: u64) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) % 2 == 1
        }

        fn record(&self, operation: &Arc<SlowOperation>) {
            lock(&self.1).push(operation.took_us);
        }
    }

    #[test]
    fn what_is_slow_is_remembered_and_what_is_wanted_is_recorded() {
        let second = Arc::new(Second::default());
        let config = TraceConfig { threshold: Some(Duration::from_micros(3)), records: vec![second.clone()] };
        let tracer = Tracer::new(config);
        for took_us in 0..6 {
            let request = || SlowOperation { took_us, ..SlowOperation::default() };
            tracer.ended(Duration::from_micros(took_us), request);
        }
        assert_eq!(*lock(&second.1), [1, 3, 5]);
        let report: aqueduct_metrics::trace::TraceReport = serde_json::from_str(&tracer.report(1)).unwrap();
        let told: Vec<u64> = report.operations.iter().map(|operation| operation.took_us).collect();
        assert_eq!((told, report.slow, report.threshold_ms), (vec![4, 5], 3, Some(0.003)));
        Tracer::new(TraceConfig::default()).ended(Duration::MAX, || unreachable!("nobody looks"));
    }
}
