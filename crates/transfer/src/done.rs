//! What is noted of a file that is copied.

use crate::hash::Hash;
use crate::job::{Item, Job};
use crate::manifest::Line;
use crate::outcome::add;
use crate::side::{Seen, Xattrs};
use crate::store::fingerprint;

/// A file that has its name.
pub struct Copied<'a> {
    /// The source, as it was copied.
    pub seen: &'a Seen,
    /// The extended attributes that it was given.
    pub xattrs: &'a Xattrs,
    /// Its hash, if wanted.
    pub hash: Option<&'a Hash>,
    /// How its data were checked.
    pub check: &'static str,
}

/// Says of a file that it is copied. `target`: looks at it, for a later run.
pub fn copied(job: &Job, item: &Item, done: &Copied<'_>, target: impl FnOnce() -> Option<Seen>) {
    let (path, Copied { seen, xattrs, hash, check }) = (item.path(), done);
    let after = match &job.store {
        Some(store) if store.is_journal => target().map(|seen| fingerprint(&seen)).unwrap_or_default(),
        _ => Vec::new(),
    };
    job.told.checked(check);
    job.record(&path, &|| Line::new(&path, seen, xattrs, *hash, None), seen, &after);
    settle(job, &path, seen);
    add(&job.counts.files, 1);
    add(&job.counts.bytes, seen.attr.size);
    add(&job.watch.names, 1);
    job.tell("copied", &path);
}

/// Those that waited for the first name of an inode go on.
pub fn settle(job: &Job, path: &[u8], seen: &Seen) {
    if seen.attr.nlink > 1 {
        let waiting = job.links.done(&seen.moment(), path);
        if !waiting.is_empty() {
            job.queue.again(waiting);
        }
    }
}
