//! The command line: IOR's letters and names.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::data::Packet;
use super::size;
use crate::ranks;

/// The most of each: what fits a machine, with room to spare.
const DEPTH_MAX: i64 = 4096;
const REPETITIONS_MAX: i64 = 1_000_000;

/// The interface by which files are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// pread(2) and pwrite(2) on a mounted file system
    #[default]
    Posix,
    /// io_uring on a mounted file system, with several transfers under way (--depth)
    Uring,
    /// Aqueduct's client, without a mount: the test file is HOST:PORT:/EXPORT/PATH
    Aqueduct,
}

impl Api {
    /// As IOR writes such names.
    pub fn name(self) -> &'static str {
        match self {
            Api::Posix => "POSIX",
            Api::Uring => "URING",
            Api::Aqueduct => "AQUEDUCT",
        }
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// IOR's tables
    #[default]
    Default,
    /// IOR's JSON
    Json,
    /// IOR's CSV: a line for each phase
    Csv,
}

/// IOR's options, by their letters and names; `-O NAME=VALUE,...` gives any of them by its name.
#[derive(Clone, Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  aqueduct bench io -w -r -t 1m -b 1g -o /mnt/testfile
  aqueduct bench io -N 4 -F -C -e -t 1m -b 4g -i 5 -o /mnt/dir/testfile       a file for each of four ranks
  aqueduct bench io -N 4 -t 47008 -b 47008 -s 1000 -W -R -G 1 -o /mnt/f       one file, strided, verified
  aqueduct bench io -N 4 -z -t 4k -b 1g -D 30 -O stoneWallingWearOut=1 -o /mnt/f
  aqueduct bench io -a aqueduct --depth 8 -t 1m -b 1g -o server:7170:/export/testfile
  aqueduct bench io -b 16g -N 8 -F -o /mnt/f --dry-run                        what it would take
  aqueduct bench io -b 1g -o /mnt/f -O summaryFormat=JSON,summaryFile=r.json"
)]
pub struct Arguments {
    /// Which interface
    #[arg(short = 'a', long, value_name = "API", default_value = "posix", ignore_case = true)]
    pub api: Api,
    /// refNum: a number of your own, for the summary
    #[arg(short = 'A', long = "refNum", value_name = "N", default_value_t = 0)]
    pub reference: i64,
    /// Contiguous bytes of each task in each segment (8, 4k, 2m, 1g, 1t)
    #[arg(short = 'b', long = "blockSize", value_name = "SIZE", default_value = "1m", value_parser = size::parse)]
    pub block: u64,
    /// Past the page cache (O_DIRECT)
    #[arg(short = 'B', long = "posix.odirect", visible_alias = "useO_DIRECT")]
    pub direct: bool,
    /// Each task reads what the task on the next node has written (on one node: the next task)
    #[arg(short = 'C', long = "reorderTasksConstant", visible_alias = "reorderTasks")]
    pub reorder_constant: bool,
    /// Seconds between repetitions
    #[arg(short = 'd', long = "interTestDelay", value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub delay: f64,
    /// Stop writing, or reading, after so many seconds (stonewalling); 0: never
    #[arg(short = 'D', long = "deadlineForStonewalling", value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub deadline: f64,
    /// Make what was written stable (fsync) at the end of each writing phase, within its time
    #[arg(short = 'e', long)]
    pub fsync: bool,
    /// Do not remove the test file before it is written
    #[arg(short = 'E', long = "useExistingTestFile")]
    pub use_existing: bool,
    /// A file for each task
    #[arg(short = 'F', long = "filePerProc")]
    pub file_per_rank: bool,
    /// Tasks wait for each other between open, transfers and close
    #[arg(short = 'g', long = "intraTestBarriers")]
    pub barriers: bool,
    /// The mark that data have; without it the time of each repetition
    #[arg(short = 'G', long = "setTimeStampSignature", value_name = "N", default_value_t = 0)]
    pub stamp: u32,
    /// How often all is done
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=REPETITIONS_MAX))]
    pub repetitions: u32,
    /// Warn of tasks whose times are so many seconds from the mean; 0: of none
    #[arg(short = 'j', long = "outlierThreshold", value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub outlier: f64,
    /// Do not remove the test files at the end
    #[arg(short = 'k', long = "keepFile")]
    pub keep: bool,
    /// Do not remove test files with wrong data
    #[arg(short = 'K', long = "keepFileWithError")]
    pub keep_with_error: bool,
    /// What is written
    #[arg(short = 'l', long = "dataPacketType", value_name = "TYPE", default_value = "timestamp", ignore_case = true)]
    pub packet: Packet,
    /// A file for each repetition, with its number behind the name
    #[arg(short = 'm', long = "multiFile")]
    pub multi_file: bool,
    /// Tasks, each a process, as --ranks; under mpiexec or srun, which start them, only the first so many take part
    #[arg(short = 'N', long = "numTasks", value_name = "N", conflicts_with = "ranks")]
    pub tasks: Option<usize>,
    /// Full name of the test file; with '@' between several, a task of -F takes one of them
    #[arg(short = 'o', long = "testFile", value_name = "FILE", default_value = "testFile")]
    pub file: String,
    /// Any option by its name: -O checkRead=1,fsync=1, and those that have only a name: summaryFormat=default|JSON|CSV, summaryFile=FILE,
    /// stoneWallingWearOut=1, stoneWallingWearOutIterations=N, stoneWallingStatusFile=FILE
    #[arg(short = 'O', long = "directives", value_name = "NAME=VALUE,...")]
    pub directives: Vec<String>,
    /// Stop at the first wrong data
    #[arg(short = 'q', long = "quitOnError")]
    pub quit_on_error: bool,
    /// With -C and -Z: how many nodes further on the task is whose data are read
    #[arg(short = 'Q', long = "taskPerNodeOffset", value_name = "N", default_value_t = 1)]
    pub task_offset: u32,
    /// Read the file. Without -w, -r, -W and -R all is written and read
    #[arg(short = 'r', long = "readFile")]
    pub read: bool,
    /// Read, and compare with what was written, within the time of reading (with -G where it was written before)
    #[arg(short = 'R', long = "checkRead")]
    pub check_read: bool,
    /// How many segments a file has
    #[arg(short = 's', long = "segmentCount", value_name = "N", default_value = "1", value_parser = size::parse)]
    pub segments: u64,
    /// Bytes of one transfer
    #[arg(short = 't', long = "transferSize", value_name = "SIZE", default_value = "256k", value_parser = size::parse)]
    pub transfer: u64,
    /// Begin nothing more after so many minutes; 0: no limit
    #[arg(short = 'T', long = "maxTimeDuration", value_name = "MINUTES", default_value_t = 0.0, value_parser = seconds)]
    pub minutes: f64,
    /// With -F: a directory for each task's file
    #[arg(short = 'u', long = "uniqueDir")]
    pub unique_directory: bool,
    /// Say more; again: still more
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Write the file
    #[arg(short = 'w', long = "writeFile")]
    pub write: bool,
    /// Read again what was written, and compare
    #[arg(short = 'W', long = "checkWrite")]
    pub check_write: bool,
    /// The seed of -Z; negative: another order in each repetition
    #[arg(
        short = 'X',
        long = "reorderTasksRandomSeed",
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub reorder_seed: i64,
    /// Make what was written stable after each write
    #[arg(short = 'Y', long = "fsyncPerWrite")]
    pub fsync_each: bool,
    /// Transfers in random order
    #[arg(short = 'z', long = "randomOffset")]
    pub random: bool,
    /// The seed of -z [default: another each time]
    #[arg(long = "random-offset-seed", value_name = "N")]
    pub random_seed: Option<u64>,
    /// Each task reads what any other has written; twice: no two of them the same
    #[arg(short = 'Z', long = "reorderTasksRandom", action = ArgAction::Count)]
    pub reorder_random: u8,
    /// Transfers that each task has under way, with -a uring and -a aqueduct
    #[arg(long, alias = "aio.max-pending", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub depth: u32,
    /// Measure the time of each transfer, for percentiles
    #[arg(long)]
    pub latency: bool,
    /// Append what was measured to this file, a line of JSON for each phase
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Say what would be done and what it would take, and do nothing
    #[arg(long = "dry-run", alias = "dryRun")]
    pub dry_run: bool,
    /// What has only a name, by -O.
    #[arg(skip)]
    pub named: Named,
    /// How the tasks come to be.
    #[command(flatten)]
    pub ranks: ranks::Options,
}

impl Arguments {
    /// How the tasks come to be, with what `-N` says of it.
    pub fn team(&self) -> ranks::Options {
        ranks::Options { ranks: self.tasks.or(self.ranks.ranks), ..self.ranks.clone() }
    }
}

/// Options that only `-O` gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// summaryFormat
    pub format: Format,
    /// summaryFile
    pub summary: Option<PathBuf>,
    /// stoneWallingWearOut
    pub wear_out: bool,
    /// stoneWallingWearOutIterations
    pub wear_out_iterations: u64,
    /// stoneWallingStatusFile
    pub status_file: Option<PathBuf>,
}

/// The longest of any time: a year.
const SECONDS_MAX: f64 = 31_536_000.0;

/// A time that is given on the command line; parts of seconds are allowed.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim().parse().map_err(|_| format!("'{text}' is no number"))?;
    if (0.0..=SECONDS_MAX).contains(&value) { Ok(value) } else { Err(format!("it is not between 0 and {SECONDS_MAX}")) }
}
