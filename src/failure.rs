//! What a user is told when something failed, and what the process ends with.

use std::fmt;
use std::process::ExitCode;

use aqueduct_node::Kind;

/// The exit code of a command that failed.
pub const FAILED: u8 = 1;
/// The exit code of a command line that makes no sense; clap uses the same.
pub const USAGE: u8 = 2;
/// The exit code with which mount(8) helpers say that the mount failed.
pub const MOUNT_FAILED: u8 = 32;

/// A failure, with the exit code that it gives.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    told: aqueduct_node::Failure,
    code: u8,
}

impl Failure {
    /// `what` was tried, on what; `why` it failed; `hint`: what to do.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        aqueduct_node::Failure::new(what, why, hint).into()
    }

    /// A command line that cannot be meant.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        aqueduct_node::Failure::usage(what, why, hint).into()
    }

    /// From the one-line messages of the libraries, which read "what: why; what to do". `hint` stands in where one has no last part.
    pub fn from_line(line: impl fmt::Display, hint: &str) -> Failure {
        aqueduct_node::Failure::from_line(line, hint).into()
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

impl From<aqueduct_node::Failure> for Failure {
    fn from(told: aqueduct_node::Failure) -> Failure {
        let code = if told.kind == Kind::Settings { USAGE } else { FAILED };
        Failure { told, code }
    }
}

impl From<aqueduct_bench::Failure> for Failure {
    fn from(aqueduct_bench::Failure { what, why, hint, is_usage }: aqueduct_bench::Failure) -> Failure {
        if is_usage { Failure::usage(what, why, hint) } else { Failure::new(what, why, hint) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aqueduct: {}", self.told)
    }
}
