//! `aqueduct status`: asks mounts and servers how they fare, twice, and shows what changed between.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::{ConnectError, server_status};
use aqueduct_fuse::STATUS_XATTR;
use aqueduct_wire::Key;
use serde_json::{Map, Value, json};

use crate::config::{PORT, server_address};
use crate::failure::Failure;
use crate::mounts::{self, Mount};
use crate::table::{bytes, render, span};
use crate::{args, keyfile, output};

/// Between the two looks from which rates are computed.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// Between two looks with --watch.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A mount or server that says nothing for so long is shown as silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of a mount's answer; the kernel's limit for extended attributes.
const ANSWER_MAX: usize = 64 << 10;

/// The counters from which rates are made.
const COUNTERS: [&str; 3] = ["operations", "bytes_read", "bytes_written"];

/// One look at everything that was asked for.
struct Look {
    at: Instant,
    mounts: Vec<Value>,
    server: Option<Value>,
    /// Why the server of this machine does not tell, where one runs.
    problem: Option<String>,
}

/// Shows the status, once or until Ctrl-C.
pub fn run(arguments: &args::Status) -> Result<ExitCode, Failure> {
    let server = arguments.server.as_deref();
    let keys = arguments.key.as_deref().map(keyfile::load).transpose()?;
    let key = keys.and_then(|keys| keys.into_iter().next());
    let mut before = look(server, key.as_ref())?;
    let mut pause = LOOKS_APART;
    loop {
        thread::sleep(pause);
        let now = look(server, key.as_ref())?;
        let shown = with_rates(&before, &now);
        if arguments.json {
            output::line(format_args!("{}", if arguments.watch { shown.to_string() } else { format!("{shown:#}") }));
        } else {
            // Home and erase, so that a terminal shows one table that changes.
            let clear = if arguments.watch { "\x1b[H\x1b[J" } else { "" };
            output::print(format_args!("{clear}{}", text(&shown, server.is_some())));
        }
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
        (before, pause) = (now, WATCH_INTERVAL);
    }
}

fn look(server: Option<&str>, key: Option<&Key>) -> Result<Look, Failure> {
    let at = Instant::now();
    if let Some(name) = server {
        let address = server_address(name);
        let status = ask_server(&address, key).map_err(|error| {
            let hint = error.hint();
            Failure::new(format!("cannot get the status of {address}"), error, hint)
        })?;
        return Ok(Look { at, mounts: Vec::new(), server: Some(status), problem: None });
    }
    let mounts = mounts::all().map_err(|error| {
        Failure::new(
            "cannot list the mounts of this machine",
            format!("/proc/self/mountinfo: {error}"),
            "mount proc on /proc",
        )
    })?;
    let mounts = ask_mounts(mounts.into_iter().filter(Mount::is_ours).collect());
    let (server, problem) = match ask_server(&format!("127.0.0.1:{PORT}"), key) {
        Ok(server) => (Some(server), None),
        Err(error @ ConnectError::Key { .. }) => (None, Some(format!("{error}: {}", error.hint()))),
        Err(_) => (None, None), // that no server runs here is nothing to report
    };
    Ok(Look { at, mounts, server, problem })
}

fn ask_server(address: &str, key: Option<&Key>) -> Result<Value, ConnectError> {
    let text = server_status(address, key.cloned(), PATIENCE)?;
    let mut status: Value = serde_json::from_str(&text).map_err(|error| ConnectError::NotAqueduct {
        server: address.to_owned(),
        detail: format!("its status cannot be read: {error}"),
    })?;
    status["address"] = json!(address);
    Ok(status)
}

/// Asks all mounts at once, each on a thread that may never come back.
fn ask_mounts(mounts: Vec<Mount>) -> Vec<Value> {
    let (sender, answers) = mpsc::channel();
    for (index, mount) in mounts.iter().enumerate() {
        let (sender, target) = (sender.clone(), mount.target.clone());
        let ask = move || sender.send((index, ask_mount(&target)));
        if let Err(error) = thread::Builder::new().spawn(ask) {
            tracing::warn!(%error, "cannot ask {}", mount.target.display());
        }
    }
    drop(sender);
    let mut found: Vec<_> = mounts.iter().map(|_| Err("does not answer".to_owned())).collect();
    let end = Instant::now() + PATIENCE;
    while let Ok((index, answer)) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found[index] = answer;
    }
    mounts.iter().zip(found).map(|(mount, answer)| describe(mount, answer)).collect()
}

