//! Writes that the server's machine has lost are sent again; what is not stable is made so before it grows too much.
//!
//! A write is lost when the verifier of its file is not the one that its reply had. That can only be after a recovery, which asks for it, file by file, and
//! sends again what was lost before any other request. A write that was answered before the recovery and kept after it began asks for itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aqueduct_fs::{
    Cancel, ClientId, Context, Errno, LockSpace, OpenFlags, OpenId, Reply, Request, SetAttr, TRANSFER_SIZE_MAX,
    WriteAt, Written,
};
use aqueduct_net::Link;
use aqueduct_wire::{Class, Extensions, Flags, HEADER_SIZE, Header, Kind, Op, Ordinal};
use aqueduct_worker::lock;
use bytes::Bytes;

use crate::connect::{AGAIN, ConnectError};
use crate::exchange::Exchange;
use crate::holder::Brought;
use crate::requests::frees_others;
use crate::session::Session;
use crate::slots::KeptSlot;
use crate::window::{Keeping, Through, Unstable};

/// How often a commit is begun anew whose open has gone meanwhile: by the program's close, and by restarts of the server.
const COMMIT_TRIES: usize = 5;

/// How long a client that leaves waits for what it wrote to become stable, as unmounting a local file system does; beyond, it is as safe as in the server's
/// page cache.
const LEAVE_MAX: Duration = Duration::from_secs(30);

/// Between two looks whether it is.
const LEAVE_STEP: Duration = Duration::from_millis(2);

/// When nothing was written for so long, what is kept is made stable: then it takes no memory, and can be lost no more. A kernel gives what a program
/// wrote to a local disk 30 s.
const QUIET: Duration = Duration::from_secs(10);

/// A write through an open, as it was answered.
pub(crate) struct Done {
    pub(crate) write: WriteAt,
    pub(crate) written: Written,
    pub(crate) epoch: u64,
}

/// How something is written in a recovery.
#[derive(Default)]
pub(crate) struct Again<'a> {
    pub(crate) flags: Flags,
    /// It is a repeat of what was written beside others.
    pub(crate) ordinal: Option<Ordinal>,
    /// Its slot and its number there; else once more does no harm.
    pub(crate) slot: Option<(&'a KeptSlot, u32)>,
}

fn again(open: OpenId, offset: u64) -> WriteAt {
    WriteAt { open, offset, append: false, stable: false }
}

impl Session {
    /// Keeps what was written until it is stable.
    pub(crate) async fn keep(&self, context: &Context, mut done: Done, data: Bytes) -> Result<(), Errno> {
        let data = data.slice(..data.len().min(done.written.count as usize));
        let open = done.write.open;
        loop {
            let Written { verifier, offset, .. } = done.written;
            let place = (verifier, offset, done.write.stable);
            match self.window.keep((done.epoch, open), place, data.clone(), || self.opens.place(open)) {
                Keeping::Done => {
                    self.wait_for_quiet();
                    return Ok(());
                }
                Keeping::Presses => {
                    self.relieve();
                    return Ok(());
                }
                Keeping::Late => {}
            }
            let (now, epoch) = Box::pin(self.write_again(context, again(open, offset), Bytes::new())).await?;
            (done.written.verifier, done.epoch) = (now.verifier, epoch);
            if now.verifier != verifier {
                (done.written.verifier, done.epoch) =
                    Box::pin(self.write_whole(context, again(open, offset), &data)).await?;
            }
            if done.written.verifier == 0 {
                return Ok(());
            }
        }
    }

