//! Rights to write at servers of data: given and ended at the server of the names, and asked for
//! where a server of data writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_fs::{Aspects, Errno, WriteAt};
use aqueduct_wire::{Beat, Flags, Grant, Granted, Header, Kind, NO_PLACE, Ordinal, STATUS_MOVED, Subject};

use super::{Job, reply_header};
use crate::attached::Attached;
use crate::config::Role;
use crate::lease::clock::now;
use crate::lease::touched::Touched;
use crate::right::{Executing, Granter, Piece, RECOVERED};

impl Job {
    fn granter(&self) -> Result<&Arc<Granter>, Errno> {
        match &self.server.config.role {
            Role::Names(granter) => Ok(granter),
            Role::Alone | Role::Data(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// RIGHT: on the inode of an open that the client holds exclusively, or writes beside others.
    /// ESTALE: neither, or not there now. MOVED: not by the present map. EAGAIN: the server of data
    /// does not obey now.
    pub(super) async fn right(&self, attached: &Attached, body: &[u8]) -> Result<(), Errno> {
        let (open, place) = aqueduct_wire::decode_right(body).map_err(|error| error.errno())?;
        let granter = self.granter()?;
        let file = attached.filesystem.inode(self.session.client(), open).await?;
        if place == NO_PLACE && !granter.is_concurrent() {
            return Err(Errno::EOPNOTSUPP);
        }
        if place == NO_PLACE {
            return self.right_beside_others(attached, file.bytes()).await;
        }
        let drawn = granter.draw(place, now()).map_err(|error| {
            tracing::error!(%error, "who is given a right cannot be written down: nobody is");
            Errno::EAGAIN
        })?;
        let drawn = drawn.ok_or(Errno::EAGAIN)?;
        if drawn.map as u32 != self.header.epoch {
            return self.moved();
        }
        let leases = &self.server.leases;
        let key = leases.key(&*attached.filesystem, file.bytes());
        let right = leases.give_right(self.session.client(), key, &drawn).ok_or(Errno::ESTALE)?;
        self.reply(Kind::Reply, Ok(()), &right.token(granter.key(), file.bytes()));
        Ok(())
    }

    /// MOVED: the client chose the server of data by another map than the present one.
    fn moved(&self) -> Result<(), Errno> {
        let mut body = Vec::new();
        self.server.map().ok_or(Errno::ESTALE)?.encode(&mut body);
        let header = Header { status: STATUS_MOVED, ..reply_header(&self.header, Kind::Reply, Ok(())) };
        self.send(header, &body);
        self.note_duration(Kind::Reply);
        Ok(())
    }

    /// Takes from all what they keep of an inode, and grants the client a lease to write it beside
    /// others. ESTALE: it may not now.
    async fn right_beside_others(&self, attached: &Attached, handle: &[u8]) -> Result<(), Errno> {
        if !self.asks_leases() || !self.asks_exclusive() {
            return Err(Errno::ESTALE);
        }
        let leases = &self.server.leases;
        let key = leases.key(&*attached.filesystem, handle);
        let mut touched = Touched::default();
        touched.add(key, Aspects::CONCURRENT);
        let Some(change) = self.begin(self.change(), &touched).await.transpose()? else { return Ok(()) };
        let (lease, aspects) = leases.grant_concurrent(self.session.client(), key).ok_or(Errno::ESTALE)?;
        drop(change);
        let grants = vec![Grant { subject: Subject::Inode, aspects, lease }];
        let header = reply_header(&self.header, Kind::Reply, Ok(()));
        self.send_granting(header, &[], &Granted { grants, changed: None });
        self.note_duration(Kind::Reply);
        Ok(())
    }

    /// REVOKE: the client cannot tell what became of what it sent to a server of data. Answered
    /// when nothing of it is executed any more.
    pub(super) async fn revoke(&self, body: &[u8]) -> Result<(), Errno> {
        let place = aqueduct_wire::decode_revoke(body).map_err(|error| error.errno())?;
        let granter = self.granter()?;
        let floor = granter.revoke(Some(place));
        let over = async { _ = self.server.rights_over(granter, Some(place), floor).await };
        // Who asks is told of an end only: a server that stops ends its connections.
        if self.is_wanted_after(over).await {
            self.reply(Kind::Reply, Ok(()), &[]);
        }
        Ok(())
    }

    /// BEAT. ESTALE: of a start that has ended.
    pub(super) fn beat(&self, body: &[u8]) -> Result<(), Errno> {
        let granter = self.granter()?;
        let beat = Beat::decode(granter.key(), body).map_err(|_| Errno::EACCES)?;
        let reply = granter.beat(&beat, now()).ok_or(Errno::ESTALE)?;
        self.session.has_beaten.store(true, Ordering::SeqCst);
        self.reply(Kind::Reply, Ok(()), &reply.encode(granter.key(), &beat.nonce));
        Ok(())
    }

    /// Before what was written beside others, and may have been executed elsewhere, is written
    /// again. EIO: another client has written something again there since they write beside each
    /// other, or since this server started: nobody knows which was to come first.
    pub(super) async fn may_repeat(
        &self,
        attached: &Attached,
        (write, length): (&WriteAt, usize),
    ) -> Result<(), Errno> {
        if self.asked.ordinal.is_none() || !self.header.flags.contains(Flags::HELD) {
            return Ok(()); // a first try
        }
        let file = attached.filesystem.inode(self.session.client(), write.open).await?;
        let leases = &self.server.leases;
        let is_recovered = self.header.sequence == 0;
        let tenure =
            if is_recovered { RECOVERED } else { leases.tenure(leases.key(&*attached.filesystem, file.bytes())) };
        let range = write.offset..write.offset.saturating_add(length as u64);
        let (session, handle, number) = (self.session.id, file.bytes(), Ordinal::default());
        let piece = Piece { session, handle, range, number };
        let may = self.granter()?.may_repeat(tenure, &piece).map_err(|error| {
            tracing::error!(%error, "what a client writes again cannot be written down: it is not written");
            Errno::EIO
        })?;
        if may { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Begins to execute a write where a server of data needs a right for it. ESTALE: the request
    /// has none, or lies over what another client may write again.
    pub(super) async fn enter_right(
        &self,
        attached: &Attached,
        (write, length): (&WriteAt, usize),
    ) -> Result<Option<Executing<'_>>, Errno> {
        let Role::Data(authority) = &self.server.config.role else { return Ok(None) };
        let token = self.asked.right.as_deref().ok_or(Errno::ESTALE)?;
        if write.append {
            return Err(Errno::EINVAL); // where it would end up only who has the names knows
        }
        let file = attached.filesystem.inode(self.session.client(), write.open).await?;
        let range = write.offset..write.offset.saturating_add(length as u64);
        let (handle, session) = (file.bytes(), self.session.id);
        let piece = self.asked.ordinal.map(|number| Piece { session, handle, range, number });
        authority.enter((handle, token), piece.as_ref(), now()).map(Some).ok_or(Errno::ESTALE)
    }
}
