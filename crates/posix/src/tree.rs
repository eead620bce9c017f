//! The export's tree: from a handle to its inode and back, and from a directory and a name to an inode, never leaving the tree.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use aqueduct_fs::{Entry, Errno, Handle, check_name};
use rustix::fs::OFlags;

use crate::departed::Name;
use crate::domain::Domain;
use crate::lock::lock;
use crate::locks::Inode;
use crate::open_file::OpenFile;
use crate::options::{HandleSource, Options};
use crate::seal::{Place, Seal, TableKey};
use crate::seen::{Seen, see};
use crate::sys::KernelHandle;
use crate::table::{Hint, Recent, TABLE_INODES_MAX, Table};
use crate::unlinked::{CannotKeep, FOLDER, Unlinked};
use crate::{identity, stability, sys};

/// How deep a name may lie below a directory that is still open, for an inode of the table to be found again: twice the components that a
/// path can have (PATH_MAX 4096, two bytes each).
const TABLE_DEPTH_MAX: usize = 4096;

/// The part of this process's descriptors that open directories may take: an eighth leaves the rest to clients' files and connections.
const DIRECTORIES_SHARE: u64 = 8;

/// The most directories kept open, whatever the limit of descriptors: more has no use, as decoding a handle takes 2 us.
const DIRECTORIES_MAX: u64 = 1024;

/// An inode, as a descriptor that stands for it: often only a path (O_PATH).
pub(crate) enum Node<'a> {
    Root(BorrowedFd<'a>),
    Own(OwnedFd),
    Shared(Arc<OwnedFd>),
    Open(Arc<OpenFile>),
}

impl AsFd for Node<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Node::Root(fd) => *fd,
            Node::Own(fd) => fd.as_fd(),
            Node::Shared(fd) => fd.as_fd(),
            Node::Open(open) => open.fd.as_fd(),
        }
    }
}

/// btrfs, as statfs(2) calls it.
const BTRFS: u32 = 0x9123_683e;

/// The tree below one directory.
pub(crate) struct Tree {
    root: OwnedFd,
    root_handle: Handle,
    root_key: TableKey,
    root_mount: i32,
    root_file_system: u64,
    path: PathBuf,
    seal: Seal,
    /// Whether the kernel's handles are used where it gives them.
    kernel_handles: bool,
    pub(crate) cross_mounts: bool,
    table: Table,
    /// Directories decoded lately.
    directories: Mutex<Recent<Box<[u8]>, Arc<OwnedFd>>>,
    /// A directory on each file system mounted below, by its id.
    mounts: Mutex<HashMap<u64, Arc<OwnedFd>>>,
    /// Removed files that are kept; `None`: none is.
    pub(crate) unlinked: Option<Arc<Unlinked>>,
    domain: Domain,
}

impl Tree {
    /// The tree below `path`, which `root` is.
    pub(crate) fn new(root: OwnedFd, path: &Path, options: &Options) -> Result<Tree, CannotKeep> {
        let seen = see(&root)?;
        let taken = match options.handles {
            HandleSource::Kernel => probe_kernel_handles(root.as_fd()),
            HandleSource::Table => None,
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let directories_max = (limit / DIRECTORIES_SHARE).min(DIRECTORIES_MAX) as usize;
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|_| Errno::EIO)?;
        let root_name = match taken {
            Some(_) => sys::name_to_handle(root.as_fd())?.0,
            // Handles end with this process anyway.
            None => KernelHandle::new(0, &[]).ok_or(Errno::EIO)?,
        };
        let mut tree = Tree {
            root_handle: Handle::new(b"none yet").ok_or(Errno::EIO)?,
            root_key: seen.key(),
            root_mount: taken.unwrap_or(-1),
            root_file_system: file_system_id(root.as_fd())?,
            path: path.to_path_buf(),
            seal: Seal::new(options.key, options.export, &root_name),
            kernel_handles: taken.is_some(),
            cross_mounts: options.cross_mounts,
            table: Table::new(u64::from_le_bytes(id), TABLE_INODES_MAX, directories_max),
            directories: Mutex::new(Recent::new(directories_max)),
            mounts: Mutex::default(),
            unlinked: None,
            domain: options.domain.clone(),
            root,
        };
        tree.root_handle = tree.handle(tree.root.as_fd(), &seen, None)?;
        if options.keep_unlinked && tree.kernel_handles {
            let sync = options.sync && !stability::is_memory(tree.root.as_fd());
            let how = (options.opens_max, sync);
            let (root, owner) = (tree.root.as_fd(), tree.seal.owner());
            tree.unlinked = Some(Unlinked::new(tree.domain.kept(), root, seen.device, owner, how)?);
        }
        tree.domain.kept().add_root(seen.inode(), tree.unlinked.clone());
        Ok(tree)
    }

