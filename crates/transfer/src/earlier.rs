//! What the sources before one have of its names: of two files of one name the second would
//! replace the first, that this copy itself has just made.

use std::sync::Arc;

use aqueduct_fs::Errno;

use crate::outcome::{Fault, Trying};
use crate::side::{Directory, Seen};

/// A directory of a source before.
pub struct Earlier {
    directory: Arc<dyn Directory>,
    /// All that is copied of it: a name there, and what that becomes. `None`: everything is.
    only: Option<(Vec<u8>, Vec<u8>)>,
}

fn found<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        result => result.map(Some),
    }
}

impl Earlier {
    /// The directory of a source, or that in which the only name of it is.
    pub fn new(directory: Arc<dyn Directory>, only: Option<(Vec<u8>, Vec<u8>)>) -> Earlier {
        Earlier { directory, only }
    }

    /// The name there of what is called so at the destination; `None`: it is not copied.
    fn name<'a>(&'a self, name: &'a [u8]) -> Option<&'a [u8]> {
        match &self.only {
            None => Some(name),
            Some((there, becomes)) => (becomes == name).then_some(there),
        }
    }

    /// The names that it gives to what is copied of it.
    pub fn names(&self, found: &mut dyn FnMut(&[u8])) -> Result<(), Errno> {
        match &self.only {
            Some((_, becomes)) => found(becomes),
            None => self.directory.list(&mut |listed| found(&listed.name))?,
        }
        Ok(())
    }

    fn look(&self, name: &[u8]) -> Result<Option<Seen>, Errno> {
        self.name(name).map_or(Ok(None), |name| found(self.directory.look(name)))
    }

    fn below(&self, name: &[u8]) -> Result<Option<Earlier>, Errno> {
        let Some(name) = self.name(name) else { return Ok(None) };
        let directory = found(self.directory.directory(name))?;
        Ok(directory.map(|directory| Earlier { directory, only: None }))
    }
}

/// What the sources before have in a directory of theirs.
pub fn below(earlier: &[Earlier], name: &[u8]) -> Result<Vec<Earlier>, Errno> {
    earlier.iter().filter_map(|one| one.below(name).transpose()).collect()
}

/// Whether a source before has a name of the destination, as another file than this.
pub fn has(earlier: &[Earlier], name: &[u8], own: impl Fn() -> Result<Seen, Errno>) -> Result<bool, Fault> {
    for earlier in earlier {
        let Some(other) = earlier.look(name).trying("looking for it at the sources before")? else { continue };
        if own().trying("looking at it")?.identity() != other.identity() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// That a source before has the name.
pub fn fault() -> Fault {
    Fault::new("copying it", "a source named before has this name too, and its file would be replaced")
}
