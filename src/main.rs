//! The command line of Aqueduct: arguments, output, signals, the background. What it does is in
//! the libraries.

#![forbid(unsafe_code)]

mod agent;
mod agents;
mod args;
mod batch;
mod check;
mod daemon;
mod diagnose;
mod docs;
mod doctor;
mod failure;
mod locks;
mod log;
mod look;
mod mount;
mod observe;
mod output;
mod rails;
mod repair;
mod route;
mod routes;
mod serve;
mod service;
mod status;
mod table;
mod top;
mod trace;
mod transfer;
mod transfers;
mod umount;
mod volume;
mod width;
mod work;

use std::path::Path;
use std::process::ExitCode;

use aqueduct_node::keyfile;
use clap::Parser;
use tracing::Level;

use crate::args::{Arguments, Command, MountHelper, UmountHelper};
use crate::failure::Failure;

fn main() -> ExitCode {
    // mount(8) and umount(8) call the program by other names.
    let name = std::env::args_os().next().unwrap_or_default();
    let result = match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        // The second is how mount(8) looks for it by the type of a mount that is there.
        Some("mount.aqueduct" | "mount.fuse.aqueduct") => {
            let helper = MountHelper::parse();
            log::start(Level::WARN, helper.verbose.into(), false);
            mount::run_helper(helper)
        }
        Some("umount.aqueduct") => {
            let helper = UmountHelper::parse();
            log::start(Level::WARN, helper.verbose.into(), false);
            umount::run_helper(&helper)
        }
        // As servers of data start it beside them.
        Some(aqueduct_node::WATCH_NAME) => {
            service::outlive();
            return aqueduct_node::watch();
        }
        // As this program starts itself, so as not to wait for a mount.
        Some(aqueduct_node::ASK_NAME) => return aqueduct_node::ask(),
        // As this program starts itself beside each mount.
        Some(aqueduct_node::ORPHAN_NAME) => {
            service::outlive();
            return aqueduct_node::end_orphan();
        }
        _ => {
            // Not by its path: another program may be there by then, as where a mount covers it.
            aqueduct_node::run_beside("/proc/self/exe".into());
            run(Arguments::parse())
        }
    };
    result.unwrap_or_else(|failure| {
        output::error(format_args!("{failure}"));
        failure.code()
    })
}

fn run(Arguments { verbose, command }: Arguments) -> Result<ExitCode, Failure> {
    let (usual, background) = match &command {
        Command::Serve(_) => (Level::INFO, false),
        Command::Mount(mount) => (Level::INFO, mount.background),
        Command::Route(route) if route.command.is_none() => (Level::INFO, false),
        Command::Agents { command: agents::Command::Run(_) } => (Level::INFO, false),
        _ => (Level::WARN, false),
    };
    log::start(usual, verbose, background);
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Mount(arguments) => mount::run(&arguments, verbose),
        Command::Route(arguments) => route::run(&arguments),
        Command::Umount(arguments) => umount::run(&arguments.target, arguments.how()),
        Command::Cp(arguments) => transfer::run_copy(arguments, verbose),
        Command::Sync(arguments) => transfer::run_sync(&arguments, verbose),
        Command::Verify(arguments) => transfer::run_verify(&arguments),
        Command::Transfers { command } => transfers::run(command),
        Command::Status(args::Status { locks: true, server, state, json, .. }) => {
            locks::list(server.as_deref(), state.as_deref(), json)
        }
        Command::Status(arguments) => status::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Doctor { json } => doctor::run(json),
        Command::ReleaseLocks(arguments) => locks::release(&arguments),
        Command::Bench { command } => aqueduct_bench::run(command).map_err(Failure::from),
        Command::Diagnose(arguments) => diagnose::run(&arguments),
        Command::Observe(arguments) => observe::run(&arguments),
        Command::Net { command: args::Net::Probe(command) } => {
            aqueduct_bench::probe::run(command).map_err(Failure::from)
        }
        Command::Net { command: args::Net::Rails(arguments) } => rails::run(&arguments),
        Command::Keygen { node, key, file } => {
            let made = match node {
                Some(node) => keyfile::generate_node(&node, &key, &file),
                None => keyfile::generate(&file),
            };
            made.map(|()| ExitCode::SUCCESS).map_err(Failure::from)
        }
        Command::Agents { command } => agents::run(command),
        Command::Volume { command } => volume::run(&command),
        Command::Completions { shell } => {
            docs::completions(shell);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { dir } => docs::man(&dir).map(|()| ExitCode::SUCCESS),
    }
}
