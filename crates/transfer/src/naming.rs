//! Gives files their names, once they are whole and stable.

use aqueduct_fs::Errno;

use crate::batch;
use crate::content::{discard, stable_sum_of};
use crate::done::{Copied, copied};
use crate::job::{Done, Failed, Flush, Item, Job, Unnamed, Worker};
use crate::ledger::Stage;
use crate::options::Verify;
use crate::outcome::{Fault, Trying};
use crate::side::{File, Seen};

/// Makes stable, checks and names all files of a worker.
pub fn name_all(job: &Job, worker: &mut Worker) {
    batch::put(job, worker);
    let mut unnamed = std::mem::take(&mut worker.unnamed);
    worker.unnamed_bytes = 0;
    if let Err(error) = job.within(Stage::Flush, || flush(job, &unnamed)) {
        // The error is told once, and not whose it is: nothing of the batch can be believed, and
        // flushing it again would succeed.
        let fault = Fault { is_passing: true, ..Fault::new("making it stable", error) };
        for unnamed in unnamed.drain(..) {
            discard(&unnamed.item, unnamed.part.as_deref());
            job.failed(Failed::new(unnamed.item, fault.clone()));
        }
    }
    for unnamed in unnamed {
        if let Err(failed) = name(job, worker, unnamed) {
            job.failed(failed);
        }
    }
}

fn flush(job: &Job, unnamed: &[Unnamed]) -> Result<(), Errno> {
    match (job.flush, unnamed) {
        (Flush::No, _) | (_, []) => Ok(()),
        (Flush::Together, [_, _, ..]) => job.target_root.sync_all(),
        _ => unnamed.iter().filter(|file| !file.target.is_volatile()).try_for_each(|file| file.target.sync()),
    }
}

fn name(job: &Job, worker: &mut Worker, unnamed: Unnamed) -> Done {
    let Unnamed { item, seen, present, target, part, xattrs, hash, sums, mut check } = unnamed;
    let fail = |item: Item, fault: Fault| {
        discard(&item, part.as_deref());
        Err(Failed::new(item, fault))
    };
    if job.options.verify == Verify::Stable {
        let read_back = job.within(Stage::Verify, || read_back(&*target, seen.attr.size, &sums, &mut worker.buffer));
        match read_back.trying("reading back what was written") {
            Ok(Some(is_stable)) => check = if is_stable { "stable" } else { "cached" },
            Ok(None) => {
                let why = "what was read back is not what was written";
                return fail(item, Fault { is_passing: true, ..Fault::new("comparing it", why) });
            }
            Err(fault) => return fail(item, fault),
        }
    }
    if let Err(fault) = job.may_go_on() {
        return fail(item, fault);
    }
    let named = job.within(Stage::Attributes, || give_name(&item, present.as_ref(), part.as_deref(), &*target));
    if let Err(fault) = named {
        return fail(item, fault);
    }
    let done = Copied { seen: &seen, xattrs: &xattrs, hash: hash.as_ref(), check };
    copied(job, &item, &done, || target.seen().ok());
    Ok(())
}

/// Whether what was written was read back from where it is kept for good; `None`: it is not what
/// was read of the source.
fn read_back(
    target: &dyn File,
    size: u64,
    (sums, chunk): &(Vec<u64>, u64),
    buffer: &mut Vec<u8>,
) -> Result<Option<bool>, Errno> {
    let is_forgotten = target.forget(size);
    let mut is_stable = true;
    for (index, sum) in sums.iter().enumerate() {
        let start = index as u64 * chunk;
        let (found, is_past_cache) = stable_sum_of(target, (start, (start + chunk).min(size)), is_forgotten, buffer)?;
        if found != *sum {
            return Ok(None);
        }
        is_stable &= is_past_cache;
    }
    Ok(Some(is_stable))
}

/// What is at the destination is replaced only if it still is what was seen there.
fn give_name(item: &Item, present: Option<&Seen>, part: Option<&[u8]>, target: &dyn File) -> Result<(), Fault> {
    let (directory, name) = (item.target()?, item.target_name());
    match part {
        None => named_free(directory.name_file(target, name)),
        Some(part) => rename(item, present, part),
    }
}

fn named_free(named: Result<(), Errno>) -> Result<(), Fault> {
    match named {
        Err(Errno::EEXIST) => Err(Fault::new("naming it", "something else was given its name meanwhile")),
        named => named.trying("naming it"),
    }
}

/// Gives what has a temporary name its own.
pub fn rename(item: &Item, present: Option<&Seen>, part: &[u8]) -> Result<(), Fault> {
    let (directory, name) = (item.target()?, item.target_name());
    let Some(present) = present else {
        return named_free(directory.rename(part, name, false));
    };
    let is_there = directory.look(name);
    if !is_there.as_ref().is_ok_and(|is_there| is_there.is_as(present)) {
        return Err(Fault::new("naming it", "what has its name at the destination was changed meanwhile"));
    }
    directory.rename(part, name, true).trying("naming it")
}
