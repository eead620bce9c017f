//! What requests change and look at, and on what their replies grant leases.

use aqueduct_fs::{
    Aspects, ClientId, Context, DirPage, Entry, Errno, FileSystem, Handle, OpenFlags, OpenId, Reply, Request,
};
use aqueduct_wire::Subject;

use super::InodeKey;
use super::keeper::Keeper;
use super::touched::{LOOK, Touched};

/// What the names of a request lead to, looked up while nobody else makes or removes them.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The name, or the old one.
    pub(crate) name: Option<Result<Entry, Errno>>,
    /// The new one of a rename.
    pub(crate) new_name: Option<Result<Entry, Errno>>,
}

impl Found {
    pub(crate) async fn of(filesystem: &dyn FileSystem, context: &Context, request: &Request<'_>) -> Found {
        let look_up = async |parent, name| {
            let found = filesystem.call(context, Request::Lookup { parent, name }).await;
            Some(found.and_then(Reply::entry))
        };
        match *request {
            Request::Create { parent, name, .. }
            | Request::MakeDirectory { parent, name, .. }
            | Request::MakeNode { parent, name, .. }
            | Request::Symlink { parent, name, .. }
            | Request::Link { parent, name, .. }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name } => Found { name: look_up(parent, name).await, new_name: None },
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                Found { name: look_up(parent, name).await, new_name: look_up(new_parent, new_name).await }
            }
            _ => Found::default(),
        }
    }

    /// There is nothing of this name.
    pub(crate) fn is_absent(&self) -> bool {
        self.name == Some(Err(Errno::ENOENT))
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        handle_of(&self.name)
    }

    pub(crate) fn new_handle(&self) -> Option<&Handle> {
        handle_of(&self.new_name)
    }
}

fn handle_of(found: &Option<Result<Entry, Errno>>) -> Option<&Handle> {
    Some(&found.as_ref()?.as_ref().ok()?.handle)
}

/// Makes known what a request changes and looks at.
pub(crate) struct Toucher<'a> {
    pub(crate) filesystem: &'a dyn FileSystem,
    pub(crate) client: ClientId,
    pub(crate) leases: &'a Keeper,
    /// Whether looks matter: somebody may hold back what he writes.
    pub(crate) looks: bool,
}

