//! The server's key: 32 random bytes in the state folder, with which handles and tokens are made and checked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Kind};

/// The secret.
pub type Key = [u8; 32];

const FILE_NAME: &str = "mac.key";

/// Reads the key, or makes one. Two servers that start at once get the same.
pub fn load_or_create(state: &Path) -> Result<Key, Failure> {
    let path = path(state);
    let failed = |why: &dyn std::fmt::Display, hint: String| {
        Err(Failure::new(format!("cannot use the server's key {}", path.display()), why, hint).of(Kind::State))
    };
    match read(&path)
        .or_else(|error| if error.kind() == ErrorKind::NotFound { create(state, &path) } else { Err(error) })
    {
        Ok(key) => Ok(key),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            failed(&error, format!("mend it, or remove it (clients then lose their open files): {}", path.display()))
        }
        Err(error) => failed(&error, "name a folder that this user may write with --state".to_owned()),
    }
}

/// A key for a server that keeps none.
pub fn random() -> Result<Key, Failure> {
    let mut key = Key::default();
    getrandom::fill(&mut key)
        .map_err(|error| Failure::new("cannot make a key", error, "see why the kernel gives no random bytes"))?;
    Ok(key)
}

/// Where the key of a server with this state folder lies.
pub fn path(state: &Path) -> PathBuf {
    state.join(FILE_NAME)
}

/// Reads the key of a server that has been started with this state folder.
pub fn load(state: &Path) -> io::Result<Key> {
    read(&path(state))
}

/// Reads a key from its file.
pub fn load_from(path: &Path) -> io::Result<Key> {
    read(path)
}

/// Makes a key where there is none yet.
pub fn create_at(path: &Path) -> io::Result<()> {
    let mut key = Key::default();
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&key)?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<Key> {
    let mut file = File::open(path)?;
    let invalid = |message: String| io::Error::new(ErrorKind::InvalidData, message);
    let mode = file.metadata()?.mode();
    if mode & 0o077 != 0 {
        return Err(invalid(format!("others may read it (mode {:04o}); it has to be 0600", mode & 0o7777)));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    bytes.try_into().map_err(|bytes: Vec<u8>| invalid(format!("it has {} bytes instead of 32", bytes.len())))
}

/// Writes a new key under a name of its own and links it into place, so that it is there whole or not at all, and the first of several wins.
fn create(state: &Path, path: &Path) -> io::Result<Key> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    let mut key = Key::default();
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let fresh = state.join(format!("{FILE_NAME}.{}", std::process::id()));
    let written = write(&fresh, &key).and_then(|()| match fs::hard_link(&fresh, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        result => result,
    });
    let removed = fs::remove_file(&fresh);
    written.and(removed)?;
    File::open(state)?.sync_all()?;
    read(path)
}

fn write(path: &Path, key: &Key) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(key)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_stays_and_is_ours_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("a/b");
        let key = load_or_create(&state).unwrap();
        assert_eq!(load_or_create(&state).unwrap(), key);
        assert_ne!(load_or_create(&folder.path().join("c")).unwrap(), key);
        let path = state.join(FILE_NAME);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load_or_create(&state).unwrap_err().to_string().contains("0644"));
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join(FILE_NAME), &Key::default()).unwrap();
        OpenOptions::new().write(true).open(folder.path().join(FILE_NAME)).unwrap().set_len(7).unwrap();
        assert!(load_or_create(folder.path()).unwrap_err().to_string().contains("7 bytes"));
    }
}
