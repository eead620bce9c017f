//! Bytes that go through a mover, under a lease of the server of the names.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use aqueduct_fs::{ClientId, Context, Errno, Hold, OpenId, ReadAt, Request, Sink};
use aqueduct_session::{Brought, Session, now};

use super::adopted::{ASKED, Asking, Moved, NEW, OVER, THERE};
use super::lent::{Outcome, lend};
use super::mover::Mover;
use super::opens::Open;
use super::parts::Volume;

/// What is read first of a file and is no longer than this is read through the server of the
/// names: mostly there is no more.
pub(super) const SMALL: u32 = 64 << 10;

/// How often is looked whether a mover that has not answered is there still.
const LOOK: Duration = Duration::from_millis(100);

impl Volume {
    /// Reads through the server that moves the file's bytes, if there is a lease under which that
    /// may be. The sink comes back where it may not, or where that server does not answer.
    pub(super) async fn read_moved(
        &self,
        context: &Context,
        read: ReadAt,
        sink: Box<dyn Sink>,
    ) -> Result<Result<usize, Errno>, Box<dyn Sink>> {
        let found = self.movers.as_ref().and_then(|movers| Some((movers, self.opens.get(read.open)?)));
        let Some((movers, open)) = found else { return Err(sink) };
        // To open a small file elsewhere, and to close it, takes longer than to read it.
        let is_first = !open.was_read.swap(true, Ordering::Relaxed);
        if is_first && read.length <= SMALL {
            return Err(sink);
        }
        let Some((mover, session, moved)) = movers.of(&open, read.offset) else { return Err(sink) };
        let (session, adopted) = (&session, &moved.adopted);
        let number = self.adopted(context, (&mover, session, &moved), &open).await;
        let Some(number) = number else { return Err(sink) };
        // Taken last: until it is dropped nobody else changes what is read.
        let hold = if movers.is_constant { None } else { self.hold_content(context, &open).await };
        if hold.is_none() && !movers.is_constant {
            return Err(sink);
        }
        let (lent, lender) = lend(sink);
        let done = while_connected(session, session.read(context, ReadAt { open: number, ..read }, lent)).await;
        if matches!(done, Ok(_) | Err(Errno::EINTR)) {
            return Ok(done);
        }
        // Whatever it is: what the server of the names says is what holds.
        match done {
            Err(Errno::EIO) => mover.is_away(),
            _ => _ = adopted.changes(THERE, OVER),
        }
        let outcome = lender.outcome().await;
        drop(hold);
        match outcome {
            Outcome::Delivered(count) => Ok(Ok(count)),
            Outcome::Back(sink) => Err(sink),
        }
    }

    /// Holds up whoever is about to change what is read. What others were writing when it was opened
    /// came without a lease, and no read brings one: it is asked for again now and then.
    pub(super) async fn hold_content(&self, context: &Context, open: &Open) -> Option<Hold> {
        let above = self.above[open.session].as_ref()?;
        let hold = above.hold_content(&open.handle);
        if hold.is_some() || !open.asks_for_content(now()) {
            return hold;
        }
        let (asked, mut brought) = (above.number(), Brought::default());
        let request = Request::GetAttr { handle: &open.handle, open: open.number() };
        self.sessions[open.session].call(context, &request, &mut brought).await.ok()?;
        above.keep_lease(&open.handle, (asked, &brought));
        above.hold_content(&open.handle)
    }

    /// Whether a server of data has an open, which it is asked for first if need be.
    pub(super) async fn is_adopted(&self, context: &Context, mover: &Mover, open: &Arc<Open>) -> bool {
        let Some(moved) = self.movers.as_ref().and_then(|movers| movers.adopted(open, mover)) else { return false };
        let Some(session) = mover.connected() else { return false };
        self.adopted(context, (mover, session, &moved), open).await.is_some()
    }

    /// The number of an open at its mover, which is asked for it first if it has it not yet.
    /// `None`: it cannot be had there, or not now. Several that want it at a time wait for one
    /// that asks: what is read ahead of a new open would be read through the server of the names.
    async fn adopted(
        &self,
        context: &Context,
        (mover, session, moved): (&Mover, &Arc<Session>, &Moved),
        open: &Arc<Open>,
    ) -> Option<OpenId> {
        let (number, names, adopted) = (open.number()?, self.session(open).opens(), &moved.adopted);
        let _turn = match adopted.is_there() {
            true => None,
            false => Some(moved.opening.take(&context.cancel).await.ok()?),
        };
        // One that is lost is not to be read anywhere.
        names.check([number]).ok()?;
        if adopted.is_there() {
            // The mover may have lost it since.
            return session.opens().check([number]).is_ok().then_some(number);
        }
        let token = names.token(number)?;
        if !mover.is_there() || !adopted.changes(NEW, ASKED) {
            return None; // who had the turn before has found it away, or was refused
        }
        let mut asking = Asking { adopted, then: NEW };
        let asked = session.adopt(context, number, (&open.handle, &token, open.writes()));
        match while_connected(session, asked).await {
            Ok(()) => asking.then = THERE,
            Err(Errno::EIO) => mover.is_away(),
            Err(Errno::EINTR) => {}
            Err(error) => {
                mover.refuses(error);
                asking.then = OVER;
            }
        }
        let is_had = asking.then == THERE;
        drop(asking);
        if is_had && !adopted.is_there() {
            release(session, number, open); // it was closed meanwhile
        }
        adopted.is_there().then_some(number)
    }

    /// An open has ended: its mover closes it, too. Nobody waits for that.
    pub(super) fn close_moved(&self, open: &Open) {
        self.close_objects(open);
        let Some(number) = open.number() else { return };
        for session in self.movers.iter().flat_map(|movers| movers.having(open)) {
            release(&session, number, open);
        }
    }
}

/// Waits for an answer as long as there is a connection on which it may come; EIO when there is
/// none: who has died is not waited for, as others can be asked.
pub(super) async fn while_connected<T>(
    session: &Session,
    answer: impl Future<Output = Result<T, Errno>>,
) -> Result<T, Errno> {
    let mut answer = pin!(answer);
    let mut pause = None;
    poll_fn(|task| {
        loop {
            if let Poll::Ready(answered) = answer.as_mut().poll(task) {
                return Poll::Ready(answered);
            }
            let pause = pause.get_or_insert_with(|| Box::pin(session.groups()[0].sleep(LOOK)));
            if pause.as_mut().poll(task).is_pending() {
                return Poll::Pending;
            }
            if session.connections() == 0 {
                return Poll::Ready(Err(Errno::EIO));
            }
            *pause = Box::pin(session.groups()[0].sleep(LOOK));
        }
    })
    .await
}

/// Closes an open at a mover, which has it under this number.
pub(super) fn release(session: &Arc<Session>, number: OpenId, open: &Open) {
    let (of_task, context) = (session.clone(), Context::new(ClientId(0), open.credential.clone()));
    session.groups()[0].spawn(async move {
        let request = Request::Release { open: number };
        if let Err(error) = of_task.call(&context, &request, &mut Brought::default()).await {
            tracing::debug!(%error, "a file has not been closed at the server that moved its bytes");
        }
    });
}
