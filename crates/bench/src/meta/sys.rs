//! close(2) with its error, which the standard library keeps to itself.

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a file and gives the error of that: file systems that write late report it here.
pub fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor has just been given up by its only owner, so nobody else uses or closes it.
    let result = unsafe { libc::close(file.into_raw_fd()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
