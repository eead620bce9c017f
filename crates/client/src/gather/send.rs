//! How what is held back comes to the server: in slots of the releasing class, so that it waits behind nothing that waits for it, and by tasks of its own, so
//! that it comes there whether or not somebody still waits for that.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_fs::{Cancel, ClientId, Context, Errno, Request, SetAttr, WriteAt, Written};
use aqueduct_net::Link;
use aqueduct_wire::{Class, Flags, HEADER_SIZE, Op};
use bytes::Bytes;

use super::{Content, HELD_MAX, LOOKS, Piece, Which};
use crate::cache::Brought;
use crate::client::Client;
use crate::connect::ConnectError;
use crate::filesystem::{Exchange, SMALL};
use crate::opens::used;

/// How long a client that leaves waits for what it held back to come to the server.
const LEAVE_MAX: Duration = Duration::from_secs(30);

/// Between two looks whether it has.
const LEAVE_STEP: Duration = Duration::from_millis(2);

impl Client {
    /// What is held back of a file and may go goes now, as much of it at once as may.
    pub(crate) fn send_held(&self, which: Which<'_>) {
        let Some(client) = self.this.upgrade() else { return };
        while let Some((piece, epoch)) = self.gather.take_off(which) {
            let (client, handle, hash) = (client.clone(), Arc::<[u8]>::from(which.handle), which.hash);
            let task = async move {
                let mut next = Some((piece, epoch));
                while let Some((piece, epoch)) = next {
                    let which = Which { handle: &handle, hash };
                    let sent = Instant::now();
                    let result = client.send_piece(&handle, &piece, epoch).await;
                    client.land(which, &piece, (epoch, sent.elapsed()), result);
                    next = client.gather.take_off(which);
                    client.send_held(which); // there may be room for others beside it
                }
            };
            match self.groups.iter().find(|group| group.is_current()) {
                Some(group) => group.run_now(task),
                None => self.groups[0].spawn(task),
            }
        }
    }

    /// All of what is held back of a file goes now.
    pub(crate) fn seal_and_send(&self, which: Which<'_>) -> Option<u64> {
        let mark = self.gather.seal(which)?;
        self.send_held(which);
        Some(mark)
    }

    /// A piece that was sent in this epoch has been answered after so long.
    fn land(&self, which: Which<'_>, piece: &Piece, (epoch, took): (u64, Duration), result: Result<(), Errno>) {
        let Some(leases) = &self.leases else { return };
        if self.opens.epoch() != epoch {
            return; // a recovery sees to it, perhaps only in a moment
        }
        // Whoever waits for it finds the error.
        if let Err(error) = result
            && self.gather.is_flying(which, piece.number)
        {
            self.fail_held(which.handle, piece, error);
        }
        self.gather.land(which, piece.number, took, &**leases);
        leases.recalls.landed();
    }

    /// What was held back did not come to the server: whoever writes to the file hears of it through each of his opens, in write, fsync or close.
    fn fail_held(&self, handle: &[u8], piece: &Piece, error: Errno) {
        if self.closing.load(Ordering::SeqCst) {
            return;
        }
        let Some(leases) = &self.leases else { return };
        let wrote = leases.opens.that_wrote(handle);
        leases.forget_own(handle);
        // That others have been let past it (ESTALE) is nothing that a program could do anything about.
        let told = if error == Errno::ESTALE { Errno::EIO } else { error };
        self.opens.fail_late(handle, &wrote, told);
        let (server, offset, bytes) = (&self.config.server, piece.place.offset, piece.length());
        let what = match piece.content {
            Content::Data(_) => "what was written",
            Content::Attributes(_) => "mode, owner or times",
        };
        match error {
            Errno::ESTALE if leases.opens.tells_loss() => {
                tracing::error!(%server, what, offset, bytes, "what a program wrote to a file is lost, since this client was cut off from the server for too long: the program gets EIO from write, fsync or close, and has to write it again");
            }
            _ => {
                tracing::debug!(%server, what, offset, bytes, %error, "what a program wrote to a file could not be written: the program gets this error from write, fsync or close")
            }
        }
    }

