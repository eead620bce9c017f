//! Messages between ranks, as OSU's point-to-point tests measure them, over TCP as Aqueduct uses it.
//!
//! Ranks are paired as osu_mbw_mr pairs them, and all pairs measure at the same time, each by the clock of its sender. A message is one call that sends and one that
//! receives; nothing is polled: both ends wait in the kernel. The sockets are those of Aqueduct's own connections (`net::socket`).
//!
//! `plan` says what is measured how often, `wires` are the connections, `measure` the loops, `summary` what all pairs come to, `output` how that is shown.

mod measure;
mod output;
mod plan;
mod summary;
mod wires;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Failure;
use crate::ranks::{self, Team};
use measure::Step;
use output::Frame;
pub(crate) use output::print;
pub(crate) use plan::bytes;
use plan::{Pairs, Role};
pub use plan::{Sizes, Test};
use summary::{Row, Told};
use wires::{Broken, TOKEN_LENGTH, Wire};

/// What a process ends with that was interrupted: as shells count it, 128 and the signal.
const INTERRUPTED: u8 = 130;

/// The options.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  aqueduct bench net                                    all tests between two ranks on this host
  aqueduct bench net --hosts node1,node2 latency bw
  aqueduct bench net --hosts node1:4,node2:4 mbw_mr     four pairs, from node1 to node2
  aqueduct bench net --ranks 2 --launch 'ip netns exec c{rank} {command}' -m 64k:4m bw --congestion cubic
  mpiexec -n 2 aqueduct bench net -f latency

Definitions are those of OSU's micro-benchmarks 7: latency is half of the round trip of a message that is sent
back, MB/s are 10^6 bytes a second of windows of messages, each answered by 4 bytes; bibw adds both ways. With more
than one pair all measure at once: latency, bw and bibw then show the median pair, mbw_mr the sum of all.
Exit codes: 0 done, 1 failed, 2 the options make no sense, 130 interrupted (what was done is shown).")]
pub struct Arguments {
    /// What is measured [default: all four]
    #[arg(value_enum)]
    pub tests: Vec<Test>,
    /// Message sizes in bytes, each twice the one before
    #[arg(short = 'm', long = "message-size", value_name = "[MIN:]MAX", value_parser = plan::sizes, default_value = "1:4m")]
    pub sizes: Sizes,
    /// Rounds that are measured, of all sizes [default: as OSU: latency 10000, above 8 KiB 1000; others 100, 20]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=plan::ROUNDS_MAX))]
    pub iterations: Option<u64>,
    /// Rounds before them [default: as OSU: latency 100, above 8 KiB 10; others 10, 2]
    #[arg(short = 'x', long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=plan::ROUNDS_MAX))]
    pub warmup: Option<u64>,
    /// Messages of a window
    #[arg(short = 'W', long, value_name = "N", default_value_t = 64)]
    pub window_size: usize,
    /// So many pairs [default: half of the ranks, which are two unless told; with this, two for
    /// each pair]
    #[arg(short, long, value_name = "N")]
    pub pairs: Option<usize>,
    /// Connections of each pair, which share its windows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub streams: usize,
    /// Congestion control of the measured connections [default: as Aqueduct's own: cubic on loopback, else the system's]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Connect by the receivers' addresses in this network only: ADDRESS/BITS
    #[arg(long, value_name = "NETWORK", value_parser = network)]
    pub network: Option<Network>,
    /// Show the shortest, median, 99th percentile and longest round too, and each pair
    #[arg(short, long)]
    pub full: bool,
    /// Print one JSON document instead of tables
    #[arg(long)]
    pub json: bool,
    /// Append what was measured to this file, a line of JSON for each size
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Say what would be measured between whom, and how much would be moved
    #[arg(long)]
    pub dry_run: bool,
    /// How the ranks come to be.
    #[command(flatten)]
    pub ranks: ranks::Options,
}

