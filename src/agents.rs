//! `aqueduct agents`: agents of this host, each with a network, processors and limits of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use aqueduct_agents::host::ThisHost;
use aqueduct_agents::settings::Settings;
use aqueduct_agents::{AgentStatus, Entry};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::failure::Failure;
use crate::table::{bytes, render};
use crate::{agent, batch, output};

/// What can be done with agents.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Set agents up on this host, or those of them that are missing
    Up(Up),
    /// Show the agents of this host
    Status {
        #[command(flatten)]
        which: Which,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take agents down, and all that was set up for them
    Down(Which),
    /// Work on the jobs of a store until SIGTERM or Ctrl-C
    Run(Box<agent::Run>),
    /// Print a batch script for Slurm that runs such agents
    Sbatch(batch::Batch),
    /// Go where an agent is, and run a command there
    #[command(hide = true)]
    Enter(Enter),
}

/// The arguments of `up`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct agents up 4 --config agents.toml              as root
  aqueduct agents up 4 --config agents.toml --dry-run    each step, and nothing is done
  aqueduct agents status
  aqueduct agents down

The same again starts those that have ended, and more of them where N is larger. A failure takes back what was
done. Each agent's interface is called 'wire' in its network namespace, which is called NAME-NUMBER.

The configuration file:
  name = \"aq\"                      # the group; its namespaces and interfaces begin with it
  kind = \"process\"                # container: besides, files and processes of its own
                                   # vm: besides, a kernel of its own (QEMU)
  runtime = \"crun\"                # which runs containers
  kernel = \"/boot/vmlinuz-6.1.0\"  # of a vm; unless given, the newest in /boot
  modules = \"/\"                    # above lib/modules with its modules
  accelerator = \"auto\"            # kvm, or tcg (anywhere, and ten times slower); auto: kvm where it can
  bind = [\"/opt/site\"]            # what a container or vm sees of the host besides what it serves
  interface = \"auto\"               # sriov: a virtual function of the card; macvlan: an address of its own on it; veth: a wire
                                   # to a bridge; auto: the first of these that can be had
  uplink = \"eth0\"                  # the card, or a bridge; unless given: a bridge of their own, which has the network's first address
  address = \"10.96.0.2/24\"         # of the first agent; the others count up
  gateway = \"10.96.0.1\"            # the way to other networks
  vlan = 12                        # of a card's functions and addresses
  rate = \"400mbit\"                 # what an interface carries: both ways with veth, else what it sends
  congestion = \"cubic\"             # how TCP avoids congestion; as the host does, unless given
  processors = 1                   # of each agent, near the card; 0: all
  host_processors = 1              # which are left to the host
  processor_time = 1.0             # what an agent may use, in processors (control groups, of either version)
  memory = \"4GiB\"
  port = 7170
  key = \"/etc/aqueduct/cluster.key\"
  insecure = false                 # true: serve without a key
  [[export]]                       # what each agent serves, as in the file of 'aqueduct serve --config'; or instead of it:
  path = \"/srv/data\"               # store = \"postgres://...\": work for a store of jobs, allow_root = true: root's too; command = [\"PROGRAM\", \"{agent}\", \"{address}\"]")]
pub struct Up {
    /// How many
    #[arg(value_name = "N")]
    pub agents: u32,
    /// What they are and do
    #[arg(long, value_name = "FILE", default_value = "/etc/aqueduct/agents.toml")]
    pub config: PathBuf,
    /// Print each step, and take none
    #[arg(long)]
    pub dry_run: bool,
}

/// The arguments of `status` and `down`.
#[derive(Debug, Args)]
pub struct Which {
    /// The group of agents [default: all]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// The arguments of `enter`.
#[derive(Debug, Args)]
pub struct Enter {
    /// The network namespace
    #[arg(long)]
    pub namespace: Option<String>,
    /// A control group, by its folder
    #[arg(long = "group")]
    pub groups: Vec<PathBuf>,
    /// The processors
    #[arg(long)]
    pub processors: Option<String>,
    /// The command
    #[arg(required = true, last = true)]
    pub command: Vec<String>,
}

/// Does it.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(up) => run_up(&up),
        Command::Status { which, json } => status(&which, json),
        Command::Down(which) => down(&which),
        Command::Run(run) => agent::run(&run),
        Command::Sbatch(batch) => batch::run(&batch),
        Command::Enter(Enter { namespace, groups, processors, command }) => {
            Err(aqueduct_agents::enter(&Entry { namespace, groups, processors }, &command).into())
        }
    }
}

