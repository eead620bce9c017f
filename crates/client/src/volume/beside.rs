//! What programs write that nobody holds back, large as it is or beside other clients: it goes
//! straight to the server of data that has its blocks, like what was held back ([`ways`]), while a
//! lease says that this client may write there.
//!
//! Beside others it is stable when it is answered. So there are no copies of answered writes that
//! could be written again over another client's. One of which nobody knows what has become of it
//! is written again before the lease goes, through the server of the names, once nothing of it is
//! executed any more; in a recovery, before anybody else is let in. Until then nobody writes over
//! it: the server of data is told which writes of this client are settled, and refuses what
//! others write over one that is not; what this client writes over it waits.
//!
//! [`ways`]: super::ways

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use aqueduct_fs::{Cancel, ClientId, Context, Credential, Errno, Hold, LockKind, OpenId, Request, WriteAt, Written};
use aqueduct_session::Brought;
use aqueduct_wire::Ordinal;
use aqueduct_worker::Group;
use bytes::Bytes;

use super::lanes::{Boarded, Kept, REPEATED};
use super::mover::Mover;
use super::objects::{Works, join};
use super::opens::Open;
use super::parts::Volume;
use super::ways::{Flown, Of, Straight};

/// A write that may go straight.
pub(crate) struct Direct {
    pub(crate) open: Arc<Open>,
    pub(crate) credential: Credential,
    pub(crate) write: WriteAt,
    pub(crate) data: Bytes,
    /// Of the lease.
    pub(crate) epoch: u64,
    /// Others may write as well.
    pub(crate) is_shared: bool,
}

/// What has become of a program's write.
pub(crate) enum Went {
    Done(Result<Written, Errno>),
    /// Nothing was done of some of its pieces, which are to go as any other write.
    InPart(Vec<Piece>),
}

/// One of the pieces of a write, in their order.
pub(crate) struct Piece {
    pub(crate) write: WriteAt,
    pub(crate) data: Bytes,
    /// `None`: nothing was done.
    pub(crate) done: Option<Result<Written, Errno>>,
}

/// Goes on by itself when nobody waits for it any more.
struct Lasting<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    group: Arc<Group>,
    volume: Arc<Volume>,
    handle: Arc<[u8]>,
}

impl<T: Send + 'static> Lasting<T> {
    /// What has become of it. `None`: nobody waits any longer, and it goes on.
    async fn until(mut self, cancel: &Cancel) -> Option<T> {
        poll_fn(|task| {
            let Some(work) = &mut self.work else { return Poll::Ready(None) };
            if let Poll::Ready(done) = work.as_mut().poll(task) {
                self.work = None;
                return Poll::Ready(Some(done));
            }
            cancel.poll(task).map(|()| None)
        })
        .await
    }
}

impl<T: Send + 'static> Drop for Lasting<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let (volume, handle) = (self.volume.clone(), self.handle.clone());
            volume.lanes.abandoned(&handle);
            self.group.spawn(async move {
                drop(work.await);
                volume.lanes.abandoned_ends(&handle);
            });
        }
    }
}

