//! `aqueduct status`: asks mounts and servers how they fare, twice, and shows what changed between.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::{ConnectError, server_status};
use aqueduct_metrics::status::{
    AccessStatus, BackingStatus, ClientStatus, DataStatus, ExportStatus, ListenStatus, MountStatus, RailStatus,
    RouterStatus, ServerStatus, SessionStatus,
};
use aqueduct_metrics::table::{self, Metric};
use aqueduct_metrics::{Counter, Histogram, Sample, Snapshot};
use aqueduct_node::control::{self, Request};
use aqueduct_node::mounts::{self, Mount};
use aqueduct_node::{Initiator, PORT, keyfile, server_address, usual_control};
use aqueduct_wire::ClientKey;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::table::{bytes, micros, render, span};
use crate::{args, output, route};

/// Between the two looks from which rates are computed.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// Between two looks with --watch.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A mount or server that says nothing for so long is shown as silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Kinds of requests that are listed of each mount: those that took longest in all.
const REQUESTS_SHOWN_MAX: usize = 8;

/// One look at everything that was asked for.
struct Look {
    at: Instant,
    mounts: Vec<Mounted>,
    server: Option<Server>,
    /// Why the server of this machine does not tell, where one runs.
    problem: Option<String>,
    router: Option<RouterStatus>,
}

/// What is shown: the last look, with rates if there was one before.
#[derive(Serialize)]
struct Shown {
    mounts: Vec<Mounted>,
    server: Option<Server>,
    problem: Option<String>,
    /// That of this machine, if one runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    router: Option<RouterStatus>,
}

/// A mount of this machine.
#[derive(Clone, Serialize)]
struct Mounted {
    /// What it tells of itself.
    #[serde(flatten)]
    status: Option<MountStatus>,
    target: String,
    source: String,
    read_only: bool,
    /// `ok`, or why it does not tell.
    state: String,
    #[serde(flatten)]
    rates: Option<Rates>,
    latency: Vec<Latency>,
}

/// A server.
#[derive(Clone, Serialize)]
struct Server {
    #[serde(flatten)]
    status: ServerStatus<Session>,
    address: String,
    #[serde(flatten)]
    rates: Option<Rates>,
    latency: Vec<Latency>,
}

/// A session of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Session {
    #[serde(flatten)]
    status: SessionStatus,
    #[serde(flatten, skip_deserializing)]
    rates: Option<Rates>,
}

/// From two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Rates {
    operations_per_second: f64,
    bytes_read_per_second: f64,
    bytes_written_per_second: f64,
}

/// How long one kind of request took.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Latency {
    operation: String,
    count: u64,
    errors: u64,
    /// In microseconds: what half of them, and all but one in a hundred, did not exceed.
    p50_us: f64,
    p99_us: f64,
    /// Of all of them together.
    #[serde(skip)]
    total: u64,
}

impl Rates {
    /// Of three counters: operations, and bytes read and written.
    fn between(before: [u64; 3], now: [u64; 3], seconds: f64) -> Rates {
        let rate = |at: usize| (now[at].saturating_sub(before[at]) as f64 / seconds).round();
        Rates { operations_per_second: rate(0), bytes_read_per_second: rate(1), bytes_written_per_second: rate(2) }
    }

    fn shown(rates: Option<&Rates>) -> [String; 3] {
        let Some(rates) = rates else { return ["-", "-", "-"].map(str::to_owned) };
        [
            format!("{:.0}", rates.operations_per_second),
            bytes(rates.bytes_read_per_second),
            bytes(rates.bytes_written_per_second),
        ]
    }
}

impl Latency {
    /// Of each label of a histogram, with the errors that are counted under the same label: what
    /// took longest in all comes first.
    fn of(metrics: &Snapshot, seconds: &Metric<Histogram>, errors: &Metric<Counter>) -> Vec<Latency> {
        let label = seconds.definition.labels.first().copied().unwrap_or_default();
        let failed = |name: &str| {
            let errors = metrics.samples(errors.definition.name).iter();
            errors.filter(|sample| sample.label(label) == name).map(Sample::number).sum()
        };
        let samples = metrics.samples(seconds.definition.name).iter();
        let mut found: Vec<Latency> = samples
            .filter_map(|sample| {
                let (name, taken) = (sample.label(label), sample.histogram()?);
                let micros = |quantile| (taken.quantile(quantile).unwrap_or(0.0) / 100.0).round() / 10.0;
                Some(Latency {
                    operation: name.to_owned(),
                    count: taken.count(),
                    errors: failed(name),
                    p50_us: micros(0.5),
                    p99_us: micros(0.99),
                    total: taken.sum,
                })
            })
            .collect();
        found.sort_by_key(|latency| std::cmp::Reverse(latency.total));
        found
    }

