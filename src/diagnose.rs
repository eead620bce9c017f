//! `aqueduct diagnose`: its arguments, and what is shown of what it found.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use aqueduct_diagnose::active::{self, Question, Report};
use aqueduct_diagnose::after::{self, Records};
use aqueduct_diagnose::watch::{self, Subject};
use aqueduct_diagnose::{Cause, Verdict};
use aqueduct_node::{ChecksumChoice, Reach, copies_folder, keyfile, mounts, server_address};
use aqueduct_transfer::{Place, Running};
use clap::Args;

use crate::failure::Failure;
use crate::routes::Routes;
use crate::table::{bytes, render};
use crate::{output, service};

/// The least time for an active diagnosis, in seconds: each leg once.
const SECONDS_MIN: u64 = 10;

/// The most.
const SECONDS_MAX: u64 = 600;

/// How long legs are run, if nothing else is said.
const LEGS: u64 = 45;

/// How long with what is asked for beyond them.
const LEGS_AND_MORE: u64 = 58;

/// How long something is watched that runs, in seconds.
const WATCHED: u64 = 15;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct diagnose 4711                            what holds the copy back that process 4711 makes
  aqueduct diagnose /mnt/data                       what holds the mount back
  aqueduct diagnose scratch@10.0.0.1                what holds a volume's servers back, and which is slow
  aqueduct diagnose results server:/srv/data/       what would hold a copy back
  aqueduct diagnose --json server:/srv/data/run7 /scratch | jq .verdict
  aqueduct diagnose --sweep --probe --html why.html results server:/srv/data/
  aqueduct diagnose --from dtn.log --from lmt.sqlite3     after the fact, from what others wrote

With one name it only watches: a mount, a server (HOST:PORT) or those of a volume (VOLUME@HOST), or a copy of this
user on this machine, by the number of its process, as 'aqueduct transfers list' shows it. With two, SRC is read and made-up data are written to DST, apart and together, for some seconds, and removed. What it
says: read, network, write, metadata, cpu, latency (too little under way), or undetermined between which; where;
how sure it is; what would come next. Nothing is slowed without --probe, and it ends in time also when something hangs.
--from takes logs of GridFTP, databases of LMT, dumps of darshan-parser, the JSON of IOR and iperf3, and lines of 'aqueduct observe'.
Exit codes: 0 it has a verdict, 1 it could not look, 2 the command line makes no sense, 3 undetermined.")]
pub struct Diagnose {
    /// A mount, HOST:PORT (HOST:PORT@NET behind routers), VOLUME@HOST, or a copy that runs, by the
    /// number of its process; or from where: a file or directory, or HOST:/EXPORT/path,
    /// HOST:PORT:/EXPORT/path
    #[arg(value_name = "MNT|PID|SERVER|VOLUME|SRC", required_unless_present = "from")]
    pub source: Option<OsString>,
    /// To where: a directory, or HOST:/EXPORT/path, HOST:PORT:/EXPORT/path
    #[arg(value_name = "DST")]
    pub target: Option<OsString>,
    /// Say it from this log, measurement or database instead; again for more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "key", "route", "routes", "seconds"])]
    pub from: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Take so many seconds at most [default: 15 to watch, 45 for SRC and DST]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    pub seconds: Option<u64>,
    /// Also try other numbers of streams and sizes of buffers
    #[arg(long, requires = "target")]
    pub sweep: bool,
    /// Also slow each side by a quarter for some seconds, to see whether the whole follows: others
    /// who use it feel that too
    #[arg(long, requires = "target")]
    pub probe: bool,
    /// Write a page with figures there
    #[arg(long, value_name = "FILE", requires = "target")]
    pub html: Option<PathBuf>,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub routes: Routes,
}

/// A path that cannot be followed for so long leads through a mount that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The exit code of a diagnosis that cannot tell.
const UNDETERMINED: u8 = 3;

