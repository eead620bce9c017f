//! Removes what the source does not have: after everything was copied, and only what is certain.
//!
//! All victims are known before the first is removed. An error, a listing that changed while it
//! was made, or a name that the destination has in another way than the source: nothing is
//! removed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use aqueduct_fs::{Errno, SetAttr, SetTime};
use aqueduct_worker::lock;

use crate::job::{Dir, Job, below};
use crate::outcome::{add, shown};
use crate::side::{Directory, Listed, Seen};
use crate::writable;

/// How often a directory is listed again that changes meanwhile.
const LISTINGS_MAX: usize = 3;

/// A name to remove.
struct Victim {
    /// The directory in which it is, below the root.
    directory: Vec<u8>,
    name: Box<[u8]>,
    is_directory: bool,
    /// It is below a directory that makes way for something else.
    makes_way: bool,
}

/// The search for what is to be removed.
struct Search<'a> {
    job: &'a Job,
    /// The directories of the source, as far as they are known: what is one of them stays, whatever
    /// way the destination leads there.
    sources: HashSet<Vec<u8>>,
    victims: Vec<Victim>,
    makes_way: bool,
}

/// Removes what is below `base` and not at the source. Why nothing was removed, if that is so.
pub fn delete(job: &Job, base: &Dir) -> Result<(), String> {
    if job.told.troubles() > 0 {
        return Err(format!("{} names could not be copied", job.told.troubles()));
    }
    let Some(target) = base.target.clone() else { return Ok(()) };
    let gone_through = std::mem::take(&mut *lock(&job.gone_through));
    let making_way = lock(&job.making_way).take().unwrap_or_default();
    // Agents of several hosts number file systems each in its own way.
    let known = gone_through.values().filter(|_| job.claim.is_none());
    let sources = known.map(Seen::identity).collect();
    let mut search = Search { job, sources, victims: Vec::new(), makes_way: false };
    for (path, seen) in &gone_through {
        let failed = |error: Errno| format!("{} could not be looked at again: {error}", shown(path));
        let target = match descend(&target, path) {
            // It would only be made, perhaps in the place of something else.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) if job.options.dry_run => continue,
            found => found.map_err(failed)?,
        };
        let source = as_copied(job, &base.source, path, seen)?;
        let before = search.victims.len();
        let is_empty = search.find(path, &*source, &*target)?;
        if is_empty && search.victims.len() > before && is_root(&gone_through, path) {
            let why = "the source is empty, and the destination is not: is it mounted?";
            return Err(format!("{}: {why}", shown(path)));
        }
    }
    search.make_way(&target, &making_way)?;
    let victims = search.victims;
    if let Some(most) = job.options.delete_max.filter(|most| victims.len() as u64 > *most) {
        return Err(format!("{} names would be removed, which is more than {most}", victims.len()));
    }
    remove(job, (&base.source, &target), &victims, &gone_through)
}

/// Whether a directory is what was to be copied: nothing above it was gone through.
fn is_root(gone_through: &BTreeMap<Vec<u8>, Seen>, path: &[u8]) -> bool {
    above(path).is_none_or(|above| !gone_through.contains_key(above))
}

/// The path of the directory in which a path lies; `None`: it is the root.
fn above(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    (!path.is_empty()).then(|| &path[..end])
}

/// Opens a directory of the source again. It has to be the one that was copied: where what was
/// mounted there is not any more, or it was exchanged, nothing in it is known.
fn as_copied(job: &Job, root: &Arc<dyn Directory>, path: &[u8], seen: &Seen) -> Result<Arc<dyn Directory>, String> {
    let failed = |error: Errno| format!("{} could not be looked at again: {error}", shown(path));
    let source = descend(root, path).map_err(failed)?;
    let now = source.seen().map_err(failed)?;
    // Agents of several hosts number file systems each in its own way.
    let is_same_device = job.claim.is_some() || now.device == seen.device;
    match now.is_same_inode(seen) && is_same_device {
        true => Ok(source),
        false => Err(format!("{} is another directory now than was copied", shown(path))),
    }
}

