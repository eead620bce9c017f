//! Mends what a check finds, as far as nothing has to be guessed, while the volume is used.
//!
//! - **Each mend is one change that holds or does not**: an attribute is written, a name is moved.
//!   Whoever ends in the midst of it leaves what was there, or what is to be.
//! - **A file is mended while nobody else uses it**, and what was found is looked at again then. A
//!   file that is not free soon, or a server that does not answer, is left for another time.
//! - **Nothing is removed.** An object that no file names goes to a folder of what was lost, from
//!   where it comes back should a file want it. It has to be seen twice as it is: no stub of the
//!   whole tree names it, wherever stubs were moved meanwhile, and no file that is in use has it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use aqueduct_fs::{Attr, Errno, Handle};

use crate::attribute::{Attribute, BLOCK, State, UNKNOWN, object_name, stub_of};
use crate::check::{Flaw, Found, Orphan, What, unnamed};
use crate::copy::HELD_TIME;
use crate::holdings::{LOST, lost_id, parse};
use crate::job::Job;
use crate::moves::Watching;
use crate::pinned::{File, Kind};
use crate::placing::evacuated;
use crate::plain::{FOLDER, Plain, size_of};
use crate::store::{is_under_way, within};
use crate::stripe::ServerKey;
use crate::taken::Odd;
use crate::walk::{Walk, Wrong};

/// More orphans than these, and than half of all objects, are none: the tree is not the one that
/// names them.
const ORPHANS_MAX: usize = 8;

/// More than an epoch grows by moves: that of a layout whose own is not known any more.
const EPOCHS: u64 = 1 << 32;

/// How it is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repair {
    /// Nothing is done, and it is told what would be.
    pub dry_run: bool,
    /// Objects that no file names are taken for that, however many they are.
    pub accept_orphans: bool,
}

/// What became of something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// It would be mended.
    Would,
    /// It is mended.
    Done,
    /// It is not, and why.
    Left(String),
}

/// Something that was found, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// A path, an object or a server.
    pub at: String,
    /// What is wrong with it.
    pub found: String,
    /// What mends that.
    pub mend: String,
    /// Whether it was done.
    pub done: Done,
}

/// What mends a file, or why nothing does.
type Mended = Result<String, String>;

fn failed(error: Errno) -> String {
    match error {
        Errno::ENOENT | Errno::ESTALE => "it is gone by now".into(),
        error => format!("it could not be done: {error}"),
    }
}

fn not_seen(server: &str, error: String) -> Act {
    let (at, found) = (format!("server {server}"), "its store was not looked at".into());
    Act { at, found, mend: "start it, and run this again".into(), done: Done::Left(error) }
}

const UNKNOWN_LAYOUT: &str = "a file whose layout cannot be read may name it";

const NO_STUBS: &str = "no file of the tree names any object: see whether the tree is mounted, and the right one; if so, add --accept-orphans";

/// What is written down is all that tells of the loss: it stays.
const SHRUNK: &str = "see whether it is whole, and bring it back from a copy if not; once it is written to through a mount, what it takes then is written down";

const IN_ORDER: &str = "it is in order by now";

impl Plain {
    /// Mends what can be, and tells of all that was found. EAGAIN: clients of the server of the
    /// names that was before are still coming back. EBUSY: another repair runs, or directories are
    /// moved as fast as they are looked at. ECANCELED: the job is to end.
    pub async fn repair(&self, how: Repair, job: &Job, mut tell: impl FnMut(Act)) -> Result<(), Errno> {
        let watching = self.begin()?;
        let mut unseen = Vec::new();
        // Objects first: what is made later is named by a stub that is looked at later.
        let found = self.objects(&mut unseen).await;
        for (server, error) in unseen {
            tell(not_seen(&server, error));
        }
        let walk = self.survey(&watching, job).await?;
        for flaw in self.flaws(&walk, &found).await {
            if job.ends() {
                return Err(Errno::ECANCELED);
            }
            if self.waits_to_go(&flaw).await {
                continue;
            }
            let mended = self.mend(&flaw.handle, (&flaw.what, &found), how).await;
            let (mend, done) = match mended {
                Ok(mend) if how.dry_run => (mend, Done::Would),
                Ok(mend) => (mend, Done::Done),
                Err(why) if why == IN_ORDER => continue,
                Err(why) => (String::new(), Done::Left(why)),
            };
            tell(Act { at: flaw.path, found: flaw.what.text(), mend, done });
        }
        self.lose_orphans((&watching, &found, &walk), (how, job), &mut tell).await
    }

