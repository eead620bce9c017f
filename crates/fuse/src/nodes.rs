//! The inodes that the kernel knows: their node ids, handles, and how often the kernel was told of each.
//!
//! A node id is never used for two inodes, so that a request that was under way when the kernel forgot an inode cannot reach another one.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ahash::{HashMap, RandomState};
use aqueduct_worker::lock;

use crate::abi::ROOT_ID;
use crate::listings::LISTING_ENTERED;
use crate::places::Places;

/// Workers rarely meet at one of 16 locks; a node id holds its shard in its lowest bits.
const SHARD_BITS: u32 = 4;
const SHARDS: usize = 1 << SHARD_BITS;

/// The table. Both directions of a node lie in one shard, chosen by the hash of its handle.
pub(crate) struct Nodes {
    root: Arc<[u8]>,
    hasher: RandomState,
    began: Instant,
    shards: [Mutex<Shard>; SHARDS],
    /// Where the kernel knows directories.
    pub(crate) places: Places,
}

#[derive(Default)]
struct Shard {
    by_id: HashMap<u64, Node>,
    by_handle: HashMap<Arc<[u8]>, u64>,
    /// Node ids given out.
    issued: u64,
}

struct Node {
    handle: Arc<[u8]>,
    /// How many replies told the kernel of this node, less what it has forgotten.
    lookups: u64,
    /// When the last of them was about to, in milliseconds since the table was made.
    told: u32,
    named: Named,
    marks: Marks,
}

/// The names under which the kernel may find a node without asking. Times are in milliseconds as above.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    /// It was told of none later.
    at: u64,
    /// It has forgotten all by itself.
    until: u64,
    /// It was told of one in the listing of a directory.
    listed: Option<(u64, u64)>,
}

impl Named {
    fn tell(&mut self, now: u64, names: Duration, directory: Option<u64>) {
        if !names.is_zero() {
            self.at = now;
            self.until = self.until.max(now + names.as_millis() as u64 + KERNEL_DELAY_MS);
            self.listed = directory.map(|directory| (now, directory)).or(self.listed);
        }
    }
}

/// How much later than it was told of a name a kernel may count from: as the server's patience.
const KERNEL_DELAY_MS: u64 = 2000;

/// A descriptor that was opened cached stays so. Once others use the file, each of its reads costs
/// one question and one drop of pages more. A program that opens a file in turn with others again
/// and again (a database) is spared that.
const CONTENDED_FOR: Duration = Duration::from_secs(10);

/// What is remembered of a node for as long as the kernel knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// It was shown with a set-id bit.
    pub(crate) set_id: bool,
    /// Somebody asked for a POSIX lock of it.
    pub(crate) locked: bool,
    /// How many open files of it read from pages, and how many of them write through them.
    pub(crate) cached_opens: u32,
    pub(crate) cached_writers: u32,
    /// Until then what is opened for writing passes pages by, since others use the file as well.
    contended: Duration,
    /// The least and the greatest size that the kernel may believe, once it was told one.
    sizes: Option<(u64, u64)>,
    /// How often the kernel asked for pages of it, and up to which of these it has dropped them. Numbers that only grow, so that of two who have
    /// pages dropped at once none takes what came meanwhile for what it saw; beyond 2^32 their differences are right.
    fills: u32,
    dropped: u32,
    /// The last that no lease covers.
    unleased: u32,
    /// It is a directory whose listing was given to be kept.
    pub(crate) is_listed: bool,
    /// What the kernel was told with its latest listing.
    pub(crate) listing: Listing,
}

/// What came with a whole listing: for how long the kernel may use names and attributes of its entries, and what of the names it was made to forget before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// By the clock of what is told; 0: for no time.
    pub(crate) until: Duration,
    pub(crate) epoch: u32,
}

impl Marks {
    /// Whether the kernel may have pages.
    pub(crate) fn has_pages(self) -> bool {
        self.fills != self.dropped
    }

    /// Whether it may have pages that no lease covers.
    pub(crate) fn has_unleased_pages(self) -> bool {
        is_later(self.unleased, self.dropped)
    }

    /// Others want the file while it is written here through pages.
    pub(crate) fn is_contended_from(&mut self, now: Duration) {
        self.contended = now + CONTENDED_FOR;
    }

    pub(crate) fn is_contended(self, now: Duration) -> bool {
        now < self.contended
    }

