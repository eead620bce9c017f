//! Files that are removed while clients have them open: a hidden folder at the export's root keeps each until its last close, so that it is still
//! found by its handle when the server has been restarted.
//!
//! The hidden link is made before the operation that takes the last visible name away. So that operation stays the one system call that it is,
//! with its permissions, its errors and its atomicity; should it fail, the hidden link goes again. Clients see the file with one link less, and
//! nothing of the folder. A server that ends in between leaves a link that its successor knows.
//!
//! Kept is what the kernel's handles find again on the root's own file system, in a folder that is the server's alone. What else is removed lives
//! as long as this process, as does a file whose open begins while its last name is being removed. A removal that fails after all (in a sticky
//! directory) has moved the file's ctime.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};

use aqueduct_fs::{AccessMask, ClientId, Context, Errno, OpenId};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::locks::Inode;
use crate::tree::{Node, see, see_name};
use crate::{Posix, identity, lock, sys};

/// The folder's name. It is reserved in every export's root, so that it does not come to light where files are no longer kept.
pub(crate) const FOLDER: &[u8] = b".aqueduct-unlinked";

/// The locks that keep changes of one inode apart; changes of different inodes rarely meet.
const SHARDS: usize = 16;

/// How the name of a file ends that never had a visible name and may still be given one (O_TMPFILE).
const LINKABLE: &str = ".linkable";

/// The files of one export that are kept.
pub(crate) struct Unlinked {
    /// Begins the names of this export's files: the folder may be another export's as well.
    owner: u64,
    device: u64,
    limit: usize,
    /// A hidden link is stable before the visible name goes.
    sync: bool,
    /// By inode number: whether the file may be given a name.
    kept: RwLock<HashMap<u64, bool>>,
    count: AtomicUsize,
    changes: [Mutex<()>; SHARDS],
    /// The folder is there.
    exists: AtomicBool,
    /// The clients of the process before have reopened what they had.
    settled: AtomicBool,
}

/// The sole right to give an inode a hidden link or to take it away.
pub(crate) struct Change<'a> {
    unlinked: &'a Unlinked,
    root: BorrowedFd<'a>,
    number: u64,
    _sole: MutexGuard<'a, ()>,
}

impl Unlinked {
    /// Of at most `limit` files, and what an earlier process of this `owner` has left below `root`, which lies on `device`.
    pub(crate) fn new(
        root: BorrowedFd<'_>,
        device: u64,
        owner: u64,
        (limit, sync): (usize, bool),
    ) -> Result<Unlinked, Errno> {
        let unlinked = Unlinked {
            owner,
            device,
            limit,
            sync,
            kept: RwLock::default(),
            count: AtomicUsize::new(0),
            changes: Default::default(),
            exists: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        };
        if let Some(folder) = unlinked.folder(root)? {
            unlinked.find_left(folder.as_fd())?;
        }
        Ok(unlinked)
    }

