//! What the kernel keeps under leases, and how it is made to forget it.
//!
//! Attributes and pages are dropped inode by inode. To drop a name the kernel takes the lock of
//! its directory, which somebody may hold who waits for us. So INC_EPOCH has all names looked up
//! again, which waits for nothing. Kernels without it keep few names, for a moment, and whoever
//! changes one of these waits for that long ([`crate::hot_names`]); so do those with it, while
//! names are not kept because they had to be forgotten lately ([`crate::keeping`]).
//!
//! Over a name that it keeps the kernel goes without a look at the inode, and judges chmod, utimensat and removals from sticky directories by the owner that it
//! knows. So the names of an inode are forgotten too, if there are any, when the lease on its attributes ends.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aqueduct_fs::{Aspects, Observer, OpenId};
use aqueduct_worker::lock;

use crate::below;
use crate::kept::now;
use crate::nodes::{Listing, Marks};
use crate::notify::{self, Notification};
use crate::pages::Tail;
use crate::shared::Shared;

/// The kernel may still be about to enter an inode that it was told of less than this ago.
const NEW: Duration = Duration::from_secs(1);

/// The first pause before the kernel is told again to forget an inode that it does not know yet; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(1);

/// A listing is read from pages while what the kernel was told with it lasts so much longer, or as long as anything does: whoever lists usually looks at
/// all that he has listed, and each entry whose time is over would be asked for alone.
const LISTED_MIN: Duration = Duration::from_secs(2);
const LISTED_SLACK: Duration = Duration::from_millis(100);

/// Times that are told in turn to have pages dropped: more than answers are ever on their way at once.
const OTHER_TIMES: u32 = 100_000;

/// Tells the kernel what it has to forget.
pub(crate) struct KernelCaches(pub(crate) Weak<Shared>);

impl Observer for KernelCaches {
    fn forget(&self, handle: &[u8], aspects: Aspects) {
        if let Some(shared) = self.0.upgrade()
            && let Some(node) = shared.nodes.find(handle)
        {
            shared.forget(node, aspects);
        }
    }

    fn forget_at_once(&self, handle: &[u8], aspects: Aspects) -> bool {
        let shared = self.0.upgrade();
        shared.is_none_or(|shared| shared.nodes.find(handle).is_none_or(|node| shared.forget_at_once(node, aspects)))
    }

    fn names_left(&self, handle: &[u8]) -> Duration {
        let left = |shared: &Shared| Some(shared.hot_names.left(shared.nodes.find(handle)?));
        let shared = self.0.upgrade().filter(|shared| shared.policy.hot_names && !shared.ended());
        shared.and_then(|shared| left(&shared)).unwrap_or_default()
    }

    fn forget_names_of(&self, handle: &[u8]) {
        let Some(shared) = self.0.upgrade() else { return };
        if shared.policy.hot_names
            && let Some(node) = shared.nodes.find(handle)
        {
            shared.hot_names.wait(node);
        }
        if shared.policy.names
            && let Some(listed_in) = shared.nodes.named(handle, shared.epoch_began.load(Ordering::SeqCst))
        {
            tracing::trace!("the kernel is to forget the names of an inode");
            shared.forget_names(|directory| listed_in == Some(directory));
        }
    }

    fn forget_everything(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.forget_everything();
        }
    }
}

/// Tells until it is heard, for as long as whoever does not hear it may be about to come.
fn insist(mut tell: impl FnMut() -> bool, is_new: impl Fn() -> bool) {
    let (began, mut pause) = (Instant::now(), PAUSE);
    while !tell() && is_new() && began.elapsed() < NEW {
        std::thread::sleep(pause);
        pause *= 2;
    }
}

impl Shared {
    /// False: the kernel knows no such inode.
    fn tell(&self, notification: &Notification) -> bool {
        let told: io::Result<bool> = self.notify(notification);
        told.unwrap_or_else(|error| {
            if !self.ended() {
                tracing::error!(%error, code = notification.code, "the kernel did not take a notification");
            }
            true
        })
    }

