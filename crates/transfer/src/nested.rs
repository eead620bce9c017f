//! A source and a destination that lie in one another: what `--delete` removes of the one would be
//! the other.

use std::sync::Arc;

use aqueduct_fs::Errno;

use crate::Failure;
use crate::filter::Filter;
use crate::job::below;
use crate::options::Options;
use crate::side::{Directory, Place, Root};

/// Directories above one, at most, that are looked at.
const ABOVE_MAX: usize = 4096;

/// Refuses a copy that would remove its source. What is excluded stays, so that it is no reason.
/// `goes_inside`: the source gets its name in the destination.
pub fn check(
    options: &Options,
    (place, root): (&Place, &Root),
    (target_place, target_root): (&Place, &Root),
    goes_inside: bool,
) -> Result<(), Failure> {
    let Ok(source) = root.directory() else { return Ok(()) }; // no directory: nothing is removed
    if !options.delete {
        return Ok(());
    }
    let refused = |why: &str, hint: String| {
        let what = format!("cannot sync {place} to {target_place} with --delete");
        Err(Failure::usage(what, why, hint))
    };
    let name = root.name.as_deref().filter(|_| goes_inside);
    let folder = target_root.directory().ok();
    let target = match (&folder, name) {
        (Some(folder), Some(name)) => folder.directory(name).ok(),
        (folder, _) => folder.clone(),
    };
    let between = place.below(target_place);
    // Below the destination's own name of the source, if it has one there.
    let inside = between.as_deref().and_then(|path| match name {
        None => Some(path.to_vec()),
        Some(name) if path == name => Some(Vec::new()),
        Some(name) => path.strip_prefix(name)?.strip_prefix(b"/").map(<[u8]>::to_vec),
    });
    if inside.is_some() || target.as_ref().is_some_and(|target| lies_in(&source, target)) {
        if inside.as_ref().is_some_and(Vec::is_empty) || target.is_some_and(|target| is_one(&source, &target)) {
            return refused("the source and the destination are the same directory", "name another".to_owned());
        }
        let path = inside.map(|path| name.map_or(path.clone(), |name| below(name, &path)));
        if !path.as_ref().is_some_and(|path| is_left_out(&options.filter, path)) {
            let hint = "leave --delete out, or name a destination that does not have the source in it";
            return refused("the source lies in the destination, and would be removed", hint.to_owned());
        }
    }
    let path = target_place.below(place);
    // What is missing of the destination is made in the directory above it.
    let above = folder.unwrap_or_else(|| target_root.parent.clone());
    if path.is_some() || lies_in(&above, &source) {
        let path = path.map(|path| name.map_or(path.clone(), |name| below(name, &path)));
        if !path.as_ref().is_some_and(|path| is_left_out(&options.filter, path)) {
            let hint = "name a destination outside of the source, or leave it out with --exclude";
            return refused("the destination lies in the source, and would be copied into itself", hint.to_owned());
        }
    }
    Ok(())
}

/// Whether a path, or one above it, is excluded.
fn is_left_out(filter: &Filter, path: &[u8]) -> bool {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.chain([path.len()]).any(|end| !filter.takes(&path[..end], true))
}

fn is_one(one: &Arc<dyn Directory>, other: &Arc<dyn Directory>) -> bool {
    let identity = |of: &Arc<dyn Directory>| of.seen().map(|seen| seen.identity());
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether a directory is another, or lies in it, as far as can be seen.
fn lies_in(directory: &Arc<dyn Directory>, other: &Arc<dyn Directory>) -> bool {
    let mut at = directory.clone();
    for _ in 0..ABOVE_MAX {
        if is_one(&at, other) {
            return true;
        }
        match at.above() {
            Ok(Some(above)) => at = above,
            Ok(None) | Err(Errno::EACCES) => return false,
            Err(error) => {
                tracing::debug!("what is above a directory cannot be told: {error}");
                return false;
            }
        }
    }
    false
}
