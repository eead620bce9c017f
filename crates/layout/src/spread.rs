//! A file whose bytes lie in objects: what is known of it while it is used.

use std::sync::{Arc, Mutex, MutexGuard};

use aqueduct_fs::{Attr, Errno, SetAttr, Sink};

use crate::attribute::{Attribute, UNKNOWN, Was};
use crate::gate::Gate;
use crate::store::{Making, Object, Owner, Store};
use crate::stripe::{Piece, ServerKey, Stripe};
use crate::taken::Taken;

/// See the module.
pub(crate) struct Spread {
    pub(crate) stripe: Stripe,
    pub(crate) id: [u8; 16],
    stores: Vec<Arc<Store>>,
    /// Objects that are open, by their parts.
    objects: Vec<Mutex<Option<Arc<Object>>>>,
    /// Of each object: what is sent to it, and may have to be sent again, and what was brought to
    /// its server and is stable, are not written at the same time, so that no copy of the former is
    /// ever written over the latter.
    writing: Vec<Gate>,
    /// Objects on which something failed, until nobody uses them any more and they are closed.
    failed: Mutex<Vec<Arc<Object>>>,
    state: Mutex<Now>,
    /// Who changes what is stored has it alone.
    making: Gate,
    /// And who makes what was written stable.
    syncing: Gate,
}

/// Objects that are to be made stable: what has not been is written down again when it is dropped.
struct Unsynced<'a> {
    spread: &'a Spread,
    parts: u64,
}

impl Drop for Unsynced<'_> {
    fn drop(&mut self) {
        self.spread.now().dirty |= self.parts;
    }
}

/// What changes.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    /// As it is stored.
    pub(crate) attribute: Attribute,
    pub(crate) size: u64,
    /// How many bytes each object has to have at least, as was written down or written since.
    least: Vec<u64>,
    /// How many it had when that was seen last, where those were less: the rest is lost.
    short: Vec<Option<u64>>,
    /// How often an object was about to be cut.
    cuts: u64,
    /// No object has anything behind the size.
    pub(crate) is_cut: bool,
    /// Which objects have been written to since they were made stable.
    pub(crate) dirty: u64,
    /// Not all objects belong to whom the file belongs.
    pub(crate) owner_is_due: bool,
    /// There is a link in the folder of those that are to go.
    pub(crate) has_link: bool,
    /// Something was not made stable, which its kernel says once: everybody is told from now on.
    pub(crate) has_failed: bool,
    /// Its objects have moved: whoever still has this reads nothing of them any more.
    pub(crate) is_left: bool,
}

