//! Large files, whose chunks agents copy side by side.
//!
//! Whoever writes chunks holds a lock on the temporary file, shared with others that do. Whoever
//! gives the file its name holds it alone: then nobody is left who could still write into it, an
//! agent that was stopped and taken for dead least of all.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use aqueduct_worker::lock;

use super::context::{Context, cut};
use super::unit::{Kept, Large, Outcome, Step, Unit};
use crate::content::{self, Holes};
use crate::flush::Flush;
use crate::hash;
use crate::job::{Big, Item, Job, Worker};
use crate::ledger::Stage;
use crate::manifest::{Line, Text};
use crate::outcome::{Fault, Trying, add};
use crate::side::{File, Seen, Xattrs};
use crate::store::Chunk;
use crate::{naming, run, walk};

/// Bytes that are one unit, at least and at most.
const UNIT_MIN: u64 = 64 << 20;
const UNIT_MAX: u64 = 1 << 30;

/// A file has about so many units, and never more than so many: who claims one looks at all that
/// wait, and of a file of 7 EiB most is a hole.
const UNITS: u64 = 256;
const UNITS_MAX: u64 = 4096;

/// So often it is begun anew when its source changes or an agent does not let go of it.
const TRIES_MAX: u32 = 3;

/// So often, a second apart, agents are waited for that still have the file open.
const LOCK_TRIES: u32 = 60;

/// How many chunks are one unit.
fn chunks_of_unit(size: u64, chunk: u64) -> u64 {
    ((size / UNITS).clamp(UNIT_MIN, UNIT_MAX) / chunk).max(size.div_ceil(chunk).div_ceil(UNITS_MAX)).max(1)
}

/// Begins a file: what is known of it, and where to, goes to the store with its parts.
pub fn begin(context: &Context, job: &Arc<Job>, (base, path, tries): (usize, &[u8], u32), outcome: &mut Outcome) {
    let (above, name) = cut(path);
    let dir = match context.directory(job, base, above, false) {
        Ok(dir) => dir,
        Err(fault) => return job.told.trouble(path, &fault),
    };
    let item = context.item(&dir, base, name, libc::S_IFREG);
    drop(dir);
    match walk::opened(job, &mut Worker::default(), item) {
        Ok(None) => {}
        Ok(Some((item, source, present))) => {
            let Some(seen) = item.seen.clone() else { return };
            let chunk = hash::chunk_length(seen.attr.size);
            let made = job.within(Stage::Attributes, || {
                let (target, part) = content::create(job, &item, &*source, true, None)?;
                target.truncate(seen.attr.size).trying("setting its size")?;
                let target = Kept::new(&target.seen().trying("looking at what was made")?);
                Ok::<_, Fault>((Text::new(&part.unwrap_or_default()), target))
            });
            drop(source);
            let (part, target) = match made {
                Ok(made) => made,
                Err(fault) => return job.told.trouble(path, &fault),
            };
            let count = seen.attr.size.div_ceil(chunk);
            let each = chunks_of_unit(seen.attr.size, chunk);
            let unit =
                |first: u64| Unit::Chunks { path: Text::new(path), first, count: each.min(count - first), tries };
            outcome.next.extend((0..count).step_by(each as usize).map(unit));
            let (source, present) = (Kept::new(&seen), present.as_ref().map(Kept::new));
            let large = Large { base, tries, part, target, source, present, chunk, count };
            outcome.large = Some((path.to_vec(), Step::Begun(Box::new(large))));
        }
        Err(failed) => {
            job.failed(failed);
            run::work(job, 0);
        }
    }
}