impl Toucher<'_> {
    pub(crate) fn key(&self, handle: &[u8]) -> InodeKey {
        self.leases.key(self.filesystem, handle)
    }

    async fn inode(&self, open: OpenId) -> Result<InodeKey, Errno> {
        let handle = self.filesystem.inode(self.client, open).await?;
        Ok(self.key(handle.bytes()))
    }

    /// These aspects of an open file, which is written into; EBADF if there is no such.
    pub(crate) async fn written(&self, open: OpenId, aspects: Aspects) -> Result<Touched, Errno> {
        let mut touched = Touched::default();
        touched.add(self.inode(open).await?, aspects);
        Ok(touched)
    }

    /// An open file that is read. If there is no such, who reads it is told.
    pub(crate) async fn read(&self, open: OpenId) -> Result<Touched, Errno> {
        match self.inode(open).await {
            Ok(inode) => Ok(Touched::look(inode)),
            Err(Errno::EBADF) => Ok(Touched::default()),
            Err(error) => Err(error),
        }
    }

    /// What a request that changes nothing says something of, or makes stable, which may be what others wrote.
    pub(crate) async fn looked_at(&self, request: &Request<'_>) -> Result<Touched, Errno> {
        Ok(match *request {
            Request::GetAttr { handle, open } => {
                let mut touched = match open {
                    Some(open) => self.read(open).await?,
                    None => Touched::default(),
                };
                touched.add(self.key(handle), LOOK);
                touched
            }
            Request::Layout { handle, open } => {
                let mut touched = self.read(open).await?;
                touched.add(self.key(handle), LOOK);
                touched
            }
            Request::GetXattr { handle, .. } | Request::ListXattr { handle, .. } | Request::Access { handle, .. } => {
                Touched::look(self.key(handle))
            }
            Request::Seek { open, .. }
            | Request::Checksum { open, .. }
            | Request::Sync { open, .. }
            | Request::Commit { open, .. } => self.read(open).await?,
            Request::Lookup { .. } | Request::ReadDirectory { plus: true, .. } => Touched::by_name(),
            _ => Touched::default(),
        })
    }

    /// What a request changes if it succeeds, and what it says something of besides.
    pub(crate) async fn of(&self, request: &Request<'_>, found: &Found) -> Result<Touched, Errno> {
        const NAMES: Aspects = Aspects::NAMES.union(Aspects::ATTRIBUTES);
        const DATA: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES);
        let mut touched = Touched::default();
        let mut add = |handle: &[u8], aspects| touched.add(self.key(handle), aspects);
        match *request {
            Request::SetAttr { handle, set, .. } => {
                add(handle, if set.size.is_some() { DATA } else { Aspects::ATTRIBUTES })
            }
            Request::SetXattr { handle, .. } | Request::RemoveXattr { handle, .. } => add(handle, Aspects::ATTRIBUTES),
            Request::Open { handle, flags } if flags.contains(OpenFlags::TRUNCATE) => add(handle, DATA),
            // Who may do so is among what may be held back.
            Request::Open { handle, .. } | Request::Access { handle, .. } if self.looks => add(handle, LOOK),
            Request::Fallocate { open, .. } => return self.written(open, DATA).await,
            Request::CopyRange { from, to, .. } => {
                let mut touched = self.written(to, DATA).await?;
                let read = if self.looks { self.read(from).await? } else { Touched::default() };
                read.iter().for_each(|(inode, aspects)| touched.add(inode, aspects));
                return Ok(touched);
            }
            Request::Create { parent, flags, .. } => match found.handle() {
                Some(handle) if flags.contains(OpenFlags::TRUNCATE) => add(handle.bytes(), DATA),
                Some(handle) if self.looks && !flags.contains(OpenFlags::EXCLUSIVE) => add(handle.bytes(), LOOK),
                Some(_) => {}
                None => add(parent, NAMES),
            },
            Request::PutFiles { parent, .. }
            | Request::MakeDirectory { parent, .. }
            | Request::MakeNode { parent, .. }
            | Request::Symlink { parent, .. } => add(parent, NAMES),
            Request::Link { handle, parent, .. } => {
                add(parent, NAMES);
                add(handle, Aspects::ATTRIBUTES);
            }
            // The names in a directory that is removed: those of itself and of its parent.
            Request::Unlink { parent, .. } | Request::RemoveDirectory { parent, .. } => {
                add(parent, NAMES);
                found.handle().into_iter().for_each(|victim| add(victim.bytes(), NAMES));
            }
            Request::Rename { parent, new_parent, .. } => {
                add(parent, NAMES);
                add(new_parent, NAMES);
                found.handle().into_iter().for_each(|moved| add(moved.bytes(), NAMES));
                found.new_handle().into_iter().for_each(|victim| add(victim.bytes(), NAMES));
            }
            _ => {}
        }
        Ok(touched)
    }
}

/// The file that a request has opened for writing.
pub(crate) fn opened_for_writing<'a>(request: &Request<'a>, result: &'a Result<Reply, Errno>) -> Option<&'a [u8]> {
    match (request, result) {
        (Request::Open { handle, flags }, Ok(_)) if flags.contains(OpenFlags::WRITE) => Some(handle),
        (Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. }, Ok(Reply::Created(entry, _)))
            if flags.contains(OpenFlags::WRITE) =>
        {
            Some(entry.handle.bytes())
        }
        _ => None,
    }
}

/// The directory in which a request changes one name.
pub(crate) fn directory_changed<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    use Request::*;
    match *request {
        Create { parent, .. }
        | MakeDirectory { parent, .. }
        | MakeNode { parent, .. }
        | Symlink { parent, .. }
        | Link { parent, .. }
        | Unlink { parent, .. }
        | RemoveDirectory { parent, .. } => Some(parent),
        _ => None,
    }
}

