//! Changes that nobody asked a file system for, although they are changes of what it serves: another program wrote to the directory behind it.

use crate::{Aspects, Handle};

/// Is told of changes from outside, after they were made. Called on a thread of its own, which has to be back soon: what else changes waits for it.
pub trait Outside: Send + Sync {
    /// These aspects of an inode have changed. It may be one that no client has ever seen.
    fn changed(&self, handle: &Handle, aspects: Aspects);

    /// Anything may have changed: there was more than could be told.
    fn everything(&self);
}