    /// Whether inodes are found by the kernel's handles, which outlive this process.
    pub(crate) fn has_kernel_handles(&self) -> bool {
        self.kernel_handles
    }

    /// The inodes in the table.
    pub(crate) fn table_len(&self) -> usize {
        self.table.len()
    }

    /// Makes and checks tokens.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// The root.
    pub(crate) fn root(&self) -> Node<'_> {
        Node::Root(self.root.as_fd())
    }

    /// The root's descriptor.
    pub(crate) fn root_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The root's handle.
    pub(crate) fn root_handle(&self) -> &Handle {
        &self.root_handle
    }

    /// See [`FileSystem::inode_name`](aqueduct_fs::FileSystem::inode_name).
    pub(crate) fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        self.seal.inode_name(handle, self.root_file_system)
    }

    /// By what an inode is known whose last name has gone.
    pub(crate) fn name_of<'a>(&self, handle: &'a [u8]) -> Name<'a> {
        match self.inode_name(handle) {
            Some((file_system, handle)) if file_system != u64::MAX => Name { file_system, handle },
            _ => Name { file_system: self.root_file_system, handle },
        }
    }

    /// On which file system all of this tree lies; `None`: perhaps on several.
    pub(crate) fn file_system(&self) -> Option<u64> {
        (!self.cross_mounts).then_some(self.root_file_system)
    }

    /// The device on which the root lies.
    pub(crate) fn root_device(&self) -> u64 {
        self.root_key.device
    }

    /// The root's inode number.
    pub(crate) fn root_ino(&self) -> u64 {
        self.root_key.ino
    }

    /// The inode that `handle` names; ESTALE when there is none, or the handle is not ours.
    pub(crate) fn resolve(&self, handle: &[u8]) -> Result<Node<'_>, Errno> {
        if handle == self.root_handle.bytes() {
            return Ok(self.root());
        }
        if let Some(directory) = lock(&self.directories).get(handle) {
            return Ok(Node::Shared(directory));
        }
        let place = self.seal.place(handle)?;
        match self.find(&place) {
            Err(Errno::ESTALE) => self.departed(handle, &place),
            found => found,
        }
    }

    /// An inode that has just lost its last name, if it lost it where this tree finds it too:
    /// through another mount, with other rights, it is not found.
    fn departed(&self, handle: &[u8], place: &Place) -> Result<Node<'_>, Errno> {
        let fd = self.domain.departed().find(self.name_of(handle)).ok_or(Errno::ESTALE)?;
        let mount = match place {
            Place::Own(_) => self.root_mount,
            Place::Mounted(id, _) => sys::name_to_handle(self.mount(*id)?.as_fd())?.1,
            Place::Table(..) => return Ok(Node::Shared(fd)), // by a name that no other tree has
        };
        if sys::name_to_handle(fd.as_fd())?.1 == mount { Ok(Node::Shared(fd)) } else { Err(Errno::ESTALE) }
    }

    /// The inode that is at a place.
    fn find(&self, place: &Place) -> Result<Node<'_>, Errno> {
        let fd = match place {
            Place::Own(_) | Place::Mounted(..) if !self.kernel_handles => return Err(Errno::ESTALE),
            Place::Own(kernel) => decode(self.root.as_fd(), kernel)?,
            Place::Mounted(id, kernel) => decode(self.mount(*id)?.as_fd(), kernel)?,
            Place::Table(id, _) if *id != self.table.id => return Err(Errno::ESTALE),
            Place::Table(_, key) => return identity::with_search_right(|| self.recall(key)),
        };
        Ok(Node::Own(fd))
    }

    /// As [`resolve`](Tree::resolve), for a directory in which names are about to be looked up: it stays open for a while.
    pub(crate) fn directory(&self, handle: &[u8]) -> Result<Node<'_>, Errno> {
        let fd = match self.resolve(handle)? {
            Node::Own(fd) => fd,
            kept => return Ok(kept),
        };
        if !see(&fd)?.attr.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let fd = Arc::new(fd);
        lock(&self.directories).insert(handle.into(), fd.clone());
        Ok(Node::Shared(fd))
    }

    /// Finds an inode of the table again, by the names under which it and the directories above it were last seen.
    fn recall(&self, key: &TableKey) -> Result<Node<'_>, Errno> {
        let mut names = Vec::new();
        let mut at = *key;
        let mut node = loop {
            if at == self.root_key {
                break self.root();
            }
            if let Some(directory) = self.table.directory(&at) {
                break Node::Shared(directory);
            }
            let hint = self.table.hint(&at).filter(|_| names.len() < TABLE_DEPTH_MAX).ok_or(Errno::ESTALE)?;
            names.push((at, hint.name));
            at = hint.parent;
        };
        while let Some((expected, name)) = names.pop() {
            let fd = self.open_path(node.as_fd(), &name).map_err(|error| match error {
                Errno::ENOENT | Errno::ENOTDIR | Errno::EXDEV => Errno::ESTALE,
                other => other,
            })?;
            let seen = see(&fd)?;
            if seen.key() != expected {
                return Err(Errno::ESTALE);
            }
            node = if seen.attr.is_directory() {
                let fd = Arc::new(fd);
                self.table.keep(expected, fd.clone());
                Node::Shared(fd)
            } else {
                Node::Own(fd)
            };
        }
        Ok(node)
    }

    /// A name's inode, without following links. The name has been checked.
    pub(crate) fn open_path(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        sys::open_name(directory, name, OFlags::PATH, 0, self.cross_mounts)
    }

    /// [`check_name`], and `refusal` for the names that clients can neither find (ENOENT) nor take
    /// (EPERM).
    pub(crate) fn check_name(&self, parent: &[u8], name: &[u8], refusal: Errno) -> Result<(), Errno> {
        check_name(name)?;
        if !name.starts_with(FOLDER) {
            return Ok(());
        }
        let is_root = parent == self.root_handle.bytes() || self.hides_folders(see(self.resolve(parent)?)?.inode());
        if is_root { Err(refusal) } else { Ok(()) }
    }

    /// Whether names that begin as a hidden folder's are reserved in this directory: it is the
    /// root of this export, or of another that lies below this one.
    pub(crate) fn hides_folders(&self, directory: Inode) -> bool {
        self.domain.kept().is_root(directory)
    }

    /// Looks at the inode of a descriptor as clients see it: without links that they do not know of.
    pub(crate) fn see(&self, fd: BorrowedFd<'_>) -> Result<Seen, Errno> {
        let mut seen = see(fd)?;
        let kept = self.domain.kept();
        if kept.is_kept(seen.inode()) {
            seen.attr.nlink = seen.attr.nlink.saturating_sub(1);
        } else if !kept.has_folders() {
            return Ok(seen);
        } else if seen.attr.is_directory() && seen.attr.nlink > 2 {
            // A directory without subdirectories has two links, where they are counted at all.
            seen.attr.nlink = seen.attr.nlink.saturating_sub(kept.folders_in(seen.inode())).max(2);
        } else if seen.attr.nlink > 1 && !seen.attr.is_directory() {
            seen = see(fd)?; // a hidden link may have been counted, and forgotten since
        }
        Ok(seen)
    }

    /// The handle and attributes of an inode that was found as `place` (parent and name), if it has a name.
    pub(crate) fn entry(&self, fd: BorrowedFd<'_>, place: Option<(BorrowedFd<'_>, &[u8])>) -> Result<Entry, Errno> {
        self.entry_seen(fd, place).map(|(entry, _)| entry)
    }

    /// As [`entry`](Tree::entry), with what was seen.
    pub(crate) fn entry_seen(
        &self,
        fd: BorrowedFd<'_>,
        place: Option<(BorrowedFd<'_>, &[u8])>,
    ) -> Result<(Entry, Seen), Errno> {
        let seen = self.see(fd)?;
        Ok((Entry { handle: self.handle(fd, &seen, place)?, attr: seen.attr }, seen))
    }

    fn handle(&self, fd: BorrowedFd<'_>, seen: &Seen, place: Option<(BorrowedFd<'_>, &[u8])>) -> Result<Handle, Errno> {
        if self.kernel_handles {
            match sys::name_to_handle(fd) {
                Ok((kernel, mount)) if mount == self.root_mount => return self.seal.handle(&Place::Own(kernel)),
                Ok(_) if !self.cross_mounts => return Err(Errno::EXDEV),
                Ok((kernel, _)) => {
                    let id = file_system_id(fd)?;
                    if id == self.root_file_system {
                        return self.seal.handle(&Place::Own(kernel));
                    }
                    if self.learn_mount(id, fd, seen) {
                        return self.seal.handle(&Place::Mounted(id, kernel));
                    }
                }
                Err(Errno::EOPNOTSUPP | Errno::EOVERFLOW) if self.cross_mounts => {}
                Err(error) => return Err(error),
            }
        } else if !self.cross_mounts && seen.device != self.root_key.device {
            return Err(Errno::EXDEV);
        }
        let key = seen.key();
        if let Some((parent, name)) = place {
            self.table.learn(key, Hint { parent: see(parent)?.key(), name: name.into() });
        }
        self.seal.handle(&Place::Table(self.table.id, key))
    }

    /// Keeps a directory of a mounted file system, through which its handles are decoded.
    fn learn_mount(&self, id: u64, fd: BorrowedFd<'_>, seen: &Seen) -> bool {
        if lock(&self.mounts).contains_key(&id) {
            return true;
        }
        if !seen.attr.is_directory() {
            return false;
        }
        let directory = identity::with_search_right(|| sys::reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY));
        directory.is_ok_and(|directory| {
            lock(&self.mounts).insert(id, Arc::new(directory));
            true
        })
    }

    /// A directory on the mounted file system `id`: after a restart, found by looking at what is mounted below the root.
    fn mount(&self, id: u64) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(directory) = lock(&self.mounts).get(&id) {
            return Ok(directory.clone());
        }
        if !self.cross_mounts {
            return Err(Errno::ESTALE);
        }
        for path in crate::mounts::below(&self.path)? {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = identity::with_search_right(|| {
                rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).map_err(Errno::from)
            });
            let Ok(directory) = opened else { continue };
            if file_system_id(directory.as_fd())? == id {
                let directory = Arc::new(directory);
                lock(&self.mounts).insert(id, directory.clone());
                return Ok(directory);
            }
        }
        Err(Errno::ESTALE)
    }
}

