//! What this kernel's FUSE offers: asked by a mount that ends before it is served.
//!
//! The flags of INIT tell it. Versions do not: distributions carry features back, and leave some
//! out.

use std::path::Path;

use crate::abi::{self, InitFlags};
use crate::error::StartError;
use crate::init::{self, Offered};
use crate::mount::{self, MountError, MountOptions};

/// What a kernel offers, by the first message of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The minor version of its protocol; the major one is 7.
    pub minor: u32,
    flags: InitFlags,
}

/// Something that kernels have or have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Requests of more than 128 KiB (Linux 4.20).
    LargeRequests,
    /// Attributes may be kept under a lease (Linux 5.10).
    Attributes,
    /// Closes of files that were only read need not be told (Linux 5.16).
    QuietCloses,
    /// Files without a name, O_TMPFILE (Linux 6.1).
    UnnamedFiles,
    /// Files that are open for direct I/O can be mapped shared (Linux 6.6).
    SharedMappings,
    /// Names may be kept under a lease, since all can be taken back without waiting (Linux 6.16).
    Names,
    /// Requests by io_uring (Linux 6.14, with the parameter `enable_uring` of the module `fuse`).
    Rings,
}

/// Why a kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// It does not let us mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The mount did not begin as one does.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Offer {
    /// What a kernel offers that says so in the first message of a mount.
    pub fn told(minor: u32, flags: u64) -> Offer {
        Offer { minor, flags: InitFlags::from_bits_retain(flags) }
    }

    /// Whether it has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::LargeRequests => self.flags.contains(InitFlags::MAX_PAGES),
            Feature::Attributes => self.minor >= abi::MINOR_ATTRIBUTES,
            Feature::QuietCloses => self.minor >= abi::MINOR_NOFLUSH,
            Feature::UnnamedFiles => self.minor >= abi::MINOR_TMPFILE,
            Feature::SharedMappings => self.flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP),
            Feature::Names => self.minor >= abi::MINOR_EPOCH && self.flags.contains(InitFlags::POSIX_ACL),
            Feature::Rings => self.flags.contains(InitFlags::OVER_IO_URING),
        }
    }
}

/// Mounts on `target`, an empty directory that nobody else uses, reads what the kernel offers, and
/// unmounts. Nothing is answered: whoever looks into the directory meanwhile gets an error.
pub fn offered(target: &Path) -> Result<Offer, OfferError> {
    let device = mount::mount(target, &MountOptions { source: "aqueduct".into(), ..MountOptions::default() })?;
    let offered = init::peek(&device);
    mount::abandon(target, device.number)?;
    let Offered { minor, flags, .. } = offered?;
    Ok(Offer { minor, flags })
}
