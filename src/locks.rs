//! `aqueduct status --locks` and `aqueduct release-locks`: what an administrator of a server sees of its locks, and does when one is in the way.

#![allow(rustdoc::broken_intra_doc_links, reason = "the comments are help texts, where [] means optional")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_client::{ConnectError, release_locks, server_locks};
use aqueduct_node::{PORT, default_state, server_address, state_key, state_key_path};
use aqueduct_wire::Key;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{self, shown};
use crate::table::{render, span};

/// A server that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct status --locks                      shows the clients and their numbers
  aqueduct release-locks 5fd0c0a2b1e94d77
  aqueduct release-locks --state /srv/state --server 127.0.0.1:7171 5fd0c0a2b1e94d77

For a client that cannot be reached any more, and whose locks others wait for. A lock of a program that
can be reached goes when the program ends.

All locks of the client are released, and nothing that it had sent before is executed afterwards. It goes
on by itself, but descriptors through which it held locks give errors (EIO) until they are closed, so that
nothing is written under a lock that somebody else has. What it still keeps may hold up changes for 9 s.")]
pub struct ReleaseLocks {
    /// The client's number, from the column CLIENT of 'aqueduct status --locks'
    pub client: String,
    /// HOST[:PORT] of the server [default: 127.0.0.1:7170]
    #[arg(long, value_name = "SERVER")]
    pub server: Option<String>,
    /// The server's state folder [default: as of 'aqueduct serve']
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Shows who has and who waits for locks.
pub fn list(server: Option<&str>, state: Option<&Path>, as_json: bool) -> Result<ExitCode, Failure> {
    let address = address(server);
    let what = format!("cannot list the locks of {address}");
    let text = server_locks(&address, administrator(state, &what)?, PATIENCE).map_err(|error| failed(&what, &error))?;
    let mut locks: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new(&what, error, "install the same release here and on the server"))?;
    locks["address"] = json!(address);
    if as_json {
        output::json(&locks);
    } else {
        output::print(format_args!("{}", table(&locks)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Has the locks of a client released.
pub fn release(arguments: &ReleaseLocks) -> Result<ExitCode, Failure> {
    let address = address(arguments.server.as_deref());
    let what = format!("cannot release the locks of client {} of {address}", arguments.client);
    let client = u64::from_str_radix(&arguments.client, 16).map_err(|_| {
        Failure::usage(
            &what,
            "that is no client's number",
            "copy it from the column CLIENT of 'aqueduct status --locks'",
        )
    })?;
    let key = administrator(arguments.state.as_deref(), &what)?;
    release_locks(&address, key, client, PATIENCE).map_err(|error| failed(&what, &error))?;
    output::line(format_args!(
        "released: the locks of client {}; what it held them with gives errors there",
        arguments.client
    ));
    Ok(ExitCode::SUCCESS)
}

fn address(server: Option<&str>) -> String {
    server.map_or_else(|| format!("127.0.0.1:{PORT}"), server_address)
}

/// The key that only who may read the server's state folder has.
pub fn administrator(state: Option<&Path>, what: &str) -> Result<Key, Failure> {
    let folder = state.map_or_else(default_state, |state| Ok(state.to_owned()))?;
    let secret = state_key(&folder).map_err(|error| {
        let hint = "run this on the server's machine as the user that the server runs as (mostly root), with its folder as --state";
        Failure::new(what, format!("{}: {error}", state_key_path(&folder).display()), hint)
    })?;
    Ok(Key::of_administrator(&secret))
}

pub fn failed(what: &str, error: &ConnectError) -> Failure {
    let hint = match error {
        ConnectError::Key { .. } => {
            "name the folder of just this server with --state: whoever administers it has the secret that lies there"
                .into()
        }
        error => error.hint(),
    };
    Failure::new(what, error, hint)
}

fn table(locks: &Value) -> String {
    let listed = locks["locks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let total = locks["locks_total"].as_u64().unwrap_or_default();
    let mut text = format!("Server {} at {}, {total} locks\n", string(&locks["server"]), string(&locks["address"]));
    if listed.is_empty() {
        return text;
    }
    let rows: Vec<Vec<String>> = listed
        .iter()
        .map(|lock| {
            let peer = string(&lock["peer"]);
            vec![
                string(&lock["client_id"]),
                string(&lock["client"]),
                // The port says nothing to people.
                peer.rsplit_once(':').map_or(peer.clone(), |(host, _)| host.to_owned()),
                string(&lock["pid"]),
                lock["path"].as_str().map_or_else(|| format!("in {}", string(&lock["export"])), shown),
                format!("{} {}", string(&lock["family"]), string(&lock["kind"])),
                range(lock),
                string(&lock["state"]),
                lock["seconds"].as_u64().map_or_else(|| "-".to_owned(), span),
            ]
        })
        .collect();
    text.push_str(&render(&["CLIENT", "NAME", "FROM", ">PID", "FILE", "KIND", "BYTES", "STATE", ">FOR"], &rows));
    if let Some(more) = total.checked_sub(listed.len() as u64).filter(|more| *more > 0) {
        text.push_str(&format!("and {more} more; those first for whose files somebody waits\n"));
    }
    text
}

fn range(lock: &Value) -> String {
    match (lock["start"].as_u64(), lock["end"].as_u64()) {
        (Some(0), None) => "all".to_owned(),
        (Some(start), None) => format!("{start} to the end"),
        (Some(start), Some(end)) => format!("{start} to {end}"),
        _ => "-".to_owned(),
    }
}

fn string(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => shown(text),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_shown_in_a_table() {
        let lock = json!({ "client_id": "00ab", "client": "h", "peer": "[::1]:70", "export": "/x", "path": "/x/a\u{1b}[2Jb", "family": "fcntl",
            "kind": "write", "start": 10, "end": 19, "pid": 7, "state": "held", "seconds": 61 });
        let mut whole = lock.clone();
        (whole["start"], whole["end"], whole["path"]) = (json!(0), Value::Null, Value::Null);
        let locks = json!({ "server": "s", "address": "a:1", "locks_total": 5, "locks": [lock, whole] });
        let text = table(&locks);
        assert!(
            text.contains("00ab") && text.contains("[::1] ") && text.contains("fcntl write  10 to 19  held"),
            "{text}"
        );
        assert!(text.contains("/x/a\u{fffd}[2Jb") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("in /x") && text.contains("  all") && text.contains("and 3 more"), "{text}");
        assert_eq!(
            table(&json!({ "server": "s", "address": "a:1", "locks_total": 0, "locks": [] })).lines().count(),
            1
        );
    }
}
