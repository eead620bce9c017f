//! The command line of Aqueduct: arguments, configuration, wiring. What it does is in the libraries.

#![forbid(unsafe_code)]

mod args;
mod config;
mod daemon;
mod docs;
mod exports;
mod external;
mod failure;
mod host;
mod key;
mod keyfile;
mod locks;
mod log;
mod mount;
mod mounts;
mod options;
mod output;
mod serve;
mod status;
mod table;
mod umount;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tracing::Level;

use crate::args::{Arguments, Command, MountHelper, UmountHelper};
use crate::failure::Failure;

fn main() -> ExitCode {
    // mount(8) and umount(8) call the program by other names.
    let name = std::env::args_os().next().unwrap_or_default();
    let result = match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("mount.aqueduct") => {
            let helper = MountHelper::parse();
            log::start(Level::WARN, helper.verbose.into(), false);
            mount::run_helper(helper)
        }
        Some("umount.aqueduct") => {
            let helper = UmountHelper::parse();
            log::start(Level::WARN, helper.verbose.into(), false);
            umount::run_helper(&helper)
        }
        _ => run(Arguments::parse()),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        failure.code()
    })
}

fn run(Arguments { verbose, command }: Arguments) -> Result<ExitCode, Failure> {
    let (usual, background) = match &command {
        Command::Serve(_) => (Level::INFO, false),
        Command::Mount(mount) => (Level::INFO, mount.background),
        _ => (Level::WARN, false),
    };
    log::start(usual, verbose, background);
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Mount(arguments) => mount::run(&arguments, verbose),
        Command::Umount(arguments) => umount::run(&arguments.target, arguments.how()),
        Command::Status(args::Status { locks: true, server, state, json, .. }) => {
            locks::list(server.as_deref(), state.as_deref(), json)
        }
        Command::Status(arguments) => status::run(&arguments),
        Command::ReleaseLocks(arguments) => locks::release(&arguments),
        Command::Bench { command } => aqueduct_bench::run(command).map_err(Failure::from),
        Command::Keygen { file } => keyfile::generate(&file).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => {
            docs::completions(shell);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { dir } => docs::man(&dir).map(|()| ExitCode::SUCCESS),
    }
}
