//! The marker of a store: a file that says whose it is. A directory without it is no store, as a
//! mount point is on which nothing is mounted.
//!
//! `store`, little-endian: magic 16 bytes, server u64, MAC 16 bytes.

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

const MAGIC: [u8; 16] = *b"Aqueduct store1\n";

/// Bytes of a marker.
pub const LENGTH: usize = 40;

/// The marker of a server's store.
pub fn encode(key: &LayoutKey, server: ServerKey) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(server.to_le_bytes());
    bytes.extend(key.mac(NAME.as_bytes(), &bytes));
    bytes
}

/// Whose store a marker is; `None`: nobody's of this volume.
pub fn decode(key: &LayoutKey, bytes: &[u8]) -> Option<ServerKey> {
    let (body, mac) = bytes.split_at_checked(LENGTH - 16)?;
    let server = body.strip_prefix(&MAGIC)?;
    key.is_mac(NAME.as_bytes(), body, mac).then_some(u64::from_le_bytes(*server.first_chunk()?))
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
    file.write_all(&encode(key, server))?;
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
        let bytes = fs::read(path.join(NAME)).unwrap();
        assert_eq!(decode(&key, &bytes), Some(7));
        assert_eq!(decode(&LayoutKey::of_volume(&[2; 32]), &bytes), None);
        assert_eq!(fs::read_dir(path.join(OBJECTS)).unwrap().count(), FOLDERS);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&key, &damaged), None);
            assert_eq!(decode(&key, &bytes[..at]), None);
        }
    }
}
