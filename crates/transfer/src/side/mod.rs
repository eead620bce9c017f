//! The two ends of a copy: directories and files, here or at a server, behind two traits.
//!
//! Everything is reached through a directory that is held open and one name below it, so that
//! nobody who exchanges a directory for a link leads a copy out of its tree.

mod local;
mod lustre;
mod place;
mod projected;
mod sizeless;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use aqueduct_fs::put::PutFile;
use aqueduct_fs::{Attr, Errno, Handle, SetAttr, Sum, SumKind, Time};
use aqueduct_posix::project::Project;

pub use lustre::{Layout, is_internal};
pub use place::{Access, Place, Root};
pub use sizeless::{UNSIZED_MAX, read_unsized};

/// What names begin with that are not whole yet: see [`Listed::is_part`].
pub const PART: &[u8] = b".aqueduct-part-";

/// The most bytes that move in one step.
pub const STEP: usize = aqueduct_fs::TRANSFER_SIZE_MAX;

/// The extended attributes that hold access control lists.
pub const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Extended attributes, with their values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What became of each of several files.
pub type Became = Vec<Result<Seen, Errno>>;

/// An inode, looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its attributes.
    pub attr: Attr,
    /// The device on which it lies; 0: the handle says it.
    pub device: u64,
    /// What names it at a server.
    pub handle: Option<Handle>,
}

impl Seen {
    /// Equal for names of one inode, and only for those.
    pub fn identity(&self) -> Vec<u8> {
        match &self.handle {
            Some(handle) => handle.bytes().to_vec(),
            None => [self.device.to_le_bytes(), self.attr.ino.to_le_bytes()].concat(),
        }
    }

    /// Equal for names of one inode as it is now, and only for those: a number is used again for
    /// another inode, also while a tree is copied, and what was written to it since one name was
    /// copied is not in what was copied.
    pub fn moment(&self) -> Vec<u8> {
        let Attr { size, mtime, ctime, btime, .. } = self.attr;
        let birth = match self.handle {
            Some(_) => Time::default(), // it is another inode's with another birth
            // Where no birth is known the last change tells one inode from the one before it.
            None if btime == Time::default() => ctime,
            None => btime,
        };
        let mut bytes = self.identity();
        bytes.extend_from_slice(&size.to_le_bytes());
        for time in [mtime, birth] {
            bytes.extend_from_slice(&time.seconds.to_le_bytes());
            bytes.extend_from_slice(&time.nanos.to_le_bytes());
        }
        bytes
    }

    /// Equal for names of one inode, whichever host looks at them, and perhaps for others.
    pub fn number(&self) -> Vec<u8> {
        self.handle.as_ref().map_or_else(|| self.attr.ino.to_le_bytes().to_vec(), |handle| handle.bytes().to_vec())
    }

    /// As the host has it that looked at `here`, which lies on the same device: each host numbers
    /// those in its own way.
    pub fn beside(self, here: &Seen) -> Seen {
        let device = if self.handle.is_none() { here.device } else { self.device };
        Seen { device, ..self }
    }

    /// Whether two looks, perhaps of two hosts, were at one inode of one file system. The device
    /// says nothing of that: each host numbers file systems in its own way.
    pub fn is_same_inode(&self, other: &Seen) -> bool {
        match (&self.handle, &other.handle) {
            (None, None) => (self.attr.ino, self.attr.btime) == (other.attr.ino, other.attr.btime),
            (own, other) => own == other,
        }
    }

    /// Whether nothing was changed since `before`, as far as a file system tells.
    pub fn is_as(&self, before: &Seen) -> bool {
        let of = |seen: &Seen| (seen.attr.size, seen.attr.mtime, seen.attr.ctime, seen.attr.kind());
        of(self) == of(before) && self.identity() == before.identity()
    }

    /// Whether nothing was changed since `before`, but that the inode may have lost other names:
    /// a copy takes them away one by one where it replaces what has several.
    pub fn is_as_with_fewer_names(&self, before: &Seen) -> bool {
        let of = |seen: &Seen| (seen.attr.size, seen.attr.mtime, seen.attr.btime, seen.attr.mode);
        let owner = |seen: &Seen| (seen.attr.uid, seen.attr.gid);
        let has_lost = self.attr.nlink < before.attr.nlink && self.identity() == before.identity();
        self.is_as(before) || has_lost && of(self) == of(before) && owner(self) == owner(before)
    }
}

/// What of a file system is out of the ordinary, for who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peculiarity {
    /// Nothing that is known.
    None,
    /// It is one of Lustre.
    Lustre,
    /// The kernel makes files while they are read, and does not say how long they are.
    Unsized,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: Box<[u8]>,
    /// The type bits of its mode; 0: not known before it is looked at.
    pub kind: u32,
    /// The inode, where the listing says it.
    pub seen: Option<Seen>,
}

impl Listed {
    /// Whether it is something that is not whole, made by this program or another run of it. Such
    /// are never copied, compared or taken for what the destination has.
    pub fn is_part(&self) -> bool {
        is_part(&self.name, self.kind)
    }
}

