//! Promotion: an ordinary file becomes a stub, in steps each of which may be the last.
//!
//! 1. The attribute, *making*, durable: from now on somebody knows of the objects.
//! 2. The file's bytes into objects, durable.
//! 3. The attribute, *moved*, with the file's size, durable: from here on the objects are the file.
//! 4. The stub's length, its first block, and a hole behind that.
//! 5. The attribute, *spread*.
//!
//! Who finds *making* has the ordinary file, and begins again with the same objects. Who finds
//! *moved* goes on with 4. A file without a name stays ordinary, since a stub is kept by names
//! until its objects are gone.

use std::sync::Arc;

use aqueduct_fs::{Attr, Errno, FallocateFlags, FileSystem, Handle, OpenFlags, Reply, Request, Source, WriteAt, wide};

use crate::attribute::{Attribute, BLOCK, State, UNKNOWN, stub_of};
use crate::backing::{own, read_all};
use crate::pinned::{File, Kind};
use crate::plain::Plain;
use crate::spread::Spread;
use crate::store::{Owner, in_time};

/// What the kernel keeps of a file lies in pieces of at most so many bytes (a huge page): those
/// that lie wholly in a hole go as they are, and are not written over.
const PAGES: u64 = 2 << 20;

impl Plain {
    /// Promotes an ordinary file, which nobody else uses meanwhile. `None`: it stays as it is,
    /// since it has no name, or is longer than those that are promoted.
    pub(crate) async fn promote(
        &self,
        file: &File,
        mut begun: Option<Attribute>,
    ) -> Result<Option<Arc<Spread>>, Errno> {
        // Each try finds out of another store that it refuses what is asked of it, at most.
        for _ in &self.stores {
            if let Some(begun) = begun.as_ref().filter(|begun| self.avoids(begun)) {
                self.forget_objects(begun).await;
            }
            let promoted = self.try_promotion(file, begun).await;
            begun = match (&promoted, file.kind()) {
                (Err(Errno::EIO | Errno::EROFS), Kind::Inline(Some(now))) if self.avoids(&now) => Some(now),
                _ => return promoted,
            };
        }
        Err(Errno::EIO)
    }

    /// Removes what was made for a promotion that is begun anew with other servers. What is left,
    /// as nobody can say whether it is there, no file names: a repair takes it away.
    async fn forget_objects(&self, begun: &Attribute) {
        for (part, store) in self.stores_of(begun).unwrap_or_default().iter().enumerate() {
            if store.is_reached() && !store.is_avoided() {
                in_time(store.remove(&begun.id, part), self.background.as_deref()).await;
            }
        }
    }

    async fn try_promotion(&self, file: &File, begun: Option<Attribute>) -> Result<Option<Arc<Spread>>, Errno> {
        let Some((attr, mut attribute)) = self.begin_promotion(file, begun).await? else { return Ok(None) };
        let owner = self.owner_of(&file.handle).await?;
        attribute.made = self.move_out(&file.handle, &attribute, (attr.size, owner)).await?;
        (attribute.state, attribute.size) = (State::Moved, attr.size);
        let spread = self.become_objects(file, &attribute).await?;
        if self.owner_of(&file.handle).await? != owner {
            spread.now().owner_is_due = true; // somebody has changed that meanwhile
        }
        Ok(Some(spread))
    }

    /// From here on somebody knows of the objects, so that names may come and go again.
    async fn begin_promotion(&self, file: &File, begun: Option<Attribute>) -> Result<Option<(Attr, Attribute)>, Errno> {
        let _names = file.names.alone().await;
        let attr = self.attr_of(&file.handle).await?;
        if attr.nlink == 0 || attr.size > self.config.inline_max || !attr.is_regular() {
            return Ok(None);
        }
        // Not at servers that the volume has no more, nor at those that new files avoid, unless
        // its objects are removed by its id.
        let stays = match &begun {
            Some(begun) if self.avoids(begun) => self.has_gone_link(&begun.id).await?,
            Some(begun) => self.stores_of(begun).is_ok(),
            None => false,
        };
        let attribute = match begun.filter(|_| stays) {
            Some(attribute) => Attribute { made: 0, ..attribute },
            None => self.new_layout(&file.handle).await?,
        };
        file.becomes(Kind::Inline(Some(attribute.clone())));
        self.store(&file.handle, &attribute, true).await?;
        self.reserve(&file.handle).await?;
        Ok(Some((attr, attribute)))
    }

