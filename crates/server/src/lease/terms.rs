//! What the leases of a server are asked and answer, by inodes, clients and those who wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::LeaseId;

/// Names an inode, whatever export it is found through: 128 bits of a keyed hash of its handle, so
/// that nobody can find two that collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InodeKey(pub(crate) u128);

/// Leases are kept in so many machines, each with a lock of its own, by their inodes.
pub(crate) const SHARDS: usize = 16;

/// How many latest ends of changes a shard tells apart. Inodes that share one only have grants
/// refused.
pub(super) const ENDS: usize = 4096;

impl InodeKey {
    /// Which shard has it.
    pub(crate) fn shard(self) -> usize {
        self.0 as usize % SHARDS
    }

    pub(super) fn end(self) -> usize {
        (self.0 >> SHARDS.ilog2()) as usize % ENDS
    }
}

/// The shard of a lease.
pub(crate) fn shard_of(lease: LeaseId) -> usize {
    lease.0 as usize % SHARDS
}

/// A request that waits to change or to see something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiter(pub(crate) u64);

/// The clock has to go on while the machine sleeps (CLOCK_BOOTTIME).
pub(crate) type Now = Duration;

/// What all shards count together.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// The ends of changes: what is looked up names inodes of any shard.
    ends: AtomicU64,
    pub(super) exclusive: Arc<Exclusive>,
}

/// Exclusive leases, and writes under way of what was held back.
#[derive(Debug, Default)]
pub(super) struct Exclusive(AtomicUsize);

impl Stamps {
    /// To be taken before a look that leases are to be granted on.
    pub(crate) fn take(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    /// Whether any client may hold anything back: else nobody has to look out for that.
    pub(crate) fn may_hold_back(&self) -> bool {
        self.exclusive.0.load(Ordering::SeqCst) > 0
    }

    pub(super) fn next(&self) -> u64 {
        self.ends.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Exclusive {
    /// The aspects of a lease, or of what is written, change from these to those.
    pub(super) fn count(&self, before: Aspects, after: Aspects) {
        match (before.contains(Aspects::WRITES), after.contains(Aspects::WRITES)) {
            (false, true) => _ = self.0.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = self.0.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
    }
}

/// When what a lease is to be granted on was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    /// Taken before.
    pub(crate) stamp: u64,
    /// What the request itself changes of the inode. Its own change is under way and refuses
    /// nothing to it.
    pub(crate) own: Aspects,
}

/// What is known of the clients.
pub(crate) trait Clients {
    /// When a client was renewed last: a request of it came then, and was answered. `None`: it is
    /// not known any more.
    fn renewed(&self, client: ClientId) -> Option<Now>;

    /// Whether requests of the client renew nothing because it owes a lease, to whichever shard.
    fn is_suspended(&self, client: ClientId) -> bool;

    /// Requests of the client renew nothing from now on, and surely at the next look at
    /// [`renewed`](Clients::renewed). Several shards may say so.
    fn suspend(&self, client: ClientId);

    /// The shard that said so takes it back.
    fn resume(&self, client: ClientId);
}

/// What the server has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the client for the lease; it answers by [`Leases::returned`].
    Recall { client: ClientId, lease: LeaseId },
    /// The change or look may be tried again: see [`Leases::begin`] and [`Leases::look`].
    Wake { waiter: Waiter },
    /// What the client held back under the lease is lost. This is noted before anything else is
    /// done: the next process must not accept it either.
    Broken { client: ClientId, lease: LeaseId },
    /// The rights on the inode must end. When nothing is executed under them any more,
    /// [`Leases::revoked`] must follow.
    Revoke { inode: InodeKey },
}

/// Whether a change or a look may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Now; after a change, [`Leases::end`] must follow.
    Go,
    /// The waiter is woken when it is worth asking again.
    Wait,
    /// Never: the lease under which it was held back is gone.
    Late,
}

/// A change of an inode that somebody is about to make, or a look at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) inode: InodeKey,
    /// What changes. With [`Aspects::WRITES`] it was held back under an exclusive lease. A look
    /// has [`Aspects::WRITES`] alone, since only that lease is in its way.
    pub(crate) aspects: Aspects,
    /// Who need not give back what it holds.
    pub(crate) by: ClientId,
    pub(crate) waiter: Waiter,
}

/// What leases may cost, and how long they last.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Of a shard. A lease takes at most 256 bytes, with its share of all tables.
    pub(crate) leases_max: usize,
    /// Of one client, in a shard.
    pub(crate) leases_of_client_max: usize,
    /// How long a client may use what it holds after it sent the latest request that was answered.
    pub(crate) lease: Duration,
    /// How soon a client has to return a recalled lease, or it is not renewed: many times what a
    /// working daemon takes.
    pub(crate) answer: Duration,
    /// How much longer than the lease the server waits: for kernels that act late on the rest of a
    /// lease (a second is very late), and for clocks that run apart (by 200 parts in a million,
    /// usually: 2 ms).
    pub(crate) patience: Duration,
    /// For how long an inode is granted to nobody after a recall. Each further recall within a
    /// second of the end of that doubles it.
    pub(crate) holdoff_first: Duration,
    /// At most.
    pub(crate) holdoff_last: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            leases_max: (4 << 20) / SHARDS,
            leases_of_client_max: (1 << 18) / SHARDS,
            lease: Duration::from_secs(7),
            answer: Duration::from_secs(1),
            patience: Duration::from_secs(2),
            holdoff_first: Duration::from_millis(100),
            holdoff_last: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// So long after it was renewed last, a client uses nothing any more.
    pub(crate) fn silence_max(&self) -> Duration {
        self.lease + self.patience
    }
}

/// How long after a hold-off contention is forgotten (the design's measure of "again and again"),
/// and how often is looked for that.
pub(super) const REMEMBERED_FOR: Duration = Duration::from_secs(1);
