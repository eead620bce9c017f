//! What may be used while this client changes something itself, and which answers come too late to be kept.
//!
//! A change has a beginning and an end on this client, and is made somewhere between. In between what it touches is not used, and what was asked before its end
//! is not kept: nobody knows whether the server looked before or after. The same goes for what was asked before a lease was given back. Inodes and names share
//! gates by their hashes, so that the memory for them is fixed; who shares one with another now and then asks the server in vain.

/// The order of events on this client: requests remember it, and changes and returns advance it.
pub(super) type Number = u64;

/// Stands before one aspect of some inodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate {
    /// Changes under way.
    changing: u32,
    /// Changes that nobody waits for any more, and that may be made later all the same. Until the next session.
    unsettled: u32,
    /// Answers to what was asked before are not kept.
    opened: Number,
    /// Files that the server is being told are not written to any more: their leases do not become exclusive.
    sharing: u32,
}

impl Gate {
    /// Whether what is kept may be used.
    pub(super) fn is_open(&self) -> bool {
        self.changing == 0 && self.unsettled == 0
    }

    /// Whether the answer to what was asked then may be kept.
    pub(super) fn lets(&self, asked: Number) -> bool {
        self.is_open() && asked >= self.opened
    }

    /// Whether a lease that was asked for then may be exclusive. This client's own writes, during which it comes, do not matter.
    pub(super) fn lets_be_exclusive(&self, asked: Number) -> bool {
        self.sharing == 0 && asked >= self.opened
    }

    /// The server is about to be told that a lease is not used exclusively any more.
    pub(super) fn begin_sharing(&mut self, now: Number) {
        self.sharing += 1;
        self.opened = now;
    }

    /// It has been. What was asked before may have been answered before as well.
    pub(super) fn end_sharing(&mut self, now: Number) {
        self.sharing = self.sharing.saturating_sub(1);
        self.opened = now;
    }

    pub(super) fn is_changing(&self) -> bool {
        self.changing > 0
    }

    pub(super) fn begin(&mut self) {
        self.changing += 1;
    }

    /// A change ends. Returns whether it was the only one since it was asked for, so that its own answer is the latest.
    pub(super) fn end(&mut self, asked: Number, now: Number, settled: bool) -> bool {
        self.changing = self.changing.saturating_sub(1);
        let alone = self.lets(asked) && settled;
        self.unsettled += u32::from(!settled);
        self.opened = now;
        alone
    }

    /// A lease was given back.
    pub(super) fn pass(&mut self, now: Number) {
        self.opened = now;
    }

    /// A new session: what was unsettled will not be made any more.
    pub(super) fn settle(&mut self, now: Number) {
        self.unsettled = 0;
        self.sharing = 0;
        self.opened = now;
    }
}

/// The gates of an inode, by what they stand before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gates {
    pub(super) attributes: Gate,
    pub(super) data: Gate,
    /// The lease on all names.
    pub(super) names: Gate,
    /// All names together, of which this client may change some.
    pub(super) listing: Gate,
    /// The lease on the names was lost while this client was changing some.
    pub(super) is_broken: bool,
}

impl Gates {
    pub(super) fn each(&mut self) -> [&mut Gate; 4] {
        [&mut self.attributes, &mut self.data, &mut self.names, &mut self.listing]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_the_end_of_a_change_is_not_kept() {
        let mut gate = Gate::default();
        assert!(gate.is_open() && gate.lets(0));
        gate.begin();
        assert!(!gate.is_open() && !gate.lets(5));
        assert!(gate.end(3, 7, true), "nothing came between");
        assert!(gate.is_open() && !gate.lets(6) && gate.lets(7));
    }

    #[test]
    fn of_two_changes_at_once_neither_is_alone() {
        let mut gate = Gate::default();
        gate.begin();
        gate.begin();
        assert!(!gate.end(1, 2, true));
        assert!(!gate.is_open());
        assert!(!gate.end(1, 3, true));
        assert!(gate.is_open());
    }

    #[test]
    fn what_is_not_settled_stays_shut_until_the_next_session() {
        let mut gate = Gate::default();
        gate.begin();
        assert!(!gate.end(1, 2, false));
        assert!(!gate.is_open() && !gate.lets(9));
        gate.settle(10);
        assert!(gate.is_open() && !gate.lets(9) && gate.lets(10));
    }
}
