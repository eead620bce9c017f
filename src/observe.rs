//! `aqueduct observe`: what this machine counts for each disk, mount, interface and target, as a
//! series.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use aqueduct_observe::activity::Collector;
use aqueduct_observe::series::{Series, WriteError};
use clap::Args;
use jiff::Timestamp;

use crate::failure::Failure;
use crate::service;

/// Whoever needs longer than 100 days leaves --for out.
const SECONDS_MAX: u64 = 100 * 24 * 3600;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct observe --for 60 --out run7.parquet       a minute, for pandas, DuckDB and Polars
  aqueduct observe --out run7.jsonl                  until Ctrl-C, a line of JSON for each counter
  aqueduct observe | grep '\"source\":\"disk\"'
  lctl get_param osc.*.stats > osc.txt; aqueduct observe --for 0 --lctl osc.txt

A flat table with the columns time, source, target, counter and value. Values are counters that only grow: what
happened in a second is the difference of two. Sources: disk, xfs, ext4, lustre, nfs, net, tcp, pressure, cpu (with steal),
schedule; what this kernel does not have, or this user may not read, is left out. Only local counters are read:
it does not hang when a server or a disk does.")]
pub struct Observe {
    /// End after so long; 0: after one look [default: at Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=SECONDS_MAX))]
    pub seconds: Option<u64>,
    /// Look so often
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// The file: Parquet if its name ends in .parquet, else lines of JSON [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Look into this file too, which has what 'lctl get_param' prints
    #[arg(long, value_name = "FILE")]
    pub lctl: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give seconds, such as 1 or 0.5")?;
    // Some counters are of 10 ms: below this a difference says little.
    if (0.1..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("give 0.1 to 86400".into())
    }
}

/// Looks until the time is over or a signal comes.
pub fn run(arguments: &Observe) -> Result<ExitCode, Failure> {
    let ended = |error: WriteError| Failure::from_line(error, "name another file");
    if let Some(path) = &arguments.lctl {
        std::fs::File::open(path)
            .map_err(|error| Failure::new(format!("cannot read {}", path.display()), error, "name another file"))?;
    }
    let signal = signal()?;
    let mut series = Series::new(arguments.out.as_deref()).map_err(ended)?;
    let collector = Collector::new(Path::new("/"), arguments.lctl.as_deref());
    let begin = Instant::now();
    let end = arguments.seconds.map(|seconds| begin + Duration::from_secs(seconds));
    let mut next = begin;
    loop {
        let readings = collector.look();
        if readings.dropped() > 0 {
            tracing::warn!(dropped = readings.dropped(), "more counters than are kept of one look");
        }
        match series.add(Timestamp::now(), &readings) {
            // Whoever read this has left.
            Err(WriteError::Write { error, .. }) if error.kind() == ErrorKind::BrokenPipe => break,
            added => added.map_err(ended)?,
        }
        // Looks that were missed are not made up for.
        while next <= Instant::now() {
            next += arguments.interval;
        }
        if end.is_some_and(|end| next > end) {
            break;
        }
        let wait = next.saturating_duration_since(Instant::now());
        if signal.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout) {
            break;
        }
    }
    series.finish().map_err(ended)?;
    Ok(ExitCode::SUCCESS)
}

/// Told when a signal comes.
fn signal() -> Result<Receiver<()>, Failure> {
    let signals = service::signals()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            service::wait(signals);
            let _ = sender.send(());
        })
        .map_err(|error| Failure::new("cannot watch for signals", error, "check the limit on threads"))?;
    Ok(receiver)
}
