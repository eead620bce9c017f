//! What clients ask, and where it goes.

use aqueduct_fs::layer::Layer;
use aqueduct_fs::{
    Answer, Call, ClientId, Context, Errno, FileSystem, ReadAt, Reply, Request, Sink, Source, WriteAt, Written, wide,
};

use crate::attribute;
use crate::plain::{FOLDER, Plain};
use crate::widths::is_too_wide;

impl Plain {
    /// What nobody may find or take.
    fn refuse(&self, request: &Request<'_>) -> Result<(), Errno> {
        use Request::*;
        let is_hidden = |parent: &[u8], name: &[u8]| name == FOLDER.as_bytes() && parent == self.root.bytes();
        match *request {
            Lookup { parent, name } | Unlink { parent, name } | RemoveDirectory { parent, name }
                if is_hidden(parent, name) =>
            {
                Err(Errno::ENOENT)
            }
            Symlink { parent, name, .. }
            | MakeNode { parent, name, .. }
            | MakeDirectory { parent, name, .. }
            | Create { parent, name, .. }
            | Link { parent, name, .. }
                if is_hidden(parent, name) =>
            {
                Err(Errno::EPERM)
            }
            Rename { parent, name, .. } if is_hidden(parent, name) => Err(Errno::ENOENT),
            Rename { new_parent, new_name, .. } if is_hidden(new_parent, new_name) => Err(Errno::EPERM),
            GetXattr { name: attribute::NAME, .. } | RemoveXattr { name: attribute::NAME, .. } => Err(Errno::ENODATA),
            SetXattr { name: attribute::NAME, .. } => Err(Errno::EPERM),
            SetXattr { name: wide::KEPT, value, .. } if is_too_wide(value) => Err(Errno::EINVAL),
            // One that outgrows an ordinary file has to be promoted: they are made one by one.
            PutFiles { .. } => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    async fn answer(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        use Request::*;
        match request {
            SetAttr { handle, open, set } => self.set_attr(context, handle, (open, set)).await,
            Open { handle, flags } => self.open_file(context, handle, flags).await,
            Create { .. } | CreateUnnamed { .. } => self.create(context, request).await,
            Reopen { .. } => self.reopen(context, request).await,
            Release { .. } | ReleaseDirectory { .. } => self.release(context, request).await,
            Unlink { .. } | Rename { .. } => self.removing(context, request).await,
            Link { .. } => self.link(context, request).await,
            Sync { open, .. } | Commit { open, .. } => self.sync_file(context, open, request).await,
            Fallocate { open, offset, length, flags } => self.fallocate(context, (open, offset, length), flags).await,
            Checksum { open, .. } => self.checksum(context, open, request).await,
            Seek { open, offset, to } => self.seek(context, (open, offset, to)).await,
            Layout { handle, open } => self.layout(context, handle, open).await,
            CopyRange { .. } => self.copy_range(context, request).await,
            ReadDirectory { open, cookie, size, plus } => self.list(context, (open, cookie), (size, plus)).await,
            Statfs { handle } => self.space(context, handle).await,
            ListXattr { handle, size } => self.list_xattr(context, handle, size).await,
            GetAttr { handle, .. } => {
                let mut reply = self.tree.call(context, request.clone()).await?;
                self.correct_reply(&mut reply, handle).await?;
                Ok(reply)
            }
            Root | Lookup { .. } => {
                let mut reply = self.tree.call(context, request).await?;
                self.correct_reply(&mut reply, &[]).await?;
                Ok(reply)
            }
            _ => self.tree.call(context, request).await,
        }
    }
}

impl Layer for Plain {
    type Below = dyn FileSystem;

    fn below(&self) -> &(dyn FileSystem + 'static) {
        &*self.tree
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        use Request::*;
        if let Err(error) = self.refuse(&request) {
            return Call::ready(Ok(Err(error).into()));
        }
        match request {
            GetXattr { handle, name: wide::KEPT, size } => {
                Call::waiting(async move { Ok(self.width_told(context, handle, size).await.into()) })
            }
            // What has nothing to do with the content of files.
            ReadLink { .. }
            | Symlink { .. }
            | MakeNode { .. }
            | MakeDirectory { .. }
            | RemoveDirectory { .. }
            | Flush { .. }
            | OpenDirectory { .. }
            | SyncDirectory { .. }
            | GetXattr { .. }
            | SetXattr { .. }
            | RemoveXattr { .. }
            | Access { .. }
            | GetLock { .. }
            | SetLock { .. } => self.tree.ask(context, request),
            _ => Call::waiting(async move { Ok(self.answer(context, request).await.into()) }),
        }
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        Call::waiting(self.read_from(context, read, sink))
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        Call::waiting(self.write_to(context, write, source))
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        Call::waiting(async move {
            let result = self.tree.depart(client).await;
            for file in self.table.departed(client) {
                self.unpin(file).await;
            }
            result
        })
    }
}
