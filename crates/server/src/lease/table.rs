//! The leases themselves, found by their client and inode, by inode, by client, and by age: lists through one vector and two indexes that hold only places
//! in it. About 60 bytes a lease, at most twice that while the vector has just grown.

use std::hash::BuildHasher;
use std::sync::Arc;

use ahash::HashMap;
use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::LeaseId;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::terms::{Exclusive, InodeKey, SHARDS};

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Names a lease towards its client: in the lower half the place in the table and the shard, which stay as long as the lease, above them which use of the place
/// it is, so that a later name of a lease is a larger one.
fn name(shard: u32, at: u32, generation: u32) -> LeaseId {
    LeaseId(u64::from(generation) << 32 | u64::from(at * SHARDS as u32 + shard))
}

fn place(lease: LeaseId) -> u32 {
    lease.0 as u32 / SHARDS as u32
}

/// Places in a table: as many as their names can tell apart.
pub(super) const PLACES_MAX: usize = (u32::MAX / SHARDS as u32) as usize;

/// Two neighbours in a list.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// One lease, or a free place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) client: ClientId,
    /// None: the place is free.
    pub(super) aspects: Aspects,
    /// The client has been asked for it.
    pub(super) recalled: bool,
    inode: InodeKey,
    generation: u32,
    /// Among the leases of its inode, the newest first.
    of_inode: Links,
    /// Among the leases of its client, the oldest first.
    of_client: Links,
}

/// The leases of one client, by age.
#[derive(Clone, Copy)]
struct Ages {
    count: usize,
    recalled: usize,
    oldest: u32,
    youngest: u32,
}

pub(super) struct Table {
    shard: u32,
    places: Vec<Held>,
    free: Vec<u32>,
    hasher: DefaultHashBuilder,
    /// The newest lease of each inode.
    inodes: HashTable<u32>,
    /// Each lease, by its client and inode.
    pairs: HashTable<u32>,
    clients: HashMap<ClientId, Ages>,
    exclusive: Arc<Exclusive>,
}

