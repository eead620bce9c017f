//! The cache as a file system: answers from memory, or through the volume.

use std::sync::Arc;

use aqueduct_fs::{
    Answer, Call, ClientId, Context, Errno, FileSystem, Handle, Hold, OpenId, ReadAt, Reply, Request, Sink, Source,
    WriteAt, Written,
};
use aqueduct_session::Brought;

use super::ahead::deliver;
use super::change::{Plan, makes_anew};
use super::held::Held;
use super::leases::Leases;
use super::memory::{answer_made, answer_opened, opens_to_map};
use super::parts::Cache;
use crate::volume::Found;

impl Cache {
    /// Answers when the server has what is held back of what the request is about.
    async fn ask_settled(
        &self,
        context: &Context,
        request: Request<'_>,
        leases: &Arc<Leases>,
    ) -> Result<Answer, Errno> {
        self.settle(context, &request, leases).await?;
        match self.remembered(context, request, leases) {
            Ok(answer) => Ok(answer),
            Err(request) => Ok(self.through(context, request, leases).await),
        }
    }

    async fn through<'a>(&'a self, context: &'a Context, request: Request<'a>, leases: &'a Arc<Leases>) -> Answer {
        if let Err(error) = self.volume.have_real(&request, context.steps()).await {
            return Err(error).into();
        }
        let asked = leases.asks();
        let mut answer = match Plan::of(&request, leases, &self.volume.opens) {
            Some(plan) => {
                let (makes, maps) = (makes_anew(&request), opens_to_map(&request));
                let result = self.change(context, request, leases, plan).await;
                match maps {
                    Some(handle) => answer_opened(leases, handle, result),
                    None if makes => answer_made(leases, result),
                    None => result.into(),
                }
            }
            None => match self.fetch_ahead(context, request, leases).await {
                Ok(answer) => answer,
                Err(request) => self.fetch(context, request, leases).await,
            },
        };
        if leases.writeback.was_active_since(asked) {
            Box::pin(self.mend(context, leases, asked, &mut answer)).await;
        }
        answer
    }
}

impl FileSystem for Cache {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        match self.ask(context, request) {
            Call::Ready(answer) => Call::Ready(answer.map(|answer| answer.and_then(|answer| answer.result))),
            Call::Waiting(answer) => Call::waiting(async move { answer.await?.result }),
        }
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let leases = match self.of_request(&request) {
            Ok(Some(leases)) => leases,
            Ok(None) => {
                return Call::waiting(async move {
                    Ok(self.volume.call(context, &request, &mut Brought::default()).await.into())
                });
            }
            Err(error) => return Call::ready(Err(error)),
        };
        match request {
            Request::SetAttr { handle, set, .. } => {
                if let Some(attr) = self.hold_back_set(context, leases, handle, &set) {
                    return Call::ready(Ok(Ok(Reply::Attr(attr)).into()));
                }
            }
            Request::Flush { open, .. } => {
                self.volume.opens.writer(open).inspect(|open| open.begins_to_close());
            }
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
        self.of_inode(handle)?.hold_data(handle)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        let leases = self.of_open(read.open);
        if let Some(leases) = leases.filter(|leases| self.is_held_back(leases, read.open)) {
            return Call::waiting(self.read_settled(context, read, sink, leases));
        }
        match self.volume.opens.find(read.open) {
            Found::Real(real) => Call::waiting(self.volume.read_real(context, (read, real), sink)),
            Found::Unknown => Call::ready(Err(Errno::EBADF)),
            Found::Local(open) => match leases.and_then(|leases| leases.fetched(&open.handle, read)) {
                Some(data) => Call::ready(deliver(&data, sink)),
                None => Call::waiting(self.volume.read(context, read, sink)),
            },
        }
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        let Some(leases) = self.of_open(write.open) else {
            return Call::waiting(async move {
                self.volume.write(context, (write, source.memory()?), &mut Brought::default()).await
            });
        };
        match self.hold_back(context, leases, write, &source) {
            Some(Held::Answered(result)) => Call::ready(result),
            Some(Held::Full) | None => Call::waiting(self.write_waiting(context, write, source, leases)),
        }
    }

    /// The servers free what a session held when it ends; within a session the front end is the
    /// only client.
    fn depart(&self, _client: ClientId) -> Call<'_, ()> {
        Call::ready(Ok(()))
    }

    fn inode(&self, _client: ClientId, open: OpenId) -> Call<'_, Handle> {
        Call::ready(self.volume.inode(open))
    }
}
