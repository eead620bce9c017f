//! Files whose bytes lie in objects at servers of data, where the server of the names says: they
//! are read there, several at once into one sink.
//!
//! Where they lie is kept under the lease on the file's content, with its size. It is looked at
//! once more when all has come, and only then is the sink delivered: so what is read is what one
//! read through the server of the names could have given, also of a file whose lease was broken
//! meanwhile. Whatever fails here is read through that server, which says what holds.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use aqueduct_fs::parts::{Padded, Parts, Whole, take_apart};
use aqueduct_fs::stripe::Piece;
use aqueduct_fs::{Context, Errno, Hold, Layout, MemorySink, OpenId, Part, ReadAt, Request, Sink};
use aqueduct_session::{Brought, Session, now};
use aqueduct_worker::lock;

use super::adopted::{ASKED, Adopted, Asking, NEW, OVER, THERE};
use super::lent::lend;
use super::moved::{SMALL, release, while_connected};
use super::mover::Mover;
use super::opens::{Open, Real};
use super::parted::{Objects, OfPart, State};
use super::parts::Volume;
use super::turns::Turns;

/// So many small reads of an open go through the server of the names before it is asked where the
/// bytes lie.
const SMALL_READS: u32 = 8;

/// Where one piece comes from.
enum From<'a> {
    Nowhere,
    Names(&'a Arc<Session>, OpenId),
    Object { mover: Arc<Mover>, session: Arc<Session>, of: &'a OfPart, token: &'a [u8] },
}

/// What goes on at once.
pub(super) type Works<'a, T> = Vec<Pin<Box<dyn Future<Output = T> + Send + 'a>>>;

