//! An export as a session is given it.

use std::sync::Arc;

use aqueduct_fs::idmap::{IdMaps, Mapped};
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_fs::{ClientId, Context, Credential, FileSystem, Groups};
use aqueduct_wire::Caller;

use crate::access::{ANONYMOUS_ID, Rights, Squash};
use crate::export::Export;
use crate::origin::Origin;

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

    /// Whether its client is nobody only for want of a name.
    pub(crate) fn lacks_name(&self) -> bool {
        !self.is_own && self.export.access.lacks_name(self.rights)
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

    /// The credential with which a request is executed: the server's user for the client's, unless
    /// that one is squashed.
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
    use std::net::IpAddr;

    use aqueduct_fs::idmap::{IdMap, IdRange};
    use aqueduct_fs::synthetic::Synthetic;

    use super::*;
    use crate::access::Access;
    use crate::export::External;

    fn host(text: &str) -> Origin {
        Origin::anonymous(aqueduct_net::Peer::Network((text.parse::<IpAddr>().unwrap(), 1).into()))
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
