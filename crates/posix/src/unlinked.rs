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

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ahash::HashMap;
use aqueduct_fs::Errno;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::lock::lock;
use crate::locks::Inode;
use crate::seen::see_name;
use crate::{project, sys};

/// The folder's name. Names that begin so are reserved in every export's root, so that none comes
/// to light where files are no longer kept.
pub(crate) const FOLDER: &[u8] = b".aqueduct-unlinked";

/// The locks that keep changes of one inode apart; changes of different inodes rarely meet.
const SHARDS: usize = 16;

/// How the name of a file ends that never had a visible name and may still be given one (O_TMPFILE).
const LINKABLE: &str = ".linkable";

/// The kept files of all exports of a server, and the roots whose folders clients do not see.
#[derive(Default)]
pub(crate) struct Kept {
    files: RwLock<HashMap<Inode, KeptFile>>,
    count: AtomicUsize,
    changes: [Mutex<()>; SHARDS],
    /// The roots of all exports, each with those of them that keep files there.
    roots: RwLock<HashMap<Inode, Vec<Arc<Unlinked>>>>,
    /// One of them has, or had, a folder.
    has_folders: AtomicBool,
}

/// A file that is kept.
#[derive(Clone)]
pub(crate) struct KeptFile {
    /// It may be given a name.
    pub(crate) linkable: bool,
    pub(crate) keeper: Arc<Unlinked>,
    folder: Folder,
}

/// Which of an export's two folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    /// [`FOLDER`].
    Usual,
    /// The one with a name that nobody knows who has not seen it, where others have taken the
    /// usual one.
    Other,
}

const FOLDERS: [Folder; 2] = [Folder::Usual, Folder::Other];

/// What there is under a folder's name.
enum Found {
    Absent,
    /// Others might reach into it.
    Foreign,
    Ours(OwnedFd),
}

/// Why files cannot be kept in an export.
pub(crate) enum CannotKeep {
    /// Others have taken both names.
    Taken([String; 2]),
    /// The system refused.
    System(Errno),
}

impl From<Errno> for CannotKeep {
    fn from(error: Errno) -> CannotKeep {
        CannotKeep::System(error)
    }
}

impl Kept {
    fn files(&self) -> RwLockReadGuard<'_, HashMap<Inode, KeptFile>> {
        self.files.read().unwrap_or_else(|poison| poison.into_inner())
    }

    fn files_mut(&self) -> RwLockWriteGuard<'_, HashMap<Inode, KeptFile>> {
        self.files.write().unwrap_or_else(|poison| poison.into_inner())
    }

    fn remember(&self, inode: Inode, file: KeptFile) {
        let mut files = self.files_mut();
        files.insert(inode, file);
        self.count.store(files.len(), Ordering::Relaxed);
    }

    fn unremember(&self, inode: Inode) {
        let mut files = self.files_mut();
        files.remove(&inode);
        self.count.store(files.len(), Ordering::Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, inode: Inode) -> Option<KeptFile> {
        if self.len() == 0 { None } else { self.files().get(&inode).cloned() }
    }

    /// Whether the inode has a link that clients do not know of.
    pub(crate) fn is_kept(&self, inode: Inode) -> bool {
        self.len() > 0 && self.files().contains_key(&inode)
    }

    /// What is kept by an export.
    pub(crate) fn of(&self, keeper: &Unlinked) -> Vec<Inode> {
        let files = self.files();
        files.iter().filter(|(_, file)| std::ptr::eq(&*file.keeper, keeper)).map(|(inode, _)| *inode).collect()
    }

    /// An export has this root, and keeps files there if it has a `keeper`.
    pub(crate) fn add_root(&self, root: Inode, keeper: Option<Arc<Unlinked>>) {
        let mut roots = self.roots.write().unwrap_or_else(|poison| poison.into_inner());
        roots.entry(root).or_default().extend(keeper);
    }

    /// Whether this is the root of an export, where some names are reserved.
    pub(crate) fn is_root(&self, inode: Inode) -> bool {
        self.roots.read().unwrap_or_else(|poison| poison.into_inner()).contains_key(&inode)
    }

    /// Whether any export has, or had, a folder.
    pub(crate) fn has_folders(&self) -> bool {
        self.has_folders.load(Ordering::Relaxed)
    }

    /// The folders in this directory that clients do not know of.
    pub(crate) fn folders_in(&self, inode: Inode) -> u32 {
        let roots = self.roots.read().unwrap_or_else(|poison| poison.into_inner());
        let Some(keepers) = roots.get(&inode) else { return 0 };
        let has = |folder| keepers.iter().filter(move |keeper| keeper.exists(folder).load(Ordering::Relaxed));
        has(Folder::Usual).count().min(1) as u32 + has(Folder::Other).count() as u32
    }

    /// Waits until nobody else changes the inode.
    pub(crate) fn change<'a>(&'a self, keeper: &'a Arc<Unlinked>, inode: Inode) -> Change<'a> {
        let sole = lock(&self.changes[inode.number as usize % SHARDS]);
        Change { kept: self, keeper, inode, _sole: sole }
    }
}