impl Arguments {
    /// As `net bw` has it: the tests of bandwidth, unless some are named.
    pub(crate) fn of_bandwidth(self) -> Arguments {
        match self.tests.is_empty() {
            true => Arguments { tests: vec![Test::Bw, Test::Bibw, Test::MbwMr], ..self },
            false => self,
        }
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: std::net::IpAddr,
    bits: u32,
}

/// `10.1.0.0/16`, or a single address.
fn network(text: &str) -> Result<Network, String> {
    let wrong = || format!("'{text}' is no network; give it as 10.1.0.0/16 or 2001:db8::/32");
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: std::net::IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
    if bits <= most { Ok(Network { address, bits }) } else { Err(wrong()) }
}

impl Network {
    fn contains(self, other: std::net::IpAddr) -> bool {
        use std::net::IpAddr::{V4, V6};
        let same = |difference: u128, width: u32| self.bits == 0 || difference >> (width - self.bits) == 0;
        match (self.address, other) {
            (V4(own), V4(other)) => same((own.to_bits() ^ other.to_bits()).into(), 32),
            (V6(own), V6(other)) => same(own.to_bits() ^ other.to_bits(), 128),
            _ => false,
        }
    }
}

/// Runs it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    check(&arguments)?;
    let usual = arguments.pairs.map_or(2, |pairs| pairs.saturating_mul(2));
    let mut team = Team::start(&ranks::Options { usual, ..arguments.ranks.clone() })?;
    let result = measure_all(&arguments, &mut team);
    team.finish(result)
}

fn check(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { window_size, streams, .. } = *arguments;
    if !(1..=plan::WINDOW_MAX).contains(&window_size) {
        let why = format!("a window has 1 to {} messages", plan::WINDOW_MAX);
        return Err(Failure::usage(format!("--window-size {window_size}"), why, "give another number; OSU's is 64"));
    }
    if !(1..=plan::STREAMS_MAX).contains(&streams) || streams > window_size {
        let why = format!(
            "there are 1 to {} connections, and each has at least one message of the window",
            plan::STREAMS_MAX
        );
        return Err(Failure::usage(
            format!("--streams {streams} with --window-size {window_size}"),
            why,
            "give fewer streams, or a larger window",
        ));
    }
    let rounds = arguments.iterations.unwrap_or_default().saturating_mul(streams as u64);
    if rounds > plan::ROUNDS_KEPT_MAX {
        let why = format!("the time of each is kept in memory, and there is room for {}", plan::ROUNDS_KEPT_MAX);
        let what = format!("{rounds} rounds of {streams} connections");
        return Err(Failure::usage(what, why, "give less with --iterations, or fewer --streams"));
    }
    Ok(())
}

/// The tests that were asked for, each once.
fn tests(arguments: &Arguments) -> Vec<Test> {
    let asked = |test: &Test| arguments.tests.is_empty() || arguments.tests.contains(test);
    Test::ALL.into_iter().filter(asked).collect()
}

/// What a rank measures: what is the same at all sizes.
struct Bench<'a> {
    arguments: &'a Arguments,
    pairs: Pairs,
    role: Role,
    hosts: Vec<String>,
    wires: Vec<Wire>,
    congestion: String,
    stop: AtomicBool,
}

