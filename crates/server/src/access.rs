//! Who may attach what, and as whom: decided once for each session, by its export and by whom its
//! client is known to be.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use aqueduct_fs::idmap::{IdMaps, Mapped};
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_fs::{ClientId, Context, Credential, FileSystem, Groups};
use aqueduct_wire::{Caller, NodeName};
use ipnet::IpNet;

use crate::origin::{Identity, Origin};
use crate::server::Export;

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
    /// Others instead, for some clients: the first that has a client counts.
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
    host_maps: Option<usize>,
}

impl Access {
    /// What a client may do; `None`: nothing, not even attach.
    pub(crate) fn rights(&self, origin: &Origin) -> Option<Rights> {
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
        may_attach.then(|| Rights { read_only, squash: self.squash.unwrap_or(usual), host_maps })
    }

    fn maps(&self, rights: Rights) -> Option<&IdMaps> {
        match rights.host_maps {
            Some(at) => self.host_maps[at].maps.as_ref(),
            None => self.maps.as_ref(),
        }
    }
}

/// An export as one session has it.
pub(crate) struct Attached {
    pub(crate) export: Arc<Export>,
    pub(crate) filesystem: Arc<dyn FileSystem>,
    rights: Rights,
    anonymous: Credential,
    /// It is this process that has it.
    is_own: bool,
}

impl Attached {
    /// What a client gets; `None`: nothing.
    pub(crate) fn new(export: &Arc<Export>, origin: &Origin) -> Option<Attached> {
        let access = &export.access;
        let rights = access.rights(origin)?;
        let below = export.filesystem.clone();
        let filesystem: Arc<dyn FileSystem> = match access.maps(rights) {
            Some(maps) => Arc::new(Mapped { below, maps: maps.clone() }),
            None => below,
        };
        Some(Attached {
            filesystem: if rights.read_only { Arc::new(ReadOnly(filesystem)) } else { filesystem },
            rights,
            anonymous: Credential {
                uid: access.anonymous_uid,
                gid: access.anonymous_gid,
                groups: Groups::Known([].into()),
            },
            export: export.clone(),
            is_own: false,
        })
    }

