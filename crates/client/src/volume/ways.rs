//! How what was held back comes to the servers of a volume: straight to a server of data under a
//! right, by a [lane](super::lanes), or through the server of the names.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_fs::{Cancel, ClientId, Context, Errno, OpenFlags, Request, SetAttr, WriteAt, Written};
use aqueduct_session::{Brought, ConnectError, Recovery, Session, now};
use aqueduct_wire::Ordinal;
use bytes::Bytes;

use super::lanes::{ALL, After, Boarded, Kept, Key, Left, NAMES};
use super::mover::Mover;
use super::movers::Movers;
use super::opens::Open;
use super::parts::Volume;

/// How often is looked whether a server of data is there still.
const LOOK: Duration = Duration::from_millis(100);

/// One without a connection for so many looks is taken to have died.
const LOOKS_UNCONNECTED: usize = 3;

/// One of which nothing is heard is asked whether it is there after each second of looks.
const LOOKS_ASKED: usize = 10;

/// And not waited for after three: when the server of the names has heard nothing of it for 5 s, it
/// is known to write nothing any more, and others go on. What a slow disk takes is no silence.
const LOOKS_SILENT: usize = 30;

/// One that has not answered for so long is not waited for, though it is heard.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long a client that leaves waits for what servers of data have to be stable.
const LEAVE_MAX: Duration = Duration::from_secs(30);

/// Between two tries to have a server of data fenced.
const AGAIN: Duration = Duration::from_millis(200);

/// One write of what was held back.
#[derive(Clone)]
pub(crate) struct HeldWrite {
    pub(crate) write: WriteAt,
    pub(crate) data: Bytes,
    /// In which it was held back.
    pub(crate) epoch: u64,
}

/// A lane in an epoch of the session of the server of the names.
pub(super) type Of<'a> = (&'a Key, u64);

/// The token of a right, and beside others which of this client's writes it is.
pub(super) type Under<'a> = (&'a Arc<[u8]>, Option<Ordinal>);

/// What a server of data answers.
pub(super) enum Flown {
    Written(Written),
    /// Nothing was done, and nothing will be.
    Refused,
    /// It is over, and something of it may have been done.
    Failed,
    /// Nobody knows.
    Unknown,
}

/// Something that goes to the server of the names, until it has been answered.
pub(super) struct Straight<'a>(pub(super) &'a Volume, pub(super) Key);

impl Drop for Straight<'_> {
    fn drop(&mut self) {
        self.0.lanes.landed_straight(&self.1);
    }
}

impl Volume {
    /// How many bytes from an offset on go to one server.
    pub(crate) fn block_end(&self, offset: u64) -> u64 {
        self.movers.as_ref().map_or(u64::MAX, |movers| movers.block_end(offset))
    }

    /// Whether appends may be held back: not where what was written before may be on its way to
    /// servers of data.
    pub(crate) fn holds_appends(&self) -> bool {
        self.movers.is_none()
    }

    /// The lane by which a block is written, and who is at its end; `None`: the server of the
    /// names.
    pub(super) fn lane_of(&self, movers: &Movers, open: &Open, offset: u64) -> (Key, Option<Arc<Mover>>) {
        let (map, found) = movers.designated(open, offset);
        let (place, mover) = found.map_or((NAMES, None), |(place, mover)| (place, Some(mover)));
        (Key { handle: open.handle.clone(), place, map }, mover)
    }

