//! Opening and creating files and directories.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use aqueduct_fs::{AccessMask, Context, Entry, Errno, Handle, OpenFlags, OpenId, Opened, Reply, Request};
use rustix::fs::OFlags;

use crate::listing::Listing;
use crate::open_file::Opening;
use crate::seal::Token;
use crate::seen::{Seen, see};
use crate::{Posix, identity, stability, sys};

/// How often a create looks again when the name appears and vanishes in between: each time somebody else has made and removed it.
const CREATE_TRIES: usize = 16;

/// How long an open waits for a program on this machine to give up its lease on the file (F_SETLEASE): most do within a millisecond. The kernel
/// would wait 45 seconds, with the thread.
const LEASE_MILLISECONDS_MAX: u64 = 50;

/// How often it looks meanwhile.
const LEASE_STEP_MILLISECONDS: u64 = 5;

/// What of an open's flags a token keeps: those that matter to the reads and writes that follow.
const TOKEN_FLAGS: OpenFlags = OpenFlags::READ
    .union(OpenFlags::WRITE)
    .union(OpenFlags::APPEND)
    .union(OpenFlags::DIRECT)
    .union(OpenFlags::NOATIME)
    .union(OpenFlags::SYNC)
    .union(OpenFlags::DATA_SYNC);

/// A new file that is asked for.
struct New<'a> {
    parent: &'a [u8],
    mode: u32,
    umask: u32,
    flags: OpenFlags,
}

