//! The [`FileSystem`] over a local directory, as a server exports it: every call completes at once with blocking system calls on the calling
//! thread; only a blocking lock waits.
//!
//! - **Confined**: names are single components, links are never followed, mount points end the tree unless asked otherwise, and handles carry a MAC.
//! - **The kernel decides**: a thread takes on the caller's identity (see [`restore`]), so no check of permissions is ours.
//! - **Handles are the kernel's**, so they outlive this process; a bounded table stands in where there are none.
//!
//! An inode that is open is reached through that open, since a removed file may have no other way to it. Special files are never opened.

mod ahead;
mod data;
mod departed;
mod domain;
mod files;
mod identity;
mod inodes;
mod listing;
mod lock;
pub mod locks;
mod mounts;
mod names;
mod open_file;
mod opens;
mod options;
mod page;
mod prefetch;
pub mod project;
mod put;
mod removals;
mod seal;
mod seen;
mod settle;
mod shared;
mod stability;
mod sum;
mod sys;
mod table;
mod tree;
mod unlinked;
mod waits;
mod watch;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aqueduct_fs::{
    Call, ClientId, Context, DataCounters, Errno, FileSystem, Handle, LockSeen, OpenId, ReadAt, Reply, Request, Sink,
    Source, WriteAt, Written,
};
use rustix::fs::{Mode, OFlags};

pub use domain::Domain;
pub use identity::{act_as, name_of_user, restore, user};
pub use options::{HandleSource, OPENS_MAX, Options};
pub use sum::forget;
pub use sys::late_errors;
pub use watch::{CannotWatch, Origin, Watch, Watcher, file_system};

use crate::locks::{Ask, Listed, Owner};
use crate::open_file::OpenFile;
use crate::opens::Opens;
use crate::prefetch::Prefetch;
use crate::tree::{Node, Tree};
use crate::unlinked::CannotKeep;
use crate::waits::Outcome;

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there.
    #[error("cannot serve {path}: it does not exist; create it, or correct the path of the export", path = .0.display())]
    Missing(PathBuf),
    /// It is something else.
    #[error("cannot serve {path}: it is not a directory; name the directory that holds it", path = .0.display())]
    NotDirectory(PathBuf),
    /// It may not be read.
    #[error("cannot serve {path}: this user may not open it; run the server as root, or allow the user to read the directory", path = .0.display())]
    Permission(PathBuf),
    /// /proc is not mounted.
    #[error("cannot serve {path}: /proc/self/fd is not there ({error}), which opening files takes; mount proc on /proc", path = .path.display())]
    NoProc {
        /// The directory.
        path: PathBuf,
        /// What opening a descriptor again said.
        error: Errno,
    },
    /// Others have what the server would keep removed files in.
    #[error(
        "cannot serve {path}: {} and {} in it belong to others, and removed files that are open could not be kept; \
         remove or rename one of them, and see who may write to that directory",
        .names[0], .names[1], path = .path.display()
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// The names.
        names: [String; 2],
    },
    /// The system refused otherwise.
    #[error("cannot serve {path}: {step} failed with {error}; see whether its file system is mounted and in order", path = .path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// What the system said.
        error: Errno,
    },
}

/// How much is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Open files and directories.
    pub opens: usize,
    /// The most of them.
    pub opens_max: usize,
    /// Locked ranges, flocks included.
    pub locks: usize,
    /// Waits for locks.
    pub lock_waits: usize,
    /// Inodes in the table that stands in for the kernel's handles.
    pub table_inodes: usize,
    /// Files without a name that are kept for those who have them open.
    pub unlinked: usize,
    /// Whether handles are the kernel's, and so outlive the process.
    pub kernel_handles: bool,
    /// Whether callers are told apart: the server runs as root.
    pub switches_identity: bool,
}

/// A local directory as a [`FileSystem`]; see the crate.
///
/// Run by root, each operation has its caller's identity, and the calling thread keeps that identity afterwards: see [`restore`]. Run by another
/// user, everything is done as that user, and other users' operations on names are refused with EPERM.
pub struct Posix {
    tree: Tree,
    opens: Opens,
    domain: Domain,
    boot: u64,
    /// Of the root's file system.
    verifier: u64,
    is_memory: bool,
    sync: bool,
    /// See [`Options::projects`].
    projects: &'static [u8],
    prefetch: Prefetch,
}

