//! What the server of the names remembers of the stores: an attribute of the volume's folder in
//! the tree, under a MAC, so that it changes in one step and goes where the tree goes.
//!
//! Little-endian: version u8 (2), count u8, for each server: its key u64, flags u8 (1: it is to be
//! emptied, 2: its store was used), 7 times 0, the store's identity 16 bytes, its generation u64;
//! MAC 16 bytes. Version 1 has neither identities nor generations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use aqueduct_fs::{Errno, Handle, Request, XATTR_SIZE_MAX, XattrMode};

use crate::attribute::LayoutKey;
use crate::backing::{Backing, own};
use crate::gate::Gate;
use crate::stripe::ServerKey;

/// The attribute's name.
const NAME: &[u8] = b"trusted.aqueduct.servers";

const VERSION: u8 = 2;
const ENTRY_LENGTH_1: usize = 16;
const ENTRY_LENGTH: usize = 40;
const MAC_LENGTH: usize = 16;

const DRAINS: u8 = 1;
const SEEN: u8 = 2;

/// The most servers that are remembered: as many as the count can say.
const SERVERS_MAX: usize = 255;

/// How a store was when it was used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) identity: [u8; 16],
    pub(crate) generation: u64,
}

/// What is remembered of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    drains: bool,
    seen: Option<Seen>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger(BTreeMap<ServerKey, Entry>);

impl Ledger {
    /// Whether a server is to be emptied.
    pub(crate) fn drains(&self, server: ServerKey) -> bool {
        self.0.get(&server).is_some_and(|entry| entry.drains)
    }

    /// How its store was when it was used last.
    pub(crate) fn seen(&self, server: ServerKey) -> Option<Seen> {
        self.0.get(&server)?.seen
    }

    /// The same, with a server that is to be emptied, or is not.
    pub(crate) fn with(&self, server: ServerKey, drains: bool) -> Ledger {
        self.with_entry(server, |entry| entry.drains = drains)
    }

    /// The same, with a store that was used, or of which nothing is known.
    pub(crate) fn with_seen(&self, server: ServerKey, seen: Option<Seen>) -> Ledger {
        self.with_entry(server, |entry| entry.seen = seen)
    }

    fn with_entry(&self, server: ServerKey, change: impl FnOnce(&mut Entry)) -> Ledger {
        let mut all = self.0.clone();
        change(all.entry(server).or_default());
        all.retain(|_, entry| *entry != Entry::default());
        Ledger(all)
    }

    fn encode(&self, key: &LayoutKey) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.0.len().min(SERVERS_MAX) as u8];
        for (server, entry) in self.0.iter().take(SERVERS_MAX) {
            let flags = if entry.drains { DRAINS } else { 0 } | if entry.seen.is_some() { SEEN } else { 0 };
            bytes.extend(server.to_le_bytes());
            bytes.extend([flags, 0, 0, 0, 0, 0, 0, 0]);
            let seen = entry.seen.unwrap_or(Seen { identity: [0; 16], generation: 0 });
            bytes.extend(seen.identity);
            bytes.extend(seen.generation.to_le_bytes());
        }
        bytes.extend(key.mac(NAME, &bytes));
        bytes
    }

    fn decode(key: &LayoutKey, bytes: &[u8]) -> Option<Ledger> {
        let (bytes, mac) = bytes.split_at(bytes.len().checked_sub(MAC_LENGTH)?);
        if !key.is_mac(NAME, bytes, mac) {
            return None;
        }
        let ([version, count], entries) = bytes.split_first_chunk()?;
        let length = match *version {
            1 => ENTRY_LENGTH_1,
            VERSION => ENTRY_LENGTH,
            _ => return None,
        };
        if entries.len() != usize::from(*count) * length {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
            let flags = bytes[8];
            let seen = match flags & SEEN {
                0 => None,
                _ => Some(Seen { identity: *bytes.get(16..)?.first_chunk()?, generation: number(32)? }),
            };
            Some((number(0)?, Entry { drains: flags & DRAINS != 0, seen }))
        };
        entries.chunks_exact(length).map(entry).collect::<Option<_>>().map(Ledger)
    }
}

