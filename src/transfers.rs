//! `aqueduct transfers`: the copies that run here, and those that agents make for a store, listed
//! and changed.

use std::path::PathBuf;
use std::process::ExitCode;

use aqueduct_node::copies_folder;
use aqueduct_transfer::Running;
use aqueduct_transfer::jobs::{Change, Database, Listed, change, list};
use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::table::{bytes, render, span};
use crate::{output, transfer};

#[derive(Debug, Subcommand)]
pub enum Transfers {
    /// List the copies of this user that run on this machine, or the jobs of a store, the newest
    /// first
    #[command(after_help = "\
Examples:
  aqueduct transfers list
  aqueduct transfers list --store postgres:///transfers?host=/run/postgresql")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The store, as postgres://USER@HOST/DATABASE
        #[arg(long, value_name = "URL")]
        store: Option<String>,
    },
    /// Wait until a job has ended, as 'aqueduct cp --store' does
    #[command(after_help = "\
Example:
  aqueduct transfers wait 17 --manifest run7.manifest --store $STORE")]
    Wait {
        /// The job's number
        job: i64,
        /// Write there what was copied, of a job that was submitted with --manifest
        #[arg(long, value_name = "FILE")]
        manifest: Option<PathBuf>,
        /// Print what came of it as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: Store,
    },
    /// Begin no more of a job: what agents are at they end
    #[command(after_help = "\
Example:
  aqueduct transfers pause 17 --store $STORE")]
    Pause(Job),
    /// Go on with a job that was paused
    #[command(after_help = "\
Example:
  aqueduct transfers resume 17 --store $STORE")]
    Resume(Job),
    /// End a job: what was copied stays, what is not whole is removed
    #[command(after_help = "\
Example:
  aqueduct transfers cancel 17 --store $STORE")]
    Cancel(Job),
    /// Change the priority of a job: those with greater numbers come first
    #[command(after_help = "\
Example:
  aqueduct transfers priority 17 5 --store $STORE")]
    Priority {
        /// The job's number
        job: i64,
        /// Its priority
        #[arg(allow_hyphen_values = true)]
        priority: i32,
        #[command(flatten)]
        store: Store,
    },
}

#[derive(Debug, Args)]
pub struct Job {
    /// The job's number
    pub job: i64,
    #[command(flatten)]
    pub store: Store,
}

#[derive(Debug, Args)]
pub struct Store {
    /// The store, as postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    pub store: String,
}

pub fn run(command: Transfers) -> Result<ExitCode, Failure> {
    let (job, store, change) = match command {
        Transfers::List { json, store: None } => return show_running(json),
        Transfers::List { json, store: Some(store) } => return show(&store, json),
        Transfers::Wait { job, manifest, json, store } => {
            return transfer::wait(&Database::connect(&store.store)?, job, manifest.as_deref(), json);
        }
        Transfers::Pause(Job { job, store }) => (job, store, Change::Pause),
        Transfers::Resume(Job { job, store }) => (job, store, Change::Resume),
        Transfers::Cancel(Job { job, store }) => (job, store, Change::Cancel),
        Transfers::Priority { job, priority, store } => (job, store, Change::Priority(priority)),
    };
    self::change(&Database::connect(&store.store)?, job, change)?;
    Ok(ExitCode::SUCCESS)
}

/// Those that tell of themselves on this machine.
fn show_running(json: bool) -> Result<ExitCode, Failure> {
    let mut all: Vec<Running> = copies_folder().iter().flat_map(|folder| Running::all(folder)).map(|at| at.1).collect();
    all.reverse();
    if json {
        let told = |running: &Running| {
            let mut told = serde_json::to_value(running).unwrap_or_default(); // its keys are strings
            told["spent"] = running.spent().into_iter().collect();
            told["limit"] = running.limit().into();
            told
        };
        output::json(&all.iter().map(told).collect::<Vec<_>>());
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["PID", ">NAMES", ">COPIED", ">RATE/S", ">TIME", "LIMITED BY", "WHAT"];
    output::line(format_args!("{}", render(&headings, &all.iter().map(running_row).collect::<Vec<_>>()).trim_end()));
    Ok(ExitCode::SUCCESS)
}

fn running_row(running: &Running) -> Vec<String> {
    vec![
        running.pid.to_string(),
        format!("{} of {}", running.names, running.names_found),
        bytes(running.bytes as f64),
        bytes(running.bytes as f64 / running.seconds.max(0.001)),
        span(running.seconds as u64),
        running.limit().unwrap_or("nothing yet").to_owned(),
        format!("{} to {}", running.sources.join(" "), running.destination),
    ]
}

fn show(store: &str, json: bool) -> Result<ExitCode, Failure> {
    let jobs = list(&Database::connect(store)?)?;
    if json {
        output::json(&jobs);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
    let headings =
        ["JOB", "SUBMITTER", "QUEUE", ">PRIORITY", "STATE", ">NAMES", ">COPIED", ">NOT COPIED", ">TIME", "WHAT"];
    output::line(format_args!("{}", render(&headings, &rows).trim_end()));
    Ok(ExitCode::SUCCESS)
}

fn row(job: &Listed) -> Vec<String> {
    let done = job.counts.files + job.counts.links + job.counts.others + job.counts.unchanged;
    vec![
        job.id.to_string(),
        job.submitter.clone(),
        job.queue.clone(),
        job.priority.to_string(),
        job.state.clone(),
        format!("{done} of {}", job.names_found),
        bytes(job.counts.bytes as f64),
        job.troubles.to_string(),
        span(job.seconds as u64),
        format!("{} to {}", job.sources.join(" "), job.destination),
    ]
}
