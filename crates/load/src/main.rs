//! `aqueduct-load`: loads a server through the client library, without mounts, and says how that went in one line of JSON.

mod arguments;
mod failure;
mod files;
mod io;
mod process;
mod serve;
mod sessions;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Io(arguments) => io::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Sessions(arguments) => sessions::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aqueduct-load: {failure}");
            ExitCode::FAILURE
        }
    }
}
