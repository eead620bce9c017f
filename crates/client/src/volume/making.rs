//! Opens that were answered without the server, and are made there when they are first needed, or
//! before their right or their file could go.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_fs::steps::Steps;
use aqueduct_fs::{ClientId, Context, Errno, OpenId};
use aqueduct_session::{Brought, ConnectError, Recovery};
use aqueduct_wire::Class;
use aqueduct_worker::lock;

use super::above::Above;
use super::opens::{Found, Open, Opens, Real, State};
use super::parts::Volume;

/// What stays open for longer, for up to twice as long, the server is asked for: processes there,
/// which no lease keeps waiting, may take file or right away. A program that reads one file after
/// another has none open for that long.
const LOCAL_MAX: Duration = Duration::from_millis(250);

/// Of those the server is asked for so many at once: a few more requests among those of programs.
const ASKED_MAX: usize = 16;

/// The server's number of an open, and its file's width.
type Made = Result<(OpenId, u16), Errno>;

/// An answer about an open that was made real has come: it is written down, and who waits for it
/// is woken. A recovery may have asked as well: what came first counts. Returns what nobody needs,
/// so that the server has to close it.
fn settle(opens: &Opens, above: Option<&dyn Above>, open: &Open, made: Made) -> Option<OpenId> {
    let before = open.answered(made.ok());
    let made = made.map(|(number, _)| number);
    let Some(before) = before else { return made.ok() };
    opens.settled(open);
    above.inspect(|above| above.settled());
    match (before, made) {
        (State::Making(wakers), made) => {
            wakers.into_iter().for_each(Waker::wake);
            if let Err(error) = made.as_ref()
                && opens.tells_loss()
            {
                tracing::warn!(%error, "a file that was opened without asking the server cannot be had from it: its descriptor gives EIO (more are not told for a minute)");
            }
            None
        }
        (State::Closing, made) => made.ok(),
        _ => None,
    }
}

/// Whether an error is the server's word on right or file. Others are of a server that is away or
/// has no room, now.
fn is_final(error: Errno) -> bool {
    use Errno as E;
    !matches!(error, E::EIO | E::EINTR | E::EAGAIN | E::ENOMEM | E::ENFILE | E::EMFILE | E::ENOSPC | E::ETIMEDOUT)
}

/// Who asks the server for an open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// Somebody who needs it: what the server says of right and file is final.
    Use,
    /// Nobody yet.
    Later,
}

impl Volume {
    fn above(&self, session: usize) -> Option<&dyn Above> {
        self.above[session].as_deref()
    }

    /// Has the server asked for an open that it does not know of, unless it is being asked
    /// already.
    pub(crate) fn make_real(&self, open: &Arc<Open>) {
        self.begin_real(open, For::Use);
    }

    fn begin_real(&self, open: &Arc<Open>, why: For) {
        let Some(volume) = self.this.upgrade().filter(|_| open.begin()) else { return };
        let open = open.clone();
        self.session(&open).groups()[0].spawn(async move {
            let (session, above) = (volume.session(&open), volume.above(open.session));
            let context = volume.behind.context(&open.credential);
            // A recall waits for it, and requests in all ordinary slots may wait for the recall.
            let made = session.call_in(Class::Releasing, &context, &open.request(), &mut Brought::default()).await;
            let made = made.and_then(|reply| reply.opened().map(|opened| (opened.id, opened.width)));
            volume.behind.end(&open.handle, &context);
            if let Err(error) = made
                && (why == For::Later || !is_final(error))
            {
                volume.opens.note_failure(error);
                if why == For::Use {
                    open.fails();
                }
                if open.put_back() {
                    above.inspect(|above| above.settled());
                    return;
                }
            }
            if let Some(number) = settle(&volume.opens, above, &open, made) {
                volume.close_unused(&open, number).await;
            }
        });
    }

