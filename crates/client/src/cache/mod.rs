//! What a client keeps under leases, and the file system that answers from it.
//!
//! - [`shard`], [`inode`], [`names`], [`gate`]: what is kept and what may be told, pure.
//! - [`leases`], [`hold`], [`clock`]: the same, shared by threads, with a clock.
//! - [`recall`]: how leases are given back.
//! - [`opens`]: opens that the server does not know of.
//! - [`memory`], [`change`]: the operations.
//! - [`held`], [`own`]: what is held back, and what has to wait for it.
//! - [`scan`], [`coming`], [`ahead`]: small files and directories that are fetched before they are opened.

mod ahead;
mod change;
mod clock;
mod coming;
mod gate;
mod held;
mod hold;
mod inode;
mod leases;
mod memory;
mod names;
mod opens;
mod own;
pub(crate) mod recall;
mod scan;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use aqueduct_fs::{
    Answer, Call, ClientId, Context, Errno, FileSystem, Handle, Hold, Observer, OpenId, ReadAt, Reply, Request, Sink,
    Source, WriteAt, Written,
};

use ahead::deliver;
pub(crate) use clock::now;
use held::Held;
pub(crate) use leases::{Brought, Leases};
use opens::Found;

use crate::client::Client;

/// A client that answers from memory what it has leases on.
pub struct Cached {
    client: Arc<Client>,
    /// `None`: the client keeps nothing, and everything goes straight through.
    leases: Option<Arc<Leases>>,
}

impl Cached {
    /// Over a client whose configuration says that it keeps what leases are granted on.
    pub fn new(client: Arc<Client>) -> Arc<Cached> {
        let leases = client.leases.clone();
        Arc::new(Cached { client, leases })
    }

    /// From now on this one is told what whoever gets answers has to forget. It is called by two threads of the client's, and by one that connects again. What
    /// is to forget attributes and names, and no data, must not wait for anybody who forgets data: those may wait for writes.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        if let Some(leases) = &self.leases {
            leases.set_observer(observer);
        }
    }

    /// The client below.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The server's number of an open, which is asked for if there is none.
    async fn real(&self, leases: &Leases, open: OpenId) -> Result<OpenId, Errno> {
        match leases.opens.find(open) {
            Found::Real(real) => Ok(real),
            Found::Local(open) => self.client.real(&open).await,
            Found::Unknown => Err(Errno::EBADF),
        }
    }

    async fn through<'a>(&'a self, context: &'a Context, request: Request<'a>, leases: &Arc<Leases>) -> Answer {
        let request = match self.known_to_server(leases, request).await {
            Ok(request) => request,
            Err(error) => return Err(error).into(),
        };
        let asked = leases.asks();
        let mut answer = match change::Plan::of(&request, leases) {
            Some(plan) => {
                let makes = change::makes_anew(&request);
                let result = self.change(context, request, leases, plan).await;
                if makes { memory::answer_made(leases, result) } else { result.into() }
            }
            None => match self.fetch_ahead(context, request, leases).await {
                Ok(answer) => answer,
                Err(request) => self.fetch(context, request, leases).await,
            },
        };
        if self.client.gather.was_active_since(asked) {
            self.mend(context, leases, asked, &mut answer).await;
        }
        answer
    }

    /// A request with the server's numbers for what is open.
    async fn known_to_server<'a>(&self, leases: &Leases, mut request: Request<'a>) -> Result<Request<'a>, Errno> {
        use Request::*;
        match &mut request {
            GetAttr { open: place, .. } => {
                // Whoever may ask through an open may ask without.
                if let Some(open) = *place {
                    *place = match leases.opens.find(open) {
                        Found::Real(real) => Some(real),
                        Found::Local(_) | Found::Unknown => None,
                    };
                }
            }
            SetAttr { open: Some(open), .. }
            | Flush { open, .. }
            | Sync { open, .. }
            | Commit { open, .. }
            | Fallocate { open, .. }
            | Seek { open, .. }
            | ReadDirectory { open, .. }
            | SyncDirectory { open, .. }
            | GetLock { open, .. }
            | SetLock { open, .. } => *open = self.real(leases, *open).await?,
            CopyRange { from, to, .. } => {
                *from = self.real(leases, *from).await?;
                *to = self.real(leases, *to).await?;
            }
            _ => {}
        }
        Ok(request)
    }
}

impl FileSystem for Cached {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        match self.ask(context, request) {
            Call::Ready(answer) => Call::Ready(answer.map(|answer| answer.and_then(|answer| answer.result))),
            Call::Waiting(answer) => Call::waiting(async move { answer.await?.result }),
        }
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let Some(leases) = &self.leases else {
            return Call::waiting(async move { Ok(self.client.call(context, request).await.into()) });
        };
        match request {
            Request::SetAttr { handle, set, .. } => {
                if let Some(attr) = self.hold_back_set(context, leases, handle, &set) {
                    return Call::ready(Ok(Ok(Reply::Attr(attr)).into()));
                }
            }
            Request::Flush { open, .. } => leases.opens.begins_to_close(open),
            _ => {}
        }
        if self.must_settle(leases, &request) {
            return Call::waiting(self.ask_settled(context, request, leases));
        }
        match self.remembered(context, request, leases) {
            Ok(answer) => Call::ready(Ok(answer)),
            Err(request) => Call::waiting(async move { Ok(self.through(context, request, leases).await) }),
        }
    }

    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        let leases = self.leases.as_ref()?;
        leases.hold_data(handle)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        if let Some(leases) = self.leases.as_ref().filter(|leases| self.is_held_back(leases, read.open)) {
            return Call::waiting(self.read_settled(context, read, sink, leases));
        }
        match self.leases.as_ref().map_or(Found::Real(read.open), |leases| leases.opens.find(read.open)) {
            Found::Real(open) => self.client.read(context, ReadAt { open, ..read }, sink),
            Found::Unknown => Call::ready(Err(Errno::EBADF)),
            Found::Local(open) => match self.leases.as_ref().and_then(|leases| leases.fetched(&open.handle, read)) {
                Some(data) => Call::ready(deliver(&data, sink)),
                None => Call::waiting(async move {
                    let open = self.client.real(&open).await?;
                    self.client.read(context, ReadAt { open, ..read }, sink).await
                }),
            },
        }
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        match &self.leases {
            Some(leases) => match self.hold_back(context, leases, write, &source) {
                Some(Held::Answered(result)) => Call::ready(result),
                Some(Held::Full) | None => Call::waiting(self.write_waiting(context, write, source, leases)),
            },
            None => self.client.write(context, write, source),
        }
    }

    fn depart(&self, client: ClientId) {
        self.client.depart(client);
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Option<Handle> {
        match self.leases.as_ref().and_then(|leases| leases.opens.handle(open)) {
            Some(handle) => Handle::new(&handle),
            None => self.client.inode(client, open),
        }
    }
}
