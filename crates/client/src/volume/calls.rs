//! The operations of a volume: each goes to the session that answers for its inode, with its
//! server's numbers for what is open. Bytes go to the session that moves them; what others may
//! wait for (an unlock, a close, a change of size) waits until that one has answered, and what is
//! locked is stable there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_fs::steps::Steps;
use aqueduct_fs::{
    Cancel, Context, DirPage, Errno, OpenFlags, OpenId, Opened, ReadAt, Reply, Request, SetAttr, Sink, Staged, WriteAt,
    Written,
};
use aqueduct_session::{Brought, Session, frees_others, used};
use bytes::Bytes;

use super::flights::Flight;
use super::movers::Movers;
use super::opens::{Found, New, Open, Real};
use super::parts::{Volume, ended};

impl Volume {
    /// Asks the server, with this client's numbers for what is open.
    pub(crate) async fn call(
        &self,
        context: &Context,
        request: &Request<'_>,
        brought: &mut Brought,
    ) -> Result<Reply, Errno> {
        self.abandoned_first(context, request).await?;
        self.call_now(context, request, brought).await
    }

    /// The same, whatever goes on that nobody waits for.
    pub(super) async fn call_now(
        &self,
        context: &Context,
        request: &Request<'_>,
        brought: &mut Brought,
    ) -> Result<Reply, Errno> {
        let session = self.session_of(request)?;
        // Only volumes of several servers do this, for these requests only. Boxed, its state is
        // not allocated and copied with each request of every mount.
        let is_of_bytes = is_of_bytes(request);
        if self.map.is_some()
            && is_of_bytes
            && let Some(reply) = Box::pin(self.data_first(context, request)).await?
        {
            return Ok(reply);
        }
        let _straight = match &self.movers {
            Some(_) if is_of_bytes => Box::pin(self.lanes_first(context, request)).await?,
            _ => None,
        };
        if ended(request).is_some_and(|open| self.opens.close_local(open)) {
            return Ok(Reply::Done);
        }
        let told = self.told_at_close(request);
        let with_opens = match request.opens()[0].is_some() {
            true => Some(self.known_to_server(request.clone(), context.steps()).await?),
            false => None,
        };
        let known = with_opens.as_ref().unwrap_or(request);
        let mut reply = self.sessions[session].call(context, known, brought).await?;
        self.number(context, (session, request), &mut reply);
        told.map(|()| reply)
    }

    /// Has the server asked for what a request uses, where it does not know of it.
    pub(crate) async fn have_real(&self, request: &Request<'_>, steps: &Steps) -> Result<(), Errno> {
        if matches!(request, Request::GetAttr { .. }) {
            return Ok(()); // which is asked without
        }
        for open in used(request).into_iter().flatten() {
            if let Found::Local(open) = self.opens.find(open) {
                self.made(&open, steps).await?;
            }
        }
        Ok(())
    }