impl Posix {
    /// Serves the directory `root`. It stays the same directory if its path is renamed.
    pub fn open(root: &Path, options: Options) -> Result<Posix, OpenError> {
        identity::initialise();
        identity::restore();
        let path = root.to_path_buf();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(root, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::NOENT => OpenError::Missing(path.clone()),
            rustix::io::Errno::NOTDIR => OpenError::NotDirectory(path.clone()),
            rustix::io::Errno::ACCESS => OpenError::Permission(path.clone()),
            error => OpenError::System { path: path.clone(), step: "opening it", error: error.into() },
        })?;
        sys::reopen(fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|error| OpenError::NoProc { path: path.clone(), error })?;
        let place = std::fs::canonicalize(root).unwrap_or_else(|_| path.clone());
        let tree = Tree::new(fd, &place, &options).map_err(|error| match error {
            CannotKeep::Taken(names) => OpenError::Taken { path, names },
            CannotKeep::System(error) => OpenError::System { path, step: "looking at it", error },
        })?;
        let domain = options.domain.clone();
        let opens = Opens::new(options.opens_max, domain.clone());
        let root = tree.root_fd();
        let (verifier, is_memory) = (stability::verifier(options.boot, root), stability::is_memory(root));
        let sync = options.sync && !is_memory;
        let prefetch = Prefetch::new(options.read_ahead, tree.root_device());
        let (boot, projects) = (options.boot, options.projects);
        Ok(Posix { tree, opens, domain, boot, verifier, is_memory, sync, projects, prefetch })
    }

    /// How much is in use.
    pub fn statistics(&self) -> Statistics {
        let (locks, lock_waits) = self.lock_counts();
        Statistics {
            opens: self.opens.count(),
            opens_max: self.opens.limit(),
            locks,
            lock_waits,
            table_inodes: self.tree.table_len(),
            unlinked: self.unlinked_len(),
            kernel_handles: self.tree.has_kernel_handles(),
            switches_identity: identity::may_switch(),
        }
    }

    /// The inode of a handle.
    fn node(&self, handle: &[u8]) -> Result<Node<'_>, Errno> {
        match self.opens.of_handle(handle) {
            Some(open) => Ok(Node::Open(open)),
            None => self.tree.resolve(handle),
        }
    }

    /// The directory of a handle, to look names up in.
    fn directory(&self, handle: &[u8]) -> Result<Node<'_>, Errno> {
        match self.opens.of_handle(handle) {
            Some(open) => Ok(Node::Open(open)),
            None => self.tree.directory(handle),
        }
    }

    /// The inode of a handle, through the caller's own open if there is one.
    fn node_or_open(&self, context: &Context, handle: &[u8], open: Option<OpenId>) -> Result<Node<'_>, Errno> {
        let Some(id) = open else { return self.node(handle) };
        let open = self.opens.get(context.client, id)?;
        if open.handle.bytes() == handle { Ok(Node::Open(open)) } else { Err(Errno::EBADF) }
    }

    fn answer(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        use Request::*;
        match &request {
            Flush { .. } | Release { .. } | ReleaseDirectory { .. } | GetLock { .. } | SetLock { .. } => {
                self.answer_end_or_lock(context, request)
            }
            Sync { .. }
            | Commit { .. }
            | SyncDirectory { .. }
            | ReadDirectory { .. }
            | Fallocate { .. }
            | Seek { .. }
            | Checksum { .. }
            | CopyRange { .. } => {
                identity::act_through_open(&context.credential)?;
                self.answer_through_open(context, request)
            }
            // It has all bytes itself.
            Layout { .. } => Err(Errno::EOPNOTSUPP),
            GetAttr { handle, open } => identity::look(&context.credential, || {
                Ok(Reply::Attr(self.tree.see(self.node_or_open(context, handle, *open)?.as_fd())?.attr))
            }),
            SetAttr { .. }
            | ReadLink { .. }
            | Statfs { .. }
            | GetXattr { .. }
            | SetXattr { .. }
            | ListXattr { .. }
            | RemoveXattr { .. }
            | Access { .. } => {
                identity::act_as(&context.credential)?;
                self.answer_about_inode(context, request)
            }
            PutFiles { parent, files, stable } => {
                identity::act_as(&context.credential)?;
                self.put_files(parent, files, *stable)
            }
            Open { .. } | Create { .. } | CreateUnnamed { .. } | Reopen { .. } | OpenDirectory { .. } => {
                identity::act_as(&context.credential)?;
                self.answer_open(context, request)
            }
            // Nobody's permission: whoever serves or mounts the tree asks for it, on nobody's behalf.
            Root => self.answer_about_name(context, request),
            _ => {
                identity::act_as(&context.credential)?;
                self.answer_about_name(context, request)
            }
        }
    }

    /// What needs nobody's permission.
    fn answer_end_or_lock(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Flush { open, owner } => {
                let open = self.opens.get(context.client, open)?;
                self.domain.locks().flush(open.inode, Owner { client: context.client, owner });
                open.late_error()?;
            }
            Request::Release { open } | Request::ReleaseDirectory { open } => self.end(context.client, open)?,
            Request::GetLock { open, owner, space, lock } => {
                let open = self.opens.get(context.client, open)?;
                return Ok(Reply::Lock(self.domain.locks().test(&ask(&open, owner, space, lock))?));
            }
            Request::SetLock { open, owner, space, lock, wait: false } => {
                let open = self.opens.get(context.client, open)?;
                self.domain.locks().set(&open, &ask(&open, owner, space, lock), false, &context.cancel)?;
            }
            _ => return Err(Errno::ENOSYS),
        }
        Ok(Reply::Done)
    }

    /// The locked ranges and the waits of this export's clients: who has any has something open.
    fn lock_counts(&self) -> (usize, usize) {
        self.domain.locks().counts(|client| self.opens.has_client(client))
    }

    /// A lock for which the caller is ready to wait.
    fn lock_waiting<'a>(
        &'a self,
        context: &'a Context,
        open: OpenId,
        make: impl Fn(&OpenFile) -> Ask,
    ) -> Call<'a, Reply> {
        let outcome = self
            .opens
            .get(context.client, open)
            .and_then(|open| self.domain.locks().set(&open, &make(&open), true, &context.cancel));
        match outcome {
            Ok(Outcome::Done) => Call::ready(Ok(Reply::Done)),
            Ok(Outcome::Waits(wait)) => Call::waiting(async { wait.await.map(|()| Reply::Done) }),
            Err(error) => Call::ready(Err(error)),
        }
    }
}

