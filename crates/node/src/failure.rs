//! What failed, for a person: what was tried, why it failed, what to do.

use std::fmt;

/// Which sort of failure it is, for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Settings that cannot be meant: trying again gives the same.
    Settings,
    /// This machine refused: threads, descriptors, memory, a file of settings or keys.
    System,
    /// The state folder cannot be used.
    State,
    /// A directory cannot be served as it is to be served.
    Export,
    /// An address cannot be listened on.
    Listen,
    /// A server cannot be had, or refused.
    Connect,
    /// The kernel did not mount, or not serve the mount.
    Mount,
}

/// A failure, for a person. `Display` has a line for each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was tried, on what.
    pub what: String,
    /// Why it failed.
    pub why: String,
    /// What to do.
    pub hint: String,
    /// Which sort of failure it is.
    pub kind: Kind,
}

impl Failure {
    /// `what` was tried, on what; `why` it failed; `hint`: what to do.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure { what: what.into(), why: why.to_string(), hint: hint.into(), kind: Kind::System }
    }

    /// A command line or configuration that cannot be meant.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure { kind: Kind::Settings, ..Failure::new(what, why, hint) }
    }

    /// The same of another sort.
    pub fn of(self, kind: Kind) -> Failure {
        Failure { kind, ..self }
    }

    /// From the one-line messages of the libraries, which read "what: why; what to do". `hint`
    /// stands in where one has no last part.
    pub fn from_line(line: impl fmt::Display, hint: &str) -> Failure {
        let line = line.to_string();
        let (rest, hint) = line.rsplit_once("; ").unwrap_or((&line, hint));
        let (what, why) = rest.split_once(": ").unwrap_or((rest, "the system refused"));
        Failure::new(what, why, hint)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n     why: {}\n      do: {}", self.what, self.why, self.hint)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_three() {
        let failure = Failure::from_line("cannot mount on /m: it is busy: really; unmount it first", "wait");
        assert_eq!(failure, Failure::new("cannot mount on /m", "it is busy: really", "unmount it first"));
        let failure = Failure::from_line("cannot mount on /m: no", "see the log");
        assert_eq!(failure.to_string(), "cannot mount on /m\n     why: no\n      do: see the log");
    }
}