    /// The folder; `None` when it is not there, or others might reach into it.
    fn folder(&self, root: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
        let folder = match sys::open_name(root, FOLDER, OFlags::RDONLY | OFlags::DIRECTORY, 0, false) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => None,
            opened => Some(opened?),
        };
        self.exists.store(folder.is_some(), Ordering::Relaxed);
        let Some(folder) = folder else { return Ok(None) };
        let stat = sys::statx(&folder)?;
        let is_private = stat.stx_uid == rustix::process::geteuid().as_raw() && stat.stx_mode & 0o077 == 0;
        Ok(is_private.then_some(folder))
    }

    /// The folder, made if need be.
    fn make_folder(&self, root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        if let Some(folder) = self.folder(root)? {
            return Ok(folder);
        }
        match rustix::fs::mkdirat(root, FOLDER, Mode::RWXU) {
            // Somebody else was faster, or it is not ours alone.
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.folder(root)?.ok_or(Errno::EACCES),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds what an earlier process has left.
    fn find_left(&self, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        for entry in rustix::fs::Dir::read_from(folder)? {
            let name = entry?.file_name().to_owned();
            let Ok(seen) = see_name(folder, name.to_bytes()) else { continue };
            for linkable in [false, true] {
                if self.name(seen.attr.ino, linkable).as_bytes() == name.to_bytes() {
                    self.remember(seen.attr.ino, linkable);
                }
            }
        }
        Ok(())
    }

    fn name(&self, number: u64, linkable: bool) -> String {
        format!("{:016x}.{number:x}{}", self.owner, if linkable { LINKABLE } else { "" })
    }

    fn remember(&self, number: u64, linkable: bool) {
        let mut kept = self.kept.write().unwrap_or_else(|poison| poison.into_inner());
        kept.insert(number, linkable);
        self.count.store(kept.len(), Ordering::Relaxed);
    }

    fn unremember(&self, number: u64) {
        let mut kept = self.kept.write().unwrap_or_else(|poison| poison.into_inner());
        kept.remove(&number);
        self.count.store(kept.len(), Ordering::Relaxed);
    }

    /// The files kept.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Their inode numbers.
    fn numbers(&self) -> Vec<u64> {
        self.kept.read().unwrap_or_else(|poison| poison.into_inner()).keys().copied().collect()
    }

    /// Whether the inode is kept, and if so whether it may be given a name.
    fn linkable(&self, inode: Inode) -> Option<bool> {
        if self.len() == 0 || inode.device != self.device {
            return None;
        }
        self.kept.read().unwrap_or_else(|poison| poison.into_inner()).get(&inode.number).copied()
    }

    /// Whether the inode has a link that clients do not know of.
    pub(crate) fn is_kept(&self, inode: Inode) -> bool {
        self.linkable(inode).is_some()
    }

    /// Whether the root has a folder that clients do not know of.
    pub(crate) fn has_folder(&self) -> bool {
        self.exists.load(Ordering::Relaxed)
    }

    /// Waits until nobody else changes the inode.
    fn change<'a>(&'a self, root: BorrowedFd<'a>, number: u64) -> Change<'a> {
        let sole = lock(&self.changes[number as usize % SHARDS]);
        Change { unlinked: self, root, number, _sole: sole }
    }
}

impl Change<'_> {
    /// Gives the inode of `fd` a hidden link. Takes the superuser's rights.
    fn keep(&self, fd: BorrowedFd<'_>, linkable: bool) -> bool {
        let Change { unlinked, root, number, .. } = self;
        if unlinked.len() >= unlinked.limit {
            return false;
        }
        // Known before it is there: clients never see it.
        unlinked.remember(*number, linkable);
        let name = unlinked.name(*number, linkable);
        let linked = unlinked.make_folder(*root).and_then(|folder| {
            sys::link(fd, folder.as_fd(), name.as_bytes())?;
            if unlinked.sync { Ok(rustix::fs::fsync(folder)?) } else { Ok(()) }
        });
        if linked.is_err() {
            unlinked.unremember(*number);
        }
        linked.is_ok()
    }

    /// Takes the hidden link away. Takes the superuser's rights.
    fn forget(&self) {
        let Change { unlinked, root, number, .. } = self;
        let Some(linkable) = unlinked.linkable(Inode { device: unlinked.device, number: *number }) else { return };
        let name = unlinked.name(*number, linkable);
        let removed = match unlinked.folder(*root) {
            Ok(Some(folder)) => rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(Errno::from),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        // A link that is still there is still not shown; the next process tries again.
        if matches!(removed, Ok(()) | Err(Errno::ENOENT)) {
            unlinked.unremember(*number);
        }
    }
}

impl Posix {
    /// Removes the kept files that no client has open, from now on also as soon as that is so.
    ///
    /// With [`keep_unlinked`](crate::Options::keep_unlinked), call it once after [`open`](Posix::open), when the clients of the process before have
    /// reopened what they had, or at once if there are none. Until then any file may be one that somebody is about to reopen, so that every
    /// removed file is kept.
    pub fn sweep_unlinked(&self) {
        let Some(unlinked) = &self.tree.unlinked else { return };
        unlinked.settled.store(true, Ordering::SeqCst);
        for number in unlinked.numbers() {
            self.forget_closed(Inode { device: unlinked.device, number });
        }
    }

    /// Whether a client has the file open, or may say so yet.
    fn may_be_open(&self, unlinked: &Unlinked, inode: Inode) -> bool {
        !unlinked.settled.load(Ordering::SeqCst) || self.opens.has_file(inode)
    }

    /// Lets go of a kept file when nobody has it open any more.
    pub(crate) fn forget_closed(&self, inode: Inode) {
        let Some(unlinked) = &self.tree.unlinked else { return };
        if !unlinked.is_kept(inode) || self.may_be_open(unlinked, inode) {
            return;
        }
        identity::restore();
        let change = unlinked.change(self.tree.root_fd(), inode.number);
        if !self.may_be_open(unlinked, inode) {
            change.forget();
        }
    }

    /// Ends an open and what hangs on it.
    pub(crate) fn end(&self, client: ClientId, id: OpenId) -> Result<(), Errno> {
        let open = self.opens.remove(client, id)?;
        self.locks.release(&open);
        self.prefetch.ended(&open);
        self.forget_closed(open.inode);
        Ok(())
    }

    /// Runs `operation`, which takes the name away: if it is the last one of a file that clients have open, the file is kept.
    pub(crate) fn removing(
        &self,
        context: &Context,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        operation: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(unlinked) = &self.tree.unlinked else { return operation() };
        let Some(inode) = self.open_inode(unlinked, directory, name) else { return operation() };
        let change = unlinked.change(self.tree.root_fd(), inode.number);
        // What is kept already has a hidden link: should it be its only one by now, that is not the name that goes.
        let last = if unlinked.is_kept(inode) { None } else { self.last_name(inode, directory, name) };
        let kept = match last {
            Some(fd) => identity::as_root(&context.credential, || Ok(change.keep(fd.as_fd(), false)))?,
            None => false,
        };
        let result = operation();
        // The last close may have come before the file was known to be kept.
        if kept && (result.is_err() || !self.may_be_open(unlinked, inode)) {
            let _ = identity::as_root(&context.credential, || {
                change.forget();
                Ok(())
            });
        }
        result
    }

    /// The inode of a name, if it could be worth keeping: nothing is looked at while no file is open, and then only the name.
    fn open_inode(&self, unlinked: &Unlinked, directory: BorrowedFd<'_>, name: &[u8]) -> Option<Inode> {
        if unlinked.settled.load(Ordering::SeqCst) && self.opens.files() == 0 {
            return None;
        }
        let seen = see_name(directory, name).ok()?;
        let inode = seen.inode();
        let is_ours = seen.attr.kind() == libc::S_IFREG && inode.device == unlinked.device;
        (is_ours && self.may_be_open(unlinked, inode)).then_some(inode)
    }

    /// The inode, when this is its last name and the caller may change the directory: for what is refused anyway the file is not touched.
    fn last_name(&self, inode: Inode, directory: BorrowedFd<'_>, name: &[u8]) -> Option<OwnedFd> {
        let fd = self.tree.open_path(directory, name).ok()?;
        let seen = see(&fd).ok()?;
        let permitted = sys::access(directory, AccessMask::WRITE | AccessMask::EXECUTE);
        let may_go = matches!(permitted, Ok(()) | Err(Errno::ENOSYS));
        (seen.inode() == inode && seen.attr.nlink == 1 && may_go).then_some(fd)
    }

    /// Gives an inode a further name. A kept file has none that counts: only one that never had any may be given one.
    pub(crate) fn link(
        &self,
        context: &Context,
        node: &Node<'_>,
        (directory, name): (BorrowedFd<'_>, &[u8]),
    ) -> Result<(), Errno> {
        let link = || sys::link(node.as_fd(), directory, name);
        let Some(unlinked) = self.tree.unlinked.as_ref().filter(|unlinked| unlinked.len() > 0) else { return link() };
        let inode = see(node.as_fd())?.inode();
        if !unlinked.is_kept(inode) {
            return link();
        }
        let change = unlinked.change(self.tree.root_fd(), inode.number);
        if unlinked.linkable(inode) == Some(false) && self.tree.see(node.as_fd())?.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        link()?;
        // What has a name needs no other; when that is removed the file is kept again.
        identity::as_root(&context.credential, || {
            change.forget();
            Ok(())
        })
    }

    /// Keeps a new file without a name; `None` when it cannot be kept. It has to be open by the end of the change to be kept on.
    pub(crate) fn keep_unnamed(
        &self,
        context: &Context,
        (fd, inode): (BorrowedFd<'_>, Inode),
        linkable: bool,
    ) -> Result<Option<Change<'_>>, Errno> {
        let Some(unlinked) = self.tree.unlinked.as_ref().filter(|unlinked| unlinked.device == inode.device) else {
            return Ok(None);
        };
        let change = unlinked.change(self.tree.root_fd(), inode.number);
        let kept = identity::as_root(&context.credential, || Ok(change.keep(fd, linkable)))?;
        Ok(kept.then_some(change))
    }
}
