//! What goes to stdout and stderr. A reader that has left (`aqueduct status | head -1`), or a full
//! disk below a log, is no reason to fail.

use std::fmt;
use std::io::Write;

use serde::Serialize;

/// Names of files, mounts, clients and servers are anybody's: without what would change a terminal.
pub fn shown(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// Writes a line, whole and now.
pub fn line(text: fmt::Arguments<'_>) {
    print(format_args!("{text}\n"));
}

/// Writes a document as JSON, for people and programs.
pub fn json(document: &impl Serialize) {
    let text = serde_json::to_string_pretty(document).expect("what this program tells has text for keys");
    line(format_args!("{text}"));
}

/// Writes a line to stderr.
pub fn error(text: fmt::Arguments<'_>) {
    error_part(format_args!("{text}\n"));
}

/// Writes text to stderr.
pub fn error_part(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Writes text, whole and now.
pub fn print(text: fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_fmt(text).and_then(|()| stdout.flush());
}
