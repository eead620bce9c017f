//! `net ping`: how long a server takes to answer the question that connections ask each other.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aqueduct_net::routes::Table;
use aqueduct_node::{AskError, Asker, routes};
use clap::Args;
use serde_json::json;
use signal_hook::consts::SIGINT;

use super::{Door, Times, failed, seconds, unreachable};
use crate::Failure;
use crate::net;

/// A server ends a session that mounts nothing after 5 s. After this time another is begun.
const SESSION_MAX: Duration = Duration::from_secs(3);

/// Questions on each connection before those that count: the first wake what sleeps.
const WARM_UP: usize = 2;

/// The most questions: their times are kept.
const COUNT_MAX: u64 = 10_000_000;

/// The options.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  aqueduct net ping server                       100 questions, 10 ms apart
  aqueduct net ping -c 10000 -i 0 server:7170    as fast as they are answered
  aqueduct net ping -s 64k 10.0.0.5              with questions as long as many packets
  aqueduct net ping --key /etc/aqueduct/cluster.key --json server

A question is a frame of Aqueduct's own wire, with a tag where there is a key, that the server's worker
answers: kernel, network and worker, and no file system. The handshake is shown apart.
Exit codes: 0 all were answered, 1 one was not, 2 the options make no sense.")]
pub struct Arguments {
    /// Whom.
    #[command(flatten)]
    pub door: Door,
    /// So many questions
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=COUNT_MAX))]
    pub count: u64,
    /// Seconds between two questions; 0: at once
    #[arg(short, long, value_name = "SECONDS", default_value = "0.01", value_parser = interval)]
    pub interval: Duration,
    /// Bytes that each question is padded with, up to 64k
    #[arg(short, long, value_name = "BYTES", default_value = "0", value_parser = padding)]
    pub size: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { seconds(text) }
}

fn padding(text: &str) -> Result<usize, String> {
    let bytes = if text == "0" { 0 } else { net::bytes(text)? };
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= aqueduct_node::PADDING_MAX).ok_or_else(|| {
        format!("'{text}' is more than a question is padded with: at most {}", aqueduct_node::PADDING_MAX)
    })
}

/// A connection, what making it took, and what it was asked so far.
struct Connected {
    asker: Asker,
    since: Instant,
    took: Duration,
    asked: usize,
}

fn connect(arguments: &Arguments, server: &str, table: &Table) -> Result<Connected, Failure> {
    let (key, initiator) = (arguments.door.key()?, routes::initiator(table.clone()).map_err(failed)?);
    let since = Instant::now();
    let asker = Asker::connect(server, key, initiator, arguments.door.timeout);
    let asker = asker.map_err(|error| unreachable(server, &error))?;
    Ok(Connected { asker, since, took: since.elapsed(), asked: 0 })
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let table = arguments.door.table()?;
    let server = arguments.door.server(&table)?;
    let ends = Arc::new(AtomicBool::new(false));
    // Ctrl-C ends the questions; what was measured is shown. That it cannot be caught is no
    // reason not to ask.
    let _ = signal_hook::flag::register(SIGINT, ends.clone());
    let mut connected = connect(arguments, &server, &table)?;
    let handshake = connected.took;
    let mut times = Vec::new();
    let mut silent = None;
    while times.len() < arguments.count as usize && !ends.load(Ordering::Relaxed) {
        if connected.since.elapsed() > SESSION_MAX {
            connected = connect(arguments, &server, &table)?;
        }
        connected.asked += 1;
        match connected.asker.ping(arguments.size, arguments.door.timeout) {
            Ok(took) if connected.asked > WARM_UP => times.push(took),
            Ok(_) => continue,
            Err(AskError::Ended(error)) => return Err(unreachable(&server, &error)),
            Err(error @ AskError::Silent(_)) => {
                silent = Some(error.to_string());
                break;
            }
        }
        std::thread::sleep(arguments.interval);
    }
    show(arguments, &server, handshake, (&times, silent.as_deref()));
    match silent {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => Err(Failure::new(
            format!("question {} to {server}, which took the connection", times.len() + 1),
            why,
            format!("see what is wrong on the way: aqueduct net path {}", arguments.door.server),
        )),
    }
}

fn show(arguments: &Arguments, server: &str, handshake: Duration, (times, silent): (&[Duration], Option<&str>)) {
    let found = Times::of(times);
    let handshake_us = (handshake.as_secs_f64() * 1e7).round() / 10.0;
    if arguments.json {
        let document = json!({
            "server": server, "answered": times.len(), "problem": silent, "padding": arguments.size,
            "handshake_us": handshake_us, "round_trip_us": found,
        });
        net::print(&(serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"));
        return;
    }
    let mut text = format!(
        "{server}: {} questions answered, {} bytes of padding; connected and let in after {handshake_us} us\n",
        times.len(),
        arguments.size
    );
    if let Some(Times { min, p50, p90, p99, p999, max, mean }) = found {
        text += &format!(
            "round trip in us: min {min}, median {p50}, 90 % {p90}, 99 % {p99}, 99.9 % {p999}, max {max}, mean {mean}\n"
        );
    }
    net::print(&text);
}
