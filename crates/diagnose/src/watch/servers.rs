//! What servers tell of themselves, each asked on a thread of its own.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::server_status;
use aqueduct_metrics::status::ServerStatus;
use aqueduct_metrics::table::SERVER_OPERATION_SECONDS;
use aqueduct_node::Reach;

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

/// Requests of some kinds between two looks: how many, and how long they took together in seconds.
pub(super) fn served(before: &ServerStatus, now: &ServerStatus, is_kind: impl Fn(&str) -> bool) -> [f64; 2] {
    let sum = |status: &ServerStatus| {
        let of = status.metrics.sums(&SERVER_OPERATION_SECONDS).into_iter().filter(|(name, ..)| is_kind(name));
        of.fold([0.0, 0.0], |sum, (_, count, nanos)| [sum[0] + count as f64, sum[1] + nanos as f64 / 1e9])
    };
    let (before, now) = (sum(before), sum(now));
    [now[0] - before[0], now[1] - before[1]].map(|value| value.max(0.0))
}
