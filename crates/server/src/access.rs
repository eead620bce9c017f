//! Who may attach what, and as whom: decided once for each session, by its export and by whom its
//! client is known to be.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aqueduct_fs::idmap::IdMaps;
use aqueduct_wire::NodeName;
use ipnet::IpNet;

use crate::origin::{Identity, Origin};

/// The user and group of nobody in particular, where Linux and NFS have them (the overflow ids of 16 bits).
pub const ANONYMOUS_ID: u32 = 65_534;

/// Which callers act as the anonymous user instead of as themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// None.
    None,
    /// Root: uid 0, and gid 0 wherever a caller has it.
    Root,
    /// Everybody.
    All,
}

impl Squash {
    /// As the configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            Squash::None => "none",
            Squash::Root => "root",
            Squash::All => "all",
        }
    }
}

/// An entry of a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Clients that come straight from there and have proved no name.
    Network(IpNet),
    /// The node that has proved this name, wherever it comes from.
    Node(NodeName),
    /// All nodes that have proved a name which begins so.
    Nodes(String),
}

/// What an entry begins with that names nodes.
const NODE_PREFIX: &str = "node:";

impl Host {
    /// The entry of a text that is a network (`10.0.0.0/8`), `node:NAME`, or `node:START*`;
    /// `None`: it is none of these.
    pub fn parse(text: &str) -> Option<Host> {
        let Some(name) = text.strip_prefix(NODE_PREFIX) else { return text.parse().map(Host::Network).ok() };
        let Some(start) = name.strip_suffix('*') else { return NodeName::new(name).map(Host::Node) };
        // What begins a name is one with another letter behind it.
        NodeName::new(&format!("{start}n")).map(|_| Host::Nodes(start.to_owned()))
    }

    /// Whether a client is meant.
    fn has(&self, identity: &Identity) -> bool {
        match (self, identity) {
            (Host::Network(net), Identity::Host(host)) => net.contains(host),
            // A mount of a loopback address comes over the Unix socket where it can: it has the
            // same place in lists.
            (Host::Network(net), Identity::User(_)) => {
                [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].iter().any(|own| net.contains(own))
            }
            (Host::Node(name), Identity::Node(node)) => name.as_str() == &**node,
            (Host::Nodes(start), Identity::Node(node)) => node.starts_with(start.as_str()),
            _ => false,
        }
    }

    /// Whether a client might be meant, whose address is not known if it is behind a router.
    fn may_have(&self, identity: &Identity) -> bool {
        match (self, identity) {
            (Host::Network(_), Identity::Behind(_)) => true,
            _ => self.has(identity),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Network(net) => net.fmt(f),
            Host::Node(name) => write!(f, "{NODE_PREFIX}{name}"),
            Host::Nodes(start) => write!(f, "{NODE_PREFIX}{start}*"),
        }
    }
}

/// What an export allows to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Only the volume's other servers may attach.
    pub members_only: bool,
    /// Who may attach; `None`: everybody.
    pub hosts: Option<Vec<Host>>,
    /// Who may attach and change nothing, whether `hosts` has them or not.
    pub read_only_hosts: Vec<Host>,
    /// `None`: root of other machines, and nobody of this one, whose root comes over a Unix
    /// socket.
    pub squash: Option<Squash>,
    /// As whom they act who may not act as themselves: ids of the server.
    pub anonymous_uid: u32,
    /// The same for groups.
    pub anonymous_gid: u32,
    /// Between the ids of clients and the server's, if they differ. Squashing comes after them.
    pub maps: Option<IdMaps>,
    /// Others instead, for some clients: the first that has a client counts. A client without a
    /// name that comes by a router is nobody where any of them has networks: it may be of one.
    pub host_maps: Vec<HostMaps>,
}

/// How the ids of some clients become the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMaps {
    /// Whose.
    pub hosts: Vec<Host>,
    /// `None`: they are the same on both sides.
    pub maps: Option<IdMaps>,
}

impl Default for Access {
    fn default() -> Access {
        Access {
            members_only: false,
            hosts: None,
            read_only_hosts: Vec::new(),
            squash: None,
            anonymous_uid: ANONYMOUS_ID,
            anonymous_gid: ANONYMOUS_ID,
            maps: None,
            host_maps: Vec::new(),
        }
    }
}

/// What one client may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read_only: bool,
    pub(crate) squash: Squash,
    /// Which of the maps for some clients; `None`: those of the export.
    pub(crate) host_maps: Option<usize>,
}

