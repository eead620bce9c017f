//! What a removal does beside taking the name away: it keeps a file that clients have open
//! ([`crate::unlinked`]), and holds for a moment what loses its last name ([`crate::departed`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use aqueduct_fs::{AccessMask, ClientId, Context, Errno, OpenId};

use crate::locks::Inode;
use crate::seen::{see, see_name};
use crate::tree::Node;
use crate::unlinked::{Change, KeptFile, Unlinked};
use crate::{Posix, identity, sys};

impl Posix {
    /// Removes the kept files that no client has open, from now on also as soon as that is so.
    ///
    /// With [`keep_unlinked`](crate::Options::keep_unlinked), call it once after
    /// [`open`](Posix::open), when the clients of the process before have reopened what they had,
    /// or at once if there are none. Until then any file may be one that somebody is about to
    /// reopen, so that every removed file is kept.
    pub fn sweep_unlinked(&self) {
        let Some(unlinked) = &self.tree.unlinked else { return };
        unlinked.settled.store(true, Ordering::SeqCst);
        for inode in self.domain.kept().of(unlinked) {
            self.forget_closed(inode);
        }
    }

    /// Where removed files are kept, if others have taken the name of the usual folder.
    pub fn other_folder(&self) -> Option<String> {
        identity::restore();
        self.tree.unlinked.as_ref()?.other_folder(self.domain.kept())
    }

    /// The files that this export keeps.
    pub(crate) fn unlinked_len(&self) -> usize {
        self.tree.unlinked.as_ref().map_or(0, |unlinked| self.domain.kept().of(unlinked).len())
    }

    /// Whether a client has the file open, or may say so yet.
    fn may_be_open(&self, unlinked: &Unlinked, inode: Inode) -> bool {
        !unlinked.settled.load(Ordering::SeqCst) || self.opens.has_file(inode)
    }

    /// Lets go of a kept file when nobody has it open any more.
    pub(crate) fn forget_closed(&self, inode: Inode) {
        // Another export may have kept it when it removed the last name.
        let Some(KeptFile { keeper, .. }) = self.domain.kept().get(inode) else { return };
        if self.may_be_open(&keeper, inode) {
            return;
        }
        identity::restore();
        let change = self.domain.kept().change(&keeper, inode);
        if !self.may_be_open(&keeper, inode) {
            change.forget();
        }
    }

    /// Ends an open and what hangs on it.
    pub(crate) fn end(&self, client: ClientId, id: OpenId) -> Result<(), Errno> {
        let open = self.opens.remove(client, id)?;
        self.domain.locks().release(&open);
        self.prefetch.ended(&open);
        self.forget_closed(open.inode);
        Ok(())
    }

