//! Where tests have a server die: a request that has come to such a moment goes no further, and the test ends the server.

use std::sync::OnceLock;

/// A moment in the execution of a request that changes something, or in a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// What tells whether it was executed is about to be written down.
    Begun,
    /// It has been written down.
    Intended,
    /// It was executed.
    Executed,
    /// Its reply has been written down.
    Remembered,
    /// A client has an open again, and has not been told.
    Reopened,
    /// It has a lock again, and has not been told.
    Reclaimed,
    /// It has said that it has all again, and has not been told that this was understood.
    Recovered,
}

type Hook = Box<dyn Fn(Moment) -> bool + Send + Sync>;

/// Asked at each moment whether the server dies there.
#[derive(Default)]
pub(crate) struct Failpoint(OnceLock<Hook>);

impl Failpoint {
    /// The first hook stays.
    pub(crate) fn set(&self, hook: impl Fn(Moment) -> bool + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(hook));
    }

    pub(crate) fn dies(&self, moment: Moment) -> bool {
        self.0.get().is_some_and(|hook| hook(moment))
    }
}
