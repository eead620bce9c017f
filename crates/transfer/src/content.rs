//! The data of files: whole ones by one thread, large ones in chunks by all.

use std::hash::Hasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use aqueduct_fs::{Errno, Sum, SumKind};
use aqueduct_worker::lock;
use bytes::Bytes;
use twox_hash::XxHash3_64;

use crate::attributes::{self, Given};
use crate::batch;
use crate::flush::{Flush, Since};
use crate::hash::{self, Hash, WHOLE_MAX};
use crate::job::{Big, Dir, Done, Failed, Item, Job, Unnamed, Worker};
use crate::ledger::Stage;
use crate::outcome::{Fault, Trying, add};
use crate::side::{File, STEP, Seen};
use crate::store::{Chunk, fingerprint};
use crate::ways::Way;

/// Zeros of this length are left out where a file has holes: a block of most file systems.
const HOLE: usize = 4096;

/// What hashes nothing is zeros: of holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The hashes of what is read, as far as they are wanted.
struct Sums {
    sum: Option<XxHash3_64>,
    tree: Option<blake3::Hasher>,
}

impl Sums {
    fn new(job: &Job, offset: u64) -> Sums {
        let tree = job.options.hashes().then(|| hash::of_chunk(offset));
        Sums { sum: job.sums.then(|| XxHash3_64::with_seed(0)), tree }
    }

    fn update(&mut self, data: &[u8]) {
        if let Some(sum) = &mut self.sum {
            sum.write(data);
        }
        if let Some(tree) = &mut self.tree {
            tree.update(data);
        }
    }

    fn update_zeros(&mut self, mut length: u64) {
        if !self.is_wanted() {
            return;
        }
        while length > 0 {
            let step = length.min(ZEROS.len() as u64);
            self.update(&ZEROS[..step as usize]);
            length -= step;
        }
    }

    /// Whether data have to be seen.
    fn is_wanted(&self) -> bool {
        self.sum.is_some() || self.tree.is_some()
    }

    fn sum(&self) -> u64 {
        self.sum.as_ref().map_or(0, XxHash3_64::finish)
    }
}

/// How holes are found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// There are none.
    None,
    /// Zeros that are read are not written.
    Scan,
    /// The file system says where data are.
    Seek,
}

/// The two ends of a file.
struct Ends<'a> {
    source: &'a dyn File,
    target: &'a dyn File,
    holes: Holes,
}

/// Copies a range. It has to be there.
fn copy_range(
    job: &Job,
    buffer: &mut Vec<u8>,
    ends: &Ends<'_>,
    (start, end): (u64, u64),
    sums: &mut Sums,
) -> Result<(), Fault> {
    let (mut at, mut data_end) = (start, if ends.holes == Holes::Seek { start } else { end });
    while at < end {
        if at == data_end {
            let found = job.within(Stage::Read, || ends.source.data_after(at)).trying("looking for data")?;
            let (from, to) = found.map_or((end, end), |(from, to)| (from.min(end), to.min(end)));
            sums.update_zeros(from.saturating_sub(at));
            (at, data_end) = (from.max(at), to.max(at));
            if at >= end {
                return Ok(());
            }
            if data_end == at {
                return Err(Fault::changed());
            }
        }
        job.may_go_on()?;
        let length = (data_end - at).min(STEP as u64) as usize;
        let length = match by_kernel(job, ends, at, length, sums)? {
            Some(taken) => taken,
            None => {
                let length = length.min(job.step.load(Ordering::Relaxed));
                step(job, buffer, ends, (at, length), sums)?;
                length
            }
        };
        add(&job.counts.moved, length as u64);
        add(&job.watch.bytes, length as u64);
        at += length as u64;
    }
    Ok(())
}

