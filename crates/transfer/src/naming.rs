//! Gives files their names, once they are whole and stable.

use std::sync::Arc;

use aqueduct_fs::Errno;
use aqueduct_worker::lock;

use crate::batch;
use crate::content::{discard, stable_sum_of};
use crate::done::{Copied, copied};
use crate::flush::{Flush, Volume};
use crate::folded;
use crate::job::{Done, Failed, Held, Item, Job, Unnamed, Worker};
use crate::ledger::Stage;
use crate::options::Verify;
use crate::outcome::{Fault, Trying};
use crate::side::{File, Seen};

/// Makes stable, checks and names all files of a worker.
pub fn name_all(job: &Job, worker: &mut Worker) {
    batch::put(job, worker);
    let unnamed = std::mem::take(&mut worker.unnamed);
    worker.unnamed_bytes = 0;
    let flushed = match unnamed.is_empty() {
        true => Vec::new(),
        false => job.within(Stage::Flush, || flush(&unnamed)),
    };
    for (unnamed, flushed) in unnamed.into_iter().zip(flushed) {
        let named = match flushed {
            Ok(()) => name(job, worker, unnamed),
            // Flushing it again would succeed, since an error is told once: it is copied anew.
            Err(error) => {
                discard(&unnamed.item, unnamed.part.as_deref());
                let fault = Fault { is_passing: true, ..Fault::new("making it stable", error) };
                Err(Failed::new(unnamed.item, fault))
            }
        };
        if let Err(failed) = named {
            job.failed(failed);
        }
    }
}

/// Makes files stable; what came of each.
fn flush(unnamed: &[Unnamed]) -> Vec<Result<(), Errno>> {
    // One that failed with others is made stable by itself, and so is a single one: then it is
    // known whether it is this one that fails.
    let is_alone = |file: &Unnamed| file.item.attempt > 0;
    let mut volumes: Vec<(&Arc<Volume>, usize)> = Vec::new();
    for file in unnamed.iter().filter(|file| !is_alone(file)) {
        let volume = &file.item.dir.volume;
        match volumes.iter_mut().find(|(known, _)| Arc::ptr_eq(known, volume)) {
            Some((_, count)) => *count += 1,
            None => volumes.push((volume, 1)),
        }
    }
    volumes.retain(|(volume, count)| *count > 1 && volume.flush() == Flush::Together);
    volumes.iter().for_each(|(volume, _)| volume.sync_all());
    let is_together = |volume: &Arc<Volume>| volumes.iter().any(|(of, _)| Arc::ptr_eq(of, volume));
    let of = |file: &Unnamed| match &file.item.dir.volume {
        volume if volume.flush() == Flush::No && volume.is_volatile() => Ok(()),
        volume if volume.flush() == Flush::No => file.target.late_errors(),
        volume if !is_alone(file) && is_together(volume) => volume.is_sound(file.since),
        _ if file.target.is_volatile() => Ok(()),
        _ => file.target.sync(),
    };
    unnamed.iter().map(of).collect()
}

fn name(job: &Job, worker: &mut Worker, mut unnamed: Unnamed) -> Done {
    if job.options.verify == Verify::Stable {
        let Unnamed { seen, target, sums, .. } = &unnamed;
        let read_back = job.within(Stage::Verify, || read_back(&**target, seen.attr.size, sums, &mut worker.buffer));
        match read_back.trying("reading back what was written") {
            Ok(Some(is_stable)) => unnamed.check = if is_stable { "stable" } else { "cached" },
            Ok(None) => {
                let why = "what was read back is not what was written";
                return fail(unnamed, Fault { is_passing: true, ..Fault::new("comparing it", why) });
            }
            Err(fault) => return fail(unnamed, fault),
        }
    }
    if job.waits(&unnamed.item, unnamed.present.as_ref()) {
        lock(&job.held).push(Held::Whole(Box::new(unnamed)));
        return Ok(());
    }
    finish(job, unnamed)
}

fn fail(unnamed: Unnamed, fault: Fault) -> Done {
    discard(&unnamed.item, unnamed.part.as_deref());
    Err(Failed::new(unnamed.item, fault))
}

/// Gives a file its name that lacks nothing else.
fn finish(job: &Job, unnamed: Unnamed) -> Done {
    let Unnamed { item, present, target, part, .. } = &unnamed;
    let named = job
        .may_go_on()
        .and_then(|()| job.within(Stage::Attributes, || give_name(item, present.as_ref(), part.as_deref(), &**target)));
    if let Err(fault) = named {
        return fail(unnamed, fault);
    }
    let Unnamed { item, seen, target, xattrs, hash, check, .. } = unnamed;
    let done = Copied { seen: &seen, xattrs: &xattrs, hash: hash.as_ref(), check };
    copied(job, &item, &done, || target.seen().ok());
    Ok(())
}

/// Gives names that were a directory's to what waited for that, now that nothing is in it; with
/// `why` it stays, and they are told.
pub fn name_held(job: &Job, why: Option<&str>) {
    *lock(&job.making_way) = None;
    let fault = why.map(|why| {
        let why = format!("at the destination its name is that of a directory with names in it, which stays: {why}");
        Fault::new("replacing it", why)
    });
    for held in std::mem::take(&mut *lock(&job.held)) {
        let done = match (held, &fault) {
            (Held::Whole(unnamed), None) => finish(job, *unnamed),
            (Held::Whole(unnamed), Some(fault)) => fail(*unnamed, fault.clone()),
            (Held::Unmade(item), Some(fault)) => Err(Failed::new(item, fault.clone())),
            (Held::Unmade(item), None) => {
                job.queue.again(vec![item]);
                Ok(())
            }
        };
        if let Err(failed) = done {
            job.failed(failed);
        }
    }
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
        None => named_free(item, directory.name_file(target, name)),
        Some(part) => rename(item, present, part),
    }
}

