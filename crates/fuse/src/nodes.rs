//! The inodes that the kernel knows: their node ids, handles, and how often the kernel was told of each.
//!
//! A node id is never used for two inodes, so that a request that was under way when the kernel forgot an inode cannot reach another one.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use crate::abi::ROOT_ID;
use crate::lock;

/// Workers rarely meet at one of 16 locks; a node id holds its shard in its lowest bits.
const SHARD_BITS: u32 = 4;
const SHARDS: usize = 1 << SHARD_BITS;

/// The table. Both directions of a node lie in one shard, chosen by the hash of its handle.
pub(crate) struct Nodes {
    root: Arc<[u8]>,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
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
    /// Whether it ever had a set-id bit.
    set_id: bool,
}

impl Nodes {
    /// A table that knows the root only.
    pub(crate) fn new(root: &[u8]) -> Nodes {
        Nodes { root: root.into(), hasher: RandomState::new(), shards: Default::default() }
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

    /// The node id for a handle that a reply is about to tell the kernel of; counts that reply.
    pub(crate) fn look_up(&self, handle: &[u8]) -> u64 {
        if *handle == *self.root {
            return ROOT_ID;
        }
        let at = self.shard_of(handle);
        let mut shard = lock(&self.shards[at]);
        let shard = &mut *shard;
        if let Some(id) = shard.by_handle.get(handle) {
            if let Some(node) = shard.by_id.get_mut(id) {
                node.lookups += 1;
            }
            return *id;
        }
        shard.issued += 1;
        let id = shard.issued << SHARD_BITS | at as u64; // from 16 on, so never the root's
        let handle: Arc<[u8]> = handle.into();
        shard.by_handle.insert(handle.clone(), id);
        shard.by_id.insert(id, Node { handle, lookups: 1, set_id: false });
        id
    }

    /// The kernel forgot `count` of the replies that told it of this node, or did not take them.
    pub(crate) fn forget(&self, id: u64, count: u64) {
        let mut shard = lock(&self.shards[id as usize % SHARDS]);
        let shard = &mut *shard;
        let Entry::Occupied(mut node) = shard.by_id.entry(id) else { return };
        node.get_mut().lookups = node.get().lookups.saturating_sub(count);
        if node.get().lookups == 0 {
            shard.by_handle.remove(&node.remove().handle);
            if shard.by_id.is_empty() {
                // A tree walk leaves room for all it met: give it back.
                shard.by_id.shrink_to_fit();
                shard.by_handle.shrink_to_fit();
            }
        }
    }

    /// The kernel is told of a set-id bit.
    pub(crate) fn mark_set_id(&self, id: u64) {
        if let Some(node) = lock(&self.shards[id as usize % SHARDS]).by_id.get_mut(&id) {
            node.set_id = true;
        }
    }

    /// Whether the kernel was ever told of a set-id bit of this node.
    pub(crate) fn is_set_id(&self, id: u64) -> bool {
        lock(&self.shards[id as usize % SHARDS]).by_id.get(&id).is_some_and(|node| node.set_id)
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

    #[test]
    fn a_forgotten_inode_gets_a_new_id() {
        let nodes = Nodes::new(b"root");
        let first = nodes.look_up(b"a");
        assert_eq!(nodes.look_up(b"a"), first);
        assert_eq!(nodes.find(b"a"), Some(first));
        nodes.forget(first, 1);
        assert_eq!(nodes.handle(first).as_deref(), Some(&b"a"[..]));
        nodes.forget(first, 1);
        assert_eq!((nodes.handle(first), nodes.find(b"a"), nodes.count()), (None, None, 0));
        assert_ne!(nodes.look_up(b"a"), first);
    }

    #[test]
    fn the_root_is_one_and_cannot_be_forgotten() {
        let nodes = Nodes::new(b"root");
        assert_eq!(nodes.look_up(b"root"), ROOT_ID);
        nodes.forget(ROOT_ID, u64::MAX);
        assert_eq!(nodes.handle(ROOT_ID).as_deref(), Some(&b"root"[..]));
        assert_eq!(nodes.handle(0), None);
    }

    #[test]
    fn set_id_bits_are_remembered_until_the_node_is_forgotten() {
        let nodes = Nodes::new(b"root");
        let id = nodes.look_up(b"a");
        assert!(!nodes.is_set_id(id));
        nodes.mark_set_id(id);
        assert!(nodes.is_set_id(id));
        nodes.forget(id, 1);
        assert!(!nodes.is_set_id(id) && !nodes.is_set_id(nodes.look_up(b"a")));
    }

    #[test]
    fn ids_of_many_nodes_differ() {
        let nodes = Nodes::new(b"root");
        let ids: std::collections::HashSet<_> = (0..1000u32).map(|n| nodes.look_up(&n.to_le_bytes())).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!ids.contains(&ROOT_ID) && !ids.contains(&0));
        ids.iter().for_each(|id| nodes.forget(*id, 5));
        assert_eq!(nodes.count(), 0);
    }
}