/// What has attributes, and is open: a file, a directory, or a name that is neither.
pub trait Node: Send + Sync {
    /// Looks at it.
    fn seen(&self) -> Result<Seen, Errno>;

    /// Changes attributes.
    fn set(&self, set: &SetAttr) -> Result<(), Errno>;

    /// Its extended attributes, with their values. A file system without them has none.
    fn xattrs(&self) -> Result<Xattrs, Errno>;

    /// Sets an extended attribute, or removes it.
    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno>;

    /// The project that its quota is counted for. `None`: none is known here.
    fn project(&self) -> Result<Option<Project>, Errno> {
        Ok(None)
    }

    /// How it lies on the targets of a Lustre file system; `None`: nothing is known of that. Only
    /// where the directory says that it is one.
    fn layout(&self) -> Result<Option<Layout>, Errno> {
        Ok(None)
    }

    /// Gives it to a project.
    fn set_project(&self, _project: Project) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Makes it stable: a directory with its names, a file with its data.
    fn sync(&self) -> Result<(), Errno>;

    /// The descriptor, of what is here.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What names the inode at a server, of what is there.
    fn handle(&self) -> Option<&Handle> {
        None
    }
}

/// An open regular file.
pub trait File: Node {
    /// Reads up to `length` (at most [`STEP`]) bytes into `buffer`, which then has just these.
    /// Fewer come only at the end of the file.
    fn read(&self, offset: u64, length: usize, buffer: &mut Vec<u8>) -> Result<(), Errno>;

    /// Writes all of the data.
    fn write(&self, offset: u64, data: bytes::Bytes) -> Result<(), Errno>;

    /// Writes what `source` has at the same place, without this process seeing it; gives how much,
    /// which is 0 only at the end of the source. EOPNOTSUPP: these two cannot.
    fn take(&self, _source: &dyn File, _offset: u64, _length: usize) -> Result<usize, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Shares all data of `source`, where one file system has both and can: nothing is read or
    /// written.
    fn share(&self, _source: &dyn File) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Locks it against those who lock it otherwise, until it is closed. `false`: somebody has it.
    fn lock(&self, alone: bool) -> Result<bool, Errno>;

    /// Sets the size.
    fn truncate(&self, size: u64) -> Result<(), Errno>;

    /// Where data begin at or after `offset`, and where they end; `None`: there are none.
    fn data_after(&self, offset: u64) -> Result<Option<(u64, u64)>, Errno>;

    /// The sum of a range (start, end), made where the file lies: no data travel. With
    /// `past_cache` what is kept of it there is let go of before. `None`: whoever wants it has to
    /// read.
    fn sum(&self, _range: (u64, u64), _kind: SumKind, _past_cache: bool) -> Result<Option<Sum>, Errno> {
        Ok(None)
    }

    /// What is told of what was written only when a file is closed, without its being made stable.
    fn late_errors(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Lets go of what is kept of the data, so that the next reads come from where they are kept
    /// for good. Says whether that can be shown.
    fn forget(&self, size: u64) -> bool;

    /// Whether what was written survives nothing anyway, so that there is nothing to make stable.
    fn is_volatile(&self) -> bool;
}

/// An open directory. Names are single components.
pub trait Directory: Node {
    /// Gives each entry to `found`, without `.` and `..`. Of those that may be something that is
    /// not whole the type is known.
    fn list(&self, found: &mut dyn FnMut(Listed)) -> Result<(), Errno>;

    /// Looks at a name, never at what a link points to.
    fn look(&self, name: &[u8]) -> Result<Seen, Errno>;

    /// The extended attributes of a name as it was seen, with their values.
    fn xattrs_of(&self, name: &[u8], seen: &Seen) -> Result<Xattrs, Errno>;

    /// Opens a directory.
    fn directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno>;

    /// Opens a directory on which nothing is mounted, as far as that shows here: EXDEV if
    /// something is, also another directory of the same file system, which has the same device.
    fn unmounted(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        self.directory(name)
    }

    /// The directory above it. `None`: it is the root, or nothing is known of that.
    fn above(&self) -> Result<Option<Arc<dyn Directory>>, Errno> {
        Ok(None)
    }

    /// Opens a regular file for reading. `known`: as it was listed.
    fn file(&self, name: &[u8], known: Option<&Seen>) -> Result<Arc<dyn File>, Errno>;

