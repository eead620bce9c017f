//! By which interfaces and gateways packets go, as the kernel's tables and counters tell.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use aqueduct_net::interfaces::{self, Traffic};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// IP routers behind each other that are looked for.
const GATEWAYS_MAX: u32 = 8;

/// The kernel's next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    pub(super) interface: String,
    /// None where the address is in a subnet of this machine.
    pub(super) gateway: Option<Ipv4Addr>,
}

/// Where the kernel's main table sends what is for an address. `None`: it does not say (IPv6, no
/// route, or one that a rule finds).
pub(super) fn next_hop(remote: IpAddr) -> Option<NextHop> {
    let IpAddr::V4(remote) = remote.to_canonical() else { return None };
    longest(&std::fs::read_to_string("/proc/thread-self/net/route").ok()?, remote)
}

/// The line with the longest mask, and of those with the least metric: `interface destination
/// gateway flags - - metric mask`.
fn longest(table: &str, remote: Ipv4Addr) -> Option<NextHop> {
    let mut best: Option<(u32, u32, NextHop)> = None;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address =
            |at: usize| fields.get(at).and_then(|text| u32::from_str_radix(text, 16).ok()).map(u32::swap_bytes);
        let (Some(net), Some(gateway), Some(mask)) = (address(1), address(2), address(7)) else { continue };
        if u32::from(remote) & mask != net {
            continue;
        }
        let metric = fields[6].parse().unwrap_or(u32::MAX);
        if best
            .as_ref()
            .is_none_or(|(longest, least, _)| (mask, std::cmp::Reverse(metric)) > (*longest, std::cmp::Reverse(*least)))
        {
            let gateway = (gateway != 0).then(|| Ipv4Addr::from(gateway));
            best = Some((mask, metric, NextHop { interface: fields[0].to_owned(), gateway }));
        }
    }
    best.map(|(_, _, found)| found)
}

/// What each interface has carried.
pub(super) struct Carried(Vec<(String, Traffic)>);

impl Carried {
    /// So far.
    pub(super) fn so_far() -> Carried {
        let mut names: Vec<String> =
            interfaces::interfaces().unwrap_or_default().into_iter().map(|found| found.name).collect();
        names.sort();
        names.dedup();
        Carried(names.into_iter().filter_map(|name| Some((name.clone(), interfaces::traffic(&name)?))).collect())
    }

    /// By which other interface answers came since: `out` has not carried these bytes back, and
    /// it has.
    pub(super) fn came_elsewhere(&self, out: &str, bytes: u64) -> Option<String> {
        let now = Carried::so_far();
        let since = |name: &str| {
            let of = |all: &Carried| all.0.iter().find(|(other, _)| other == name).map(|(_, traffic)| traffic.received);
            Some(of(&now)?.saturating_sub(of(self)?))
        };
        if since(out)? >= bytes {
            return None;
        }
        now.0
            .iter()
            .map(|(name, _)| name)
            .find(|name| *name != out && since(name).is_some_and(|came| came >= bytes))
            .cloned()
    }
}

/// What became of a connection that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// The host has answered, if only that nobody listens.
    Answered,
    /// A router says that it may not go further.
    Expired,
    /// Nothing came.
    Silent,
}

/// Begins a connection whose packets may pass so many routers.
fn begin(remote: SocketAddr, routers: u32, timeout: Duration) -> io::Result<Begun> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    match remote {
        SocketAddr::V4(_) => socket.set_ttl_v4(routers + 1)?,
        SocketAddr::V6(_) => socket.set_unicast_hops_v6(routers + 1)?,
    }
    match socket.connect_timeout(&remote.into(), timeout) {
        Ok(()) => Ok(Begun::Answered),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::CONNREFUSED | Errno::CONNRESET) => Ok(Begun::Answered),
            Some(Errno::HOSTUNREACH) => Ok(Begun::Expired),
            _ if error.kind() == io::ErrorKind::TimedOut => Ok(Begun::Silent),
            _ => Err(error),
        },
    }
}

/// Looks how many routers let packets pass that do not arrive. Routers say so unless they are
/// told not to.
pub(super) fn reached(remote: SocketAddr, timeout: Duration) -> u32 {
    let passed = (0..GATEWAYS_MAX).take_while(|routers| matches!(begin(remote, *routers, timeout), Ok(Begun::Expired)));
    passed.count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
slow\t0002000A\t00000000\t0001\t0\t0\t9\t00FFFFFF\t0\t0\t0
fast\t0002000A\t0900000A\t0003\t0\t0\t1\t00FFFFFF\t0\t0\t0
broken line";

    #[test]
    fn the_longest_mask_counts_and_then_the_metric() {
        let hop = |remote: &str| {
            longest(TABLE, remote.parse().unwrap())
                .map(|hop| (hop.interface, hop.gateway.map(|gateway| gateway.to_string())))
        };
        assert_eq!(hop("8.8.8.8"), Some(("eth0".into(), Some("10.0.0.1".into()))));
        assert_eq!(hop("10.0.0.7"), Some(("eth0".into(), None)));
        assert_eq!(hop("10.0.2.7"), Some(("fast".into(), Some("10.0.0.9".into()))));
        assert_eq!(longest("", Ipv4Addr::LOCALHOST), None);
    }
}
