//! What goes wrong, as its user reads it: what was tried, on what, why it failed, what to do next.

use std::fmt;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// An error for the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was tried, and on what.
    pub what: String,
    /// Why it failed.
    pub why: String,
    /// What to do next.
    pub hint: String,
    /// The options make no sense: the exit code is 2 then, and 1 else.
    pub is_usage: bool,
}

impl Failure {
    /// Something was tried and failed.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure { what: what.into(), why: why.to_string(), hint: hint.into(), is_usage: false }
    }

    /// Options that cannot be meant.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure { is_usage: true, ..Failure::new(what, why, hint) }
    }

    /// What the process ends with.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(if self.is_usage { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aqueduct: {}\n     why: {}\n      do: {}", self.what, self.why, self.hint)
    }
}
