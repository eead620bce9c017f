//! A connection that leads through a router, as its initiator knows it: by which router, and
//! whether that one stops.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_fs::steps::{Held, Router};
use aqueduct_worker::{Group, lock};

/// What is called with the time at which the connection ends.
pub(crate) type Tell = Arc<dyn Fn(Instant) + Send + Sync>;

/// What has the router heard by a group, which has one thread or several, and suspects peers after
/// a time.
pub(crate) type Hear = Box<dyn Fn(&Arc<Group>, bool, Duration) + Send + Sync>;

/// What asks the router for how long bytes lay in it.
pub(crate) type Ask = Box<dyn Fn(Instant, Instant) -> Option<Held> + Send + Sync>;

/// Of one connection.
pub(crate) struct Way {
    pub(crate) gateway: SocketAddr,
    state: Mutex<State>,
    hear: Hear,
    ask: Ask,
}

#[derive(Default)]
struct State {
    end: Option<Instant>,
    tell: Option<Tell>,
}

impl Way {
    pub(crate) fn new(gateway: SocketAddr, hear: Hear, ask: Ask) -> Way {
        Way { gateway, state: Mutex::default(), hear, ask }
    }

    /// The connection belongs to a group from now on, and is told when a router on its way stops;
    /// at once where one has said so already.
    pub(crate) fn begin(&self, group: &Arc<Group>, shared: bool, suspect: Duration, tell: Tell) {
        let mut state = lock(&self.state);
        state.tell = Some(tell.clone());
        let end = state.end;
        drop(state);
        end.into_iter().for_each(|end| tell(end));
        (self.hear)(group, shared, suspect);
    }

    /// A router on the way stops: the connection ends then.
    pub(crate) fn ends(&self, end: Instant) {
        let mut state = lock(&self.state);
        state.end = Some(end);
        let tell = state.tell.clone();
        drop(state);
        tell.into_iter().for_each(|tell| tell(end));
    }

    /// When it ends, if a router on the way has said so.
    pub(crate) fn end(&self) -> Option<Instant> {
        lock(&self.state).end
    }
}

impl Router for Way {
    fn address(&self) -> SocketAddr {
        self.gateway
    }

    fn held(&self, from: Instant, to: Instant) -> Option<Held> {
        (self.ask)(from, to)
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("gateway", &self.gateway).finish_non_exhaustive()
    }
}
