//! Writes to files whose bytes lie in objects: a client brings the data to the server of data that
//! has the object, and asks the server of the names to write them, as it asks for any other write.
//! That one has the former do so. What travels far is the data, once; what decides which write
//! goes first, how long the file is, whose quota counts and whether the object is still there is
//! decided where it is for all others. What was brought and is not asked for is nobody's.
//!
//! The server of the names has no copy that it could have written again, so that they are stable
//! where they lie when the write is answered.

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
use super::placed::{OfWriter, Placed, cut};
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
        let HeldWrite { write, data, epoch } = held;
        let names = self.session(open);
        let Some(placed) = self.placed((context, open), (&write, data.len())).await else {
            let length = data.len();
            let done = names.write_held(context, (write, None), data, epoch).await;
            self.wrote_by_names(open, length, &done);
            return done;
        };
        let write_part = |write: WriteAt, data: Bytes, staged: Option<Staged>| async move {
            match staged {
                Some(staged) => names.write_held_staged(context, write, (data, staged), epoch).await,
                None => names.write_held(context, (write, None), data, epoch).await,
            }
        };
        self.write_parts(&placed, (context, open), (write, &data), write_part).await
    }

    /// The same of what a program writes that holds nothing back, but has the file alone as long
    /// as this goes on. `None`: it goes as any other write.
    pub(crate) async fn write_objects_alone(
        &self,
        context: &Context,
        (open, write): (&Arc<Open>, WriteAt),
        data: &Bytes,
    ) -> Option<Result<Written, Errno>> {
        let placed = self.placed((context, open), (&write, data.len())).await?;
        let names = self.session(open);
        let write = match self.real(write.open, context.steps()).await {
            Ok(real) => WriteAt { open: real.number, ..write },
            Err(error) => return Some(Err(error)),
        };
        let write_part = |write: WriteAt, data: Bytes, staged: Option<Staged>| async move {
            names.write_from(context, (write, data, staged), &mut Brought::default()).await
        };
        Some(self.write_parts(&placed, (context, open), (write, data), write_part).await)
    }

    /// Writes each part of something where it lies.
    async fn write_parts<'a, F: Future<Output = Result<Written, Errno>> + Send + 'a>(
        &'a self,
        placed: &'a Placed,
        (context, open): (&'a Context, &'a Arc<Open>),
        (write, data): (WriteAt, &Bytes),
        write_part: impl Fn(WriteAt, Bytes, Option<Staged>) -> F + Copy + Send + 'a,
    ) -> Result<Written, Errno> {
        let mut works: Works<'a, _> = Vec::new();
        for (part, write, data) in cut(placed, write, data) {
            works.push(Box::pin(async move {
                let length = data.len();
                let staged = self.stage((placed, part), context, &data).await;
                if staged.is_some() {
                    match write_part(write, data.clone(), staged).await {
                        Err(error) if self.was_refused(open, error) => {}
                        done => return (length, done),
                    }
                }
                (length, write_part(write, data, None).await)
            }));
        }
        of_pieces(join(works).await)
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
            Errno::ENODATA => *lock(&open.objects.writer) = OfWriter::default(),
            _ => return false,
        }
        true
    }

    /// Where a file lies, if that may be known by now.
    async fn placed(
        &self,
        (context, open): (&Context, &Arc<Open>),
        (write, length): (&WriteAt, usize),
    ) -> Option<Arc<Placed>> {
        if length < self.brought_to()?.straight_from || write.append {
            return None;
        }
        let known = || lock(&open.objects.writer).known.clone();
        if let Some(known) = known() {
            return Some(known);
        }
        if !lock(&open.objects.writer).asks(write.offset) {
            return None;
        }
        let _turn = open.objects.asking.take(&context.cancel).await.ok()?;
        if let Some(known) = known() {
            return Some(known);
        }
        let above = self.above[open.session].as_ref();
        let (asked, mut brought) = (above.map_or(0, |above| above.number()), Brought::default());
        let request = Request::Layout { handle: &open.handle, open: open.number()? };
        let answer = self.session(open).call(context, request, &mut brought).await;
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
        let session = mover.session()?.clone();
        let (cancel, job) = (context.cancel.clone(), context.job.clone());
        let own = Context { cancel, job, ..Context::new(ClientId(0), Credential::root()) };
        match while_alive(&session, session.stage(&own, data.clone())).await {
            Some(Ok(staged)) => Some(staged),
            // It has no room now, or takes nothing.
            Some(Err(Errno::EAGAIN | Errno::EOPNOTSUPP | Errno::EINTR)) => None,
            Some(Err(error)) => {
                tracing::debug!(%error, "data could not be brought to a server of the volume");
                mover.is_away();
                None
            }
            None => {
                mover.is_away();
                None
            }
        }
    }
}