    /// Opens a regular file that is not whole, to go on with it.
    fn part(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno>;

    /// What is neither file nor directory, for its attributes.
    fn other(&self, name: &[u8]) -> Result<Box<dyn Node>, Errno>;

    /// The text of a symbolic link.
    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// Makes a directory that nobody else may enter yet, and opens it.
    fn make_directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno>;

    /// Makes a symbolic link.
    fn make_symlink(&self, name: &[u8], text: &[u8]) -> Result<(), Errno>;

    /// Makes a device, a fifo or a socket that nobody else may open yet.
    fn make_other(&self, name: &[u8], kind: u32, rdev: u64) -> Result<(), Errno>;

    /// Makes a file under a name that must be free, for reading and writing.
    fn create(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno>;

    /// Makes a file without a name, with these permissions before a umask takes some away.
    /// EOPNOTSUPP: not here.
    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn File>, Errno>;

    /// Makes small files whole, each under a name that is free, and with `stable` none before it
    /// is stable; says what became of each. `None`: they are to be made one by one.
    fn put(&self, _files: &[PutFile<'_>], _stable: bool) -> Result<Option<Became>, Errno> {
        Ok(None)
    }

    /// Gives a file without a name its first, which must be free.
    fn name_file(&self, file: &dyn File, name: &[u8]) -> Result<(), Errno>;

    /// Gives the inode of another name (below `from`) a further one, which must be free.
    fn link(&self, from: &dyn Directory, from_name: &[u8], name: &[u8]) -> Result<(), Errno>;

    /// Renames within the directory. Unless it `replaces`, the new name must be free.
    fn rename(&self, name: &[u8], new_name: &[u8], replaces: bool) -> Result<(), Errno>;

    /// Removes a name that is no directory's.
    fn unlink(&self, name: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_directory(&self, name: &[u8]) -> Result<(), Errno>;

    /// Makes all stable that was written to the file system so far. EOPNOTSUPP: each file has to
    /// be made stable by itself.
    fn sync_all(&self) -> Result<(), Errno>;

    /// Whether [`sync_all`](Directory::sync_all) reaches whoever keeps the data.
    fn syncs_all(&self) -> bool;

    /// Bytes and inodes that are free.
    fn free(&self) -> Result<(u64, u64), Errno>;

    /// Whether the file system keeps nothing beyond a restart of the machine.
    fn is_volatile(&self) -> bool;

    /// What of its file system is out of the ordinary.
    fn peculiarity(&self) -> Peculiarity {
        Peculiarity::None
    }
}

/// Whether a name of this type is that of something that is not whole. The names are exactly those
/// that are made: others that begin in the same way are somebody's.
fn is_part(name: &[u8], kind: u32) -> bool {
    let Some(number) = name.strip_prefix(PART) else { return false };
    let is_hex = |text: &[u8]| text.iter().all(|letter| matches!(letter, b'0'..=b'9' | b'a'..=b'f'));
    let is_run = |text: &[u8]| text.len() == 16 && is_hex(text);
    match (number.strip_prefix(b"diagnose-"), number.get(16)) {
        (Some(number), _) => is_run(number) && kind == libc::S_IFDIR,
        // A manifest.
        (None, None) => is_run(number) && kind == libc::S_IFREG,
        (None, Some(after)) => {
            let (run, count) = (&number[..16], &number[17..]);
            let is_count = (1..=16).contains(&count.len()) && is_hex(count);
            is_run(run) && *after == b'-' && is_count && kind != libc::S_IFDIR
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_as_they_are_made_are_parts() {
        let file = libc::S_IFREG;
        for (name, kind, is) in [
            (".aqueduct-part-0123456789abcdef-1f", file, true),
            (".aqueduct-part-0123456789abcdef-1f", libc::S_IFLNK, true),
            (".aqueduct-part-0123456789abcdef", file, true),
            (".aqueduct-part-diagnose-0123456789abcdef", libc::S_IFDIR, true),
            (".aqueduct-part-0123456789abcdef-1f", libc::S_IFDIR, false),
            (".aqueduct-part-0123456789abcdef", libc::S_IFDIR, false),
            (".aqueduct-part-diagnose-0123456789abcdef", file, false),
            (".aqueduct-part-0123456789abcdef-", file, false),
            (".aqueduct-part-0123456789abcdef-1F", file, false),
            (".aqueduct-part-0123456789abcdef-0123456789abcdef0", file, false),
            (".aqueduct-part-0123456789abcdeg-1", file, false),
            (".aqueduct-part-123-1", file, false),
            (".aqueduct-part-notes", file, false),
            (".aqueduct-part-", file, false),
        ] {
            assert_eq!(is_part(name.as_bytes(), kind), is, "{name} {kind:o}");
        }
    }

    #[test]
    fn a_number_that_is_used_again_is_another_inode_at_this_moment() {
        let time = |seconds| Time { seconds, nanos: 1 };
        let attr = Attr { ino: 7, size: 3, mtime: time(1), ctime: time(2), btime: time(3), ..Attr::default() };
        let seen = |attr| Seen { attr, device: 1, handle: None };
        let known = seen(attr);
        let linked_since = seen(Attr { nlink: 2, ctime: time(9), ..attr });
        assert_eq!(linked_since.moment(), known.moment());
        for other in [
            Attr { btime: time(4), ..attr },
            Attr { size: 4, ..attr },
            Attr { mtime: time(4), ..attr },
            Attr { ino: 8, ..attr },
        ] {
            assert_ne!(seen(other).moment(), known.moment(), "{other:?}");
        }
        // Where no birth is known each change may be that of another.
        let unknown = Attr { btime: Time::default(), ..attr };
        assert_ne!(seen(unknown).moment(), seen(Attr { ctime: time(9), ..unknown }).moment());
        assert_eq!(seen(unknown).moment(), seen(unknown).moment());
        // Hosts number devices in their own way.
        assert_eq!(Seen { device: 2, ..known.clone() }.number(), known.number());
    }
}
