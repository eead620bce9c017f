//! What a server does besides answering for its files, if it is an agent: it makes copies for
//! clients, as whom and where its exports let them.

use std::sync::Arc;

use aqueduct_fs::{ClientId, Credential, Groups};
use aqueduct_wire::Caller;

use crate::attached::Attached;
use crate::export::Export;
use crate::origin::Origin;

/// What makes copies. Its answers come at once: the work is done elsewhere.
pub trait Mover: Send + Sync {
    /// Answers a client: text (JSON) for text.
    fn ask(&self, submitter: &Submitter<'_>, text: &str) -> String;

    /// What nobody but this process knows: what stands before the name of an export when this
    /// process itself attaches it, by a Unix socket. Many letters, made at random.
    fn token(&self) -> &str;
}

/// A client that asks for a copy.
pub struct Submitter<'a> {
    pub(crate) exports: &'a [Arc<Export>],
    pub(crate) origin: &'a Origin,
    pub(crate) caller: Caller,
}

/// What a client may do with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The name of the export that the path is, or is below.
    pub export: String,
    /// As whom, at this server.
    pub credential: Credential,
    /// It may change nothing.
    pub read_only: bool,
}

/// Why a client may do nothing with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No export has it.
    #[error("no export of this agent has it")]
    NoExport,
    /// The export is not for this client.
    #[error("its export is not for this machine")]
    NotForYou,
    /// The client's users have other numbers here.
    #[error("its export has other numbers for this machine's users, which an agent does not translate")]
    Mapped,
}

impl Submitter<'_> {
    /// The user, as the client says.
    pub fn uid(&self) -> u32 {
        self.caller.credential.uid
    }

    /// Who it is, for logs and to keep clients apart.
    pub fn origin(&self) -> String {
        self.origin.identity().to_string()
    }

    /// Whether it is on this machine.
    pub fn is_near(&self) -> bool {
        self.origin.peer.is_near()
    }

    /// What it may do with a path.
    pub fn at(&self, path: &str) -> Result<Allowed, Denied> {
        let is_above = |export: &&Arc<Export>| {
            let rest = path.strip_prefix(export.name.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let export = self.exports.iter().filter(is_above).max_by_key(|export| export.name.len());
        let export = export.ok_or(Denied::NoExport)?;
        let attached = Attached::new(export, self.origin).ok_or(Denied::NotForYou)?;
        if attached.maps().is_some() {
            return Err(Denied::Mapped);
        }
        let credential = attached.context(ClientId(0), self.caller.clone()).credential;
        // On the way from this process to itself the group that stands for root's is not said.
        let groups = match credential.groups {
            Groups::ResolveSquashed(_) => Groups::Known([].into()),
            groups => groups,
        };
        let credential = Credential { groups, ..credential };
        Ok(Allowed { export: export.name.clone(), credential, read_only: attached.is_read_only() })
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_fs::synthetic::Synthetic;
    use aqueduct_net::Peer;

    use super::*;
    use crate::access::{ANONYMOUS_ID, Access, Host, Squash};
    use crate::export::External;

    fn export(name: &str, access: Access) -> Arc<Export> {
        let (name, path, filesystem) = (name.to_owned(), String::new(), Arc::new(Synthetic { size: 0 }));
        let (read_only, durable, external) = (false, false, External::None);
        Arc::new(Export { id: name.len() as u32, name, filesystem, read_only, path, access, durable, external })
    }

    #[test]
    fn a_submitter_has_what_its_machine_has_and_no_more() {
        let nets = |text: &str| vec![Host::parse(text).unwrap()];
        let exports = [
            export("/", Access { hosts: Some(nets("10.9.0.0/16")), ..Access::default() }),
            export("/data", Access::default()),
            export("/data/old", Access { read_only_hosts: nets("10.0.0.0/8"), ..Access::default() }),
            export("/trusted", Access { squash: Some(Squash::None), ..Access::default() }),
        ];
        let origin = Origin::anonymous(Peer::Network("10.0.0.1:9".parse().unwrap()));
        let known = |groups: &[u32]| Groups::Known(groups.into());
        let submitter = |uid, groups| Submitter {
            exports: &exports,
            origin: &origin,
            caller: Caller { credential: Credential { uid, gid: uid, groups }, pid: 1 },
        };
        let as_whom = |path: &str, uid| {
            let allowed = submitter(uid, known(&[])).at(path).unwrap();
            (allowed.export, allowed.credential.uid, allowed.read_only)
        };
        assert_eq!(as_whom("/data/new/x", 7), ("/data".to_owned(), 7, false));
        assert_eq!(as_whom("/data/old", 7), ("/data/old".to_owned(), 7, true));
        assert_eq!(as_whom("/data/older", 0), ("/data".to_owned(), ANONYMOUS_ID, false));
        assert_eq!(as_whom("/trusted/x", 0), ("/trusted".to_owned(), 0, false));
        assert_eq!(submitter(7, known(&[])).at("/other"), Err(Denied::NotForYou));
        assert_eq!(submitter(7, Groups::Resolve).at("/data").unwrap().credential.groups, known(&[]));
    }
}
