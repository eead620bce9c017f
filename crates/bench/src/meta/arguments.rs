//! mdtest's options, as they are written.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use crate::ranks;

/// The most iterations; each keeps a few hundred bytes of results.
const ITERATIONS_MAX: i64 = 100_000;

/// The longest delay and stonewall, in seconds: a day.
const SECONDS_MAX: i64 = 86_400;

/// The options of `bench meta`: mdtest's letters, and a long name for each.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(after_help = "\
Examples:
  aqueduct bench meta -n 10000 -d /mnt/scratch/md          create, stat, read and remove files and directories
  aqueduct bench meta -F -n 5000 -u -w 3901 -e 3901 -i 3   files of 3,901 bytes, a directory for each rank
  aqueduct bench meta -z 3 -b 5 -I 20 -N 1 -d /mnt/md      a tree, each rank looks at what its neighbour made
  aqueduct bench meta -F -C -n 1000000 -W 300 -x wall -d /mnt/md   as many files as fit 300 s, as the IO500 does;
  aqueduct bench meta -F -T -n 1000000 -x wall -d /mnt/md          then stat them
  aqueduct bench meta -n 1000 -u -d /mnt/md --hosts node1:8,node2:8   16 ranks, started by ssh
  srun -n 256 aqueduct bench meta -n 1000 -u -d /mnt/md    or by Slurm, or by mpiexec
  aqueduct bench meta -n 1000000 -d /mnt/md --dry-run      say what it would make, and whether that fits

What is counted: every rank does -n of each operation (rounded down to the same number for each directory of
the tree); with -n and -I there are n/I trees. A phase lasts from the barrier before it until the last rank has
done its part. All figures are of operations that were done, so where only rank 0 removes (-S) only its
removals count. 'time' is what one operation of a rank took, in ms.")]
pub struct Arguments {
    /// API: POSIX
    #[arg(short = 'a', long = "api", value_name = "API", default_value = "POSIX", help_heading = "What is measured")]
    pub api: String,
    /// The directory for the test; with -u several, joined by '@', which ranks take in turn. It is made if its parent exists
    #[arg(
        short = 'd',
        long = "directory",
        value_name = "DIR",
        default_value = "./out",
        help_heading = "What is measured"
    )]
    pub directory: String,
    /// Files and directories that each rank makes (k, m and g are 1024 times each other)
    #[arg(short = 'n', long = "items", value_name = "N", value_parser = count, default_value = "0", hide_default_value = true, help_heading = "What is measured")]
    pub items: u64,
    /// Files and directories that each rank makes in each directory of the tree
    #[arg(short = 'I', long = "items-per-directory", value_name = "N", value_parser = count, default_value = "0", hide_default_value = true, help_heading = "What is measured")]
    pub items_per_directory: u64,
    /// Depth of the directory tree
    #[arg(short = 'z', long = "depth", value_name = "N", default_value_t = 0, help_heading = "What is measured")]
    pub depth: u32,
    /// Subdirectories of each directory of the tree
    #[arg(short = 'b', long = "branch", value_name = "N", default_value_t = 1, help_heading = "What is measured")]
    pub branch: u64,
    /// Items only in the tree's leaves
    #[arg(short = 'L', long = "leaf-only", help_heading = "What is measured")]
    pub leaf_only: bool,
    /// A tree for each rank
    #[arg(short = 'u', long = "unique-directory", help_heading = "What is measured")]
    pub unique: bool,
    /// Files only
    #[arg(short = 'F', long = "files-only", help_heading = "What is measured")]
    pub files_only: bool,
    /// Directories only
    #[arg(short = 'D', long = "directories-only", help_heading = "What is measured")]
    pub directories_only: bool,
    /// All ranks use the same files; no directories
    #[arg(short = 'S', long = "shared-file", help_heading = "What is measured")]
    pub shared: bool,
    /// Bytes written to each file when it is made
    #[arg(short = 'w', long = "write-bytes", value_name = "BYTES", value_parser = count, default_value = "0", help_heading = "What is measured")]
    pub write_bytes: u64,
    /// Bytes read from each file
    #[arg(short = 'e', long = "read-bytes", value_name = "BYTES", value_parser = count, default_value = "0", help_heading = "What is measured")]
    pub read_bytes: u64,

    /// Only create
    #[arg(short = 'C', long = "create-only", help_heading = "Phases")]
    pub create: bool,
    /// Only stat
    #[arg(short = 'T', long = "stat-only", help_heading = "Phases")]
    pub stat: bool,
    /// Only read (files)
    #[arg(short = 'E', long = "read-only", help_heading = "Phases")]
    pub read: bool,
    /// Only rename (directories)
    #[arg(long = "rename-dirs", help_heading = "Phases")]
    pub rename: bool,
    /// Only remove, also what an earlier run left
    #[arg(short = 'r', long = "remove-only", help_heading = "Phases")]
    pub remove: bool,
    /// How often all is repeated
    #[arg(short = 'i', long = "iterations", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=ITERATIONS_MAX), help_heading = "Phases")]
    pub iterations: u32,
    /// Seconds to wait before each iteration's directories and files
    #[arg(short = 'p', long = "pre-delay", value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=SECONDS_MAX as u64), help_heading = "Phases")]
    pub pre_delay: u64,
    /// Stonewall: stop making files after so many seconds; then all ranks go on until each has made as many as the fastest
    #[arg(short = 'W', long = "stonewall", value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=SECONDS_MAX as u64), help_heading = "Phases")]
    pub stonewall: u64,
    /// Keeps how many files the stonewall let through, for later phases in runs of their own
    #[arg(short = 'x', long = "stonewall-status", value_name = "FILE", help_heading = "Phases")]
    pub stonewall_status: Option<PathBuf>,

    /// Each phase uses what the rank N before made, on another host where there are several (0: its own)
    #[arg(short = 'N', long = "stride", value_name = "N", default_value_t = 0, help_heading = "Tests")]
    pub stride: usize,
    /// Ranks of the first test
    #[arg(short = 'f', long = "first", value_name = "N", requires = "last", help_heading = "Tests")]
    pub first: Option<usize>,
    /// Ranks of the last test
    #[arg(short = 'l', long = "last", value_name = "N", help_heading = "Tests")]
    pub last: Option<usize>,
    /// So many ranks more for each test
    #[arg(short = 's', long = "task-stride", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Tests")]
    pub task_stride: u32,
    /// No barriers between phases
    #[arg(short = 'B', long = "no-barriers", help_heading = "Tests")]
    pub no_barriers: bool,
    /// Rank 0 makes and removes everything
    #[arg(short = 'c', long = "collective", help_heading = "Tests")]
    pub collective: bool,

    /// How the ranks come to be.
    #[command(flatten)]
    pub team: ranks::Options,

    /// mknod instead of open
    #[arg(short = 'k', long = "mknod", help_heading = "How it is done")]
    pub mknod: bool,
    /// fsync each file after it was written
    #[arg(short = 'y', long = "sync-file", help_heading = "How it is done")]
    pub sync_file: bool,
    /// sync(2) at the end of each phase, within its time
    #[arg(short = 'Y', long = "sync-phase", help_heading = "How it is done")]
    pub sync_phase: bool,
    /// Stat and read in random order
    #[arg(short = 'R', long = "random", help_heading = "How it is done")]
    pub random: bool,
    /// The seed of -R, for which each rank adds its number [default: the time]
    #[arg(long = "random-seed", value_name = "N", help_heading = "How it is done")]
    pub random_seed: Option<u64>,
    /// Check what was read
    #[arg(short = 'X', long = "verify-read", help_heading = "How it is done")]
    pub verify_read: bool,
    /// Read each file back and check it when it was written
    #[arg(long = "verify-write", help_heading = "How it is done")]
    pub verify_write: bool,
    /// The seed of the data that are written and checked
    #[arg(short = 'G', long = "data-seed", value_name = "N", default_value_t = 0, help_heading = "How it is done")]
    pub data_seed: u64,
    /// With -u: count the time of looking up each rank's own directory
    #[arg(short = 't', long = "time-unique", help_heading = "How it is done")]
    pub time_unique: bool,

    /// Print times instead of rates
    #[arg(short = 'Z', long = "print-time", help_heading = "Output")]
    pub print_time: bool,
    /// Print rates and times
    #[arg(short = 'P', long = "print-both", help_heading = "Output")]
    pub print_both: bool,
    /// Show the statistics of single ranks as well
    #[arg(long = "showRankStatistics", alias = "show-rank-statistics", help_heading = "Output")]
    pub rank_statistics: bool,
    /// Say more; each -v one more
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// Say as much as N times -v
    #[arg(
        short = 'V',
        long = "verbosity",
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub verbosity: u8,
    /// Print JSON instead of tables
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Add a JSON line for each operation of each iteration to FILE
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub measured: Option<PathBuf>,
    /// Say what would be made, and whether there is room for it; make nothing
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
}

