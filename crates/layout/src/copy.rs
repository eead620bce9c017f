//! Copies the bytes of a file into other objects while it is used: all of it once, then what was
//! changed meanwhile, until little is left, and that while nobody else uses the file. Each piece
//! is read back and compared before it counts.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aqueduct_fs::{Errno, MemorySink, OpenId, ReadAt, SetAttr};
use bytes::Bytes;

use crate::backing::own;
use crate::changed::CHUNK;
use crate::job::Job;
use crate::pinned::File;
use crate::plain::Plain;
use crate::spread::Spread;
use crate::store::{Object, within};
use crate::stripe::Piece;

/// Chunks that are copied while others wait: 16 MiB.
const HELD_MAX: u64 = 16;

/// How often what was changed meanwhile is copied, before the file is left to who writes to it.
const ROUNDS_MAX: usize = 10;

/// So long others wait at the most for what is left, of which 16 MiB take a second where they take
/// long: a server that dies meanwhile shall not hold up a file that needs nothing of it yet.
pub(crate) const HELD_TIME: Duration = Duration::from_secs(10);

/// Where the bytes are read.
pub(crate) enum Origin {
    /// An ordinary file, open in the tree.
    Ordinary(OpenId),
    /// Objects.
    Objects(Arc<Spread>),
}

/// See the module.
pub(crate) struct Copying<'a> {
    pub(crate) plain: &'a Plain,
    pub(crate) file: &'a File,
    pub(crate) origin: Origin,
    /// New objects, of the same names at other servers, or of others.
    pub(crate) to: Spread,
    /// Which objects are copied.
    pub(crate) parts: u64,
    /// Which of them were made.
    made: AtomicU64,
    job: &'a Job,
}