fn descend(root: &Arc<dyn Directory>, path: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(root.clone(), |directory, name| directory.directory(name))
}

/// The names of a directory, of one moment: a name that moves while it is listed may be in no
/// listing.
fn names_of(directory: &dyn Directory, path: &[u8]) -> Result<HashSet<Box<[u8]>>, String> {
    let failed = |error: Errno| format!("{} could not be listed again: {error}", shown(path));
    for _ in 0..LISTINGS_MAX {
        let before = directory.seen().map_err(failed)?;
        let mut names = HashSet::new();
        let mut found = |listed: Listed| {
            if !listed.is_part() {
                names.insert(listed.name);
            }
        };
        directory.list(&mut found).map_err(failed)?;
        if directory.seen().map_err(failed)?.is_as(&before) {
            return Ok(names);
        }
    }
    Err(format!("{} changes all the time", shown(path)))
}

impl Search<'_> {
    /// Finds the victims in one directory. Says whether the source has nothing in it.
    fn find(&mut self, path: &[u8], source: &dyn Directory, target: &dyn Directory) -> Result<bool, String> {
        let job = self.job;
        let failed = |error: Errno| format!("{} could not be listed: {error}", shown(path));
        let wanted = names_of(source, path)?;
        let (mut there, mut strange) = (HashSet::new(), Vec::new());
        let mut found = |listed: Listed| {
            match listed.is_part() {
                true => {} // another copy may be at it
                false if wanted.contains(&listed.name) => drop(there.insert(listed.name)),
                false => strange.push(listed),
            }
        };
        target.list(&mut found).map_err(failed)?;
        let is_meant = |name: &[u8], is_directory| job.options.filter.takes(&below(path, name), is_directory);
        if !strange.is_empty() && !job.options.dry_run {
            // A destination that spells a name in another way would list it as an unwanted one.
            let missing =
                wanted.iter().find(|name| !there.contains(*name) && is_meant(name, true) && is_meant(name, false));
            if let Some(name) = missing {
                let name = shown(&below(path, name));
                return Err(format!("the destination does not list {name}, which it should have"));
            }
        }
        let device = target.seen().map_err(failed)?.device;
        for listed in strange {
            match source.look(&listed.name) {
                Err(Errno::ENOENT) => {}
                Ok(_) => return Err(format!("{} has appeared at the source", shown(&below(path, &listed.name)))),
                Err(error) => {
                    return Err(format!("{} could not be looked for: {error}", shown(&below(path, &listed.name))));
                }
            }
            self.collect(path, target, device, &listed)?;
        }
        Ok(wanted.is_empty())
    }

    /// Adds what is below the directories that make way for something else. They have to be empty
    /// then.
    fn make_way(&mut self, target: &Arc<dyn Directory>, paths: &BTreeSet<Vec<u8>>) -> Result<(), String> {
        self.makes_way = true;
        for path in paths {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let directory = descend(target, above(path).unwrap_or_default());
            let directory = directory
                .and_then(|above| above.unmounted(name))
                .map_err(|error| format!("{} could not be looked at again: {error}", shown(path)))?;
            if !self.collect_below(path, &*directory)? {
                return Err(format!("{} has to make way, and has names that are excluded", shown(path)));
            }
        }
        Ok(())
    }

    /// Adds a victim, after all that is below it. Says whether it is one: what is excluded stays,
    /// and with it the directories above.
    fn collect(
        &mut self,
        path: &[u8],
        directory: &dyn Directory,
        device: u64,
        listed: &Listed,
    ) -> Result<bool, String> {
        let whole = below(path, &listed.name);
        let failed = |error: Errno| format!("{} could not be looked at: {error}", shown(&whole));
        let seen = directory.look(&listed.name).map_err(failed)?;
        let is_directory = seen.attr.is_directory();
        if !self.job.options.filter.takes(&whole, is_directory) {
            return Ok(false);
        }
        if seen.device != device {
            return Err(format!("{} is another file system", shown(&whole)));
        }
        if is_directory {
            if self.sources.contains(&seen.identity()) {
                return Err(format!("{} is a directory of the source, which lies in the destination", shown(&whole)));
            }
            let inner = match directory.unmounted(&listed.name) {
                Err(Errno::EXDEV) => return Err(format!("something is mounted on {}", shown(&whole))),
                inner => inner.map_err(failed)?,
            };
            if !self.collect_below(&whole, &*inner)? {
                return Ok(false);
            }
        }
        let (directory, name, makes_way) = (path.to_vec(), listed.name.clone(), self.makes_way);
        self.victims.push(Victim { directory, name, is_directory, makes_way });
        Ok(true)
    }

    /// Adds all that is in a directory. Says whether nothing stays there.
    fn collect_below(&mut self, path: &[u8], directory: &dyn Directory) -> Result<bool, String> {
        let failed = |error: Errno| format!("{} could not be looked at: {error}", shown(path));
        let device = directory.seen().map_err(failed)?.device;
        let mut entries = Vec::new();
        directory.list(&mut |listed| entries.push(listed)).map_err(failed)?;
        // What is not whole goes with its directory, and stays with it.
        let (parts, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(Listed::is_part);
        let mut is_empty = true;
        for entry in entries {
            is_empty &= self.collect(path, directory, device, &entry)?;
        }
        for part in parts.iter().filter(|_| is_empty) {
            self.collect(path, directory, device, part)?;
        }
        Ok(is_empty)
    }
}