impl Posix {
    pub(crate) fn answer_open(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        self.opens.check_room()?;
        match request {
            Request::Open { handle, flags } => {
                let node = self.node(handle)?;
                let (fd, seen) = open_regular(node.as_fd(), flags)?;
                if flags.contains(OpenFlags::TRUNCATE) {
                    self.settle(fd.as_fd())?;
                }
                // The node was found by this handle, and an inode has one handle.
                let handle = Handle::new(handle).ok_or(Errno::ESTALE)?;
                self.keep_file(context, fd, (handle, seen), flags).map(Reply::Opened)
            }
            Request::Create { parent, name, mode, umask, flags } => {
                let (entry, opened) = self.create(context, name, &New { parent, mode, umask, flags })?;
                Ok(Reply::Created(entry, opened))
            }
            Request::CreateUnnamed { parent, mode, umask, flags } => {
                let (entry, opened) = self.create_unnamed(context, &New { parent, mode, umask, flags })?;
                Ok(Reply::Created(entry, opened))
            }
            Request::Reopen { open, token } => self.reopen(context, open, token).map(Reply::Opened),
            Request::OpenDirectory { handle } => self.open_directory(context, handle, None).map(Reply::Opened),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn create(&self, context: &Context, name: &[u8], new: &New<'_>) -> Result<(Entry, Opened), Errno> {
        self.tree.check_name(new.parent, name, Errno::EPERM)?;
        let directory = self.directory(new.parent)?;
        let how = open_flags(new.flags.difference(OpenFlags::TRUNCATE))? | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..CREATE_TRIES {
            let fd = match self.make(directory.as_fd(), name, how, new) {
                Err(Errno::EEXIST) if !new.flags.contains(OpenFlags::EXCLUSIVE) => {
                    let found = match self.tree.open_path(directory.as_fd(), name) {
                        Err(Errno::ENOENT) => continue,
                        found => found?,
                    };
                    let found = open_regular(found.as_fd(), new.flags)?.0;
                    if new.flags.contains(OpenFlags::TRUNCATE) {
                        self.settle(found.as_fd())?;
                    }
                    found
                }
                made => {
                    let made = made?;
                    self.settle(made.as_fd())?;
                    self.settle_node(&directory)?;
                    made
                }
            };
            let (entry, seen) = self.tree.entry_seen(fd.as_fd(), Some((directory.as_fd(), name)))?;
            let opened = self.keep_file(context, fd, (entry.handle.clone(), seen), new.flags)?;
            return Ok((entry, opened));
        }
        Err(Errno::ESTALE)
    }

    fn create_unnamed(&self, context: &Context, new: &New<'_>) -> Result<(Entry, Opened), Errno> {
        let how = open_flags(new.flags.difference(OpenFlags::TRUNCATE))? | OFlags::TMPFILE;
        let directory = self.directory(new.parent)?;
        if self.tree.unlinked.is_some()
            && let Some(created) = self.create_kept(context, directory.as_fd(), how, new)?
        {
            return Ok(created);
        }
        let exclusive = if new.flags.contains(OpenFlags::EXCLUSIVE) { OFlags::EXCL } else { OFlags::empty() };
        let fd = self.make(directory.as_fd(), b".", how | exclusive, new)?;
        let (entry, seen) = self.tree.entry_seen(fd.as_fd(), None)?;
        let opened = self.keep_file(context, fd, (entry.handle.clone(), seen), new.flags)?;
        Ok((entry, opened))
    }

    /// A nameless file that outlives this process, if it can: then it has a hidden link, and it is not the kernel that knows whether it may be
    /// given a name.
    fn create_kept(
        &self,
        context: &Context,
        directory: BorrowedFd<'_>,
        how: OFlags,
        new: &New<'_>,
    ) -> Result<Option<(Entry, Opened)>, Errno> {
        let fd = self.make(directory, b".", how, new)?;
        let (entry, seen) = self.tree.entry_seen(fd.as_fd(), None)?;
        let (inode, linkable) = (seen.inode(), !new.flags.contains(OpenFlags::EXCLUSIVE));
        let Some(change) = self.keep_unnamed(context, (fd.as_fd(), inode), linkable)? else { return Ok(None) };
        let settled = self.settle(fd.as_fd());
        let opened = settled.and_then(|()| self.keep_file(context, fd, (entry.handle.clone(), seen), new.flags));
        drop(change);
        if opened.is_err() {
            self.forget_closed(inode);
        }
        Ok(Some((entry, opened?)))
    }

    /// Opens what does not exist yet.
    fn make(&self, directory: BorrowedFd<'_>, name: &[u8], how: OFlags, new: &New<'_>) -> Result<OwnedFd, Errno> {
        identity::with_umask(new.mode & 0o7777, new.umask, |mode| {
            sys::open_name(directory, name, how, mode, self.tree.cross_mounts)
        })
    }

    /// The open that a token stands for. For whom it was opened, and for the file's owner, who could allow himself anything: whatever the file's mode says
    /// by now. For another, whom the client's caller has become since by squashing or maps: as far as he may now.
    fn reopen(&self, context: &Context, id: OpenId, token_bytes: &[u8]) -> Result<Opened, Errno> {
        let token = self.tree.seal().check_token(token_bytes)?;
        let present = || self.opens.get(context.client, id).map(|open| open.handle == token.handle);
        match present() {
            Ok(true) => return Ok(Opened { id, token: token_bytes.into(), width: 0 }),
            Ok(false) => return Err(Errno::EBUSY),
            Err(_) => {}
        }
        match self.open_again(context, id, &token) {
            // Asked twice at once, the other was first.
            Err(Errno::EBUSY) if present() == Ok(true) => Ok(Opened { id, token: token_bytes.into(), width: 0 }),
            result => result,
        }
    }

    fn open_again(&self, context: &Context, id: OpenId, token: &Token) -> Result<Opened, Errno> {
        let caller = &context.credential;
        let same = (token.uid, token.gid) == (caller.uid, caller.gid);
        if token.directory {
            return self.open_directory(context, token.handle.bytes(), Some((id, same)));
        }
        let node = self.node(token.handle.bytes())?;
        let open = || open_regular(node.as_fd(), token.access);
        let (fd, seen) = if same || see(node.as_fd())?.attr.uid == caller.uid {
            // Where root is nobody (a network file system below), as the caller.
            match identity::as_root(caller, open) {
                Err(Errno::EACCES | Errno::EPERM) => open()?,
                opened => opened?,
            }
        } else {
            open()?
        };
        let opener = (caller.uid, caller.gid);
        let kept =
            Kept { id: Some(id), handle: token.handle.clone(), seen, flags: token.access, opener, directory: false };
        self.keep(context, fd, kept)
    }

    /// A directory for listing; `again` under the id that it had, by the same caller as then whatever its mode says by now.
    fn open_directory(&self, context: &Context, handle: &[u8], again: Option<(OpenId, bool)>) -> Result<Opened, Errno> {
        let node = self.node(handle)?;
        let seen = see(node.as_fd())?;
        if !seen.attr.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let open = || sys::reopen(node.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
        let caller = &context.credential;
        let fd = match again {
            Some((_, same)) if same || seen.attr.uid == caller.uid => {
                identity::as_root(caller, open).or_else(|_| open())?
            }
            _ => open()?,
        };
        let handle = Handle::new(handle).ok_or(Errno::ESTALE)?;
        let (id, opener) = (again.map(|(id, _)| id), (caller.uid, caller.gid));
        self.keep(context, fd, Kept { id, handle, seen, flags: OpenFlags::READ, opener, directory: true })
    }

    fn keep_file(
        &self,
        context: &Context,
        fd: OwnedFd,
        (handle, seen): (Handle, Seen),
        flags: OpenFlags,
    ) -> Result<Opened, Errno> {
        let opener = (context.credential.uid, context.credential.gid);
        self.keep(context, fd, Kept { id: None, handle, seen, flags: rights(flags), opener, directory: false })
    }

    /// Puts a descriptor into the table.
    fn keep(&self, context: &Context, fd: OwnedFd, kept: Kept) -> Result<Opened, Errno> {
        let Kept { id, handle, seen, flags, opener: (uid, gid), directory } = kept;
        let access = flags.intersection(TOKEN_FLAGS);
        let token = self.tree.seal().token(&Token { handle: handle.clone(), access, uid, gid, directory });
        let (verifier, is_memory) = if seen.device == self.tree.root_device() {
            (self.verifier, self.is_memory)
        } else {
            (stability::verifier(self.boot, fd.as_fd()), stability::is_memory(fd.as_fd()))
        };
        let open = self.opens.insert(Opening {
            id,
            client: context.client,
            fd,
            handle,
            inode: seen.inode(),
            flags,
            verifier,
            listing: directory.then(|| Mutex::new(Listing::default())),
            is_memory,
        })?;
        Ok(Opened { id: open.id, token, width: 0 })
    }
}

struct Kept {
    id: Option<OpenId>,
    handle: Handle,
    seen: Seen,
    flags: OpenFlags,
    opener: (u32, u32),
    directory: bool,
}

/// What is opened for execution is read.
fn rights(flags: OpenFlags) -> OpenFlags {
    if flags.contains(OpenFlags::EXECUTE) { flags | OpenFlags::READ } else { flags }
}

/// The kernel's flags. Neither O_APPEND, as each write says where it goes, nor O_DIRECT, whose alignment the backing file alone would ask for.
fn open_flags(flags: OpenFlags) -> Result<OFlags, Errno> {
    let mut how = match (rights(flags).contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (true, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (false, false) => return Err(Errno::EINVAL),
    };
    how.set(OFlags::TRUNC, flags.contains(OpenFlags::TRUNCATE));
    how.set(OFlags::NOATIME, flags.contains(OpenFlags::NOATIME));
    how.set(OFlags::DSYNC, flags.contains(OpenFlags::DATA_SYNC));
    if flags.contains(OpenFlags::SYNC) {
        how |= OFlags::SYNC;
    }
    Ok(how)
}

/// Opens an existing regular file with the permissions of this thread; anything else is not opened at all.
fn open_regular(inode: BorrowedFd<'_>, flags: OpenFlags) -> Result<(OwnedFd, Seen), Errno> {
    let seen = see(inode)?;
    match seen.attr.kind() {
        libc::S_IFREG => {}
        libc::S_IFDIR => return Err(Errno::EISDIR),
        libc::S_IFLNK => return Err(Errno::ELOOP),
        _ => return Err(Errno::ENXIO),
    }
    let execute = flags.contains(OpenFlags::EXECUTE);
    if execute {
        sys::access(inode, AccessMask::EXECUTE)?;
    }
    // A lease must not hold the thread.
    let mut how = open_flags(flags)? | OFlags::NONBLOCK;
    let mut waited = 0;
    let fd = loop {
        match sys::reopen(inode, how) {
            Err(Errno::EACCES) if execute && !flags.contains(OpenFlags::WRITE) => {
                break identity::with_search_right(|| sys::reopen(inode, how))?;
            }
            Err(Errno::EPERM) if needs_append(inode, flags, how) => how |= OFlags::APPEND,
            Err(Errno::EPERM) if how.contains(OFlags::NOATIME) => how.remove(OFlags::NOATIME),
            Err(Errno::EAGAIN) if waited < LEASE_MILLISECONDS_MAX => {
                std::thread::sleep(Duration::from_millis(LEASE_STEP_MILLISECONDS));
                waited += LEASE_STEP_MILLISECONDS;
            }
            opened => break opened?,
        }
    };
    rustix::fs::fcntl_setfl(&fd, how.intersection(OFlags::APPEND | OFlags::NOATIME))?;
    Ok((fd, seen))
}

/// Whether the file may only be opened for appending (chattr +a), and that is what the caller wants.
fn needs_append(inode: BorrowedFd<'_>, flags: OpenFlags, how: OFlags) -> bool {
    let is_append_only =
        || sys::statx(inode).is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::APPEND));
    flags.contains(OpenFlags::APPEND) && !how.contains(OFlags::APPEND) && is_append_only()
}