/// Opens a file under way, as it was begun.
fn open(context: &Context, job: &Arc<Job>, path: &[u8], large: &Large) -> Result<(Big, Item), Fault> {
    let (above, name) = cut(path);
    let dir = context.directory(job, large.base, above, false)?;
    let mut item = context.item(&dir, large.base, name, libc::S_IFREG);
    let begun = large.source.seen().ok_or_else(Fault::changed)?;
    let source = dir.source.file(&item.name, Some(&begun)).trying("opening it")?;
    let seen = is_as_begun(&*source, begun)?;
    item.seen = Some(seen.clone());
    let part = large.part.bytes().unwrap_or_default();
    let target = item.target()?.part(&part).trying("opening what is there of it")?;
    let there = target.seen().trying("looking at what is there of it")?;
    let is_it = large.target.seen().is_some_and(|begun| begun.is_same_inode(&there));
    if !is_it || there.attr.nlink != 1 || there.attr.size != seen.attr.size || large.chunk == 0 {
        return Err(Fault { is_passing: true, ..Fault::new("going on with it", "it is not what was begun") });
    }
    let has_holes = content::holes_of(&*source, &seen) == Holes::Seek;
    let big = Big {
        item: Mutex::default(),
        path: path.to_vec(),
        source,
        present: large.present.as_ref().and_then(Kept::seen).map(|present| present.beside(&there)),
        target,
        since: dir.volume.now(),
        part,
        has_holes,
        chunk: large.chunk,
        chunks: Vec::new(),
        next: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
        sums: Mutex::new(vec![(0, [0; 32]); seen.attr.size.div_ceil(large.chunk) as usize]),
        fault: Mutex::default(),
        seen,
    };
    Ok((big, item))
}

/// A source as it was seen when its file was begun, perhaps by another host, if it is so still.
fn is_as_begun(source: &dyn File, begun: Seen) -> Result<Seen, Fault> {
    let here = source.seen().trying("looking at it")?;
    let is_it = here.is_same_inode(&begun);
    let begun = begun.beside(&here);
    (is_it && here.is_as(&begun)).then_some(begun).ok_or_else(Fault::changed)
}

/// Copies some chunks.
pub fn chunks(
    context: &Context,
    job: &Arc<Job>,
    path: &[u8],
    large: Large,
    range: std::ops::Range<u64>,
    outcome: &mut Outcome,
) {
    let copied = || -> Result<Vec<Chunk>, Fault> {
        let (big, item) = open(context, job, path, &large)?;
        // First the lock, then the look at the claim: nobody can have named the file between.
        if !big.target.lock(false).trying("locking what is there of it")? {
            return Err(Fault { is_passing: true, ..Fault::new("locking what is there of it", "it is being named") });
        }
        job.may_go_on()?;
        let (mut worker, mut chunks) = (Worker::default(), Vec::new());
        for index in range {
            content::chunk(job, &mut worker, &big, index)?;
            let (sum, value) = lock(&big.sums)[index as usize];
            chunks.push(Chunk { index, sum, value: job.options.hashes().then_some(value) });
        }
        let flushed = match item.dir.volume.flush() {
            _ if big.target.is_volatile() => Ok(()),
            Flush::No => big.target.late_errors(),
            Flush::Together | Flush::Each => job.within(Stage::Flush, || big.target.sync()),
        };
        flushed.trying("making it stable")?;
        Ok(chunks)
    };
    let step = match copied() {
        Ok(chunks) => Step::Written { of: Box::new(large), chunks },
        Err(fault) => failed(context, job, path, &large, &fault),
    };
    outcome.large = Some((path.to_vec(), step));
}

/// The file is begun anew, or told.
fn failed(context: &Context, job: &Arc<Job>, path: &[u8], large: &Large, fault: &Fault) -> Step {
    if job.may_go_on().is_err() {
        return Step::Written { of: Box::new(large.clone()), chunks: Vec::new() }; // it is not heard
    }
    let (above, name) = cut(path);
    if let Ok(dir) = context.directory(job, large.base, above, false) {
        let item = context.item(&dir, large.base, name, libc::S_IFREG);
        content::discard(&item, large.part.bytes().as_deref());
    }
    let again = fault.is_passing && large.tries + 1 < TRIES_MAX;
    if !again {
        job.told.trouble(path, fault);
    }
    let (base, tries) = (large.base, large.tries + 1);
    let of = Box::new(large.clone());
    Step::Failed { of, again: again.then(|| Unit::Large { base, path: Text::new(path), tries }) }
}

