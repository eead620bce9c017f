//! **One trait, [`FileSystem`]: the operations that a file system answers.** Everything in Aqueduct either is one (a local directory, sessions to a
//! server, a synthetic file) or uses one (the wire server, the FUSE front end, the tools).
//!
//! The trait is asynchronous in form and synchronous where it can be: see [`Call`].

pub mod acl;
pub mod caching;
pub mod call;
pub mod context;
pub mod data;
pub mod dataonly;
pub mod dirpage;
pub mod errno;
pub mod idmap;
pub mod late;
pub mod layer;
pub mod lease;
pub mod multiplexed;
pub mod outside;
pub mod parts;
pub mod put;
pub mod readonly;
pub mod request;
pub mod steps;
pub mod stripe;
pub mod synthetic;
mod sys;
pub mod throttled;
pub mod types;
pub mod wide;

use std::sync::Arc;

pub use call::Call;
pub use context::{Cancel, ClientId, Context, Credential, Groups};
pub use data::{MemorySink, Sink, Source, Staged};
pub use dirpage::{DirEntry, DirPage};
pub use errno::Errno;
pub use lease::{Answer, Aspects, Hold, Keep, Observer};
pub use outside::Outside;
pub use request::{Reply, Request};
pub use stripe::{Layout, Part};
pub use types::*;

/// A write into an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAt {
    /// The file, opened for writing.
    pub open: OpenId,
    /// First byte; ignored with `append`.
    pub offset: u64,
    /// Writes at the end of the file as it is at that moment, atomically.
    pub append: bool,
    /// Stable when it returns (O_SYNC, O_DSYNC).
    pub stable: bool,
}

/// A read of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAt {
    /// The file, opened for reading.
    pub open: OpenId,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted, at most [`TRANSFER_SIZE_MAX`]; fewer come only at the end of the file.
    pub length: u32,
}

/// The operations that a file system answers. Those that may have to ask somebody else return a
/// [`Call`], so that who uses one need not know whether it can answer at once; what they do not is
/// known to the file system without asking.
pub trait FileSystem: Send + Sync {
    /// Any operation that moves no bulk data.
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply>;

    /// As [`call`](FileSystem::call), and says what may be kept of the answer. An error of the call is one in the answer as well.
    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        match self.call(context, request) {
            Call::Ready(result) => Call::Ready(result.map(|result| Ok(result.into()))),
            Call::Waiting(result) => Call::waiting(async { Ok(result.await.into()) }),
        }
    }

    /// Whether what is read of the file from now on may be kept: until what is returned is dropped, nobody is told to forget it.
    /// It is about the leases that this file system has, so that nobody has to be asked.
    fn hold_data(&self, _handle: &[u8]) -> Option<Hold> {
        None
    }

    /// Moves a range of a file to `sink` and delivers it there. Returns the bytes that came; 0 at the end of the file is delivered as well.
    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize>;

    /// Writes all of `source`, or as much as fits before an error.
    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written>;

    /// The client has gone: ends its opens and locks, and the waits for locks. Nothing of it is
    /// executed any more.
    fn depart(&self, client: ClientId) -> Call<'_, ()>;

    /// The locks that clients have and wait for, those first for whose files somebody waits: at most `limit` of them, and how many there are.
    fn locks(&self, _limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        Call::ready(Ok((Vec::new(), 0)))
    }

    /// The handle of what a client has open; EBADF: there is no such open.
    fn inode(&self, _client: ClientId, _open: OpenId) -> Call<'_, Handle> {
        Call::ready(Err(Errno::EBADF))
    }

    /// What has been read ahead and written; `None`: nobody counts.
    fn data_counters(&self) -> Option<DataCounters> {
        None
    }

    /// What names the inode of a handle among all of this process: its file system, by a number, and its name there. The same for an inode that is
    /// found through several exports, whose handles differ. `None`: there is only the handle, or it is none of this file system's.
    fn inode_name<'a>(&self, _handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FileSystem + ?Sized> FileSystem for Arc<F> {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        (**self).call(context, request)
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        (**self).ask(context, request)
    }

    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        (**self).hold_data(handle)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        (**self).read(context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        (**self).write(context, write, source)
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        (**self).depart(client)
    }

    fn locks(&self, limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        (**self).locks(limit)
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        (**self).inode(client, open)
    }

    fn data_counters(&self) -> Option<DataCounters> {
        (**self).data_counters()
    }

    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        (**self).inode_name(handle)
    }
}

/// Whether these bytes can be a name in a directory: not empty, at most [`NAME_LENGTH_MAX`], without NUL and `/`, not `.` or `..`.
/// ENAMETOOLONG, EINVAL or, for an empty one, ENOENT, as the kernel says.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::ENOENT),
        [..] if name.len() > NAME_LENGTH_MAX => Err(Errno::ENAMETOOLONG),
        b"." | b".." => Err(Errno::EINVAL),
        _ if name.contains(&0) || name.contains(&b'/') => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
