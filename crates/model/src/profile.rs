//! What both sides can do, found out before the first operation. What one lacks is left out by name; nothing else is forgiven.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags, fallocate, renameat_with, setxattr};

use crate::acl;

/// Which operations a sequence may use.
#[derive(Clone, Debug)]
pub struct Profile {
    /// FALLOC_FL_ZERO_RANGE (tmpfs has none).
    pub zero_range: bool,
    /// FALLOC_FL_PUNCH_HOLE.
    pub punch_hole: bool,
    /// user.* (tmpfs from Linux 6.6).
    pub user_xattrs: bool,
    /// trusted.*
    pub trusted_xattrs: bool,
    /// POSIX ACLs.
    pub acls: bool,
    /// O_TMPFILE.
    pub temporary: bool,
    /// RENAME_EXCHANGE and RENAME_NOREPLACE.
    pub rename_flags: bool,
    /// Loads and stores through descriptors opened long before. Two mounts do not promise them (SEMANTICS.md): a mapping's pages are the kernel's,
    /// until the file is opened again.
    pub held_mappings: bool,
}

impl Profile {
    /// Everything, for one mount.
    pub fn full() -> Self {
        Self {
            zero_range: true,
            punch_hole: true,
            user_xattrs: true,
            trusted_xattrs: true,
            acls: true,
            temporary: true,
            rename_flags: true,
            held_mappings: true,
        }
    }

    /// What `reference` and all of `subjects` (mounts of one export) can do.
    pub fn probe(reference: &Path, subjects: &[PathBuf]) -> io::Result<Self> {
        let mut profile = Self::full();
        profile.held_mappings = subjects.len() < 2;
        for root in subjects.iter().map(PathBuf::as_path).chain([reference]) {
            let home = root.join(format!("model-probe-{}", process::id()));
            fs::create_dir(&home)?;
            let narrowed = profile.narrow(&home);
            fs::remove_dir_all(&home)?;
            narrowed?;
        }
        Ok(profile)
    }

    fn narrow(&mut self, home: &Path) -> io::Result<()> {
        let path = home.join("file");
        let file = File::create(&path)?;
        let allocate = |flags| fallocate(&file, flags | FallocateFlags::KEEP_SIZE, 0, 4096).is_ok();
        let xattr = |name, value: &[u8]| setxattr(&path, name, value, XattrFlags::empty()).is_ok();
        self.zero_range &= allocate(FallocateFlags::ZERO_RANGE);
        self.punch_hole &= allocate(FallocateFlags::PUNCH_HOLE);
        self.user_xattrs &= xattr("user.probe", b"1");
        self.trusted_xattrs &= xattr("trusted.probe", b"1");
        self.acls &= xattr("system.posix_acl_access", &acl::minimal());
        self.temporary &= OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(home).is_ok();
        self.rename_flags &= renameat_with(CWD, &path, CWD, home.join("to"), RenameFlags::NOREPLACE).is_ok();
        Ok(())
    }

    /// The names of what is left out.
    pub fn left_out(&self) -> Vec<&'static str> {
        let features = [
            (self.zero_range, "fallocate ZERO_RANGE"),
            (self.punch_hole, "fallocate PUNCH_HOLE"),
            (self.user_xattrs, "user.* extended attributes"),
            (self.trusted_xattrs, "trusted.* extended attributes"),
            (self.acls, "POSIX ACLs"),
            (self.temporary, "O_TMPFILE"),
            (self.rename_flags, "renameat2 flags"),
            (self.held_mappings, "mappings of descriptors opened earlier"),
        ];
        features.into_iter().filter(|(there, _)| !there).map(|(_, name)| name).collect()
    }
}
