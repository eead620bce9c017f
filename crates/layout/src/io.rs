//! Reads and writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use aqueduct_fs::parts::{Padded, take_apart};
use aqueduct_fs::{
    Context, Errno, Layout, MemorySink, OpenId, Part, ReadAt, Reply, Request, Sink, Source, Staged, WriteAt, Written,
};
use bytes::Bytes;

use crate::attribute::{Attribute, BLOCK, MAGIC, UNKNOWN};
use crate::gate::Pass;
use crate::pinned::{File, Kind};
use crate::plain::Plain;
use crate::rooms::Rooms;
use crate::spread::Spread;
use crate::stripe::{Piece, ServerKey};
use crate::token::Token;

/// A write that has to make the file longer, until it has.
struct Growing<'a> {
    spread: &'a Spread,
    is_done: bool,
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.spread.now().is_cut = false;
        }
    }
}

impl Plain {
    pub(crate) async fn read_from(&self, context: &Context, read: ReadAt, sink: Box<dyn Sink>) -> Result<usize, Errno> {
        let Some(file) = self.table.open(context.client, read.open) else {
            return self.tree.read(context, read, sink).await;
        };
        let (_pass, kind) = self.shared(&file).await?;
        let Kind::Spread(spread) = kind else { return self.tree.read(context, read, sink).await };
        self.read_probe(context, read.open).await?;
        if i64::try_from(read.offset).is_err() {
            return Err(Errno::EINVAL);
        }
        let wanted = u64::from(read.length).min(aqueduct_fs::TRANSFER_SIZE_MAX as u64);
        let length = spread.now().size.saturating_sub(read.offset).min(wanted);
        deliver(&self.rooms, &spread, (read.offset, length), sink).await
    }

    /// Says where a file's bytes lie, to who may read them there.
    pub(crate) async fn layout(&self, context: &Context, handle: &[u8], open: OpenId) -> Result<Reply, Errno> {
        let file = self.table.open(context.client, open).ok_or(Errno::EBADF)?;
        if file.handle.bytes() != handle {
            return Err(Errno::EINVAL);
        }
        let (_pass, kind) = self.shared(&file).await?;
        let may_read = match self.read_probe(context, open).await {
            Err(Errno::EBADF) => false, // it is open for writing
            probed => probed.map(|()| true)?,
        };
        let Kind::Spread(spread) = kind else { return Ok(Reply::Layout(Layout::default())) };
        let (attribute, size) = {
            let now = spread.now();
            (now.attribute.clone(), now.size)
        };
        let now = SystemTime::now();
        let part = |(part, server): (usize, &ServerKey)| {
            let at = self.stores.iter().position(|store| store.key() == *server).ok_or(Errno::EIO)?;
            let place = u16::try_from(at).map_err(|_| Errno::EIO)?;
            if !may_read {
                return Ok(Part::Untold { place });
            }
            if attribute.made & (1 << part) == 0 {
                return Ok(Part::Hole { place });
            }
            let (generation, least) = (self.stores[at].generation(), spread.least(part));
            let token = Token { id: attribute.id, part, server: *server, generation, least };
            let token = token.encode(&self.layouts, now);
            Ok(Part::At { place, token })
        };
        let parts = attribute.servers.iter().enumerate().map(part).collect::<Result<_, Errno>>()?;
        let Attribute { block, id, epoch, .. } = attribute;
        Ok(Reply::Layout(Layout { size, block, id, epoch, parts }))
    }

    /// Whether an open may read is the tree's to say, and that it was read.
    async fn read_probe(&self, context: &Context, open: OpenId) -> Result<(), Errno> {
        let probe = ReadAt { open, offset: 0, length: 1 };
        self.tree.read(context, probe, Box::new(MemorySink::default())).await.map(drop)
    }

