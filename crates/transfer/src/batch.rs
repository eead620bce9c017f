//! Small files that go to a server many at a time: one question for a batch, where each by itself
//! takes six.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_fs::Errno;
use aqueduct_fs::put::{PUT_FILES_MAX, PUT_LENGTH_MAX, PUT_OVERHEAD, PutFile};

use crate::attributes;
use crate::done::{Copied, copied};
use crate::flush::{Flush, sync_names};
use crate::folded;
use crate::hash::Hash;
use crate::job::{Batch, Done, Failed, Item, Job, Packed, Worker};
use crate::ledger::Stage;
use crate::options::Verify;
use crate::outcome::{Fault, Trying, add};
use crate::side::{File, Seen};

/// Larger files go by themselves: of these a batch has at least four.
const DATA_MAX: u64 = PUT_LENGTH_MAX as u64 / 4 - 1024;

impl Packed {
    fn file(&self) -> PutFile<'_> {
        let attr = &self.seen.attr;
        PutFile {
            name: self.item.target_name(),
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode & 0o7777,
            atime: attr.atime,
            mtime: attr.mtime,
            data: &self.data,
        }
    }

    /// It is copied as larger ones are.
    fn by_itself(self) -> Item {
        Item { by_itself: true, ..self.item }
    }
}

fn has_room(batch: &Batch, item: &Item, size: u64) -> bool {
    let bytes = batch.bytes + PUT_OVERHEAD + item.target_name().len() + size as usize;
    let is_of_directory = batch.files.first().is_none_or(|first| Arc::ptr_eq(&first.item.dir, &item.dir));
    is_of_directory && bytes <= PUT_LENGTH_MAX && batch.files.len() < PUT_FILES_MAX
}

/// Whether a file goes with others. What nobody has to see again, under a name that is free.
pub fn takes(job: &Job, item: &Item, seen: &Seen, present: Option<&Seen>) -> bool {
    job.puts.load(Ordering::Relaxed)
        && !item.by_itself
        && present.is_none()
        && !item.dir.bequeaths
        && seen.attr.size <= DATA_MAX
        && job.options.verify != Verify::Stable
}

/// Reads a file into the batch. `Some`: it has more than a batch carries, and goes by itself.
pub fn join(job: &Job, worker: &mut Worker, item: Item, source: &dyn File, seen: Seen) -> Done<Option<Item>> {
    if !has_room(&worker.batch, &item, seen.attr.size) {
        put(job, worker);
    }
    match read(job, &item, source, &seen) {
        Ok(Some((data, hash))) => {
            worker.batch.bytes += PUT_OVERHEAD + item.target_name().len() + data.len();
            worker.batch.files.push(Packed { item, seen, hash, data });
            Ok(None)
        }
        Ok(None) => Ok(Some(Item { by_itself: true, ..item })),
        Err(fault) => Err(Failed::new(item, fault)),
    }
}

/// What a file holds, and its hash if wanted.
type Content = (Vec<u8>, Option<Hash>);

/// What a file holds; `None`: it has a project or extended attributes besides.
fn read(job: &Job, item: &Item, source: &dyn File, seen: &Seen) -> Result<Option<Content>, Fault> {
    let has_more = job.within(Stage::Attributes, || {
        let has_project = item.dir.has_projects
            && source.project().trying("looking at its project")?.is_some_and(|project| project.id != 0);
        let wanted = attributes::wanted_xattrs(source, item.dir.is_lustre);
        let (xattrs, lost) = wanted.trying("reading its extended attributes")?;
        Ok(has_project || !xattrs.is_empty() || !lost.is_empty())
    })?;
    if has_more {
        return Ok(None);
    }
    let size = seen.attr.size as usize;
    job.throttled(size);
    let mut data = Vec::new();
    job.within(Stage::Read, || {
        if size > 0 {
            source.read(0, size, &mut data).trying("reading it")?;
        }
        let is_same = data.len() == size && source.seen().trying("looking at it again")?.is_as(seen);
        is_same.then_some(()).ok_or_else(Fault::changed)
    })?;
    let hash = job.options.hashes().then(|| job.within(Stage::Hash, || blake3::hash(&data)));
    Ok(Some((data, hash)))
}