    fn begin(&self) -> Result<Watching<'_>, Errno> {
        // Without a background there are no clients.
        if self.background.is_some() && !self.is_swept.load(Ordering::SeqCst) {
            return Err(Errno::EAGAIN);
        }
        self.moves.watch().ok_or(Errno::EBUSY)
    }

    /// Whether a file has lost its last name, and clients may come back to it, as it was open.
    async fn waits_to_go(&self, flaw: &Flaw) -> bool {
        let is_here = flaw.path.strip_prefix('/').and_then(|path| path.strip_prefix(FOLDER)).is_some();
        is_here
            && !self.is_swept.load(Ordering::SeqCst)
            && self.attr_of(&flaw.handle).await.is_ok_and(|attr| attr.nlink == 1)
    }

    /// Takes what no file names from among the objects.
    async fn lose_orphans(
        &self,
        (watching, found, walk): (&Watching<'_>, &Found, &Walk),
        (how, job): (Repair, &Job),
        tell: &mut impl FnMut(Act),
    ) -> Result<(), Errno> {
        let mut seen: Vec<(Orphan, Attr)> = Vec::new();
        for orphan in unnamed(found, walk) {
            let attr = self.in_time(found[orphan.at].0.attr_in(orphan.folder, &orphan.name)).await;
            if let Ok(Some(attr)) = attr {
                seen.push((orphan, attr));
            }
        }
        if seen.is_empty() {
            return Ok(());
        }
        let again = self.survey(watching, job).await?;
        let still: HashSet<Orphan> = unnamed(found, &again).into_iter().collect();
        let used = self.table.ids();
        let is_used = |orphan: &Orphan| parse(&orphan.name).is_some_and(|(id, _)| used.contains(&id));
        let is_stray = |orphan: &Orphan| parse(&orphan.name).is_some_and(|(id, _)| walk.has(&id) || again.has(&id));
        let knows_all = walk.knows_all() && again.knows_all();
        let objects = found.iter().map(|(_, listing)| listing.count()).sum();
        let doubt = if how.accept_orphans { None } else { doubt(&again, still.len(), objects) };
        for (orphan, before) in seen.into_iter().filter(|(orphan, _)| still.contains(orphan) && !is_used(orphan)) {
            if job.ends() {
                return Err(Errno::ECANCELED);
            }
            let store = &found[orphan.at].0;
            let done = match self.in_time(store.attr_in(orphan.folder, &orphan.name)).await {
                Ok(None) => continue,
                Ok(Some(_)) if !knows_all => Done::Left(UNKNOWN_LAYOUT.into()),
                Ok(Some(_)) if doubt.is_some() => Done::Left(doubt.unwrap_or_default().to_owned()),
                Ok(Some(now)) if !is_same(&before, &now) => Done::Left("it was changed meanwhile".into()),
                Ok(Some(_)) if how.dry_run => Done::Would,
                Ok(Some(_)) => match self.in_time(store.lose(orphan.folder, &orphan.name, is_stray(&orphan))).await {
                    Ok(true) => Done::Done,
                    Ok(false) => continue,
                    Err(error) => Done::Left(failed(error)),
                },
                Err(error) => Done::Left(failed(error)),
            };
            tell(Act {
                at: format!("object {} on server {}", orphan.name, store.id()),
                found: format!("no file names it ({} bytes)", before.size),
                mend: format!("it goes to the folder {} of its store", LOST),
                done,
            });
        }
        Ok(())
    }

    /// Removes for good what was taken from among the objects, unless a file names it all the same.
    /// It fails as a repair does.
    pub async fn purge(&self, how: Repair, job: &Job, mut tell: impl FnMut(Act)) -> Result<(), Errno> {
        let watching = self.begin()?;
        // What was about to be moved when the watching began may be missing once: nothing that one
        // of two looks has seen is removed.
        let walks = [self.survey(&watching, job).await?, self.survey(&watching, job).await?];
        let has_none = walks.iter().any(|walk| walk.stubs.is_empty());
        let (used, none) = (self.table.ids(), Some(NO_STUBS).filter(|_| has_none && !how.accept_orphans));
        let is_named = |id: [u8; 16]| walks.iter().any(|walk| walk.has(&id)) || used.contains(&id);
        for store in &self.stores {
            let all = if store.is_reached() { self.in_time(store.all_lost()).await } else { Err(Errno::EHOSTUNREACH) };
            let all = match all {
                Ok(all) => all,
                Err(error) => {
                    tell(not_seen(store.id(), error.to_string()));
                    continue;
                }
            };
            for name in all {
                if job.ends() {
                    return Err(Errno::ECANCELED);
                }
                let done = match () {
                    () if !walks.iter().all(Walk::knows_all) => Done::Left(UNKNOWN_LAYOUT.into()),
                    () if lost_id(&name).is_some_and(is_named) => {
                        Done::Left("a file has this id: a repair brings it back if that lacks it".into())
                    }
                    () if none.is_some() => Done::Left(none.unwrap_or_default().into()),
                    () if how.dry_run => Done::Would,
                    () => store.purge(&name).await.map_or_else(|error| Done::Left(failed(error)), |()| Done::Done),
                };
                let (at, found) = (format!("object {name} on server {}", store.id()), "no file names it".into());
                let found =
                    if matches!(done, Done::Left(_)) { "it was taken from among the objects".into() } else { found };
                tell(Act { at, found, mend: "it is removed for good".into(), done });
            }
        }
        Ok(())
    }

    /// Mends a file, while nobody else uses it.
    async fn mend(&self, handle: &Handle, (what, found): (&What, &Found), how: Repair) -> Mended {
        let left = |text: &str| Err(text.to_owned());
        match what {
            What::Wrong(Wrong::Copy) => return left("copy the file itself through a mount, and remove this one"),
            What::Wrong(Wrong::Unknown) => return left("bring the file back from a copy, or remove it"),
            What::Wrong(Wrong::Unread(_)) => {
                return left("look again; if it stays so, see the log of the server of the names");
            }
            What::Gone { .. } => {
                return left("have the server back in the volume's file, or bring the file back from a copy");
            }
            What::Shrunk { .. } | What::Older { .. } => return left(SHRUNK),
            What::Cut { .. } => {
                return left(
                    "what it has lost cannot be made again, and gives EIO: bring it back from a copy, or cut the file there",
                );
            }
            // Nobody knows that the stub is right, and they harm nobody.
            What::Longer(_) => {
                return left(
                    "nobody reads them, and they are cut before the file grows; if its end is right, they may stay",
                );
            }
            _ => {}
        }
        let file = self.table.pin(handle);
        let mending = async {
            let _pass = file.gate.alone().await;
            match what {
                What::Wrong(Wrong::Short) => self.lengthen(&file, how).await,
                What::Wrong(_) => self.remake(&file, found, how).await,
                What::Missing { .. } => self.regain(&file, how).await,
                What::Empty => self.replace(&file, how).await,
                What::Counted { .. } => self.recount(&file, how).await,
                _ => self.note_sizes(&file, how).await,
            }
        };
        let mended = within(HELD_TIME, mending, self.background.as_deref()).await;
        self.unpin(file).await;
        mended.unwrap_or_else(|| left("it is in use, or one of its servers does not answer: run this again"))
    }

    /// Writes the attribute of a stub that has lost it.
    async fn remake(&self, file: &File, found: &Found, how: Repair) -> Mended {
        match self.attribute_of(&file.handle).await {
            Ok(None) => {}
            Ok(Some(_)) => return Err(IN_ORDER.into()),
            Err(error) => return Err(failed(error)),
        }
        let (attribute, text) = match file.kind() {
            // It is in use, and what is known of it is right.
            Kind::Spread(spread) => (spread.now().attribute.clone(), "as the server of the names has it".to_owned()),
            _ => {
                let first = self.first_block(&file.handle).await.map_err(failed)?;
                let first = first.filter(|first| first.stub == stub_of(file.handle.bytes())).ok_or(IN_ORDER)?;
                let attr = self.attr_of(&file.handle).await.map_err(failed)?;
                let attribute = self.gather(first, attr.size, found).await?;
                let size = if attribute.size == UNKNOWN { attr.size } else { attribute.size };
                (attribute, format!("by its first block and where its objects are; it has {size} bytes"))
            }
        };
        if !how.dry_run {
            let _names = file.names.alone().await;
            self.store(&file.handle, &attribute, true).await.map_err(failed)?;
            if !matches!(file.kind(), Kind::Spread(_)) {
                file.becomes(Kind::Unknown);
            }
        }
        Ok(format!("its attribute is written anew, {text}"))
    }

    /// The layout of a stub, by what it was at the promotion and where its objects are.
    async fn gather(&self, first: Attribute, length: u64, found: &Found) -> Result<Attribute, String> {
        if found.len() < self.stores.len() {
            return Err("not all servers have answered: start them, and run this again".into());
        }
        let (other, were) = (Vec::new(), Vec::new());
        let mut attribute = Attribute { state: State::Spread, made: 0, blocks: UNKNOWN, other, were, ..first };
        attribute.epoch = attribute.epoch.saturating_add(EPOCHS);
        for part in 0..attribute.servers.len() {
            let mut holders = Vec::new();
            for store in &self.stores {
                if let Some(attr) = store.attr(&attribute.id, part).await.map_err(failed)? {
                    holders.push((store, is_under_way(&attr)));
                }
            }
            let name = object_name(&attribute.id, part).1;
            match holders[..] {
                [(_, true)] => return Err(format!("object {name} may be half of a copy: nobody can tell")),
                [(store, false)] => {
                    attribute.servers[part] = store.key();
                    attribute.made |= 1 << part;
                }
                [] if first.made & (1 << part) != 0 => return Err(format!("object {name} is missing")),
                [] if attribute.stripe().length_of(length, part) > 0 => {
                    return Err(format!("object {name} is missing, or never was: nobody can tell"));
                }
                [] => {}
                _ => return Err(format!("object {name} is on two servers: nobody can tell which is the file's")),
            }
        }
        let all = self.stores.iter().map(|store| store.key()).collect();
        attribute.servers = evacuated(&attribute, all).ok_or("the volume has no server of data")?;
        attribute.size = if length > BLOCK { UNKNOWN } else { self.extent(&attribute).await?.min(BLOCK) };
        Ok(attribute)
    }

    /// Behind which byte of a file its objects have nothing.
    async fn extent(&self, attribute: &Attribute) -> Result<u64, String> {
        let stripe = attribute.stripe();
        let mut extent = 0;
        for (part, server) in attribute.servers.iter().enumerate() {
            if attribute.made & (1 << part) == 0 {
                continue;
            }
            let store = self.stores.iter().find(|store| store.key() == *server);
            let store = store.ok_or("an object is on a server that the volume has not")?;
            let attr = store.attr(&attribute.id, part).await.map_err(failed)?;
            let attr = attr.ok_or_else(|| format!("object {} is missing", object_name(&attribute.id, part).1))?;
            let Some(last) = attr.size.checked_sub(1) else { continue };
            let block = (last / stripe.block).saturating_mul(stripe.width).saturating_add(part as u64);
            extent = extent.max(block.saturating_mul(stripe.block).saturating_add(last % stripe.block + 1));
        }
        if i64::try_from(extent).is_ok() { Ok(extent) } else { Err("its objects are longer than any file".into()) }
    }

    /// Gives a stub its length back.
    async fn lengthen(&self, file: &File, how: Repair) -> Mended {
        let length = self.attr_of(&file.handle).await.map_err(failed)?.size;
        let attribute = match self.attribute_of(&file.handle).await.map_err(failed)? {
            Some(attribute) if attribute.state == State::Spread && length < BLOCK => attribute,
            _ => return Err(IN_ORDER.into()),
        };
        let (attribute, size, text) = match file.kind() {
            Kind::Spread(spread) => {
                let now = spread.now();
                (now.attribute.clone(), now.size, "which the server of the names knows")
            }
            _ => {
                let extent = self.extent(&attribute).await?;
                // One that was so short may have ended in a hole.
                let size =
                    if attribute.size == UNKNOWN || extent > BLOCK { extent } else { attribute.size.max(extent) };
                (attribute, size, "as its objects are so long: see whether its end is right")
            }
        };
        if !how.dry_run {
            let _names = file.names.alone().await;
            let attribute = Attribute { size: if size <= BLOCK { size } else { UNKNOWN }, ..attribute };
            // First what counts for a stub of one block.
            self.store(&file.handle, &attribute, true).await.map_err(failed)?;
            self.set_length(&file.handle, size.max(BLOCK)).await.map_err(failed)?;
            self.write_first_block(&file.handle, &attribute).await.map_err(failed)?;
            match file.kind() {
                Kind::Spread(spread) => spread.now().attribute = attribute,
                _ => file.becomes(Kind::Unknown),
            }
        }
        Ok(format!("it has {size} bytes again, {text}"))
    }

    /// Brings back objects that were lost, and that a file names all the same.
    async fn regain(&self, file: &File, how: Repair) -> Mended {
        let attribute = self.attribute_of(&file.handle).await.map_err(failed)?.ok_or(IN_ORDER)?;
        let length = self.attr_of(&file.handle).await.map_err(failed)?.size;
        let size = size_of(&attribute, length).ok_or(IN_ORDER)?;
        let mut back = Vec::new();
        for (part, server) in attribute.servers.iter().enumerate() {
            let store = self.stores.iter().find(|store| store.key() == *server);
            let Some(store) = store.filter(|_| attribute.made & (1 << part) != 0) else { continue };
            if store.has(&attribute.id, part).await.map_err(failed)? {
                continue;
            }
            let Some(length) = store.has_lost(&attribute.id, part).await.map_err(failed)? else {
                return Err("it cannot be made again: remove the file, and bring it back from a copy".into());
            };
            // It may be what was left of another day, as half of a copy.
            let wanted = attribute.stripe().length_of(size, part);
            if length != wanted {
                let (name, id) = (object_name(&attribute.id, part).1, store.id());
                return Err(format!(
                    "the object {name} in {LOST} on server {id} has {length} bytes, and the file's has to have {wanted}: \
                     if it is the right one, move it back by hand"
                ));
            }
            back.push((store, part));
        }
        if back.is_empty() {
            return Err(IN_ORDER.into());
        }
        for (store, part) in back.iter().filter(|_| !how.dry_run) {
            store.regain(&attribute.id, *part).await.map_err(failed)?;
        }
        Ok(format!("{} of its objects come back from the folder {}", back.len(), LOST))
    }

    /// Has another server in the place of one that the volume has no more, and that has nothing of
    /// the file.
    async fn replace(&self, file: &File, how: Repair) -> Mended {
        let _names = file.names.alone().await;
        let attribute = self.attribute_of(&file.handle).await.map_err(failed)?.ok_or(IN_ORDER)?;
        let all: Vec<_> = self.stores.iter().map(|store| store.key()).collect();
        let lies = |(part, server): (usize, &ServerKey)| attribute.made & (1 << part) != 0 && !all.contains(server);
        if attribute.servers.iter().enumerate().any(lies) {
            return Err("a part of it lies there".into());
        }
        let servers = evacuated(&attribute, all).ok_or("the volume has no server of data")?;
        if servers == attribute.servers {
            return Err(IN_ORDER.into());
        }
        if !how.dry_run {
            let attribute = Attribute { servers, epoch: attribute.epoch + 1, ..attribute };
            self.store(&file.handle, &attribute, true).await.map_err(failed)?;
            file.becomes(Kind::Unknown);
        }
        Ok("its layout names another server".into())
    }

    /// Has objects count for whom and for what their file does.
    async fn recount(&self, file: &File, how: Repair) -> Mended {
        let Kind::Spread(spread) = self.known(file).await.map_err(failed)? else { return Err(IN_ORDER.into()) };
        if !how.dry_run {
            self.own_objects(file, &spread).await.map_err(failed)?;
            let attribute = spread.now().attribute.clone();
            if self.stores_of(&attribute).map_err(failed)?.iter().any(|store| store.keeps_no_projects()) {
                return Err("the file system of a store keeps no projects".into());
            }
        }
        Ok("they count for it".into())
    }

    /// Writes down what the objects take.
    async fn note_sizes(&self, file: &File, how: Repair) -> Mended {
        let Kind::Spread(spread) = self.known(file).await.map_err(failed)? else { return Err(IN_ORDER.into()) };
        let (attribute, size) = {
            let now = spread.now();
            (now.attribute.clone(), now.size)
        };
        if attribute.blocks == UNKNOWN {
            return Err(IN_ORDER.into());
        }
        let taken = spread.taken(size).await.map_err(failed)?;
        match taken.judge(attribute.blocks) {
            Some(Odd::Shrunk) => return Err(SHRUNK.into()),
            Some(Odd::Blocks) => {}
            _ => return Err(IN_ORDER.into()),
        }
        if !how.dry_run {
            let attribute = Attribute { blocks: taken.blocks(), ..attribute };
            self.store(&file.handle, &attribute, false).await.map_err(failed)?;
            spread.now().attribute = attribute;
        }
        Ok("what its objects take is written down".into())
    }
}

/// Why what no file names may be somebody's all the same: as when the tree is not mounted.
fn doubt(walk: &Walk, orphans: usize, objects: u64) -> Option<&'static str> {
    if walk.stubs.is_empty() {
        return Some(NO_STUBS);
    }
    (orphans > ORPHANS_MAX && orphans as u64 > objects / 2).then_some(
        "that holds for most objects: see whether the tree is the right one, with all that is mounted in it; if so, add --accept-orphans",
    )
}

/// Whether nobody has used an object between two looks at it.
fn is_same(before: &Attr, now: &Attr) -> bool {
    let of = |attr: &Attr| (attr.ino, attr.size, attr.mtime, attr.ctime);
    of(before) == of(now)
}
