//! What a router counts: by route, by client and by network.

use std::time::Duration;

use aqueduct_metrics::table::{self, CLIENTS_MAX, ROUTES_MAX};
use aqueduct_metrics::{Absorb, Counter, Family, Gauge, Snapshot};

/// Of one route, client or network.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// From initiators, and to them.
    bytes: [Counter; 2],
    flows: Gauge,
    opened: Counter,
    refused: Counter,
    /// Nanoseconds for which there was no room, at initiators and at next hops.
    blocked: [Counter; 2],
}

impl Absorb for Traffic {
    fn absorb(&self, other: &Traffic) {
        for index in 0..2 {
            self.bytes[index].absorb(&other.bytes[index]);
            self.blocked[index].absorb(&other.blocked[index]);
        }
        self.opened.absorb(&other.opened);
        self.refused.absorb(&other.refused);
    }
}

/// A part of a router's counters, to be kept by who counts there.
#[derive(Debug)]
pub(crate) struct Series(aqueduct_metrics::Series<Traffic>);

impl Series {
    /// Bytes have gone from a side, for which the other had no room for so long.
    pub(crate) fn moved(&self, from: usize, bytes: u64, blocked: Duration) {
        self.0.bytes[from].add(bytes);
        if !blocked.is_zero() {
            self.0.blocked[1 - from].add(blocked.as_nanos() as u64);
        }
    }

    /// A flow has begun.
    pub(crate) fn begun(&self) {
        self.0.flows.add(1);
        self.0.opened.increment();
    }

    /// And ended.
    pub(crate) fn ended(&self) {
        self.0.flows.subtract(1);
    }

    /// A flow was not let in.
    pub(crate) fn refused(&self) {
        self.0.refused.increment();
    }
}

/// All of a router.
#[derive(Debug)]
pub(crate) struct Counters {
    of: [Family<Traffic>; 3],
    /// Has what is refused before it is known where it goes counted under its own name, though no
    /// flow has it.
    _none: [Series; 2],
}

/// The route and the network of a connection of which it is not known where it goes.
pub(crate) const NONE: &str = "none";

/// By what flows are counted.
const SCOPES: [&str; 3] = ["route", "client", "network"];

impl Default for Counters {
    fn default() -> Counters {
        let of = [ROUTES_MAX, CLIENTS_MAX, ROUTES_MAX].map(|limit| Family::new(limit, Traffic::default));
        let none = [&of[0], &of[2]].map(|family| Series(family.series(NONE)));
        Counters { of, _none: none }
    }
}

impl Counters {
    /// Where a flow of this route, client and network is counted.
    pub(crate) fn series(&self, names: [&str; 3]) -> [Series; 3] {
        let [route, client, network] = &self.of;
        [Series(route.series(names[0])), Series(client.series(names[1])), Series(network.series(names[2]))]
    }

    /// Puts them into a snapshot.
    pub(crate) fn collect(&self, into: &mut Snapshot) {
        for (scope, family) in SCOPES.into_iter().zip(&self.of) {
            family.for_each(|name, traffic| {
                for (way, bytes) in ["out", "back"].into_iter().zip(&traffic.bytes) {
                    into.put(&table::ROUTER_BYTES, &[scope, name, way], bytes);
                }
                into.put(&table::ROUTER_FLOWS, &[scope, name], &traffic.flows);
                into.put(&table::ROUTER_FLOWS_OPENED, &[scope, name], &traffic.opened);
                into.put(&table::ROUTER_FLOWS_REFUSED, &[scope, name], &traffic.refused);
                for (side, blocked) in ["initiator", "next"].into_iter().zip(&traffic.blocked) {
                    into.put(&table::ROUTER_BLOCKED_SECONDS, &[scope, name, side], blocked);
                }
            });
        }
    }
}
