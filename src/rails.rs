//! `aqueduct net rails`: the wires that mounts use at once, how each fares, and what it carries
//! now.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_metrics::status::{BackingStatus, RailStatus};
use aqueduct_node::mounts::{self, Mount};
use serde::Serialize;

use crate::args;
use crate::failure::Failure;
use crate::output::{self, shown};
use crate::table::{bytes, micros, render, span};

/// Between the two looks from which rates are computed.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// A mount that says nothing for so long is shown as silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a rail tells, and what it carries now.
#[derive(Clone, Serialize)]
struct Live {
    #[serde(flatten)]
    rail: RailStatus,
    read_per_second: f64,
    written_per_second: f64,
}

/// The rails of a mount.
#[derive(Serialize)]
struct Mounted {
    target: String,
    source: String,
    /// `ok`, or why it does not tell.
    state: String,
    rails: Vec<Live>,
}

impl Live {
    /// From two looks; `before` may lack the rail.
    fn between(before: &[RailStatus], now: RailStatus, seconds: f64) -> Live {
        let earlier = before.iter().find(|other| other.path == now.path);
        let rate = |of: fn(&RailStatus) -> u64| {
            let earlier = earlier.map_or(of(&now), of);
            (of(&now).saturating_sub(earlier) as f64 / seconds).round()
        };
        let (read_per_second, written_per_second) = (rate(|rail| rail.bytes_read), rate(|rail| rail.bytes_written));
        Live { rail: now, read_per_second, written_per_second }
    }
}

/// Shows the rails of one mount or all, once. Ends with 1 if any of them is not up.
pub fn run(arguments: &args::Rails) -> Result<ExitCode, Failure> {
    let mounts = chosen(arguments.target.as_deref())?;
    let before = look(&mounts);
    let at = Instant::now();
    thread::sleep(LOOKS_APART);
    let now = look(&mounts);
    let seconds = at.elapsed().as_secs_f64();
    let found: Vec<Mounted> = mounts
        .iter()
        .zip(before.into_iter().zip(now))
        .map(|(mount, (before, now))| {
            let before = before.unwrap_or_default();
            let (rails, state) = match now {
                Ok(rails) => (rails, "ok".to_owned()),
                Err(problem) => (Vec::new(), problem),
            };
            let rails = rails.into_iter().map(|rail| Live::between(&before, rail, seconds)).collect();
            Mounted { target: mount.target.to_string_lossy().into_owned(), source: mount.source.clone(), state, rails }
        })
        .collect();
    let is_well =
        found.iter().all(|mount| mount.state == "ok" && mount.rails.iter().all(|live| live.rail.state == "up"));
    if arguments.json {
        let document = serde_json::json!({ "is_well": is_well, "mounts": found });
        output::json(&document);
    } else {
        found.iter().for_each(|mount| output::print(format_args!("{}", text(mount))));
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The mount that is named, or all of this machine.
fn chosen(target: Option<&Path>) -> Result<Vec<Mount>, Failure> {
    let all = mounts::all().map_err(|error| {
        let why = format!("/proc/self/mountinfo: {error}");
        Failure::new("cannot list the mounts of this machine", why, "mount proc on /proc")
    })?;
    let Some(target) = target else { return Ok(all.into_iter().filter(Mount::is_ours).collect()) };
    let point = mounts::mount_point(target, &all);
    let found: Vec<Mount> = all.into_iter().filter(|mount| mount.is_ours() && mount.target == point).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::usage(
            format!("the rails of {}", target.display()),
            "it is in no mount of Aqueduct",
            "name a directory that 'aqueduct status' shows, or none for all",
        )),
    }
}

/// What each mount tells of its rails.
fn look(mounts: &[Mount]) -> Vec<Result<Vec<RailStatus>, String>> {
    let rails = |backing| match backing {
        BackingStatus::Client(client) => client.rails,
        BackingStatus::Local(_) | BackingStatus::Gone {} => Vec::new(),
    };
    mounts::ask(mounts, PATIENCE).into_iter().map(|answer| answer.map(|status| rails(status.backing))).collect()
}

fn text(mount: &Mounted) -> String {
    let head = format!("{} of {}: ", shown(&mount.target), shown(&mount.source));
    if mount.state != "ok" {
        return head + &mount.state + "\n";
    }
    if mount.rails.is_empty() {
        return head + "one way, as the routing table says (mount -o rails=auto has more)\n";
    }
    let row = |Live { rail, read_per_second, written_per_second }: &Live| {
        let measured = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", bytes(rate)));
        let state = rail.fault.as_ref().map_or_else(|| rail.state.clone(), |fault| format!("{} ({fault})", rail.state));
        vec![
            rail.path.clone(),
            state,
            format!("{}/{}", rail.connections, rail.wanted),
            format!("{}/s", bytes(*read_per_second)),
            format!("{}/s", bytes(*written_per_second)),
            measured(rail.read_rate),
            measured(rail.write_rate),
            micros(rail.round_trip_us as f64),
            rail.outages.to_string(),
            span(rail.seconds as u64),
        ]
    };
    let headings = [
        "RAIL",
        "STATE",
        ">LINKS",
        ">READ NOW",
        ">WRITTEN NOW",
        ">CAN READ",
        ">CAN WRITE",
        ">ROUND TRIP",
        ">OUTAGES",
        "SINCE",
    ];
    format!("{head}\n{}", render(&headings, &mount.rails.iter().map(row).collect::<Vec<_>>()))
}