/// Why a directory may not go with all that is in it, if that is so.
pub fn may_go(job: &Job, path: &[u8], directory: &dyn Directory) -> Result<(), String> {
    let mut search = Search { job, sources: HashSet::new(), victims: Vec::new(), makes_way: true };
    match search.collect_below(path, directory)? {
        true => Ok(()),
        false => Err("a name in it is excluded, and stays".to_owned()),
    }
}

/// The directory of a victim, and what the source has of it, if anything.
type Looked<'a> = (&'a [u8], Option<Arc<dyn Directory>>);

/// Looks once more that the source has nothing of a victim's name: since all were found others may
/// have been removed for a long time. `last`: the directory of the one before.
fn is_absent<'a>(
    job: &Job,
    (source, gone_through): (&Arc<dyn Directory>, &BTreeMap<Vec<u8>, Seen>),
    victim: &'a Victim,
    last: &mut Option<Looked<'a>>,
) -> Result<bool, String> {
    let path = &*victim.directory;
    let failed = |error: Errno| format!("{} could not be looked for: {error}", shown(path));
    let directory = match last {
        Some((path, directory)) if *path == victim.directory => directory.clone(),
        _ => {
            // What was copied has to be there still; what is only at the destination need not be.
            let mut known = path;
            while let (false, Some(above)) = (gone_through.contains_key(known), above(known)) {
                known = above;
            }
            let seen = gone_through.get(known).ok_or_else(|| format!("{} was not copied", shown(path)))?;
            let copied = as_copied(job, source, known, seen)?;
            match descend(&copied, &path[known.len()..]) {
                Err(Errno::ENOENT) => None,
                // There the source has what is no directory.
                Err(Errno::ENOTDIR | Errno::ELOOP) if victim.makes_way => None,
                directory => Some(directory.map_err(failed)?),
            }
        }
    };
    *last = Some((path, directory.clone()));
    match directory.map(|directory| directory.look(&victim.name)) {
        None | Some(Err(Errno::ENOENT)) => Ok(true),
        Some(looked) => looked.map(|_| false).map_err(failed),
    }
}

