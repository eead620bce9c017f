//! Who stands above a volume.

use std::sync::Arc;

use aqueduct_fs::{Hold, Layout};
use aqueduct_session::{Brought, Holder};

/// Whoever keeps what one session of a volume grants.
pub(crate) trait Above: Holder {
    /// Something has come to its end that a lease may have waited for: an open that was being
    /// made, or data on their way to another session.
    fn settled(&self);

    /// Until what is returned is dropped, no other client changes the content of this inode.
    /// `None`: one might.
    fn hold_content(&self, handle: &[u8]) -> Option<Hold>;

    /// Keeps the lease that came with an answer, and nothing else. `of`: the number of the question,
    /// and what the answer brought.
    fn keep_lease(&self, handle: &[u8], of: (u64, &Brought));

    /// The number of a question that is asked now.
    fn number(&self) -> u64;

    /// Where the bytes of a file lie, as it was kept and may be used now.
    fn layout(&self, handle: &[u8]) -> Option<Arc<Layout>>;

    /// Keeps that, if the lease that came with the answer allows it. `of`: the number of the
    /// question, and what the answer brought.
    fn keep_layout(&self, handle: &[u8], layout: Arc<Layout>, of: (u64, &Brought));

    /// It is to be asked for anew.
    fn forget_layout(&self, handle: &[u8]);
}
