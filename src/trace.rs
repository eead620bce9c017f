//! `aqueduct trace`: the slow operations of mounts and servers, and where the time of each went.

#![allow(rustdoc::broken_intra_doc_links, reason = "the comments are help texts, where [] means optional")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use aqueduct_client::server_slow;
use aqueduct_metrics::trace::{Hop, HopTime, SlowOperation, TraceReport};
use aqueduct_node::mounts::{self, Mount};
use aqueduct_node::{SlowSettings, server_address};
use aqueduct_wire::Key;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::Serialize;

use crate::failure::Failure;
use crate::table::{bytes, micros, render};
use crate::{locks, output};

/// A mount that says nothing for so long does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks with --follow.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct trace /mnt                   the last slow operations, and where the time of each went
  aqueduct trace --follow --over 100    of all mounts of this machine, as they happen, from 100 ms on
  aqueduct trace --by job /mnt          which jobs wait, and for what
  aqueduct trace 127.0.0.1:7170         the slow requests of this machine's server, of all clients (as root)
  aqueduct trace --threshold 2 /mnt     from now on 2 ms is slow ('off': nothing is looked at)
  aqueduct trace --json /mnt | jq '.[].operations[] | {path, took_us, hops}'

The hops of an operation add up to what it took: client, client queue, reconnect, wire, router, server
queue, lease wait, file system. A mount remembers the last 512 of 10 ms or more (mount -o trace=MILLISECONDS)
and tells them to root and to whom its process runs as. Exit codes: 0, or 1: one does not answer.")]
pub struct Trace {
    /// A directory that is mounted on, or HOST[:PORT] of a server on its own machine [default: all
    /// mounts of this machine]
    #[arg(value_name = "MNT|SERVER")]
    pub target: Option<String>,
    /// The server's state folder [default: as of 'aqueduct serve']
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Show only what took so many milliseconds or more
    #[arg(long, value_name = "MS")]
    pub over: Option<f64>,
    /// Show so many at most, the last ones
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub count: usize,
    /// Go on with each as it happens, until Ctrl-C
    #[arg(long, short, conflicts_with = "by")]
    pub follow: bool,
    /// Put those together that have this in common
    #[arg(long, value_enum)]
    pub by: Option<By>,
    /// From now on operations are slow that take so many milliseconds, or none with 'off'; shows
    /// nothing
    #[arg(long, value_name = "MS|off", conflicts_with_all = ["over", "follow", "by", "json"])]
    pub threshold: Option<String>,
    /// Print JSON; with --follow one line for each operation
    #[arg(long)]
    pub json: bool,
}

/// What slow operations are put together by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Where most of the time went
    Hop,
    /// The operation
    Op,
    /// The job that the caller works for
    Job,
    /// The file
    Path,
}

/// Which requests of a server are slow, and where requests are written down.
#[derive(Debug, Default, Args)]
pub struct Slow {
    /// Requests are slow that take so many milliseconds or longer, for 'aqueduct trace' and the
    /// request log; 'off': none [default: 10]
    #[arg(long = "slow", value_name = "MS|off")]
    pub over_ms: Option<String>,
    /// Write slow requests to this file, a line of JSON each; it is turned over at 64 MiB
    #[arg(long, value_name = "FILE")]
    pub request_log: Option<PathBuf>,
    /// Write this share of the others too, 0 to 1
    #[arg(long, value_name = "SHARE", requires = "request_log")]
    pub request_sample: Option<f64>,
    /// Send slow requests as spans to this collector of OpenTelemetry, as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
}

impl Slow {
    /// Put over what the file says.
    pub fn over(self, file: SlowSettings) -> SlowSettings {
        SlowSettings {
            over_ms: self.over_ms.or(file.over_ms),
            log: self.request_log.or(file.log),
            sample: self.request_sample.or(file.sample),
            otlp: self.otlp.or(file.otlp),
            ..file
        }
    }
}

/// Who is asked.
enum Asked {
    Mount(Mount),
    /// Its address, and the key of its administrator.
    Server(String, Key),
}

impl Asked {
    fn name(&self) -> String {
        match self {
            Asked::Mount(mount) => mount.target.to_string_lossy().into_owned(),
            Asked::Server(address, _) => address.clone(),
        }
    }

    /// What is remembered from a number on, as much as one answer has.
    fn ask(&self, from: u64) -> Result<TraceReport, String> {
        match self {
            Asked::Mount(mount) => mounts::slow_operations(mount, from, PATIENCE),
            Asked::Server(address, key) => {
                let text = server_slow(address, key.clone(), from, PATIENCE).map_err(|error| error.to_string())?;
                serde_json::from_str(&text).map_err(|_| "it is of a release that remembers no slow requests".to_owned())
            }
        }
    }
}

