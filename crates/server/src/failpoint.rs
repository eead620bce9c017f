//! Where tests have a server die: a request that has come to such a moment goes no further, and the test ends the server.

use std::sync::OnceLock;

use crate::server::Server;

/// A moment in the execution of a request that changes something, or in a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// What tells whether it was executed has been written down.
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
    pub(crate) fn dies(&self, moment: Moment) -> bool {
        self.0.get().is_some_and(|hook| hook(moment))
    }
}

impl Server {
    /// For tests: has requests end, without an answer, at the moments for which `hook` says so. It can be set once.
    pub fn set_failpoint(&self, hook: impl Fn(Moment) -> bool + Send + Sync + 'static) {
        let _ = self.failpoint.0.set(Box::new(hook)); // the first stays
    }
}