    /// Whether such may be read: mappings aside, which nothing bounds.
    pub(crate) fn reads_unleased_pages(self) -> bool {
        self.cached_opens > 0 && self.has_unleased_pages()
    }

    /// The kernel asks for pages.
    pub(crate) fn fill(&mut self, leased: bool) {
        self.fills = self.fills.wrapping_add(1);
        if !leased {
            self.unleased = self.fills;
        }
    }

    /// The kernel was given pages that it did not ask for, which it need not have dropped with
    /// those that there were when the marks were as `before`.
    pub(crate) fn gave(&mut self, before: Marks) {
        if self.dropped != before.dropped {
            self.fill(false);
        }
    }

    /// The kernel is told a size in an answer, which it need not believe unless it is the first,
    /// or sees it by itself.
    pub(crate) fn tell_size(&mut self, size: u64) {
        let (least, greatest) = self.sizes.unwrap_or((size, size));
        self.sizes = Some((least.min(size), greatest.max(size)));
    }

    /// The kernel knows that a write has ended at so many bytes, so that the file has as many.
    pub(crate) fn wrote_to(&mut self, end: u64) {
        let (least, greatest) = self.sizes.unwrap_or((end, end));
        self.sizes = Some((least.max(end), greatest.max(end)));
    }

    /// The kernel is about to believe this size, whatever its own is: that of a file that was made
    /// so long, or emptied, through this mount, or one that is stored and greater than its own.
    /// What it was told before in answers it believes no more.
    pub(crate) fn stores_size(&mut self, size: u64) {
        self.sizes = Some((size, size));
    }

    /// What becomes of the size that the kernel believes: `Less` where it may be greater, so that
    /// only an answer can correct it, which the kernel believes if it was told nothing else since
    /// it asked.
    pub(crate) fn compare_size(&self, size: u64) -> Ordering {
        match self.sizes {
            Some((_, greatest)) if greatest > size => Ordering::Less,
            Some((least, _)) if least < size => Ordering::Greater,
            Some(_) => Ordering::Equal,
            None => Ordering::Greater,
        }
    }

    /// The file is changed through this mount, or everything is to be forgotten: no lease covers the pages that there are.
    pub(crate) fn distrust(&mut self) {
        self.unleased = self.fills;
        self.listing = Listing::default();
    }

    /// A listing is read anew, before which the kernel drops the pages that there are. While others read from pages nobody knows when it does.
    pub(crate) fn begin_listing(&mut self) {
        self.listing = Listing::default();
        if self.cached_opens == 0 {
            self.dropped(*self);
        }
    }

    /// Whether somebody reads a listing from pages of which nobody knows any more whether it is as it was.
    pub(crate) fn reads_stale_listing(self, now: Duration) -> bool {
        let is_over = self.has_unleased_pages() || now >= self.listing.until;
        self.is_listed && self.cached_opens > 0 && self.has_pages() && is_over
    }

    /// The kernel has dropped what pages there were when the marks were as `before`.
    pub(crate) fn dropped(&mut self, before: Marks) {
        if is_later(before.fills, self.dropped) {
            self.dropped = before.fills;
        }
    }
}

fn is_later(number: u32, than: u32) -> bool {
    number.wrapping_sub(than) as i32 > 0
}

impl Nodes {
    /// A table that knows the root only.
    pub(crate) fn new(root: &[u8]) -> Nodes {
        let (hasher, began) = (RandomState::new(), Instant::now());
        Nodes { root: root.into(), hasher, began, shards: Default::default(), places: Places::default() }
    }

    /// Milliseconds since the table was made.
    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn shard_of(&self, handle: &[u8]) -> usize {
        self.hasher.hash_one(handle) as usize % SHARDS
    }

    /// The handle behind a node id; `None` when the kernel never heard of it or forgot it.
    pub(crate) fn handle(&self, id: u64) -> Option<Arc<[u8]>> {
        if id == ROOT_ID {
            return Some(self.root.clone());
        }
        lock(&self.shards[id as usize % SHARDS]).by_id.get(&id).map(|node| node.handle.clone())
    }

    /// The node id for a handle that a reply is about to tell the kernel of; counts that reply. The kernel may keep its name for so long, from a listing of a
    /// directory or not.
    pub(crate) fn look_up(&self, handle: &[u8], names: Duration, listed_in: Option<u64>) -> u64 {
        self.enter(handle, names, listed_in).0
    }