    async fn send_piece(&self, handle: &[u8], piece: &Piece, epoch: u64) -> Result<(), Errno> {
        let context = Context::new(ClientId(0), piece.place.credential.clone());
        let open = piece.place.open;
        self.opens.check([open])?;
        let data = match &piece.content {
            Content::Data(data) => data,
            Content::Attributes(set) => return self.set_held(&context, set_of(handle, piece, set), epoch).await,
        };
        let mut at = 0;
        while at < data.len() {
            let offset = piece.place.offset.checked_add(at as u64).ok_or(Errno::EFBIG)?;
            let write = WriteAt { open, offset, append: false, stable: false };
            let data = data.slice(at..);
            let (written, epoch) = self.write_held(&context, write, data.clone(), epoch).await?;
            if written.count == 0 {
                return Err(Errno::ENOSPC);
            }
            if !self.keep_written((write, epoch), written, data) {
                return Err(Errno::EIO); // of another epoch, and so not the answer
            }
            at += written.count as usize;
        }
        Ok(())
    }

    async fn write_held(
        &self,
        context: &Context,
        write: WriteAt,
        data: Bytes,
        epoch: u64,
    ) -> Result<(Written, u64), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_write(context, &write, &mut frame);
        let exchange = Exchange {
            class: Class::Releasing,
            bulk: data.len() > SMALL,
            changes: true,
            payload: Some(data),
            held: true,
            only_in: Some(epoch),
            ..Exchange::new(Op::Write, frame)
        };
        self.gather.counters.sent.fetch_add(1, Ordering::Relaxed);
        let sent = self.exchange(context, exchange, &mut Brought::default()).await;
        let (reply, epoch) = sent.map_err(|error| self.opens.explain(error, [write.open]))?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        self.counters.bytes_written.fetch_add(u64::from(written.count), Ordering::Relaxed);
        Ok((written, epoch))
    }

    async fn set_held(&self, context: &Context, request: Request<'_>, epoch: u64) -> Result<(), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        let op = aqueduct_wire::encode_request(context, &request, &mut frame);
        let (class, only_in) = (Class::Releasing, Some(epoch));
        let exchange = Exchange { class, changes: true, held: true, only_in, ..Exchange::new(op, frame) };
        self.gather.counters.sent.fetch_add(1, Ordering::Relaxed);
        let sent = self.exchange(context, exchange, &mut Brought::default()).await;
        sent.map(drop).map_err(|error| self.opens.explain(error, used(&request).into_iter().flatten()))
    }

    /// Waits until the server has all that is held back of a file now; EINTR when cancelled before, and it goes there all the same.
    pub(crate) async fn settle(&self, which: Which<'_>, cancel: &Cancel) -> Result<(), Errno> {
        let Some(mark) = self.seal_and_send(which) else { return Ok(()) };
        poll_fn(|task| {
            if self.gather.poll_gone(which, mark, task).is_ready() {
                return Poll::Ready(Ok(()));
            }
            cancel.poll(task).map(|()| Err(Errno::EINTR))
        })
        .await
    }

    /// The same, of all files.
    pub(crate) async fn settle_all(&self, cancel: &Cancel) -> Result<(), Errno> {
        let Some(leases) = &self.leases else { return Ok(()) };
        let files = self.gather.seal_all(Duration::ZERO);
        for handle in &files {
            self.send_held(leases.which(handle));
        }
        for handle in &files {
            self.settle(leases.which(handle), cancel).await?;
        }
        Ok(())
    }

    /// Waits for room to hold back so many bytes more of a file. What is there goes meanwhile.
    pub(crate) async fn wait_to_hold(&self, which: Which<'_>, length: usize, cancel: &Cancel) -> Result<(), Errno> {
        let Some(leases) = &self.leases else { return Ok(()) };
        for handle in self.gather.seal_all(Duration::ZERO) {
            self.send_held(leases.which(&handle));
        }
        poll_fn(|task| {
            if self.gather.poll_room(which, length, task).is_ready() {
                return Poll::Ready(Ok(()));
            }
            cancel.poll(task).map(|()| Err(Errno::EINTR))
        })
        .await
    }

    /// Sees to it that nothing is held back for long. To be called after each write that was.
    pub(crate) fn watch_held(&self) {
        if !self.gather.begin_watch() {
            return;
        }
        let (this, group) = (self.this.clone(), self.groups[0].clone());
        self.groups[0].spawn(async move {
            loop {
                group.sleep(HELD_MAX / LOOKS).await;
                let Some(client) = this.upgrade() else { return };
                let Some(leases) = &client.leases else { return };
                for handle in client.gather.seal_all(HELD_MAX - HELD_MAX / LOOKS) {
                    client.send_held(leases.which(&handle));
                }
                if client.gather.end_watch() {
                    return;
                }
            }
        });
    }

    /// In a recovery, when what was open is so again: sends what was held back, and what of it was not answered. Returns how many bytes.
    pub(crate) fn recover_held(&self, link: &mut Link) -> Result<usize, ConnectError> {
        let Some(leases) = &self.leases else { return Ok(0) };
        let mut bytes = 0;
        for handle in self.gather.files() {
            let which = leases.which(&handle);
            while let Some(piece) = self.gather.first(which) {
                match self.recover_piece(link, &handle, &piece)? {
                    Ok(()) => bytes += piece.length(),
                    Err(error) => self.fail_held(&handle, &piece, error),
                }
                self.gather.drop_first(which, &**leases);
            }
        }
        Ok(bytes)
    }

    fn recover_piece(&self, link: &mut Link, handle: &[u8], piece: &Piece) -> Result<Result<(), Errno>, ConnectError> {
        let context = Context::new(ClientId(0), piece.place.credential.clone());
        let data = match &piece.content {
            Content::Data(data) => data,
            Content::Attributes(set) => {
                return self.recovery_call_as(link, &context, &set_of(handle, piece, set), Flags::HELD);
            }
        };
        let mut at = 0;
        while at < data.len() {
            let Some(offset) = piece.place.offset.checked_add(at as u64) else { return Ok(Err(Errno::EFBIG)) };
            let write = WriteAt { open: piece.place.open, offset, append: false, stable: false };
            let data = data.slice(at..);
            match self.recovery_write(link, &context, (write, Flags::HELD), &data)? {
                Ok(Written { count: 0, .. }) => return Ok(Err(Errno::ENOSPC)),
                Ok(written) => {
                    at += written.count as usize;
                    let kept = self.keep_written((write, self.opens.epoch()), written, data);
                    debug_assert!(kept, "nobody else begins an epoch");
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(()))
    }

    /// The server knows this session no more, and nobody what others have seen of its files meanwhile: what was held back is lost.
    pub(crate) fn lose_held(&self) {
        let Some(leases) = &self.leases else { return };
        for handle in self.gather.files() {
            let which = leases.which(&handle);
            while let Some(piece) = self.gather.first(which) {
                self.fail_held(&handle, &piece, Errno::ESTALE);
                self.gather.drop_first(which, &**leases);
            }
        }
    }

    /// Before the client leaves: what it held back comes to the server.
    pub(crate) fn leave_nothing_held(&self) {
        let Some(leases) = &self.leases else { return };
        self.gather.set_on(false, false);
        let end = Instant::now() + LEAVE_MAX;
        while !self.gather.is_empty() && Instant::now() < end && self.lanes.iter().any(|lane| lane.is_connected()) {
            for handle in self.gather.seal_all(Duration::ZERO) {
                self.send_held(leases.which(&handle));
            }
            std::thread::sleep(LEAVE_STEP);
        }
        let (files, bytes) = self.gather.held();
        if files > 0 {
            tracing::error!(server = %self.config.server, files, bytes, "left before the server had all that programs had written and not synced: it is lost");
        }
    }
}

/// As it was asked for, through an open, so that it finds the file also when its name is gone.
fn set_of<'a>(handle: &'a [u8], piece: &Piece, set: &SetAttr) -> Request<'a> {
    Request::SetAttr { handle, open: Some(piece.place.open), set: *set }
}
