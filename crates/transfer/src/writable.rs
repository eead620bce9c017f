//! Directories to which their owner may not write, as sources have them: he may while a copy is at
//! work in them, as rsync has it.

use aqueduct_fs::{Errno, SetAttr};

use crate::side::Directory;

/// What it takes to make and remove names, of a directory's owner.
const OWN: u32 = 0o300;

/// Does something in a directory. If it is refused, and we may give the directory another mode, it
/// is tried again with one that lets its owner in. Says which mode the directory had before, if it
/// has another now.
pub fn within<T>(
    directory: &dyn Directory,
    work: impl Fn(&dyn Directory) -> Result<T, Errno>,
) -> Result<(T, Option<u32>), Errno> {
    match work(directory) {
        Err(Errno::EACCES) => {}
        done => return done.map(|done| (done, None)),
    }
    let mode = directory.seen()?.attr.mode & 0o7777;
    let was = (mode & OWN != OWN).then_some(mode); // else another thread may have changed it
    if was.is_some() {
        set(directory, mode | OWN).map_err(|_| Errno::EACCES)?;
    }
    let done = work(directory);
    if let (Err(_), Some(mode)) = (&done, was) {
        let _ = set(directory, mode); // the work's error is the one to tell
    }
    done.map(|done| (done, was))
}

/// Gives a directory a mode.
pub fn set(directory: &dyn Directory, mode: u32) -> Result<(), Errno> {
    directory.set(&SetAttr { mode: Some(mode), ..SetAttr::default() })
}