    /// A request with the server's numbers for what is open.
    async fn known_to_server<'a>(&self, mut request: Request<'a>, steps: &Steps) -> Result<Request<'a>, Errno> {
        use Request::*;
        match &mut request {
            GetAttr { open: place, .. } => {
                // Whoever may ask through an open may ask without.
                if let Some(open) = *place {
                    *place = match self.opens.find(open) {
                        Found::Real(real) => Some(real.number),
                        Found::Local(_) | Found::Unknown => None,
                    };
                }
            }
            Release { open } | ReleaseDirectory { open } => {
                let ended = self.opens.remove(*open).and_then(|open| {
                    self.close_moved(&open);
                    open.number()
                });
                *open = ended.ok_or(Errno::EBADF)?;
            }
            SetAttr { open: Some(open), .. }
            | Flush { open, .. }
            | Sync { open, .. }
            | Commit { open, .. }
            | Fallocate { open, .. }
            | Seek { open, .. }
            | Checksum { open, .. }
            | Layout { open, .. }
            | ReadDirectory { open, .. }
            | SyncDirectory { open, .. }
            | GetLock { open, .. }
            | SetLock { open, .. } => *open = self.real(*open, steps).await?.number,
            CopyRange { from, to, .. } => {
                *from = self.real(*from, steps).await?.number;
                *to = self.real(*to, steps).await?.number;
            }
            _ => {}
        }
        Ok(request)
    }

    /// What a request has opened gets a number of this client's.
    fn number(&self, context: &Context, (session, request): (usize, &Request<'_>), reply: &mut Reply) {
        let add = |handle: &[u8], flags: Option<OpenFlags>, opened: &mut Opened| {
            let handle: Arc<[u8]> = handle.into();
            let (sessions, credential, by) = ((session, self.data(&handle)), &context.credential, context.pid);
            let new = New { handle: &handle, sessions, credential, flags, by, width: opened.width };
            opened.id = self.opens.add_real(new, opened.id);
        };
        match (request, reply) {
            (Request::Open { handle, flags }, Reply::Opened(opened)) => add(handle, Some(*flags), opened),
            (Request::OpenDirectory { handle }, Reply::Opened(opened)) => add(handle, None, opened),
            (Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. }, Reply::Created(entry, opened)) => {
                add(entry.handle.bytes(), Some(*flags), opened);
            }
            _ => {}
        }
    }

    /// Reads into a sink. Returns how many bytes that were.
    pub(crate) async fn read(&self, context: &Context, read: ReadAt, sink: Box<dyn Sink>) -> Result<usize, Errno> {
        let real = self.real(read.open, context.steps()).await?;
        self.read_real(context, (read, real), sink).await
    }

    /// The same of an open that its server knows.
    pub(crate) async fn read_real(
        &self,
        context: &Context,
        (read, real): (ReadAt, Real),
        sink: Box<dyn Sink>,
    ) -> Result<usize, Errno> {
        let sink = match &self.movers {
            Some(movers) if movers.has_objects && !movers.are_any() => Err(sink),
            Some(Movers { has_objects: true, .. }) => Box::pin(self.read_objects(context, (read, real), sink)).await,
            Some(_) => Box::pin(self.read_moved(context, read, sink)).await,
            None => Err(sink),
        };
        let sink = match sink {
            Ok(done) => return done,
            Err(sink) => sink,
        };
        let number = ReadAt { open: real.number, ..read };
        if real.data == real.session {
            return self.sessions[real.session].read(context, number, sink).await;
        }
        let open = self.opens.get(read.open).ok_or(Errno::EBADF)?;
        let _flight = self.flight(&open);
        self.data_session(context, &open).await?.read(context, number, sink).await
    }

    /// Writes, and asks for what `brought` says. A program that is killed meanwhile has its locks
    /// on the file until the write has come to its end.
    pub(crate) async fn write(
        &self,
        context: &Context,
        (write, data): (WriteAt, Bytes),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        match self.locked(write.open) {
            Some(handle) => Box::pin(self.write_lasting((context, handle), (write, data), brought)).await,
            None => self.write_now(context, (write, data), brought).await,
        }
    }

    /// The inode of an open on which this client has locks, or its turn.
    fn locked(&self, open: OpenId) -> Option<Arc<[u8]>> {
        if !self.sessions.iter().any(|session| session.opens().has_any_locks()) {
            return None;
        }
        let open = self.opens.get(open)?;
        self.session(&open).opens().keeps_others_out(&open.handle).then(|| open.handle.clone())
    }

    pub(super) async fn write_now(
        &self,
        context: &Context,
        (write, data): (WriteAt, Bytes),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        let real = self.real(write.open, context.steps()).await?;
        let number = WriteAt { open: real.number, ..write };
        if real.data == real.session {
            let open = self.movers.as_ref().and_then(|_| self.opens.get(write.open));
            let _straight = match &open {
                Some(open) => self.straight(&open.handle, &context.cancel).await?,
                None => None,
            };
            if let Some(open) = open.as_ref().filter(|_| self.brings(&write, data.len()))
                && let Some(done) = Box::pin(self.write_objects_now(context, (open, number), (&data, brought))).await
            {
                return done;
            }
            let length = data.len();
            let done = self.sessions[real.session].write(context, (number, data), brought).await;
            open.iter().for_each(|open| self.wrote_by_names(open, length, &done));
            return done;
        }
        let open = self.opens.get(write.open).ok_or(Errno::EBADF)?;
        let _flight = self.flight(&open);
        let session = self.data_session(context, &open).await?;
        brought.is_open = true; // should nobody wait for it any more
        let written = session.write(context, (number, data), &mut Brought::default()).await;
        brought.is_open = matches!(written, Err(Errno::EINTR | Errno::EIO));
        written
    }

    /// Has the server write what was brought to it, past this client.
    pub(crate) async fn write_staged(
        &self,
        context: &Context,
        write: WriteAt,
        staged: Staged,
    ) -> Result<Written, Errno> {
        let real = self.real(write.open, context.steps()).await?;
        let number = WriteAt { open: real.number, ..write };
        self.sessions[real.session].write_staged(context, number, staged).await
    }

    /// Asks the session of an inode for the first bytes of files. The answer's body is for
    /// [`aqueduct_wire::decode_fetched`].
    pub(crate) async fn fetch_files(
        &self,
        context: &Context,
        (session, handles): (usize, &[&[u8]]),
        brought: &mut Brought,
    ) -> Result<Vec<u8>, Errno> {
        self.sessions[session].fetch_files(context, handles, brought).await
    }

    /// Asks a session for the first pages of directories, with inodes.
    pub(crate) async fn list(
        &self,
        context: &Context,
        (session, handles): (usize, &[&[u8]]),
        brought: &mut Brought,
    ) -> Result<Vec<Result<DirPage, Errno>>, Errno> {
        self.sessions[session].list(context, handles, brought).await
    }
}