fn ask_mount(target: &Path) -> Result<Value, String> {
    let mut buffer = vec![0; ANSWER_MAX];
    let length = rustix::fs::getxattr(target, STATUS_XATTR, &mut buffer).map_err(|error| match error {
        rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => {
            "dead: clear it with 'aqueduct umount'".to_owned()
        }
        rustix::io::Errno::ACCESS => "another user's".to_owned(),
        rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => "does not tell".to_owned(),
        error => error.to_string(),
    })?;
    serde_json::from_slice(&buffer[..length]).map_err(|error| format!("its answer cannot be read: {error}"))
}

fn describe(mount: &Mount, answer: Result<Value, String>) -> Value {
    let (mut status, state) = match answer {
        Ok(status) if status.is_object() => (status, "ok".to_owned()),
        Ok(_) => (json!({}), "its answer cannot be read".to_owned()),
        Err(problem) => (json!({}), problem),
    };
    status["target"] = json!(mount.target.to_string_lossy());
    status["source"] = json!(mount.source);
    status["read_only"] = json!(mount.read_only);
    status["state"] = json!(state);
    status
}

/// What is shown: the second look, with rates.
fn with_rates(before: &Look, now: &Look) -> Value {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let mounts = rated(&before.mounts, &now.mounts, &["target", "pid"], seconds);
    let server = now.server.clone().map(|mut server| {
        let list = |server: &Value| server["sessions"].as_array().cloned().unwrap_or_default();
        let earlier = before.server.as_ref().map(list).unwrap_or_default();
        let sessions = rated(&earlier, &list(&server), &["client", "peer"], seconds);
        for counter in COUNTERS {
            let key = format!("{counter}_per_second");
            server[&key] = json!(sessions.iter().map(|session| number(session, &key)).sum::<f64>());
        }
        server["sessions"] = json!(sessions);
        server
    });
    json!({ "mounts": mounts, "server": server, "problem": now.problem })
}