/// Reads, hashes and writes.
fn step(
    job: &Job,
    buffer: &mut Vec<u8>,
    ends: &Ends<'_>,
    (at, length): (u64, usize),
    sums: &mut Sums,
) -> Result<(), Fault> {
    job.throttled(length);
    let started = Instant::now();
    job.within(Stage::Read, || ends.source.read(at, length, buffer)).trying("reading it")?;
    if buffer.len() < length {
        return Err(Fault::changed());
    }
    if sums.is_wanted() {
        job.within(Stage::Hash, || sums.update(buffer));
    }
    job.within(Stage::Write, || write(ends, at, buffer)).trying("writing it")?;
    if length >= job.step.load(Ordering::Relaxed) {
        job.ways.took(Way::Memory, length, started.elapsed());
    }
    Ok(())
}

/// Has the kernel copy, where nobody has to see the data and that is the faster way. `None`: it
/// is not to.
fn by_kernel(job: &Job, ends: &Ends<'_>, at: u64, length: usize, sums: &Sums) -> Result<Option<usize>, Fault> {
    let is_blind = !sums.is_wanted() && ends.holes != Holes::Scan;
    if !is_blind || length < STEP || job.ways.choose() == Way::Memory {
        return Ok(None);
    }
    job.throttled(length);
    let started = Instant::now();
    match job.within(Stage::Write, || ends.target.take(ends.source, at, length)) {
        Err(Errno::EOPNOTSUPP) => {
            job.ways.forbid_kernel();
            Ok(None)
        }
        Ok(0) => Err(Fault::changed()),
        taken => {
            let taken = taken.trying("copying its data")?;
            job.ways.took(Way::Kernel, taken, started.elapsed());
            Ok(Some(taken))
        }
    }
}

/// Writes what was read, and takes the memory back unless somebody keeps it.
fn write(ends: &Ends<'_>, at: u64, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    let data = Bytes::from(std::mem::take(buffer));
    let written = match ends.holes {
        Holes::Scan => write_data(ends.target, at, &data),
        _ => ends.target.write(at, data.clone()),
    };
    if let Ok(memory) = data.try_into_mut() {
        *buffer = memory.into();
    }
    written
}

/// Writes only what is not zeros.
fn write_data(target: &dyn File, at: u64, data: &Bytes) -> Result<(), Errno> {
    let is_hole = |start: usize| data[start..(start + HOLE).min(data.len())].iter().all(|byte| *byte == 0);
    let mut start = 0;
    while start < data.len() {
        let hole = is_hole(start);
        let mut end = start;
        while end < data.len() && is_hole(end) == hole {
            end = (end + HOLE).min(data.len());
        }
        if !hole {
            target.write(at + start as u64, data.slice(start..end))?;
        }
        start = end;
    }
    Ok(())
}

/// Holes are believed once the source has nothing that is not written: some file systems say of
/// what is only in memory that it is not there.
pub fn holes_of(source: &dyn File, seen: &Seen) -> Holes {
    let is_sparse = seen.attr.blocks.saturating_mul(512) < seen.attr.size;
    match is_sparse {
        false => Holes::None,
        true if seen.attr.size > WHOLE_MAX && source.sync().is_ok() => Holes::Seek,
        true => Holes::Scan,
    }
}

/// A new file, and its temporary name if it has one.
pub type Created = (Arc<dyn File>, Option<Vec<u8>>);

/// A file at the destination, without the name that it will have, and with the project of its
/// source: what it will take counts there from the first byte. What cannot be given is told when
/// the file is complete.
pub fn create(job: &Job, item: &Item, source: &dyn File, named: bool, mode: Option<u32>) -> Result<Created, Fault> {
    let (target, part) = make(job, item, named, mode)?;
    if item.dir.has_projects
        && let Err(fault) = attributes::give_project(source, &*target, None).trying("setting its project")
    {
        discard(item, part.as_deref());
        return Err(fault);
    }
    Ok((target, part))
}

fn make(job: &Job, item: &Item, named: bool, mode: Option<u32>) -> Result<Created, Fault> {
    if !named && job.makes_unnamed.load(Ordering::Relaxed) {
        let file = item.making("making it", |directory| match directory.create_unnamed(mode.unwrap_or(0o600)) {
            Err(Errno::EOPNOTSUPP) => Ok(None),
            file => file.map(Some),
        })?;
        match file {
            None => job.makes_unnamed.store(false, Ordering::Relaxed),
            Some(file) => {
                if let Some(mode) = mode.filter(|_| item.dir.given.get().is_none()) {
                    let attr = file.seen().trying("looking at it")?.attr;
                    let kept = if attr.mode & 0o7777 == mode { mode } else { 0 };
                    item.dir.given.get_or_init(|| Given { uid: attr.uid, gid: attr.gid, kept });
                }
                return Ok((file, None));
            }
        }
    }
    let name = job.part_name();
    Ok((item.making("making it", |directory| directory.create(&name))?, Some(name)))
}