impl Access {
    /// What a client may do; `None`: nothing, not even attach.
    pub(crate) fn rights(&self, origin: &Origin) -> Option<Rights> {
        if self.members_only && !origin.is_member {
            return None;
        }
        let identity = origin.identity();
        let among = |hosts: &[Host]| hosts.iter().any(|host| host.has(&identity));
        let listed = among(&self.read_only_hosts);
        let may_attach = listed || self.hosts.as_deref().is_none_or(among);
        // Where no list names who may change something, a name takes away no limit that its
        // address has.
        let by_address = || self.read_only_hosts.iter().any(|host| host.may_have(&origin.peer.into()));
        let read_only = listed || (self.hosts.is_none() && by_address());
        let usual = if origin.is_local() { Squash::None } else { Squash::Root };
        let host_maps = self.host_maps.iter().position(|of| among(&of.hosts));
        let squash = match host_maps.is_none() && self.may_have_maps(&identity) {
            true => Squash::All,
            false => self.squash.unwrap_or(usual),
        };
        may_attach.then_some(Rights { read_only, squash, host_maps })
    }

    /// Whether some of the maps for some clients may be meant for one, and nobody knows which: with
    /// its own ids, or by the maps of others, it would act as users that are not its own.
    fn may_have_maps(&self, identity: &Identity) -> bool {
        self.host_maps.iter().flat_map(|of| &of.hosts).any(|host| host.may_have(identity))
    }

    /// Whether who has these rights is nobody only since he may have proved to be somebody.
    pub(crate) fn lacks_name(&self, rights: Rights) -> bool {
        rights.squash == Squash::All && self.squash != Some(Squash::All)
    }

