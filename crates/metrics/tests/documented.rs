//! `docs/metrics.md` says what the table says.

use std::fs;
use std::path::Path;

use aqueduct_metrics::document;

/// Set to anything, this has the document written anew instead of compared.
const RENEW: &str = "RENEW_DOCS";

#[test]
fn the_document_is_that_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let present = fs::read_to_string(&path).unwrap();
    let expected = document::renew(&present).expect("docs/metrics.md has the lines between which the table stands");
    if std::env::var_os(RENEW).is_some() {
        return fs::write(&path, expected).unwrap();
    }
    assert!(
        present == expected,
        "docs/metrics.md differs from the table of metrics: run '{RENEW}=1 cargo test -p aqueduct-metrics --test \
         documented', and look at what changed"
    );
}

#[test]
fn a_document_without_its_place_is_refused() {
    assert_eq!(document::renew("# Metrics"), None);
    let document = format!("a\n{}\nPREVIOUS\n{}\nz\n", document::BEGIN, document::END);
    let renewed = document::renew(&document).unwrap();
    assert!(renewed.starts_with("a\n") && renewed.ends_with("\nz\n") && !renewed.contains("PREVIOUS"), "{renewed}");
}
