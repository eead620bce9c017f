//! The steps of one operation: what it waited for, when and how long, for whoever says afterwards
//! where a slow one spent its time.
//!
//! Steps shorter than [`BRIEF`] are only counted together, so that noting them allocates nothing.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Shorter steps are summed, not kept: no operation is slow for one of them.
pub const BRIEF: Duration = Duration::from_micros(100);

/// Steps that are kept of one operation; of further ones only the sum.
pub const STEPS_MAX: usize = 64;

/// What a server says of how long a request took there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// From when its frame was whole until it was begun.
    pub queue: Duration,
    /// Waits for others to give back leases.
    pub lease: Duration,
    /// The rest: the backing file system, and what the server does itself.
    pub file_system: Duration,
}

/// For how long bytes of a connection lay in a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The part of the time that is asked for in which the router looked.
    pub looked: Duration,
    /// That in which bytes lay in it.
    pub held: Duration,
    /// Of that, the part in which it had not read them yet.
    pub unread: Duration,
}

/// A router through which a connection leads.
pub trait Router: fmt::Debug + Send + Sync {
    /// Where it is.
    fn address(&self) -> SocketAddr;

    /// For how long bytes lay in it between two moments; `None`: it does not say. Waits for its
    /// answer, a second at most.
    fn held(&self, from: Instant, to: Instant) -> Option<Held>;
}

/// A request to a server, from when it was sent to when it was answered.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The operation of the protocol.
    pub op: &'static str,
    /// Who was asked.
    pub server: Arc<str>,
    /// The router through which its connection leads.
    pub router: Option<Arc<dyn Router>>,
    /// The kernel's round trip on the connection, to its next end: the router or the server.
    pub round_trip: Option<Duration>,
    /// It had been sent before, on a connection that broke.
    pub is_repeat: bool,
    /// The server was asked how long it takes, and says so where that is worth a word.
    pub is_timed: bool,
    /// What it said.
    pub served: Option<Served>,
}

/// What a step waited for.
#[derive(Clone, Debug)]
pub enum What {
    /// Something of this client's: which.
    Queue(&'static str),
    /// A connection to this server, or one that broke with the request on it.
    Away(Arc<str>),
    /// An answer.
    Request(Sent),
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// When it began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What it waited for.
    pub what: What,
}

/// What is known of the steps of an operation.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// In the order in which they ended.
    pub steps: Vec<Step>,
    /// How many were not kept, and how long they took together.
    pub brief: (u32, Duration),
}

#[derive(Debug, Default)]
struct Kept {
    steps: Vec<Step>,
    brief: (u32, Duration),
}

/// The steps of one operation, if anybody wants them.
#[derive(Debug, Default)]
pub struct Steps {
    is_on: bool,
    trace: Option<[u8; 16]>,
    kept: Mutex<Kept>,
}

impl Steps {
    /// Steps that are kept, of an operation that belongs to this trace.
    pub fn kept(trace: Option<[u8; 16]>) -> Steps {
        Steps { is_on: true, trace, kept: Mutex::default() }
    }

    /// The trace that the operation belongs to, which servers are told; `None`: nobody exports it.
    pub fn trace(&self) -> Option<[u8; 16]> {
        self.trace
    }

    /// Whether anybody wants them.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A step has ended. What it was is asked only where it is kept.
    pub fn note(&self, began: Instant, ended: Instant, what: impl FnOnce() -> What) {
        if !self.is_on {
            return;
        }
        let took = ended.saturating_duration_since(began);
        let mut kept = self.lock();
        if took < BRIEF || kept.steps.len() >= STEPS_MAX {
            kept.brief = (kept.brief.0.saturating_add(1), kept.brief.1 + took);
            return;
        }
        kept.steps.push(Step { began, ended, what: what() });
    }

    /// What this client had it wait for since then.
    pub fn queued(&self, began: Instant, what: &'static str) {
        if self.is_on {
            self.note(began, Instant::now(), || What::Queue(what));
        }
    }

    /// All there are, which are forgotten here.
    pub fn take(&self) -> Taken {
        let Kept { steps, brief } = std::mem::take(&mut *self.lock());
        Taken { steps, brief }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_brief_is_summed_and_what_is_not_is_kept() {
        let (steps, start) = (Steps::kept(None), Instant::now());
        steps.note(start, start + BRIEF / 2, || unreachable!("nobody keeps it"));
        (0..STEPS_MAX + 5).for_each(|_| steps.note(start, start + BRIEF, || What::Queue("a slot")));
        let taken = steps.take();
        assert_eq!(taken.steps.len(), STEPS_MAX);
        assert_eq!(taken.brief, (6, BRIEF / 2 + BRIEF * 5));
        assert!(steps.take().steps.is_empty());
    }

    #[test]
    fn nobody_is_told_where_nobody_wants_them() {
        let (steps, start) = (Steps::default(), Instant::now());
        steps.note(start, start + BRIEF, || unreachable!());
        steps.queued(start, "a slot");
        assert!(steps.take().steps.is_empty());
    }
}