/// Sends the batch. What is refused goes by itself, and says why.
pub fn put(job: &Job, worker: &mut Worker) {
    let Batch { files, .. } = std::mem::take(&mut worker.batch);
    let Some(first) = files.first() else { return };
    let target = match job.may_go_on().and_then(|()| first.item.target()) {
        Ok(target) => target,
        Err(fault) => return files.into_iter().for_each(|one| job.failed(Failed::new(one.item, fault.clone()))),
    };
    let wanted: Vec<PutFile<'_>> = files.iter().map(Packed::file).collect();
    let became = match job.within(Stage::Write, || target.put(&wanted, first.item.dir.volume.flush() != Flush::No)) {
        Ok(Some(became)) => became,
        Ok(None) => {
            job.puts.store(false, Ordering::Relaxed);
            return job.queue.again(files.into_iter().map(Packed::by_itself).collect());
        }
        // Nobody knows how far it came.
        Err(error) => vec![Err(error); files.len()],
    };
    for (packed, became) in files.into_iter().zip(became) {
        match became {
            Ok(target) => named(job, packed, &target),
            Err(_) => in_doubt(job, packed),
        }
    }
}

fn named(job: &Job, packed: Packed, target: &Seen) {
    let Packed { item, seen, hash, .. } = packed;
    add(&job.counts.moved, seen.attr.size);
    add(&job.watch.bytes, seen.attr.size);
    let (xattrs, hash, check) = (&Vec::new(), hash.as_ref(), job.check);
    copied(job, &item, &Copied { seen: &seen, xattrs, hash, check }, || Some(target.clone()));
}

/// A file that was refused, or of which nothing was heard: if its name is that of a file with its
/// content, an earlier try has made it. Else it goes by itself.
fn in_doubt(job: &Job, packed: Packed) {
    match job.within(Stage::Verify, || made_before(&packed)) {
        Ok(Some(target)) => named(job, packed, &target),
        Ok(None) => job.queue.again(vec![packed.by_itself()]),
        Err(fault) => job.failed(Failed::new(packed.item, fault)),
    }
}

/// What has the name, with all that it should have; `None`: it is free. Nothing of it is changed:
/// it may be somebody else's.
fn made_before(packed: &Packed) -> Result<Option<Seen>, Fault> {
    let (target, name) = (packed.item.target()?, packed.item.target_name());
    let other = || Fault::new("naming it", "something else was given its name meanwhile");
    let present = match target.look(name) {
        Err(Errno::ENOENT) => return Ok(None),
        present => present.trying("looking at the destination")?,
    };
    if !folded::lists(target, name).trying("listing the destination")? {
        return Err(folded::fault());
    }
    // What was made by us has had all its attributes before its name.
    let is_ours = present.attr.is_regular()
        && present.attr.size == packed.seen.attr.size
        && attributes::are_same(&packed.seen, &present)
        && attributes::is_same_time(&packed.seen, &present);
    if !is_ours {
        return Err(other());
    }
    let file = target.file(name, None).trying("opening it at the destination")?;
    let mut content = Vec::new();
    if !packed.data.is_empty() {
        file.read(0, packed.data.len(), &mut content).trying("reading it at the destination")?;
    }
    let seen = file.seen().trying("looking at what was made")?;
    if content != packed.data || !seen.is_as(&present) {
        return Err(other());
    }
    if packed.item.dir.volume.flush() != Flush::No {
        // It may be somebody else's who flushed nothing, or the answer was that this failed.
        file.sync().and_then(|()| sync_names(target)).trying("making it stable")?;
    }
    Ok(Some(seen))
}
