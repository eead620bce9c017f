//! Handles and reopen tokens as bytes, under a keyed MAC: what was not made here, for this export and with this key, is not believed.
//!
//! Little-endian. Handle: form u8, then
//! - form 1, an inode of the export's own file system: handle type i32, the kernel's handle;
//! - form 2, an inode of a file system mounted below: its id u64, handle type i32, the kernel's handle;
//! - form 3, an inode in the table of this process: table u64, device u64, inode u64, birth seconds i64, birth nanoseconds u32;
//!
//! then 16 bytes MAC. Token: form u8 (16 for a file, 17 for a directory), access u32, uid u32, gid u32, a handle, 16 bytes MAC.

use std::sync::{Arc, Mutex};

use aqueduct_fs::{Errno, Handle, OpenFlags};
use constant_time_eq::constant_time_eq;

use crate::sys::{KERNEL_HANDLE_LENGTH_MAX, KernelHandle};

/// The bytes of a MAC: 2^128 guesses, and a server says no to each.
const MAC_SIZE: usize = 16;

/// What was checked lately is known again: a request names its file several times, the next one
/// often names the same, and a MAC takes 640 instructions. One place for each first byte of a MAC.
const KNOWN_MAX: usize = 1 << u8::BITS;

const FORM_OWN: u8 = 1;
const FORM_MOUNTED: u8 = 2;
const FORM_TABLE: u8 = 3;
const FORM_TOKEN: u8 = 16;
const FORM_DIRECTORY_TOKEN: u8 = 17;

/// Form, file system and type before the longest kernel handle, and the MAC behind: it must fit the contract's limit.
const _: () = assert!(1 + 8 + 4 + KERNEL_HANDLE_LENGTH_MAX + MAC_SIZE <= aqueduct_fs::HANDLE_LENGTH_MAX);

/// What names an inode in the table of this process. The birth tells a new inode with an old number apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TableKey {
    /// Its device, major in the upper half.
    pub(crate) device: u64,
    /// Its number.
    pub(crate) ino: u64,
    /// When it was made.
    pub(crate) birth: aqueduct_fs::Time,
}

/// What a handle stands for.
pub(crate) enum Place {
    /// An inode of the export's own file system.
    Own(KernelHandle),
    /// An inode of the file system with this id, mounted below the export's root.
    Mounted(u64, KernelHandle),
    /// An inode in the table with this id.
    Table(u64, TableKey),
}

/// What a token allows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The file.
    pub(crate) handle: Handle,
    /// How it was open.
    pub(crate) access: OpenFlags,
    /// Who opened it.
    pub(crate) uid: u32,
    /// With which group.
    pub(crate) gid: u32,
    /// It is a directory.
    pub(crate) directory: bool,
}

/// Makes and checks MACs for one export.
#[derive(Clone)]
pub(crate) struct Seal {
    /// Made of the server's key, the export's number and its root.
    key: [u8; 32],
    owner: u64,
    /// Handles whose MAC was right.
    known: Arc<[Mutex<Vec<u8>>]>,
}

