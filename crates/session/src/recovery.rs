//! After the server was restarted: has again what was open and locked, before anything else is asked.

use std::sync::atomic::Ordering;

use aqueduct_fs::{ClientId, Context, Errno, Opened, Request, WriteAt, Written};
use aqueduct_net::Link;
use aqueduct_wire::{Class, DATA_EXPORT, Flags, Header, Kind, Op, Ordinal};
use bytes::Bytes;

use crate::connect::{AGAIN, ConnectError};
use crate::holder::Recovery;
use crate::opens::{Lists, Opens};
use crate::replay::{Again, Replayed};
use crate::session::Session;
use crate::slots::KeptSlot;

impl Session {
    /// The session is the one that was, at a server that was restarted: opens and locks are had again, while nobody else can take them.
    pub(crate) fn recover(&self, link: &mut Link, verifier: u64) -> Result<(), ConnectError> {
        let lists = self.leave_epoch();
        let opens_lost = self.reopen_all(link, &lists)? + self.reopen_unknown(link)?;
        let mut locks_lost = 0;
        for (credential, open, owner, space, lock) in &lists.locks {
            let context = Context::new(ClientId(0), credential.clone());
            let request = Request::SetLock { open: *open, owner: *owner, space: *space, lock: *lock, wait: false };
            if self.recovery_call(link, &context, &request)?.is_err() && self.opens.lose(*open) {
                locks_lost += 1;
            }
        }
        let replayed = self.replay(link, verifier)?;
        let held = match &self.holder {
            Some(holder) => holder.send_held(&mut Recovering { session: self, link })?,
            None => 0,
        };
        let header = Header { op: Op::Recovered as u16, ..Header::new(Kind::Request) };
        self.settling.store(true, Ordering::SeqCst);
        loop {
            let (reply, _) = self.greeting.exchange(link, header, &[], Kind::Reply)?;
            match Errno::from_raw(reply.status as i32) {
                _ if reply.status == 0 => break,
                // Others have still to send again what was lost.
                Errno::EAGAIN if !self.closing.load(Ordering::SeqCst) => std::thread::sleep(AGAIN),
                error => return Err(self.greeting.broken(error)),
            }
        }
        self.settle();
        tracing::debug!(server = %self.config.server, held, "what had been held back has come to the server");
        self.report("the server was restarted", &lists, (opens_lost, locks_lost), replayed);
        Ok(())
    }

    /// The session is a new one, since the server gave up the old: opens are had again, but those that held locks are lost, which others may have taken
    /// meanwhile.
    pub(crate) fn reopen(&self, link: &mut Link, verifier: u64) -> Result<(), ConnectError> {
        let mut with_locks = self.opens.with_locks();
        let handles: Vec<_> = with_locks.iter().filter_map(|id| self.opens.handle(*id)).collect();
        with_locks.retain(|id| self.opens.lose(*id));
        // What was written under a lock that others may have had since is older than what they wrote.
        for handle in handles {
            self.window.settle(&handle, u64::MAX, None);
            self.opens.fail(&handle, Errno::EIO);
        }
        let lists = self.leave_epoch();
        let reopened = self.reopen_all(link, &lists)?;
        // What is held back keeps slots, and where the new session has fewer of them, none would be
        // left to open files in.
        if let Some(holder) = &self.holder {
            holder.lose_held(&mut Recovering { session: self, link });
        }
        let lost = reopened + self.reopen_unknown(link)?;
        let replayed = self.replay(link, verifier)?;
        self.settle();
        let lost = (lost + with_locks.len(), with_locks.len());
        self.report("the server has given up the session", &lists, lost, replayed);
        Ok(())
    }

    /// What was sent before the restart is answered no more.
    fn leave_epoch(&self) -> Lists {
        let _alone = self.joins.write().unwrap_or_else(|poison| poison.into_inner());
        self.settling.store(false, Ordering::SeqCst);
        let lists = self.opens.begin_epoch();
        self.window.begin_epoch(self.opens.epoch());
        if let Some(holder) = &self.holder {
            holder.epoch_begins(self.opens.epoch());
        }
        for link in &self.links {
            link.close("its session begins anew");
            link.lose_waits();
        }
        lists
    }

    /// Returns how many could not be had, besides directories that are no more: the server keeps only files that are removed while open.
    fn reopen_all(&self, link: &mut Link, lists: &Lists) -> Result<usize, ConnectError> {
        let mut lost = 0;
        for (id, credential, token) in &lists.opens {
            let context = Context::new(ClientId(0), credential.clone());
            let request = Request::Reopen { open: *id, token };
            let Err(error) = self.recovery_call(link, &context, &request)? else { continue };
            let missed = self.opens.lose(*id);
            if missed && error == Errno::ESTALE && self.opens.is_directory(*id) {
                tracing::info!(server = %self.config.server, "a directory that was removed while it was open is gone");
            } else {
                lost += usize::from(missed);
            }
        }
        Ok(lost)
    }

    /// What the layers above have open without the server's knowledge.
    fn reopen_unknown(&self, link: &mut Link) -> Result<usize, ConnectError> {
        self.holder.as_ref().map_or(Ok(0), |holder| holder.reopen(&mut Recovering { session: self, link }))
    }

    /// All is as it was before: what was held up meanwhile goes on.
    pub(crate) fn settle(&self) {
        self.settling.store(false, Ordering::SeqCst);
        self.unrestored.store(false, Ordering::SeqCst);
        if let Some(holder) = &self.holder {
            holder.goes_on();
        }
    }

    pub(crate) fn recovery_call(
        &self,
        link: &mut Link,
        context: &Context,
        request: &Request<'_>,
    ) -> Result<Result<(), Errno>, ConnectError> {
        self.recovery_call_as(link, context, request, Flags::empty())
    }