fn named_free(item: &Item, named: Result<(), Errno>) -> Result<(), Fault> {
    match named {
        Err(Errno::EEXIST) if folded::lists(item.target()?, item.target_name()) == Ok(false) => Err(folded::fault()),
        Err(Errno::EEXIST) => Err(Fault::new("naming it", "something else was given its name meanwhile")),
        named => named.trying("naming it"),
    }
}

/// Gives what has a temporary name its own.
pub fn rename(item: &Item, present: Option<&Seen>, part: &[u8]) -> Result<(), Fault> {
    let (directory, name) = (item.target()?, item.target_name());
    let Some(present) = present else {
        return named_free(item, directory.rename(part, name, false));
    };
    let is_there = directory.look(name);
    if present.attr.is_directory() {
        let is_it = |now: &Seen| now.attr.is_directory() && now.identity() == present.identity();
        if !is_there.as_ref().is_ok_and(is_it) {
            return Err(Fault::new("naming it", "what has its name at the destination is another meanwhile"));
        }
        // Only if nothing is in it, whatever was seen before.
        item.making("replacing a directory", |directory| directory.remove_directory(name))?;
        item.dir.job.replaces(item, Some(present));
        return named_free(item, directory.rename(part, name, false));
    }
    if !is_there.as_ref().is_ok_and(|is_there| is_there.is_as_with_fewer_names(present)) {
        return Err(Fault::new("naming it", "what has its name at the destination was changed meanwhile"));
    }
    item.making("naming it", |directory| directory.rename(part, name, true))?;
    item.dir.job.replaces(item, Some(present));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::flush::Volumes;
    use crate::job::Dir;
    use crate::ledger::Watch;
    use crate::options::Options;
    use crate::side::{Access, Directory, Place};
    use crate::{run, walk};

    fn directory(path: &Path) -> Arc<dyn Directory> {
        let access = Access::new(None, aqueduct_wire::Checksums::Auto, 1);
        Place::parse(path.as_os_str()).unwrap().find_target(&access).unwrap().directory().unwrap()
    }

    /// A copy whose flushes say what `sync_all` says, and the directory that it copies.
    fn begun(
        [from, to]: [&Path; 2],
        sync_all: impl Fn() -> Result<(), Errno> + Send + Sync + 'static,
    ) -> (Arc<Job>, Arc<Dir>) {
        let (source, target) = (directory(from), directory(to));
        let volumes = Arc::new(Volumes::with(Volume::scripted(target.clone(), Box::new(sync_all))));
        let watch = Arc::new(Watch::default());
        let job = Arc::new(Job::new(Arc::new(Options::default()), target.clone(), volumes, "read", watch));
        let dir = Dir::new(&job, Vec::new(), source, (Some(target), job.volumes.first()));
        (job, Arc::new(dir))
    }

    fn items(dir: &Arc<Dir>, names: &[&str]) -> Vec<Item> {
        let item = |name: &&str| Item {
            dir: dir.clone(),
            name: name.as_bytes().into(),
            target_name: None,
            kind: libc::S_IFREG,
            seen: None,
            attempt: 0,
            is_first: false,
            by_itself: false,
        };
        names.iter().map(item).collect()
    }

    #[test]
    fn names_of_one_inode_are_replaced_one_after_the_other_and_nobody_elses_change() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        [&from, &to].iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let (_job, dir) = begun([&from, &to], || Ok(()));
        let write = |name: &str, text: &str| std::fs::write(to.join(name), text).unwrap();
        write("a", "old");
        ["b", "c"].iter().for_each(|name| std::fs::hard_link(to.join("a"), to.join(name)).unwrap());
        let items = items(&dir, &["a", "b", "c"]);
        let present: Vec<_> = items.iter().map(|item| item.present().unwrap()).collect();
        write(".part", "new");
        rename(&items[0], present[0].as_ref(), b".part").unwrap();
        write(".part", "new");
        rename(&items[1], present[1].as_ref(), b".part").unwrap();
        assert_eq!(std::fs::read_to_string(to.join("b")).unwrap(), "new");
        // The last has been written by somebody else, besides.
        write("c", "others");
        write(".part", "new");
        rename(&items[2], present[2].as_ref(), b".part").unwrap_err();
        assert_eq!(std::fs::read_to_string(to.join("c")).unwrap(), "others");
    }

    /// The kernel tells of an error once, to whichever thread asks first.
    #[test]
    fn an_error_that_another_thread_was_told_of_concerns_all_that_had_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        [&from, &to].iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let names = ["a", "b", "c", "d"];
        names.iter().for_each(|name| std::fs::write(from.join(name), name).unwrap());
        let calls = AtomicU64::new(0);
        let fails_once = move || if calls.fetch_add(1, Ordering::Relaxed) == 0 { Err(Errno::EIO) } else { Ok(()) };
        let (job, dir) = begun([&from, &to], fails_once);
        let [mut one, mut other] = [Worker::default(), Worker::default()];
        walk::all(&job, &mut one, items(&dir, &names[..2]));
        walk::all(&job, &mut other, items(&dir, &names[2..]));
        name_all(&job, &mut one);
        name_all(&job, &mut other);
        let named = || std::fs::read_dir(&to).unwrap().count();
        assert_eq!(named(), 0, "what may not be on the disk has its name");
        // They are copied anew, since nothing says that it fails again.
        run::work(&job, 0);
        assert_eq!((named(), job.told.troubles()), (4, 0));
        // Names that were given before the error may be lost, whoever was told.
        assert!(job.settle().is_err());
    }
}
