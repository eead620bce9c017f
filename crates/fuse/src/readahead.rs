//! How far the kernel reads ahead on a mount: 128 KiB unless it is told, and INIT can only lower it. A setting of the mount's "backing device", for root.

use std::fs;
use std::path::Path;

use crate::table::number_at;

/// Has the kernel read so many bytes ahead for who reads a file from its beginning to its end. What cannot be set stays as it is, and is slower.
pub(crate) fn set(target: &Path, bytes: usize) {
    let done = number_at(target)
        .and_then(|number| fs::write(format!("/sys/class/bdi/0:{number}/read_ahead_kb"), (bytes >> 10).to_string()));
    if let Err(error) = done {
        tracing::debug!(%error, target = %target.display(), "the kernel reads ahead as far as it does anyway");
    }
}
