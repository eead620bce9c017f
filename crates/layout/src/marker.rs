//! The marker of a store: a file that says whose it is. A directory without it is no store, as a
//! mount point is on which nothing is mounted.
//!
//! `store`, little-endian: magic 16 bytes, server u64, identity 16 bytes (random, of this store),
//! generation u64 (see `generations`), MAC 16 bytes. The first form had
//! neither: its identity and generation are 0.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::attribute::LayoutKey;
use crate::stripe::ServerKey;

/// The marker's name.
pub const NAME: &str = "store";

/// The folder of the objects, with one folder in it for each first half byte of an id.
pub const OBJECTS: &str = "objects";

/// How many folders there are in [`OBJECTS`].
pub const FOLDERS: usize = 16;

const MAGIC_1: [u8; 16] = *b"Aqueduct store1\n";
const MAGIC: [u8; 16] = *b"Aqueduct store2\n";

/// The most bytes of a marker.
pub const LENGTH: usize = 64;

/// What a marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Whose store it is.
    pub server: ServerKey,
    /// Which one of all that this server ever had.
    pub identity: [u8; 16],
    /// How often it was begun to be used.
    pub generation: u64,
}

impl Marker {
    /// As it is stored.
    pub fn encode(&self, key: &LayoutKey) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.server.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(key.mac(NAME.as_bytes(), &bytes));
        bytes
    }
}

/// What a marker says; `None`: it is none of this volume.
pub fn decode(key: &LayoutKey, bytes: &[u8]) -> Option<Marker> {
    let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(16)?)?;
    if !key.is_mac(NAME.as_bytes(), body, mac) {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
    let server = number(16)?;
    match (*body.first_chunk()?, body.len()) {
        (MAGIC_1, 24) => Some(Marker { server, identity: [0; 16], generation: 0 }),
        (MAGIC, 48) => Some(Marker { server, identity: *body.get(24..)?.first_chunk()?, generation: number(40)? }),
        _ => None,
    }
}

/// What the marker in a store's directory says; `None`: it has none of this volume.
pub fn read(directory: &Path, key: &LayoutKey) -> Option<Marker> {
    decode(key, &fs::read(directory.join(NAME)).ok()?)
}

/// The name of a folder of objects.
pub fn folder(number: usize) -> String {
    format!("{number:x}")
}

/// Makes a store of an empty or absent directory; the marker is last. EEXIST: it is one already.
pub fn initialise(directory: &Path, key: &LayoutKey, server: ServerKey) -> io::Result<()> {
    let sync = |path: &Path| File::open(path)?.sync_all();
    if directory.join(NAME).exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let objects = directory.join(OBJECTS);
    fs::create_dir_all(&objects)?;
    for number in 0..FOLDERS {
        match fs::create_dir(objects.join(folder(number))) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    sync(&objects)?;
    let new = directory.join(format!("{NAME}.new"));
    let mut file = File::create(&new)?;
    let mut identity = [0; 16];
    getrandom::fill(&mut identity).map_err(io::Error::other)?;
    file.write_all(&Marker { server, identity, generation: 0 }.encode(key))?;
    file.sync_all()?;
    fs::rename(&new, directory.join(NAME))?;
    sync(directory)?;
    directory.parent().map_or(Ok(()), sync)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_made_once_and_is_its_servers() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key) = (folder.path().join("s"), LayoutKey::of_volume(&[1; 32]));
        initialise(&path, &key, 7).unwrap();
        assert_eq!(initialise(&path, &key, 7).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let marker = read(&path, &key).unwrap();
        assert_eq!((marker.server, marker.generation, marker.identity != [0; 16]), (7, 0, true));
        assert_eq!(read(&path, &LayoutKey::of_volume(&[2; 32])), None);
        assert_eq!(read(folder.path(), &key), None);
        assert_eq!(fs::read_dir(path.join(OBJECTS)).unwrap().count(), FOLDERS);
        let bytes = Marker { generation: 3, ..marker }.encode(&key);
        assert_eq!((bytes.len(), decode(&key, &bytes)), (LENGTH, Some(Marker { generation: 3, ..marker })));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&key, &damaged), None);
            assert_eq!(decode(&key, &bytes[..at]), None);
        }
        let mut older = MAGIC_1.to_vec();
        older.extend(7u64.to_le_bytes());
        older.extend(key.mac(NAME.as_bytes(), &older));
        assert_eq!(decode(&key, &older), Some(Marker { server: 7, identity: [0; 16], generation: 0 }));
    }
}
