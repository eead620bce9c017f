//! How long requests take, and what replies say of that.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aqueduct_net::{Connection, Frame};
use aqueduct_wire::{Flags, Header, TOLD_MIN_US, Times};

use crate::links;
use crate::state::Server;

/// How long a request takes here, and what of that its reply is to say.
#[derive(Clone, Copy)]
pub(crate) struct Timing {
    /// When it was begun.
    pub(crate) started: Instant,
    /// From when its frame was whole until then; zero where that is not known.
    pub(crate) queued: Duration,
    /// Waits for others' leases.
    pub(crate) lease: Duration,
    pub(crate) asks_queue_time: bool,
    pub(crate) is_timed: bool,
}

fn micros(time: Duration) -> u32 {
    time.as_micros().try_into().unwrap_or(u32::MAX)
}

impl Timing {
    /// While all threads are at work a request waits in the kernel, and then behind those before
    /// it. The kernel is asked how long only while other requests are under way.
    pub(crate) fn of(server: &Server, connection: &Connection, frame: &Frame, asks_queue_time: bool) -> Timing {
        let started = Instant::now();
        let came = frame.came().unwrap_or(started);
        let read = started.saturating_duration_since(came);
        let is_timed = frame.header.flags.contains(Flags::TIMED);
        let is_alone = server.executing.load(Ordering::Relaxed) == 0;
        let asks_kernel = asks_queue_time || is_timed && !is_alone;
        let queued = if asks_kernel { read.max(connection.data_age(came)) } else { read };
        Timing { started, queued, lease: Duration::ZERO, asks_queue_time, is_timed }
    }

    /// The queue time, if a reply is to say it whatever it is.
    pub(crate) fn queue_time(&self) -> Option<u32> {
        self.asks_queue_time.then(|| micros(self.queued))
    }

    /// What a reply that is made now says before anything else; empty: nothing.
    pub(crate) fn prefix(&self, header: &mut Header) -> Vec<u8> {
        let took = || self.started.elapsed();
        let took = self.is_timed.then(took).filter(|took| micros(*took + self.queued) >= TOLD_MIN_US);
        let Some(took) = took else { return links::prefix(self.queue_time(), None, header) };
        let times = Times { lease_us: micros(self.lease), served_us: micros(took.saturating_sub(self.lease)) };
        links::prefix(Some(micros(self.queued)), Some(times), header)
    }
}
