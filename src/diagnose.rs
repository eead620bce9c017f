//! `aqueduct diagnose`: its arguments, and what is shown of what it found.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_diagnose::active::{self, Question, Report};
use aqueduct_diagnose::after::{self, Records};
use aqueduct_diagnose::watch::{self, Subject};
use aqueduct_diagnose::{Cause, Verdict};
use aqueduct_node::{ChecksumChoice, copies_folder, keyfile, mounts};
use aqueduct_transfer::{Place, Running};
use aqueduct_wire::ClientKey;
use clap::Args;

use crate::failure::Failure;
use crate::output;
use crate::table::{bytes, render};

/// The least time for an active diagnosis, in seconds: each leg once.
const SECONDS_MIN: u64 = 10;

/// The most.
const SECONDS_MAX: u64 = 600;

/// How long legs are run, if nothing else is said.
const LEGS: u64 = 45;

/// How long something is watched that runs, in seconds.
const WATCHED: u64 = 15;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct diagnose 4711                            what holds the copy back that process 4711 makes
  aqueduct diagnose /mnt/data                       what holds the mount back
  aqueduct diagnose results server:/srv/data/       what would hold a copy back
  aqueduct diagnose --json server:/srv/data/run7 /scratch | jq .verdict
  aqueduct diagnose --from dtn.log --from lmt.sqlite3     after the fact, from what others wrote

With one name it only watches: a mount, or a copy of this user on this machine, by the number of its process, as 'aqueduct
transfers list' shows it. With two, SRC is read and made-up data are written to DST, apart and together, for some seconds, and removed. What it
says: read, network, write, metadata, cpu, latency (too little under way), or undetermined between which; where;
how sure it is; what would come next. Nothing is slowed, and it ends in time also when something hangs.
--from takes logs of GridFTP, databases of LMT, dumps of darshan-parser, the JSON of IOR and iperf3, and lines of 'aqueduct observe'.
Exit codes: 0 it has a verdict, 1 it could not look, 2 the command line makes no sense, 3 undetermined.")]
pub struct Diagnose {
    /// A mount, or a copy that runs, by the number of its process; or from where: a file or
    /// directory, or HOST:/EXPORT/path, HOST:PORT:/EXPORT/path
    #[arg(value_name = "MNT|PID|SRC", required_unless_present = "from")]
    pub source: Option<OsString>,
    /// To where: a directory, or HOST:/EXPORT/path, HOST:PORT:/EXPORT/path
    #[arg(value_name = "DST")]
    pub target: Option<OsString>,
    /// Say it from this log, measurement or database instead; again for more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "key", "seconds"])]
    pub from: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Take so many seconds at most [default: 15 to watch, 45 for SRC and DST]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    pub seconds: Option<u64>,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// The exit code of a diagnosis that cannot tell.
const UNDETERMINED: u8 = 3;

/// Runs it.
pub fn run(arguments: &Diagnose) -> Result<ExitCode, Failure> {
    let key = arguments.key.as_deref().map(keyfile::load_client).transpose()?;
    let (source, target) = match (&arguments.source, &arguments.target) {
        (Some(source), Some(target)) => (source, target),
        (Some(subject), None) => return watch(arguments, subject, key),
        (None, _) => return after(arguments),
    };
    let seconds = arguments.seconds.unwrap_or(LEGS).max(SECONDS_MIN);
    let question = Question {
        source: Place::parse(source)?,
        target: Place::parse(target)?,
        key,
        checksums: ChecksumChoice::Auto.checksums(),
        limit: Duration::from_secs(seconds),
    };
    let report = active::run(&question)?;
    if arguments.json {
        // Its keys are strings.
        output::json(&report);
    } else {
        output::print(format_args!("{}", text(&report)));
    }
    Ok(code(&report.verdict))
}

/// What runs is watched.
fn watch(arguments: &Diagnose, subject: &OsStr, key: Option<ClientKey>) -> Result<ExitCode, Failure> {
    let limit = Duration::from_secs(arguments.seconds.unwrap_or(WATCHED));
    let report = watch::run(&watch::Question { subject: subject_of(subject)?, key, limit })?;
    if arguments.json {
        // Its keys are strings.
        output::json(&report);
    } else {
        output::print(format_args!("{}", watched_text(&report)));
    }
    Ok(code(&report.verdict))
}

/// What is meant by one name.
fn subject_of(name: &OsStr) -> Result<Subject, Failure> {
    let mounts = mounts::all().map_err(|error| Failure::new("cannot list the mounts", error, "see /proc"))?;
    let target = mounts::mount_point(Path::new(name), &mounts);
    if let Some(mount) = mounts.iter().rfind(|mount| mount.is_ours() && mount.target == target) {
        return Ok(Subject::Mount(mount.clone()));
    }
    let pid: Option<u32> = name.to_str().and_then(|text| text.parse().ok());
    let copies = copies_folder().iter().flat_map(|folder| Running::all(folder)).collect::<Vec<_>>();
    let found = copies.into_iter().find(|(_, told)| pid.is_some_and(|pid| told.pid == pid));
    found.map(|(path, _)| Subject::Copy(path)).ok_or_else(|| {
        let hint = "name one that 'aqueduct transfers list' shows, or a source and a destination";
        Failure::usage(
            format!("cannot watch {}", name.to_string_lossy()),
            "it is neither a mount of Aqueduct nor the process of a copy of this user",
            hint,
        )
    })
}

fn watched_text(report: &watch::Report) -> String {
    let row =
        |spent: &watch::Spent| vec![spent.stage.clone(), format!("{:.1} %", spent.share * 100.0), spent.place.clone()];
    let rows: Vec<_> = report.spent.iter().map(row).collect();
    format!(
        "{}\n{}\nIt moved {}/s, watched for {:.0} s.\n",
        report.verdict,
        render(&["STAGE", ">TIME", "WHERE"], &rows),
        bytes(report.rate),
        report.seconds
    )
}

/// From what others wrote.
fn after(arguments: &Diagnose) -> Result<ExitCode, Failure> {
    let mut records = Records::default();
    for path in &arguments.from {
        records.add(path).map_err(|error| Failure::from_line(error, "name another file"))?;
    }
    let verdict = after::judge(&records);
    if arguments.json {
        // Its keys are strings.
        output::json(&verdict);
    } else {
        output::print(format_args!("{verdict}"));
    }
    Ok(code(&verdict))
}

fn code(verdict: &Verdict) -> ExitCode {
    if verdict.verdict == Cause::Undetermined { ExitCode::from(UNDETERMINED) } else { ExitCode::SUCCESS }
}

fn text(report: &Report) -> String {
    let mut text = format!("{}\n", report.verdict);
    let row = |leg: &active::LegReport| {
        let least = leg.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = leg.rates.iter().copied().fold(0.0, f64::max);
        vec![leg.leg.clone(), bytes(leg.rate), bytes(least), bytes(most), leg.rates.len().to_string()]
    };
    let rows: Vec<_> = report.legs.iter().map(row).collect();
    text.push_str(&render(&["LEG", ">RATE/S", ">LEAST", ">MOST", ">TIMES"], &rows));
    text.push_str(&format!(
        "\nThe whole moves {}/s; its parts let expect {}/s at most. It took {:.0} s.\n",
        bytes(report.measured),
        bytes(report.predicted),
        report.seconds
    ));
    text
}
