//! `aqueduct transfers`: the copies that agents make for a store, listed and changed.

use std::path::PathBuf;
use std::process::ExitCode;

use aqueduct_transfer::jobs::{Change, Database, Listed, change, list};
use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::table::{bytes, render, span};
use crate::{output, transfer};

#[derive(Debug, Subcommand)]
pub enum Transfers {
    /// List the jobs of a store, the newest first
    #[command(after_help = "\
Example:
  aqueduct transfers list --store postgres:///transfers?host=/run/postgresql")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: Store,
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
        Transfers::List { json, store } => return show(&store, json),
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

fn show(store: &Store, json: bool) -> Result<ExitCode, Failure> {
    let jobs = list(&Database::connect(&store.store)?)?;
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