/// `now` with rates, from the entries of `before` that have the same `keys`.
fn rated(before: &[Value], now: &[Value], keys: &[&str], seconds: f64) -> Vec<Value> {
    let rate = |entry: &Value| {
        let earlier = before.iter().find(|other| keys.iter().all(|key| other[key] == entry[key]));
        let mut entry = entry.clone();
        for counter in COUNTERS.iter().filter(|counter| entry[**counter].is_number()).collect::<Vec<_>>() {
            let grown = earlier.map_or(0.0, |earlier| number(&entry, counter) - number(earlier, counter));
            entry[format!("{counter}_per_second")] = json!((grown.max(0.0) / seconds).round());
        }
        entry
    };
    now.iter().map(rate).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

fn text(shown: &Value, server_only: bool) -> String {
    let mut text = String::new();
    if !server_only {
        text.push_str(&mounts_text(shown["mounts"].as_array().map(Vec::as_slice).unwrap_or_default()));
        text.push('\n');
    }
    match &shown["server"] {
        Value::Object(server) => text.push_str(&server_text(server)),
        _ if shown["problem"].is_string() => text.push_str(&format!("{}\n", string(&shown["problem"]))),
        _ => text.push_str(&format!("No server answers on 127.0.0.1:{PORT}; for another: aqueduct status HOST:PORT\n")),
    }
    text
}

fn mounts_text(mounts: &[Value]) -> String {
    if mounts.is_empty() {
        return "Nothing of Aqueduct's is mounted here.\n".to_owned();
    }
    let rows: Vec<Vec<String>> = mounts
        .iter()
        .map(|mount| {
            let mut row = vec![string(&mount["target"]), string(&mount["source"]), access(mount)];
            row.extend(rates(mount));
            row.extend([string(&mount["pid"]), uptime(mount), string(&mount["state"])]);
            row
        })
        .collect();
    let headings = ["MOUNTED ON", "SOURCE", "ACCESS", ">OPS/S", ">READ/S", ">WRITTEN/S", ">PID", "UP", "STATE"];
    format!("Mounts\n{}", render(&headings, &rows))
}

fn server_text(server: &Map<String, Value>) -> String {
    let server = Value::Object(server.clone());
    let list = |key: &str| server[key].as_array().cloned().unwrap_or_default();
    let mut text = format!(
        "Server {} at {}, version {}, up {}, {} connections, {} operations under way\n",
        string(&server["server"]),
        string(&server["address"]),
        string(&server["version"]),
        uptime(&server),
        string(&server["connections"]),
        string(&server["executing"]),
    );
    let exports: Vec<_> = list("exports")
        .iter()
        .map(|export| {
            let access_rules = &export["access"];
            vec![
                string(&export["name"]),
                string(&export["path"]),
                access(export),
                limit(export),
                hosts(access_rules),
                squash(access_rules),
                string(&export["external"]),
                string(&export["clients"]),
            ]
        })
        .collect();
    text.push_str(&render(
        &["EXPORT", "DIRECTORY", "ACCESS", "LIMIT", "HOSTS", "SQUASHED", "OUTSIDE", ">CLIENTS"],
        &exports,
    ));
    text.push_str(&data_text(&list("exports")));
    // Sessions without an export are those who ask, as we do.
    let sessions: Vec<Vec<String>> = list("sessions")
        .iter()
        .filter(|session| !session["export"].is_null())
        .map(|session| {
            let mut row: Vec<_> = ["client", "peer", "export", "connections"].map(|key| string(&session[key])).into();
            row.extend(rates(session));
            row
        })
        .collect();
    if !sessions.is_empty() {
        let headings = ["CLIENT", "FROM", "EXPORT", ">CONNECTIONS", ">OPS/S", ">READ/S", ">WRITTEN/S"];
        text.push_str(&format!("\n{}", render(&headings, &sessions)));
    }
    text
}

/// What each export has read ahead, and how it was written.
fn data_text(exports: &[Value]) -> String {
    let row = |export: &Value| {
        let (ahead, writes) = (&export["data"]["read_ahead"], &export["data"]["writes"]);
        let size = |value: &Value| bytes(value.as_f64().unwrap_or(0.0));
        let requests = number(writes, "requests");
        let mean = if requests > 0.0 { bytes((number(writes, "bytes") / requests).round()) } else { "-".to_owned() };
        let latency =
            ahead["latency_us"].as_f64().map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us / 1000.0));
        let streams = if ahead["on"] == json!(false) { "off".to_owned() } else { string(&ahead["streams"]) };
        let mut row = vec![string(&export["name"]), streams, latency, string(&ahead["waits"])];
        row.extend(["issued", "used", "wasted"].map(|key| size(&ahead[key])));
        row.extend([string(&writes["requests"]), mean, string(&writes["continued"])]);
        row
    };
    // A server of an earlier release tells none of it.
    let rows: Vec<_> = exports.iter().filter(|export| export["data"].is_object()).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings =
        ["EXPORT", ">STREAMS", ">LATENCY", ">WAITS", ">AHEAD", ">USED", ">WASTED", ">WRITES", ">MEAN", ">CONTINUED"];
    format!("\n{}", render(&headings, &rows))
}

fn rates(entry: &Value) -> [String; 3] {
    if !entry["operations"].is_number() {
        return ["-", "-", "-"].map(str::to_owned);
    }
    [
        format!("{:.0}", number(entry, "operations_per_second")),
        bytes(number(entry, "bytes_read_per_second")),
        bytes(number(entry, "bytes_written_per_second")),
    ]
}

fn access(entry: &Value) -> String {
    if entry["read_only"] == json!(true) { "read" } else { "read, write" }.to_owned()
}

/// The rate to which an export is held; decimal, as it was written.
fn limit(export: &Value) -> String {
    export["data"]["rate"].as_f64().map_or_else(|| "-".to_owned(), |rate| format!("{} MB/s", rate / 1e6))
}

