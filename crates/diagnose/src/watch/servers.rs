//! What servers tell of themselves, each asked on a thread of its own.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::server_status;
use aqueduct_metrics::status::ServerStatus;
use aqueduct_metrics::table::SERVER_OPERATION_SECONDS;
use aqueduct_node::Reach;

use super::watched::Held;

/// How long one may take to tell.
const TOLD_MAX: Duration = Duration::from_secs(2);

/// What a server told, or why it did not.
pub(super) type Told = Result<ServerStatus, String>;

/// Asks all at once.
pub(super) fn ask(servers: &[String], reach: &Reach) -> Vec<Told> {
    let (sender, answers) = mpsc::channel();
    for (index, server) in servers.iter().enumerate() {
        let (sender, server, reach) = (sender.clone(), server.clone(), reach.clone());
        let ask = move || {
            let told = server_status(&server, reach, TOLD_MAX).map_err(|error| error.to_string());
            let told = told.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
            let _ = sender.send((index, told)); // nobody waits any more
        };
        // One that cannot be had asks nothing.
        let _ = thread::Builder::new().name("ask".into()).spawn(ask);
    }
    drop(sender);
    let mut told: Vec<Told> = servers.iter().map(|_| Err("it does not answer".to_owned())).collect();
    let end = Instant::now() + TOLD_MAX + Duration::from_millis(500);
    while let Ok((index, answer)) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        told[index] = answer;
    }
    told
}

/// The rate to which an export is held, if most of the requests that moved data there, of which
/// there were so many, waited for it.
pub(super) fn held((before, now): (&Told, &Told), export: &str, requests: f64) -> Option<Held> {
    /// Requests find the rate used up for half of the time or more where it limits.
    const WAITS_MIN: f64 = 0.5;
    let data = |told: &Told| {
        let status = told.as_ref().ok()?;
        status.exports.iter().find(|known| known.name == export)?.data.clone()
    };
    let (before, now) = (data(before)?, data(now)?);
    let waited = now.throttled.saturating_sub(before.throttled) as f64;
    // Others that share the export wait for the same rate.
    let waits = if requests > 0.0 { (waited / requests).min(1.0) } else { 0.0 };
    (waits >= WAITS_MIN).then_some(Held { rate: now.rate?, waits })
}

/// Requests of some kinds between two looks: how many, and how long they took together in seconds.
pub(super) fn served(before: &ServerStatus, now: &ServerStatus, is_kind: impl Fn(&str) -> bool) -> [f64; 2] {
    let sum = |status: &ServerStatus| {
        let of = status.metrics.sums(&SERVER_OPERATION_SECONDS).into_iter().filter(|(name, ..)| is_kind(name));
        of.fold([0.0, 0.0], |sum, (_, count, nanos)| [sum[0] + count as f64, sum[1] + nanos as f64 / 1e9])
    };
    let (before, now) = (sum(before), sum(now));
    [now[0] - before[0], now[1] - before[1]].map(|value| value.max(0.0))
}

#[cfg(test)]
mod tests {
    use aqueduct_metrics::status::{DataStatus, ExportStatus};

    use super::*;

    #[test]
    fn an_export_is_held_where_most_requests_wait_for_its_rate() {
        let told = |rate: Option<u64>, throttled: u64| {
            let data = Some(DataStatus { rate, throttled, ..DataStatus::default() });
            let export = ExportStatus { name: "/e".into(), data, ..ExportStatus::default() };
            Ok(ServerStatus { exports: vec![export], ..ServerStatus::default() })
        };
        let of = |rate, waited: u64, requests| held((&told(rate, 7), &told(rate, 7 + waited)), "/e", requests);
        assert_eq!(of(Some(30), 90, 100.0), Some(Held { rate: 30, waits: 0.9 }));
        assert_eq!(of(Some(30), 300, 100.0), Some(Held { rate: 30, waits: 1.0 }), "of others as well");
        assert_eq!(of(Some(30), 20, 100.0), None);
        assert_eq!((of(Some(30), 0, 0.0), of(None, 90, 100.0)), (None, None));
        assert_eq!(held((&told(Some(30), 0), &told(Some(30), 90)), "/other", 100.0), None);
        assert_eq!(held((&Err("silent".into()), &told(Some(30), 90)), "/e", 100.0), None);
    }
}
