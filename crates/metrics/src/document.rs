//! The documentation of the table.

use std::fmt::Write;

use crate::instrument::Kind;
use crate::table::{self, Definition, Unit};

/// Between this line and [`END`] a document is generated.
pub const BEGIN: &str = "<!-- generated from the table: begin -->";

/// See [`BEGIN`].
pub const END: &str = "<!-- generated from the table: end -->";

/// The table as Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for (heading, rows) in table::headings() {
        let _ = writeln!(text, "\n### {heading}\n\n| Metric | Kind | Labels | Meaning |\n|---|---|---|---|");
        rows.into_iter().for_each(|row| line(row, &mut text));
    }
    text
}

fn line(row: &Definition, text: &mut String) {
    let kind = match row.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let unit = match row.unit {
        Unit::None => "",
        Unit::Seconds => ", seconds",
        Unit::Bytes => ", bytes",
    };
    let labels: Vec<_> = row.labels.iter().map(|label| format!("`{label}`")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| `{}` | {kind}{unit} | {} | {} |", row.name, labels.join(", "), row.meaning.trim());
}

/// A document with its generated part made anew; `None` when it has no place for it.
pub fn renew(document: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}\n{END}{after}", markdown()))
}