/// What becomes of all of these, which go on at once.
pub(super) async fn join<T>(mut works: Works<'_, T>) -> Vec<T> {
    let mut done: Vec<Option<T>> = works.iter().map(|_| None).collect();
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

/// A sink in parts.
struct Apart {
    whole: Whole,
    /// Where the whole is copied to, when the sink takes its bytes in order only.
    ordered: Option<(MemorySink, Box<dyn Sink>)>,
}

impl Apart {
    fn new(sink: Box<dyn Sink>, lengths: &[usize]) -> Result<(Apart, Parts), Box<dyn Sink>> {
        match take_apart(sink, lengths) {
            Ok((whole, parts)) => Ok((Apart { whole, ordered: None }, parts)),
            Err(sink) => {
                let memory = MemorySink::default();
                match take_apart(Box::new(memory.clone()), lengths) {
                    Ok((whole, parts)) => Ok((Apart { whole, ordered: Some((memory, sink)) }, parts)),
                    Err(_) => Err(sink),
                }
            }
        }
    }

    /// The sink, to be filled by somebody else.
    fn back(self) -> Result<Box<dyn Sink>, Errno> {
        match self.ordered {
            Some((_, sink)) => Ok(sink),
            None => Ok(self.whole.into_sink()?),
        }
    }

    fn deliver(self, length: usize) -> Result<usize, Errno> {
        self.whole.finish(length)?;
        if let Some((memory, mut sink)) = self.ordered {
            sink.bytes(&memory.take().ok_or(Errno::EIO)?)?;
            sink.finish(length)?;
        }
        Ok(length)
    }
}

impl Volume {
    /// Reads a file's objects, if its bytes lie in some, and if there is a lease under which that
    /// may be. The sink comes back where it may not, or where it failed.
    pub(super) async fn read_objects(
        &self,
        context: &Context,
        (read, real): (ReadAt, Real),
        sink: Box<dyn Sink>,
    ) -> Result<Result<usize, Errno>, Box<dyn Sink>> {
        let Some(open) = self.opens.get(read.open) else { return Err(sink) };
        let Some((layout, hold)) = self.layout(context, (&open, real), read.length).await else { return Err(sink) };
        let length = layout.size.saturating_sub(read.offset).min(read.length.into());
        let pieces = layout.stripe().map(|stripe| stripe.pieces(read.offset, length)).unwrap_or_default();
        let objects = self.objects_of(&open, &layout);
        let sources: Option<Vec<From<'_>>> = objects.as_deref().and_then(|objects| {
            let names = From::Names(&self.sessions[real.session], real.number);
            pieces.iter().map(|piece| self.source((&layout, objects), piece, &names)).collect()
        });
        let is_object = |from: &From<'_>| matches!(from, From::Object { .. });
        let Some(sources) = sources.filter(|sources| sources.iter().any(is_object)) else { return Err(sink) };
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.length as usize).collect();
        let (apart, parts) = Apart::new(sink, &lengths)?;
        let works = sources.iter().zip(&pieces).zip(parts);
        let works: Works<'_, _> = works
            .map(|((from, piece), part)| Box::pin(self.read_piece((context, &open), from, *piece, part)) as Pin<Box<_>>)
            .collect();
        let done = join(works).await;
        if done.contains(&Err(Errno::EINTR)) {
            return Ok(Err(Errno::EINTR));
        }
        if done.iter().all(Result::is_ok) && self.is_present(&open, &layout) {
            return Ok(apart.deliver(length as usize));
        }
        drop(hold);
        match apart.back() {
            Ok(sink) => Err(sink),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Whether a layout is what is kept under the lease now.
    fn is_present(&self, open: &Open, layout: &Arc<Layout>) -> bool {
        let above = self.above[open.session].as_ref();
        above.and_then(|above| above.layout(&open.handle)).is_some_and(|now| Arc::ptr_eq(&now, layout))
    }

    /// Where the bytes of an open lie, and what holds up whoever is about to change that.
    async fn layout(&self, context: &Context, (open, real): (&Open, Real), length: u32) -> Option<(Arc<Layout>, Hold)> {
        let above = self.above[open.session].as_ref()?;
        if above.layout(&open.handle).is_none() {
            // To ask where a small file lies takes longer than to read it, and where it is written
            // again and again that is not known for long.
            let is_few = || open.objects.small.fetch_add(1, Ordering::Relaxed) % SMALL_READS != SMALL_READS - 1;
            if length <= SMALL && is_few() {
                return None;
            }
            // Without a lease others write it, and the answer would not be good for long. Nothing
            // is held while it is asked: who changes the file may be waited for.
            drop(self.hold_content(context, open).await?);
            let _turn = open.objects.asking.take(&context.cancel).await.ok()?;
            if above.layout(&open.handle).is_none() {
                let (asked, mut brought) = (above.number(), Brought::default());
                let request = Request::Layout { handle: &open.handle, open: real.number };
                let answer = self.sessions[real.session].call(context, &request, &mut brought).await;
                let layout = answer.and_then(|reply| reply.layout());
                let unknown = |error: &Errno| tracing::debug!(%error, "where a file lies is not known");
                above.keep_layout(&open.handle, Arc::new(layout.inspect_err(unknown).ok()?), (asked, &brought));
            }
        }
        let hold = above.hold_content(&open.handle)?;
        Some((above.layout(&open.handle)?, hold))
    }

    /// The objects of an open, as a layout has them; `None`: they are not to be read now.
    fn objects_of(&self, open: &Open, layout: &Layout) -> Option<Arc<Objects>> {
        let movers = self.movers.as_ref()?;
        let mut state = lock(&open.objects.objects);
        let old = match &*state {
            State::Closed => return None,
            State::None => None,
            State::Known(known) => {
                let is_same =
                    (known.id, known.epoch, known.parts.len()) == (layout.id, layout.epoch, layout.parts.len());
                match known.has_refused_lately() {
                    None if is_same => return Some(known.clone()),
                    Some(true) if is_same => return None,
                    _ => {} // tried anew, by what was asked for since
                }
                Some(known.clone())
            }
        };
        let part = |_: &Part| OfPart {
            number: movers.next_open(),
            adopted: Adopted::default(),
            opening: Turns::default(),
            session: Mutex::default(),
        };
        let (parts, refused) = (layout.parts.iter().map(part).collect(), AtomicU64::new(0));
        let objects = Arc::new(Objects { id: layout.id, epoch: layout.epoch, parts, refused });
        *state = State::Known(objects.clone());
        drop(state);
        old.iter().for_each(|old| close(old, open));
        Some(objects)
    }

    /// Where a piece is read; `None`: it is not to be now.
    fn source<'a>(
        &'a self,
        (layout, objects): (&'a Layout, &'a Objects),
        piece: &Piece,
        names: &From<'a>,
    ) -> Option<From<'a>> {
        let (part, of) = (layout.parts.get(piece.part)?, objects.parts.get(piece.part)?);
        let (place, token) = match part {
            Part::Hole { .. } => return Some(From::Nowhere),
            Part::Untold { .. } => return None,
            Part::At { place, token } => (place, token),
        };
        let movers = self.movers.as_ref()?;
        match (movers.nth(*place)?, names) {
            (Some(mover), _) => Some(From::Object { session: mover.session()?.clone(), mover, of, token }),
            (None, From::Names(session, number)) => Some(From::Names(session, *number)),
            _ => None,
        }
    }

    async fn read_piece(
        &self,
        (context, open): (&Context, &Open),
        from: &From<'_>,
        piece: Piece,
        part: Box<dyn Sink>,
    ) -> Result<(), Errno> {
        let length = piece.length as usize;
        let (lent, lender) = lend(Box::new(Padded::new(part, length)));
        let done = match from {
            From::Nowhere => return Ok(lent.finish(0)?),
            From::Names(session, open) => {
                let read = ReadAt { open: *open, offset: piece.offset, length: length as u32 };
                session.read(context, read, lent).await
            }
            From::Object { mover, session, of, token } => {
                let at = ReadAt { open: of.number, offset: piece.at, length: length as u32 };
                match open_object(context, (mover, session), (of, token), open).await {
                    Ok(()) => {
                        let done = while_connected(session, session.read(context, at, lent)).await;
                        done.inspect_err(|error| self.judge(open, (mover, of), *error))
                    }
                    Err(error) => {
                        drop(lent);
                        self.judge(open, (mover, of), error);
                        Err(error)
                    }
                }
            }
        };
        if done != Err(Errno::EINTR) {
            // A connection may still be receiving into it.
            drop(lender.outcome().await);
        }
        done.map(drop)
    }

    /// An object was not read: its server does not answer, or does not have it open, or not any
    /// more.
    fn judge(&self, open: &Open, (mover, of): (&Mover, &OfPart), error: Errno) {
        match error {
            Errno::EIO => mover.is_away(),
            Errno::EINTR => {}
            _ => {
                // Perhaps its token is too old: the next one asks for others.
                self.above[open.session].iter().for_each(|above| above.forget_layout(&open.handle));
                of.adopted.changes(THERE, OVER);
                if let State::Known(objects) = &*lock(&open.objects.objects) {
                    objects.refused.store(now(), Ordering::Relaxed);
                }
            }
        }
    }

    /// An open has ended: its objects are closed. Nobody waits for that.
    pub(super) fn close_objects(&self, open: &Open) {
        let state = std::mem::replace(&mut *lock(&open.objects.objects), State::Closed);
        if let State::Known(objects) = state {
            close(&objects, open);
        }
    }
}