/// A number with an optional k, m, g or t behind it.
fn count(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err("write it as 1000, 4k, 1m, 1g".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "write it as 1000, 4k, 1m, 1g".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "it is too large".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: Arguments,
    }

    pub(crate) fn arguments(line: &str) -> Arguments {
        Program::try_parse_from(["meta"].into_iter().chain(line.split_whitespace()))
            .map(|program| program.arguments)
            .unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn letters_are_those_of_mdtest() {
        let all = "-a POSIX -b 3 -d /x -B -C -T -E -r -D -e 10 -f 1 -F -G 5 -i 2 -I 4 -k -l 4 -L -n 1k -N 1 -p 1 -P -R \
                   --random-seed 7 -s 2 -S -c -t -u -v -v -V 3 -w 4k -W 30 -x file -X --verify-write -y -Y -z 2 -Z \
                   --showRankStatistics";
        let all = arguments(all);
        assert_eq!((all.items, all.items_per_directory, all.write_bytes), (1024, 4, 4096));
        assert_eq!((all.branch, all.depth, all.verbose, all.verbosity), (3, 2, 2, 3));
        assert_eq!((all.first, all.last, all.task_stride), (Some(1), Some(4), 2));
    }

    #[test]
    fn numbers_have_suffixes() {
        assert_eq!(["0", "12", "3k", "2M", "1g"].map(|text| count(text).unwrap()), [0, 12, 3072, 2 << 20, 1 << 30]);
        for bad in ["", "k", "-1", "1.5", "1x", "99999999999999999999", "99999999t"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }
}
