//! `aqueduct volume spread`, `rebalance` and `drain`: asked of the server of the names, on its
//! machine, while the volume is used.

use std::path::PathBuf;
use std::process::ExitCode;

use aqueduct_node::{Progress, Question, Told, Volume, rate};
use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::output;

/// What the server of the names does while the volume is used.
#[derive(Debug, Subcommand)]
pub enum Work {
    /// Give large ordinary files of a volume of plain directories objects on its servers
    #[command(after_help = "\
Example:
  aqueduct volume spread /etc/aqueduct/volume.toml /projects    all large files below /projects of the volume

On the machine of the server of the names, while it runs. Programs use the files meanwhile. Ending this
does no harm: the same command goes on with the rest.
Exit codes: 0 all is done, 1 something is not.")]
    Spread {
        /// The volume's file
        file: PathBuf,
        /// A file or directory, as the volume's clients see it from its root
        path: String,
        #[command(flatten)]
        how: How,
    },
    /// Give each server of a volume of plain directories its share of what is there
    #[command(after_help = "\
Example:
  aqueduct volume rebalance /etc/aqueduct/volume.toml --bwlimit 200MB/s

On the machine of the server of the names, while it runs, after a server was added: new files use it at
once, and this moves old ones. Programs use the files meanwhile. Ending this does no harm: the same
command goes on with the rest.
Exit codes: 0 all is done, 1 something is not.")]
    Rebalance {
        /// The volume's file
        file: PathBuf,
        #[command(flatten)]
        how: How,
    },
    /// Empty a server of a volume of plain directories, so that it may be taken out
    #[command(after_help = "\
Examples:
  aqueduct volume drain /etc/aqueduct/volume.toml d2
  aqueduct volume drain /etc/aqueduct/volume.toml d2 --undo    it gets files again

On the machine of the server of the names, while it runs. New files avoid the server from now on. When all
is done it may be taken out of the volume's file. Ending this does no harm: the same command goes on.
Exit codes: 0 all is done, 1 something is not.")]
    Drain {
        /// The volume's file
        file: PathBuf,
        /// The server's id
        server: String,
        /// Let new files use it again, and move nothing
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        how: How,
    },
}

/// How it is done.
#[derive(Debug, Args)]
pub struct How {
    /// Copy no faster than this, as 160MB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    bwlimit: Option<u64>,
    /// Tell how much would be copied, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Asks for it, and tells how far it comes.
pub fn run(work: &Work) -> Result<ExitCode, Failure> {
    let (file, how, work) = match work {
        Work::Spread { file, path, how } => (file, how, aqueduct_node::Work::Spread(path.clone())),
        Work::Rebalance { file, how } => (file, how, aqueduct_node::Work::Rebalance),
        Work::Drain { file, server, undo: false, how } => (file, how, aqueduct_node::Work::Drain(server.clone())),
        Work::Drain { file, server, how, .. } => (file, how, aqueduct_node::Work::Undrain(server.clone())),
    };
    let question = Question { work, rate: how.bwlimit, dry_run: how.dry_run, accept_orphans: false };
    let done = Volume::read(file)?.work(&question, |told| match told {
        Told::Failed(path, why) => output::line(format_args!("not done: {}: {why}", output::shown(path))),
        Told::Progress(progress) => output::error(format_args!("{}", shown(progress))),
        Told::Repaired(_) | Told::Done(_) | Told::Refused(_) => {}
    })?;
    if how.dry_run {
        output::line(format_args!("{} files would be copied, {} bytes at most", done.files_all, done.bytes_all));
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!("{} files, {} bytes copied", done.files - done.failed, done.bytes));
    match &question.work {
        aqueduct_node::Work::Drain(server) if done.objects_left > 0 => {
            let left = done.objects_left;
            output::line(format_args!("server {server} still has {left} objects: 'aqueduct volume check' says whose"));
        }
        aqueduct_node::Work::Drain(server) => {
            output::line(format_args!("server {server} has no objects: it may be taken out of the volume's file"));
        }
        _ => {}
    }
    Ok(if done.failed + done.objects_left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(progress: &Progress) -> String {
    let Progress { files, files_all, bytes, bytes_all, .. } = progress;
    let left = progress.seconds_left.map_or_else(String::new, |seconds| format!(", {seconds} s left"));
    format!("{files} of {files_all} files, {} of {} MB{left}", bytes / 1_000_000, bytes_all / 1_000_000)
}
