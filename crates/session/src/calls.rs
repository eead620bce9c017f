//! The operations of a session: each is one exchange with the server.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use aqueduct_fs::parts::take_apart;
use aqueduct_fs::{Context, DirPage, Errno, OpenId, Opened, ReadAt, Reply, Request, Sink, Staged, WriteAt, Written};
use aqueduct_wire::{Class, HEADER_SIZE, Op};
use bytes::Bytes;

use crate::exchange::{Exchange, SMALL};
use crate::holder::Brought;
use crate::link::delivered;
use crate::replay::Done;
use crate::requests::{again, class_of, used};
use crate::session::Session;

/// Reads from this many bytes on are cut over the rails: below, one more request costs more than
/// a second wire brings.
const CUT_MIN: usize = 256 << 10;

/// The read of a part, and what it came to.
type Part<'a> = (Pin<Box<dyn Future<Output = Result<usize, Errno>> + Send + 'a>>, Option<Result<usize, Errno>>);

/// Waits until all of them are done.
async fn all(mut reads: Vec<Part<'_>>) -> Vec<Result<usize, Errno>> {
    poll_fn(|task| {
        for (read, result) in reads.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(done) = read.as_mut().poll(task) {
                *result = Some(done);
            }
        }
        if reads.iter().all(|(_, result)| result.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    reads.into_iter().filter_map(|(_, result)| result).collect()
}

/// How many bytes have come in a row from the first. Behind a part that is shorter than it was to
/// be the file had ended, whatever has come there since.
fn together(lengths: &[usize], counts: &[Result<usize, Errno>]) -> Result<usize, Errno> {
    let mut sum = 0;
    for (length, count) in lengths.iter().zip(counts) {
        let count = (*count)?;
        sum += count;
        if count < *length {
            break;
        }
    }
    Ok(sum)
}

impl Session {
    /// Asks the server, as its own client would: with the server's numbers for what is open.
    pub async fn call(&self, context: &Context, request: &Request<'_>, brought: &mut Brought) -> Result<Reply, Errno> {
        self.call_in(class_of(request), context, request, brought).await
    }

    /// The same, in a slot of this class.
    pub async fn call_in(
        &self,
        class: Class,
        context: &Context,
        request: &Request<'_>,
        brought: &mut Brought,
    ) -> Result<Reply, Errno> {
        if *request == Request::Root {
            // As it was attached: whoever asks wants the handle.
            return Ok(Reply::Entry(self.root()));
        }
        if let Request::Release { open } | Request::ReleaseDirectory { open } = *request
            && self.opens.end(open)
        {
            self.window.close(open);
            return Ok(Reply::Done);
        }
        self.opens.check(used(request).into_iter().flatten())?;
        let kept = self.window.mark();
        if let Some(first) = kept.and_then(|_| self.stable_first(request)) {
            // Few requests come here. Boxed, its state takes no room in that of the others.
            Box::pin(self.before(context, request, &first)).await?;
        }
        self.opens.asks(request);
        let answer = self.send_call_for(context, (class, request), brought).await;
        if let Request::Release { open } = request {
            self.window.close(*open);
        }
        let (reply, mut epoch) = match answer {
            // Its session ended while it was under way.
            Err(Errno::EBADF) => return self.answer_lost(request),
            // Refused: nothing was taken but from flocks.
            Err(error @ (Errno::ENOLCK | Errno::EAGAIN | Errno::EDEADLK)) => {
                self.opens.is_refused(request);
                return Err(error);
            }
            answer => answer?,
        };
        if let Some(mark) = kept {
            self.settle_kept((context, mark), request, &reply, epoch).await?;
        }
        while !self.opens.note(epoch, context, request, &reply) {
            // The server was restarted since it answered, and the recovery could not know of this.
            let again = again(request, &reply);
            epoch = self.send_call_for(context, (class, &again), &mut Brought::default()).await?.1;
        }
        match *request {
            Request::Sync { open, .. } => self.opens.error(open)?,
            Request::Flush { open, .. } => self.opens.error_at_close(open)?,
            _ => {}
        }
        Ok(reply)
    }

    /// Writes, and asks for what `brought` says.
    pub async fn write(
        &self,
        context: &Context,
        (write, data): (WriteAt, Bytes),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        self.write_from(context, (write, data, None), brought).await
    }

    /// The same, of data that may have been staged where they are to lie: ENODATA when they are
    /// not there any more, and nothing was done.
    pub async fn write_from(
        &self,
        context: &Context,
        (write, data, staged): (WriteAt, Bytes, Option<Staged>),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        self.opens.check([write.open])?;
        self.opens.error(write.open)?;
        if self.window.is_full() {
            let began = Instant::now();
            self.window.room(&context.cancel).await?;
            context.steps().queued(began, "room to keep what is not stable yet (replay_window)");
        }
        let make = || {
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_write(context, &write, &mut frame);
            let payload = staged.is_none().then(|| data.clone());
            let bulk = payload.is_some() && data.len() > SMALL;
            Exchange { bulk, changes: true, payload, staged, ..Exchange::new(Op::Write, frame) }
        };
        let sent = self.exchange_write(context, make, brought).await;
        let (reply, epoch) = sent.map_err(|error| self.opens.explain(error, [write.open]))?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        self.counters.bytes_written.add(written.count.into());
        if written.verifier != 0 && self.window.is_on() {
            self.keep(context, Done { write, written, epoch }, data).await?;
        }
        Ok(written)
    }

    /// Asks for the first bytes of files. The answer's body is for
    /// [`aqueduct_wire::decode_fetched`].
    pub async fn fetch_files(
        &self,
        context: &Context,
        handles: &[&[u8]],
        brought: &mut Brought,
    ) -> Result<Vec<u8>, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_fetch(context, handles, aqueduct_wire::FETCH_LENGTH_MAX, &mut frame);
        let exchange = Exchange { bulk: true, ..Exchange::new(Op::Fetch, frame) };
        Ok(self.exchange(context, exchange, brought).await?.0.body)
    }

    /// Asks for the first pages of directories, with inodes.
    pub async fn list(
        &self,
        context: &Context,
        handles: &[&[u8]],
        brought: &mut Brought,
    ) -> Result<Vec<Result<DirPage, Errno>>, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_list(context, handles, &mut frame);
        let (reply, _) = self.exchange(context, Exchange::new(Op::List, frame), brought).await?;
        aqueduct_wire::decode_listed(&reply.body).map_err(|_| Errno::EPROTO)
    }

    /// Has the server open a file by the token that another server with the same keys gave, under
    /// that one's number.
    pub async fn adopt(
        &self,
        context: &Context,
        open: OpenId,
        (handle, token, writes): (&[u8], &[u8], bool),
    ) -> Result<(), Errno> {
        let opened = Opened { id: open, token: token.into(), width: 0 };
        loop {
            let epoch = self.send_call(context, &Request::Reopen { open, token }).await?.1;
            if self.opens.adopt(epoch, context, (handle, writes), &opened) {
                return Ok(());
            }
        }
    }

    /// Reads into a sink. Returns how many bytes that were. A long read may come over several
    /// rails, in parts that are read at different moments.
    pub async fn read(&self, context: &Context, read: ReadAt, sink: Box<dyn Sink>) -> Result<usize, Errno> {
        self.opens.check([read.open])?;
        let sink = match self.rails.are_many() && read.length as usize >= CUT_MIN {
            true => match self.read_cut(context, read, sink).await {
                Ok(result) => return result,
                Err(whole) => whole,
            },
            false => sink,
        };
        self.read_on(context, read, sink, None).await
    }

    /// One read, by one request.
    async fn read_on(
        &self,
        context: &Context,
        read: ReadAt,
        sink: Box<dyn Sink>,
        rail: Option<usize>,
    ) -> Result<usize, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_read(context, &read, &mut frame);
        let bulk = read.length as usize > SMALL;
        let comes = u64::from(read.length);
        let exchange = Exchange { bulk, sink: Some(sink), comes, rail, ..Exchange::new(Op::Read, frame) };
        let answer = self
            .exchange(context, exchange, &mut Brought::default())
            .await
            .map_err(|error| self.opens.explain(error, [read.open]))?;
        let count = delivered(answer.0.payload)?;
        self.counters.bytes_read.add(count as u64);
        Ok(count)
    }

    /// One read, cut over the rails. Gives the sink back where it is not to be cut.
    async fn read_cut(
        &self,
        context: &Context,
        read: ReadAt,
        sink: Box<dyn Sink>,
    ) -> Result<Result<usize, Errno>, Box<dyn Sink>> {
        let shares = self.lane(true).cut(&self.rails, read.length as usize);
        if shares.len() < 2 {
            return Err(sink);
        }
        let lengths: Vec<usize> = shares.iter().map(|(_, bytes)| *bytes).collect();
        let (whole, parts) = take_apart(sink, &lengths)?;
        let mut offset = read.offset;
        let mut reads: Vec<Part<'_>> = Vec::with_capacity(parts.len());
        for ((rail, bytes), part) in shares.into_iter().zip(parts) {
            let read = ReadAt { offset, length: bytes as u32, ..read };
            offset += bytes as u64;
            reads.push((Box::pin(self.read_on(context, read, part, Some(rail))), None));
        }
        let counts = all(reads).await;
        Ok(together(&lengths, &counts).and_then(|count| {
            whole.finish(count).map_err(Errno::from)?;
            Ok(count)
        }))
    }

    /// The answer about an open that the server does not know: it may be lost since we looked.
    fn answer_lost(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        if let Request::Release { open } | Request::ReleaseDirectory { open } = *request {
            self.opens.lose(open); // which forgets it, as it is ending
            return Ok(Reply::Done);
        }
        Err(self.opens.explain(Errno::EBADF, used(request).into_iter().flatten()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_ends_where_the_file_did() {
        assert_eq!(together(&[4, 4, 4], &[Ok(4), Ok(4), Ok(4)]), Ok(12));
        assert_eq!(together(&[4, 4, 4], &[Ok(4), Ok(1), Ok(4)]), Ok(5), "what came later is behind a gap");
        assert_eq!(together(&[4, 4], &[Ok(0), Ok(4)]), Ok(0));
        assert_eq!(together(&[4, 4], &[Ok(4), Err(Errno::EIO)]), Err(Errno::EIO));
        assert_eq!(together(&[4, 4], &[Ok(3), Err(Errno::EIO)]), Ok(3), "nobody asks for what is behind the end");
    }
}
