//! What a person is told of what did not work.

/// What was tried, on what, why it failed, what to do.
pub type Failure = String;
