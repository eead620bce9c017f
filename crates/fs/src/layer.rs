//! Layers: file systems that stand over another one and change a part of what it does.

use crate::{
    Answer, Call, ClientId, Context, DataCounters, Errno, FileSystem, Handle, Hold, LockSeen, OpenId, ReadAt, Reply,
    Request, Sink, Source, WriteAt, Written,
};

/// The answer to a question of this `size` for the names of extended attributes, which end with 0,
/// without one that the layer has for itself.
pub fn names_without(own: &[u8], names: &[u8], size: u32) -> Result<Reply, Errno> {
    let is_shown = |name: &&[u8]| name.strip_suffix(&[0]) != Some(own);
    let shown = names.split_inclusive(|byte| *byte == 0).filter(is_shown).collect::<Vec<_>>().concat();
    match size {
        0 => Ok(Reply::Size(shown.len() as u64)),
        size if shown.len() > size as usize => Err(Errno::ERANGE),
        _ => Ok(Reply::Bytes(shown)),
    }
}

/// A file system over another one. What a layer does not say goes to the one below, so that a
/// layer cannot forget a method: the lint at the only implementation of [`FileSystem`] for layers
/// fails when the trait has a method that is not forwarded here.
///
/// A layer says in [`ask`](Layer::ask) what happens to requests. [`FileSystem::call`] is made of
/// it, so that no layer lets pass by one way what it refuses by the other.
pub trait Layer: Send + Sync {
    /// The type of the file system below.
    type Below: FileSystem + ?Sized;

    /// The file system below.
    fn below(&self) -> &Self::Below;

    /// See [`FileSystem::ask`] and [`FileSystem::call`].
    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        self.below().ask(context, request)
    }

    /// See [`FileSystem::hold_data`].
    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        self.below().hold_data(handle)
    }

    /// See [`FileSystem::read`].
    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.below().read(context, read, sink)
    }

    /// See [`FileSystem::write`].
    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        self.below().write(context, write, source)
    }

    /// See [`FileSystem::depart`].
    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        self.below().depart(client)
    }

    /// See [`FileSystem::locks`].
    fn locks(&self, limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        self.below().locks(limit)
    }

    /// See [`FileSystem::inode`].
    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        self.below().inode(client, open)
    }

    /// See [`FileSystem::data_counters`].
    fn data_counters(&self) -> Option<DataCounters> {
        self.below().data_counters()
    }

    /// See [`FileSystem::inode_name`].
    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        self.below().inode_name(handle)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<L: Layer> FileSystem for L {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        match Layer::ask(self, context, request) {
            Call::Ready(answer) => Call::Ready(answer.map(|answer| answer?.result)),
            Call::Waiting(answer) => Call::waiting(async { answer.await?.result }),
        }
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        Layer::ask(self, context, request)
    }

    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        Layer::hold_data(self, handle)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        Layer::read(self, context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        Layer::write(self, context, write, source)
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        Layer::depart(self, client)
    }

    fn locks(&self, limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        Layer::locks(self, limit)
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        Layer::inode(self, client, open)
    }

    fn data_counters(&self) -> Option<DataCounters> {
        Layer::data_counters(self)
    }

    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        Layer::inode_name(self, handle)
    }
}