/// Gives a file whose chunks are all there its attributes and its name.
pub fn finish(
    context: &Context,
    job: &Arc<Job>,
    path: &[u8],
    (large, chunks): (Large, Vec<Chunk>),
    tries: u32,
    outcome: &mut Outcome,
) {
    if job.redoes && is_named(context, job, path, &large) {
        record(context, job, path, &large, &chunks);
        outcome.large = Some((path.to_vec(), Step::Ended));
        return;
    }
    let opened = open(context, job, path, &large)
        .and_then(|(big, item)| Ok((big.target.lock(true).trying("locking it")?, big, item)));
    let (big, item) = match opened {
        Ok((true, big, item)) => (big, item),
        Ok((false, ..)) if tries < LOCK_TRIES => {
            outcome.again = Some((Unit::Finish { path: Text::new(path), tries: tries + 1 }, 1.0));
            return;
        }
        Ok((false, ..)) => {
            let why = "an agent that is not heard of any more still has it open";
            let fault = Fault { is_passing: true, ..Fault::new("naming it", why) };
            outcome.large = Some((path.to_vec(), failed(context, job, path, &large, &fault)));
            return;
        }
        Err(fault) => {
            outcome.large = Some((path.to_vec(), failed(context, job, path, &large, &fault)));
            return;
        }
    };
    if !are_all(job, &large, &chunks) {
        let fault = Fault { is_passing: true, ..Fault::new("putting it together", "not all of its chunks are known") };
        outcome.large = Some((path.to_vec(), failed(context, job, path, &large, &fault)));
        return;
    }
    for chunk in chunks {
        if let Some(sum) = lock(&big.sums).get_mut(chunk.index as usize) {
            *sum = (chunk.sum, chunk.value.unwrap_or_default());
        }
    }
    let unnamed = content::whole(job, &big, item);
    let mut worker = Worker::default();
    if let Err(failed) = content::complete(job, &mut worker, unnamed, &*big.source) {
        job.failed(failed);
    }
    naming::name_all(job, &mut worker);
    drop(big);
    run::work(job, 0); // what failed in passing
    outcome.large = Some((path.to_vec(), Step::Ended));
}

/// Whether each chunk is there, once, and with its hash if that is wanted: what is put together of
/// fewer would be certified and be nothing.
fn are_all(job: &Job, large: &Large, chunks: &[Chunk]) -> bool {
    let indices: BTreeSet<u64> = chunks.iter().map(|chunk| chunk.index).collect();
    chunks.len() as u64 == large.count
        && indices.into_iter().eq(0..large.count)
        && (!job.options.hashes() || chunks.iter().all(|chunk| chunk.value.is_some()))
}

/// Whether an agent that is gone had given the file its name already.
fn is_named(context: &Context, job: &Arc<Job>, path: &[u8], large: &Large) -> bool {
    let (above, name) = cut(path);
    let Some(target) = large.target.seen() else { return false };
    let found = context
        .directory(job, large.base, above, false)
        .and_then(|dir| context.item(&dir, large.base, name, libc::S_IFREG).present());
    found.is_ok_and(|found| found.is_some_and(|found| found.is_same_inode(&target)))
}