    /// Writes again where it was, or without data asks for the verifier.
    async fn write_again(&self, context: &Context, write: WriteAt, data: Bytes) -> Result<(Written, u64), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_write(context, &write, &mut frame);
        let exchange = Exchange {
            bulk: true,
            payload: Some(data).filter(|data| !data.is_empty()),
            ..Exchange::new(Op::Write, frame)
        };
        let (reply, epoch) = self.exchange(context, exchange, &mut Brought::default()).await?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        Ok((written, epoch))
    }

    /// All of it; verifier and epoch of its first part.
    async fn write_whole(&self, context: &Context, write: WriteAt, data: &Bytes) -> Result<(u64, u64), Errno> {
        let (first, epoch) = self.write_again(context, write, data.clone()).await?;
        let mut count = first.count as usize;
        while count < data.len() {
            let rest = WriteAt { offset: write.offset + count as u64, ..write };
            match self.write_again(context, rest, data.slice(count..)).await?.0.count {
                0 => return Err(Errno::ENOSPC),
                more => count += more as usize,
            }
        }
        Ok((first.verifier, epoch))
    }

    /// Before a request is sent: commits what it would get into disorder with, and what is to be
    /// stable for those who take its lock; see [`stable_first`](Session::stable_first).
    pub(crate) async fn before(&self, context: &Context, request: &Request<'_>, first: &[u8]) -> Result<(), Errno> {
        match self.make_stable(first, &context.cancel).await {
            // Nobody waits for it any more, and it is not known to be stable. Whoever asked gives
            // up what others wait for later.
            Err(Errno::EINTR) => Err(Errno::EINTR),
            // Others who wait are let in all the same. Of what is lost, write, fsync and close
            // tell.
            Err(error) if !frees_others(request) => Err(error),
            _ => Ok(()),
        }
    }

    /// The inode of which what is kept has to be stable before a request.
    pub(crate) fn stable_first(&self, request: &Request<'_>) -> Option<Box<[u8]>> {
        match request {
            Request::Fallocate { open, .. } | Request::CopyRange { to: open, .. } => self.opens.handle(*open),
            Request::SetLock { space: LockSpace::Turn, .. } => None,
            Request::SetLock { open, .. } | Request::Flush { open, .. } | Request::Release { open }
                if frees_others(request) =>
            {
                self.opens.locked(*open)
            }
            _ => None,
        }
    }

    /// Makes stable what is kept of an inode. Whoever has it open hears of an error, too.
    pub async fn make_stable(&self, handle: &[u8], cancel: &Cancel) -> Result<(), Errno> {
        let Some(unstable) = self.window.unstable(handle) else { return Ok(()) };
        let result = self.commit(&unstable, cancel).await;
        if let Err(error) = result
            && error != Errno::EINTR
        {
            self.give_up(&unstable, error);
        }
        result
    }

    /// After a request was answered in `epoch`: what it made stable or cut off is not kept any more.
    pub(crate) async fn settle_kept(
        &self,
        (context, mark): (&Context, u64),
        request: &Request<'_>,
        reply: &Reply,
        mut epoch: u64,
    ) -> Result<(), Errno> {
        let cut = match (request, reply) {
            (Request::Sync { open, .. }, _) => {
                if let Some(handle) = self.opens.handle(*open) {
                    self.window.settle(&handle, mark, None);
                }
                None
            }
            (Request::SetAttr { handle, open, set: SetAttr { size: Some(size), .. } }, _) => {
                Some((*handle, *open, *size))
            }
            (Request::Open { handle, flags }, Reply::Opened(opened)) if flags.contains(OpenFlags::TRUNCATE) => {
                Some((*handle, Some(opened.id), 0))
            }
            (Request::Create { flags, .. }, Reply::Created(entry, opened)) if flags.contains(OpenFlags::TRUNCATE) => {
                Some((entry.handle.bytes(), Some(opened.id), 0))
            }
            _ => None,
        };
        let Some((handle, open, size)) = cut else { return Ok(()) };
        while !self.window.trim(epoch, handle, size, mark) {
            // What was cut off may have been sent again since.
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            epoch = Box::pin(self.send_call(context, &Request::SetAttr { handle, open, set })).await?.1;
        }
        Ok(())
    }

    /// Commits files in the background as long as too much is kept.
    pub(crate) fn relieve(&self) {
        if !self.window.begin_work() {
            return;
        }
        let this = self.this.clone();
        self.groups[0].spawn(async move {
            let Some(client) = this.upgrade() else { return };
            while let Some(unstable) = client.window.work() {
                if let Err(error) = client.commit(&unstable, &Cancel::default()).await {
                    client.give_up(&unstable, error);
                }
                client.window.end_work(&unstable.handle);
                if client.closing.load(Ordering::SeqCst) {
                    return; // nothing is committed any more, and what is kept stays so
                }
            }
        });
    }

    /// Makes stable what is kept once nothing was written for a while.
    fn wait_for_quiet(&self) {
        if !self.window.begin_watch() {
            return;
        }
        let (this, group) = (self.this.clone(), self.groups[0].clone());
        self.groups[0].spawn(async move {
            let mut seen = None;
            loop {
                group.sleep(QUIET).await;
                let Some(client) = this.upgrade() else { return };
                let mark = client.window.mark();
                if mark == seen {
                    for unstable in client.window.all_unstable() {
                        if let Err(error) = client.commit(&unstable, &Cancel::default()).await {
                            client.give_up(&unstable, error);
                        }
                    }
                }
                seen = mark;
                if client.window.end_watch() {
                    return;
                }
            }
        });
    }

    /// Makes stable what is kept of a file below its mark.
    async fn commit(&self, unstable: &Unstable, cancel: &Cancel) -> Result<(), Errno> {
        let Through { open, credential, token, mut closed } = unstable.through.clone();
        let context = Context { cancel: cancel.clone(), ..Context::new(ClientId(0), credential) };
        for _ in 0..COMMIT_TRIES {
            if closed {
                self.send_call(&context, &Request::Reopen { open, token: &token }).await?;
            }
            let result = self.commit_through(&context, open, unstable).await;
            if closed && let Err(error) = self.send_call(&context, &Request::Release { open }).await {
                tracing::debug!(%error, "a file that was opened to commit it has not been closed");
            }
            match result {
                Err(Errno::EBADF) => closed = true, // the program has closed it, or the server was restarted
                result => return result,
            }
        }
        Err(Errno::EIO)
    }

    async fn commit_through(&self, context: &Context, open: OpenId, unstable: &Unstable) -> Result<(), Errno> {
        loop {
            let commit = Request::Commit { open, offset: 0, length: 0 };
            let verifier = self.send_call(context, &commit).await?.0.written()?.verifier;
            self.window.settle(&unstable.handle, unstable.mark, Some(verifier));
            let lost = self.window.lost(&unstable.handle, unstable.mark, verifier);
            if lost.is_empty() {
                return Ok(());
            }
            for kept in lost {
                let (verifier, _) = self.write_whole(context, again(open, kept.offset), &kept.data).await?;
                self.window.renew(&unstable.handle, &kept, verifier);
            }
        }
    }

    /// What is kept of a file cannot be made stable: whoever has it open hears of it, in his next write, fsync or close.
    fn give_up(&self, unstable: &Unstable, error: Errno) {
        if self.closing.load(Ordering::SeqCst) {
            return;
        }
        self.window.settle(&unstable.handle, unstable.mark, None);
        if error == Errno::ESTALE && unstable.through.closed {
            return; // it was removed, and nobody has it open
        }
        if !self.opens.fail(&unstable.handle, error) && error == Errno::ESTALE {
            return; // the same, since this was asked for
        }
        tracing::error!(server = %self.config.server, %error, "what was written to a file could not be made stable: programs that have it open get this error from write, fsync and close");
    }

    /// Before the client leaves: what it wrote becomes stable.
    pub(crate) fn leave_stable(&self) {
        self.window.leave();
        let end = Instant::now() + LEAVE_MAX;
        while !self.window.is_empty() && Instant::now() < end && self.is_linked() {
            self.relieve();
            std::thread::sleep(LEAVE_STEP);
        }
        if !self.window.is_empty() {
            tracing::warn!(server = %self.config.server, bytes = self.window.bytes(), "left before all that was written is on the server's disk");
        }
    }

    /// In a recovery, when what was open is so again: sends again what was lost, unless the server's verifier says that nothing was. Returns what was sent.
    pub(crate) fn replay(&self, link: &mut Link, server: u64) -> Result<Replayed, ConnectError> {
        let mut replayed = Replayed::default();
        if *lock(&self.verifier) == server {
            return Ok(replayed);
        }
        for unstable in self.window.all_unstable() {
            match self.replay_file(link, &unstable, &mut replayed)? {
                Ok(()) => {}
                Err(error) => self.give_up(&unstable, error),
            }
        }
        *lock(&self.verifier) = server;
        Ok(replayed)
    }

    fn replay_file(
        &self,
        link: &mut Link,
        unstable: &Unstable,
        replayed: &mut Replayed,
    ) -> Result<Result<(), Errno>, ConnectError> {
        let Through { open, credential, token, closed } = &unstable.through;
        let context = Context::new(ClientId(0), credential.clone());
        if *closed && let Err(error) = self.recovery_call(link, &context, &Request::Reopen { open: *open, token })? {
            return Ok(Err(error));
        }
        let now = match self.recovery_write(link, &context, (again(*open, 0), Again::default()), &[])? {
            Ok(written) => written.verifier,
            Err(error) => return Ok(Err(error)),
        };
        let mut lost = &self.window.lost(&unstable.handle, unstable.mark, now)[..];
        while let Some(first) = lost.first() {
            let (sent, later) = lost.split_at(together(lost.iter().map(|kept| (kept.offset, kept.data.len()))));
            let data = match sent {
                [_] => first.data.clone(),
                _ => sent.iter().map(|kept| &kept.data[..]).collect::<Vec<_>>().concat().into(),
            };
            let mut at = 0;
            while at < data.len() {
                let write = again(*open, first.offset.saturating_add(at as u64));
                match self.recovery_write(link, &context, (write, Again::default()), &data[at..])? {
                    Ok(Written { count: 0, .. }) => return Ok(Err(Errno::ENOSPC)),
                    Ok(written) => at += written.count as usize,
                    Err(error) => return Ok(Err(error)),
                }
            }
            sent.iter().for_each(|kept| self.window.renew(&unstable.handle, kept, now));
            replayed.writes += sent.len();
            replayed.bytes += data.len();
            lost = later;
        }
        if *closed {
            replayed.closed.push(unstable.handle.clone());
        }
        Ok(Ok(()))
    }

    /// What was held back has been written. False: a recovery has begun since, which writes it once more.
    pub(crate) fn keep_written(&self, (write, epoch): (WriteAt, u64), written: Written, data: Bytes) -> bool {
        if written.verifier == 0 || !self.window.is_on() {
            return true;
        }
        let (open, data) = (write.open, data.slice(..data.len().min(written.count as usize)));
        let offset = if write.append { written.offset } else { write.offset };
        let place = (written.verifier, offset, false);
        match self.window.keep((epoch, open), place, data, || self.opens.place(open)) {
            Keeping::Done => self.wait_for_quiet(),
            Keeping::Presses => self.relieve(),
            Keeping::Late => return false,
        }
        true
    }

    pub(crate) fn recovery_write(
        &self,
        link: &mut Link,
        context: &Context,
        (write, Again { mut flags, ordinal, slot }): (WriteAt, Again<'_>),
        data: &[u8],
    ) -> Result<Result<Written, Errno>, ConnectError> {
        let mut body = Vec::new();
        flags.set(Flags::EXTENDED, ordinal.is_some());
        if ordinal.is_some() {
            Extensions { ordinal, ..Extensions::default() }.encode(&mut body);
        }
        aqueduct_wire::encode_write(context, &write, &mut body);
        let mut slot = slot.map(|(slot, sequence)| slot.guard(sequence));
        let mut header = Header { op: Op::Write as u16, flags, ..Header::new(Kind::Request) };
        if let Some(slot) = &mut slot {
            slot.sending();
            (header.class, header.slot, header.sequence) = (Class::Releasing, slot.slot, slot.sequence);
        }
        let answer = loop {
            let (reply, answer) = self.greeting.exchange_with(link, header, (&body, data), Kind::Reply)?;
            let error = Errno::from_raw(reply.status as i32);
            let is_to_wait = reply.status != 0 && self.is_to_wait(flags, error);
            slot.iter_mut().for_each(|slot| slot.settled |= !is_to_wait);
            match reply.status {
                0 => break answer,
                _ if is_to_wait => std::thread::sleep(AGAIN),
                _ => return Ok(Err(error)),
            }
        };
        let written = aqueduct_wire::decode_reply(Op::Write, &answer).map_err(|error| self.greeting.broken(error))?;
        let all = |written: Written| if written.count as usize > data.len() { Err(Errno::EPROTO) } else { Ok(written) };
        Ok(written.written().and_then(all))
    }

    /// After a recovery: files that nobody has open any more were opened to send their data again, and are closed once these are stable.
    pub(crate) fn close_replayed(&self, closed: Vec<Arc<[u8]>>) {
        if closed.is_empty() {
            return;
        }
        let this = self.this.clone();
        self.groups[0].spawn(async move {
            let Some(client) = this.upgrade() else { return };
            for handle in closed {
                let Some(unstable) = client.window.unstable(&handle) else { continue };
                if let Err(error) = client.commit(&unstable, &Cancel::default()).await {
                    client.give_up(&unstable, error);
                }
            }
        });
    }
}

