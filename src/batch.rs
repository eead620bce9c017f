//! `aqueduct agents sbatch`: a batch script of Slurm that runs agents.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct agents sbatch 4 --store postgres://db1/transfers | sbatch
  aqueduct agents sbatch 8 --store $STORE --partition io --time 12:00:00 --threads 16 > agents.sh

Prints a script with an agent on each of N nodes, as the user who submits it, whose jobs alone they do. They
end when there was nothing to do for a while, and two minutes before their time is over, when they end what
they are at; what they do not end in time others do. The program has to be on all nodes where it is here.")]
pub struct Batch {
    /// On how many nodes
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// The store, as postgres://USER@HOST/DATABASE; whoever may read the script reads its password
    #[arg(long, value_name = "URL")]
    pub store: String,
    /// Take the jobs of this queue (again, or with commas, for more)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "default")]
    pub queue: Vec<String>,
    /// Slurm's partition [default: Slurm's]
    #[arg(long, value_name = "NAME")]
    pub partition: Option<String>,
    /// How long they may run, as Slurm has it [default: the partition's limit]
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// Each does so many things at once, on as many processors
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// They end when there was nothing to do for so long
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    pub idle_exit: u32,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Prints the script.
pub fn run(arguments: &Batch) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new("cannot tell where this program is", error, "see that /proc is mounted"))?;
    output::print(format_args!("{}", script(arguments, &program)?));
    Ok(ExitCode::SUCCESS)
}

fn script(arguments: &Batch, program: &Path) -> Result<String, Failure> {
    let mut text = String::from("#!/bin/bash\n#SBATCH --job-name=aqueduct-agents\n");
    let mut option = |name: &str, value: &str| {
        // Slurm takes what follows a space for another option.
        if value.contains(|letter: char| letter.is_whitespace() || letter.is_control() || letter == '#') {
            let hint = "name it as sbatch(1) does, without spaces";
            return Err(Failure::usage(format!("--{name} '{value}'"), "Slurm cannot read it", hint));
        }
        let _ = writeln!(text, "#SBATCH --{name}={value}");
        Ok(())
    };
    option("nodes", &arguments.nodes.to_string())?;
    option("ntasks-per-node", "1")?;
    option("cpus-per-task", &arguments.threads.to_string())?;
    option("signal", "TERM@120")?;
    for (name, value) in [("partition", &arguments.partition), ("time", &arguments.time)] {
        if let Some(value) = value {
            option(name, value)?;
        }
    }
    let (queues, threads, idle) =
        (arguments.queue.join(","), arguments.threads.to_string(), arguments.idle_exit.to_string());
    let (program, key) = (program.to_string_lossy(), arguments.key.as_ref().map(|key| key.to_string_lossy()));
    let mut words = vec!["srun", "--kill-on-bad-exit=0", &program, "agents", "run", "--store", &arguments.store];
    words.extend(["--queue", &queues, "--threads", &threads, "--idle-exit", &idle]);
    if let Some(key) = &key {
        words.extend(["--key", key]);
    }
    let command = shlex::try_join(words)
        .map_err(|error| Failure::usage("cannot write a script", error, "leave NUL out of the arguments"))?;
    let _ = writeln!(text, "exec {command}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        batch: Batch,
    }

    #[test]
    fn a_script_says_what_was_asked() {
        let batch =
            |more: &[&str]| Line::parse_from([&["x", "3", "--store", "postgres:///d?host=/a b"], more].concat());
        let text = script(&batch(&["--partition", "io", "--threads", "8"]).batch, Path::new("/opt/aqueduct")).unwrap();
        for line in ["#SBATCH --nodes=3", "#SBATCH --partition=io", "#SBATCH --cpus-per-task=8"] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        let last = text.lines().last().unwrap();
        assert!(last.contains("'postgres:///d?host=/a b'") && last.starts_with("exec srun"), "{text}");
        assert!(script(&batch(&["--time", "1\n2"]).batch, Path::new("/x")).is_err());
    }
}