/// What another session than the one of the namespace moves.
impl Volume {
    fn flight(&self, open: &Open) -> Flight<'_, impl FnMut()> {
        let session = open.session;
        self.flights.begin(open.handle.clone(), move || {
            if let Some(above) = &self.above[session] {
                above.settled();
            }
        })
    }

    /// The session that moves the bytes of an open, which has it open from now on.
    async fn data_session(&self, context: &Context, open: &Open) -> Result<&Arc<Session>, Errno> {
        let session = &self.sessions[open.data];
        let number = open.number().ok_or(Errno::EIO)?;
        // One that was lost with its locks writes nowhere.
        self.sessions[open.session].opens().check([number])?;
        if !open.has_data.load(Ordering::SeqCst) {
            let token = self.sessions[open.session].opens().token(number).ok_or(Errno::EIO)?;
            Box::pin(session.adopt(context, number, (&open.handle, &token, open.writes()))).await?;
            open.has_data.store(true, Ordering::SeqCst);
        }
        Ok(session)
    }

    /// Whether a request ends with what another session does of it. Before it, what that session
    /// has to have done.
    async fn data_first(&self, context: &Context, request: &Request<'_>) -> Result<Option<Reply>, Errno> {
        if let Request::Open { handle, flags } = request
            && flags.contains(OpenFlags::TRUNCATE)
        {
            self.stable_at(self.data(handle), handle, &context.cancel).await?;
        }
        if let Request::SetAttr { handle, set: SetAttr { size: Some(_), .. }, .. } = request {
            self.stable_at(self.data(handle), handle, &context.cancel).await?;
        }
        let Some(open) = of_data(request).and_then(|open| self.opens.get(open)) else { return Ok(None) };
        if open.session == open.data {
            return Ok(None);
        }
        let data = &self.sessions[open.data];
        self.flights.quiet(&open.handle, &context.cancel).await?;
        let is_there = open.has_data.load(Ordering::SeqCst);
        match request {
            // Its size and times, and what was written at the other session, are stable after the
            // other's answer.
            Request::Sync { .. } | Request::Commit { .. } if is_there => {
                let number = open.number().ok_or(Errno::EIO)?;
                let done = data.call(context, &with_open(request, number), &mut Brought::default()).await?;
                return Ok(matches!(request, Request::Commit { .. }).then_some(done));
            }
            Request::Fallocate { .. } | Request::CopyRange { .. } => {
                data.make_stable(&open.handle, &context.cancel).await?;
            }
            _ if frees_others(request) => {
                // Who has the lock next finds what was written under this one, also after a
                // restart of that server.
                if self.sessions[open.session].opens().has_locks(&open.handle)
                    && let Err(error) = data.make_stable(&open.handle, &context.cancel).await
                {
                    tracing::debug!(%error, "what was written under a lock could not be made stable before it is given up");
                }
                if let (Request::Release { .. }, true, Some(number)) = (request, is_there, open.number())
                    && let Err(error) =
                        data.call(context, &Request::Release { open: number }, &mut Brought::default()).await
                {
                    tracing::debug!(%error, "a file has not been closed at the server that moved its bytes");
                }
            }
            _ => {}
        }
        Ok(None)
    }

    /// What a close tells of the session that moves the bytes.
    fn told_at_close(&self, request: &Request<'_>) -> Result<(), Errno> {
        let (Some(_), Request::Flush { open, .. }) = (&self.map, request) else { return Ok(()) };
        let Some(open) = self.opens.get(*open).filter(|open| open.data != open.session) else { return Ok(()) };
        open.number().map_or(Ok(()), |number| self.sessions[open.data].opens().error_at_close(number))
    }

    async fn stable_at(&self, session: usize, handle: &[u8], cancel: &Cancel) -> Result<(), Errno> {
        if session == self.namespace(handle) {
            return Ok(());
        }
        self.flights.quiet(handle, cancel).await?;
        self.sessions[session].make_stable(handle, cancel).await
    }
}

/// Whether a request may have to wait for the session that moves the bytes: it cuts a file, or has
/// an open of [`of_data`].
fn is_of_bytes(request: &Request<'_>) -> bool {
    match request {
        Request::SetAttr { set, .. } => set.size.is_some(),
        Request::Open { flags, .. } => flags.contains(OpenFlags::TRUNCATE),
        request => of_data(request).is_some(),
    }
}

/// The open of a request that has to wait for the session that moves the bytes.
fn of_data(request: &Request<'_>) -> Option<OpenId> {
    match *request {
        Request::Sync { open, .. }
        | Request::Commit { open, .. }
        | Request::Fallocate { open, .. }
        | Request::CopyRange { to: open, .. }
        | Request::SetLock { open, .. }
        | Request::Flush { open, .. }
        | Request::Release { open } => Some(open),
        _ => None,
    }
}

fn with_open<'a>(request: &Request<'a>, number: OpenId) -> Request<'a> {
    match *request {
        Request::Sync { data_only, .. } => Request::Sync { open: number, data_only },
        Request::Commit { offset, length, .. } => Request::Commit { open: number, offset, length },
        _ => request.clone(),
    }
}