    fn row(&self) -> Vec<String> {
        let [count, errors] = [self.count, self.errors].map(|count| count.to_string());
        vec![self.operation.clone(), count, errors, micros(self.p50_us), micros(self.p99_us)]
    }
}

/// Shows the status, once or until Ctrl-C.
pub fn run(arguments: &args::Status) -> Result<ExitCode, Failure> {
    let server = arguments.server.as_deref();
    let key = arguments.key.as_deref().map(keyfile::load_client).transpose()?;
    let routes = arguments.routes.resolve()?;
    let asker = (key.as_ref(), routes.as_ref());
    let mut before = None;
    if !arguments.once {
        before = Some(look(server, asker)?);
        thread::sleep(LOOKS_APART);
    }
    loop {
        let now = look(server, asker)?;
        let shown = with_rates(before.as_ref(), &now);
        if arguments.json {
            match arguments.watch {
                true => output::line(format_args!("{}", serde_json::json!(shown))),
                false => output::json(&shown),
            }
        } else {
            // Home and erase, so that a terminal shows one table that changes.
            let clear = if arguments.watch { "\x1b[H\x1b[J" } else { "" };
            output::print(format_args!("{clear}{}", text(&shown, server.is_some())));
        }
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(now);
        thread::sleep(WATCH_INTERVAL);
    }
}

/// Who asks: with which key, by which routes.
type Asker<'a> = (Option<&'a ClientKey>, Option<&'a Arc<Initiator>>);

fn look(server: Option<&str>, asker: Asker<'_>) -> Result<Look, Failure> {
    let at = Instant::now();
    if let Some(name) = server {
        let address = server_address(name);
        let status = ask_server(&address, asker).map_err(|error| {
            let hint = error.hint();
            Failure::new(format!("cannot get the status of {address}"), error, hint)
        })?;
        return Ok(Look { at, mounts: Vec::new(), server: Some(status), problem: None, router: None });
    }
    let mounts = mounts::all().map_err(|error| {
        Failure::new(
            "cannot list the mounts of this machine",
            format!("/proc/self/mountinfo: {error}"),
            "mount proc on /proc",
        )
    })?;
    let mounts: Vec<_> = mounts.into_iter().filter(Mount::is_ours).collect();
    let answers = mounts::ask(&mounts, PATIENCE);
    let mounts = mounts.iter().zip(answers).map(|(mount, answer)| describe(mount, answer)).collect();
    let (server, problem) = match ask_server(&format!("127.0.0.1:{PORT}"), asker) {
        Ok(server) => (Some(server), None),
        Err(error @ ConnectError::Key { .. }) => (None, Some(format!("{error}: {}", error.hint()))),
        Err(_) => (None, None), // that no server runs here is nothing to report
    };
    // That none runs here is nothing to report.
    let router = usual_control().ok().and_then(|path| control::ask(&path, &Request::Show).ok());
    Ok(Look { at, mounts, server, problem, router })
}

fn ask_server(address: &str, (key, routes): Asker<'_>) -> Result<Server, ConnectError> {
    let text = server_status(address, (key.cloned(), routes.cloned()), PATIENCE)?;
    let status: ServerStatus<Session> = serde_json::from_str(&text).map_err(|error| ConnectError::NotAqueduct {
        server: address.to_owned(),
        detail: format!("its status cannot be read: {error}"),
    })?;
    Ok(Server { status, address: address.to_owned(), rates: None, latency: Vec::new() })
}

fn describe(mount: &Mount, answer: Result<MountStatus, String>) -> Mounted {
    let (mut status, state) = match answer {
        Ok(status) => {
            let state = status.backing.state().to_owned();
            (Some(status), state)
        }
        Err(problem) => (None, problem),
    };
    // As the kernel has them.
    status.iter_mut().for_each(|status| (status.source, status.target) = (None, None));
    let (target, source) = (mount.target.to_string_lossy().into_owned(), mount.source.clone());
    Mounted { status, target, source, read_only: mount.read_only, state, rates: None, latency: Vec::new() }
}