/// What a mount or server tells.
#[derive(Serialize)]
struct Told {
    target: String,
    /// What is mounted; `None`: it is a server.
    source: Option<String>,
    /// `ok`, or why it does not tell.
    state: String,
    #[serde(flatten)]
    report: TraceReport,
}

/// Shows slow operations, once or as they happen.
pub fn run(arguments: &Trace) -> Result<ExitCode, Failure> {
    let asked = chosen(arguments)?;
    if let Some(threshold) = &arguments.threshold {
        for asked in &asked {
            let Asked::Mount(mount) = asked else {
                let what = format!("cannot set what is slow at {}", asked.name());
                return Err(Failure::usage(what, "a server is told when it starts", "start it with --slow MS"));
            };
            mounts::set_slow(mount, threshold, PATIENCE).map_err(|why| {
                let what = format!("cannot set what is slow on {} to '{threshold}'", mount.target.display());
                Failure::new(what, why, "give milliseconds, such as 10 or 0.5, or off, as root or whoever mounted it")
            })?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut told: Vec<Told> = asked.iter().map(|asked| ask(asked, 0)).collect();
    let next: Vec<u64> = told.iter().map(|told| told.report.next).collect();
    let is_well = told.iter().all(|told| told.state == "ok");
    told.iter_mut().for_each(|told| narrow(&mut told.report, arguments));
    show(&told, arguments);
    if arguments.follow && is_well {
        return follow_all(&asked, next, arguments).map(|()| ExitCode::SUCCESS);
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows what comes, until one of them does not answer.
fn follow_all(asked: &[Asked], mut next: Vec<u64>, arguments: &Trace) -> Result<(), Failure> {
    loop {
        thread::sleep(FOLLOW_INTERVAL);
        for (asked, next) in asked.iter().zip(&mut next) {
            let mut told = ask(asked, *next);
            if told.state != "ok" {
                let what = format!("cannot follow the slow operations of {}", told.target);
                return Err(Failure::new(what, told.state, "see 'aqueduct status'"));
            }
            *next = told.report.next;
            narrow(&mut told.report, arguments);
            told.report.operations.iter().for_each(|operation| follow(&told.target, operation, arguments.json));
        }
    }
}

/// The mount or server that is named, or all mounts of this machine.
fn chosen(arguments: &Trace) -> Result<Vec<Asked>, Failure> {
    let all = mounts::all().map_err(|error| {
        let why = format!("/proc/self/mountinfo: {error}");
        Failure::new("cannot list the mounts of this machine", why, "mount proc on /proc")
    })?;
    let Some(target) = &arguments.target else {
        return Ok(all.into_iter().filter(Mount::is_ours).map(Asked::Mount).collect());
    };
    let point = mounts::mount_point(Path::new(target), &all);
    if let Some(mount) = all.into_iter().rfind(|mount| mount.is_ours() && mount.target == point) {
        return Ok(vec![Asked::Mount(mount)]);
    }
    let what = format!("the slow operations of {target}");
    if target.starts_with(['/', '.']) {
        let hint = "name a directory that 'aqueduct status' shows, or none for all";
        return Err(Failure::usage(what, "it is no mount of Aqueduct", hint));
    }
    let key = locks::administrator(arguments.state.as_deref(), &what)?;
    let address = server_address(target);
    // Whether it is there, and takes the key, is told as of any other question.
    server_slow(&address, key.clone(), 0, PATIENCE).map_err(|error| locks::failed(&what, &error))?;
    Ok(vec![Asked::Server(address, key)])
}

/// What is told of one mount or server at most: 16 times what one remembers (512). Whoever answers
/// may be anybody who made a mount that looks like ours.
const TOLD_MAX: usize = 8192;

/// All that is remembered from a number on, which is told in several answers.
fn ask(asked: &Asked, from: u64) -> Told {
    let (mut report, mut state) = (TraceReport { next: from, ..TraceReport::default() }, "ok".to_owned());
    loop {
        match asked.ask(report.next) {
            Ok(more) => {
                let mut has_all = more.operations.is_empty() || more.next == more.slow;
                report.operations.extend(more.operations);
                has_all |= report.operations.len() >= TOLD_MAX;
                report = TraceReport { operations: report.operations, ..more };
                if has_all {
                    break;
                }
            }
            Err(why) => {
                state = why;
                break;
            }
        }
    }
    let source = match asked {
        Asked::Mount(mount) => Some(mount.source.clone()),
        Asked::Server(..) => None,
    };
    Told { target: asked.name(), source, state, report }
}

/// Leaves what is asked for.
fn narrow(report: &mut TraceReport, arguments: &Trace) {
    let least = arguments.over.unwrap_or(0.0) * 1e3;
    report.operations.retain(|operation| operation.took_us as f64 >= least);
    if arguments.by.is_none() {
        let excess = report.operations.len().saturating_sub(arguments.count);
        report.operations.drain(..excess);
    }
}

fn show(told: &[Told], arguments: &Trace) {
    match (arguments.json, arguments.by) {
        (true, None) if arguments.follow => {
            for of in told {
                of.report.operations.iter().for_each(|operation| follow(&of.target, operation, true));
            }
        }
        (true, None) => output::json(&told),
        (true, Some(by)) => {
            let sums = |told: &Told| serde_json::json!({ "target": told.target, "sums": sums(&told.report, by) });
            output::json(&told.iter().map(sums).collect::<Vec<_>>());
        }
        (false, _) if told.is_empty() => output::line(format_args!("Nothing of Aqueduct's is mounted here.")),
        (false, by) => told.iter().for_each(|told| output::print(format_args!("{}", text(told, by)))),
    }
}

fn text(told: &Told, by: Option<By>) -> String {
    let Told { target, source, state, report } = told;
    let target = &shown(target);
    let (source, hint) = match source {
        Some(source) => (format!(" of {}", shown(source)), format!("aqueduct trace --threshold 10 {target}")),
        None => (String::new(), "aqueduct serve --slow 10".to_owned()),
    };
    if state != "ok" {
        return format!("{target}{source}: {state}\n");
    }
    let Some(threshold) = report.threshold_ms else {
        return format!("{target}{source}: nothing is looked at ({hint})\n");
    };
    let mut text = format!("{target}{source}: ");
    if report.operations.is_empty() {
        text += &match report.slow {
            0 => format!("no operation took {threshold} ms or more\n"),
            slow => format!("none such; {slow} took {threshold} ms or more since the start\n"),
        };
        return text;
    }
    text += &format!("{} took {threshold} ms or more since the start\n", report.slow);
    match by {
        Some(by) => text += &sums_text(report, by),
        None => report.operations.iter().for_each(|operation| text += &operation_text(operation)),
    }
    text
}

/// One operation as it happens.
fn follow(target: &str, operation: &SlowOperation, as_json: bool) {
    match as_json {
        true => output::line(format_args!("{}", serde_json::json!({ "target": target, "operation": operation }))),
        false => output::print(format_args!("{}", operation_text(operation))),
    }
}

/// A line of what it was, and one of where its time went.
fn operation_text(operation: &SlowOperation) -> String {
    let at = Timestamp::from_microsecond(operation.at_us as i64)
        .map_or_else(|_| "-".to_owned(), |at| at.strftime("%F %T%.3fZ").to_string());
    let mut told = vec![format!("{at}  {}", micros(operation.took_us as f64)), shown(&operation.operation)];
    told.extend(operation.path.as_deref().map(shown));
    if let Some((count, offset)) = operation.bytes.zip(operation.offset) {
        told.push(format!("{} at {offset}", bytes(count as f64)));
    }
    told.extend(operation.errno.map(|errno| format!("error {errno}")));
    told.extend(operation.client.as_ref().map(|client| format!("client {}", shown(client))));
    told.extend(operation.export.as_ref().map(|export| format!("export {}", shown(export))));
    told.extend(operation.job.as_ref().map(|job| format!("job {}", shown(job))));
    told.extend(operation.pid.map(|pid| format!("pid {pid}")));
    if operation.repeats > 0 {
        told.push(format!("{} of {} requests sent again", operation.repeats, operation.requests));
    }
    let hops: Vec<String> = operation.hops.iter().map(|hop| hop_text(hop, operation.took_us)).collect();
    format!("{}\n    {}\n", told.join("  "), hops.join("\n    "))
}

/// What others have named, with nothing that a terminal obeys.
fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}

fn hop_text(hop: &HopTime, of_us: u64) -> String {
    let share = 100.0 * hop.us as f64 / of_us.max(1) as f64;
    let server = hop.server.as_ref().map_or_else(String::new, |server| format!("  {}", shown(server)));
    let detail = hop.detail.as_ref().map_or_else(String::new, |detail| format!("  ({})", shown(detail)));
    format!("{:<12} {:>9}  {share:>3.0} %{server}{detail}", hop.hop.name(), micros(hop.us as f64))
}

/// Slow operations that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Sum {
    what: String,
    operations: u64,
    total_us: u64,
    longest_us: u64,
    /// Microseconds of all of them by hop.
    hops: BTreeMap<Hop, u64>,
}

/// What took longest in all comes first.
fn sums(report: &TraceReport, by: By) -> Vec<Sum> {
    let mut sums = BTreeMap::<String, Sum>::new();
    for operation in &report.operations {
        let what = match by {
            By::Hop => operation.slowest().map(|hop| match &hop.server {
                Some(server) => format!("{} {server}", hop.hop.name()),
                None => hop.hop.name().to_owned(),
            }),
            By::Op => Some(operation.operation.clone()),
            By::Job => operation.job.clone(),
            By::Path => operation.path.clone(),
        };
        let what = what.unwrap_or_else(|| "-".to_owned());
        let sum = sums.entry(what.clone()).or_insert_with(|| Sum { what, ..Sum::default() });
        sum.operations += 1;
        sum.total_us += operation.took_us;
        sum.longest_us = sum.longest_us.max(operation.took_us);
        operation.hops.iter().for_each(|hop| *sum.hops.entry(hop.hop).or_default() += hop.us);
    }
    let mut sums: Vec<Sum> = sums.into_values().collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.total_us));
    sums
}

