//! What a user is told when something failed: what was tried, why it failed, what to do.

use std::fmt;
use std::process::ExitCode;

/// The exit code of a command that failed.
pub const FAILED: u8 = 1;
/// The exit code of a command line that makes no sense; clap uses the same.
pub const USAGE: u8 = 2;
/// The exit code with which mount(8) helpers say that the mount failed.
pub const MOUNT_FAILED: u8 = 32;

/// A failure, for a person.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    what: String,
    why: String,
    hint: String,
    code: u8,
}

impl Failure {
    /// `what` was tried, on what; `why` it failed; `hint`: what to do.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure { what: what.into(), why: why.to_string(), hint: hint.into(), code: FAILED }
    }

    /// A command line or configuration that cannot be meant.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure { code: USAGE, ..Failure::new(what, why, hint) }
    }

    /// From the one-line messages of the libraries, which read "what: why; what to do". `hint` stands in where one has no last part.
    pub fn from_line(line: impl fmt::Display, hint: &str) -> Failure {
        let line = line.to_string();
        let (rest, hint) = line.rsplit_once("; ").unwrap_or((&line, hint));
        let (what, why) = rest.split_once(": ").unwrap_or((rest, "the system refused"));
        Failure::new(what, why, hint)
    }

    /// The same with another exit code.
    pub fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }

    /// What the process ends with.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl From<aqueduct_bench::Failure> for Failure {
    fn from(aqueduct_bench::Failure { what, why, hint, is_usage }: aqueduct_bench::Failure) -> Failure {
        Failure { what, why, hint, code: if is_usage { USAGE } else { FAILED } }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aqueduct: {}\n     why: {}\n      do: {}", self.what, self.why, self.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_three() {
        let failure = Failure::from_line("cannot mount on /m: it is busy: really; unmount it first", "wait");
        assert_eq!(failure, Failure::new("cannot mount on /m", "it is busy: really", "unmount it first"));
        let failure = Failure::from_line("cannot mount on /m: no", "see the log");
        assert_eq!(failure.to_string(), "aqueduct: cannot mount on /m\n     why: no\n      do: see the log");
    }
}