    fn forget(&self, node: u64, aspects: Aspects) {
        tracing::trace!(node, ?aspects, "the kernel is to forget");
        self.nodes.mark(node, |marks| marks.listing = Listing::default());
        if aspects.contains(Aspects::NAMES) {
            self.forget_names(|directory| directory == node);
        } else if aspects.contains(Aspects::DATA) && self.listings.any(|directory| directory == node) {
            self.listings.wait(|directory| directory == node); // it would put what it was told into pages afterwards
        }
        if aspects.intersects(Aspects::ATTRIBUTES | Aspects::DATA) {
            let before = self.nodes.marks(node);
            let has_pages = aspects.contains(Aspects::DATA) && before.has_pages();
            // Where files that are written are cached a page may be locked until its WRITE is
            // answered, which may wait for this very recall. Their pages are dropped before the
            // next read(2), before a lock is granted, and soon for who has them mapped.
            let pages = has_pages && before.cached_writers == 0;
            let offset = if pages { 0 } else { -1 };
            let is_new = || self.nodes.is_new(node, NEW) && !self.ended();
            insist(|| self.tell(&notify::inval_inode(node, offset, 0)), is_new);
            if pages {
                self.nodes.mark(node, |marks| marks.dropped(before));
            } else if has_pages {
                self.nodes.mark(node, |marks| {
                    marks.distrust();
                    marks.is_contended_from(now());
                });
                self.page_drops.drop_soon(node);
            }
        }
    }

    /// As [`forget`](Shared::forget), but false where that may wait: for pages, for a listing that the kernel is entering, for an inode that it does not know yet.
    fn forget_at_once(&self, node: u64, aspects: Aspects) -> bool {
        let names = aspects.contains(Aspects::NAMES) && self.policy.names;
        if aspects.contains(Aspects::DATA) || names && self.listings.any(|directory| directory == node) {
            return false;
        }
        tracing::trace!(node, ?aspects, "the kernel is to forget at once");
        self.nodes.mark(node, |marks| marks.listing = Listing::default());
        if names && !self.forget_all_names().is_zero() {
            return false;
        }
        let is_heard = || self.tell(&notify::inval_inode(node, -1, 0));
        !aspects.contains(Aspects::ATTRIBUTES) || is_heard() || self.ended() || !self.nodes.is_new(node, NEW)
    }

    /// Whether an answer may say that a name is to be kept.
    pub(crate) fn keeps_names(self: &Arc<Shared>) -> bool {
        let keeps = self.policy.names && self.keeping.keeps();
        if self.policy.names && !keeps && self.keeping.is_to_look(Instant::now()) {
            self.look_below();
        }
        keeps
    }

    /// Looks, beside the requests, whether something is mounted below: else names are kept again.
    fn look_below(self: &Arc<Shared>) {
        let shared = Arc::downgrade(self);
        let look = move || {
            let number = shared.upgrade().and_then(|shared| shared.number);
            let found = number.is_some_and(below::any);
            shared.upgrade().into_iter().for_each(|shared| shared.keeping.looked(found, Instant::now()));
        };
        if let Err(error) = std::thread::Builder::new().name("aqueduct-below".into()).spawn(look) {
            tracing::debug!(%error, "nobody looks whether something is mounted below");
            self.keeping.looked(true, Instant::now());
        }
    }

    /// Has every name looked up again, if the kernel may have any, and tells it none for a while.
    /// Waits for nothing. For how long the kernel may go on using names, since making it forget
    /// them would take away what is mounted below.
    pub(crate) fn forget_all_names(&self) -> Duration {
        if !self.keeping.end(Instant::now()) {
            return Duration::ZERO;
        }
        let entering = self.listings.any(|_| true);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let began = self.nodes.now();
        if self.number.is_some_and(below::any) {
            let left = self.keeping.left(Instant::now());
            if self.keeping.is_to_tell() {
                tracing::info!(?left, "something is mounted on a directory of this mount: names are not kept any more");
            }
            return left;
        }
        self.tell(&notify::inc_epoch());
        self.epoch_began.fetch_max(began, Ordering::SeqCst);
        if !entering {
            self.keeping.ended();
        }
        Duration::ZERO
    }

    fn forget_names(&self, which: impl Fn(u64) -> bool) {
        if !self.policy.names {
            return;
        }
        // Looked at first: whoever goes on after that may have entered names before, or after the kernel was told.
        let entering = self.listings.any(&which);
        let mut left = self.forget_all_names();
        if entering && left.is_zero() {
            self.listings.wait(which);
            left = self.forget_all_names();
        }
        std::thread::sleep(left);
    }

    /// Pages are dropped without waiting for it: that waits for reads under way, which may wait for the server to be there again. Until they are, whoever
    /// reads asks for attributes first, and waits there.
    fn forget_everything(&self) {
        let nodes = self.nodes.ids();
        tracing::debug!(nodes = nodes.len(), "the kernel is to forget everything");
        self.forget_names(|_| true);
        self.hot_names.wait_for_all();
        let mut unknown = Vec::new();
        for node in nodes {
            self.nodes.mark(node, Marks::distrust);
            if !self.tell(&notify::inval_inode(node, -1, 0)) {
                unknown.push(node);
            }
            if self.nodes.marks(node).has_unleased_pages() {
                self.page_drops.drop_soon(node);
            }
        }
        let is_new = |node: &u64| self.nodes.is_new(*node, NEW) && !self.ended();
        let mut tell_again = || {
            unknown.retain(|node| is_new(node) && !self.tell(&notify::inval_inode(*node, -1, 0)));
            unknown.is_empty()
        };
        insist(&mut tell_again, || true);
    }