/// What an export needs to keep files.
pub(crate) struct Unlinked {
    root: OwnedFd,
    pub(crate) device: u64,
    /// Begins the names of this export's files: the folder may be another export's as well.
    owner: u64,
    limit: usize,
    /// A hidden link is stable before the visible name goes.
    sync: bool,
    /// Of [`FOLDERS`], whether there is a directory of that name.
    exist: [AtomicBool; 2],
    /// The clients of the process before have reopened what they had.
    pub(crate) settled: AtomicBool,
}

/// The sole right to give an inode a hidden link or to take it away.
pub(crate) struct Change<'a> {
    kept: &'a Kept,
    keeper: &'a Arc<Unlinked>,
    inode: Inode,
    _sole: MutexGuard<'a, ()>,
}

impl Unlinked {
    /// Of at most `limit` files, and what an earlier process of this `owner` has left below `root`, which lies on `device`.
    pub(crate) fn new(
        kept: &Kept,
        root: BorrowedFd<'_>,
        device: u64,
        owner: u64,
        (limit, sync): (usize, bool),
    ) -> Result<Arc<Unlinked>, CannotKeep> {
        let root = rustix::io::fcntl_dupfd_cloexec(root, 0).map_err(Errno::from)?;
        let (exist, settled) = (Default::default(), AtomicBool::new(false));
        let unlinked = Arc::new(Unlinked { root, device, owner, limit, sync, exist, settled });
        let mut foreign = 0;
        for folder in FOLDERS {
            match unlinked.find(kept, folder)? {
                Found::Ours(directory) => unlinked.find_left(kept, folder, directory.as_fd())?,
                Found::Foreign => foreign += 1,
                Found::Absent => {}
            }
        }
        if foreign == FOLDERS.len() {
            let names = FOLDERS.map(|folder| String::from_utf8_lossy(&unlinked.folder_name(folder)).into_owned());
            return Err(CannotKeep::Taken(names));
        }
        Ok(unlinked)
    }

    fn exists(&self, folder: Folder) -> &AtomicBool {
        &self.exist[folder as usize]
    }

    fn folder_name(&self, folder: Folder) -> Vec<u8> {
        match folder {
            Folder::Usual => FOLDER.to_vec(),
            Folder::Other => [FOLDER, format!("-{:016x}", self.owner).as_bytes()].concat(),
        }
    }

    /// The name of the folder that is used because others have taken the usual one.
    pub(crate) fn other_folder(&self, kept: &Kept) -> Option<String> {
        let is_taken = matches!(self.find(kept, Folder::Usual), Ok(Found::Foreign));
        is_taken.then(|| String::from_utf8_lossy(&self.folder_name(Folder::Other)).into_owned())
    }