/// What an agent that is gone had done is told as if it had told it.
fn record(context: &Context, job: &Arc<Job>, path: &[u8], large: &Large, chunks: &[Chunk]) {
    let (above, _) = cut(path);
    let Some(seen) = large.source.seen() else { return };
    let xattrs = context.directory(job, large.base, above, false).and_then(|dir| {
        let source = context.source_name(large.base, path);
        let source = dir.source.file(source, Some(&seen)).trying("opening it")?;
        let xattrs = source.xattrs().trying("reading its extended attributes")?;
        is_as_begun(&*source, seen.clone())?; // else they are not those that it was given
        Ok(xattrs)
    });
    if !are_all(job, large, chunks) {
        let fault = Fault::new("putting it together", "not all of its chunks are known");
        return job.told.trouble(path, &fault);
    }
    let xattrs: Xattrs = match xattrs {
        Ok(xattrs) => xattrs,
        Err(fault) => return job.told.trouble(path, &fault),
    };
    let mut values = vec![[0; 32]; large.count as usize];
    for chunk in chunks {
        if let (Some(place), Some(value)) = (values.get_mut(chunk.index as usize), chunk.value) {
            *place = value;
        }
    }
    let hash = job.options.hashes().then(|| hash::merge(&values, large.chunk, seen.attr.size));
    job.told.checked(job.check);
    job.record(path, &|| Line::new(path, &seen, &xattrs, hash.as_ref(), None), &seen, &[]);
    add(&job.counts.files, 1);
    add(&job.counts.bytes, seen.attr.size);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Watch;
    use crate::options::Options;
    use crate::side::{Access, Place};

    #[test]
    fn a_file_of_any_size_has_few_units() {
        for (size, units) in [(65 << 20, 2), (100 << 30, 267), (2 << 40, 2048), (64 << 40, 4096), (7 << 60, 4096)] {
            let chunk = hash::chunk_length(size);
            let (count, each) = (size.div_ceil(chunk), chunks_of_unit(size, chunk));
            assert_eq!(count.div_ceil(each), units, "{size} bytes");
        }
    }

    #[test]
    fn what_one_host_began_another_knows_that_numbers_devices_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "content").unwrap();
        let access = Access::new(None, aqueduct_wire::Checksums::Auto, 1);
        let place = Place::parse(folder.path().as_os_str()).unwrap();
        let file = place.find_target(&access).unwrap().directory().unwrap().file(b"f", None).unwrap();
        let here = file.seen().unwrap();
        let there = Seen { device: here.device + 1, ..here.clone() };
        assert_eq!(is_as_begun(&*file, there.clone()), Ok(here.clone()));
        let mut other = there.clone();
        other.attr.ino += 1;
        let mut changed = there;
        changed.attr.ctime.seconds -= 1;
        for begun in [other, changed] {
            assert_eq!(is_as_begun(&*file, begun), Err(Fault::changed()));
        }
    }

    #[test]
    fn a_file_is_put_together_of_all_its_chunks_and_their_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let access = Access::new(None, aqueduct_wire::Checksums::Auto, 1);
        let place = Place::parse(folder.path().as_os_str()).unwrap();
        let target = place.find_target(&access).unwrap().directory().unwrap();
        let seen = Kept::new(&target.seen().unwrap());
        let (part, source) = (Text::new(b"p"), seen.clone());
        let large = Large { base: 0, tries: 0, part, target: seen, source, present: None, chunk: 4, count: 3 };
        let chunk = |index, value: bool| Chunk { index, sum: 7, value: value.then_some([1; 32]) };
        for (hashes, chunks, whole) in [
            (false, vec![chunk(2, false), chunk(0, false), chunk(1, false)], true),
            (false, vec![chunk(0, false), chunk(1, false)], false),
            (false, vec![chunk(0, false), chunk(1, false), chunk(1, false)], false),
            (false, vec![chunk(0, false), chunk(1, false), chunk(3, false)], false),
            (true, vec![chunk(0, true), chunk(1, true), chunk(2, true)], true),
            (true, vec![chunk(0, true), chunk(1, false), chunk(2, true)], false),
        ] {
            let options = Arc::new(Options { hashes, ..Options::default() });
            let volumes = Arc::new(crate::flush::Volumes::new(target.clone(), true));
            let job = Job::new(options, target.clone(), volumes, "read", Arc::new(Watch::default()));
            assert_eq!(are_all(&job, &large, &chunks), whole, "{chunks:?}");
        }
    }
}
