//! Changes of a file's attributes and of its space, and what is said of them.

use std::sync::atomic::Ordering;

use aqueduct_fs::layer::names_without;
use aqueduct_fs::{
    AccessMask, Attr, Context, DirPage, Errno, FallocateFlags, OpenId, Reply, Request, SeekTo, SetAttr, Statfs,
    XATTR_SIZE_MAX,
};

use crate::attribute::{self, Attribute, BLOCK, State, UNKNOWN};
use crate::backing::own;
use crate::gate::Pass;
use crate::pinned::{File, Kind};
use crate::plain::{FOLDER, Plain, size_of};
use crate::spread::Spread;
use crate::store::in_time;

/// A stub has no more than its first block and what its attributes take, in units of 512 bytes:
/// who takes more is an ordinary file, and its attribute is not looked for. 256 KiB are four times
/// the largest block of a file system.
const STUB_BLOCKS_MAX: u64 = 512;

impl Plain {
    /// Puts what is true of a file in the place of what its stub says.
    pub(crate) async fn correct(&self, handle: &[u8], attr: &mut Attr) -> Result<(), Errno> {
        if handle == self.root.bytes() && attr.nlink > 2 {
            attr.nlink -= 1; // the folder that nobody sees
        }
        if !attr.is_regular() {
            return Ok(());
        }
        let spread = match self.table.known(handle) {
            Some(Kind::Spread(spread)) => spread,
            Some(Kind::Inline(_)) => return Ok(()),
            // A stub has a block at least, and hardly more.
            _ if attr.size < BLOCK || attr.blocks > STUB_BLOCKS_MAX => return Ok(()),
            _ => {
                let handle = aqueduct_fs::Handle::new(handle).ok_or(Errno::ESTALE)?;
                let Some(attribute) = self.attribute_of(&handle).await? else { return Ok(()) };
                let is_known = attribute.state == State::Spread && attribute.blocks != UNKNOWN;
                match (attribute.state, size_of(&attribute, attr.size)) {
                    (State::Making, _) => return Ok(()),
                    // Its stub may not be made yet, which takes room: nobody waits for that.
                    (State::Moved, _) => {
                        (attr.size, attr.blocks) = (attribute.size, attribute.size.div_ceil(512));
                        return Ok(());
                    }
                    (_, Some(size)) if is_known => {
                        (attr.size, attr.blocks) = (size, attr.blocks + attribute.blocks);
                        return Ok(());
                    }
                    _ => {}
                }
                return self.correct_used(&handle, attr).await;
            }
        };
        self.correct_by(&spread, attr).await
    }