/// The permissions with which a file may be made at once, since it has no name yet: where all that
/// is made has the same owner, since nobody else can change the directory, and no lists of its
/// own are inherited.
fn early_mode(item: &Item, seen: &Seen) -> Option<u32> {
    let Dir { is_new, bequeaths, target, .. } = &*item.dir;
    let is_here = target.as_ref().is_some_and(|target| target.descriptor().is_some());
    let mode = seen.attr.mode & 0o7777;
    (*is_new && !bequeaths && is_here && mode & 0o7000 == 0).then_some(mode)
}

/// Copies a file whose source is open.
pub fn copy(job: &Job, worker: &mut Worker, mut item: Item, source: Arc<dyn File>, present: Option<Seen>) -> Done {
    let Some(seen) = item.seen.clone() else { return Err(Failed::new(item, Fault::changed())) };
    let since = item.dir.volume.now();
    if batch::takes(job, &item, &seen, present.as_ref()) {
        match batch::join(job, worker, item, &*source, seen.clone())? {
            Some(alone) => item = alone,
            None => return Ok(()),
        }
    }
    if job.shares.load(Ordering::Relaxed) && seen.attr.size > 0 && !item.dir.is_unsized {
        match share(job, &item, &*source, present.is_some()) {
            Ok(Some((target, part))) => {
                add(&job.watch.bytes, seen.attr.size);
                let (xattrs, hash, sums, check) = (Vec::new(), None, (Vec::new(), WHOLE_MAX), "reflink");
                let unnamed = Unnamed { item, seen, present, target, since, part, xattrs, hash, sums, check };
                return complete(job, worker, unnamed, &*source);
            }
            Ok(None) => {}
            Err(fault) => return Err(Failed::new(item, fault)),
        }
    }
    if seen.attr.size > WHOLE_MAX {
        return begin(job, item, source, seen, (present, since));
    }
    match copy_whole(job, worker, &item, &*source, &seen, present.is_some()) {
        Ok((target, part, hash, sum)) => {
            let unnamed = Unnamed {
                item,
                seen,
                present,
                target,
                since,
                part,
                xattrs: Vec::new(),
                hash,
                sums: (vec![sum], WHOLE_MAX),
                check: job.check,
            };
            complete(job, worker, unnamed, &*source)
        }
        Err(fault) => Err(Failed::new(item, fault)),
    }
}

/// Has the copy share the data of the source. `None`: these two cannot.
fn share(job: &Job, item: &Item, source: &dyn File, named: bool) -> Result<Option<Created>, Fault> {
    let (target, part) = job.within(Stage::Attributes, || create(job, item, source, named, None))?;
    if job.within(Stage::Write, || target.share(source)).is_ok() {
        return Ok(Some((target, part)));
    }
    // Neither will others; those that could are copied, which is right as well.
    job.shares.store(false, Ordering::Relaxed);
    discard(item, part.as_deref());
    Ok(None)
}

type Whole = (Arc<dyn File>, Option<Vec<u8>>, Option<Hash>, u64);

fn copy_whole(
    job: &Job,
    worker: &mut Worker,
    item: &Item,
    source: &dyn File,
    seen: &Seen,
    named: bool,
) -> Result<Whole, Fault> {
    let mode = early_mode(item, seen);
    let (target, part) = job.within(Stage::Attributes, || create(job, item, source, named, mode))?;
    let ends = Ends { source, target: &*target, holes: holes_of(source, seen) };
    let mut sums = Sums::new(job, 0);
    let sized = match ends.holes {
        Holes::None => Ok(()),
        Holes::Scan | Holes::Seek => target.truncate(seen.attr.size).trying("setting its size"),
    };
    let range = (0, seen.attr.size);
    if let Err(fault) = sized.and_then(|()| copy_range(job, &mut worker.buffer, &ends, range, &mut sums)) {
        discard(item, part.as_deref());
        return Err(fault);
    }
    let hash = sums.tree.as_ref().map(blake3::Hasher::finalize);
    let sum = sums.sum();
    Ok((target, part, hash, sum))
}

