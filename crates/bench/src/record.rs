//! How measurements are written down: JSON lines, the first of each run being its environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Failure;

/// The version of this format: readers refuse what is newer.
pub const SCHEMA: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Where and with what a run measured.
    Environment(Environment),
    /// What was measured once.
    Sample(Sample),
}

/// Where and with what a run measured; what cannot be found out is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// Names the run among others: the time of its start and a random part.
    pub run: String,
    /// RFC 3339, UTC.
    pub time: String,
    /// The sweep or experiment, and its file's content.
    pub name: String,
    /// What was asked for, word for word.
    pub plan: String,
    /// Kernel, host, processors, memory, congestion control, mounts, load and steal at the start: by name.
    pub facts: BTreeMap<String, Value>,
}

/// One operation, measured once at one point of the matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The run's [`Environment::run`].
    pub run: String,
    /// RFC 3339, UTC: when it began.
    pub time: String,
    /// Which file system or path was measured, by the name that the sweep gives it: `native`, `aqueduct`, `nfs`.
    pub system: String,
    /// The point: transfer, clients, ranks ..., by name.
    pub parameters: BTreeMap<String, Value>,
    /// `write`, `read`, `create`, `latency` ...
    pub op: String,
    /// Which repetition of the point, from 0; in order of time over all points: `order`.
    pub repeat: u32,
    /// Its place in the run, from 0: points are measured in random order.
    pub order: u32,
    /// It was for warming up, and counts in no statistics.
    #[serde(default)]
    pub warmup: bool,
    /// The figure.
    pub value: f64,
    /// Its unit: `MiB/s`, `op/s`, `us`.
    pub unit: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whatever else was measured with it, by name: bytes, latency percentiles, steal, clients' own rates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, Value>,
    /// Bytes moved in each tenth of a second, for charts over time; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<u64>,
}

/// What a benchmark says of one operation of one repetition, a JSON line each, where its `--measured FILE` asks for it: a [`Sample`] without what only a sweep knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// As of [`Sample::op`].
    pub op: String,
    /// Which repetition within this call, from 0.
    pub repeat: u32,
    /// As of [`Sample::value`].
    pub value: f64,
    /// As of [`Sample::unit`].
    pub unit: String,
    /// As of [`Sample::seconds`].
    pub seconds: f64,
    /// As of [`Sample::more`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, Value>,
    /// As of [`Sample::series`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<u64>,
}

/// All lines of a file. A last one that was being written when its program ended is left out.
pub fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let what = format!("cannot read measurements from {}", path.display());
    let hint = "name a file of JSON lines that a benchmark has written: samples.jsonl in a sweep's folder of results";
    let failed = |why: &dyn std::fmt::Display| Failure::new(&what, why, hint);
    let mut text = BufReader::new(File::open(path).map_err(|error| failed(&error))?);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if text.read_until(b'\n', &mut line).map_err(|error| failed(&error))? == 0 {
            break;
        }
        match serde_json::from_slice::<Line>(&line) {
            Ok(Line::Environment(environment)) if environment.schema > SCHEMA => {
                let why = format!(
                    "line {number} is of format {}, and this program knows formats to {SCHEMA}",
                    environment.schema
                );
                return Err(Failure::new(&what, why, "read it with the program that has written it, or a newer one"));
            }
            Ok(known) => lines.push(known),
            Err(_) if !line.ends_with(b"\n") => break,
            Err(error) => return Err(failed(&format!("line {number}: {error}"))),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Line>, Failure> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn what_is_written_is_read() {
        let environment = Line::Environment(Environment { schema: SCHEMA, ..Environment::default() });
        let sample = Line::Sample(Sample { value: 0.1, warmup: true, series: vec![1, 2], ..Sample::default() });
        let lines = vec![environment, sample];
        let text: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        assert_eq!(read_text(&format!("{}\n", text.join("\n"))).unwrap(), lines);
        assert_eq!(read_text(&format!("{}\n{}", text[0], &text[1][..20])).unwrap(), lines[..1], "torn");
        assert_eq!(read_text("").unwrap(), []);
    }

    #[test]
    fn what_cannot_be_understood_is_told() {
        assert!(read_text("{\"kind\": \"other\"}\n").unwrap_err().why.starts_with("line 1"));
        let newer = Line::Environment(Environment { schema: SCHEMA + 1, ..Environment::default() });
        assert!(
            read_text(&format!("{}\n", serde_json::to_string(&newer).unwrap())).unwrap_err().why.contains("format 2")
        );
        assert!(read(Path::new("/nowhere")).is_err());
    }
}