    /// Sees to it that what stays open is made real. To be called after each open that was
    /// answered here.
    pub(crate) fn watch_opens(&self) {
        if !self.opens.is_unwatched() {
            return;
        }
        let (this, group) = (self.this.clone(), self.sessions[0].groups()[0].clone());
        // Those below are open for long enough by then.
        let mut before = self.opens.next.load(Ordering::SeqCst);
        self.sessions[0].groups()[0].spawn(async move {
            loop {
                group.sleep(LOCAL_MAX).await;
                let Some(volume) = this.upgrade() else { return };
                let opens = &volume.opens;
                for some in opens.numbered(opens.looked_after.load(Ordering::SeqCst)..before).chunks(ASKED_MAX) {
                    some.iter().for_each(|open| volume.begin_real(open, For::Later));
                    for open in some {
                        tried(open).await;
                    }
                }
                opens.looked_after.store(before, Ordering::SeqCst);
                before = opens.next.load(Ordering::SeqCst);
                if opens.has_more() {
                    continue;
                }
                opens.watched.store(false, Ordering::SeqCst);
                // Looked at after the flag fell: whoever opens later has it watched anew.
                if !opens.has_more() || !opens.is_unwatched() {
                    return;
                }
            }
        });
    }

    async fn close_unused(&self, open: &Open, number: OpenId) {
        let context = Context::new(ClientId(0), open.credential.clone());
        if let Err(error) = self.session(open).call(&context, &open.release(number), &mut Brought::default()).await {
            tracing::debug!(%error, "a file that was closed while it was being opened has not been closed at the server");
        }
    }

    /// As [`close_unused`](Volume::close_unused), by a task of its own.
    pub(super) fn close_unused_later(&self, open: Arc<Open>, number: OpenId) {
        let Some(volume) = self.this.upgrade() else { return };
        self.session(&open).groups()[0].spawn(async move { volume.close_unused(&open, number).await });
    }

    /// Where an open is known, whose server is asked for it if it is not yet.
    pub(crate) async fn real(&self, id: OpenId, steps: &Steps) -> Result<Real, Errno> {
        match self.opens.find(id) {
            Found::Real(real) => Ok(real),
            Found::Local(open) => self.made(&open, steps).await,
            Found::Unknown => Err(Errno::EBADF),
        }
    }

    /// The same of an open that the server did not know of.
    pub(crate) async fn made(&self, open: &Arc<Open>, steps: &Steps) -> Result<Real, Errno> {
        let (before, began) = (open.failures(), Instant::now());
        let made = poll_fn(|task| {
            let has_failed = || open.failures() != before;
            if !has_failed() {
                self.begin_real(open, For::Use);
            }
            match &mut *lock(&open.state) {
                State::Real => Poll::Ready(open.real().ok_or(Errno::EIO)),
                State::Lost => Poll::Ready(Err(Errno::EIO)),
                State::Local if has_failed() => Poll::Ready(Err(Errno::EIO)),
                State::Local => {
                    task.waker().wake_by_ref(); // it was just put back
                    Poll::Pending
                }
                State::Closing => Poll::Ready(Err(Errno::EBADF)),
                State::Making(wakers) => {
                    wakers.push(task.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        self.behind.waited(Some(&open.handle), began, steps);
        made
    }
}

/// Waits until the server is not being asked for an open any more.
async fn tried(open: &Open) {
    poll_fn(|task| match &mut *lock(&open.state) {
        State::Making(wakers) => {
            wakers.push(task.waker().clone());
            Poll::Pending
        }
        _ => Poll::Ready(()),
    })
    .await;
}

/// In a recovery of a session: has the server open what it does not know of, before others may
/// take the right or the file away; what it cannot be asked for now is opened when it is used.
/// What nobody needs any more by then is for `close`. Returns how many it refused.
pub(super) fn open_locals(
    (opens, session): (&Opens, usize),
    above: Option<&dyn Above>,
    recovery: &mut dyn Recovery,
    mut close: impl FnMut(Arc<Open>, OpenId),
) -> Result<usize, ConnectError> {
    let mut refused = 0;
    for open in &opens.unsettled_at(session) {
        let Some(asks_alone) = open.begin_in_recovery() else { continue };
        let context = Context::new(ClientId(0), open.credential.clone());
        let asked = recovery.open(&context, &open.request());
        if !asks_alone && !matches!(asked, Ok(Some(Ok(_)))) {
            asked?;
            continue;
        }
        let asked = asked.map(|made| made.map(|made| made.map(|opened| (opened.id, opened.width))));
        let made = match asked {
            Ok(Some(made)) if made.is_ok() || made.is_err_and(is_final) => made,
            asked => {
                if !open.put_back() {
                    settle(opens, above, open, Err(Errno::EBADF)); // it was closed meanwhile
                }
                asked?;
                continue;
            }
        };
        refused += usize::from(made.is_err());
        if let Some(number) = settle(opens, above, open, made) {
            close(open.clone(), number);
        }
    }
    Ok(refused)
}