impl Mounted {
    fn client(&self) -> Option<&ClientStatus> {
        match &self.status.as_ref()?.backing {
            BackingStatus::Client(client) => Some(client),
            BackingStatus::Local(_) | BackingStatus::Gone {} => None,
        }
    }

    fn counters(&self) -> Option<[u64; 3]> {
        self.client().map(|client| [client.operations, client.bytes_read, client.bytes_written])
    }
}

impl Session {
    fn counters(&self) -> [u64; 3] {
        [self.status.operations, self.status.bytes_read, self.status.bytes_written]
    }
}

/// The last look, with rates since the one `before`.
fn with_rates(before: Option<&Look>, now: &Look) -> Shown {
    let seconds = before.map(|before| now.at.duration_since(before.at).as_secs_f64());
    let rates = |earlier: Option<[u64; 3]>, now: [u64; 3]| Some(Rates::between(earlier.unwrap_or(now), now, seconds?));
    let mut shown = Shown {
        mounts: now.mounts.clone(),
        server: now.server.clone(),
        problem: now.problem.clone(),
        router: now.router.clone(),
    };
    for mount in &mut shown.mounts {
        let pid = |mount: &Mounted| mount.status.as_ref().map(|status| status.pid);
        let mut mounts = before.iter().flat_map(|before| &before.mounts);
        let earlier = mounts.find(|other| other.target == mount.target && pid(other) == pid(mount));
        let earlier = earlier.and_then(Mounted::counters);
        mount.rates = mount.counters().and_then(|now| rates(earlier, now));
        if let Some(status) = &mount.status {
            mount.latency = Latency::of(&status.metrics, &table::FUSE_REQUEST_SECONDS, &table::FUSE_ERRORS);
        }
    }
    if let Some(server) = &mut shown.server {
        let earlier = before.and_then(|before| before.server.as_ref());
        let earlier = earlier.map(|server| server.status.sessions.as_slice()).unwrap_or_default();
        for session in &mut server.status.sessions {
            let key = |session: &Session| (session.status.client.clone(), session.status.peer.clone());
            let earlier = earlier.iter().find(|other| key(other) == key(session)).map(Session::counters);
            session.rates = rates(earlier, session.counters());
        }
        let sum =
            |of: fn(&Rates) -> f64| server.status.sessions.iter().filter_map(|it| it.rates.as_ref()).map(of).sum();
        server.rates = before.map(|_| Rates {
            operations_per_second: sum(|rates| rates.operations_per_second),
            bytes_read_per_second: sum(|rates| rates.bytes_read_per_second),
            bytes_written_per_second: sum(|rates| rates.bytes_written_per_second),
        });
        server.latency = Latency::of(&server.status.metrics, &table::SERVER_OPERATION_SECONDS, &table::SERVER_ERRORS);
    }
    shown
}

fn text(shown: &Shown, server_only: bool) -> String {
    let mut text = String::new();
    if !server_only {
        text.push_str(&mounts_text(&shown.mounts));
        text.push_str(&rails_text(&shown.mounts));
        text.push_str(&requests_text(&shown.mounts));
        for status in shown.mounts.iter().filter_map(|mount| mount.status.as_ref()) {
            text.push_str(&route::routes_text(&status.routes));
        }
        text.push('\n');
    }
    match (&shown.server, &shown.problem) {
        (Some(server), _) => text.push_str(&server_text(server)),
        (None, Some(problem)) => text.push_str(&format!("{problem}\n")),
        (None, None) => {
            text.push_str(&format!("No server answers on 127.0.0.1:{PORT}; for another: aqueduct status HOST:PORT\n"));
        }
    }
    shown.router.iter().for_each(|router| text.push_str(&format!("\n{}", route::text(router))));
    text
}

