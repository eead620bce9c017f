//! The command `bench`: which benchmark, with which options.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{Failure, io, meta, net, report, sweep};

/// A benchmark.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure data, with IOR's options
    Io(Box<io::Arguments>),
    /// Measure names, with mdtest's options
    Meta(Box<meta::Arguments>),
    /// Measure the network between ranks, as OSU's tests do
    Net(Box<net::Arguments>),
    /// Measure a matrix of parameters, repeated in random order
    Sweep(sweep::Arguments),
    /// Show and compare what was measured
    Report(Box<report::Arguments>),
}

/// Runs a benchmark.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Io(arguments) => io::run(*arguments),
        Command::Meta(arguments) => meta::run(*arguments),
        Command::Net(arguments) => net::run(*arguments),
        Command::Sweep(arguments) => sweep::run(arguments),
        Command::Report(arguments) => report::run(&arguments),
    }
}