/// Removes what is not whole. If it stays, its name says what it is.
pub fn discard(item: &Item, part: Option<&[u8]>) {
    if let (Some(part), Some(target)) = (part, &item.dir.target)
        && let Err(error) = target.unlink(part)
    {
        tracing::debug!("a temporary file stays: {error}");
    }
}

/// Gives a file whose data are there all but its name.
pub fn complete(job: &Job, worker: &mut Worker, mut unnamed: Unnamed, source: &dyn File) -> Done {
    let carried = job.within(Stage::Attributes, || {
        if !source.seen().trying("looking at it again")?.is_as(&unnamed.seen) {
            return Err(Fault::changed());
        }
        let wanted = attributes::wanted_xattrs(source, unnamed.item.dir.is_lustre);
        let (xattrs, mut lost) = wanted.trying("reading its extended attributes")?;
        unnamed.xattrs = xattrs;
        if unnamed.item.dir.bequeaths {
            attributes::disinherit(&*unnamed.target).trying("removing what its directory gave it")?;
        }
        // One of a chunk was made just now, if it has no name: see `early_mode`.
        let is_early = unnamed.part.is_none() && unnamed.check != "reflink";
        let mode = early_mode(&unnamed.item, &unnamed.seen).filter(|_| is_early);
        let given = mode.and_then(|_| unnamed.item.dir.given.get().copied());
        let (seen, target) = (&unnamed.seen, &*unnamed.target);
        lost.extend(attributes::carry(seen, &unnamed.xattrs, target, given).trying("setting its attributes")?);
        if unnamed.item.dir.has_projects {
            lost.extend(attributes::give_project(source, target, None).trying("setting its project")?);
        }
        Ok(lost)
    });
    match carried {
        Ok(lost) => job.lost(&unnamed.item.path(), lost),
        Err(fault) => {
            discard(&unnamed.item, unnamed.part.as_deref());
            return Err(Failed::new(unnamed.item, fault));
        }
    }
    worker.unnamed_bytes += unnamed.seen.attr.size;
    worker.unnamed.push(unnamed);
    Ok(())
}

/// Begins a file of several chunks, or goes on with one that an earlier run began.
fn begin(job: &Job, item: Item, source: Arc<dyn File>, seen: Seen, (present, since): (Option<Seen>, Since)) -> Done {
    let (path, size) = (item.path(), seen.attr.size);
    let chunk = hash::chunk_length(size);
    let count = size.div_ceil(chunk);
    let mut sums = vec![(0, [0; 32]); count as usize];
    let earlier = job.within(Stage::Verify, || earlier_part(job, &item, &*source, (&path, &seen, chunk), &mut sums));
    let created = match earlier {
        Some(earlier) => Ok(earlier),
        None => job.within(Stage::Attributes, || {
            let (target, part) = create(job, &item, &*source, true, None)?;
            let part = part.unwrap_or_default();
            let sized = target.truncate(size).trying("setting its size");
            sized.inspect_err(|_| discard(&item, Some(&part)))?;
            if let Some(store) = job.store.as_ref().filter(|store| store.is_journal) {
                store.begun(&path, &part, &seen);
            }
            Ok((target, part, (0..count).collect()))
        }),
    };
    let (target, part, chunks) = match created {
        Ok(created) => created,
        Err(fault) => return Err(Failed::new(item, fault)),
    };
    let has_holes = holes_of(&*source, &seen) == Holes::Seek;
    let left = AtomicUsize::new(chunks.len().max(1));
    // One whose chunks were all there still has to be ended by somebody: by its last.
    let chunks = if chunks.is_empty() { vec![count - 1] } else { chunks };
    let big = Big {
        item: Mutex::new(Some(item)),
        path,
        source,
        seen,
        present,
        target,
        since,
        part,
        has_holes,
        chunk,
        chunks,
        next: AtomicUsize::new(0),
        left,
        sums: Mutex::new(sums),
        fault: Mutex::new(None),
    };
    job.queue.share(Arc::new(big));
    Ok(())
}