/// How many of these writes, given by offset and length, go on where the one before ended and fit into one request: one for each of many small ones
/// would take longer than others wait.
fn together(mut writes: impl Iterator<Item = (u64, usize)>) -> usize {
    let Some((offset, mut length)) = writes.next() else { return 0 };
    let goes_on = |(next, more): &(u64, usize)| {
        let is_next = offset.checked_add(length as u64) == Some(*next);
        length += more;
        is_next && length <= TRANSFER_SIZE_MAX
    };
    1 + writes.take_while(goes_on).count()
}

/// What a recovery has sent again.
#[derive(Default)]
pub(crate) struct Replayed {
    pub(crate) writes: usize,
    pub(crate) bytes: usize,
    /// The files of it that nobody has open any more.
    pub(crate) closed: Vec<Arc<[u8]>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_go_on_travel_together() {
        let count = |writes: &[(u64, usize)]| together(writes.iter().copied());
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[(5, 3), (8, 2), (10, 1), (12, 1), (13, 1)]), 3);
        assert_eq!(count(&[(5, 3), (5, 3)]), 1, "the second one lies over the first");
        assert_eq!(
            count(&[(0, TRANSFER_SIZE_MAX - 1), (TRANSFER_SIZE_MAX as u64 - 1, 1), (TRANSFER_SIZE_MAX as u64, 1)]),
            2
        );
        assert_eq!(count(&[(u64::MAX, 1), (0, 1)]), 1);
    }
}
