//! What requests change, and on what their replies grant leases.

use aqueduct_fs::{
    Aspects, Call, ClientId, Context, DirPage, Entry, Errno, FileSystem, Handle, OpenFlags, OpenId, Reply, Request,
};
use aqueduct_wire::Subject;

use super::InodeKey;

/// The most inodes that one request changes: two directories, what is moved between them, and what it replaces.
pub(crate) const TOUCHED_MAX: usize = 4;

/// Inodes with what a request changes of them, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    parts: [Option<(InodeKey, Aspects)>; TOUCHED_MAX],
}

impl Touched {
    pub(crate) fn add(&mut self, inode: InodeKey, aspects: Aspects) {
        let is_it = |part: &&mut Option<_>| part.as_ref().is_none_or(|(other, _)| *other == inode);
        if let Some(part) = self.parts.iter_mut().find(is_it) {
            part.get_or_insert((inode, Aspects::empty())).1 |= aspects;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (InodeKey, Aspects)> + '_ {
        self.parts.iter().copied().flatten()
    }
}

/// What the names of a request lead to, looked up while nobody else makes or removes them.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The name, or the old one.
    pub(crate) name: Option<Result<Entry, Errno>>,
    /// The new one of a rename.
    pub(crate) new_name: Option<Result<Entry, Errno>>,
}

impl Found {
    pub(crate) fn of(filesystem: &dyn FileSystem, context: &Context, request: &Request<'_>) -> Found {
        let look_up = |parent, name| match filesystem.call(context, Request::Lookup { parent, name }) {
            Call::Ready(Some(result)) => Some(result.and_then(Reply::entry)),
            _ => None,
        };
        match *request {
            Request::Create { parent, name, .. }
            | Request::MakeDirectory { parent, name, .. }
            | Request::MakeNode { parent, name, .. }
            | Request::Symlink { parent, name, .. }
            | Request::Link { parent, name, .. }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name } => Found { name: look_up(parent, name), new_name: None },
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                Found { name: look_up(parent, name), new_name: look_up(new_parent, new_name) }
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

/// Makes known what a request changes.
pub(crate) struct Toucher<'a> {
    pub(crate) filesystem: &'a dyn FileSystem,
    pub(crate) client: ClientId,
    pub(crate) key: &'a dyn Fn(&[u8]) -> InodeKey,
}

impl Toucher<'_> {
    /// What is written into an open file changes; EBADF if there is no such.
    pub(crate) fn data(&self, open: OpenId) -> Result<Touched, Errno> {
        let handle = self.filesystem.inode(self.client, open).ok_or(Errno::EBADF)?;
        let mut touched = Touched::default();
        touched.add((self.key)(handle.bytes()), Aspects::DATA | Aspects::ATTRIBUTES);
        Ok(touched)
    }

    /// What a request changes if it succeeds.
    pub(crate) fn of(&self, request: &Request<'_>, found: &Found) -> Result<Touched, Errno> {
        const NAMES: Aspects = Aspects::NAMES.union(Aspects::ATTRIBUTES);
        const DATA: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES);
        let mut touched = Touched::default();
        let mut add = |handle: &[u8], aspects| touched.add((self.key)(handle), aspects);
        match *request {
            Request::SetAttr { handle, set, .. } => {
                add(handle, if set.size.is_some() { DATA } else { Aspects::ATTRIBUTES })
            }
            Request::SetXattr { handle, .. } | Request::RemoveXattr { handle, .. } => add(handle, Aspects::ATTRIBUTES),
            Request::Open { handle, flags } if flags.contains(OpenFlags::TRUNCATE) => add(handle, DATA),
            Request::Fallocate { open, .. } | Request::CopyRange { to: open, .. } => return self.data(open),
            Request::Create { parent, flags, .. } => match found.handle() {
                Some(handle) if flags.contains(OpenFlags::TRUNCATE) => add(handle.bytes(), DATA),
                Some(_) => {}
                None => add(parent, NAMES),
            },
            Request::MakeDirectory { parent, .. }
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

/// Calls `grant` with each inode of which a reply says something that a lease may cover.
pub(crate) fn grantable(
    (filesystem, client): (&dyn FileSystem, ClientId),
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
        (Request::Open { handle, flags }, Ok(_))
            if flags.contains(OpenFlags::READ) && !flags.contains(OpenFlags::TRUNCATE) =>
        {
            grant(Subject::Inode, handle, DATA);
        }
        (Request::OpenDirectory { handle }, Ok(_)) => grant(Subject::Inode, handle, ATTRIBUTES),
        (_, Ok(Reply::Created(entry, _))) => grant(Subject::Inode, entry.handle.bytes(), DATA),
        (
            Request::MakeDirectory { .. } | Request::MakeNode { .. } | Request::Symlink { .. } | Request::Link { .. },
            Ok(Reply::Entry(entry)),
        ) => grant(Subject::Inode, entry.handle.bytes(), ATTRIBUTES),
        (Request::SetAttr { handle, .. }, Ok(_)) => grant(Subject::Inode, handle, ATTRIBUTES),
        (Request::ReadLink { handle }, Ok(_)) => grant(Subject::Inode, handle, Aspects::DATA),
        (Request::GetXattr { handle, .. } | Request::ListXattr { handle, .. }, Ok(_))
        | (Request::GetXattr { handle, .. }, Err(Errno::ENODATA)) => grant(Subject::Inode, handle, ATTRIBUTES),
        (Request::ReadDirectory { open, .. }, Ok(Reply::Directory(page))) => {
            let Some(directory) = filesystem.inode(client, *open) else { return };
            of_page(directory.bytes(), page, grant);
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
