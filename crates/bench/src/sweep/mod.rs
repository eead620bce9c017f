//! A matrix of measurements: repeated in random order until they are certain enough, resumed when they were interrupted, and judged by what was expected.
//!
//! - `file`: what a sweep file says, and [`expect`]: what it expects.
//! - [`plan`], [`steps`], [`cost`]: all that follows from it before anything runs.
//! - [`runner`]: the order of things; [`process`]: the benchmarks it calls; [`machine`]: where that happens.
//! - [`results`]: what is on the disk, so that an interruption loses nothing.
//!
//! The order is that of randomised complete blocks: each block holds every point of every system once, in an order drawn from the seed. What changes
//! slowly on a machine (its temperature, its neighbours, how full a disk is) then meets all points alike rather than the last ones.

pub mod cost;
pub mod expect;
pub mod file;
pub mod groups;
pub mod machine;
pub mod plan;
pub mod process;
mod progress;
pub mod results;
pub mod runner;
pub mod steps;
mod sys;
pub mod table;
pub mod template;
pub mod value;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::record::{self, Line, Sample};
use crate::{Failure, parquet};
use expect::Outcome;
use file::Source;
use groups::Group;
use plan::Plan;
use process::Stop;
use results::{Results, SAMPLES};
use runner::{End, Runner};
use template::Names;

/// How a file looks; `experiments/example.toml` has every key.
const HELP: &str = r#"A sweep file:
  name = "blocks"
  [matrix]
  transfer = { from = "4k", to = "1m" }         # times 2; or a list: ["4k", "1m"]
  [run]
  bench = "io"                                  # io, meta, net or command
  options = "-b 256m -t {transfer} -e"
  sequence = ["write", "read", "write+read"]    # write+read: at once
  [measure]
  repeat = 6
  warmup = 1
  until = { statistic = "median", width = "5%", most = 20 }
  cache = "drop"                                # before each step, as root
  memory = "2g"                                 # touched before each step
  [[system]]
  name = "native"
  dir = "/srv/data"
  [[system]]
  name = "aqueduct"
  dir = "/mnt/data"
  [[expect]]
  op = "read"
  system = "aqueduct"
  where = { transfer = ">= 64k" }
  reference = { system = "native" }
  at_least = "0.98 * reference"                 # at_most, close_to; flat, rising, falling = "transfer"
  why = "the network is faster than the disk"

experiments/example.toml has every key with what it means.

The exit code is 0 when all is as expected, 1 when it is not or something failed, 130 after Ctrl-C.

Examples:
  aqueduct bench sweep blocks.toml --dry-run
  aqueduct bench sweep blocks.toml
  aqueduct bench sweep blocks.toml --judge --parquet blocks.parquet"#;

/// The options.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// The sweep file
    file: PathBuf,
    /// Where the results go, instead of results/NAME; what is there already is not measured again
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Take what the file's [reduced] has instead
    #[arg(long)]
    reduced: bool,
    /// Show the plan and what it takes, and measure nothing
    #[arg(long)]
    dry_run: bool,
    /// Begin anew; old results are kept in a folder beside
    #[arg(long)]
    restart: bool,
    /// Pass over what fails; the same command tries it again
    #[arg(long)]
    keep_going: bool,
    /// Show and judge the results that are there, and measure nothing
    #[arg(long, conflicts_with_all = ["dry_run", "restart", "keep_going"])]
    judge: bool,
    /// Another value for a name of the file's [values]; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Also write all samples as a table for pandas, DuckDB and Polars
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
}

/// Runs it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let source = Source::read(&arguments.file)?;
    let set = names(&arguments.set)?;
    let plan = Plan::new(&source, arguments.reduced, &set, arguments.results.as_deref())?;
    if arguments.parquet.is_some() {
        parquet::check()?;
    }
    if arguments.dry_run {
        plan.check_targets()?;
        print(&plan.shown(steps_done(&plan)));
        return Ok(ExitCode::SUCCESS);
    }
    let lines = if arguments.judge {
        record::read(&plan.results.join(SAMPLES))?
    } else {
        let (end, lines) = measure(&arguments, &source, &plan)?;
        if let End::Stopped = end {
            let done = steps_done(&plan);
            tell!("Stopped: {done} steps are done, in {}. The same command goes on.", plan.results.display());
            return Ok(ExitCode::from(process::INTERRUPTED as u8));
        }
        if let End::Complete(failures) = &end
            && !failures.is_empty()
        {
            tell!("{} points failed; the same command tries them again:", failures.len());
            failures.iter().for_each(|failure| tell!("  {failure}"));
            let _ = conclude(&arguments, &plan, &lines)?;
            return Ok(ExitCode::FAILURE);
        }
        lines
    };
    let as_expected = conclude(&arguments, &plan, &lines)?;
    Ok(if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn names(set: &[String]) -> Result<Names, Failure> {
    let one = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("--set {text}"), "it has no =", "write --set NAME=VALUE")),
    };
    set.iter().map(one).collect()
}