    /// What this process itself gets, which has looked at what others may before it acts for them.
    pub(crate) fn of_own(export: &Arc<Export>) -> Attached {
        Attached {
            filesystem: export.filesystem.clone(),
            rights: Rights { read_only: false, squash: Squash::None, host_maps: None },
            anonymous: Credential { uid: ANONYMOUS_ID, gid: ANONYMOUS_ID, groups: Groups::Known([].into()) },
            export: export.clone(),
            is_own: true,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.export.read_only || self.rights.read_only
    }

    pub(crate) fn squash(&self) -> Squash {
        self.rights.squash
    }

    /// Between its client's ids and the server's, if they differ.
    pub(crate) fn maps(&self) -> Option<&IdMaps> {
        if self.is_own { None } else { self.export.access.maps(self.rights) }
    }

    /// Whether a client has the rights that the session was given.
    pub(crate) fn suits(&self, origin: &Origin) -> bool {
        match self.is_own {
            true => origin.is_this_process(),
            false => self.export.access.rights(origin) == Some(self.rights),
        }
    }

    /// As whom a request is executed: the server's user for the client's, unless that one is squashed.
    pub(crate) fn context(&self, client: ClientId, caller: Caller) -> Context {
        let credential = match self.maps() {
            Some(maps) => maps.credential(caller.credential),
            None => caller.credential,
        };
        let credential = match self.rights.squash {
            Squash::None => credential,
            Squash::Root => self.without_root(credential),
            Squash::All => self.anonymous.clone(),
        };
        Context { pid: caller.pid, ..Context::new(client, credential) }
    }

    fn without_root(&self, credential: Credential) -> Credential {
        let Credential { uid: anonymous_uid, gid: anonymous_gid, .. } = self.anonymous;
        let group = |gid: u32| if gid == 0 { anonymous_gid } else { gid };
        Credential {
            uid: if credential.uid == 0 { anonymous_uid } else { credential.uid },
            gid: group(credential.gid),
            groups: match credential.groups {
                Groups::Known(groups) if groups.contains(&0) => {
                    Groups::Known(groups.iter().map(|gid| group(*gid)).collect())
                }
                Groups::Resolve => Groups::ResolveSquashed(anonymous_gid),
                groups => groups,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_fs::idmap::{IdMap, IdRange};
    use aqueduct_fs::synthetic::Synthetic;

    use super::*;
    use crate::outside::External;

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
            let origin = Origin { node: node.map(Arc::from), peer };
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

    fn attached(access: Access) -> Attached {
        let filesystem = Arc::new(Synthetic { size: 0 });
        let (name, path) = ("e".to_owned(), String::new());
        let export = Export {
            name,
            id: 1,
            filesystem,
            read_only: false,
            path,
            access,
            durable: false,
            external: External::None,
        };
        Attached::new(&Arc::new(export), &host("10.0.0.1")).unwrap()
    }

    fn acts_as(attached: &Attached, uid: u32, gid: u32, groups: Groups) -> (u32, u32, Groups) {
        let caller = Caller { credential: Credential { uid, gid, groups }, pid: 9 };
        let context = attached.context(ClientId(3), caller);
        assert_eq!((context.client, context.pid), (ClientId(3), 9));
        (context.credential.uid, context.credential.gid, context.credential.groups)
    }

    fn known(groups: &[u32]) -> Groups {
        Groups::Known(groups.into())
    }

    #[test]
    fn root_is_nobody_wherever_it_stands() {
        let remote = attached(Access { anonymous_uid: 71, anonymous_gid: 72, ..Access::default() });
        assert_eq!(acts_as(&remote, 0, 0, known(&[0, 5, 0])), (71, 72, known(&[72, 5, 72])));
        assert_eq!(acts_as(&remote, 1000, 0, known(&[])), (1000, 72, known(&[])));
        assert_eq!(acts_as(&remote, 1000, 100, known(&[7])), (1000, 100, known(&[7])));
        assert_eq!(acts_as(&remote, 1000, 100, Groups::Resolve), (1000, 100, Groups::ResolveSquashed(72)));
        let trusted = attached(Access { squash: Some(Squash::None), ..Access::default() });
        assert_eq!(acts_as(&trusted, 0, 0, known(&[0])), (0, 0, known(&[0])));
        assert_eq!(acts_as(&trusted, 0, 0, Groups::Resolve), (0, 0, Groups::Resolve));
        let all = attached(Access { squash: Some(Squash::All), anonymous_gid: 72, ..Access::default() });
        for groups in [known(&[0, 5]), Groups::Resolve] {
            assert_eq!(acts_as(&all, 1000, 100, groups), (ANONYMOUS_ID, 72, known(&[])));
        }
    }

    #[test]
    fn squashing_is_about_the_servers_root() {
        let map = |client, server| IdMap::new(&[IdRange { client, server, count: 1 }], None).unwrap();
        let maps = |client, server| IdMaps { users: map(client, server), groups: map(client, server) };
        let away = attached(Access { maps: Some(maps(0, 100_000)), ..Access::default() });
        assert_eq!(acts_as(&away, 0, 0, known(&[0])), (100_000, 100_000, known(&[100_000])));
        let to_root = attached(Access { maps: Some(maps(1000, 0)), ..Access::default() });
        assert_eq!(acts_as(&to_root, 1000, 1000, known(&[1000])), (ANONYMOUS_ID, ANONYMOUS_ID, known(&[ANONYMOUS_ID])));
        assert_eq!(acts_as(&to_root, 0, 0, known(&[0])), (ANONYMOUS_ID, ANONYMOUS_ID, known(&[ANONYMOUS_ID])));
    }
}
