//! Why a mount could not be served.

use std::io;

use aqueduct_fs::Errno;

use crate::abi;

/// Why a mount could not be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel's protocol is older than what is served.
    #[error(
        "this kernel speaks FUSE protocol {major}.{minor}, but {}.{} is the oldest served: use Linux 4.18 or later",
        abi::MAJOR,
        abi::MINOR_MIN
    )]
    #[allow(missing_docs, reason = "versions")]
    KernelTooOld { major: u32, minor: u32 },
    /// What came over the connection was no INIT, or nothing came.
    #[error("the kernel did not begin the FUSE connection with INIT: it was used before, or is none; mount again")]
    NoInit,
    /// The mount was removed before it was served.
    #[error("the mount ended before it was served: somebody unmounted it; mount again")]
    Ended,
    /// The file system has no root to show.
    #[error("cannot get the root of the file system: {0}")]
    Root(Errno),
    /// No worker group was given, or the one given has stopped.
    #[error("no running worker group was given to serve the mount")]
    NoGroup,
    /// The operating system refused something.
    #[error("cannot serve the mount: {0}")]
    Io(#[from] io::Error),
}