    /// Writes what was held back, and has it kept until it is stable.
    pub(crate) async fn write_held(
        &self,
        session: usize,
        (handle, context): (&Arc<[u8]>, &Context),
        held: HeldWrite,
    ) -> Result<Written, Errno> {
        let names = &self.sessions[session];
        let HeldWrite { write, data, epoch } = held.clone();
        let movers = self.movers.as_ref().filter(|movers| !movers.is_constant);
        let found = movers.and_then(|movers| Some((movers, self.opens.of_number(handle, write.open)?)));
        let Some((movers, open)) = found else {
            return names.write_held(context, (write, None), data, epoch).await;
        };
        if movers.has_objects {
            return self.write_objects((context, &open), held).await;
        }
        let (mut opens, mut refused) = (data.len() >= movers.straight_from, false);
        loop {
            let (key, found) = self.lane_of(movers, &open, write.offset);
            let may_open = || opens && !movers.is_behind() && found.as_deref().is_some_and(Mover::may_have_rights);
            let boarded = poll_fn(|task| self.lanes.poll_board((&key, epoch), may_open(), task)).await;
            let (token, mover) = match (boarded, found.as_deref()) {
                (Boarded::Moved, _) => continue,
                (Boarded::Opens, Some(mover)) => {
                    opens &= self.open_lane((&key, epoch), (mover, &open)).await;
                    continue;
                }
                (Boarded::Flies(token), Some(mover)) => (token, mover),
                // No lane leads to the server of the names.
                (Boarded::Straight, _) | (_, None) => {
                    let _straight = Straight(self, key.clone());
                    return names.write_held(context, (write, None), data.clone(), epoch).await;
                }
            };
            match self.fly((context, mover, (&token, None)), &open, (write, data.clone())).await {
                Flown::Written(written) => {
                    let data = data.slice(..data.len().min(written.count as usize));
                    let place = (write.open, &context.credential);
                    let kept = Kept::new(place, (write.offset, data), written.verifier);
                    self.landed((&key, epoch), kept).await;
                    return Ok(written);
                }
                Flown::Refused | Flown::Failed => {
                    let asks = self.lanes.refused(&key, epoch, &token);
                    if asks {
                        self.open_lane((&key, epoch), (mover, &open)).await;
                    }
                    // With a new right, too, it may have a reason of its own (no room, a quota):
                    // the server of the names says which.
                    if std::mem::replace(&mut refused, true) {
                        opens = false;
                        self.close(&key, epoch);
                    }
                }
                Flown::Unknown => {
                    mover.is_away();
                    if self.lanes.is_dead(&key, epoch) {
                        self.close_later(&key, epoch);
                    }
                    poll_fn(|task| self.lanes.poll_over(&key, epoch, task)).await;
                    self.lanes.vanished(&key, epoch);
                }
            }
        }
    }

    /// A write has been answered.
    pub(super) async fn landed(&self, of: Of<'_>, kept: Kept) {
        let after = self.lanes.landed(of, kept);
        let Some(volume) = self.this.upgrade() else { return };
        if after == After::Commits {
            let key = of.0.clone();
            self.sessions[0].groups()[0].spawn(async move {
                for (lane, epoch, below) in volume.lanes.unstable(Some(&key.handle)) {
                    if lane == key {
                        volume.commit_lane((&lane, epoch), below).await;
                    }
                }
            });
        }
        if self.lanes.is_full() {
            self.make_lanes_stable(None).await;
        }
    }