fn run_up(arguments: &Up) -> Result<ExitCode, Failure> {
    let settings = Settings::read(&arguments.config)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new("cannot tell where this program is", error, "see that /proc is mounted"))?;
    if arguments.dry_run {
        let plan = aqueduct_agents::dry_run(&ThisHost, &settings, arguments.agents, &program)?;
        let of_agents = plan.agents.iter().flat_map(|plan| &plan.steps);
        plan.shared
            .iter()
            .chain(of_agents)
            .flat_map(|step| step.shown())
            .for_each(|line| output::line(format_args!("{line}")));
        return Ok(ExitCode::SUCCESS);
    }
    let done = aqueduct_agents::up(&ThisHost, &settings, arguments.agents, &program)?;
    for agent in &done.started {
        output::line(format_args!("agent {} at {}, {}", agent.number, agent.address, agent.interface));
    }
    if done.kept > 0 {
        output::line(format_args!("{} were up before", done.kept));
    }
    Ok(ExitCode::SUCCESS)
}

/// The groups that are meant.
fn groups(which: &Which) -> Vec<String> {
    which.name.clone().map_or_else(|| aqueduct_agents::names(&ThisHost), |name| vec![name])
}

/// A group, as it is shown.
#[derive(Serialize)]
struct Group {
    name: String,
    agents: Vec<AgentStatus>,
}

fn status(which: &Which, json: bool) -> Result<ExitCode, Failure> {
    let mut shown = Vec::new();
    for name in groups(which) {
        let Some(agents) = aqueduct_agents::status(&ThisHost, &name)? else {
            return Err(no_group(&name));
        };
        shown.push(Group { name, agents });
    }
    if json {
        output::json(&serde_json::json!({ "groups": shown }));
    } else if shown.is_empty() {
        output::line(format_args!("no agents are up here"));
    } else {
        shown.iter().for_each(show);
    }
    let all = shown.iter().flat_map(|group| &group.agents).all(|agent| agent.alive);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(crate::failure::FAILED) })
}

fn show(group: &Group) {
    let row = |status: &AgentStatus| {
        let agent = &status.agent;
        vec![
            agent.namespace.clone(),
            format!("{:?}", agent.kind).to_lowercase(),
            agent.address.to_string(),
            agent.interface.clone(),
            if agent.processors.is_empty() { "all".into() } else { agent.processors.clone() },
            status.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            if status.alive { "up" } else { "ended" }.into(),
            bytes(status.received_bytes as f64),
            bytes(status.sent_bytes as f64),
        ]
    };
    let headings = ["AGENT", "KIND", "ADDRESS", "INTERFACE", "CPUS", ">PID", "STATE", ">RECEIVED", ">SENT"];
    let rows: Vec<_> = group.agents.iter().map(row).collect();
    output::print(format_args!("{}", render(&headings, &rows)));
}

fn down(which: &Which) -> Result<ExitCode, Failure> {
    for name in groups(which) {
        if !aqueduct_agents::down(&ThisHost, &name)? && which.name.is_some() {
            return Err(no_group(&name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn no_group(name: &str) -> Failure {
    Failure::new(
        format!("cannot find the agents '{name}'"),
        "no group of that name is up here",
        "see which are: aqueduct agents status",
    )
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_sample_file_is_understood() {
        let help = Up::augment_args(clap::Command::new("up")).get_after_help().unwrap().to_string();
        let text = help.split_once("The configuration file:\n").unwrap().1;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agents.toml");
        std::fs::write(&path, text).unwrap();
        let settings = Settings::read(&path).unwrap_or_else(|failure| panic!("{failure}\n{text}"));
        assert_eq!((settings.export.len(), settings.vlan, settings.key.is_some()), (1, Some(12), true));
    }
}
