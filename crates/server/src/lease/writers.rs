//! Leases to write beside others, and rights at servers of data: what the machine decides of them.

use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::{LeaseId, Right};

use super::tenure::{Tenured, is_plain};
use super::{Action, Busy, InodeKey, Leases, Now, Waiter};
use crate::right::Drawn;

impl Leases {
    /// Grants a client a lease to write beside others, in place of what it has. To be called while
    /// its change of [`Aspects::CONCURRENT`] is under way.
    pub(crate) fn grant_concurrent(
        &mut self,
        client: ClientId,
        inode: InodeKey,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Option<(LeaseId, Aspects)> {
        let is_asked = |busy: &Busy| {
            busy.changing.touch(Aspects::CONCURRENT, Aspects::empty())
                && now >= busy.tenure.cool_at
                && !busy.waiting.iter().any(|wait| is_plain(wait.aspects))
        };
        let may = !self.overdue.contains(&client) && self.busy.get(&inode).is_some_and(is_asked);
        let holds_back = self.holder(inode).is_some();
        if !may || holds_back {
            return None;
        }
        self.enter(client, (inode, Aspects::CONCURRENT), now, actions)
    }

    /// The client is about to be given a right on an inode at a server of data: the right, if it
    /// may be. Where several write, only as long as all rights of their tenure at that place hold:
    /// what one of them does not know the end of has to be over before another one writes there
    /// again.
    pub(crate) fn give_right(&mut self, client: ClientId, inode: InodeKey, drawn: &Drawn) -> Option<Right> {
        let lease = self.table.find(client, inode).map(|at| self.table.at(at)).filter(|held| !held.recalled)?;
        let mut given = drawn.right;
        if lease.aspects.contains(Aspects::CONCURRENT) {
            let tenured = self.tenures.entry(inode).or_insert(Tenured { map: drawn.map, rights: Vec::new() });
            if tenured.map != drawn.map {
                return None;
            }
            let rights = &mut tenured.rights;
            let first = rights.iter().find(|right| right.place == given.place).copied();
            if first.is_some_and(|first| first.data != given.data || first.grant <= drawn.floor) {
                return None;
            }
            if first.is_none() {
                rights.push(given);
            }
            given.tenure = rights[0].grant;
        } else if !lease.aspects.contains(Aspects::WRITES) {
            return None;
        }
        self.rights.insert((client, inode));
        Some(given)
    }

    /// In which tenure several write an inode; 0: none has a right yet.
    pub(crate) fn tenure(&self, inode: InodeKey) -> u64 {
        self.tenures.get(&inode).and_then(|tenured| tenured.rights.first()).map_or(0, |first| first.grant)
    }

    /// Whether a client may write an inode beside others.
    pub(crate) fn shares(&self, client: ClientId, inode: InodeKey) -> bool {
        let at = self.table.find(client, inode);
        at.is_some_and(|at| self.table.at(at).aspects.contains(Aspects::CONCURRENT))
    }

    /// A lease has gone, perhaps the last of several writers.
    pub(super) fn end_tenure(&mut self, inode: InodeKey) {
        if self.tenures.contains_key(&inode) && !self.is_shared(inode) {
            self.tenures.remove(&inode);
        }
    }

    /// Whether anybody has a lease to write an inode beside others.
    pub(crate) fn is_shared(&self, inode: InodeKey) -> bool {
        self.table.of(inode).any(|(_, held)| held.aspects.contains(Aspects::CONCURRENT))
    }

    /// Whether who wants to write beside others lets somebody go first: else whoever changes the
    /// file otherwise would have all those leases taken back again, once for each who comes.
    pub(super) fn goes_last(&self, inode: InodeKey, wanted: Aspects) -> bool {
        let waits = |busy: &Busy| busy.waiting.iter().any(|wait| is_plain(wait.aspects));
        wanted == Aspects::CONCURRENT && self.busy.get(&inode).is_some_and(waits)
    }

    /// A waiter waits no more, and with it perhaps who let it go first.
    pub(super) fn waits_no_more(&mut self, inode: InodeKey, waiter: Waiter, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy.get_mut(&inode) else { return };
        busy.waiting.retain(|wait| wait.waiter != waiter);
        if !busy.waiting.iter().any(|wait| is_plain(wait.aspects)) {
            let last = busy.waiting.iter().filter(|wait| wait.aspects == Aspects::CONCURRENT);
            actions.extend(last.map(|wait| Action::Wake { waiter: wait.waiter }));
        }
    }
}