    /// Sends a write, and waits for the answer as long as it may come.
    pub(super) async fn fly(
        &self,
        (context, mover, right): (&Context, &Mover, Under<'_>),
        open: &Open,
        data: (WriteAt, Bytes),
    ) -> Flown {
        // Whoever asked for the right has had it opened.
        let (Some(session), Some(number)) = (mover.connected(), open.number()) else { return Flown::Refused };
        let write = WriteAt { open: number, ..data.0 };
        let mut brought = Brought::default();
        let sent = session.write_by_right(context, (write, data.1), (&**right.0, right.1), &mut brought);
        match while_alive(session, sent).await {
            Some(Ok(written)) if written.count > 0 => Flown::Written(written),
            Some(Err(_)) if brought.is_open => Flown::Unknown,
            Some(Ok(_) | Err(Errno::ESTALE)) => Flown::Refused,
            Some(Err(_)) => Flown::Failed,
            None => Flown::Unknown,
        }
    }

    /// Asks for a right, and sees to it that nothing else keeps what may have to be written again.
    /// False: there is none.
    pub(super) async fn open_lane(&self, (key, epoch): Of<'_>, (mover, open): (&Mover, &Arc<Open>)) -> bool {
        let right = self.right((key, epoch), (mover, open)).await;
        match right {
            Ok(_) | Err(Errno::ESTALE) => {} // it is about this file alone
            Err(Errno::EOPNOTSUPP) => mover.never_has_rights(),
            Err(_) => mover.has_no_rights(),
        }
        let is_given = right.is_ok();
        if self.lanes.opened(key, epoch, right.ok()) {
            self.close_later(key, epoch);
        }
        is_given
    }

    async fn right(&self, (key, epoch): Of<'_>, (mover, open): (&Mover, &Arc<Open>)) -> Result<Arc<[u8]>, Errno> {
        let (names, number) = (self.session(open), open.number().ok_or(Errno::EIO)?);
        let context = Context::new(ClientId(0), open.credential.clone());
        if !self.is_adopted(&context, mover, open).await {
            return Err(Errno::ESTALE); // others may be had there
        }
        names.make_stable(&key.handle, &context.cancel).await?;
        names.right(&context, (number, key.place), (epoch, key.map)).await.map(Arc::from)
    }

    pub(super) fn close(&self, key: &Key, epoch: u64) {
        if self.lanes.close(key, epoch) {
            self.close_later(key, epoch);
        }
    }

    /// Has a lane close, by a task of its own: whoever waits for that may give up.
    pub(super) fn close_later(&self, key: &Key, epoch: u64) {
        let Some(volume) = self.this.upgrade() else { return };
        let key = key.clone();
        self.sessions[0].groups()[0].spawn(async move {
            // One that is left open has what the recovery writes again: it takes the lane itself.
            if volume.close_lane((&key, epoch)).await {
                volume.lanes.closed(&key, epoch);
            }
            volume.above.iter().flatten().for_each(|above| above.settled());
        });
    }

    /// False: a recovery has begun, and sees to what is kept of it.
    async fn close_lane(&self, (key, epoch): Of<'_>) -> bool {
        let is_quiet = || poll_fn(|task| self.lanes.poll_quiet(key, epoch, task));
        if is_quiet().await {
            let unstable = self.lanes.unstable(Some(&key.handle)).into_iter().find(|(lane, ..)| lane == key);
            let Some((_, _, below)) = unstable else { return true };
            if self.commit_lane((key, epoch), below).await {
                return true;
            }
        } else {
            let session = &self.sessions[self.namespace(&key.handle)];
            let context = Context::new(ClientId(0), aqueduct_fs::Credential::root());
            while let Err(error) = session.revoke(&context, key.place, epoch).await {
                tracing::debug!(%error, "a server of data could not be fenced yet");
                if session.opens().epoch() != epoch || session.is_closing() {
                    return false;
                }
                session.groups()[0].sleep(AGAIN).await;
            }
            self.lanes.over(key, epoch);
            is_quiet().await;
        }
        self.write_again((key, epoch)).await
    }

    /// Gives the server of the names what one of data may have lost. False: a recovery has begun.
    async fn write_again(&self, (key, epoch): Of<'_>) -> bool {
        let session = &self.sessions[self.namespace(&key.handle)];
        for kept in self.lanes.kept(key, epoch) {
            let context = Context::new(ClientId(0), kept.credential.clone());
            let mut at = 0;
            while at < kept.data.len() {
                let write = again(&kept, at);
                let written = session.write_held(&context, (write, None), kept.data.slice(at..), epoch).await;
                let written = written.and_then(|written| match written.count {
                    0 => Err(Errno::ENOSPC),
                    count => Ok(count as usize),
                });
                match written {
                    Ok(count) => at += count,
                    Err(_) if session.opens().epoch() != epoch => return false,
                    Err(error) => {
                        self.fail_kept((session.server(), session.opens()), key, error);
                        break;
                    }
                }
            }
        }
        true
    }

    /// Nobody can say that what a program wrote is there.
    fn fail_kept(&self, (server, opens): (&str, &aqueduct_session::Opens), key: &Key, error: Errno) {
        let told = if error == Errno::ESTALE { Errno::EIO } else { error };
        opens.fail_late(&key.handle, &self.opens.that_wrote(&key.handle), told);
        if self.opens.tells_loss() {
            tracing::error!(%server, %error, "what a program wrote through a server of data that has gone may be lost: the program gets an error from write, fsync or close, and has to write it again");
        }
    }

    /// Makes a lane stable below a number. False: its server does not answer, or has lost
    /// something.
    async fn commit_lane(&self, (key, epoch): Of<'_>, below: u64) -> bool {
        let verifier = self.commit_at(key, epoch).await;
        self.lanes.committed((key, epoch), below, verifier)
    }

    async fn commit_at(&self, key: &Key, epoch: u64) -> Option<u64> {
        let mover = self.movers.as_ref()?.of_lane(key)?;
        let session = mover.connected()?;
        let kept = self.lanes.kept(key, epoch);
        let latest = kept.last()?;
        let context = Context::new(ClientId(0), latest.credential.clone());
        while_alive(session, session.commit_at(&context, latest.open)).await?.ok()
    }

    /// Makes stable what servers of data were given of a file, or of all.
    pub(super) async fn make_lanes_stable(&self, handle: Option<&[u8]>) {
        for (key, epoch, below) in self.lanes.unstable(handle) {
            if self.commit_lane((&key, epoch), below).await {
                continue;
            }
            self.close(&key, epoch);
            poll_fn(|task| self.lanes.poll_closed(&key, epoch, task)).await;
        }
    }

    /// Has all lanes of a file close, which is about to be given back.
    pub(crate) fn begin_to_close_lanes(&self, handle: &[u8]) -> bool {
        let lanes = self.lanes.of(Some(handle));
        lanes.iter().for_each(|(key, epoch)| self.close(key, *epoch));
        lanes.is_empty()
    }

    /// Something is about to change a file at the server of the names that does not come from a
    /// lane: what lanes keep of it is stable before, and none is opened until it has been
    /// answered.
    pub(super) async fn straight(&self, handle: &Arc<[u8]>, cancel: &Cancel) -> Result<Option<Straight<'_>>, Errno> {
        if self.movers.is_none() {
            return Ok(None);
        }
        let key = Key { handle: handle.clone(), place: ALL, map: 0 };
        self.lanes.begin_straight(&key);
        let straight = Straight(self, key);
        self.begin_to_close_lanes(handle);
        for (key, epoch) in self.lanes.of(Some(handle)) {
            poll_fn(|task| match cancel.poll(task) {
                Poll::Ready(()) => Poll::Ready(Err(Errno::EINTR)),
                Poll::Pending => self.lanes.poll_closed(&key, epoch, task).map(Ok),
            })
            .await?;
        }
        Ok(Some(straight))
    }