fn remove(
    job: &Job,
    (source, target): (&Arc<dyn Directory>, &Arc<dyn Directory>),
    victims: &[Victim],
    gone_through: &BTreeMap<Vec<u8>, Seen>,
) -> Result<(), String> {
    let mut last: Option<(&[u8], Arc<dyn Directory>)> = None;
    let mut last_source = None;
    for victim in victims {
        let path = below(&victim.directory, &victim.name);
        if job.options.dry_run {
            job.tell("would delete", &path);
            add(&job.counts.deleted, 1);
            continue;
        }
        // Whoever has another's claim, or ended the job, may have something made there since.
        job.may_go_on().map_err(|fault| format!("{} stays, and what comes after it: {}", shown(&path), fault.why))?;
        let failed = |error: Errno| format!("{} could not be removed, nor what comes after it: {error}", shown(&path));
        let is_absent = is_absent(job, (source, gone_through), victim, &mut last_source);
        if !is_absent.map_err(|why| format!("{} stays, and what comes after it: {why}", shown(&path)))? {
            return Err(format!("{} has appeared at the source: it stays, and what comes after it", shown(&path)));
        }
        let directory = match &last {
            Some((path, directory)) if *path == victim.directory => directory.clone(),
            _ => descend(target, &victim.directory).map_err(failed)?,
        };
        let removed = writable::within(&*directory, |directory| match victim.is_directory {
            true => directory.remove_directory(&victim.name),
            false => directory.unlink(&victim.name),
        });
        if let ((), Some(mode)) = removed.map_err(failed)?
            && let Err(error) = writable::set(&*directory, mode)
        {
            job.told.lost(&victim.directory, "mode".to_owned(), error);
        }
        last = Some((&victim.directory, directory));
        add(&job.counts.deleted, 1);
        job.tell("deleted", &path);
    }
    // Their directories have the times of the source again.
    let changed: HashSet<&[u8]> = victims.iter().map(|victim| victim.directory.as_slice()).collect();
    for (path, seen) in gone_through.iter().filter(|(path, _)| changed.contains(path.as_slice())) {
        if job.options.dry_run {
            break;
        }
        let at = |time| Some(SetTime::At(time));
        let times = SetAttr { atime: at(seen.attr.atime), mtime: at(seen.attr.mtime), ..SetAttr::default() };
        if let Err(error) = descend(target, path).and_then(|directory| directory.set(&times)) {
            job.told.lost(path, "times".to_owned(), error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use aqueduct_wire::Checksums;

    use super::*;
    use crate::flush::Volumes;
    use crate::ledger::Watch;
    use crate::options::Options;
    use crate::side::{Access, Place};

    fn directory(path: &Path) -> Arc<dyn Directory> {
        let access = Access::new(None, Checksums::Auto, 1);
        Place::parse(path.as_os_str()).unwrap().find_target(&access).unwrap().directory().unwrap()
    }

    /// A copy of `from` to `to` that is done, and deletes next.
    fn done(from: &Path, to: &Path) -> (Arc<Job>, Dir) {
        let stop = Some(Arc::default());
        let options = Arc::new(Options { recursive: true, delete: true, stop, ..Options::default() });
        let (source, target) = (directory(from), directory(to));
        let volumes = Arc::new(Volumes::new(target.clone(), true));
        let job = Arc::new(Job::new(options, target.clone(), volumes, "read", Arc::new(Watch::default())));
        for path in ["", "d"] {
            job.goes_through(path.as_bytes(), &directory(&from.join(path)).seen().unwrap());
        }
        let base = Dir::new(&job, Vec::new(), source, (Some(target), job.volumes.first()));
        (job, base)
    }

    fn sides() -> (tempfile::TempDir, [std::path::PathBuf; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let sides = ["from", "to"].map(|side| folder.path().join(side));
        for side in &sides {
            fs::create_dir_all(side.join("d")).unwrap();
            fs::write(side.join("d/kept"), "").unwrap();
        }
        fs::write(sides[1].join("d/old"), "").unwrap();
        (folder, sides)
    }

    #[test]
    fn what_the_source_does_not_have_is_removed() {
        let (_folder, [from, to]) = sides();
        let (job, base) = done(&from, &to);
        delete(&job, &base).unwrap();
        assert!(to.join("d/kept").exists() && !to.join("d/old").exists());
    }

    #[test]
    fn a_job_that_was_ended_removes_nothing_more() {
        let (_folder, [from, to]) = sides();
        let (job, base) = done(&from, &to);
        job.options.stop.as_ref().unwrap().store(true, std::sync::atomic::Ordering::Release);
        let why = delete(&job, &base).unwrap_err();
        assert!(why.contains("ended"), "{why}");
        assert!(to.join("d/kept").exists() && to.join("d/old").exists());
    }

    /// As when what was mounted at the source is not any more: all of it would be removed.
    #[test]
    fn a_directory_that_is_another_than_was_copied_removes_nothing() {
        let (_folder, [from, to]) = sides();
        let (job, base) = done(&from, &to);
        fs::rename(from.join("d"), from.join("away")).unwrap();
        fs::create_dir(from.join("d")).unwrap();
        let why = delete(&job, &base).unwrap_err();
        assert!(why.contains("another directory"), "{why}");
        assert!(to.join("d/kept").exists() && to.join("d/old").exists());
    }

    #[test]
    fn what_has_appeared_since_it_was_looked_for_stays() {
        let (_folder, [from, to]) = sides();
        let (job, base) = done(&from, &to);
        fs::create_dir(to.join("gone")).unwrap();
        fs::write(to.join("gone/x"), "").unwrap();
        let victim = |directory: &str, name: &str| Victim {
            directory: directory.as_bytes().into(),
            name: name.as_bytes().into(),
            is_directory: false,
            makes_way: false,
        };
        let victims = [victim("gone", "x"), victim("d", "old"), victim("d", "kept")];
        fs::write(from.join("d/old"), "").unwrap();
        let target = base.target.clone().unwrap();
        let gone_through = std::mem::take(&mut *lock(&job.gone_through));
        let why = remove(&job, (&base.source, &target), &victims, &gone_through).unwrap_err();
        assert!(why.contains("d/old has appeared"), "{why}");
        assert!(!to.join("gone/x").exists() && to.join("d/old").exists() && to.join("d/kept").exists());
    }

    /// As when what was mounted at the source goes away while others are removed.
    #[test]
    fn a_source_that_goes_away_meanwhile_is_not_taken_for_one_without_the_names() {
        let (_folder, [from, to]) = sides();
        let (job, base) = done(&from, &to);
        let target = base.target.clone().unwrap();
        let gone_through = std::mem::take(&mut *lock(&job.gone_through));
        let victim = || Victim {
            directory: b"d".into(),
            name: b"kept".as_slice().into(),
            is_directory: false,
            makes_way: false,
        };
        let victims = || [victim()];
        fs::rename(from.join("d"), from.join("away")).unwrap();
        let why = remove(&job, (&base.source, &target), &victims(), &gone_through).unwrap_err();
        assert!(why.contains("d could not be looked at again"), "{why}");
        fs::create_dir(from.join("d")).unwrap();
        let why = remove(&job, (&base.source, &target), &victims(), &gone_through).unwrap_err();
        assert!(why.contains("another directory"), "{why}");
        assert!(to.join("d/kept").exists());
    }

    /// Whether it is the root itself or a name in another directory, which is how a source is
    /// copied that is written without a slash.
    #[test]
    fn an_empty_source_removes_nothing_under_whatever_name() {
        for path in ["", "d"] {
            let (_folder, [from, to]) = sides();
            let (job, base) = done(&from, &to);
            lock(&job.gone_through).retain(|of, _| of == path.as_bytes());
            fs::remove_dir_all(from.join("d")).unwrap();
            fs::create_dir(from.join("d")).unwrap();
            if path.is_empty() {
                fs::remove_dir(from.join("d")).unwrap();
            }
            lock(&job.gone_through).values_mut().for_each(|seen| *seen = directory(&from.join(path)).seen().unwrap());
            let why = delete(&job, &base).unwrap_err();
            assert!(why.contains("is it mounted?"), "{path}: {why}");
            assert!(to.join("d/kept").exists() && to.join("d/old").exists());
        }
    }
}