    /// Runs `operation`, which takes the name away: if it is the last one of a file that clients
    /// have open, the file is kept.
    pub(crate) fn removing(
        &self,
        context: &Context,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        operation: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(unlinked) = &self.tree.unlinked else { return operation() };
        let Some(inode) = self.open_inode(unlinked, directory, name) else { return operation() };
        let kept = self.domain.kept();
        let change = kept.change(unlinked, inode);
        // What is kept already has a hidden link: should it be its only one by now, that is not
        // the name that goes.
        let last = if kept.is_kept(inode) { None } else { self.last_name(inode, directory, name) };
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

    /// The inode of a name, if it could be worth keeping: nothing is looked at while no file is
    /// open, and then only the name.
    fn open_inode(&self, unlinked: &Unlinked, directory: BorrowedFd<'_>, name: &[u8]) -> Option<Inode> {
        if unlinked.settled.load(Ordering::SeqCst) && self.domain.files().is_empty() {
            return None;
        }
        let seen = see_name(directory, name).ok()?;
        let inode = seen.inode();
        let is_ours = seen.attr.kind() == libc::S_IFREG && inode.device == unlinked.device;
        (is_ours && self.may_be_open(unlinked, inode)).then_some(inode)
    }

    /// The inode, when this is its last name and the caller may change the directory: for what is
    /// refused anyway the file is not touched.
    fn last_name(&self, inode: Inode, directory: BorrowedFd<'_>, name: &[u8]) -> Option<OwnedFd> {
        let fd = self.tree.open_path(directory, name).ok()?;
        let seen = see(&fd).ok()?;
        let permitted = sys::access(directory, AccessMask::WRITE | AccessMask::EXECUTE);
        let may_go = matches!(permitted, Ok(()) | Err(Errno::ENOSYS));
        (seen.inode() == inode && seen.attr.nlink == 1 && may_go).then_some(fd)
    }

    /// Gives an inode a further name. A kept file has none that counts: only one that never had
    /// any may be given one.
    pub(crate) fn link(
        &self,
        context: &Context,
        node: &Node<'_>,
        (directory, name): (BorrowedFd<'_>, &[u8]),
    ) -> Result<(), Errno> {
        let link = || sys::link(node.as_fd(), directory, name);
        let kept = self.domain.kept();
        if kept.len() == 0 {
            return link();
        }
        let inode = see(node.as_fd())?.inode();
        let Some(KeptFile { keeper, .. }) = kept.get(inode) else { return link() };
        let change = kept.change(&keeper, inode);
        if kept.get(inode).is_some_and(|file| !file.linkable) && self.tree.see(node.as_fd())?.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        link()?;
        // What has a name needs no other; when that is removed the file is kept again.
        identity::as_root(&context.credential, || {
            change.forget();
            Ok(())
        })
    }

    /// Keeps a new file without a name; `None` when it cannot be kept. It has to be open by the
    /// end of the change to be kept on.
    pub(crate) fn keep_unnamed(
        &self,
        context: &Context,
        (fd, inode): (BorrowedFd<'_>, Inode),
        linkable: bool,
    ) -> Result<Option<Change<'_>>, Errno> {
        let Some(unlinked) = self.tree.unlinked.as_ref().filter(|unlinked| unlinked.device == inode.device) else {
            return Ok(None);
        };
        let change = self.domain.kept().change(unlinked, inode);
        let kept = identity::as_root(&context.credential, || Ok(change.keep(fd, linkable)))?;
        Ok(kept.then_some(change))
    }

    /// Runs `operation`, which takes this name away, and holds what loses its last one by that.
    pub(crate) fn departing(
        &self,
        parent: &[u8],
        (directory, name): (BorrowedFd<'_>, &[u8]),
        operation: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let departed = self.domain.departed();
        if !departed.is_wanted() {
            return operation();
        }
        let _alone = departed.removal(self.tree.name_of(parent), name);
        let held = self.hold_last(directory, name);
        let result = operation();
        if let Some((handle, number)) = held.filter(|_| result.is_err()) {
            departed.let_go(self.tree.name_of(handle.bytes()), number);
        }
        result
    }

    /// Holds the inode of a name, if that is its last one.
    fn hold_last(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Option<(aqueduct_fs::Handle, u64)> {
        let fd = self.tree.open_path(directory, name).ok()?;
        let (entry, seen) = self.tree.entry_seen(fd.as_fd(), None).ok()?;
        if seen.attr.nlink > 1 && !seen.attr.is_directory() {
            return None;
        }
        let number = self.domain.departed().hold(self.tree.name_of(entry.handle.bytes()), fd, seen.attr.blocks)?;
        Some((entry.handle, number))
    }

    /// Lets go of what has departed from where this export lies. Whether that gave space back.
    pub(crate) fn let_go_of_departed(&self) -> bool {
        self.domain.departed().let_go_of_all(self.tree.file_system())
    }

    /// Runs `operation` again when there was no room for it, if that gives some back.
    pub(crate) fn with_room<T>(&self, operation: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match operation() {
            Err(Errno::ENOSPC | Errno::EDQUOT) if self.let_go_of_departed() => operation(),
            result => result,
        }
    }
}
