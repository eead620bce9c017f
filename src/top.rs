//! `aqueduct top`: what servers and mounts do now, the busiest first, until Ctrl-C.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_metrics::status::{BackingStatus, MountStatus, RailStatus, ServerStatus, SessionStatus};
use aqueduct_metrics::table::{FUSE_REQUEST_SECONDS, Metric, SERVER_OPERATION_SECONDS};
use aqueduct_metrics::{Histogram, Snapshot};
use aqueduct_node::mounts::{self, Mount};
use aqueduct_node::{Initiator, PORT, keyfile, server_address};
use aqueduct_wire::ClientKey;
use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::routes::Routes;
use crate::table::{bytes, render, span};

/// A mount or server that says nothing for so long is shown as silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Rows of a table that are shown without a terminal's height to go by.
const ROWS: usize = 12;

/// Kinds of requests that are shown of each.
const OPERATIONS: usize = 6;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct top                          the mounts of this machine, and its server if one runs
  aqueduct top server1 server2:7171     servers
  aqueduct top --once --json | jq '.mounts[] | {target, operations_per_second}'

Rates and times are those of the last interval. UNDER WAY is how many requests there were at a time in the
mean. Ctrl-C ends it. Exit codes: 0, or 1: a server that was named does not answer at the first look.")]
pub struct Top {
    /// HOST, HOST:PORT, or either with @NET behind routers, of servers, instead of what is on this
    /// machine
    pub servers: Vec<String>,
    /// Look so often, in seconds
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Look for one interval, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, one line for each look
    #[arg(long)]
    pub json: bool,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub routes: Routes,
}

/// Who asks: with which key, by which routes.
type Asker<'a> = (Option<&'a ClientKey>, Option<&'a Arc<Initiator>>);

/// One look.
struct Look {
    at: Instant,
    mounts: Vec<(Mount, Result<MountStatus, String>)>,
    servers: Vec<(String, Result<ServerStatus, String>)>,
}

/// What changed between two looks.
#[derive(Debug, Default, Serialize)]
struct Shown {
    /// Seconds between them.
    seconds: f64,
    mounts: Vec<Row>,
    servers: Vec<ServerRow>,
}

/// A mount, a session or a server, and what it did.
#[derive(Debug, Default, Serialize)]
struct Row {
    target: String,
    source: String,
    state: String,
    #[serde(flatten)]
    rates: Rates,
    /// Requests under way in the mean.
    under_way: f64,
    operations: Vec<Operation>,
    rails: Vec<RailStatus>,
}

#[derive(Debug, Default, Serialize)]
struct ServerRow {
    server: String,
    state: String,
    uptime_seconds: u64,
    executing: u64,
    connections: u64,
    #[serde(flatten)]
    rates: Rates,
    under_way: f64,
    sessions_total: u64,
    sessions: Vec<SessionRow>,
    operations: Vec<Operation>,
}

#[derive(Debug, Default, Serialize)]
struct SessionRow {
    client: String,
    peer: String,
    export: Option<String>,
    job: Option<String>,
    #[serde(flatten)]
    rates: Rates,
    /// Of its requests at the server, and waiting for leases, in the mean.
    under_way: f64,
    lease_waits: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Rates {
    operations_per_second: f64,
    bytes_read_per_second: f64,
    bytes_written_per_second: f64,
}

/// A kind of request, in the last interval.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Operation {
    operation: String,
    per_second: f64,
    /// In microseconds: what half of them, and all but one in a hundred, did not exceed.
    p50_us: f64,
    p99_us: f64,
    under_way: f64,
}

