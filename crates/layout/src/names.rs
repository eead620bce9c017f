//! Opens, and names that come and go.
//!
//! A stub may only go when its objects have: so before a name of one is removed, the stub gets a
//! link in the folder of those that are to go. If that was its last name, the link stays until the
//! last open is closed and the objects are removed, by this process or by the next.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_fs::{
    AccessMask, Attr, Context, Entry, Errno, Handle, OpenFlags, OpenId, Opened, RenameFlags, Reply, Request, SetAttr,
    SetTime,
};

use crate::attribute::BLOCK;
use crate::backing::own;
use crate::change::nlink_of;
use crate::gate::Pass;
use crate::pinned::{File, Kind};
use crate::plain::{Plain, gone_name};
use crate::spread::Spread;

/// How often a name is looked at again that another has taken meanwhile.
const TRIES: usize = 16;

impl Plain {
    /// Something is open through a pinned file.
    async fn register(&self, context: &Context, open: OpenId, file: Arc<File>) {
        if let Some(before) = self.table.opened((context.client, open), file) {
            self.unpin(before).await;
        }
    }

    pub(crate) async fn open_file(&self, context: &Context, handle: &[u8], flags: OpenFlags) -> Result<Reply, Errno> {
        let file = self.table.pin(&Handle::new(handle).ok_or(Errno::ESTALE)?);
        match self.open_pinned(context, &file, flags).await {
            Ok(reply) => {
                if let Reply::Opened(opened) = &reply {
                    self.register(context, opened.id, file).await;
                }
                Ok(reply)
            }
            Err(error) => {
                self.unpin(file).await;
                Err(error)
            }
        }
    }

    async fn open_pinned(&self, context: &Context, file: &File, flags: OpenFlags) -> Result<Reply, Errno> {
        let handle = file.handle.bytes();
        let kind = self.known_to_stay(file).await?;
        if !flags.contains(OpenFlags::TRUNCATE) {
            if matches!(kind, Kind::Inline(_)) {
                self.refuse_copy(file).await?;
            }
            return self.tree.call(context, Request::Open { handle, flags }).await;
        }
        let (pass, kind) = self.alone(file).await?;
        let Kind::Spread(spread) = kind else {
            file.is_large.store(false, Ordering::Relaxed);
            let _noting = file.changed.noting(0, u64::MAX);
            return self.tree.call(context, Request::Open { handle, flags }).await;
        };
        self.may(context, &file.handle, AccessMask::WRITE).await?;
        let flags = flags.difference(OpenFlags::TRUNCATE);
        let opened = self.tree.call(context, Request::Open { handle, flags }).await?;
        let Reply::Opened(Opened { id: open, .. }) = &opened else { return Err(Errno::EIO) };
        self.empty(context, (file, &spread, &pass), *open).await.map(|()| opened)
    }

    /// What a pinned file is, for who opens it. ESTALE: its objects are going with its last name.
    /// Whoever looks the name up once more finds what it leads to now.
    async fn known_to_stay(&self, file: &File) -> Result<Kind, Errno> {
        let names = file.names.alone().await;
        let kind = match file.goes.load(Ordering::SeqCst) {
            true => Err(Errno::ESTALE),
            false => self.known_by(file, &names).await,
        };
        kind.inspect_err(|error| {
            if *error == Errno::ESTALE {
                self.wanted.note();
            }
        })
    }

