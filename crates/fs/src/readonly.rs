//! A layer that refuses what would change the file system below it.

use crate::{
    Call, ClientId, Context, DataCounters, Errno, FileSystem, Handle, LockSeen, OpenId, ReadAt, Reply, Request, Sink,
    Source, WriteAt, Written,
};

/// Answers EROFS to whatever writes, and passes the rest on.
#[derive(Debug)]
pub struct ReadOnly<F>(pub F);

impl<F: FileSystem> FileSystem for ReadOnly<F> {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        if request.writes() { Call::ready(Err(Errno::EROFS)) } else { self.0.call(context, request) }
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.0.read(context, read, sink)
    }

    fn write<'a>(&'a self, _context: &'a Context, _write: WriteAt, _source: Source) -> Call<'a, Written> {
        Call::ready(Err(Errno::EROFS))
    }

    fn depart(&self, client: ClientId) {
        self.0.depart(client);
    }

    fn locks(&self, limit: usize) -> (Vec<LockSeen>, usize) {
        self.0.locks(limit)
    }

    fn data_counters(&self) -> Option<DataCounters> {
        self.0.data_counters()
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Option<Handle> {
        self.0.inode(client, open)
    }

    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        self.0.inode_name(handle)
    }
}
