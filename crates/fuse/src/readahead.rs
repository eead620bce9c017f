//! How far the kernel reads ahead on a mount: 128 KiB unless it is told, and INIT can only lower it. A setting of the mount's "backing device", for root.

use std::fs;

/// Has the kernel read so many bytes ahead for programs that read a file from beginning to end.
/// `number` is the connection's. A value that cannot be set stays as it is, and reads are slower.
pub(crate) fn set(number: u32, bytes: usize) {
    let done = fs::write(format!("/sys/class/bdi/0:{number}/read_ahead_kb"), (bytes >> 10).to_string());
    if let Err(error) = done {
        tracing::debug!(%error, number, "the kernel reads ahead as far as it does anyway");
    }
}