    pub(crate) async fn write_to(&self, context: &Context, write: WriteAt, source: Source) -> Result<Written, Errno> {
        let Some(file) = self.table.open(context.client, write.open) else {
            return self.tree.write(context, write, source).await;
        };
        let data = match source {
            Source::Memory(data) => data,
            Source::Staged(staged) => return self.write_brought((context, &file), write, staged).await,
        };
        if !write.append {
            let (pass, kind) = self.shared(&file).await?;
            match kind {
                Kind::Spread(spread) if may_share(&spread, write.offset, data.len()) => {
                    let shared = (write, Source::Memory(data.clone()));
                    match self.write_spread(context, (&file, &spread, &pass), shared).await {
                        Err(error) if self.may_place_anew(&spread, error) => {}
                        Ok(None) => {}
                        written => return written?.ok_or(Errno::EIO),
                    }
                }
                Kind::Spread(_) => {}
                _ if !self.outgrows(&file, write.offset, data.len() as u64) => {
                    let _noting = file.changed.noting(write.offset, write.offset.saturating_add(data.len() as u64));
                    return self.tree.write(context, write, Source::Memory(data)).await;
                }
                _ => {}
            }
        }
        let (pass, kind) = self.alone(&file).await?;
        let mut spread = match kind {
            Kind::Spread(spread) => spread,
            kind => {
                let offset = match write.append {
                    true => self.attr_of(&file.handle).await?.size,
                    false => write.offset,
                };
                match self.grow_ordinary(&file, kind, (offset, data.len() as u64)).await? {
                    Some(spread) => spread,
                    None => {
                        let _noting = file.changed.noting(offset, offset.saturating_add(data.len() as u64));
                        return self.tree.write(context, write, Source::Memory(data)).await;
                    }
                }
            }
        };
        loop {
            let alone = (write, Source::Memory(data.clone()));
            match self.write_spread(context, (&file, &spread, &pass), alone).await {
                // Each time another store is known to refuse what is asked of it.
                Err(error) if self.may_place_anew(&spread, error) => spread = self.place_anew(&file, &spread).await?,
                written => return written?.ok_or(Errno::EIO),
            }
        }
    }

    /// Writes what a client has brought to the server that has the place, as any other write
    /// there. ENODATA: that server does not have it, since the bytes lie elsewhere, or here; the
    /// client sends them.
    async fn write_brought(
        &self,
        (context, file): (&Context, &File),
        write: WriteAt,
        staged: Staged,
    ) -> Result<Written, Errno> {
        if !self.config.brings {
            return Err(Errno::EOPNOTSUPP);
        }
        let length = staged.length as usize;
        let is_one = |spread: &Spread| spread.stripe.pieces(write.offset, length as u64).len() == 1;
        {
            let (pass, kind) = self.shared(file).await?;
            let Kind::Spread(spread) = kind else { return Err(Errno::ENODATA) };
            if write.append {
                return Err(Errno::ENODATA);
            }
            if may_share(&spread, write.offset, length) {
                let shared = (write, Source::Staged(staged));
                if let Some(written) = self.write_spread(context, (file, &spread, &pass), shared).await? {
                    return Ok(written);
                }
            }
        }
        let (pass, kind) = self.alone(file).await?;
        let Kind::Spread(spread) = kind else { return Err(Errno::ENODATA) };
        if !is_one(&spread) {
            return Err(Errno::ENODATA);
        }
        let alone = (write, Source::Staged(staged));
        self.write_spread(context, (file, &spread, &pass), alone).await?.ok_or(Errno::EIO)
    }

    /// Whether an ordinary file would become too long.
    pub(crate) fn outgrows(&self, file: &File, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        end > self.config.inline_max && i64::try_from(end).is_ok() && !file.is_large.load(Ordering::Relaxed)
    }

