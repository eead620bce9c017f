//! Does one unit of a job, by the means of a copy in one process.

use std::sync::{Arc, Mutex};

use aqueduct_fs::Errno;
use aqueduct_worker::lock;

use super::board::{Board, NAMES_MAX};
use super::context::{Context, cut};
use super::database::StoreError;
use super::large;
use super::unit::{Claimed, Gone, Outcome, SHARED_MIN, Unit};
use crate::job::{Dir, Item, Job, below};
use crate::ledger::{Clock, STAGES, Stage};
use crate::manifest::Text;
use crate::outcome::{AllTold, Fault, Trying};
use crate::side::{Listed, Seen};
use crate::{delete, listed, run, walk};

/// Bytes of files that are one unit, at least: then another begins.
const UNIT_BYTES: u64 = 256 << 20;

/// Does what was claimed.
pub fn unit(context: &Context, board: &Board, claimed: &Claimed) -> Result<Outcome, StoreError> {
    let said = Arc::new(Mutex::new(Vec::new()));
    let job = Arc::new(context.job(claimed, &said));
    let clock = Clock::start(job.watch.clone());
    let mut outcome = Outcome::default();
    let bytes = |text: &Text| text.bytes().unwrap_or_default();
    if context.is_first(&claimed.unit) {
        tell_missing(context, &job);
    }
    match &claimed.unit {
        Unit::Directory { base, path } => {
            let path = bytes(path);
            if let Err(fault) = enter(context, &job, *base, &path, claimed.redoes(), &mut outcome) {
                job.told.trouble(&path, &fault);
            }
        }
        Unit::Files { base, directory, is_new, names } => {
            let names = names.iter().map(|name| below(&bytes(directory), &bytes(name)));
            files(context, &job, names.map(|path| (*base, path)), *is_new && !claimed.redoes());
        }
        Unit::Links { names } => files(context, &job, names.iter().map(|(base, path)| (*base, bytes(path))), false),
        Unit::Large { base, path, tries } => large::begin(context, &job, (*base, &bytes(path), *tries), &mut outcome),
        Unit::Chunks { path, first, count, tries } => {
            let found = board.large(claimed.job, &bytes(path))?;
            // Those of a try that failed are no part of the next.
            let Some(file) = found.filter(|file| file.tries == *tries) else { return Ok(outcome) };
            large::chunks(context, &job, &bytes(path), file, *first..first + count, &mut outcome);
        }
        Unit::Finish { path, tries } => {
            let Some(file) = board.large(claimed.job, &bytes(path))? else { return Ok(outcome) };
            let chunks = board.chunks(claimed.job, &bytes(path))?;
            large::finish(context, &job, &bytes(path), (file, chunks), *tries, &mut outcome);
        }
        Unit::Attributes { paths } => {
            let paths: Vec<Vec<u8>> = paths.iter().map(bytes).collect();
            for gone in board.directories(claimed.job, Some(&paths))? {
                let path = gone.path.clone();
                if let Err(fault) = give_attributes(context, &job, gone) {
                    job.told.trouble(&path, &fault);
                }
            }
        }
        Unit::Delete => delete_all(context, board, claimed, &job, &mut outcome)?,
        Unit::Sweep => sweep(context, board, claimed, &job)?,
    }
    // What a finished job has named is stable.
    if let Err(fault) = job.settle() {
        job.told.trouble(b"", &fault);
    }
    drop(clock);
    gather(job, &mut outcome);
    outcome.said = std::mem::take(&mut *lock(&said));
    Ok(outcome)
}

/// Tells which of the paths that were listed are in no source.
fn tell_missing(context: &Context, job: &Job) {
    for path in job.options.filter.list().into_iter().flatten() {
        if let Err(error) = job.within(Stage::Walk, || context.find(path)) {
            listed::tell(&job.told, path, error);
        }
    }
}

