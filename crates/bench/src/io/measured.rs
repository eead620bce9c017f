//! `--measured FILE`: a line of JSON for each phase, for sweeps; and what earlier lines say of the time that a plan takes.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::io::Write;
use std::path::Path;

use serde_json::json;

use super::results::{Measurement, mib};
use crate::Failure;
use crate::record::Measured;

/// The line of a phase.
fn line(measured: &Measurement) -> Measured {
    let mut more = BTreeMap::from([
        ("bytes".to_owned(), json!(measured.bytes)),
        ("iops".to_owned(), json!(measured.iops)),
        ("latency_mean".to_owned(), json!(measured.latency)),
        ("open".to_owned(), json!(measured.open)),
        ("access".to_owned(), json!(measured.access)),
        ("close".to_owned(), json!(measured.close)),
        ("ranks".to_owned(), json!(measured.rates)),
    ]);
    if let Some([median, high, max]) = measured.percentiles {
        more.insert("latency_p50".to_owned(), json!(median));
        more.insert("latency_p99".to_owned(), json!(high));
        more.insert("latency_max".to_owned(), json!(max));
    }
    if let Some((seconds, bytes)) = measured.stonewall {
        more.insert("stonewall_seconds".to_owned(), json!(seconds));
        more.insert("stonewall_bytes".to_owned(), json!(bytes));
    }
    Measured {
        op: measured.op.to_owned(),
        repeat: measured.repetition,
        value: mib(measured.rate()),
        unit: "MiB/s".to_owned(),
        seconds: measured.total,
        more,
        series: measured.series.clone(),
    }
}

/// Appends the line of a phase.
pub fn append(path: &Path, measured: &Measurement) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let hint = "see whether its directory is there and has room, or give another with --measured";
        Failure::new(format!("appending to {}", path.display()), error, hint)
    };
    // One call for the whole line: nobody reads half of it.
    let text = serde_json::to_string(&line(measured)).map_err(|error| failed(error.into()))? + "\n";
    let mut file = File::options().append(true).create(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// The median rate of an operation in a file of such lines, in bytes by second.
pub fn known_rate(path: &Path, op: &str) -> Option<f64> {
    let text = read_to_string(path).ok()?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Measured>(line).ok());
    let mut rates: Vec<f64> =
        lines.filter(|line| line.op == op && line.unit == "MiB/s" && line.value > 0.0).map(|line| line.value).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).map(|rate| rate * f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended_and_say_what_to_expect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.jsonl");
        assert_eq!(known_rate(&path, "write"), None);
        for (op, total) in [("write", 1.0), ("read", 0.1), ("write", 2.0), ("write", 4.0)] {
            let percentiles = Some([0.1, 0.2, 0.3]);
            let measured =
                Measurement { op, bytes: 8 << 20, total, percentiles, series: vec![1, 2], ..Measurement::default() };
            append(&path, &measured).unwrap();
        }
        assert_eq!(known_rate(&path, "write"), Some(f64::from(4 << 20)));
        let text = read_to_string(&path).unwrap();
        let first: Measured = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((first.op.as_str(), first.value, first.unit.as_str(), first.seconds), ("write", 8.0, "MiB/s", 1.0));
        assert_eq!((first.more["latency_p99"].as_f64(), first.series.len()), (Some(0.2), 2));
        let failure = append(&directory.path().join("no/m"), &Measurement::default()).unwrap_err();
        assert!(!failure.is_usage && failure.what.contains("no/m"), "{failure}");
    }
}