type Begun = (Arc<dyn File>, Vec<u8>, Vec<u64>);

/// What an earlier run had of a file, if the source is the same: chunks whose content is what was
/// noted count, and no others.
fn earlier_part(
    job: &Job,
    item: &Item,
    source: &dyn File,
    (path, seen, chunk): (&[u8], &Seen, u64),
    sums: &mut [(u64, [u8; 32])],
) -> Option<Begun> {
    let store = job.store.as_ref().filter(|_| job.goes_on && item.attempt == 0)?;
    let part = store.part(path)?;
    let directory = item.dir.target.as_ref()?;
    if part.source != fingerprint(seen) {
        tracing::info!("{} changed since it was begun: it is copied anew", crate::outcome::shown(path));
        discard(item, Some(&part.name));
        return None;
    }
    let target = directory.part(&part.name).ok()?;
    let there = target.seen().ok()?.attr;
    // Of a file with another name somebody else may think that it is his.
    if !there.is_regular() || there.nlink != 1 || there.size != seen.attr.size {
        discard(item, Some(&part.name));
        return None;
    }
    // What the earlier run wrote may have failed since: only its own descriptor was told. Its
    // content is in memory all the same, where the sums would find it.
    if item.dir.volume.flush() != Flush::No && target.sync().is_err() {
        discard(item, Some(&part.name));
        return None;
    }
    let mut missing: Vec<bool> = vec![true; sums.len()];
    let mut buffer = Vec::new();
    for Chunk { index, sum, value } in part.chunks {
        let Some(place) = sums.get_mut(index as usize) else { continue };
        let range = (index * chunk, ((index + 1) * chunk).min(seen.attr.size));
        if (value.is_some() || !job.options.hashes()) && is_there(job, (source, &*target), range, sum, &mut buffer) {
            *place = (sum, value.unwrap_or_default());
            missing[index as usize] = false;
            add(&job.watch.bytes, range.1 - range.0);
        }
    }
    let missing = (0..sums.len() as u64).filter(|index| missing[*index as usize]).collect();
    Some((target, part.name, missing))
}

/// Whether a chunk of an earlier run is what it should be: by its sum, where one was made, else by
/// the source, which is on this machine too.
fn is_there(
    job: &Job,
    (source, target): (&dyn File, &dyn File),
    range: (u64, u64),
    sum: u64,
    buffer: &mut Vec<u8>,
) -> bool {
    let Ok(found) = sum_of(target, range, buffer) else { return false };
    match job.sums {
        true => found == sum,
        false => sum_of(source, range, buffer).is_ok_and(|wanted| wanted == found),
    }
}

/// The sum of what lies in a file.
pub fn sum_of(file: &dyn File, range: (u64, u64), buffer: &mut Vec<u8>) -> Result<u64, Errno> {
    match file.sum(range, SumKind::Xxh3, false)? {
        Some(sum) => Ok(short(&sum)),
        None => read_sum(file, range, buffer),
    }
}

/// The sum of what is kept of a file for good, once it is stable, and whether that could be shown.
/// `is_forgotten`: nothing of it is kept in the memory of this machine.
pub fn stable_sum_of(
    file: &dyn File,
    range: (u64, u64),
    is_forgotten: bool,
    buffer: &mut Vec<u8>,
) -> Result<(u64, bool), Errno> {
    match file.sum(range, SumKind::Xxh3, true)? {
        Some(sum) => Ok((short(&sum), sum.is_past_cache)),
        None => Ok((read_sum(file, range, buffer)?, is_forgotten)),
    }
}

