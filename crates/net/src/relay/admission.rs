//! Who may have another flow, and how much memory each gets: decided at once, from counts alone.

use std::collections::HashMap;
use std::net::IpAddr;

use aqueduct_wire::Lane;

use crate::relay::pipes;

/// The smallest buffer of a socket in bytes: some frames without payload. Links for control have
/// never more.
pub(crate) const BUFFER_MIN: usize = 64 << 10;

/// The largest: a network of 10 Gbit/s and 3 ms can use it, and over loopback a stream costs half
/// of the processor time that it costs with 1 MiB, and no less with 8.
pub(crate) const BUFFER_MAX: usize = 4 << 20;

/// One flow in this many is kept for links for control: without one a mount does nothing, and
/// with few it does all, slower.
const CONTROL_SHARE: usize = 8;

/// Buffers of one flow: receiving and sending, on both sides. The kernel takes twice what it is
/// told.
const BUFFERS: usize = 4 * 2;

/// How much of everything a router takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Flows that it carries.
    pub flows_max: usize,
    /// Of them for one client, which is an address.
    pub flows_per_client_max: usize,
    /// Connections that have not said where they want to go, and as many whose targets have not
    /// answered yet.
    pub greeting_max: usize,
    /// Of each of them of one client, and half as many of one client that wait for one target.
    pub greeting_per_client_max: usize,
    /// Connections by which initiators are told of what happens here.
    pub watchers_max: usize,
    /// Bytes for the buffers of sockets and pipes, when all flows are stalled.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            flows_max: 2048,
            flows_per_client_max: 1024,
            greeting_max: 1024,
            greeting_per_client_max: 256,
            watchers_max: 1024,
            memory: 2 << 30,
        }
    }
}

impl Limits {
    /// As many flows as there is memory for, with the smallest buffers.
    pub(crate) fn flows(&self) -> usize {
        self.flows_max.min(self.memory / flow_memory(BUFFER_MIN)).max(1)
    }

    /// The size of the buffers for bulk data, with so many flows for it: a power of two, so that
    /// it changes seldom.
    pub(crate) fn buffer(&self, bulk: usize, control: usize) -> usize {
        let left = self.memory.saturating_sub(control * flow_memory(BUFFER_MIN));
        let each = left / bulk.max(1);
        let mut size = BUFFER_MAX;
        while size > BUFFER_MIN && flow_memory(size) > each {
            size /= 2;
        }
        size
    }
}

/// What a flow may take when it is stalled in both directions, in bytes.
pub(crate) const fn flow_memory(buffer: usize) -> usize {
    BUFFERS * buffer + 2 * pipes::room(buffer)
}

/// Who has how many flows.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pub(crate) control: usize,
    pub(crate) bulk: usize,
    of: HashMap<IpAddr, usize>,
}

impl Admission {
    /// Flows in all.
    pub(crate) fn flows(&self) -> usize {
        self.control + self.bulk
    }

    /// Why a client may have no further flow; `None`: it may. While there is room for all, each has
    /// what it wants up to its limit. Of the last half a client has no more than its even share of
    /// all, so that who comes late finds room too.
    pub(crate) fn refuses(&self, client: IpAddr, lane: Lane, limits: &Limits) -> Option<&'static str> {
        let all = limits.flows();
        let room = if lane == Lane::Control { all } else { all - all / CONTROL_SHARE };
        let its = self.of.get(&client).copied().unwrap_or_default();
        let clients = self.of.len() + usize::from(its == 0);
        if self.flows() >= room {
            Some("it carries as many flows as it can")
        } else if its >= limits.flows_per_client_max {
            Some("this client has as many flows as one may have")
        } else if self.flows() >= all / 2 && lane != Lane::Control && its >= (all / clients).max(1) {
            Some("this client has its share of the flows")
        } else {
            None
        }
    }

    /// Counts another flow.
    pub(crate) fn enter(&mut self, client: IpAddr, lane: Lane) {
        *self.count(lane) += 1;
        *self.of.entry(client).or_default() += 1;
    }

    /// A flow has ended.
    pub(crate) fn leave(&mut self, client: IpAddr, lane: Lane) {
        let count = self.count(lane);
        *count = count.saturating_sub(1);
        if let Some(its) = self.of.get_mut(&client) {
            *its -= 1;
            if *its == 0 {
                self.of.remove(&client);
            }
        }
    }

    fn count(&mut self, lane: Lane) -> &mut usize {
        match lane {
            Lane::Control => &mut self.control,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn limits(flows_max: usize) -> Limits {
        Limits { flows_max, ..Limits::default() }
    }

    /// Lets a client in until it is refused; how often it was.
    fn fill(admission: &mut Admission, client: IpAddr, lane: Lane, limits: &Limits) -> usize {
        let mut entered = 0;
        while admission.refuses(client, lane, limits).is_none() {
            admission.enter(client, lane);
            entered += 1;
        }
        entered
    }

    #[test]
    fn links_for_control_find_room_where_bulk_finds_none() {
        let (mut admission, limits) = (Admission::default(), limits(64));
        assert_eq!(fill(&mut admission, A, Lane::Bulk, &limits), 56);
        assert_eq!(fill(&mut admission, B, Lane::Control, &limits), 8);
        assert!(admission.refuses(B, Lane::Bulk, &limits).is_some());
        admission.leave(A, Lane::Bulk);
        assert_eq!(fill(&mut admission, B, Lane::Control, &limits), 1);
        (0..55).for_each(|_| admission.leave(A, Lane::Bulk));
        (0..9).for_each(|_| admission.leave(B, Lane::Control));
        assert_eq!((admission.flows(), admission.of.len()), (0, 0));
    }

    #[test]
    fn each_client_has_its_share_of_the_last_half() {
        let (mut admission, limits) = (Admission::default(), limits(64));
        admission.enter(B, Lane::Bulk);
        assert_eq!(fill(&mut admission, A, Lane::Bulk, &limits), 32);
        assert_eq!(fill(&mut admission, B, Lane::Bulk, &limits), 23, "up to what is kept for control");
        let few = Limits { flows_per_client_max: 3, ..limits };
        let mut admission = Admission::default();
        assert_eq!(fill(&mut admission, A, Lane::Control, &few), 3);
        assert_eq!(fill(&mut admission, B, Lane::Bulk, &few), 3);
    }

    #[test]
    fn memory_is_never_more_than_the_budget() {
        for memory in [1 << 20, 64 << 20, 1 << 30, 2 << 30] {
            let limits = Limits { memory, flows_max: 100_000, ..Limits::default() };
            let all = limits.flows();
            for bulk in (0..=all).step_by(1 + all / 50) {
                let control = all - bulk;
                let needed = bulk * flow_memory(limits.buffer(bulk, control)) + control * flow_memory(BUFFER_MIN);
                assert!(needed <= memory || all == 1, "{memory}: {bulk} of {all} take {needed}");
            }
            assert!(limits.buffer(1, 0) <= BUFFER_MAX);
        }
        let roomy = Limits::default();
        assert_eq!(roomy.buffer(1, 0), BUFFER_MAX);
        assert!(roomy.buffer(1000, 0) < BUFFER_MAX);
    }
}