    /// Nanoseconds near these, and others than the kernel was told lately.
    pub(crate) fn other_nanos(&self, nanos: u32) -> u32 {
        const HALF: u32 = 500_000_000;
        let distance = 1 + self.times_told.fetch_add(1, Ordering::Relaxed) % OTHER_TIMES;
        if nanos < HALF { nanos + distance } else { nanos - distance }
    }

    /// An open file of a node reads from pages, and may write through them.
    pub(crate) fn caches(&self, node: u64, open: OpenId, writes: bool) {
        lock(&self.cached).insert(open, writes);
        self.nodes.mark(node, |marks| {
            marks.cached_opens += 1;
            marks.cached_writers += u32::from(writes);
        });
    }

    /// Whether an open file reads from pages, and writes through them.
    pub(crate) fn reads_pages(&self, open: OpenId) -> bool {
        self.policy.pages && lock(&self.cached).contains_key(&open)
    }

    /// Whether an open directory reads from pages.
    pub(crate) fn is_cached(&self, open: OpenId) -> bool {
        self.policy.names && lock(&self.cached).contains_key(&open)
    }

    /// Whether the kernel may go on reading a listing from its pages, given for how long it could be told of one now.
    pub(crate) fn keeps_listing(&self, node: u64, could: Duration) -> bool {
        let marks = self.nodes.marks(node);
        let left = marks.listing.until.saturating_sub(now());
        let is_lasting = !left.is_zero() && left + LISTED_SLACK >= could.min(LISTED_MIN);
        is_lasting && !marks.has_unleased_pages() && marks.listing.epoch == self.epoch.load(Ordering::SeqCst)
    }

    /// The names in a directory are changed here, or were shown without a lease.
    pub(crate) fn distrust_listing(&self, directory: u64) {
        if self.policy.names {
            self.nodes.mark(directory, Marks::distrust);
        }
    }

    /// An open file of a node is closed.
    pub(crate) fn caches_no_more(&self, node: u64, open: OpenId) {
        if self.policy.pages
            && let Some(writes) = lock(&self.cached).remove(&open)
        {
            self.nodes.mark(node, |marks| {
                marks.cached_opens = marks.cached_opens.saturating_sub(1);
                marks.cached_writers = marks.cached_writers.saturating_sub(u32::from(writes));
                if writes && marks.cached_writers == 0 {
                    marks.distrust(); // who writes past them from now on does not tell
                }
            });
        }
    }

    /// Drops the pages of a node if there are any that no lease covers. Waits for reads and writes of them.
    pub(crate) fn drop_unleased_pages(&self, node: u64) {
        let before = self.nodes.marks(node);
        if before.has_unleased_pages() {
            self.tell(&notify::inval_inode(node, 0, 0));
            self.nodes.mark(node, |marks| marks.dropped(before));
        }
    }

    /// Tells the kernel the size of a file by the data at its end. Waits as the other.
    pub(crate) fn store_tail(&self, node: u64, tail: &Tail) {
        let before = self.nodes.marks(node);
        self.nodes.mark(node, |marks| {
            marks.stores_size(tail.end());
            marks.fill(tail.is_leased);
        });
        // What is on its way to the kernel with a smaller size is not believed then, whatever the
        // size that it has.
        self.tell(&notify::inval_inode(node, -1, 0));
        self.tell(&notify::store(node, tail.offset, &tail.data));
        self.nodes.mark(node, |marks| marks.gave(before));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_kernel_is_told_again_while_an_inode_may_be_about_to_come() {
        let told = Cell::new(0);
        let tell = |heard: u32| {
            told.set(told.get() + 1);
            told.get() == heard
        };
        insist(|| tell(4), || true);
        assert_eq!(told.replace(0), 4);
        insist(|| tell(1), || true);
        assert_eq!(told.replace(0), 1);
        insist(|| tell(9), || told.get() < 3);
        assert_eq!(told.replace(0), 3, "the kernel has forgotten it");
        insist(|| tell(0), || true);
        assert!(told.get() >= 9, "for about a second: {}", told.get());
    }
}
