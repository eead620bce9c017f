//! See the crate.

use std::process::ExitCode;

use clap::Args;

use crate::Failure;

/// The options.
#[derive(Debug, Args)]
pub struct Arguments {}

/// Runs it.
pub fn run(_arguments: Arguments) -> Result<ExitCode, Failure> {
    Err(Failure::new("this benchmark", "it is not made yet", "wait for it"))
}