impl Table {
    pub(super) fn new(shard: usize, exclusive: Arc<Exclusive>) -> Table {
        Table {
            shard: shard as u32,
            places: Vec::new(),
            free: Vec::new(),
            hasher: DefaultHashBuilder::default(),
            inodes: HashTable::new(),
            pairs: HashTable::new(),
            clients: HashMap::default(),
            exclusive,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn count_of(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |ages| ages.count)
    }

    /// The leases of an inode.
    pub(super) fn of(&self, inode: InodeKey) -> impl Iterator<Item = (u32, Held)> + '_ {
        let newest = self.inodes.find(self.hash_inode(inode), |at| self.places[*at as usize].inode == inode);
        let mut at = newest.copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let held = *self.places.get(at as usize)?;
            Some((std::mem::replace(&mut at, held.of_inode.after), held))
        })
    }

    /// The lease at a place.
    pub(super) fn at(&self, at: u32) -> Held {
        self.places[at as usize]
    }

    /// The lease that a client has on an inode.
    pub(super) fn find(&self, client: ClientId, inode: InodeKey) -> Option<u32> {
        let hash = self.hasher.hash_one((client, inode));
        let is_it = |at: &u32| {
            let held = &self.places[*at as usize];
            held.client == client && held.inode == inode
        };
        self.pairs.find(hash, is_it).copied()
    }

    /// A new lease, the youngest of its client, which has none on the inode.
    pub(super) fn insert(&mut self, client: ClientId, inode: InodeKey, aspects: Aspects) -> LeaseId {
        self.exclusive.count(Aspects::empty(), aspects);
        let at = self.free.pop().unwrap_or(self.places.len() as u32);
        let generation = self.places.get(at as usize).map_or(0, |before| before.generation);
        let newest = self.replace_newest(inode, at);
        let ages = self.clients.entry(client).or_insert(Ages { count: 0, recalled: 0, oldest: at, youngest: NONE });
        ages.count += 1;
        let older = std::mem::replace(&mut ages.youngest, at);
        let held = Held {
            client,
            aspects,
            recalled: false,
            inode,
            generation,
            of_inode: Links { before: NONE, after: newest },
            of_client: Links { before: older, after: NONE },
        };
        match self.places.get_mut(at as usize) {
            Some(place) => *place = held,
            None => self.places.push(held),
        }
        if let Some(newest) = self.places.get_mut(newest as usize) {
            newest.of_inode.before = at;
        }
        if let Some(older) = self.places.get_mut(older as usize) {
            older.of_client.after = at;
        }
        let (places, hasher) = (&self.places, &self.hasher);
        let hash = |at: &u32| hasher.hash_one((places[*at as usize].client, places[*at as usize].inode));
        self.pairs.insert_unique(hasher.hash_one((client, inode)), at, hash);
        name(self.shard, at, generation)
    }

    /// Adds aspects to a lease, which gets another name: the client may have sent it back under the old one in the meantime. Returns all that it covers; `None`: it is
    /// being recalled.
    pub(super) fn extend(&mut self, at: u32, aspects: Aspects) -> Option<(LeaseId, Aspects)> {
        let held = &mut self.places[at as usize];
        if held.recalled {
            return None;
        }
        self.exclusive.count(held.aspects, held.aspects | aspects);
        held.aspects |= aspects;
        held.generation = held.generation.wrapping_add(1);
        Some((name(self.shard, at, held.generation), held.aspects))
    }

    /// Marks a lease as recalled that has had the last of its names, so that none has to begin at the least again: clients tell by the names which is later.
    pub(super) fn recall_if_worn(&mut self, at: u32) -> Option<LeaseId> {
        let held = &self.places[at as usize];
        (held.generation == u32::MAX && !held.recalled).then(|| self.recall(at))
    }

    /// Marks a lease as recalled.
    pub(super) fn recall(&mut self, at: u32) -> LeaseId {
        let held = &mut self.places[at as usize];
        if !std::mem::replace(&mut held.recalled, true)
            && let Some(ages) = self.clients.get_mut(&held.client)
        {
            ages.recalled += 1;
        }
        name(self.shard, at, held.generation)
    }

    /// The same of a lease that covers these aspects from now on, and no others.
    pub(super) fn turn(&mut self, at: u32, aspects: Aspects) -> Option<(LeaseId, Aspects)> {
        let held = &mut self.places[at as usize];
        if !held.recalled {
            self.exclusive.count(held.aspects, aspects);
            held.aspects = aspects;
        }
        self.extend(at, aspects)
    }

    /// Takes the right to hold writes back from a lease, or to write beside others.
    pub(super) fn take_writes(&mut self, at: u32) -> LeaseId {
        let held = &mut self.places[at as usize];
        self.exclusive.count(held.aspects, Aspects::empty());
        held.aspects.remove(Aspects::WRITES | Aspects::CONCURRENT);
        if held.aspects.is_empty() {
            held.aspects = Aspects::NAMES; // of which a file has none: it is owed all the same
        }
        name(self.shard, at, held.generation)
    }

    /// Marks a client's oldest lease as recalled; `None` when it is already.
    pub(super) fn recall_oldest(&mut self, client: ClientId) -> Option<LeaseId> {
        let oldest = self.clients.get(&client)?.oldest;
        (!self.places[oldest as usize].recalled).then(|| self.recall(oldest))
    }

    /// Marks all leases as recalled; returns those that were not yet.
    pub(super) fn recall_everything(&mut self) -> Vec<(ClientId, LeaseId)> {
        let is_held = |held: &Held| !held.aspects.is_empty() && !held.recalled;
        let held = self.places.iter().enumerate().filter(|(_, held)| is_held(held)).map(|(at, _)| at as u32);
        held.collect::<Vec<_>>().into_iter().map(|at| (self.places[at as usize].client, self.recall(at))).collect()
    }

    /// Whether a client has been asked for anything that it still has.
    pub(super) fn owes(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|ages| ages.recalled > 0)
    }

    /// Whether a client still has a lease that it was asked for under this name.
    pub(super) fn is_recalled(&self, client: ClientId, lease: LeaseId) -> bool {
        self.held(client, lease).is_some_and(|held| held.recalled)
    }

    /// The recalled leases of a client, with their inodes.
    pub(super) fn recalled(&self, client: ClientId) -> Vec<(LeaseId, InodeKey)> {
        let mut at = self.clients.get(&client).map_or(NONE, |ages| ages.oldest);
        let mut found = Vec::new();
        while let Some(held) = self.places.get(at as usize) {
            if held.recalled {
                found.push((name(self.shard, at, held.generation), held.inode));
            }
            at = held.of_client.after;
        }
        found
    }

    /// The lease of a client that has this name.
    fn held(&self, client: ClientId, lease: LeaseId) -> Option<Held> {
        let at = place(lease);
        let held = *self.places.get(at as usize)?;
        let is_it = held.client == client && !held.aspects.is_empty() && name(self.shard, at, held.generation) == lease;
        is_it.then_some(held)
    }

    /// Removes a lease of a client; returns its inode. `None` when the client has no lease of this name.
    pub(super) fn remove(&mut self, client: ClientId, lease: LeaseId) -> Option<InodeKey> {
        let (at, held) = (place(lease), self.held(client, lease)?);
        let hash = self.hasher.hash_one((client, held.inode));
        if let Ok(entry) = self.pairs.find_entry(hash, |other| *other == at) {
            entry.remove();
        }
        self.unlink_from_inode(&held);
        self.unlink_from_client(&held);
        self.exclusive.count(held.aspects, Aspects::empty());
        let place = &mut self.places[at as usize];
        place.aspects = Aspects::empty();
        place.generation = held.generation.wrapping_add(1);
        self.free.push(at);
        Some(held.inode)
    }

    /// Removes all leases of a client; returns their inodes.
    pub(super) fn remove_all(&mut self, client: ClientId) -> Vec<InodeKey> {
        let mut inodes = Vec::new();
        while let Some(ages) = self.clients.get(&client) {
            let oldest = name(self.shard, ages.oldest, self.places[ages.oldest as usize].generation);
            inodes.extend(self.remove(client, oldest));
        }
        inodes
    }

    fn hash_inode(&self, inode: InodeKey) -> u64 {
        self.hasher.hash_one(inode)
    }

    /// Has the list of an inode begin with another lease; returns the one it began with.
    fn replace_newest(&mut self, inode: InodeKey, at: u32) -> u32 {
        let hash = self.hash_inode(inode);
        let (places, hasher) = (&self.places, &self.hasher);
        match self.inodes.find_mut(hash, |other| places[*other as usize].inode == inode) {
            Some(newest) => std::mem::replace(newest, at),
            None => {
                // The new place may not have its inode yet, and is not looked at: only what the index holds already is hashed again.
                self.inodes.insert_unique(hash, at, |other| hasher.hash_one(places[*other as usize].inode));
                NONE
            }
        }
    }

    fn unlink_from_inode(&mut self, held: &Held) {
        let Links { before, after } = held.of_inode;
        if let Some(after) = self.places.get_mut(after as usize) {
            after.of_inode.before = before;
        }
        if let Some(before) = self.places.get_mut(before as usize) {
            before.of_inode.after = after;
            return;
        }
        let hash = self.hash_inode(held.inode);
        let places = &self.places;
        if let Ok(mut entry) = self.inodes.find_entry(hash, |other| places[*other as usize].inode == held.inode) {
            if after == NONE {
                entry.remove();
            } else {
                *entry.get_mut() = after;
            }
        }
    }

    fn unlink_from_client(&mut self, held: &Held) {
        let Links { before, after } = held.of_client;
        if let Some(before) = self.places.get_mut(before as usize) {
            before.of_client.after = after;
        }
        if let Some(after) = self.places.get_mut(after as usize) {
            after.of_client.before = before;
        }
        let Some(ages) = self.clients.get_mut(&held.client) else { return };
        ages.count -= 1;
        ages.recalled -= usize::from(held.recalled);
        if before == NONE {
            ages.oldest = after;
        }
        if after == NONE {
            ages.youngest = before;
        }
        if ages.count == 0 {
            self.clients.remove(&held.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Leases, Limits, Looked};
    use super::*;

    #[test]
    fn a_lease_that_has_had_all_its_names_is_recalled() {
        let mut leases = Leases::new(Limits::default(), 0, Default::default());
        let client = ClientId(1);
        let grant = |leases: &mut Leases| {
            let mut actions = Vec::new();
            let looked = Looked { stamp: 0, own: Aspects::empty() };
            let what = (InodeKey(0), Aspects::ATTRIBUTES);
            (leases.grant(client, what, looked, Default::default(), &mut actions), actions)
        };
        assert!(grant(&mut leases).0.is_some());
        leases.table.places[0].generation = u32::MAX - 1;
        let last = name(0, 0, u32::MAX);
        assert_eq!(grant(&mut leases), (Some((last, Aspects::ATTRIBUTES)), vec![]));
        assert_eq!(grant(&mut leases), (None, vec![Action::Recall { client, lease: last }]));
        assert_eq!(grant(&mut leases), (None, vec![]), "it is asked for once");
        assert!(leases.table.remove(client, last).is_some());
        assert_eq!(grant(&mut leases).0, Some((name(0, 0, 0), Aspects::ATTRIBUTES)));
    }
}