/// Shows it.
pub fn run(arguments: &Top) -> Result<ExitCode, Failure> {
    let interval = Duration::try_from_secs_f64(arguments.interval)
        .ok()
        .filter(|interval| (Duration::from_millis(100)..Duration::from_secs(3600)).contains(interval));
    let interval = interval.ok_or_else(|| {
        Failure::from_line("cannot look so often: --interval is from 0.1 to 3600 seconds", "give another")
    })?;
    let key = arguments.key.as_deref().map(keyfile::load_client).transpose()?;
    let routes = arguments.routes.resolve()?;
    let asker = (key.as_ref(), routes.as_ref());
    let mut before = look(&arguments.servers, asker);
    if let Some((server, Err(why))) = before.servers.iter().find(|_| !arguments.servers.is_empty()) {
        let what = format!("cannot get the status of {server}");
        return Err(Failure::new(what, why, "check the address, and that 'aqueduct serve' runs there"));
    }
    loop {
        thread::sleep(interval);
        let now = look(&arguments.servers, asker);
        let shown = between(&before, &now);
        match arguments.json {
            true => output::line(format_args!("{}", serde_json::to_string(&shown).unwrap_or_default())),
            // Home and erase, so that a terminal shows one table that changes.
            false if arguments.once => output::print(format_args!("{}", text(&shown))),
            false => output::print(format_args!("\x1b[H\x1b[J{}", text(&shown))),
        }
        if arguments.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}

/// Looks at all of them at once: one that hangs holds up none.
fn look(servers: &[String], asker: Asker<'_>) -> Look {
    let at = Instant::now();
    let is_here = servers.is_empty();
    let addresses: Vec<String> = match is_here {
        true => vec![format!("127.0.0.1:{PORT}")],
        false => servers.iter().map(|server| server_address(server)).collect(),
    };
    let ours: Vec<Mount> = match is_here {
        true => mounts::all().unwrap_or_default().into_iter().filter(Mount::is_ours).collect(),
        false => Vec::new(),
    };
    let (answers, told) = thread::scope(|scope| {
        let asked: Vec<_> = addresses.iter().map(|address| scope.spawn(|| ask(address, asker))).collect();
        let answers = mounts::ask(&ours, PATIENCE);
        let told: Vec<_> =
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| Err("nothing".to_owned()))).collect();
        (answers, told)
    });
    let mut servers: Vec<_> = addresses.into_iter().zip(told).collect();
    if is_here {
        // That none runs here is nothing to show.
        servers.retain(|(_, told)| told.is_ok());
    }
    Look { at, mounts: ours.into_iter().zip(answers).collect(), servers }
}

fn ask(address: &str, (key, routes): Asker<'_>) -> Result<ServerStatus, String> {
    let asker = (key.cloned(), routes.cloned());
    let text = aqueduct_client::server_status(address, asker, PATIENCE).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("its status cannot be read: {error}"))
}

fn rates(before: [u64; 3], now: [u64; 3], seconds: f64) -> Rates {
    let rate = |at: usize| (now[at].saturating_sub(before[at]) as f64 / seconds).round();
    Rates { operations_per_second: rate(0), bytes_read_per_second: rate(1), bytes_written_per_second: rate(2) }
}

fn between(before: &Look, now: &Look) -> Shown {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let mount = |(mount, told): &(Mount, Result<MountStatus, String>)| {
        let earlier = before.mounts.iter().find(|(other, _)| other.target == mount.target);
        mount_row(mount, earlier.and_then(|(_, told)| told.as_ref().ok()), told, seconds)
    };
    let server = |(address, told): &(String, Result<ServerStatus, String>)| {
        let earlier = before.servers.iter().find(|(other, _)| other == address);
        server_row(address, earlier.and_then(|(_, told)| told.as_ref().ok()), told, seconds)
    };
    let mut shown = Shown {
        seconds: (seconds * 1000.0).round() / 1000.0,
        mounts: now.mounts.iter().map(mount).collect(),
        servers: now.servers.iter().map(server).collect(),
    };
    let busiest = |rates: &Rates| {
        rates.operations_per_second + (rates.bytes_read_per_second + rates.bytes_written_per_second) / 65536.0
    };
    shown.mounts.sort_by(|one, two| busiest(&two.rates).total_cmp(&busiest(&one.rates)));
    for server in &mut shown.servers {
        server.sessions.sort_by(|one, two| busiest(&two.rates).total_cmp(&busiest(&one.rates)));
    }
    shown
}

fn mount_row(mount: &Mount, before: Option<&MountStatus>, now: &Result<MountStatus, String>, seconds: f64) -> Row {
    let (target, source) = (mount.target.to_string_lossy().into_owned(), mount.source.clone());
    let status = match now {
        Ok(status) => status,
        Err(why) => return Row { target, source, state: why.clone(), ..Row::default() },
    };
    // Another process has it: nothing is known of before.
    let before = before.filter(|before| before.pid == status.pid);
    let operations = operations(before.map(|before| &before.metrics), &status.metrics, &FUSE_REQUEST_SECONDS, seconds);
    let counters = |status: &MountStatus| match &status.backing {
        BackingStatus::Client(client) => [client.operations, client.bytes_read, client.bytes_written],
        _ => [0; 3],
    };
    let rails = match &status.backing {
        BackingStatus::Client(client) => client.rails.clone(),
        _ => Vec::new(),
    };
    Row {
        target,
        source,
        state: status.backing.state().to_owned(),
        rates: rates(before.map_or_else(|| counters(status), counters), counters(status), seconds),
        under_way: operations.iter().map(|operation| operation.under_way).sum(),
        operations,
        rails,
    }
}

