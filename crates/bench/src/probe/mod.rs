//! The command `net`: how far a server is, what the network carries, by which ways, and what is
//! wrong with them.
//!
//! - [`ping`]: how long a server takes to answer, over the wire's own question.
//! - `bw` is [`crate::net`], with the tests of bandwidth.
//! - [`path`]: each way to a server, hop by hop, with what is wrong said by name.

mod packets;
pub mod path;
pub mod ping;
mod routed;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_net::routes::Table;
use aqueduct_node::routes::Routing;
use aqueduct_node::{ConnectError, keyfile, place, routes};
use aqueduct_wire::ClientKey;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::stats::quantile;
use crate::{Failure, net};

/// What is asked of the network.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How long a server takes to answer
    Ping(ping::Arguments),
    /// What the network carries one way, both ways and between many pairs, as OSU's tests
    /// measure it
    Bw(Box<net::Arguments>),
    /// Each way to a server, hop by hop, and what is wrong with it
    Path(path::Arguments),
}

/// Does it.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Bw(arguments) => net::run(net::Arguments::of_bandwidth(*arguments)),
        Command::Path(arguments) => path::run(&arguments),
    }
}

/// Which server, and how to get in.
#[derive(Args, Clone, Debug)]
pub struct Door {
    /// The server, as it is written for a mount.
    #[arg(help = "The server: HOST[:PORT], HOST[:PORT]@NET behind routers, or unix:PATH, several with commas between")]
    pub server: String,
    /// The file with the server's key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Routers that lead to networks, as of mount -o route.
    #[arg(
        long,
        value_name = "ROUTE",
        help = "A router that leads to a network, NET@GATEWAY[:PORT], as of mount -o route; again for more"
    )]
    pub route: Vec<String>,
    /// The file of networks and routes [default: /etc/aqueduct/routes.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub routes: Option<PathBuf>,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub timeout: Duration,
}

impl Door {
    fn key(&self) -> Result<Option<ClientKey>, Failure> {
        self.key.as_deref().map(keyfile::load_client).transpose().map_err(failed)
    }

    /// What is known of networks.
    fn table(&self) -> Result<Table, Failure> {
        let routing = Routing::of_arguments(self.routes.as_deref(), &self.route);
        routing.and_then(|routing| routing.table()).map_err(failed)
    }

    /// The server's addresses with their ports.
    fn server(&self, table: &Table) -> Result<String, Failure> {
        place::addresses(&self.server, routes::is_known(table)).map_err(|error| {
            let hint = "write HOST, HOST:PORT, [IPv6]:PORT, unix:PATH, or HOST@NET with --route NET@GATEWAY";
            Failure::usage(format!("the server '{}'", self.server), error, hint)
        })
    }
}

fn failed(failure: aqueduct_node::Failure) -> Failure {
    let is_usage = failure.kind == aqueduct_node::Kind::Settings;
    Failure { is_usage, ..Failure::new(failure.what, failure.why, failure.hint) }
}

/// The longest that a user may have it wait.
const SECONDS_MAX: f64 = 3600.0;

/// A time in seconds, above none.
fn seconds(text: &str) -> Result<Duration, String> {
    let found = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= SECONDS_MAX);
    found
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is no time from 0 to {SECONDS_MAX} seconds; give it as 0.5"))
}

fn unreachable(server: &str, error: &ConnectError) -> Failure {
    Failure::new(format!("asking {server}"), error, error.hint())
}

/// What half, nine of ten and so on of some times did not exceed, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The shortest.
    pub min: f64,
    /// Half of them are no longer.
    pub p50: f64,
    /// Of ten all but one.
    pub p90: f64,
    /// Of a hundred all but one.
    pub p99: f64,
    /// Of a thousand all but one.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// All of them over their number.
    pub mean: f64,
}

impl Times {
    /// Of these; `None` if there is none.
    pub fn of(times: &[Duration]) -> Option<Times> {
        let mut micros: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        micros.sort_by(f64::total_cmp);
        let at = |share| (quantile(&micros, share) * 10.0).round() / 10.0;
        if micros.is_empty() {
            return None;
        }
        let mean = micros.iter().sum::<f64>() / micros.len() as f64;
        let mean = (mean * 10.0).round() / 10.0;
        Some(Times { min: at(0.0), p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: at(1.0), mean })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ranked() {
        let times: Vec<_> = (1..=1001).rev().map(Duration::from_micros).collect();
        let found = Times::of(&times).unwrap();
        assert_eq!(
            [found.min, found.p50, found.p90, found.p99, found.p999, found.max],
            [1.0, 501.0, 901.0, 991.0, 1000.0, 1001.0]
        );
        assert_eq!((found.mean, Times::of(&[])), (501.0, None));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(["", "0", "-1", "inf", "NaN", "1e300", "1s", "4000"].into_iter().all(|text| seconds(text).is_err()));
    }
}
