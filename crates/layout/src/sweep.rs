//! What is done when a file is used no more: what it takes is written down, or its objects are
//! removed. And at the start: what the process before left undone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_fs::{Errno, Handle, Reply, Request};

use crate::backing::own;
use crate::change::nlink_of;
use crate::pinned::{File, Kind};
use crate::plain::{Plain, gone_name};
use crate::spread::Spread;
use crate::store::in_time;
use crate::wanted::HELD;

/// How long until what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The packed bytes of one page of a listing.
const PAGE_SIZE: u32 = 64 << 10;

impl Plain {
    /// A file is used by one less. The last one's work is done by nobody who waits, if there is
    /// somebody for that.
    pub(crate) async fn unpin(&self, file: Arc<File>) {
        if !self.table.unpin(&file) {
            return;
        }
        match (&self.background, self.this.upgrade()) {
            (Some(group), Some(plain)) => group.spawn(async move {
                let is_going = matches!(file.kind(), Kind::Spread(spread) if spread.now().has_link);
                if let Some(group) = plain.background.as_ref().filter(|_| is_going && plain.wanted.is_now()) {
                    group.sleep(HELD).await;
                }
                while plain.leave(&file).await.is_err() {
                    let Some(group) = &plain.background else { return };
                    group.sleep(RETRY).await;
                }
            }),
            _ => {
                if let Err(error) = self.leave(&file).await {
                    tracing::warn!(%error, "what a file takes could not be settled");
                    self.table.forget(&file, None);
                }
            }
        }
    }

    /// The last user leaves.
    async fn leave(&self, file: &Arc<File>) -> Result<(), Errno> {
        loop {
            let _pass = file.gate.alone().await;
            if let Some(pins) = self.table.sole(file) {
                self.finish(file).await?;
                if self.table.forget(file, Some(pins)) {
                    return Ok(());
                }
            }
            // Somebody came, and is the last one now, unless he has gone meanwhile.
            if !self.table.unpin(file) {
                return Ok(());
            }
        }
    }

    async fn finish(&self, file: &File) -> Result<(), Errno> {
        let (id, known) = match file.kind() {
            Kind::Spread(spread) => (spread.id, Some(spread)),
            Kind::Inline(Some(attribute)) => (attribute.id, None),
            _ => return Ok(()),
        };
        if self.goes(file, (&id, known.as_deref())).await? {
            return self.destroy(file, &id).await;
        }
        let Some(spread) = &known else { return Ok(()) };
        let has_link = spread.now().has_link;
        // One that has lost its last name is left to the sweep, or to who has just come to it.
        if !has_link || !self.is_gone(file, &id).await? {
            self.settle(file, spread).await?;
        }
        spread.close().await;
        Ok(())
    }

    /// Whether nobody uses a file any more that has lost its last name: from then on nobody opens
    /// it, as who still has its handle might.
    async fn goes(&self, file: &File, (id, known): (&[u8; 16], Option<&Spread>)) -> Result<bool, Errno> {
        let _names = file.names.alone().await;
        let has_link = known.is_none_or(|spread| spread.now().has_link);
        let is_swept = self.is_swept.load(Ordering::SeqCst);
        if !has_link || !is_swept || !self.is_gone(file, id).await? || self.table.sole(file).is_none() {
            return Ok(false);
        }
        file.goes.store(true, Ordering::SeqCst);
        Ok(true)
    }

    /// Whether a stub has no other name than the link to those that are to go.
    async fn is_gone(&self, file: &File, id: &[u8; 16]) -> Result<bool, Errno> {
        let name = gone_name(id);
        let found = self.tree.call(&own(), Request::Lookup { parent: self.gone.bytes(), name: name.as_bytes() }).await;
        match found.and_then(Reply::entry) {
            Ok(entry) => Ok(entry.handle == file.handle && nlink_of(self, file).await? == 1),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes down what a file takes, so that nobody has to ask for it.
    async fn settle(&self, file: &File, spread: &Spread) -> Result<(), Errno> {
        // Who comes to the file meanwhile may need nothing of a server that does not answer.
        let (group, silent) = (self.background.as_deref(), || Errno::EHOSTUNREACH);
        if spread.now().owner_is_due {
            in_time(self.own_objects(file, spread), group).await.ok_or_else(silent)??;
        }
        if spread.now().blocks().is_some() {
            return Ok(());
        }
        let attribute = in_time(spread.settled(), group).await.ok_or_else(silent)??;
        match self.store(&file.handle, &attribute, false).await {
            Ok(()) => spread.settles(attribute),
            Err(Errno::EROFS) => {} // it is only looked at
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes the objects of a file that has gone, and then its stub.
    async fn destroy(&self, file: &File, id: &[u8; 16]) -> Result<(), Errno> {
        let attribute = match file.kind() {
            Kind::Spread(spread) => {
                spread.close().await;
                spread.now().attribute.clone()
            }
            Kind::Inline(Some(attribute)) => attribute,
            _ => return Ok(()),
        };
        // All: one may have been made that the attribute does not name yet.
        for (part, store) in self.stores_of(&attribute)?.iter().enumerate() {
            store.remove(id, part).await?;
        }
        for (part, store) in self.other_places(&attribute) {
            store.remove(id, part).await?;
        }
        let name = gone_name(id);
        let unlink = Request::Unlink { parent: self.gone.bytes(), name: name.as_bytes() };
        match self.tree.call(&own(), unlink).await {
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        file.becomes(Kind::Unknown);
        Ok(())
    }

    /// Ends what the process before has begun: to be called when clients have reopened what they
    /// had. Returns how many stubs were found that were to go.
    pub async fn sweep(&self) -> Result<usize, Errno> {
        // Whoever has left a file before this has left its link, too, which is listed now.
        self.is_swept.store(true, Ordering::SeqCst);
        let open = Request::OpenDirectory { handle: self.gone.bytes() };
        let open = self.tree.call(&own(), open).await?.opened()?.id;
        let mut found: Vec<Handle> = Vec::new();
        let mut cookie = 0;
        let read = loop {
            let request = Request::ReadDirectory { open, cookie, size: PAGE_SIZE, plus: true };
            match self.tree.call(&own(), request).await.and_then(Reply::directory) {
                Err(error) => break Err(error),
                Ok(page) => {
                    found.extend(
                        page.entries().filter_map(|entry| entry.inode).filter_map(|(handle, _)| Handle::new(handle)),
                    );
                    cookie = page.entries().last().map_or(cookie, |entry| entry.cookie);
                    if page.end {
                        break Ok(());
                    }
                }
            }
        };
        self.tree.call(&own(), Request::ReleaseDirectory { open }).await?;
        read?;
        for handle in &found {
            let file = self.table.pin(handle);
            if let Err(error) = self.sweep_one(&file).await {
                tracing::warn!(%error, "a stub that was to go could not be looked at: it stays until the next start");
            }
            self.unpin(file).await;
        }
        Ok(found.len())
    }

    /// A link that was made for a name which stayed goes again; others go with their last user.
    async fn sweep_one(&self, file: &File) -> Result<(), Errno> {
        // Who has come back to it may wait for a server of data.
        let names = file.names.alone().await;
        let id = match self.known_by(file, &names).await? {
            Kind::Spread(spread) => spread.id,
            Kind::Inline(Some(attribute)) => attribute.id,
            _ => return Ok(()),
        };
        if nlink_of(self, file).await? > 1 {
            self.unlink_gone(file, &id).await;
        }
        Ok(())
    }
}
