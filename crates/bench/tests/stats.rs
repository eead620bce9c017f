//! The statistics against numpy's and scipy's, on data that tests/data/make.py recorded.

use aqueduct_bench::stats::{Interval, Ratio, Summary};
use serde_json::Value;

/// Of a figure that both compute in the same way.
const TOLERANCE: f64 = 1e-9;

/// Ends of a bootstrap's interval, as a share of its width: scipy draws 200 000 samples by another generator, we 10 000.
const DRAWN_TOLERANCE: f64 = 0.06;

fn recorded() -> Value {
    serde_json::from_str(include_str!("data/stats.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[track_caller]
fn close(name: &str, found: Option<f64>, expected: &Value) {
    let is_close = match (found, expected.as_f64()) {
        (Some(found), Some(expected)) => (found - expected).abs() <= TOLERANCE * expected.abs().max(found.abs()),
        (None, None) => true,
        _ => false,
    };
    assert!(is_close, "{name}: found {found:?}, expected {expected}");
}

#[test]
fn summaries_are_those_of_scipy() {
    let recorded = recorded();
    let samples = recorded["samples"].as_array().unwrap();
    assert!(samples.len() >= 12);
    for sample in samples {
        let (name, expected) = (sample["name"].as_str().unwrap(), &sample["expected"]);
        let found = Summary::of(&numbers(&sample["values"])).unwrap();
        let figures = [
            ("mean", Some(found.mean)),
            ("max", Some(found.max)),
            ("min", Some(found.min)),
            ("stdev", found.stdev),
            ("median", Some(found.median)),
            ("q1", Some(found.q1)),
            ("q3", Some(found.q3)),
            ("cv", found.cv),
        ];
        for (figure, value) in figures {
            close(&format!("{figure} of {name}"), value, &expected[figure]);
        }
        let intervals = [("mean_interval", found.mean_interval), ("median_interval", found.median_interval)];
        for (figure, interval) in intervals {
            close(&format!("{figure} of {name}, low"), interval.map(|i: Interval| i.low), &expected[figure][0]);
            close(&format!("{figure} of {name}, high"), interval.map(|i: Interval| i.high), &expected[figure][1]);
        }
        let outliers: Vec<f64> = found.outliers.iter().map(|&index| index as f64).collect();
        assert_eq!(outliers, numbers(&expected["outliers"]), "outliers of {name}");
    }
}

#[test]
fn ratios_are_those_of_scipy() {
    let recorded = recorded();
    let sample = |name: &Value| {
        let mut all = recorded["samples"].as_array().unwrap().iter();
        numbers(&all.find(|sample| sample["name"] == *name).unwrap()["values"])
    };
    for expected in recorded["ratios"].as_array().unwrap() {
        let name = format!("{} to {}", expected["new"], expected["base"]);
        let found = Ratio::of_medians(&sample(&expected["new"]), &sample(&expected["base"]), 8).unwrap();
        close(&name, Some(found.ratio), &expected["ratio"]);
        let (low, high) = (expected["low"].as_f64().unwrap(), expected["high"].as_f64().unwrap());
        let away = (found.interval.low - low).abs().max((found.interval.high - high).abs());
        assert!(away <= DRAWN_TOLERANCE * (high - low), "{name}: {:?}, expected {low}..{high}", found.interval);
    }
}