fn ask(open: &OpenFile, owner: u64, space: aqueduct_fs::LockSpace, lock: aqueduct_fs::Lock) -> Ask {
    Ask { inode: open.inode, space, owner: Owner { client: open.client, owner }, open: open.id, lock }
}

impl FileSystem for Posix {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        match request {
            Request::SetLock { open, owner, space, lock, wait: true } => {
                self.lock_waiting(context, open, |open| ask(open, owner, space, lock))
            }
            request => {
                let answer = self.answer(context, request);
                if matches!(answer, Err(Errno::ENOSPC | Errno::EDQUOT)) {
                    // The next try finds their space. This one is not made again: it may be done,
                    // and only its flush have failed.
                    self.let_go_of_departed();
                }
                Call::ready(answer)
            }
        }
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        Call::ready(self.read_range(context, read, sink))
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        Call::ready(self.write_range(context, write, &source))
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        for id in self.opens.of_client(client) {
            // Ended meanwhile by its own Release.
            let _ = self.end(client, id);
        }
        self.domain.locks().depart(client);
        Call::ready(Ok(()))
    }

    fn locks(&self, limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        let is_ours = |client| self.opens.has_client(client);
        let seen = self.domain.locks().list(limit, is_ours).into_iter().map(|(listed, age)| {
            let Listed { owner, space, open, lock, waits, .. } = listed;
            let path = self.opens.get(owner.client, open).ok().and_then(|open| sys::path_of(open.fd.as_fd()));
            LockSeen { client: owner.client, space, lock, waits, age, path }
        });
        let (held, waits) = self.lock_counts();
        Call::ready(Ok((seen.collect(), held + waits)))
    }

    fn data_counters(&self) -> Option<DataCounters> {
        Some(self.prefetch.counters())
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        Call::ready(self.opens.get(client, open).map(|open| open.handle.clone()))
    }

    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        self.tree.inode_name(handle)
    }
}
