//! Paths of a list that are nowhere to be found: who lists them believes them copied.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use aqueduct_fs::Errno;
use aqueduct_worker::lock;

use crate::filter::Filter;
use crate::outcome::{Fault, Told};
use crate::side::Directory;

/// The paths of a list that no source was seen to have so far.
#[derive(Debug, Default)]
pub struct Unseen(Option<Mutex<BTreeSet<Vec<u8>>>>);

impl Unseen {
    /// All of a list, if there is one.
    pub fn new(filter: &Filter) -> Unseen {
        Unseen(filter.list().map(|list| Mutex::new(list.cloned().collect())))
    }

    /// A path is there.
    pub fn seen(&self, path: impl FnOnce() -> Vec<u8>) {
        if let Some(unseen) = &self.0 {
            lock(unseen).remove(&path());
        }
    }

    /// Tells what is not there, of the paths that were not come upon.
    pub fn tell(&self, sources: &[Arc<dyn Directory>], told: &Told) {
        let Some(unseen) = &self.0 else { return };
        for path in std::mem::take(&mut *lock(unseen)) {
            if let Err(error) = look(sources, &path) {
                tell(told, &path, error);
            }
        }
    }
}

/// Tells that a listed path is in no source.
pub fn tell(told: &Told, path: &[u8], error: Errno) {
    told.trouble(path, &Fault::new("looking for it, since it is listed", error));
}

/// Looks for a path below the sources. What one of them has is there, though patterns may leave it
/// out.
fn look(sources: &[Arc<dyn Directory>], path: &[u8]) -> Result<(), Errno> {
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let Some(last) = names.pop() else { return Ok(()) };
    let mut why = Errno::ENOENT;
    for source in sources {
        let directory = names.iter().try_fold(source.clone(), |directory, name| directory.directory(name));
        match directory.and_then(|directory| directory.look(last)) {
            Ok(_) => return Ok(()),
            Err(error) => why = error,
        }
    }
    Err(why)
}
