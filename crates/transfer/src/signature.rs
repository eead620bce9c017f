//! What has to be the same for an interrupted copy to go on: the options, and what the destination
//! meant.

use crate::options::{Options, Verify};
use crate::store::Store;

/// What a signature has where a directory became the destination, which was not there.
const BECOMES: &str = "a destination that was not there";

/// Between the parts of a signature.
const BETWEEN: &str = ", ";

/// The options that have to be the same, as the command line has them. `becomes`: the destination,
/// which was not there, is what a directory becomes that was named without a slash.
pub fn signature(options: &Options, is_sync: bool, becomes: bool) -> String {
    let Options { recursive, checksum, no_clobber, delete, manifest, verify, no_flush, recall, filter, .. } = options;
    let patterns = (!filter.takes_all()).then(|| {
        let text = serde_json::to_vec(filter).unwrap_or_default();
        format!("patterns or a list ({})", &blake3::hash(&text).to_hex()[..8])
    });
    let named = [
        (is_sync, "sync"),
        (!is_sync, "cp"),
        (*recursive && !is_sync, "-r"),
        (*checksum, "--checksum"),
        (*no_clobber, "--no-clobber"),
        (*delete, "--delete"),
        (manifest.is_some(), "--manifest"),
        (*verify == Verify::Stable, "--verify=stable"),
        (*verify == Verify::Off, "--verify=off"),
        (*no_flush, "--no-flush"),
        (*recall, "--recall"),
        (becomes, BECOMES),
    ];
    let given = named.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned());
    given.chain(patterns).collect::<Vec<_>>().join(BETWEEN)
}

/// Whether an interrupted run of the same copy, which is to go on, made the destination of a
/// directory: it is there now, and means what it did then. `name`: the journal's.
pub fn became(options: &Options, name: &str) -> bool {
    let folder = options.journals.as_ref().filter(|_| options.resume);
    let known = folder.and_then(|folder| Store::signature_of(folder, name));
    known.is_some_and(|known| known.split(BETWEEN).any(|part| part == BECOMES))
}

/// How a run that was interrupted differs from this one.
pub fn difference(interrupted: &str, now: &str) -> String {
    let without = |one: &str, other: &str| -> Vec<String> {
        one.split(BETWEEN).filter(|part| other.split(BETWEEN).all(|of| of != *part)).map(str::to_owned).collect()
    };
    match (without(interrupted, now).join(" and "), without(now, interrupted).join(" or ")) {
        (had, lacked) if lacked.is_empty() => format!("the run that was interrupted had {had}"),
        (had, lacked) if had.is_empty() => format!("the run that was interrupted did not have {lacked}"),
        (had, lacked) => format!("the run that was interrupted had {had}, and not {lacked}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        assert_eq!(difference("cp, -r, --delete", "cp, -r"), "the run that was interrupted had --delete");
        assert_eq!(difference("cp, -r", "cp, -r, --checksum"), "the run that was interrupted did not have --checksum");
        assert_eq!(
            difference("cp, -r, --delete", "sync, --checksum"),
            "the run that was interrupted had cp and -r and --delete, and not sync or --checksum"
        );
    }
}