/// What a program is told of a write, of whose pieces these came of.
pub(crate) fn of_pieces(pieces: impl IntoIterator<Item = (usize, Result<Written, Errno>)>) -> Result<Written, Errno> {
    let mut all = Written::default();
    for (length, done) in pieces {
        match done {
            Ok(written) => {
                all = Written { count: all.count + written.count, ..written };
                if (written.count as usize) < length {
                    break; // what lies behind does not count
                }
            }
            Err(error) if all.count == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(all)
}

impl Volume {
    /// Whether anything of so many bytes may go straight, or at all.
    pub(crate) fn goes_straight(&self, length: usize) -> bool {
        self.movers.as_ref().is_some_and(|movers| {
            let may = !movers.is_constant && !movers.takes_turns;
            may && length >= movers.straight_from && !movers.is_behind() && movers.has(Mover::may_have_rights)
        })
    }

    /// Asks for a lease to write a file beside others, which `brought` has then. What this client
    /// wrote before is stable: nobody writes it again.
    pub(crate) async fn ask_beside_others(
        &self,
        context: &Context,
        open: &Open,
        epoch: u64,
        brought: &mut Brought,
    ) -> Result<(), Errno> {
        let movers = self.movers.as_ref().filter(|movers| !movers.is_alone.load(Ordering::Relaxed));
        let movers = movers.ok_or(Errno::EOPNOTSUPP)?;
        let (names, number) = (self.session(open), open.number().ok_or(Errno::EIO)?);
        let asked = names.right_beside_others(context, number, epoch, brought).await;
        movers.is_alone.fetch_or(asked == Err(Errno::EOPNOTSUPP), Ordering::Relaxed);
        asked?;
        names.make_stable(&open.handle, &context.cancel).await
    }

    /// Writes under a lease, which is held until it is known what has become of all of it. `None`:
    /// it is to go as any other write. EINTR: the caller waits no longer; it goes on.
    pub(crate) async fn write_direct(&self, context: &Context, (direct, hold): (Direct, Hold)) -> Option<Went> {
        let volume = self.this.upgrade()?;
        let (group, handle) = (self.sessions[0].groups()[0].clone(), direct.open.handle.clone());
        let of_work = volume.clone();
        let work = Box::pin(async move {
            let done = of_work.write_to_the_end(&direct).await;
            drop(hold);
            done
        });
        let lasting = Lasting { work: Some(work), group, volume, handle };
        lasting.until(&context.cancel).await.unwrap_or(Some(Went::Done(Err(Errno::EINTR))))
    }

    /// Writes to the server of the names, as [`write_direct`](Volume::write_direct) does past it.
    pub(super) async fn write_lasting(
        &self,
        (context, handle): (&Context, Arc<[u8]>),
        write: (WriteAt, Bytes),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        let volume = self.this.upgrade().ok_or(Errno::EINTR)?;
        let (group, of_work) = (self.sessions[0].groups()[0].clone(), volume.clone());
        let own = context.lasting();
        let mut its = std::mem::take(brought);
        let work = Box::pin(async move {
            let done = of_work.write_now(&own, write, &mut its).await;
            (done, its)
        });
        let lasting = Lasting { work: Some(work), group, volume, handle };
        match lasting.until(&context.cancel).await {
            Some((done, its)) => {
                *brought = its;
                done
            }
            None => {
                brought.is_open = true;
                Err(Errno::EINTR)
            }
        }
    }

    /// `None`: nothing was done.
    async fn write_to_the_end(&self, direct: &Direct) -> Option<Went> {
        let Direct { write, data, .. } = direct;
        let (mut works, mut pieces, mut at): (Works<'_, _>, Vec<_>, _) = (Vec::new(), Vec::new(), 0);
        while at < data.len() {
            let offset = write.offset + at as u64;
            let length = (self.block_end(offset) - offset).min((data.len() - at) as u64) as usize;
            let piece = (WriteAt { offset, ..*write }, data.slice(at..at + length));
            pieces.push(piece.clone());
            works.push(Box::pin(self.write_piece(direct, piece)));
            at += length;
        }
        let done = join(works).await;
        if done.iter().all(Option::is_none) {
            return None;
        }
        let pieces = pieces.into_iter().zip(done).map(|((write, data), done)| Piece { write, data, done });
        let (all, mut whole) = (pieces.collect::<Vec<_>>(), Vec::new());
        for piece in &all {
            match &piece.done {
                Some(done) => whole.push((piece.data.len(), *done)),
                None => return Some(Went::InPart(all)),
            }
        }
        Some(Went::Done(of_pieces(whole)))
    }

    /// Writes what lies in one block.
    async fn write_piece(
        &self,
        direct: &Direct,
        (mut write, data): (WriteAt, Bytes),
    ) -> Option<Result<Written, Errno>> {
        let Direct { open, credential, epoch, is_shared, .. } = direct;
        write.stable |= is_shared;
        write.open = open.number()?;
        let context = Context::new(ClientId(0), credential.clone());
        let kept = Kept::new((write.open, &context.credential), (write.offset, data.clone()), 0).of(&write, *is_shared);
        let (number, program, done, is_of_now) = loop {
            let (key, found) = self.lane_of(self.movers.as_ref()?, open, write.offset);
            let begun = poll_fn(|task| self.lanes.poll_begin_write((&key, *epoch), &kept, task)).await;
            let (number, program) = begun?;
            let of = (&key, *epoch);
            let flight = Flight { volume: self, of, open, context: &context, write, data: &data, number };
            let went = match &found {
                Some(mover) => flight.by_lane(mover, *is_shared).await,
                None => flight.of_names().await,
            };
            match went {
                Ok(done) => break (number, program, done, self.lanes.end_write(number)),
                // Nothing was done of it, unless a recovery does it.
                Err(Moved) if self.lanes.end_write(number) => self.lanes.settled(number),
                Err(Moved) => break (number, program, None, false),
            }
        };
        let done = match done {
            _ if is_of_now => done,
            // Another epoch has begun: whatever came, the recovery has had it written once more.
            Some(Ok(written)) if write.stable => {
                program.is_recovered().await;
                Some(Ok(written))
            }
            _ => match program.is_recovered().await {
                true => Some(Ok(Written { count: data.len() as u32, ..Written::default() })),
                // Others may have written over it since.
                false => is_shared.then_some(Err(Errno::EIO)),
            },
        };
        self.lanes.settled(number);
        done
    }
}

/// A program that is killed in the midst of a write gives up its locks.
impl Volume {
    /// What it was writing comes to its end before that: else it would land after what the next
    /// owner writes. EINTR: nobody waits for the request any more; what gives locks up is made
    /// when that is so.
    pub(super) async fn abandoned_first(&self, context: &Context, request: &Request<'_>) -> Result<(), Errno> {
        let Some((open, request)) = gives_up_locks(request) else { return Ok(()) };
        if !self.lanes.has_abandoned() {
            return Ok(());
        }
        let Some(handle) = self.opens.handle(open) else { return Ok(()) };
        let is_quiet = poll_fn(|task| match self.lanes.poll_none_abandoned(&handle, task) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => context.cancel.poll(task).map(|()| false),
        });
        if is_quiet.await {
            return Ok(());
        }
        if matches!(&request, Request::SetLock { lock, .. } if lock.kind != LockKind::Unlock) {
            return Err(Errno::EINTR); // who asked for it believes that he has none
        }
        let Some(volume) = self.this.upgrade() else { return Err(Errno::EINTR) };
        let context = context.lasting();
        self.sessions[0].groups()[0].spawn(async move {
            poll_fn(|task| volume.lanes.poll_none_abandoned(&handle, task)).await;
            let done = volume.call_now(&context, &request, &mut Brought::default()).await;
            if let Err(error) = done {
                tracing::debug!(%error, "what a killed program had locked or open could not be given up");
            }
        });
        Err(Errno::EINTR)
    }
}

/// A request after which others may have a lock, with its open.
fn gives_up_locks(request: &Request<'_>) -> Option<(OpenId, Request<'static>)> {
    Some(match *request {
        Request::Flush { open, owner } => (open, Request::Flush { open, owner }),
        Request::Release { open } => (open, Request::Release { open }),
        Request::SetLock { open, owner, space, lock, wait } => {
            (open, Request::SetLock { open, owner, space, lock, wait })
        }
        _ => return None,
    })
}

/// Another map holds meanwhile: the block may have another server.
struct Moved;

/// One write on its way.
struct Flight<'a> {
    volume: &'a Volume,
    of: Of<'a>,
    open: &'a Arc<Open>,
    context: &'a Context,
    write: WriteAt,
    data: &'a Bytes,
    number: u64,
}

impl Flight<'_> {
    /// A block of the server of the names.
    async fn of_names(&self) -> Result<Option<Result<Written, Errno>>, Moved> {
        match poll_fn(|task| self.volume.lanes.poll_board(self.of, false, task)).await {
            Boarded::Moved => Err(Moved),
            _ => {
                let _straight = Straight(self.volume, self.of.0.clone());
                Ok(self.by_names(None).await)
            }
        }
    }

    /// Through the server of the names, under the lease.
    async fn by_names(&self, ordinal: Option<Ordinal>) -> Option<Result<Written, Errno>> {
        let names = self.volume.session(self.open);
        if names.make_stable(&self.of.0.handle, &self.context.cancel).await.is_err() {
            return None;
        }
        match names.write_held(self.context, (self.write, ordinal), self.data.clone(), self.of.1).await {
            Err(Errno::ESTALE | Errno::EIO) => None, // it has no such lease any more
            done => Some(done),
        }
    }

    /// Once more, of which nobody knows what has become, and before anybody else changes what it
    /// may have changed.
    async fn again(&self, is_shared: bool) -> Option<Result<Written, Errno>> {
        let done = self.by_names(is_shared.then_some(REPEATED)).await;
        let names = self.volume.session(self.open);
        if done.is_none() && names.opens().epoch() == self.of.1 {
            // The lease was broken, or another one does not know either what became of what it
            // wrote there: others may have seen this one, and written over it since.
            let server = names.server();
            tracing::error!(%server, "nobody knows what has become of a write that was under way when the server of the names gave its file to others, or others wrote there as well: the program gets an error");
            return Some(Err(Errno::EIO));
        }
        done
    }

    /// Through the server of data, or how it goes when there is no right.
    async fn by_lane(&self, mover: &Mover, is_shared: bool) -> Result<Option<Result<Written, Errno>>, Moved> {
        let (lanes, of, (key, epoch)) = (&self.volume.lanes, self.of, self.of);
        let (mut opens, mut was_refused, mut has_failed) = (true, false, false);
        loop {
            let boarded = poll_fn(|task| lanes.poll_board(of, opens && mover.may_have_rights(), task)).await;
            let token = match boarded {
                // Something of it may be done, which others may have seen.
                Boarded::Moved if is_shared && has_failed => return Ok(self.again(is_shared).await),
                Boarded::Moved => return Err(Moved),
                Boarded::Straight => {
                    let straight = Straight(self.volume, key.clone());
                    let done = match (is_shared, has_failed) {
                        (true, true) => self.again(is_shared).await,
                        (true, false) => None,
                        (false, _) => self.by_names(None).await,
                    };
                    drop(straight);
                    return Ok(done);
                }
                Boarded::Opens => {
                    opens &= self.volume.open_lane(of, (mover, self.open)).await;
                    continue;
                }
                Boarded::Flies(token) => token,
            };
            let ordinal = is_shared.then(|| lanes.ordinal(self.number, key.place));
            let sent = (self.write, self.data.clone());
            let flown = self.volume.fly((self.context, mover, (&token, ordinal)), self.open, sent).await;
            has_failed |= matches!(flown, Flown::Failed);
            match flown {
                Flown::Written(written) => {
                    let data = self.data.slice(..self.data.len().min(written.count as usize));
                    let place = (self.write.open, &self.context.credential);
                    // Beside others it is stable: nobody writes it again over another's.
                    let verifier = if is_shared { 0 } else { written.verifier };
                    let kept = Kept::new(place, (self.write.offset, data), verifier);
                    self.volume.landed(of, kept).await;
                    return Ok(Some(Ok(written)));
                }
                Flown::Refused | Flown::Failed => {
                    if lanes.refused(key, epoch, &token) {
                        self.volume.open_lane(of, (mover, self.open)).await;
                    }
                    // It may have a reason of its own: the server of the names says which.
                    if std::mem::replace(&mut was_refused, true) {
                        opens = false;
                        self.volume.close(key, epoch);
                    }
                }
                Flown::Unknown => {
                    mover.is_away();
                    if lanes.is_dead(key, epoch) {
                        self.volume.close_later(key, epoch);
                    }
                    poll_fn(|task| lanes.poll_over(key, epoch, task)).await;
                    lanes.vanished(key, epoch);
                    return Ok(self.again(is_shared).await);
                }
            }
        }
    }
}
