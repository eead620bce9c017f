//! What goes to stdout. A reader that has left (`aqueduct status | head -1`) is no reason to fail.

use std::fmt;
use std::io::Write;

/// Writes a line, whole and now.
pub fn line(text: fmt::Arguments<'_>) {
    print(format_args!("{text}\n"));
}

/// Writes text, whole and now.
pub fn print(text: fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_fmt(text).and_then(|()| stdout.flush());
}