fn short(sum: &Sum) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = sum.value;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn read_sum(file: &dyn File, (start, end): (u64, u64), buffer: &mut Vec<u8>) -> Result<u64, Errno> {
    let mut sum = XxHash3_64::with_seed(0);
    let mut at = start;
    while at < end {
        file.read(at, (end - at).min(STEP as u64) as usize, buffer)?;
        if buffer.is_empty() {
            return Err(Errno::ENODATA);
        }
        sum.write(buffer);
        at += buffer.len() as u64;
    }
    Ok(sum.finish())
}

/// Copies a chunk. Whoever copies the last completes the file.
pub fn copy_chunk(job: &Job, worker: &mut Worker, big: &Big, index: u64) {
    if lock(&big.fault).is_none()
        && let Err(fault) = chunk(job, worker, big, index)
    {
        *lock(&big.fault) = Some(fault);
    }
    if big.left.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let Some(item) = lock(&big.item).take() else { return };
    if let Some(fault) = lock(&big.fault).take() {
        discard(&item, Some(&big.part));
        return job.failed(Failed::new(item, fault));
    }
    let unnamed = whole(job, big, item);
    if let Err(failed) = complete(job, worker, unnamed, &*big.source) {
        job.failed(failed);
    }
}

/// A file whose chunks are all there, and that lacks its attributes and its name.
pub fn whole(job: &Job, big: &Big, item: Item) -> Unnamed {
    let sums = std::mem::take(&mut *lock(&big.sums));
    let hash = job.options.hashes().then(|| {
        let values: Vec<_> = sums.iter().map(|(_, value)| *value).collect();
        hash::merge(&values, big.chunk, big.seen.attr.size)
    });
    Unnamed {
        item,
        seen: big.seen.clone(),
        present: big.present.clone(),
        target: big.target.clone(),
        since: big.since,
        part: Some(big.part.clone()),
        xattrs: Vec::new(),
        hash,
        sums: (sums.iter().map(|(sum, _)| *sum).collect(), big.chunk),
        check: job.check,
    }
}

/// Copies a chunk.
pub fn chunk(job: &Job, worker: &mut Worker, big: &Big, index: u64) -> Result<(), Fault> {
    let range = (index * big.chunk, ((index + 1) * big.chunk).min(big.seen.attr.size));
    let holes = if big.has_holes { Holes::Seek } else { Holes::None };
    let ends = Ends { source: &*big.source, target: &*big.target, holes };
    let (sum, value) = match hole_sum(job, big, range)? {
        Some(sum) => (sum, None),
        None => {
            let mut sums = Sums::new(job, range.0);
            copy_range(job, &mut worker.buffer, &ends, range, &mut sums)?;
            (sums.sum(), sums.tree.as_ref().map(hash::value))
        }
    };
    lock(&big.sums)[index as usize] = (sum, value.unwrap_or_default());
    if let Some(store) = job.store.as_ref().filter(|store| store.is_journal) {
        store.written(&big.path, Chunk { index, sum, value });
    }
    Ok(())
}

/// The sum of a chunk that is all hole, where that is all that is wanted of it.
fn hole_sum(job: &Job, big: &Big, (start, end): (u64, u64)) -> Result<Option<u64>, Fault> {
    if !big.has_holes || job.options.hashes() {
        return Ok(None);
    }
    let found = job.within(Stage::Read, || big.source.data_after(start)).trying("looking for data")?;
    if found.is_some_and(|(from, _)| from < end) {
        return Ok(None);
    }
    let mut known = lock(&job.hole_sums);
    Ok(Some(*known.entry(end - start).or_insert_with(|| {
        let mut sums = Sums::new(job, 0);
        job.within(Stage::Hash, || sums.update_zeros(end - start));
        sums.sum()
    })))
}

/// Whether the worker should name what it has before it copies more.
pub fn is_full(worker: &Worker) -> bool {
    /// So many files are flushed at once: the flush of a disk then costs each little.
    const FILES: usize = 1024;
    /// And so many bytes.
    const BYTES: u64 = 64 << 20;
    let last = worker.unnamed.last().map(|last| last.item.dir.volume.flush());
    match last.unwrap_or(Flush::No) {
        Flush::Together => worker.unnamed.len() >= FILES || worker.unnamed_bytes >= BYTES,
        Flush::Each | Flush::No => !worker.unnamed.is_empty(),
    }
}