impl Seal {
    /// For the export of this number, below the directory that the kernel calls `root`. The kernel
    /// finds an inode by its handle wherever it lies, and does not tell where: so what was found
    /// below one directory is nothing below another that has taken its place, in which nobody has
    /// been told to serve it.
    pub(crate) fn new(key: [u8; 32], export: u32, root: &KernelHandle) -> Seal {
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&export.to_le_bytes());
        // No handle or token begins with this letter.
        let owner = hasher.clone().update(b"owner").finalize();
        hasher.update(b"root").update(&root.kind.to_le_bytes()).update(root.bytes());
        let owner = owner.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let known = (0..KNOWN_MAX).map(|_| Mutex::default()).collect();
        Seal { key: *hasher.finalize().as_bytes(), owner, known }
    }

    fn mac(&self, bytes: &[u8]) -> [u8; MAC_SIZE] {
        let mut mac = [0; MAC_SIZE];
        mac.copy_from_slice(&blake3::keyed_hash(&self.key, bytes).as_bytes()[..MAC_SIZE]);
        mac
    }

    fn close(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let mac = self.mac(&bytes);
        bytes.extend_from_slice(&mac);
        bytes
    }

    /// The bytes before the MAC, if it is ours. Each comparison takes as long wherever the two
    /// differ: else who guesses a MAC would learn how much of it is right.
    fn open<'a>(&self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (bytes, mac) = sealed.split_at_checked(sealed.len().checked_sub(MAC_SIZE)?)?;
        let known = &self.known[usize::from(mac[0])];
        // Whoever finds another looking there need not wait for that.
        if known.try_lock().is_ok_and(|known| constant_time_eq(&known, sealed)) {
            return Some(bytes);
        }
        if !constant_time_eq(&self.mac(bytes), mac) {
            return None;
        }
        if sealed.len() <= aqueduct_fs::HANDLE_LENGTH_MAX
            && let Ok(mut known) = known.try_lock()
        {
            known.clear();
            known.extend_from_slice(sealed);
        }
        Some(bytes)
    }

    /// Tells this export's files from those of others in one folder; the same after a restart.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The handle of a place.
    pub(crate) fn handle(&self, place: &Place) -> Result<Handle, Errno> {
        let mut bytes = Vec::with_capacity(64);
        let mut push_kernel = |start: &[&[u8]], kernel: &KernelHandle| {
            start.iter().for_each(|part| bytes.extend_from_slice(part));
            bytes.extend_from_slice(&kernel.kind.to_le_bytes());
            bytes.extend_from_slice(kernel.bytes());
        };
        match place {
            Place::Own(kernel) => push_kernel(&[&[FORM_OWN]], kernel),
            Place::Mounted(id, kernel) => push_kernel(&[&[FORM_MOUNTED], &id.to_le_bytes()], kernel),
            Place::Table(table, key) => {
                bytes.push(FORM_TABLE);
                bytes.extend_from_slice(&table.to_le_bytes());
                bytes.extend_from_slice(&key.device.to_le_bytes());
                bytes.extend_from_slice(&key.ino.to_le_bytes());
                bytes.extend_from_slice(&key.birth.seconds.to_le_bytes());
                bytes.extend_from_slice(&key.birth.nanos.to_le_bytes());
            }
        }
        Handle::new(&self.close(bytes)).ok_or(Errno::EOVERFLOW)
    }

    /// The place of a handle; ESTALE when it is not ours.
    pub(crate) fn place(&self, handle: &[u8]) -> Result<Place, Errno> {
        self.open(handle).and_then(parse_place).ok_or(Errno::ESTALE)
    }

    /// The file system of a handle (`own`: that of the export) and what names the inode there, which is the same for all exports.
    pub(crate) fn inode_name<'a>(&self, handle: &'a [u8], own: u64) -> Option<(u64, &'a [u8])> {
        let (form, name) = self.open(handle)?.split_first()?;
        match *form {
            FORM_OWN => Some((own, name)),
            FORM_MOUNTED => name.split_first_chunk().map(|(id, name)| (u64::from_le_bytes(*id), name)),
            // Without the number of the table: the device is named behind it.
            FORM_TABLE => name.split_first_chunk::<8>().map(|(_, name)| (u64::MAX, name)),
            _ => None,
        }
    }

    /// The token that lets an open be had again.
    pub(crate) fn token(&self, token: &Token) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(96);
        bytes.push(if token.directory { FORM_DIRECTORY_TOKEN } else { FORM_TOKEN });
        bytes.extend_from_slice(&token.access.bits().to_le_bytes());
        bytes.extend_from_slice(&token.uid.to_le_bytes());
        bytes.extend_from_slice(&token.gid.to_le_bytes());
        bytes.extend_from_slice(token.handle.bytes());
        self.close(bytes).into()
    }

    /// What a token allows; ESTALE when it is not ours.
    pub(crate) fn check_token(&self, token: &[u8]) -> Result<Token, Errno> {
        self.open(token).and_then(parse_token).ok_or(Errno::ESTALE)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (part, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*part)
}