    /// Promotes an ordinary file that is about to become too long. `None`: it stays ordinary.
    pub(crate) async fn grow_ordinary(
        &self,
        file: &File,
        kind: Kind,
        (offset, length): (u64, u64),
    ) -> Result<Option<Arc<Spread>>, Errno> {
        let Kind::Inline(begun) = kind else { return Err(Errno::EIO) };
        // Whoever copies it makes a stub of it, from objects of the same names.
        if !self.outgrows(file, offset, length) || file.changed.is_copied() {
            return Ok(None);
        }
        match self.promote(file, begun).await {
            Ok(None) => {
                file.is_large.store(true, Ordering::Relaxed);
                Ok(None)
            }
            // Without room for objects, or with appends alone allowed (chattr +a), the file goes on
            // as it is.
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EPERM) if matches!(file.kind(), Kind::Inline(_)) => Ok(None),
            result => result,
        }
    }

    /// Writes to objects. `None`: others have the file too, and one of them has left something
    /// behind the end meanwhile. It may only be cut while nobody writes there.
    async fn write_spread(
        &self,
        context: &Context,
        (file, spread, pass): (&File, &Spread, &Pass<'_>),
        (write, data): (WriteAt, Source),
    ) -> Result<Option<Written>, Errno> {
        let offset = if write.append { spread.now().size } else { write.offset };
        let length = data.length();
        let end = offset.checked_add(length as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or(Errno::EFBIG)?;
        // Whether this open may write, the times, and that set-id bits go, is the tree's business.
        let touch = if length == 0 { Bytes::new() } else { Bytes::from_static(&MAGIC[..1]) };
        let at_start = WriteAt { offset: 0, append: false, stable: false, ..write };
        let touched = self.tree.write(context, at_start, Source::Memory(touch)).await?;
        if length == 0 {
            return Ok(Some(Written { count: 0, offset, ..touched }));
        }
        let grows = end > spread.now().size;
        // Looked at once: who shares the file may find that it has to be cut, and never cuts it.
        if grows && !spread.now().is_cut {
            if !pass.is_alone() {
                return Ok(None);
            }
            self.cut((file, pass), spread).await?;
        }
        self.unsettle(file, spread).await?;
        let mut growing = Growing { spread, is_done: !grows };
        let _noting = file.changed.noting(offset, end);
        let (mut done, mut failed) = (0, None);
        for piece in spread.stripe.pieces(offset, length as u64) {
            let of_piece = match &data {
                Source::Memory(data) => Source::Memory(data.slice(done..done + piece.length as usize)),
                Source::Staged(staged) => Source::Staged(*staged), // there is one piece
            };
            let (count, error) = self.write_piece(context, (file, spread), piece, of_piece, write.stable).await;
            done += count;
            failed = error;
            if count < piece.length as usize {
                break;
            }
        }
        if done == 0 {
            return Err(failed.unwrap_or(Errno::ENOSPC));
        }
        self.grow(file, spread, offset + done as u64).await?;
        growing.is_done |= done == length;
        if write.stable {
            let sync = Request::Sync { open: write.open, data_only: false };
            self.tree.call(context, sync).await?;
        }
        Ok(Some(Written { count: done as u32, offset, ..touched }))
    }

    /// Writes into one object, which is made if need be. Returns what was written, and why not all.
    async fn write_piece(
        &self,
        context: &Context,
        (file, spread): (&File, &Spread),
        piece: Piece,
        data: Source,
        stable: bool,
    ) -> (usize, Option<Errno>) {
        let object = match self.object_to_write(file, spread, piece.part).await {
            Ok(object) => object,
            Err(error) => return (0, Some(error)),
        };
        if let Err(error) = spread.may_write(piece.part, piece.at).await {
            return (0, Some(error));
        }
        let mut data = match data {
            Source::Memory(data) => data,
            Source::Staged(staged) => {
                let _beside = spread.writing(piece.part).beside().await;
                let written = object.write_brought(context, piece.at, staged).await;
                return match spread.judge(piece.part, written) {
                    Ok(Written { count: 0, .. }) => (0, Some(Errno::ENOSPC)),
                    Ok(Written { count, .. }) => {
                        let count = count.min(staged.length);
                        spread.has_written(piece.part, piece.at + u64::from(count));
                        (count as usize, None)
                    }
                    Err(error) => (0, Some(error)),
                };
            }
        };
        let _shared = spread.writing(piece.part).shared().await;
        spread.now().dirty |= 1 << piece.part;
        let mut done = 0;
        while !data.is_empty() {
            let written = object.write(context, piece.at + done as u64, data.clone(), stable).await;
            // Once more: what made the object stable meanwhile did so without this.
            spread.now().dirty |= 1 << piece.part;
            match spread.judge(piece.part, written) {
                Ok(Written { count: 0, .. }) => return (done, Some(Errno::ENOSPC)),
                Ok(written) => {
                    let count = (written.count as usize).min(data.len());
                    done += count;
                    data = data.slice(count..);
                    spread.has_written(piece.part, piece.at + done as u64);
                }
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    /// An object that is about to be written to: made if there is none yet, and then named.
    pub(crate) async fn object_to_write(
        &self,
        file: &File,
        spread: &Spread,
        part: usize,
    ) -> Result<Arc<crate::store::Object>, Errno> {
        if spread.is_made(part) {
            return spread.object(part).await;
        }
        let _alone = spread.making().alone().await;
        if spread.is_made(part) {
            return spread.object(part).await;
        }
        let owner = self.owner_of(&file.handle).await?;
        let object = spread.make(part, owner).await?;
        let mut attribute = spread.now().attribute.clone();
        attribute.made |= 1 << part;
        self.store(&file.handle, &attribute, false).await?;
        // Not before: who sees it writes there, and one that is not stored is made anew, empty.
        spread.now().attribute.made |= 1 << part;
        Ok(object)
    }

    /// The file may become as short as that, so that its objects may.
    pub(crate) async fn lower(&self, file: &File, spread: &Spread, size: u64) -> Result<(), Errno> {
        let _alone = spread.making().alone().await;
        let mut attribute = spread.now().attribute.clone();
        if !attribute.lower(size) {
            return Ok(());
        }
        attribute.blocks = UNKNOWN;
        self.store(&file.handle, &attribute, false).await?;
        spread.now().attribute = attribute;
        Ok(())
    }

    /// Cuts the objects of a file that is about to grow, which nobody else uses meanwhile: what
    /// others had written behind its end, and are about to be told of, would go.
    pub(crate) async fn cut(&self, (file, pass): (&File, &Pass<'_>), spread: &Spread) -> Result<(), Errno> {
        debug_assert!(pass.is_alone());
        if spread.now().is_cut {
            return Ok(());
        }
        // The stub may have been made shorter past the volume.
        let size = spread.now().size;
        self.lower(file, spread, size).await?;
        spread.cut().await
    }

    /// What all objects take is no longer known.
    pub(crate) async fn unsettle(&self, file: &File, spread: &Spread) -> Result<(), Errno> {
        if spread.now().blocks().is_none() {
            return Ok(());
        }
        let _alone = spread.making().alone().await;
        if spread.now().blocks().is_none() {
            return Ok(());
        }
        let attribute = Attribute { blocks: UNKNOWN, ..spread.now().attribute.clone() };
        self.store(&file.handle, &attribute, false).await?;
        // Not before: others would change the file while its store says what they take.
        spread.now().attribute.blocks = UNKNOWN;
        Ok(())
    }

    /// The file is at least so long.
    pub(crate) async fn grow(&self, file: &File, spread: &Spread, end: u64) -> Result<(), Errno> {
        if end <= spread.now().size {
            return Ok(());
        }
        let _alone = spread.making().alone().await;
        let size = spread.now().size;
        if end <= size {
            return Ok(());
        }
        self.set_size(file, spread, end).await
    }

    /// Writes down another size. Where the stub says it by its length, that is the one change that
    /// makes it so; what the attribute says counts for a stub of one block alone, and is written
    /// before the stub gets that length.
    pub(crate) async fn set_size(&self, file: &File, spread: &Spread, size: u64) -> Result<(), Errno> {
        let before = spread.now().size;
        if size <= BLOCK {
            let attribute = Attribute { size, ..spread.now().attribute.clone() };
            self.store(&file.handle, &attribute, false).await?;
            spread.now().attribute.size = size;
        }
        if before.max(BLOCK) != size.max(BLOCK) {
            self.set_length(&file.handle, size.max(BLOCK)).await?;
        }
        spread.now().size = size;
        Ok(())
    }

    /// Makes stable what was written to a file: its objects, then its stub.
    pub(crate) async fn sync_file(
        &self,
        context: &Context,
        open: OpenId,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
        if let Some(file) = self.table.open(context.client, open)
            && let (_pass, Kind::Spread(spread)) = self.shared(&file).await?
        {
            spread.sync().await?;
            // A size is in the stub's inode, and the attribute too.
            self.tree.call(context, Request::Sync { open, data_only: false }).await?;
        }
        self.tree.call(context, request).await
    }
}

/// Whether others may use the file during a write: it goes to one object, whose server makes it
/// whole, and objects have nothing behind the end if the file grows.
fn may_share(spread: &Spread, offset: u64, length: usize) -> bool {
    let end = offset.saturating_add(length as u64);
    let now = spread.now();
    (end <= now.size || now.is_cut) && spread.stripe.pieces(offset, length as u64).len() <= 1
}

/// Reads a range of a file that ends within it, and delivers it.
async fn deliver(
    rooms: &Rooms,
    spread: &Spread,
    (offset, length): (u64, u64),
    mut sink: Box<dyn Sink>,
) -> Result<usize, Errno> {
    if length == 0 {
        sink.bytes(&[])?;
        sink.finish(0)?;
        return Ok(0);
    }
    let pieces = spread.stripe.pieces(offset, length);
    let lengths: Vec<usize> = pieces.iter().map(|piece| piece.length as usize).collect();
    let (memory, mut _room) = (MemorySink::default(), None);
    let (whole, parts, ordered) = match take_apart(sink, &lengths) {
        Ok((whole, parts)) => (whole, parts, None),
        Err(sink) => {
            let wanted = pieces.iter().filter(|piece| spread.is_made(piece.part));
            let wanted = wanted.map(|piece| (spread.server(piece.part), piece.length as usize));
            _room = Some(rooms.take(wanted).await);
            let (whole, parts) = take_apart(Box::new(memory.clone()), &lengths).map_err(|_| Errno::ENOMEM)?;
            (whole, parts, Some(sink))
        }
    };
    for (piece, inner) in pieces.into_iter().zip(parts) {
        let length = piece.length as usize;
        let padded = Box::new(Padded::new(inner, length));
        if !spread.is_made(piece.part) {
            padded.finish(0)?;
            continue;
        }
        spread.read(piece, padded).await?;
    }
    whole.finish(length as usize)?;
    if let Some(mut sink) = ordered {
        sink.bytes(&memory.take().ok_or(Errno::EIO)?)?;
        sink.finish(length as usize)?;
    }
    Ok(length as usize)
}