fn server_row(
    address: &str,
    before: Option<&ServerStatus>,
    now: &Result<ServerStatus, String>,
    seconds: f64,
) -> ServerRow {
    let status = match now {
        Ok(status) => status,
        Err(why) => return ServerRow { server: address.to_owned(), state: why.clone(), ..ServerRow::default() },
    };
    let counters = |session: &SessionStatus| [session.operations, session.bytes_read, session.bytes_written];
    let session = |session: &SessionStatus| {
        let same = |other: &&SessionStatus| other.client == session.client && other.peer == session.peer;
        let earlier = before.and_then(|before| before.sessions.iter().find(same)).unwrap_or(session);
        let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / 1e6 / seconds;
        SessionRow {
            client: session.client.clone(),
            peer: session.peer.clone(),
            export: session.export.clone(),
            job: session.job.clone(),
            rates: rates(counters(earlier), counters(session), seconds),
            under_way: share(session.served_us, earlier.served_us),
            lease_waits: share(session.lease_wait_us, earlier.lease_wait_us),
        }
    };
    let sessions: Vec<SessionRow> = status.sessions.iter().filter(|of| of.export.is_some()).map(session).collect();
    // The sum of none is -0.
    let sum = |of: fn(&Rates) -> f64| sessions.iter().fold(0.0, |sum, session| sum + of(&session.rates));
    let operations =
        operations(before.map(|before| &before.metrics), &status.metrics, &SERVER_OPERATION_SECONDS, seconds);
    ServerRow {
        server: address.to_owned(),
        state: "ok".to_owned(),
        uptime_seconds: status.uptime_seconds,
        executing: status.executing,
        connections: status.connections,
        rates: Rates {
            operations_per_second: sum(|rates| rates.operations_per_second),
            bytes_read_per_second: sum(|rates| rates.bytes_read_per_second),
            bytes_written_per_second: sum(|rates| rates.bytes_written_per_second),
        },
        under_way: operations.iter().map(|operation| operation.under_way).sum(),
        sessions_total: status.sessions_total,
        sessions,
        operations,
    }
}

/// What kinds of requests did between two looks, those first that took longest in all.
fn operations(before: Option<&Snapshot>, now: &Snapshot, metric: &Metric<Histogram>, seconds: f64) -> Vec<Operation> {
    let Some(before) = before else { return Vec::new() };
    let (name, label) = (metric.definition.name, metric.definition.labels.first().copied().unwrap_or_default());
    let mut found = Vec::new();
    for sample in now.samples(name) {
        let Some(mut taken) = sample.histogram().cloned() else { continue };
        let same = before.samples(name).iter().find(|other| other.label(label) == sample.label(label));
        if let Some(earlier) = same.and_then(|sample| sample.histogram()) {
            taken.subtract(earlier);
        }
        let micros = |quantile| (taken.quantile(quantile).unwrap_or(0.0) / 100.0).round() / 10.0;
        if taken.count() > 0 {
            found.push(Operation {
                operation: sample.label(label).to_owned(),
                per_second: (taken.count() as f64 / seconds * 10.0).round() / 10.0,
                p50_us: micros(0.5),
                p99_us: micros(0.99),
                under_way: (taken.sum as f64 / 1e9 / seconds * 1000.0).round() / 1000.0,
            });
        }
    }
    found.sort_by(|one, two| two.under_way.total_cmp(&one.under_way));
    found
}

fn shown_rates(rates: &Rates) -> [String; 3] {
    [
        format!("{:.0}", rates.operations_per_second),
        bytes(rates.bytes_read_per_second),
        bytes(rates.bytes_written_per_second),
    ]
}

