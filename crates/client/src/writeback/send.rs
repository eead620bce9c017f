//! How what is held back comes to the server: in slots of the releasing class, so that it waits
//! behind nothing that waits for it, and by tasks of its own, so that it comes there whether or
//! not somebody still waits for that.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use ahash::RandomState;
use aqueduct_fs::{Cancel, ClientId, Context, Errno, Request, SetAttr, WriteAt, Written};
use aqueduct_session::{ConnectError, Recovery, Session};
use aqueduct_wire::Flags;

use super::file::{Content, Piece, Place};
use super::table::{Covers, Gather, Which};
use crate::volume::{HeldWrite, Opens, Volume};

/// How long a write is held back at most, about, and how often is looked in that time.
const HELD_MAX: Duration = Duration::from_secs(1);
const LOOKS: u32 = 4;

/// How long a client that leaves waits for what it held back to come to the server.
const LEAVE_MAX: Duration = Duration::from_secs(30);

/// Between two looks whether it has.
const LEAVE_STEP: Duration = Duration::from_millis(2);

/// What is held back under the leases of one session, and how it comes to its server.
pub(crate) struct Writeback {
    held: Gather,
    /// Its place in the volume.
    session: usize,
    opens: Arc<Opens>,
    hasher: RandomState,
    /// Set as soon as there are such.
    volume: OnceLock<Weak<Volume>>,
    covers: OnceLock<Weak<dyn Covers>>,
}

impl Deref for Writeback {
    type Target = Gather;

    fn deref(&self) -> &Gather {
        &self.held
    }
}

impl Writeback {
    /// Of a session of a volume with these opens.
    pub(crate) fn new(session: usize, opens: Arc<Opens>) -> Writeback {
        let (held, hasher) = (Gather::default(), RandomState::new());
        Writeback { held, session, opens, hasher, volume: OnceLock::new(), covers: OnceLock::new() }
    }

    /// From now on something may be held back, under these leases.
    pub(crate) fn start(&self, volume: &Arc<Volume>, covers: Weak<dyn Covers>) {
        self.volume.get_or_init(|| Arc::downgrade(volume));
        self.covers.get_or_init(|| covers);
    }