/// Closes what is open of these.
fn close(objects: &Objects, open: &Open) {
    for part in &objects.parts {
        // Also what nobody knows of whether it was opened, or which was lost: an open that is none
        // is released without harm.
        part.adopted.close();
        lock(&part.session).take().iter().for_each(|session| release(session, part.number, open));
    }
}

/// Has an object opened at its server, unless it is. EBADF: it is not to be had there any more.
async fn open_object(
    context: &Context,
    (mover, session): (&Mover, &Arc<Session>),
    (of, token): (&OfPart, &[u8]),
    open: &Open,
) -> Result<(), Errno> {
    let _turn = match of.adopted.is_there() {
        true => None,
        false => Some(of.opening.take(&context.cancel).await?),
    };
    if of.adopted.is_there() {
        // The server may have lost it since.
        return session.opens().check([of.number]).map_err(|_| Errno::EBADF);
    }
    if !mover.is_there() {
        return Err(Errno::EIO); // who had the turn before has found it away
    }
    if !of.adopted.changes(NEW, ASKED) {
        return Err(Errno::EBADF);
    }
    let mut asking = Asking { adopted: &of.adopted, then: NEW };
    *lock(&of.session) = Some(session.clone());
    let asked = while_connected(session, session.adopt(context, of.number, (&open.handle, token, false))).await;
    match asked {
        Ok(()) => asking.then = THERE,
        Err(Errno::EIO | Errno::EINTR) => {}
        Err(_) => asking.then = OVER,
    }
    drop(asking);
    if asked.is_ok() && !of.adopted.is_there() {
        release(session, of.number, open); // it was closed meanwhile
    }
    asked
}