impl Spread {
    pub(crate) fn new(attribute: Attribute, size: u64, stores: Vec<Arc<Store>>) -> Spread {
        let (stripe, id) = (attribute.stripe(), attribute.id);
        let objects = stores.iter().map(|_| Mutex::default()).collect();
        let writing = stores.iter().map(|_| Gate::default()).collect();
        // What the process before has written may not be stable yet.
        let (dirty, cuts) = (attribute.made, 0);
        let least = (0..stores.len()).map(|part| attribute.least(part, size)).collect();
        let short = vec![None; stores.len()];
        let (is_cut, owner_is_due, has_link, has_failed, is_left) = (false, false, false, false, false);
        let state =
            Now { attribute, size, least, short, cuts, is_cut, dirty, owner_is_due, has_link, has_failed, is_left };
        let state = Mutex::new(state);
        let (failed, making, syncing) = (Mutex::default(), Gate::default(), Gate::default());
        Spread { stripe, id, stores, objects, writing, failed, state, making, syncing }
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, Now> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Those who share the file change what is stored of it one after the other.
    pub(crate) fn making(&self) -> &Gate {
        &self.making
    }

    pub(crate) fn parts(&self) -> std::ops::Range<usize> {
        0..self.stores.len()
    }

    /// See `writing`.
    pub(crate) fn writing(&self, part: usize) -> &Gate {
        &self.writing[part]
    }

    /// Where an object lies.
    pub(crate) fn server(&self, part: usize) -> ServerKey {
        self.stores[part].key()
    }

    fn place(&self, part: usize) -> MutexGuard<'_, Option<Arc<Object>>> {
        self.objects[part].lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub(crate) fn is_made(&self, part: usize) -> bool {
        self.now().attribute.made & (1 << part) != 0
    }

    /// An object that the attribute names. EIO: the store has it not.
    pub(crate) async fn object(&self, part: usize) -> Result<Arc<Object>, Errno> {
        if let Some(open) = self.place(part).clone() {
            return Ok(open);
        }
        if self.now().is_left {
            return Err(Errno::EIO);
        }
        self.close_failed().await;
        let before = self.had(part);
        match self.stores[part].object((&self.id, part), None).await? {
            Some(object) => {
                self.compare(part, object.length, before);
                Ok(self.keep(part, object).await)
            }
            None => {
                self.stores[part].lacks(&self.id, part);
                Err(Errno::EIO)
            }
        }
    }

    /// How many bytes an object has to have at least.
    pub(crate) fn least(&self, part: usize) -> u64 {
        self.now().least[part]
    }

    /// The same, and how often one was about to be cut. Others write there while somebody looks,
    /// and cut it while it is copied.
    fn had(&self, part: usize) -> (u64, u64) {
        let now = self.now();
        (now.least[part], now.cuts)
    }

    /// An object was opened, and has so many bytes.
    fn compare(&self, part: usize, length: u64, (least, cuts): (u64, u64)) {
        let is_short = length < least && cuts == self.now().cuts;
        self.now().short[part] = is_short.then_some(length);
        if is_short {
            self.stores[part].lacks_end((&self.id, part), (length, least));
        }
    }

    /// Whether a write may begin there. EIO: what an object has lost before that would be taken for
    /// a hole from then on.
    pub(crate) async fn may_write(&self, part: usize, at: u64) -> Result<(), Errno> {
        let lacks = || self.now().short[part].is_some_and(|length| at > length);
        if lacks() {
            // Its server may have got back what it did not have when it was opened.
            let before = self.had(part);
            let object = self.object(part).await?;
            self.compare(part, self.judge(part, object.attr().await)?.size, before);
        }
        if lacks() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// An object was written to up to there.
    pub(crate) fn has_written(&self, part: usize, end: u64) {
        let mut now = self.now();
        let least = now.least[part].max(end);
        now.least[part] = least;
        now.short[part] = now.short[part].map(|length| length.max(end)).filter(|length| *length < least);
    }

    /// Reads a piece of the file from its object, and says how much of it that has. EIO: it had
    /// more once.
    pub(crate) async fn read(&self, piece: Piece, sink: Box<dyn Sink>) -> Result<usize, Errno> {
        let object = self.object(piece.part).await?;
        let (least, cuts) = self.had(piece.part);
        let count = self.judge(piece.part, object.read(piece.at, piece.length as usize, sink).await)?;
        let end = piece.at + count as u64;
        if end < least.min(piece.at + piece.length) && cuts == self.now().cuts {
            self.stores[piece.part].lacks_end((&self.id, piece.part), (end, least));
            // Whoever writes next asks how long it is.
            self.now().short[piece.part] = Some(0);
            return Err(Errno::EIO);
        }
        Ok(count)
    }

    /// A new object, empty.
    pub(crate) async fn make(&self, part: usize, owner: Owner) -> Result<Arc<Object>, Errno> {
        let object = self.stores[part].object((&self.id, part), Some(Making::Any(owner))).await?.ok_or(Errno::EIO)?;
        Ok(self.keep(part, object).await)
    }

    /// A new object that nobody reads by a token before it has all that is copied into it: see
    /// [`free`](Spread::free). One that was left of another copy goes.
    pub(crate) async fn make_hidden(&self, part: usize, owner: Owner) -> Result<Arc<Object>, Errno> {
        let store = &self.stores[part];
        let object = store.object((&self.id, part), Some(Making::UnderWay(owner))).await?.ok_or(Errno::EIO)?;
        Ok(self.keep(part, object).await)
    }

    /// An object has all that it has to have: who has a token for it may read it.
    pub(crate) async fn free(&self, part: usize) -> Result<(), Errno> {
        let object = self.object(part).await?;
        self.judge(part, object.free().await)
    }

    /// Of two that were opened at once, the first stays.
    async fn keep(&self, part: usize, object: Object) -> Arc<Object> {
        let object = Arc::new(object);
        let kept = self.place(part).get_or_insert_with(|| object.clone()).clone();
        if !Arc::ptr_eq(&kept, &object) {
            object.close().await;
        }
        kept
    }

    /// What an operation on an object came to: one that failed is opened anew the next time, and
    /// what its server says of the handle or the open is nobody else's business.
    pub(crate) fn judge<T>(&self, part: usize, result: Result<T, Errno>) -> Result<T, Errno> {
        let told = match result {
            Err(Errno::EIO | Errno::EBADF | Errno::ESTALE | Errno::EREMOTE) => Errno::EIO,
            Err(Errno::EROFS) => Errno::EROFS,
            result => return result,
        };
        let failed = self.place(part).take();
        self.failed().extend(failed);
        Err(told)
    }

    fn failed(&self) -> MutexGuard<'_, Vec<Arc<Object>>> {
        self.failed.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Closes objects on which something failed and that nobody uses any more.
    async fn close_failed(&self) {
        let unused = self.failed().extract_if(.., |object| Arc::strong_count(object) == 1).collect::<Vec<_>>();
        for object in unused {
            object.close().await;
        }
    }

    /// The objects that there are.
    pub(crate) fn made(&self) -> impl Iterator<Item = usize> {
        let made = self.now().attribute.made;
        self.parts().filter(move |part| made & (1 << part) != 0)
    }

    /// An object is about to have no more than so much, as somebody wants it. Returns what it had
    /// at least.
    fn lower(&self, part: usize, length: u64) -> u64 {
        let mut now = self.now();
        let before = now.least[part];
        let least = before.min(length);
        now.least[part] = least;
        now.short[part] = now.short[part].filter(|length| *length < least);
        now.cuts += 1;
        before
    }

    /// Cuts all objects to the size. Nobody else may use the file meanwhile.
    pub(crate) async fn cut(&self) -> Result<(), Errno> {
        self.cut_or_tell().await.map_err(|(error, _)| error)
    }

    /// The same. Where it fails, it says too whether something may have been cut.
    pub(crate) async fn cut_or_tell(&self) -> Result<(), (Errno, bool)> {
        let (size, mut has_cut) = (self.now().size, false);
        for part in self.made() {
            let length = self.stripe.length_of(size, part);
            let untouched = |error| (error, has_cut);
            let object = self.object(part).await.map_err(untouched)?;
            let attr = self.judge(part, object.attr().await).map_err(untouched)?;
            let before = self.lower(part, length);
            if attr.size > length {
                let set = SetAttr { size: Some(length), ..SetAttr::default() };
                // EIO does not say what was done.
                let told = |error| (error, has_cut || error == Errno::EIO);
                let cut = self.judge(part, object.set(set).await).map_err(told);
                if cut.is_err_and(|(error, _)| error != Errno::EIO) {
                    self.now().least[part] = before;
                }
                cut?;
                has_cut = true;
            }
        }
        self.now().is_cut = true;
        Ok(())
    }

    /// The same, and what is allocated behind their ends goes, too.
    pub(crate) async fn cut_all(&self) -> Result<(), Errno> {
        let size = self.now().size;
        for part in self.made() {
            let object = self.object(part).await?;
            // One that is shorter stays so: nobody knows whether that is a hole.
            let length = self.stripe.length_of(size, part);
            self.lower(part, length);
            let length = self.judge(part, object.attr().await)?.size.min(length);
            let set = SetAttr { size: Some(length), ..SetAttr::default() };
            self.judge(part, object.set(set).await)?;
        }
        self.now().is_cut = true;
        Ok(())
    }

    /// What all objects are now, if the file is so long.
    pub(crate) async fn taken(&self, size: u64) -> Result<Taken, Errno> {
        let mut taken = Taken::default();
        for part in self.made() {
            let asked = self.stores[part].asked();
            let attr = match self.object(part).await {
                Ok(object) => self.judge(part, object.attr().await),
                Err(error) => Err(error),
            };
            asked.answered();
            taken.add(&attr?, self.stripe.length_of(size, part));
        }
        Ok(taken)
    }

    /// Whether one of their servers was waited for in vain lately.
    pub(crate) fn is_silent(&self) -> bool {
        self.made().any(|part| self.stores[part].is_silent())
    }

    /// What they take now, in units of 512 bytes.
    pub(crate) async fn blocks(&self) -> Result<u64, Errno> {
        let size = self.now().size;
        Ok(self.taken(size).await?.blocks())
    }

    /// What is to be written down of the objects when the file is used no more.
    pub(crate) async fn settled(&self) -> Result<Attribute, Errno> {
        let (size, mut blocks) = (self.now().size, 0);
        let mut were = vec![Was::default(); self.stores.len()];
        for part in self.made() {
            let object = self.object(part).await?;
            let attr = self.judge(part, object.attr().await)?;
            blocks += attr.blocks;
            let length = attr.size.min(self.stripe.length_of(size, part));
            // What it has lost is not forgotten.
            let length = length.max(self.least(part));
            were[part] = Was { length, changed: seconds_of(&attr) };
        }
        Ok(Attribute { blocks, were, ..self.now().attribute.clone() })
    }

    /// That was written down. Who comes to the file before it is forgotten goes on with it.
    pub(crate) fn settles(&self, attribute: Attribute) {
        let mut now = self.now();
        let size = now.size;
        for (part, least) in now.least.iter_mut().enumerate() {
            *least = attribute.least(part, size).max(*least);
        }
        now.attribute = attribute;
    }

    /// What is to be written down of the objects when they have moved: what they had at least, so
    /// that it is not forgotten.
    pub(crate) fn had_all(&self) -> Vec<Was> {
        let now = self.now();
        let had = |(part, least): (usize, &u64)| {
            let length = self.stripe.length_of(now.size, part);
            Was { length: length.min(*least), changed: 0 }
        };
        now.least.iter().enumerate().map(had).collect()
    }

    /// Makes stable what was written to objects.
    pub(crate) async fn sync(&self) -> Result<(), Errno> {
        // Who comes while others do so waits for them: what it asks for may be on its way.
        let _alone = self.syncing.alone().await;
        if self.now().has_failed {
            return Err(Errno::EIO);
        }
        let parts = std::mem::take(&mut self.now().dirty);
        let mut left = Unsynced { spread: self, parts };
        for part in self.parts().filter(|part| parts & (1 << part) != 0) {
            let synced = match self.object(part).await {
                Ok(object) => self.judge(part, object.sync().await),
                Err(error) => Err(error),
            };
            if let Err(error) = synced {
                self.now().has_failed = true;
                return Err(error);
            }
            left.parts &= !(1 << part);
        }
        Ok(())
    }

    /// Closes the objects.
    pub(crate) async fn close(&self) {
        for part in self.parts() {
            let open = self.place(part).take();
            if let Some(object) = open {
                object.close().await;
            }
        }
        let failed = std::mem::take(&mut *self.failed());
        for object in failed {
            object.close().await;
        }
    }
}

/// When the bytes of an object were changed last, as it is written down.
pub(crate) fn seconds_of(attr: &Attr) -> u64 {
    attr.mtime.seconds.try_into().unwrap_or(0)
}

impl Now {
    /// What the stub's blocks and the objects' come to; `None`: the objects have to be asked.
    pub(crate) fn blocks(&self) -> Option<u64> {
        (self.attribute.blocks != UNKNOWN).then_some(self.attribute.blocks)
    }
}
