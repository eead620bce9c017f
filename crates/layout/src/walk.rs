//! Looks at all files of the tree, while they are used and moved.

use std::collections::{HashMap, HashSet};

use aqueduct_fs::{Attr, Errno, Handle, Reply, Request, XATTR_SIZE_MAX};

use crate::attribute::{self, Attribute, BLOCK, State, stub_of};
use crate::backing::{own, read_all};
use crate::job::Job;
use crate::moves::Watching;
use crate::plain::{FOLDER, GONE, Plain};

/// The packed bytes of one page of a listing.
const PAGE_SIZE: u32 = 64 << 10;

/// How often what was moved during a walk is looked at, in turn, before the walk is given up: what
/// is left gets less each time, unless directories are made and moved as fast as they are read.
const ROUNDS_MAX: usize = 100;

/// How often one listing may bring what it has brought already: it is moved there while it is
/// listed, or is linked that often. Beyond, the listing may never end.
const REPEATS_MAX: usize = 1 << 17;

/// What is wrong with a file by what is written at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It is a stub, and its attribute is gone. Its first block says what that was at the
    /// promotion.
    Naked(Attribute),
    /// It is a copy of another file's stub, with its attribute or without.
    Copy,
    /// Nobody can say what its layout is.
    Unknown,
    /// It is a stub, and shorter than any is.
    Short,
    /// It could not be looked at.
    Unread(Errno),
}

/// What the tree says.
#[derive(Default)]
pub(crate) struct Walk {
    pub(crate) stubs: HashMap<[u8; 16], (String, Handle, Attribute)>,
    /// Ordinary files that are longer than those are made, and their lengths.
    pub(crate) large: Vec<(String, Handle, u64)>,
    /// Files that cannot be read, each once.
    pub(crate) wrong: Vec<(String, Handle, Wrong)>,
    /// The ids of objects that files name of which something is wrong: wherever they lie, they are
    /// somebody's.
    pub(crate) claimed: HashSet<[u8; 16]>,
    /// The files in `wrong`, to find one among many.
    known_wrong: HashSet<Handle>,
    /// Directories that were looked at: each once, however often it is moved meanwhile.
    folders: HashSet<Handle>,
}

impl Walk {
    /// Whether a file has this id.
    pub(crate) fn has(&self, id: &[u8; 16]) -> bool {
        self.stubs.contains_key(id) || self.claimed.contains(id)
    }

    /// Whether each file that names objects is known to name those.
    pub(crate) fn knows_all(&self) -> bool {
        self.wrong.iter().all(|(_, _, wrong)| !matches!(wrong, Wrong::Unknown | Wrong::Unread(_)))
    }
}

impl Plain {
    /// All stubs below a folder, those included that are to go. What is moved meanwhile may be
    /// missing.
    pub(crate) async fn walk(&self, path: String, folder: Handle) -> Result<Walk, Errno> {
        let mut walk = Walk::default();
        self.walk_on(&mut walk, (path, folder), None).await?;
        Ok(walk)
    }

    /// All stubs that were there before it began, and are at its end, wherever they were moved
    /// meanwhile. EBUSY: too much was. ECANCELED: the job is to end.
    ///
    /// Why none is missing: a stub that was not moved stays in a directory that cannot go, and is
    /// in its listing, as that directory is in its parent's; what was moved, stub or directory,
    /// was noted before, and is looked at by its handle. This ends when what was noted has no
    /// directory any more that was not looked at. What was about to be moved when notes began to
    /// be taken may be missing once, and is in its new place when the next survey begins.
    pub(crate) async fn survey(&self, watching: &Watching<'_>, job: &Job) -> Result<Walk, Errno> {
        let mut walk = Walk::default();
        self.walk_on(&mut walk, (String::new(), self.root.clone()), Some(job)).await?;
        for _ in 0..ROUNDS_MAX {
            let mut has_folder = false;
            for handle in watching.take()? {
                let attr = match self.attr_of(&handle).await {
                    Err(Errno::ENOENT | Errno::ESTALE) => continue,
                    attr => attr?,
                };
                let path = format!("(moved meanwhile: inode {})", attr.ino);
                if attr.is_directory() && !walk.folders.contains(&handle) {
                    has_folder = true;
                    self.walk_on(&mut walk, (path, handle), Some(job)).await?;
                } else if attr.is_regular() {
                    self.see(&mut walk, (path, handle, attr.size)).await;
                }
            }
            if !has_folder {
                return Ok(walk);
            }
        }
        Err(Errno::EBUSY)
    }