/// Runs it.
pub fn run(arguments: &Diagnose) -> Result<ExitCode, Failure> {
    let key = arguments.key.as_deref().map(keyfile::load_client).transpose()?;
    let reach = (key, arguments.routes.resolve()?);
    let (source, target) = match (&arguments.source, &arguments.target) {
        (Some(source), Some(target)) => (source, target),
        (Some(subject), None) => return watch(arguments, subject, reach),
        (None, _) => return after(arguments),
    };
    let usual = if arguments.sweep || arguments.probe { LEGS_AND_MORE } else { LEGS };
    let seconds = arguments.seconds.unwrap_or(usual).max(SECONDS_MIN);
    let question = Question {
        source: Place::parse(source)?,
        target: Place::parse(target)?,
        reach,
        checksums: ChecksumChoice::Auto.checksums(),
        limit: Duration::from_secs(seconds),
        sweeps: arguments.sweep,
        probes: arguments.probe,
        stop: Arc::default(),
    };
    let signal = stop_on_signals(question.stop.clone())?;
    let report = active::run(&question)?;
    if let Ok(signal) = signal.try_recv() {
        if let Some(left) = &report.samples.left {
            output::error(format_args!("aqueduct: {left} could not be removed: remove it when that answers again"));
        }
        return Ok(ExitCode::from(128 + signal));
    }
    if let Some(path) = &arguments.html {
        fs::write(path, active::page(&report)).map_err(|error| {
            Failure::new(format!("cannot write {}", path.display()), error, "name a file that can be written")
        })?;
    }
    if arguments.json {
        // Its keys are strings.
        output::json(&report);
    } else {
        output::print(format_args!("{}", text(&report)));
    }
    Ok(code(&report.verdict))
}

/// Has a diagnosis end, and remove what it has written, at the first signal, which is told; the
/// second ends the process at once.
fn stop_on_signals(stop: Arc<AtomicBool>) -> Result<Receiver<u8>, Failure> {
    let mut signals = service::signals()?;
    let (sender, told) = mpsc::channel();
    let watch = move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                std::process::exit(128 + signal);
            }
            stop.store(true, Ordering::SeqCst);
            let _ = sender.send(u8::try_from(signal).unwrap_or_default()); // it has ended by itself
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map_err(|error| Failure::new("cannot start a thread", error, "check the limit on processes"))?;
    Ok(told)
}

/// What runs is watched.
fn watch(arguments: &Diagnose, subject: &OsStr, reach: Reach) -> Result<ExitCode, Failure> {
    let limit = Duration::from_secs(arguments.seconds.unwrap_or(WATCHED));
    let report = watch::run(&watch::Question { subject: subject_of(subject, &reach)?, reach, limit })?;
    if arguments.json {
        // Its keys are strings.
        output::json(&report);
    } else {
        output::print(format_args!("{}", watched_text(&report)));
    }
    Ok(code(&report.verdict))
}

/// What is meant by one name.
fn subject_of(name: &OsStr, reach: &Reach) -> Result<Subject, Failure> {
    let mount = mounts::on(Path::new(name), PATIENCE).map_err(|why| {
        let hint = "name the directory that is mounted on, as 'aqueduct status' shows it; clear a dead mount with 'aqueduct umount'";
        Failure::new(format!("cannot look where {} is", name.display()), why, hint)
    })?;
    if let Some(mount) = mount {
        return Ok(Subject::Mount(mount));
    }
    let pid: Option<u32> = name.to_str().and_then(|text| text.parse().ok());
    let copies = copies_folder().iter().flat_map(|folder| Running::all(folder)).collect::<Vec<_>>();
    let found = copies.into_iter().find(|(_, told)| pid.is_some_and(|pid| told.pid == pid));
    if let Some((path, _)) = found {
        return Ok(Subject::Copy(path));
    }
    let text = name.to_string_lossy();
    // A port tells a server in a network, HOST:PORT@NET, from a volume.
    let is_volume = |(name, _): &(&str, &str)| !text.contains('/') && !name.contains(':');
    if let Some((volume, servers)) = text.split_once('@').filter(is_volume) {
        let servers = watch::of_volume(volume, &server_address(servers), reach)?;
        return Ok(Subject::Servers(text.into_owned(), servers));
    }
    if text.contains(':') && !text.contains('/') {
        return Ok(Subject::Servers(text.clone().into_owned(), vec![server_address(&text)]));
    }
    let why = "it is neither a mount of Aqueduct nor the process of a copy of this user, and no server as HOST:PORT or volume as VOLUME@HOST";
    let hint = "name one that 'aqueduct transfers list' shows, or a source and a destination";
    Err(Failure::usage(format!("cannot watch {text}"), why, hint))
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
    let row = |swept: &active::SweptReport| {
        let (name, value) = match swept.setting {
            active::Setting::Streams => ("streams", swept.value.to_string()),
            active::Setting::Buffer => ("buffer", bytes(swept.value as f64)),
        };
        vec![name.to_owned(), value, bytes(swept.rate), swept.rates.len().to_string()]
    };
    let rows: Vec<_> = report.sweep.iter().map(row).collect();
    if !rows.is_empty() {
        text.push_str(&format!("\n{}", render(&["SETTING", ">VALUE", ">RATE/S", ">TIMES"], &rows)));
    }
    text
}
