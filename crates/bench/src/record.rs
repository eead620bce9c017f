//! How measurements are written down: JSON lines, the first of each run being its environment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
