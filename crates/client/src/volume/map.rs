//! Which session of a volume serves what.

/// The map of a volume with several sessions, which it calls by their places in its configuration.
/// A volume of one session has none.
///
/// The answers are pure: the same handle has the same places for as long as the volume is
/// connected.
pub trait Map: Send + Sync {
    /// The session that answers for an inode: its attributes, names, opens, locks and leases.
    fn namespace(&self, handle: &[u8]) -> usize;

    /// The session that moves the inode's bytes. It opens the file by the token that the other one
    /// was given: their servers share their keys, and a session that moves data for others has no
    /// opens of its own, whose numbers could be the same.
    ///
    /// What is written there by another client recalls nothing here: that takes rights on data,
    /// which there are not yet.
    fn data(&self, handle: &[u8]) -> usize {
        self.namespace(handle)
    }
}
