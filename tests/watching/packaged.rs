//! The dashboard and the alert rules name metrics and labels that are told.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use aqueduct_metrics::table;
use serde_json::Value;

use crate::common::{have, run};

fn packaged(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(name)).unwrap()
}

/// The words of a text that may be names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// The metrics of a text that the table does not have.
fn unknown(text: &str) -> Vec<String> {
    let told: BTreeSet<String> = table::all()
        .iter()
        .flat_map(|row| match row.kind {
            aqueduct_metrics::Kind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|suffix| format!("{}{suffix}", row.name)).to_vec()
            }
            _ => vec![row.name.to_owned()],
        })
        .collect();
    words(text)
        .filter(|word| word.starts_with("aqueduct_") && *word != "aqueduct_" && !told.contains(*word))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_dashboard_shows_what_is_told() {
    let text = packaged("grafana/aqueduct.json");
    let document: Value = serde_json::from_str(&text).unwrap();
    let targets = document["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() > 10, "{expressions:?}");
    for expression in &expressions {
        assert!(expression.contains("aqueduct_"), "{expression}");
        assert_eq!(unknown(expression), Vec::<String>::new(), "{expression}");
    }
    // What a legend names has to be left by the sum.
    for (expression, legend) in document["panels"].as_array().unwrap().iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(|target| (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap()))
    }) {
        for label in legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}")).map(|(label, _)| label) {
            let is_kept = !expression.contains("by (") || words(expression).any(|word| word == label);
            assert!(is_kept, "{legend}: {expression}");
        }
    }
    assert_eq!(unknown("aqueduct_no_such_total"), ["aqueduct_no_such_total"]);
}

#[test]
fn the_alerts_watch_what_is_told() {
    assert_eq!(unknown(&packaged("prometheus/aqueduct.yml")), Vec::<String>::new());
    if have(&["promtool"]) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus/aqueduct.yml");
        run(Command::new("promtool").args(["check", "rules"]).arg(path)).succeeded();
    }
}