    /// Looks at what there is under the name of a folder.
    fn find(&self, kept: &Kept, folder: Folder) -> Result<Found, Errno> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = sys::open_name(self.root.as_fd(), &self.folder_name(folder), how, 0, false);
        self.exists(folder).store(opened.is_ok(), Ordering::Relaxed);
        let directory = match opened {
            Err(Errno::ENOENT) => return Ok(Found::Absent),
            Err(Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => return Ok(Found::Foreign),
            opened => opened?,
        };
        kept.has_folders.store(true, Ordering::Relaxed);
        let stat = sys::statx(&directory)?;
        let is_private = stat.stx_uid == rustix::process::geteuid().as_raw() && stat.stx_mode & 0o077 == 0;
        Ok(if is_private { Found::Ours(directory) } else { Found::Foreign })
    }

    /// The folder to keep a file in, made if need be.
    fn make_folder(&self, kept: &Kept) -> Result<(Folder, OwnedFd), Errno> {
        for folder in FOLDERS {
            let found = match self.find(kept, folder)? {
                Found::Absent => {
                    match rustix::fs::mkdirat(&self.root, self.folder_name(folder), Mode::RWXU) {
                        // Somebody else was faster, or it is not ours alone.
                        Ok(()) | Err(rustix::io::Errno::EXIST) => self.find(kept, folder)?,
                        Err(error) => return Err(error.into()),
                    }
                }
                found => found,
            };
            if let Found::Ours(directory) = found {
                project::inherit_nothing(directory.as_fd());
                return Ok((folder, directory));
            }
        }
        Err(Errno::EACCES)
    }

    /// Finds what an earlier process has left.
    fn find_left(self: &Arc<Self>, kept: &Kept, folder: Folder, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        for entry in rustix::fs::Dir::read_from(directory)? {
            let name = entry?.file_name().to_owned();
            let Ok(seen) = see_name(directory, name.to_bytes()) else { continue };
            for linkable in [false, true] {
                if self.name(seen.attr.ino, linkable).as_bytes() == name.to_bytes() {
                    kept.remember(seen.inode(), KeptFile { linkable, keeper: self.clone(), folder });
                }
            }
        }
        Ok(())
    }

    fn name(&self, number: u64, linkable: bool) -> String {
        format!("{:016x}.{number:x}{}", self.owner, if linkable { LINKABLE } else { "" })
    }
}

impl Change<'_> {
    /// Gives the inode of `fd` a hidden link. Takes the superuser's rights.
    pub(crate) fn keep(&self, fd: BorrowedFd<'_>, linkable: bool) -> bool {
        let Change { kept, keeper, inode, .. } = *self;
        if kept.len() >= keeper.limit {
            return false;
        }
        let linked = keeper.make_folder(kept).and_then(|(folder, directory)| {
            // Known before it is there: clients never see it.
            kept.remember(inode, KeptFile { linkable, keeper: keeper.clone(), folder });
            sys::link(fd, directory.as_fd(), keeper.name(inode.number, linkable).as_bytes())?;
            if keeper.sync { Ok(rustix::fs::fsync(directory)?) } else { Ok(()) }
        });
        if linked.is_err() {
            kept.unremember(inode);
        }
        linked.is_ok()
    }

    /// Takes the hidden link away, whichever export has made it. Takes the superuser's rights.
    pub(crate) fn forget(&self) {
        let Change { kept, inode, .. } = *self;
        let Some(KeptFile { linkable, keeper, folder }) = kept.get(inode) else { return };
        let name = keeper.name(inode.number, linkable);
        let removed = match keeper.find(kept, folder) {
            Ok(Found::Ours(directory)) => rustix::fs::unlinkat(directory, name, AtFlags::empty()).map_err(Errno::from),
            Ok(Found::Absent | Found::Foreign) => Ok(()),
            Err(error) => Err(error),
        };
        // A link that is still there is still not shown; the next process tries again.
        if matches!(removed, Ok(()) | Err(Errno::ENOENT)) {
            kept.unremember(inode);
        }
    }
}
