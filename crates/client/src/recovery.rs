//! After the server was restarted: has again what was open and locked, before anything else is asked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_fs::{ClientId, Context, Errno, Request};
use aqueduct_net::Link;
use aqueduct_wire::{Class, Flags, Header, Kind, Op};

use crate::client::Client;
use crate::connect::ConnectError;
use crate::opens::Lists;
use crate::replay::Replayed;

/// Between two tries while the server waits for other clients: it gives them some seconds.
pub(crate) const AGAIN: Duration = Duration::from_millis(20);

impl Client {
    /// The session is the one that was, at a server that was restarted: opens and locks are had again, while nobody else can take them.
    pub(crate) fn recover(&self, link: &mut Link, verifier: u64) -> Result<(), ConnectError> {
        let lists = self.leave_epoch();
        let opens_lost = self.reopen_all(link, &lists)? + self.open_local(link)?;
        let mut locks_lost = 0;
        for (credential, open, owner, space, lock) in &lists.locks {
            let context = Context::new(ClientId(0), credential.clone());
            let request = Request::SetLock { open: *open, owner: *owner, space: *space, lock: *lock, wait: false };
            if self.recovery_call(link, &context, &request)?.is_err() && self.opens.lose(*open) {
                locks_lost += 1;
            }
        }
        let replayed = self.replay(link, verifier)?;
        let held = self.recover_held(link)?;
        let header = Header { op: Op::Recovered as u16, ..Header::new(Kind::Request) };
        loop {
            let (reply, _) = self.greeting.exchange(link, header, &[], Kind::Reply)?;
            match Errno::from_raw(reply.status as i32) {
                _ if reply.status == 0 => break,
                // Others have still to send again what was lost.
                Errno::EAGAIN if !self.closing.load(Ordering::SeqCst) => std::thread::sleep(AGAIN),
                error => return Err(self.greeting.broken(error)),
            }
        }
        self.unrestored.store(false, Ordering::SeqCst);
        self.gather.take_up();
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
        let lost = self.reopen_all(link, &lists)? + self.open_local(link)?;
        self.lose_held();
        let replayed = self.replay(link, verifier)?;
        self.unrestored.store(false, Ordering::SeqCst);
        self.gather.take_up();
        let lost = (lost + with_locks.len(), with_locks.len());
        self.report("the server has given up the session", &lists, lost, replayed);
        Ok(())
    }

    /// What was sent before the restart is answered no more.
    fn leave_epoch(&self) -> Lists {
        let lists = self.opens.begin_epoch();
        self.window.begin_epoch(self.opens.epoch());
        self.gather.ground(self.opens.epoch());
        if let Some(leases) = &self.leases {
            leases.begin_epoch(self.opens.epoch());
        }
        for lane in &self.lanes {
            lane.close("its session begins anew");
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

    /// Opens what programs have open without the server's knowledge, in slots for what frees others, who may wait for it; what finds none is opened when it is used.
    fn open_local(&self, link: &mut Link) -> Result<usize, ConnectError> {
        self.open_locals(|context, request| {
            let Some(mut slot) = self.slots_releasing.take_free() else { return Ok(None) };
            slot.sent = true;
            let mut body = Vec::new();
            let op = aqueduct_wire::encode_request(context, request, &mut body);
            let (slot, sequence) = (slot.slot, slot.sequence);
            let class = Class::Releasing;
            let header = Header { op: op as u16, class, slot, sequence, ..Header::new(Kind::Request) };
            let (reply, body) = self.greeting.exchange(link, header, &body, Kind::Reply)?;
            if reply.status != 0 {
                return Ok(Some(Err(Errno::from_raw(reply.status as i32))));
            }
            let reply = aqueduct_wire::decode_reply(op, &body).map_err(|error| self.greeting.broken(error))?;
            self.opens.note(self.opens.epoch(), context, request, &reply);
            Ok(Some(reply.opened().map(|opened| opened.id)))
        })
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
        let (reply, _) = self.greeting.exchange(link, header, &body, Kind::Reply)?;
        Ok(if reply.status == 0 { Ok(()) } else { Err(Errno::from_raw(reply.status as i32)) })
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
        } else {
            tracing::error!(
                %server, %reason, opens, locks, opens_lost, locks_lost,
                "some of what was open or locked is lost: these descriptors give EIO until they are closed; programs that hold them have to open the files again"
            );
        }
    }
}
