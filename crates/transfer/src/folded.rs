//! Names of a source that are one name at a destination which ignores case: the second would go
//! over the first, and nobody would know.

use std::collections::{HashMap, HashSet};

use aqueduct_fs::Errno;

use crate::job::{Dir, Item, below};
use crate::outcome::{Fault, Trying};
use crate::side::{Directory, Listed, Seen};

fn folded(name: &[u8]) -> Vec<u8> {
    std::str::from_utf8(name).map_or_else(|_| name.to_ascii_lowercase(), |name| name.to_lowercase().into_bytes())
}

/// The name with other letters; `None`: it has none that could be others.
fn otherwise(name: &[u8]) -> Option<Vec<u8>> {
    let lower = folded(name);
    let upper = || std::str::from_utf8(name).map_or(name.to_ascii_uppercase(), |name| name.to_uppercase().into_bytes());
    let other = if lower == name { upper() } else { lower };
    (other != name).then_some(other)
}

/// Whether a directory lists just this name.
pub fn lists(directory: &dyn Directory, name: &[u8]) -> Result<bool, Errno> {
    let mut is_listed = false;
    directory.list(&mut |listed| is_listed |= *listed.name == *name)?;
    Ok(is_listed)
}

/// Whether a directory takes two names for one that differ in the case of their letters. What has
/// both names may be one inode's as well: then both are listed.
fn ignores_case(directory: &dyn Directory, name: &[u8], other: &[u8], present: &Seen) -> Result<bool, Errno> {
    match directory.look(other) {
        Err(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error),
        Ok(seen) if seen.identity() != present.identity() => Ok(false),
        Ok(_) => Ok(lists(directory, name)? != lists(directory, other)?),
    }
}

/// Names that are to be copied, by this source or by those before it, and that differ in the case
/// of letters only, as [`folded`] has them.
fn twins(dir: &Dir, own: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let mut known: HashMap<Vec<u8>, HashSet<Vec<u8>>> = HashMap::new();
    let mut add = |name: &[u8]| {
        known.entry(folded(name)).or_default().insert(name.to_vec());
    };
    // Of the directory in which a source is that one is copied alone.
    if dir.path.is_empty() && dir.seen.is_none() && dir.job.claim.is_none() {
        add(own);
    } else {
        let is_meant = |listed: &Listed| {
            let path = below(&dir.path, &listed.name);
            !listed.is_part() && dir.job.options.filter.takes(&path, listed.kind == libc::S_IFDIR)
        };
        dir.source.list(&mut |listed| {
            if is_meant(&listed) {
                add(&listed.name)
            }
        })?;
    }
    dir.earlier.iter().try_for_each(|earlier| earlier.names(&mut add))?;
    Ok(known.into_iter().filter(|(_, names)| names.len() > 1).map(|(name, _)| name).collect())
}

/// Refuses a name that the destination, which has something of this name, takes for another that
/// is copied.
pub fn is_only_one(item: &Item, present: &Seen) -> Result<(), Fault> {
    let name = item.target_name();
    let Some(other) = otherwise(name) else { return Ok(()) };
    let dir = &item.dir;
    let known = match dir.twins.get() {
        Some(known) => known,
        None => {
            let ignores = ignores_case(item.target()?, name, &other, present);
            let found = match ignores.trying("looking whether the destination ignores case")? {
                true => twins(dir, name).trying("listing the source again")?,
                false => Vec::new(),
            };
            dir.twins.get_or_init(|| found)
        }
    };
    match known.contains(&folded(name)) {
        true => Err(fault()),
        false => Ok(()),
    }
}

/// That the destination takes a name for another one.
pub fn fault() -> Fault {
    let why = "the destination ignores case, and takes it for another name that is copied, which would be replaced: \
               rename one of them";
    Fault::new("copying it", why)
}

#[cfg(test)]
#[path = "folded_tests.rs"]
mod tests;