    /// By which files are told apart.
    pub(crate) fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    pub(crate) fn which<'a>(&self, handle: &'a [u8]) -> Which<'a> {
        Which { handle, hash: self.hasher.hash_one(handle) }
    }

    fn volume(&self) -> Option<Arc<Volume>> {
        self.volume.get()?.upgrade()
    }

    fn covers(&self) -> Option<Arc<dyn Covers>> {
        self.covers.get()?.upgrade()
    }

    /// What is held back of a file and may go goes now, as much of it at once as may.
    pub(crate) fn send(self: &Arc<Writeback>, which: Which<'_>) {
        let Some(volume) = self.volume() else { return };
        let groups = volume.sessions[self.session].groups();
        while let Some((piece, epoch)) = self.take_off(which) {
            let (this, handle, hash) = (self.clone(), Arc::<[u8]>::from(which.handle), which.hash);
            let (session, volume) = (volume.sessions[self.session].clone(), volume.clone());
            let task = async move {
                let mut next = Some((piece, epoch));
                while let Some((piece, epoch)) = next {
                    let which = Which { handle: &handle, hash };
                    let sent = Instant::now();
                    let result = this.send_piece((&volume, &session), &handle, &piece, epoch).await;
                    this.land(&session, (which, &piece), (epoch, sent.elapsed()), result);
                    next = this.take_off(which);
                    this.send(which); // there may be room for others beside it
                }
            };
            match groups.iter().find(|group| group.is_current()) {
                Some(group) => group.run_now(task),
                None => groups[0].spawn(task),
            }
        }
    }

    /// All of what is held back of a file goes now.
    pub(crate) fn seal_and_send(self: &Arc<Writeback>, which: Which<'_>) -> Option<u64> {
        let mark = self.seal(which)?;
        self.send(which);
        Some(mark)
    }

    fn send_all(self: &Arc<Writeback>, age: Duration) -> Vec<Arc<[u8]>> {
        let files = self.seal_all(age);
        files.iter().for_each(|handle| self.send(self.which(handle)));
        files
    }

    /// A piece that was sent in this epoch has been answered after so long.
    fn land(
        &self,
        session: &Session,
        (which, piece): (Which<'_>, &Piece),
        (epoch, took): (u64, Duration),
        result: Result<(), Errno>,
    ) {
        let Some(covers) = self.covers() else { return };
        if session.opens().epoch() != epoch {
            return; // a recovery sees to it, perhaps only in a moment
        }
        // Whoever waits for it finds the error.
        if let Err(error) = result
            && self.is_flying(which, piece.number)
            && !session.is_closing()
        {
            self.fail(&*covers, (session.server(), session.opens()), (which.handle, piece), error);
        }
        self.held.land(which, piece.number, took, &*covers);
        covers.landed();
    }

    /// What was held back did not come to the server: whoever writes to the file hears of it
    /// through each of his opens, in write, fsync or close.
    fn fail(
        &self,
        covers: &dyn Covers,
        (server, opens): (&str, &aqueduct_session::Opens),
        (handle, piece): (&[u8], &Piece),
        error: Errno,
    ) {
        let wrote = self.opens.that_wrote(handle);
        covers.forget_own(handle);
        // That others have been let past it (ESTALE) is nothing that a program could do anything
        // about.
        let told = if error == Errno::ESTALE { Errno::EIO } else { error };
        opens.fail_late(handle, &wrote, told);
        let (offset, bytes) = (piece.place.offset, piece.length());
        let what = match piece.content {
            Content::Data(_) => "what was written",
            Content::Attributes(_) => "mode, owner or times",
        };
        match error {
            Errno::ESTALE if self.opens.tells_loss() => {
                tracing::error!(%server, what, offset, bytes, "what a program wrote to a file is lost, since this client was cut off from the server for too long: the program gets EIO from write, fsync or close, and has to write it again");
            }
            _ => {
                tracing::debug!(%server, what, offset, bytes, %error, "what a program wrote to a file could not be written: the program gets this error from write, fsync or close")
            }
        }
    }

    async fn send_piece(
        &self,
        (volume, session): (&Volume, &Session),
        handle: &Arc<[u8]>,
        piece: &Piece,
        epoch: u64,
    ) -> Result<(), Errno> {
        let context = volume.behind.context(&piece.place.credential);
        let sent = self.send_as(&context, (volume, session), (handle, piece), epoch).await;
        volume.behind.end(handle, &context);
        sent
    }

    async fn send_as(
        &self,
        context: &Context,
        (volume, session): (&Volume, &Session),
        (handle, piece): (&Arc<[u8]>, &Piece),
        epoch: u64,
    ) -> Result<(), Errno> {
        let open = piece.place.open;
        session.opens().check([open])?;
        let data = match &piece.content {
            Content::Data(data) => data,
            Content::Attributes(set) => {
                self.counters.sent.increment();
                return session.call_held(context, set_of(handle, piece, set), epoch).await;
            }
        };
        if let Some(slot) = &piece.end {
            self.counters.sent.increment();
            return session.append_held(context, (end_of(piece), slot), data, epoch).await;
        }
        let mut at = 0;
        while at < data.len() {
            let offset = piece.place.offset.checked_add(at as u64).ok_or(Errno::EFBIG)?;
            let write = WriteAt { open, offset, append: false, stable: false };
            self.counters.sent.increment();
            let end = (volume.block_end(offset) - offset).min((data.len() - at) as u64) as usize;
            let write = HeldWrite { write, data: data.slice(at..at + end), epoch };
            let written = volume.write_held(self.session, (handle, context), write).await?;
            if written.count == 0 {
                return Err(Errno::ENOSPC);
            }
            at += written.count as usize;
        }
        Ok(())
    }

    /// Waits until the server has all that is held back of a file now; EINTR when cancelled
    /// before, and it goes there all the same.
    pub(crate) async fn settle(self: &Arc<Writeback>, which: Which<'_>, cancel: &Cancel) -> Result<(), Errno> {
        let Some(mark) = self.seal_and_send(which) else { return Ok(()) };
        let began = Instant::now();
        let settled = poll_fn(|task| {
            if self.poll_gone(which, mark, task).is_ready() {
                return Poll::Ready(Ok(()));
            }
            cancel.poll(task).map(|()| Err(Errno::EINTR))
        })
        .await;
        self.waited(Some(which.handle), (began, "writes that were held back"), cancel);
        settled
    }

    /// An operation has waited for what this sends, of one file or of all.
    fn waited(&self, handle: Option<&[u8]>, (began, what): (Instant, &'static str), cancel: &Cancel) {
        if let Some(volume) = self.volume().filter(|_| cancel.steps().is_on()) {
            volume.behind.waited(handle, began, cancel.steps());
            cancel.steps().queued(began, what);
        }
    }

    /// The same, of all files.
    pub(crate) async fn settle_all(self: &Arc<Writeback>, cancel: &Cancel) -> Result<(), Errno> {
        for handle in &self.send_all(Duration::ZERO) {
            self.settle(self.which(handle), cancel).await?;
        }
        Ok(())
    }

    /// Waits for room to hold back so many bytes more of a file. What is there goes meanwhile.
    pub(crate) async fn wait_to_hold(
        self: &Arc<Writeback>,
        which: Which<'_>,
        length: usize,
        cancel: &Cancel,
    ) -> Result<(), Errno> {
        let began = Instant::now();
        self.send_all(Duration::ZERO);
        let has_room = poll_fn(|task| {
            if self.poll_room(which, length, task).is_ready() {
                return Poll::Ready(Ok(()));
            }
            cancel.poll(task).map(|()| Err(Errno::EINTR))
        })
        .await;
        self.waited(None, (began, "room to hold back writes"), cancel);
        has_room
    }

    /// Sees to it that nothing is held back for long. To be called after each write that was.
    pub(crate) fn watch(self: &Arc<Writeback>) {
        if !self.begin_watch() {
            return;
        }
        let Some(volume) = self.volume() else { return };
        let group = volume.sessions[self.session].groups()[0].clone();
        let (this, timer) = (Arc::downgrade(self), group.clone());
        group.spawn(async move {
            loop {
                timer.sleep(HELD_MAX / LOOKS).await;
                let Some(this) = this.upgrade() else { return };
                this.send_all(HELD_MAX - HELD_MAX / LOOKS);
                if this.end_watch() {
                    return;
                }
            }
        });
    }

    /// Before the client leaves: what it held back comes to the server.
    pub(crate) fn leave(self: &Arc<Writeback>) {
        let Some(volume) = self.volume() else { return };
        let session = &volume.sessions[self.session];
        self.set_on(false, (false, false));
        let end = Instant::now() + LEAVE_MAX;
        while !self.is_empty() && Instant::now() < end && session.connections() > 0 {
            self.send_all(Duration::ZERO);
            std::thread::sleep(LEAVE_STEP);
        }
        let (files, bytes) = self.held();
        if files > 0 {
            tracing::error!(server = %session.server(), files, bytes, "left before the server had all that programs had written and not synced: it is lost");
        }
    }
}

/// In a recovery of the session.
impl Writeback {
    fn fail_in_recovery(
        &self,
        covers: &dyn Covers,
        recovery: &dyn Recovery,
        (handle, piece): (&[u8], &Piece),
        error: Errno,
    ) {
        if !recovery.is_closing() {
            self.fail(covers, (recovery.server(), recovery.opens()), (handle, piece), error);
        }
    }

    /// When what was open is so again: sends what was held back, and what of it was not answered.
    /// Returns how many bytes.
    pub(crate) fn recover(&self, covers: &dyn Covers, recovery: &mut dyn Recovery) -> Result<usize, ConnectError> {
        let mut bytes = 0;
        for handle in self.files() {
            let which = self.which(&handle);
            while let Some(piece) = self.first(which) {
                match recover_piece(recovery, &handle, &piece)? {
                    Ok(()) => bytes += piece.length(),
                    Err(error) => self.fail_in_recovery(covers, recovery, (&handle, &piece), error),
                }
                self.drop_first(which, covers);
            }
        }
        Ok(bytes)
    }

    /// The server knows this session no more, and nobody what others have seen of its files
    /// meanwhile: what was held back is lost.
    pub(crate) fn lose(&self, covers: &dyn Covers, recovery: &dyn Recovery) {
        for handle in self.files() {
            let which = self.which(&handle);
            while let Some(piece) = self.first(which) {
                self.fail_in_recovery(covers, recovery, (&handle, &piece), Errno::ESTALE);
                self.drop_first(which, covers);
            }
        }
    }
}

fn recover_piece(recovery: &mut dyn Recovery, handle: &[u8], piece: &Piece) -> Result<Result<(), Errno>, ConnectError> {
    let context = Context::new(ClientId(0), piece.place.credential.clone());
    let data = match &piece.content {
        Content::Data(data) => data,
        Content::Attributes(set) => return recovery.call(&context, &set_of(handle, piece, set), Flags::HELD),
    };
    if let Some(slot) = &piece.end {
        return recovery.append_held(&context, (end_of(piece), slot), data);
    }
    let mut at = 0;
    while at < data.len() {
        let Some(offset) = piece.place.offset.checked_add(at as u64) else { return Ok(Err(Errno::EFBIG)) };
        let write = WriteAt { open: piece.place.open, offset, append: false, stable: false };
        match recovery.write_held(&context, (write, None), &data.slice(at..))? {
            Ok(Written { count: 0, .. }) => return Ok(Err(Errno::ENOSPC)),
            Ok(written) => at += written.count as usize,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}

fn end_of(piece: &Piece) -> WriteAt {
    let Place { open, offset, .. } = piece.place;
    WriteAt { open, offset, append: true, stable: false }
}

/// As it was asked for, through an open, so that it finds the file also when its name is gone.
fn set_of<'a>(handle: &'a [u8], piece: &Piece, set: &SetAttr) -> Request<'a> {
    Request::SetAttr { handle, open: Some(piece.place.open), set: *set }
}
