//! What `aqueduct observe` wrote, as lines of JSON: what each target read and wrote.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::lmt::Activity;

/// The targets that are counted, by how they begin: at the servers of a file system, where all
/// bytes pass once. Disks, their partitions and mounts would count the same bytes again.
const TARGETS: &str = "obdfilter.";

/// Below this are counts of single clients, which those of the target have in them.
const CLIENTS: &str = ".exports.";

/// What is read, and what is written.
const COUNTERS: [&str; 2] = ["read_bytes", "write_bytes"];

#[derive(Deserialize)]
struct Row<'a> {
    time: &'a str,
    target: std::borrow::Cow<'a, str>,
    counter: std::borrow::Cow<'a, str>,
    value: u64,
}

/// Whether what begins like that is one.
pub(super) fn is_known(head: &str) -> bool {
    head.lines().next().is_some_and(|line| serde_json::from_str::<Row<'_>>(line).is_ok())
}

/// A series that is read line by line.
#[derive(Default)]
pub(super) struct Series {
    /// By microsecond; a look has one time for all of its rows.
    steps: BTreeMap<i64, BTreeMap<String, [Option<u64>; 2]>>,
    count: usize,
}

impl Series {
    /// Reads a line. One that is none of its rows, as the last of one that was killed, is left out.
    pub(super) fn line(&mut self, line: &str) {
        let Ok(row) = serde_json::from_str::<Row<'_>>(line) else { return };
        let way = COUNTERS.iter().position(|counter| *counter == row.counter);
        let is_whole = row.target.starts_with(TARGETS) && !row.target.contains(CLIENTS);
        let (Some(way), true, Ok(time)) = (way, is_whole, row.time.parse::<jiff::Timestamp>()) else { return };
        let targets = self.steps.entry(time.as_microsecond()).or_default();
        let before = targets.len();
        targets.entry(row.target.trim_start_matches(TARGETS).to_owned()).or_default()[way] = Some(row.value);
        self.count += targets.len() - before;
    }

    /// How many counts of a target at a time are kept.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn activity(&self) -> Vec<Activity> {
        let pairs = self.steps.iter().zip(self.steps.iter().skip(1));
        let activity = pairs.map(|((before, earlier), (at, now))| Activity {
            time: [*before as f64 / 1e6, *at as f64 / 1e6],
            targets: now
                .iter()
                .filter_map(|(target, counts)| Some((target.clone(), grown(earlier.get(target)?, counts))))
                .collect(),
        });
        activity.collect()
    }
}

/// What was added; what fell was started again, and what one look does not have is not counted.
fn grown(before: &[Option<u64>; 2], now: &[Option<u64>; 2]) -> [f64; 2] {
    [0, 1].map(|way: usize| match (before[way], now[way]) {
        (Some(before), Some(now)) => now.checked_sub(before).unwrap_or(now) as f64,
        _ => 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_what_targets_did() {
        let row = |second: u32, target: &str, counter: &str, value: u64| {
            format!(
                r#"{{"time":"2026-01-02T03:04:{second:02}Z","source":"lustre","target":"{target}","counter":"{counter}","value":{value}}}"#
            ) + "\n"
        };
        let text = row(5, "obdfilter.fs-OST0", "read_bytes", 100)
            + &row(5, "obdfilter.fs-OST0.exports.1@tcp", "read_bytes", 1)
            + &row(6, "obdfilter.fs-OST0", "read_bytes", 150)
            + &row(6, "obdfilter.fs-OST0.exports.1@tcp", "read_bytes", 50)
            + &row(6, "osc.fs-OST0", "read_bytes", 3)
            + &row(7, "obdfilter.fs-OST0", "read_bytes", 20)
            + r#"{"time":"2026-01-02T03:04:08Z","sou"#;
        assert!(is_known(&text));
        let mut series = Series::default();
        text.lines().for_each(|line| series.line(line));
        let found = series.activity();
        assert_eq!((found.len(), series.len()), (2, 3));
        assert_eq!(found[0].targets, BTreeMap::from([("fs-OST0".to_owned(), [50.0, 0.0])]));
        assert_eq!(found[1].targets["fs-OST0"], [20.0, 0.0], "it was started again");
        assert_eq!(found[1].time, [1_767_323_046.0, 1_767_323_047.0]);
        for other in ["", "{}", "{\"end\":{}}\n", "nonsense\n"] {
            assert!(!is_known(other), "{other}");
        }
    }
}