/// Output may be cut off by a pager.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// What is done in the plan's folder, as far as one can tell from outside.
fn steps_done(plan: &Plan) -> usize {
    let journal = std::fs::read_to_string(plan.results.join(results::JOURNAL)).unwrap_or_default();
    journal.lines().filter(|line| serde_json::from_str::<results::Done>(line).is_ok()).count()
}

fn measure(arguments: &Arguments, source: &Source, plan: &Plan) -> Result<(End, Vec<Line>), Failure> {
    plan.check_targets()?;
    if plan.drops_caches() {
        machine::drop_caches()?;
    }
    let stop = Stop::on_signals()
        .map_err(|error| Failure::new("cannot watch for Ctrl-C", error, "try again in another shell"))?;
    let time = runner::now();
    if arguments.restart
        && let Some(aside) = results::set_aside(&plan.results, &time)?
    {
        tell!("Old results are in {}.", aside.display());
    }
    let random = getrandom::u32().unwrap_or_else(|_| std::process::id());
    let run = format!("{time}-{random:08x}");
    let results = Results::open(&plan.results, &plan.hash(), runner::programs(plan), &run)?;
    if results.is_resumed {
        tell!("{} steps are done in {}: going on.", results.done(), plan.results.display());
    }
    let (end, results) = Runner::new(plan, results, stop, arguments.keep_going)?.run(&source.text)?;
    drop(results);
    Ok((end, record::read(&plan.results.join(SAMPLES))?))
}

/// Shows the table, judges, and writes the Parquet file; whether all is as expected.
fn conclude(arguments: &Arguments, plan: &Plan, lines: &[Line]) -> Result<bool, Failure> {
    let samples: Vec<&Sample> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Sample(sample) => Some(sample),
            Line::Environment(_) => None,
        })
        .collect();
    let groups = groups::groups(samples.iter().copied());
    let stolen = stolen(&samples);
    let mut text =
        table::table(&groups, |group| stolen.get(&key(&group.system, &group.op, &group.parameters)).copied());
    let as_expected = judge(plan, &groups, &mut text);
    print(&text);
    let path = plan.results.join("table.txt");
    std::fs::write(&path, &text)
        .map_err(|error| Failure::new(format!("cannot write {}", path.display()), error, "make room there"))?;
    tell!("Results: {}", plan.results.display());
    if let Some(path) = &arguments.parquet {
        parquet::write(path, lines)?;
        tell!("Parquet: {}", path.display());
    }
    Ok(as_expected)
}

fn judge(plan: &Plan, groups: &[Group], text: &mut String) -> bool {
    let mut as_expected = true;
    for expectation in &plan.expectations {
        let outcome = expectation.judge(groups);
        as_expected &= matches!(outcome, Outcome::Pass(_));
        // Writing to a text cannot fail.
        let _ = write!(text, "\nExpected: {}\n", expectation.text);
        if !expectation.why.is_empty() {
            let _ = writeln!(text, "    why: {}", expectation.why);
        }
        let _ = writeln!(text, "    {outcome}");
    }
    as_expected
}

fn key(system: &str, op: &str, parameters: &BTreeMap<String, serde_json::Value>) -> String {
    serde_json::json!([system, op, parameters]).to_string()
}

/// The greatest share of time that was stolen in any repetition of a group.
fn stolen(samples: &[&Sample]) -> BTreeMap<String, f64> {
    let mut stolen: BTreeMap<String, f64> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| !sample.warmup) {
        if let Some(share) = sample.more.get("steal_percent").and_then(serde_json::Value::as_f64) {
            let most = stolen.entry(key(&sample.system, &sample.op, &sample.parameters)).or_insert(share);
            *most = most.max(share);
        }
    }
    stolen
}

/// The samples of a folder of results, or of a file of them.
pub fn samples_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(SAMPLES) } else { path.to_owned() }
}