/// Whether the kernel gives a handle for the root and takes it back from us: then the id of its mount.
fn probe_kernel_handles(root: BorrowedFd<'_>) -> Option<i32> {
    let (kernel, mount) = sys::name_to_handle(root).ok()?;
    decode(root, &kernel).ok().map(|_| mount)
}

fn decode(mount: BorrowedFd<'_>, kernel: &sys::KernelHandle) -> Result<OwnedFd, Errno> {
    let result = identity::with_search_right(|| sys::open_by_handle(mount, kernel));
    // What the file system does not know is stale, whichever way it says so.
    result.map_err(|error| if matches!(error, Errno::EINVAL | Errno::ENOENT) { Errno::ESTALE } else { error })
}

/// The id of the file system on which the inode lies (f_fsid).
fn file_system_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let id = rustix::fs::fstatvfs(fd)?.f_fsid;
    if rustix::fs::fstatfs(fd)?.f_type as u32 != BTRFS {
        return Ok(id);
    }
    // Each subvolume has a number of its own: that of the file system, with its root's number in
    // it, the halves exchanged (the kernel's btrfs_statfs). Handles contain the root's number and
    // are good in the whole file system, which one export may show and another a part of.
    match sys::name_to_handle(fd) {
        Ok((kernel, _)) => Ok(id ^ subvolume_of(kernel.bytes()).unwrap_or(0).rotate_left(32)),
        Err(_) => Ok(id),
    }
}

/// The number of a subvolume's root in a handle of btrfs, which is its second word.
fn subvolume_of(kernel: &[u8]) -> Option<u64> {
    kernel.get(8..16)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
