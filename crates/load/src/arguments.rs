//! The command line.

use std::net::SocketAddr;

use aqueduct_node::Place;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// The most of each kind: what fits a process, with room to spare.
const JOBS_MAX: i64 = 1024;
const DEPTH_MAX: i64 = 1024;
const WORKERS_MAX: i64 = 64;
const CLIENTS_MAX: i64 = 100_000;
const PROCESSES_MAX: i64 = 64;
const SECONDS_MAX: u64 = 86_400;

/// Loads a server through Aqueduct's client library, without mounts, and prints what came of it as one line of JSON
#[derive(Debug, Parser)]
#[command(
    name = "aqueduct-load",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  aqueduct-load io 127.0.0.1:7170:/srv/data --name f --op write --block 1M --size 1G --jobs 4 --depth 4
  aqueduct-load serve --listen 127.0.0.1:0 --size 1G
  aqueduct-load sessions 127.0.0.1:7170:/srv/data --clients 1000 --seconds 3 --op stat"
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read or write files with one client
    Io(Io),
    /// Serve a file system without a disk: any file of the export / reads zeros, and what is written vanishes
    Serve(Serve),
    /// Hold many clients' sessions, each with one operation under way
    Sessions(Sessions),
}

/// What is done to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoOp {
    /// From the start to the end
    Read,
    /// Make or empty the files, then fill them, and make that stable
    Write,
    /// Blocks anywhere
    Randread,
    /// Blocks anywhere, made stable at the end
    Randwrite,
}

impl IoOp {
    pub fn name(self) -> &'static str {
        match self {
            IoOp::Read => "read",
            IoOp::Write => "write",
            IoOp::Randread => "randread",
            IoOp::Randwrite => "randwrite",
        }
    }

    pub fn writes(self) -> bool {
        matches!(self, IoOp::Write | IoOp::Randwrite)
    }

    pub fn is_random(self) -> bool {
        matches!(self, IoOp::Randread | IoOp::Randwrite)
    }
}

#[derive(Debug, Args)]
pub struct Io {
    /// HOST:PORT:EXPORT
    pub target: Target,
    /// The file; each job has one of its own, FILE.0, FILE.1, ..., unless they share it
    #[arg(long, value_name = "FILE")]
    pub name: String,
    /// What to do
    #[arg(long)]
    pub op: IoOp,
    /// Bytes of one request, at most 1M
    #[arg(long, value_name = "BYTES", value_parser = block)]
    pub block: u64,
    /// Bytes of all files together; K, M, G and T are 1024 times each other
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub size: u64,
    /// Jobs, each with its part of the size
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    pub jobs: u32,
    /// Requests that each job has under way
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub depth: u32,
    /// How long randread and randwrite take [default: until as many bytes have moved as there are]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    pub seconds: Option<u64>,
    /// All jobs use the one file FILE, each its own part
    #[arg(long)]
    pub shared: bool,
    /// Threads of the client, with two connections each, as a mount has them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    pub workers: u32,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The size of each file
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub size: u64,
}

/// What each of many clients does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SessionOp {
    /// Read a block anywhere in the file that --name says
    Read,
    /// Ask for the attributes of the export's root
    Stat,
    /// Nothing but being there
    Idle,
}

impl SessionOp {
    pub fn name(self) -> &'static str {
        match self {
            SessionOp::Read => "read",
            SessionOp::Stat => "stat",
            SessionOp::Idle => "idle",
        }
    }
}

#[derive(Debug, Args)]
pub struct Sessions {
    /// HOST:PORT:EXPORT
    pub target: Target,
    /// Clients, each with a session of its own
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX))]
    pub clients: u32,
    /// How long they work when all are there
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    pub seconds: u64,
    /// What each does, again and again, one at a time
    #[arg(long)]
    pub op: SessionOp,
    /// Bytes of one read, at most 1M
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = block)]
    pub block: u64,
    /// The file that all of them read
    #[arg(long, value_name = "FILE")]
    pub name: Option<String>,
    /// Two connections for each client, one of them for bulk data, as mounts have for each worker; else one
    #[arg(long)]
    pub bulk_lanes: bool,
    /// Processes that share the clients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=PROCESSES_MAX))]
    pub processes: u32,
    /// Threads of each process that the clients share
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    pub workers: u32,
    /// One of several processes: says when its clients are there, and waits for the word to begin
    #[arg(long, hide = true)]
    pub member: bool,
}

/// A server and one of its exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// HOST:PORT
    pub server: String,
    pub export: String,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, Self::Err> {
        let place = Place::parse(text, |_| false).ok().filter(|place| place.volume.is_none());
        let place =
            place.ok_or("it must be HOST:PORT:EXPORT, such as 127.0.0.1:7170:/srv/data or [::1]:7170:/srv/data")?;
        Ok(Target { server: place.server(None), export: place.export })
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        Some(b'T' | b't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().filter(|number| (1..=i64::MAX as u64 >> shift).contains(number));
    number.map(|number| number << shift).ok_or_else(|| "it must be a number of bytes, such as 4096, 64K or 1G".into())
}

fn block(text: &str) -> Result<u64, String> {
    let most = aqueduct_fs::TRANSFER_SIZE_MAX as u64;
    bytes(text)?
        .checked_sub(1)
        .filter(|less| *less < most)
        .map(|less| less + 1)
        .ok_or_else(|| format!("one request carries at most {most} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_or_refused() {
        let target = |text: &str| text.parse::<Target>().map(|target| (target.server, target.export));
        assert_eq!(target("a:1:/e"), Ok(("a:1".into(), "/e".into())));
        assert_eq!(target("[::1]:7170:/a:b"), Ok(("[::1]:7170".into(), "/a:b".into())));
        for bad in ["", ":", "a", "a:1", "a:1:", "v@a:1:/e", ":1:/e", "a:99999:/e", "[::1:7170:/e"] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_parsed_or_refused() {
        assert_eq!((bytes("7"), bytes("4K"), bytes("2g")), (Ok(7), Ok(4096), Ok(2 << 30)));
        for bad in ["", "K", "0", "-1", "4KiB", "9999999999999T", "18446744073709551615"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(block("1M"), Ok(1 << 20));
        assert!(block("1025K").is_err() && block("0").is_err());
    }

    #[test]
    fn the_command_line_makes_sense() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