/// Who may mount an export.
fn hosts(rules: &Value) -> String {
    let list = |key: &str| {
        rules[key].as_array().map(|list| list.iter().map(string).collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    let all = if rules["hosts"].is_null() { "all".to_owned() } else { list("hosts") };
    let read_only = list("read_only_hosts");
    match (all.is_empty(), read_only.is_empty()) {
        (true, true) => "none".to_owned(),
        (_, true) => all,
        (true, false) => format!("read only: {read_only}"),
        (false, false) => format!("{all}; read only: {read_only}"),
    }
}

/// Who acts as somebody else there.
fn squash(rules: &Value) -> String {
    let who = rules["squash"].as_str().unwrap_or("remote root");
    if rules["maps_ids"] == json!(true) { format!("{who}, ids mapped") } else { who.to_owned() }
}

fn uptime(entry: &Value) -> String {
    entry["uptime_seconds"].as_u64().map_or_else(|| "-".to_owned(), span)
}

fn string(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_of(operations: u64, at: Instant) -> Look {
        let session = json!({ "client": "c", "peer": "p:1", "export": "/x", "connections": 2, "operations": operations,
            "bytes_read": operations * 1024, "bytes_written": 0 });
        let server = json!({ "server": "s", "address": "a:1", "version": "1", "connections": 2, "executing": 0,
            "exports": [{ "name": "/x", "path": "/x", "read_only": true, "clients": 1 }], "sessions": [session] });
        let mount = describe(
            &Mount { target: "/m".into(), kind: "fuse.aqueduct".into(), source: "h:/x".into(), read_only: false },
            Ok(
                json!({ "pid": 7, "operations": operations, "bytes_read": 0, "bytes_written": 0, "uptime_seconds": 61 }),
            ),
        );
        Look { at, mounts: vec![mount], server: Some(server), problem: None }
    }

    #[test]
    fn rates_come_from_two_looks() {
        let start = Instant::now();
        let shown = with_rates(&look_of(100, start), &look_of(350, start + Duration::from_millis(500)));
        assert_eq!(shown["mounts"][0]["operations_per_second"], json!(500.0));
        assert_eq!(shown["server"]["bytes_read_per_second"], json!(512_000.0));
        let text = text(&shown, false);
        assert!(text.contains("/m          h:/x    read, write    500"), "{text}");
        assert!(text.contains("500 KiB"), "{text}");
    }

    #[test]
    fn exports_show_how_data_go() {
        let read_ahead = json!({ "on": true, "streams": 2, "latency_us": 5250, "waits": 3, "issued": 3 << 20, "used": 2 << 20,
            "wasted": 1 << 20 });
        let writes = json!({ "requests": 4, "bytes": 16384, "continued": 3 });
        let old = json!({ "name": "/old" });
        let new = json!({ "name": "/x", "data": { "read_ahead": read_ahead, "writes": writes } });
        let text = data_text(&[old.clone(), new]);
        let cells: Vec<_> =
            text.lines().last().unwrap().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["/x", "2", "5.2 ms", "3", "3.0 MiB", "2.0 MiB", "1.0 MiB", "4", "4.0 KiB", "3"], "{text}");
        assert_eq!(data_text(std::slice::from_ref(&old)), "");
        let held = json!({ "data": { "rate": 160_000_000 } });
        assert_eq!([limit(&held), limit(&old)], ["160 MB/s", "-"]);
        let fresh = json!({ "name": "/x", "data": { "read_ahead": { "on": false, "streams": 0, "latency_us": null, "waits": 0,
            "issued": 0, "used": 0, "wasted": 0 }, "writes": { "requests": 0, "bytes": 0, "continued": 0 } } });
        let text = data_text(&[fresh]);
        let cells: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells, ["/x", "off", "-", "0", "0", "B", "0", "B", "0", "B", "0", "-", "0"], "{text}");
    }

    #[test]
    fn exports_show_what_they_allow() {
        let rules = |hosts: Value, read_only: Value, squash: Value| json!({ "hosts": hosts, "read_only_hosts": read_only, "squash": squash });
        let shown = |rules: Value| (hosts(&rules), squash(&rules));
        let text = |hosts: &str, squash: &str| (hosts.to_owned(), squash.to_owned());
        assert_eq!(shown(rules(Value::Null, json!([]), Value::Null)), text("all", "remote root"));
        assert_eq!(shown(rules(json!([]), json!([]), json!("none"))), text("none", "none"));
        let some = rules(json!(["10.0.0.0/8", "::1/128"]), json!(["10.1.0.0/16"]), json!("all"));
        assert_eq!(shown(some), text("10.0.0.0/8 ::1/128; read only: 10.1.0.0/16", "all"));
        let mut mapped = rules(json!([]), json!(["10.1.0.0/16"]), json!("root"));
        mapped["maps_ids"] = json!(true);
        assert_eq!(shown(mapped), text("read only: 10.1.0.0/16", "root, ids mapped"));
    }

    #[test]
    fn what_does_not_answer_is_shown_too() {
        let mount = Mount { target: "/m".into(), kind: "fuse.aqueduct".into(), source: "h:/x".into(), read_only: true };
        let text = mounts_text(&[describe(&mount, Err("does not answer".into()))]);
        assert!(text.contains("does not answer"), "{text}");
        assert!(ask_mount(Path::new("/nonexistent")).is_err());
    }
}