    /// What lanes have to have done before a request of the server of the names, and that no
    /// lane is opened before what is returned is dropped.
    pub(super) async fn lanes_first(
        &self,
        context: &Context,
        request: &Request<'_>,
    ) -> Result<Option<Straight<'_>>, Errno> {
        let of_open = |open| self.opens.writer(open).map(|open| open.handle.clone());
        let (changed, synced) = match *request {
            Request::SetAttr { handle, set: SetAttr { size: Some(_), .. }, .. } => (Some(handle.into()), None),
            Request::Open { handle, flags } if flags.contains(OpenFlags::TRUNCATE) => (Some(handle.into()), None),
            Request::Fallocate { open, .. } | Request::CopyRange { to: open, .. } => (of_open(open), None),
            // The lease may be shared with it.
            Request::Release { open } => (of_open(open), None),
            Request::Sync { open, .. } | Request::Commit { open, .. } | Request::Flush { open, .. } => {
                (None, of_open(open))
            }
            _ => (None, None),
        };
        if let Some(handle) = &synced {
            self.make_lanes_stable(Some(handle)).await;
        }
        match &changed {
            Some(handle) => self.straight(handle, &context.cancel).await,
            None => Ok(None),
        }
    }

    /// Before the client leaves: all that servers of data have is stable, or at that of the names.
    /// Never call it on a worker.
    pub(crate) fn leave_lanes(&self) {
        let lanes = self.lanes.of(None);
        let Some(group) = self.sessions[0].groups().first().filter(|_| !lanes.is_empty()) else { return };
        let close = async {
            for (key, epoch) in lanes {
                self.close(&key, epoch);
                poll_fn(|task| self.lanes.poll_closed(&key, epoch, task)).await;
            }
        };
        if aqueduct_worker::wait(group, group.within(LEAVE_MAX, close)).is_none() {
            tracing::error!("left before all that programs had written was stable at the servers of data");
        }
    }
}

