//! Writes to files whose bytes lie in objects: a client brings the data to the server of data that
//! has the object, and asks the server of the names to write them, as it asks for any other write.
//! That one has the former do so. What travels far is the data, once; what decides which write
//! goes first, how long the file is, whose quota counts and whether the object is still there is
//! decided where it is for all others. What was brought and is not asked for is nobody's.
//!
//! The server of the names has no copy that it could have written again, so that they are stable
//! where they lie when the write is answered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_fs::{ClientId, Context, Credential, Errno, Request, Staged, WriteAt, Written};
use aqueduct_session::Brought;
use aqueduct_worker::lock;
use bytes::Bytes;

use super::beside::of_pieces;
use super::movers::Movers;
use super::objects::{Works, join};
use super::opens::Open;
use super::parts::Volume;
use super::placed::{Placed, cut, together};
use super::ways::{HeldWrite, while_alive};

impl Volume {
    /// Those who are brought data, if this volume has such.
    fn brought_to(&self) -> Option<&Movers> {
        let movers = self.movers.as_ref().filter(|movers| movers.has_objects)?;
        (movers.are_any() && !movers.brings_nothing.load(Ordering::Relaxed)).then_some(movers)
    }

    /// Whether what is written of large files goes where their objects lie.
    pub(crate) fn has_objects(&self) -> bool {
        self.movers.as_ref().is_some_and(|movers| movers.has_objects)
    }

    /// Writes what was held back, each part of it where it lies, and has it kept until it is
    /// stable.
    pub(super) async fn write_objects(
        &self,
        (context, open): (&Context, &Arc<Open>),
        held: HeldWrite,
    ) -> Result<Written, Errno> {
        let HeldWrite { write, data, epoch } = &held;
        if let Some(placed) = self.placed((context, open), (write, data.len())).await {
            return self.write_parts(&placed, (context, open), &held).await;
        }
        let done = self.session(open).write_held(context, (*write, None), data.clone(), *epoch).await;
        self.wrote_by_names(open, data.len(), &done);
        done
    }

    /// The same of what a program writes that holds nothing back, but has the file alone in an
    /// epoch as long as this goes on. `None`: it goes as any other write.
    pub(crate) async fn write_objects_alone(
        &self,
        context: &Context,
        (open, write): (&Arc<Open>, WriteAt),
        (data, epoch): (&Bytes, u64),
    ) -> Option<Result<Written, Errno>> {
        if self.session(open).window().is_full() {
            return None; // which waits for room
        }
        let placed = self.placed((context, open), (&write, data.len())).await?;
        let write = WriteAt { open: open.number()?, ..write };
        let held = HeldWrite { write, data: data.clone(), epoch };
        match self.write_parts(&placed, (context, open), &held).await {
            // It has no such lease any more: all of it is written once more, as others may.
            Err(Errno::ESTALE | Errno::EIO) => None,
            done => Some(done),
        }
    }

    /// Writes each part of something where it lies: all are brought at once, and written one after
    /// the other, so that nothing is written behind one that is short or fails.
    async fn write_parts(
        &self,
        placed: &Placed,
        (context, open): (&Context, &Arc<Open>),
        held: &HeldWrite,
    ) -> Result<Written, Errno> {
        let parts = cut(placed, held.write, &held.data);
        let works: Works<'_, _> = parts
            .iter()
            .map(|(part, _, data)| Box::pin(self.stage((placed, *part), context, data)) as Pin<Box<_>>)
            .collect();
        let brought = join(works).await;
        let mut done = Vec::new();
        for (write, data, staged) in together(&held.data, parts, brought) {
            let length = data.len();
            let written = self.write_part((context, open), (write, data, staged), held.epoch).await;
            let is_whole = written.as_ref().is_ok_and(|written| written.count as usize == length);
            done.push((length, written));
            if !is_whole {
                break;
            }
        }
        of_pieces(done)
    }

    async fn write_part(
        &self,
        (context, open): (&Context, &Arc<Open>),
        (write, data, staged): (WriteAt, Bytes, Option<Staged>),
        epoch: u64,
    ) -> Result<Written, Errno> {
        let names = self.session(open);
        if let Some(staged) = staged {
            match names.write_held_staged(context, write, (data.clone(), staged), epoch).await {
                Err(error) if self.was_refused(open, error) => {}
                done => return done,
            }
        }
        names.write_held(context, (write, None), data, epoch).await
    }

