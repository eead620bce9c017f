//! The space that a server has, as its clients are told.

use aqueduct_fs::Request;
use aqueduct_layout::is_nearly_full;

use crate::attach::{AttachConfig, Attachment, Carriers, caller};

/// The space of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub bytes: u64,
    /// What may still be used.
    pub free: u64,
}

impl Space {
    /// What an export tells; `None`: its server does not.
    pub fn of(config: &AttachConfig) -> Option<Space> {
        let attachment = Attachment::connect(config, Carriers::Caller).ok()?;
        let root = attachment.call(&caller(), Request::Root).ok()?.entry().ok()?.handle;
        let space = attachment.call(&caller(), Request::Statfs { handle: root.bytes() }).ok()?.statfs().ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.fragment_size.into());
        Some(Space { bytes: bytes(space.blocks), free: bytes(space.blocks_available) })
    }

    /// What is left when another's is not counted.
    pub fn without(self, other: &Space) -> Space {
        Space { bytes: self.bytes.saturating_sub(other.bytes), free: self.free.saturating_sub(other.free) }
    }

    /// How much is used, in thousandths.
    pub fn used_permille(&self) -> u64 {
        let used = u128::from(self.bytes.saturating_sub(self.free));
        (used * 1000 / u128::from(self.bytes.max(1))) as u64
    }

    /// Whether new files of plain directories avoid it.
    pub fn is_avoided(&self) -> bool {
        is_nearly_full(self.free, self.bytes)
    }
}