/// Takes the inodes out of a reply that may lack what others hold back. That of a name is told: it has to be looked at once more.
pub(crate) fn hide(result: &mut Result<Reply, Errno>, hides: &dyn Fn(&[u8]) -> bool) -> Option<Handle> {
    match result {
        Ok(Reply::Entry(entry)) if entry.attr.is_regular() && hides(entry.handle.bytes()) => Some(entry.handle.clone()),
        Ok(Reply::Directory(page)) => {
            page.hide_inodes(|handle, attr| attr.is_regular() && hides(handle));
            None
        }
        _ => None,
    }
}

/// Calls `grant` with each inode of which a reply says something that a lease may cover. `listed`:
/// the directory of a listing, if that is known.
pub(crate) fn grantable(
    listed: Option<&Handle>,
    request: &Request<'_>,
    result: &Result<Reply, Errno>,
    grant: &mut dyn FnMut(Subject, &[u8], Aspects),
) {
    const ATTRIBUTES: Aspects = Aspects::ATTRIBUTES;
    const DATA: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES);
    match (request, result) {
        (Request::Lookup { parent, .. }, Ok(Reply::Entry(entry))) => {
            grant(Subject::Parent, parent, Aspects::NAMES);
            grant(Subject::Inode, entry.handle.bytes(), ATTRIBUTES);
        }
        (Request::Lookup { parent, .. }, Err(Errno::ENOENT)) => grant(Subject::Parent, parent, Aspects::NAMES),
        (Request::GetAttr { handle, .. }, Ok(Reply::Attr(attr))) => {
            grant(Subject::Inode, handle, if attr.is_regular() { DATA } else { ATTRIBUTES });
        }
        (Request::Layout { handle, .. }, Ok(_)) => grant(Subject::Inode, handle, DATA),
        (Request::Open { handle, flags }, Ok(_))
            if flags.contains(OpenFlags::READ) && !flags.contains(OpenFlags::TRUNCATE) =>
        {
            grant(Subject::Inode, handle, DATA);
        }
        (Request::OpenDirectory { handle }, Ok(_)) => grant(Subject::Inode, handle, ATTRIBUTES),
        (_, Ok(Reply::Created(entry, _))) => grant(Subject::Inode, entry.handle.bytes(), DATA),
        (Request::MakeNode { .. } | Request::Symlink { .. } | Request::Link { .. }, Ok(Reply::Entry(entry))) => {
            grant(Subject::Inode, entry.handle.bytes(), ATTRIBUTES)
        }
        // It is empty.
        (Request::MakeDirectory { .. }, Ok(Reply::Entry(entry))) => {
            grant(Subject::Inode, entry.handle.bytes(), ATTRIBUTES | Aspects::NAMES);
        }
        (Request::SetAttr { handle, .. }, Ok(_)) => grant(Subject::Inode, handle, ATTRIBUTES),
        (Request::ReadLink { handle }, Ok(_)) => grant(Subject::Inode, handle, Aspects::DATA),
        (Request::GetXattr { handle, .. } | Request::ListXattr { handle, .. }, Ok(_))
        | (Request::GetXattr { handle, .. }, Err(Errno::ENODATA)) => grant(Subject::Inode, handle, ATTRIBUTES),
        (Request::ReadDirectory { .. }, Ok(Reply::Directory(page))) => {
            listed.into_iter().for_each(|directory| of_page(directory.bytes(), page, grant));
        }
        _ => {}
    }
}

/// The same of a page of a directory.
fn of_page(directory: &[u8], page: &DirPage, grant: &mut dyn FnMut(Subject, &[u8], Aspects)) {
    grant(Subject::Inode, directory, Aspects::NAMES);
    let entries = page.entries().take(aqueduct_wire::GRANTS_MAX - 1).zip(0..);
    for (handle, at) in entries.filter_map(|(entry, at)| Some((entry.inode?.0, at))) {
        grant(Subject::Entry(at), handle, Aspects::ATTRIBUTES);
    }
}