/// In a recovery of the session of the server of the names, which has seen to it that nothing is
/// executed any more under the rights of before.
impl Volume {
    /// Another epoch begins.
    pub(crate) fn lanes_begin_epoch(&self, epoch: u64) {
        let left = self.lanes.begin_epoch(epoch);
        aqueduct_worker::lock(&self.left).extend(left);
    }

    /// Writes again what was not known to be stable. Returns how many bytes that were.
    pub(crate) fn recover_lanes(&self, recovery: &mut dyn Recovery) -> Result<usize, ConnectError> {
        let mut bytes = 0;
        loop {
            let first = aqueduct_worker::lock(&self.left).first().cloned();
            let Some(Left { key, kept, write: program }) = first else { return Ok(bytes) };
            let mut is_whole = true;
            for kept in &kept {
                let context = Context::new(ClientId(0), kept.credential.clone());
                let mut at = 0;
                while at < kept.data.len() {
                    match recovery.write_held(&context, (again(kept, at), kept.ordinal()), &kept.data.slice(at..))? {
                        Ok(written) if written.count > 0 => at += written.count as usize,
                        // Whoever waits for it asks once more, and is told why.
                        _ if program.is_some() => {
                            is_whole = false;
                            break;
                        }
                        other => {
                            let error = other.err().unwrap_or(Errno::ENOSPC);
                            self.fail_kept((recovery.server(), recovery.opens()), &key, error);
                            break;
                        }
                    }
                }
                bytes += at;
            }
            program.iter().for_each(|program| program.recovered(is_whole));
            aqueduct_worker::lock(&self.left).remove(0);
        }
    }

    /// The server of the names knows this session no more.
    pub(crate) fn lose_lanes(&self, recovery: &dyn Recovery) {
        for Left { key, write, .. } in std::mem::take(&mut *aqueduct_worker::lock(&self.left)) {
            if let Some(write) = write {
                write.recovered(false);
            } else if !recovery.is_closing() {
                self.fail_kept((recovery.server(), recovery.opens()), &key, Errno::ESTALE);
            }
        }
    }
}

fn again(kept: &Kept, at: usize) -> WriteAt {
    WriteAt { open: kept.open, offset: kept.offset + at as u64, append: false, stable: kept.is_stable }
}

/// Waits for an answer of a server that seems to be there. `None`: it is not, and nobody knows
/// what becomes of the request.
pub(super) async fn while_alive<T>(session: &Session, answer: impl Future<Output = T>) -> Option<T> {
    let (mut answer, began) = (pin!(answer), Instant::now());
    let (mut unconnected, mut silent, mut heard) = (0, 0, session.heard());
    loop {
        if let Some(answered) = session.groups()[0].within(LOOK, answer.as_mut()).await {
            return Some(answered);
        }
        unconnected = if session.connections() == 0 { unconnected + 1 } else { 0 };
        // By looks: whoever stood still itself has heard nothing meanwhile.
        silent = if session.heard() == heard { silent + 1 } else { 0 };
        heard = session.heard();
        if silent > 0 && silent % LOOKS_ASKED == 0 {
            session.ask_whether_there();
        }
        if unconnected >= LOOKS_UNCONNECTED || silent >= LOOKS_SILENT || began.elapsed() >= ANSWER_MAX {
            return None;
        }
    }
}

/// Rights at a server of data, as far as this client knows.
impl Mover {
    /// After a refusal so long nothing is asked of it.
    fn pauses(&self, pause: Duration) {
        self.no_rights_until.store(now() + pause.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn may_have_rights(&self) -> bool {
        now() >= self.no_rights_until.load(Ordering::Relaxed) && self.is_there()
    }

    fn has_no_rights(&self) {
        if self.no_rights_until.load(Ordering::Relaxed) != u64::MAX {
            self.pauses(Duration::from_secs(1));
        }
    }

    fn never_has_rights(&self) {
        self.no_rights_until.store(u64::MAX, Ordering::Relaxed);
    }
}