fn text(shown: &Shown) -> String {
    let mut text = String::new();
    if !shown.mounts.is_empty() {
        let row = |row: &Row| {
            let mut cells = vec![row.target.clone(), row.source.clone()];
            cells.extend(shown_rates(&row.rates));
            cells.extend([format!("{:.2}", row.under_way), row.state.clone()]);
            cells
        };
        let rows: Vec<_> = shown.mounts.iter().take(ROWS).map(row).collect();
        text.push_str(&render(
            &["MOUNTED ON", "SOURCE", ">OPS/S", ">READ/S", ">WRITTEN/S", ">UNDER WAY", "STATE"],
            &rows,
        ));
        let rails = shown.mounts.iter().flat_map(|row| row.rails.iter().map(|rail| (&row.target, rail)));
        let rail = |(target, rail): (&String, &RailStatus)| {
            let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), bytes);
            let (read, written) = (rate(rail.read_rate), rate(rail.write_rate));
            let trip = format!("{:.2} ms", rail.round_trip_us as f64 / 1e3);
            vec![target.clone(), rail.path.clone(), rail.state.clone(), read, written, trip]
        };
        let rows: Vec<_> = rails.take(ROWS).map(rail).collect();
        if !rows.is_empty() {
            text.push_str(&render(&["RAILS OF", "PATH", "STATE", ">READ/S", ">WRITTEN/S", ">ROUND TRIP"], &rows));
        }
        let busiest = &shown.mounts[0];
        text.push_str(&operations_text(&busiest.target, &busiest.operations));
    }
    for server in &shown.servers {
        text.push_str(&server_text(server));
    }
    if text.is_empty() {
        text.push_str("Nothing is mounted here, and no server answers: name servers, as in 'aqueduct top HOST'.\n");
    }
    text
}

fn server_text(server: &ServerRow) -> String {
    let [operations, read, written] = shown_rates(&server.rates);
    let mut text = format!(
        "{} {}, up {}: {operations} operations/s, {read}/s read, {written}/s written, {} executing, {} connections, {} sessions\n",
        server.server,
        output::shown(&server.state),
        span(server.uptime_seconds),
        server.executing,
        server.connections,
        server.sessions_total
    );
    let row = |session: &SessionRow| {
        let export = session.export.clone().unwrap_or_default();
        let mut cells = vec![session.client.clone(), export, session.job.clone().unwrap_or_else(|| "-".to_owned())];
        cells.extend(shown_rates(&session.rates));
        cells.extend([format!("{:.2}", session.under_way), format!("{:.2}", session.lease_waits)]);
        cells
    };
    let rows: Vec<_> = server.sessions.iter().take(ROWS).map(row).collect();
    if !rows.is_empty() {
        let headings = ["CLIENT", "EXPORT", "JOB", ">OPS/S", ">READ/S", ">WRITTEN/S", ">UNDER WAY", ">LEASE WAITS"];
        text.push_str(&render(&headings, &rows));
    }
    text.push_str(&operations_text(&server.server, &server.operations));
    text
}

fn operations_text(of: &str, operations: &[Operation]) -> String {
    let row = |operation: &Operation| {
        vec![
            operation.operation.clone(),
            format!("{:.1}", operation.per_second),
            format!("{:.0} us", operation.p50_us),
            format!("{:.0} us", operation.p99_us),
            format!("{:.2}", operation.under_way),
        ]
    };
    let rows: Vec<_> = operations.iter().take(OPERATIONS).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "\n{}",
        render(
            &[&format!("REQUESTS OF {}", output::shown(of)), ">PER S", ">HALF BELOW", ">99 % BELOW", ">UNDER WAY"],
            &rows
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_shown_with_why() {
        let look =
            || Look { at: Instant::now(), mounts: Vec::new(), servers: vec![("a:1".into(), Err("silent".into()))] };
        let shown = between(&look(), &look());
        assert!(text(&shown).contains("a:1 silent"), "{}", text(&shown));
        assert!(text(&Shown::default()).contains("aqueduct top HOST"));
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let session = |operations: u64, served_us: u64| SessionStatus {
            client: "c".into(),
            export: Some("/x".into()),
            operations,
            served_us,
            ..SessionStatus::default()
        };
        let status = |of| ServerStatus { sessions: vec![of], sessions_total: 1, ..ServerStatus::default() };
        let (before, now) = (status(session(100, 0)), status(session(300, 1_000_000)));
        let row = server_row("s:1", Some(&before), &Ok(now), 2.0);
        assert_eq!((row.rates.operations_per_second, row.sessions[0].under_way), (100.0, 0.5));
        assert!(server_text(&row).contains("100 operations/s"), "{}", server_text(&row));
    }
}