    /// The same of what lies in one object, whoever else writes to the file. `None`: it goes as
    /// any other write.
    pub(super) async fn write_objects_now(
        &self,
        context: &Context,
        (open, write): (&Arc<Open>, WriteAt),
        (data, brought): (&Bytes, &mut Brought),
    ) -> Option<Result<Written, Errno>> {
        let placed = self.placed((context, open), (&write, data.len())).await?;
        let pieces = placed.stripe.pieces(write.offset, data.len() as u64);
        let [piece] = pieces[..] else { return None };
        let staged = self.stage((&placed, piece.part), context, data).await?;
        match self.session(open).write_from(context, (write, data.clone(), Some(staged)), brought).await {
            Err(error) if self.was_refused(open, error) => None,
            done => Some(done),
        }
    }

    /// Something was written by the server of the names: it may have made objects for it.
    pub(super) fn wrote_by_names(&self, open: &Open, length: usize, done: &Result<Written, Errno>) {
        if done.is_ok() && self.brought_to().is_some_and(|movers| length >= movers.straight_from) {
            lock(&open.objects.writer).answered += 1;
        }
    }

    /// Whether nothing was done of what was brought, so that it goes as any other write.
    fn was_refused(&self, open: &Open, error: Errno) -> bool {
        match error {
            Errno::EOPNOTSUPP => {
                let movers = self.movers.iter();
                movers.for_each(|movers| movers.brings_nothing.store(true, Ordering::Relaxed));
            }
            Errno::ENODATA => lock(&open.objects.writer).refused(),
            _ => return false,
        }
        true
    }

    /// Whether a write of so many bytes may be brought to the server that has their place.
    pub(super) fn brings(&self, write: &WriteAt, length: usize) -> bool {
        !write.append && self.brought_to().is_some_and(|movers| length >= movers.straight_from)
    }

    /// Where a file lies, if that may be known by now.
    async fn placed(
        &self,
        (context, open): (&Context, &Arc<Open>),
        (write, length): (&WriteAt, usize),
    ) -> Option<Arc<Placed>> {
        let least = self.brought_to().filter(|_| self.brings(write, length))?.straight_from;
        let known = lock(&open.objects.writer).known.clone();
        let placed = match known {
            Some(known) => known,
            None => self.ask_where(context, open, write.offset).await?,
        };
        Some(placed).filter(|placed| placed.is_worth(least))
    }

    /// Asks where a file lies, if that is due before a write at this offset.
    async fn ask_where(&self, context: &Context, open: &Arc<Open>, offset: u64) -> Option<Arc<Placed>> {
        if !lock(&open.objects.writer).asks(offset) {
            return None;
        }
        let _turn = open.objects.asking.take(&context.cancel).await.ok()?;
        let known = lock(&open.objects.writer).known.clone();
        if known.is_some() {
            return known; // who had the turn before has asked
        }
        let above = self.above[open.session].as_ref();
        let (asked, mut brought) = (above.map_or(0, |above| above.number()), Brought::default());
        let request = Request::Layout { handle: &open.handle, open: open.number()? };
        let answer = self.session(open).call(context, &request, &mut brought).await;
        above.iter().for_each(|above| above.keep_lease(&open.handle, (asked, &brought)));
        let placed = Placed::of(&answer.and_then(|reply| reply.layout()).ok()?)?;
        lock(&open.objects.writer).known = Some(placed.clone());
        Some(placed)
    }

    /// Brings data to the server that has a part of a file. `None`: they go with the write.
    async fn stage(&self, (placed, part): (&Placed, usize), context: &Context, data: &Bytes) -> Option<Staged> {
        // Below, one more round trip takes longer than the way by the server of the names.
        let movers = self.brought_to().filter(|movers| data.len() >= movers.straight_from)?;
        let mover = movers.nth(*placed.places.get(part)?)??;
        let session = mover.session().filter(|_| mover.may_be_brought())?.clone();
        let (cancel, job) = (context.cancel.clone(), context.job.clone());
        let own = Context { cancel, job, ..Context::new(ClientId(0), Credential::root()) };
        match while_alive(&session, session.stage(&own, data.clone())).await {
            Some(Ok(staged)) => Some(staged),
            Some(Err(Errno::EIO)) | None => {
                mover.is_away();
                None
            }
            Some(Err(error)) => {
                // EAGAIN: it has no room now.
                if !matches!(error, Errno::EAGAIN | Errno::EINTR) {
                    tracing::debug!(%error, "data could not be brought to a server of the volume");
                    mover.takes_nothing();
                }
                None
            }
        }
    }
}