    /// A stub takes a block: where there is no room for it, the file stays what it is.
    async fn reserve(&self, handle: &Handle) -> Result<(), Errno> {
        let open = Request::Open { handle: handle.bytes(), flags: OpenFlags::WRITE };
        let open = self.quiet.call(&own(), open).await?.opened()?.id;
        let flags = FallocateFlags::KEEP_SIZE;
        let reserved = self.quiet.call(&own(), Request::Fallocate { open, offset: 0, length: BLOCK, flags }).await;
        self.quiet.call(&own(), Request::Release { open }).await?;
        match reserved {
            Err(error @ (Errno::ENOSPC | Errno::EDQUOT)) => Err(error),
            _ => Ok(()), // not every file system can say so
        }
    }

    /// The bytes of a file are in objects, whose layout this is: from here on they are the file.
    /// Nobody else uses it.
    pub(crate) async fn become_objects(&self, file: &File, attribute: &Attribute) -> Result<Arc<Spread>, Errno> {
        let names = file.names.alone().await;
        // Until it is known how far that came, the disk knows better.
        file.becomes(Kind::Unknown);
        self.store(&file.handle, attribute, true).await?;
        let Kind::Spread(spread) = self.known_by(file, &names).await? else { return Err(Errno::EIO) };
        spread.now().is_cut = true; // the objects are new
        Ok(spread)
    }

    /// Over how many servers a file is to be spread, as it says itself; 0: it does not.
    async fn own_width(&self, handle: &Handle) -> usize {
        let request = Request::GetXattr { handle: handle.bytes(), name: wide::KEPT, size: wide::LENGTH_MAX };
        match self.quiet.call(&own(), request).await {
            Ok(Reply::Bytes(value)) => wide::width_of(&value).unwrap_or(0).into(),
            _ => 0,
        }
    }