fn mounts_text(mounts: &[Mounted]) -> String {
    if mounts.is_empty() {
        return "Nothing of Aqueduct's is mounted here.\n".to_owned();
    }
    let row = |mount: &Mounted| {
        let mut row = vec![mount.target.clone(), mount.source.clone(), access(mount.read_only)];
        row.extend(Rates::shown(mount.rates.as_ref()));
        let status = mount.status.as_ref();
        row.push(status.map_or_else(none, |status| status.pid.to_string()));
        row.push(status.map_or_else(none, |status| span(status.uptime_seconds)));
        row.push(mount.state.clone());
        row
    };
    let headings = ["MOUNTED ON", "SOURCE", "ACCESS", ">OPS/S", ">READ/S", ">WRITTEN/S", ">PID", "UP", "STATE"];
    let mut text = format!("Mounts\n{}", render(&headings, &mounts.iter().map(row).collect::<Vec<_>>()));
    for mount in mounts {
        if let Some(processors) = mount.status.as_ref().and_then(|status| status.processors.as_ref()) {
            text.push_str(&format!("{} runs on the processors {processors}\n", mount.target));
        }
    }
    text
}

/// The rails of each mount that has several, or might have.
fn rails_text(mounts: &[Mounted]) -> String {
    let row = |(mount, rail): (&Mounted, &RailStatus)| {
        let rate = |rate: Option<f64>| rate.map_or_else(none, |rate| format!("{}/s", bytes(rate)));
        let state = rail.fault.as_ref().map_or_else(|| rail.state.clone(), |fault| format!("{} ({fault})", rail.state));
        vec![
            mount.target.clone(),
            rail.path.clone(),
            state,
            format!("{}/{}", rail.connections, rail.wanted),
            rate(rail.read_rate),
            rate(rail.write_rate),
            bytes(rail.bytes_read as f64),
            bytes(rail.bytes_written as f64),
            micros(rail.round_trip_us as f64),
            rail.outages.to_string(),
            span(rail.seconds as u64),
        ]
    };
    let of_mount = |mount: &'_ Mounted| mount.client().map_or_else(Vec::new, |client| client.rails.clone());
    let rows: Vec<Vec<String>> = mounts
        .iter()
        .flat_map(|mount| of_mount(mount).iter().map(|rail| row((mount, rail))).collect::<Vec<_>>())
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = [
        "MOUNTED ON",
        "RAIL",
        "STATE",
        ">LINKS",
        ">READ RATE",
        ">WRITE RATE",
        ">READ",
        ">WRITTEN",
        ">ROUND TRIP",
        ">OUTAGES",
        "SINCE",
    ];
    format!("\n{}", render(&headings, &rows))
}

