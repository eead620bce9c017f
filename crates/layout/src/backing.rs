//! What a store, and the tree, is reached through.

use std::sync::Arc;

use aqueduct_fs::{ClientId, Context, Credential, Errno, FileSystem, Handle, MemorySink, OpenFlags, ReadAt, Request};

/// Whoever works here is one client to those below, that no session has.
pub(crate) const SELF: ClientId = ClientId(u64::MAX);

/// What a store is reached through: a directory of this machine, or a session.
pub type Backing = Arc<dyn FileSystem>;

/// The extended attribute as which the servers of a volume tell each other the project of an inode,
/// by which file systems keep quotas of trees: a number, in decimal. No client sees it.
pub const PROJECT: &[u8] = b"trusted.aqueduct.project";

/// Digits of it.
const PROJECT_LENGTH_MAX: u32 = 10;

/// As the superuser.
pub(crate) fn own() -> Context {
    Context::new(SELF, Credential::root())
}

pub(crate) async fn look_up(backing: &Backing, parent: &Handle, name: &str) -> Result<Handle, Errno> {
    let request = Request::Lookup { parent: parent.bytes(), name: name.as_bytes() };
    Ok(backing.call(&own(), request).await?.entry()?.handle)
}

/// The first bytes of a small file.
pub(crate) async fn read_all(backing: &Backing, handle: &Handle, length: usize) -> Result<Vec<u8>, Errno> {
    let open = Request::Open { handle: handle.bytes(), flags: OpenFlags::READ };
    let open = backing.call(&own(), open).await?.opened()?.id;
    let sink = MemorySink::default();
    let read = ReadAt { open, offset: 0, length: length as u32 };
    let result = backing.read(&own(), read, Box::new(sink.clone())).await;
    backing.call(&own(), Request::Release { open }).await?;
    result?;
    sink.take().ok_or(Errno::EIO)
}

/// The project of an inode; 0: it has none. EOPNOTSUPP: its file system keeps none.
pub(crate) async fn project_at(backing: &Backing, handle: &Handle) -> Result<u32, Errno> {
    let request = Request::GetXattr { handle: handle.bytes(), name: PROJECT, size: PROJECT_LENGTH_MAX };
    match backing.call(&own(), request).await {
        Err(Errno::ENODATA) => Ok(0),
        found => {
            let value = found?.bytes()?;
            std::str::from_utf8(&value).ok().and_then(|id| id.parse().ok()).ok_or(Errno::EIO)
        }
    }
}