    /// A layout that nothing has yet.
    pub(crate) async fn new_layout(&self, handle: &Handle) -> Result<Attribute, Errno> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| Errno::EIO)?;
        self.look_at_stores().await;
        Ok(Attribute {
            state: State::Making,
            id,
            block: self.config.block,
            servers: self.choose(&id, self.own_width(handle).await),
            stub: stub_of(handle.bytes()),
            made: 0,
            size: UNKNOWN,
            blocks: UNKNOWN,
            epoch: 1,
            other: Vec::new(),
            were: Vec::new(),
        })
    }

    /// Copies the bytes of an ordinary file into its objects. Returns which were made.
    async fn move_out(
        &self,
        handle: &Handle,
        attribute: &Attribute,
        (size, owner): (u64, Owner),
    ) -> Result<u64, Errno> {
        if size == 0 {
            return Ok(0);
        }
        let data = bytes::Bytes::from(read_all(&self.quiet, handle, size as usize).await?);
        if data.len() as u64 != size {
            return Err(Errno::EIO);
        }
        let spread = Spread::new(attribute.clone(), size, self.stores_of(attribute)?);
        let made = self.write_out(&spread, &data, owner).await;
        // Also where it failed: whoever tries again opens them anew.
        spread.close().await;
        made
    }

    /// Writes all of a file into its objects, which are made. Returns which those are.
    async fn write_out(&self, spread: &Spread, data: &bytes::Bytes, owner: Owner) -> Result<u64, Errno> {
        let (size, mut made) = (data.len() as u64, 0u64);
        for piece in spread.stripe.pieces(0, size) {
            let object = match made & (1 << piece.part) {
                0 => spread.make(piece.part, owner).await?,
                _ => spread.object(piece.part).await?,
            };
            made |= 1 << piece.part;
            let (mut at, mut rest) =
                (piece.at, data.slice(piece.offset as usize..(piece.offset + piece.length) as usize));
            while !rest.is_empty() {
                let count = object.write(&own(), at, rest.clone(), true).await?.count as usize;
                if count == 0 {
                    return Err(Errno::ENOSPC);
                }
                at += count as u64;
                rest = rest.slice(count..);
            }
        }
        Ok(made)
    }

    /// Whether a file that has no objects yet failed where new files are not to lie any more. Not
    /// while what lies at other places of it is being removed: it might come to lie there.
    pub(crate) fn may_place_anew(&self, spread: &Spread, error: Errno) -> bool {
        let now = spread.now();
        let has_none = now.attribute.made == 0 && now.attribute.other.is_empty();
        matches!(error, Errno::EIO | Errno::EROFS) && has_none && self.avoids(&now.attribute)
    }

    /// Has a file that has no objects yet lie elsewhere. Nobody else uses it.
    pub(crate) async fn place_anew(&self, file: &File, spread: &Spread) -> Result<Arc<Spread>, Errno> {
        let attribute = spread.now().attribute.clone();
        let servers = self.choose(&attribute.id, self.own_width(&file.handle).await);
        let names = file.names.alone().await;
        // If that fails, the disk knows better.
        file.becomes(Kind::Unknown);
        spread.now().is_left = true;
        let epoch = attribute.epoch + 1;
        self.store(&file.handle, &Attribute { servers, epoch, other: Vec::new(), ..attribute }, true).await?;
        match self.known_by(file, &names).await? {
            Kind::Spread(spread) => Ok(spread),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes the stub of a file whose bytes are in objects.
    pub(crate) async fn make_stub(&self, handle: &Handle, mut attribute: Attribute) -> Result<Attribute, Errno> {
        let size = attribute.size;
        let length = size.max(BLOCK);
        (attribute.state, attribute.size) = (State::Spread, if size < BLOCK { size } else { UNKNOWN });
        // The length first: a write that makes a file longer tells the disk of that much later.
        self.set_length(handle, length).await?;
        let open = Request::Open { handle: handle.bytes(), flags: OpenFlags::WRITE };
        let open = self.quiet.call(&own(), open).await?.opened()?.id;
        // Whole pages go, and the first block comes into one of its own: replies on their way to
        // clients still have those of before. The attribute is durable, and says what belongs
        // here.
        if size > 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let whole = length.next_multiple_of(PAGES).min(i64::MAX as u64);
            let punch = Request::Fallocate { open, offset: 0, length: whole, flags };
            if let Err(error) = self.quiet.call(&own(), punch).await {
                tracing::debug!(%error, "what a file took before its promotion is not given back");
            }
        }
        self.quiet.call(&own(), Request::Release { open }).await?;
        match self.write_first_block(handle, &attribute).await {
            // Others have taken the room meanwhile. The attribute is what the file is read by; who
            // copies the stub without it gets zeros for that.
            Err(error @ (Errno::ENOSPC | Errno::EDQUOT)) => {
                tracing::warn!(%error, "the first block of a stub could not be written: read the file through the volume only, since a copy of the stub without its attributes reads as zeros");
            }
            written => written?,
        }
        self.store(handle, &attribute, false).await?;
        Ok(attribute)
    }

    /// Writes the first block of a stub.
    pub(crate) async fn write_first_block(&self, handle: &Handle, attribute: &Attribute) -> Result<(), Errno> {
        let open = Request::Open { handle: handle.bytes(), flags: OpenFlags::WRITE };
        let open = self.quiet.call(&own(), open).await?.opened()?.id;
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        let block = attribute.first_block(&self.layouts);
        let written = self.quiet.write(&own(), write, Source::Memory(block.into())).await;
        self.quiet.call(&own(), Request::Release { open }).await?;
        if u64::from(written?.count) == BLOCK { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}
