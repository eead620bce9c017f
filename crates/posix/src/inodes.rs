//! Operations on an inode: its attributes, extended attributes, link text, permissions. None of them opens it.

use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::{
    AccessMask, Attr, Context, Credential, Errno, Groups, OpenFlags, OpenId, Reply, Request, SetAttr, SetTime, Statfs,
    XATTR_NAME_LENGTH_MAX, XATTR_SIZE_MAX, XattrMode,
};
use rustix::fs::{AtFlags, Gid, OFlags, Timespec, Timestamps, Uid, XattrFlags};

use crate::project::{self, Project};
use crate::seen::see;
use crate::sys::{self, ProcPath};
use crate::tree::Node;
use crate::{Posix, identity};

/// utimensat's word for "leave it", and for "now" (linux/stat.h).
const UTIME_OMIT: i64 = 0x3fff_fffe;
const UTIME_NOW: i64 = 0x3fff_ffff;

/// The attribute with the capabilities that a program file gives who runs it (linux/xattr.h).
const CAPABILITIES: &[u8] = b"security.capability";

impl Posix {
    pub(crate) fn answer_about_inode(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::SetAttr { handle, open, set } => self.set_attributes(context, handle, open, &set).map(Reply::Attr),
            Request::ReadLink { handle } => match rustix::fs::readlinkat(self.node(handle)?, c"", Vec::new()) {
                Ok(text) => Ok(Reply::Bytes(text.into_bytes())),
                // So the kernel says of what is no link.
                Err(rustix::io::Errno::NOENT) => Err(Errno::EINVAL),
                Err(error) => Err(error.into()),
            },
            Request::Statfs { handle } => {
                self.let_go_of_departed(); // what was removed is to be seen as room
                statistics_of(self.node(handle)?.as_fd()).map(Reply::Statfs)
            }
            Request::GetXattr { handle, name, .. } if self.is_project(name) => self.project_at(handle),
            Request::SetXattr { handle, name, value, .. } if self.is_project(name) => {
                self.set_project_at(handle, value)
            }
            Request::GetXattr { handle, name, size } => {
                check_xattr_name(name)?;
                let node = self.node(handle)?;
                let path = ProcPath::new(node.as_fd());
                sized(size, |buffer| match buffer {
                    Some(buffer) => rustix::fs::getxattr(path.as_c_str(), name, buffer),
                    None => rustix::fs::getxattr_query(path.as_c_str(), name),
                })
            }
            Request::ListXattr { handle, size } => {
                let node = self.node(handle)?;
                let path = ProcPath::new(node.as_fd());
                sized(size, |buffer| match buffer {
                    Some(buffer) => rustix::fs::listxattr(path.as_c_str(), buffer),
                    None => rustix::fs::listxattr_query(path.as_c_str()),
                })
            }
            Request::SetXattr { handle, name, value, mode } => {
                check_xattr_name(name)?;
                if value.len() > XATTR_SIZE_MAX {
                    return Err(Errno::E2BIG);
                }
                let flags = match mode {
                    XattrMode::Any => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let node = self.node(handle)?;
                rustix::fs::setxattr(ProcPath::new(node.as_fd()).as_c_str(), name, value, flags)?;
                self.settle_node(&node)?;
                Ok(Reply::Done)
            }
            Request::RemoveXattr { handle, name } => self.remove_xattr(context, handle, name),
            Request::Access { handle, mask } => {
                let node = self.node(handle)?;
                match sys::access(node.as_fd(), mask) {
                    Err(Errno::ENOSYS) => allowed_by_mode(&see(node.as_fd())?.attr, mask, &context.credential)?,
                    result => result?,
                }
                Ok(Reply::Done)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Whether an extended attribute is the project.
    fn is_project(&self, name: &[u8]) -> bool {
        !name.is_empty() && name == self.projects
    }

    /// The project of a file or directory. ENODATA: it has none. EOPNOTSUPP: its file system knows
    /// none.
    fn project_at(&self, handle: &[u8]) -> Result<Reply, Errno> {
        let node = self.node(handle)?;
        let opened = sys::reopen(node.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        match project::project_of(opened.as_fd())? {
            None => Err(Errno::EOPNOTSUPP),
            Some(Project { id: 0, .. }) => Err(Errno::ENODATA),
            Some(Project { id, .. }) => Ok(Reply::Bytes(id.to_string().into_bytes())),
        }
    }

    /// Gives a file or directory another project, which nothing inherits.
    fn set_project_at(&self, handle: &[u8], value: &[u8]) -> Result<Reply, Errno> {
        let id = std::str::from_utf8(value).ok().and_then(|id| id.parse().ok()).ok_or(Errno::EINVAL)?;
        let node = self.node(handle)?;
        let opened = sys::reopen(node.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        project::set_project(opened.as_fd(), Project { id, is_inherited: false })?;
        self.settle_node(&node)?;
        Ok(Reply::Done)
    }

    fn remove_xattr(&self, context: &Context, handle: &[u8], name: &[u8]) -> Result<Reply, Errno> {
        check_xattr_name(name)?;
        let node = self.node(handle)?;
        let remove = || Ok(rustix::fs::removexattr(ProcPath::new(node.as_fd()).as_c_str(), name)?);
        match remove() {
            Err(Errno::EPERM) if name == CAPABILITIES && self.may_end_capabilities(context, &node, handle)? => {
                identity::with_file_capabilities(remove)?;
            }
            result => result?,
        }
        self.settle_node(&node)?;
        Ok(Reply::Done)
    }

    /// Whether the caller may change the file, or its group, at which the kernel itself would take
    /// its capabilities away. A client's kernel has this asked for before it asks for the change.
    /// Programs that just want them removed it has refused already, unless they may remove any.
    fn may_end_capabilities(&self, context: &Context, node: &Node<'_>, handle: &[u8]) -> Result<bool, Errno> {
        Ok(self.opens.is_written(context.client, handle)
            || sys::access(node.as_fd(), AccessMask::WRITE).is_ok()
            || see(node.as_fd())?.attr.uid == context.credential.uid)
    }

    /// Owner, permissions, size and times in this order, so that each may undo what the one before did on the side (a new owner clears the setuid
    /// bit, a new size moves the times).
    fn set_attributes(
        &self,
        context: &Context,
        handle: &[u8],
        open: Option<OpenId>,
        set: &SetAttr,
    ) -> Result<Attr, Errno> {
        let node = self.node_or_open(context, handle, open)?;
        let fd = node.as_fd();
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(valid_id).transpose()?, set.gid.map(valid_id).transpose()?);
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = set.mode {
            sys::change_mode(fd, mode & 0o7777)?;
        }
        if let Some(size) = set.size {
            match &node {
                Node::Open(file) if open.is_some() && file.flags.contains(OpenFlags::WRITE) => {
                    rustix::fs::ftruncate(fd, size)?;
                }
                _ => sys::truncate(fd, size)?,
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps { last_access: timespec(set.atime)?, last_modification: timespec(set.mtime)? };
            sys::set_times(fd, &times)?;
        }
        self.settle_node(&node)?;
        Ok(self.tree.see(fd)?.attr)
    }
}

/// The largest number means "unchanged" to the kernel, and nobody's id.
pub(crate) fn valid_id(id: u32) -> Result<u32, Errno> {
    if id == u32::MAX { Err(Errno::EINVAL) } else { Ok(id) }
}

fn timespec(time: Option<SetTime>) -> Result<Timespec, Errno> {
    match time {
        None => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        Some(SetTime::Now) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        Some(SetTime::At(time)) if time.nanos >= 1_000_000_000 => Err(Errno::EINVAL),
        Some(SetTime::At(time)) => Ok(Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) }),
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::ERANGE),
        _ if name.len() > XATTR_NAME_LENGTH_MAX => Err(Errno::ERANGE),
        _ if name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Asks for a value into `size` bytes, or with 0 for its length.
fn sized(size: u32, get: impl FnOnce(Option<&mut [u8]>) -> Result<usize, rustix::io::Errno>) -> Result<Reply, Errno> {
    if size == 0 {
        return Ok(Reply::Size(get(None)? as u64));
    }
    let mut buffer = vec![0; (size as usize).min(XATTR_SIZE_MAX)];
    let length = get(Some(&mut buffer))?;
    buffer.truncate(length);
    Ok(Reply::Bytes(buffer))
}

fn statistics_of(fd: BorrowedFd<'_>) -> Result<Statfs, Errno> {
    let found = rustix::fs::fstatvfs(fd)?;
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Ok(Statfs {
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        files: found.f_files,
        files_free: found.f_ffree,
        block_size: narrow(found.f_bsize),
        fragment_size: narrow(found.f_frsize),
        name_length: narrow(found.f_namemax),
    })
}

/// access(2) by the mode alone, for kernels that cannot be asked about a descriptor (before Linux 5.8). It is a hint to the caller: every
/// operation is decided by the kernel.
fn allowed_by_mode(attr: &Attr, mask: AccessMask, credential: &Credential) -> Result<(), Errno> {
    if !identity::may_switch() {
        return Ok(());
    }
    let in_group =
        attr.gid == credential.gid || matches!(&credential.groups, Groups::Known(groups) if groups.contains(&attr.gid));
    let granted = match credential.uid {
        0 if attr.is_directory() || attr.mode & 0o111 != 0 => 0o7,
        0 => 0o6,
        uid if uid == attr.uid => attr.mode >> 6,
        _ if in_group => attr.mode >> 3,
        _ => attr.mode,
    };
    if mask.bits() & !granted == 0 { Ok(()) } else { Err(Errno::EACCES) }
}