fn parse_place(mut bytes: &[u8]) -> Option<Place> {
    let bytes = &mut bytes;
    match take::<1>(bytes)?[0] {
        FORM_OWN => {
            let kind = i32::from_le_bytes(take(bytes)?);
            Some(Place::Own(KernelHandle::new(kind, bytes)?))
        }
        FORM_MOUNTED => {
            let id = u64::from_le_bytes(take(bytes)?);
            let kind = i32::from_le_bytes(take(bytes)?);
            Some(Place::Mounted(id, KernelHandle::new(kind, bytes)?))
        }
        FORM_TABLE => {
            let table = u64::from_le_bytes(take(bytes)?);
            let device = u64::from_le_bytes(take(bytes)?);
            let ino = u64::from_le_bytes(take(bytes)?);
            let seconds = i64::from_le_bytes(take(bytes)?);
            let nanos = u32::from_le_bytes(take(bytes)?);
            let key = TableKey { device, ino, birth: aqueduct_fs::Time { seconds, nanos } };
            bytes.is_empty().then_some(Place::Table(table, key))
        }
        _ => None,
    }
}

fn parse_token(mut bytes: &[u8]) -> Option<Token> {
    let bytes = &mut bytes;
    let directory = match take::<1>(bytes)?[0] {
        FORM_TOKEN => false,
        FORM_DIRECTORY_TOKEN => true,
        _ => return None,
    };
    let access = OpenFlags::from_bits(u32::from_le_bytes(take(bytes)?))?;
    let uid = u32::from_le_bytes(take(bytes)?);
    let gid = u32::from_le_bytes(take(bytes)?);
    Some(Token { handle: Handle::new(bytes)?, access, uid, gid, directory })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(kind: i32, bytes: &[u8]) -> Place {
        Place::Own(KernelHandle::new(kind, bytes).unwrap())
    }

    fn seal(key: u8, export: u32, root: &[u8]) -> Seal {
        Seal::new([key; 32], export, &KernelHandle::new(1, root).unwrap())
    }

    proptest! {
        #[test]
        fn handles_and_tokens_round_trip(kind: i32, bytes in prop::collection::vec(any::<u8>(), 0..=128), uid: u32, access in 0u32..1024) {
            let seal = seal(7, 3, b"root");
            let handle = seal.handle(&place(kind, &bytes)).unwrap();
            prop_assert_eq!(&handle, &seal.handle(&place(kind, &bytes)).unwrap());
            match seal.place(handle.bytes()).unwrap() {
                Place::Own(kernel) => prop_assert!(kernel.kind == kind && kernel.bytes() == bytes),
                _ => prop_assert!(false),
            }
            let token = Token { handle, access: OpenFlags::from_bits_truncate(access), uid, gid: 1, directory: uid % 2 == 0 };
            let sealed = seal.token(&token);
            prop_assert!(sealed.len() <= aqueduct_fs::TOKEN_LENGTH_MAX);
            prop_assert_eq!(seal.check_token(&sealed).unwrap(), token);
            prop_assert!(seal.place(&sealed).is_err());
        }

        #[test]
        fn a_changed_handle_is_refused(at: prop::sample::Index, change in 1u8..) {
            let seal = seal(7, 3, b"root");
            let mut bytes = seal.handle(&place(1, b"abcdefgh")).unwrap().bytes().to_vec();
            // Also beside the right one, which is known then.
            prop_assert!(seal.place(&bytes).is_ok() && seal.place(&bytes).is_ok());
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            prop_assert!(seal.place(&bytes).is_err());
            prop_assert!(seal.place(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn another_export_key_or_root_is_refused() {
        let seal = seal(7, 3, b"root");
        let handle = seal.handle(&place(1, b"abcdefgh")).unwrap();
        let (export, key, root) = (self::seal(7, 4, b"root"), self::seal(8, 3, b"root"), self::seal(7, 3, b"other"));
        for other in [&export, &key, &root] {
            assert!(other.place(handle.bytes()).is_err());
        }
        assert_eq!(root.owner(), seal.owner(), "files that are kept have this name");
        assert!(export.owner() != seal.owner() && key.owner() != seal.owner());
        assert!(seal.check_token(handle.bytes()).is_err());
    }
}
