//! Projects, by which XFS, ext4, F2FS and Lustre keep quotas of trees: each inode has the number
//! of one, and a directory may give its own to what is made in it.

use std::os::fd::BorrowedFd;

use aqueduct_fs::Errno;

use crate::sys;

/// FS_XFLAG_PROJINHERIT of linux/fs.h.
const INHERITED: u32 = 0x0000_0200;

/// The project of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// Its number; 0: none.
    pub id: u32,
    /// What is made in this directory gets it. What has another cannot be renamed or linked into
    /// it (EXDEV).
    pub is_inherited: bool,
}

/// The project of an open file or directory. `None`: its file system knows none.
pub fn project_of(fd: BorrowedFd<'_>) -> Result<Option<Project>, Errno> {
    match sys::inode_flags(fd) {
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => Ok(None),
        flags => flags.map(|found| Some(Project { id: found.project, is_inherited: found.flags & INHERITED != 0 })),
    }
}

/// Gives an open file or directory a project. EOPNOTSUPP or EINVAL: its file system keeps none.
pub fn set_project(fd: BorrowedFd<'_>, project: Project) -> Result<(), Errno> {
    let mut flags = sys::inode_flags(fd).map_err(|error| match error {
        Errno::ENOTTY => Errno::EOPNOTSUPP,
        error => error,
    })?;
    flags.project = project.id;
    flags.flags = if project.is_inherited { flags.flags | INHERITED } else { flags.flags & !INHERITED };
    sys::set_inode_flags(fd, flags)
}

/// Has a folder of the server's own give nothing a project: what has another one could not be
/// linked into it. Where that fails, what is to be linked says so.
pub(crate) fn inherit_nothing(directory: BorrowedFd<'_>) {
    if let Ok(Some(Project { is_inherited: true, id })) = project_of(directory) {
        let _ = set_project(directory, Project { id, is_inherited: false });
    }
}
