//! A layer for a file system that takes all that it is asked for one client's, as a session to
//! another server does: with it a server may stand over such a one and have clients of its own.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};

use crate::layer::Layer;
use crate::{
    Answer, Call, ClientId, Context, Errno, FileSystem, Handle, OpenId, ReadAt, Reply, Request, Sink, Source, WriteAt,
    Written,
};

/// The layer; see the module.
///
/// - What a client has open is its own: to others the number means nothing (EBADF). What is open
///   ends with the client, and the locks that were taken through it.
/// - Lock owners are numbers that each client chooses: below they are a hash of client and number,
///   with a key of this process, so that no client can make its own meet another's.
///
/// It knows the handle of what was opened through it; of what was opened again by a token, only
/// the file system below does.
pub struct Multiplexed<F> {
    below: F,
    hasher: RandomState,
    /// As many as the file system below has open at once.
    opens: Mutex<HashMap<OpenId, Open>>,
}

struct Open {
    client: ClientId,
    /// `None`: it was opened again.
    handle: Option<Handle>,
    is_directory: bool,
}

impl<F: FileSystem> Multiplexed<F> {
    /// The layer over `below`.
    pub fn new(below: F) -> Multiplexed<F> {
        Multiplexed { below, hasher: RandomState::new(), opens: Mutex::default() }
    }

    fn opens(&self) -> MutexGuard<'_, HashMap<OpenId, Open>> {
        self.opens.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn check(&self, client: ClientId, open: OpenId) -> Result<(), Errno> {
        match self.opens().get(&open) {
            Some(known) if known.client == client => Ok(()),
            _ => Err(Errno::EBADF),
        }
    }

    /// A request as the file system below is asked.
    fn below_of<'a>(&self, client: ClientId, mut request: Request<'a>) -> Result<Request<'a>, Errno> {
        if let Request::Reopen { open, .. } = request {
            let is_others = self.opens().get(&open).is_some_and(|known| known.client != client);
            return if is_others { Err(Errno::EBUSY) } else { Ok(request) };
        }
        for open in request.opens().into_iter().flatten() {
            self.check(client, open)?;
        }
        match &mut request {
            Request::Flush { owner, .. } | Request::GetLock { owner, .. } | Request::SetLock { owner, .. } => {
                *owner = self.hasher.hash_one((client, *owner));
            }
            _ => {}
        }
        Ok(request)
    }

    /// What is open after a request.
    fn note(&self, client: ClientId, request: &Request<'_>, result: &Result<Reply, Errno>) {
        let is_directory = matches!(request, Request::OpenDirectory { .. });
        match (request, result) {
            (Request::Open { handle, .. } | Request::OpenDirectory { handle }, Ok(Reply::Opened(opened))) => {
                let handle = Handle::new(handle);
                self.opens().insert(opened.id, Open { client, handle, is_directory });
            }
            (_, Ok(Reply::Created(entry, opened))) => {
                let handle = Some(entry.handle.clone());
                self.opens().insert(opened.id, Open { client, handle, is_directory });
            }
            (Request::Reopen { open, .. }, Ok(_)) => {
                self.opens().entry(*open).or_insert(Open { client, handle: None, is_directory });
            }
            (
                Request::Release { open } | Request::ReleaseDirectory { open },
                Ok(_) | Err(Errno::EBADF | Errno::ESTALE | Errno::EIO),
            ) => {
                self.opens().remove(open);
            }
            _ => {}
        }
    }

    async fn end_all_of(&self, client: ClientId) -> Result<(), Errno> {
        let its = |(id, open): (&OpenId, &Open)| (open.client == client).then_some((*id, open.is_directory));
        let opens: Vec<_> = self.opens().iter().filter_map(its).collect();
        let context = Context::new(client, crate::Credential::root());
        let mut ended = Ok(());
        for (open, is_directory) in opens {
            let release = if is_directory { Request::ReleaseDirectory { open } } else { Request::Release { open } };
            let result = self.below.call(&context, release).await;
            self.opens().remove(&open);
            ended = ended.and(result.map(drop));
        }
        ended.and(self.below.depart(client).await)
    }
}

impl<F: FileSystem> Layer for Multiplexed<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let request = match self.below_of(context.client, request) {
            Ok(request) => request,
            Err(error) => return Call::ready(Err(error)),
        };
        let note = move |request: &Request<'_>, answer: Answer| {
            self.note(context.client, request, &answer.result);
            answer
        };
        match self.below.ask(context, request.clone()) {
            Call::Ready(answer) => Call::Ready(answer.map(|answer| answer.map(|answer| note(&request, answer)))),
            Call::Waiting(answer) => Call::waiting(async move { Ok(note(&request, answer.await?)) }),
        }
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        match self.check(context.client, read.open) {
            Ok(()) => self.below.read(context, read, sink),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        match self.check(context.client, write.open) {
            Ok(()) => self.below.write(context, write, source),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        if !self.opens().values().any(|open| open.client == client) {
            return self.below.depart(client);
        }
        Call::waiting(self.end_all_of(client))
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        let known = match self.opens().get(&open) {
            Some(known) if known.client == client => known.handle.clone(),
            _ => return Call::ready(Err(Errno::EBADF)),
        };
        match known {
            Some(handle) => Call::ready(Ok(handle)),
            None => self.below.inode(client, open),
        }
    }
}