    pub(crate) fn recovery_call_as(
        &self,
        link: &mut Link,
        context: &Context,
        request: &Request<'_>,
        flags: Flags,
    ) -> Result<Result<(), Errno>, ConnectError> {
        let mut body = Vec::new();
        let op = aqueduct_wire::encode_request(context, request, &mut body);
        let header = Header { op: op as u16, flags, ..Header::new(Kind::Request) };
        loop {
            let (reply, _) = self.greeting.exchange(link, header, &body, Kind::Reply)?;
            match Errno::from_raw(reply.status as i32) {
                _ if reply.status == 0 => return Ok(Ok(())),
                error if !self.is_to_wait(flags, error) => return Ok(Err(error)),
                _ => std::thread::sleep(AGAIN),
            }
        }
    }

    /// What was held back is not taken as long as servers of data may still write what they were
    /// given before the restart.
    pub(crate) fn is_to_wait(&self, flags: Flags, error: Errno) -> bool {
        flags.contains(Flags::HELD) && error == Errno::EAGAIN && !self.closing.load(Ordering::SeqCst)
    }

    fn report(&self, reason: &str, lists: &Lists, (opens_lost, locks_lost): (usize, usize), replayed: Replayed) {
        if replayed.writes > 0 {
            let Replayed { writes, bytes, .. } = replayed;
            tracing::warn!(server = %self.config.server, writes, bytes, "the server's machine has lost what was not on its disk yet: it was sent again");
        }
        self.close_replayed(replayed.closed);
        let (server, opens, locks) = (&self.config.server, lists.opens.len(), lists.locks.len());
        if opens_lost + locks_lost == 0 {
            tracing::info!(%server, %reason, opens, locks, "all that was open and locked is so again");
        } else if self.config.export == DATA_EXPORT {
            // Programs have their files open at the server of the names, which gives other tokens.
            tracing::warn!(
                %server, %reason, opens, opens_lost,
                "some of what was open at a server of data is open there no more: it is opened anew when it is needed"
            );
        } else {
            tracing::error!(
                %server, %reason, opens, locks, opens_lost, locks_lost,
                "some of what was open or locked is lost: these descriptors give EIO until they are closed; programs that hold them have to open the files again"
            );
        }
    }
}

/// A session on the link on which it is recovered.
struct Recovering<'a> {
    session: &'a Session,
    link: &'a mut Link,
}

impl Recovering<'_> {
    fn write(
        &mut self,
        context: &Context,
        (write, again): (WriteAt, Again<'_>),
        data: &Bytes,
    ) -> Result<Result<Written, Errno>, ConnectError> {
        let written = self.session.recovery_write(self.link, context, (write, again), data)?;
        if let Ok(written) = written {
            let kept = self.session.keep_written((write, self.session.opens.epoch()), written, data.clone());
            debug_assert!(kept, "nobody else begins an epoch");
        }
        Ok(written)
    }
}

impl Recovery for Recovering<'_> {
    fn epoch(&self) -> u64 {
        self.session.opens.epoch()
    }

    fn server(&self) -> &str {
        self.session.server()
    }

    fn is_closing(&self) -> bool {
        self.session.is_closing()
    }

    fn opens(&self) -> &Opens {
        &self.session.opens
    }

    fn call(
        &mut self,
        context: &Context,
        request: &Request<'_>,
        flags: Flags,
    ) -> Result<Result<(), Errno>, ConnectError> {
        self.session.recovery_call_as(self.link, context, request, flags)
    }

    /// In a slot for what frees others, who may wait for it.
    fn open(
        &mut self,
        context: &Context,
        request: &Request<'_>,
    ) -> Result<Option<Result<Opened, Errno>>, ConnectError> {
        let Recovering { session, link } = self;
        let Some(mut slot) = session.slots_releasing.take_free() else { return Ok(None) };
        slot.sending();
        let mut body = Vec::new();
        let op = aqueduct_wire::encode_request(context, request, &mut body);
        let class = Class::Releasing;
        let (number, sequence) = (slot.slot, slot.sequence);
        let header = Header { op: op as u16, class, slot: number, sequence, ..Header::new(Kind::Request) };
        let (reply, body) = session.greeting.exchange(link, header, &body, Kind::Reply)?;
        slot.settled = true;
        if reply.status != 0 {
            return Ok(Some(Err(Errno::from_raw(reply.status as i32))));
        }
        let reply = aqueduct_wire::decode_reply(op, &body).map_err(|error| session.greeting.broken(error))?;
        session.opens.note(session.opens.epoch(), context, request, &reply);
        Ok(Some(reply.opened()))
    }

    fn write_held(
        &mut self,
        context: &Context,
        (write, ordinal): (WriteAt, Option<Ordinal>),
        data: &Bytes,
    ) -> Result<Result<Written, Errno>, ConnectError> {
        self.write(context, (write, Again { flags: Flags::HELD, ordinal, slot: None }), data)
    }

    fn append_held(
        &mut self,
        context: &Context,
        (write, slot): (WriteAt, &KeptSlot),
        data: &Bytes,
    ) -> Result<Result<(), Errno>, ConnectError> {
        loop {
            let mut flags = Flags::HELD;
            // An append that never was on its way must not be looked for: its bytes may be others'.
            flags.set(Flags::RETRY, slot.was_sent());
            let (sequence, at) = slot.present();
            if at == data.len() {
                return Ok(Ok(()));
            }
            let again = Again { flags, ordinal: None, slot: Some((slot, sequence)) };
            match self.write(context, (slot.rest(write, at), again), &data.slice(at..))? {
                Ok(Written { count: 0, .. }) => return Ok(Err(Errno::ENOSPC)),
                Ok(written) => slot.advance(sequence, written.count),
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}
