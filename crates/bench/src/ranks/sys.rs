//! The one thing about ranks that the compiler cannot check: a descriptor that a launcher has left open.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// A duplicate of the open descriptor of this number.
pub(super) fn inherited(number: RawFd) -> std::io::Result<OwnedFd> {
    if number < 0 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is not -1, and borrowed only for the one call that duplicates it; if nothing is open under the number that call says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
}
