//! Where clients reach the server, and by which of its cards they are answered.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_metrics::status::ListenStatus;
use aqueduct_net::{Interface, Peer, interfaces, socket};
use aqueduct_wire::ADDRESSES_MAX;
use aqueduct_worker::lock;
use socket2::Socket;

use crate::complaints::{Complaint, Complaints};
use crate::origin::Identity;

/// So long what this machine's interfaces are is not looked up again: thousands of clients may
/// come at once, and a machine may have thousands of interfaces.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// What this machine's interfaces were a moment ago.
type Known = Mutex<Option<(Instant, Arc<[Interface]>)>>;

/// How clients reach the server.
pub(crate) struct Reach {
    known: Known,
    complaints: Complaints,
}

impl Reach {
    pub(crate) fn new(complaints: Complaints) -> Reach {
        Reach { known: Known::default(), complaints }
    }

    fn look(&self) -> std::io::Result<Arc<[Interface]>> {
        let mut known = lock(&self.known);
        match &*known {
            Some((since, found)) if since.elapsed() < KNOWN_FOR => Ok(found.clone()),
            _ => {
                let found: Arc<[Interface]> = interfaces()?.into();
                *known = Some((Instant::now(), found.clone()));
                Ok(found)
            }
        }
    }

    fn interfaces(&self) -> Arc<[Interface]> {
        self.look().unwrap_or_else(|error| {
            let what = format_args!(
                "cannot tell this machine's network interfaces: {error}; clients are told of fewer addresses, and may be answered by another card than they chose"
            );
            self.complaints.tell(Identity::Server, Complaint::Exhausted, what);
            Arc::default()
        })
    }

    /// The addresses at which this client may reach the server too, of those listened on.
    pub(crate) fn addresses_for(&self, listened: &[SocketAddr], peer: Peer) -> Vec<SocketAddr> {
        let is_any = listened.iter().any(|address| address.ip().is_unspecified());
        let interfaces = if is_any { self.interfaces() } else { Arc::default() };
        addresses(listened, &interfaces, peer.is_near())
    }

    /// The same, each with its card.
    pub(crate) fn listens_for(&self, listened: &[SocketAddr], peer: Peer) -> Vec<ListenStatus> {
        let known = self.interfaces();
        let status = |address: SocketAddr| {
            let card = known.iter().find(|card| card.address == address.ip()).map(|card| card.name.clone());
            ListenStatus {
                address: address.to_string(),
                numa_node: card.as_deref().and_then(interfaces::numa_node),
                near_processors: card.as_deref().and_then(interfaces::near_cpus),
                interface: card,
            }
        };
        self.addresses_for(listened, peer).into_iter().map(status).collect()
    }

    /// Has a client be answered by the card by which it came.
    pub(crate) fn answer_where_it_came(&self, socket: &Socket, peer: Peer) {
        if peer.ip().is_none_or(|ip| ip.is_loopback()) {
            return;
        }
        if let Err(error) = socket::bind_to_arrival(socket, &self.interfaces()) {
            let what = format_args!(
                "cannot bind its connections to the card by which they come: {error}; all may be answered by one card of the subnet"
            );
            self.complaints.tell(peer, Complaint::Exhausted, what);
        }
    }
}

/// What to tell of these listeners: one of any address is reached at those of all interfaces. Of
/// those of loopback only who comes from there is told, and of them first.
fn addresses(listened: &[SocketAddr], interfaces: &[Interface], is_near: bool) -> Vec<SocketAddr> {
    let own = |any: &SocketAddr| {
        let (port, is_v4) = (any.port(), any.is_ipv4());
        let of_kind = interfaces.iter().filter(move |interface| interface.address.is_ipv4() == is_v4);
        of_kind.map(move |interface| SocketAddr::new(interface.address, port))
    };
    let mut told: Vec<SocketAddr> = Vec::new();
    for address in listened {
        let found = match address.ip().is_unspecified() {
            true => own(address).collect(),
            false => vec![*address],
        };
        for address in found {
            let is_meant = !is_link_local(address.ip()) && (is_near || !address.ip().is_loopback());
            if is_meant && !told.contains(&address) {
                told.push(address);
            }
        }
    }
    told.sort_by_key(|address| !address.ip().is_loopback());
    told.truncate(ADDRESSES_MAX);
    told
}

/// Whether an address means nothing away from its wire.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listened: &[&str], is_near: bool) -> Vec<String> {
        let of = |(name, address): (&str, &str)| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            prefix: 24,
            is_up: true,
        };
        let own = [("a", "10.0.0.1"), ("lo", "127.0.0.1"), ("a", "169.254.7.7"), ("b", "fd00::1"), ("lo", "::1")];
        let listened: Vec<SocketAddr> = listened.iter().map(|address| address.parse().unwrap()).collect();
        addresses(&listened, &own.map(of), is_near).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn any_address_is_told_as_those_of_the_interfaces() {
        assert_eq!(told(&["0.0.0.0:7"], false), ["10.0.0.1:7"]);
        assert_eq!(told(&["0.0.0.0:7", "[::]:8", "10.0.0.1:7"], false), ["10.0.0.1:7", "[fd00::1]:8"]);
        assert_eq!(told(&["[fe80::1]:8", "192.0.2.1:7"], false), ["192.0.2.1:7"], "it was asked for");
    }

    #[test]
    fn loopback_is_told_to_those_who_come_from_there() {
        assert_eq!(told(&["127.0.0.1:7", "127.0.0.2:7", "10.0.0.1:7"], false), ["10.0.0.1:7"]);
        assert_eq!(told(&["10.0.0.1:7", "127.0.0.2:7"], true), ["127.0.0.2:7", "10.0.0.1:7"]);
        assert_eq!(told(&["0.0.0.0:7"], true), ["127.0.0.1:7", "10.0.0.1:7"]);
    }

    #[test]
    fn no_more_are_told_than_a_client_takes() {
        let many: Vec<SocketAddr> = (0..100).map(|at| SocketAddr::new(IpAddr::from([10, 0, 0, at]), 7)).collect();
        assert_eq!(addresses(&many, &[], false), many[..ADDRESSES_MAX]);
    }
}
