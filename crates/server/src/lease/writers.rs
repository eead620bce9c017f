//! Leases to write beside others, and rights at servers of data: what the machine decides of them.

use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::LeaseId;

use super::tenure::is_plain;
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

    /// The client is about to be given a right on an inode at a server of data. Whether it may be.
    /// Where several write, only as long as all rights of their tenure at that place hold: what
    /// one of them does not know the end of has to be over before another one writes there again.
    pub(crate) fn give_right(&mut self, client: ClientId, inode: InodeKey, drawn: &Drawn) -> bool {
        let lease = self.table.find(client, inode).map(|at| self.table.at(at)).filter(|held| !held.recalled);
        let may = match lease {
            Some(held) if held.aspects.contains(Aspects::WRITES) => true,
            Some(held) if held.aspects.contains(Aspects::CONCURRENT) => {
                let rights = self.tenures.entry(inode).or_default();
                let first = rights.iter().find(|right| right.place == drawn.right.place).copied();
                if first.is_none() {
                    rights.push(drawn.right);
                }
                first.is_none_or(|first| first.data == drawn.right.data && first.grant > drawn.floor)
            }
            _ => false,
        };
        if may {
            self.rights.insert((client, inode));
        }
        may
    }

    /// Whether a client may write an inode beside others.
    pub(crate) fn shares(&self, client: ClientId, inode: InodeKey) -> bool {
        let at = self.table.find(client, inode);
        at.is_some_and(|at| self.table.at(at).aspects.contains(Aspects::CONCURRENT))
    }

    /// A lease has gone, perhaps the last of several writers.
    pub(super) fn end_tenure(&mut self, inode: InodeKey) {
        let is_shared =
            |leases: &Leases| leases.table.of(inode).any(|(_, held)| held.aspects.contains(Aspects::CONCURRENT));
        if self.tenures.contains_key(&inode) && !is_shared(self) {
            self.tenures.remove(&inode);
        }
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
