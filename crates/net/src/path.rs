//! The way of a connection: from where on this machine to which address, and which such ways two
//! machines have.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use aqueduct_wire::{Lane, NetworkName, Target};

use crate::blocking::Link;
use crate::initiator::{Initiator, RouteError};
use crate::interfaces::{Interface, nearest};
use crate::peer::Address;
use crate::socket::{self, ConnectError, Local};

/// The way of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// From where.
    pub local: Local,
    /// To where.
    pub remote: Address,
    /// By routers to the network of this name, in which the remote address is; else straight.
    pub via: Option<NetworkName>,
    /// The router that is asked first, unless it is known to fail.
    pub by: Option<SocketAddr>,
}

impl From<Address> for Path {
    fn from(remote: Address) -> Path {
        Path { local: Local::default(), remote, via: None, by: None }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.local != Local::default() {
            write!(f, "{}/", self.local)?;
        }
        self.remote.fmt(f)?;
        self.via.iter().try_for_each(|network| write!(f, "@{network}"))?;
        self.by.iter().try_for_each(|gateway| write!(f, " by {gateway}"))
    }
}

/// Why a connection over a path could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// This machine cannot begin it there: it has no such interface or address.
    #[error("cannot connect from {local}: {source}")]
    Local {
        /// Which.
        local: Local,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers at the remote address.
    #[error("{0}")]
    Connect(io::Error),
    /// No router leads there.
    #[error(transparent)]
    Route(#[from] RouteError),
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> DialError {
        match error {
            ConnectError::Local { local, source } => DialError::Local { local, source },
            ConnectError::Remote(source) => DialError::Connect(source),
        }
    }
}

impl From<DialError> for io::Error {
    fn from(error: DialError) -> io::Error {
        match error {
            DialError::Connect(source) => source,
            DialError::Local { local, source } => ConnectError::Local { local, source }.into(),
            DialError::Route(source) => source.into(),
        }
    }
}

/// Connects over a path within `timeout`: straight, or as an initiator by its routers. Those have
/// to know for what.
pub fn dial(path: &Path, initiator: Option<&Initiator>, lane: Lane, timeout: Duration) -> Result<Link, DialError> {
    match (&path.via, &path.remote) {
        (Some(network), Address::Tcp(address)) => {
            let target = Target::Address { network: network.clone(), address: *address };
            let none = || RouteError::NoWay(format!("no routes are known here, and none to network {network}"));
            Ok(initiator.ok_or_else(none)?.connect((&path.local, path.by), &target, lane, timeout)?)
        }
        _ => Ok(socket::connect_from(&path.local, &path.remote, timeout)?.into()),
    }
}

/// The most ways between two machines that are used at once. Each takes connections of each
/// worker.
pub const PATHS_MAX: usize = 8;

/// The ways from these interfaces to the addresses of one server: in each subnet that they share,
/// as many as the side has that has more. None leads out of its subnet. An interface is used in
/// the first subnet alone in which it reaches a remote, since the second is on the same wire; but
/// for loopback, which is none. Remotes that stand for any address are none.
pub fn pairs(interfaces: &[Interface], remotes: &[SocketAddr]) -> Vec<Path> {
    let mut remotes: Vec<SocketAddr> = remotes.to_vec();
    remotes.retain(|remote| !remote.ip().is_unspecified() && remote.port() != 0);
    let mut paths: Vec<Path> = Vec::new();
    let mut done: Vec<Vec<&Interface>> = Vec::new();
    for remote in &remotes {
        let locals = nearest(interfaces, remote.ip());
        if locals.is_empty() || done.contains(&locals) {
            continue;
        }
        let beside: Vec<&SocketAddr> =
            remotes.iter().filter(|other| nearest(interfaces, other.ip()) == locals).collect();
        let is_used =
            |local: &&Interface| done.iter().flatten().any(|used| used.name == local.name && !used.is_loopback());
        let free: Vec<&Interface> = locals.iter().copied().filter(|local| !is_used(local)).collect();
        for index in 0..free.len().max(beside.len()) {
            let Some(interface) = free.get(index % free.len().max(1)) else { break };
            // Among several in one subnet, only the interface says by which wire.
            let bound = (locals.len() > 1).then(|| interface.name.clone());
            let local = Local { interface: bound, address: Some(interface.address) };
            let path = Path { local, ..Address::Tcp(*beside[index % beside.len()]).into() };
            if paths.len() < PATHS_MAX && !paths.contains(&path) {
                paths.push(path);
            }
        }
        done.push(locals);
    }
    paths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface(name: &str, address: &str, prefix: u8) -> Interface {
        Interface { name: name.into(), address: address.parse().unwrap(), prefix, is_up: true }
    }

    fn shown(interfaces: &[Interface], remotes: &[&str]) -> Vec<String> {
        let remotes: Vec<SocketAddr> = remotes.iter().map(|remote| remote.parse().unwrap()).collect();
        pairs(interfaces, &remotes).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn cards_of_one_subnet_each_are_paired() {
        let own = [interface("a", "10.0.0.1", 24), interface("b", "10.0.1.1", 24)];
        assert_eq!(
            shown(&own, &["10.0.0.9:1", "10.0.1.9:1"]),
            ["10.0.0.1/10.0.0.9:1", "10.0.1.1/10.0.1.9:1"],
            "the subnet says by which interface"
        );
        assert_eq!(shown(&own, &["10.0.1.9:1"]), ["10.0.1.1/10.0.1.9:1"]);
        assert!(shown(&own, &["10.0.2.9:1", "0.0.0.0:1"]).is_empty());
    }

    #[test]
    fn cards_of_one_subnet_are_each_bound() {
        let own = [interface("a", "10.0.0.1", 24), interface("b", "10.0.0.2", 24)];
        assert_eq!(shown(&own, &["10.0.0.9:1", "10.0.0.8:1"]), ["a/10.0.0.9:1", "b/10.0.0.8:1"]);
        assert_eq!(shown(&own, &["10.0.0.9:1"]), ["a/10.0.0.9:1", "b/10.0.0.9:1"]);
        assert_eq!(shown(&own[..1], &["10.0.0.9:1", "10.0.0.8:1"]), ["10.0.0.1/10.0.0.9:1", "10.0.0.1/10.0.0.8:1"]);
    }

    #[test]
    fn a_wire_is_used_once_whatever_addresses_it_has() {
        let own = [interface("a", "10.0.0.1", 24), interface("a", "10.0.0.2", 24), interface("a", "fd00::1", 64)];
        assert_eq!(shown(&own, &["10.0.0.9:1", "[fd00::9]:1"]), ["10.0.0.1/10.0.0.9:1"]);
        let wide = [interface("a", "10.0.0.1", 16), interface("b", "10.0.1.1", 24)];
        assert_eq!(shown(&wide, &["10.0.1.9:1", "10.0.0.9:1"]), ["10.0.1.1/10.0.1.9:1", "10.0.0.1/10.0.0.9:1"]);
    }

    #[test]
    fn addresses_of_loopback_are_wires_of_their_own() {
        let own = [interface("lo", "127.0.0.1", 8), interface("lo", "::1", 128)];
        assert_eq!(
            shown(&own, &["127.0.0.1:7", "127.0.0.2:7", "[::1]:7"]),
            ["127.0.0.1/127.0.0.1:7", "127.0.0.1/127.0.0.2:7", "::1/[::1]:7"]
        );
    }

    #[test]
    fn a_path_from_nowhere_is_the_fault_of_this_side() {
        let local = Local { interface: None, address: Some("192.0.2.1".parse().unwrap()) };
        let path = Path { local, ..Address::Tcp("127.0.0.1:1".parse().unwrap()).into() };
        let result = dial(&path, None, Lane::Bulk, Duration::from_secs(1));
        assert!(matches!(result, Err(DialError::Local { .. })));
        let path = Path::from(Address::Tcp("127.0.0.1:1".parse().unwrap()));
        assert!(matches!(dial(&path, None, Lane::Bulk, Duration::from_secs(1)), Err(DialError::Connect(_))));
    }

    #[test]
    fn an_interface_that_is_down_leads_nowhere() {
        let own = [Interface { is_up: false, ..interface("a", "10.0.0.1", 24) }];
        assert!(shown(&own, &["10.0.0.9:1"]).is_empty());
    }

    proptest! {
        #[test]
        fn pairs_share_a_subnet_and_every_interface_that_can_is_used(
            own in proptest::collection::vec((0u8..4, 1u8..250, 20u8..=24), 0..6),
            remotes in proptest::collection::vec((0u8..4, 1u8..250), 0..6),
        ) {
            let own: Vec<Interface> = own
                .iter()
                .enumerate()
                .map(|(index, (net, host, prefix))| interface(&format!("i{index}"), &format!("10.0.{net}.{host}"), *prefix))
                .collect();
            let remotes: Vec<SocketAddr> =
                remotes.iter().map(|(net, host)| format!("10.0.{net}.{host}:7").parse().unwrap()).collect();
            let paths = pairs(&own, &remotes);
            prop_assert!(paths.len() <= PATHS_MAX);
            for path in &paths {
                let Address::Tcp(remote) = path.remote else { panic!("{path}") };
                let local = path.local.address.unwrap();
                prop_assert!(own.iter().any(|own| own.address == local && own.reaches(remote.ip())));
            }
            let reached = |own: &Interface| remotes.iter().any(|remote| nearest(std::slice::from_ref(own), remote.ip()).contains(&own));
            for each in own.iter().filter(|each| paths.len() < PATHS_MAX && reached(each)) {
                let nearer = |remote: &SocketAddr| !nearest(&own, remote.ip()).iter().any(|near| near.name == each.name);
                let is_used = paths.iter().any(|path| path.local.address == Some(each.address));
                prop_assert!(is_used || remotes.iter().filter(|remote| each.reaches(remote.ip())).all(nearer), "{each:?}");
            }
            let wires: std::collections::HashSet<_> = paths.iter().collect();
            prop_assert_eq!(wires.len(), paths.len());
        }
    }
}