    async fn walk_on(&self, walk: &mut Walk, from: (String, Handle), job: Option<&Job>) -> Result<(), Errno> {
        let mut folders = vec![from];
        while let Some((path, folder)) = folders.pop() {
            if !walk.folders.insert(folder.clone()) {
                continue;
            }
            if job.is_some_and(Job::ends) {
                return Err(Errno::ECANCELED);
            }
            let entries = match self.entries(&folder).await {
                Err(Errno::ENOENT | Errno::ESTALE) => continue, // it was removed meanwhile
                entries => entries?,
            };
            for (name, handle, attr) in entries {
                let path = format!("{path}/{name}");
                let ours = path.strip_prefix('/').and_then(|path| path.strip_prefix(FOLDER));
                let is_gone = ours.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('/') == Some(GONE));
                if attr.is_directory() && (ours.is_none_or(|rest| rest.starts_with(|at| at != '/')) || is_gone) {
                    folders.push((path, handle));
                } else if attr.is_regular() {
                    self.see(walk, (path, handle, attr.size)).await;
                }
            }
        }
        Ok(())
    }

    async fn see(&self, walk: &mut Walk, (path, handle, size): (String, Handle, u64)) {
        let wrong = match self.attribute_of(&handle).await {
            Ok(Some(attribute)) => {
                if attribute.state == State::Making && size > self.config.inline_max {
                    walk.large.push((path.clone(), handle.clone(), size));
                }
                let is_short = attribute.state == State::Spread && size < BLOCK && self.is_short(&handle).await;
                let is_short = is_short && walk.known_wrong.insert(handle.clone());
                let wrong = is_short.then(|| (path.clone(), handle.clone(), Wrong::Short));
                walk.stubs.insert(attribute.id, (path, handle, attribute));
                walk.wrong.extend(wrong);
                return;
            }
            Ok(None) if size < BLOCK => return,
            Ok(None) => match self.first_block(&handle).await {
                Ok(Some(attribute)) => {
                    walk.claimed.insert(attribute.id);
                    if attribute.stub == stub_of(handle.bytes()) { Wrong::Naked(attribute) } else { Wrong::Copy }
                }
                Ok(None) => {
                    if size > self.config.inline_max {
                        walk.large.push((path, handle, size));
                    }
                    return;
                }
                Err(Errno::ENOENT | Errno::ESTALE) => return,
                Err(error) => Wrong::Unread(error),
            },
            Err(Errno::ENOENT | Errno::ESTALE) => return,
            Err(_) => match self.claims(&handle).await {
                Ok(claims) => {
                    walk.claimed.extend(&claims);
                    if claims.is_empty() { Wrong::Unknown } else { Wrong::Copy }
                }
                Err(Errno::ENOENT | Errno::ESTALE) => return,
                Err(error) => Wrong::Unread(error),
            },
        };
        if walk.known_wrong.insert(handle.clone()) {
            walk.wrong.push((path, handle, wrong));
        }
    }

    /// Whether a stub is shorter than any is, and stays so: a listing may have been made before it
    /// was one.
    async fn is_short(&self, handle: &Handle) -> bool {
        self.attr_of(handle).await.is_ok_and(|attr| attr.size < BLOCK)
    }

    /// The ids that a file names whose layout is not its own. EAGAIN: it is by now. Any other
    /// error says nothing of the file.
    async fn claims(&self, handle: &Handle) -> Result<Vec<[u8; 16]>, Errno> {
        let request = Request::GetXattr { handle: handle.bytes(), name: attribute::NAME, size: XATTR_SIZE_MAX as u32 };
        let bytes = self.quiet.call(&own(), request).await.and_then(Reply::bytes)?;
        let written = Attribute::decode(&self.layouts, &bytes);
        if written.as_ref().is_some_and(|attribute| attribute.stub == stub_of(handle.bytes())) {
            return Err(Errno::EAGAIN);
        }
        let first = self.first_block(handle).await?;
        Ok(written.into_iter().chain(first).map(|attribute| attribute.id).collect())
    }

    /// What the first block of a file says, if it begins as a stub does.
    pub(crate) async fn first_block(&self, handle: &Handle) -> Result<Option<Attribute>, Errno> {
        let begin = read_all(&self.quiet, handle, BLOCK as usize).await?;
        Ok(Attribute::of_first_block(&self.layouts, &begin))
    }

    async fn entries(&self, folder: &Handle) -> Result<Vec<(String, Handle, Attr)>, Errno> {
        let open = self.tree.call(&own(), Request::OpenDirectory { handle: folder.bytes() }).await?.opened()?.id;
        let read = self.entries_of(folder, open).await;
        self.tree.call(&own(), Request::ReleaseDirectory { open }).await?;
        read
    }

    async fn entries_of(
        &self,
        folder: &Handle,
        open: aqueduct_fs::OpenId,
    ) -> Result<Vec<(String, Handle, Attr)>, Errno> {
        let (mut entries, mut cookie) = (Vec::new(), 0);
        let (mut listed, mut repeats) = (HashSet::new(), 0);
        loop {
            let request = Request::ReadDirectory { open, cookie, size: PAGE_SIZE, plus: true };
            let page = self.tree.call(&own(), request).await.and_then(Reply::directory)?;
            for entry in page.entries() {
                cookie = entry.cookie;
                if matches!(entry.name, b"." | b"..") {
                    continue;
                }
                let (handle, attr) = match entry.inode {
                    Some((handle, attr)) => (Handle::new(handle).ok_or(Errno::EIO)?, attr),
                    None => {
                        let request = Request::Lookup { parent: folder.bytes(), name: entry.name };
                        match self.tree.call(&own(), request).await.and_then(Reply::entry) {
                            Ok(found) => (found.handle, found.attr),
                            // What another file system has is none of ours.
                            Err(Errno::ENOENT | Errno::ESTALE | Errno::EXDEV) => continue,
                            Err(error) => return Err(error),
                        }
                    }
                };
                if !listed.insert(handle.clone()) {
                    repeats += 1;
                    if repeats > REPEATS_MAX {
                        return Err(Errno::EBUSY);
                    }
                }
                entries.push((String::from_utf8_lossy(entry.name).into_owned(), handle, attr));
            }
            if page.end {
                return Ok(entries);
            }
        }
    }
}