impl<'a> Copying<'a> {
    pub(crate) fn new(
        (plain, file): (&'a Plain, &'a File),
        origin: Origin,
        (to, parts): (Spread, u64),
        job: &'a Job,
    ) -> Copying<'a> {
        Copying { plain, file, origin, to, parts, made: AtomicU64::new(0), job }
    }

    /// Which objects were made.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    async fn size(&self) -> Result<u64, Errno> {
        match &self.origin {
            Origin::Ordinary(_) => Ok(self.plain.attr_of(&self.file.handle).await?.size),
            Origin::Objects(spread) => Ok(spread.now().size),
        }
    }

    /// Copies the file until little of it is left to do. Others use it meanwhile, and note what
    /// they change. EBUSY: they write as fast as it is copied.
    pub(crate) async fn follow(&self) -> Result<(), Errno> {
        for chunk in 0..self.size().await?.div_ceil(CHUNK) {
            let copied = self.unless_ended(self.chunk(chunk, true)).await?;
            self.job.pace(copied, self.plain.background.as_deref()).await?;
        }
        for _ in 0..ROUNDS_MAX {
            let size = self.size().await?;
            if self.file.changed.count(size) <= HELD_MAX {
                return self.unless_ended(self.sync()).await;
            }
            for chunk in self.file.changed.take(size) {
                let copied = self.unless_ended(self.chunk(chunk, false)).await?;
                self.job.pace(copied, self.plain.background.as_deref()).await?;
            }
        }
        Err(Errno::EBUSY)
    }

    /// Copies what is left, and makes all of it stable. Nobody else may use the file.
    /// EHOSTUNREACH: a server does not answer.
    pub(crate) async fn finish(&self) -> Result<(), Errno> {
        self.held(self.end()).await
    }

    /// Does something while others wait, for which they wait no longer than for that.
    pub(crate) async fn held<T>(&self, work: impl Future<Output = Result<T, Errno>>) -> Result<T, Errno> {
        let done = within(HELD_TIME, work, self.plain.background.as_deref()).await;
        done.unwrap_or(Err(Errno::EHOSTUNREACH))
    }

    /// Whoever has a server copied that does not answer can end that.
    async fn unless_ended<T>(&self, work: impl Future<Output = Result<T, Errno>>) -> Result<T, Errno> {
        self.job.unless_ended(work, self.plain.background.as_deref()).await
    }

    /// Closes what is not needed any more, if its servers answer in time.
    pub(crate) async fn close(&self, spread: &Spread) {
        let closing = async {
            spread.close().await;
            Ok(())
        };
        if let Err(error) = self.held(closing).await {
            tracing::debug!(%error, "objects stay open at a server");
        }
    }

    async fn end(&self) -> Result<(), Errno> {
        let size = self.size().await?;
        for chunk in self.file.changed.take(size) {
            self.job.hasten(self.chunk(chunk, false).await?);
        }
        let owner = self.plain.owner_of(&self.file.handle).await?;
        if let Origin::Objects(spread) = &self.origin {
            // An object without a byte is one all the same.
            for part in spread.made().filter(|part| self.parts & (1 << part) != 0) {
                self.object(part).await?;
            }
        }
        for part in self.to.parts().filter(|part| self.made() & (1 << part) != 0) {
            let object = self.object(part).await?;
            object.own(owner).await?;
            // Zeros at its end were left out, and are told from what is lost by its length.
            let least = if let Origin::Objects(spread) = &self.origin { spread.least(part) } else { 0 };
            let (length, now) = (self.to.stripe.length_of(size, part), object.attr().await?.size);
            if now > length || now < least {
                object.set(SetAttr { size: Some(now.max(least).min(length)), ..SetAttr::default() }).await?;
            }
        }
        self.sync().await
    }

    async fn sync(&self) -> Result<(), Errno> {
        for part in self.to.parts().filter(|part| self.made() & (1 << part) != 0) {
            self.object(part).await?.sync().await?;
        }
        Ok(())
    }

    /// A new object, made if there is none yet.
    async fn object(&self, part: usize) -> Result<Arc<Object>, Errno> {
        if self.made() & (1 << part) != 0 {
            return self.to.object(part).await;
        }
        let owner = self.plain.owner_of(&self.file.handle).await?;
        let object = match self.origin {
            // Nobody has had a token for any of them.
            Origin::Ordinary(_) => self.to.make(part, owner).await?,
            Origin::Objects(_) => self.to.make_hidden(part, owner).await?,
        };
        self.made.fetch_or(1 << part, Ordering::SeqCst);
        Ok(object)
    }

    /// Copies a chunk of the file. `is_first`: nothing is there yet, so that zeros are left out.
    /// Returns how many bytes that were.
    async fn chunk(&self, chunk: u64, is_first: bool) -> Result<u64, Errno> {
        let mut copied = 0;
        let offset = chunk * CHUNK;
        let length = self.size().await?.saturating_sub(offset).min(CHUNK);
        if !is_first && length < CHUNK {
            // The target may have bytes there of before the file was cut: they count as changed
            // until the file has others.
            self.file.changed.note(offset + length, offset + CHUNK);
        }
        for piece in self.to.stripe.pieces(offset, length) {
            if self.parts & (1 << piece.part) == 0 {
                continue;
            }
            let Some(data) = self.read(piece).await? else { continue };
            let object = self.object(piece.part).await?;
            if is_first && data.iter().all(|byte| *byte == 0) {
                continue;
            }
            copied += data.len() as u64;
            self.write(&object, piece.at, data).await?;
        }
        Ok(copied)
    }

    /// The bytes of a piece. `None`: a hole, as there is no object.
    async fn read(&self, piece: Piece) -> Result<Option<Vec<u8>>, Errno> {
        let sink = MemorySink::default();
        match &self.origin {
            Origin::Ordinary(open) => {
                let read = ReadAt { open: *open, offset: piece.offset, length: piece.length as u32 };
                self.plain.quiet.read(&own(), read, Box::new(sink.clone())).await?;
            }
            Origin::Objects(spread) if spread.is_made(piece.part) => {
                spread.read(piece, Box::new(sink.clone())).await?;
            }
            Origin::Objects(_) => return Ok(None),
        }
        let mut data = sink.take().ok_or(Errno::EIO)?;
        data.resize(piece.length as usize, 0);
        Ok(Some(data))
    }

    async fn write(&self, object: &Object, at: u64, data: Vec<u8>) -> Result<(), Errno> {
        let (data, mut done) = (Bytes::from(data), 0);
        while done < data.len() {
            let count = object.write(&own(), at + done as u64, data.slice(done..), false).await?.count as usize;
            if count == 0 {
                return Err(Errno::ENOSPC);
            }
            done += count;
        }
        let sink = MemorySink::default();
        object.read(at, data.len(), Box::new(sink.clone())).await?;
        match sink.take().is_some_and(|found| found == data) {
            true => Ok(()),
            false => {
                tracing::error!("an object does not have what was written to it: it is not used");
                Err(Errno::EIO)
            }
        }
    }
}