    /// The same, of a file of which something has to be found out first.
    async fn correct_used(&self, handle: &aqueduct_fs::Handle, attr: &mut Attr) -> Result<(), Errno> {
        let file = self.table.pin(handle);
        let result = match self.known(&file).await {
            Ok(Kind::Spread(spread)) => self.correct_by(&spread, attr).await,
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        self.unpin(file).await;
        result
    }

    /// The same, of a file that is in use. While a server does not say what its object takes, that
    /// is told as if there were no holes: nobody waits for it to look at a file.
    pub(crate) async fn correct_by(&self, spread: &Spread, attr: &mut Attr) -> Result<(), Errno> {
        let (size, has_link, blocks) = {
            let now = spread.now();
            (now.size, now.has_link, now.blocks())
        };
        attr.size = size;
        attr.nlink = attr.nlink.saturating_sub(has_link.into());
        attr.blocks += match blocks {
            Some(blocks) => blocks,
            None if spread.is_silent() => size.div_ceil(512),
            None => {
                let asked = in_time(spread.blocks(), self.background.as_deref()).await;
                asked.and_then(Result::ok).unwrap_or(size.div_ceil(512))
            }
        };
        Ok(())
    }

    pub(crate) async fn correct_reply(&self, reply: &mut Reply, of: &[u8]) -> Result<(), Errno> {
        match reply {
            Reply::Attr(attr) => self.correct(of, attr).await,
            Reply::Entry(entry) | Reply::Created(entry, _) => {
                let handle = entry.handle.clone();
                self.correct(handle.bytes(), &mut entry.attr).await
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn set_attr(
        &self,
        context: &Context,
        handle: &[u8],
        (open, set): (Option<OpenId>, SetAttr),
    ) -> Result<Reply, Errno> {
        let pinned = self.table.pin(&aqueduct_fs::Handle::new(handle).ok_or(Errno::ESTALE)?);
        let result = match set.size {
            Some(size) => self.set_attr_of(context, &pinned, (open, set), size).await,
            None => self.set_attr_alone(context, &pinned, (open, set)).await,
        };
        self.unpin(pinned).await;
        result
    }

    /// Attributes that the tree has alone: no server of data is waited for.
    async fn set_attr_alone(
        &self,
        context: &Context,
        file: &File,
        (open, set): (Option<OpenId>, SetAttr),
    ) -> Result<Reply, Errno> {
        self.known(file).await?;
        let mut reply = self.tree.call(context, Request::SetAttr { handle: file.handle.bytes(), open, set }).await?;
        let Kind::Spread(spread) = file.kind() else { return Ok(reply) };
        if set.uid.is_some() || set.gid.is_some() {
            self.own_soon(file, &spread).await;
        }
        if let Reply::Attr(attr) = &mut reply {
            self.correct_by(&spread, attr).await?;
        }
        Ok(reply)
    }

    /// Objects belong to whom their file belongs, whose quotas count. Those of a server that does
    /// not answer soon do when the file is used no more.
    async fn own_soon(&self, file: &File, spread: &Spread) {
        if !matches!(in_time(self.own_objects(file, spread), self.background.as_deref()).await, Some(Ok(()))) {
            tracing::debug!("a server of data has not been told yet whose an object is");
        }
    }

    /// See [`own_soon`](Plain::own_soon). Who is done looks once more: another may have changed the
    /// owner meanwhile, and have been done before.
    pub(crate) async fn own_objects(&self, file: &File, spread: &Spread) -> Result<(), Errno> {
        let mut due = Due { spread, is_done: false };
        let mut owner = self.owner_of(&file.handle).await?;
        loop {
            spread.now().owner_is_due = false;
            for part in spread.made() {
                let object = spread.object(part).await?;
                spread.judge(part, object.own(owner).await)?;
            }
            let now = self.owner_of(&file.handle).await?;
            if now == owner {
                break;
            }
            owner = now;
        }
        due.is_done = true;
        Ok(())
    }

    async fn set_attr_of(
        &self,
        context: &Context,
        file: &File,
        (open, set): (Option<OpenId>, SetAttr),
        size: u64,
    ) -> Result<Reply, Errno> {
        let (pass, kind) = self.alone(file).await?;
        let handle = file.handle.bytes();
        let is_large = file.is_large.load(Ordering::Relaxed);
        let spread = match kind {
            Kind::Spread(spread) => spread,
            kind if self.outgrows(file, size, 0) && self.may_resize(context, file, open).await => {
                match self.grow_ordinary(file, kind, (size, 0)).await? {
                    Some(spread) => spread,
                    None => {
                        let _noting = file.changed.noting(0, u64::MAX);
                        return self.tree.call(context, Request::SetAttr { handle, open, set }).await;
                    }
                }
            }
            _ => {
                let stays_large = size > self.config.inline_max;
                let _noting = file.changed.noting(0, u64::MAX);
                let reply = self.tree.call(context, Request::SetAttr { handle, open, set }).await?;
                file.is_large.store(is_large && stays_large, Ordering::Relaxed);
                return Ok(reply);
            }
        };
        let mut reply = self.resize(context, (file, &spread, &pass), (open, set), size).await?;
        if set.uid.is_some() || set.gid.is_some() {
            self.own_soon(file, &spread).await;
        }
        if let Reply::Attr(attr) = &mut reply {
            self.correct_by(&spread, attr).await?;
        }
        Ok(reply)
    }

    /// Whether a caller may change the length of a file: what is refused promotes nothing.
    async fn may_resize(&self, context: &Context, file: &File, open: Option<OpenId>) -> bool {
        open.is_some() || self.may(context, &file.handle, AccessMask::WRITE).await.is_ok()
    }

    /// Gives a file another size, and other attributes in the same step. The stub's length is
    /// changed by the caller's own right, and makes the size so; then objects are cut. Where a
    /// store refuses that, the file has its size again, unless another object was cut already.
    pub(crate) async fn resize(
        &self,
        context: &Context,
        (file, spread, pass): (&File, &Spread, &Pass<'_>),
        (open, set): (Option<OpenId>, SetAttr),
        size: u64,
    ) -> Result<Reply, Errno> {
        if i64::try_from(size).is_err() {
            return Err(Errno::EINVAL);
        }
        let before = spread.now().size;
        let _noting = file.changed.noting(size.min(before), size.max(before));
        if size > before {
            self.cut((file, pass), spread).await?;
        }
        if size < before {
            self.find_objects(spread).await?;
            self.lower(file, spread, size).await?;
            self.unsettle(file, spread).await?;
        }
        // A stub that has one block already says its size by its attribute: last, as that makes it
        // so, and as it is not asked who may.
        let is_first = size <= BLOCK && before > BLOCK;
        if is_first {
            self.store_small(file, spread, size).await?;
        }
        let set = SetAttr { size: Some(size.max(BLOCK)), ..set };
        let request = Request::SetAttr { handle: file.handle.bytes(), open, set };
        let reply = self.tree.call(context, request).await?;
        if size <= BLOCK && !is_first {
            self.store_small(file, spread, size).await?;
        }
        {
            let mut now = spread.now();
            now.size = size;
            now.is_cut &= size >= before;
        }
        if size < before
            && let Err((error, has_cut)) = spread.cut_or_tell().await
        {
            if !has_cut {
                // No byte has gone: the file is what it was.
                self.set_size(file, spread, before).await?;
            }
            return Err(error);
        }
        Ok(reply)
    }

    /// Nothing of a file may go while an object of it is missing, or its store is not the one that
    /// it has to be: what there is can be read still. A server that is silent is not waited for.
    async fn find_objects(&self, spread: &Spread) -> Result<(), Errno> {
        for part in spread.made() {
            in_time(spread.object(part), self.background.as_deref()).await.transpose()?;
        }
        Ok(())
    }

    async fn store_small(&self, file: &File, spread: &Spread, size: u64) -> Result<(), Errno> {
        let attribute = Attribute { size, ..spread.now().attribute.clone() };
        self.store(&file.handle, &attribute, true).await?;
        // Not before: whatever is stored later would make a size so that was refused.
        spread.now().attribute.size = size;
        Ok(())
    }

    pub(crate) async fn fallocate(
        &self,
        context: &Context,
        (open, offset, length): (OpenId, u64, u64),
        flags: FallocateFlags,
    ) -> Result<Reply, Errno> {
        let below = Request::Fallocate { open, offset, length, flags };
        let Some(file) = self.table.open(context.client, open) else { return self.tree.call(context, below).await };
        let (pass, kind) = self.alone(&file).await?;
        let spread = match kind {
            Kind::Spread(spread) => spread,
            _ if flags.contains(FallocateFlags::PUNCH_HOLE) => {
                let _noting = file.changed.noting(0, u64::MAX);
                return self.tree.call(context, below).await;
            }
            kind => match self.grow_ordinary(&file, kind, (offset, length)).await? {
                Some(spread) => spread,
                None => {
                    let _noting = file.changed.noting(0, u64::MAX);
                    return self.tree.call(context, below).await;
                }
            },
        };
        let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if !known.contains(flags) {
            return Err(Errno::EOPNOTSUPP);
        }
        let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::EFBIG)?;
        // That the open may write, and that the times change, is the tree's business.
        let touch = Request::Fallocate { open, offset: 0, length: 1, flags: FallocateFlags::empty() };
        self.tree.call(context, touch).await?;
        let grows = end > spread.now().size && !flags.contains(FallocateFlags::KEEP_SIZE);
        if grows {
            self.cut((&file, &pass), &spread).await?;
        }
        self.unsettle(&file, &spread).await?;
        let _noting = file.changed.noting(offset, end);
        let done = self.allocate_all(context, (&file, &spread), (offset, end), flags).await;
        if let Err(error) = done {
            // What was allocated behind the end is nobody's.
            spread.now().is_cut = false;
            if !flags.contains(FallocateFlags::KEEP_SIZE) {
                let _ = spread.cut_all().await;
            }
            return Err(error);
        }
        if grows {
            self.grow(&file, &spread, end).await?;
            self.tree.call(context, Request::Sync { open, data_only: false }).await?;
        }
        Ok(Reply::Done)
    }

    async fn allocate_all(
        &self,
        context: &Context,
        (file, spread): (&File, &Spread),
        (offset, end): (u64, u64),
        flags: FallocateFlags,
    ) -> Result<(), Errno> {
        let is_hole = flags.contains(FallocateFlags::PUNCH_HOLE);
        for part in spread.parts() {
            let (from, to) = (spread.stripe.length_of(offset, part), spread.stripe.length_of(end, part));
            if from == to || (is_hole && !spread.is_made(part)) {
                continue;
            }
            let object = self.object_to_write(file, spread, part).await?;
            let flags = flags | FallocateFlags::KEEP_SIZE;
            spread.now().dirty |= 1 << part;
            let done = object.allocate(context, (from, to - from), flags).await;
            spread.judge(part, done)?;
        }
        Ok(())
    }

    /// The sum of a range, of an ordinary file that stays one meanwhile. EOPNOTSUPP: that of a
    /// range that spans servers is made of what is read.
    pub(crate) async fn checksum(&self, context: &Context, open: OpenId, request: Request<'_>) -> Result<Reply, Errno> {
        let Some(file) = self.table.open(context.client, open) else { return self.tree.call(context, request).await };
        let (_pass, kind) = self.shared(&file).await?;
        match kind {
            Kind::Spread(_) => Err(Errno::EOPNOTSUPP),
            _ => self.tree.call(context, request).await,
        }
    }

    /// Where data begin or end. Of a file in objects all is said to be data.
    pub(crate) async fn seek(
        &self,
        context: &Context,
        (open, offset, to): (OpenId, u64, SeekTo),
    ) -> Result<Reply, Errno> {
        let below = Request::Seek { open, offset, to };
        let Some(file) = self.table.open(context.client, open) else { return self.tree.call(context, below).await };
        let (_pass, kind) = self.shared(&file).await?;
        let Kind::Spread(spread) = kind else { return self.tree.call(context, below).await };
        let size = spread.now().size;
        match to {
            _ if offset >= size => Err(Errno::ENXIO),
            SeekTo::Data => Ok(Reply::Size(offset)),
            SeekTo::Hole => Ok(Reply::Size(size)),
        }
    }

    /// Copies between two ordinary files that stay so. EOPNOTSUPP: programs read and write then.
    pub(crate) async fn copy_range(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        let Request::CopyRange { from, to, to_offset, length, .. } = request else { return Err(Errno::EPROTO) };
        let files = (self.table.open(context.client, from), self.table.open(context.client, to));
        let (Some(from), Some(to)) = files else { return self.tree.call(context, request).await };
        // In an order that all keep, so that nobody waits for each other.
        let is_same = from.handle == to.handle;
        let (first, second) = if from.handle <= to.handle { (&from, &to) } else { (&to, &from) };
        let one = self.shared(first).await?;
        let other = if is_same { None } else { Some(self.shared(second).await?) };
        let is_spread = |kind: &Kind| matches!(kind, Kind::Spread(_));
        let spreads = is_spread(&one.1) || other.as_ref().is_some_and(|(_, kind)| is_spread(kind));
        if spreads || self.outgrows(&to, to_offset, length) {
            return Err(Errno::EOPNOTSUPP);
        }
        let _noting = to.changed.noting(to_offset, to_offset.saturating_add(length));
        self.tree.call(context, request).await
    }

    /// The space of all stores together, and the tree's inodes.
    pub(crate) async fn space(&self, context: &Context, handle: &[u8]) -> Result<Reply, Errno> {
        let mut all = self.tree.call(context, Request::Statfs { handle }).await?.statfs()?;
        for store in self.stores.iter().filter(|store| store.is_elsewhere() && store.is_reached()) {
            let Some(space) = store.known_space(self.background.as_deref()).await else { continue };
            add(&mut all, &space);
        }
        Ok(Reply::Statfs(all))
    }

    /// The names of extended attributes without ours.
    pub(crate) async fn list_xattr(&self, context: &Context, handle: &[u8], size: u32) -> Result<Reply, Errno> {
        let all = Request::ListXattr { handle, size: XATTR_SIZE_MAX as u32 };
        let names = self.tree.call(context, all).await?.bytes()?;
        names_without(attribute::NAME, &names, size)
    }

    /// A page of a listing, with what is true of files, and without what nobody sees.
    pub(crate) async fn list(
        &self,
        context: &Context,
        (open, mut cookie): (OpenId, u64),
        (size, plus): (u32, bool),
    ) -> Result<Reply, Errno> {
        loop {
            let request = Request::ReadDirectory { open, cookie, size, plus };
            let page = self.tree.call(context, request).await?.directory()?;
            let mut shown = DirPage::default();
            (shown.end, shown.exact) = (page.end, page.exact);
            let mut is_filtered = false;
            for mut entry in page.entries() {
                if entry.ino == self.folder_ino && entry.name == FOLDER.as_bytes() {
                    (is_filtered, cookie) = (true, entry.cookie);
                    continue;
                }
                if let Some((handle, attr)) = &mut entry.inode
                    && self.correct(handle, attr).await.is_err()
                {
                    entry.inode = None; // who asks for it hears why
                }
                shown.push(&entry);
            }
            if !is_filtered || shown.end || shown.entries().next().is_some() {
                return Ok(Reply::Directory(shown));
            }
        }
    }
}

/// Objects that are to have another owner, until all have.
struct Due<'a> {
    spread: &'a Spread,
    is_done: bool,
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.spread.now().owner_is_due = true;
        }
    }
}

/// Adds space, in blocks of the first.
fn add(all: &mut Statfs, more: &Statfs) {
    let (of_all, of_more) = (u64::from(all.fragment_size.max(1)), u64::from(more.fragment_size.max(1)));
    let blocks = |count: u64| (u128::from(count) * u128::from(of_more) / u128::from(of_all)) as u64;
    all.blocks = all.blocks.saturating_add(blocks(more.blocks));
    all.blocks_free = all.blocks_free.saturating_add(blocks(more.blocks_free));
    all.blocks_available = all.blocks_available.saturating_add(blocks(more.blocks_available));
}

/// Reads an attribute that nobody else asks for.
pub(crate) async fn nlink_of(plain: &Plain, file: &File) -> Result<u32, Errno> {
    let request = Request::GetAttr { handle: file.handle.bytes(), open: None };
    Ok(plain.tree.call(&own(), request).await?.attr()?.nlink)
}