    /// Empties a file that was opened to be emptied, or closes it again.
    async fn empty(&self, context: &Context, of: (&File, &Spread, &Pass<'_>), open: OpenId) -> Result<(), Errno> {
        let emptied = SetAttr { size: Some(0), ..SetAttr::default() };
        let done = self.resize(&own(), of, (None, emptied), 0).await;
        if done.is_err()
            && let Err(error) = self.tree.call(context, Request::Release { open }).await
        {
            tracing::debug!(%error, "a file that could not be emptied stays open");
        }
        done.map(drop)
    }

    pub(crate) async fn create(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        let Request::Create { parent, name, mode, umask, flags } = request.clone() else {
            return self.created(context, (request, false)).await;
        };
        if !flags.contains(OpenFlags::TRUNCATE) || flags.contains(OpenFlags::EXCLUSIVE) {
            return self.created(context, (request, false)).await;
        }
        // What the name leads to may be a stub, whose length nobody may change past its layout, or
        // become one: so it is opened as it is, and emptied then.
        let before = self.look_up(parent, name).await.map(|entry| entry.handle);
        let flags = flags.difference(OpenFlags::TRUNCATE);
        let create = Request::Create { parent, name, mode, umask, flags };
        let (mut entry, opened) = self.created(context, (create, true)).await?.created()?;
        let is_new = entry.attr.size == 0 && before.is_none_or(|before| before != entry.handle);
        if !is_new && entry.attr.is_regular() {
            match self.empty_opened(context, opened.id).await {
                Ok(attr) => entry.attr = attr,
                Err(error) => {
                    self.release(context, Request::Release { open: opened.id }).await?;
                    return Err(error);
                }
            }
        }
        Ok(Reply::Created(entry, opened))
    }

    /// Empties what was opened, while nobody else uses it.
    async fn empty_opened(&self, context: &Context, open: OpenId) -> Result<Attr, Errno> {
        let file = self.table.open(context.client, open).ok_or(Errno::EBADF)?;
        let (pass, kind) = self.alone(&file).await?;
        let handle = file.handle.bytes();
        self.may(context, &file.handle, AccessMask::WRITE).await?;
        let emptied = SetAttr { size: Some(0), ..SetAttr::default() };
        // One that was empty is told to have changed all the same, for which its kernel would ask
        // who owns it.
        let touched = SetAttr { mtime: Some(SetTime::Now), ..emptied };
        if let Kind::Spread(spread) = kind {
            let reply = self.resize(&own(), (&file, &spread, &pass), (None, touched), 0).await?;
            let mut attr = reply.attr()?;
            self.correct_by(&spread, &mut attr).await?;
            return Ok(attr);
        }
        file.is_large.store(false, Ordering::Relaxed);
        let _noting = file.changed.noting(0, u64::MAX);
        let was_empty = self.attr_of(&file.handle).await?.size == 0;
        let (by, set) = if was_empty { (&own(), touched) } else { (context, emptied) };
        self.tree.call(by, Request::SetAttr { handle, open: None, set }).await?.attr()
    }

    /// `empties`: it is about to be emptied, whatever it is.
    async fn created(&self, context: &Context, (request, empties): (Request<'_>, bool)) -> Result<Reply, Errno> {
        let (mut entry, opened) = self.tree.call(context, request).await?.created()?;
        let file = self.table.pin(&entry.handle);
        if entry.attr.size == 0 && entry.attr.nlink <= 1 && matches!(file.kind(), Kind::Unknown) {
            // No stub is so short, and what has just been made was not being promoted.
            let _names = file.names.alone().await;
            if let Ok(None) = self.attribute_of(&entry.handle).await
                && matches!(file.kind(), Kind::Unknown)
            {
                file.becomes(Kind::Inline(None));
            }
        }
        self.register(context, opened.id, file.clone()).await;
        if entry.attr.size >= BLOCK
            && let Err(error) = self.refuse_created(&file, empties).await
        {
            self.release(context, Request::Release { open: opened.id }).await?;
            return Err(error);
        }
        let handle = entry.handle.clone();
        self.correct(handle.bytes(), &mut entry.attr).await?;
        Ok(Reply::Created(entry, opened))
    }

    /// The same as for an open of what was there already.
    async fn refuse_created(&self, file: &File, empties: bool) -> Result<(), Errno> {
        match self.known_to_stay(file).await? {
            Kind::Inline(_) if !empties => self.refuse_copy(file).await,
            _ => Ok(()),
        }
    }

    pub(crate) async fn reopen(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        let Request::Reopen { open, .. } = request else { return Err(Errno::EPROTO) };
        let reply = self.tree.call(context, request).await?;
        let handle = self.tree.inode(context.client, open).await?;
        if self.table.open(context.client, open).is_none() && self.attr_of(&handle).await?.is_regular() {
            let file = self.table.pin(&handle);
            self.register(context, open, file.clone()).await;
            let names = file.names.alone().await;
            if file.goes.load(Ordering::SeqCst) {
                drop(names);
                self.release(context, Request::Release { open }).await?;
                return Err(Errno::ESTALE);
            }
        }
        Ok(reply)
    }

    pub(crate) async fn release(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        let open = request.opens()[0];
        let reply = self.tree.call(context, request).await;
        if let Some(file) = open.and_then(|open| self.table.closed(context.client, open)) {
            self.unpin(file).await;
        }
        reply
    }

    /// Notes what a request is about to move: before it does, so that no walk comes to its end
    /// between the two.
    pub(crate) async fn note_moves(&self, request: &Request<'_>) {
        if !self.moves.is_on() {
            return;
        }
        match *request {
            Request::Unlink { parent, name } => self.note_name(parent, name).await,
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                self.note_name(parent, name).await;
                self.note_name(new_parent, new_name).await;
            }
            Request::Link { handle, .. } => Handle::new(handle).into_iter().for_each(|handle| self.moves.note(handle)),
            _ => {}
        }
    }

    /// And once more afterwards: the name may have led to something else before.
    pub(crate) async fn note_moved(&self, request: &Request<'_>) {
        if let Request::Rename { parent, name, new_parent, new_name, flags } = *request
            && self.moves.is_on()
        {
            self.note_name(new_parent, new_name).await;
            if flags.contains(RenameFlags::EXCHANGE) {
                self.note_name(parent, name).await;
            }
        }
    }

    async fn note_name(&self, parent: &[u8], name: &[u8]) {
        let found = self.tree.call(&own(), Request::Lookup { parent, name }).await.and_then(Reply::entry);
        if let Ok(entry) = found {
            self.moves.note(entry.handle);
        }
    }

    /// Removes a name, or gives it to another file.
    pub(crate) async fn removing(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        self.note_moves(&request).await;
        let result = self.remove(context, request.clone()).await;
        self.note_moved(&request).await;
        result
    }

    async fn remove(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        let (parent, name) = match &request {
            Request::Unlink { parent, name } => (*parent, *name),
            Request::Rename { new_parent, new_name, flags, .. }
                if !flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) =>
            {
                (*new_parent, *new_name)
            }
            _ => return self.tree.call(context, request).await,
        };
        for _ in 0..TRIES {
            let Some(entry) = self.look_up(parent, name).await else { return self.tree.call(context, request).await };
            if !entry.attr.is_regular() {
                return self.tree.call(context, request).await;
            }
            let file = self.table.pin(&entry.handle);
            let result = self.remove_pinned(context, &file, ((parent, name), request.clone())).await;
            self.unpin(file).await;
            if let Some(result) = result {
                return result;
            }
        }
        Err(Errno::EBUSY)
    }

