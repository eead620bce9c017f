//! What makes way for a name of another type in a `sync`, as rsync has it: what is no directory for
//! anything, and a directory where nothing is in it, or with all that is in it where what the
//! source does not have is removed.

use std::sync::Arc;

use aqueduct_fs::Errno;
use aqueduct_worker::lock;

use crate::delete;
use crate::job::{Item, Job};
use crate::outcome::{Fault, Trying};
use crate::side::{Directory, Seen};

/// Whether what has a name at the destination may make way for what is no directory. A directory
/// with names in it does at the end, when others are removed: see [`Job::waits`].
pub fn may_make_way(job: &Job, item: &Item, present: &Seen) -> Result<(), Fault> {
    if !present.attr.is_directory() {
        return Ok(());
    }
    if !job.options.update || job.options.no_clobber {
        return Err(Fault::new("copying it", "at the destination its name is a directory's, which is not replaced"));
    }
    let fault = |why: &str| {
        let why = format!("at the destination its name is that of a directory with names in it, which stays: {why}");
        Fault::new("replacing it", why)
    };
    let directory = match item.target()?.unmounted(item.target_name()) {
        Err(Errno::EXDEV) => return Err(fault("something is mounted there")),
        directory => directory.trying("opening the directory that has its name")?,
    };
    let mut is_empty = true;
    directory.list(&mut |_| is_empty = false).trying("listing the directory that has its name")?;
    if is_empty {
        return Ok(());
    }
    if !job.options.delete {
        return Err(fault("remove it, or add --delete"));
    }
    if job.claim.is_some() {
        return Err(fault("agents of a store remove none; remove it, or sync without --store"));
    }
    // Before anything of it is copied.
    let path = item.path();
    delete::may_go(job, &path, &*directory).map_err(|why| fault(&why))?;
    match &mut *lock(&job.making_way) {
        Some(paths) => drop(paths.insert(path)),
        None => return Err(fault("something was made in it meanwhile")),
    }
    Ok(())
}

/// Makes a directory where something else has its name, which goes once the directory is there.
/// `None`: it would only be made.
pub fn with_directory(
    job: &Job,
    item: &Item,
    (source, present): (&dyn Directory, &Seen),
    make: impl FnOnce() -> Result<Arc<dyn Directory>, Fault>,
) -> Result<Option<Arc<dyn Directory>>, Fault> {
    if !job.options.update || job.options.no_clobber {
        return Err(Fault::new("making it", "at the destination its name is that of something else"));
    }
    // What cannot be read replaces nothing.
    source.list(&mut |_| {}).trying("listing it")?;
    if job.options.dry_run {
        job.replaces(item, Some(present));
        return Ok(None);
    }
    job.may_go_on()?;
    let (target, name, part) = (item.target()?, item.target_name(), job.part_name());
    item.making("moving what has its name aside", |directory| directory.rename(name, &part, false))?;
    let back = || {
        let _ = target.rename(&part, name, false); // else its name says what it is
    };
    let moved = target.look(&part).trying("looking at what had its name").inspect_err(|_| back())?;
    if moved.identity() != present.identity() || moved.attr.kind() != present.attr.kind() {
        back();
        return Err(Fault::new("making it", "what has its name at the destination is another meanwhile"));
    }
    let made = make().inspect_err(|_| back())?;
    item.making("removing what had its name", |directory| directory.unlink(&part))?;
    job.replaces(item, Some(present));
    Ok(Some(made))
}
