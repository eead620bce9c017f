//! What a session is given: an export, as its access allows.

use std::sync::Arc;

use aqueduct_fs::{Context, Errno, FileSystem, Request};
use aqueduct_wire::{Flags, Kind};

use super::Job;
use crate::access::Squash;
use crate::agent::Submitter;
use crate::attached::Attached;
use crate::complaints::Complaint;
use crate::export::Export;
use crate::origin::Identity;

/// Bytes of export names that a client is told when it asks for one that there is not.
const EXPORT_NAMES_LENGTH_MAX: usize = 64 << 10;

impl Job {
    pub(super) async fn attach(&self, body: &[u8]) -> Result<(), Errno> {
        let attach = aqueduct_wire::Attach::decode(body).map_err(|error| error.errno())?;
        if self.server.recovery.awaits_replays() {
            return Err(Errno::EAGAIN);
        }
        let own = self.server.own_export(&self.session.origin, attach.export);
        let Some(export) = self.server.export(own.unwrap_or(attach.export)) else {
            self.reply(Kind::Reply, Err(Errno::ENOENT), self.exports_told().as_bytes());
            return Ok(());
        };
        // Not where this connection comes from: others of the session were let in by the session's
        // address.
        let attached = match own {
            Some(_) => Some(Attached::of_own(export)),
            None => Attached::new(export, &self.session.origin),
        };
        let Some(attached) = attached else {
            self.refuse_attach(export);
            return Ok(());
        };
        let attached = self.session.attached.get_or_init(|| attached);
        self.session.count_in(&self.server.metrics);
        if !Arc::ptr_eq(&attached.export, export) {
            return Err(Errno::EBUSY);
        }
        if attached.lacks_name() {
            self.tell_lacks_name(export);
        }
        self.server.tell_map_since(&self.session);
        let asks_leases = self.header.flags.contains(Flags::LEASES) && self.server.leases.is_on();
        self.server.keep(&self.session, export, asks_leases);
        let context = Context::new(self.session.client(), aqueduct_fs::Credential::root());
        let root = attached.filesystem.call(&context, Request::Root).await?.entry()?;
        let reply = aqueduct_wire::AttachReply {
            root,
            export_id: export.id,
            read_only: attached.is_read_only(),
            age_max: export.external.age_max(),
            one_user: attached.squash() == Squash::All || attached.maps().is_some(),
        };
        let mut body = Vec::new();
        reply.encode(&mut body);
        self.reply(Kind::Reply, Ok(()), &body);
        Ok(())
    }

    /// TRANSFER: what an agent is asked.
    pub(super) fn transfer(&self, body: &[u8]) -> Result<(), Errno> {
        let (caller, text) = aqueduct_wire::decode_transfer(body).map_err(|error| error.errno())?;
        let mover = self.server.config.mover.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let submitter = Submitter { exports: &self.server.exports, origin: &self.session.origin, caller };
        let answer = mover.ask(&submitter, text);
        if answer.len() > aqueduct_wire::BODY_LENGTH_MAX {
            return Err(Errno::EOVERFLOW);
        }
        self.reply(Kind::Reply, Ok(()), answer.as_bytes());
        Ok(())
    }

    /// The names of what this client may attach, one a line.
    fn exports_told(&self) -> String {
        let origin = &self.session.origin;
        let mut told = String::new();
        for export in self.server.exports.iter().filter(|export| export.access.rights(origin).is_some()) {
            if told.len() + export.name.len() < EXPORT_NAMES_LENGTH_MAX {
                told.push_str(&export.name);
                told.push('\n');
            }
        }
        told
    }

    fn tell_lacks_name(&self, export: &Export) {
        let (client, who) = (&self.session.name, self.session.origin.identity());
        let what = format_args!(
            "all users of {client} are nobody in {}: it has maps of ids for networks, and nobody knows of which one {who} is; give the node a key of its own, and list it as node:NAME",
            export.name
        );
        self.server.complaints.tell(who.clone(), Complaint::Refused, what);
    }

    fn refuse_attach(&self, export: &Export) {
        let (client, who) = (&self.session.name, self.session.origin.identity());
        let why = match (&who, export.access.members_only) {
            (_, true) => format!("it is for the volume's other servers, and {who} has not proved to be one"),
            (Identity::Behind(_), false) => format!(
                "{who} is not among its hosts; an address means nobody there: who comes by a router is known by a node's key alone, listed as node:NAME"
            ),
            _ => format!("{who} is not among its hosts"),
        };
        let what = format_args!("refused to attach {} for {client}: {why}", export.name);
        self.server.complaints.tell(who, Complaint::Refused, what);
        self.reply(Kind::Reply, Err(Errno::EACCES), why.as_bytes());
    }
}