    async fn look_up(&self, parent: &[u8], name: &[u8]) -> Option<Entry> {
        self.tree.call(&own(), Request::Lookup { parent, name }).await.ok()?.entry().ok()
    }

    /// `None`: the name leads to something else by now.
    async fn remove_pinned(
        &self,
        context: &Context,
        file: &File,
        ((parent, name), request): ((&[u8], &[u8]), Request<'_>),
    ) -> Option<Result<Reply, Errno>> {
        // No server of data is waited for: who reads and writes may be.
        let names = file.names.alone().await;
        let kind = match self.known_by(file, &names).await {
            Ok(kind) => kind,
            // What cannot be understood may still be removed.
            Err(Errno::EIO) => return Some(self.tree.call(context, request).await),
            Err(Errno::ESTALE) => return None,
            // Nor is there always room to bring to an end what was begun: its layout says enough.
            Err(error) => match self.attribute_of(&file.handle).await {
                Ok(Some(attribute)) => Kind::Inline(Some(attribute)),
                _ => return Some(Err(error)),
            },
        };
        if self.look_up(parent, name).await.is_none_or(|entry| entry.handle != file.handle) {
            return None;
        }
        let id = match kind {
            Kind::Spread(spread) => spread.id,
            Kind::Inline(Some(attribute)) => attribute.id,
            _ => return Some(self.tree.call(context, request).await),
        };
        if let Err(error) = self.link_gone(file, &id).await {
            return Some(Err(error));
        }
        let result = self.tree.call(context, request).await;
        match nlink_of(self, file).await {
            Ok(links) if links > 1 => self.unlink_gone(file, &id).await,
            _ => {}
        }
        Some(result)
    }

    /// Gives a stub a link in the folder of those that are to go.
    async fn link_gone(&self, file: &File, id: &[u8; 16]) -> Result<(), Errno> {
        let name = gone_name(id);
        let (handle, parent, name) = (file.handle.bytes(), self.gone.bytes(), name.as_bytes());
        match self.tree.call(&own(), Request::Link { handle, parent, name }).await {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error),
        }
        if let Kind::Spread(spread) = file.kind() {
            spread.now().has_link = true;
        }
        Ok(())
    }

    /// Takes it away: the file has other names.
    pub(crate) async fn unlink_gone(&self, file: &File, id: &[u8; 16]) {
        let name = gone_name(id);
        let unlink = Request::Unlink { parent: self.gone.bytes(), name: name.as_bytes() };
        match self.tree.call(&own(), unlink).await {
            Ok(_) | Err(Errno::ENOENT) => {
                if let Kind::Spread(spread) = file.kind() {
                    spread.now().has_link = false;
                }
            }
            Err(error) => tracing::warn!(%error, "a link to a stub that is not to go stays until the next start"),
        }
    }

    pub(crate) async fn link(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        let Request::Link { handle, .. } = request else { return Err(Errno::EPROTO) };
        self.note_moves(&request).await;
        let file = self.table.pin(&Handle::new(handle).ok_or(Errno::ESTALE)?);
        let result = self.link_pinned(context, &file, request).await;
        self.unpin(file).await;
        result
    }

    async fn link_pinned(&self, context: &Context, file: &File, request: Request<'_>) -> Result<Reply, Errno> {
        let names = file.names.alone().await;
        let kind = self.known_by(file, &names).await?;
        let has_link = match &kind {
            Kind::Spread(spread) => spread.now().has_link,
            _ => false,
        };
        if has_link && nlink_of(self, file).await? == 1 {
            return Err(Errno::ENOENT);
        }
        let mut reply = self.tree.call(context, request).await?;
        if let (Kind::Spread(_), Reply::Entry(entry)) = (&kind, &mut reply)
            && entry.attr.size >= BLOCK
        {
            self.correct(file.handle.bytes(), &mut entry.attr).await?;
        }
        Ok(reply)
    }
}
