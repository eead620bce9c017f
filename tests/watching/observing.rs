//! `aqueduct observe` on this machine's own counters.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Process, aqueduct, directory, run_within, wait_until, within};

/// What it may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn rows(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn times(rows: &[Value]) -> BTreeSet<&str> {
    rows.iter().map(|row| row["time"].as_str().unwrap()).collect()
}

#[test]
fn a_series_has_what_this_machine_counts() {
    within(LIMIT, || {
        let folder = directory();
        let path = folder.path().join("series.jsonl");
        let mut command = aqueduct();
        command.args(["observe", "--for", "2", "--interval", "0.5", "--out"]).arg(&path);
        run_within(LIMIT, &mut command).succeeded();
        let rows = rows(&path);
        assert!(times(&rows).len() >= 2, "{:?}", times(&rows));
        let of = |source: &str, target: &str, counter: &str| -> Vec<u64> {
            let is = |row: &&Value| row["source"] == source && row["target"] == target && row["counter"] == counter;
            rows.iter().filter(is).map(|row| row["value"].as_u64().unwrap()).collect()
        };
        for (source, target, counter) in
            [("cpu", "all", "user_microseconds"), ("net", "lo", "receive_bytes"), ("tcp", "all", "RetransSegs")]
        {
            let values = of(source, target, counter);
            assert!(values.len() >= 2 && values.is_sorted(), "{source} {target} {counter}: {values:?}");
        }
        let judged = run_within(LIMIT, aqueduct().args(["diagnose", "--json", "--from"]).arg(&path));
        let verdict: Value = serde_json::from_str(&judged.text).unwrap_or_else(|e| panic!("{e}: {}", judged.text));
        assert_eq!(verdict["verdict"], "undetermined", "there is no transfer to join it with: {verdict:#}");
    });
}

#[test]
fn a_signal_ends_a_series_in_order() {
    within(LIMIT, || {
        let folder = directory();
        for (name, magic) in [("series.jsonl", &b"{"[..]), ("series.parquet", b"PAR1")] {
            let path = folder.path().join(name);
            let mut command = aqueduct();
            command.args(["observe", "--interval", "0.2", "--out"]).arg(&path);
            let mut process = Process::start(&mut command, &folder.path().join("log"));
            wait_until("the file is made", LIMIT, || path.exists());
            process.signal(Signal::INT);
            assert!(process.ends_within(LIMIT).success(), "{}", process.output());
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.starts_with(magic) && (bytes.ends_with(magic) || bytes.ends_with(b"}\n")), "{name}");
        }
    });
}

#[test]
fn what_cannot_be_observed_is_said() {
    let refused = run_within(LIMIT, aqueduct().args(["observe", "--for", "0", "--out", "/nowhere/x.jsonl"])).failed();
    assert!(refused.contains("cannot write /nowhere/x.jsonl"), "{refused}");
    let refused = run_within(LIMIT, aqueduct().args(["observe", "--for", "0", "--lctl", "/nowhere/lctl"])).failed();
    assert!(refused.contains("cannot read /nowhere/lctl"), "{refused}");
}