fn measure_all(arguments: &Arguments, team: &mut Team) -> Result<ExitCode, Failure> {
    let pairs = Pairs::new(team.size(), arguments.pairs)?;
    if arguments.dry_run {
        if team.rank() == 0 {
            output::print(&dry_run(arguments, pairs, &team.hosts()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (wires, connections) = connect(arguments, pairs, team)?;
    let mut names: Vec<String> = connections
        .iter()
        .flat_map(|connection| connection["congestion"].as_array().cloned().unwrap_or_default())
        .map(|name| name.as_str().unwrap_or("?").to_owned())
        .collect();
    names.sort();
    names.dedup();
    let mut bench = Bench {
        arguments,
        pairs,
        role: pairs.role(team.rank()),
        hosts: team.hosts(),
        wires,
        congestion: names.join(", "),
        stop: AtomicBool::new(false),
    };
    let (rows, interrupted) = bench.all(team)?;
    if team.rank() == 0 && arguments.json {
        let document = output::document(&rows, &bench.frame(), (&connections, interrupted));
        output::print(&(serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"));
    }
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

impl Bench<'_> {
    fn frame(&self) -> Frame<'_> {
        Frame {
            pairs: self.pairs,
            window: self.arguments.window_size,
            streams: self.arguments.streams,
            full: self.arguments.full,
            hosts: &self.hosts,
            congestion: &self.congestion,
        }
    }

    /// All tests and sizes; the rows at rank 0, and whether it was interrupted.
    fn all(&mut self, team: &mut Team) -> Result<(Vec<Row>, bool), Failure> {
        let (tests, sizes) = (tests(self.arguments), self.arguments.sizes.all());
        let shows = team.rank() == 0;
        let bar = if shows { progress((tests.len() * sizes.len()) as u64) } else { ProgressBar::hidden() };
        let mut rows = Vec::new();
        for test in tests {
            if shows && !self.arguments.json {
                bar.suspend(|| output::print(&output::head(test, &self.frame())));
            }
            for size in &sizes {
                bar.set_message(format!("{} {size} B", test.name()));
                if !team.goes_on()? {
                    bar.finish_and_clear();
                    return Ok((rows, true));
                }
                let Some(row) = self.one(test, *size, team)? else { continue };
                if let Some(path) = &self.arguments.measured {
                    output::append(path, &row, &self.frame())?;
                }
                if !self.arguments.json {
                    bar.suspend(|| output::print(&output::row(&row, &self.frame())));
                }
                bar.inc(1);
                rows.push(row);
            }
        }
        bar.finish_and_clear();
        Ok((rows, false))
    }

    /// One size of one test. The row, at rank 0; none if it was interrupted.
    fn one(&mut self, test: Test, size: u64, team: &mut Team) -> Result<Option<Row>, Failure> {
        let counts = plan::counts(test, size, self.arguments.iterations, self.arguments.warmup);
        let step = |sends| Step { test, size, counts, window: self.arguments.window_size, sends };
        team.barrier()?;
        let result = match self.role {
            Role::Idle => Ok(None),
            role => measure::run(&self.wires, step(matches!(role, Role::Sends(_))), &self.stop, || team.interrupted())
                .map(Some),
        };
        let end = team.time();
        let told = match (result, self.role) {
            (Ok(Some(clocked)), Role::Sends(_)) => Some(Told { span: (end - clocked.seconds, end), clocked }),
            (Ok(_), _) | (Err(Broken::Stopped), _) => None,
            (Err(Broken::Failed(why)), role) => {
                return Err(Failure::new(
                    format!("{} of {size} B: the connection of {}", test.name(), self.named(role)),
                    why,
                    "see whether the other rank has failed, its message above, or the network",
                ));
            }
        };
        let all: Vec<Told> = team.gather(told)?.unwrap_or_default().into_iter().flatten().collect();
        let is_whole = all.len() == self.pairs.count;
        Ok(is_whole.then(|| Row::new(test, size, (counts, self.arguments.window_size), &all)))
    }

    fn named(&self, role: Role) -> String {
        let (Role::Sends(pair) | Role::Receives(pair)) = role else { return "no pair".into() };
        let (sender, receiver) = self.pairs.ranks(pair);
        format!("rank {sender} on {} and rank {receiver} on {}", self.hosts[sender], self.hosts[receiver])
    }
}

/// Where a receiver can be reached.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Door {
    addresses: Vec<SocketAddr>,
    token: [u8; TOKEN_LENGTH],
}

/// Makes the connections of all pairs: this rank's, and what rank 0 is told of all.
fn connect(arguments: &Arguments, pairs: Pairs, team: &mut Team) -> Result<(Vec<Wire>, Vec<Value>), Failure> {
    let role = pairs.role(team.rank());
    let mut token = [0; TOKEN_LENGTH];
    getrandom::fill(&mut token).map_err(|error| refused(role, error.to_string()))?;
    let listener = match role {
        Role::Receives(_) => Some(wires::listen().map_err(|why| refused(role, why))?),
        _ => None,
    };
    let addresses = listener.as_ref().map_or(Vec::new(), |listener| {
        let all = ranks::own_addresses().into_iter().filter(|address| address.is_ipv4());
        let wanted = all.filter(|address| arguments.network.is_none_or(|network| network.contains(*address)));
        wanted.map(|address| SocketAddr::new(address, listener.1)).collect()
    });
    let doors = team.gather_for_all(Door { addresses, token })?;
    let hosts = team.hosts();
    let congestion = arguments.congestion.as_deref();
    let wires = match (role, listener) {
        (Role::Sends(pair), _) => {
            let (own, other) = pairs.ranks(pair);
            let Door { mut addresses, token } = doors[other].clone();
            // Within a host by loopback; if that is another network's, nobody answers there.
            let is_near = hosts[own] == hosts[other];
            addresses.sort_by_key(|address| address.ip().is_loopback() != is_near);
            if addresses.is_empty() {
                return Err(Failure::usage(
                    format!("connecting rank {own} on {} to rank {other} on {}", hosts[own], hosts[other]),
                    "the receiver has no address in the network of --network",
                    "give a network that the hosts are in",
                ));
            }
            wires::connect(&addresses, &token, (arguments.streams, congestion))
        }
        (Role::Receives(_), Some(listener)) => {
            listener.accept(&token, (arguments.streams, congestion), || team.interrupted())
        }
        _ => Ok(Vec::new()),
    };
    let wires = wires.map_err(|why| refused(role, why))?;
    let told: Vec<(String, String)> = wires.iter().map(|wire| (wire.ends.clone(), wire.congestion.clone())).collect();
    let all = team.gather(told)?.unwrap_or_default();
    let described = (0..if all.is_empty() { 0 } else { pairs.count }).flat_map(|pair| {
        let (sender, receiver) = pairs.ranks(pair);
        let both = all[sender].iter().zip(&all[receiver]);
        both.map(move |((ends, theirs), (_, others))| {
            json!({ "sender": sender, "receiver": receiver, "addresses": ends, "congestion": [theirs, others] })
        })
    });
    Ok((wires, described.collect()))
}

fn refused(role: Role, why: String) -> Failure {
    let what = match role {
        Role::Sends(pair) => format!("connecting to the receiver of pair {pair}"),
        Role::Receives(pair) => format!("waiting for the sender of pair {pair}"),
        Role::Idle => "preparing a rank without a pair".into(),
    };
    Failure::new(
        what,
        why,
        "see whether the hosts reach each other at any port, and name their network with --network ADDRESS/BITS",
    )
}

fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}, {eta} left");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The plan and its cost.
fn dry_run(arguments: &Arguments, pairs: Pairs, hosts: &[String]) -> String {
    let mut text = format!("{} pairs of ranks, connections of each: {}\n", pairs.count, arguments.streams);
    for pair in 0..pairs.count {
        let (sender, receiver) = pairs.ranks(pair);
        text += &format!("  rank {sender} on {} - rank {receiver} on {}\n", hosts[sender], hosts[receiver]);
    }
    let sizes = arguments.sizes.all();
    let mut total = 0u64;
    for test in tests(arguments) {
        let bytes = sizes.iter().map(|size| {
            let counts = plan::counts(test, *size, arguments.iterations, arguments.warmup);
            plan::cost(test, *size, counts, arguments.window_size)
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        total = total.saturating_add(bytes);
        text += &format!(
            "{}: {} sizes from {} to {} B, {:.1} MB by each pair\n",
            test.name(),
            sizes.len(),
            arguments.sizes.min,
            sizes.last().unwrap_or(&0),
            bytes as f64 / 1e6
        );
    }
    let seconds = total as f64 / 1.25e9;
    text + &format!(
        "Together {:.1} MB by each pair: {seconds:.1} s at 10 Gbit/s, and what latencies take. Nothing was measured.\n",
        total as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn rounds_have_to_fit_memory() {
        let checked = |options: &str| {
            let words = ["net"].into_iter().chain(options.split_whitespace());
            check(&Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).arguments)
        };
        assert!(checked("-i 134217728").is_ok() && checked("-i 33554432 --streams 4").is_ok());
        assert!(checked("-i 134217729").unwrap_err().is_usage && checked("-i 33554433 --streams 4").is_err());
    }

    #[test]
    fn networks_are_told_apart() {
        let inside = |text: &str, address: &str| network(text).unwrap().contains(address.parse().unwrap());
        assert!(inside("10.1.0.0/16", "10.1.255.7") && !inside("10.1.0.0/16", "10.2.0.1"));
        assert!(
            inside("0.0.0.0/0", "10.2.0.1") && !inside("0.0.0.0/0", "::1") && inside("2001:db8::/32", "2001:db8:1::1")
        );
        assert!(inside("10.1.2.3", "10.1.2.3") && !inside("10.1.2.3", "10.1.2.2"));
        assert!(["", "10.1.0.0/33", "x/8", "::/129", "10.1/16"].into_iter().all(|text| network(text).is_err()));
    }
}