/// What programs asked of each mount for longest, since it was mounted.
fn requests_text(mounts: &[Mounted]) -> String {
    let rows: Vec<Vec<String>> = mounts
        .iter()
        .flat_map(|mount| {
            let of_mount = |latency: &Latency| [vec![mount.target.clone()], latency.row()].concat();
            mount.latency.iter().take(REQUESTS_SHOWN_MAX).map(of_mount)
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = ["MOUNTED ON", "REQUEST OF THE KERNEL", ">COUNT", ">ERRORS", ">P50", ">P99"];
    format!("\n{}", render(&headings, &rows))
}

/// Where a server listens, as far as it tells us, and where the cards are.
fn listens_text(listens: &[ListenStatus]) -> String {
    let row = |listen: &ListenStatus| {
        let ListenStatus { address, interface, numa_node, near_processors } = listen;
        let node = numa_node.map(|node| node.to_string());
        let rest = [interface.clone(), node, near_processors.clone()].map(|text| text.unwrap_or_else(none));
        [vec![address.clone()], rest.to_vec()].concat()
    };
    if listens.is_empty() {
        return String::new();
    }
    let headings = ["LISTENS ON", "CARD", "NUMA NODE", "NEAR PROCESSORS"];
    format!("{}\n", render(&headings, &listens.iter().map(row).collect::<Vec<_>>()))
}

fn server_text(server: &Server) -> String {
    let Server { status, address, latency, .. } = server;
    let mut text = format!(
        "Server {} at {address}, version {}, up {}, {} connections, {} operations under way\n",
        output::shown(&status.server),
        output::shown(&status.version),
        span(status.uptime_seconds),
        status.connections,
        status.executing,
    );
    if let Some(processors) = &status.processors {
        text.push_str(&format!("It runs on the processors {processors}\n"));
    }
    text.push_str(&listens_text(&status.listens));
    let export = |export: &ExportStatus| {
        vec![
            export.name.clone(),
            export.path.clone(),
            access(export.read_only),
            limit(export),
            hosts(&export.access),
            squash(&export.access),
            export.external.clone(),
            export.clients.to_string(),
        ]
    };
    text.push_str(&render(
        &["EXPORT", "DIRECTORY", "ACCESS", "LIMIT", "HOSTS", "SQUASHED", "OUTSIDE", ">CLIENTS"],
        &status.exports.iter().map(export).collect::<Vec<_>>(),
    ));
    text.push_str(&data_text(&status.exports));
    if !latency.is_empty() {
        let headings = ["OPERATION", ">COUNT", ">ERRORS", ">P50", ">P99"];
        let rows: Vec<_> = latency.iter().map(Latency::row).collect();
        text.push_str(&format!("\n{}", render(&headings, &rows)));
    }
    // Sessions without an export are those who ask, as we do.
    let sessions: Vec<Vec<String>> = status
        .sessions
        .iter()
        .filter_map(|session| {
            let Session { status, rates } = session;
            let mut row = vec![status.client.clone(), status.peer.clone(), status.export.clone()?];
            row.push(status.connections.to_string());
            row.extend(Rates::shown(rates.as_ref()));
            Some(row)
        })
        .collect();
    if !sessions.is_empty() {
        let headings = ["CLIENT", "FROM", "EXPORT", ">CONNECTIONS", ">OPS/S", ">READ/S", ">WRITTEN/S"];
        text.push_str(&format!("\n{}", render(&headings, &sessions)));
    }
    text
}

/// What each export has read ahead, and how it was written.
fn data_text(exports: &[ExportStatus]) -> String {
    let row = |export: &ExportStatus| {
        let DataStatus { read_ahead: ahead, writes, .. } = export.data.as_ref()?;
        let size = |count: u64| bytes(count as f64);
        let mean = (writes.requests > 0).then(|| bytes((writes.bytes as f64 / writes.requests as f64).round()));
        let latency = ahead.latency_us.map_or_else(none, |latency| micros(latency as f64));
        let streams = if ahead.on { ahead.streams.to_string() } else { "off".to_owned() };
        let mut row = vec![export.name.clone(), streams, latency, ahead.waits.to_string()];
        row.extend([ahead.issued, ahead.used, ahead.wasted].map(size));
        row.extend([writes.requests.to_string(), mean.unwrap_or_else(none), writes.continued.to_string()]);
        Some(row)
    };
    let rows: Vec<_> = exports.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings =
        ["EXPORT", ">STREAMS", ">LATENCY", ">WAITS", ">AHEAD", ">USED", ">WASTED", ">WRITES", ">MEAN", ">CONTINUED"];
    format!("\n{}", render(&headings, &rows))
}

fn none() -> String {
    "-".to_owned()
}

fn access(read_only: bool) -> String {
    if read_only { "read" } else { "read, write" }.to_owned()
}

/// The rate to which an export is held; decimal, as it was written.
fn limit(export: &ExportStatus) -> String {
    let rate = export.data.as_ref().and_then(|data| data.rate);
    rate.map_or_else(none, |rate| format!("{} MB/s", rate as f64 / 1e6))
}

/// Who may mount an export.
fn hosts(rules: &AccessStatus) -> String {
    let all = rules.hosts.as_ref().map_or_else(|| "all".to_owned(), |hosts| hosts.join(" "));
    let read_only = rules.read_only_hosts.join(" ");
    match (all.is_empty(), read_only.is_empty()) {
        (true, true) => "none".to_owned(),
        (_, true) => all,
        (true, false) => format!("read only: {read_only}"),
        (false, false) => format!("{all}; read only: {read_only}"),
    }
}

/// Who acts as somebody else there.
fn squash(rules: &AccessStatus) -> String {
    let who = rules.squash.as_deref().unwrap_or("remote root");
    if rules.maps_ids { format!("{who}, ids mapped") } else { who.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn metrics(count: u64) -> Snapshot {
        let histogram = Histogram::single();
        (0..count).for_each(|_| histogram.record(100_000));
        let mut metrics = Snapshot::default();
        metrics.put(&table::SERVER_OPERATION_SECONDS, &["Read"], &histogram);
        metrics.put(&table::FUSE_REQUEST_SECONDS, &["READ"], &histogram);
        metrics.put_number(&table::SERVER_ERRORS, &["Read"], 3);
        metrics
    }

    /// What a server and a mount say, as they come.
    fn look_of(operations: u64, at: Instant) -> Look {
        let session = json!({ "client": "c", "peer": "p:1", "export": "/x", "connections": 2, "operations": operations,
            "bytes_read": operations * 1024, "bytes_written": 0, "read_only": false, "squash": "none" });
        let server = json!({ "server": "s", "version": "1", "uptime_seconds": 5, "connections": 2, "executing": 0,
            "exports": [{ "name": "/x", "path": "/x", "read_only": true, "clients": 1 }], "sessions_total": 1,
            "sessions": [session], "metrics": metrics(operations) });
        let status: ServerStatus<Session> = serde_json::from_value(server).unwrap();
        let server = Server { status, address: "a:1".into(), rates: None, latency: Vec::new() };
        let mount = json!({ "server": "h", "export": "/x", "connections": 2, "pid": 7, "operations": operations,
            "bytes_read": 0, "bytes_written": 0, "reconnects": 0, "replay_window": 0, "replay_bytes": 0,
            "requests_by": "io_uring", "source": "?", "version": "1", "uptime_seconds": 61, "metrics": metrics(operations) });
        let mount = describe(
            &Mount { target: "/m".into(), kind: "fuse.aqueduct".into(), source: "h:/x".into(), ..Mount::default() },
            Ok(serde_json::from_value(mount).unwrap()),
        );
        Look { at, mounts: vec![mount], server: Some(server), problem: None, router: None }
    }

    #[test]
    fn rates_come_from_two_looks() {
        let start = Instant::now();
        let shown = with_rates(Some(&look_of(100, start)), &look_of(350, start + Duration::from_millis(500)));
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["mounts"][0]["operations_per_second"], json!(500.0));
        assert_eq!((&json["mounts"][0]["source"], &json["mounts"][0]["export"]), (&json!("h:/x"), &json!("/x")));
        assert_eq!(json["server"]["bytes_read_per_second"], json!(512_000.0));
        assert_eq!(json["server"]["sessions"][0]["operations_per_second"], json!(500.0));
        assert_eq!(json["server"]["sessions"][0]["operations"], json!(350));
        assert_eq!(json["server"]["exports"][0]["clients"], json!(1));
        let text = text(&shown, false);
        assert!(text.contains("/m          h:/x    read, write    500"), "{text}");
        assert!(text.contains("500 KiB"), "{text}");
    }

    #[test]
    fn one_look_has_no_rates() {
        let shown = with_rates(None, &look_of(100, Instant::now()));
        let json = serde_json::to_value(&shown).unwrap();
        for of in [&json["mounts"][0], &json["server"], &json["server"]["sessions"][0]] {
            assert!(of["version"].is_string() || of["operations"] == json!(100), "{of}");
            assert!(of.get("operations_per_second").is_none(), "{of}");
        }
        let text = text(&shown, false);
        assert!(text.lines().any(|line| line.contains("/m ") && line.contains("  -       -")), "{text}");
    }

    #[test]
    fn latencies_are_shown_by_operation() {
        let start = Instant::now();
        let shown = with_rates(Some(&look_of(100, start)), &look_of(350, start + Duration::from_secs(1)));
        let json = serde_json::to_value(&shown).unwrap();
        let latency = &json["server"]["latency"][0];
        assert_eq!(
            (&latency["operation"], &latency["count"], &latency["errors"]),
            (&json!("Read"), &json!(350), &json!(3))
        );
        let p99 = latency["p99_us"].as_f64().unwrap();
        assert!((p99 - 100.0).abs() <= 100.0 * aqueduct_metrics::QUANTILE_ERROR_MAX, "{p99}");
        assert!(json["server"]["metrics"]["aqueduct_server_operation_seconds"]["samples"].is_array());
        let text = text(&shown, false);
        let line = |word: &str| {
            let line = text.lines().find(|line| line.contains(word)).unwrap();
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let shown = format!("{p99:.1} us");
        assert_eq!(line(" Read "), ["Read", "350", "3", &shown, &shown]);
        assert_eq!(line(" READ "), ["/m", "READ", "350", "0", &shown, &shown]);
        assert_eq!([micros(3.25), micros(3250.0), micros(3.25e6)], ["3.2 us", "3.2 ms", "3.2 s"]);
    }

    fn export(value: Value) -> ExportStatus {
        let mut whole = json!({ "name": "/x", "path": "/x", "read_only": false, "clients": 0 });
        whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn exports_show_how_data_go() {
        let read_ahead = json!({ "on": true, "streams": 2, "latency_us": 5250, "waits": 3, "issued": 3 << 20, "used": 2 << 20,
            "wasted": 1 << 20 });
        let writes = json!({ "requests": 4, "bytes": 16384, "continued": 3 });
        let old = export(json!({ "name": "/old" }));
        let new =
            export(json!({ "data": { "read_ahead": read_ahead, "writes": writes, "rate": null, "throttled": 0 } }));
        let text = data_text(&[old.clone(), new]);
        let cells: Vec<_> =
            text.lines().last().unwrap().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["/x", "2", "5.2 ms", "3", "3.0 MiB", "2.0 MiB", "1.0 MiB", "4", "4.0 KiB", "3"], "{text}");
        assert_eq!(data_text(std::slice::from_ref(&old)), "");
        let mut held = ExportStatus { data: Some(DataStatus::default()), ..ExportStatus::default() };
        let text = data_text(std::slice::from_ref(&held));
        let cells: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells, ["off", "-", "0", "0", "B", "0", "B", "0", "B", "0", "-", "0"], "{text}");
        held.data.iter_mut().for_each(|data| data.rate = Some(160_000_000));
        assert_eq!([limit(&held), limit(&old)], ["160 MB/s", "-"]);
    }

    #[test]
    fn exports_show_what_they_allow() {
        let rules = |hosts: Value, read_only: Value, squash: Value| -> AccessStatus {
            let rules = json!({ "hosts": hosts, "read_only_hosts": read_only, "squash": squash, "anonymous_uid": 1,
                "anonymous_gid": 1, "maps_ids": false });
            serde_json::from_value(rules).unwrap()
        };
        let shown = |rules: AccessStatus| (hosts(&rules), squash(&rules));
        let text = |hosts: &str, squash: &str| (hosts.to_owned(), squash.to_owned());
        assert_eq!(shown(rules(Value::Null, json!([]), Value::Null)), text("all", "remote root"));
        assert_eq!(shown(rules(json!([]), json!([]), json!("none"))), text("none", "none"));
        let some = rules(json!(["10.0.0.0/8", "::1/128"]), json!(["10.1.0.0/16"]), json!("all"));
        assert_eq!(shown(some), text("10.0.0.0/8 ::1/128; read only: 10.1.0.0/16", "all"));
        let mapped = AccessStatus { maps_ids: true, ..rules(json!([]), json!(["10.1.0.0/16"]), json!("root")) };
        assert_eq!(shown(mapped), text("read only: 10.1.0.0/16", "root, ids mapped"));
    }

    #[test]
    fn what_does_not_answer_is_shown_too() {
        let mount =
            Mount { target: "/m".into(), kind: "fuse.aqueduct".into(), source: "h:/x".into(), ..Mount::default() };
        let shown = describe(&mount, Err("does not answer".into()));
        assert!(mounts_text(std::slice::from_ref(&shown)).contains("does not answer"));
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(
            (&json["state"], &json["target"], &json["pid"]),
            (&json!("does not answer"), &json!("/m"), &Value::Null)
        );
    }

    /// What a mount tells is read as what it was, a local directory's and one that ends as well.
    #[test]
    fn mounts_are_told_apart() {
        let whole = |backing: Value| -> MountStatus {
            let mut whole = json!({ "requests_by": "io_uring", "pid": 1, "version": "1", "uptime_seconds": 0 });
            whole.as_object_mut().unwrap().extend(backing.as_object().unwrap().clone());
            serde_json::from_value(whole).unwrap()
        };
        let local = whole(json!({ "server": "local", "opens": 1, "locks": 2, "leases": { "refused": "none" } }));
        assert!(matches!(local.backing, BackingStatus::Local(_)), "{local:?}");
        assert_eq!(serde_json::to_value(&local).unwrap()["leases"]["refused"], "none");
        assert!(matches!(whole(json!({})).backing, BackingStatus::Gone {}));
    }
}
