//! What was agreed with the kernel.

use crate::abi::InitFlags;

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The lower of the two minor versions.
    pub minor: u32,
    /// The capabilities in force.
    pub flags: InitFlags,
    /// The most bytes that one READ or WRITE carries.
    pub max_transfer: u32,
}

impl Negotiated {
    /// Whether requests come by io_uring.
    pub fn over_io_uring(&self) -> bool {
        self.flags.contains(InitFlags::OVER_IO_URING)
    }

    /// Whether files that are open for direct I/O can be mapped shared.
    pub fn maps_direct_io(&self) -> bool {
        self.flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP)
    }
}
