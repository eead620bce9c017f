//! Who may attach what, and as whom: decided once for each session, by its export and the address that it came from.

use std::net::IpAddr;
use std::sync::Arc;

use aqueduct_fs::idmap::IdMaps;
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_fs::{ClientId, Context, Credential, FileSystem, Groups};
use aqueduct_wire::Caller;
use ipnet::IpNet;

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

/// What an export allows to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who may attach; `None`: everybody.
    pub hosts: Option<Vec<IpNet>>,
    /// Who may attach and change nothing, whether `hosts` has them or not.
    pub read_only_hosts: Vec<IpNet>,
    /// `None`: root of other machines, and nobody of this one (loopback addresses).
    pub squash: Option<Squash>,
    /// As whom they act who may not act as themselves: ids of the server.
    pub anonymous_uid: u32,
    /// The same for groups.
    pub anonymous_gid: u32,
    /// Between the ids of clients and the server's, if they differ. Squashing comes after them.
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
        }
    }
}

/// What one host may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read_only: bool,
    pub(crate) squash: Squash,
}

impl Access {
    /// What a host may do; `None`: nothing, not even attach.
    pub(crate) fn rights(&self, host: IpAddr) -> Option<Rights> {
        // An IPv4 client of a socket for both is shown as an IPv6 address.
        let host = host.to_canonical();
        let among = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&host));
        let read_only = among(&self.read_only_hosts);
        let may_attach = read_only || self.hosts.as_deref().is_none_or(among);
        let usual = if host.is_loopback() { Squash::None } else { Squash::Root };
        may_attach.then(|| Rights { read_only, squash: self.squash.unwrap_or(usual) })
    }
}

/// An export as one session has it.
pub(crate) struct Attached {
    pub(crate) export: Arc<Export>,
    pub(crate) filesystem: Arc<dyn FileSystem>,
    rights: Rights,
    anonymous: Credential,
}

impl Attached {
    /// What a host gets; `None`: nothing.
    pub(crate) fn new(export: &Arc<Export>, host: IpAddr) -> Option<Attached> {
        let access = &export.access;
        let rights = access.rights(host)?;
        let filesystem = export.filesystem.clone();
        Some(Attached {
            filesystem: if rights.read_only { Arc::new(ReadOnly(filesystem)) } else { filesystem },
            rights,
            anonymous: Credential {
                uid: access.anonymous_uid,
                gid: access.anonymous_gid,
                groups: Groups::Known([].into()),
            },
            export: export.clone(),
        })
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.export.read_only || self.rights.read_only
    }

    pub(crate) fn squash(&self) -> Squash {
        self.rights.squash
    }

    /// Whether a host has the rights that the session was given; `None`: it has none at all.
    pub(crate) fn suits(&self, host: IpAddr) -> Option<bool> {
        self.export.access.rights(host).map(|rights| rights == self.rights)
    }

    /// As whom a request is executed: the server's user for the client's, unless that one is squashed.
    pub(crate) fn context(&self, client: ClientId, caller: Caller) -> Context {
        let credential = match &self.export.access.maps {
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

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn rights(access: &Access, host: &str) -> Option<(bool, Squash)> {
        access.rights(host.parse().unwrap()).map(|rights| (rights.read_only, rights.squash))
    }

    #[test]
    fn without_a_word_everybody_may_and_only_root_of_this_machine_is_root() {
        let access = Access::default();
        for host in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(rights(&access, host), Some((false, Squash::None)), "{host}");
        }
        for host in ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "fe80::1", "0.0.0.0", "::"] {
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
        let nobody = Access { hosts: Some(Vec::new()), ..Access::default() };
        assert_eq!(rights(&nobody, "127.0.0.1"), None);
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
        Attached::new(&Arc::new(export), "10.0.0.1".parse().unwrap()).unwrap()
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
