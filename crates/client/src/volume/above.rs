//! Who stands above a volume.

use aqueduct_fs::Hold;
use aqueduct_session::Holder;

/// Whoever keeps what one session of a volume grants.
pub(crate) trait Above: Holder {
    /// Something has come to its end that a lease may have waited for: an open that was being
    /// made, or data on their way to another session.
    fn settled(&self);

    /// Until what is returned is dropped, no other client changes the content of this inode.
    /// `None`: one might.
    fn hold_content(&self, handle: &[u8]) -> Option<Hold>;
}