/// What came of it, counted.
fn gather(job: Arc<Job>, outcome: &mut Outcome) {
    let job = Arc::into_inner(job).expect("all of the unit is done");
    let counts = serde_json::to_value(job.counts.now()).unwrap_or_default();
    for (what, count) in counts.as_object().into_iter().flatten() {
        outcome.tally.insert(format!("count:{what}"), 0i64.saturating_add_unsigned(count.as_u64().unwrap_or_default()));
    }
    for ((_, name), time) in STAGES.iter().zip(job.watch.stages()) {
        outcome.tally.insert(format!("stage:{name}"), time.as_nanos() as i64);
    }
    let AllTold { troubles, trouble_count, lost, lost_count, checks } = job.told.into_all();
    outcome.tally.extend(checks.into_iter().map(|(check, count)| (format!("check:{check}"), count as i64)));
    outcome.tally.insert("troubles".to_owned(), trouble_count as i64);
    outcome.tally.insert("lost".to_owned(), lost_count as i64);
    outcome.tally.retain(|_, count| *count != 0);
    outcome.troubles.extend(troubles);
    outcome.lost.extend(lost);
    if let Some(gathered) = job.gathered {
        outcome.entries = gathered.into_inner().unwrap_or_else(|poison| poison.into_inner());
    }
}

/// Copies names.
fn files(context: &Context, job: &Arc<Job>, names: impl Iterator<Item = (usize, Vec<u8>)>, is_new: bool) {
    let mut last: Option<(usize, Arc<Dir>)> = None;
    let mut items: Vec<Item> = Vec::new();
    for (base, path) in names {
        let (above, name) = cut(&path);
        if last.as_ref().is_none_or(|(of, dir)| *of != base || dir.path != above) {
            match context.directory(job, base, above, is_new) {
                Ok(dir) => last = Some((base, dir)),
                Err(fault) => {
                    job.told.trouble(&path, &fault);
                    continue;
                }
            }
        }
        if let Some((_, dir)) = &last {
            items.push(context.item(dir, base, name, 0));
        }
    }
    drop(last);
    job.queue.again(items);
    run::work(job, 0);
}

/// Goes through a directory.
fn enter(
    context: &Context,
    job: &Arc<Job>,
    base: usize,
    path: &[u8],
    redoes: bool,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let (dir, seen) = match path.is_empty() {
        true => {
            let dir = context.directory(job, base, path, false)?;
            let seen = dir.source.seen().trying("looking at it")?;
            (dir, seen)
        }
        false => {
            let (above, name) = cut(path);
            let above = context.directory(job, base, above, false)?;
            let item = context.item(&above, base, name, libc::S_IFDIR);
            let Some(mut dir) = job.within(Stage::Walk, || walk::open(job, &item))? else { return Ok(()) };
            let seen = dir.seen.take().ok_or_else(Fault::changed)?;
            (Arc::new(dir), seen)
        }
    };
    let is_new = dir.is_new && !redoes;
    let mut batch = Batch { base, path, is_new, names: Vec::new(), bytes: 0 };
    let mut listed = Vec::new();
    job.within(Stage::Walk, || dir.source.list(&mut |found| listed.push(found))).trying("listing it")?;
    for found in listed {
        if walk::is_left_out(job, path, &found) {
            continue;
        }
        let whole = below(path, &found.name);
        match job.within(Stage::Walk, || look(&dir, &found)) {
            Ok(Some(inode)) => sort(job, &mut batch, &whole, &found.name, &inode, outcome),
            Ok(None) => {}
            Err(error) => job.told.trouble(&whole, &Fault::new("looking at it", error)),
        }
    }
    batch.end(outcome);
    outcome.directory = Some(Gone { base, path: path.to_vec(), seen });
    Ok(())
}

fn look(dir: &Dir, found: &Listed) -> Result<Option<Seen>, Errno> {
    match found.seen.clone().map_or_else(|| dir.source.look(&found.name), Ok) {
        Err(Errno::ENOENT) => Ok(None),
        seen => seen.map(Some),
    }
}

