//! Large files that were there before the volume, or for whose objects there was no room, are
//! promoted while they are used: as [`promote`](crate::promote) does it, but that their bytes are
//! copied while others go on, and what is changed meanwhile again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_fs::{Attr, Errno, Handle, OpenFlags, Reply, Request, SetAttr, SetTime};

use crate::attribute::{self, Attribute, State};
use crate::backing::own;
use crate::copy::{Copying, Origin};
use crate::job::Job;
use crate::moving::Found;
use crate::pinned::{File, Kind};
use crate::plain::{FOLDER, Plain};
use crate::spread::Spread;

impl Plain {
    /// The large ordinary files at a path of the volume, or below it. ENOENT: there is none.
    pub async fn ordinary(&self, path: &str) -> Result<Vec<Found>, Errno> {
        let (mut at, mut attr) = (self.root.clone(), self.attr_of(&self.root).await?);
        let mut shown = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if name == FOLDER || name == ".." || name == "." {
                return Err(Errno::ENOENT);
            }
            let request = Request::Lookup { parent: at.bytes(), name: name.as_bytes() };
            let entry = self.tree.call(&own(), request).await.and_then(Reply::entry)?;
            (at, attr, shown) = (entry.handle, entry.attr, format!("{shown}/{name}"));
        }
        let mut large = match attr.is_directory() {
            true => self.walk(shown, at).await?.large,
            false if attr.is_regular() && self.is_large(&at, attr.size).await? => vec![(shown, at, attr.size)],
            false => Vec::new(),
        };
        // Names of one file.
        large.sort_by(|a, b| a.1.cmp(&b.1));
        large.dedup_by(|a, b| a.1 == b.1);
        Ok(large.into_iter().map(|(path, handle, bytes)| Found { path, bytes, handle }).collect())
    }

    async fn is_large(&self, handle: &Handle, size: u64) -> Result<bool, Errno> {
        Ok(size > self.config.inline_max
            && self.attribute_of(handle).await?.is_none_or(|attribute| attribute.state == State::Making))
    }

    /// Promotes a large ordinary file. False: it is none, or is gone. Errors as for
    /// [`relocate`](Plain::relocate); whatever it returns, the file is whole.
    pub async fn adopt(&self, found: &Found, job: &Job) -> Result<bool, Errno> {
        let file = self.table.pin(&found.handle);
        let result = match self.adopt_pinned(&file, job).await {
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            result => result,
        };
        self.unpin(file).await;
        result
    }

    async fn adopt_pinned(&self, file: &Arc<File>, job: &Job) -> Result<bool, Errno> {
        let (attribute, _taking) = {
            let (_pass, kind) = self.alone(file).await?;
            let Kind::Inline(begun) = kind else { return Ok(false) };
            let _names = file.names.alone().await;
            let attr = self.attr_of(&file.handle).await?;
            if attr.nlink == 0 || !attr.is_regular() || attr.size <= self.config.inline_max {
                return Ok(false);
            }
            self.refuse_copy(file).await?;
            let taking = file.changed.begin().ok_or(Errno::EBUSY)?;
            let attribute = match begun.filter(|begun| self.stores_of(begun).is_ok()) {
                Some(begun) => Attribute { made: 0, ..begun },
                None => self.new_layout(&file.handle).await?,
            };
            file.becomes(Kind::Inline(Some(attribute.clone())));
            self.store(&file.handle, &attribute, true).await?;
            (attribute, taking)
        };
        let open = Request::Open { handle: file.handle.bytes(), flags: OpenFlags::READ };
        let open = self.quiet.call(&own(), open).await?.opened()?.id;
        let parts = attribute.servers.len();
        let to = Spread::new(attribute.clone(), 0, self.stores_of(&attribute)?);
        let all = if parts == 64 { u64::MAX } else { (1 << parts) - 1 };
        let copying = Copying::new((self, file), Origin::Ordinary(open), (to, all), job);
        let followed = copying.follow().await;
        let done = self.become_stub(file, attribute, (&copying, followed)).await;
        copying.close(&copying.to).await;
        self.quiet.call(&own(), Request::Release { open }).await?;
        done.map(|()| true)
    }

    /// The objects become the file, unless copying them failed: then they go.
    async fn become_stub(
        &self,
        file: &File,
        mut attribute: Attribute,
        (copying, followed): (&Copying<'_>, Result<(), Errno>),
    ) -> Result<(), Errno> {
        let (_pass, kind) = self.alone(file).await?;
        if !matches!(&kind, Kind::Inline(Some(now)) if now.id == attribute.id) {
            return Err(Errno::EBUSY);
        }
        let copied = match followed {
            Ok(()) => copying.finish().await,
            failed => failed,
        };
        if let Err(error) = copied {
            copying.close(&copying.to).await;
            // What a server that is away keeps of it goes when somebody comes to the file again.
            copying.held(self.give_up(file, &attribute)).await?;
            return Err(error);
        }
        let attr = self.attr_of(&file.handle).await?;
        attribute.made = copying.made();
        (attribute.state, attribute.size) = (State::Moved, attr.size);
        self.become_objects(file, &attribute).await?;
        file.is_large.store(false, Ordering::Relaxed);
        self.restore_times(file, &attr).await
    }

    /// Nobody but this has changed the file.
    async fn restore_times(&self, file: &File, attr: &Attr) -> Result<(), Errno> {
        let (atime, mtime) = (Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)));
        let set = SetAttr { atime, mtime, ..SetAttr::default() };
        let request = Request::SetAttr { handle: file.handle.bytes(), open: None, set };
        self.quiet.call(&own(), request).await.map(drop)
    }

    /// Removes the objects of a promotion that is not gone on with, and then what names them.
    /// Nobody else may use the file, which is an ordinary one all the time.
    pub(crate) async fn give_up(&self, file: &File, attribute: &Attribute) -> Result<(), Errno> {
        for (part, store) in self.stores_of(attribute)?.iter().enumerate() {
            store.remove(&attribute.id, part).await?;
        }
        let _names = file.names.alone().await;
        let name = attribute::NAME;
        let request = Request::RemoveXattr { handle: file.handle.bytes(), name };
        self.quiet.call(&own(), request).await?;
        file.becomes(Kind::Inline(None));
        // If it was removed meanwhile, nothing else keeps it.
        self.unlink_gone(file, &attribute.id).await;
        Ok(())
    }
}