/// The ledger of a volume, and where it is written.
pub(crate) struct Notes {
    tree: Backing,
    folder: Handle,
    pub(crate) layouts: LayoutKey,
    ledger: Mutex<Ledger>,
    /// Who changes it has it alone.
    writing: Gate,
}

impl Notes {
    /// What is remembered in a folder of the tree, where changes are stable when they are answered.
    /// EIO: it is not this volume's.
    pub(crate) async fn read(tree: &Backing, folder: &Handle, key: &LayoutKey) -> Result<Arc<Notes>, Errno> {
        let (ledger, writing) = (Mutex::new(read(tree, folder, key).await?), Gate::default());
        Ok(Arc::new(Notes { tree: tree.clone(), folder: folder.clone(), layouts: key.clone(), ledger, writing }))
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Reads it again: another process may have written it.
    pub(crate) async fn look_again(&self) -> Result<(), Errno> {
        let _alone = self.writing.alone().await;
        let ledger = read(&self.tree, &self.folder, &self.layouts).await?;
        *self.now() = ledger;
        Ok(())
    }

    /// Remembers something else from now on.
    pub(crate) async fn change(&self, change: impl FnOnce(&Ledger) -> Ledger) -> Result<(), Errno> {
        let _alone = self.writing.alone().await;
        let next = change(&self.now());
        write(&self.tree, &self.folder, &self.layouts, &next).await?;
        *self.now() = next;
        Ok(())
    }
}

/// What is remembered. EIO: it is not this volume's.
async fn read(tree: &Backing, folder: &Handle, key: &LayoutKey) -> Result<Ledger, Errno> {
    let request = Request::GetXattr { handle: folder.bytes(), name: NAME, size: XATTR_SIZE_MAX as u32 };
    match tree.call(&own(), request).await {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(Ledger::default()),
        found => Ledger::decode(key, &found?.bytes()?).ok_or(Errno::EIO),
    }
}

/// Remembers it: it is as stable as the tree's other changes when this returns.
async fn write(tree: &Backing, folder: &Handle, key: &LayoutKey, ledger: &Ledger) -> Result<(), Errno> {
    let value = ledger.encode(key);
    let request = Request::SetXattr { handle: folder.bytes(), name: NAME, value: &value, mode: XattrMode::Any };
    tree.call(&own(), request).await?.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_read_and_nothing_else() {
        let key = LayoutKey::of_volume(&[1; 32]);
        let seen = Some(Seen { identity: [7; 16], generation: 12 });
        let ledger = Ledger::default().with(7, true).with(8, true).with(7, false).with(9, true).with_seen(8, seen);
        assert!(ledger.drains(8) && ledger.drains(9) && !ledger.drains(7));
        assert_eq!((ledger.seen(8), ledger.seen(9), ledger.with_seen(8, None).seen(8)), (seen, None, None));
        assert_eq!(Ledger::default().with(3, true).with(3, false), Ledger::default(), "nothing is kept of it");
        let bytes = ledger.encode(&key);
        assert_eq!(Ledger::decode(&key, &bytes), Some(ledger));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Ledger::decode(&key, &damaged), None);
            assert_eq!(Ledger::decode(&key, &bytes[..at]), None);
        }
    }

    #[test]
    fn what_older_releases_have_remembered_is_read() {
        let key = LayoutKey::of_volume(&[1; 32]);
        let mut bytes = vec![1, 1];
        bytes.extend(9u64.to_le_bytes());
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(key.mac(NAME, &bytes));
        assert_eq!(Ledger::decode(&key, &bytes), Some(Ledger::default().with(9, true)));
    }
}