/// Names of one directory that become a unit.
struct Batch<'a> {
    base: usize,
    path: &'a [u8],
    is_new: bool,
    names: Vec<Text>,
    bytes: u64,
}

impl Batch<'_> {
    fn end(&mut self, outcome: &mut Outcome) {
        if !self.names.is_empty() {
            let (base, is_new, directory) = (self.base, self.is_new, Text::new(self.path));
            self.bytes = 0;
            outcome.next.push(Unit::Files { base, directory, is_new, names: std::mem::take(&mut self.names) });
        }
    }
}

/// What a name of a directory becomes.
fn sort(job: &Job, batch: &mut Batch<'_>, path: &[u8], name: &[u8], seen: &Seen, outcome: &mut Outcome) {
    let attr = &seen.attr;
    if !job.options.filter.takes(path, attr.is_directory()) {
        return;
    }
    *outcome.tally.entry("found:names".to_owned()).or_default() += 1;
    if attr.is_directory() {
        outcome.next.push(Unit::Directory { base: batch.base, path: Text::new(path) });
        return;
    }
    let found = outcome.tally.entry("found:bytes".to_owned()).or_default();
    *found = found.saturating_add_unsigned(attr.size);
    if attr.nlink > 1 {
        outcome.links.push((seen.number(), batch.base, path.to_vec()));
    } else if attr.is_regular() && attr.size > SHARED_MIN {
        outcome.next.push(Unit::Large { base: batch.base, path: Text::new(path), tries: 0 });
    } else {
        batch.names.push(Text::new(name));
        batch.bytes = batch.bytes.saturating_add(attr.size);
        if batch.names.len() >= NAMES_MAX || batch.bytes >= UNIT_BYTES {
            batch.end(outcome);
        }
    }
}

/// Gives a directory its attributes, after all that is below it.
fn give_attributes(context: &Context, job: &Arc<Job>, gone: Gone) -> Result<(), Fault> {
    let dir = context.directory(job, gone.base, &gone.path, false)?;
    if let Some(mut dir) = Arc::into_inner(dir) {
        dir.seen = Some(gone.seen); // it gets them when it is dropped
    }
    Ok(())
}

fn delete_all(
    context: &Context,
    board: &Board,
    claimed: &Claimed,
    job: &Arc<Job>,
    outcome: &mut Outcome,
) -> Result<(), StoreError> {
    let troubles = board.troubles(claimed.job)?;
    let mut bases = std::collections::BTreeSet::new();
    for Gone { base, path, seen } in board.directories(claimed.job, None)? {
        bases.insert(base);
        job.goes_through(&path, &seen);
    }
    let Some(base) = bases.first() else { return Ok(()) };
    let deleted = match context.directory(job, *base, b"", false) {
        _ if troubles > 0 => Err(format!("{troubles} names could not be copied")),
        Ok(dir) => delete::delete(job, &dir),
        Err(fault) => Err(fault.to_string()),
    };
    outcome.not_deleted = deleted.err();
    Ok(())
}

/// Removes what is under temporary names: of a cancelled job, or of agents that are gone.
fn sweep(context: &Context, board: &Board, claimed: &Claimed, job: &Arc<Job>) -> Result<(), StoreError> {
    let mut directories: std::collections::BTreeMap<Vec<u8>, usize> =
        board.directories(claimed.job, None)?.into_iter().map(|gone| (gone.path, gone.base)).collect();
    directories.entry(Vec::new()).or_default();
    for (path, base) in directories {
        let swept = context.directory(job, base, &path, false).and_then(|dir| match &dir.target {
            Some(target) => walk::sweep(job, &**target, &path).trying("removing what is not whole"),
            None => Ok(()),
        });
        if let Err(fault) = swept {
            job.told.trouble(&path, &fault);
        }
    }
    Ok(())
}
