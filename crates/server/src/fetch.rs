//! FETCH: what many small files have in their first bytes, for one round trip. Each is opened as its caller, read and closed again.

use aqueduct_fs::{Attr, Context, Errno, FileSystem, MemorySink, OpenFlags, OpenId, ReadAt, Request};
use aqueduct_wire::{FETCH_LENGTH_MAX, fetch_room};

/// What came of each file.
pub(crate) type File = Result<(Attr, Vec<u8>), Errno>;

/// The first bytes of these files, at most `length` of each: of the first of them, as many as a reply has room for, and of one at least.
pub(crate) async fn files(filesystem: &dyn FileSystem, context: &Context, handles: &[&[u8]], length: u32) -> Vec<File> {
    let mut room = fetch_room(handles.len());
    let mut files: Vec<File> = Vec::with_capacity(handles.len());
    for handle in handles {
        let file = one(filesystem, context, handle, length.min(FETCH_LENGTH_MAX)).await;
        let taken = file.as_ref().map_or(0, |(_, data)| data.len());
        if taken > room && !files.is_empty() {
            break;
        }
        room = room.saturating_sub(taken);
        files.push(file);
    }
    files
}

async fn one(filesystem: &dyn FileSystem, context: &Context, handle: &[u8], length: u32) -> File {
    let attr = filesystem.call(context, Request::GetAttr { handle, open: None }).await?.attr()?;
    if !attr.is_regular() {
        return Err(Errno::EINVAL);
    }
    let open = open(filesystem, context, handle).await?;
    let file = read(filesystem, context, (handle, open), length).await;
    let closed = filesystem.call(context, Request::Release { open }).await;
    closed.and(file)
}

/// Who fetches may not read it after all: the time of access stays, where the caller may say so.
async fn open(filesystem: &dyn FileSystem, context: &Context, handle: &[u8]) -> Result<OpenId, Errno> {
    let open = |flags| filesystem.call(context, Request::Open { handle, flags });
    let opened = match open(OpenFlags::READ | OpenFlags::NOATIME).await {
        Err(Errno::EPERM) => open(OpenFlags::READ).await?,
        opened => opened?,
    };
    Ok(opened.opened()?.id)
}

/// The attributes after the data: they are at least as new.
async fn read(filesystem: &dyn FileSystem, context: &Context, (handle, open): (&[u8], OpenId), length: u32) -> File {
    let sink = MemorySink::default();
    if length > 0 {
        filesystem.read(context, ReadAt { open, offset: 0, length }, Box::new(sink.clone())).await?;
    }
    let attr = filesystem.call(context, Request::GetAttr { handle, open: Some(open) }).await?.attr()?;
    Ok((attr, sink.take().unwrap_or_default()))
}