fn sums_text(report: &TraceReport, by: By) -> String {
    let head = match by {
        By::Hop => "MOST IN",
        By::Op => "OPERATION",
        By::Job => "JOB",
        By::Path => "PATH",
    };
    let row = |sum: &Sum| {
        let share = |hop: &Hop| {
            let share = sum.hops.get(hop).map(|us| 100.0 * *us as f64 / sum.total_us.max(1) as f64);
            share.map_or_else(|| "-".to_owned(), |share| format!("{share:.0} %"))
        };
        let (total, longest) = (micros(sum.total_us as f64), micros(sum.longest_us as f64));
        let mut row = vec![sum.what.escape_debug().to_string(), sum.operations.to_string(), total, longest];
        row.extend(Hop::ALL.iter().map(share));
        row
    };
    let headings = [
        head,
        ">SLOW",
        ">IN ALL",
        ">LONGEST",
        ">CLIENT",
        ">CLIENT QUEUE",
        ">RECONNECT",
        ">WIRE",
        ">ROUTER",
        ">SERVER QUEUE",
        ">LEASE WAIT",
        ">FILE SYSTEM",
    ];
    render(&headings, &sums(report, by).iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str, took_us: u64, hop: Hop) -> SlowOperation {
        let server = (hop == Hop::FileSystem).then(|| "s:1".to_owned());
        let hops = vec![
            HopTime { hop: Hop::Client, us: took_us / 10, server: None, detail: None },
            HopTime { hop, us: took_us - took_us / 10, server, detail: Some("Read".into()) },
        ];
        SlowOperation {
            operation: name.into(),
            took_us,
            hops,
            path: Some("/a\u{1b}[2J".into()),
            ..SlowOperation::default()
        }
    }

    #[test]
    fn sums_are_by_what_was_asked() {
        let operations = vec![
            operation("READ", 20_000, Hop::FileSystem),
            operation("READ", 10_000, Hop::LeaseWait),
            operation("LOOKUP", 50_000, Hop::FileSystem),
        ];
        let report = TraceReport { operations, ..TraceReport::default() };
        let of =
            |by| sums(&report, by).into_iter().map(|sum| (sum.what, sum.operations, sum.total_us)).collect::<Vec<_>>();
        assert_eq!(of(By::Op), [("LOOKUP".into(), 1, 50_000), ("READ".into(), 2, 30_000)]);
        assert_eq!(of(By::Hop), [("file system s:1".into(), 2, 70_000), ("lease wait".into(), 1, 10_000)]);
        assert_eq!(of(By::Job), [("-".into(), 3, 80_000)]);
        let text = sums_text(&report, By::Op);
        assert!(text.contains("90 %") && text.contains("50.0 ms"), "{text}");
    }

    #[test]
    fn an_operation_is_told_with_its_hops_and_names_cannot_move_the_cursor() {
        let text = operation_text(&operation("READ", 20_000, Hop::FileSystem));
        assert!(text.contains("READ") && text.contains("file system    18.0 ms   90 %  s:1  (Read)"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
