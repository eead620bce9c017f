//! `aqueduct agents run`: what makes the copies of a store, until a signal.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_node::keyfile;
use aqueduct_transfer::Spans;
use aqueduct_transfer::jobs::{AgentSettings, run_agent};
use clap::Args;
use rustix::system::uname;

use crate::failure::Failure;
use crate::{output, service};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct agents run --store postgres:///transfers?host=/run/postgresql
  aqueduct agents run --store postgres://aqueduct@db1/transfers --queue fast --threads 8
  aqueduct cp -r --store postgres://db1/transfers /data/run7 /archive/     has them make a copy

Ready when it has printed 'working for STORE'. Any number of agents on any hosts work for a store; each job
is done as its submitter, who has to be a user of the agent's host. An agent that is not root's does its own
user's jobs alone. SIGTERM and SIGINT let it end what it is at; one that is killed loses nothing: others do
again what it had not told. See docs/transfer.md.")]
pub struct Run {
    /// The store, as postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    pub store: String,
    /// Take the jobs of this queue (again, or with commas, for more)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "default")]
    pub queue: Vec<String>,
    /// What it is called in lists [default: HOST:PID]
    #[arg(long)]
    pub name: Option<String>,
    /// Do so many things at once
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// What it is at is others' when it was not heard of for so long
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub lease: u32,
    /// End when there was nothing to do for so long
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u32>,
    /// Do root's jobs too, as root
    #[arg(long)]
    pub allow_root: bool,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<std::path::PathBuf>,
    /// Send what it does as spans to this collector of OpenTelemetry
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
}

/// Works until a signal.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let signals = service::signals()?;
    let host = uname().nodename().to_string_lossy().into_owned();
    let settings = AgentSettings {
        store: arguments.store.clone(),
        name: arguments.name.clone().unwrap_or_else(|| format!("{host}:{}", std::process::id())),
        host,
        queues: arguments.queue.clone(),
        threads: arguments.threads.into(),
        lease: Duration::from_secs(arguments.lease.into()),
        key: arguments.key.as_deref().map(keyfile::load_client).transpose()?,
        idle_exit: arguments.idle_exit.map(|seconds| Duration::from_secs(seconds.into())),
        allows_root: arguments.allow_root,
        spans: Spans::to(arguments.otlp.as_deref())?,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = stop.clone();
    std::thread::spawn(move || {
        service::wait(signals);
        stopper.store(true, Ordering::Release);
    });
    run_agent(&settings, &stop, |store| {
        output::line(format_args!("working for {store}"));
        service::ready();
    })?;
    Ok(ExitCode::SUCCESS)
}
