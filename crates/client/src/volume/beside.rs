//! What programs write that nobody holds back, large as it is or beside other clients: it goes
//! straight to the server of data that has its blocks, like what was held back ([`ways`]), while a
//! lease says that this client may write there.
//!
//! Beside others it is stable when it is answered. So there are no copies of answered writes that
//! could be written again over another client's. One of which nobody knows what has become of it
//! is written again before the lease goes, through the server of the names, once nothing of it is
//! executed any more; in a recovery, before anybody else is let in.
//!
//! [`ways`]: super::ways

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use aqueduct_fs::{ClientId, Context, Credential, Errno, Hold, WriteAt, Written};
use aqueduct_session::Brought;
use aqueduct_worker::Group;
use bytes::Bytes;

use super::lanes::{ALL, Boarded, Kept, Key};
use super::movers::Mover;
use super::opens::Open;
use super::parts::Volume;
use super::ways::{Flown, Straight};

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

/// Goes on by itself when nobody waits for it any more.
struct Lasting<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    group: Arc<Group>,
}

impl<T: Send + 'static> Drop for Lasting<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.group.spawn(async move { drop(work.await) });
        }
    }
}

impl Volume {
    /// Whether anything of so many bytes may go straight, or at all.
    pub(crate) fn goes_straight(&self, length: usize) -> bool {
        self.movers.as_ref().is_some_and(|movers| {
            let may = !movers.is_constant && !movers.takes_turns;
            may && length >= movers.straight_from && movers.has(Mover::may_have_rights)
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
    pub(crate) async fn write_direct(
        &self,
        context: &Context,
        (direct, hold): (Direct, Hold),
    ) -> Option<Result<Written, Errno>> {
        let volume = self.this.upgrade()?;
        let group = self.sessions[0].groups()[0].clone();
        let work = Box::pin(async move {
            let done = volume.write_to_the_end(&direct).await;
            drop(hold);
            done
        });
        let mut lasting = Lasting { work: Some(work), group };
        poll_fn(|task| {
            let Some(work) = &mut lasting.work else { return Poll::Ready(None) };
            if let Poll::Ready(done) = work.as_mut().poll(task) {
                lasting.work = None;
                return Poll::Ready(done);
            }
            context.cancel.poll(task).map(|()| Some(Err(Errno::EINTR)))
        })
        .await
    }

    async fn write_to_the_end(&self, direct: &Direct) -> Option<Result<Written, Errno>> {
        let Direct { write, data, .. } = direct;
        let (mut works, mut lengths, mut at): (Vec<Work<'_>>, _, _) = (Vec::new(), Vec::new(), 0);
        while at < data.len() {
            let offset = write.offset + at as u64;
            let length = (self.block_end(offset) - offset).min((data.len() - at) as u64) as usize;
            let piece = (WriteAt { offset, ..*write }, data.slice(at..at + length));
            works.push(Box::pin(self.write_piece(direct, piece)));
            lengths.push(length);
            at += length;
        }
        let mut all = Written::default();
        let done: Option<Vec<_>> = join(works).await.into_iter().collect();
        for (done, length) in done?.into_iter().zip(lengths) {
            match done {
                Ok(written) => {
                    all = Written { count: all.count + written.count, ..written };
                    if (written.count as usize) < length {
                        break; // what lies behind does not count
                    }
                }
                Err(error) if all.count == 0 => return Some(Err(error)),
                Err(_) => break,
            }
        }
        Some(Ok(all))
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
        let found = self.movers.as_ref()?.designated(open, write.offset);
        let place = found.as_ref().map_or(ALL, |(place, _)| *place);
        let key = Key { handle: open.handle.clone(), place };
        let context = Context::new(ClientId(0), credential.clone());
        let kept = Kept::new((write.open, &context.credential), (write.offset, data.clone()), 0).of(&write);
        let (number, program) = self.lanes.begin_write(&key, *epoch, kept)?;
        let flight = Flight { volume: self, key: &key, epoch: *epoch, open, context: &context, write, data: &data };
        let done = match found {
            Some((_, mover)) => flight.by_lane(mover, *is_shared).await,
            // A block of the server of the names.
            None => flight.by_names().await,
        };
        if self.lanes.end_write(number) {
            return done;
        }
        // Another epoch has begun: whatever came, the recovery has had it written once more.
        let is_answered = matches!(done, Some(Ok(_)));
        let is_recovered = program.is_recovered().await;
        if is_answered && write.stable {
            return done;
        }
        is_recovered.then(|| Ok(Written { count: data.len() as u32, ..Written::default() }))
    }
}

type Work<'a> = Pin<Box<dyn Future<Output = Option<Result<Written, Errno>>> + Send + 'a>>;

/// What becomes of all of these, which go on at once.
async fn join(mut works: Vec<Work<'_>>) -> Vec<Option<Result<Written, Errno>>> {
    let mut done = vec![None; works.len()];
    poll_fn(|task| {
        let mut waits = false;
        for (work, done) in works.iter_mut().zip(&mut done) {
            if done.is_none() {
                match work.as_mut().poll(task) {
                    Poll::Ready(ended) => *done = Some(ended),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// One write on its way.
struct Flight<'a> {
    volume: &'a Volume,
    key: &'a Key,
    epoch: u64,
    open: &'a Arc<Open>,
    context: &'a Context,
    write: WriteAt,
    data: &'a Bytes,
}

impl Flight<'_> {
    /// Through the server of the names, under the lease.
    async fn by_names(&self) -> Option<Result<Written, Errno>> {
        let names = self.volume.session(self.open);
        if names.make_stable(&self.key.handle, &self.context.cancel).await.is_err() {
            return None;
        }
        match names.write_held(self.context, self.write, self.data.clone(), self.epoch).await {
            Err(Errno::ESTALE | Errno::EIO) => None, // it has no such lease any more
            done => Some(done),
        }
    }

    /// Through the server of data, or how it goes when there is no right.
    async fn by_lane(&self, mover: &Mover, is_shared: bool) -> Option<Result<Written, Errno>> {
        let (lanes, of) = (&self.volume.lanes, (self.key, self.epoch));
        let (mut opens, mut was_refused) = (true, false);
        loop {
            let boarded = poll_fn(|task| lanes.poll_board(of, opens && mover.may_have_rights(), task)).await;
            let token = match boarded {
                Boarded::Straight => {
                    let straight = Straight(self.volume, self.key.clone());
                    if is_shared {
                        return None;
                    }
                    let done = self.by_names().await;
                    drop(straight);
                    return done;
                }
                Boarded::Opens => {
                    opens &= self.volume.open_lane(of, (mover, self.open)).await;
                    continue;
                }
                Boarded::Flies(token) => token,
            };
            let flown = self.volume.fly((self.context, mover, &token), self.open, (self.write, self.data.clone()));
            match flown.await {
                Flown::Written(written) => {
                    let data = self.data.slice(..self.data.len().min(written.count as usize));
                    let place = (self.write.open, &self.context.credential);
                    // Beside others it is stable: nobody writes it again over another's.
                    let verifier = if is_shared { 0 } else { written.verifier };
                    let kept = Kept::new(place, (self.write.offset, data), verifier);
                    self.volume.landed(of, kept).await;
                    return Some(Ok(written));
                }
                Flown::Refused => {
                    if lanes.refused(self.key, self.epoch, &token) {
                        self.volume.open_lane(of, (mover, self.open)).await;
                    }
                    // It may have a reason of its own: the server of the names says which.
                    if std::mem::replace(&mut was_refused, true) {
                        opens = false;
                        self.volume.close(self.key, self.epoch);
                    }
                }
                Flown::Unknown => {
                    mover.is_away();
                    if lanes.is_dead(self.key, self.epoch) {
                        self.volume.close_later(self.key, self.epoch);
                    }
                    poll_fn(|task| lanes.poll_over(self.key, self.epoch, task)).await;
                    lanes.vanished(self.key, self.epoch);
                    // Before anybody else changes what it may have changed.
                    return self.by_names().await;
                }
            }
        }
    }
}
