//! `aqueduct diagnose`: its arguments, and what is shown of what it found.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_diagnose::active::{self, Question, Report};
use aqueduct_diagnose::after::{self, Records};
use aqueduct_diagnose::{Cause, Verdict};
use aqueduct_node::{ChecksumChoice, keyfile};
use aqueduct_transfer::Place;
use clap::Args;

use crate::failure::Failure;
use crate::output;
use crate::table::{bytes, render};

/// The least time for an active diagnosis, in seconds: each leg once.
const SECONDS_MIN: u64 = 10;

/// The most.
const SECONDS_MAX: u64 = 600;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct diagnose results server:/srv/data/       what would hold a copy back
  aqueduct diagnose --json server:/srv/data/run7 /scratch | jq .verdict
  aqueduct diagnose --from dtn.log --from lmt.sqlite3     after the fact, from what others wrote

SRC is read and made-up data are written to DST, apart and together, for some seconds, and removed. What it
says: read, network, write, metadata, cpu, latency (too little under way), or undetermined between which; where;
how sure it is; what would come next. Nothing is slowed, and it ends in time also when something hangs.
--from takes logs of GridFTP, databases of LMT, dumps of darshan-parser, and the JSON of IOR and iperf3.
Exit codes: 0 it has a verdict, 1 it could not look, 2 the command line makes no sense, 3 undetermined.")]
pub struct Diagnose {
    /// From where: a file or directory, or HOST:/EXPORT/path, HOST:PORT:/EXPORT/path
    #[arg(value_name = "SRC", required_unless_present = "from", requires = "target")]
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
    /// Take so many seconds at most
    #[arg(long, value_name = "SECONDS", default_value_t = 45, value_parser = clap::value_parser!(u64).range(SECONDS_MIN..=SECONDS_MAX))]
    pub seconds: u64,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// The exit code of a diagnosis that cannot tell.
const UNDETERMINED: u8 = 3;

/// Runs it.
pub fn run(arguments: &Diagnose) -> Result<ExitCode, Failure> {
    let (Some(source), Some(target)) = (&arguments.source, &arguments.target) else { return after(arguments) };
    let question = Question {
        source: Place::parse(source)?,
        target: Place::parse(target)?,
        key: arguments.key.as_deref().map(keyfile::load_client).transpose()?,
        checksums: ChecksumChoice::Auto.checksums(),
        limit: Duration::from_secs(arguments.seconds),
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
