//! Operations on names in directories.

use std::os::fd::AsFd;

use aqueduct_fs::{Context, Entry, Errno, RenameFlags, Reply, Request, SYMLINK_LENGTH_MAX};
use rustix::fs::{AtFlags, FileType, Mode};

use crate::tree::Node;
use crate::{Posix, identity};

/// The permission bits that a new inode is given.
const PERMISSIONS: u32 = 0o7777;

impl Posix {
    pub(crate) fn answer_about_name(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Root => self.tree.entry(self.tree.root().as_fd(), None).map(Reply::Entry),
            Request::Lookup { parent, name } => {
                self.tree.check_name(parent, name, Errno::ENOENT)?;
                self.look_up(&self.directory(parent)?, name).map(Reply::Entry)
            }
            Request::Symlink { parent, name, text } => self.make_symlink(parent, name, text).map(Reply::Entry),
            Request::MakeNode { parent, name, mode, umask, rdev } => {
                self.tree.check_name(parent, name, Errno::EPERM)?;
                let directory = self.directory(parent)?;
                let (kind, device) = node_kind(mode, rdev)?;
                identity::with_umask(mode & PERMISSIONS, umask, |mode| {
                    rustix::fs::mknodat(directory.as_fd(), name, kind, Mode::from_raw_mode(mode), device)
                })?;
                self.settle_node(&directory)?;
                self.look_up(&directory, name).map(Reply::Entry)
            }
            Request::MakeDirectory { parent, name, mode, umask } => {
                self.tree.check_name(parent, name, Errno::EPERM)?;
                let directory = self.directory(parent)?;
                identity::with_umask(mode & PERMISSIONS, umask, |mode| {
                    rustix::fs::mkdirat(directory.as_fd(), name, Mode::from_raw_mode(mode))
                })?;
                self.settle_node(&directory)?;
                self.look_up(&directory, name).map(Reply::Entry)
            }
            Request::Unlink { parent, name } => {
                self.tree.check_name(parent, name, Errno::ENOENT)?;
                let directory = self.directory(parent)?;
                let place = (directory.as_fd(), name);
                let unlink = || Ok(rustix::fs::unlinkat(place.0, name, AtFlags::empty())?);
                self.departing(parent, place, || self.removing(context, place, unlink))?;
                self.settle_node(&directory)?;
                Ok(Reply::Done)
            }
            Request::RemoveDirectory { parent, name } => {
                self.tree.check_name(parent, name, Errno::ENOENT)?;
                let directory = self.directory(parent)?;
                rustix::fs::unlinkat(directory.as_fd(), name, AtFlags::REMOVEDIR)?;
                self.settle_node(&directory)?;
                Ok(Reply::Done)
            }
            Request::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename(context, (parent, name), (new_parent, new_name), flags)
            }
            Request::Link { handle, parent, name } => {
                self.tree.check_name(parent, name, Errno::EPERM)?;
                let directory = self.directory(parent)?;
                let node = self.node(handle)?;
                self.link(context, &node, (directory.as_fd(), name))?;
                self.settle_node(&node)?;
                self.settle_node(&directory)?;
                self.look_up(&directory, name).map(Reply::Entry)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// The inode of a name that was checked.
    fn look_up(&self, directory: &Node<'_>, name: &[u8]) -> Result<Entry, Errno> {
        let fd = self.tree.open_path(directory.as_fd(), name)?;
        self.tree.entry(fd.as_fd(), Some((directory.as_fd(), name)))
    }

    fn make_symlink(&self, parent: &[u8], name: &[u8], text: &[u8]) -> Result<Entry, Errno> {
        self.tree.check_name(parent, name, Errno::EPERM)?;
        if text.len() > SYMLINK_LENGTH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let directory = self.directory(parent)?;
        rustix::fs::symlinkat(text, directory.as_fd(), name)?;
        self.settle_node(&directory)?;
        self.look_up(&directory, name)
    }

    fn rename(
        &self,
        context: &Context,
        old: (&[u8], &[u8]),
        new: (&[u8], &[u8]),
        flags: RenameFlags,
    ) -> Result<Reply, Errno> {
        self.tree.check_name(old.0, old.1, Errno::ENOENT)?;
        self.tree.check_name(new.0, new.1, Errno::EPERM)?;
        let (from, to) = (self.directory(old.0)?, self.directory(new.0)?);
        let bits = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let operation = || match rustix::fs::renameat_with(from.as_fd(), old.1, to.as_fd(), new.1, bits) {
            // Some file systems know rename only.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if flags.is_empty() => {
                Ok(rustix::fs::renameat(from.as_fd(), old.1, to.as_fd(), new.1)?)
            }
            result => Ok(result?),
        };
        if flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) {
            operation()?;
        } else {
            let place = (to.as_fd(), new.1);
            self.departing(new.0, place, || self.removing(context, place, operation))?;
        }
        self.settle_node(&to)?;
        if old.0 != new.0 {
            self.settle_node(&from)?;
        }
        if !self.tree.has_kernel_handles() {
            // The table learns the new places; whoever may not look there has no use for them.
            let _ = self.look_up(&to, new.1);
            if flags.contains(RenameFlags::EXCHANGE) {
                let _ = self.look_up(&from, old.1);
            }
        }
        Ok(Reply::Done)
    }
}

/// Type and device number for mknod. Directories and links have calls of their own.
fn node_kind(mode: u32, rdev: u64) -> Result<(FileType, u64), Errno> {
    let kind = match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileType::RegularFile,
        libc::S_IFIFO => FileType::Fifo,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharacterDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        libc::S_IFDIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    let device = rustix::fs::makedev((rdev >> 32) as u32, rdev as u32);
    Ok((kind, if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) { device } else { 0 }))
}