    /// The maps of who has these rights.
    pub(crate) fn maps(&self, rights: Rights) -> Option<&IdMaps> {
        match rights.host_maps {
            Some(at) => self.host_maps[at].maps.as_ref(),
            None => self.maps.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<Host> {
        texts.iter().map(|text| Host::parse(text).unwrap()).collect()
    }

    fn host(text: &str) -> Origin {
        Origin::anonymous(aqueduct_net::Peer::Network((text.parse::<IpAddr>().unwrap(), 1).into()))
    }

    fn process(uid: u32) -> Origin {
        Origin::anonymous(aqueduct_net::Peer::Process { uid, pid: 1 })
    }

    fn rights(access: &Access, text: &str) -> Option<(bool, Squash)> {
        access.rights(&host(text)).map(|rights| (rights.read_only, rights.squash))
    }

    #[test]
    fn without_a_word_everybody_may_and_only_root_of_this_machine_is_root() {
        let access = Access::default();
        let own = rustix::process::geteuid().as_raw();
        for (uid, squash) in [(0, Squash::None), (own, Squash::None), (own + 7, Squash::Root)] {
            let rights = access.rights(&process(uid)).unwrap();
            assert_eq!((rights.read_only, rights.squash), (false, squash), "{uid}");
        }
        // What a forwarder on this machine passes on comes from a loopback address, whoever sent
        // it.
        for host in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "0.0.0.0"] {
            assert_eq!(rights(&access, host), Some((false, Squash::Root)), "{host}");
        }
        for squash in [Squash::None, Squash::Root, Squash::All] {
            let access = Access { squash: Some(squash), ..Access::default() };
            assert_eq!(rights(&access, "127.0.0.1"), Some((false, squash)));
            assert_eq!(rights(&access, "10.0.0.1"), Some((false, squash)));
        }
    }

    #[test]
    fn what_is_the_members_is_nobody_elses() {
        let access = Access { members_only: true, hosts: Some(nets(&["10.0.0.0/8"])), ..Access::default() };
        let named = Origin { node: Some("head".into()), ..host("10.0.0.1") };
        for other in [host("10.0.0.1"), named, process(0)] {
            assert_eq!(access.rights(&other), None, "{other}");
        }
        let member = |address| Origin { is_member: true, ..host(address) };
        assert!(access.rights(&member("10.0.0.1")).is_some());
        assert_eq!(access.rights(&member("11.0.0.1")), None, "the lists hold for them as well");
        assert!(Access::default().rights(&member("11.0.0.1")).is_some());
    }

    #[test]
    fn hosts_are_as_the_lists_say() {
        let access = Access {
            hosts: Some(nets(&["10.0.0.0/8", "2001:db8::/32"])),
            read_only_hosts: nets(&["10.1.0.0/16", "192.0.2.7/32"]),
            ..Access::default()
        };
        for (host, read_only) in [
            ("10.0.0.1", Some(false)),
            ("::ffff:10.0.0.1", Some(false)),
            ("10.1.2.3", Some(true)),
            ("::ffff:10.1.2.3", Some(true)),
            ("192.0.2.7", Some(true)),
            ("192.0.2.8", None),
            ("11.0.0.1", None),
            ("127.0.0.1", None),
            ("2001:db8:1::5", Some(false)),
            ("2001:db9::1", None),
        ] {
            assert_eq!(rights(&access, host).map(|(read_only, _)| read_only), read_only, "{host}");
        }
        assert_eq!(access.rights(&process(0)), None);
        let nobody = Access { hosts: Some(Vec::new()), ..Access::default() };
        assert_eq!((rights(&nobody, "127.0.0.1"), nobody.rights(&process(0))), (None, None));
        // A list with this machine's loopback address has who comes by its socket.
        for own in ["127.0.0.0/8", "::1/128"] {
            let near = Access { hosts: Some(nets(&[own])), ..Access::default() };
            assert!(near.rights(&process(0)).is_some() && near.rights(&process(12)).is_some(), "{own}");
        }
    }

    #[test]
    fn behind_a_router_an_address_opens_nothing_and_its_limits_stand() {
        let routed = |access: &Access, node: Option<&str>| {
            let peer = host("10.0.0.1").peer.behind_router();
            let origin = Origin { node: node.map(Arc::from), ..Origin::anonymous(peer) };
            access.rights(&origin).map(|rights| (rights.read_only, rights.squash))
        };
        assert_eq!(routed(&Access::default(), None), Some((false, Squash::Root)));
        let own = Origin::anonymous(process(0).peer.behind_router());
        assert_eq!(Access::default().rights(&own).map(|rights| rights.squash), Some(Squash::Root));
        let listed = Access { hosts: Some(nets(&["10.0.0.0/8", "0.0.0.0/0", "node:gpu*"])), ..Access::default() };
        assert_eq!((routed(&listed, None), routed(&listed, Some("cpu1"))), (None, None));
        assert_eq!(routed(&listed, Some("gpu1")), Some((false, Squash::Root)));
        // Nobody knows whether it is the one that may change nothing.
        let limited = Access { read_only_hosts: nets(&["192.0.2.7/32"]), ..Access::default() };
        assert_eq!(routed(&limited, None).map(|rights| rights.0), Some(true));
    }

    #[test]
    fn who_may_be_of_a_mapped_network_acts_as_nobody_of_it() {
        let map = |server| {
            aqueduct_fs::idmap::IdMap::new(&[aqueduct_fs::idmap::IdRange { client: 1000, server, count: 1 }], None)
        };
        let of = |host: &str, server| HostMaps {
            hosts: nets(&[host]),
            maps: Some(IdMaps { users: map(server).unwrap(), ..IdMaps::default() }),
        };
        let rights = |access: &Access, node: Option<&str>, is_routed: bool| {
            let peer = host("10.0.0.1").peer;
            let peer = if is_routed { peer.behind_router() } else { peer };
            let rights = access.rights(&Origin { node: node.map(Arc::from), ..Origin::anonymous(peer) }).unwrap();
            (rights.squash, rights.host_maps, access.lacks_name(rights))
        };
        let trusted = Access { squash: Some(Squash::None), ..Access::default() };
        let access = Access { host_maps: vec![of("node:gpu*", 7), of("10.0.0.0/8", 8)], ..trusted.clone() };
        assert_eq!(rights(&access, None, false), (Squash::None, Some(1), false));
        assert_eq!(rights(&access, None, true), (Squash::All, None, true), "not as itself");
        for is_routed in [false, true] {
            assert_eq!(rights(&access, Some("gpu1"), is_routed), (Squash::None, Some(0), false));
            assert_eq!(rights(&access, Some("cpu1"), is_routed), (Squash::None, None, false), "none of them");
        }
        let by_name = Access { host_maps: vec![of("node:gpu*", 7)], ..trusted };
        assert_eq!(rights(&by_name, None, true), (Squash::None, None, false), "it is none of them");
    }

    #[test]
    fn a_node_is_known_by_its_name_and_not_by_its_address() {
        let access = Access {
            hosts: Some(nets(&["10.0.0.0/8", "node:gpu*", "node:head"])),
            read_only_hosts: nets(&["10.1.0.0/16", "node:gpu9"]),
            ..Access::default()
        };
        let of = |name: &str, address: &str| {
            let origin = Origin { node: Some(name.into()), ..host(address) };
            access.rights(&origin).map(|rights| rights.read_only)
        };
        for (name, read_only) in
            [("gpu1", Some(false)), ("gpu", Some(false)), ("gpu9", Some(true)), ("head", Some(false)), ("head2", None)]
        {
            for address in ["10.0.0.1", "10.1.2.3", "192.0.2.1"] {
                assert_eq!(of(name, address), read_only, "{name} from {address}");
            }
        }
        // A name that no list has is no way around a limit of its address.
        let limited = Access { hosts: None, ..access.clone() };
        let named = |address| limited.rights(&Origin { node: Some("new".into()), ..host(address) });
        assert_eq!(["10.1.2.3", "192.0.2.1"].map(|address| named(address).unwrap().read_only), [true, false]);
        // Root of this machine is that with or without a name.
        let named = Origin { node: Some("head".into()), ..process(0) };
        assert_eq!(access.rights(&named).map(|rights| rights.squash), Some(Squash::None));
        for text in ["node:", "node:a b", "node:*b", "node:-*", "node", "10.0.0.0/40"] {
            assert_eq!(Host::parse(text), None, "{text}");
        }
        for text in ["node:a.b-c", "node:a*", "node:*", "10.0.0.0/8"] {
            assert_eq!(Host::parse(text).unwrap().to_string(), text);
        }
    }
}