    /// As [`look_up`](Nodes::look_up), and whether the kernel did not know the inode so far.
    pub(crate) fn enter(&self, handle: &[u8], names: Duration, listed_in: Option<u64>) -> (u64, bool) {
        if *handle == *self.root {
            return (ROOT_ID, false);
        }
        let (at, now) = (self.shard_of(handle), self.now());
        let told = now as u32; // differences are right beyond 2^32 as well
        let mut shard = lock(&self.shards[at]);
        let shard = &mut *shard;
        if let Some(id) = shard.by_handle.get(handle) {
            if let Some(node) = shard.by_id.get_mut(id) {
                node.lookups += 1;
                node.told = told;
                node.named.tell(now, names, listed_in);
            }
            return (*id, false);
        }
        shard.issued += 1;
        let id = shard.issued << SHARD_BITS | at as u64; // from 16 on, so never the root's
        let handle: Arc<[u8]> = handle.into();
        shard.by_handle.insert(handle.clone(), id);
        let mut named = Named::default();
        named.tell(now, names, listed_in);
        shard.by_id.insert(id, Node { handle, lookups: 1, told, named, marks: Marks::default() });
        (id, true)
    }

    /// Whether the kernel may find an inode under a name without asking, though it was made to forget all names at `forgotten`. If it may be about to enter
    /// one from a listing, of which directory.
    pub(crate) fn named(&self, handle: &[u8], forgotten: u64) -> Option<Option<u64>> {
        let shard = lock(&self.shards[self.shard_of(handle)]);
        let named = shard.by_handle.get(handle).and_then(|id| shard.by_id.get(id))?.named;
        // A name that was looked up is as old as its request, but one that was listed as young as its entering.
        let entered = named.listed.map_or(0, |(at, _)| at + LISTING_ENTERED.as_millis() as u64);
        let is_left = named.at.max(entered) >= forgotten && self.now() < named.until;
        is_left.then(|| named.listed.map(|(_, directory)| directory))
    }

    /// The kernel forgot `count` of the replies that told it of this node, or did not take them.
    pub(crate) fn forget(&self, id: u64, count: u64) {
        let mut shard = lock(&self.shards[id as usize % SHARDS]);
        let shard = &mut *shard;
        let Entry::Occupied(mut node) = shard.by_id.entry(id) else { return };
        node.get_mut().lookups = node.get().lookups.saturating_sub(count);
        if node.get().lookups == 0 {
            shard.by_handle.remove(&node.remove().handle);
            self.places.forget(id);
            if shard.by_id.is_empty() {
                // A tree walk leaves room for all it met: give it back.
                shard.by_id.shrink_to_fit();
                shard.by_handle.shrink_to_fit();
            }
        }
    }

    /// What is remembered of a node.
    pub(crate) fn marks(&self, id: u64) -> Marks {
        let shard = lock(&self.shards[id as usize % SHARDS]);
        shard.by_id.get(&id).map(|node| node.marks).unwrap_or_default()
    }

    /// Changes what is remembered of a node, unless the kernel has forgotten it.
    pub(crate) fn mark(&self, id: u64, change: impl FnOnce(&mut Marks)) {
        if let Some(node) = lock(&self.shards[id as usize % SHARDS]).by_id.get_mut(&id) {
            change(&mut node.marks);
        }
    }

    /// Whether a reply told, or was about to tell, the kernel of a node less than `limit` ago; not of one that it has forgotten.
    pub(crate) fn is_new(&self, id: u64, limit: Duration) -> bool {
        let shard = lock(&self.shards[id as usize % SHARDS]);
        let age = shard.by_id.get(&id).map(|node| (self.now() as u32).wrapping_sub(node.told));
        age.is_some_and(|age| u128::from(age) < limit.as_millis())
    }

    /// All nodes that the kernel knows now, the root among them.
    pub(crate) fn ids(&self) -> Vec<u64> {
        let mut ids = vec![ROOT_ID];
        self.shards.iter().for_each(|shard| ids.extend(lock(shard).by_id.keys()));
        ids
    }

    /// The node id of a handle, if the kernel knows it.
    pub(crate) fn find(&self, handle: &[u8]) -> Option<u64> {
        if *handle == *self.root {
            return Some(ROOT_ID);
        }
        lock(&self.shards[self.shard_of(handle)]).by_handle.get(handle).copied()
    }

