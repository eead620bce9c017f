//! The benchmarks alone, as `aqueduct-bench`: quick to build, and what the tests of whole runs start as ranks. `aqueduct bench` is the same.

use std::process::ExitCode;

use aqueduct_bench::Command;
use clap::Parser;

/// Benchmarks for file systems and networks
#[derive(Parser)]
#[command(name = "aqueduct-bench", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    aqueduct_bench::run(Arguments::parse().command).unwrap_or_else(|failure| {
        eprintln!("{failure}");
        failure.code()
    })
}
