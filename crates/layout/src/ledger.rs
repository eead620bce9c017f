//! What the server of the names remembers of the stores: an attribute of the volume's folder in
//! the tree, under a MAC, so that it changes in one step and goes where the tree goes.
//!
//! Little-endian: version u8 (1), count u8, for each server: its key u64, flags u8 (1: it is to be
//! emptied), 7 times 0; MAC 16 bytes.

use aqueduct_fs::{Errno, Handle, Request, XATTR_SIZE_MAX, XattrMode};

use crate::attribute::LayoutKey;
use crate::store::{Backing, own};
use crate::stripe::ServerKey;

/// The attribute's name.
const NAME: &[u8] = b"trusted.aqueduct.servers";

const VERSION: u8 = 1;
const ENTRY_LENGTH: usize = 16;
const MAC_LENGTH: usize = 16;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    draining: Vec<ServerKey>,
}

impl Ledger {
    /// Whether a server is to be emptied.
    pub(crate) fn drains(&self, server: ServerKey) -> bool {
        self.draining.contains(&server)
    }

    /// The same, with a server that is to be emptied, or is not.
    pub(crate) fn with(&self, server: ServerKey, drains: bool) -> Ledger {
        let mut draining: Vec<_> = self.draining.iter().copied().filter(|known| *known != server).collect();
        draining.extend(drains.then_some(server));
        Ledger { draining }
    }

    fn encode(&self, key: &LayoutKey) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.draining.len() as u8];
        for server in &self.draining {
            bytes.extend(server.to_le_bytes());
            bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes.extend(key.mac(NAME, &bytes));
        bytes
    }

    fn decode(key: &LayoutKey, bytes: &[u8]) -> Option<Ledger> {
        let (bytes, mac) = bytes.split_at(bytes.len().checked_sub(MAC_LENGTH)?);
        let ([VERSION, count], entries) = bytes.split_first_chunk()? else { return None };
        let (entries, rest) = entries.as_chunks::<ENTRY_LENGTH>();
        if !key.is_mac(NAME, bytes, mac) || !rest.is_empty() || entries.len() != usize::from(*count) {
            return None;
        }
        let drains = entries.iter().filter(|entry| entry[8] == 1);
        let server = |entry: &[u8; ENTRY_LENGTH]| Some(u64::from_le_bytes(*entry.first_chunk()?));
        Some(Ledger { draining: drains.map(server).collect::<Option<_>>()? })
    }
}

/// What is remembered. EIO: it is not this volume's.
pub(crate) async fn read(tree: &Backing, folder: &Handle, key: &LayoutKey) -> Result<Ledger, Errno> {
    let request = Request::GetXattr { handle: folder.bytes(), name: NAME, size: XATTR_SIZE_MAX as u32 };
    match tree.call(&own(), request).await {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(Ledger::default()),
        found => Ledger::decode(key, &found?.bytes()?).ok_or(Errno::EIO),
    }
}

/// Remembers it: it is as stable as the tree's other changes when this returns.
pub(crate) async fn write(tree: &Backing, folder: &Handle, key: &LayoutKey, ledger: &Ledger) -> Result<(), Errno> {
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
        let ledger = Ledger::default().with(7, true).with(8, true).with(7, false).with(9, true);
        assert!(ledger.drains(8) && ledger.drains(9) && !ledger.drains(7));
        let bytes = ledger.encode(&key);
        assert_eq!(Ledger::decode(&key, &bytes), Some(ledger));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Ledger::decode(&key, &damaged), None);
            assert_eq!(Ledger::decode(&key, &bytes[..at]), None);
        }
    }
}
