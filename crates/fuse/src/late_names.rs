//! Under which names the kernel was told of files lately.
//!
//! A name is noted with each look-up, and seldom read. So it is appended to a short buffer, which
//! stays in the processor's caches. A table with a place for each inode costs a cache miss for
//! each name: 0.4 us, where a look-up that the lease cache answers takes 12.

use std::sync::Mutex;

use aqueduct_worker::lock;

/// A node id holds its shard in its lowest bits, so that workers rarely meet at a lock.
const SHARDS: usize = 16;

/// Bytes of a half of a shard: some 100 names of 20 bytes. All together have 128 KiB.
const HALF: usize = 4 << 10;

/// A node id and that of its directory.
const IDS: usize = 16;

/// The last few thousand names that the kernel was told. A name that is told again is kept again:
/// many look-ups of a few files push out the names of others.
#[derive(Default)]
pub(crate) struct LateNames([Mutex<Shard>; SHARDS]);

/// Names behind one another: the two node ids, the length of the name in one byte, and the name.
/// When the young half is full, the old one makes room.
#[derive(Default)]
struct Shard {
    young: Vec<u8>,
    old: Vec<u8>,
    /// Where the last name of the young half begins.
    last: usize,
}

impl LateNames {
    fn of(&self, node: u64) -> &Mutex<Shard> {
        &self.0[node as usize % SHARDS]
    }

    /// The kernel is told of a file under this name.
    pub(crate) fn put(&self, node: u64, parent: u64, name: &[u8]) {
        let Ok(length) = u8::try_from(name.len()) else { return };
        let mut ids = [0; IDS];
        ids[..IDS / 2].copy_from_slice(&node.to_ne_bytes());
        ids[IDS / 2..].copy_from_slice(&parent.to_ne_bytes());
        lock(self.of(node)).put(ids, length, name);
    }

    /// The directory, and the name in it, under which the kernel was told of a file last.
    pub(crate) fn get(&self, node: u64) -> Option<(u64, Vec<u8>)> {
        let shard = lock(self.of(node));
        [&shard.young, &shard.old].into_iter().find_map(|half| {
            let last = all(half).filter(|(of, ..)| *of == node).last();
            last.map(|(_, parent, name)| (parent, name.to_vec()))
        })
    }
}

impl Shard {
    fn put(&mut self, ids: [u8; IDS], length: u8, name: &[u8]) {
        // The usual repetition, one name again and again, pushes nothing out.
        let last = &self.young[self.last..];
        if last.starts_with(&ids) && last[IDS + 1..] == *name {
            return;
        }
        if self.young.len() + IDS + 1 + name.len() > HALF {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.last = self.young.len();
        self.young.extend_from_slice(&ids);
        self.young.push(length);
        self.young.extend_from_slice(name);
    }
}

/// The node ids and names in a half, in the order in which they came.
fn all(mut half: &[u8]) -> impl Iterator<Item = (u64, u64, &[u8])> {
    std::iter::from_fn(move || {
        let (node, rest) = half.split_first_chunk()?;
        let (parent, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first()?;
        let (name, rest) = rest.split_at_checked((*length).into())?;
        half = rest;
        Some((u64::from_ne_bytes(*node), u64::from_ne_bytes(*parent), name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_a_file_is_found_until_many_others_came() {
        let names = LateNames::default();
        names.put(16, 1, b"a");
        assert_eq!((names.get(16), names.get(32)), (Some((1, b"a".to_vec())), None));
        names.put(32, 16, b"bc");
        names.put(16, 2, b"");
        assert_eq!((names.get(16), names.get(32)), (Some((2, Vec::new())), Some((16, b"bc".to_vec()))));
        names.put(48, 1, &[b'x'; 256]);
        assert_eq!(names.get(48), None, "no name is as long");
        names.put(17, 1, b"elsewhere");
        (0..1000).for_each(|_| names.put(48, 1, b"again and again"));
        assert_eq!(names.get(16), Some((2, Vec::new())));
        let longest = [b'y'; 255];
        (4..).map(|number| number * 16).take(HALF / 255).for_each(|node| names.put(node, 1, &longest));
        assert_eq!(names.get(16), Some((2, Vec::new())), "it is in the old half");
        (4..).map(|number| number * 16).take(2 * HALF / 255).for_each(|node| names.put(node, 1, &longest));
        assert_eq!(names.get(16), None);
        assert_eq!(names.get(17), Some((1, b"elsewhere".to_vec())), "of another shard");
        let shard = lock(names.of(16));
        assert!(shard.young.len() <= HALF && shard.old.len() <= HALF);
    }
}