    /// How many nodes the kernel knows, the root aside.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).by_id.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(nodes: &Nodes, handle: &[u8]) -> u64 {
        nodes.look_up(handle, Duration::ZERO, None)
    }

    #[test]
    fn a_forgotten_inode_gets_a_new_id() {
        let nodes = Nodes::new(b"root");
        let first = look_up(&nodes, b"a");
        assert_eq!(look_up(&nodes, b"a"), first);
        assert_eq!(nodes.find(b"a"), Some(first));
        nodes.forget(first, 1);
        assert_eq!(nodes.handle(first).as_deref(), Some(&b"a"[..]));
        nodes.forget(first, 1);
        assert_eq!((nodes.handle(first), nodes.find(b"a"), nodes.count()), (None, None, 0));
        assert_ne!(look_up(&nodes, b"a"), first);
    }

    #[test]
    fn the_root_is_one_and_cannot_be_forgotten() {
        let nodes = Nodes::new(b"root");
        assert_eq!(look_up(&nodes, b"root"), ROOT_ID);
        nodes.forget(ROOT_ID, u64::MAX);
        assert_eq!(nodes.handle(ROOT_ID).as_deref(), Some(&b"root"[..]));
        assert_eq!(nodes.handle(0), None);
    }

    #[test]
    fn a_node_is_named_until_all_names_were_forgotten_or_ran_out() {
        let (nodes, soon) = (Nodes::new(b"root"), Duration::from_secs(7));
        look_up(&nodes, b"a");
        assert_eq!(nodes.named(b"a", 0), None, "no name of it is kept");
        nodes.look_up(b"a", soon, None);
        assert_eq!(nodes.named(b"a", 0), Some(None));
        let later = nodes.now() + 1;
        assert_eq!(nodes.named(b"a", later), None);
        nodes.look_up(b"a", soon, Some(32));
        assert_eq!(nodes.named(b"a", later), Some(Some(32)), "it may be entered later");
        assert_eq!(nodes.named(b"a", later + 1000), None);
        assert_eq!((nodes.named(b"b", 0), nodes.named(b"root", 0)), (None, None));
    }

    #[test]
    fn marks_are_remembered_until_the_node_is_forgotten() {
        let nodes = Nodes::new(b"root");
        let id = look_up(&nodes, b"a");
        assert_eq!(nodes.marks(id), Marks::default());
        nodes.mark(id, |marks| marks.set_id = true);
        assert!(nodes.marks(id).set_id && nodes.is_new(id, Duration::from_secs(60)));
        nodes.forget(id, 1);
        assert!(!nodes.is_new(id, Duration::from_secs(60)));
        assert!(!nodes.marks(id).set_id && !nodes.marks(look_up(&nodes, b"a")).set_id);
    }

    #[test]
    fn pages_are_gone_only_when_none_came_since_their_drop_began() {
        let mut marks =
            Marks { fills: u32::MAX - 1, dropped: u32::MAX - 1, unleased: u32::MAX - 9, ..Marks::default() };
        let seen = |marks: Marks| (marks.has_pages(), marks.has_unleased_pages());
        marks.distrust();
        assert_eq!(seen(marks), (false, false), "there was none to be too old");
        marks.fill(true);
        assert_eq!(seen(marks), (true, false));
        marks.distrust();
        assert_eq!(seen(marks), (true, true));
        let before = marks;
        marks.fill(false);
        marks.dropped(before);
        assert_eq!(seen(marks), (true, true), "one came meanwhile");
        let (late, before) = (before, marks);
        marks.dropped(before);
        assert_eq!(seen(marks), (false, false));
        marks.fill(false);
        marks.dropped(late);
        marks.dropped(before);
        assert_eq!(seen(marks), (true, true), "another drop saw less");
    }

    #[test]
    fn ids_of_many_nodes_differ() {
        let nodes = Nodes::new(b"root");
        let ids: std::collections::HashSet<_> = (0..1000u32).map(|n| look_up(&nodes, &n.to_le_bytes())).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!ids.contains(&ROOT_ID) && !ids.contains(&0));
        ids.iter().for_each(|id| nodes.forget(*id, 5));
        assert_eq!(nodes.count(), 0);
    }
}
